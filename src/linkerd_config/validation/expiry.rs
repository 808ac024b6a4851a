//! The expiry of certificates. Pure.
//!
//! In: a PEM text. Out: the end of the validity of the certificate that expires first. Always holds: a text of any
//! content is read once; a certificate that cannot be read is ignored.

use k8s_openapi::jiff::Timestamp;
use rustls::pki_types::{CertificateDer, pem::PemObject};

const SEQUENCE: u8 = 0x30;
/// The explicit tag of the version.
const VERSION: u8 = 0xa0;
const UTC_TIME: u8 = 0x17;
const GENERALIZED_TIME: u8 = 0x18;

/// Returns when the first certificate expires; `None` without a certificate that can be read.
pub(super) fn first_expiry(pem: &str) -> Option<Timestamp> {
    // The injector trims the text.
    let certificates = CertificateDer::pem_slice_iter(pem.trim().as_bytes()).filter_map(Result::ok);
    certificates.filter_map(|certificate| not_after(&certificate)).min()
}

/// Returns the end of the validity of a certificate in DER (RFC 5280, section 4.1).
fn not_after(certificate: &[u8]) -> Option<Timestamp> {
    let (SEQUENCE, certificate, _) = element(certificate)? else { return None };
    let (SEQUENCE, mut rest, _) = element(certificate)? else { return None };
    if let (VERSION, _, after) = element(rest)? {
        rest = after;
    }
    // The serial number, the algorithm and the issuer.
    for _ in 0..3 {
        (_, _, rest) = element(rest)?;
    }
    let (SEQUENCE, validity, _) = element(rest)? else { return None };
    let (_, _, rest) = element(validity)?;
    let (tag, time, _) = element(rest)?;
    time_of(tag, std::str::from_utf8(time).ok()?)
}

/// Returns the tag and the content of the first element, and the rest.
fn element(der: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    let (tag, rest) = der.split_first()?;
    let (first, rest) = rest.split_first()?;
    let (length, rest) = match first {
        0..=0x7f => (usize::from(*first), rest),
        _ => {
            let (bytes, rest) = rest.split_at_checked(usize::from(first & 0x7f))?;
            let length =
                bytes.iter().try_fold(0usize, |length, byte| length.checked_mul(256)?.checked_add((*byte).into()));
            (length?, rest)
        }
    };
    let (content, rest) = rest.split_at_checked(length)?;
    Some((*tag, content, rest))
}

/// Reads `YYMMDDHHMMSSZ` or `YYYYMMDDHHMMSSZ`.
fn time_of(tag: u8, text: &str) -> Option<Timestamp> {
    let century = match (tag, text.get(..2)?) {
        (GENERALIZED_TIME, _) => "",
        (UTC_TIME, year) if year < "50" => "20",
        (UTC_TIME, _) => "19",
        _ => return None,
    };
    let text = format!("{century}{text}");
    let part = |from: usize, to: usize| text.get(from..to);
    let (date, time) = ([part(0, 4)?, part(4, 6)?, part(6, 8)?], [part(8, 10)?, part(10, 12)?, part(12, 14)?]);
    format!("{}T{}Z", date.join("-"), time.join(":")).parse().ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rcgen::{CertificateParams, KeyPair, date_time_ymd};

    use super::*;

    fn pem(year: i32) -> String {
        let mut params = CertificateParams::new(vec!["root".to_owned()]).unwrap();
        params.not_after = date_time_ymd(year, 3, 9);
        params.self_signed(&KeyPair::generate().unwrap()).unwrap().pem()
    }

    #[test]
    fn the_first_expiry_of_a_bundle_counts() {
        let expiry = |pem: &str| first_expiry(pem).map(|expiry| expiry.to_string());
        assert_eq!(expiry(&pem(2049)).as_deref(), Some("2049-03-09T00:00:00Z"));
        assert_eq!(expiry(&pem(2051)).as_deref(), Some("2051-03-09T00:00:00Z"));
        assert_eq!(expiry(&format!("{}\n# text\n{}", pem(2040), pem(2027))).as_deref(), Some("2027-03-09T00:00:00Z"));
        assert_eq!(expiry("no certificate"), None);
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_certificate_or_not(mut bytes in prop::collection::vec(any::<u8>(), 0..80), at in 0usize..80) {
            _ = not_after(&bytes);
            let mut certificate = CertificateDer::from_pem_slice(pem(2049).as_bytes()).unwrap().to_vec();
            bytes.truncate(4);
            certificate.splice(at..at, bytes);
            _ = not_after(&certificate);
        }
    }
}
