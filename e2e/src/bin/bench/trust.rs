//! LinkerdTrust: the cost of asking many proxies for their certificates, of a report about them, and of a rotation.
//!
//! * Ten thousand Pods share the address and the port of one TLS server, which presents a certificate of a day. The CPU
//!   time is that of the whole process, whose load is only this job.
//! * At rest, no proxy has to be asked again. While Pods change, a report is made every three seconds.
//! * In the rotation, the operator adds the new root and removes the old one. All proxies renew at once, over a bridge, which
//!   in a mesh takes up to 17 hours. Then one replica of the identity service, a process, is asked twice.

use std::{
    collections::BTreeSet,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use e2e::{
    ControlPlane, Job, Manager, ManagerOptions, Options, eventually,
    identity::{AUDIENCE, IdentityOptions, IdentityProcess, MeshAuthority},
    load::Cost,
    memory::mebibytes,
    objects::{create_all, kind},
    shown_proxy::{FRESH, ShownProxy},
};
use hyper::StatusCode;
use serde_json::{Value, json};
use tokio::time::sleep;

use crate::report::Report;

pub(crate) const FIGURE: &str = "trust";

const IDENTITY: &str = "default.shop.serviceaccount.identity.linkerd.cluster.local";
const PROXIES: usize = 10_000;
const NAMESPACES: usize = 20;
/// At 50 a second, and the time of the API server.
const PATIENCE: Duration = Duration::from_secs(600);
const REST: Duration = Duration::from_secs(60);
const CHANGES: usize = 40;

pub(crate) async fn figures(report: &mut Report) -> Result<()> {
    let control_plane = ControlPlane::start(Options::default()).await?;
    control_plane.install_crds("crd").await?;
    control_plane.create_namespaces(&["linkerd"]).await?;
    let (root, issuer) = mesh(&control_plane).await?;
    let proxy = ShownProxy::start(IDENTITY, &[&issuer], &root, FRESH).await?;
    pods(&control_plane, &root.pem(), proxy.address.port()).await?;
    let token = control_plane.directory().join("identity-token");
    control_plane.kubectl(&["-n", "linkerd", "create", "serviceaccount", "operator"]).await?;
    let audience = format!("--audience={AUDIENCE}");
    let created = control_plane.kubectl(&["-n", "linkerd", "create", "token", "operator", &audience]).await?;
    std::fs::write(&token, created)?;
    let options = ManagerOptions::only(Job::LinkerdConfig);
    let options = options.args([format!("--identity-token-file={}", token.display())]);
    let mut manager = options.start(&control_plane)?;
    manager.ready(PATIENCE).await?;
    sleep(Duration::from_secs(10)).await;
    let idle = percent(&manager, REST).await?;
    let memory = resident(&manager)?;

    let (before, begun) = (Cost::of_process(manager.pid())?, Instant::now());
    let trust = json!({"apiVersion": "config.linkerd.io/v1alpha1", "kind": "LinkerdTrust", "metadata": {"name": "mesh"},
        "spec": {}});
    control_plane.apply(&[trust]).await?;
    eventually(PATIENCE, "the LinkerdTrust to be steady", async || {
        let status = control_plane.get(&["linkerdtrust", "mesh"]).await?;
        let presented = status.pointer("/status/anchors/0/presentedBy");
        ensure!(presented == Some(&json!(PROXIES)), "{presented:?}");
        Ok(())
    })
    .await?;
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
    rotation(&control_plane, &manager, &proxy, &root, report).await
}

/// Replaces the root.
async fn rotation(
    control_plane: &ControlPlane,
    manager: &Manager,
    proxy: &ShownProxy,
    old: &MeshAuthority,
    report: &mut Report,
) -> Result<()> {
    let new = MeshAuthority::root("new.linkerd.cluster.local")?;
    let (issuer, bridge) = (new.signs("identity.linkerd.cluster.local")?, old.bridges(&new, "new")?);
    let _identity = identity(control_plane, &[&issuer, &bridge], &[old, &new]).await?;
    let pods = uids(control_plane).await?;
    let (before, begun) = (Cost::of_process(manager.pid())?, Instant::now());
    let spec = json!({"mode": "Enforce", "anchors": {"pem": new.pem()}, "bridge": {"pem": format!("{}{}", bridge.pem(), old.pem())}});
    let trust = json!({"apiVersion": "config.linkerd.io/v1alpha1", "kind": "LinkerdTrust", "metadata": {"name": "mesh"},
        "spec": spec});
    control_plane.apply(&[trust]).await?;
    reaches(control_plane, "AwaitingIssuer").await?;
    let awaiting = begun.elapsed();

    proxy.renew(&[&issuer, &bridge], old)?;
    // The first proxy with a new certificate: a Pod that is created now.
    let pod = pod("new", &namespace(0), &format!("{}{}", old.pem(), new.pem()), proxy.address.port());
    create_all(&control_plane.client().await?, &kind("v1", "Pod"), None, [pod]).await?;
    let renewed = Instant::now();
    reaches(control_plane, "Retiring").await?;
    let observed = renewed.elapsed();
    reaches(control_plane, "Complete").await?;
    let (took, ran) = (begun.elapsed(), Cost::of_process(manager.pid())?.ran - before.ran);
    ensure!(pods.is_subset(&uids(control_plane).await?), "Pods were created again");
    let written = manager.metric("linkerd_operator_trust_bundle_writes_total", &[("result", "ok")]).await;
    ensure!(written == Some(2.0), "{written:?} writes of the bundle");

    let raw = json!({"awaiting": awaiting.as_secs_f64(), "observed": observed.as_secs_f64(),
        "seconds": took.as_secs_f64(), "cpu_seconds": ran.as_secs_f64()});
    let value = format!(
        "{:.0} s: {:.0} s until the issuer is awaited, {:.0} s until all renewed certificates are observed, and the \
         confirmation; 2 writes of the bundle, 0 Pods created again, {:.1} s of CPU",
        took.as_secs_f64(),
        awaiting.as_secs_f64(),
        observed.as_secs_f64(),
        ran.as_secs_f64()
    );
    report.row(format!("a rotation over a bridge, with {PROXIES} proxies"), value, "0 Pods created again", raw);
    Ok(())
}

async fn reaches(control_plane: &ControlPlane, phase: &str) -> Result<()> {
    eventually(PATIENCE, format_args!("the phase {phase}"), async || {
        let status = control_plane.get(&["linkerdtrust", "mesh"]).await?;
        let status = status.get("status").context("no status")?;
        ensure!(status.get("phase") == Some(&json!(phase)), "{status:#}");
        Ok(())
    })
    .await
}

/// The UIDs of all Pods.
async fn uids(control_plane: &ControlPlane) -> Result<BTreeSet<String>> {
    let columns = "-o=custom-columns=UID:.metadata.uid";
    let text = control_plane.kubectl(&["get", "pods", "--all-namespaces", "--no-headers", columns]).await?;
    Ok(text.lines().map(str::to_owned).collect())
}

/// Starts a replica of the identity service, which terminates TLS itself, and creates its Pod.
async fn identity(
    control_plane: &ControlPlane,
    issuer: &[&MeshAuthority],
    roots: &[&MeshAuthority],
) -> Result<IdentityProcess> {
    let folder = control_plane.directory().join("identity");
    std::fs::create_dir(&folder)?;
    let options = IdentityOptions { tls: true, ..IdentityOptions::default() };
    let process = IdentityProcess::start(&folder, control_plane.kubeconfig(), options)?;
    process.roots.put_roots(roots)?;
    process.issuer.put_chain(issuer)?;
    process.shows(StatusCode::OK).await?;
    let port = json!({"name": "ident-grpc", "containerPort": process.address.port()});
    let labels = json!({"linkerd.io/control-plane-component": "identity"});
    let pod = json!({"metadata": {"name": "linkerd-identity", "namespace": "linkerd", "labels": labels},
        "spec": {"containers": [{"name": "identity", "image": "none", "ports": [port]}]}, "status": running()});
    create_all(&control_plane.client().await?, &kind("v1", "Pod"), None, [pod]).await?;
    Ok(process)
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

fn namespace(number: usize) -> String {
    format!("shop-{}", number % NAMESPACES)
}

async fn pods(control_plane: &ControlPlane, anchors: &str, port: u16) -> Result<()> {
    let namespaces: Vec<_> = (0..NAMESPACES).map(namespace).collect();
    control_plane.create_namespaces(&namespaces.iter().map(String::as_str).collect::<Vec<_>>()).await?;
    let all = (0..PROXIES).map(|number| pod(&format!("web-{number}"), &namespace(number), anchors, port));
    create_all(&control_plane.client().await?, &kind("v1", "Pod"), None, all).await
}

/// A Pod whose proxy has these anchors.
fn pod(name: &str, namespace: &str, anchors: &str, port: u16) -> Value {
    let at = |variable: &str, port: u16| json!({"name": format!("LINKERD2_PROXY_{variable}_LISTEN_ADDR"), "value": format!("0.0.0.0:{port}")});
    let env = json!([at("INBOUND", 4143), at("CONTROL", 4190), at("ADMIN", port),
        {"name": "LINKERD2_PROXY_IDENTITY_TRUST_ANCHORS", "value": anchors}]);
    let labels = json!({"linkerd.io/control-plane-ns": "linkerd"});
    json!({"metadata": {"name": name, "namespace": namespace, "labels": labels},
        "spec": {"containers": [{"name": "linkerd-proxy", "image": "none", "env": env}]}, "status": running()})
}

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
        let (name, namespace) = (format!("web-{number}"), namespace(number));
        let delete = ["-n", &namespace, "delete", "pod", &name, "--force", "--grace-period=0", "--wait=false"];
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
