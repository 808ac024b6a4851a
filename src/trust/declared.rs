//! The roots that a LinkerdTrust declares. Pure.

use super::{accepted::AcceptedWorkloads, distrusted::DistrustedRoots, seen::DeclaredRoots, words::named};
use crate::{
    api::{
        LinkerdTrustSpec,
        linkerd_trust::{DistrustConnections, DistrustedAnchors, IssuerOrigin, TrustMode},
    },
    text::and_more,
    values::UnusableTrustBundle,
    x509::{
        anchor_set::readable_certificates,
        anchors::{AnchorBundle, RootCertificate},
        certificate::ChainCertificate,
    },
};

/// The maximum number of declared trust anchors.
const MAX_ANCHORS: usize = 20;
/// The maximum number of warnings in a sentence.
const SHOWN: usize = 10;

/// Returns the declared roots; `None` for those of the bundle.
///
/// # Errors
/// When a part of the text is not a certificate that proxies can use, or a field needs another one, which the API server
/// verifies, too. The error begins with the field.
pub(crate) fn declared_roots(resource: &str, spec: &LinkerdTrustSpec) -> Result<Option<DeclaredRoots>, String> {
    let manages_issuer = spec.issuer.manage == IssuerOrigin::Secret;
    if manages_issuer && (spec.anchors.is_none() || spec.mode != TrustMode::Enforce) {
        return Err(
            "spec.issuer.manage needs spec.anchors.pem, to which the issuer must belong, and spec.mode Enforce"
                .to_owned(),
        );
    }
    let Some(anchors) = &spec.anchors else {
        let fields = [
            ("accept", !spec.accept.is_empty()),
            ("bridge", spec.bridge.is_some()),
            ("distrust", spec.distrust.is_some()),
        ];
        return match fields.iter().find(|(_, is_set)| *is_set) {
            Some((field, _)) => Err(format!("spec.{field} needs the trust anchors of the mesh: set spec.anchors.pem")),
            None => Ok(None),
        };
    };
    let bundle = read_anchors(&anchors.pem).map_err(|why| format!("spec.anchors.pem cannot be used: {why}"))?;
    let bridges = spec.bridge.as_ref().map(|bridge| read_bridges(&bridge.pem, &bundle)).transpose();
    let (bridges, signers) =
        bridges.map_err(|why| format!("spec.bridge.pem cannot be used: {why}"))?.unwrap_or_default();
    let is_enforced = spec.mode == TrustMode::Enforce;
    let distrusted = spec.distrust.as_ref().map(read_distrusted).transpose()?.unwrap_or_default();
    if let Some(root) = bundle.roots().iter().find(|root| distrusted.mean(root)) {
        return Err(format!("spec.anchors.pem has {}, whose key spec.distrust has: declare only others", named(root)));
    }
    if distrusted.is_cut && !(is_enforced && manages_issuer) {
        return Err(
            "spec.distrust.connections Cut needs spec.mode Enforce and spec.issuer.manage Secret, because the operator must \
             change bundle and issuer at the same time"
                .to_owned(),
        );
    }
    let (accepted, resource) = (AcceptedWorkloads::of(&spec.accept), resource.to_owned());
    Ok(Some(DeclaredRoots { resource, bundle, bridges, signers, is_enforced, manages_issuer, accepted, distrusted }))
}

fn read_distrusted(distrusted: &DistrustedAnchors) -> Result<DistrustedRoots, String> {
    let bundle = read_anchors(&distrusted.pem).map_err(|why| format!("spec.distrust.pem cannot be used: {why}"))?;
    Ok(DistrustedRoots::new(bundle, distrusted.connections == DistrustConnections::Cut))
}

fn read_anchors(pem: &str) -> Result<AnchorBundle, String> {
    // No Pod could start with such a text.
    UnusableTrustBundle::check(pem).map_err(|unusable| unusable.to_string())?;
    let bundle = AnchorBundle::parse(pem.as_bytes())?;
    let is_authority = |der: &[u8]| ChainCertificate::parse(der).is_some_and(|certificate| certificate.is_authority());
    let mut certificates = readable_certificates(pem);
    if let Some(at) = certificates.position(|der| !is_authority(&der)) {
        return Err(format!("certificate {} is not that of a certificate authority (CA)", at + 1));
    }
    let count = bundle.roots().len();
    match bundle.warnings() {
        [] if count > MAX_ANCHORS => Err(format!("{count} trust anchors are more than {MAX_ANCHORS}")),
        [] => Ok(bundle),
        warnings => Err(and_more(warnings.iter().take(SHOWN), warnings.len(), "; ")),
    }
}

