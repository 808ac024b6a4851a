//! The times at which the operator overwrote another writer of one object. They decide whether it pauses, and whether the
//! other writer keeps undoing its writes.
//!
//! Always holds: the size is bounded.

use std::{collections::VecDeque, time::Duration};

use tokio::time::Instant;

use super::backoff;

/// More overwrites than this within [`WINDOW`] suspend further ones. An installer that runs in a loop causes them too.
const MAX: usize = 5;
const WINDOW: Duration = Duration::from_secs(600);
const BACKOFF_BASE: Duration = Duration::from_secs(10);
const BACKOFF_CAP: Duration = Duration::from_secs(300);

/// The last overwrites of one object.
#[derive(Default)]
pub struct Overwrites(VecDeque<Instant>);

// === impl Overwrites ===

impl Overwrites {
    pub fn note(&mut self) {
        let times = self.recent();
        times.push_back(Instant::now());
        if times.len() > 10 * MAX {
            times.pop_front();
        }
    }

    /// Returns the remaining suspension of overwrites.
    pub fn backoff(&mut self) -> Option<Duration> {
        let times = self.recent();
        let more = times.len().checked_sub(MAX + 1)?;
        let pause = backoff(u32::try_from(more).unwrap_or(u32::MAX), BACKOFF_BASE, BACKOFF_CAP);
        pause.checked_sub(times.back()?.elapsed()).filter(|left| !left.is_zero())
    }

    /// Returns how long the object still counts as contested: until no overwrite was necessary for `WINDOW`, which is
    /// longer than any backoff. `None` if no writer keeps undoing our writes.
    pub fn contested_for(&mut self) -> Option<Duration> {
        let times = self.recent();
        let left = WINDOW.saturating_sub(times.back()?.elapsed());
        (times.len() > MAX).then_some(left)
    }

    /// Returns the times that count. Once there are more than [`MAX`], all count until the last one is older than
    /// [`WINDOW`], so that the backoff does not start again when the first ones become old.
    fn recent(&mut self) -> &mut VecDeque<Instant> {
        let is_old = |time: Option<&Instant>| time.is_some_and(|time| time.elapsed() >= WINDOW);
        let times = &mut self.0;
        if is_old(times.back()) {
            times.clear();
        }
        while times.len() <= MAX && is_old(times.front()) {
            times.pop_front();
        }
        times
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::sleep;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn six_overwrites_in_ten_minutes_suspend_overwrites_and_the_backoff_grows() {
        let mut overwrites = Overwrites::default();
        for _ in 0..5 {
            overwrites.note();
            assert_eq!(overwrites.backoff(), None);
        }
        overwrites.note();
        let first = overwrites.backoff().unwrap();
        assert!(first <= BACKOFF_BASE && first > BACKOFF_BASE / 2, "{first:?}");
        sleep(BACKOFF_BASE).await;
        assert_eq!(overwrites.backoff(), None, "overwrites are resumed");
        overwrites.note();
        assert!(overwrites.backoff().unwrap() > first);
        sleep(WINDOW + BACKOFF_BASE).await;
        assert_eq!(overwrites.backoff(), None);
        overwrites.note();
        assert_eq!(overwrites.backoff(), None, "old overwrites no longer count");
    }

    #[tokio::test(start_paused = true)]
    async fn an_object_is_contested_until_no_overwrite_was_necessary_for_ten_minutes() {
        let mut overwrites = Overwrites::default();
        for _ in 0..6 {
            assert_eq!(overwrites.contested_for(), None);
            overwrites.note();
        }
        assert_eq!(overwrites.contested_for(), Some(WINDOW));
        // The other writer undoes every overwrite after the pause. The pause grows to its cap, and stays there.
        for _ in 0..20 {
            sleep(BACKOFF_CAP).await;
            assert_eq!(overwrites.backoff(), None);
            overwrites.note();
            assert_eq!(overwrites.contested_for(), Some(WINDOW));
        }
        assert!(overwrites.backoff().unwrap() > BACKOFF_CAP.mul_f64(0.8));
        sleep(WINDOW - Duration::from_secs(1)).await;
        assert_eq!(overwrites.contested_for(), Some(Duration::from_secs(1)));
        sleep(Duration::from_secs(1)).await;
        assert_eq!((overwrites.contested_for(), overwrites.backoff()), (None, None));
    }

    #[tokio::test(start_paused = true)]
    async fn rare_overwrites_are_no_contest() {
        let mut overwrites = Overwrites::default();
        for _ in 0..30 {
            overwrites.note();
            assert_eq!((overwrites.contested_for(), overwrites.backoff()), (None, None));
            sleep(WINDOW / 5).await;
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_number_of_remembered_times_is_bounded() {
        let mut overwrites = Overwrites::default();
        (0..1000).for_each(|_| overwrites.note());
        assert_eq!(overwrites.0.len(), 50);
    }
}
