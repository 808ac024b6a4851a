//! ECDSA keys on the curves P-256 and P-384, the ones that `ring` signs with.
//!
//! In: the DER of public keys, the PEM of private keys. Out: verified signatures, and signatures. Always holds: a private
//! key is never printed, and belongs to the public key that was given with it.

use std::fmt;

use ring::{
    rand::SystemRandom,
    signature::{
        ECDSA_P256_SHA256_ASN1, ECDSA_P256_SHA256_ASN1_SIGNING, ECDSA_P256_SHA384_ASN1, ECDSA_P384_SHA256_ASN1,
        ECDSA_P384_SHA384_ASN1, ECDSA_P384_SHA384_ASN1_SIGNING, EcdsaKeyPair, EcdsaVerificationAlgorithm, Signature,
        UnparsedPublicKey,
    },
};
use zeroize::Zeroizing;

use super::{
    der::{self, DerReader},
    pem::{self, PemBlock},
};

// The object identifiers, without tag and length.
const EC_PUBLIC_KEY: &[u8] = &[0x2a, 0x86, 0x48, 0xce, 0x3d, 0x02, 0x01];
const P224: &[u8] = &[0x2b, 0x81, 0x04, 0x00, 0x21];
const P256: &[u8] = &[0x2a, 0x86, 0x48, 0xce, 0x3d, 0x03, 0x01, 0x07];
const P384: &[u8] = &[0x2b, 0x81, 0x04, 0x00, 0x22];
const P521: &[u8] = &[0x2b, 0x81, 0x04, 0x00, 0x23];
const SECP256K1: &[u8] = &[0x2b, 0x81, 0x04, 0x00, 0x0a];
const RSA: &[u8] = &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x01, 0x01];
const ED25519: &[u8] = &[0x2b, 0x65, 0x70];
const X25519: &[u8] = &[0x2b, 0x65, 0x6e];
/// The AlgorithmIdentifiers of ecdsa-with-SHA256 and ecdsa-with-SHA384 in DER. They have no parameters.
const SHA256_IDENTIFIER: &[u8] = &[0x30, 0x0a, 0x06, 0x08, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x04, 0x03, 0x02];
const SHA384_IDENTIFIER: &[u8] = &[0x30, 0x0a, 0x06, 0x08, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x04, 0x03, 0x03];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Curve {
    P256,
    P384,
}

/// The public key in a SubjectPublicKeyInfo.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum SubjectKey {
    Ecdsa {
        curve: Curve,
        /// The uncompressed point. Whether it is on the curve is checked when a signature is verified.
        point: Vec<u8>,
    },
    /// A key of another kind, by its name.
    OtherKind(&'static str),
}

/// The reason why a SubjectPublicKeyInfo cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum UnreadableKey {
    Malformed,
    UnsupportedCurve(&'static str),
}

/// The reason why a private key cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum UnusableKey {
    /// A sentence without its subject, the file.
    File(String),
    Mismatch,
}

/// A private key.
pub(crate) struct SigningKey {
    pair: EcdsaKeyPair,
    curve: Curve,
}

// === impl Curve ===

impl Curve {
    /// The error is the name of the curve.
    fn of(identifier: &[u8]) -> Result<Self, &'static str> {
        match identifier {
            P256 => Ok(Self::P256),
            P384 => Ok(Self::P384),
            P224 => Err("P-224"),
            P521 => Err("P-521"),
            SECP256K1 => Err("secp256k1"),
            _ => Err("without a known name"),
        }
    }

    /// The length of a private key and of a coordinate, in bytes.
    fn length(self) -> usize {
        match self {
            Self::P256 => 32,
            Self::P384 => 48,
        }
    }
}

// === impl SubjectKey ===

impl SubjectKey {
    /// Reads the key of an issuer, which must be able to sign.
    ///
    /// # Errors
    /// The kind of the key, and why an issuer cannot have it.
    pub(crate) fn of_issuer(info: &[u8]) -> Result<Self, String> {
        match Self::parse(info) {
            Ok(Self::OtherKind(kind)) => {
                Err(format!("an {kind} key, which cannot sign certificates of proxies: use ECDSA"))
            }
            Ok(key) => Ok(key),
            Err(UnreadableKey::UnsupportedCurve(curve)) => {
                Err(format!("a key of the curve {curve}, which is not supported: use P-256 or P-384"))
            }
            Err(UnreadableKey::Malformed) => Err("a key that cannot be read".to_owned()),
        }
    }

