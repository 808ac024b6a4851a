//! LinkerdTrust: the cost of asking many proxies for their certificates, of a report about them, and of rotations.
//!
//! * `trust`: Ten thousand Pods of one namespace share the address and the port of one TLS server, whose certificate is for their
//!   ServiceAccount. The CPU time is that of the whole process, whose load is only this job.
//! * At rest, no proxy has to be asked again. While Pods change, a report is made every three seconds.
//! * `trust-restarts`: the Pods belong to Deployments, which a rotation [without a bridge](without_a_bridge) restarts.
//! * In a [rotation], all proxies renew their certificates at once, which takes up to a day in a mesh.

mod rotation;
mod without_a_bridge;

use std::{
    ops::Range,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use e2e::{
    ControlPlane, Job, Manager, ManagerOptions, Options, eventually,
    identity::MeshAuthority,
    load::Cost,
    memory::mebibytes,
    objects::{create_all, kind},
    shown_proxy::{FRESH, ShownProxy},
};
use serde_json::{Value, json};
use tokio::time::sleep;

use crate::report::Report;

pub(crate) const FIGURES: [&str; 2] = ["trust", "trust-restarts"];

const IDENTITY: &str = "default.shop.serviceaccount.identity.linkerd.cluster.local";
const PROXIES: usize = 10_000;
const NAMESPACE: &str = "shop";
/// At 50 a second, and the time of the API server.
const PATIENCE: Duration = Duration::from_secs(600);
const REST: Duration = Duration::from_secs(60);
const CHANGES: usize = 40;

pub(crate) async fn figures(report: &mut Report, wanted: impl Fn(&str) -> bool) -> Result<()> {
    if wanted("trust") {
        many_proxies(report).await?;
    }
    if wanted("trust-restarts") {
        without_a_bridge::figure(report).await?;
    }
    Ok(())
}

async fn many_proxies(report: &mut Report) -> Result<()> {
    let control_plane = ControlPlane::start(Options::default()).await?;
    control_plane.install_crds("crd").await?;
    control_plane.create_namespaces(&["linkerd", NAMESPACE]).await?;
    let (root, issuer) = mesh(&control_plane).await?;
    let proxy = ShownProxy::start(IDENTITY, &[&issuer], &root, FRESH).await?;
    pods(&control_plane, 0..PROXIES, &root.pem(), proxy.address.port()).await?;
    let token = format!("--identity-token-file={}", rotation::identity_token(&control_plane).await?.display());
    let mut manager = ManagerOptions::only(Job::LinkerdConfig).args([token]).start(&control_plane)?;
    manager.ready(PATIENCE).await?;
    sleep(Duration::from_secs(10)).await;
    let idle = percent(&manager, REST).await?;
    let memory = resident(&manager)?;

    let (before, begun) = (Cost::of_process(manager.pid())?, Instant::now());
    control_plane.apply(&[linkerd_trust(&json!({}))]).await?;
    all_observed(&control_plane).await?;
    let (took, ran) = (begun.elapsed(), Cost::of_process(manager.pid())?.ran - before.ran);
    let each = ran.as_secs_f64() * 1e6 / PROXIES as f64;
    let value =
        format!("{:.0} s; {each:.0} us of CPU each; {:.1} MiB more", took.as_secs_f64(), resident(&manager)? - memory);
    let raw = json!({"seconds": took.as_secs_f64(), "cpu_seconds": ran.as_secs_f64()});
    report.row(format!("{PROXIES} proxies are asked for their certificates"), value, "200 s; < 1 ms of CPU each", raw);

    let rest = percent(&manager, REST).await?;
    let raw = json!({"without": idle, "with": rest});
    let figure = format!("CPU at rest with {PROXIES} observed proxies, and without a LinkerdTrust");
    report.row(figure, format!("{rest:.2} % of a core, and {idle:.2} %"), "< 1 %", raw);
    changes(&control_plane, &manager, report).await?;
    rotation::figure(&control_plane, &manager, &proxy, &root, report).await
}

fn linkerd_trust(spec: &Value) -> Value {
    json!({"apiVersion": "config.linkerd.io/v1alpha1", "kind": "LinkerdTrust", "metadata": {"name": "mesh"},
        "spec": spec})
}

/// Waits until the certificate of each proxy was observed.
async fn all_observed(control_plane: &ControlPlane) -> Result<()> {
    eventually(PATIENCE, "the certificate of each proxy", async || {
        let status = control_plane.get(&["linkerdtrust", "mesh"]).await?;
        let presented = status.pointer("/status/anchors/0/presentedBy");
        ensure!(presented == Some(&json!(PROXIES)), "{presented:?}");
        Ok(())
    })
    .await
}

/// Returns the root and the issuer of the mesh, whose bundle is in its ConfigMap.
async fn mesh(control_plane: &ControlPlane) -> Result<(MeshAuthority, MeshAuthority)> {
    let root = MeshAuthority::root("root.linkerd.cluster.local")?;
    let issuer = root.signs("identity.linkerd.cluster.local")?;
    let map = json!({"apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": "linkerd-identity-trust-roots", "namespace": "linkerd"},
        "data": {"ca-bundle.crt": root.pem()}});
    control_plane.apply(&[map]).await?;
    Ok((root, issuer))
}