/// Reads bridges to these roots, and the roots that signed them: without these it would not be known whom a bridge serves, once
/// the old root has left the bundle. Everyone who can create Pods can make roots with any name.
fn read_bridges(pem: &str, anchors: &AnchorBundle) -> Result<(Vec<ChainCertificate>, Vec<RootCertificate>), String> {
    let read = AnchorBundle::parse(pem.as_bytes())?;
    if let Some(warning) = read.warnings().first() {
        return Err(warning.clone());
    }
    if read.roots().len() > MAX_ANCHORS {
        return Err(format!("it has more than {MAX_ANCHORS} certificates"));
    }
    let parsed = |roots: &[RootCertificate]| -> Vec<_> {
        roots.iter().filter_map(|root| Some((ChainCertificate::parse(&root.der)?, root.clone()))).collect()
    };
    let is_bridge = |(certificate, _): &(ChainCertificate, _)| {
        let is_of_declared = || anchors.roots().iter().any(|root| certificate.has_name_and_key_of(&root.anchor));
        !certificate.is_signed_by(certificate) && is_of_declared()
    };
    let (bridges, signers): (Vec<_>, Vec<_>) = parsed(read.roots()).into_iter().partition(is_bridge);
    let declared = parsed(anchors.roots());
    for (bridge, root) in &bridges {
        let is_signed = || signers.iter().chain(&declared).any(|(signer, _)| bridge.is_signed_by(signer));
        let problem = if !bridge.is_authority() || bridge.path_length() == Some(0) {
            "may not sign an issuer"
        } else if !is_signed() {
            "is signed by no root of this text: append the certificate of the root that signed it"
        } else {
            continue;
        };
        return Err(format!("certificate {} {problem}", named(root)));
    }
    let is_useless = |(signer, _): &&(ChainCertificate, _)| !bridges.iter().any(|(it, _)| it.is_signed_by(signer));
    match signers.iter().find(is_useless) {
        Some((_, root)) => Err(format!(
            "{} is no bridge to a declared trust anchor, and has signed none of this text: linkerd-operator trust bridge \
             signs one",
            named(root)
        )),
        None => Ok((
            bridges.into_iter().map(|(bridge, _)| bridge).collect(),
            signers.into_iter().map(|(_, signer)| signer).collect(),
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        api::linkerd_trust::PublicCertificates,
        trust::testing::Pki,
        x509::testing::{TestCa, pem_of},
    };

    fn declared(anchors: Option<&str>, bridge: &str) -> Result<usize, String> {
        let pem = |pem: &str| PublicCertificates { pem: pem.to_owned() };
        let spec =
            LinkerdTrustSpec { anchors: anchors.map(pem), bridge: Some(pem(bridge)), ..LinkerdTrustSpec::default() };
        declared_roots("mesh", &spec).map(|declared| declared.map_or(0, |declared| declared.bridges.len()))
    }

    #[test]
    fn a_bridge_is_a_certificate_of_a_declared_root_that_another_one_has_signed() {
        let pki = Pki::new();
        let of_new = |bridge: &[&TestCa]| declared(Some(&pki.new.pem), &pem_of(bridge));
        assert_eq!(of_new(&[&pki.bridge, &pki.old]), Ok(1));
        let third = TestCa::root("third");
        assert_eq!(of_new(&[&pki.bridge, &third.signs_again(&pki.new, |_| {}), &pki.old, &third]), Ok(2));
        let short = pki.old.signs_again(&pki.new, |params| {
            params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Constrained(0));
        });
        let namesake = TestCa::root("old");
        for (bridge, part) in [
            (vec![&pki.bridge, &pki.new_issuer, &pki.old], "new issuer ("),
            (vec![&pki.new], "is no bridge to a declared trust anchor"),
            (vec![&pki.old], "is no bridge to a declared trust anchor"),
            (vec![&pki.bridge, &pki.old, &third], "third ("),
            (vec![&short, &pki.old], "may not sign an issuer"),
            (vec![&pki.bridge], "append the certificate of the root that signed it"),
            (vec![&pki.bridge, &namesake], "append the certificate of the root that signed it"),
            (vec![], "no certificate"),
        ] {
            let why = of_new(&bridge).unwrap_err();
            assert!(why.starts_with("spec.bridge.pem cannot be used: ") && why.contains(part), "{why}");
        }
        let between = pem_of(&[&pki.new, &pki.old]);
        assert_eq!(declared(Some(&between), &pki.bridge.pem), Ok(1), "a declared root has signed it");
        assert!(declared(Some(&pki.new.pem), "garbage").is_err());
        assert!(declared(None, &pki.bridge.pem).unwrap_err().contains("set spec.anchors.pem"));
        assert!(
            declared(Some("no certificate"), &pki.bridge.pem)
                .unwrap_err()
                .starts_with("spec.anchors.pem cannot be used: ")
        );
    }
}
