//! The next issuer is written by a process of its own, with its shipped permissions.

use std::{collections::HashMap, path::Path, time::Duration};

use anyhow::{Context, Result, ensure};
use base64::prelude::{BASE64_STANDARD, Engine};
use e2e::{
    Action, Fault, FaultProxy, Manager, Rule, WriteEnd, eventually, holds,
    identity::MeshAuthority,
    shipped::{OPERATOR_NAMESPACE, is_named},
};
use serde_json::{Value, json};

use super::{RENEWED, ReportedMesh, SOON, deployed, identity::ShippedIdentity, manager, next_step};
use crate::manifests::components::manager_options;

const ACCOUNT: &str = "linkerd-operator-issuer";
const PRESENT: &str = "linkerd-identity-issuer";
const NEXT: &str = "linkerd-identity-issuer-next";
const PREVIOUS: &str = "linkerd-identity-issuer-previous";
/// Injectors may serve an earlier bundle for four minutes.
const INJECTED: Duration = Duration::from_secs(300);

/// A mesh whose issuer the operator writes.
pub(super) struct IssuerMesh {
    pub(super) mesh: ReportedMesh,
    pub(super) old_issuer: MeshAuthority,
    pub(super) new: MeshAuthority,
    pub(super) new_issuer: MeshAuthority,
    pub(super) bridge: MeshAuthority,
    writer: Manager,
}

/// The options of the shipped Deployment, with this kubeconfig instead of that of its account.
async fn writer(mesh: &ReportedMesh, kubeconfig: Option<&Path>) -> Result<Manager> {
    let objects =
        mesh.rig.shipped_with("config/default", "components: [../../config/components/issuer-writer]").await?;
    let mut options = manager_options(&mesh.rig, &objects, ACCOUNT, OPERATOR_NAMESPACE, &[]).await?;
    if let Some(kubeconfig) = kubeconfig {
        options = options.kubeconfig(kubeconfig);
    }
    options.ready(&mesh.rig).await
}

/// Applies what the component has beside its Deployment.
async fn permit_writer(mesh: &ReportedMesh) -> Result<()> {
    let component = "components: [../../config/components/issuer-writer]";
    let mut objects = mesh.rig.shipped_with("config/default", component).await?;
    objects.retain(|object| object["kind"] != "Deployment" && is_named(object, ACCOUNT));
    let component =
        "components: [../../config/components/trust-anchors, ../../config/components/issuer-writer/control-plane]";
    objects.extend(mesh.rig.shipped_with("config/control-plane", component).await?);
    mesh.rig.apply(&objects).await.map(drop)
}

fn pem_of(chain: &[&MeshAuthority]) -> String {
    chain.iter().map(|authority| authority.pem()).collect()
}

// === impl IssuerMesh ===

impl IssuerMesh {
    async fn start() -> Result<Self> {
        Self::on(ReportedMesh::start().await?).await
    }

    pub(super) async fn on(mesh: ReportedMesh) -> Result<Self> {
        permit_writer(&mesh).await?;
        let writer = writer(&mesh, None).await?;
        Self::of(mesh, writer).await
    }

    /// The writer sends its requests through the proxy. The root of the present issuer is declared.
    async fn with_fault_proxy() -> Result<(Self, FaultProxy)> {
        let rig = deployed().await?;
        let manager = manager(&rig, &rig.operator_kubeconfig().await?).await?;
        let mesh = ReportedMesh { rig, manager, old: MeshAuthority::root("old")?, proxies: HashMap::new() };
        mesh.put_bundle(&mesh.old.pem()).await?;
        permit_writer(&mesh).await?;
        let token = mesh.rig.service_account_token(OPERATOR_NAMESPACE, ACCOUNT).await?;
        let proxy = FaultProxy::start_with_token(&mesh.rig, ACCOUNT, &token).await?;
        let writer = writer(&mesh, Some(proxy.kubeconfig())).await?;
        let mesh = Self::of(mesh, writer).await?;
        mesh.declare(&mesh.mesh.old, false).await?;
        mesh.reports(SOON, "Synced", "").await?;
        Ok((mesh, proxy))
    }

    /// The Secret is that of Linkerd's chart.
    async fn of(mesh: ReportedMesh, writer: Manager) -> Result<Self> {
        let new = MeshAuthority::root("new")?;
        let (old_issuer, new_issuer) = (mesh.old.signs("issuer")?, new.signs("new issuer")?);
        let bridge = mesh.old.bridges(&new, "new")?;
        let mesh = Self { mesh, old_issuer, new, new_issuer, bridge, writer };
        mesh.put_present(&mesh.old_issuer).await?;
        Ok(mesh)
    }

