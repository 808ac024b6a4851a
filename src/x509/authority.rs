//! New roots and issuers, bridges between roots, and certificates of clients. Pure, but for random numbers and the new keys.
//!
//! In: names, ends, and the authority that signs with its key. Out: certificates in DER. Always holds: a bridge has
//! exactly the name and the key of the new root, byte for byte, because verifiers compare bytes.
//!
//! A bridge is the new root, signed once more by the old one. A proxy that knows only the old root accepts certificates
//! under the new one if the bridge is sent with them.

use jiff::{SignedDuration, Timestamp};
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, PKCS_ECDSA_P256_SHA256, PKCS_ECDSA_P384_SHA384, SanType, SerialNumber,
};
use zeroize::Zeroizing;

use super::{
    anchors::RootCertificate,
    certificate::{ChainCertificate, sha256},
    chain::UnsignedLeaf,
    der::{self, DerWriter},
    ecdsa::{Curve, SigningKey, SubjectKey, UnusableKey},
    leaf::{VERSION, certificate, encoded, positive},
    pem,
    verify::sentence,
};
use crate::text::hex;

/// New certificates are valid a little before they are made, for clocks that differ.
const CLOCK_SKEW: SignedDuration = SignedDuration::from_mins(5);
/// The number of digits of the key in the name of a root.
const DIGITS: usize = 8;
/// The extension basicConstraints: critical, a CA.
const AUTHORITY: &[u8] = &[0x30, 0x0f, 6, 3, 0x55, 0x1d, 0x13, 1, 1, 0xff, 4, 5, 0x30, 3, 1, 1, 0xff];
/// The extension keyUsage: critical, keyCertSign and cRLSign.
const KEY_USAGE: &[u8] = &[0x30, 0x0e, 6, 3, 0x55, 0x1d, 0x0f, 1, 1, 0xff, 4, 4, 3, 2, 0x01, 0x06];
// The object identifiers, without tag and length.
const SUBJECT_KEY_IDENTIFIER: &[u8] = &[0x55, 0x1d, 0x0e];
const AUTHORITY_KEY_IDENTIFIER: &[u8] = &[0x55, 0x1d, 0x23];

/// The certificate of a client and its key, in DER.
pub(crate) struct ClientLeaf {
    pub(crate) certificate: Vec<u8>,
    /// In PKCS #8.
    pub(crate) key: Zeroizing<Vec<u8>>,
}

/// A certificate and its key, in PEM.
pub(crate) struct NewAuthority {
    pub(crate) certificate: String,
    /// In PKCS #8.
    pub(crate) key: Zeroizing<String>,
    params: CertificateParams,
    pair: KeyPair,
}

/// The reason why nothing is signed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum NotSigned {
    #[error("the key file of the certificate that signs {0}")]
    Key(String),
    #[error("the key is not the key of the certificate that signs")]
    OtherKey,
    #[error(
        "the certificate of the {0} is not a root certificate: a root signs itself, and is a certificate authority. For an \
         intermediate certificate, give the root that signed it"
    )]
    NoRoot(&'static str),
    #[error(
        "the root allows no certificate authority below it (pathlen:0), so it can sign neither a bridge nor an issuer"
    )]
    PathLength,
    #[error("proxies that know only the old root would refuse this bridge: {0}")]
    Refused(String),
    #[error("both roots have the same name and the same key, so no bridge is needed")]
    SameRoot,
    #[error("the name of the root has parts that cannot be written again: sign the issuer with openssl")]
    Name,
    #[error("the system has no random numbers")]
    Signing,
}

/// The private key of an authority that may sign.
struct AuthorityKey {
    key: SigningKey,
    /// The public key, an uncompressed point.
    point: Vec<u8>,
    algorithm: &'static rcgen::SignatureAlgorithm,
}

// === impl AuthorityKey ===

impl AuthorityKey {
    /// `name` is the root in messages.
    fn of_root(root: &ChainCertificate, key: &[u8], name: &'static str) -> Result<Self, NotSigned> {
        if !is_root(root) {
            return Err(NotSigned::NoRoot(name));
        }
        if root.path_length() == Some(0) {
            return Err(NotSigned::PathLength);
        }
        Self::of(root, key)
    }

