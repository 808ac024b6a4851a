//! The DER of a leaf.
//!
//! In: what is the same in all leaves of an issuer, and the parts that differ. Out: what the issuer signs, and the signed
//! certificate. Always holds: a leaf is not a CA, and has the extensions keyUsage, extKeyUsage, authorityKeyIdentifier and
//! subjectAltName, in this order, and no other one.

use jiff::{Timestamp, civil::DateTime, tz::Offset};

use super::der::{self, DerWriter};

/// The version 3, in its explicit tag.
pub(super) const VERSION: &[u8] = &[0xa0, 0x03, 0x02, 0x01, 0x02];
/// The extension keyUsage: critical, digitalSignature and keyEncipherment.
const KEY_USAGE: &[u8] = &[0x30, 0x0e, 6, 3, 0x55, 0x1d, 0x0f, 1, 1, 0xff, 4, 4, 3, 2, 0x05, 0xa0];
/// The extension extKeyUsage: serverAuth and clientAuth.
const EXTENDED_KEY_USAGE: &[u8] = &[
    0x30, 0x1d, 6, 3, 0x55, 0x1d, 0x25, 4, 0x16, 0x30, 0x14, 6, 8, 0x2b, 6, 1, 5, 5, 7, 3, 1, 6, 8, 0x2b, 6, 1, 5, 5,
    7, 3, 2,
];
// The object identifiers, without tag and length.
const AUTHORITY_KEY_IDENTIFIER: &[u8] = &[0x55, 0x1d, 0x23];
const SUBJECT_ALTERNATIVE_NAME: &[u8] = &[0x55, 0x1d, 0x11];
const COMMON_NAME: &[u8] = &[0x55, 0x04, 0x03];
/// The bytes of a leaf beside the parts that are counted.
const SPARE: usize = 200;

/// What is the same in all leaves of an issuer.
#[derive(Debug)]
pub(crate) struct LeafTemplate {
    /// The AlgorithmIdentifier of the signatures.
    algorithm: Vec<u8>,
    /// The subject of the issuer. Verifiers compare its bytes.
    issuer: Vec<u8>,
    /// All extensions but the last.
    extensions: Vec<u8>,
}

/// What differs between leaves.
pub(crate) struct LeafParts<'a> {
    pub(crate) serial: [u8; 16],
    pub(crate) not_before: Timestamp,
    pub(crate) not_after: Timestamp,
    pub(crate) name: &'a str,
    pub(crate) has_common_name: bool,
    /// The SubjectPublicKeyInfo in DER.
    pub(crate) key_info: &'a [u8],
}

// === impl LeafTemplate ===

impl LeafTemplate {
    pub(crate) fn new(algorithm: &[u8], issuer: &[u8], key_identifier: Option<&[u8]>) -> Self {
        let mut writer = DerWriter::with_capacity(SPARE);
        if let Some(identifier) = key_identifier {
            writer.element(der::context(0), identifier);
            writer.wrap(der::SEQUENCE, 0);
            writer.wrap(der::OCTET_STRING, 0);
            writer.element(der::OBJECT_IDENTIFIER, AUTHORITY_KEY_IDENTIFIER);
            writer.wrap(der::SEQUENCE, 0);
        }
        writer.prepend(EXTENDED_KEY_USAGE);
        writer.prepend(KEY_USAGE);
        Self { algorithm: algorithm.to_vec(), issuer: issuer.to_vec(), extensions: writer.finish() }
    }

