//! The trust anchors of the mesh: the certificates to copy into the document, and their status. Pure.

use std::collections::BTreeSet;

use serde_json::{Map, Value};

use super::overlay::ValueSource;
use crate::api::{
    TRUST_ROOTS,
    linkerd_config::{LinkerdConfigSpec, LinkerdConfigStatus, TrustAnchorsPolicy, TrustAnchorsStatus},
};
use crate::{
    text::sha256,
    values::{Path, Problem, UnusableTrustBundle},
    x509::anchor_set::readable_certificates,
};

/// The certificates that the mesh trusts.
#[derive(Clone, Debug, PartialEq)]
pub(in crate::linkerd_config) struct TrustAnchors {
    pub(in crate::linkerd_config) pem: String,
    pub(in crate::linkerd_config) source: ValueSource,
}

/// Returns the trust anchors to copy. The bundle in use comes first: with the policy Verify, the resource's own trust
/// anchors must equal it; with Reuse, they are used only without a bundle. A bundle that no proxy can use is ignored.
///
/// # Errors
/// When the resource's own trust anchors are invalid, or differ from the bundle with the policy Verify; when the bundle
/// has a private key, which must not be copied.
pub(in crate::linkerd_config) fn resolve(
    spec: &LinkerdConfigSpec,
    bundle: Option<&str>,
) -> Result<Option<TrustAnchors>, Problem> {
    let context = &spec.global.identity_context;
    let given = context.trust_anchors_pem.as_deref().filter(|pem| !pem.trim().is_empty());
    let declared = given.map(certificates).transpose().map_err(|unusable| problem(unusable.to_string()))?;
    let bundle = bundle.map(|bundle| certificates(bundle).map(|certificates| (bundle, certificates)));
    if bundle == Some(Err(UnusableTrustBundle::PrivateKey)) {
        let path = Path::from(&[TRUST_ROOTS, "ca-bundle.crt"][..]);
        return Err(Problem { path, value: String::new(), reason: UnusableTrustBundle::PrivateKey.to_string() });
    }
    match (context.trust_anchors_policy, given.zip(declared), bundle) {
        (TrustAnchorsPolicy::Verify, Some((_, declared)), Some(Ok((_, trusted)))) if declared != trusted => {
            Err(problem("it differs from the bundle that the mesh trusts, in ConfigMap linkerd-identity-trust-roots"))
        }
        (TrustAnchorsPolicy::Verify, Some(_), None) => Err(problem(
            "it cannot be verified: ConfigMap linkerd-identity-trust-roots is missing or has no key ca-bundle.crt in data",
        )),
        (TrustAnchorsPolicy::Verify, Some(_), Some(Err(unusable))) => Err(problem(format!(
            "it cannot be verified: no proxy can use the bundle in ConfigMap linkerd-identity-trust-roots: {unusable}"
        ))),
        (_, _, Some(Ok((bundle, _)))) => {
            Ok(Some(TrustAnchors { pem: bundle.to_owned(), source: ValueSource::TrustRoots }))
        }
        (_, Some((given, _)), _) => Ok(Some(TrustAnchors { pem: given.to_owned(), source: ValueSource::Typed })),
        (_, None, _) => Ok(None),
    }
}

/// Returns why no proxy could use the copy of the bundle in `spec.values`. Without a bundle, the operator writes this
/// copy, with which `linkerd inject --manual` injects Pods.
pub(in crate::linkerd_config) fn problem_of_copy(patch: &Map<String, Value>) -> Option<Problem> {
    const COPY: &str = "identityTrustAnchorsPEM";
    let copy = patch.get(COPY)?.as_str().filter(|copy| !copy.trim().is_empty())?;
    // The rule for private keys reports them at any path.
    let unusable = UnusableTrustBundle::check(copy).err().filter(|it| *it != UnusableTrustBundle::PrivateKey)?;
    Some(Problem { path: Path::from(&[COPY][..]), value: String::new(), reason: unusable.to_string() })
}

/// Returns the certificates of a PEM text, regardless of their order and of the text between them.
fn certificates(pem: &str) -> Result<BTreeSet<Vec<u8>>, UnusableTrustBundle> {
    UnusableTrustBundle::check(pem)?;
    Ok(readable_certificates(pem).map(|certificate| certificate.to_vec()).collect())
}

/// Returns the SHA-256 of each certificate in a bundle that can be read, in the order of the bundle.
fn fingerprints(bundle: &str) -> Vec<String> {
    const MAX_FINGERPRINTS: usize = 50;
    readable_certificates(bundle).take(MAX_FINGERPRINTS).map(|certificate| sha256(&certificate)).collect()
}

/// Returns the status of the trust anchors. The progress of the rollout decides whether the bundle replaces all anchors
/// of live Pods; until then the last decision about the same bundle stays.
pub(in crate::linkerd_config) fn status(
    source: Option<ValueSource>,
    bundle: Option<&str>,
    hash: Option<&str>,
    before: &LinkerdConfigStatus,
) -> TrustAnchorsStatus {
    let source = Some(source_name(source).to_owned());
    let known = before.trust_anchors.clone().unwrap_or_default();
    if !known.fingerprints.is_empty() && before.trust_roots_sha256.as_deref() == hash {
        return TrustAnchorsStatus { source, ..known };
    }
    TrustAnchorsStatus { source, replaced: None, fingerprints: fingerprints(bundle.unwrap_or_default()) }
}

/// Returns the name of the source of the trust anchors.
fn source_name(anchors: Option<ValueSource>) -> &'static str {
    match anchors {
        Some(ValueSource::TrustRoots) => TRUST_ROOTS,
        Some(ValueSource::Typed) => "spec.global.identityContext.trustAnchorsPEM",
        Some(ValueSource::Base | ValueSource::Values) | None => "identityTrustAnchorsPEM",
    }
}

fn problem(reason: impl Into<String>) -> Problem {
    const FIELD: [&str; 4] = ["spec", "global", "identityContext", "trustAnchorsPEM"];
    Problem { path: Path::from(&FIELD[..]), value: String::new(), reason: reason.into() }
}
