//! Certificate signing requests (PKCS #10).
//!
//! In: the DER of a request. Out: the names and the key in it, and whether they may be certified. Always holds: reading
//! is total, and bounded by [`LONGEST_REQUEST`]; nothing that a workload writes into a request reaches a leaf but the
//! public key.

use std::collections::HashSet;

use sha2::{Digest, Sha256};
use thiserror::Error;

use super::refusal::CertifyRefusal;
use crate::{
    text::truncate,
    x509::{
        der::{self, DerElement, DerReader},
        ecdsa::{SubjectKey, UnreadableKey, is_signed},
    },
};

/// The maximum length of a request, in bytes. A request of a proxy has about 350.
pub(crate) const LONGEST_REQUEST: usize = 16 << 10;
/// The maximum length of a name in the text of a problem, in bytes. The longest identity of a proxy has 253.
const SHOWN_NAME: usize = 512;

// The object identifiers, without tag and length.
const COMMON_NAME: &[u8] = &[0x55, 0x04, 0x03];
const SUBJECT_ALTERNATIVE_NAME: &[u8] = &[0x55, 0x1d, 0x11];
const EXTENSION_REQUEST: &[u8] = &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x09, 0x0e];
// The tags of the subject alternative names whose problems have texts of their own.
const EMAIL: u8 = der::context(1);
const DNS_NAME: u8 = der::context(2);
const URI: u8 = der::context(6);
const IP_ADDRESS: u8 = der::context(7);

/// The reason why a request cannot be used, whatever name it is for. The code is InvalidArgument.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub(crate) enum CsrProblem {
    #[error("the certificate signing request is longer than {LONGEST_REQUEST} bytes")]
    TooLong,
    #[error("the certificate signing request is not valid: {0}")]
    Malformed(&'static str),
    #[error("the certificate signing request has a key of the curve {0}, which is not supported: use P-256 or P-384")]
    UnsupportedCurve(&'static str),
    #[error("the signature algorithm of the certificate signing request is not supported: use ECDSA with SHA-256")]
    UnsupportedSignature,
    #[error("the signature of the certificate signing request is invalid")]
    NotPossessed,
}

/// The reason why the names in a request cannot be certified. The code is FailedPrecondition.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub(crate) enum NameProblem {
    #[error("CSR must have exactly one DNSName")]
    NotOneName,
    #[error("CSR name does not match requested identity: csr={csr}; req={requested}")]
    OtherName { csr: String, requested: String },
    #[error("invalid CommonName: {0}")]
    CommonName(String),
    #[error("cannot validate email addresses")]
    Emails,
    #[error("cannot validate IP addresses")]
    IpAddresses,
    #[error("cannot validate URIs")]
    Uris,
    /// Linkerd ignores names of these kinds.
    #[error("cannot validate names of other kinds")]
    OtherKinds,
}

/// Identifies a request with its key and its signature.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct RequestHash([u8; 32]);

/// A readable request. Its signature is not verified yet.
#[derive(Clone, Debug)]
pub(crate) struct SigningRequest {
    names: RequestedNames,
    common_names: Vec<String>,
    /// The SubjectPublicKeyInfo in DER.
    key_info: Vec<u8>,
    key: SubjectKey,
    /// What was signed.
    signed: Vec<u8>,
    /// The AlgorithmIdentifier of the signature in DER.
    algorithm: Vec<u8>,
    signature: Vec<u8>,
}

/// The subject alternative names.
#[derive(Clone, Debug, Default)]
struct RequestedNames {
    dns: Option<String>,
    dns_count: usize,
    has_email: bool,
    has_ip: bool,
    has_uri: bool,
    has_others: bool,
}

// === impl SigningRequest ===

impl SigningRequest {
    /// Reads a request in DER.
    ///
    /// # Errors
    /// When it is not a request of version 1 in DER, or too long, or its key is on an unsupported curve. A key of another
    /// kind than ECDSA is an error of [`Self::verify_possession`] only, as in Linkerd.
    pub(crate) fn parse(der: &[u8]) -> Result<Self, CsrProblem> {
        if der.len() > LONGEST_REQUEST {
            return Err(CsrProblem::TooLong);
        }
        let malformed = CsrProblem::Malformed;
        let mut reader = DerReader::new(der);
        let mut request = reader.inside(der::SEQUENCE).ok_or(malformed("it is not a sequence in DER"))?;
        reader.end().ok_or(malformed("bytes follow it"))?;
        let signed = request.tagged(der::SEQUENCE).ok_or(malformed("its content cannot be read"))?;
        let algorithm = request.tagged(der::SEQUENCE).ok_or(malformed("its signature algorithm cannot be read"))?;
        let signature = request.bit_string().ok_or(malformed("its signature cannot be read"))?;
        request.end().ok_or(malformed("something follows its signature"))?;

        let mut content = DerReader::new(signed.value);
        let version = content.value(der::INTEGER).ok_or(malformed("its version cannot be read"))?;
        if version != [0] {
            return Err(malformed("its version is not 1"));
        }
        let subject = content.inside(der::SEQUENCE).ok_or(malformed("its subject cannot be read"))?;
        let common_names = common_names(subject)?;
        let key_info = content.tagged(der::SEQUENCE).ok_or(malformed("its public key cannot be read"))?.raw;
        let key = SubjectKey::parse(key_info).map_err(|problem| match problem {
            UnreadableKey::Malformed => malformed("its public key cannot be read"),
            UnreadableKey::UnsupportedCurve(curve) => CsrProblem::UnsupportedCurve(curve),
        })?;
        let attributes =
            content.inside(der::context_constructed(0)).ok_or(malformed("its attributes cannot be read"))?;
        content.end().ok_or(malformed("something follows its attributes"))?;
        let names = match extensions(attributes)? {
            Some(extensions) => RequestedNames::of_extensions(extensions)?,
            None => RequestedNames::default(),
        };
        Ok(Self {
            names,
            common_names,
            key_info: key_info.to_vec(),
            key,
            signed: signed.raw.to_vec(),
            algorithm: algorithm.raw.to_vec(),
            signature: signature.to_vec(),
        })
    }

