//! Objects of about 1 MB, nearly the maximum that the API server stores, in each kind that tenants may write, and in the
//! ConfigMap: their lists and the events of their watches do not keep the operator from its work. It has the shipped
//! permissions and admission policies.

use std::iter;

use anyhow::{Result, ensure};
use e2e::{
    Manager, Options,
    mesh::{SOON, external_workload},
    objects::{create_all, kind, patch_all},
};
use kube::api::ApiResource;
use serde_json::{Value, json};

use super::{BACKED_OFF, FaultRig, linkerd::Linkerd};

/// The length of a text, or of all texts, of an object. The API server stores at most 1.5 MiB.
const LONG: usize = 900_000;
/// The server counts the annotations of an object up to 256 KiB.
const ANNOTATION: usize = 250 * 1024;

fn long() -> String {
    "x".repeat(LONG)
}

/// A template whose container has a long variable. Its Pods cannot be scheduled, because no node exists.
fn template(labels: &Value) -> Value {
    let container = json!({"name": "app", "image": "app", "env": [{"name": "LONG", "value": long()}]});
    json!({"metadata": {"labels": labels}, "spec": {"containers": [container], "restartPolicy": "Always"}})
}

fn selector() -> Value {
    let values: Vec<String> = (0..LONG / 12).map(|number| format!("v{number}")).collect();
    json!({"matchExpressions": [{"key": "app", "operator": "NotIn", "values": values}]})
}

/// One object of each kind, named `large`.
fn objects(namespace: &str) -> Vec<(ApiResource, Value)> {
    let labels = json!({"app": "large"});
    let metadata = json!({"name": "large", "labels": {"app": "large", "config.linkerd.io/reconcile": "auto"}});
    let ports: Vec<Value> = (1..=8000).map(|port| json!({"name": format!("p{port}"), "port": port})).collect();
    let endpoints: Vec<Value> = (0..1000)
        .map(|number| {
            let address = |last: u8| format!("10.{}.{}.{last}", 100 + number / 250, number % 250);
            json!({"addresses": (1..=55).map(address).collect::<Vec<_>>()})
        })
        .collect();
    let workload = json!({"replicas": 0, "selector": {"matchLabels": labels}, "template": template(&labels)});
    let stateful = json!({"replicas": 0, "serviceName": "large", "selector": {"matchLabels": labels},
        "template": template(&labels)});
    let daemon = json!({"selector": {"matchLabels": labels}, "template": template(&labels)});
    let mut job = json!({"suspend": true, "template": template(&json!({}))});
    job["template"]["spec"]["restartPolicy"] = json!("Never");
    let condition =
        |number: usize| json!({"type": format!("Example{number}"), "status": "True", "message": "x".repeat(32_000)});
    let conditions: Vec<Value> = (0..LONG / 32_000).map(condition).collect();
    let profile = json!({"name": format!("large.{namespace}.svc.cluster.local")});
    let route = json!({"name": "long", "condition": {"method": "GET", "pathRegex": long()}});
    vec![
        (
            kind("v1", "Service"),
            json!({"metadata": {"name": "large", "annotations": {"note": "x".repeat(ANNOTATION)}},
                "spec": {"clusterIP": "None", "selector": labels, "ports": ports}}),
        ),
        (
            kind("discovery.k8s.io/v1", "EndpointSlice"),
            json!({"metadata": {"name": "large", "labels": {"kubernetes.io/service-name": "large"}},
                "addressType": "IPv4", "endpoints": endpoints, "ports": [{"name": "p1", "port": 8080}]}),
        ),
        (
            external_workload(),
            json!({"metadata": metadata, "spec": {"meshTLS": {"identity": "spiffe://root.linkerd.cluster.local/vm",
                "serverName": "vm.example"}, "workloadIPs": [{"ip": "192.0.2.200"}]}, "status": {"conditions": conditions}}),
        ),
        (
            external_workload(),
            json!({"metadata": {"name": "long", "labels": labels}, "spec": {"meshTLS": {"identity": "spiffe://root.linkerd.cluster.local/vm",
                "serverName": "vm.example"}, "workloadIPs": [{"ip": long()}]}}),
        ),
        (
            kind("v1", "Pod"),
            json!({"metadata": {"name": "large", "labels": {"app": "alone"}}, "spec": template(&labels)["spec"], "status": {"conditions": [
                {"type": "Example", "status": "True", "message": "x".repeat(LONG / 2)}]}}),
        ),
        (
            kind("policy.linkerd.io/v1beta3", "Server"),
            json!({"metadata": metadata, "spec": {"podSelector": selector(), "port": 80}}),
        ),
        (kind("linkerd.io/v1alpha2", "ServiceProfile"), json!({"metadata": profile, "spec": {"routes": [route]}})),
        (kind("apps/v1", "ReplicaSet"), json!({"metadata": metadata, "spec": workload})),
        (kind("apps/v1", "Deployment"), json!({"metadata": metadata, "spec": workload})),
        (kind("apps/v1", "StatefulSet"), json!({"metadata": metadata, "spec": stateful})),
        (kind("apps/v1", "DaemonSet"), json!({"metadata": metadata, "spec": daemon})),
        (kind("batch/v1", "Job"), json!({"metadata": {"name": "large"}, "spec": job})),
        (
            kind("policy/v1", "PodDisruptionBudget"),
            json!({"metadata": metadata, "spec": {"maxUnavailable": 1, "selector": selector()}}),
        ),
    ]
}