    fn of(authority: &ChainCertificate, key: &[u8]) -> Result<Self, NotSigned> {
        let other = || NotSigned::Key("is of a kind that is not supported: use openssl".to_owned());
        let public = SubjectKey::parse(&authority.key_info).map_err(|_| other())?;
        let key = SigningKey::from_pem(key, &public).map_err(|problem| match problem {
            UnusableKey::File(sentence) => NotSigned::Key(sentence),
            UnusableKey::Mismatch => NotSigned::OtherKey,
        })?;
        let SubjectKey::Ecdsa { curve, point } = public else { return Err(other()) };
        let algorithm = match curve {
            Curve::P256 => &PKCS_ECDSA_P256_SHA256,
            Curve::P384 => &PKCS_ECDSA_P384_SHA384,
        };
        Ok(Self { key, point, algorithm })
    }
}

impl rcgen::PublicKeyData for AuthorityKey {
    fn der_bytes(&self) -> &[u8] {
        &self.point
    }

    fn algorithm(&self) -> &'static rcgen::SignatureAlgorithm {
        self.algorithm
    }
}

impl rcgen::SigningKey for AuthorityKey {
    fn sign(&self, message: &[u8]) -> Result<Vec<u8>, rcgen::Error> {
        self.key.sign(message).map(|signature| signature.as_ref().to_vec()).ok_or(rcgen::Error::RemoteKeyError)
    }
}

/// Whether a certificate is one of a root: it signs itself, and may sign others.
fn is_root(certificate: &ChainCertificate) -> bool {
    certificate.is_authority() && certificate.is_signed_by(certificate)
}

// === impl NewAuthority ===

impl NewAuthority {
    /// Makes a root. Its name has the year and the first digits of its key, because roots with one name cannot be told
    /// apart in the errors of proxies.
    ///
    /// # Errors
    /// When the system has no random numbers.
    pub(crate) fn root(trust_domain: &str, now: Timestamp, lifetime: SignedDuration) -> Result<Self, rcgen::Error> {
        let pair = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
        let digits = hex(sha256(rcgen::PublicKeyData::der_bytes(&pair)));
        let name = format!(
            "root.linkerd.{trust_domain} {} {}",
            now.to_string().get(..4).unwrap_or_default(),
            digits.get(..DIGITS).unwrap_or_default()
        );
        let params = params(&name, BasicConstraints::Unconstrained, now, lifetime);
        let certificate = params.self_signed(&pair)?.pem();
        Ok(Self { certificate, key: Zeroizing::new(pair.serialize_pem()), params, pair })
    }

    /// Makes an issuer under this root.
    ///
    /// # Errors
    /// When the system has no random numbers.
    pub(crate) fn issuer(
        &self,
        trust_domain: &str,
        now: Timestamp,
        lifetime: SignedDuration,
    ) -> Result<Self, rcgen::Error> {
        Self::issuer_by(&Issuer::from_params(&self.params, &self.pair), trust_domain, now, lifetime)
    }

    fn issuer_by(
        signer: &Issuer<'_, impl rcgen::SigningKey>,
        trust_domain: &str,
        now: Timestamp,
        lifetime: SignedDuration,
    ) -> Result<Self, rcgen::Error> {
        let pair = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
        let params =
            params(&format!("identity.linkerd.{trust_domain}"), BasicConstraints::Constrained(0), now, lifetime);
        let certificate = params.signed_by(&pair, signer)?.pem();
        Ok(Self { certificate, key: Zeroizing::new(pair.serialize_pem()), params, pair })
    }
}

/// Makes an issuer under a root, whose private key is in a file in PEM.
///
/// # Errors
/// When the key cannot be used, or the root cannot sign.
pub(crate) fn issuer_of(
    root: &ChainCertificate,
    key: &[u8],
    trust_domain: &str,
    now: Timestamp,
    lifetime: SignedDuration,
) -> Result<NewAuthority, NotSigned> {
    let signer = AuthorityKey::of_root(root, key, "root")?;
    let signer =
        Issuer::from_ca_cert_der(&root.der.as_slice().into(), signer).map_err(|_| NotSigned::NoRoot("root"))?;
    let issuer = NewAuthority::issuer_by(&signer, trust_domain, now, lifetime).map_err(|_| NotSigned::Signing)?;
    let blocks = pem::blocks(issuer.certificate.as_bytes());
    let made = blocks.first().and_then(|block| ChainCertificate::parse(&block.as_ref().ok()?.der));
    // The library writes the name of the root anew, and verifiers compare bytes.
    made.filter(|made| made.is_signed_by(root)).ok_or(NotSigned::Name)?;
    Ok(issuer)
}

