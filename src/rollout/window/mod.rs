//! Maintenance windows: when restarts may begin. Pure.
//!
//! In: `spec.rollout.window`, and the time. Out: whether restarts may begin, and when that changes. Always holds:
//! - a window opens by the clock of its time zone, and closes after its duration in elapsed time;
//! - a start that the clock skips moves to the end of the gap; of a start that the clock repeats, only the first
//!   counts;
//! - a denied period overrides every allowed window;
//! - for any expressions, the search for the next change visits a bounded number of days.

mod cron;

use std::{collections::HashMap, iter, ops::Range};

use jiff::{
    Timestamp, ToSpan,
    civil::Date,
    tz::{TimeZone, TimeZoneDatabase},
};

use self::cron::Cron;
use crate::{
    api::linkerd_config::{AllowedWindow, DeniedWindow, WindowSpec},
    go,
};

/// The limits of the schema.
const MOST_ALLOWED: usize = 20;
const MOST_DENIED: usize = 50;
const MINUTE: i128 = 60 * 1_000_000_000;
const DAY: i128 = 24 * 60 * MINUTE;
const LONGEST: i128 = 7 * DAY;
/// The range of the search. It includes a 29th of February, except around the turn of most centuries.
const FARTHEST: i128 = 5 * 366 * DAY;
/// A window that covers an instant started on the same day or at most this many days before: the length of the longest
/// window, and one day for a clock change.
const DAYS_BEFORE: u8 = 8;

/// A range of instants, in nanoseconds since 1970.
type Instants = Range<i128>;

/// The periods in which restarts may begin.
#[derive(Clone, Debug)]
pub struct MaintenanceWindows {
    zone: TimeZone,
    /// Empty: restarts are always allowed.
    allowed: Vec<Allowed>,
    denied: Vec<Instants>,
}

#[derive(Clone, Debug)]
struct Allowed {
    cron: Cron,
    nanoseconds: i128,
}

/// Whether restarts may begin at one instant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WindowState {
    /// Whether restarts may begin.
    pub open: bool,
    /// The next change; `None` if the state does not change within five years.
    pub changes: Option<Timestamp>,
}

/// The windows of a target with their last state, which is cached because its end may need a search through years.
#[derive(Default)]
pub(super) struct WindowCache {
    windows: Option<MaintenanceWindows>,
    /// The state, and the time it was computed for.
    last: Option<(WindowState, Timestamp)>,
}

// === impl MaintenanceWindows ===

impl MaintenanceWindows {
    /// # Errors
    /// When a window is invalid; the error names the window and explains why.
    pub fn parse(spec: &WindowSpec) -> Result<Self, String> {
        let WindowSpec { time_zone, allow, deny } = spec;
        for (name, number, most) in [("allow", allow.len(), MOST_ALLOWED), ("deny", deny.len(), MOST_DENIED)] {
            if number > most {
                return Err(format!("{name} has {number} entries; at most {most} are allowed"));
            }
        }
        // Uses the time zone data in the binary, even if the system has other data.
        let zone = TimeZoneDatabase::bundled().get(time_zone).ok().filter(|zone| !zone.is_unknown());
        let zone = zone.ok_or_else(|| format!("timeZone: unknown time zone {time_zone:?}"))?;
        let allowed =
            allow.iter().enumerate().map(|(at, it)| Allowed::parse(it).map_err(|why| format!("allow[{at}].{why}")));
        let denied = deny.iter().enumerate().map(|(at, it)| denied(it).map_err(|why| format!("deny[{at}].{why}")));
        Ok(Self { zone, allowed: allowed.collect::<Result<_, _>>()?, denied: denied.collect::<Result<_, _>>()? })
    }

    /// Returns whether restarts may begin now, and when that changes.
    pub fn at(&self, now: Timestamp) -> WindowState {
        let now = now.as_nanosecond();
        let opens = self.opens(now);
        let open = opens == Some(now);
        let changes = if open { self.closes(now) } else { opens };
        WindowState { open, changes: changes.and_then(|at| Timestamp::from_nanosecond(at).ok()) }
    }

    /// Returns the first open instant at or after `now`.
    fn opens(&self, now: i128) -> Option<i128> {
        let end = now + FARTHEST;
        let mut at = now;
        // Each iteration except the last skips a denied period.
        while at <= end {
            let allowed = self.allowed_from(at, end)?;
            match self.denied.iter().find(|denied| denied.contains(&allowed)) {
                None => return Some(allowed),
                Some(denied) => at = denied.end,
            }
        }
        None
    }

    /// Returns the first closed instant after `now`, which must be open.
    fn closes(&self, now: i128) -> Option<i128> {
        let denied = self.denied.iter().map(|denied| denied.start).filter(|start| *start > now);
        denied.chain(self.allowed_until(now, now + FARTHEST)).min()
    }

    fn allowed_from(&self, at: i128, end: i128) -> Option<i128> {
        if self.allowed.is_empty() {
            return Some(at);
        }
        self.all(at, end).find(|covered| covered.end > at).map(|covered| covered.start.max(at))
    }

    fn allowed_until(&self, at: i128, end: i128) -> Option<i128> {
        if self.allowed.is_empty() {
            return None;
        }
        let mut until = at;
        for covered in self.all(at, end) {
            if covered.start > until {
                return Some(until);
            }
            until = until.max(covered.end);
        }
        Some(until).filter(|until| *until < end)
    }

