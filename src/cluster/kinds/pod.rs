//! Pods: the fields that decide about their endpoints, their addresses, and whether their proxies are out of date.

use std::{
    net::{IpAddr, SocketAddr},
    sync::Arc,
};

use k8s_openapi::{api::core::v1 as core, apimachinery::pkg::apis::meta::v1::ObjectMeta, jiff::Timestamp};
use serde::Deserialize;

use super::{
    container_port::{ContainerPort, ContainerPortObject},
    inject::Inject,
    owner::Owner,
    port_ranges::PortRanges,
    proxy::{Environment, Injected, ProxyPorts},
    sidecar::{HasToken, InitStatuses, InjectionBarrier, NetworkSetup, NetworkValidation, is_sidecar},
    windows::{RequiresWindows, RunsWindows, SelectsWindows, is_for_windows},
};
use crate::api::{
    CNI_RESOURCE_LABEL, CONTROL_PLANE_COMPONENT_LABEL, CONTROL_PLANE_NAMESPACE_LABEL, OPAQUE_PORTS_ANNOTATION,
    PROXY_NAME, SKIP_INBOUND_PORTS_ANNOTATION,
};
use crate::{
    api::{NamespacedName, Uid, lean_metadata},
    cluster::{
        Problems, Projected,
        index::{
            address::{self, Addresses, IpObject, NetworkAddress},
            selector::Labels,
            shared_values::SharedValues,
        },
    },
};

/// A Pod, reduced to the fields that endpoints and rollouts depend on. Two equal Pods look the same to every client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pod {
    pub key: NamespacedName,
    pub uid: Option<Uid>,
    pub labels: Labels,
    pub owner: Option<Owner>,
    pub service_account: Arc<str>,
    /// Empty before it is scheduled.
    pub node: Arc<str>,
    /// `None` for the mesh's default.
    pub opaque_ports: Option<PortRanges>,
    pub skipped_ports: PortRanges,
    pub ports: Arc<[ContainerPort]>,
    /// `None` without a proxy, or if its ports cannot be read.
    pub proxy: Option<ProxyPorts>,
    /// `None` without a proxy. Equal values are shared by the Pods in the state.
    pub injected: Option<Arc<Injected>>,
    pub inject: Inject,
    pub injection_barrier: InjectionBarrier,
    pub network_validation: NetworkValidation,
    pub created: Option<Timestamp>,
    pub terminating: bool,
    pub phase: PodPhase,
    /// The addresses in the order of the status. A Pod in the host network has the addresses of its node.
    pub addresses: Addresses,
    pub host_network: bool,
    /// The addresses of its node; empty if no container has a host port.
    host_addresses: Addresses,
}

/// The phase of a Pod, reduced to the differences that matter to clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PodPhase {
    /// `Pending` or `Unknown`.
    Waiting,
    Running,
    /// `Succeeded` or `Failed`: another Pod may have its addresses by now.
    Finished,
}