/// Signs a certificate with which a client is this identity. The private key of the issuer is in a file in PEM.
///
/// # Errors
/// When the key cannot be used, or the issuer cannot sign.
pub(crate) fn client_leaf(
    issuer: &ChainCertificate,
    key: &[u8],
    identity: &str,
    now: Timestamp,
    lifetime: SignedDuration,
) -> Result<ClientLeaf, NotSigned> {
    let signer = AuthorityKey::of(issuer, key)?;
    let signer = Issuer::from_ca_cert_der(&issuer.der.as_slice().into(), signer).map_err(|_| NotSigned::Name)?;
    let pair = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).map_err(|_| NotSigned::Signing)?;
    let mut params = params(identity, BasicConstraints::Unconstrained, now, lifetime);
    params.is_ca = IsCa::NoCa;
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
    params.subject_alt_names = vec![SanType::DnsName(identity.try_into().map_err(|_| NotSigned::Name)?)];
    let certificate = params.signed_by(&pair, &signer).map_err(|_| NotSigned::Signing)?.der().to_vec();
    let made = ChainCertificate::parse(&certificate);
    made.filter(|made| made.is_signed_by(issuer)).ok_or(NotSigned::Name)?;
    Ok(ClientLeaf { certificate, key: Zeroizing::new(pair.serialize_der()) })
}

fn params(name: &str, constraints: BasicConstraints, now: Timestamp, lifetime: SignedDuration) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, name);
    params.is_ca = IsCa::Ca(constraints);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    params.use_authority_key_identifier_extension = true;
    params.serial_number = Some(SerialNumber::from_slice(&positive(rand::random())));
    let epoch = rcgen::date_time_ymd(1970, 1, 1);
    let at = |time: Timestamp| epoch + std::time::Duration::from_secs(time.as_second().try_into().unwrap_or_default());
    let (begin, end) = validity(now, lifetime);
    (params.not_before, params.not_after) = (at(begin), at(end));
    params
}

/// Returns a bridge: `new` signed by `old`, whose private key is in a file in PEM.
///
/// # Errors
/// When the key cannot be used, or the old root cannot sign.
pub(crate) fn bridge(
    new: &ChainCertificate,
    old: &ChainCertificate,
    old_key: &[u8],
    now: Timestamp,
    lifetime: SignedDuration,
) -> Result<ChainCertificate, NotSigned> {
    if new.is_twin_of(old) {
        return Err(NotSigned::SameRoot);
    }
    if !is_root(new) {
        return Err(NotSigned::NoRoot("new root"));
    }
    let AuthorityKey { key, .. } = AuthorityKey::of_root(old, old_key, "old root")?;
    let signed = to_be_signed(new, old, key.algorithm(), validity(now, lifetime));
    let signature = key.sign(&signed).ok_or(NotSigned::Signing)?;
    let der = certificate(key.algorithm(), &signed, signature.as_ref());
    let bridge = ChainCertificate::parse(&der).ok_or(NotSigned::Signing)?;
    verify(&bridge, old, now)?;
    Ok(bridge)
}

/// Verifies a leaf over the bridge, as a proxy does that knows only the old root.
fn verify(bridge: &ChainCertificate, old: &ChainCertificate, now: Timestamp) -> Result<(), NotSigned> {
    const ANY: &str = "any.any.serviceaccount.identity.linkerd.cluster.local";
    let refused = |error: &webpki::Error| NotSigned::Refused(sentence(error));
    let old = RootCertificate::parse(&old.der).ok_or(NotSigned::NoRoot("old root"))?;
    let chain = [bridge.clone()];
    let leaf = UnsignedLeaf::new(&chain, ANY, now).ok_or(NotSigned::Signing)?;
    leaf.reached(std::slice::from_ref(&old)).map(|_| ()).map_err(|error| refused(&error))
}

