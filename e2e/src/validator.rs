//! A validating webhook as a child process: the operator's manager, the operator in place of Linkerd's `sp-validator`,
//! or Linkerd's own.
//!
//! * In: a [`ControlPlane`]; for Linkerd's own, the path of its controller. Out: the answers to reviews that are posted
//!   directly; a registration with the API server, for objects with a label.
//! * Always: it ends with the test, and its registration does not concern the objects of other tests. Linkerd's program
//!   has fixed paths, so it runs in a mount namespace of its own.

use std::{
    fs,
    net::SocketAddr,
    path::Path,
    sync::atomic::{AtomicUsize, Ordering},
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use http::{Request, StatusCode, header};
use http_body_util::Full;
use k8s_openapi::{ByteString, api::admissionregistration::v1::ValidatingWebhookConfiguration};
use kube::{
    Api, Client,
    api::{DeleteParams, Patch, PatchParams},
};
use rustix::process::geteuid;
use rustls::pki_types::ServerName;
use serde_json::json;
use tempfile::TempDir;
use tokio::{net::TcpStream, time::timeout};

use crate::{
    certificate::{self, ServingCertificate},
    control_plane::ControlPlane,
    executable::operator_binary,
    injector::MOUNT,
    linkerd_controller::{LinkerdProgram, loopback},
    plain_http::exchanged,
    process::Spawn,
    tls,
};

/// The label of the objects that a registered webhook reviews; the value names the registration.
pub const LABEL: &str = "e2e.linkerd.io/validated-by";
const HOST: &str = "localhost";
const POST_DEADLINE: Duration = Duration::from_secs(20);

static STARTED: AtomicUsize = AtomicUsize::new(0);

/// A running validator.
pub struct WebhookProcess {
    program: LinkerdProgram,
    address: SocketAddr,
    admin: SocketAddr,
    certificate: ServingCertificate,
    _folder: TempDir,
}

// === impl WebhookProcess ===

impl WebhookProcess {
    /// Starts the manager with `--enable-webhooks` and these further flags.
    pub async fn manager(control_plane: &ControlPlane, flags: &[&str]) -> Result<Self> {
        Self::start(control_plane, |folder, address, admin| {
            let spawn = Spawn::new("manager", operator_binary()?, "").args(["manager", "--enable-webhooks"]);
            let kubeconfig = control_plane.kubeconfig().display();
            let spawn = spawn
                .args([format!("--kubeconfig={kubeconfig}"), format!("--webhook-addr={address}")])
                .args([format!("--webhook-folder={}", folder.display()), format!("--admin-addr={admin}")])
                .args(["--operator-namespace=default", "--enable-external-workload=false"])
                .args(flags);
            Ok(spawn)
        })
        .await
    }

    /// Starts the operator in place of Linkerd's `sp-validator`, as this user.
    pub async fn sp_validator(control_plane: &ControlPlane, kubeconfig: &Path) -> Result<Self> {
        Self::start(control_plane, |folder, address, admin| {
            let spawn = Spawn::new("sp-validator", operator_binary()?, "").args(["sp-validator"]);
            Ok(spawn.args(flags(kubeconfig, address, admin)).args([format!("-folder={}", folder.display())]))
        })
        .await
    }

    /// Starts Linkerd's own `sp-validator`, from this binary of its controller.
    pub async fn linkerd(control_plane: &ControlPlane, controller: &Path) -> Result<Self> {
        Self::start(control_plane, |folder, address, admin| {
            let mut spawn = Spawn::new("Linkerd's sp-validator", "unshare", "");
            if !geteuid().is_root() {
                spawn = spawn.args(["--map-root-user"]);
            }
            let spawn = spawn.args(["--mount", "--", "sh", "-c", MOUNT, "sh"]).args([folder, controller]);
            Ok(spawn.args(["sp-validator"]).args(flags(control_plane.kubeconfig(), address, admin)))
        })
        .await
    }

    async fn start(
        control_plane: &ControlPlane,
        spawn: impl FnOnce(&Path, SocketAddr, SocketAddr) -> Result<Spawn>,
    ) -> Result<Self> {
        let folder = tempfile::Builder::new().prefix("webhook-").tempdir_in(control_plane.directory())?;
        let certificate = certificate::for_names(&[HOST])?;
        let tls = folder.path().join("tls");
        fs::create_dir(&tls)?;
        fs::write(tls.join("tls.crt"), &certificate.certificate_pem)?;
        fs::write(tls.join("tls.key"), &certificate.key_pem)?;
        let (address, admin) = (loopback()?, loopback()?);
        let number = STARTED.fetch_add(1, Ordering::Relaxed);
        let mut spawn = spawn(folder.path(), address, admin)?;
        spawn.log = control_plane.directory().join(format!("validator-{number}.log"));
        let program = LinkerdProgram::start(spawn, admin).await?;
        Ok(Self { program, address, admin, certificate, _folder: folder })
    }

    /// The address of its admin port.
    pub fn admin_address(&self) -> SocketAddr {
        self.admin
    }

    pub fn log(&self) -> String {
        self.program.log()
    }

    /// Posts a body to this path. Returns the status and the body of the answer.
    pub async fn post(&self, path: &str, body: impl Into<Bytes>) -> Result<(StatusCode, Bytes)> {
        let request = Request::post(path).header(header::HOST, HOST).body(Full::new(body.into()))?;
        let exchange = async {
            let stream = TcpStream::connect(self.address).await?;
            let name = ServerName::try_from(HOST)?;
            let stream = tls::connector(&self.certificate.ca_pem)?.connect(name, stream).await?;
            exchanged(stream, request).await
        };
        timeout(POST_DEADLINE, exchange)
            .await
            .with_context(|| format!("the webhook did not answer within {POST_DEADLINE:?}"))?
            .context("calling the webhook")
    }

    /// Registers the webhook at this path for objects with [`LABEL`] and this value, so that the API server rejects them
    /// if the webhook does not answer.
    pub async fn register(&self, client: &Client, value: &str, path: &str) -> Result<()> {
        let webhook = json!({
            "apiVersion": "admissionregistration.k8s.io/v1",
            "kind": "ValidatingWebhookConfiguration",
            "metadata": {"name": value},
            "webhooks": [{
                "name": "validation.linkerd-operator.example",
                "clientConfig": {
                    "url": format!("https://{HOST}:{}{path}", self.address.port()),
                    "caBundle": ByteString(self.certificate.ca_pem.as_bytes().to_vec()),
                },
                "rules": [
                    rule("config.linkerd.io", &["v1alpha1"], "linkerdconfigs"),
                    rule("workload.linkerd.io", &["*"], "externalworkloads"),
                    rule("linkerd.io", &["v1alpha1", "v1alpha2"], "serviceprofiles"),
                ],
                "objectSelector": {"matchLabels": {LABEL: value}},
                "admissionReviewVersions": ["v1"],
                "failurePolicy": "Fail",
                "sideEffects": "None",
                "timeoutSeconds": 10,
            }],
        });
        let webhooks: Api<ValidatingWebhookConfiguration> = Api::all(client.clone());
        let apply = PatchParams::apply("e2e-validator").force();
        webhooks.patch(value, &apply, &Patch::Apply(webhook)).await.context("registering the webhook")?;
        Ok(())
    }
}

/// Deletes a registration.
pub async fn unregister(client: &Client, name: &str) -> Result<()> {
    let webhooks: Api<ValidatingWebhookConfiguration> = Api::all(client.clone());
    let deleted = webhooks.delete(name, &DeleteParams::default()).await;
    ensure!(deleted.is_ok(), "deleting the registration {name}: {deleted:?}");
    Ok(())
}

/// The flags of Linkerd's container.
fn flags(kubeconfig: &Path, address: SocketAddr, admin: SocketAddr) -> [String; 4] {
    [
        format!("-kubeconfig={}", kubeconfig.display()),
        format!("-addr={address}"),
        format!("-metrics-addr={admin}"),
        "-log-level=info".to_owned(),
    ]
}

fn rule(group: &str, versions: &[&str], resource: &str) -> serde_json::Value {
    json!({"apiGroups": [group], "apiVersions": versions, "resources": [resource], "operations": ["CREATE", "UPDATE"]})
}
