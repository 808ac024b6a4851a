//! Whether roots may leave the bundle while the identity service signs as it does at present. Pure.
//!
//! In: what was seen of a mesh whose certificates need only declared roots, and the chain that each replica of its identity
//! service sends. Out: the first replica whose next certificates would need another root. Always holds: a replica is judged
//! as if all proxies had its certificates, so one replica with the previous issuer is enough to keep a root.

use super::{SeenTrust, TrustReport, report::TrustVerdict, seen::SeenLeaves};
use crate::{api::linkerd_trust::TrustPhase, x509::certificate::ChainCertificate};

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
        let broken = report.problems.first().filter(|problem| problem.verdict == TrustVerdict::Broken);
        let why = match (broken, report.progress.phase) {
            (Some(problem), _) => &problem.message,
            (None, TrustPhase::Retiring) => continue,
            (None, _) => &report.next_step.sentence,
        };
        let issuer = report.issuer.name.as_deref().unwrap_or("no known issuer");
        return Err(format!("Pod {pod} of the identity service signs with {issuer}: {why}"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        trust::testing::{Mesh, Pki, declaring, presenting},
        x509::testing::{TestCa, der},
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
        assert!(why.starts_with("Pod identity-2 of the identity service signs with old issuer"), "{why}");
        assert_eq!(TrustReport::new(&seen).progress.phase, TrustPhase::Retiring, "what was observed is kept");
    }

    #[test]
    fn a_replica_whose_certificates_proxies_would_refuse_keeps_the_root() {
        let (pki, unknown) = (Pki::new(), TestCa::root("unknown"));
        for chain in [&[&pki.new_issuer][..], &[&pki.bridge], &[&unknown], &[]] {
            let why = check_signers(&mut retiring(&pki), &[signer("identity-1", chain)]).unwrap_err();
            assert!(why.starts_with("Pod identity-1 of the identity service signs with "), "{why}");
        }
    }
}