    /// Returns the ranges that allowed windows cover, ordered by their start: at least those that overlap `from..end`.
    fn all(&self, from: i128, end: i128) -> impl Iterator<Item = Instants> {
        let now = Timestamp::from_nanosecond(from).unwrap_or_default();
        let first = self.zone.to_datetime(now).date().saturating_sub(i64::from(DAYS_BEFORE).days());
        let days = usize::try_from((end - from) / DAY + i128::from(DAYS_BEFORE) + 2).unwrap_or_default();
        let mut known = HashMap::new();
        iter::successors(Some(first), |date| date.tomorrow().ok())
            .take(days)
            .flat_map(move |date| self.of_day(date, &mut known))
    }

    /// Returns the ranges that the windows of a day cover. Days with the same windows differ only by their midnight,
    /// unless the clock changes, so `known` caches the ranges relative to midnight.
    fn of_day(&self, date: Date, known: &mut HashMap<Vec<bool>, Vec<Instants>>) -> Vec<Instants> {
        let today: Vec<bool> = self.allowed.iter().map(|allowed| allowed.cron.matches_day(date)).collect();
        if !today.contains(&true) {
            return Vec::new();
        }
        let Some(midnight) = self.usual_midnight(date) else {
            return self.covered(&today, |hour, minute| self.instant(date, hour, minute));
        };
        let since_midnight = |hour, minute| Some((i128::from(hour) * 60 + i128::from(minute)) * MINUTE);
        let covered = known.entry(today).or_insert_with_key(|today| self.covered(today, since_midnight));
        covered.iter().map(|covered| midnight + covered.start..midnight + covered.end).collect()
    }

    /// Returns the ranges that the windows of a day cover together. `begins` returns when a minute starts.
    fn covered(&self, today: &[bool], begins: impl Fn(i8, i8) -> Option<i128>) -> Vec<Instants> {
        let mut all: Vec<Instants> = Vec::new();
        for (hour, minute) in (0..24).flat_map(|hour| (0..60).map(move |minute| (hour, minute))) {
            let beginning =
                self.allowed.iter().zip(today).filter(|(it, today)| **today && it.cron.matches_minute(hour, minute));
            let Some(longest) = beginning.map(|(allowed, _)| allowed.nanoseconds).max() else { continue };
            let Some(start) = begins(hour, minute) else { continue };
            match all.last_mut() {
                Some(last) if start <= last.end => last.end = last.end.max(start + longest),
                _ => all.push(start..start + longest),
            }
        }
        all
    }

    /// Returns the start of a day; `None` if the clock changes on that day.
    fn usual_midnight(&self, date: Date) -> Option<i128> {
        let midnight = self.instant(date, 0, 0)?;
        let is_usual = !self.zone.to_ambiguous_timestamp(date.at(0, 0, 0, 0)).is_ambiguous()
            && self.instant(date, 23, 59)? - midnight == DAY - MINUTE;
        is_usual.then_some(midnight)
    }

    /// Returns when the clock first shows this time, or the end of the gap that skips it. `None` outside of the range
    /// of timestamps.
    fn instant(&self, date: Date, hour: i8, minute: i8) -> Option<i128> {
        let shown = date.at(hour, minute, 0, 0);
        let ambiguous = self.zone.to_ambiguous_timestamp(shown);
        // Equal if the clock shows the time; otherwise one is before the gap and one after it.
        let (before, after) = (ambiguous.earlier().ok()?, ambiguous.compatible().ok()?);
        let changes = self.zone.following(before).map(|change| change.timestamp()).take_while(|change| *change < after);
        let skipped = changes.into_iter().find(|change| self.zone.to_datetime(*change) > shown);
        Some(skipped.unwrap_or(after).as_nanosecond())
    }
}

// === impl WindowCache ===

impl WindowCache {
    /// Creates a cache. Invalid windows count as absent, because the plan rejects their resource.
    pub(super) fn new(spec: Option<&WindowSpec>) -> Self {
        Self { windows: spec.and_then(|spec| MaintenanceWindows::parse(spec).ok()), last: None }
    }

    /// Returns the state of the windows; `None` without windows.
    pub(super) fn at(&mut self, now: Timestamp) -> Option<WindowState> {
        let holds =
            |(state, at): &(WindowState, Timestamp)| *at <= now && state.changes.is_none_or(|changes| now < changes);
        if !self.last.as_ref().is_some_and(holds) {
            self.last = self.windows.as_ref().map(|windows| (windows.at(now), now));
        }
        self.last.map(|(state, _)| state)
    }
}

// === impl Allowed ===

impl Allowed {
    fn parse(window: &AllowedWindow) -> Result<Self, String> {
        let AllowedWindow { cron, duration } = window;
        let cron = Cron::parse(cron).map_err(|why| format!("cron: {why}"))?;
        let nanoseconds = go::duration::parse(duration).map(i128::from);
        match nanoseconds {
            Some(nanoseconds @ 1..=LONGEST) => Ok(Self { cron, nanoseconds }),
            Some(_) => Err(format!("duration: {duration:?} must be positive and at most seven days (168h)")),
            None => Err(format!("duration: {duration:?} is not a duration such as 4h")),
        }
    }
}

fn denied(window: &DeniedWindow) -> Result<Instants, String> {
    let read = |name, text: &str| {
        let time: Option<Timestamp> = text.parse().ok();
        time.map(Timestamp::as_nanosecond)
            .ok_or_else(|| format!("{name}: {text:?} is not a time such as 2026-12-20T00:00:00Z"))
    };
    let (from, to) = (read("from", &window.from)?, read("to", &window.to)?);
    if from >= to {
        return Err(format!("to: {:?} must be later than from, which is {:?}", window.to, window.from));
    }
    Ok(from..to)
}

#[cfg(test)]
#[path = "mod_tests.rs"]
mod tests;
