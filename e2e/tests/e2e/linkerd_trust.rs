//! LinkerdTrusts on a real API server, with proxies that present certificates.

mod accepted;
mod clusters;
mod crash;
mod expired;
mod held;
mod helm;
mod identity;
mod issuer;

use std::{
    collections::HashMap,
    fs,
    path::Path,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use e2e::{
    Job, Manager, ManagerOptions, Rig, eventually, holds,
    identity::{AUDIENCE, IdentityOptions, IdentityProcess, MeshAuthority},
    injector::machine_address,
    shipped::{OPERATOR_ACCOUNT, OPERATOR_NAMESPACE},
    shown_proxy::{IDENTITY, LATE, ShownProxy, runs},
};
use hyper::StatusCode;
use serde_json::{Value, json};

/// A proxy is asked again a minute after it did not renew.
const RENEWED: Duration = Duration::from_secs(90);
/// The identity of a machine, by SPIFFE.
const MACHINE: &str = "spiffe://root.linkerd.cluster.local/vm";
const CLUSTER_ROLES: [&str; 3] =
    ["linkerd-operator-linkerd-config", "linkerd-operator-rollout", "linkerd-operator-events"];
const SOON: Duration = Duration::from_secs(60);
/// The identity service is asked twice, with this time between, and a minute after it was wrong.
const CONFIRMED: Duration = Duration::from_secs(160);
const REMOVED: Duration = Duration::from_secs(300);

/// A mesh whose operator reports about its trust.
struct ReportedMesh {
    rig: Rig,
    manager: Manager,
    old: MeshAuthority,
    proxies: HashMap<&'static str, ShownProxy>,
}

impl ReportedMesh {
    /// Starts a mesh with one root, and two proxies that trust it.
    async fn start() -> Result<Self> {
        Self::with_root(MeshAuthority::root("old")?).await
    }

    /// The same with this root.
    async fn with_root(old: MeshAuthority) -> Result<Self> {
        let rig = deployed().await?;
        let manager = manager(&rig, &rig.operator_kubeconfig().await?).await?;
        let mut mesh = Self { rig, manager, old, proxies: HashMap::new() };
        mesh.put_bundle(&mesh.old.pem()).await?;
        let issuer = mesh.old.signs("issuer")?;
        for name in ["web-1", "web-2"] {
            mesh.put_proxy(name, &mesh.old.pem(), &[&issuer]).await?;
        }
        Ok(mesh)
    }

    /// Permits the operator to add to the bundle.
    async fn permit(&self) -> Result<()> {
        let component = "components: [../../config/components/trust-anchors]";
        self.rig.apply(&self.rig.shipped_with("config/control-plane", component).await?).await.map(drop)
    }

    async fn put_bundle(&self, pem: &str) -> Result<()> {
        let name = "linkerd-identity-trust-roots";
        let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "namespace": "linkerd"},
            "data": {"ca-bundle.crt": pem}});
        self.rig.apply(&[map]).await.map(drop)
    }

    async fn put_trust(&self, name: &str, anchors: Option<&str>) -> Result<()> {
        let spec = anchors.map_or_else(|| json!({}), |pem| json!({"anchors": {"pem": pem}}));
        let trust = json!({"apiVersion": "config.linkerd.io/v1alpha1", "kind": "LinkerdTrust",
            "metadata": {"name": name}, "spec": spec});
        self.rig.apply(&[trust]).await.map(drop)
    }

    async fn enforce(&self) -> Result<()> {
        let patch = json!({"spec": {"mode": "Enforce"}}).to_string();
        self.rig.kubectl(&["patch", "linkerdtrust", "mesh", "--type=merge", "-p", &patch]).await.map(drop)
    }

    /// Creates a Pod that runs, and a server in the place of its proxy.
    async fn put_proxy(&mut self, name: &'static str, anchors: &str, chain: &[&MeshAuthority]) -> Result<()> {
        let proxy = ShownProxy::start(IDENTITY, chain, &self.old, LATE).await?;
        self.rig.apply(&[proxy.pod(name, anchors)]).await?;
        runs(&self.rig, "default", name).await?;
        self.proxies.insert(name, proxy);
        Ok(())
    }

    /// Starts a replica of the identity service, which terminates TLS itself, and creates its Pod.
    async fn put_identity(
        &self,
        name: &str,
        issuer: &[&MeshAuthority],
        roots: &[&MeshAuthority],
    ) -> Result<IdentityProcess> {
        let folder = self.rig.directory().join(name);
        fs::create_dir(&folder)?;
        let options = IdentityOptions { tls: true, ..IdentityOptions::default() };
        let process = IdentityProcess::start(&folder, self.rig.kubeconfig(), options)?;
        process.roots.put_roots(roots)?;
        process.issuer.put_chain(issuer)?;
        process.shows(StatusCode::OK).await?;
        self.rig.apply(&[process.pod(name)]).await?;
        runs(&self.rig, "linkerd", name).await?;
        Ok(process)
    }

    async fn delete_proxy(&mut self, name: &str) -> Result<()> {
        self.rig.kubectl(&["delete", "pod", name, "--force", "--grace-period=0"]).await?;
        self.proxies.remove(name);
        Ok(())
    }

    /// Waits until the status has this phase, and these conditions, each as `Type=Status/Reason`.
    async fn reaches(&self, deadline: Duration, phase: &str, conditions: &[&str]) -> Result<Value> {
        eventually(deadline, format_args!("the phase {phase} with {conditions:?}"), async || {
            let object = self.rig.get(&["linkerdtrust", "mesh"]).await?;
            let status = object.get("status").context("no status")?;
            let is_current = status.get("observedGeneration") == object.pointer("/metadata/generation");
            ensure!(is_current && status.get("phase") == Some(&json!(phase)), "{status:#}");
            let found = shown(status);
            ensure!(conditions.iter().all(|it| found.iter().any(|seen| seen == it)), "{found:?} in {status:#}");
            Ok(status.clone())
        })
        .await
    }

    /// Runs the command of the status that accepts what the operator does not see.
    async fn accept_unseen(&self) -> Result<()> {
        let command = eventually(SOON, "the command", async || {
            let object = self.rig.get(&["linkerdtrust", "mesh"]).await?;
            let is_current = object.pointer("/status/observedGeneration") == object.pointer("/metadata/generation");
            let command = object.pointer("/status/commands/0").and_then(Value::as_str);
            let command = command.filter(|it| is_current && it.starts_with("kubectl patch linkerdtrust mesh"));
            Ok(command.with_context(|| format!("{object:#}"))?.to_owned())
        });
        self.rig.shell(&command.await?).await
    }

    /// Waits until the status reports this first.
    async fn expect_problem(&self, text: &str) -> Result<()> {
        eventually(RENEWED, format_args!("the problem {text:?}"), async || {
            let object = self.rig.get(&["linkerdtrust", "mesh"]).await?;
            let problem = object.pointer("/status/problems/0").and_then(Value::as_str);
            ensure!(problem.is_some_and(|it| it.contains(text)), "{object:#}");
            Ok(())
        })
        .await
    }

    /// Waits for an Event of the resource whose note has this text.
    async fn expect_event(&self, reason: &str, note: &str) -> Result<()> {
        eventually(SOON, format_args!("an Event {reason} with {note:?}"), async || {
            let events = self.rig.get(&["events.events.k8s.io", "--namespace=default"]).await?;
            let events = events.get("items").and_then(Value::as_array).cloned().unwrap_or_default();
            let has = |event: &Value, path: &str, text: &str| event.pointer(path) == Some(&json!(text));
            let of = events.iter().filter(|it| has(it, "/reason", reason) && has(it, "/regarding/name", "mesh"));
            let notes: Vec<_> = of.filter_map(|event| event.get("note")?.as_str()).collect();
            ensure!(notes.iter().any(|it| it.contains(note)), "{notes:?}");
            Ok(())
        })
        .await
    }
}

