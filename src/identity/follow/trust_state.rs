//! The trust state: which roots all proxies trust.
//!
//! In: a file, which the controller of the trust anchors writes. Out: whether a new issuer is held. Always holds: without
//! a file, or with one that is older than [`FRESH`], no issuer is held for the first time; a file that cannot be read
//! leaves the last state.

use std::{fs, io, path::PathBuf};

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Deserializer, de::Error};
use tracing::warn;

use super::files::contents;
use crate::{identity::validity::LeafLifetime, text::hex};

/// How old a state may be. It may be as far in the future, because clocks differ.
const FRESH: SignedDuration = SignedDuration::from_mins(10);

/// The content of the file, in JSON. Further fields are ignored.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct TrustState {
    /// When it was written, by RFC 3339.
    #[serde(deserialize_with = "time")]
    time: Timestamp,
    /// The SHA-256 of each root certificate that all proxies trust, in hexadecimal digits.
    #[serde(deserialize_with = "digests")]
    trusted_by_all: Vec<String>,
}

/// Follows the file.
pub(in crate::identity) struct TrustGuard {
    path: PathBuf,
    lifetime: LeafLifetime,
    /// What was read last, or why it could not be read; `None` without a file.
    read: Option<Result<Vec<u8>, String>>,
    state: Option<TrustState>,
}

// === impl TrustGuard ===

impl TrustGuard {
    /// `lifetime` is that of the certificates that are issued.
    pub(in crate::identity) fn new(path: PathBuf, lifetime: LeafLifetime) -> Self {
        Self { path, lifetime, read: None, state: None }
    }

    /// Reads the file, which is small. Returns whether there is another state, or none any more.
    pub(super) fn has_changed(&mut self) -> bool {
        let path = &self.path;
        let is_absent = fs::metadata(path).is_err_and(|error| error.kind() == io::ErrorKind::NotFound);
        let read = (!is_absent).then(|| contents(path));
        if self.read == read {
            return false;
        }
        let parsed = read.as_ref().map(|read| {
            let text = read.as_ref().map_err(Clone::clone)?;
            serde_json::from_slice(text).map_err(|error| format!("{} has no trust state: {error}", path.display()))
        });
        self.read = read;
        match parsed.transpose() {
            Ok(state) => {
                self.state = state;
                true
            }
            Err(why) => {
                warn!("{why}; the last trust state stays in use");
                false
            }
        }
    }

    /// Whether a fresh state has none of these roots, which are the SHA-256 of certificates.
    pub(super) fn refuses(&self, roots: &[[u8; 32]], now: Timestamp) -> bool {
        let fresh = self.state.as_ref().filter(|state| now.duration_since(state.time).abs() <= FRESH);
        fresh.is_some_and(|state| !roots.iter().any(|root| state.trusted_by_all.contains(&hex(root))))
    }

    /// Whether an issuer with this end is too near to it for two lifetimes of certificates.
    pub(super) fn is_near(&self, end: Timestamp, now: Timestamp) -> bool {
        let once = self.lifetime.at(now).not_after;
        end < self.lifetime.at(once).not_after
    }
}

fn time<'de, D: Deserializer<'de>>(text: D) -> Result<Timestamp, D::Error> {
    String::deserialize(text)?.parse().map_err(D::Error::custom)
}

fn digests<'de, D: Deserializer<'de>>(list: D) -> Result<Vec<String>, D::Error> {
    let digests: Vec<String> = Vec::deserialize(list)?;
    let is_digest = |text: &&String| text.len() == 64 && text.bytes().all(|digit| digit.is_ascii_hexdigit());
    match digests.iter().find(|text| !is_digest(text)) {
        Some(other) => Err(D::Error::custom(format!("{other:?} is not a SHA-256 in hexadecimal digits"))),
        None => Ok(digests.into_iter().map(|digest| digest.to_ascii_lowercase()).collect()),
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::testing::LoggedLines;

    const ROOT: [u8; 32] = [0xab; 32];
    const OTHER: [u8; 32] = [0x01; 32];

    fn at(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    fn state(time: &str, digest: &str) -> String {
        format!(r#"{{"time": "{time}", "trustedByAll": ["{digest}"], "presentedByAny": []}}"#)
    }

    fn guard_of(path: &Path) -> TrustGuard {
        let lifetime = LeafLifetime::new(SignedDuration::from_hours(24), SignedDuration::from_secs(20));
        TrustGuard::new(path.to_owned(), lifetime)
    }

    /// A guard that has read this text.
    fn guard(path: &Path, text: &str) -> TrustGuard {
        fs::write(path, text).unwrap();
        let mut guard = guard_of(path);
        assert!(guard.has_changed());
        guard
    }

    #[test]
    fn an_issuer_is_refused_that_reaches_no_root_that_all_proxies_trust() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("state.json");
        let now = at("2026-11-28T10:00:00Z");
        for digest in ["ab".repeat(32), "AB".repeat(32)] {
            let guard = guard(&path, &state("2026-11-28T09:59:00Z", &digest));
            assert!(!guard.refuses(&[ROOT], now));
            assert!(!guard.refuses(&[OTHER, ROOT], now), "a bridge reaches two roots");
            assert!(guard.refuses(&[OTHER], now));
        }
        let nothing = guard(&path, r#"{"time": "2026-11-28T11:59:00+02:00", "trustedByAll": []}"#);
        assert!(nothing.refuses(&[ROOT], now));
    }

    #[test]
    fn a_state_counts_for_ten_minutes_and_no_state_refuses_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let guard = guard(&folder.path().join("state.json"), &state("2026-11-28T10:00:00Z", &"01".repeat(32)));
        for (time, expected) in [
            ("2026-11-28T10:10:00Z", true),
            ("2026-11-28T10:10:01Z", false),
            ("2026-11-28T09:50:00Z", true),
            ("2026-11-28T09:49:59Z", false),
        ] {
            assert_eq!(guard.refuses(&[ROOT], at(time)), expected, "{time}");
        }
        let mut without = guard_of(&folder.path().join("other.json"));
        assert!(!without.has_changed());
        assert!(!without.refuses(&[ROOT], at("2026-11-28T10:00:00Z")));
    }

    #[test]
    fn a_file_that_cannot_be_read_leaves_the_last_state_and_one_that_is_removed_does_not() {
        let (log, folder) = (LoggedLines::record(), tempfile::tempdir().unwrap());
        let path = folder.path().join("state.json");
        let now = at("2026-11-28T10:00:00Z");
        let mut guard = guard(&path, &state("2026-11-28T10:00:00Z", &"01".repeat(32)));
        for text in [
            "",
            r#"{"time": "2026-11-28T10:00:00Z"}"#,
            r#"{"time": "today", "trustedByAll": []}"#,
            r#"{"time": "2026-11-28T10:00:00Z", "trustedByAll": ["ab"]}"#,
        ] {
            fs::write(&path, text).unwrap();
            for _ in 0..2 {
                assert!(!guard.has_changed() && guard.refuses(&[ROOT], now), "{text}");
            }
        }
        assert_eq!(log.with("has no trust state").len(), 4);
        fs::remove_file(&path).unwrap();
        assert!(guard.has_changed() && !guard.refuses(&[ROOT], now));
    }

    #[test]
    fn an_end_is_near_when_less_than_two_lifetimes_with_their_allowance_are_left() {
        let guard = guard_of(Path::new(""));
        let now = at("2026-11-28T10:00:00Z");
        assert!(!guard.is_near(at("2026-11-30T10:00:40Z"), now));
        assert!(guard.is_near(at("2026-11-30T10:00:39Z"), now));
    }
}
