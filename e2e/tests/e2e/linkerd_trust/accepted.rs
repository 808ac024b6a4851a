//! Workloads that are not restarted hold the next issuer by name, until they are accepted, or people restart them.

use anyhow::{Context, Result, ensure};
use e2e::{eventually, identity::MeshAuthority};
use serde_json::{Value, json};

use super::{ReportedMesh, SOON, bundle_becomes, next_step};

const RESTART: &str = "kubectl -n default rollout restart deployment/deployment";
const MANUAL: &str = "remove the proxy from its template, or inject it again with linkerd inject";
/// The kinds that nothing restarts, and the way out of each. No LinkerdConfig restarts the Deployment.
const HOLDING: [(&str, &str); 5] = [
    ("DaemonSet", MANUAL),
    ("Deployment", RESTART),
    ("Job", "wait until the Job ends"),
    ("Pod", "delete it and create it again: no controller does"),
    ("StatefulSet", "delete its Pods: its update strategy is OnDelete"),
];

/// A workload of this kind, and a Pod of it whose proxy has these trust anchors.
fn workload(kind: &str, anchors: &str) -> Vec<Value> {
    let name = kind.to_lowercase();
    let env = json!([{"name": "LINKERD2_PROXY_IDENTITY_TRUST_ANCHORS", "value": anchors}]);
    let proxy = json!({"name": "linkerd-proxy", "image": "proxy", "env": env});
    let labels = json!({"app": name, "linkerd.io/control-plane-ns": "linkerd", "pod-template-hash": "1"});
    let object = |spec: Value| {
        let api = if kind == "Job" { "batch/v1" } else { "apps/v1" };
        json!({"apiVersion": api, "kind": kind, "metadata": {"name": name, "namespace": "default"}, "spec": spec})
    };
    let template = |container: &Value| json!({"metadata": {"labels": labels}, "spec": {"containers": [container]}});
    let app = json!({"name": "app", "image": "app"});
    let selector = json!({"matchLabels": {"app": name}});
    let owner = match kind {
        "DaemonSet" => Some(object(json!({"selector": selector, "template": template(&proxy)}))),
        "Deployment" => Some(object(json!({"selector": selector, "template": template(&app)}))),
        "StatefulSet" => Some(object(json!({"selector": selector, "template": template(&app), "serviceName": name,
            "updateStrategy": {"type": "OnDelete"}}))),
        "Job" => {
            let pod = json!({"containers": [app], "restartPolicy": "Never"});
            Some(object(json!({"template": {"metadata": {"labels": labels}, "spec": pod}})))
        }
        _ => None,
    };
    // The Pods of a Deployment belong to one of its ReplicaSets.
    let (of_kind, named) = if kind == "Deployment" { ("ReplicaSet", "deployment-1") } else { (kind, &*name) };
    let references = owner.iter().map(|owner| {
        json!({"apiVersion": owner["apiVersion"], "kind": of_kind, "name": named, "uid": format!("uid-of-{name}"),
            "controller": true})
    });
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "spec": {"containers": [proxy]},
        "metadata": {"name": format!("{name}-1"), "namespace": "default", "labels": labels,
            "ownerReferences": references.collect::<Vec<_>>()}});
    let replica_set = (kind == "Deployment").then(|| {
        let of = json!({"apiVersion": "apps/v1", "kind": kind, "name": name, "uid": "uid", "controller": true});
        let metadata = json!({"name": named, "namespace": "default", "ownerReferences": [of]});
        let spec = json!({"selector": selector, "template": template(&app)});
        json!({"apiVersion": "apps/v1", "kind": of_kind, "metadata": metadata, "spec": spec})
    });
    owner.into_iter().chain(replica_set).chain([pod]).collect()
}

