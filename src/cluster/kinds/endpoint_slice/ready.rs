//! The ready endpoints of one EndpointSlice, with parsed addresses.
//!
//! In: a slice, as any tenant may have written it. Out: its well-formed parts, which are not necessarily true. Each
//! part that is malformed is left out alone, and becomes a problem for the log.

use std::{collections::HashMap, net::IpAddr, sync::Arc};

use serde_json::Value;

use super::node_hints::NodeHints;
use crate::api::{
    EXTERNAL_WORKLOAD_KIND, MIRROR_CLUSTER_LABEL, MIRROR_GATEWAY_IDENTITY_ANNOTATION, MIRROR_SERVICE_ANNOTATION,
    SERVICE_NAME_LABEL,
};
use crate::{
    api::{
        LONGEST_LABEL, LONGEST_NAME, NamespacedName, Uid, carries_tcp,
        endpoint_slice::{Endpoint, SliceObject, TargetRef},
    },
    cluster::{
        Problems,
        index::{
            address::{self, Addresses},
            shared_values::SharedValues,
        },
    },
};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReadySlice {
    pub name: Arc<str>,
    pub service: NamespacedName,
    /// The TCP ports: proxies forward nothing else, and another program may write a slice with one name for two
    /// protocols. `None` if the slice has no list of ports, which is not the same as an empty one.
    pub ports: Option<Box<[SlicePort]>>,
    pub endpoints: Box<[ReadyEndpoint]>,
    /// The endpoints with a hostname, ready or not, by hostname. The first endpoint with a hostname is used.
    pub instances: HashMap<Arc<str>, Instance>,
    /// `None` if no endpoint has a hint for a node.
    pub node_hints: Option<Box<NodeHints>>,
    /// The labels and annotations of a multicluster mirror.
    pub mirror: Option<Arc<Mirror>>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlicePort {
    /// Empty for an unnamed port.
    pub name: Arc<str>,
    /// `None` means "all ports" in Kubernetes; no client can connect to that.
    pub number: Option<u16>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReadyEndpoint {
    /// Never empty.
    pub addresses: Addresses,
    pub target: EndpointReference,
    pub target_uid: TargetUid,
    pub hostname: Option<Arc<str>>,
    pub zone: Option<Arc<str>>,
    /// The zones whose clients should use the endpoint; empty without a hint.
    pub hints: Box<[Arc<str>]>,
}

/// An endpoint that clients may request by its hostname.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Instance {
    /// A Pod, and its address in the slice.
    Pod { name: Arc<str>, uid: TargetUid, address: IpAddr },
    /// An endpoint that refers to no Pod.
    Address(IpAddr),
}

/// The object in the namespace of the slice that an endpoint refers to.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum EndpointReference {
    /// The endpoint refers to no object.
    Address,
    Pod(Arc<str>),
    ExternalWorkload(Arc<str>),
}

/// The `uid` of the object that an endpoint refers to, if the slice has it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TargetUid(Option<Uid>);

/// The Service in another cluster that a slice mirrors.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Mirror {
    pub cluster: Option<Arc<str>>,
    /// The Service's name in its own cluster.
    pub service: Option<Arc<str>>,
    pub gateway_identity: Option<Arc<str>>,
}

// === impl EndpointReference ===

impl EndpointReference {
    pub fn pod(&self) -> Option<&Arc<str>> {
        match self {
            Self::Pod(name) => Some(name),
            Self::Address | Self::ExternalWorkload(_) => None,
        }
    }
}

// === impl TargetUid ===

impl TargetUid {
    fn of(target: Option<&TargetRef>) -> Self {
        Self(target.and_then(|it| it.uid.as_deref()).and_then(Uid::new))
    }

    /// Returns whether the endpoint may refer to the object with this uid: false if both uids are known and differ. Then
    /// the object was deleted and created again, and the endpoint's address is not the new object's.
    pub fn may_be(&self, uid: Option<&Uid>) -> bool {
        self.0.as_ref().zip(uid).is_none_or(|(own, uid)| own == uid)
    }
}

// === impl ReadySlice ===

