//! Keeps a panic inside the work on one object or one client.
//!
//! In: work on what a tenant or a client wrote. Out: its result, or that it panicked, which is counted. Always holds: the
//! caller drops whatever the work may have left half-changed, and goes on with the next object. Locks are not poisoned,
//! because the process uses those of `parking_lot`.
//!
//! A change of the cluster's state is not contained: with an object that is half in the indexes, later answers would be
//! wrong. Such a panic ends the process, which then lists everything again.

use std::{
    any::Any,
    fmt,
    future::Future,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::atomic::{AtomicU64, Ordering},
};

use futures::{FutureExt, future};

use crate::text::truncated;

/// The maximum length of the message of a panic, which may quote what a tenant wrote.
const LONGEST_MESSAGE: usize = 256;

static CONTAINED: AtomicU64 = AtomicU64::new(0);

/// The message of a panic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Panicked(String);

/// A kind of work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// The decoding or the projection of an object.
    Reading,
    /// The reaction of an observer to a change.
    Observing,
    /// A turn of the publisher for one view.
    Publishing,
    /// The answer to a call of the Destination API or of the Identity API.
    Answering,
    /// The next frame of a stream.
    Streaming,
    Reconciling,
    /// The assessment of a workload for a rollout.
    Assessing,
    /// A round of probes of the proxy injectors.
    Probing,
    /// The configuration of the proxy injector.
    Configuring,
    /// A pass over the certificates of the webhooks.
    Certifying,
    /// An admission review.
    Reviewing,
}

/// Does the work, and catches a panic.
///
/// # Errors
/// When the work panics.
pub fn contain<T>(kind: Work, work: impl FnOnce() -> T) -> Result<T, Panicked> {
    catch_unwind(AssertUnwindSafe(|| {
        begin(kind);
        work()
    }))
    .map_err(|panic| Panicked::new(&*panic))
}

/// Does the work. After a panic, the future is dropped.
///
/// # Errors
/// When the work panics.
pub fn contain_future<T>(kind: Work, work: impl Future<Output = T>) -> impl Future<Output = Result<T, Panicked>> {
    // No `async`: its state would hold the work twice, before and after it is moved to where it is polled.
    let work = future::lazy(move |_| begin(kind)).then(move |()| work);
    AssertUnwindSafe(work).catch_unwind().map(|result| result.map_err(|panic| Panicked::new(&*panic)))
}

/// Returns how many panics were contained since the process started.
pub fn contained() -> u64 {
    CONTAINED.load(Ordering::Relaxed)
}

#[cfg(not(test))]
fn begin(_: Work) {}

#[cfg(test)]
use testing::begin;

// === impl Panicked ===

impl Panicked {
    fn new(panic: &(dyn Any + Send)) -> Self {
        CONTAINED.fetch_add(1, Ordering::Relaxed);
        let message = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
        let message = message.or_else(|| panic.downcast_ref::<String>().cloned());
        Self(truncated(message.unwrap_or_else(|| "no message".to_owned()), LONGEST_MESSAGE))
    }
}

impl fmt::Display for Panicked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "it panicked: {:?}; please report this", self.0)
    }
}

#[cfg(test)]
pub(crate) mod testing {
    use std::cell::Cell;

    use super::Work;

    thread_local! {
        static NEXT: Cell<Option<Work>> = const { Cell::new(None) };
    }

    /// Makes the next work of this kind on this thread panic.
    pub(crate) fn panic_in_next(kind: Work) {
        NEXT.set(Some(kind));
    }

    pub(super) fn begin(kind: Work) {
        if NEXT.get() == Some(kind) {
            NEXT.set(None);
            panic!("out of ink");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_panic_is_the_end_of_one_work_and_is_counted() {
        let before = contained();
        let text = "x".repeat(1_000);
        assert_eq!(contain(Work::Reading, || 7), Ok(7));
        assert_eq!(contain(Work::Reading, || -> u8 { panic!("out of ink") }), Err(Panicked("out of ink".to_owned())));
        assert_eq!(contain(Work::Reading, || -> u8 { panic!("{text}") }), Err(Panicked("x".repeat(256))));
        async fn panics() -> u8 {
            std::panic::panic_any(7_u8)
        }
        assert_eq!(contain_future(Work::Reconciling, panics()).await, Err(Panicked("no message".to_owned())));
        assert_eq!(contain_future(Work::Reconciling, async { 8 }).await, Ok(8));
        assert!(contained() >= before + 3, "other tests count, too");
    }

    #[test]
    fn the_message_of_a_panic_is_one_line() {
        let panicked = contain(Work::Reading, || panic!("a\n\u{1b}[31mb")).unwrap_err();
        assert_eq!(panicked.to_string(), r#"it panicked: "a\n\u{1b}[31mb"; please report this"#);
    }
}
