//! Identities of the mesh: the trust anchor, Linkerd's identity controller, and the files of one proxy.
//!
//! * In: Linkerd's controller, a [`ControlPlane`]. Out: the trust anchor in PEM, and a server that signs the proxies'
//!   certificates after a TokenReview.
//! * Always: the keys are created for one run, in the control plane's directory.

use std::{
    fs,
    net::SocketAddr,
    path::{Path, PathBuf},
};

use anyhow::Result;
use e2e::{
    ControlPlane, Spawn,
    linkerd_controller::{LinkerdProgram, loopback},
};
use rcgen::{BasicConstraints, CertificateParams, DistinguishedName, DnType, IsCa, Issuer, KeyPair, KeyUsagePurpose};

/// Linkerd's controller reads the trust anchors only from this path, so it runs in a mount namespace.
const RUN: &str = "mount -t tmpfs tmpfs /run; mkdir -p /var/run/linkerd/identity/trust-roots; \
                   cp \"$1\" /var/run/linkerd/identity/trust-roots/ca-bundle.crt; shift; exec \"$@\"";

/// The audience of the tokens that Linkerd's identity controller reviews.
pub(crate) const AUDIENCE: &str = "identity.l5d.io";

pub(crate) struct IdentityService {
    /// The trust anchor.
    pub(crate) anchor: String,
    pub(crate) address: SocketAddr,
    _program: LinkerdProgram,
}

/// The name of a ServiceAccount in certificates.
pub(crate) fn name(namespace: &str, account: &str) -> String {
    format!("{account}.{namespace}.serviceaccount.identity.linkerd.cluster.local")
}

/// Writes a private key, a certificate request and a token, as a proxy expects them. Returns the directory.
pub(crate) fn write_end_entity(directory: &Path, proxy: &str, identity: &str, token: &str) -> Result<PathBuf> {
    let directory = directory.join(format!("identity-{proxy}"));
    fs::create_dir(&directory)?;
    let key = KeyPair::generate()?;
    let mut request = CertificateParams::new(vec![identity.to_owned()])?;
    request.distinguished_name = DistinguishedName::new();
    fs::write(directory.join("key.p8"), key.serialize_der())?;
    fs::write(directory.join("csr.der"), request.serialize_request(&key)?.der())?;
    fs::write(directory.join("token"), token)?;
    Ok(directory)
}

fn authority(name: &str, constraints: BasicConstraints) -> Result<CertificateParams> {
    let mut params = CertificateParams::new(vec![name.to_owned()])?;
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, name);
    params.is_ca = IsCa::Ca(constraints);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    Ok(params)
}

// === impl IdentityService ===

impl IdentityService {
    pub(crate) async fn start(controller: &Path, control_plane: &ControlPlane) -> Result<Self> {
        let directory = control_plane.directory().join("issuer");
        fs::create_dir(&directory)?;
        let (anchor_key, issuer_key) = (KeyPair::generate()?, KeyPair::generate()?);
        let anchor = authority("root.linkerd.cluster.local", BasicConstraints::Unconstrained)?;
        let anchor_pem = anchor.self_signed(&anchor_key)?.pem();
        let mut issuer = authority("identity.linkerd.cluster.local", BasicConstraints::Constrained(0))?;
        issuer.use_authority_key_identifier_extension = true;
        let issuer_pem = issuer.signed_by(&issuer_key, &Issuer::new(anchor, anchor_key))?.pem();
        fs::write(directory.join("crt.pem"), issuer_pem)?;
        fs::write(directory.join("key.pem"), issuer_key.serialize_pem())?;
        let bundle = directory.join("ca-bundle.crt");
        fs::write(&bundle, &anchor_pem)?;

        let (admin, address) = (loopback()?, loopback()?);
        let log = control_plane.directory().join("linkerd-identity.log");
        let spawn = Spawn::new("Linkerd's identity controller", "unshare", log)
            .args(["--mount", "--", "sh", "-euc", RUN, "identity"])
            .args([bundle.as_path(), controller])
            .args(["identity".to_owned(), format!("-kubeconfig={}", control_plane.kubeconfig().display())])
            .args([format!("-addr={address}"), format!("-admin-addr={admin}")])
            .args([format!("-issuer={}", directory.display())])
            .args(["-controller-namespace=linkerd", "-identity-trust-domain=cluster.local"])
            .args(["-identity-scheme=linkerd.io/tls", "-identity-issuance-lifetime=24h"]);
        Ok(Self { anchor: anchor_pem, address, _program: LinkerdProgram::start(spawn, admin).await? })
    }
}