/// A Pod as the API server sends it.
#[derive(Clone, Debug, Deserialize, kube::Resource)]
#[resource(inherit = "core::Pod")]
pub struct PodObject {
    #[serde(deserialize_with = "lean_metadata")]
    metadata: ObjectMeta,
    #[serde(default)]
    spec: Option<PodSpec>,
    #[serde(default)]
    status: Option<PodStatus>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct PodSpec {
    node_name: Option<String>,
    service_account_name: Option<String>,
    host_network: Option<bool>,
    automount_service_account_token: Option<bool>,
    os: RunsWindows,
    node_selector: SelectsWindows,
    affinity: RequiresWindows,
    init_containers: Option<Vec<Container>>,
    containers: Option<Vec<Container>>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct PodStatus {
    phase: Option<String>,
    #[serde(rename = "podIP")]
    pod_ip: Option<String>,
    #[serde(rename = "podIPs")]
    pod_ips: Option<Vec<IpObject>>,
    #[serde(rename = "hostIP")]
    host_ip: Option<String>,
    #[serde(rename = "hostIPs")]
    host_ips: Option<Vec<IpObject>>,
    init_container_statuses: InitStatuses,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Container {
    name: String,
    ports: Option<Vec<ContainerPortObject>>,
    image: Option<String>,
    env: Environment,
    volume_mounts: HasToken,
}

// === impl Pod ===

impl Pod {
    /// The namespace of the control plane that the Pod's proxy belongs to.
    pub fn control_plane_namespace(&self) -> Option<&str> {
        self.labels.get(CONTROL_PLANE_NAMESPACE_LABEL).map(|namespace| &**namespace).filter(|it| !it.is_empty())
    }

    /// Whether the Pod is part of a Linkerd control plane.
    pub fn is_control_plane(&self) -> bool {
        self.labels.get(CONTROL_PLANE_COMPONENT_LABEL).is_some()
    }

    /// Whether Linkerd's webhook for injection excludes the Pod by its labels.
    pub fn is_excluded_from_injection(&self) -> bool {
        self.is_control_plane() || self.labels.get(CNI_RESOURCE_LABEL).is_some()
    }

    /// Returns the addresses of the Pod in the Pod network.
    pub(in crate::cluster) fn own_addresses(&self) -> &[IpAddr] {
        if self.host_network || self.phase == PodPhase::Finished { &[] } else { &self.addresses }
    }

    /// Returns the host ports of the containers, at the addresses of the node.
    pub(in crate::cluster) fn host_ports(&self) -> impl Iterator<Item = SocketAddr> {
        let addresses: &[IpAddr] = if self.phase == PodPhase::Finished { &[] } else { &self.host_addresses };
        let ports = self.ports.iter().filter_map(|port| port.host_port);
        ports.flat_map(|port| addresses.iter().map(move |address| SocketAddr::new(*address, port)))
    }

    /// The addresses at which clients reach the Pod: its own, and its host ports.
    pub fn network_addresses(&self) -> impl Iterator<Item = NetworkAddress> {
        self.own_addresses()
            .iter()
            .copied()
            .map(NetworkAddress::Ip)
            .chain(self.host_ports().map(NetworkAddress::Socket))
    }
}

impl Projected for Pod {
    type Wire = PodObject;
    const INFORMER_LAG: Option<&'static str> = Some("pods_informer_lag_seconds");

    fn project(wire: PodObject, problems: &mut Problems) -> Self {
        let PodSpec {
            node_name,
            service_account_name,
            host_network,
            init_containers,
            containers,
            automount_service_account_token,
            os,
            node_selector,
            affinity,
        } = wire.spec.unwrap_or_default();
        let PodStatus { phase, pod_ip, pod_ips, host_ip, host_ips, init_container_statuses } =
            wire.status.unwrap_or_default();
        let init_count = init_containers.as_ref().map_or(0, Vec::len);
        let containers: Vec<Container> = init_containers.into_iter().chain(containers).flatten().collect();
        let (init_containers, app_containers) = containers.split_at_checked(init_count).unwrap_or_default();
        let ports: Arc<[ContainerPort]> =
            containers.iter().flat_map(|it| it.ports.iter().flatten()).filter_map(ContainerPort::parse).collect();
        let annotations = wire.metadata.annotations.as_ref();
        let annotation = |key| annotations.and_then(|all| all.get(key));
        // Init containers come first: a native sidecar is one of them.
        let proxy = containers.iter().find(|it| it.name == PROXY_NAME);
        let is_native = init_containers.iter().any(|it| it.name == PROXY_NAME);
        let network = NetworkSetup::of(init_containers.iter().map(|it| it.name.as_str()));
        let opaque_ports = annotation(OPAQUE_PORTS_ANNOTATION)
            .map(|text| PortRanges::parse(text, ports.iter().map(|port| (&*port.name, port.number)), problems));
        let labels: Labels = wire.metadata.labels.iter().flatten().collect();
        let has_host_port = ports.iter().any(|port| port.host_port.is_some());
        let pod = Self {
            key: NamespacedName::of(&wire.metadata),
            uid: wire.metadata.uid.as_deref().and_then(Uid::new),
            owner: Owner::only(&wire.metadata),
            service_account: service_account_name.filter(|it| !it.is_empty()).as_deref().unwrap_or("default").into(),
            node: node_name.unwrap_or_default().into(),
            opaque_ports,
            skipped_ports: annotation(SKIP_INBOUND_PORTS_ANNOTATION)
                .map(|text| PortRanges::parse(text, [], problems))
                .unwrap_or_default(),
            proxy: proxy.and_then(|it| ProxyPorts::of(&it.env)),
            injected: proxy
                .map(|it| Arc::new(Injected::of(&it.env, it.image.as_deref(), annotations, is_native, network))),
            inject: Inject::of(annotations),
            injection_barrier: match is_for_windows(os, node_selector, affinity) {
                true => InjectionBarrier::Windows,
                false => barrier(init_containers, app_containers, automount_service_account_token),
            },
            network_validation: init_container_statuses.0,
            created: wire.metadata.creation_timestamp.map(|time| time.0),
            terminating: wire.metadata.deletion_timestamp.is_some(),
            phase: match phase.as_deref() {
                Some("Running") => PodPhase::Running,
                Some("Succeeded" | "Failed") => PodPhase::Finished,
                _ => PodPhase::Waiting,
            },
            addresses: address::all(pod_ips, pod_ip),
            host_network: host_network.unwrap_or_default(),
            host_addresses: if has_host_port { address::all(host_ips, host_ip) } else { Addresses::default() },
            ports,
            labels,
        };
        if pod.control_plane_namespace().is_some() && pod.proxy.is_none() {
            problems.add(format_args!(
                "it is meshed, but the ports of its proxy cannot be read from a container {PROXY_NAME}: clients send it no transport header"
            ));
        }
        pod
    }

    fn share(&mut self, values: &mut SharedValues) {
        for text in [&mut self.key.namespace, &mut self.service_account, &mut self.node] {
            values.text(text);
        }
        values.labels(&mut self.labels);
        if let Some(owner) = &mut self.owner {
            owner.share(values);
        }
        values.ports(&mut self.ports);
    }
}

fn barrier(init_containers: &[Container], containers: &[Container], automount: Option<bool>) -> InjectionBarrier {
    let has_sidecar =
        |all: &[Container], is_init| all.iter().any(|it| is_sidecar(&it.name, it.image.as_deref(), is_init));
    let has_token = automount != Some(false) && containers.first().is_some_and(|first| first.volume_mounts.0);
    if has_sidecar(init_containers, true) || has_sidecar(containers, false) {
        InjectionBarrier::Sidecar
    } else if has_token {
        InjectionBarrier::None
    } else {
        InjectionBarrier::NoToken
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::cluster::kinds::sidecar::NativeSidecarOverrides;
    use crate::cluster::testing::{pod, pod_with_status};
    use crate::cluster::{State, Watched};
    use crate::x509::{anchor_set::AnchorSet, testing};

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
    fn an_unreadable_proxy_is_a_problem_of_a_meshed_pod_only() {
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
    fn the_injected_configuration_is_read_from_the_proxy_container_and_the_annotations() {
        let marker = json!({"name": "LINKERD_CONFIG_HASH", "value": "0123456789abcdef"});
        let container = json!({"name": "linkerd-proxy", "image": "cr.l5d.io/linkerd/proxy:edge-1", "env": [marker]});
        let app = json!({"name": "app", "image": "app:1", "env": [marker]});
        let injected = |annotations: Value, spec: Value| {
            pod(&json!({ "annotations": annotations }), &spec).0.injected.map(|injected| (*injected).clone())
        };
        let bare = Injected {
            marker: Some("0123456789abcdef".into()),
            proxy_version: Some("edge-1".into()),
            trust_anchors: None,
            pinned: false,
            native_sidecar: false,
            native_sidecar_overrides: NativeSidecarOverrides::default(),
            network: NetworkSetup::Unknown,
        };
        assert_eq!(injected(json!({}), json!({"containers": [app]})), None);
        assert_eq!(injected(json!({}), json!({"containers": [app, container]})), Some(bare.clone()));
        let native = Injected { native_sidecar: true, ..bare.clone() };
        assert_eq!(injected(json!(null), json!({"initContainers": [container]})), Some(native.clone()));
        for (init, network) in [
            ("linkerd-init", NetworkSetup::InitContainer),
            ("linkerd-network-validator", NetworkSetup::CniPlugin),
            ("istio-init", NetworkSetup::Unknown),
        ] {
            let spec = json!({"initContainers": [{"name": "mine"}, {"name": init}, container]});
            assert_eq!(injected(json!(null), spec), Some(Injected { network, ..native.clone() }), "{init}");
        }
        let annotated = json!({"linkerd.io/proxy-version": "edge-2", "linkerd.io/trust-root-sha256": "ff"});
        let annotated = injected(annotated, json!({"containers": [container]}));
        assert_eq!(annotated, Some(Injected { proxy_version: Some("edge-2".into()), ..bare.clone() }));
        let anchors = |value: Value| {
            let mut variable = json!({"name": "LINKERD2_PROXY_IDENTITY_TRUST_ANCHORS"});
            variable.as_object_mut().unwrap().extend(value.as_object().unwrap().clone());
            let container =
                json!({"name": "linkerd-proxy", "env": [{"name": variable["name"], "value": "before"}, variable]});
            let found = injected(json!({}), json!({"containers": [container]})).unwrap().trust_anchors;
            found.map(|found| (*found).clone())
        };
        assert_eq!(anchors(json!({"value": testing::anchors("ab")})), Some(AnchorSet::of(&testing::anchors("ab"))));
        let reference = json!({"valueFrom": {"configMapKeyRef": {"name": "linkerd-identity-trust-roots"}}});
        assert_eq!(anchors(json!({"value": "$(OTHER)"})), None, "the kubelet replaces it");
        assert_eq!(anchors(reference), None, "the last variable decides, as for the kubelet");
        let long = "x".repeat(200_000);
        let marker = json!({"name": "LINKERD_CONFIG_HASH", "value": long});
        let hostile = json!({"containers": [{"name": "linkerd-proxy", "image": "proxy:1", "env": [marker]}]});
        let Injected { marker, proxy_version, .. } =
            injected(json!({"linkerd.io/proxy-version": long}), hostile).unwrap();
        let lengths = [marker, proxy_version].map(|text| text.map(|text| text.len()));
        assert_eq!(lengths, [Some(128); 2], "a long text is cut");
        for key in ["config.linkerd.io/proxy-version", "config.linkerd.io/proxy-image"] {
            let pinned = injected(json!({key: "edge-1"}), json!({"containers": [container]}));
            assert_eq!(pinned, Some(Injected { pinned: true, ..bare.clone() }));
        }
        let unmarked = json!({"containers": [{"name": "linkerd-proxy", "env": null}]});
        assert_eq!(injected(json!({}), unmarked), Some(Injected { marker: None, proxy_version: None, ..bare }));
    }

    #[test]
    fn what_prevents_injection_is_read_from_the_containers() {
        let token = json!([{"name": "a", "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount"}]);
        let other = json!([{"name": "a", "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount/"}]);
        let app = |mounts: &Value| json!({"name": "app", "volumeMounts": mounts});
        for (spec, expected) in [
            (json!({"containers": [app(&token)]}), InjectionBarrier::None),
            (json!({"containers": [app(&token)], "automountServiceAccountToken": true}), InjectionBarrier::None),
            (json!({"containers": [app(&token)], "automountServiceAccountToken": false}), InjectionBarrier::NoToken),
            (json!({"containers": [app(&other), app(&token)]}), InjectionBarrier::NoToken),
            (json!({"containers": [app(&json!(null))]}), InjectionBarrier::NoToken),
            (json!({"containers": [app(&token), {"name": "istio-proxy"}]}), InjectionBarrier::Sidecar),
            (
                json!({"containers": [app(&token)], "initContainers": [{"name": "linkerd-init"}]}),
                InjectionBarrier::Sidecar,
            ),
            (json!({"containers": [{"name": "linkerd-init", "volumeMounts": token}]}), InjectionBarrier::None),
            (json!({"containers": [app(&token)], "os": {"name": "windows"}}), InjectionBarrier::Windows),
            (
                json!({"containers": [app(&token)], "nodeSelector": {"kubernetes.io/os": "windows"}}),
                InjectionBarrier::Windows,
            ),
            (
                json!({"containers": [app(&token)], "os": null, "nodeSelector": null, "affinity": {}}),
                InjectionBarrier::None,
            ),
        ] {
            assert_eq!(pod(&json!({}), &spec).0.injection_barrier, expected, "{spec}");
        }
    }

    #[test]
    fn the_state_of_the_network_validator_is_read_from_the_status() {
        let running = json!({"running": {"startedAt": "2026-01-01T00:00:00Z"}});
        let status = json!({"initContainerStatuses": [{"name": "linkerd-network-validator", "state": running}]});
        assert_eq!(pod_with_status(&json!({}), &status).network_validation, NetworkValidation::Running);
        assert_eq!(pod_with_status(&json!({}), &json!({})).network_validation, NetworkValidation::Quiet);
    }

    #[test]
    fn the_control_plane_label_and_the_inject_annotation_are_read_and_another_uid_is_a_change() {
        let labels = json!({"linkerd.io/control-plane-component": "identity"});
        assert!(pod(&json!({ "labels": labels }), &json!({})).0.is_control_plane());
        assert!(!pod(&json!({}), &json!({})).0.is_control_plane());
        for (label, is_excluded) in
            [("linkerd.io/cni-resource", true), ("linkerd.io/control-plane-component", true), ("app", false)]
        {
            let found = pod(&json!({"labels": {label: ""}}), &json!({})).0;
            assert_eq!(found.is_excluded_from_injection(), is_excluded, "{label}");
        }
        let annotations = json!({"linkerd.io/inject": "disabled"});
        assert_eq!(pod(&json!({ "annotations": annotations }), &json!({})).0.inject, Inject::Disabled);
        let mut state = State::default();
        let with_uid = |uid: &str| pod(&json!({ "uid": uid }), &json!({})).0;
        for (uid, is_change) in [("a", true), ("a", false), ("b", true)] {
            assert_eq!(with_uid(uid).apply(&mut state).is_some(), is_change, "{uid}");
        }
    }

    #[test]
    fn an_opaque_port_may_be_a_name_and_the_last_container_with_the_name_wins() {
        let spec = json!({"initContainers": [{"name": "a", "ports": [{"name": "db", "containerPort": 1}]}],
            "containers": [{"name": "b", "ports": [{"name": "db", "containerPort": 2}, {"containerPort": 70000}]}]});
        let annotations = json!({"annotations": {"config.linkerd.io/opaque-ports": "db,x,9",
            "config.linkerd.io/skip-inbound-ports": "db,7"}});
        let (pod, problems) = pod(&annotations, &spec);
        let opaque = pod.opaque_ports.unwrap();
        assert_eq!([1, 2, 9].map(|port| opaque.contains(port)), [false, true, true]);
        assert_eq!([2, 7].map(|port| pod.skipped_ports.contains(port)), [false, true], "skipped ports have no names");
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
    fn the_longest_annotation_is_read_quickly_even_for_a_pod_with_many_ports() {
        // 256 KiB of annotations, and as many ports as an object has room for.
        let names = "a,".repeat(128 * 1024);
        let ports: Vec<Value> = (0..30_000).map(|n| json!({"name": format!("p{n}"), "containerPort": 80})).collect();
        let metadata = json!({"annotations": {"config.linkerd.io/opaque-ports": names}});
        let begun = std::time::Instant::now();
        let (_, problems) = pod(&metadata, &json!({"containers": [{"name": "a", "ports": ports}]}));
        assert_eq!(problems, 128 * 1024);
        assert!(begun.elapsed() < std::time::Duration::from_secs(10), "{:?}", begun.elapsed());
    }
}
