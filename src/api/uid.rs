//! The uid of an object.

use std::fmt;

use super::LONGEST_NAME;

/// The uid of an object. The API server assigns UUIDs; each takes 16 bytes here, because a cluster has many Pods.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Uid {
    /// A UUID in the form in which Kubernetes writes it.
    Uuid([u8; 16]),
    /// Any other text, which is in a reference that a tenant wrote.
    Text(Box<str>),
}

// === impl Uid ===

impl Uid {
    /// Returns `None` for an empty text, and for one that is too long to be a uid.
    pub fn new(text: &str) -> Option<Self> {
        if !(1..=LONGEST_NAME).contains(&text.len()) {
            return None;
        }
        Some(Self::uuid(text).unwrap_or_else(|| Self::Text(text.into())))
    }

    fn uuid(text: &str) -> Option<Self> {
        if text.len() != 36 {
            return None;
        }
        let digits = u128::from_str_radix(&text.replace('-', ""), 16).ok()?;
        let uid = Self::Uuid(digits.to_be_bytes());
        (uid.to_string() == text).then_some(uid)
    }
}

impl fmt::Display for Uid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes = match self {
            Self::Uuid(bytes) => bytes,
            Self::Text(text) => return f.write_str(text),
        };
        for (at, byte) in bytes.iter().enumerate() {
            if matches!(at, 4 | 6 | 8 | 10) {
                f.write_str("-")?;
            }
            write!(f, "{byte:02x}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_uid_is_written_as_it_was_read() {
        let uuid = "0a1b2c3d-4e5f-6789-abcd-ef0123456789";
        for (text, is_uuid) in [
            (uuid, true),
            ("u", false),
            ("0A1B2C3D-4E5F-6789-ABCD-EF0123456789", false),
            ("0a1b2c3d4-e5f-6789-abcd-ef0123456789", false),
            ("+a1b2c3d-4e5f-6789-abcd-ef0123456789", false),
            ("0a1b2c3d-4e5f-6789-abcd-ef012345678é", false),
        ] {
            let uid = Uid::new(text).unwrap();
            assert_eq!((uid.to_string().as_str(), matches!(uid, Uid::Uuid(_))), (text, is_uuid));
        }
        assert_eq!(Uid::new(""), None);
        assert_eq!([253, 254].map(|length| Uid::new(&"u".repeat(length)).is_some()), [true, false]);
    }
}
