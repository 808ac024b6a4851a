//! The objects: Services with ten meshed Pods each, and additions for some figures.
//!
//! * In: a size. Out: as many Services `web-N`, by default 1,000, each with two EndpointSlices; the second one has one Pod and is the one that changes.
//!   On request the Pods run and have addresses, and there are 700 Servers and a Service `giant` with 12,000 endpoints,
//!   whose last slice also has one endpoint.
//! * Always: existing objects are kept, so that another run can use the same cluster. No controller may delete them: on
//!   a cluster with a garbage collector, the owners would have to exist.

use std::{collections::HashSet, net::Ipv4Addr, ops::Range};

use anyhow::{Context, Result};
use e2e::{
    load::{Method, StreamRequest},
    objects::{create_all, kind, patch_all},
};
use futures::{StreamExt, TryStreamExt, stream};
use k8s_openapi::api::{core::v1::Pod, discovery::v1::EndpointSlice};
use kube::{
    Api, Client,
    api::{ApiResource, ListParams, Patch, PatchParams},
};
use serde_json::{Value, json};

pub(super) const NAMESPACE: &str = "bench";
pub(super) const SERVICES: usize = 1_000;
pub(super) const PODS: usize = 10;
pub(super) const SERVERS: usize = 700;
/// The port of each Pod.
pub(super) const POD_PORT: u16 = 8080;
pub(super) const GIANT: &str = "giant";
pub(super) const GIANT_ENDPOINTS: usize = 12_000;
/// The size of an EndpointSlice, as in Kubernetes.
const SLICE: usize = 100;

/// The size of the cluster. Each Service has [`PODS`] Pods.
#[derive(Clone, Copy, Debug)]
pub(super) struct ClusterSize {
    pub(super) services: usize,
    pub(super) nodes: usize,
}

// === impl ClusterSize ===

impl ClusterSize {
    pub(super) const USUAL: Self = Self { services: SERVICES, nodes: 3 };
    /// The largest one that Kubernetes supports: https://kubernetes.io/docs/setup/best-practices/cluster-large/
    pub(super) const LARGEST: Self = Self { services: 15_000, nodes: 5_000 };

    pub(super) const fn pods(self) -> usize {
        self.services * PODS
    }

    /// The node of a Pod, by its number in the cluster. On few nodes, the Pods of a Service are on all of them.
    const fn node(self, pod: usize) -> usize {
        if self.nodes < PODS { pod % PODS % self.nodes } else { pod % self.nodes }
    }
}

/// The requests of clients on three nodes, distributed over this number of Services.
pub(super) fn stream_requests(count: usize, services: usize) -> Vec<StreamRequest> {
    (0..count).map(|number| stream_request(path(number % services), number / services)).collect()
}

/// The request of one client.
pub(super) fn stream_request(path: String, number: usize) -> StreamRequest {
    let node = number % 3;
    let token = format!("{{\"ns\":\"{NAMESPACE}\", \"nodeName\":\"node-{node}\", \"pod\":\"client-{number}\"}}\n");
    StreamRequest { method: Method::Get, path, token }
}

/// The requests of clients for profiles, each of another Pod as long as there are enough Pods.
pub(super) fn profiles_of_pods(count: usize) -> Vec<StreamRequest> {
    let path = |number| format!("{}:{POD_PORT}", address(number % (SERVICES * PODS)));
    (0..count).map(|number| profile_of(path(number), number)).collect()
}

/// As [`stream_requests`], for profiles.
pub(super) fn profiles_of_services(count: usize) -> Vec<StreamRequest> {
    (0..count).map(|number| profile_of(path(number % SERVICES), number / SERVICES)).collect()
}

fn profile_of(path: String, number: usize) -> StreamRequest {
    StreamRequest { method: Method::GetProfile, ..stream_request(path, number) }
}

pub(super) fn path(service: usize) -> String {
    path_of(&format!("web-{service}"))
}

pub(super) fn path_of(service: &str) -> String {
    format!("{service}.{NAMESPACE}.svc.cluster.local:80")
}

pub(super) async fn populate(client: &Client, size: ClusterSize) -> Result<()> {
    grow(client, 0, size).await
}

/// Creates the objects of a cluster that has this number of Services already.
pub(super) async fn grow(client: &Client, from: usize, size: ClusterSize) -> Result<()> {
    let ClusterSize { services: to, nodes } = size;
    let services = || from..to;
    eprintln!("{to} Services of {PODS} meshed Pods on {nodes} nodes");
    let node = |n: usize| {
        let labels = json!({"topology.kubernetes.io/zone": format!("zone-{}", n % 3)});
        json!({"metadata": {"name": format!("node-{n}"), "labels": labels}})
    };
    if from == 0 {
        create_all(client, &kind("v1", "Node"), None, (0..nodes).map(node)).await?;
    }
    let names = services().map(|n| format!("web-{n}"));
    create(client, &kind("v1", "Service"), names.map(|name| service(&name))).await?;
    create(client, &kind("apps/v1", "ReplicaSet"), services().map(replica_set)).await?;
    create(client, &kind("v1", "Pod"), (from * PODS..size.pods()).map(|number| pod(number, size))).await?;
    let slices = services().flat_map(|n| {
        let (name, pods, last) = (format!("web-{n}"), n * PODS, n * PODS + PODS - 1);
        [slice(&name, "steady", pods..last, size), slice(&name, "changing", last..last + 1, size)]
    });
    create(client, &kind("discovery.k8s.io/v1", "EndpointSlice"), slices).await
}

