//! Checks whether a proxy can start with a bundle of trust anchors. Pure.
//!
//! In: a PEM text. Out: why no proxy can start with it, or why it must not reach Pods. Always holds: the rules are
//! those of both programs that read the bundle in each Pod; no reason shows any of the text.
//!
//! `linkerd2-proxy-identity` reads it first, with Go's `encoding/pem` and `crypto/x509`. It ends with an error unless
//! it can parse every certificate, and at text without PEM after the last one. `linkerd2-proxy` reads it with
//! rustls-pki-types, all or nothing, and skips a certificate that webpki does not accept.

use rustls::pki_types::{
    CertificateDer,
    pem::{self, PemObject},
};
use x509_parser::{certificate::X509Certificate, prelude::FromDer};

use super::findings::KEY;

const BEGIN: &str = "-----BEGIN CERTIFICATE-----";
const END: &str = "-----END CERTIFICATE-----";
/// The beginning of a PEM text in Base64.
const ENCODED: &str = "LS0tLS1CRUdJTi";
const BYTE_ORDER_MARK: char = '\u{feff}';
/// The sign of an integer, in its first byte in DER.
const SIGN: u8 = 0x80;

/// Why a bundle is unusable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UnusableTrustBundle {
    #[error("it has a private key, which must not reach Pods: remove the key, and replace the certificate and its key")]
    PrivateKey,
    #[error(
        "it has a byte order mark, so that proxies do not find the certificate after the mark: save it without one"
    )]
    ByteOrderMark,
    #[error("it is PEM that was encoded in base64: decode it, because the data of a ConfigMap is plain text")]
    Encoded,
    #[error("its lines end with carriage returns alone: save it with line feeds")]
    CarriageReturns,
    #[error(
        "line {line} is indented, and proxies find only certificates that begin and end at the start of a line: remove \
         the spaces or tabs before each line"
    )]
    Indented { line: usize },
    #[error("line {line} has other text beside the begin or the end of a certificate: put each on a line of its own")]
    JoinedLines { line: usize },
    #[error("a section has no end: a certificate is incomplete")]
    Incomplete,
    #[error("it is not valid PEM")]
    NotPem,
    #[error("it has no certificate")]
    NoCertificate,
    #[error(
        "certificate {at} of {of} is not a valid X.509 certificate: linkerd2-proxy would skip it, but \
         linkerd2-proxy-identity, which starts the proxy, ends with an error. Remove or replace it"
    )]
    NotACertificate { at: usize, of: usize },
    #[error(
        "its first section is not a certificate, and linkerd2-proxy-identity, which starts the proxy, reads no further: \
         remove that section"
    )]
    OtherSection,
    #[error(
        "it has text after its last certificate, with which linkerd2-proxy-identity, which starts the proxy, ends with \
         an error: remove that text, or move it before a certificate"
    )]
    TextAtTheEnd,
}

// === impl UnusableTrustBundle ===

impl UnusableTrustBundle {
    /// Returns why no proxy can start with a bundle.
    ///
    /// # Errors
    /// When no proxy can start with it, when proxies would not find one of its certificates, or when it has a private
    /// key.
    pub fn check(bundle: &str) -> Result<(), Self> {
        // The injector trims the text.
        let bundle = bundle.trim();
        if bundle.contains(KEY) {
            return Err(Self::PrivateKey);
        }
        if bundle.contains(BYTE_ORDER_MARK) {
            return Err(Self::ByteOrderMark);
        }
        if bundle.starts_with(ENCODED) {
            return Err(Self::Encoded);
        }
        // The proxy ends a line at a lone carriage return, and Go does not.
        if bundle.split("\r\n").any(|part| part.contains('\r')) {
            return Err(Self::CarriageReturns);
        }
        check_lines(bundle)?;
        check_certificates(bundle)?;
        check_other_text(bundle)
    }
}

