//! The file of an issuer: its certificate, and the ones that are sent with each leaf. Pure.
//!
//! In: PEM. Out: the certificates in the order in which proxies get them, and the trust anchors that leaves of the issuer
//! reach. Always holds: proxies and this room use the same rules, those of webpki, and no key is needed.

use jiff::{SignedDuration, Timestamp};
use rustls::pki_types::{
    AlgorithmIdentifier, CertificateDer, InvalidSignature, SignatureVerificationAlgorithm, alg_id,
};

use super::{
    anchors::RootCertificate,
    certificate::ChainCertificate,
    leaf::{LeafParts, LeafTemplate},
    pem,
    verify::{ALGORITHMS, TestedLeaf},
};

/// The maximum number of certificates in the file of an issuer.
const LONGEST_FILE: usize = 16;
/// The maximum number of certificates that a proxy sends after its own. A proxy that sends more is not observed.
pub(crate) const LONGEST_SENT: usize = 6;
/// How long the leaf that tests a chain is valid, before and after the time of the test.
const TEST_VALIDITY: SignedDuration = SignedDuration::from_secs(1);
/// The identifier of no real algorithm: it is from the arc that is reserved for examples.
const NO_ALGORITHM: &[u8] = &[0x30, 0x05, 0x06, 0x03, 0x88, 0x37, 0x01];

/// Returns the first certificate of a file, which is the issuer's, and the others.
pub(crate) fn read(pem: &[u8]) -> Result<(ChainCertificate, Vec<ChainCertificate>), String> {
    let blocks = pem::blocks(pem);
    if blocks.len() > LONGEST_FILE {
        return Err(format!("has more than {LONGEST_FILE} certificates"));
    }
    let certificates = (1..).zip(blocks).map(|(number, block)| match block {
        Ok(block) if block.label == "CERTIFICATE" => ChainCertificate::parse(&block.der)
            .ok_or_else(|| format!("has a certificate that cannot be read, in block {number}: replace it")),
        Ok(block) => Err(format!("has a block {}: write only certificates into it", block.label)),
        Err(why) => Err(format!("is not valid PEM: {why}")),
    });
    let mut certificates = certificates.collect::<Result<Vec<_>, _>>()?.into_iter();
    let own = certificates.next().ok_or("has no certificate: write the issuer's, and then its chain, in PEM")?;
    Ok((own, certificates.collect()))
}

/// Returns the certificates that are sent, in the order of the file: the issuer's, and each that lies between the issuer
/// and a root.
///
/// A proxy may have other trust anchors than the ones in the bundle, because it reads them when it starts. So the path to
/// a root that is not in the bundle any more is sent, too. Left out are other certificates, expired ones, and roots.
pub(crate) fn sent(own: ChainCertificate, mut others: Vec<ChainCertificate>, now: Timestamp) -> Vec<ChainCertificate> {
    others.retain(|certificate| certificate.is_valid(now) && !certificate.is_signed_by(certificate));
    let mut sent = vec![false; others.len()];
    loop {
        let is_above = |certificate: &ChainCertificate| {
            let below = others.iter().zip(&sent).filter_map(|(other, is_sent)| is_sent.then_some(other));
            let mut below = below.chain([&own]);
            certificate.is_twin_of(&own) || below.any(|below| below.is_signed_by(certificate))
        };
        let found = others.iter().zip(&sent).position(|(other, is_sent)| !is_sent && is_above(other));
        match found.and_then(|at| sent.get_mut(at)) {
            Some(is_sent) => *is_sent = true,
            None => break,
        }
    }
    let others = others.into_iter().zip(sent).filter_map(|(other, is_sent)| is_sent.then_some(other));
    [own].into_iter().chain(others).collect()
}

/// A leaf without a signature, by which it is found out what the leaves of an issuer reach. webpki asks [`Unsigned`] about
/// it, and checks everything above it itself.
pub(crate) struct UnsignedLeaf<'a> {
    signed: Vec<u8>,
    /// The SubjectPublicKeyInfo of the issuer.
    signer: &'a [u8],
    der: Vec<u8>,
    sent: Vec<CertificateDer<'a>>,
    name: &'a str,
    now: Timestamp,
}

// === impl UnsignedLeaf ===

impl<'a> UnsignedLeaf<'a> {
    /// `chain` are the certificates that are sent, the issuer's first. `None` if there is none.
    pub(crate) fn new(chain: &'a [ChainCertificate], name: &'a str, now: Timestamp) -> Option<Self> {
        let own = chain.first()?;
        let template = LeafTemplate::new(NO_ALGORITHM, &own.subject, own.key_identifier.as_deref());
        let signed = template.to_be_signed(&LeafParts {
            serial: [1; 16],
            not_before: now.checked_sub(TEST_VALIDITY).unwrap_or(now),
            not_after: now.checked_add(TEST_VALIDITY).unwrap_or(now),
            name,
            has_common_name: false,
            key_info: &own.key_info,
        });
        let der = template.certificate(&signed, &[]);
        let sent = chain.iter().map(|certificate| CertificateDer::from(certificate.der.as_slice())).collect();
        Some(Self { signed, signer: &own.key_info, der, sent, name, now })
    }

