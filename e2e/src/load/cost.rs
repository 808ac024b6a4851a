//! The CPU cost of threads, processes and cores, from the kernel's scheduler.
//!
//! * In: a thread, a process or a core. Out: its running time, and the time it was runnable but waited for a core: a
//!   measurement is less reliable if either side waited.

use std::{
    fs,
    ops::{AddAssign, Sub},
    time::Duration,
};

use anyhow::{Context, Result};

/// The cost of threads since their start.
#[derive(Clone, Copy, Debug, Default)]
pub struct Cost {
    pub ran: Duration,
    /// Time spent runnable, waiting for a core.
    pub waited: Duration,
}

/// The time of a core, in ticks since boot.
#[derive(Clone, Copy, Debug, Default)]
pub struct CoreTime {
    pub busy: u64,
    pub all: u64,
}

// === impl Cost ===

impl Cost {
    pub(super) fn of_thread(process: u32, thread: u32) -> Result<Self> {
        let path = format!("/proc/{process}/task/{thread}/schedstat");
        let text = fs::read_to_string(&path).with_context(|| format!("reading {path}"))?;
        parse(&text).with_context(|| format!("{path} has an unexpected format: {text:?}"))
    }

    /// The cost of the calling thread.
    ///
    /// # Errors
    /// Fails when `/proc` cannot be read.
    pub fn of_this_thread() -> Result<Self> {
        Self::of_thread(std::process::id(), rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs())
    }

    /// The cost of all current threads of a process. It falls when a thread ends.
    ///
    /// # Errors
    /// Fails when the process does not exist.
    pub fn of_process(process: u32) -> Result<Self> {
        let path = format!("/proc/{process}/task");
        let threads = fs::read_dir(&path).with_context(|| format!("reading {path}"))?;
        let mut all = Self::default();
        for thread in threads.flatten() {
            let thread: u32 = thread.file_name().to_string_lossy().parse()?;
            // Skips a thread that has ended.
            if let Ok(cost) = Self::of_thread(process, thread) {
                all += cost;
            }
        }
        Ok(all)
    }
}

impl Sub for Cost {
    type Output = Self;

    fn sub(self, before: Self) -> Self {
        Self { ran: self.ran.saturating_sub(before.ran), waited: self.waited.saturating_sub(before.waited) }
    }
}

impl AddAssign for Cost {
    fn add_assign(&mut self, other: Self) {
        self.ran += other.ran;
        self.waited += other.waited;
    }
}

/// Nanoseconds on a core, nanoseconds waiting for one, time slices.
fn parse(schedstat: &str) -> Option<Cost> {
    let mut numbers = schedstat.split_whitespace().map(str::parse);
    let mut next = || numbers.next()?.ok().map(Duration::from_nanos);
    Some(Cost { ran: next()?, waited: next()? })
}

// === impl CoreTime ===

impl CoreTime {
    /// # Errors
    /// Fails when the core does not exist.
    pub fn of(core: usize) -> Result<Self> {
        let text = fs::read_to_string("/proc/stat")?;
        let name = format!("cpu{core} ");
        let line = text.lines().find_map(|line| line.strip_prefix(&name)).context("/proc/stat has no such core")?;
        // User, nice, system, idle, iowait, irq, softirq, steal; guest time is included in user.
        let ticks: Vec<u64> = line.split_whitespace().take(8).map(str::parse).collect::<Result<_, _>>()?;
        let all = ticks.iter().sum();
        let idle: u64 = ticks.iter().skip(3).take(2).sum();
        Ok(Self { busy: all - idle, all })
    }

    /// 0 is idle, 1 is fully used.
    pub fn busy_share(self) -> f64 {
        #[allow(clippy::cast_precision_loss, reason = "ticks of one measurement")]
        if self.all == 0 { 0.0 } else { self.busy as f64 / self.all as f64 }
    }
}

impl Sub for CoreTime {
    type Output = Self;

    fn sub(self, before: Self) -> Self {
        Self { busy: self.busy.saturating_sub(before.busy), all: self.all.saturating_sub(before.all) }
    }
}

impl AddAssign for CoreTime {
    fn add_assign(&mut self, other: Self) {
        self.busy += other.busy;
        self.all += other.all;
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    #[test]
    fn the_schedulers_line_is_parsed() {
        let cost = parse("1500000 2000 7\n").unwrap();
        assert_eq!((cost.ran, cost.waited), (Duration::from_micros(1500), Duration::from_micros(2)));
        assert!(parse("").is_none());
    }

    /// The test measures its own thread: the cost of a process falls when one of its threads ends, as those of other
    /// tests do.
    #[test]
    fn a_busy_thread_has_a_cost() {
        let path = fs::read_link("/proc/thread-self").unwrap();
        let thread: u32 = path.file_name().unwrap().to_str().unwrap().parse().unwrap();
        let ran = || Cost::of_thread(std::process::id(), thread).unwrap().ran;
        let (before, deadline) = (ran(), Instant::now() + Duration::from_secs(30));
        while ran() - before < Duration::from_millis(5) {
            assert!(Instant::now() < deadline, "a busy thread ran for {:?} in 30 s", ran() - before);
        }
    }

    #[test]
    fn a_core_is_busy_for_a_share_of_its_time() {
        let core = CoreTime::of(0).unwrap();
        assert!(core.all >= core.busy && core.busy > 0, "{core:?}");
        assert!((CoreTime { busy: 1, all: 4 }.busy_share() - 0.25).abs() < f64::EPSILON);
        assert!(CoreTime::default().busy_share().abs() < f64::EPSILON);
    }
}