    /// Reads a SubjectPublicKeyInfo in DER.
    pub(crate) fn parse(info: &[u8]) -> Result<Self, UnreadableKey> {
        let malformed = UnreadableKey::Malformed;
        let mut reader = DerReader::new(info);
        let mut info = reader.inside(der::SEQUENCE).ok_or(malformed)?;
        let mut algorithm = info.inside(der::SEQUENCE).ok_or(malformed)?;
        let kind = algorithm.value(der::OBJECT_IDENTIFIER).ok_or(malformed)?;
        let bits = info.bit_string().ok_or(malformed)?;
        reader.end().and(info.end()).ok_or(malformed)?;
        match kind {
            EC_PUBLIC_KEY => {
                let curve = algorithm.value(der::OBJECT_IDENTIFIER).ok_or(malformed)?;
                let curve = Curve::of(curve).map_err(UnreadableKey::UnsupportedCurve)?;
                // 4 is the mark of an uncompressed point.
                let is_point = bits.first() == Some(&4) && bits.len() == 2 * curve.length() + 1;
                algorithm.end().filter(|()| is_point).ok_or(malformed)?;
                Ok(Self::Ecdsa { curve, point: bits.to_vec() })
            }
            RSA => Ok(Self::OtherKind("RSA")),
            ED25519 => Ok(Self::OtherKind("Ed25519")),
            X25519 => Ok(Self::OtherKind("X25519")),
            _ => Ok(Self::OtherKind("another kind")),
        }
    }
}

/// Verifies a signature. `algorithm` is the DER of its AlgorithmIdentifier. `None` if the algorithm is not supported.
pub(crate) fn is_signed(
    (curve, point): (Curve, &[u8]),
    algorithm: &[u8],
    message: &[u8],
    signature: &[u8],
) -> Option<bool> {
    let algorithm: &EcdsaVerificationAlgorithm = match (curve, algorithm) {
        (Curve::P256, SHA256_IDENTIFIER) => &ECDSA_P256_SHA256_ASN1,
        (Curve::P256, SHA384_IDENTIFIER) => &ECDSA_P256_SHA384_ASN1,
        (Curve::P384, SHA256_IDENTIFIER) => &ECDSA_P384_SHA256_ASN1,
        (Curve::P384, SHA384_IDENTIFIER) => &ECDSA_P384_SHA384_ASN1,
        _ => return None,
    };
    Some(UnparsedPublicKey::new(algorithm, point).verify(message, signature).is_ok())
}

// === impl SigningKey ===

impl SigningKey {
    /// Reads the private key of this public key from the first block of a text: SEC 1 or PKCS #8.
    pub(crate) fn from_pem(text: &[u8], public: &SubjectKey) -> Result<Self, UnusableKey> {
        let file = |sentence: &str| UnusableKey::File(sentence.to_owned());
        let block = match pem::blocks(text).into_iter().next() {
            Some(Ok(block)) => block,
            Some(Err(reason)) => return Err(UnusableKey::File(format!("is not valid PEM: {reason}"))),
            None => return Err(file("has no private key: write an ECDSA key in PEM (SEC 1 or PKCS #8)")),
        };
        let (curve, private) = private_key(&block)?;
        match public {
            SubjectKey::Ecdsa { curve: its, point } if *its == curve => Self::new(curve, &private, point),
            _ => Err(UnusableKey::Mismatch),
        }
    }

    fn new(curve: Curve, private: &[u8], point: &[u8]) -> Result<Self, UnusableKey> {
        let algorithm = match curve {
            Curve::P256 => &ECDSA_P256_SHA256_ASN1_SIGNING,
            Curve::P384 => &ECDSA_P384_SHA384_ASN1_SIGNING,
        };
        // It computes the public key, and compares.
        EcdsaKeyPair::from_private_key_and_public_key(algorithm, private, point, &SystemRandom::new())
            .map(|pair| Self { pair, curve })
            .map_err(|_| UnusableKey::Mismatch)
    }

    /// The AlgorithmIdentifier of the signatures, in DER.
    pub(crate) fn algorithm(&self) -> &'static [u8] {
        match self.curve {
            Curve::P256 => SHA256_IDENTIFIER,
            Curve::P384 => SHA384_IDENTIFIER,
        }
    }

    /// Signs a message. `None` if the system has no random numbers.
    pub(crate) fn sign(&self, message: &[u8]) -> Option<Signature> {
        self.pair.sign(&SystemRandom::new(), message).ok()
    }
}