    /// Whether proxies that trust only this root accept it, as clients and as servers.
    pub(crate) fn reaches(&self, root: &RootCertificate) -> bool {
        self.with(|leaf, algorithms| leaf.reaches(root, algorithms))
    }

    /// Returns the anchors that it reaches.
    ///
    /// # Errors
    /// When no proxy would accept it, with all of the anchors.
    pub(crate) fn reached<'r>(
        &self,
        anchors: &'r [RootCertificate],
    ) -> Result<Vec<&'r RootCertificate>, webpki::Error> {
        self.with(|leaf, algorithms| leaf.reached(anchors, algorithms))
    }

    fn with<T>(&self, verify: impl FnOnce(&TestedLeaf<'_>, &[&dyn SignatureVerificationAlgorithm]) -> T) -> T {
        let keys =
            [alg_id::ECDSA_P256, alg_id::ECDSA_P384, alg_id::ECDSA_P521, alg_id::ED25519, alg_id::RSA_ENCRYPTION];
        let unsigned = keys.map(|key| Unsigned { key, signer: self.signer, leaf: &self.signed });
        let unsigned = unsigned.iter().map(|algorithm| algorithm as &dyn SignatureVerificationAlgorithm);
        let algorithms: Vec<_> = ALGORITHMS.iter().copied().chain(unsigned).collect();
        verify(&TestedLeaf { der: &self.der, chain: &self.sent, name: self.name, now: self.now }, &algorithms)
    }
}

/// Takes one leaf as signed, and nothing else, by an issuer with a key of this kind.
#[derive(Debug)]
struct Unsigned<'a> {
    key: AlgorithmIdentifier,
    signer: &'a [u8],
    leaf: &'a [u8],
}

// === impl Unsigned ===

impl SignatureVerificationAlgorithm for Unsigned<'_> {
    /// Many roots have the same name, and only the one with the key of the issuer signs its leaves. A SubjectPublicKeyInfo
    /// ends with the key.
    fn verify_signature(&self, key: &[u8], message: &[u8], _signature: &[u8]) -> Result<(), InvalidSignature> {
        if message == self.leaf && self.signer.ends_with(key) { Ok(()) } else { Err(InvalidSignature) }
    }

    fn public_key_alg_id(&self) -> AlgorithmIdentifier {
        self.key
    }

    fn signature_alg_id(&self) -> AlgorithmIdentifier {
        // Without the tag and the length of its sequence.
        const { AlgorithmIdentifier::from_slice(NO_ALGORITHM.split_at(2).1) }
    }
}

#[cfg(test)]
mod tests {
    use rcgen::{BasicConstraints, IsCa, KeyPair, PKCS_ECDSA_P384_SHA384};

    use super::*;
    use crate::{
        identity::testing::{domain, load_of},
        x509::{
            anchors::AnchorBundle,
            testing::{DAY, TestCa, now, pem_of, valid},
        },
    };

    /// The oracle is the identity service, which signs a leaf with the key.
    #[test]
    fn the_roots_of_an_issuer_are_found_without_its_key() {
        let (old, new, other) = (TestCa::root("old"), TestCa::root("new"), TestCa::root("other"));
        let bridge = old.signs_again(&new, |_| {});
        let expired = old.signs_again(&new, |params| valid(params, -2 * DAY, -DAY));
        let p384 = KeyPair::generate_for(&PKCS_ECDSA_P384_SHA384).unwrap();
        let issuers = [new.signs("issuer", |_| {}), new.signs_key("issuer", p384, |_| {})];
        let constrained = new.signs("constrained", |params| params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0)));
        let below = constrained.signs("below", |_| {});
        // As after `linkerd install`, the issuer is a root, and the next root has the same name.
        let namesake = TestCa::root("old");
        let roots = [&old, &new, &other, &namesake];
        let mut files: Vec<Vec<&TestCa>> = vec![vec![&old], vec![&new], vec![&below, &constrained], vec![&namesake]];
        for issuer in &issuers {
            files.extend([vec![issuer], vec![issuer, &bridge], vec![issuer, &expired], vec![issuer, &new, &bridge]]);
        }
        let anchors = AnchorBundle::parse(pem_of(&roots).as_bytes()).unwrap();
        let name = domain().identity_service();
        for (at, file) in files.iter().enumerate() {
            let with_key = load_of(file, &roots).ok().map(|issuer| issuer.roots().to_vec());
            let (own, others) = read(pem_of(file).as_bytes()).unwrap();
            let sent = sent(own, others, now());
            let reached = UnsignedLeaf::new(&sent, &name, now()).and_then(|leaf| leaf.reached(anchors.roots()).ok());
            let without = reached.map(|roots| roots.into_iter().map(|root| root.sha256).collect::<Vec<_>>());
            assert_eq!(without, with_key, "file {at}");
            assert_eq!(with_key.is_none(), at == 2, "file {at}");
        }
    }
}