    /// Returns what a request for this name and this key would be, to test an issuer. Nothing signed it.
    pub(super) fn unsigned(name: &str, key_info: &[u8], key: SubjectKey) -> Self {
        let names = RequestedNames { dns: Some(name.to_owned()), dns_count: 1, ..RequestedNames::default() };
        let (signed, algorithm, signature) = (Vec::new(), Vec::new(), Vec::new());
        let common_names = vec![name.to_owned()];
        Self { names, common_names, key_info: key_info.to_vec(), key, signed, algorithm, signature }
    }

    /// Checks that the request is for this name and for no other one.
    ///
    /// # Errors
    /// The first of the problems, in the order of Linkerd.
    pub(crate) fn check_name(&self, identity: &str) -> Result<(), NameProblem> {
        let shown = |name: &str| truncate(name, SHOWN_NAME).to_owned();
        let names = &self.names;
        let Some(name) = names.dns.as_deref().filter(|_| names.dns_count == 1) else {
            return Err(NameProblem::NotOneName);
        };
        if name != identity {
            return Err(NameProblem::OtherName { csr: shown(name), requested: shown(identity) });
        }
        if let Some(other) = self.common_names.iter().find(|name| !name.is_empty() && *name != identity) {
            return Err(NameProblem::CommonName(shown(other)));
        }
        let problems = [
            (names.has_email, NameProblem::Emails),
            (names.has_ip, NameProblem::IpAddresses),
            (names.has_uri, NameProblem::Uris),
            (names.has_others, NameProblem::OtherKinds),
        ];
        problems.into_iter().find_map(|(occurs, problem)| occurs.then_some(Err(problem))).unwrap_or(Ok(()))
    }

    /// Verifies that the sender of the request has the private key.
    ///
    /// # Errors
    /// When the key is not an ECDSA key, or did not sign the request.
    pub(crate) fn verify_possession(&self) -> Result<(), CertifyRefusal> {
        match &self.key {
            SubjectKey::OtherKind(kind) => Err(CertifyRefusal::NotEcdsa(kind)),
            SubjectKey::Ecdsa { curve, point } => {
                match is_signed((*curve, point), &self.algorithm, &self.signed, &self.signature) {
                    Some(true) => Ok(()),
                    Some(false) => Err(CsrProblem::NotPossessed.into()),
                    None => Err(CsrProblem::UnsupportedSignature.into()),
                }
            }
        }
    }

    /// Returns the hash of all that [`Self::verify_possession`] reads. The key is in what was signed. The parts in front of
    /// the signature are DER, so their lengths are in the hash, too.
    pub(super) fn hash(&self) -> RequestHash {
        let parts = Sha256::new().chain_update(&self.signed).chain_update(&self.algorithm);
        RequestHash(parts.chain_update(&self.signature).finalize().into())
    }

    /// Whether the subject has a CommonName. Then the leaf gets one, too.
    pub(super) fn has_common_name(&self) -> bool {
        self.common_names.iter().any(|name| !name.is_empty())
    }

    /// The SubjectPublicKeyInfo in DER.
    pub(super) fn key_info(&self) -> &[u8] {
        &self.key_info
    }
}

// === impl RequestHash ===

#[cfg(test)]
impl RequestHash {
    pub(super) fn for_test(number: usize) -> Self {
        Self(Sha256::digest(number.to_be_bytes()).into())
    }
}

/// Returns the CommonNames of a subject. Other attributes must be well-formed, and are ignored.
fn common_names(mut subject: DerReader<'_>) -> Result<Vec<String>, CsrProblem> {
    const MALFORMED: CsrProblem = CsrProblem::Malformed("its subject cannot be read");
    let mut names = Vec::new();
    while !subject.is_at_end() {
        let mut set = subject.inside(der::SET).ok_or(MALFORMED)?;
        while !set.is_at_end() {
            let mut attribute = set.inside(der::SEQUENCE).ok_or(MALFORMED)?;
            let kind = attribute.value(der::OBJECT_IDENTIFIER).ok_or(MALFORMED)?;
            let value = attribute.element().ok_or(MALFORMED)?;
            attribute.end().ok_or(MALFORMED)?;
            if kind == COMMON_NAME {
                names.push(text(value).ok_or(CsrProblem::Malformed("its CommonName is not a valid string"))?);
            }
        }
    }
    Ok(names)
}

