//! The objects of attacking tenants, and their edits.
//!
//! * In: a namespace. Out: objects that are as large as the API server permits, created once, and edits without end.

use std::time::Duration;

use anyhow::{Context, Result};
use kube::{
    Api, Client,
    api::{ApiResource, DynamicObject, Patch, PatchParams},
};
use serde_json::{Value, json};
use tokio::time::sleep;

use super::Target;
use crate::{
    mesh::external_workload,
    objects::{create_all, kind},
};

/// The endpoints of a large Service.
const ENDPOINTS: u16 = 500;
/// The ports of the Service with a ServiceProfile.
pub(super) const PROFILED_PORTS: u16 = 250;
/// The length of the route's path, and of another text.
const LONG: usize = 1_000_000;
/// Services with many ports, their ports, and the ExternalWorkloads that match all of them.
const WIDE_SERVICES: usize = 4;
const WIDE_PORTS: u16 = 5_000;
const WORKLOADS: u16 = 200;
/// Services that select the workload with a long text.
const NARROW_SERVICES: usize = 100;
/// Objects of nearly the maximum size: 256 KiB of annotations each.
const LARGE_OBJECTS: usize = 400;
const ANNOTATION: usize = 250 * 1024;
/// The values of a selector, and the Pods that it may select.
const VALUES: u32 = 100_000;
const PODS: usize = 2_000;
const EDIT_EVERY: Duration = Duration::from_millis(500);

pub(super) fn large_service(namespace: &str) -> String {
    format!("large.{namespace}.svc.cluster.local")
}

pub(super) fn local_service(namespace: &str) -> String {
    format!("local.{namespace}.svc.cluster.local")
}

pub(super) fn profiled_service(namespace: &str) -> String {
    format!("profiled.{namespace}.svc.cluster.local")
}

pub(super) async fn create_large_services(client: &Client, namespace: &str) -> Result<()> {
    let identity = format!("spiffe://root.linkerd.cluster.local/{}", "long/".repeat(40));
    let workload = json!({"metadata": {"name": "meshed"}, "spec": {"meshTLS": {"identity": identity, "serverName": "vm.example"},
        "workloadIPs": [{"ip": "192.0.2.9"}], "ports": [{"name": "http", "port": 8080}]}});
    create(client, namespace, &external_workload(), [workload]).await?;
    for (name, policy) in [("large", "Cluster"), ("local", "Local")] {
        let service = json!({"metadata": {"name": name}, "spec": {"internalTrafficPolicy": policy, "ports": [{"name": "http", "port": 80}]}});
        create(client, namespace, &kind("v1", "Service"), [service]).await?;
        let target = json!({"kind": "ExternalWorkload", "name": "meshed", "namespace": namespace});
        let endpoints: Vec<Value> = (0..ENDPOINTS)
            .map(|number| {
                let address = format!("10.9.{}.{}", number / 250, number % 250);
                json!({"addresses": [address], "targetRef": target, "nodeName": format!("node-{}", number % 3)})
            })
            .collect();
        let slice = json!({
            "metadata": {"name": format!("{name}-0"), "labels": {"kubernetes.io/service-name": name}},
            "addressType": "IPv4", "endpoints": endpoints, "ports": [{"name": "http", "port": 8080}],
        });
        create(client, namespace, &kind("discovery.k8s.io/v1", "EndpointSlice"), [slice]).await?;
    }
    Ok(())
}

pub(super) async fn create_large_profile(client: &Client, namespace: &str) -> Result<()> {
    let ports: Vec<Value> =
        (1..=PROFILED_PORTS).map(|port| json!({"name": format!("p{port}"), "port": port})).collect();
    let service = json!({"metadata": {"name": "profiled"}, "spec": {"clusterIP": "None", "ports": ports}});
    create(client, namespace, &kind("v1", "Service"), [service]).await?;
    let profile = json!({"metadata": {"name": profiled_service(namespace)}, "spec": {"routes": [route('x')]}});
    create(client, namespace, &service_profile(), [profile]).await
}

pub(super) async fn change_profile(target: Target) -> Result<()> {
    let profiles = api(&target.client, &target.namespace, &service_profile());
    let name = profiled_service(&target.namespace);
    edit(&profiles, |round| {
        (name.clone(), json!({"spec": {"routes": [route(if round.is_multiple_of(2) { 'y' } else { 'z' })]}}))
    })
    .await
}

fn route(letter: char) -> Value {
    json!({"name": "long", "condition": {"method": "GET", "pathRegex": letter.to_string().repeat(LONG)}})
}