/// Declares a root, with these acceptances.
async fn declare(mesh: &ReportedMesh, root: &MeshAuthority, accept: &[Value]) -> Result<()> {
    let trust = json!({"apiVersion": "config.linkerd.io/v1alpha1", "kind": "LinkerdTrust", "metadata": {"name": "mesh"},
        "spec": {"anchors": {"pem": root.pem()}, "mode": "Enforce", "accept": accept}});
    mesh.rig.apply(&[trust]).await.map(drop)
}

/// Waits until these workloads hold the next issuer, and are named.
async fn is_held_by(mesh: &ReportedMesh, names: &[String]) -> Result<Value> {
    eventually(SOON, format!("a rotation that waits for {names:?}"), async || {
        let object = mesh.rig.get(&["linkerdtrust", "mesh"]).await?;
        let status = object.get("status").context("no status")?;
        let is_current = status.get("observedGeneration") == object.pointer("/metadata/generation");
        ensure!(is_current && status["phase"] == "Spreading", "{status:#}");
        let conditions = status["conditions"].as_array().into_iter().flatten();
        let mut spread = conditions.filter(|it| it["type"] == "TrustSpread");
        let message = spread.next().and_then(|it| it["message"].as_str()).unwrap_or_default();
        ensure!(message.ends_with(&format!("trust anchor of the issuer: {}", names.join(", "))), "{message}");
        Ok(status.clone())
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn each_workload_that_nothing_restarts_holds_the_issuer_with_its_way_out_until_it_is_accepted() -> Result<()> {
    let mut mesh = ReportedMesh::start().await?;
    mesh.permit().await?;
    let (new, other) = (MeshAuthority::root("new")?, MeshAuthority::root("other")?);
    let issuer = mesh.old.signs("issuer")?;
    declare(&mesh, &new, &[]).await?;
    let both = format!("{}{}", mesh.old.pem(), new.pem());
    bundle_becomes(&mesh.rig, &both).await?;
    for (kind, _) in HOLDING {
        mesh.rig.apply(&workload(kind, &mesh.old.pem())).await?;
    }
    for name in ["web-1", "web-2"] {
        mesh.delete_proxy(name).await?;
    }
    mesh.put_proxy("web-3", &both, &[&issuer]).await?;

    let name = |kind: &str| match kind {
        "Pod" => "Pod default/pod-1".to_owned(),
        _ => format!("{kind} default/{}", kind.to_lowercase()),
    };
    let mut names: Vec<_> = HOLDING.iter().map(|(kind, _)| name(kind)).collect();
    let status = is_held_by(&mesh, &names).await?;
    ensure!(next_step(&status).contains("spec.accept"), "{status:#}");
    let behind = status["behind"].as_array().context("no list")?;
    let found: Vec<_> = behind.iter().map(|row| (&row["kind"], &row["state"], &row["whatToDo"])).collect();
    let holds = json!("Holds");
    let expected = HOLDING.map(|(kind, way)| (json!(kind), json!(way)));
    assert_eq!(found, expected.iter().map(|(kind, way)| (kind, &holds, way)).collect::<Vec<_>>());

    let roots = status["anchors"].as_array().into_iter().flatten();
    let next = roots.clone().find(|root| root["desired"] == true).context("no root")?["sha256"].clone();
    let of_other = roots.clone().find(|root| root["desired"] == false).context("no root")?["sha256"].clone();
    let accept = |kind: &str, anchor: &Value| {
        let name = if kind == "Pod" { "pod-1".to_owned() } else { kind.to_lowercase() };
        json!({"kind": kind, "namespace": "default", "name": name, "step": "Issuer", "anchor": anchor})
    };
    let void: Vec<_> = HOLDING.iter().map(|(kind, _)| accept(kind, &of_other)).collect();
    declare(&mesh, &new, &void).await?;
    is_held_by(&mesh, &names).await.context("acceptances about another root")?;
    let mut accepted = Vec::new();
    for (kind, _) in HOLDING.into_iter().filter(|(kind, _)| *kind != "Deployment") {
        accepted.push(accept(kind, &next));
        declare(&mesh, &new, &accepted).await?;
        names.retain(|held| *held != name(kind));
        is_held_by(&mesh, &names).await.with_context(|| format!("{kind} is accepted"))?;
    }
    // What kubectl rollout restart does is left to the controllers of a cluster. A Pod that drains connections opens others.
    let restarted = workload("Deployment", &both).pop().context("no Pod")?;
    let finalizers = |list: &str| format!(r#"{{"metadata":{{"finalizers":{list}}}}}"#);
    let patch = async |list: &str| {
        mesh.rig.kubectl(&["patch", "pod", "deployment-1", "--type=merge", "-p", &finalizers(list)]).await
    };
    patch(r#"["example.com/drains"]"#).await?;
    mesh.rig.kubectl(&["delete", "pod", "deployment-1", "--wait=false"]).await?;
    // It is the workload's still, which may be accepted.
    let way = "wait until the deleted Pods have ended. If their node is lost, delete them with --force";
    eventually(SOON, "the way out of a deleted Pod", async || {
        let status = is_held_by(&mesh, &[name("Deployment")]).await?;
        let rows = status["behind"].as_array().into_iter().flatten();
        let ways: Vec<_> = rows.filter(|row| row["state"] == "Holds").map(|row| row["whatToDo"].clone()).collect();
        ensure!(ways == [way], "{ways:?}");
        Ok(())
    })
    .await?;
    patch("null").await?;
    mesh.rig.apply(&[restarted]).await?;
    let status =
        mesh.reaches(SOON, "AwaitingIssuer", &["TrustSpread=True/Synced", "Ready=False/RotationInProgress"]).await?;
    assert_eq!((&status["proxies"]["accepted"], &status["behind"][0]["state"]), (&json!(4), &json!("Accepted")));

    // They were accepted without the root before.
    declare(&mesh, &other, &accepted).await?;
    let all = HOLDING.iter().map(|(kind, _)| name(kind)).chain(["Pod default/web-3".to_owned()]);
    let mut all: Vec<_> = all.collect();
    all.sort();
    // A sentence has five names.
    *all.last_mut().context("no workload")? = "and 1 more".to_owned();
    is_held_by(&mesh, &all).await.map(drop)
}

#[tokio::test(flavor = "multi_thread")]
async fn an_acceptance_without_a_fingerprint_is_rejected_and_so_is_a_field_that_needs_another_one() -> Result<()> {
    let mesh = ReportedMesh::start().await?;
    let accept =
        |anchor: &str| [json!({"kind": "Job", "namespace": "a", "name": "b", "step": "Issuer", "anchor": anchor})];
    let error = declare(&mesh, &mesh.old, &accept("new")).await.expect_err("it has no SHA-256").to_string();
    ensure!(error.contains("spec.accept[0].anchor") && error.contains("must be a SHA-256"), "{error}");
    let anchors = json!({"pem": mesh.old.pem()});
    for (spec, part) in [
        (json!({"accept": accept(&"a".repeat(64))}), "spec.accept: Invalid value: needs the trust anchors of the mesh"),
        (json!({"bridge": anchors}), "spec.bridge: Invalid value: needs the trust anchors of the mesh"),
        (json!({"distrust": anchors}), "spec.distrust: Invalid value: needs the trust anchors of the mesh"),
        (
            json!({"anchors": anchors, "issuer": {"manage": "Secret"}}),
            "spec.issuer: Invalid value: needs spec.mode Enforce",
        ),
        (
            json!({"anchors": anchors, "distrust": {"pem": mesh.old.pem(), "connections": "Cut"}}),
            "spec.distrust: Invalid value: needs spec.mode Enforce and spec.issuer.manage Secret if connections is Cut",
        ),
    ] {
        let trust = json!({"apiVersion": "config.linkerd.io/v1alpha1", "kind": "LinkerdTrust", "metadata": {"name": "mesh"}, "spec": spec});
        let error = mesh.rig.apply(&[trust]).await.expect_err("a field is missing").to_string();
        ensure!(error.contains(part), "{error}");
    }
    Ok(())
}
