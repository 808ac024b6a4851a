//! The proxy injector: the time of a review, and reviews per CPU-second.
//!
//! * The operator runs in place of Linkerd's container. It logs a line per review, because the harness counts them there.
//! * The object is a Pod of 12 KiB of a ReplicaSet that is in the cache. The answer has the whole patch.
//! * With `LINKERD_CONTROLLER`, the path of Linkerd's controller, Linkerd's injector is measured in the same way.

use std::{path::PathBuf, time::Instant};

use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use e2e::{
    ControlPlane, Injector, Options,
    injector::{CertificateKind, install, reviews::request},
    load::Cost,
    memory::Memory,
};
use k8s_openapi::api::apps::v1::ReplicaSet;
use kube::{Api, api::PostParams};
use serde_json::{Value, json};

use crate::report::Report;

pub(crate) const FIGURES: [&str; 1] = ["injector"];

const LINKERD: &str = "linkerd";
const APP: &str = "app";
const REPLICA_SET: &str = "web-5f8d";
const WARM_UP: usize = 200;
const REVIEWS: usize = 5_000;
/// Reviews by several connections at the same time, each.
const CONNECTIONS: usize = 8;
const REVIEWS_EACH: usize = 1_000;
const POD_BYTES: usize = 12 * 1024;

pub(crate) async fn figures(report: &mut Report) -> Result<()> {
    let control_plane = ControlPlane::start(Options::default()).await?;
    install(&control_plane, LINKERD, APP).await?;
    let sets: Api<ReplicaSet> = Api::namespaced(control_plane.client().await?, APP);
    sets.create(&PostParams::default(), &serde_json::from_value(replica_set())?).await?;
    let operator = Injector::start_operator(false, &control_plane, LINKERD, &[APP], 1).await?;
    measure(report, "operator", &operator).await?;
    drop(operator);
    if let Some(controller) = std::env::var_os("LINKERD_CONTROLLER").map(PathBuf::from) {
        let signed = CertificateKind::SignedByAuthority;
        let linkerd = Injector::start_linkerd(&controller, signed, &control_plane, LINKERD, &[APP], 1).await?;
        measure(report, "Linkerd's injector", &linkerd).await?;
    }
    Ok(())
}

async fn measure(report: &mut Report, name: &str, injector: &Injector) -> Result<()> {
    let pid = injector.pid(0).await?.context("the injector has no process")?;
    let review = Bytes::from(request("Pod", &pod()).to_string());
    report.memory(&format!("{name}: before the first review"), &[Memory::of_process(pid)?], "at most 20 MiB more");
    let mut caller = injector.connect(0).await?;
    for _ in 0..WARM_UP {
        check(&caller.post(review.clone()).await?)?;
    }
    let mut durations = Vec::with_capacity(REVIEWS);
    for _ in 0..REVIEWS {
        let begun = Instant::now();
        caller.post(review.clone()).await?;
        durations.push(begun.elapsed());
    }
    let figure = format!("{name}: a review of a Pod of 12 KiB, one at a time on one connection");
    report.distribution(figure, durations, "p50 at most 1 ms, p99 at most 3 ms");

    let before = Cost::of_process(pid)?;
    let begun = Instant::now();
    let mut callers = Vec::new();
    for _ in 0..CONNECTIONS {
        let (mut caller, review) = (injector.connect(0).await?, review.clone());
        callers.push(tokio::spawn(async move {
            for _ in 0..REVIEWS_EACH {
                caller.post(review.clone()).await?;
            }
            anyhow::Ok(())
        }));
    }
    for caller in callers {
        caller.await??;
    }
    let (took, reviews) = (begun.elapsed(), CONNECTIONS * REVIEWS_EACH);
    let cpu = Cost::of_process(pid)?.ran.saturating_sub(before.ran);
    #[allow(clippy::cast_precision_loss, reason = "a count")]
    let per = |seconds: f64| reviews as f64 / seconds;
    let (rate, per_cpu_second) = (per(took.as_secs_f64()), per(cpu.as_secs_f64()));
    report.row(
        format!("{name}: reviews on {CONNECTIONS} connections"),
        format!("{rate:.0} per second, {per_cpu_second:.0} per CPU-second"),
        "at least 2,000 per CPU-second",
        json!({"per_second": rate, "per_cpu_second": per_cpu_second}),
    );
    report.memory(&format!("{name}: after all reviews"), &[Memory::of_process(pid)?], "at most 20 MiB more");
    Ok(())
}

/// The ReplicaSet of a Deployment. No controller reads it.
fn replica_set() -> Value {
    let owner = json!({"apiVersion": "apps/v1", "kind": "Deployment", "name": "web", "uid": "1", "controller": true});
    json!({
        "metadata": {"name": REPLICA_SET, "ownerReferences": [owner]},
        "spec": {
            "replicas": 0,
            "selector": {"matchLabels": {"app": "web"}},
            "template": {
                "metadata": {"labels": {"app": "web"}},
                "spec": {"containers": [{"name": "web", "image": "web"}]},
            },
        },
    })
}

/// A Pod of the ReplicaSet, with environment variables up to its size.
fn pod() -> Value {
    let owner =
        json!({"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": REPLICA_SET, "uid": "1", "controller": true});
    let mut pod = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {
            "generateName": format!("{REPLICA_SET}-"),
            "annotations": {"linkerd.io/inject": "enabled", "config.linkerd.io/proxy-cpu-request": "100m"},
            "labels": {"app": "web", "pod-template-hash": "5f8d"},
            "ownerReferences": [owner],
        },
        "spec": {
            "serviceAccountName": "default",
            "containers": [{"name": "web", "image": "web", "ports": [{"containerPort": 8080}], "env": []}],
        },
    });
    let mut number = 0;
    while pod.to_string().len() < POD_BYTES {
        let variable = json!({"name": format!("VARIABLE_{number}"), "value": "a value of a usual length"});
        if let Some(env) = pod.pointer_mut("/spec/containers/0/env").and_then(Value::as_array_mut) {
            env.push(variable);
        }
        number += 1;
    }
    pod
}

/// The answer has a patch.
fn check(answer: &[u8]) -> Result<()> {
    let answer: Value = serde_json::from_slice(answer)?;
    ensure!(answer.pointer("/response/patch").is_some(), "the Pod is not injected: {answer}");
    Ok(())
}