/// Changes an annotation of each object, so that each watch delivers an event of this size. Nothing depends on it.
async fn touch(rig: &FaultRig, round: usize) -> Result<()> {
    for (kind, object) in objects(rig.mesh.namespace()) {
        let name = object["metadata"]["name"].as_str().unwrap_or_default().to_owned();
        let patch = json!({"metadata": {"annotations": {"round": round.to_string()}}});
        patch_all(&rig.client, &kind, rig.mesh.namespace(), [(name, patch)]).await?;
    }
    Ok(())
}

/// The number of lists and watches that failed.
fn failures(manager: &Manager) -> usize {
    manager.log().matches("list or watch failed").count()
}

/// The writes except Events: a new leader repeats those about addresses that no endpoint can have.
fn written(rig: &FaultRig) -> Vec<String> {
    rig.proxy.writes().into_iter().filter(|write| !write.contains("/events.k8s.io/")).collect()
}

async fn works(rig: &FaultRig, linkerd: &Linkerd, manager: &Manager) -> Result<()> {
    for ready in [false, true] {
        rig.mesh.set_ready("vm", ready).await?;
        rig.mesh.shows("web", &[("vm", ready)]).await?;
    }
    linkerd.edit_access_log("apache").await?;
    linkerd.has_access_log("json").await?;
    let target = format!("web.{}.svc.cluster.local:80", rig.mesh.namespace());
    manager.discovery().await?.get(&target, "").await?.shows(&["192.0.2.4:80"]).await?;
    manager.is_well(BACKED_OFF).await
}

#[tokio::test(flavor = "multi_thread")]
async fn objects_of_the_maximum_size_of_each_kind_do_not_keep_the_operator_from_its_work() -> Result<()> {
    let rig = FaultRig::shipped(Options::with_controllers()).await?;
    let mut manager = rig.shipped_manager().await?;
    let linkerd = Linkerd::install(&rig.client).await?;
    rig.mesh.put_web_over_vm().await?;
    // The API server may have begun to serve the CRDs after the manager started.
    let at_start = failures(&manager);

    // As events.
    for (kind, object) in objects(rig.mesh.namespace()) {
        create_all(&rig.client, &kind, Some(rig.mesh.namespace()), iter::once(object)).await?;
    }
    linkerd.add_other_data("x".repeat(LONG)).await?;
    touch(&rig, 1).await?;
    works(&rig, &linkerd, &manager).await?;
    // In lists, and in events after them.
    rig.proxy.rests().await?;
    manager.terminate(SOON).await?;
    let before = written(&rig);
    let mut second = rig.shipped_manager().await?;
    touch(&rig, 2).await?;
    rig.proxy.rests().await?;
    assert_eq!(written(&rig), before, "a new leader must write nothing");
    works(&rig, &linkerd, &second).await?;
    assert_eq!([failures(&manager), failures(&second)], [at_start, 0], "{}", second.log());
    ensure!(second.is_running(), "the manager ended");
    Ok(())
}