impl ReadySlice {
    /// Returns `None` for a slice that names no Service.
    pub(in crate::cluster) fn of(object: &SliceObject, problems: &mut Problems) -> Option<Self> {
        let metadata = &object.metadata;
        let labels = metadata.labels.as_ref()?;
        let service = labels.get(SERVICE_NAME_LABEL)?.as_str();
        let key = NamespacedName::of(metadata);
        let annotation = |key| metadata.annotations.as_ref().and_then(|all| all.get(key)).map(String::as_str);
        let mirror = Mirror {
            cluster: labels.get(MIRROR_CLUSTER_LABEL).map(|cluster| Arc::from(cluster.as_str())),
            service: name(MIRROR_SERVICE_ANNOTATION, annotation(MIRROR_SERVICE_ANNOTATION), LONGEST_NAME, problems),
            gateway_identity: name(
                MIRROR_GATEWAY_IDENTITY_ANNOTATION,
                annotation(MIRROR_GATEWAY_IDENTITY_ANNOTATION).filter(|identity| !identity.is_empty()),
                LONGEST_NAME,
                problems,
            ),
        };
        let ports = object.ports.as_ref().map(|ports| {
            let port = |port: &crate::api::endpoint_slice::EndpointPort| {
                let number = port.port.and_then(|number| u16::try_from(number).ok()).filter(|number| *number != 0);
                if number.is_none() {
                    problems.add(format_args!("port {:?} has no number that a client could connect to", port.name));
                }
                SlicePort { name: port.name.as_str().into(), number }
            };
            ports.iter().filter(|port| carries_tcp(&port.protocol)).map(port).collect()
        });
        let mut instances = HashMap::new();
        for endpoint in &object.endpoints {
            if let Some((hostname, instance)) = Instance::of(endpoint, &key.namespace) {
                instances.entry(hostname).or_insert(instance);
            }
        }
        let ready = object.endpoints.iter().filter(|endpoint| endpoint.is_ready());
        let (endpoints, nodes): (Vec<_>, Vec<_>) = ready
            .filter_map(|endpoint| {
                let ready = ReadyEndpoint::of(endpoint, &key.namespace, problems)?;
                Some((ready, hinted(endpoint.hints.as_ref(), "forNodes").collect::<Vec<_>>()))
            })
            .unzip();
        Some(Self {
            ports,
            endpoints: endpoints.into(),
            node_hints: NodeHints::new(nodes.into_iter()).map(Box::new),
            instances,
            mirror: (mirror != Mirror::default()).then(|| Arc::new(mirror)),
            service: NamespacedName::new(key.namespace, service),
            name: key.name,
        })
    }

    pub(in crate::cluster) fn share(&mut self, values: &mut SharedValues) {
        values.text(&mut self.service.namespace);
        values.text(&mut self.service.name);
        for port in self.ports.iter_mut().flatten() {
            values.text(&mut port.name);
        }
        for endpoint in &mut self.endpoints {
            for text in endpoint.zone.iter_mut().chain(&mut endpoint.hints) {
                values.text(text);
            }
        }
        if let Some(hints) = &mut self.node_hints {
            hints.share(values);
        }
    }

    /// Returns whether the slice has an endpoint without a hint for a node.
    pub fn lacks_node_hints(&self) -> bool {
        !self.endpoints.is_empty() && !self.node_hints.as_ref().is_some_and(|hints| hints.is_complete())
    }
}

impl Instance {
    /// Returns `None` for an endpoint without a hostname or a valid address, or with a target in another namespace.
    fn of(endpoint: &Endpoint, namespace: &str) -> Option<(Arc<str>, Self)> {
        let hostname = endpoint.hostname.as_deref().filter(|hostname| !hostname.is_empty())?;
        let target = endpoint.target_ref.as_ref();
        if target.and_then(|it| it.namespace.as_deref()).is_some_and(|it| !it.is_empty() && it != namespace) {
            return None;
        }
        let address = endpoint.addresses.iter().find_map(|text| address::parse(text))?;
        let instance = match target.filter(|it| it.kind.as_deref() == Some("Pod")) {
            Some(pod) => {
                Self::Pod { name: pod.name.as_deref().unwrap_or_default().into(), uid: TargetUid::of(target), address }
            }
            None => Self::Address(address),
        };
        Some((hostname.into(), instance))
    }
}