fn to_be_signed(
    new: &ChainCertificate,
    old: &ChainCertificate,
    algorithm: &[u8],
    (begin, end): (Timestamp, Timestamp),
) -> Vec<u8> {
    let mut writer = DerWriter::with_capacity(600);
    for (identifier, oid) in
        [(&old.key_identifier, AUTHORITY_KEY_IDENTIFIER), (&new.key_identifier, SUBJECT_KEY_IDENTIFIER)]
    {
        let Some(identifier) = identifier else { continue };
        let position = writer.position();
        if oid == AUTHORITY_KEY_IDENTIFIER {
            writer.element(der::context(0), identifier);
            writer.wrap(der::SEQUENCE, position);
        } else {
            writer.element(der::OCTET_STRING, identifier);
        }
        writer.wrap(der::OCTET_STRING, position);
        writer.element(der::OBJECT_IDENTIFIER, oid);
        writer.wrap(der::SEQUENCE, position);
    }
    writer.prepend(KEY_USAGE);
    writer.prepend(AUTHORITY);
    writer.wrap(der::SEQUENCE, 0);
    writer.wrap(der::context_constructed(3), 0);
    writer.prepend(&new.key_info);
    writer.prepend(&new.subject);
    let position = writer.position();
    for time in [end, begin] {
        let (tag, text) = encoded(time);
        writer.element(tag, text.as_bytes());
    }
    writer.wrap(der::SEQUENCE, position);
    writer.prepend(&old.subject);
    writer.prepend(algorithm);
    writer.element(der::INTEGER, &positive(rand::random()));
    writer.prepend(VERSION);
    writer.wrap(der::SEQUENCE, 0);
    writer.finish()
}

fn validity(now: Timestamp, lifetime: SignedDuration) -> (Timestamp, Timestamp) {
    let end = now.checked_add(lifetime).unwrap_or(Timestamp::MAX);
    (now.checked_sub(CLOCK_SKEW).unwrap_or(now), end)
}

#[cfg(test)]
mod tests {
    use super::{super::testing::TestCa, *};
    use crate::x509::{
        anchors::AnchorBundle,
        chain,
        testing::{DAY, der, now},
    };

    const WEEK: SignedDuration = SignedDuration::from_hours(7 * 24);
    const WEB: &str = "web.emojivoto.serviceaccount.identity.linkerd.cluster.local";

    fn parse(pem: &str) -> ChainCertificate {
        ChainCertificate::parse(&der(pem)).unwrap()
    }

    /// Returns the names of the roots that a leaf reaches with this chain.
    fn reached(chain: &[&ChainCertificate], roots: &[&str], seconds: i64) -> Vec<String> {
        let roots = AnchorBundle::parse(roots.concat().as_bytes()).unwrap();
        let chain: Vec<_> = chain.iter().map(|certificate| (*certificate).clone()).collect();
        let time = now() + SignedDuration::from_secs(seconds);
        let leaf = chain::UnsignedLeaf::new(&chain, WEB, time).unwrap();
        leaf.reached(roots.roots()).unwrap_or_default().into_iter().map(|root| root.name.clone()).collect()
    }

    #[test]
    fn leaves_of_a_new_issuer_reach_its_root_and_over_the_bridge_the_old_one_while_it_lasts() {
        let old = TestCa::root("old");
        let new = NewAuthority::root("cluster.local", now(), WEEK * 100).unwrap();
        let issuer = parse(&new.issuer("cluster.local", now(), WEEK * 2).unwrap().certificate);
        let (old_root, new_root) = (parse(&old.pem), parse(&new.certificate));
        let bridge = bridge(&new_root, &old_root, old.key.serialize_pem().as_bytes(), now(), WEEK).unwrap();
        assert!(new_root.name().starts_with("root.linkerd.cluster.local 2027 "), "{}", new_root.name());
        assert_eq!(issuer.name(), "identity.linkerd.cluster.local");
        let roots = [&*old.pem, &new.certificate];
        let both = ["old".to_owned(), new_root.name()];
        assert_eq!(reached(&[&issuer], &roots, 0), both[1..]);
        assert_eq!(reached(&[&issuer, &bridge], &roots, 0), both);
        assert_eq!(reached(&[&issuer, &bridge], &roots[..1], 0), both[..1]);
        assert_eq!(reached(&[&issuer, &bridge], &roots, 8 * DAY), both[1..], "the bridge has ended");
        assert_eq!(reached(&[&issuer, &bridge], &roots, -3600), Vec::<String>::new(), "nothing is valid yet");
        assert_eq!(reached(&[&issuer, &bridge], &roots, 15 * DAY), Vec::<String>::new(), "the issuer has ended");
        assert!(bridge.is_twin_of(&new_root) && bridge.is_signed_by(&old_root));
    }

