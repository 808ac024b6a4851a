//! Linkerd's Servers, as far as discovery reads them: which make a port of a workload opaque.

use std::{collections::HashMap, sync::Arc};

use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use crate::api;
use crate::{
    api::{LabelSelectorObject, NamespacedName},
    cluster::{
        Affected, Kind, Problems, Projected, State,
        index::{
            label_selector::{ByLabelSelector, LabelSelector},
            selector::Labels,
        },
    },
};

/// A Server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Server {
    pub key: NamespacedName,
    pub port: ServerPort,
    /// What it says about opaqueness; `None` for a Server of another protocol, which changes nothing.
    opaque: Option<Selectors>,
}

/// What an absent selector selects is nothing, and an empty one everything.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Selectors {
    pods: Option<LabelSelector>,
    workloads: Option<LabelSelector>,
}

/// `spec.port`: a string is a name, even if it is all digits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ServerPort {
    Number(u16),
    Name(Box<str>),
    /// A number that is no port.
    Invalid,
}

/// All Servers of a cluster.
#[derive(Default)]
pub struct Servers {
    namespaces: HashMap<Arc<str>, Namespace>,
    count: usize,
}

#[derive(Default)]
struct Namespace {
    by_name: HashMap<Arc<str>, Arc<Server>>,
    pods: ByLabelSelector,
    workloads: ByLabelSelector,
}

// === impl Server ===

impl Projected for Server {
    type Wire = api::Server;
    const KIND: Kind = Kind::Server;

    fn project(wire: api::Server, problems: &mut Problems) -> Self {
        let spec = wire.spec.unwrap_or_default();
        let mut parse = |field: &str, selector: Option<LabelSelectorObject>| {
            let parsed = LabelSelector::parse(selector?);
            parsed.map_err(|error| problems.add(format_args!("{field} selects nothing: {error}"))).ok()
        };
        let (pods, workloads) = (
            parse("podSelector", spec.pod_selector),
            parse("externalWorkloadSelector", spec.external_workload_selector),
        );
        let opaque = spec.proxy_protocol.as_deref() == Some("opaque");
        Self {
            key: NamespacedName::of(&wire.metadata),
            port: match spec.port {
                Some(IntOrString::String(name)) => ServerPort::Name(name.into()),
                Some(IntOrString::Int(number)) => u16::try_from(number).map_or(ServerPort::Invalid, ServerPort::Number),
                None => ServerPort::Invalid,
            },
            opaque: opaque.then_some(Selectors { pods, workloads }),
        }
    }

    fn apply(self, state: &mut State) -> Affected {
        let key = self.key.clone();
        let known = state.servers.get(&key).cloned();
        if known.as_deref() == Some(&self) {
            return Affected::default();
        }
        let mut affected = self.discovered(state);
        affected.extend(Self::remove(&key, state));
        state.servers.insert(self);
        affected
    }

    fn remove(key: &NamespacedName, state: &mut State) -> Affected {
        match state.servers.remove(key) {
            Some(old) => old.discovered(state),
            None => Affected::default(),
        }
    }

    fn keys(state: &State) -> Vec<NamespacedName> {
        let namespaces = state.servers.namespaces.values();
        namespaces.flat_map(|namespace| namespace.by_name.values()).map(|server| server.key.clone()).collect()
    }
}

impl Server {
    /// The Services that have an endpoint which it selects, or may; and the addresses of what it selects.
    fn discovered(&self, state: &State) -> Affected {
        let Some(Selectors { pods, workloads }) = &self.opaque else { return Affected::default() };
        let namespace = &*self.key.namespace;
        let mut affected = Affected::default();
        // Without a label that all which it selects carry, the Services of every workload would have to be looked up.
        let any = [pods, workloads].into_iter().flatten().any(|selector| selector.equal().is_none());
        if any {
            affected.discovered.extend(state.slices.services(namespace));
        }
        for pod in pods.iter().flat_map(|selector| state.pods.selected(namespace, selector)) {
            affected.addresses.extend(pod.network_addresses());
            if !any {
                affected.discovered.extend(state.slices.services_with_pod(&pod.key));
            }
        }
        for workload in workloads.iter().flat_map(|selector| state.external_workloads.matched(namespace, selector)) {
            affected.addresses.extend(workload.network_addresses());
            if !any {
                affected.discovered.extend(state.slices.services_with_external_workload(&workload.key));
            }
        }
        affected
    }
}

// === impl Servers ===

impl Servers {
    pub fn len(&self) -> usize {
        self.count
    }

    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The Servers that make a port opaque for Pods with these labels.
    pub fn opaque_for_pod<'a>(&'a self, namespace: &str, labels: &'a Labels) -> impl Iterator<Item = &'a Arc<Server>> {
        let namespace = self.namespaces.get(namespace);
        let names = namespace.into_iter().flat_map(|it| it.pods.candidates(labels));
        let servers = names.filter_map(move |name| namespace?.by_name.get(name));
        servers.filter(|server| server.selectors().and_then(|it| it.pods.as_ref()).is_some_and(|it| it.matches(labels)))
    }

