//! The oracle with literal objects: one cluster, small edits to it, and the answer that the contract requires.

mod membership;
mod refusal;
mod rendering;
mod topology;

use std::{collections::BTreeMap, net::SocketAddr};

use linkerd2_proxy_api::destination::{Http2ClientParams, WeightedAddr, http2_client_params::FlowControl};
use serde_json::{Value, json};

use super::{Answer, ApiState, Key, Request, Settings, answer};
use crate::mesh::merge;

/// The defaults of Linkerd's chart, except the HTTP/2 parameters, which make the field visible in answers.
fn settings() -> Settings {
    Settings {
        cluster_domain: "cluster.local".to_owned(),
        trust_domain: "cluster.local".to_owned(),
        controller_namespace: "linkerd".to_owned(),
        default_opaque_ports: "25,587,3306,4444,5432,6379,9300,11211".to_owned(),
        transport_header: true,
        h2_upgrade: true,
        ipv6: false,
        zone_weights: false,
        http2: Some(http2()),
    }
}

fn http2() -> Http2ClientParams {
    let flow_control = FlowControl {
        initial_connection_window_size: 65_535,
        initial_stream_window_size: 65_535,
        adaptive_flow_control: true,
    };
    Http2ClientParams { flow_control: Some(flow_control), ..Http2ClientParams::default() }
}

/// The objects of a cluster, by kind and name, as in `Pod/web-0`.
struct Cluster(BTreeMap<String, Value>);

impl Cluster {
    /// The Service `web.prod` over a meshed Pod of the Deployment `web`, and the Pod's node.
    fn new() -> Self {
        let mut cluster = Self(BTreeMap::new());
        cluster.put(json!({"kind": "Service", "metadata": {"name": "web", "namespace": "prod"},
            "spec": {"clusterIP": "10.43.0.1", "ports": [{"name": "http", "port": 80, "targetPort": 8080}]}}));
        cluster.put(json!({"kind": "Node", "metadata": {"name": "node-a", "labels": {"topology.kubernetes.io/zone": "zone-a"}}}));
        cluster.put(json!({"kind": "ReplicaSet", "metadata": {"name": "web-5d4", "namespace": "prod",
            "ownerReferences": [{"apiVersion": "apps/v1", "kind": "Deployment", "name": "web", "uid": "1"}]}}));
        cluster.put_pod("web-0", json!({}));
        cluster.put_slice("web-1", &[pod("web-0", "10.42.0.5")], json!({}));
        cluster
    }

    fn put(&mut self, object: Value) {
        let key = Key::of(&object).unwrap();
        self.0.insert(format!("{:?}/{}", key.kind, key.name), object);
    }

    fn remove(&mut self, what: &str) {
        assert!(self.0.remove(what).is_some(), "{what} does not exist");
    }

    /// Merges a patch into an object; lists and scalars are replaced.
    fn edit(&mut self, what: &str, patch: Value) {
        merge(self.0.get_mut(what).unwrap(), patch);
    }

