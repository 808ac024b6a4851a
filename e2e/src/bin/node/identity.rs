//! The identity service of the operator, with files that the kubelet writes and tokens that the API server reviews.
//!
//! * In: a cluster without the operator, the image's name. Out: the image in place of Linkerd's container, as
//!   `docs/src/guides/identity.md` says, and then in its Deployment of its own; each with a certificate that proxies accept.

use std::{
    fs,
    net::SocketAddr,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use e2e::{
    ControlPlane, eventually,
    identity::{AUDIENCE, MeshAuthority, certify, verify},
    mesh::SOON,
    real_node,
    shipped::in_repository,
    tls::certificate_of,
};
use linkerd2_proxy_api::identity::CertifyResponse;
use serde_json::json;
use tokio::{task::JoinHandle, time::sleep};

use crate::deployment::ROLL_DEADLINE;

const NAMESPACE: &str = "meshed";
const WEB: &str = "web.meshed.serviceaccount.identity.linkerd.cluster.local";
/// The name by which proxies verify the server.
const SERVER: &str = "linkerd-identity.linkerd.serviceaccount.identity.linkerd.cluster.local";
/// The kubelet writes a changed Secret when it next looks at the Pod, after up to two minutes.
const WRITTEN: Duration = Duration::from_secs(180);
/// The longest time without a certificate while the Pod is replaced. A proxy tries again after a second or more.
const LONGEST: Duration = Duration::from_secs(5);
const RETRY: Duration = Duration::from_millis(200);
const OVERLAY: &str = "dist/overlay-identity";

/// Requests certificates for one ServiceAccount from outside of the cluster.
#[derive(Clone)]
struct Requester {
    server: SocketAddr,
    token: String,
}

// === impl Requester ===

impl Requester {
    async fn certify(&self) -> Result<CertifyResponse> {
        Ok(certify(self.server, WEB, &self.token).await?)
    }

    /// Requests certificates until it is stopped. Returns their number, and the longest time from a request to its certificate.
    fn begin(&self, stop: &Arc<AtomicBool>) -> JoinHandle<(usize, Duration)> {
        let (requester, stop) = (self.clone(), Arc::clone(stop));
        tokio::spawn(async move {
            let (mut received, mut longest) = (0, Duration::ZERO);
            while !stop.load(Relaxed) {
                let begun = Instant::now();
                while requester.certify().await.is_err() && begun.elapsed() < ROLL_DEADLINE {
                    sleep(RETRY).await;
                }
                (received, longest) = (received + 1, longest.max(begun.elapsed()));
                sleep(RETRY).await;
            }
            (received, longest)
        })
    }
}

/// Runs both forms of the identity service.
pub(crate) async fn issues(control_plane: &ControlPlane, reference: &str) -> Result<()> {
    let begun = Instant::now();
    let root = MeshAuthority::root("root.linkerd.cluster.local")?;
    let [first, second] =
        [root.signs("identity.linkerd.cluster.local")?, root.signs("identity.linkerd.cluster.local")?];
    put_issuer(control_plane, &first).await?;
    let bundle = json!({"data": {"ca-bundle.crt": root.pem()}}).to_string();
    let roots = ["-n=linkerd", "patch", "configmap", "linkerd-identity-trust-roots", "--patch", &bundle];
    control_plane.kubectl(&roots).await?;
    control_plane.create_namespaces(&[NAMESPACE]).await?;
    control_plane.kubectl(&["-n", NAMESPACE, "create", "serviceaccount", "web"]).await?;
    control_plane.kubectl(&["apply", "-f", &in_repository("e2e/tests/e2e/identity/rbac.yaml")]).await?;
    control_plane.kubectl(&["apply", "-f", &in_repository("e2e/src/bin/node/identity.yaml")]).await?;
    let image = format!("identity={reference}");
    control_plane.kubectl(&["-n=linkerd", "set", "image", "deployment/linkerd-identity", &image]).await?;
    rolled_out(control_plane, "linkerd-identity").await?;
    let requester = requester(control_plane).await?;
    let answer = eventually(SOON, "a certificate", async || requester.certify().await).await?;
    verify(&answer, WEB, &root)?;
    ensure!(is_signed_by(&answer, &first), "another issuer signed");
    crate::step(
        "The image in place of Linkerd's container identity: a certificate for the token of a Pod's account",
        begun,
    );

    let begun = Instant::now();
    let pod = pod(control_plane).await?;
    put_issuer(control_plane, &second).await?;
    eventually(WRITTEN, "the next issuer to sign", async || {
        let answer = requester.certify().await?;
        ensure!(is_signed_by(&answer, &second), "another issuer signed");
        verify(&answer, WEB, &root)
    })
    .await?;
    ensure!(self::pod(control_plane).await? == pod, "the Pod was restarted");
    crate::step("A change of the issuer's Secret took effect without a restart", begun);

    let begun = Instant::now();
    let stop = Arc::default();
    let requests = requester.begin(&stop);
    control_plane.kubectl(&["-n=linkerd", "rollout", "restart", "deployment/linkerd-identity"]).await?;
    rolled_out(control_plane, "linkerd-identity").await?;
    own_deployment(control_plane, reference).await?;
    stop.store(true, Relaxed);
    let (received, longest) = requests.await?;
    ensure!(received > 10 && longest <= LONGEST, "{received} certificates, the slowest after {longest:?}");
    crate::step(
        &format!(
            "kubectl rollout restart, and a Deployment beside it: {received} certificates, the slowest after {longest:.1?}"
        ),
        begun,
    );

    let begun = Instant::now();
    control_plane.kubectl(&["-n=linkerd", "scale", "deployment/linkerd-identity", "--replicas=0"]).await?;
    eventually(SOON, "TLS of the identity that proxies expect", async || {
        certificate_of(requester.server, SERVER, &root.pem()).await
    })
    .await?;
    crate::step("The Deployment of its own terminates TLS with a certificate of its issuer", begun);
    Ok(())
}

fn is_signed_by(answer: &CertifyResponse, issuer: &MeshAuthority) -> bool {
    answer.intermediate_certificates.first().map(Vec::as_slice) == Some(issuer.der())
}

/// Applies the component beside Linkerd's Deployment, as `docs/internals/src/packaging.md` says.
async fn own_deployment(control_plane: &ControlPlane, reference: &str) -> Result<()> {
    let (name, tag) = reference.rsplit_once(':').context("the image has no tag")?;
    let kustomization = format!(
        "resources: [../../config/control-plane]\ncomponents: [../../config/components/identity]\n\
         images: [{{name: linkerd-operator, newName: {name}, newTag: {tag}}}]\n"
    );
    let folder = in_repository(OVERLAY);
    fs::create_dir_all(&folder)?;
    fs::write(Path::new(&folder).join("kustomization.yaml"), kustomization)?;
    control_plane.kubectl(&["apply", "--server-side", "-k", &folder]).await?;
    rolled_out(control_plane, "linkerd-operator-identity").await
}

/// Writes the Secret as Linkerd's chart does.
async fn put_issuer(control_plane: &ControlPlane, issuer: &MeshAuthority) -> Result<()> {
    let metadata = json!({"name": "linkerd-identity-issuer", "namespace": "linkerd"});
    let data = json!({"crt.pem": issuer.pem(), "key.pem": issuer.key_pem()});
    let secret = json!({"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "stringData": data});
    let file = tempfile::NamedTempFile::new()?;
    fs::write(&file, secret.to_string())?;
    control_plane.kubectl(&["apply", "-f", &file.path().display().to_string()]).await.map(drop)
}

async fn rolled_out(control_plane: &ControlPlane, name: &str) -> Result<()> {
    let (deployment, timeout) = (format!("deployment/{name}"), format!("--timeout={}s", ROLL_DEADLINE.as_secs()));
    control_plane.kubectl(&["-n=linkerd", "rollout", "status", &deployment, &timeout]).await.map(drop)
}

async fn requester(control_plane: &ControlPlane) -> Result<Requester> {
    let port = ["-n=linkerd", "get", "service", "identity-outside", "-o=jsonpath={.spec.ports[0].nodePort}"];
    let server = SocketAddr::from((real_node::ADDRESS, control_plane.kubectl(&port).await?.parse()?));
    let token = control_plane.token_for(NAMESPACE, "web", &[AUDIENCE]).await?;
    Ok(Requester { server, token })
}

/// The name of the Pod, and how often it was restarted.
async fn pod(control_plane: &ControlPlane) -> Result<String> {
    let path = "-o=jsonpath={.items[*].metadata.name} {.items[*].status.containerStatuses[*].restartCount}";
    control_plane.kubectl(&["-n=linkerd", "get", "pods", "--selector=app=linkerd-identity", path]).await
}