/// A cluster with the shipped permissions and admission policies of the operator.
async fn deployed() -> Result<Rig> {
    let rig = Rig::linkerd().crds("crd").start().await?;
    rig.deploy_without_manager(&CLUSTER_ROLES).await?;
    Ok(rig)
}

/// Starts an operator with a new token for the identity service.
async fn manager(rig: &Rig, kubeconfig: &Path) -> Result<Manager> {
    let token = rig.directory().join("identity-token");
    let audience = format!("--audience={AUDIENCE}");
    let created = ["--namespace", OPERATOR_NAMESPACE, "create", "token", OPERATOR_ACCOUNT, &audience];
    fs::write(&token, rig.kubectl(&created).await?)?;
    let (own, token) = (format!("--operator-namespace={OPERATOR_NAMESPACE}"), token.display());
    let options = ManagerOptions::only(Job::LinkerdConfig).kubeconfig(kubeconfig);
    options.args([own, format!("--identity-token-file={token}")]).ready(rig).await
}

async fn bundle(rig: &Rig) -> Result<String> {
    let map = rig.get(&["configmap", "linkerd-identity-trust-roots", "--namespace=linkerd"]).await?;
    map.pointer("/data/ca-bundle.crt").and_then(Value::as_str).map(str::to_owned).context("no bundle")
}

