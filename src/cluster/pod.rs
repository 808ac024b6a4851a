//! Pods: what of them decides what their endpoints look like, and which of them a selector or an owner has.

use std::{
    borrow::Cow,
    collections::{BTreeSet, HashMap},
    fmt,
    net::SocketAddr,
    sync::Arc,
};

use k8s_openapi::{api::core::v1 as core, apimachinery::pkg::apis::meta::v1::ObjectMeta, jiff::Timestamp};
use serde::{
    Deserialize, Deserializer,
    de::{SeqAccess, Visitor},
};

use super::{
    Affected, Kind, Projected, State,
    label_selector::LabelSelector,
    object::{NamespacedName, Problems, lean_metadata},
    owner::Owner,
    port_ranges::PortRanges,
    selector::{ByLabel, Labels},
};
use crate::api::{CONTROL_PLANE_NAMESPACE_LABEL, OPAQUE_PORTS_ANNOTATION, PROXY_NAME, SKIP_INBOUND_PORTS_ANNOTATION};

/// A Pod, reduced to what its endpoints show. Two that compare equal look the same to every client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pod {
    pub key: NamespacedName,
    pub labels: Labels,
    pub owner: Option<Owner>,
    pub service_account: Arc<str>,
    /// Empty before it is scheduled.
    pub node: Arc<str>,
    /// `None` leaves the choice to the mesh's default.
    pub opaque_ports: Option<PortRanges>,
    pub skipped_ports: PortRanges,
    pub ports: Box<[ContainerPort]>,
    /// `None` when there is no proxy, or it cannot be read where it listens.
    pub proxy: Option<ProxyPorts>,
    pub created: Option<Timestamp>,
    pub terminating: bool,
}

/// A port of a container, init containers included.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContainerPort {
    /// Empty where it has none.
    pub name: Arc<str>,
    pub number: u16,
    pub host_port: Option<u16>,
}

/// Where the proxy of a meshed Pod listens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProxyPorts {
    /// 1 to 65534: proxies ignore any other.
    pub inbound: u16,
    pub admin: u16,
    pub control: u16,
}

