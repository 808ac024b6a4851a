//! Whether a proxy can start with a bundle of trust anchors. Pure.
//!
//! In: a PEM text. Out: why no proxy can start with it, or why it must not reach Pods. Always holds: the rules are those
//! of the proxy, which reads the PEM all or nothing and needs a certificate; no reason shows any of the text.

use rustls::pki_types::{
    CertificateDer,
    pem::{self, PemObject},
};

use super::problems::KEY;

/// Why a bundle is unusable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UnusableTrustBundle {
    #[error("it has a private key, which must not reach Pods: remove the key, and replace the certificate and its key")]
    PrivateKey,
    #[error("it begins with a byte order mark, so that proxies do not find the first certificate: save it without one")]
    ByteOrderMark,
    #[error("a section has no end: a certificate is incomplete")]
    Incomplete,
    #[error("it is not valid PEM")]
    NotPem,
    #[error("it has no certificate")]
    NoCertificate,
}

// === impl UnusableTrustBundle ===

impl UnusableTrustBundle {
    /// Returns why no proxy can start with a bundle.
    ///
    /// # Errors
    /// When no proxy can start with it, or when it has a private key.
    pub fn check(bundle: &str) -> Result<(), Self> {
        // The injector trims the text.
        let bundle = bundle.trim();
        if bundle.contains(KEY) {
            return Err(Self::PrivateKey);
        }
        if bundle.starts_with('\u{feff}') {
            return Err(Self::ByteOrderMark);
        }
        let mut found = false;
        for certificate in CertificateDer::pem_slice_iter(bundle.as_bytes()) {
            certificate.map_err(|error| match error {
                pem::Error::MissingSectionEnd { .. } => Self::Incomplete,
                _ => Self::NotPem,
            })?;
            found = true;
        }
        if found { Ok(()) } else { Err(Self::NoCertificate) }
    }
}

#[cfg(test)]
mod tests {
    use super::{super::testing::TRUST_ANCHORS, *};

    #[test]
    fn a_bundle_that_proxies_cannot_start_with_is_unusable() {
        let root = TRUST_ANCHORS;
        let (first_lines, _) = root.split_at(root.len() / 2);
        for (bundle, expected) in [
            (root.to_owned(), Ok(())),
            (format!("{root}\n# text\n{root}"), Ok(())),
            (format!("\n  {}", root.replace('\n', "\r\n")), Ok(())),
            (String::new(), Err(UnusableTrustBundle::NoCertificate)),
            ("anchors".to_owned(), Err(UnusableTrustBundle::NoCertificate)),
            (format!("\u{feff}{root}"), Err(UnusableTrustBundle::ByteOrderMark)),
            (format!("\u{feff}{root}{root}"), Err(UnusableTrustBundle::ByteOrderMark)),
            (format!("{root}{first_lines}"), Err(UnusableTrustBundle::Incomplete)),
            (root.replace("\nMII", "\nM*I"), Err(UnusableTrustBundle::NotPem)),
            (
                format!("{root}-----BEGIN EC PRIVATE KEY-----\nSECRET\n-----END EC PRIVATE KEY-----\n"),
                Err(UnusableTrustBundle::PrivateKey),
            ),
        ] {
            assert_eq!(UnusableTrustBundle::check(&bundle), expected, "{bundle}");
        }
    }
}
