//! Maintenance windows: when restarts may begin. Pure.
//!
//! In: `spec.rollout.window`, and what time it is. Out: whether they may, and when that changes. Always holds: a window
//! opens by the clock of its zone and closes after real time; a start that the clock skips is the moment after, one
//! that it has twice is the first; what is denied stays denied; and the next change is looked for day by day, in days
//! that are bounded, whatever the expressions say.

use std::{collections::HashMap, iter, ops::Range};

use jiff::{
    Timestamp, ToSpan,
    civil::Date,
    tz::{TimeZone, TimeZoneDatabase},
};

use super::cron::Cron;
use crate::api::{
    go_duration,
    linkerd_config::{AllowedWindow, DeniedWindow, WindowSpec},
};

/// As many as the schema lets in.
const MOST_ALLOWED: usize = 20;
const MOST_DENIED: usize = 50;
const MINUTE: i128 = 60 * 1_000_000_000;
const DAY: i128 = 24 * 60 * MINUTE;
const LONGEST: i128 = 7 * DAY;
/// As far as one looks: a 29th of February is among so many days, but for those around a century.
const FARTHEST: i128 = 5 * 366 * DAY;
/// What covers an instant began on its day, or on so many before: the longest window's, and one for a clock that is
/// changed.
const DAYS_BEFORE: u8 = 8;

/// Instants, in nanoseconds since 1970.
type Instants = Range<i128>;

/// When restarts may begin.
#[derive(Clone, Debug)]
pub struct Windows {
    zone: TimeZone,
    /// None: always.
    allowed: Vec<Allowed>,
    denied: Vec<Instants>,
}

#[derive(Clone, Debug)]
struct Allowed {
    cron: Cron,
    nanoseconds: i128,
}

/// How it stands at one instant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// Whether restarts may begin.
    pub open: bool,
    /// When that is otherwise for the first time. `None`: as far as one can see, which is years, it stays.
    pub changes: Option<Timestamp>,
}

// === impl Windows ===

impl Windows {
    /// # Errors
    /// The first that cannot be read, and why: a sentence for a person.
    pub fn parse(spec: &WindowSpec) -> Result<Self, String> {
        let WindowSpec { time_zone, allow, deny } = spec;
        for (name, number, most) in [("allow", allow.len(), MOST_ALLOWED), ("deny", deny.len(), MOST_DENIED)] {
            if number > most {
                return Err(format!("{name} has {number} entries, and may have {most}"));
            }
        }
        // Those in the binary, also where the machine has others.
        let zone = TimeZoneDatabase::bundled().get(time_zone).ok().filter(|zone| !zone.is_unknown());
        let zone = zone.ok_or_else(|| format!("timeZone: no time zone has the name {time_zone:?}"))?;
        let allowed =
            allow.iter().enumerate().map(|(at, it)| Allowed::parse(it).map_err(|why| format!("allow[{at}].{why}")));
        let denied = deny.iter().enumerate().map(|(at, it)| denied(it).map_err(|why| format!("deny[{at}].{why}")));
        Ok(Self { zone, allowed: allowed.collect::<Result<_, _>>()?, denied: denied.collect::<Result<_, _>>()? })
    }

    /// Whether restarts may begin now, and when that changes.
    pub fn at(&self, now: Timestamp) -> Window {
        let now = now.as_nanosecond();
        let opens = self.opens(now);
        let open = opens == Some(now);
        let changes = if open { self.closes(now) } else { opens };
        Window { open, changes: changes.and_then(|at| Timestamp::from_nanosecond(at).ok()) }
    }

    /// The first instant from this one on that is open.
    fn opens(&self, now: i128) -> Option<i128> {
        let end = now + FARTHEST;
        let mut at = now;
        // Each turn but the last leaves a denied time behind.
        while at <= end {
            let allowed = self.allowed_from(at, end)?;
            match self.denied.iter().find(|denied| denied.contains(&allowed)) {
                None => return Some(allowed),
                Some(denied) => at = denied.end,
            }
        }
        None
    }

    /// The first instant after this one, which is open, that is not.
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

