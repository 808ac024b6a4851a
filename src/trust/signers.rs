//! Whether roots may leave the bundle while the identity service signs as it does at present. Pure.
//!
//! In: what was seen of a mesh whose certificates need only declared roots, and the chain that each replica of its identity
//! service sends. Out: the first replica whose next certificates would need another root. Always holds: a replica is judged
//! as if all proxies had its certificates, so one replica with the previous issuer is enough to keep a root.

use jiff::Timestamp;

use super::{
    SeenTrust, TrustReport,
    problems::TrustVerdict,
    seen::{LeafSettings, SeenLeaves},
    words::named_by,
};
use crate::{
    api::linkerd_trust::TrustPhase,
    text::sha256,
    x509::{anchors::AnchorBundle, certificate::ChainCertificate, chain::UnsignedLeaf},
};

/// What one replica of the identity service signs with.
#[derive(Debug)]
pub(crate) struct Signer {
    /// The name of its Pod.
    pub(crate) pod: String,
    /// The certificates that are sent after a leaf.
    pub(crate) chain: Vec<ChainCertificate>,
}

/// Verifies that new certificates of each replica need no root that is not declared, and that all proxies accept them.
///
/// # Errors
/// Names the first replica of which this is not true, and the reason.
pub(crate) fn check_signers(seen: &mut SeenTrust, signers: &[Signer]) -> Result<(), String> {
    check_each(seen, signers, &[TrustPhase::Retiring])
        .map_err(|why| format!("{why}. If the Secret linkerd-identity-issuer has another issuer, restart this Pod"))
}

/// Verifies that the mesh has what it needs with this bundle, also when the present certificates of proxies have ended.
///
/// # Errors
/// The reason why not.
pub(crate) fn check_removal(seen: &mut SeenTrust, bundle: &str, signers: &[Signer]) -> Result<(), String> {
    const REMOVED: [TrustPhase; 2] = [TrustPhase::Complete, TrustPhase::Steady];
    if let Ok(seen) = &mut seen.bundle {
        bundle.clone_into(&mut seen.pem);
    }
    let observed = TrustReport::new(seen);
    problem_of(&observed, &REMOVED).map_or(Ok(()), |why| Err(format!("after the removal, {why}")))?;
    check_each(seen, signers, &REMOVED)?;
    // A certificate of the chain may end soon, and the others may not reach a declared root.
    seen.now = seen.now.checked_add(seen.settings.lifetime).unwrap_or(seen.now);
    check_each(seen, signers, &REMOVED).map_err(|why| format!("when the present certificates have ended, {why}"))
}

/// Verifies that proxies with this bundle accept new certificates of each replica, whatever other proxies do.
///
/// # Errors
/// As for [`check_signers`].
pub(crate) fn check_cut(
    bundle: &str,
    settings: &LeafSettings,
    namespace: &str,
    signers: &[Signer],
    now: Timestamp,
) -> Result<(), String> {
    let bundle = AnchorBundle::parse(bundle.as_bytes())?;
    let names = settings.tested_names(namespace);
    let is_accepted = |name: &String, signer: &Signer| {
        UnsignedLeaf::new(&signer.chain, name, now).is_some_and(|leaf| leaf.reached(bundle.roots()).is_ok())
    };
    match signers.iter().find(|signer| !names.iter().all(|name| is_accepted(name, signer))) {
        None => Ok(()),
        Some(Signer { pod, chain }) => {
            let own = chain.first().map(|own| named_by(&own.name(), &sha256(&own.der)));
            let own = own.unwrap_or_else(|| "an unknown issuer".to_owned());
            Err(format!("Pod {pod} of the identity service signs with {own}"))
        }
    }
}

fn check_each(seen: &mut SeenTrust, signers: &[Signer], phases: &[TrustPhase]) -> Result<(), String> {
    for (at, Signer { pod, chain }) in signers.iter().enumerate() {
        // Each report verifies many signatures, and all replicas have one issuer for most of the time.
        if signers.iter().take(at).any(|before| before.chain == *chain) {
            continue;
        }
        let mut leaves = SeenLeaves::default();
        leaves.add(chain, 1, seen.now);
        let observed = seen.leaves.replace(leaves);
        let report = TrustReport::new(seen);
        seen.leaves = observed;
        let Some(why) = problem_of(&report, phases) else { continue };
        let name = report.issuer.name.as_deref().unwrap_or("an unknown issuer");
        let digits = report.issuer.sha256.as_deref().and_then(|digits| digits.get(..8)).unwrap_or_default();
        return Err(format!("Pod {pod} of the identity service signs with {name} ({digits}): {why}"));
    }
    Ok(())
}

