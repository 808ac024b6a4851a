//! New roots and issuers, and bridges between roots. Pure, but for random numbers and the new keys.
//!
//! In: names, ends, and for a bridge the old root with its key. Out: certificates in DER. Always holds: a bridge has
//! exactly the name and the key of the new root, byte for byte, because verifiers compare bytes.
//!
//! A bridge is the new root, signed once more by the old one. A proxy that knows only the old root accepts certificates
//! under the new one if the bridge is sent with them.

use jiff::{SignedDuration, Timestamp};
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, IsCa, Issuer, KeyPair, KeyUsagePurpose,
    PKCS_ECDSA_P256_SHA256, SerialNumber,
};
use zeroize::Zeroizing;

use super::{
    anchors::RootCertificate,
    certificate::{ChainCertificate, sha256},
    chain::UnsignedLeaf,
    der::{self, DerWriter},
    ecdsa::{SigningKey, SubjectKey, UnusableKey},
    leaf::encoded,
    verify::sentence,
};
use crate::text::hex;

/// New certificates are valid a little before they are made, for clocks that differ.
const CLOCK_SKEW: SignedDuration = SignedDuration::from_mins(5);
/// The number of digits of the key in the name of a root.
const DIGITS: usize = 8;
/// The version 3, in its explicit tag.
const VERSION: &[u8] = &[0xa0, 0x03, 0x02, 0x01, 0x02];
/// The extension basicConstraints: critical, a CA.
const AUTHORITY: &[u8] = &[0x30, 0x0f, 6, 3, 0x55, 0x1d, 0x13, 1, 1, 0xff, 4, 5, 0x30, 3, 1, 1, 0xff];
/// The extension keyUsage: critical, keyCertSign and cRLSign.
const KEY_USAGE: &[u8] = &[0x30, 0x0e, 6, 3, 0x55, 0x1d, 0x0f, 1, 1, 0xff, 4, 4, 3, 2, 0x01, 0x06];
// The object identifiers, without tag and length.
const SUBJECT_KEY_IDENTIFIER: &[u8] = &[0x55, 0x1d, 0x0e];
const AUTHORITY_KEY_IDENTIFIER: &[u8] = &[0x55, 0x1d, 0x23];

/// A certificate and its key, in PEM.
pub(crate) struct NewAuthority {
    pub(crate) certificate: String,
    /// In PKCS #8.
    pub(crate) key: Zeroizing<String>,
    params: CertificateParams,
    pair: KeyPair,
}

/// The reason why there is no bridge.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum NoBridge {
    #[error("the key file of the old root {0}")]
    Key(String),
    #[error("the key is not the key of the old root")]
    OtherKey,
    #[error(
        "the certificate of the {0} root is none of a root: it must sign itself, and be a certificate authority. For an \
         intermediate certificate, give the root that signed it"
    )]
    NoRoot(&'static str),
    #[error("the old root allows no certificate authority below it (pathlen:0), so no bridge can be signed with it")]
    PathLength,
    #[error("proxies that know only the old root would refuse this bridge: {0}")]
    Refused(String),
    #[error("both roots have the same name and the same key, so no bridge is needed")]
    SameRoot,
    #[error("the system has no random numbers")]
    Signing,
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
        let pair = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
        let params =
            params(&format!("identity.linkerd.{trust_domain}"), BasicConstraints::Constrained(0), now, lifetime);
        let certificate = params.signed_by(&pair, &Issuer::from_params(&self.params, &self.pair))?.pem();
        Ok(Self { certificate, key: Zeroizing::new(pair.serialize_pem()), params, pair })
    }
}

fn params(name: &str, constraints: BasicConstraints, now: Timestamp, lifetime: SignedDuration) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, name);
    params.is_ca = IsCa::Ca(constraints);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    params.use_authority_key_identifier_extension = true;
    params.serial_number = Some(SerialNumber::from_slice(&serial()));
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
) -> Result<ChainCertificate, NoBridge> {
    if new.is_twin_of(old) {
        return Err(NoBridge::SameRoot);
    }
    for (root, name) in [(new, "new"), (old, "old")] {
        if !root.is_authority() || !root.is_signed_by(root) {
            return Err(NoBridge::NoRoot(name));
        }
    }
    if old.path_length() == Some(0) {
        return Err(NoBridge::PathLength);
    }
    let public = SubjectKey::parse(&old.key_info);
    let public = public.map_err(|_| NoBridge::Key("is of a kind that is not supported: use openssl".to_owned()))?;
    let key = SigningKey::from_pem(old_key, &public).map_err(|problem| match problem {
        UnusableKey::File(sentence) => NoBridge::Key(sentence),
        UnusableKey::Mismatch => NoBridge::OtherKey,
    })?;
    let signed = to_be_signed(new, old, key.algorithm(), validity(now, lifetime));
    let signature = key.sign(&signed).ok_or(NoBridge::Signing)?;
    let mut writer = DerWriter::with_capacity(signed.len() + 128);
    writer.prepend(signature.as_ref());
    // No unused bits.
    writer.prepend(&[0]);
    writer.wrap(der::BIT_STRING, 0);
    writer.prepend(key.algorithm());
    writer.prepend(&signed);
    writer.wrap(der::SEQUENCE, 0);
    let bridge = ChainCertificate::parse(&writer.finish()).ok_or(NoBridge::Signing)?;
    verify(&bridge, old, now)?;
    Ok(bridge)
}

/// Verifies a leaf over the bridge, as a proxy does that knows only the old root.
fn verify(bridge: &ChainCertificate, old: &ChainCertificate, now: Timestamp) -> Result<(), NoBridge> {
    const ANY: &str = "any.any.serviceaccount.identity.linkerd.cluster.local";
    let refused = |error: &webpki::Error| NoBridge::Refused(sentence(error));
    let old = RootCertificate::parse(&old.der).ok_or(NoBridge::NoRoot("old"))?;
    let chain = [bridge.clone()];
    let leaf = UnsignedLeaf::new(&chain, ANY, now).ok_or(NoBridge::Signing)?;
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
    writer.element(der::INTEGER, &serial());
    writer.prepend(VERSION);
    writer.wrap(der::SEQUENCE, 0);
    writer.finish()
}

/// Returns a random number that is positive, and has no zeros in front.
fn serial() -> [u8; 16] {
    let mut serial: [u8; 16] = rand::random();
    serial[0] = serial[0] & 0x7f | 0x40;
    serial
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
            (&new, &old, &*new.key.serialize_pem(), "the key is not the key of the old root"),
            (&new, &old, "", "the key file of the old root has no private key"),
            (&new, &old, &new.pem, "the key file of the old root begins with a block CERTIFICATE"),
            (&old, &old, &key, "both roots have the same name and the same key"),
            (
                &new,
                &no_authority,
                &no_authority.key.serialize_pem(),
                "the certificate of the old root is none of a root",
            ),
            (&new, &intermediate, &intermediate.key.serialize_pem(), "give the root that signed it"),
            (&intermediate, &old, &key, "the certificate of the new root is none of a root"),
            (&no_authority, &old, &key, "the certificate of the new root is none of a root"),
            (&new, &short, &short.key.serialize_pem(), "allows no certificate authority below it"),
        ] {
            let problem = made(new, old, key).unwrap_err();
            assert!(problem.contains(why), "{problem}");
        }
    }
}
