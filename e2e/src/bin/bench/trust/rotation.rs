//! A rotation over a bridge: from the declaration of the new root until the old one has left the bundle. And what other
//! rotations are followed with.
//!
//! * In: a mesh with an old root, whose proxies share one server. Out: a row with the time of each phase, and the cost.
//! * The issuer changes once it is awaited. One replica of the identity service, a real process, shows it.
//! * In each phase, each proxy trusts a root that is sufficient, so that a LinkerdConfig restarts no workload.

use std::{
    collections::BTreeSet,
    fs,
    path::PathBuf,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use e2e::{
    ControlPlane, Manager, eventually,
    identity::{AUDIENCE, IdentityOptions, IdentityProcess, MeshAuthority},
    objects::{create_all, kind},
    shown_proxy::ShownProxy,
};
use hyper::StatusCode;
use kube::{Api, api::DynamicObject};
use serde_json::{Value, json};
use tokio::time::sleep;

use super::{CHANGES, PATIENCE, PROXIES, linkerd_trust, pods, running};
use crate::report::Report;

const ACCOUNT: &str = "operator";
const PROBE: Duration = Duration::from_millis(500);

/// What the LinkerdTrust shows during a rotation.
pub(super) struct FollowedRotation<'a> {
    trusts: Api<DynamicObject>,
    manager: &'a Manager,
    /// The versions of the resource.
    pub(super) versions: BTreeSet<String>,
}

/// Returns the file of a token for the identity service.
pub(super) async fn identity_token(control_plane: &ControlPlane) -> Result<PathBuf> {
    control_plane.kubectl(&["-n", "linkerd", "create", "serviceaccount", ACCOUNT]).await?;
    let file = control_plane.directory().join("identity-token");
    fs::write(&file, control_plane.token_for("linkerd", ACCOUNT, &[AUDIENCE]).await?)?;
    Ok(file)
}

/// Replaces the old root. The Pods that were deleted before are created again, after the issuer has changed.
pub(super) async fn figure(
    control_plane: &ControlPlane,
    manager: &Manager,
    proxy: &ShownProxy,
    old: &MeshAuthority,
    report: &mut Report,
) -> Result<()> {
    let new = MeshAuthority::root("new")?;
    let (issuer, bridge) = (new.signs("identity.linkerd.cluster.local")?, old.bridges(&new, "new")?);
    let _identity = identity_service(control_plane, &[&issuer, &bridge], &[old, &new]).await?;
    let mut rotation = FollowedRotation::of(control_plane, manager).await?;
    let sha256 = json!(old.sha256());
    let restarts_nothing = |status: &Value| {
        let sufficient = status.get("sufficientAnchors").and_then(Value::as_array);
        sufficient.is_some_and(|it| it.contains(&sha256)) && status.get("requiredAnchors").is_none()
    };
    let (ran, asked, begun) = (manager.cpu_time()?, rotation.handshakes().await?, Instant::now());

    let bridges = format!("{}{}", bridge.pem(), old.pem());
    let spec = json!({"mode": "Enforce", "anchors": {"pem": new.pem()}, "bridge": {"pem": bridges}});
    control_plane.apply(&[linkerd_trust(&spec)]).await?;
    rotation.reaches("AwaitingIssuer", restarts_nothing).await?;
    let awaited = begun.elapsed();

    // The certificate of a new Pod is the first one that shows the new issuer.
    proxy.renew(&[&issuer, &bridge], old)?;
    let port = proxy.address.port();
    pods(control_plane, 0..CHANGES, &format!("{}{}", old.pem(), new.pem()), port).await?;
    rotation.reaches("Retiring", restarts_nothing).await?;
    let renewed = begun.elapsed();
    rotation.writes(2.0).await?;
    let removed = begun.elapsed();
    let status = rotation.reaches("Complete", restarts_nothing).await?;
    let complete = begun.elapsed();
    let presented = status.pointer("/anchors/0/presentedBy");
    ensure!(presented == Some(&json!(PROXIES)), "{status:#}");

    let (ran, asked) = (manager.cpu_time()? - ran, rotation.handshakes().await? - asked);
    let [to_issuer, to_retiring, to_removal, to_complete] =
        [awaited, renewed - awaited, removed - renewed, complete - removed].map(|time| time.as_secs_f64());
    let (total, cpu, versions) = (complete.as_secs_f64(), ran.as_secs_f64(), rotation.versions.len());
    let raw = json!({"to_issuer": to_issuer, "to_retiring": to_retiring, "to_removal": to_removal,
        "to_complete": to_complete, "cpu_seconds": cpu, "handshakes": asked, "versions": versions});
    let value = format!(
        "{total:.0} s: AwaitingIssuer after {to_issuer:.0} s, Retiring {to_retiring:.0} s after the issuer, the old root \
         removed after {to_removal:.0} s more, Complete after {to_complete:.0} s more; 0 restarts needed; {asked:.0} \
         handshakes, 2 writes of the bundle, {versions} versions of the resource, {cpu:.1} s of CPU"
    );
    report.row(format!("a rotation over a bridge, {PROXIES} proxies"), value, "0 restarts", raw);
    Ok(())
}