/// Returns the first thing that is broken, or that the report is in another phase than these.
fn problem_of(report: &TrustReport, phases: &[TrustPhase]) -> Option<String> {
    let broken = report.problems.first().filter(|problem| problem.verdict == TrustVerdict::Broken);
    let other = || "certificates need a root that is not declared".to_owned();
    broken.map(|problem| problem.message.clone()).or_else(|| (!phases.contains(&report.progress.phase)).then(other))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        trust::testing::{Mesh, Pki, declaring, presenting},
        x509::testing::{DAY, TestCa, der, valid},
    };

    fn signer(pod: &str, chain: &[&TestCa]) -> Signer {
        let chain = chain.iter().map(|ca| ChainCertificate::parse(&der(&ca.pem)).unwrap()).collect();
        Signer { pod: pod.to_owned(), chain }
    }

    /// A mesh that waits for the removal of the old root. Its proxies trust only that one.
    fn retiring(pki: &Pki) -> SeenTrust {
        let mesh = Mesh::new(&[&pki.new, &pki.old], &[]).pods("web", 3, &[&pki.old]);
        declaring(presenting(mesh, &[(&[&pki.new_issuer, &pki.bridge], 3)], 0), &[&pki.new]).0
    }

    #[test]
    fn one_replica_with_the_previous_issuer_keeps_the_root() {
        let pki = Pki::new();
        let bridged = || signer("identity-1", &[&pki.new_issuer, &pki.bridge]);
        let mut seen = retiring(&pki);
        assert_eq!(check_signers(&mut seen, &[bridged(), bridged()]), Ok(()));
        let why = check_signers(&mut seen, &[bridged(), signer("identity-2", &[&pki.old_issuer])]).unwrap_err();
        assert!(why.starts_with("Pod identity-2 of the identity service signs with old issuer ("), "{why}");
        assert!(why.contains("certificates need a root that is not declared"), "{why}");
        assert_eq!(TrustReport::new(&seen).progress.phase, TrustPhase::Retiring, "what was observed is kept");
    }

    #[test]
    fn while_connections_are_cut_only_new_pods_must_accept_what_each_replica_signs() {
        let pki = Pki::new();
        let seen = retiring(&pki);
        let check = |signers: &[Signer]| check_cut(&pki.new.pem, &seen.settings, &seen.namespace, signers, seen.now);
        let new = || signer("identity-1", &[&pki.new_issuer]);
        assert_eq!(check(&[new()]), Ok(()), "no running proxy accepts it");
        for chain in [&[&pki.old_issuer][..], &[]] {
            let why = check(&[new(), signer("identity-2", chain)]).unwrap_err();
            assert!(why.starts_with("Pod identity-2 of the identity service signs with "), "{why}");
        }
    }

    #[test]
    fn a_replica_whose_certificates_proxies_would_refuse_keeps_the_root() {
        let (pki, unknown) = (Pki::new(), TestCa::root("unknown"));
        for chain in [&[&pki.new_issuer][..], &[&pki.bridge], &[&unknown], &[]] {
            let why = check_signers(&mut retiring(&pki), &[signer("identity-1", chain)]).unwrap_err();
            assert!(why.starts_with("Pod identity-1 of the identity service signs with "), "{why}");
        }
    }

    #[test]
    fn a_removal_that_leaves_only_an_expired_certificate_of_the_root_is_refused() {
        let pki = Pki::new();
        let expired = pki.new.signs_again(&pki.new, |params| valid(params, -2 * DAY, -DAY));
        let bridged = [signer("identity-1", &[&pki.new_issuer, &pki.bridge])];
        let mut seen = retiring(&pki);
        assert_eq!(check_removal(&mut seen, &pki.new.pem, &bridged), Ok(()));
        let why = check_removal(&mut retiring(&pki), &expired.pem, &bridged).unwrap_err();
        assert!(why.starts_with("after the removal, the root new (") && why.contains("has expired"), "{why}");
        let why = check_removal(&mut retiring(&pki), &pki.old.pem, &bridged).unwrap_err();
        assert!(why.starts_with("after the removal, "), "the declared one is missing: {why}");
    }

    #[test]
    fn a_removal_is_refused_if_the_way_to_the_declared_root_ends_within_the_lifetime_of_a_certificate() {
        let pki = Pki::new();
        let signer_of = |hours: i64| {
            let issuer = pki.new.signs("issuer", |params| valid(params, -DAY, hours * 3600));
            [signer("identity-1", &[&issuer, &pki.bridge])]
        };
        assert_eq!(check_removal(&mut retiring(&pki), &pki.new.pem, &signer_of(25)), Ok(()));
        let why = check_removal(&mut retiring(&pki), &pki.new.pem, &signer_of(23)).unwrap_err();
        assert!(why.starts_with("when the present certificates have ended, Pod identity-1 "), "{why}");
    }
}
