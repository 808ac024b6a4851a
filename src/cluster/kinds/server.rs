//! Linkerd's Servers, as far as discovery reads them: which make a port of a workload opaque.

use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use crate::api;
use crate::{
    api::{LabelSelectorObject, NamespacedName},
    cluster::{
        Change, Kind, Problems, Projected, State,
        index::{
            label_selector::{ByLabelSelector, LabelSelector},
            selector::Labels,
            store::{Store, Stored},
        },
    },
};

/// A Server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Server {
    pub key: NamespacedName,
    pub port: ServerPort,
    /// What it says about opaqueness; `None` for a Server of another protocol, which changes nothing.
    pub opaque: Option<Selectors>,
}

/// What an absent selector selects is nothing, and an empty one everything.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Selectors {
    pub pods: Option<LabelSelector>,
    pub workloads: Option<LabelSelector>,
}

/// `spec.port`: a string is a name, even if it is all digits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ServerPort {
    Number(u16),
    Name(Box<str>),
    /// A number that is no port.
    Invalid,
}

/// The Servers of a namespace by what they select.
#[derive(Default)]
pub struct BySelectors {
    pods: ByLabelSelector,
    workloads: ByLabelSelector,
}

// === impl Server ===

impl Projected for Server {
    type Wire = api::Server;
    type Object = Self;
    const KIND: Kind = Kind::Server;
    const RESOURCE: &'static str = "servers.policy.linkerd.io";
    const CACHE_SIZE: &'static str = "server_cache_size";
    const INFORMER_LAG: Option<&'static str> = Some("servers_informer_lag_seconds");
    const IS_OPTIONAL: bool = true;

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

    fn apply(self, state: &mut State) -> Option<Change> {
        state.servers.apply(self).map(Change::Server)
    }

    fn remove(key: &NamespacedName, state: &mut State) -> Option<Change> {
        state.servers.delete(key).map(Change::Server)
    }

    fn keys(state: &State) -> Vec<NamespacedName> {
        state.servers.keys().collect()
    }

    fn count(state: &State) -> usize {
        state.servers.len()
    }
}

impl Server {
    fn pod_selector(&self) -> Option<&LabelSelector> {
        self.opaque.as_ref()?.pods.as_ref()
    }

    fn workload_selector(&self) -> Option<&LabelSelector> {
        self.opaque.as_ref()?.workloads.as_ref()
    }
}

impl Stored for Server {
    type NamespaceIndex = BySelectors;
    type ClusterIndex = ();

    fn namespace(&self) -> &Arc<str> {
        &self.key.namespace
    }

    fn name(&self) -> &Arc<str> {
        &self.key.name
    }

    fn index(self: &Arc<Self>, BySelectors { pods, workloads }: &mut BySelectors, (): &mut ()) {
        if let Some(selector) = self.pod_selector() {
            pods.insert(selector, &self.key.name);
        }
        if let Some(selector) = self.workload_selector() {
            workloads.insert(selector, &self.key.name);
        }
    }

    fn unindex(self: &Arc<Self>, BySelectors { pods, workloads }: &mut BySelectors, (): &mut ()) {
        if let Some(selector) = self.pod_selector() {
            pods.remove(selector, &self.key.name);
        }
        if let Some(selector) = self.workload_selector() {
            workloads.remove(selector, &self.key.name);
        }
    }
}

impl Store<Server> {
    /// The Servers that make a port opaque for Pods with these labels.
    pub fn opaque_for_pod<'a>(&'a self, namespace: &str, labels: &'a Labels) -> impl Iterator<Item = &'a Arc<Server>> {
        let servers = self.select(namespace, |index| index.pods.candidates(labels));
        servers.filter(|server| server.pod_selector().is_some_and(|selector| selector.matches(labels)))
    }

    /// The Servers that make a port opaque for ExternalWorkloads with these labels.
    pub fn opaque_for_workload<'a>(
        &'a self,
        namespace: &str,
        labels: &'a Labels,
    ) -> impl Iterator<Item = &'a Arc<Server>> {
        let servers = self.select(namespace, |index| index.workloads.candidates(labels));
        servers.filter(|server| server.workload_selector().is_some_and(|selector| selector.matches(labels)))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    /// A Server from what a user would write below `spec`; and how much of it could not be used.
    fn server(name: &str, spec: &Value) -> (Server, usize) {
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
        assert!(state.servers.is_empty());
    }

    #[test]
    fn a_selector_that_cannot_be_evaluated_selects_nothing_and_is_a_problem() {
        let selector = json!({"matchExpressions": [{"key": "app", "operator": "In"}]});
        let (server, problems) =
            server("bad", &json!({"podSelector": selector, "port": 80, "proxyProtocol": "opaque"}));
        assert_eq!(problems, 1);
        assert!(server.opaque.unwrap().pods.is_none());
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
