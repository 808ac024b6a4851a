//! Sends the same requests for Services of another cluster to our server and to Linkerd's: remote discovery and federated
//! Services, with two API servers.
//!
//! * In: the path of Linkerd's controller. Out: as of [`answers`](crate::answers), at rest and after changes.
//! * Always: both servers are started for each state, and read the same Secret. The other cluster has no
//!   ExternalWorkloads, because Linkerd's server cannot read them there.

use std::path::Path;

use anyhow::Result;
use e2e::{
    ControlPlane, Rig,
    discovery::token,
    kubeconfig,
    link::link,
    mesh::merge,
    objects::{create_all, kind},
    oracle::Request,
    query::Query,
    world::api,
};
use kube::{
    Api, Client,
    api::{DynamicObject, Patch, PatchParams},
};
use serde_json::{Value, json};

use crate::{
    answers::Answers,
    replica::{EitherReplica, ServerKind, chart_flags},
};

const NAMESPACE: &str = "shop";
const SERVICES: [&str; 13] = [
    "remote",
    "headless",
    "plain-remote",
    "gone",
    "unlinked",
    "unnamed",
    "external",
    "joined",
    "other",
    "malformed",
    "local",
    "empty",
    "picky",
];

pub(crate) async fn compare(controller: &Path) -> Result<Answers> {
    let Rig { control_plane: here, client } = Rig::linkerd().namespace(NAMESPACE).start().await?;
    let Rig { control_plane: east, client: of_east } = Rig::linkerd().namespace(NAMESPACE).start().await?;
    put(&of_east, &backends("10.1")).await?;
    put(&client, &[backends("10.0"), joined()].concat()).await?;
    here.apply(&[link("east", "east.example", &kubeconfig::embedded_of(&east)?)]).await?;
    let mut answers = Answers::default();
    compare_now(controller, &here, &client, &mut answers, "at rest").await?;
    let members =
        json!({"metadata": {"annotations": {"multicluster.linkerd.io/remote-discovery": "db@east,web@east"}}});
    patch(&client, "v1", "Service", "joined", members).await?;
    let endpoints = json!({"endpoints": [{"addresses": ["10.1.0.9"]}]});
    patch(&of_east, "discovery.k8s.io/v1", "EndpointSlice", "web", endpoints).await?;
    compare_now(controller, &here, &client, &mut answers, "after changes").await?;
    Ok(answers)
}

async fn compare_now(
    controller: &Path,
    here: &ControlPlane,
    client: &Client,
    answers: &mut Answers,
    context: &str,
) -> Result<()> {
    let ours = EitherReplica::start(ServerKind::Ours, controller, here, &chart_flags()).await?;
    let theirs = EitherReplica::start(ServerKind::Theirs, controller, here, &chart_flags()).await?;
    let servers = [ours.discovery().await?, theirs.discovery().await?];
    answers.states += 1;
    answers.add(&api::list(client).await?, &servers, &requests(), context).await;
    theirs.print_panic(context);
    ours.kill().await
}

fn requests() -> Vec<Query> {
    let mut requests = Vec::new();
    for service in SERVICES {
        let host = format!("{service}.{NAMESPACE}.svc.cluster.local");
        let tokens = [String::new(), token(NAMESPACE, "node-a"), token(NAMESPACE, "node-b")];
        for (authority, token) in
            [format!("{host}:80"), format!("{host}:8080"), format!("db-0.{host}:80"), format!("none.{host}:80")]
                .into_iter()
                .flat_map(|path| tokens.iter().map(move |token| (path.clone(), token)))
        {
            requests.push(Query::Get(Request { path: authority, token: token.clone() }));
        }
    }
    requests
}

