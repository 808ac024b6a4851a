//! The roots that a LinkerdTrust declares. Pure.

use crate::{api::LinkerdTrustSpec, text::and_more, x509::anchors::AnchorBundle};

/// The maximum number of declared trust anchors.
const MAX_ANCHORS: usize = 20;
/// The maximum number of warnings in a sentence.
const SHOWN: usize = 10;

/// Returns the declared roots; `None` for those of the bundle.
///
/// # Errors
/// When a part of the text is not a certificate that proxies can use.
pub(crate) fn declared_roots(spec: &LinkerdTrustSpec) -> Result<Option<AnchorBundle>, String> {
    let Some(anchors) = &spec.anchors else { return Ok(None) };
    let bundle = AnchorBundle::parse(anchors.pem.as_bytes())?;
    let count = bundle.roots().len();
    match bundle.warnings() {
        [] if count > MAX_ANCHORS => Err(format!("{count} trust anchors are more than {MAX_ANCHORS}")),
        [] => Ok(Some(bundle)),
        warnings => Err(and_more(warnings.iter().take(SHOWN), warnings.len(), "; ")),
    }
}
