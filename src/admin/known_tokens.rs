//! The tokens whose reviews are known. Pure.
//!
//! * In: digests of tokens, verdicts, the time. Out: a verdict that is still valid.
//! * Always: no token is kept, only its digest; the number of tokens is bounded, and a refused one never replaces one that
//!   is permitted, so that invented tokens do not displace the token of Prometheus.

use std::{collections::HashMap, time::Duration};

use sha2::{Digest, Sha256};
use tokio::time::Instant;

/// For how long a verdict is used again. The one of a token that is permitted may outlive the permission as long.
const PERMITTED: Duration = Duration::from_secs(60);
const REFUSED: Duration = Duration::from_secs(10);
/// For how long a token that was permitted is preferred to unknown ones, and permitted while no review succeeds: the
/// metrics matter most during an outage of the API server. As long as the tokens of Pods live by default.
const REMEMBERED: Duration = Duration::from_secs(3600);
/// The largest number of tokens.
const MOST: usize = 256;

/// What the reviews of a token say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TokenVerdict {
    Permitted,
    /// It is no token of the cluster, or has expired.
    Unauthenticated,
    /// Its user may not read the metrics.
    Forbidden,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct TokenDigest([u8; 32]);

#[derive(Default)]
pub(super) struct KnownTokens(HashMap<TokenDigest, (TokenVerdict, Instant)>);

// === impl TokenDigest ===

impl TokenDigest {
    pub(super) fn of(token: &str) -> Self {
        Self(Sha256::digest(token).into())
    }
}

// === impl KnownTokens ===

impl KnownTokens {
    /// Returns the verdict about a token, if it is still valid.
    pub(super) fn verdict(&self, token: TokenDigest, now: Instant) -> Option<TokenVerdict> {
        let (verdict, since) = *self.0.get(&token)?;
        let valid = if verdict == TokenVerdict::Permitted { PERMITTED } else { REFUSED };
        (now < since + valid).then_some(verdict)
    }

    /// Returns whether the last verdict about a token permitted it, not long ago.
    pub(super) fn was_permitted(&self, token: TokenDigest, now: Instant) -> bool {
        self.0
            .get(&token)
            .is_some_and(|&(verdict, since)| verdict == TokenVerdict::Permitted && now < since + REMEMBERED)
    }

    pub(super) fn insert(&mut self, token: TokenDigest, verdict: TokenVerdict, now: Instant) {
        self.0.remove(&token);
        if self.0.len() >= MOST {
            // A refused token before a permitted one, and the oldest first.
            let oldest =
                self.0.iter().min_by_key(|&(_, &(verdict, since))| (verdict == TokenVerdict::Permitted, since));
            let Some((&oldest, &(replaced, _))) = oldest else { return };
            if replaced == TokenVerdict::Permitted && verdict != TokenVerdict::Permitted {
                return;
            }
            self.0.remove(&oldest);
        }
        self.0.insert(token, (verdict, now));
    }
}

#[cfg(test)]
mod tests {
    use super::{TokenVerdict::*, *};

    fn token(number: usize) -> TokenDigest {
        TokenDigest::of(&number.to_string())
    }

    fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn a_verdict_is_used_for_a_minute_and_a_refusal_for_ten_seconds() {
        let (mut known, start) = (KnownTokens::default(), Instant::now());
        for (number, verdict, valid) in [(1, Permitted, 60), (2, Unauthenticated, 10), (3, Forbidden, 10)] {
            known.insert(token(number), verdict, start);
            assert_eq!(known.verdict(token(number), start + seconds(valid - 1)), Some(verdict));
            assert_eq!(known.verdict(token(number), start + seconds(valid)), None);
        }
        assert_eq!(known.verdict(token(4), start), None);
    }

    #[test]
    fn a_permission_is_remembered_for_an_hour_unless_the_token_is_refused() {
        let (mut known, start) = (KnownTokens::default(), Instant::now());
        known.insert(token(1), Permitted, start);
        known.insert(token(2), Permitted, start);
        known.insert(token(2), Unauthenticated, start + seconds(61));
        let was_permitted = |number, after| known.was_permitted(token(number), start + seconds(after));
        assert!(was_permitted(1, 3599) && !was_permitted(1, 3600));
        assert!(!was_permitted(2, 61) && !was_permitted(3, 0));
    }

    #[test]
    fn invented_tokens_displace_each_other_and_no_permitted_one() {
        let (mut known, start) = (KnownTokens::default(), Instant::now());
        known.insert(token(0), Permitted, start);
        for number in 1..10 * MOST {
            known.insert(token(number), Unauthenticated, start + Duration::from_millis(number as u64));
        }
        assert_eq!(known.0.len(), MOST);
        assert_eq!(known.verdict(token(0), start + seconds(5)), Some(Permitted));
        let first = token(10 * MOST - MOST + 1);
        assert_eq!(known.verdict(first, start + seconds(5)), Some(Unauthenticated), "the oldest ones are displaced");

        let mut full = KnownTokens::default();
        for number in 0..MOST {
            full.insert(token(number), Permitted, start);
        }
        full.insert(token(MOST), Forbidden, start);
        assert_eq!(full.verdict(token(MOST), start), None);
        full.insert(token(MOST), Permitted, start + seconds(1));
        assert_eq!((full.verdict(token(MOST), start + seconds(1)), full.0.len()), (Some(Permitted), MOST));
    }
}