/// Services with slices, whose addresses begin with this text.
fn backends(network: &str) -> Vec<Value> {
    let service = |name: &str, spec: Value| json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": name}, "spec": spec});
    let ports = json!([{"name": "http", "port": 80, "targetPort": 8080}]);
    let of_pod = |host: u8, pod: &str, more: Value| {
        let mut endpoint = json!({"addresses": [format!("{network}.0.{host}")], "targetRef": {"kind": "Pod", "name": pod, "namespace": NAMESPACE}});
        merge(&mut endpoint, more);
        endpoint
    };
    let slice = |service: &str, endpoints: Value| {
        let metadata = json!({"name": service, "labels": {"kubernetes.io/service-name": service}});
        json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "metadata": metadata, "addressType": "IPv4",
            "ports": [{"name": "http", "port": 8080}], "endpoints": endpoints})
    };
    let pod = |name: &str, control_plane: Option<&str>, annotations: Value| {
        let proxy = json!({"name": "linkerd-proxy", "image": "proxy", "env": [
            {"name": "LINKERD2_PROXY_INBOUND_LISTEN_ADDR", "value": "0.0.0.0:4143"},
            {"name": "LINKERD2_PROXY_ADMIN_LISTEN_ADDR", "value": "0.0.0.0:4191"},
            {"name": "LINKERD2_PROXY_CONTROL_LISTEN_ADDR", "value": "127.0.0.1:4190"}]});
        let app = json!({"name": "app", "image": "app"});
        let containers = if control_plane.is_some() { json!([app, proxy]) } else { json!([app]) };
        let owner = json!({"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web-5d4f", "uid": "00000000-0000-0000-0000-000000000001"});
        let mut pod = json!({"apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": name, "labels": {"app": name}, "annotations": annotations},
            "spec": {"serviceAccountName": name, "nodeName": "node-a", "containers": containers}});
        if let Some(namespace) = control_plane {
            let meshed = json!({"labels": {"linkerd.io/control-plane-ns": namespace}, "ownerReferences": [owner]});
            merge(&mut pod, json!({ "metadata": meshed }));
        }
        pod
    };
    let node = |name: &str, zone: &str| json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": {"topology.kubernetes.io/zone": zone}}});
    let hinted = |zone: &str| json!({"zone": zone, "hints": {"forZones": [{"name": zone}]}});
    let server = json!({"apiVersion": "policy.linkerd.io/v1beta3", "kind": "Server", "metadata": {"name": "opaque"},
        "spec": {"podSelector": {"matchLabels": {"app": "web-1"}}, "port": 8080, "proxyProtocol": "opaque"}});
    vec![
        node("node-a", "zone-a"),
        node("node-b", "zone-b"),
        server,
        pod("web-0", Some("linkerd"), json!({})),
        pod("web-1", Some("linkerd"), json!({})),
        pod("web-2", None, json!({})),
        pod("web-3", Some("another"), json!({})),
        pod("db-0", Some("linkerd"), json!({"config.linkerd.io/opaque-ports": "8080"})),
        service("web", json!({ "ports": ports })),
        slice(
            "web",
            json!([
                of_pod(1, "web-0", hinted("zone-a")),
                of_pod(2, "web-1", hinted("zone-b")),
                of_pod(3, "web-2", hinted("zone-a")),
                of_pod(4, "web-3", hinted("zone-b"))
            ]),
        ),
        service("db", json!({"clusterIP": "None", "ports": ports})),
        slice("db", json!([of_pod(5, "db-0", json!({"hostname": "db-0", "zone": "zone-a"}))])),
        service("plain", json!({ "ports": ports })),
        slice("plain", json!([{"addresses": [format!("{network}.0.6")]}])),
        service("near", json!({"ports": ports, "internalTrafficPolicy": "Local"})),
        slice("near", json!([of_pod(1, "web-0", json!({}))])),
    ]
}

/// The Services that are joined from those.
fn joined() -> Vec<Value> {
    let service = |name: &str, metadata: Value, more: Value| {
        let mut service = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": name},
            "spec": {"ports": [{"name": "http", "port": 80, "targetPort": 8080}]}});
        merge(&mut service, json!({ "metadata": metadata, "spec": more }));
        service
    };
    let remote = |cluster: &str, name: &str| json!({"labels": {"multicluster.linkerd.io/remote-discovery": cluster, "multicluster.linkerd.io/remote-service": name}});
    let members = |remote: &str, local: &str| json!({"annotations": {"multicluster.linkerd.io/remote-discovery": remote, "multicluster.linkerd.io/local-discovery": local}});
    let external = json!({"type": "ExternalName", "externalName": "example.com"});
    vec![
        service("remote", remote("east", "web"), json!({})),
        service("headless", remote("east", "db"), json!({})),
        service("plain-remote", remote("east", "plain"), json!({})),
        service("gone", remote("east", "missing"), json!({})),
        service("unlinked", remote("west", "web"), json!({})),
        service("unnamed", json!({"labels": {"multicluster.linkerd.io/remote-discovery": "east"}}), json!({})),
        service("external", remote("east", "web"), external),
        service("joined", members("web@east", "web"), json!({})),
        service("other", members("web@east,db@east", ""), json!({})),
        service("malformed", members("web,db@east,@east,a@b@c,web@west", "db"), json!({})),
        service("local", json!({"annotations": {"multicluster.linkerd.io/local-discovery": "web"}}), json!({})),
        service("empty", members("", ""), json!({})),
        service("picky", members("web@east", "near"), json!({})),
    ]
}

async fn put(client: &Client, objects: &[Value]) -> Result<()> {
    for object in objects {
        let text = |field: &str| object[field].as_str().unwrap_or_default();
        let namespace = (text("kind") != "Node").then_some(NAMESPACE);
        create_all(client, &kind(text("apiVersion"), text("kind")), namespace, [object.clone()]).await?;
    }
    Ok(())
}

async fn patch(client: &Client, version: &str, kind_name: &str, name: &str, patch: Value) -> Result<()> {
    let api: Api<DynamicObject> = Api::namespaced_with(client.clone(), NAMESPACE, &kind(version, kind_name));
    api.patch(name, &PatchParams::default(), &Patch::Merge(&patch)).await?;
    Ok(())
}