    /// A pod of the ReplicaSet `web-5d4` with a proxy, on `node-a`.
    fn put_pod(&mut self, name: &str, patch: Value) {
        let mut pod = json!({"kind": "Pod",
            "metadata": {"name": name, "namespace": "prod", "creationTimestamp": "2026-01-01T00:00:00Z", "annotations": {},
                "labels": {"app": "web", "linkerd.io/control-plane-ns": "linkerd", "pod-template-hash": "5d4"},
                "ownerReferences": [{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web-5d4", "uid": "2"}]},
            "spec": {"nodeName": "node-a", "serviceAccountName": "web-sa", "initContainers": [proxy()],
                "containers": [{"name": "app", "ports": [{"name": "http", "containerPort": 8080}]}]}});
        merge(&mut pod, patch);
        self.put(pod);
    }

    fn put_workload(&mut self, name: &str, patch: Value) {
        let mut workload = json!({"apiVersion": "workload.linkerd.io/v1beta1", "kind": "ExternalWorkload",
            "metadata": {"name": name, "namespace": "prod", "labels": {"app": "web"}, "annotations": {}},
            "spec": {"meshTLS": {"identity": "spiffe://root.linkerd.cluster.local/vm", "serverName": "vm.example"},
                "ports": [{"name": "http", "port": 8080}]}});
        merge(&mut workload, patch);
        self.put(workload);
    }

    /// A slice of `web` with port 8080, under the name of the Service's port.
    fn put_slice(&mut self, name: &str, endpoints: &[Value], patch: Value) {
        let mut slice = json!({"kind": "EndpointSlice", "addressType": "IPv4",
            "metadata": {"name": name, "namespace": "prod", "labels": {"kubernetes.io/service-name": "web"}, "annotations": {}},
            "ports": [{"name": "http", "port": 8080}], "endpoints": endpoints});
        merge(&mut slice, patch);
        self.put(slice);
    }

    /// A Server in `prod`; the patch adds its selector.
    fn put_server(&mut self, name: &str, patch: Value) {
        let mut server = json!({"apiVersion": "policy.linkerd.io/v1beta3", "kind": "Server",
            "metadata": {"name": name, "namespace": "prod"}, "spec": {"port": 8080, "proxyProtocol": "opaque"}});
        merge(&mut server, patch);
        self.put(server);
    }

    fn state(&self) -> ApiState {
        let mut state = ApiState::default();
        for object in self.0.values() {
            state.put(&Key::of(object).unwrap(), object).unwrap();
        }
        state
    }

    fn get(&self, settings: &Settings, path: &str, token: &str) -> Answer {
        answer(&self.state(), settings, &Request { path: path.to_owned(), token: token.to_owned() })
    }

    fn endpoints(&self, settings: &Settings, path: &str, token: &str) -> BTreeMap<SocketAddr, WeightedAddr> {
        match self.get(settings, path, token) {
            Answer::Endpoints(endpoints) => endpoints,
            refused => panic!("{path} was answered with {refused:?}"),
        }
    }

    /// The addresses for port 80 of `web`, for a client on `node-a`.
    fn addresses(&self, settings: &Settings) -> Vec<String> {
        self.endpoints(settings, WEB, ON_A).keys().map(SocketAddr::to_string).collect()
    }

    /// The only endpoint for port 80 of `web`, for a client on `node-a`.
    fn only(&self, settings: &Settings) -> WeightedAddr {
        let endpoints = self.endpoints(settings, WEB, ON_A);
        assert_eq!(endpoints.len(), 1, "{:?}", endpoints.keys());
        endpoints.into_values().next().unwrap()
    }
}

const WEB: &str = "web.prod.svc.cluster.local:80";
const ON_A: &str = r#"{"ns":"prod", "nodeName":"node-a"}"#;

fn proxy() -> Value {
    json!({"name": "linkerd-proxy", "env": [
        {"name": "LINKERD2_PROXY_INBOUND_LISTEN_ADDR", "value": "0.0.0.0:4143"},
        {"name": "LINKERD2_PROXY_ADMIN_LISTEN_ADDR", "value": "[::]:4191"},
        {"name": "LINKERD2_PROXY_CONTROL_LISTEN_ADDR", "value": "0.0.0.0:4190"}]})
}

fn pod(name: &str, address: &str) -> Value {
    json!({"addresses": [address], "zone": "zone-a", "targetRef": {"kind": "Pod", "namespace": "prod", "name": name}})
}

fn workload(name: &str, address: &str) -> Value {
    json!({"addresses": [address], "zone": "zone-a", "targetRef": {"kind": "ExternalWorkload", "name": name}})
}

fn plain(address: &str) -> Value {
    json!({"addresses": [address]})
}

/// Merges a patch into an endpoint.
fn with(mut endpoint: Value, patch: Value) -> Value {
    merge(&mut endpoint, patch);
    endpoint
}