    #[test]
    fn the_key_of_a_new_issuer_belongs_to_its_certificate_and_each_root_has_its_own_name() {
        let [one, other] = [(); 2].map(|()| NewAuthority::root("example.org", now(), WEEK).unwrap());
        assert_ne!(parse(&one.certificate).name(), parse(&other.certificate).name());
        let issuer = one.issuer("example.org", now(), WEEK).unwrap();
        let public = SubjectKey::parse(&parse(&issuer.certificate).key_info).unwrap();
        assert!(SigningKey::from_pem(issuer.key.as_bytes(), &public).is_ok());
    }

    #[test]
    fn a_bridge_that_nobody_would_accept_is_not_made() {
        let (old, new) = (TestCa::root("old"), TestCa::root("new"));
        let made = |new: &TestCa, old: &TestCa, key: &str| {
            let made = bridge(&parse(&new.pem), &parse(&old.pem), key.as_bytes(), now(), WEEK);
            made.map(|_| ()).map_err(|why| why.to_string())
        };
        let key = old.key.serialize_pem();
        assert_eq!(made(&new, &old, &key), Ok(()));
        let intermediate = old.signs("intermediate", |_| {});
        let TestCa { key: short_key, mut params, .. } = TestCa::root("short");
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        let short = TestCa { pem: params.self_signed(&short_key).unwrap().pem(), key: short_key, params };
        let no_authority = new.signs("leaf", |params| params.is_ca = IsCa::ExplicitNoCa);
        for (new, old, key, why) in [
            (&new, &old, &*new.key.serialize_pem(), "the key is not the key of the certificate that signs"),
            (&new, &old, "", "the key file of the certificate that signs has no private key"),
            (&new, &old, &new.pem, "the key file of the certificate that signs begins with a block CERTIFICATE"),
            (&old, &old, &key, "both roots have the same name and the same key"),
            (
                &new,
                &no_authority,
                &no_authority.key.serialize_pem(),
                "the certificate of the old root is not a root certificate",
            ),
            (&new, &intermediate, &intermediate.key.serialize_pem(), "give the root that signed it"),
            (&intermediate, &old, &key, "the certificate of the new root is not a root certificate"),
            (&no_authority, &old, &key, "the certificate of the new root is not a root certificate"),
            (&new, &short, &short.key.serialize_pem(), "allows no certificate authority below it"),
        ] {
            let problem = made(new, old, key).unwrap_err();
            assert!(problem.contains(why), "{problem}");
        }
    }

    #[test]
    fn an_issuer_is_signed_with_the_key_of_a_root_that_others_made() {
        let p384 = KeyPair::generate_for(&PKCS_ECDSA_P384_SHA384).unwrap();
        let TestCa { mut params, .. } = TestCa::root("many");
        params.distinguished_name.push(DnType::OrganizationName, "Example");
        params.distinguished_name.push(DnType::CountryName, rcgen::DnValue::PrintableString("DE".try_into().unwrap()));
        let many = TestCa { pem: params.self_signed(&p384).unwrap().pem(), key: p384, params };
        for root in [TestCa::root("old"), many] {
            let signed = |certificate: &str, key: &KeyPair| {
                issuer_of(&parse(certificate), key.serialize_pem().as_bytes(), "cluster.local", now(), WEEK)
            };
            let issuer = signed(&root.pem, &root.key).ok().unwrap();
            let parsed = parse(&issuer.certificate);
            assert_eq!((parsed.name().as_str(), parsed.path_length()), ("identity.linkerd.cluster.local", Some(0)));
            assert_eq!(reached(&[&parsed], &[&root.pem], 0).len(), 1);
            let public = SubjectKey::parse(&parsed.key_info).unwrap();
            assert!(SigningKey::from_pem(issuer.key.as_bytes(), &public).is_ok());
            let other = TestCa::root("other");
            assert_eq!(signed(&root.pem, &other.key).err().map(|why| why.to_string().contains("key")), Some(true));
            let below = root.signs("below", |_| {});
            let problem = signed(&below.pem, &below.key).err().unwrap().to_string();
            assert!(problem.contains("the certificate of the root is not a root certificate"), "{problem}");
        }
    }
}
