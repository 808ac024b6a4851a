//! The operator in place of Linkerd's container `identity`: its permissions, what it certifies, and its issuer. The
//! tokens are those of a real API server, and the client is Linkerd's.

mod files;
mod hostile;
mod waiting;

use std::path::Path;

use anyhow::{Context, Result, ensure};
use e2e::{
    Rig, Signal,
    archive::digest,
    eventually,
    identity::{AUDIENCE, IdentityOptions, IdentityProcess, MeshAuthority, certify, verify},
    mesh::SOON,
};
use hyper::StatusCode;
use k8s_openapi::jiff::Timestamp;
use linkerd2_proxy_api::identity::CertifyResponse;
use serde_json::{Value, json};
use tonic::{Code, Status};

pub(crate) const WEB: &str = "web.emojivoto.serviceaccount.identity.linkerd.cluster.local";
const VOTING: &str = "voting.emojivoto.serviceaccount.identity.linkerd.cluster.local";

/// The operator in place of Linkerd's container, with the ServiceAccounts `web` and `voting`.
struct IdentityReplica {
    server: IdentityProcess,
    control_plane: Rig,
}

// === impl IdentityReplica ===

impl IdentityReplica {
    /// Starts the server without an issuer.
    async fn start() -> Result<Self> {
        let control_plane = Rig::bare().namespace("linkerd").namespace("emojivoto").start().await?;
        let granted = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/e2e/identity/rbac.yaml").display().to_string();
        control_plane.kubectl(&["apply", "-f", &granted]).await?;
        for account in ["web", "voting"] {
            control_plane.kubectl(&["-n=emojivoto", "create", "serviceaccount", account]).await?;
        }
        let account = control_plane.kubeconfig_for_service_account("linkerd", "linkerd-identity").await?;
        let server = IdentityProcess::start(control_plane.directory(), &account, IdentityOptions::default())?;
        Ok(Self { server, control_plane })
    }

    async fn token(&self, account: &str, audience: &str) -> Result<String> {
        self.control_plane.token_for("emojivoto", account, &[audience]).await
    }

    async fn certify(&self, identity: &str, token: &str) -> Result<CertifyResponse, Status> {
        certify(self.server.address, identity, token).await
    }

    async fn refusal(&self, identity: &str, token: &str) -> Result<(Code, String)> {
        match self.certify(identity, token).await {
            Ok(_) => anyhow::bail!("{identity} received a certificate"),
            Err(status) => Ok((status.code(), status.message().to_owned())),
        }
    }

    /// Returns the certificate of the issuer, of the answer to the next call.
    async fn signer(&self, token: &str) -> Result<Vec<u8>> {
        let answer = self.certify(WEB, token).await?;
        answer.intermediate_certificates.into_iter().next().context("an answer without an issuer")
    }