impl ReadyEndpoint {
    /// Returns `None` for an endpoint without a valid address, or with a target that cannot be an endpoint.
    fn of(endpoint: &Endpoint, namespace: &str, problems: &mut Problems) -> Option<Self> {
        let target = match &endpoint.target_ref {
            None => EndpointReference::Address,
            Some(target) => {
                let name = target.name.as_deref().unwrap_or_default();
                if let Some(other) = target.namespace.as_deref().filter(|it| !it.is_empty() && *it != namespace) {
                    problems.add(format_args!("an endpoint refers to {name:?} in another namespace, {other:?}"));
                    return None;
                }
                match target.kind.as_deref().unwrap_or_default() {
                    "Pod" => EndpointReference::Pod(name.into()),
                    EXTERNAL_WORKLOAD_KIND => EndpointReference::ExternalWorkload(name.into()),
                    kind => {
                        problems.add(format_args!("an endpoint refers to {name:?} of kind {kind:?}, which is neither a Pod nor an ExternalWorkload"));
                        return None;
                    }
                }
            }
        };
        let mut addresses = Addresses::new();
        for text in &endpoint.addresses {
            match text.parse::<IpAddr>() {
                Ok(address) => addresses.push(address),
                Err(_) => problems.add(format_args!("{text:?} is not an IP address")),
            }
        }
        if addresses.is_empty() {
            return None;
        }
        Some(Self {
            addresses,
            target,
            target_uid: TargetUid::of(endpoint.target_ref.as_ref()),
            hostname: endpoint.hostname.as_deref().filter(|hostname| !hostname.is_empty()).map(Arc::from),
            zone: name("zone", endpoint.zone.as_deref().filter(|zone| !zone.is_empty()), LONGEST_LABEL, problems),
            hints: hinted(endpoint.hints.as_ref(), "forZones").map(Arc::from).collect(),
        })
    }
}

/// Returns a name that the API server does not validate, or `None` if it is too long. Every endpoint carries it to
/// every client: in 100,000 addresses an overlong name would take tens of gigabytes.
fn name(what: &str, name: Option<&str>, longest: usize, problems: &mut Problems) -> Option<Arc<str>> {
    let name = name?;
    if name.len() > longest {
        problems.add(format_args!("{what} is too long for a name: {} bytes, the maximum is {longest}", name.len()));
        return None;
    }
    Some(name.into())
}