    /// Returns what the issuer signs.
    pub(crate) fn to_be_signed(&self, leaf: &LeafParts<'_>) -> Vec<u8> {
        let fixed = self.algorithm.len() + self.issuer.len() + self.extensions.len();
        let mut writer = DerWriter::with_capacity(SPARE + fixed + leaf.key_info.len() + 2 * leaf.name.len());

        subject_alternative_name(&mut writer, leaf);
        writer.prepend(&self.extensions);
        writer.wrap(der::SEQUENCE, 0);
        writer.wrap(der::context_constructed(3), 0);

        writer.prepend(leaf.key_info);

        let position = writer.position();
        if leaf.has_common_name {
            writer.element(der::PRINTABLE_STRING, leaf.name.as_bytes());
            writer.element(der::OBJECT_IDENTIFIER, COMMON_NAME);
            writer.wrap(der::SEQUENCE, position);
            writer.wrap(der::SET, position);
        }
        writer.wrap(der::SEQUENCE, position);

        let position = writer.position();
        for time in [leaf.not_after, leaf.not_before] {
            let (tag, text) = encoded(time);
            writer.element(tag, text.as_bytes());
        }
        writer.wrap(der::SEQUENCE, position);

        writer.prepend(&self.issuer);
        writer.prepend(&self.algorithm);
        writer.element(der::INTEGER, &positive(leaf.serial));
        writer.prepend(VERSION);
        writer.wrap(der::SEQUENCE, 0);
        writer.finish()
    }

    /// Returns the certificate of what was signed.
    pub(crate) fn certificate(&self, signed: &[u8], signature: &[u8]) -> Vec<u8> {
        certificate(&self.algorithm, signed, signature)
    }
}

/// Returns the certificate of what was signed with this algorithm, an AlgorithmIdentifier in DER.
pub(crate) fn certificate(algorithm: &[u8], signed: &[u8], signature: &[u8]) -> Vec<u8> {
    let mut writer = DerWriter::with_capacity(signed.len() + algorithm.len() + signature.len() + 16);
    writer.prepend(signature);
    // No unused bits.
    writer.prepend(&[0]);
    writer.wrap(der::BIT_STRING, 0);
    writer.prepend(algorithm);
    writer.prepend(signed);
    writer.wrap(der::SEQUENCE, 0);
    writer.finish()
}

/// Writes the last extension. RFC 5280 requires that it is critical when the subject is empty.
fn subject_alternative_name(writer: &mut DerWriter, leaf: &LeafParts<'_>) {
    writer.element(der::context(2), leaf.name.as_bytes());
    writer.wrap(der::SEQUENCE, 0);
    writer.wrap(der::OCTET_STRING, 0);
    if !leaf.has_common_name {
        writer.element(der::BOOLEAN, &[0xff]);
    }
    writer.element(der::OBJECT_IDENTIFIER, SUBJECT_ALTERNATIVE_NAME);
    writer.wrap(der::SEQUENCE, 0);
}

/// Returns a serial number of as many bytes that is positive, and has no zeros in front.
pub(crate) fn positive(mut serial: [u8; 16]) -> [u8; 16] {
    serial[0] = serial[0] & 0x7f | 0x40;
    serial
}

/// Returns the tag and the value of a time in DER: UTCTime for the years 1950 to 2049, else GeneralizedTime.
pub(crate) fn encoded(time: Timestamp) -> (u8, String) {
    let time: DateTime = Offset::UTC.to_datetime(time);
    let (date, clock) = (time.date(), time.time());
    let (year, month, day) = (date.year(), date.month(), date.day());
    let rest = format!("{month:02}{day:02}{:02}{:02}{:02}Z", clock.hour(), clock.minute(), clock.second());
    if (1950..2050).contains(&year) {
        (der::UTC_TIME, format!("{:02}{rest}", year % 100))
    } else {
        (der::GENERALIZED_TIME, format!("{year:04}{rest}"))
    }
}

#[cfg(test)]
mod tests {
    use super::{
        der::{GENERALIZED_TIME, UTC_TIME},
        *,
    };

    #[test]
    fn a_time_is_a_utc_time_until_2049_and_then_a_generalized_time() {
        for (text, tag, expected) in [
            ("1949-12-31T23:59:59Z", GENERALIZED_TIME, "19491231235959Z"),
            ("1950-01-01T00:00:00Z", UTC_TIME, "500101000000Z"),
            ("2009-02-03T04:05:06Z", UTC_TIME, "090203040506Z"),
            ("2049-12-31T23:59:59Z", UTC_TIME, "491231235959Z"),
            ("2050-01-01T00:00:00Z", GENERALIZED_TIME, "20500101000000Z"),
            ("9999-01-01T00:00:00Z", GENERALIZED_TIME, "99990101000000Z"),
        ] {
            assert_eq!(encoded(text.parse().unwrap()), (tag, expected.to_owned()));
        }
    }
}