// === impl FollowedRotation ===

impl<'a> FollowedRotation<'a> {
    pub(super) async fn of(control_plane: &ControlPlane, manager: &'a Manager) -> Result<Self> {
        let trusts = Api::all_with(control_plane.client().await?, &kind("config.linkerd.io/v1alpha1", "LinkerdTrust"));
        Ok(Self { trusts, manager, versions: BTreeSet::new() })
    }

    /// Waits for the phase. Until then, each status of the present declaration has to be right. Returns the status.
    pub(super) async fn reaches(&mut self, phase: &str, is_right: impl Fn(&Value) -> bool) -> Result<Value> {
        let mut wrong = None;
        let status = eventually(PATIENCE, format_args!("the phase {phase}"), async || {
            let trust = self.trusts.get("mesh").await?;
            self.versions.extend(trust.metadata.resource_version);
            let status = trust.data.get("status").context("no status")?;
            let is_current = status.get("observedGeneration") == Some(&json!(trust.metadata.generation));
            if is_current && !is_right(status) {
                wrong.get_or_insert_with(|| status.clone());
            }
            if !is_current || status.get("phase") != Some(&json!(phase)) {
                sleep(PROBE).await;
                bail!("{status:#}");
            }
            Ok(status.clone())
        })
        .await?;
        ensure!(wrong.is_none(), "before the phase {phase}: {wrong:#?}");
        Ok(status)
    }

    /// Waits until the bundle was written so many times.
    pub(super) async fn writes(&self, expected: f64) -> Result<()> {
        eventually(PATIENCE, format_args!("{expected} writes of the bundle"), async || {
            let name = "linkerd_operator_trust_bundle_writes_total";
            let written = self.manager.metric(name, &[("result", "ok")]).await;
            ensure!(written == Some(expected), "{written:?}");
            Ok(())
        })
        .await
    }

    pub(super) async fn handshakes(&self) -> Result<f64> {
        let name = "linkerd_operator_trust_probes_total";
        self.manager.metric(name, &[]).await.with_context(|| format!("no metric {name}"))
    }
}

/// Starts a replica of the identity service, which terminates TLS itself, and creates its Pod.
pub(super) async fn identity_service(
    control_plane: &ControlPlane,
    issuer: &[&MeshAuthority],
    roots: &[&MeshAuthority],
) -> Result<IdentityProcess> {
    let folder = control_plane.directory().join("identity");
    fs::create_dir(&folder)?;
    let options = IdentityOptions { tls: true, ..IdentityOptions::default() };
    let process = IdentityProcess::start(&folder, control_plane.kubeconfig(), options)?;
    process.roots.put_roots(roots)?;
    process.issuer.put_chain(issuer)?;
    process.shows(StatusCode::OK).await?;
    let labels = json!({"linkerd.io/control-plane-component": "identity"});
    let port = json!({"name": "ident-grpc", "containerPort": process.address.port()});
    let pod = json!({"metadata": {"name": "linkerd-identity", "labels": labels},
        // No scheduler, so that it keeps its status.
        "spec": {"schedulerName": "none",
            "containers": [{"name": "identity", "image": "none", "ports": [port]}]}, "status": running()});
    create_all(&control_plane.client().await?, &kind("v1", "Pod"), Some("linkerd"), [pod]).await?;
    Ok(process)
}