/// Returns whether the cluster has the objects: the last Pod runs, and its EndpointSlice was created after it.
pub(super) async fn is_populated(client: &Client, size: ClusterSize) -> Result<bool> {
    let (pods, slices): (Api<Pod>, Api<EndpointSlice>) =
        (Api::namespaced(client.clone(), NAMESPACE), Api::namespaced(client.clone(), NAMESPACE));
    let last = pods.get_opt(&pod_name(size.pods() - 1)).await?;
    let runs = last.and_then(|pod| pod.status?.phase).is_some_and(|phase| phase == "Running");
    Ok(runs && slices.get_opt(&format!("web-{}-changing", size.services - 1)).await?.is_some())
}

/// Sets the Pods' status as a kubelet would: without it they have no addresses.
pub(super) async fn run_pods(client: &Client, size: ClusterSize) -> Result<()> {
    let pods: Api<Pod> = Api::namespaced(client.clone(), NAMESPACE);
    let mut pending = HashSet::new();
    // In pages: in one list, 150,000 Pods take more memory of the API server than this host has.
    let mut page = ListParams::default().fields("status.phase!=Running").limit(500);
    loop {
        let list = pods.list_metadata(&page).await?;
        pending.extend(list.items.into_iter().filter_map(|pod| pod.metadata.name));
        match list.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => page = page.continue_token(&token),
            None => break,
        }
    }
    if !pending.is_empty() {
        eprintln!("setting the status of {} Pods", pending.len());
    }
    let to_run = (0..size.pods()).map(|number| (pod_name(number), running(number, size)));
    let to_run = to_run.filter(|(name, _)| pending.contains(name));
    let params = PatchParams::default();
    stream::iter(to_run)
        .map(|(name, status)| {
            let (pods, params) = (&pods, &params);
            async move {
                let patched = pods.patch_status(&name, params, &Patch::Merge(status)).await;
                patched.map(drop).with_context(|| format!("setting the status of {name}"))
            }
        })
        .buffer_unordered(32)
        .try_collect()
        .await
}

fn running(number: usize, size: ClusterSize) -> Value {
    let node = size.node(number);
    let (ip, node) = (address(number), format!("192.168.{}.{}", node / 250, 1 + node % 250));
    json!({"status": {"phase": "Running", "podIP": ip, "podIPs": [{"ip": ip}], "hostIP": node, "hostIPs": [{"ip": node}],
        "conditions": [{"type": "Ready", "status": "True"}]}})
}

pub(super) async fn populate_servers(client: &Client) -> Result<()> {
    let object = |number: usize| {
        let spec = json!({"podSelector": {"matchLabels": {"app": format!("web-{number}")}}, "port": 9000 + number, "proxyProtocol": "opaque"});
        json!({"metadata": {"name": format!("server-{number}")}, "spec": spec})
    };
    create(client, &server_kind(), (0..SERVERS).map(object)).await
}

/// Sets the selectors of the Servers: each selects the Pods of one Service, or each selects everything.
pub(super) async fn select(client: &Client, everything: bool) -> Result<()> {
    let patch = |number: usize| {
        let labels = if everything { Value::Null } else { json!({"app": format!("web-{number}")}) };
        (format!("server-{number}"), json!({"spec": {"podSelector": {"matchLabels": labels}}}))
    };
    patch_all(client, &server_kind(), NAMESPACE, (0..SERVERS).map(patch)).await
}

/// Uses the existing Pods and creates 2,000 more.
pub(super) async fn populate_giant(client: &Client) -> Result<()> {
    create(
        client,
        &kind("v1", "Pod"),
        (SERVICES * PODS..GIANT_ENDPOINTS).map(|number| pod(number, ClusterSize::USUAL)),
    )
    .await?;
    create(client, &kind("v1", "Service"), std::iter::once(service(GIANT))).await?;
    let last = GIANT_ENDPOINTS - 1;
    let steady = (0..last).step_by(SLICE).map(|first| (format!("steady-{first}"), first..last.min(first + SLICE)));
    let slices = steady.chain([("changing".to_owned(), last..last + 1)]);
    let slices = slices.map(|(name, pods)| slice(GIANT, &name, pods, ClusterSize::USUAL));
    create(client, &kind("discovery.k8s.io/v1", "EndpointSlice"), slices).await
}