/// Checks that each certificate begins and ends with a line of its own. Otherwise readers skip the certificate.
fn check_lines(bundle: &str) -> Result<(), UnusableTrustBundle> {
    for (at, line) in bundle.lines().enumerate().filter(|(_, line)| line.contains(BEGIN) || line.contains(END)) {
        let line_number = at + 1;
        if ![BEGIN, END].contains(&line.trim()) {
            return Err(UnusableTrustBundle::JoinedLines { line: line_number });
        }
        if line.starts_with(char::is_whitespace) {
            return Err(UnusableTrustBundle::Indented { line: line_number });
        }
    }
    Ok(())
}

fn check_certificates(bundle: &str) -> Result<(), UnusableTrustBundle> {
    let found: Result<Vec<CertificateDer<'_>>, _> = CertificateDer::pem_slice_iter(bundle.as_bytes()).collect();
    let found = found.map_err(|error| match error {
        pem::Error::MissingSectionEnd { .. } => UnusableTrustBundle::Incomplete,
        _ => UnusableTrustBundle::NotPem,
    })?;
    if found.is_empty() {
        return Err(UnusableTrustBundle::NoCertificate);
    }
    match found.iter().position(|certificate| !is_readable(certificate)) {
        Some(at) => Err(UnusableTrustBundle::NotACertificate { at: at + 1, of: found.len() }),
        None => Ok(()),
    }
}

/// Whether both programs can read a certificate. Of those that only Go rejects, this finds the ones with invalid fields
/// and with a negative serial number.
fn is_readable(certificate: &CertificateDer<'_>) -> bool {
    let is_go_s = |(rest, parsed): (&[u8], X509Certificate<'_>)| {
        rest.is_empty() && parsed.raw_serial().first().is_some_and(|first| first & SIGN == 0)
    };
    webpki::anchor_from_trusted_cert(certificate).is_ok() && X509Certificate::from_der(certificate).is_ok_and(is_go_s)
}

/// Checks the sections and the text beside the certificates. Go reads up to the first section that is not a
/// certificate.
fn check_other_text(bundle: &str) -> Result<(), UnusableTrustBundle> {
    let mut sections = bundle.lines().filter(|line| line.starts_with("-----BEGIN ")).map(|line| line.trim() == BEGIN);
    match sections.next() {
        Some(true) if sections.all(|is_certificate| is_certificate) && !bundle.ends_with(END) => {
            Err(UnusableTrustBundle::TextAtTheEnd)
        }
        Some(true) => Ok(()),
        _ => Err(UnusableTrustBundle::OtherSection),
    }
}

#[cfg(test)]
mod tests {
    use super::{
        super::testing::{OTHER_TRUST_ANCHORS, TRUST_ANCHORS},
        UnusableTrustBundle::*,
        *,
    };

    /// Go rejects its negative serial number.
    const NEGATIVE_SERIAL: &str = include_str!("testdata/negative-serial.pem");
    const GARBAGE: &str = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
    const PUBLIC_KEY: &str = "-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----\n";

    fn indented(text: &str, by: &str) -> String {
        text.lines().map(|line| format!("{by}{line}\n")).collect()
    }

    /// The real programs start with each of these bundles, as the injector writes it: linkerd2-proxy-identity of
    /// edge-26.8.3, and the readers of linkerd2-proxy.
    #[test]
    fn a_bundle_that_proxies_start_with_is_usable() {
        let (root, other) = (TRUST_ANCHORS, OTHER_TRUST_ANCHORS);
        for bundle in [
            root.to_owned(),
            root.trim().to_owned(),
            format!("{root}{other}"),
            format!("# text\n{root}\n# text\n{other}\n\n"),
            format!("\n  {}", root.replace('\n', "\r\n")),
            root.replace('\n', "  \n"),
            // Only the base64 is indented.
            root.replace("\nM", "\n  M"),
            root.replace("-----\nMII", "-----\n\nMII"),
            format!("{root}{PUBLIC_KEY}{other}# text\n"),
            format!("Certificate:\n    Data:\n        Version: 3 (0x2)\n{root}"),
        ] {
            assert_eq!(UnusableTrustBundle::check(&bundle), Ok(()), "{bundle}");
        }
    }

