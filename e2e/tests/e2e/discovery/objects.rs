//! The objects of the tests, as JSON: this module has the defaults, and a test sets only the fields that differ.
//!
//! * Out: a Service `name` has port 80 named `http` and no selector, so that no controller writes slices for it; a
//!   slice has the port `http` 8080; Pods are on a node without a kubelet, with the ServiceAccount `web`.

use e2e::mesh::merge;
use kube::api::{ApiResource, GroupVersionKind};
use serde_json::{Map, Value, json};

/// An idle node. It exists so that the Pod garbage collector does not delete the Pods on it.
pub(crate) const NODE: &str = "idle";

/// The finalizer that keeps the garbage collector from removing an object whose owner does not exist.
const KEPT: &str = "example.com/kept";

#[derive(Clone)]
pub(crate) struct Object {
    pub(crate) kind: &'static str,
    pub(crate) value: Value,
}

impl Object {
    fn new(kind: &'static str, name: &str, value: Value) -> Self {
        let kind_of = resource(kind);
        let mut object =
            json!({"apiVersion": kind_of.api_version, "kind": kind, "metadata": {"name": name, "labels": {}}});
        merge(&mut object, value);
        Self { kind, value: object }
    }

    /// Sets these fields: JSON objects are merged, other values are replaced.
    pub(crate) fn with(mut self, fields: Value) -> Self {
        merge(&mut self.value, fields);
        self
    }

    pub(crate) fn annotated(self, key: &str, value: &str) -> Self {
        self.with(json!({"metadata": {"annotations": {key: value}}}))
    }

    pub(crate) fn labelled(self, key: &str, value: &str) -> Self {
        self.with(json!({"metadata": {"labels": {key: value}}}))
    }

    /// Sets the namespace of each targetRef that has none.
    pub(crate) fn within(mut self, namespace: &str) -> Self {
        let endpoints = self.value.get_mut("endpoints").and_then(Value::as_array_mut);
        endpoints.into_iter().flatten().for_each(|endpoint| within(endpoint, namespace));
        self
    }

    /// Sets one owner, which need not exist.
    pub(crate) fn owned_by(self, api_version: &str, kind: &str, name: &str) -> Self {
        let uid = "00000000-0000-0000-0000-000000000001";
        let owner = json!({"apiVersion": api_version, "kind": kind, "name": name, "uid": uid});
        self.with(json!({"metadata": {"finalizers": [KEPT], "ownerReferences": [owner]}}))
    }
}

/// A JSON object with this one field.
pub(crate) fn field(name: &str, value: Value) -> Value {
    Value::Object(Map::from_iter([(name.to_owned(), value)]))
}

pub(crate) fn resource(kind: &str) -> ApiResource {
    let (group, version) = match kind {
        "EndpointSlice" => ("discovery.k8s.io", "v1"),
        "ReplicaSet" => ("apps", "v1"),
        "Server" => ("policy.linkerd.io", "v1beta3"),
        "ExternalWorkload" => ("workload.linkerd.io", "v1beta1"),
        "ServiceProfile" => ("linkerd.io", "v1alpha2"),
        _ => ("", "v1"),
    };
    ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind))
}

pub(crate) fn service(name: &str) -> Object {
    Object::new("Service", name, json!({"spec": {"ports": [{"name": "http", "port": 80}]}}))
}

pub(crate) fn external_name(name: &str) -> Object {
    Object::new("Service", name, json!({"spec": {"type": "ExternalName", "externalName": "example.com"}}))
}

/// An IPv4 slice of a Service.
pub(crate) fn slice(name: &str, service: &str, endpoints: &[Value]) -> Object {
    let object = json!({
        "addressType": "IPv4", "endpoints": endpoints, "ports": [{"name": "http", "port": 8080}],
        "metadata": {"labels": {"kubernetes.io/service-name": service}},
    });
    Object::new("EndpointSlice", name, object)
}

pub(crate) fn slice_v6(name: &str, service: &str, endpoints: &[Value]) -> Object {
    slice(name, service, endpoints).with(json!({"addressType": "IPv6"}))
}

/// An endpoint without targetRef.
pub(crate) fn address(ip: &str) -> Value {
    json!({ "addresses": [ip] })
}

pub(crate) fn of_pod(ip: &str, pod: &str) -> Value {
    target(ip, json!({"kind": "Pod", "name": pod}))
}

pub(crate) fn of_workload(ip: &str, workload: &str) -> Value {
    target(ip, json!({"kind": "ExternalWorkload", "name": workload}))
}