impl fmt::Debug for SigningKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SigningKey").field("curve", &self.curve).finish_non_exhaustive()
    }
}

/// A private key as its file names it.
enum PrivateKey<'a> {
    Ecdsa { curve: &'a [u8], private: &'a [u8] },
    OtherKind(&'static str),
}

// === impl PrivateKey ===

impl<'a> PrivateKey<'a> {
    /// `None` if it cannot be read.
    fn in_block(block: &'a PemBlock) -> Option<Result<Self, String>> {
        match block.label.as_str() {
            "EC PRIVATE KEY" => {
                let (curve, private) = sec1(&block.der)?;
                Some(Ok(Self::Ecdsa { curve: curve?, private }))
            }
            "PRIVATE KEY" => pkcs8(&block.der).map(Ok),
            "RSA PRIVATE KEY" => Some(Ok(Self::OtherKind("RSA"))),
            "EC PARAMETERS" => {
                Some(Err("begins with a block EC PARAMETERS: remove it, and keep the block of the key".to_owned()))
            }
            label => Some(Err(format!(
                "begins with a block {label}: write an ECDSA key in PEM (SEC 1 or PKCS #8), without a password"
            ))),
        }
    }
}

/// Returns the curve, if it is named, and the key of an ECPrivateKey.
fn sec1(der: &[u8]) -> Option<(Option<&[u8]>, &[u8])> {
    let mut reader = DerReader::new(der);
    let mut key = reader.inside(der::SEQUENCE)?;
    reader.end()?;
    key.value(der::INTEGER).filter(|version| *version == [1])?;
    let private = key.value(der::OCTET_STRING)?;
    let parameters = key.optional(der::context_constructed(0));
    let curve = parameters.and_then(|parameters| DerReader::new(parameters.value).value(der::OBJECT_IDENTIFIER));
    // The public key: the certificate has it, too.
    key.optional(der::context_constructed(1));
    key.end()?;
    Some((curve, private))
}

/// Reads a PrivateKeyInfo. Attributes and a public key may follow.
fn pkcs8(der: &[u8]) -> Option<PrivateKey<'_>> {
    let mut reader = DerReader::new(der);
    let mut key = reader.inside(der::SEQUENCE)?;
    reader.end()?;
    key.value(der::INTEGER).filter(|version| matches!(version, [0 | 1]))?;
    let mut algorithm = key.inside(der::SEQUENCE)?;
    let kind = algorithm.value(der::OBJECT_IDENTIFIER)?;
    let inner = key.value(der::OCTET_STRING)?;
    match kind {
        EC_PUBLIC_KEY => {
            let (_, private) = sec1(inner)?;
            Some(PrivateKey::Ecdsa { curve: algorithm.value(der::OBJECT_IDENTIFIER)?, private })
        }
        RSA => Some(PrivateKey::OtherKind("RSA")),
        ED25519 => Some(PrivateKey::OtherKind("Ed25519")),
        _ => Some(PrivateKey::OtherKind("unsupported")),
    }
}

/// Returns the curve and the private key in a block, with as many bytes as the curve has.
fn private_key(block: &PemBlock) -> Result<(Curve, Zeroizing<Vec<u8>>), UnusableKey> {
    let unreadable = || UnusableKey::File("has a private key that cannot be read: replace it".to_owned());
    match PrivateKey::in_block(block).ok_or_else(unreadable)?.map_err(UnusableKey::File)? {
        PrivateKey::Ecdsa { curve, private } => {
            let curve = Curve::of(curve).map_err(|curve| {
                UnusableKey::File(format!("has a key of the curve {curve}, which is not supported: use P-256 or P-384"))
            })?;
            Ok((curve, padded(private, curve.length()).ok_or_else(unreadable)?))
        }
        PrivateKey::OtherKind(kind) => Err(UnusableKey::File(format!(
            "has an {kind} key, which cannot sign certificates of proxies: use an ECDSA P-256 key"
        ))),
    }
}

/// Returns a number with this many bytes. Some writers leave out zeros in front, or add one.
fn padded(number: &[u8], length: usize) -> Option<Zeroizing<Vec<u8>>> {
    let first = number.iter().position(|byte| *byte != 0)?;
    let significant = number.get(first..)?;
    let mut padded = Zeroizing::new(Vec::with_capacity(length));
    padded.resize(length.checked_sub(significant.len())?, 0);
    padded.extend_from_slice(significant);
    Some(padded)
}