    /// What windows cover, in the order in which they begin: all that reaches into these instants.
    fn all(&self, from: i128, end: i128) -> impl Iterator<Item = Instants> {
        let now = Timestamp::from_nanosecond(from).unwrap_or_default();
        let first = self.zone.to_datetime(now).date().saturating_sub(i64::from(DAYS_BEFORE).days());
        let days = usize::try_from((end - from) / DAY + i128::from(DAYS_BEFORE) + 2).unwrap_or_default();
        let mut known = HashMap::new();
        iter::successors(Some(first), |date| date.tomorrow().ok())
            .take(days)
            .flat_map(move |date| self.of_day(date, &mut known))
    }

    /// What those windows cover that begin on a day. Days on which the same ones begin differ only in when they are,
    /// unless the clock is changed: `known` has them as of midnight.
    fn of_day(&self, date: Date, known: &mut HashMap<Vec<bool>, Vec<Instants>>) -> Vec<Instants> {
        let today: Vec<bool> = self.allowed.iter().map(|allowed| allowed.cron.is_about(date)).collect();
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

    /// What the windows of a day cover together, by when each of its minutes begins.
    fn covered(&self, today: &[bool], begins: impl Fn(i8, i8) -> Option<i128>) -> Vec<Instants> {
        let mut all: Vec<Instants> = Vec::new();
        for (hour, minute) in (0..24).flat_map(|hour| (0..60).map(move |minute| (hour, minute))) {
            let beginning =
                self.allowed.iter().zip(today).filter(|(it, today)| **today && it.cron.begins_at(hour, minute));
            let Some(longest) = beginning.map(|(allowed, _)| allowed.nanoseconds).max() else { continue };
            let Some(start) = begins(hour, minute) else { continue };
            match all.last_mut() {
                Some(last) if start <= last.end => last.end = last.end.max(start + longest),
                _ => all.push(start..start + longest),
            }
        }
        all
    }

    /// When a day begins that has 24 hours, one after the other.
    fn usual_midnight(&self, date: Date) -> Option<i128> {
        let midnight = self.instant(date, 0, 0)?;
        let is_usual = !self.zone.to_ambiguous_timestamp(date.at(0, 0, 0, 0)).is_ambiguous()
            && self.instant(date, 23, 59)? - midnight == DAY - MINUTE;
        is_usual.then_some(midnight)
    }

    /// When a clock shows this for the first time, or the first moment after it was skipped. `None` beyond the end of
    /// time.
    fn instant(&self, date: Date, hour: i8, minute: i8) -> Option<i128> {
        let shown = date.at(hour, minute, 0, 0);
        let ambiguous = self.zone.to_ambiguous_timestamp(shown);
        // The same where the clock shows it, and where it does not, before and after the gap.
        let (before, after) = (ambiguous.earlier().ok()?, ambiguous.compatible().ok()?);
        let changes = self.zone.following(before).map(|change| change.timestamp()).take_while(|change| *change < after);
        let skipped = changes.into_iter().find(|change| self.zone.to_datetime(*change) > shown);
        Some(skipped.unwrap_or(after).as_nanosecond())
    }
}

// === impl Allowed ===

impl Allowed {
    fn parse(window: &AllowedWindow) -> Result<Self, String> {
        let AllowedWindow { cron, duration } = window;
        let cron = Cron::parse(cron).map_err(|why| format!("cron: {why}"))?;
        let nanoseconds = go_duration::parse(duration).map(i128::from);
        match nanoseconds {
            Some(nanoseconds @ 1..=LONGEST) => Ok(Self { cron, nanoseconds }),
            Some(_) => Err(format!("duration: {duration:?} is not more than nothing and at most seven days, 168h")),
            None => Err(format!("duration: {duration:?} is no duration such as 4h")),
        }
    }
}

fn denied(window: &DeniedWindow) -> Result<Instants, String> {
    let read = |name, text: &str| {
        let time: Option<Timestamp> = text.parse().ok();
        time.map(Timestamp::as_nanosecond)
            .ok_or_else(|| format!("{name}: {text:?} is no time such as 2026-12-20T00:00:00Z"))
    };
    let (from, to) = (read("from", &window.from)?, read("to", &window.to)?);
    if from >= to {
        return Err(format!("to: {:?} is not later than {:?}, from", window.to, window.from));
    }
    Ok(from..to)
}

#[cfg(test)]
#[path = "window_tests.rs"]
mod tests;