pub(super) async fn create_wide_services(client: &Client, namespace: &str) -> Result<()> {
    let workload = |name: String, app: &str, ip: &str| {
        json!({"metadata": {"name": name, "labels": {"app": app}},
            "spec": {"meshTLS": {"identity": "spiffe://root.linkerd.cluster.local/vm", "serverName": "vm.example"},
                "workloadIPs": [{"ip": ip}], "ports": [{"name": "http", "port": 80}]}})
    };
    let workloads =
        (0..WORKLOADS).map(|number| workload(format!("wide-{number}"), "wide", &format!("192.0.2.{number}")));
    let long = workload("long".to_owned(), "long", &"x".repeat(LONG));
    create(client, namespace, &external_workload(), workloads.chain([long])).await?;
    let ports: Vec<Value> =
        (1..=WIDE_PORTS).map(|port| json!({"name": format!("p{port}"), "port": port, "targetPort": "http"})).collect();
    let service = |name: String, app: &str, ports: &[Value]| json!({"metadata": {"name": name}, "spec": {"clusterIP": "None", "selector": {"app": app}, "ports": ports}});
    let wide = (0..WIDE_SERVICES).map(|number| service(format!("wide-{number}"), "wide", &ports));
    let narrow = [json!({"name": "http", "port": 80})];
    let narrow = (0..NARROW_SERVICES).map(|number| service(format!("narrow-{number}"), "long", &narrow));
    create(client, namespace, &kind("v1", "Service"), wide.chain(narrow)).await
}

/// Each edit makes the controller plan one of the wide Services again.
pub(super) async fn change_wide_services(target: Target) -> Result<()> {
    let workloads = api(&target.client, &target.namespace, &external_workload());
    edit(&workloads, |round| {
        let ip = format!("192.0.2.{}", 200 + round % 2);
        ("wide-0".to_owned(), json!({"spec": {"workloadIPs": [{"ip": ip}]}}))
    })
    .await
}

pub(super) async fn create_large_objects(client: &Client, namespace: &str) -> Result<()> {
    let object = |number: usize| {
        let name = format!("large-{number}");
        json!({"metadata": {"name": name, "annotations": {"note": "x".repeat(ANNOTATION)}}, "spec": {"replicas": 0,
            "selector": {"matchLabels": {"app": name}},
            "template": {"metadata": {"labels": {"app": name}}, "spec": {"containers": [{"name": "app", "image": "app"}]}}}})
    };
    create(client, namespace, &kind("apps/v1", "ReplicaSet"), (0..LARGE_OBJECTS).map(object)).await
}

pub(super) async fn change_large_objects(target: Target) -> Result<()> {
    let objects = api(&target.client, &target.namespace, &kind("apps/v1", "ReplicaSet"));
    edit(&objects, |round| {
        (format!("large-{}", round % LARGE_OBJECTS), json!({"metadata": {"labels": {"round": round.to_string()}}}))
    })
    .await
}

pub(super) async fn create_large_selector(client: &Client, namespace: &str) -> Result<()> {
    // Nothing schedules them, so they need no node.
    let pod = |number: usize| {
        json!({"metadata": {"name": format!("pending-{number}"), "labels": {"app": "pending", "number": number.to_string()}},
            "spec": {"containers": [{"name": "app", "image": "app"}], "nodeSelector": {"no": "node"}}})
    };
    create(client, namespace, &kind("v1", "Pod"), (0..PODS).map(pod)).await?;
    let values: Vec<String> = (0..VALUES).map(|number| format!("v{number}")).collect();
    let spec = json!({"podSelector": {"matchExpressions": [{"key": "app", "operator": "NotIn", "values": values}]},
        "port": 9000, "proxyProtocol": "opaque"});
    let server = json!({"metadata": {"name": "large"}, "spec": spec});
    create(client, namespace, &kind("policy.linkerd.io/v1beta3", "Server"), [server]).await
}

pub(super) async fn change_selector(target: Target) -> Result<()> {
    let servers = api(&target.client, &target.namespace, &kind("policy.linkerd.io/v1beta3", "Server"));
    edit(&servers, |round| ("large".to_owned(), json!({"spec": {"port": 9000 + round % 2}}))).await
}

/// Applies one patch after another, each to the named object.
async fn edit(api: &Api<DynamicObject>, patch: impl Fn(usize) -> (String, Value)) -> Result<()> {
    for round in 0.. {
        let (name, patch) = patch(round);
        let edited = api.patch(&name, &PatchParams::default(), &Patch::Merge(patch)).await;
        edited.with_context(|| format!("editing {name}"))?;
        sleep(EDIT_EVERY).await;
    }
    Ok(())
}

async fn create(
    client: &Client,
    namespace: &str,
    kind: &ApiResource,
    objects: impl IntoIterator<Item = Value>,
) -> Result<()> {
    create_all(client, kind, Some(namespace), objects).await
}

fn api(client: &Client, namespace: &str, kind: &ApiResource) -> Api<DynamicObject> {
    Api::namespaced_with(client.clone(), namespace, kind)
}

fn service_profile() -> ApiResource {
    kind("linkerd.io/v1alpha2", "ServiceProfile")
}