/// A Pod as the API server sends it.
#[derive(Clone, Debug, Deserialize, kube::Resource)]
#[resource(inherit = "core::Pod")]
pub struct PodObject {
    #[serde(deserialize_with = "lean_metadata")]
    metadata: ObjectMeta,
    #[serde(default)]
    spec: Option<PodSpec>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct PodSpec {
    node_name: Option<String>,
    service_account_name: Option<String>,
    init_containers: Option<Vec<Container>>,
    containers: Option<Vec<Container>>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Container {
    name: String,
    ports: Option<Vec<ContainerPortObject>>,
    #[serde(deserialize_with = "proxy_environment")]
    env: Vec<(ProxyVariable, String)>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct ContainerPortObject {
    name: Option<String>,
    container_port: i64,
    host_port: Option<i64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ProxyVariable {
    Inbound,
    Admin,
    Control,
}

/// All Pods of a cluster.
#[derive(Default)]
pub struct Pods {
    namespaces: HashMap<Arc<str>, Namespace>,
    count: usize,
}

#[derive(Default)]
struct Namespace {
    by_name: HashMap<Arc<str>, Arc<Pod>>,
    by_label: ByLabel,
    by_owner: HashMap<Owner, BTreeSet<Arc<str>>>,
}

// === impl Pod ===

impl Pod {
    /// The namespace of the control plane whose mesh the Pod is in.
    pub fn control_plane_namespace(&self) -> Option<&str> {
        self.labels.get(CONTROL_PLANE_NAMESPACE_LABEL).map(|namespace| &**namespace).filter(|it| !it.is_empty())
    }
}

impl Projected for Pod {
    type Wire = PodObject;
    const KIND: Kind = Kind::Pod;

    fn project(wire: PodObject, problems: &mut Problems) -> Self {
        let PodSpec { node_name, service_account_name, init_containers, containers } = wire.spec.unwrap_or_default();
        let containers: Vec<Container> = init_containers.into_iter().chain(containers).flatten().collect();
        let ports: Box<[ContainerPort]> =
            containers.iter().flat_map(|it| it.ports.iter().flatten()).filter_map(ContainerPort::parse).collect();
        let annotation = |key| wire.metadata.annotations.as_ref().and_then(|all| all.get(key));
        let opaque_ports = annotation(OPAQUE_PORTS_ANNOTATION).map(|text| {
            // Of ports with one name the last counts. A map: both lists may be as long as an object can be.
            let named: HashMap<&str, u16> = ports.iter().map(|port| (&*port.name, port.number)).collect();
            PortRanges::parse(text, |name| named.get(name).copied(), problems)
        });
        let labels: Labels = wire.metadata.labels.iter().flatten().collect();
        let pod = Self {
            key: NamespacedName::of(&wire.metadata),
            owner: Owner::only(&wire.metadata),
            service_account: service_account_name.filter(|it| !it.is_empty()).as_deref().unwrap_or("default").into(),
            node: node_name.unwrap_or_default().into(),
            opaque_ports,
            skipped_ports: annotation(SKIP_INBOUND_PORTS_ANNOTATION)
                .map(|text| PortRanges::parse(text, |_| None, problems))
                .unwrap_or_default(),
            // Init containers come first: that is where a native sidecar is.
            proxy: containers.iter().find(|it| it.name == PROXY_NAME).and_then(ProxyPorts::of),
            created: wire.metadata.creation_timestamp.map(|time| time.0),
            terminating: wire.metadata.deletion_timestamp.is_some(),
            ports,
            labels,
        };
        if pod.control_plane_namespace().is_some() && pod.proxy.is_none() {
            problems.add(format_args!(
                "it is meshed, but no container {PROXY_NAME} says where its proxy listens: it gets no transport header"
            ));
        }
        pod
    }

    fn apply(self, state: &mut State) -> Affected {
        let key = self.key.clone();
        if state.pods.insert(self) { Affected::discovered(state.slices.naming_pod(&key)) } else { Affected::default() }
    }

    fn remove(key: &NamespacedName, state: &mut State) -> Affected {
        if state.pods.remove(key) { Affected::discovered(state.slices.naming_pod(key)) } else { Affected::default() }
    }

    fn keys(state: &State) -> Vec<NamespacedName> {
        let namespaces = state.pods.namespaces.values();
        namespaces.flat_map(|namespace| namespace.by_name.values()).map(|pod| pod.key.clone()).collect()
    }
}

impl ContainerPort {
    /// `None` for a number that is no port: the API server takes none, and nothing can match it.
    fn parse(object: &ContainerPortObject) -> Option<Self> {
        let port = |number| u16::try_from(number).ok().filter(|port| *port != 0);
        Some(Self {
            name: object.name.as_deref().unwrap_or_default().into(),
            number: port(object.container_port)?,
            host_port: object.host_port.and_then(port),
        })
    }
}

impl ProxyPorts {
    /// `None` unless all three are literal socket addresses.
    fn of(proxy: &Container) -> Option<Self> {
        let port = |variable| {
            let (_, value) = proxy.env.iter().find(|(name, _)| *name == variable)?;
            value.parse::<SocketAddr>().ok().map(|address| address.port())
        };
        Some(Self {
            inbound: port(ProxyVariable::Inbound).filter(|inbound| (1..=65534).contains(inbound))?,
            admin: port(ProxyVariable::Admin)?,
            control: port(ProxyVariable::Control)?,
        })
    }
}

/// Keeps three variables of the dozens that a proxy has: an environment is most of a Pod.
fn proxy_environment<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<(ProxyVariable, String)>, D::Error> {
    #[derive(Deserialize)]
    struct Variable<'a> {
        #[serde(borrow)]
        name: Cow<'a, str>,
        #[serde(borrow, default)]
        value: Option<Cow<'a, str>>,
    }
    struct Environment;
    impl<'de> Visitor<'de> for Environment {
        type Value = Vec<(ProxyVariable, String)>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("environment variables")
        }

        fn visit_unit<E>(self) -> Result<Self::Value, E> {
            Ok(Vec::new())
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut variables: A) -> Result<Self::Value, A::Error> {
            let mut kept = Vec::new();
            while let Some(Variable { name, value }) = variables.next_element()? {
                let variable = match &*name {
                    "LINKERD2_PROXY_INBOUND_LISTEN_ADDR" => ProxyVariable::Inbound,
                    "LINKERD2_PROXY_ADMIN_LISTEN_ADDR" => ProxyVariable::Admin,
                    "LINKERD2_PROXY_CONTROL_LISTEN_ADDR" => ProxyVariable::Control,
                    _ => continue,
                };
                kept.push((variable, value.unwrap_or_default().into_owned()));
            }
            Ok(kept)
        }
    }
    deserializer.deserialize_any(Environment)
}

// === impl Pods ===

impl Pods {
    pub fn len(&self) -> usize {
        self.count
    }

    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    pub fn get(&self, namespace: &str, name: &str) -> Option<&Arc<Pod>> {
        self.namespaces.get(namespace)?.by_name.get(name)
    }

    /// The Pods of a namespace that the selector matches.
    pub fn selected<'a>(&'a self, namespace: &str, selector: &'a LabelSelector) -> impl Iterator<Item = &'a Arc<Pod>> {
        let namespace = self.namespaces.get(namespace);
        let by_label = namespace.and_then(|it| Some(it.by_label.candidates(selector.equal()?)));
        let all = namespace.filter(|_| selector.equal().is_none()).map(|it| it.by_name.keys());
        by_label
            .into_iter()
            .flatten()
            .chain(all.into_iter().flatten())
            .filter_map(move |name| namespace?.by_name.get(name))
            .filter(|pod| selector.matches(&pod.labels))
    }

    /// The Pods whose only owner this is.
    pub fn owned(&self, namespace: &str, owner: &Owner) -> impl Iterator<Item = &Arc<str>> {
        self.namespaces.get(namespace).and_then(|it| it.by_owner.get(owner)).into_iter().flatten()
    }

    /// Whether anything changed that a client could see.
    fn insert(&mut self, pod: Pod) -> bool {
        if self.get(&pod.key.namespace, &pod.key.name).is_some_and(|known| **known == pod) {
            return false;
        }
        self.remove(&pod.key);
        self.count += 1;
        let namespace = self.namespaces.entry(Arc::clone(&pod.key.namespace)).or_default();
        namespace.by_label.insert(&pod.labels, &pod.key.name);
        if let Some(owner) = &pod.owner {
            namespace.by_owner.entry(owner.clone()).or_default().insert(Arc::clone(&pod.key.name));
        }
        namespace.by_name.insert(Arc::clone(&pod.key.name), Arc::new(pod));
        true
    }

    fn remove(&mut self, key: &NamespacedName) -> bool {
        let Some(namespace) = self.namespaces.get_mut(&key.namespace) else { return false };
        let Some(old) = namespace.by_name.remove(&key.name) else { return false };
        self.count -= 1;
        namespace.by_label.remove(&old.labels, &key.name);
        if let Some(owner) = &old.owner
            && let Some(pods) = namespace.by_owner.get_mut(owner)
        {
            pods.remove(&key.name);
            if pods.is_empty() {
                namespace.by_owner.remove(owner);
            }
        }
        if namespace.by_name.is_empty() {
            self.namespaces.remove(&key.namespace);
        }
        true
    }
}

#[cfg(test)]
pub mod tests {
    use serde_json::{Value, json};

    use super::*;

    /// A Pod from its metadata and what a user would write below `spec`; and how much of it could not be used.
    pub fn pod(metadata: &Value, spec: &Value) -> (Pod, usize) {
        let mut object = json!({"metadata": {"name": "web-1", "namespace": "ns"}, "spec": spec});
        object["metadata"].as_object_mut().unwrap().extend(metadata.as_object().unwrap().clone());
        let mut problems = Problems::default();
        let pod = Pod::project(serde_json::from_value(object).unwrap(), &mut problems);
        (pod, problems.len())
    }

    fn proxy(inbound: &str, admin: &str, control: &str) -> Value {
        json!({"name": "linkerd-proxy", "env": [
            {"name": "LINKERD2_PROXY_LOG", "value": "warn"},
            {"name": "_pod_name", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
            {"name": "LINKERD2_PROXY_INBOUND_LISTEN_ADDR", "value": inbound},
            {"name": "LINKERD2_PROXY_ADMIN_LISTEN_ADDR", "value": admin},
            {"name": "LINKERD2_PROXY_CONTROL_LISTEN_ADDR", "value": control},
        ]})
    }

    #[test]
    fn the_proxy_is_found_as_init_container_and_as_container() {
        let sidecar = proxy("0.0.0.0:4143", "[::]:4191", "0.0.0.0:4190");
        let other = proxy("0.0.0.0:1", "0.0.0.0:2", "0.0.0.0:3");
        let ports = Some(ProxyPorts { inbound: 4143, admin: 4191, control: 4190 });
        for spec in [
            json!({"initContainers": [{"name": "init"}, sidecar], "containers": [{"name": "app"}]}),
            json!({"containers": [{"name": "app", "env": null}, sidecar]}),
            json!({"initContainers": [sidecar], "containers": [other]}),
        ] {
            assert_eq!(pod(&json!({}), &spec).0.proxy, ports, "{spec}");
        }
    }

    #[test]
    fn a_meshed_pod_whose_proxy_cannot_be_read_is_a_problem_and_an_unmeshed_one_is_not() {
        let meshed = json!({"labels": {"linkerd.io/control-plane-ns": "linkerd"}});
        for container in [
            json!({"name": "app"}),
            json!({"name": "linkerd-proxy"}),
            proxy("localhost:4143", "0.0.0.0:4191", "0.0.0.0:4190"),
            proxy("0.0.0.0:4143", ":4191", "0.0.0.0:4190"),
            proxy("0.0.0.0:4143", "0.0.0.0:4191,[::]:4191", "0.0.0.0:4190"),
            proxy("0.0.0.0:4143", "0.0.0.0:4191", ""),
            proxy("0.0.0.0:0", "0.0.0.0:4191", "0.0.0.0:4190"),
            proxy("0.0.0.0:65535", "0.0.0.0:4191", "0.0.0.0:4190"),
        ] {
            let spec = json!({"containers": [container]});
            let (found, problems) = pod(&meshed, &spec);
            assert_eq!((found.proxy, problems), (None, 1), "{container}");
            assert_eq!(pod(&json!({}), &spec).1, 0);
        }
    }

    #[test]
    fn opaque_ports_may_be_names_and_of_one_name_the_last_container_counts() {
        let spec = json!({"initContainers": [{"name": "a", "ports": [{"name": "db", "containerPort": 1}]}],
            "containers": [{"name": "b", "ports": [{"name": "db", "containerPort": 2}, {"containerPort": 70000}]}]});
        let annotations = json!({"annotations": {"config.linkerd.io/opaque-ports": "db,x,9",
            "config.linkerd.io/skip-inbound-ports": "db,7"}});
        let (pod, problems) = pod(&annotations, &spec);
        let opaque = pod.opaque_ports.unwrap();
        assert_eq!([1, 2, 9].map(|port| opaque.contains(port)), [false, true, true]);
        assert_eq!([2, 7].map(|port| pod.skipped_ports.contains(port)), [false, true], "names mean nothing here");
        assert_eq!((problems, pod.ports.len()), (2, 2));
    }

    #[test]
    fn every_shape_of_a_pod_is_read() {
        for object in [
            json!({"metadata": {"name": "a", "namespace": "ns"}}),
            json!({"metadata": {"name": "a", "namespace": "ns"}, "spec": null}),
            json!({"metadata": {"name": "a", "namespace": "ns"}, "spec": {"containers": null, "initContainers": null}}),
            json!({"metadata": {"name": "a", "namespace": "ns"}, "spec": {"containers": [{}]}}),
        ] {
            let pod = Pod::project(serde_json::from_value(object).unwrap(), &mut Problems::default());
            assert_eq!((&*pod.service_account, &*pod.node), ("default", ""));
        }
    }

    #[test]
    fn pods_are_found_by_selector_and_owner_until_they_are_gone() {
        let mut pods = Pods::default();
        let owner = json!([{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web", "uid": "u"}]);
        pods.insert(pod(&json!({"labels": {"app": "web"}, "ownerReferences": owner}), &json!({})).0);
        let selector = |value: Value| LabelSelector::parse(serde_json::from_value(value).unwrap()).unwrap();
        let (all, web, db) = (
            selector(json!({})),
            selector(json!({"matchLabels": {"app": "web"}})),
            selector(json!({"matchLabels": {"app": "db"}})),
        );
        let counts = |pods: &Pods| [&all, &web, &db].map(|it| pods.selected("ns", it).count());
        let replica_set = Owner { kind: "ReplicaSet".into(), name: "web".into() };
        assert_eq!(counts(&pods), [1, 1, 0]);
        assert_eq!(pods.owned("ns", &replica_set).count(), 1);
        assert_eq!(pods.selected("other", &all).count(), 0);
        pods.insert(pod(&json!({"labels": {"app": "db"}}), &json!({})).0);
        assert_eq!(counts(&pods), [1, 0, 1]);
        assert_eq!(pods.owned("ns", &replica_set).count(), 0);
        pods.remove(&NamespacedName::new("ns", "web-1"));
        assert!(pods.is_empty() && pods.namespaces.is_empty());
    }

    #[test]
    fn an_annotation_as_long_as_allowed_is_read_in_no_time_however_many_ports_the_pod_has() {
        // 256 KiB of annotations, and what else fits into an object.
        let names = "a,".repeat(128 * 1024);
        let ports: Vec<Value> = (0..30_000).map(|n| json!({"name": format!("p{n}"), "containerPort": 80})).collect();
        let metadata = json!({"annotations": {"config.linkerd.io/opaque-ports": names}});
        let begun = std::time::Instant::now();
        let (_, problems) = pod(&metadata, &json!({"containers": [{"name": "a", "ports": ports}]}));
        assert_eq!(problems, 128 * 1024);
        assert!(begun.elapsed() < std::time::Duration::from_secs(10), "{:?}", begun.elapsed());
    }
}
