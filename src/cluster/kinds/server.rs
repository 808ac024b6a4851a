//! Linkerd's Servers, reduced to the ports that they make opaque.

use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use crate::api;
use crate::{
    api::{LabelSelectorObject, NamespacedName},
    cluster::{
        Problems, Projected,
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
    /// The workloads whose port it makes opaque; `None` for a Server with another protocol.
    pub opaque: Option<Selectors>,
}

/// The selectors of a Server. An absent one selects no workloads, an empty one selects all.
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
    /// A number that is not a port.
    Invalid,
}

/// The Servers of a namespace, by their selectors.
#[derive(Default)]
pub struct BySelectors {
    pods: ByLabelSelector,
    workloads: ByLabelSelector,
}

// === impl Server ===

impl Projected for Server {
    type Wire = api::Server;
    const INFORMER_LAG: Option<&'static str> = Some("servers_informer_lag_seconds");
    const IS_OPTIONAL: bool = true;

    fn project(wire: api::Server, problems: &mut Problems) -> Self {
        let spec = wire.spec.unwrap_or_default();
        let mut parse = |field: &str, selector: Option<LabelSelectorObject>| {
            let parsed = LabelSelector::parse(selector?);
            parsed
                .map_err(|error| problems.add(format_args!("{field} is invalid and selects no workloads: {error}")))
                .ok()
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

    fn key(&self) -> NamespacedName {
        self.key.clone()
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
    use crate::cluster::{State, Watched};

    /// Returns a Server with the given `spec`, and the number of problems.
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
        for key in state.servers.keys().collect::<Vec<_>>() {
            Server::remove(&key, &mut state);
        }
        assert!(state.servers.is_empty());
    }

    #[test]
    fn an_invalid_selector_selects_no_workloads_and_is_a_problem() {
        let selector = json!({"matchExpressions": [{"key": "app", "operator": "In"}]});
        let (server, problems) =
            server("bad", &json!({"podSelector": selector, "port": 80, "proxyProtocol": "opaque"}));
        assert_eq!(problems, 1);
        assert!(server.opaque.unwrap().pods.is_none());
    }

    #[test]
    fn a_port_in_quotes_is_a_name_and_a_number_out_of_range_is_invalid() {
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