/// `hints.forZones[].name`, or `hints.forNodes[].name`.
fn hinted<'a>(hints: Option<&'a Value>, kind: &str) -> impl Iterator<Item = &'a str> + use<'a> {
    let hints = hints.and_then(|hints| hints.get(kind)).and_then(Value::as_array);
    hints.into_iter().flatten().filter_map(|hint| hint.get("name")?.as_str())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Returns a slice of Service `ns/web` with the given content, and the number of problems.
    fn ready_slice(content: &Value) -> (ReadySlice, usize) {
        let mut object = json!({"metadata": {"name": "web-1", "namespace": "ns", "labels": {"kubernetes.io/service-name": "web"}},
            "addressType": "IPv4"});
        object.as_object_mut().unwrap().extend(content.as_object().unwrap().clone());
        let mut problems = Problems::default();
        let slice = ReadySlice::of(&serde_json::from_value(object).unwrap(), &mut problems).unwrap();
        (slice, problems.len())
    }

    #[test]
    fn an_endpoint_is_kept_unless_its_ready_condition_is_false() {
        let conditions = [
            (json!(null), true),
            (json!({}), true),
            (json!({"ready": null}), true),
            (json!({"ready": true, "serving": false, "terminating": true}), true),
            (json!({"ready": false, "serving": true}), false),
        ];
        for (conditions, kept) in conditions {
            let endpoints = json!({"endpoints": [{"addresses": ["10.0.0.1"], "conditions": conditions}]});
            assert_eq!(ready_slice(&endpoints).0.endpoints.len(), usize::from(kept), "{conditions}");
        }
    }

    #[test]
    fn a_malformed_part_of_a_slice_is_left_out_alone() {
        let (slice, problems) = ready_slice(&json!({
        "ports": [{"name": null, "port": 80}, {"name": "any", "port": null}, {"name": "big", "port": 70000}],
        "endpoints": [
            {"addresses": ["10.0.0.1"], "targetRef": {"kind": "Pod", "name": "a"}},
            {"addresses": ["10.0.0.2"], "targetRef": {"kind": "Pod", "name": "a", "namespace": "ns"}},
            {"addresses": ["10.0.0.3"], "targetRef": {"kind": "Pod", "name": "a", "namespace": "theirs"}},
            {"addresses": ["10.0.0.4"], "targetRef": {"kind": "Node", "name": "a"}},
            {"addresses": ["10.0.0.5"], "targetRef": {"name": "a"}},
            {"addresses": ["web.example", "10.0.0.6", "010.0.0.1", "fe80::1%eth0"]},
            {"addresses": ["web.example"]},
            {"addresses": []},
            {"addresses": null},
            {"addresses": ["2001:db8::7"], "targetRef": {"kind": "ExternalWorkload", "name": "vm"}, "hostname": null,
                "zone": "", "hints": {"forZones": [{"name": "a"}, {"name": 7}, {}], "forNodes": [{"name": "n"}]}},
        ]}));
        let kept: Vec<_> = slice.endpoints.iter().map(|it| (it.target.clone(), it.addresses[0].to_string())).collect();
        assert_eq!(
            kept,
            [
                (EndpointReference::Pod("a".into()), "10.0.0.1".to_owned()),
                (EndpointReference::Pod("a".into()), "10.0.0.2".to_owned()),
                (EndpointReference::Address, "10.0.0.6".to_owned()),
                (EndpointReference::ExternalWorkload("vm".into()), "2001:db8::7".to_owned()),
            ]
        );
        let last = slice.endpoints.last().unwrap();
        assert_eq!((last.zone.as_deref(), &*last.hints), (None, &["a".into()][..]));
        assert_eq!(slice.node_hints.as_ref().unwrap().all(), [("n".into(), 3)]);
        let numbers: Vec<_> = slice.ports.unwrap().iter().map(|port| port.number).collect();
        assert_eq!(numbers, [Some(80), None, None]);
        assert_eq!(problems, 2 + 3 + 3 + 1);
    }

    #[test]
    fn only_endpoints_that_clients_may_receive_decide_whether_hints_for_nodes_are_complete() {
        let hinted = json!({"addresses": ["10.0.0.1"], "hints": {"forNodes": [{"name": "n"}]}});
        let lacks = |endpoints: &[&Value]| ready_slice(&json!({ "endpoints": endpoints })).0.lacks_node_hints();
        let unready = json!({"addresses": ["10.0.0.2"], "conditions": {"ready": false}});
        let (malformed, plain) = (json!({"addresses": ["web.example"]}), json!({"addresses": ["10.0.0.2"]}));
        assert!(!lacks(&[&hinted]) && !lacks(&[&malformed, &hinted, &unready]) && !lacks(&[&unready]) && !lacks(&[]));
        assert!(lacks(&[&hinted, &plain]) && lacks(&[&plain]));
    }

    #[test]
    fn an_endpoint_with_a_hostname_is_an_instance_even_if_it_is_not_ready() {
        let target = |kind: &str, namespace: &str| json!({"kind": kind, "name": "db-0", "namespace": namespace});
        let (slice, _) = ready_slice(&json!({"endpoints": [
            {"addresses": ["10.0.0.1"], "hostname": "db-0", "conditions": {"ready": false}, "targetRef": target("Pod", "ns")},
            {"addresses": ["10.0.0.2"], "hostname": "db-0"},
            {"addresses": ["x", "10.0.0.3"], "hostname": "db-1"},
            {"addresses": ["10.0.0.4"], "hostname": "vm", "targetRef": target("ExternalWorkload", "")},
            {"addresses": ["10.0.0.5"], "hostname": "theirs", "targetRef": target("Pod", "other")},
            {"addresses": ["x"], "hostname": "nowhere"},
            {"addresses": ["db.example"], "hostname": "db-2", "targetRef": target("Pod", "ns")},
            {"addresses": ["10.0.0.6"], "hostname": ""}]}));
        let address = |text: &str| text.parse().unwrap();
        let expected = [
            ("db-0", Instance::Pod { name: "db-0".into(), uid: TargetUid::default(), address: address("10.0.0.1") }),
            ("db-1", Instance::Address(address("10.0.0.3"))),
            ("vm", Instance::Address(address("10.0.0.4"))),
        ];
        assert_eq!(slice.instances, expected.map(|(hostname, instance)| (Arc::from(hostname), instance)).into());
        assert_eq!(slice.endpoints.len(), 4, "only ready ones are members");
    }

    #[test]
    fn an_endpoint_refers_to_an_object_unless_both_uids_are_known_and_differ() {
        for (referenced, uid, refers) in [
            (json!("1"), "1", true),
            (json!("1"), "2", false),
            (json!("1"), "", true),
            (json!(""), "2", true),
            (json!(null), "2", true),
            (json!("x".repeat(254)), "2", true),
        ] {
            let target = json!({"kind": "Pod", "name": "db-0", "uid": referenced});
            let endpoints = json!([{"addresses": ["10.0.0.1"], "hostname": "db-0", "targetRef": target}]);
            let (slice, _) = ready_slice(&json!({ "endpoints": endpoints }));
            let Instance::Pod { uid: of_instance, .. } = &slice.instances["db-0"] else { panic!() };
            let uid = Uid::new(uid);
            let found = [&slice.endpoints[0].target_uid, of_instance].map(|it| it.may_be(uid.as_ref()));
            assert_eq!(found, [refers; 2], "{referenced} {uid:?}");
        }
    }

    #[test]
    fn an_absent_list_of_ports_differs_from_an_empty_one() {
        assert_eq!(ready_slice(&json!({"ports": null})).0.ports, None);
        assert_eq!(ready_slice(&json!({})).0.ports, None);
        assert_eq!(ready_slice(&json!({"ports": []})).0.ports, Some([].into()));
    }

    #[test]
    fn the_ports_of_other_protocols_than_tcp_are_left_out_without_a_problem() {
        for protocol in ["UDP", "SCTP"] {
            let ports = json!([{"name": "dns", "port": 53, "protocol": protocol}, {"name": "any", "protocol": protocol},
                {"name": "dns", "port": 54, "protocol": "TCP"}, {"name": "http", "port": 80, "protocol": null}]);
            let (slice, problems) = ready_slice(&json!({ "ports": ports }));
            let kept = [("dns", 54), ("http", 80)];
            let kept = kept.map(|(name, number)| SlicePort { name: name.into(), number: Some(number) });
            assert_eq!((slice.ports, problems), (Some(kept.into()), 0), "{protocol}");
        }
    }

    #[test]
    fn an_empty_gateway_identity_counts_as_absent() {
        let mut object = json!({"metadata": {"name": "a", "namespace": "ns", "labels": {"kubernetes.io/service-name": "web"},
            "annotations": {"mirror.linkerd.io/remote-gateway-identity": ""}}});
        let mirror = |object: &Value| {
            let object = serde_json::from_value(object.clone()).unwrap();
            ReadySlice::of(&object, &mut Problems::default()).unwrap().mirror
        };
        assert_eq!(mirror(&object), None);
        object["metadata"]["annotations"]["mirror.linkerd.io/remote-svc-fq-name"] = json!("web.prod.svc.far");
        assert_eq!(mirror(&object).unwrap().service.as_deref(), Some("web.prod.svc.far"));
    }

    #[test]
    fn an_overlong_name_is_left_out_and_is_a_problem() {
        let mirror = |length: usize| {
            let name = "x".repeat(length);
            let mut problems = Problems::default();
            let object = json!({"metadata": {"name": "a", "namespace": "ns", "labels": {"kubernetes.io/service-name": "web"},
                "annotations": {"mirror.linkerd.io/remote-gateway-identity": name, "mirror.linkerd.io/remote-svc-fq-name": name}}});
            let slice = ReadySlice::of(&serde_json::from_value(object).unwrap(), &mut problems).unwrap();
            let mirror = slice.mirror.map(Arc::unwrap_or_clone).unwrap_or_default();
            (mirror.service.is_some(), mirror.gateway_identity.is_some(), problems.len())
        };
        assert_eq!(mirror(253), (true, true, 0));
        assert_eq!(mirror(254), (false, false, 2));
        let zone = |length: usize| {
            let endpoints = json!({"endpoints": [{"addresses": ["10.0.0.1"], "zone": "x".repeat(length)}]});
            let (slice, problems) = ready_slice(&endpoints);
            (slice.endpoints[0].zone.is_some(), problems)
        };
        assert_eq!(zone(63), (true, 0));
        assert_eq!(zone(64), (false, 1));
    }
}