/// Sets the namespace of a targetRef that has none.
pub(crate) fn within(endpoint: &mut Value, namespace: &str) {
    if let Some(target) = endpoint.get_mut("targetRef").and_then(Value::as_object_mut) {
        target.entry("namespace").or_insert_with(|| json!(namespace));
    }
}

/// An endpoint with this targetRef. Without a namespace it gets the namespace of the test when it is written.
pub(crate) fn target(ip: &str, target: Value) -> Value {
    but(address(ip), field("targetRef", target))
}

pub(crate) fn but(mut endpoint: Value, fields: Value) -> Value {
    merge(&mut endpoint, fields);
    endpoint
}

pub(crate) fn hinted(endpoint: Value, zones: &[&str]) -> Value {
    let zones: Vec<Value> = zones.iter().map(|zone| json!({ "name": zone })).collect();
    but(endpoint, json!({"hints": {"forZones": zones}}))
}

/// A Pod outside the mesh.
pub(crate) fn pod(name: &str) -> Object {
    let object = json!({
        "metadata": {"labels": {"app": "web"}},
        "spec": {"nodeName": NODE, "serviceAccountName": "web", "containers": [container("app", 8080)],
            "automountServiceAccountToken": false},
    });
    Object::new("Pod", name, object)
}

/// A container with one port, named `http`.
pub(crate) fn container(name: &str, port: u16) -> Value {
    json!({"name": name, "image": name, "ports": [{"name": "http", "containerPort": port}]})
}

/// A Pod as Linkerd's injector creates it.
pub(crate) fn meshed(name: &str) -> Object {
    meshed_with(name, proxy("0.0.0.0:4143"))
}

pub(crate) fn meshed_with(name: &str, proxy: Value) -> Object {
    let containers = Value::Array(vec![container("app", 8080), proxy]);
    pod(name).labelled("linkerd.io/control-plane-ns", "linkerd").with(field("spec", field("containers", containers)))
}

/// The proxy's container, with the admin port 4191 and the control port 4190.
pub(crate) fn proxy(inbound: &str) -> Value {
    proxy_with(&[("INBOUND", inbound), ("ADMIN", "127.0.0.1:4191"), ("CONTROL", "0.0.0.0:4190")])
}

pub(crate) fn proxy_with(listeners: &[(&str, &str)]) -> Value {
    let variable =
        |(name, value): &(&str, &str)| json!({"name": format!("LINKERD2_PROXY_{name}_LISTEN_ADDR"), "value": value});
    let env: Vec<Value> = listeners.iter().map(variable).collect();
    json!({"name": "linkerd-proxy", "image": "proxy", "env": env})
}

pub(crate) fn workload(name: &str) -> Object {
    let object = json!({
        "metadata": {"labels": {"app": "vm"}},
        "spec": {"meshTLS": {"identity": format!("spiffe://root.linkerd.cluster.local/{name}"), "serverName": "vm.example"},
            "ports": [{"name": "http", "port": 8080}], "workloadIPs": [{"ip": "198.51.100.1"}]},
    });
    Object::new("ExternalWorkload", name, object)
}

/// Makes a port of the Pods `app: web` opaque.
pub(crate) fn opaque_server(name: &str, port: Value) -> Object {
    let selector = json!({"matchLabels": {"app": "web"}});
    server(name, json!({"podSelector": selector, "proxyProtocol": "opaque"})).with(field("spec", field("port", port)))
}

pub(crate) fn server(name: &str, spec: Value) -> Object {
    Object::new("Server", name, field("spec", spec))
}

/// A ServiceProfile. Its name is usually the full name of a Service.
pub(crate) fn service_profile(name: &str, spec: Value) -> Object {
    Object::new("ServiceProfile", name, field("spec", spec))
}

/// A ReplicaSet with zero replicas, whose selector matches no Pod of the tests.
pub(crate) fn replica_set(name: &str) -> Object {
    let labels = json!({"nothing": "matches"});
    let template = json!({"metadata": {"labels": labels}, "spec": {"containers": [{"name": "app", "image": "app"}]}});
    Object::new(
        "ReplicaSet",
        name,
        json!({"spec": {"replicas": 0, "selector": {"matchLabels": labels}, "template": template}}),
    )
}

/// A node without a kubelet, to which no Pod is scheduled.
pub(crate) fn node(name: &str, zone: Option<&str>) -> Object {
    let taint = json!({"key": "example.com/idle", "effect": "NoSchedule"});
    let node = Object::new("Node", name, json!({"spec": {"unschedulable": true, "taints": [taint]}}));
    match zone {
        Some(zone) => node.labelled("topology.kubernetes.io/zone", zone),
        None => node,
    }
}
