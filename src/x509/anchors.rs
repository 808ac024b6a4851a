//! The trust anchors: the roots in `ca-bundle.crt`.
//!
//! In: PEM. Out: the certificates that proxies can use, and a warning about each other part. Always holds: there is at
//! least one certificate, and each is listed once.

use std::collections::HashSet;

use jiff::Timestamp;
use rustls::pki_types::{CertificateDer, TrustAnchor};
use webpki::anchor_from_trusted_cert;

use super::{
    certificate::{ChainCertificate, sha256},
    pem,
};

/// The maximum length of a bundle, in bytes: that of a ConfigMap.
const LONGEST_BUNDLE: usize = 1 << 20;

/// The trust anchors of a mesh.
#[derive(Clone, Debug)]
pub(crate) struct AnchorBundle {
    roots: Vec<RootCertificate>,
    warnings: Vec<String>,
}

/// One trust anchor.
#[derive(Clone, Debug)]
pub(crate) struct RootCertificate {
    pub(crate) der: Box<[u8]>,
    pub(crate) sha256: [u8; 32],
    /// The SHA-256 of all that proxies read of it: its name, its key and its constraints. A root that was issued again with
    /// the same key is the same anchor.
    pub(crate) id: [u8; 32],
    /// The name of the certificate for people. Several certificates may have it.
    pub(crate) name: String,
    pub(crate) not_before: Option<Timestamp>,
    /// `None` if the date is unreadable. Proxies do not read it, so it does not matter to them.
    pub(crate) not_after: Option<Timestamp>,
    /// What proxies read of the certificate.
    pub(crate) anchor: TrustAnchor<'static>,
}

// === impl AnchorBundle ===

impl AnchorBundle {
    /// Reads a bundle in PEM.
    ///
    /// # Errors
    /// When no certificate is left that a proxy can use.
    pub(crate) fn parse(pem: &[u8]) -> Result<Self, String> {
        if pem.len() > LONGEST_BUNDLE {
            return Err(format!("the trust anchors are longer than {LONGEST_BUNDLE} bytes"));
        }
        let (mut roots, mut warnings, mut seen) = (Vec::new(), Vec::new(), HashSet::new());
        for (number, block) in (1..).zip(pem::blocks(pem)) {
            let root = block.and_then(|block| match block.label.as_str() {
                "CERTIFICATE" => RootCertificate::parse(&block.der).ok_or_else(|| "it cannot be read".to_owned()),
                label => Err(format!("it is a block {label}, and not a CERTIFICATE")),
            });
            match root {
                Ok(root) if seen.insert(root.sha256) => roots.push(root),
                Ok(_) => {}
                Err(why) => warnings.push(format!("block {number} of the trust anchors is ignored: {why}")),
            }
        }
        if roots.is_empty() {
            warnings.insert(0, "the trust anchors have no certificate that a proxy can use".to_owned());
            return Err(warnings.join("; "));
        }
        Ok(Self { roots, warnings })
    }

    pub(crate) fn roots(&self) -> &[RootCertificate] {
        &self.roots
    }

    /// Whether one of them has the key of this root.
    pub(crate) fn has_key_of(&self, root: &RootCertificate) -> bool {
        self.roots.iter().any(|it| it.has_key_of(root))
    }

    /// What is ignored in the bundle, one sentence for each part.
    pub(crate) fn warnings(&self) -> &[String] {
        &self.warnings
    }
}

// === impl RootCertificate ===

impl RootCertificate {
    pub(crate) fn parse(der: &[u8]) -> Option<Self> {
        let certificate = CertificateDer::from(der);
        let anchor = anchor_from_trusted_cert(&certificate).ok()?.to_owned();
        let parsed = ChainCertificate::parse(der);
        let constraints = anchor.name_constraints.as_deref().unwrap_or_default();
        let read = [&*anchor.subject, &[0], &*anchor.subject_public_key_info, &[0], constraints].concat();
        Some(Self {
            der: der.into(),
            sha256: sha256(der),
            id: sha256(&read),
            name: parsed.as_ref().map(ChainCertificate::name).unwrap_or_default(),
            not_before: parsed.as_ref().map(|certificate| certificate.not_before),
            not_after: parsed.map(|certificate| certificate.not_after),
            anchor,
        })
    }

    pub(crate) fn has_key_of(&self, other: &Self) -> bool {
        self.anchor.subject_public_key_info == other.anchor.subject_public_key_info
    }
}