    /// The Servers that make a port opaque for ExternalWorkloads with these labels.
    pub fn opaque_for_workload<'a>(
        &'a self,
        namespace: &str,
        labels: &'a Labels,
    ) -> impl Iterator<Item = &'a Arc<Server>> {
        let namespace = self.namespaces.get(namespace);
        let names = namespace.into_iter().flat_map(|it| it.workloads.candidates(labels));
        let servers = names.filter_map(move |name| namespace?.by_name.get(name));
        servers.filter(|server| {
            server.selectors().and_then(|it| it.workloads.as_ref()).is_some_and(|it| it.matches(labels))
        })
    }

    fn get(&self, key: &NamespacedName) -> Option<&Arc<Server>> {
        self.namespaces.get(&key.namespace)?.by_name.get(&key.name)
    }

    fn insert(&mut self, server: Server) {
        self.count += 1;
        let namespace = self.namespaces.entry(Arc::clone(&server.key.namespace)).or_default();
        let name = &server.key.name;
        if let Some(pods) = server.selectors().and_then(|it| it.pods.as_ref()) {
            namespace.pods.insert(pods, name);
        }
        if let Some(workloads) = server.selectors().and_then(|it| it.workloads.as_ref()) {
            namespace.workloads.insert(workloads, name);
        }
        namespace.by_name.insert(Arc::clone(name), Arc::new(server));
    }

    fn remove(&mut self, key: &NamespacedName) -> Option<Arc<Server>> {
        let namespace = self.namespaces.get_mut(&key.namespace)?;
        let old = namespace.by_name.remove(&key.name)?;
        self.count -= 1;
        if let Some(pods) = old.selectors().and_then(|it| it.pods.as_ref()) {
            namespace.pods.remove(pods, &key.name);
        }
        if let Some(workloads) = old.selectors().and_then(|it| it.workloads.as_ref()) {
            namespace.workloads.remove(workloads, &key.name);
        }
        if namespace.by_name.is_empty() {
            self.namespaces.remove(&key.namespace);
        }
        Some(old)
    }
}

impl Server {
    fn selectors(&self) -> Option<&Selectors> {
        self.opaque.as_ref()
    }
}

#[cfg(test)]
pub mod tests {
    use serde_json::{Value, json};

    use super::*;

    /// A Server from what a user would write below `spec`; and how much of it could not be used.
    pub fn server(name: &str, spec: &Value) -> (Server, usize) {
        let object = json!({"metadata": {"name": name, "namespace": "ns"}, "spec": spec});
        let mut problems = Problems::default();
        let server = Server::project(serde_json::from_value(object).unwrap(), &mut problems);
        (server, problems.len())
    }

    #[test]
    fn only_servers_that_are_opaque_and_select_the_pod_count() {
        let mut state = State::default();
        let everything = json!({});
        for (name, spec) in [
            ("all", json!({"podSelector": everything, "port": 80, "proxyProtocol": "opaque"})),
            ("web", json!({"podSelector": {"matchLabels": {"app": "web"}}, "port": "http", "proxyProtocol": "opaque"})),
            ("db", json!({"podSelector": {"matchLabels": {"app": "db"}}, "port": 80, "proxyProtocol": "opaque"})),
            ("http", json!({"podSelector": everything, "port": 80, "proxyProtocol": "HTTP/1"})),
            ("case", json!({"podSelector": everything, "port": 80, "proxyProtocol": "Opaque"})),
            ("vms", json!({"externalWorkloadSelector": everything, "port": 80, "proxyProtocol": "opaque"})),
        ] {
            server(name, &spec).0.apply(&mut state);
        }
        let labels: Labels = [("app", "web")].into_iter().collect();
        let names = |servers: Vec<&Arc<Server>>| {
            let mut names: Vec<_> = servers.iter().map(|server| server.key.name.to_string()).collect();
            names.sort();
            names
        };
        assert_eq!(names(state.servers.opaque_for_pod("ns", &labels).collect()), ["all", "web"]);
        assert_eq!(names(state.servers.opaque_for_workload("ns", &labels).collect()), ["vms"]);
        assert_eq!(state.servers.opaque_for_pod("other", &labels).count(), 0);
        for key in Server::keys(&state) {
            Server::remove(&key, &mut state);
        }
        assert!(state.servers.is_empty() && state.servers.namespaces.is_empty());
    }

    #[test]
    fn a_selector_that_cannot_be_evaluated_selects_nothing_and_is_a_problem() {
        let selector = json!({"matchExpressions": [{"key": "app", "operator": "In"}]});
        let (server, problems) =
            server("bad", &json!({"podSelector": selector, "port": 80, "proxyProtocol": "opaque"}));
        assert_eq!(problems, 1);
        assert!(server.selectors().unwrap().pods.is_none());
    }

    #[test]
    fn a_port_in_quotes_is_a_name_and_one_out_of_range_is_none() {
        for (port, expected) in [
            (json!(80), ServerPort::Number(80)),
            (json!("80"), ServerPort::Name("80".into())),
            (json!(70000), ServerPort::Invalid),
            (json!(-1), ServerPort::Invalid),
            (json!(null), ServerPort::Invalid),
        ] {
            assert_eq!(server("s", &json!({"port": port})).0.port, expected, "{port}");
        }
    }
}