/// Edits an annotation of each object, which no client can observe.
pub(super) async fn touch(client: &Client, kind: &ApiResource, names: impl Iterator<Item = String>) -> Result<()> {
    // The value is different in every run; otherwise the second run would change nothing.
    let patch = json!({"metadata": {"annotations": {"bench": format!("{:?}", std::time::SystemTime::now())}}});
    patch_all(client, kind, NAMESPACE, names.map(|name| (name, patch.clone()))).await
}

pub(super) fn server_kind() -> ApiResource {
    kind("policy.linkerd.io/v1beta3", "Server")
}

/// The endpoint that changes.
pub(super) fn changing_endpoint(service: &str, ready: bool) -> Value {
    let number = service.strip_prefix("web-").and_then(|number| number.parse::<usize>().ok());
    let pods = if service == GIANT { GIANT_ENDPOINTS } else { (number.unwrap_or_default() + 1) * PODS };
    endpoint(pods - 1, ready, ClusterSize::USUAL)
}

fn service(name: &str) -> Value {
    json!({"metadata": {"name": name}, "spec": {"ports": [{"name": "http", "port": 80}]}})
}

fn replica_set(n: usize) -> Value {
    let name = format!("web-{n}");
    let labels = json!({"app": name});
    let template = json!({"metadata": {"labels": labels}, "spec": {"containers": [{"name": "web", "image": "web"}]}});
    json!({"metadata": {"name": name, "ownerReferences": [{"apiVersion": "apps/v1", "kind": "Deployment", "name": name, "uid": "0"}]},
        "spec": {"replicas": 0, "selector": {"matchLabels": labels}, "template": template}})
}

fn slice(service: &str, name: &str, pods: Range<usize>, size: ClusterSize) -> Value {
    let endpoints: Vec<Value> = pods.map(|pod| endpoint(pod, true, size)).collect();
    json!({"metadata": {"name": format!("{service}-{name}"), "labels": {"kubernetes.io/service-name": service}},
        "addressType": "IPv4", "ports": [{"name": "http", "port": POD_PORT}], "endpoints": endpoints})
}

/// The name of a Pod, by its number in the cluster.
fn pod_name(number: usize) -> String {
    format!("web-{}-{}", number / PODS, number % PODS)
}

/// The address of a Pod, by its number in the cluster.
pub(super) fn address(number: usize) -> Ipv4Addr {
    let [first, second, third] = [1 + number / 62_500, number / 250 % 250, 1 + number % 250];
    #[allow(clippy::cast_possible_truncation, reason = "none is larger than 250")]
    Ipv4Addr::new(10, first as u8, second as u8, third as u8)
}

fn endpoint(number: usize, ready: bool, size: ClusterSize) -> Value {
    let node = size.node(number);
    json!({"addresses": [address(number)], "conditions": {"ready": ready, "serving": ready, "terminating": false},
        "nodeName": format!("node-{node}"), "zone": format!("zone-{}", node % 3),
        "targetRef": {"kind": "Pod", "namespace": NAMESPACE, "name": pod_name(number)}})
}

/// A meshed Pod, about as large as a real one.
fn pod(number: usize, size: ClusterSize) -> Value {
    let listen = |name: &str, port: u16| json!({"name": format!("LINKERD2_PROXY_{name}_LISTEN_ADDR"), "value": format!("0.0.0.0:{port}")});
    let mut environment: Vec<Value> = (0..50).map(|n| json!({"name": format!("LINKERD2_PROXY_SETTING_NUMBER_{n}"), "value": "a value of about the usual length"})).collect();
    environment.extend([listen("INBOUND", 4143), listen("ADMIN", 4191), listen("CONTROL", 4190)]);
    let app = format!("web-{}", number / PODS);
    json!({
        "metadata": {"name": pod_name(number),
            "labels": {"app": app, "pod-template-hash": "5d4f8c7b9", "linkerd.io/control-plane-ns": "linkerd", "linkerd.io/proxy-deployment": app, "linkerd.io/workload-ns": NAMESPACE},
            "annotations": {"linkerd.io/created-by": "linkerd/proxy-injector edge", "linkerd.io/proxy-version": "edge", "linkerd.io/inject": "enabled"},
            "ownerReferences": [{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": app, "uid": "0", "controller": true}]},
        "spec": {"nodeName": format!("node-{}", size.node(number)), "serviceAccountName": "web", "automountServiceAccountToken": false,
            "initContainers": [{"name": "linkerd-proxy", "image": "proxy", "restartPolicy": "Always", "env": environment,
                "ports": [{"name": "linkerd-proxy", "containerPort": 4143}, {"name": "linkerd-admin", "containerPort": 4191}]}],
            "containers": [{"name": "web", "image": "web", "ports": [{"name": "http", "containerPort": POD_PORT}]}]},
    })
}

async fn create(client: &Client, kind: &ApiResource, objects: impl Iterator<Item = Value>) -> Result<()> {
    create_all(client, kind, Some(NAMESPACE), objects).await
}
