//! Ends a test run in which a test hangs, and names it.
//!
//! * In: the thread of each test that uses a control plane. libtest names the thread after the test.
//! * Out: nothing, until a test runs longer than [`DEADLINE`]. Then the running tests are printed, and the process exits
//!   with an error.
//! * Always: the child processes end with this process, because their supervisors detect it.

use std::{
    io::Write,
    sync::{Mutex, MutexGuard, Once, PoisonError},
    thread::{self, ThreadId},
    time::{Duration, Instant},
};

/// Longer than any test, including the wait for a control plane.
const DEADLINE: Duration = Duration::from_secs(20 * 60);
const INTERVAL: Duration = Duration::from_secs(5);
/// The exit code of a failed run of libtest.
const FAILED: i32 = 101;

static RUNNING: Mutex<Vec<RunningTest>> = Mutex::new(Vec::new());

#[derive(Debug)]
struct RunningTest {
    thread: ThreadId,
    test: String,
    since: Instant,
}

/// Removes the test of this thread when the thread ends.
struct WatchedThread(ThreadId);

/// Watches the test that runs in this thread until the thread ends. Ignores threads that are not named after a test.
pub(crate) fn watch_this_test() {
    thread_local! {
        static REGISTRATION: Option<WatchedThread> = WatchedThread::of_this_thread();
    }
    REGISTRATION.with(|_| ());
}

impl WatchedThread {
    fn of_this_thread() -> Option<Self> {
        static STARTED: Once = Once::new();
        let current = thread::current();
        let test = current.name().filter(|name| name.contains("::"))?;
        STARTED.call_once(|| drop(thread::spawn(end_the_process_after_the_deadline)));
        running().push(RunningTest { thread: current.id(), test: test.to_owned(), since: Instant::now() });
        Some(Self(current.id()))
    }
}

impl Drop for WatchedThread {
    fn drop(&mut self) {
        running().retain(|running| running.thread != self.0);
    }
}

fn end_the_process_after_the_deadline() {
    loop {
        thread::sleep(INTERVAL);
        if let Some(report) = report(&running(), Instant::now()) {
            // libtest captures the output of macros.
            let _ = writeln!(std::io::stderr(), "{report}");
            std::process::exit(FAILED);
        }
    }
}

/// The running tests, the longest first, if one has exceeded the deadline.
fn report(running: &[RunningTest], now: Instant) -> Option<String> {
    let mut tests: Vec<(Duration, &str)> =
        running.iter().map(|test| (now.saturating_duration_since(test.since), test.test.as_str())).collect();
    tests.sort_by(|one, other| other.cmp(one));
    let (longest, name) = tests.first()?;
    let lines: String = tests.iter().map(|(time, test)| format!("\n  {test}: {} s", time.as_secs())).collect();
    (*longest >= DEADLINE).then(|| format!("test {name} hangs, so the run ends here. Running tests:{lines}"))
}

fn running() -> MutexGuard<'static, Vec<RunningTest>> {
    RUNNING.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_report_begins_with_the_test_that_hangs() {
        let begun = Instant::now();
        let test = |test: &str, after: u64| RunningTest {
            thread: thread::current().id(),
            test: test.to_owned(),
            since: begun + Duration::from_secs(after),
        };
        let tests = [test("topic::healthy", 1100), test("topic::hangs", 10)];
        assert_eq!(report(&tests, begun + Duration::from_secs(1209)), None);
        assert_eq!(
            report(&tests, begun + Duration::from_secs(1210)).unwrap(),
            "test topic::hangs hangs, so the run ends here. Running tests:\n  topic::hangs: 1200 s\n  topic::healthy: 110 s"
        );
        assert_eq!(report(&[], begun), None);
    }

    #[test]
    fn a_test_is_watched_until_its_thread_ends() {
        let is_watched = |name: &str| running().iter().any(|running| running.test == name);
        let run = |name: &'static str| {
            let thread = thread::Builder::new().name(name.to_owned()).spawn(move || {
                watch_this_test();
                watch_this_test();
                running().iter().filter(|running| running.test == name).count()
            });
            thread.unwrap().join().unwrap()
        };
        assert_eq!(run("watchdog::a_test"), 1);
        assert!(!is_watched("watchdog::a_test"));
        // The program's main thread, and those of the async runtime.
        assert_eq!(run("tokio-runtime-worker"), 0);
    }
}