    async fn put_present(&self, issuer: &MeshAuthority) -> Result<()> {
        let secret = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": PRESENT, "namespace": "linkerd"},
            "stringData": {"crt.pem": issuer.pem(), "key.pem": issuer.key_pem()}});
        self.mesh.rig.apply(&[secret]).await.map(drop)
    }

    pub(super) async fn put_next(&self, chain: &[&MeshAuthority]) -> Result<()> {
        self.put_next_pair(&pem_of(chain), &chain.first().context("no issuer")?.key_pem()).await
    }

    async fn put_next_pair(&self, certificates: &str, key: &str) -> Result<()> {
        let secret = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": NEXT, "namespace": "linkerd"},
            "type": "kubernetes.io/tls", "stringData": {"tls.crt": certificates, "tls.key": key}});
        self.mesh.rig.apply(&[secret]).await.map(drop)
    }

    pub(super) async fn declare(&self, root: &MeshAuthority, is_bridged: bool) -> Result<()> {
        let anchors = json!({"pem": root.pem()});
        let bridge = json!({"pem": pem_of(&[&self.bridge, &self.mesh.old])});
        let mut spec = json!({"anchors": anchors, "mode": "Enforce", "issuer": {"manage": "Secret"}});
        if let Some(spec) = spec.as_object_mut().filter(|_| is_bridged) {
            spec.insert("bridge".to_owned(), bridge);
        }
        self.put(spec).await
    }

    async fn put(&self, spec: Value) -> Result<()> {
        let trust = json!({"apiVersion": "config.linkerd.io/v1alpha1", "kind": "LinkerdTrust",
            "metadata": {"name": "mesh"}, "spec": spec});
        self.mesh.rig.apply(&[trust]).await.map(drop)
    }

    /// Returns a pair of a Secret.
    async fn pair(&self, secret: &str, (certificates, key): (&str, &str)) -> Result<(String, String)> {
        let object = self.mesh.rig.get(&["secret", secret, "--namespace=linkerd"]).await?;
        let text = |key: &str| -> Result<String> {
            let text = object.get("data").and_then(|data| data.get(key)?.as_str());
            let text = text.with_context(|| format!("{secret} has no {key}"))?;
            Ok(String::from_utf8(BASE64_STANDARD.decode(text)?)?)
        };
        Ok((text(certificates)?, text(key)?))
    }

    async fn present_is(&self, chain: &[&MeshAuthority]) -> Result<()> {
        let (certificates, key) = self.pair(PRESENT, ("crt.pem", "key.pem")).await?;
        let expected = chain.first().context("no issuer")?.key_pem();
        ensure!(certificates == pem_of(chain) && key == expected, "another issuer:\n{certificates}");
        Ok(())
    }

    pub(super) async fn present_becomes(&self, chain: &[&MeshAuthority]) -> Result<()> {
        eventually(SOON, "the issuer to be written", async || self.present_is(chain).await).await
    }

    async fn previous_is(&self, issuer: &MeshAuthority) -> Result<()> {
        let found = self.pair(PREVIOUS, ("tls.crt", "tls.key")).await?;
        ensure!(found == (issuer.pem(), issuer.key_pem()), "another previous issuer:\n{}", found.0);
        Ok(())
    }

    /// Waits until IssuerSynced has this reason, and a message with this text.
    async fn reports(&self, deadline: Duration, reason: &str, text: &str) -> Result<()> {
        let what = format!("IssuerSynced with {reason} and {text:?}");
        eventually(deadline, what, async || self.shows(reason, text).await).await
    }

    async fn shows(&self, reason: &str, text: &str) -> Result<()> {
        let object = self.mesh.rig.get(&["linkerdtrust", "mesh"]).await?;
        let conditions = object.pointer("/status/conditions").and_then(Value::as_array);
        let conditions = conditions.into_iter().flatten();
        let mut found = conditions.filter(|it| it["type"] == "IssuerSynced");
        let found = found.next().context("no condition IssuerSynced")?;
        let message = found["message"].as_str().unwrap_or_default();
        ensure!(found["reason"] == reason && message.contains(text), "{found:#}");
        Ok(())
    }

    /// A Pod of the control plane, whose proxy reads the ConfigMap when it starts.
    async fn put_control_plane(&self, name: &str) -> Result<()> {
        let anchors = json!({"name": "LINKERD2_PROXY_IDENTITY_TRUST_ANCHORS", "valueFrom":
            {"configMapKeyRef": {"name": "linkerd-identity-trust-roots", "key": "ca-bundle.crt"}}});
        let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "linkerd", "labels":
                {"linkerd.io/control-plane-ns": "linkerd", "linkerd.io/control-plane-component": "destination"}},
            "spec": {"containers": [{"name": "linkerd-proxy", "image": "proxy", "env": [anchors]}]}});
        self.mesh.rig.apply(&[pod]).await.map(drop)
    }

    async fn delete_pod(&self, namespace: &str, name: &str) -> Result<()> {
        let delete = ["-n", namespace, "delete", "pod", name, "--force", "--grace-period=0"];
        self.mesh.rig.kubectl(&delete).await.map(drop)
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn with_a_declared_bridge_the_next_issuer_is_written_by_a_process_that_reads_no_workload() -> Result<()> {
    let mesh = IssuerMesh::start().await?;
    mesh.declare(&mesh.new, true).await?;
    mesh.reports(SOON, "IssuerAwaited", "write an issuer of new (").await?;
    let awaiting = ["ReadyToSwitch=True/OverBridge", "IssuerSynced=False/IssuerAwaited"];
    let status = mesh.mesh.reaches(SOON, "AwaitingIssuer", &awaiting).await?;
    ensure!(next_step(&status).contains("into the Secret linkerd-identity-issuer-next"), "{status:#}");
    ensure!(status["commands"][0].as_str().is_some_and(|it| it.contains(NEXT)), "{status:#}");

    // Without the bridge: it is declared.
    mesh.put_next(&[&mesh.new_issuer]).await?;
    let chain = [&mesh.new_issuer, &mesh.bridge];
    mesh.present_becomes(&chain).await?;
    mesh.previous_is(&mesh.old_issuer).await?;
    mesh.reports(SOON, "Synced", "new issuer").await?;
    mesh.mesh.expect_event("IssuerWritten", "Wrote the issuer new issuer (").await?;
    let status = mesh.mesh.reaches(SOON, "AwaitingIssuer", &["IssuerSynced=True/Synced"]).await?;
    ensure!(next_step(&status).starts_with("wait until a proxy has renewed"), "{status:#}");
    for name in ["web-1", "web-2"] {
        mesh.mesh.proxies[name].renew(&chain, &mesh.mesh.old)?;
    }
    mesh.mesh.reaches(RENEWED, "Retiring", &["IssuerSynced=True/Synced", "LeavesRenewed=True/Synced"]).await?;

    // The issuer is renewed under the same root.
    let again = mesh.new.signs("issuer again")?;
    mesh.put_next(&[&again]).await?;
    mesh.present_becomes(&[&again, &mesh.bridge]).await?;
    mesh.previous_is(&mesh.old_issuer).await.context("the way back to the old root")?;
    for (verb, resource) in [("list", "pods"), ("list", "secrets"), ("get", "configmaps"), ("patch", "configmaps")] {
        let may = mesh.mesh.rig.may(OPERATOR_NAMESPACE, ACCOUNT, verb, resource, "--all-namespaces").await;
        ensure!(!may, "the writer may {verb} {resource}");
    }
    let (log, other) = (mesh.writer.log(), mesh.mesh.manager.log());
    for key in [mesh.old_issuer.key_pem(), mesh.new_issuer.key_pem()] {
        let line = key.lines().nth(1).context("no key")?.to_owned();
        ensure!(!log.contains(&line) && !other.contains(&line), "a key is in a log");
        let events = mesh.mesh.rig.kubectl(&["get", "events", "--all-namespaces", "-o", "json"]).await?;
        let trusts = mesh.mesh.rig.kubectl(&["get", "linkerdtrusts", "-o", "json"]).await?;
        ensure!(!events.contains(&line) && !trusts.contains(&line), "a key is in an object");
    }
    ensure!(!log.contains("is forbidden: User"), "{log}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_bridge_the_next_issuer_waits_for_the_last_proxy_and_the_previous_one_comes_back() -> Result<()> {
    let mut mesh = IssuerMesh::start().await?;
    let identity = ShippedIdentity::permit(&mesh.mesh).await?.ready(&mesh.mesh).await?;
    let signs_with = async |issuer: &MeshAuthority| {
        let signs = async || identity.signs_with(&[issuer]).await.map(drop);
        eventually(SOON, "a certificate of the issuer that was written", signs).await
    };
    mesh.put_control_plane("linkerd-destination-1").await?;
    mesh.put_next(&[&mesh.new_issuer]).await?;
    mesh.declare(&mesh.new, false).await?;
    let both = format!("{}{}", mesh.mesh.old.pem(), mesh.new.pem());
    super::bundle_becomes(&mesh.mesh.rig, &both).await?;
    mesh.reports(SOON, "IssuerHeld", "(the phase is Spreading)").await?;
    mesh.mesh.delete_proxy("web-2").await?;
    mesh.mesh.delete_proxy("web-1").await?;
    mesh.mesh.put_proxy("web-3", &both, &[&mesh.old_issuer]).await?;
    mesh.reports(SOON, "IssuerHeld", "kubectl -n linkerd rollout restart pod/linkerd-destination-1").await?;
    let behind = ["ReadyToSwitch=False/ControlPlaneBehind"];
    let status = mesh.mesh.reaches(SOON, "AwaitingIssuer", &behind).await?;
    ensure!(next_step(&status).contains("Restart it: kubectl"), "{status:#}");
    mesh.delete_pod("linkerd", "linkerd-destination-1").await?;
    mesh.put_control_plane("linkerd-destination-2").await?;
    mesh.reports(SOON, "IssuerHeld", "new Pods may still get the previous bundle").await?;
    let exported = json!({"apiVersion": "v1", "kind": "Service",
        "metadata": {"name": "shop", "namespace": "default", "labels": {"mirror.linkerd.io/exported": "true"}},
        "spec": {"ports": [{"port": 80}]}});
    mesh.mesh.rig.apply(&[exported]).await?;
    mesh.reports(INJECTED, "IssuerHeld", "Namespace default has Services for other clusters").await?;
    mesh.present_is(&[&mesh.old_issuer]).await?;
    signs_with(&mesh.old_issuer).await?;
    mesh.mesh.accept_unseen().await?;
    eventually(INJECTED, "the issuer to be written", async || mesh.present_is(&[&mesh.new_issuer]).await).await?;
    signs_with(&mesh.new_issuer).await?;
    mesh.mesh.proxies["web-3"].renew(&[&mesh.new_issuer], &mesh.mesh.old)?;
    mesh.mesh.reaches(RENEWED, "Retiring", &["IssuerSynced=True/Synced"]).await?;

    // Back to the old root. All proxies trust it.
    mesh.declare(&mesh.mesh.old, false).await?;
    // The other clusters were accepted for the next root.
    mesh.mesh.accept_unseen().await?;
    mesh.present_becomes(&[&mesh.old_issuer]).await?;
    signs_with(&mesh.old_issuer).await?;
    mesh.reports(SOON, "Synced", "That of Secret linkerd-identity-issuer-next does not").await?;
    super::bundle_is(&mesh.mesh.rig, &both).await
}

#[tokio::test(flavor = "multi_thread")]
async fn an_issuer_that_cannot_be_used_is_not_written_and_another_writer_is_named() -> Result<()> {
    let mesh = IssuerMesh::start().await?;
    let version = async || -> Result<Value> {
        let secret = mesh.mesh.rig.get(&["secret", PRESENT, "--namespace=linkerd"]).await?;
        Ok(secret["metadata"]["resourceVersion"].clone())
    };
    let first = version().await?;
    mesh.declare(&mesh.new, true).await?;
    let (certificate, key) = (mesh.new_issuer.pem(), mesh.new_issuer.key_pem());
    let third = MeshAuthority::root("third")?.signs("third issuer")?;
    for (certificates, key, text) in [
        (&certificate, &mesh.old_issuer.key_pem(), "has the key of another certificate"),
        (&third.pem(), &third.key_pem(), "does not belong to a declared trust anchor: declared is new ("),
        (&"no certificate".to_owned(), &key, "has no certificate"),
        (&certificate.replace("-----END", "# "), &key, "is not valid PEM"),
    ] {
        mesh.put_next_pair(certificates, key).await?;
        mesh.reports(SOON, "IssuerRefused", text).await?;
    }
    mesh.mesh.expect_event("IssuerNotWritten", "has the key of another certificate").await?;
    assert_eq!(version().await?, first, "the issuer was written");

    // An upgrade with older values, again and again.
    mesh.put_next(&[&mesh.new_issuer]).await?;
    let chain = [&mesh.new_issuer, &mesh.bridge];
    let mut upgrades = 0;
    eventually(Duration::from_secs(200), "a contest", async || {
        if mesh.present_is(&chain).await.is_ok() {
            mesh.put_present(&mesh.old_issuer).await?;
            upgrades += 1;
        }
        mesh.shows("Contested", "another writer keeps replacing the issuer").await
    })
    .await?;
    ensure!(upgrades > 5, "contested after {upgrades} upgrades");
    let annotate = ["-n", "linkerd", "annotate", "secret", PRESENT, "cert-manager.io/certificate-name=issuer"];
    mesh.mesh.rig.kubectl(&annotate).await?;
    mesh.put_present(&mesh.old_issuer).await?;
    mesh.reports(SOON, "WrittenByCertManager", "from the Certificate issuer").await?;
    let last = version().await?;
    holds(Duration::from_secs(12), "that the issuer stays", async || {
        ensure!(version().await? == last, "it was written");
        Ok(())
    })
    .await
}

/// cert-manager is not there: the Secrets are as it writes them.
#[tokio::test(flavor = "multi_thread")]
async fn a_certificate_of_cert_manager_moves_to_the_next_issuer_by_the_commands_of_the_condition() -> Result<()> {
    let mesh = IssuerMesh::start().await?;
    mesh.mesh.rig.kubectl(&["-n", "linkerd", "delete", "secret", PRESENT]).await?;
    let put = async |name: &str, issuer: &MeshAuthority, root: &MeshAuthority| {
        let secret = json!({"apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/tls",
            "metadata": {"name": name, "namespace": "linkerd", "annotations":
                {"cert-manager.io/certificate-name": "issuer"}},
            "stringData": {"tls.crt": issuer.pem(), "tls.key": issuer.key_pem(), "ca.crt": root.pem()}});
        mesh.mesh.rig.apply(&[secret]).await.map(drop)
    };
    put(PRESENT, &mesh.old_issuer, &mesh.mesh.old).await?;
    mesh.declare(&mesh.new, true).await?;
    mesh.reports(SOON, "WrittenByCertManager", "patch certificate issuer --type=merge -p").await?;

    // It now writes the next issuer, still of the root before.
    let again = mesh.mesh.old.signs("issuer again")?;
    put(NEXT, &again, &mesh.mesh.old).await?;
    mesh.reports(SOON, "WrittenByCertManager", "still has its annotation. Remove it: kubectl").await?;
    let object = mesh.mesh.rig.get(&["linkerdtrust", "mesh"]).await?;
    let conditions = object.pointer("/status/conditions").and_then(Value::as_array);
    let mut found = conditions.into_iter().flatten().filter(|it| it["type"] == "IssuerSynced");
    let message = found.next().and_then(|it| it["message"].as_str()).context("no condition")?;
    mesh.mesh.rig.shell(message.split_once("Remove it: ").context("no command")?.1).await?;
    let files = ("tls.crt", "tls.key");
    let becomes = async |issuer: &MeshAuthority, chain: &[&MeshAuthority]| {
        eventually(SOON, "the issuer to be written", async || {
            let found = mesh.pair(PRESENT, files).await?;
            ensure!(found == (pem_of(chain), issuer.key_pem()), "another issuer:\n{}", found.0);
            Ok(())
        })
        .await
    };
    becomes(&again, &[&again]).await.context("a renewal before the issuerRef changes")?;
    mesh.reports(SOON, "IssuerRefAwaited", "change the issuerRef of the Certificate issuer, ").await?;

    put(NEXT, &mesh.new_issuer, &mesh.new).await?;
    becomes(&mesh.new_issuer, &[&mesh.new_issuer, &mesh.bridge]).await?;
    let (root, _) = mesh.pair(PRESENT, ("ca.crt", "tls.key")).await?;
    ensure!(root == mesh.new.pem(), "another ca.crt: {root}");
    Ok(())
}

/// The methods and a part of the paths of all writes.
const WRITES: [(&str, &str); 3] = [
    ("PATCH", "/secrets/linkerd-identity-issuer-previous"),
    ("PATCH", "/secrets/linkerd-identity-issuer?"),
    ("PATCH", "/linkerdtrusts/mesh/status"),
];

#[tokio::test(flavor = "multi_thread")]
async fn a_writer_that_is_killed_during_a_write_leaves_the_next_and_the_previous_issuer() -> Result<()> {
    let (mut mesh, proxy) = IssuerMesh::with_fault_proxy().await?;
    let mut present = mesh.old_issuer.clone();
    let ends = [WriteEnd::Lost, WriteEnd::Unknown];
    for (number, (write, end)) in (1..).zip(WRITES.into_iter().flat_map(|write| ends.map(|end| (write, end)))) {
        let what = format!("{write:?} {end:?}");
        let next = mesh.mesh.old.signs(&format!("issuer {number}"))?;
        let fault: Fault = proxy.inject(Rule::path(write.1).method(write.0).times(1), end.action());
        mesh.put_next(&[&next]).await?;
        eventually(SOON, &what, async || {
            ensure!(fault.hits() == 1, "the write is not sent");
            Ok(())
        })
        .await?;
        mesh.writer.kill().await?;
        fault.release();
        mesh.writer = writer(&mesh.mesh, Some(proxy.kubeconfig())).await?;
        mesh.present_becomes(&[&next]).await.context(what.clone())?;
        mesh.reports(SOON, "Synced", &format!("issuer {number}")).await.context(what.clone())?;
        mesh.previous_is(&present).await.context(what)?;
        // A renewed issuer does not replace it.
        mesh.mesh.rig.kubectl(&["delete", "secret", PREVIOUS, "--namespace=linkerd"]).await?;
        present = next;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_next_issuer_is_not_written_while_the_present_one_cannot_be_saved() -> Result<()> {
    let (mesh, proxy) = IssuerMesh::with_fault_proxy().await?;
    let [(method, path), ..] = WRITES;
    let unavailable = Action::Status { code: 503, retry_after: None };
    let fault = proxy.inject(Rule::path(path).method(method), unavailable);
    let next = mesh.mesh.old.signs("next issuer")?;
    mesh.put_next(&[&next]).await?;
    mesh.reports(SOON, "WriteFailed", "could not be written: injected 503").await?;
    mesh.present_is(&[&mesh.old_issuer]).await?;
    fault.is_hit(|hits| hits > 2).await?;
    mesh.present_is(&[&mesh.old_issuer]).await?;
    fault.remove();
    mesh.present_becomes(&[&next]).await?;
    mesh.previous_is(&mesh.old_issuer).await
}

#[tokio::test(flavor = "multi_thread")]
async fn while_connections_are_cut_the_root_leaves_the_bundle_once_the_identity_service_signs_with_the_next_issuer()
-> Result<()> {
    let it = IssuerMesh::start().await?;
    let identity = it.mesh.put_identity("linkerd-identity-1", &[&it.old_issuer], &[&it.mesh.old]).await?;
    let distrust = json!({"pem": it.mesh.old.pem(), "connections": "Cut"});
    let spec = json!({"anchors": {"pem": it.new.pem()}, "mode": "Enforce", "issuer": {"manage": "Secret"}});
    let mut cut = spec.clone();
    cut.as_object_mut().context("no spec")?.insert("distrust".to_owned(), distrust);
    it.put(cut).await?;
    it.reports(SOON, "IssuerAwaited", "write an issuer of new").await?;
    let both = format!("{}{}", it.mesh.old.pem(), it.new.pem());
    super::bundle_becomes(&it.mesh.rig, &both).await?;
    holds(Duration::from_secs(5), "the bundle", async || super::bundle_is(&it.mesh.rig, &both).await).await?;
    it.put_next(&[&it.new_issuer]).await?;
    it.present_becomes(&[&it.new_issuer]).await?;
    // Linkerd's identity does not accept an issuer of a root that it has not read.
    it.mesh.expect_problem("Pod linkerd-identity-1 of the identity service signs with issuer (").await?;
    super::bundle_is(&it.mesh.rig, &both).await?;
    let status = it.mesh.reaches(SOON, "Spreading", &["BundleSynced=False/RemovalHeld"]).await?;
    let restart = "kubectl -n linkerd rollout restart deployment/linkerd-identity";
    ensure!(status["commands"] == json!([restart]), "{status:#}");
    identity.roots.put_roots(&[&it.mesh.old, &it.new])?;
    identity.issuer.put_chain(&[&it.new_issuer])?;
    eventually(RENEWED, "the bundle to change", async || super::bundle_is(&it.mesh.rig, &it.new.pem()).await).await
}