    /// With each of these bundles one of the real programs ends with an error, or does not find a certificate.
    #[test]
    fn a_bundle_that_proxies_cannot_start_with_is_unusable() {
        let root = TRUST_ANCHORS;
        let (first_lines, _) = root.split_at(root.len() / 2);
        for (bundle, expected) in [
            (String::new(), NoCertificate),
            ("anchors".to_owned(), NoCertificate),
            (format!("\u{feff}{root}"), ByteOrderMark),
            (format!("\u{feff}{root}{root}"), ByteOrderMark),
            (format!("{root}\u{feff}{root}"), ByteOrderMark),
            (format!("{root}{first_lines}"), Incomplete),
            (root.replace("\nMII", "\nM*I"), NotPem),
            (format!("{root}-----BEGIN EC PRIVATE KEY-----\nSECRET\n-----END EC PRIVATE KEY-----\n"), PrivateKey),
            (GARBAGE.to_owned(), NotACertificate { at: 1, of: 1 }),
            (format!("{GARBAGE}{root}"), NotACertificate { at: 1, of: 2 }),
            (format!("{root}{GARBAGE}{root}"), NotACertificate { at: 2, of: 3 }),
            (GARBAGE.replace("AAAA\n", ""), NotACertificate { at: 1, of: 1 }),
            (format!("{root}{NEGATIVE_SERIAL}"), NotACertificate { at: 2, of: 2 }),
            (indented(root, "  "), Indented { line: 11 }),
            (indented(root, "\t"), Indented { line: 11 }),
            (format!("{root}{}", indented(root, "    ")), Indented { line: 12 }),
            (root.replace("\n-----END", "\n  -----END"), Indented { line: 11 }),
            (root.replace('\n', " "), JoinedLines { line: 1 }),
            (root.replace('\n', "\\n"), JoinedLines { line: 1 }),
            (format!("{}{root}", root.trim()), JoinedLines { line: 11 }),
            (format!("{} text", root.trim()), JoinedLines { line: 11 }),
            (format!("-{root}"), JoinedLines { line: 1 }),
            (root.replace('\n', "\r"), CarriageReturns),
            // `base64` of the root.
            ("LS0tLS1CRUdJTiBDRVJUSUZJQ0FURS0tLS0tCk1JSUI=".to_owned(), Encoded),
            (format!("{root}# text\n"), TextAtTheEnd),
            (format!("{PUBLIC_KEY}{root}"), OtherSection),
            (root.replace("CERTIFICATE", "TRUSTED CERTIFICATE"), NoCertificate),
        ] {
            assert_eq!(UnusableTrustBundle::check(&bundle), Err(expected), "{bundle}");
        }
    }

    #[test]
    fn the_bundles_of_samples_and_of_the_installed_document_are_usable() {
        for (text, key) in [
            (include_str!("testdata/installed.yaml"), "\nidentityTrustAnchorsPEM: |\n"),
            (include_str!("../../config/samples/linkerd.yaml"), "\n    identityTrustAnchorsPEM: |\n"),
            (include_str!("../../config/samples/linkerd.yaml"), "\n  ca-bundle.crt: |\n"),
            (include_str!("../../config/samples/linkerdconfig-2020.yaml"), "\n      trustAnchorsPEM: |\n"),
        ] {
            let (_, after) = text.split_once(key).unwrap();
            let end = after.find(END).unwrap() + END.len();
            let bundle: String = after[..end].lines().map(|line| format!("{}\n", line.trim())).collect();
            assert_eq!(UnusableTrustBundle::check(&bundle), Ok(()), "{key}");
        }
    }
}
