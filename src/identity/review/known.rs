//! The answers about tokens that are under review or were reviewed a moment ago. Pure.
//!
//! In: the hash of a token. Out: the place of its answer, which concurrent reviews of equal tokens share. Always holds:
//! an answer is used again only until its end; the number of places is bounded; no token is kept.

use std::{collections::HashMap, sync::Arc, time::Duration};

use sha2::{Digest, Sha256};
use tokio::{sync::OnceCell, time::Instant};

/// The time for which a positive answer is used again. The API server itself reuses it for as long.
pub(super) const KEPT_POSITIVE: Duration = Duration::from_secs(10);
/// The same for a negative answer.
pub(super) const KEPT_NEGATIVE: Duration = Duration::from_secs(1);
/// The maximum number of places: more than the reviews that wait, and some hundred bytes each.
const PLACES: usize = 20_000;
/// The shortest time between two searches for answers that have ended.
const SEARCH: Duration = Duration::from_secs(1);

/// Identifies a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct ReviewedHash([u8; 32]);

/// The place of an answer.
pub(super) type AnswerPlace<T> = Arc<OnceCell<KnownAnswer<T>>>;

pub(super) struct KnownAnswer<T> {
    pub(super) answer: T,
    /// The answer is not used after this time. Those who waited for it use it nevertheless.
    pub(super) until: Instant,
}

pub(super) struct KnownAnswers<T> {
    places: HashMap<ReviewedHash, AnswerPlace<T>>,
    searched: Option<Instant>,
}

// === impl ReviewedHash ===

impl ReviewedHash {
    pub(super) fn of(token: &str) -> Self {
        Self(Sha256::digest(token).into())
    }
}

// === impl KnownAnswers ===

impl<T> Default for KnownAnswers<T> {
    fn default() -> Self {
        Self { places: HashMap::new(), searched: None }
    }
}

impl<T> KnownAnswers<T> {
    /// Returns the place for the answer about a token, which may be there already; `None` if there are too many.
    pub(super) fn place(&mut self, token: ReviewedHash, now: Instant) -> Option<AnswerPlace<T>> {
        if let Some(known) = self.places.get(&token).filter(|known| is_current(known, now)) {
            return Some(Arc::clone(known));
        }
        if self.places.len() >= PLACES / 2 && self.searched.is_none_or(|last| now - last >= SEARCH) {
            self.searched = Some(now);
            self.places.retain(|_, known| is_current(known, now));
        }
        let has_room = self.places.len() < PLACES || self.places.contains_key(&token);
        has_room.then(|| {
            let place = AnswerPlace::default();
            self.places.insert(token, Arc::clone(&place));
            place
        })
    }
}

/// Whether an answer has not ended, or a call waits for it.
fn is_current<T>(place: &AnswerPlace<T>, now: Instant) -> bool {
    place.get().map_or(Arc::strong_count(place) > 1, |known| now < known.until)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answered(known: &mut KnownAnswers<u8>, token: &str, answer: u8, until: Instant) {
        let place = known.place(ReviewedHash::of(token), Instant::now()).unwrap();
        place.set(KnownAnswer { answer, until }).ok().unwrap();
    }

    #[test]
    fn an_answer_is_used_again_until_its_end() {
        let (mut known, now) = (KnownAnswers::default(), Instant::now());
        answered(&mut known, "a", 1, now + KEPT_POSITIVE);
        let again = |known: &mut KnownAnswers<u8>, token: &str, at| {
            known.place(ReviewedHash::of(token), at).unwrap().get().map(|known| known.answer)
        };
        assert_eq!(again(&mut known, "a", now), Some(1));
        assert_eq!(again(&mut known, "b", now), None);
        assert_eq!(again(&mut known, "a", now + KEPT_POSITIVE), None);
    }

    #[test]
    fn concurrent_reviews_of_equal_tokens_share_a_place() {
        let (mut known, now) = (KnownAnswers::<u8>::default(), Instant::now());
        let first = known.place(ReviewedHash::of("a"), now).unwrap();
        let second = known.place(ReviewedHash::of("a"), now).unwrap();
        assert!(Arc::ptr_eq(&first, &second));
        drop((first, second));
        let third = known.place(ReviewedHash::of("a"), now).unwrap();
        assert!(third.get().is_none(), "the reviews were cancelled");
    }

    #[test]
    fn the_number_of_places_is_bounded_and_those_that_ended_are_forgotten() {
        let (mut known, now) = (KnownAnswers::default(), Instant::now());
        for number in 0..PLACES {
            answered(&mut known, &number.to_string(), 1, now + KEPT_POSITIVE);
        }
        assert!(known.place(ReviewedHash::of("more"), now).is_none());
        assert!(known.place(ReviewedHash::of("7"), now).is_some());
        assert!(known.place(ReviewedHash::of("more"), now + KEPT_POSITIVE).is_some());
        assert_eq!(known.places.len(), 1);
    }
}
