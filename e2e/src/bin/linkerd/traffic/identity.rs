//! Identities of the mesh: the trust anchor, the identity service, and the files of one proxy.
//!
//! * In: Linkerd's controller, a [`ControlPlane`]. Out: the trust anchors in PEM, and a server that signs the proxies'
//!   certificates after a TokenReview: Linkerd's or the operator's. The operator's command makes a new root.
//! * Always: the keys are created for one run, in the control plane's directory. Both servers read the same files.

use std::{
    fs,
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::atomic::{AtomicUsize, Ordering},
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use base64::prelude::{BASE64_STANDARD, Engine};
use e2e::{
    ControlPlane, Spawn,
    command::Ended,
    executable::operator_binary,
    identity::{MeshAuthority, Volume},
    linkerd_controller::{LinkerdProgram, loopback},
    metric::{self, Sample},
    plain_http,
};
use hyper::{Method, StatusCode};
use rcgen::{CertificateParams, DistinguishedName, KeyPair};
use serde_json::Value;

use crate::replica::ServerKind;

/// Linkerd's controller reads the trust anchors only from this path, so it runs in a mount namespace.
const RUN: &str = "mount -t tmpfs tmpfs /run; mkdir -p /var/run/linkerd/identity/trust-roots; \
                   cp \"$1\" /var/run/linkerd/identity/trust-roots/ca-bundle.crt; shift; exec \"$@\"";
const STOP_DEADLINE: Duration = Duration::from_secs(30);
const COMMAND_DEADLINE: Duration = Duration::from_secs(30);
const ADMIN_DEADLINE: Duration = Duration::from_secs(2);
/// The ConfigMap of the bundle, and the Secret of the issuer.
pub(crate) const BUNDLE: &str = "linkerd-identity-trust-roots";
pub(crate) const ISSUER: &str = "linkerd-identity-issuer";
/// The number of services that were started; names their logs.
static STARTED: AtomicUsize = AtomicUsize::new(0);

/// The trust anchor and the issuer of the mesh, in the volumes that the identity service mounts.
pub(crate) struct MeshTrust {
    root: MeshAuthority,
    roots: Volume,
    issuer: Volume,
    /// The bundle of proxies that start from now on.
    anchors: String,
}

/// What `linkerd-operator trust new` has made.
pub(crate) struct RootFolder(pub(crate) PathBuf);

/// What differs between the identity services of one run.
#[derive(Clone, Copy)]
pub(crate) struct IdentityServiceOptions {
    pub(crate) lifetime: Duration,
    pub(crate) clock_skew: Duration,
    /// Without a proxy in front of it. Only the operator has this.
    pub(crate) native_tls: bool,
}

pub(crate) struct IdentityService {
    pub(crate) address: SocketAddr,
    admin: SocketAddr,
    program: LinkerdProgram,
}

/// The name of a ServiceAccount in certificates.
pub(crate) fn name(namespace: &str, account: &str) -> String {
    format!("{account}.{namespace}.serviceaccount.identity.linkerd.cluster.local")
}

/// Writes a private key, a certificate request and a token, as a proxy expects them. Returns the directory.
pub(crate) fn write_end_entity(directory: &Path, proxy: &str, identity: &str, token: &str) -> Result<PathBuf> {
    let directory = directory.join(format!("identity-{proxy}"));
    // A Pod that is created again gets a new key.
    fs::create_dir_all(&directory)?;
    let key = KeyPair::generate()?;
    let mut request = CertificateParams::new(vec![identity.to_owned()])?;
    request.distinguished_name = DistinguishedName::new();
    fs::write(directory.join("key.p8"), key.serialize_der())?;
    fs::write(directory.join("csr.der"), request.serialize_request(&key)?.der())?;
    fs::write(directory.join("token"), token)?;
    Ok(directory)
}

// === impl RootFolder ===

impl RootFolder {
    pub(crate) fn root(&self) -> PathBuf {
        self.0.join("ca.crt")
    }

    pub(crate) fn issuer(&self) -> PathBuf {
        self.0.join("issuer.crt")
    }

    fn key(&self) -> PathBuf {
        self.0.join("ca.key")
    }
}

// === impl MeshTrust ===

impl MeshTrust {
    pub(crate) fn create(directory: &Path) -> Result<Self> {
        let root = MeshAuthority::root("root.linkerd.cluster.local")?;
        let trust = Self {
            anchors: root.pem(),
            root,
            roots: Volume::new(directory.join("trust-roots"))?,
            issuer: Volume::new(directory.join("issuer"))?,
        };
        trust.roots.put_roots(&[&trust.root])?;
        trust.renew_issuer()?;
        Ok(trust)
    }

    /// The trust anchors in PEM.
    pub(crate) fn anchors(&self) -> &str {
        &self.anchors
    }

    /// The certificate of the issuer with what is sent after it, and its key.
    pub(crate) fn issuer(&self) -> Result<(String, String)> {
        let read = |name: &str| fs::read_to_string(self.issuer.0.join(name)).with_context(|| format!("no {name}"));
        Ok((read("crt.pem")?, read("key.pem")?))
    }

    /// Makes a new root, its issuer, and the LinkerdTrust that has the operator replace the root of this folder because its
    /// key was stolen; also a bridge, if wanted. Returns the folder, which the operator's command has filled.
    pub(crate) async fn next(old: &RootFolder, new: PathBuf, is_bridged: bool) -> Result<RootFolder> {
        let path = |path: &Path| path.to_str().map(str::to_owned).context("a path is not UTF-8");
        let (old, key, folder) = (path(&old.root())?, path(&old.key())?, path(&new)?);
        let mut made = vec!["trust", "new", &folder, "--distrust", &old, "--enforce"];
        if is_bridged {
            made.extend(["--bridge-from", &old, "--old-key", &key]);
        }
        let ended = Ended::operator(&made, COMMAND_DEADLINE).await?;
        ensure!(ended.code == Some(0), "trust new: {}", ended.stderr);
        Ok(RootFolder(new))
    }

    /// Keeps the first root, as people do, in a new folder.
    pub(crate) fn keep(&self, folder: PathBuf) -> Result<RootFolder> {
        fs::create_dir(&folder)?;
        let kept = RootFolder(folder);
        fs::write(kept.root(), self.root.pem())?;
        fs::write(kept.key(), self.root.key_pem())?;
        Ok(kept)
    }

    /// Does what the kubelet does: the files have what the ConfigMap and the Secret have.
    pub(crate) async fn mount(&mut self, control_plane: &ControlPlane) -> Result<()> {
        let map = control_plane.get(&["configmap", BUNDLE, "--namespace=linkerd"]).await?;
        let bundle = map.pointer("/data/ca-bundle.crt").and_then(Value::as_str).context("no bundle")?;
        let secret = control_plane.get(&["secret", ISSUER, "--namespace=linkerd"]).await?;
        let text = |path: &str| -> Result<String> {
            let text = secret.pointer(path).and_then(Value::as_str).with_context(|| format!("no {path}"))?;
            Ok(String::from_utf8(BASE64_STANDARD.decode(text)?)?)
        };
        let (certificates, key) = (text("/data/crt.pem")?, text("/data/key.pem")?);
        if bundle != self.anchors {
            self.roots.put(&[("ca-bundle.crt", bundle)])?;
            bundle.clone_into(&mut self.anchors);
        }
        if self.issuer()?.0 != certificates {
            self.issuer.put(&[("crt.pem", &certificates), ("key.pem", &key)])?;
        }
        Ok(())
    }

    /// Replaces the issuer by a new one of the same root, as the kubelet does when the Secret changes.
    pub(crate) fn renew_issuer(&self) -> Result<()> {
        self.issuer.put_issuer(&self.root.signs("identity.linkerd.cluster.local")?)
    }
}

// === impl IdentityService ===

impl IdentityService {
    pub(crate) async fn start(
        server: ServerKind,
        controller: &Path,
        control_plane: &ControlPlane,
        trust: &MeshTrust,
        options: IdentityServiceOptions,
    ) -> Result<Self> {
        let (admin, address) = (loopback()?, loopback()?);
        let number = STARTED.fetch_add(1, Ordering::Relaxed);
        let log = control_plane.directory().join(format!("identity-service-{number}.log"));
        let name = format!("the identity service of {server}");
        let spawn = match server {
            ServerKind::Ours => Spawn::new(name, operator_binary()?, log).args(["identity"]),
            ServerKind::Theirs => Spawn::new(name, "unshare", log)
                .args(["--mount", "--", "sh", "-euc", RUN, "identity"])
                .args([trust.roots.0.join("ca-bundle.crt").as_path(), controller])
                .args(["identity"]),
        };
        let IdentityServiceOptions { lifetime, clock_skew, native_tls } = options;
        let mut spawn = spawn
            .args([format!("-kubeconfig={}", control_plane.kubeconfig().display())])
            .args([format!("-addr={address}"), format!("-admin-addr={admin}")])
            .args([format!("-issuer={}", trust.issuer.0.display())])
            .args(["-controller-namespace=linkerd", "-identity-trust-domain=cluster.local"])
            .args(["-identity-scheme=linkerd.io/tls".to_owned()])
            .args([format!("-identity-issuance-lifetime={}s", lifetime.as_secs())])
            .args([format!("-identity-clock-skew-allowance={}s", clock_skew.as_secs())]);
        if server == ServerKind::Ours {
            spawn = spawn.args([format!("-trust-roots={}", trust.roots.0.display()), format!("-tls={native_tls}")]);
        }
        Ok(Self { address, admin, program: LinkerdProgram::start(spawn, admin).await? })
    }

    pub(crate) async fn metrics(&self) -> Result<Vec<Sample>> {
        let (status, body) = plain_http::request(self.admin, Method::GET, "/metrics", "", ADMIN_DEADLINE).await?;
        ensure!(status == StatusCode::OK, "/metrics of the identity service: {status}");
        Ok(metric::parse(&String::from_utf8_lossy(&body)))
    }

    pub(crate) fn log_tail(&self) -> String {
        self.program.log_tail()
    }

    /// Sends SIGTERM, and waits for the exit.
    pub(crate) async fn terminate(mut self) -> Result<()> {
        self.program.terminate(STOP_DEADLINE).await
    }
}
