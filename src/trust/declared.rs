//! The roots that a LinkerdTrust declares. Pure.

use super::seen::DeclaredRoots;
use crate::{
    api::{LinkerdTrustSpec, linkerd_trust::TrustMode},
    text::and_more,
    values::UnusableTrustBundle,
    x509::{anchor_set::readable_certificates, anchors::AnchorBundle, certificate::ChainCertificate},
};

/// The maximum number of declared trust anchors.
const MAX_ANCHORS: usize = 20;
/// The maximum number of warnings in a sentence.
const SHOWN: usize = 10;

/// Returns the declared roots; `None` for those of the bundle.
///
/// # Errors
/// When a part of the text is not a certificate that proxies can use.
pub(crate) fn declared_roots(resource: &str, spec: &LinkerdTrustSpec) -> Result<Option<DeclaredRoots>, String> {
    let Some(anchors) = &spec.anchors else { return Ok(None) };
    // No Pod could start with such a text.
    UnusableTrustBundle::check(&anchors.pem).map_err(|unusable| unusable.to_string())?;
    let bundle = AnchorBundle::parse(anchors.pem.as_bytes())?;
    let is_authority = |der: &[u8]| ChainCertificate::parse(der).is_some_and(|certificate| certificate.is_authority());
    let mut certificates = readable_certificates(&anchors.pem);
    if let Some(at) = certificates.position(|der| !is_authority(&der)) {
        return Err(format!("certificate {} is not that of a certificate authority (CA)", at + 1));
    }
    let count = bundle.roots().len();
    match bundle.warnings() {
        [] if count > MAX_ANCHORS => Err(format!("{count} trust anchors are more than {MAX_ANCHORS}")),
        [] => {
            let is_enforced = spec.mode == TrustMode::Enforce;
            Ok(Some(DeclaredRoots { resource: resource.to_owned(), bundle, is_enforced }))
        }
        warnings => Err(and_more(warnings.iter().take(SHOWN), warnings.len(), "; ")),
    }
}