    /// Returns the reasons of the Events about the Deployment.
    async fn reasons(&self) -> Result<String> {
        let selector = "--field-selector=involvedObject.name=linkerd-identity";
        let reasons = "-o=jsonpath={.items[*].reason} {.items[*].reportingComponent}";
        self.control_plane.kubectl(&["-n=linkerd", "get", "events", selector, reasons]).await
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_workload_receives_the_certificate_of_its_own_service_account_and_of_no_other() -> Result<()> {
    let mut identity = IdentityReplica::start().await?;
    let waiting = identity.server.shows(StatusCode::SERVICE_UNAVAILABLE).await?;
    assert!(waiting.contains("no issuer of certificates is loaded"), "{waiting}");
    assert_eq!(identity.server.get("/ping").await?, (StatusCode::OK, "pong\n".to_owned()));
    let token = identity.token("web", AUDIENCE).await?;
    let (code, text) = identity.refusal(WEB, &token).await?;
    assert_eq!((code, &*text), (Code::Unavailable, "cert issuer not ready yet"));

    let root = MeshAuthority::root("root.linkerd.cluster.local")?;
    identity.server.roots.put_roots(&[&root])?;
    identity.server.issuer.put_issuer(&root.signs("identity.linkerd.cluster.local")?)?;
    identity.server.shows(StatusCode::OK).await?;
    let answer = identity.certify(WEB, &token).await?;
    verify(&answer, WEB, &root)?;
    verify(&answer, VOTING, &root).unwrap_err();
    assert!(answer.valid_until.is_some_and(|until| until.nanos == 0));

    let (code, text) = identity.refusal(VOTING, &token).await?;
    let expected = format!("requested identity did not match provided token: requested={VOTING}; found={WEB}");
    assert_eq!((code, text), (Code::FailedPrecondition, expected));
    let other = identity.token("web", "vault").await?;
    let (code, text) = identity.refusal(WEB, &other).await?;
    assert!(code == Code::InvalidArgument && text.contains("token audiences"), "{code}: {text}");
    let (code, _) = identity.refusal(WEB, "nonsense").await?;
    assert!(matches!(code, Code::InvalidArgument | Code::FailedPrecondition), "{code}");

    let (_, metrics) = identity.server.get("/metrics").await?;
    for line in [
        r#"grpc_server_handled_total{grpc_code="OK",grpc_method="Certify""#,
        r#"linkerd_operator_identity_refused_total{reason="other_identity"} 1"#,
        r#"linkerd_operator_identity_token_reviews_total{result="known"} 1"#,
        "issuer_cert_ttl_seconds ",
    ] {
        assert!(metrics.contains(line), "{line}\n{metrics}");
    }
    let account = "--field-selector=involvedObject.kind=ServiceAccount,involvedObject.name=web";
    eventually(SOON, "the Event about the certificate", async || {
        let events = &identity.control_plane;
        let note =
            events.kubectl(&["-n=emojivoto", "get", "events", account, "-o=jsonpath={.items[*].message}"]).await?;
        ensure!(note.starts_with(&format!("issued certificate for {WEB} until ")), "{note}");
        Ok(())
    })
    .await?;
    let log = identity.server.process.log();
    assert!(!log.contains(&token) && !log.contains("PRIVATE KEY"), "{log}");
    identity.server.process.signal(Signal::TERM)?;
    assert!(identity.server.process.wait(SOON).await?.success());
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_issuer_signs_the_next_certificate_as_soon_as_its_root_is_trusted() -> Result<()> {
    let identity = IdentityReplica::start().await?;
    let (first_root, second_root) = (MeshAuthority::root("root")?, MeshAuthority::root("root")?);
    let [first, second] = [first_root.signs("first")?, first_root.signs("second")?];
    let third = second_root.signs("third")?;
    identity.server.roots.put_roots(&[&first_root])?;
    identity.server.issuer.put_issuer(&first)?;
    identity.server.shows(StatusCode::OK).await?;
    let token = identity.token("web", AUDIENCE).await?;
    assert_eq!(identity.signer(&token).await?, first.der());
    let signs = async |issuer: &MeshAuthority| {
        eventually(SOON, "the new issuer to sign", async || {
            ensure!(identity.signer(&token).await? == issuer.der(), "another issuer signs");
            Ok(())
        })
        .await
    };
    identity.server.issuer.put_issuer(&second)?;
    signs(&second).await?;

    // The API server knows nothing of roots: the server itself must refuse an issuer that no proxy trusts.
    identity.server.issuer.put_issuer(&third)?;
    eventually(SOON, "/ready to name the issuer that is skipped", async || {
        let (status, body) = identity.server.get("/ready").await?;
        ensure!(status == StatusCode::OK && body.contains("the last issuer of certificates stays in use"), "{body}");
        Ok(())
    })
    .await?;
    assert_eq!(identity.signer(&token).await?, second.der());
    let (_, metrics) = identity.server.get("/metrics").await?;
    assert!(metrics.contains("linkerd_operator_identity_issuer_differs_from_files 1"), "{metrics}");
    identity.server.roots.put_roots(&[&first_root, &second_root])?;
    signs(&third).await?;
    verify(&identity.certify(WEB, &token).await?, WEB, &second_root)?;
    eventually(SOON, "the Events about the issuer", async || {
        let reasons = identity.reasons().await?;
        for reason in ["IssuerUpdated", "IssuerUpdateSkipped", "TrustAnchorsUpdated", "linkerd-identity"] {
            ensure!(reasons.contains(reason), "{reasons}");
        }
        Ok(())
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn each_issuer_in_use_and_the_last_certificate_of_each_pod_are_shown() -> Result<()> {
    let identity = IdentityReplica::start().await?;
    identity.server.shows(StatusCode::SERVICE_UNAVAILABLE).await?;
    let (_, none) = identity.server.get("/issued?pods=1").await?;
    let none: Value = serde_json::from_str(&none)?;
    assert_eq!((&none["issuers"], &none["pods"]), (&json!([]), &json!({})));

    let root = MeshAuthority::root("root")?;
    let [first, second] = [root.signs("first")?, root.signs("second")?];
    identity.server.roots.put_roots(&[&root])?;
    identity.server.issuer.put_issuer(&first)?;
    identity.server.shows(StatusCode::OK).await?;
    let mut pods = Vec::new();
    for pod in ["web-1", "web-2"] {
        let account = "--overrides={\"spec\": {\"serviceAccountName\": \"web\"}}";
        identity.control_plane.kubectl(&["-n=emojivoto", "run", pod, "--image=web", account]).await?;
        let bound = format!("--bound-object-name={pod}");
        let audience = format!("--audience={AUDIENCE}");
        let token = ["-n=emojivoto", "create", "token", "web", "--bound-object-kind=Pod", &bound, &audience];
        let token = identity.control_plane.kubectl(&token).await?.trim().to_owned();
        let uid = ["-n=emojivoto", "get", "pod", pod, "-o=jsonpath={.metadata.uid}"];
        let uid = identity.control_plane.kubectl(&uid).await?;
        let end = end(&identity.certify(WEB, &token).await?)?;
        pods.push((uid, token, end));
    }
    identity.server.issuer.put_issuer(&second)?;
    let renewed = eventually(SOON, "the new issuer to sign", async || {
        let answer = identity.certify(WEB, &pods[1].1).await?;
        ensure!(answer.intermediate_certificates[0] == second.der(), "another issuer signs");
        end(&answer)
    })
    .await?;

    let (status, shown) = identity.server.get("/issued?pods=1").await?;
    let shown: Value = serde_json::from_str(&shown)?;
    let leaf = |issuer: &MeshAuthority, end: &str| json!({"keyId": issuer.key_id(), "notAfter": end});
    let expected = json!({pods[0].0.clone(): leaf(&first, &pods[0].2), pods[1].0.clone(): leaf(&second, &renewed)});
    assert_eq!((status, &shown["pods"]), (StatusCode::OK, &expected), "{shown}");
    let (_, issuers) = identity.server.get("/issued").await?;
    let issuers: Value = serde_json::from_str(&issuers)?;
    assert_eq!((&issuers["issuers"], issuers.get("pods")), (&shown["issuers"], None));
    for (number, issuer) in [&first, &second].into_iter().enumerate() {
        let shown = &shown["issuers"][number];
        assert_eq!((&shown["keyId"], &shown["roots"]), (&json!(issuer.key_id()), &json!([digest(root.der())])));
    }
    Ok(())
}

/// Returns the end of a certificate as Kubernetes writes a time.
fn end(answer: &CertifyResponse) -> Result<String> {
    let seconds = answer.valid_until.context("an answer without an end")?.seconds;
    Ok(Timestamp::from_second(seconds)?.to_string())
}