/// Returns the text of a string; `None` if it is not one, or has characters that strings of its kind cannot have.
fn text(element: DerElement<'_>) -> Option<String> {
    let valid = |is_valid: fn(&u8) -> bool| {
        let is_valid = element.value.iter().all(is_valid);
        is_valid.then(|| String::from_utf8_lossy(element.value).into_owned())
    };
    match element.tag {
        der::UTF8_STRING => String::from_utf8(element.value.to_vec()).ok(),
        // Go reads `*` and `&`, too, because many certificates have them.
        der::PRINTABLE_STRING => valid(|byte| byte.is_ascii_alphanumeric() || b" '()+,-./:=?*&".contains(byte)),
        der::NUMERIC_STRING => valid(|byte| byte.is_ascii_digit() || *byte == b' '),
        der::IA5_STRING => valid(u8::is_ascii),
        der::T61_STRING => valid(|_| true),
        der::BMP_STRING => {
            let (units, rest) = element.value.as_chunks();
            let units: Vec<_> = units.iter().map(|unit| u16::from_be_bytes(*unit)).collect();
            String::from_utf16(&units).ok().filter(|_| rest.is_empty())
        }
        _ => None,
    }
}

/// Returns the requested extensions, if there are any.
fn extensions(mut attributes: DerReader<'_>) -> Result<Option<DerReader<'_>>, CsrProblem> {
    const MALFORMED: CsrProblem = CsrProblem::Malformed("its attributes cannot be read");
    let mut requested = None;
    while !attributes.is_at_end() {
        let mut attribute = attributes.inside(der::SEQUENCE).ok_or(MALFORMED)?;
        let kind = attribute.value(der::OBJECT_IDENTIFIER).ok_or(MALFORMED)?;
        let mut values = attribute.inside(der::SET).ok_or(MALFORMED)?;
        attribute.end().ok_or(MALFORMED)?;
        if kind == EXTENSION_REQUEST {
            let extensions = values.inside(der::SEQUENCE).ok_or(MALFORMED)?;
            let is_only = values.is_at_end() && requested.is_none();
            requested = Some(extensions);
            if !is_only {
                return Err(CsrProblem::Malformed("it requests extensions twice"));
            }
        }
    }
    Ok(requested)
}

// === impl RequestedNames ===

impl RequestedNames {
    /// Reads the subject alternative names. Other extensions must be well-formed, and are ignored.
    fn of_extensions(mut extensions: DerReader<'_>) -> Result<Self, CsrProblem> {
        const MALFORMED: CsrProblem = CsrProblem::Malformed("its extensions cannot be read");
        let (mut names, mut seen) = (Self::default(), HashSet::new());
        while !extensions.is_at_end() {
            let mut extension = extensions.inside(der::SEQUENCE).ok_or(MALFORMED)?;
            let kind = extension.value(der::OBJECT_IDENTIFIER).ok_or(MALFORMED)?;
            let critical = extension.optional(der::BOOLEAN);
            let value = extension.value(der::OCTET_STRING).ok_or(MALFORMED)?;
            let is_boolean = critical.is_none_or(|critical| matches!(critical.value, [0 | 0xff]));
            extension.end().filter(|()| is_boolean).ok_or(MALFORMED)?;
            if !seen.insert(kind) {
                return Err(CsrProblem::Malformed("it requests an extension twice"));
            }
            if kind == SUBJECT_ALTERNATIVE_NAME {
                names = Self::parse(value)?;
            }
        }
        Ok(names)
    }

    fn parse(value: &[u8]) -> Result<Self, CsrProblem> {
        const MALFORMED: CsrProblem = CsrProblem::Malformed("its subject alternative names cannot be read");
        let mut found = Self::default();
        let mut reader = DerReader::new(value);
        let mut names = reader.inside(der::SEQUENCE).ok_or(MALFORMED)?;
        reader.end().ok_or(MALFORMED)?;
        while !names.is_at_end() {
            let name = names.element().ok_or(MALFORMED)?;
            let text = str::from_utf8(name.value).ok().filter(|text| text.is_ascii());
            match name.tag {
                EMAIL => {
                    text.ok_or(MALFORMED)?;
                    found.has_email = true;
                }
                DNS_NAME => {
                    let text = text.ok_or(MALFORMED)?;
                    found.dns.get_or_insert_with(|| text.to_owned());
                    found.dns_count += 1;
                }
                URI => {
                    text.ok_or(MALFORMED)?;
                    found.has_uri = true;
                }
                IP_ADDRESS => {
                    // An IPv4 or an IPv6 address.
                    if !matches!(name.value.len(), 4 | 16) {
                        return Err(MALFORMED);
                    }
                    found.has_ip = true;
                }
                _ => found.has_others = true,
            }
        }
        Ok(found)
    }
}

#[cfg(test)]
mod tests;