async fn bundle_is(rig: &Rig, pem: &str) -> Result<()> {
    let found = bundle(rig).await?;
    ensure!(found == pem, "{found}");
    Ok(())
}

async fn bundle_becomes(rig: &Rig, pem: &str) -> Result<()> {
    eventually(SOON, "the bundle to change", async || bundle_is(rig, pem).await).await
}

fn shown(status: &Value) -> Vec<String> {
    let text = |condition: &Value, key: &str| condition[key].as_str().unwrap_or_default().to_owned();
    let one = |it: &Value| format!("{}={}/{}", text(it, "type"), text(it, "status"), text(it, "reason"));
    status["conditions"].as_array().into_iter().flatten().map(one).collect()
}

fn next_step(status: &Value) -> &str {
    status["nextStep"].as_str().unwrap_or_default()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rotation_over_a_bridge_is_followed_from_phase_to_phase() -> Result<()> {
    let mut mesh = ReportedMesh::start().await?;
    let new = MeshAuthority::root("new")?;
    let (issuer, bridge) = (new.signs("new issuer")?, mesh.old.bridges(&new, "new")?);
    mesh.put_trust("mesh", None).await?;
    let steady = [
        "Accepted=True/Accepted",
        "BundleSynced=True/Synced",
        "TrustSpread=True/Synced",
        "LeavesRenewed=True/Synced",
        "Ready=True/Synced",
    ];
    let status = mesh.reaches(SOON, "Steady", &steady).await?;
    assert_eq!((&status["proxies"]["summary"], &status["issuer"]["name"]), (&json!("2/2"), &json!("issuer")));
    assert_eq!(status["anchors"][0]["sha256"], json!(mesh.old.sha256()));
    assert_eq!((&status["anchors"][0]["trustedBy"], &status["anchors"][0]["presentedBy"]), (&json!(2), &json!(2)));

    mesh.expect_event("TrustPhaseChanged", "Steady: nothing to do").await?;
    mesh.put_trust("mesh", Some(&new.pem())).await?;
    let status =
        mesh.reaches(SOON, "Adding", &["BundleSynced=False/RootsDiffer", "Ready=False/RotationInProgress"]).await?;
    ensure!(next_step(&status).starts_with("add new ("), "{status:#}");

    mesh.put_bundle(&format!("{}{}", new.pem(), mesh.old.pem())).await?;
    let status =
        mesh.reaches(SOON, "Spreading", &["TrustSpread=False/ProxiesBehind", "LeavesRenewed=False/OldLeaves"]).await?;
    ensure!(next_step(&status).contains("2 proxies do not trust the root"), "{status:#}");
    assert_eq!((&status["workloadsBehind"], &status["behind"][0]["name"]), (&json!(2), &json!("web-1")));

    // The proxies renew, one after the other. No Pod is created again.
    mesh.proxies["web-1"].renew(&[&issuer, &bridge], &mesh.old)?;
    let renewing = ["TrustSpread=True/OverBridge", "LeavesRenewed=False/OldLeaves", "BundleSynced=False/RootsDiffer"];
    let status = mesh.reaches(RENEWED, "Renewing", &renewing).await?;
    ensure!(next_step(&status).starts_with("wait until 1 proxy has renewed"), "{status:#}");
    mesh.proxies["web-2"].renew(&[&issuer, &bridge], &mesh.old)?;
    let status = mesh.reaches(RENEWED, "Retiring", &["LeavesRenewed=True/Synced"]).await?;
    ensure!(next_step(&status).contains("then remove old ("), "{status:#}");

    mesh.put_bundle(&new.pem()).await?;
    mesh.reaches(SOON, "Complete", &["Ready=True/Synced", "BundleSynced=True/Synced"]).await?;
    mesh.put_proxy("web-3", &new.pem(), &[&issuer, &bridge]).await?;
    mesh.delete_proxy("web-1").await?;
    mesh.delete_proxy("web-2").await?;
    eventually(SOON, "only the last proxy to be left", async || {
        let status = mesh.reaches(SOON, "Steady", &steady).await?;
        let presented = status.pointer("/anchors/0/presentedBy");
        ensure!(presented == Some(&json!(1)) && status.pointer("/proxies/total") == Some(&json!(1)), "{status:#}");
        Ok(())
    })
    .await?;

    let version = async || -> Result<Value> {
        Ok(mesh.rig.get(&["linkerdtrust", "mesh"]).await?["metadata"]["resourceVersion"].clone())
    };
    let last = version().await?;
    holds(Duration::from_secs(5), "that nothing is written", async || {
        ensure!(version().await? == last, "the resource was written");
        Ok(())
    })
    .await?;
    let phase = [("name", "mesh"), ("phase", "Steady")];
    assert_eq!(mesh.manager.metric("linkerd_operator_trust_phase", &phase).await, Some(1.0));
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn what_breaks_the_mesh_is_reported_and_so_is_its_repair() -> Result<()> {
    let mesh = ReportedMesh::start().await?;
    let new = MeshAuthority::root("new")?;
    mesh.put_trust("mesh", None).await?;
    mesh.reaches(SOON, "Steady", &["Ready=True/Synced"]).await?;

    // The bundle is replaced without any step before.
    mesh.put_bundle(&new.pem()).await?;
    mesh.expect_event("TrustBroken", "").await?;
    let status = mesh.reaches(SOON, "Spreading", &["Ready=False/Broken"]).await?;
    ensure!(status["problems"][0].as_str().is_some_and(|it| it.contains("new Pods refuse")), "{status:#}");
    mesh.put_bundle(&mesh.old.pem()).await?;
    mesh.reaches(SOON, "Steady", &["Ready=True/Synced"]).await?;
    mesh.expect_event("TrustRepaired", "").await?;

    // A second resource, and one that cannot be used.
    mesh.put_trust("second", None).await?;
    let conditions =
        async |name: &str| Ok::<_, anyhow::Error>(shown(&mesh.rig.get(&["linkerdtrust", name]).await?["status"]));
    eventually(SOON, "the second resource to be refused", async || {
        let found = conditions("second").await?;
        ensure!(found == ["Accepted=False/Conflicted", "Ready=False/Conflicted"], "{found:?}");
        Ok(())
    })
    .await?;
    let half = mesh.old.pem().replace("-----END", "-----END X");
    mesh.put_trust("mesh", Some(&half)).await?;
    eventually(SOON, "the resource to be invalid", async || {
        let found = conditions("mesh").await?;
        ensure!(found == ["Accepted=False/Invalid", "Ready=False/Invalid"], "{found:?}");
        Ok(())
    })
    .await?;
    let key = mesh.put_trust("mesh", Some(&mesh.old.key_pem())).await.err().context("a private key was accepted")?;
    ensure!(format!("{key:#}").contains("no private key"), "{key:#}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_declared_root_is_added_to_the_bundle_and_added_again_and_no_needed_one_is_removed() -> Result<()> {
    let mesh = ReportedMesh::start().await?;
    let (old, new) = (mesh.old.pem(), MeshAuthority::root("new")?.pem());
    let both = format!("{old}{new}");
    mesh.permit().await?;
    mesh.put_trust("mesh", Some(&new)).await?;
    mesh.reaches(SOON, "Adding", &["BundleSynced=False/RootsDiffer"]).await?;
    bundle_is(&mesh.rig, &old).await.context("it is written without mode Enforce")?;

    mesh.enforce().await?;
    bundle_becomes(&mesh.rig, &both).await?;
    mesh.reaches(SOON, "Spreading", &["TrustSpread=False/ProxiesBehind"]).await?;
    mesh.expect_event("TrustAnchorAdded", "Added new (").await?;
    // An upgrade with older values.
    mesh.put_bundle(&old).await?;
    bundle_becomes(&mesh.rig, &both).await?;
    mesh.put_trust("mesh", Some(&old)).await?;
    mesh.reaches(SOON, "Retiring", &["BundleSynced=False/RemovalHeld"]).await?;
    mesh.expect_problem("has no Pod of the identity service").await?;
    holds(Duration::from_secs(5), "that no root is removed", async || bundle_is(&mesh.rig, &both).await).await?;

    // A writer that removes the root again and again, until the operator pauses. A pause that ends unseen is followed by a
    // longer one.
    mesh.put_trust("mesh", Some(&new)).await?;
    let mut removals = 1;
    let status = eventually(RENEWED, "a pause", async || {
        let (trust, map) = (mesh.rig.get(&["linkerdtrust", "mesh"]).await?, bundle(&mesh.rig).await?);
        if map == both {
            mesh.put_bundle(&old).await?;
            removals += 1;
        }
        let status = trust.get("status").context("no status")?;
        ensure!(map == old && status["phase"] == json!("Adding"), "{status:#}");
        ensure!(shown(status).iter().any(|it| it == "BundleSynced=False/Contested"), "{status:#}");
        Ok(status.clone())
    })
    .await?;
    ensure!(removals >= 7, "the operator paused after {removals} removals");
    ensure!(next_step(&status).starts_with("add new ("), "{status:#}");
    mesh.expect_event("TrustAnchorNotAdded", "keeps removing declared roots").await?;
    bundle_becomes(&mesh.rig, &both).await.context("after the pause")?;
    mesh.reaches(SOON, "Spreading", &["BundleSynced=False/Contested"]).await?;
    let written = mesh.manager.metric("linkerd_operator_trust_bundle_writes_total", &[("result", "ok")]).await;
    assert_eq!(written, Some(f64::from(1 + removals)), "the first addition, and one for each removal");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn roots_that_are_not_declared_leave_the_bundle_once_each_identity_replica_and_each_proxy_needs_only_others()
-> Result<()> {
    let mut mesh = ReportedMesh::start().await?;
    let new = MeshAuthority::root("new")?;
    let (issuer, bridge) = (new.signs("new issuer")?, mesh.old.bridges(&new, "new")?);
    let both = format!("{}{}", mesh.old.pem(), new.pem());
    for name in ["web-1", "web-2"] {
        mesh.delete_proxy(name).await?;
    }
    mesh.put_proxy("web-3", &mesh.old.pem(), &[&issuer, &bridge]).await?;
    mesh.permit().await?;
    let exported = json!({"apiVersion": "v1", "kind": "Service",
        "metadata": {"name": "shop", "namespace": "default", "labels": {"mirror.linkerd.io/exported": "true"}},
        "spec": {"ports": [{"port": 80}]}});
    mesh.rig.apply(&[exported]).await?;
    mesh.put_trust("mesh", Some(&new.pem())).await?;
    mesh.enforce().await?;
    bundle_becomes(&mesh.rig, &both).await?;
    let held = ["BundleSynced=False/RemovalHeld", "LeavesRenewed=True/Synced", "Ready=False/RotationInProgress"];
    let status = mesh.reaches(SOON, "Retiring", &held).await?;
    ensure!(next_step(&status).contains("Once no certificate there needs them, run the command"), "{status:#}");
    mesh.expect_event("TrustAnchorNotRemoved", "Namespace default has Services for other clusters").await?;
    let vm = ShownProxy::start_at(machine_address()?, MACHINE, &[&mesh.old.signs("spire")?], &mesh.old, LATE).await?;
    mesh.rig.apply(&[vm.external_workload("vm")]).await?;
    mesh.rig.shell(status["commands"][0].as_str().context("no command")?).await?;
    let at =
        format!("ExternalWorkload default/vm is a proxy outside of the cluster whose certificate at {}", vm.address);
    mesh.expect_problem(&at).await?;
    vm.renew(&[&new.signs("spire")?], &mesh.old)?;

    // A replica was not restarted, and has not accepted the issuer of the new root.
    let _first = mesh.put_identity("linkerd-identity-1", &[&issuer, &bridge], &[&mesh.old, &new]).await?;
    let former = mesh.old.signs("issuer")?;
    let second = mesh.put_identity("linkerd-identity-2", &[&former], &[&mesh.old]).await?;
    mesh.expect_problem("Pod linkerd-identity-2 of the identity service signs with issuer").await?;
    bundle_is(&mesh.rig, &both).await?;
    second.roots.put_roots(&[&mesh.old, &new])?;
    let corrected = Instant::now();
    second.issuer.put_chain(&[&issuer, &bridge])?;
    let status = mesh.reaches(RENEWED, "Retiring", &["BundleSynced=False/RootsDiffer"]).await?;
    ensure!(next_step(&status).starts_with("wait: the operator removes old ("), "{status:#}");
    ensure!(status["commands"].is_null() && status["issuer"]["signingSince"].is_string(), "{status:#}");
    eventually(REMOVED, "the old root to be removed", async || bundle_is(&mesh.rig, &new.pem()).await).await?;
    ensure!(corrected.elapsed() >= CONFIRMED, "removed after {:?}", corrected.elapsed());
    mesh.expect_event("TrustAnchorRemoved", "Removed old (").await?;
    let answered = [("result", "answered")];
    let asked = mesh.manager.metric("linkerd_operator_trust_identity_requests_total", &answered).await;
    ensure!(asked.is_some_and(|asked| asked >= 4.0), "two replicas were asked twice: {asked:?}");
    mesh.reaches(SOON, "Complete", &["BundleSynced=True/Synced", "Ready=True/Synced"]).await?;

    // An upgrade with older values.
    mesh.put_bundle(&both).await?;
    let status = mesh.reaches(SOON, "Retiring", &["BundleSynced=False/RemovalHeld"]).await?;
    ensure!(status["problems"][0].as_str().is_some_and(|it| it.contains("has added old (")), "{status:#}");
    bundle_is(&mesh.rig, &both).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bundle_that_trust_manager_writes_or_that_is_immutable_is_not_changed_and_the_reason_is_reported()
-> Result<()> {
    let mesh = ReportedMesh::start().await?;
    let (old, new) = (mesh.old.pem(), MeshAuthority::root("new")?.pem());
    mesh.permit().await?;
    let label = |value: &str| format!("trust.cert-manager.io/bundle{value}");
    let map = ["configmap", "linkerd-identity-trust-roots", "--namespace=linkerd"];
    mesh.rig.kubectl(&[&["label"], &map[..], &[&label("=roots")]].concat()).await?;
    mesh.put_trust("mesh", Some(&new)).await?;
    mesh.enforce().await?;
    let status = mesh.reaches(SOON, "Adding", &["BundleSynced=False/WrittenByTrustManager"]).await?;
    ensure!(next_step(&status).contains("to the sources of the Bundle roots"), "{status:#}");
    mesh.expect_event("TrustAnchorNotAdded", "trust-manager writes").await?;
    assert_eq!(status["commands"], Value::Null);
    bundle_is(&mesh.rig, &old).await?;

    let writes = async |bundle: &str| {
        let patch = json!({"data": {"ca-bundle.crt": bundle}}).to_string();
        mesh.rig.kubectl(&[&["patch"], &map[..], &["--type=merge", "-p", &patch]].concat()).await
    };
    writes(&format!("{old}{new}")).await?;
    mesh.reaches(SOON, "Spreading", &["BundleSynced=False/RootsDiffer"]).await?;
    // A source is removed too early: proxies present certificates of its root.
    writes(&new).await?;
    let status = mesh.reaches(SOON, "Spreading", &["Ready=False/Broken"]).await?;
    ensure!(next_step(&status).starts_with("put the root old ("), "{status:#}");
    ensure!(next_step(&status).contains(") back into the sources of the Bundle roots"), "{status:#}");
    writes(&old).await?;

    let immutable = json!({"immutable": true}).to_string();
    mesh.rig.kubectl(&[&["patch"], &map[..], &["--type=merge", "-p", &immutable]].concat()).await?;
    mesh.rig.kubectl(&[&["label"], &map[..], &[&label("-")]].concat()).await?;
    let status = mesh.reaches(SOON, "Adding", &["BundleSynced=False/WriteFailed"]).await?;
    ensure!(status["problems"][0].as_str().is_some_and(|it| it.contains("immutable")), "{status:#}");
    bundle_is(&mesh.rig, &old).await
}

#[tokio::test(flavor = "multi_thread")]
async fn without_the_permission_the_reason_is_reported_and_with_it_the_root_is_added() -> Result<()> {
    let mesh = ReportedMesh::start().await?;
    let (old, new) = (mesh.old.pem(), MeshAuthority::root("new")?.pem());
    mesh.put_trust("mesh", Some(&new)).await?;
    mesh.enforce().await?;
    mesh.reaches(SOON, "Adding", &["BundleSynced=False/WriteFailed"]).await?;
    mesh.expect_event("TrustAnchorNotAdded", "forbidden").await?;
    let forbidden = [("result", "forbidden")];
    let refused = mesh.manager.metric("linkerd_operator_trust_bundle_writes_total", &forbidden).await;
    assert_eq!(refused, Some(1.0), "a refused write is sent once a minute");
    bundle_is(&mesh.rig, &old).await?;
    mesh.permit().await?;
    mesh.reaches(RENEWED, "Spreading", &["BundleSynced=False/RootsDiffer"]).await?;
    bundle_is(&mesh.rig, &format!("{old}{new}")).await
}