/// Creates Pods that run, and whose proxies trust these roots.
async fn pods(control_plane: &ControlPlane, numbers: Range<usize>, anchors: &str, port: u16) -> Result<()> {
    let at = |variable: &str, port: u16| json!({"name": format!("LINKERD2_PROXY_{variable}_LISTEN_ADDR"), "value": format!("0.0.0.0:{port}")});
    let env = json!([at("INBOUND", 4143), at("CONTROL", 4190), at("ADMIN", port),
        {"name": "LINKERD2_PROXY_IDENTITY_TRUST_ANCHORS", "value": anchors}]);
    let pod = |number: usize| -> Value {
        let labels = json!({"linkerd.io/control-plane-ns": "linkerd"});
        json!({"metadata": {"name": format!("web-{number}"), "labels": labels},
            "spec": {"containers": [{"name": "linkerd-proxy", "image": "none", "env": env}]}, "status": running()})
    };
    create_all(&control_plane.client().await?, &kind("v1", "Pod"), Some(NAMESPACE), numbers.map(pod)).await
}

/// The status of a Pod that runs.
fn running() -> Value {
    json!({"phase": "Running", "podIP": "127.0.0.1", "podIPs": [{"ip": "127.0.0.1"}]})
}

/// Deletes Pods, so that reports are made, and measures the CPU time of each.
async fn changes(control_plane: &ControlPlane, manager: &Manager, report: &mut Report) -> Result<()> {
    let queue = [("name", "linkerdtrust_controller_workqueue")];
    let work = async |part: &str| {
        let name = format!("workqueue_work_duration_seconds_{part}");
        manager.metric(&name, &queue).await.with_context(|| format!("no metric {name}"))
    };
    let (count, sum) = (work("count").await?, work("sum").await?);
    for number in 0..CHANGES {
        let name = format!("web-{number}");
        let delete = ["-n", NAMESPACE, "delete", "pod", &name, "--force", "--grace-period=0", "--wait=false"];
        control_plane.kubectl(&delete).await?;
        sleep(Duration::from_secs(1)).await;
    }
    sleep(Duration::from_secs(5)).await;
    let (reports, seconds) = (work("count").await? - count, work("sum").await? - sum);
    let value = format!("{:.1} ms each, {reports:.0} reports", seconds * 1000.0 / reports);
    let figure =
        format!("a report about {PROXIES} proxies, with the write of the status, while a Pod is deleted each second");
    report.row(figure, value, "< 50 ms", json!({"reports": reports, "seconds": seconds}));
    Ok(())
}

fn resident(manager: &Manager) -> Result<f64> {
    Ok(mebibytes(manager.memory()?.resident))
}

/// Returns the CPU time of the process in a time, in percent of it.
async fn percent(manager: &Manager, time: Duration) -> Result<f64> {
    let before = Cost::of_process(manager.pid())?.ran;
    sleep(time).await;
    let ran = Cost::of_process(manager.pid())?.ran - before;
    Ok(ran.as_secs_f64() * 100.0 / time.as_secs_f64())
}
