//! The tiles of the page: each has one value, and lines below it. Pure.
//!
//! In: the summary of a LinkerdConfig, counts, Leases, the expiry of the certificate, the time. Out: texts, each with
//! its tone. Always holds: the tone is decided here and not in the browser, and a text says what its color says; what
//! is not known is not shown as good.

use std::{collections::BTreeMap, time::Duration};

use k8s_openapi::{apimachinery::pkg::apis::meta::v1::Condition, jiff::Timestamp};
use serde::Serialize;

use super::{external_workloads::ExternalWorkloadCounts, overview::LeaseRow};
use crate::{
    api::linkerd_config::RolloutPods,
    summary::{Attention, ConfigSummary, RolloutSummary, rounded},
    text::counted,
};

/// A certificate that ends sooner should have been renewed.
const SOON: Duration = Duration::from_secs(7 * 24 * 3600);
const DAY: Duration = Duration::from_secs(24 * 3600);
/// The length of the suffix that makes the identity of a replica unique.
const SUFFIX: usize = 16;

/// The color of a text, or of a part of a bar.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Tone {
    Plain,
    Quiet,
    Good,
    Wait,
    Bad,
}

#[derive(Debug, PartialEq, Eq, Serialize)]
pub(super) struct Tile {
    name: &'static str,
    value: String,
    tone: Tone,
    /// The parts of the whole, in the order in which they are drawn. Empty without a bar.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    bar: Vec<BarPart>,
    lines: Vec<TileLine>,
}

#[derive(Debug, PartialEq, Eq, Serialize)]
struct BarPart {
    count: i64,
    tone: Tone,
}

#[derive(Debug, PartialEq, Eq, Serialize)]
struct TileLine {
    text: String,
    tone: Tone,
}

// === impl Tile ===

impl Tile {
    fn new(name: &'static str, value: impl Into<String>, tone: Tone) -> Self {
        Self { name, value: value.into(), tone, bar: Vec::new(), lines: Vec::new() }
    }

    fn line(mut self, tone: Tone, text: impl Into<String>) -> Self {
        self.lines.push(TileLine { text: text.into(), tone });
        self
    }

    /// Adds a line for a count above zero.
    fn count(self, tone: Tone, count: i64, text: impl FnOnce(usize) -> String) -> Self {
        match usize::try_from(count) {
            Ok(count @ 1..) => self.line(tone, text(count)),
            _ => self,
        }
    }

    fn bar(mut self, parts: impl IntoIterator<Item = (i64, Tone)>) -> Self {
        self.bar =
            parts.into_iter().filter(|(count, _)| *count > 0).map(|(count, tone)| BarPart { count, tone }).collect();
        self
    }
}

/// Returns the tiles of a LinkerdConfig: configuration, rollout and proxies.
pub(super) fn of_config(summary: &ConfigSummary, conditions: &[Condition], now: Timestamp) -> [Tile; 3] {
    let rollout = summary.rollout.as_ref();
    [configuration(summary, conditions, now), of_rollout(rollout, now), of_proxies(rollout.map(|it| it.pods))]
}

/// Returns the same tiles if there is no LinkerdConfig.
pub(super) fn without_config() -> [Tile; 3] {
    let none = Tile::new("Configuration", "None", Tone::Quiet).line(Tone::Quiet, "no LinkerdConfig is watched");
    [none, of_rollout(None, Timestamp::UNIX_EPOCH), of_proxies(None)]
}

fn configuration(summary: &ConfigSummary, conditions: &[Condition], now: Timestamp) -> Tile {
    let ready = conditions.iter().find(|it| it.type_ == "Ready");
    let is_processed = !(summary.attention == Attention::Progressing && summary.reason.is_empty());
    let (value, tone) = match ready.map(|ready| (&*ready.status, &*ready.reason)) {
        _ if !summary.in_effect => ("In reserve", Tone::Quiet),
        Some(_) if !is_processed => ("Not known yet", Tone::Quiet),
        Some(("True", "Observing")) => ("Only observed", Tone::Quiet),
        Some(("True", "Suspended")) => ("Suspended", Tone::Wait),
        Some((_, "Canary")) => ("In a canary", Tone::Wait),
        Some(("True", _)) => ("In effect", Tone::Good),
        Some(("False", "Propagating")) => ("On its way", Tone::Wait),
        Some(("False", _)) => ("Not in effect", Tone::Bad),
        Some(_) | None => ("Not known yet", Tone::Quiet),
    };
    let mut tile =
        Tile::new("Configuration", value, tone).line(Tone::Quiet, format!("{}, mode {:?}", summary.name, summary.mode));
    if let Some(ready) = ready {
        tile = tile.line(Tone::Quiet, format!("{}, since {}", ready.reason, clock(ready.last_transition_time.0, now)));
    }
    let warnings = i64::try_from(summary.warnings.len()).unwrap_or(i64::MAX);
    tile.count(Tone::Wait, warnings, |count| format!("{}: see Configuration", counted(count, "warning")))
}

fn of_rollout(rollout: Option<&RolloutSummary>, now: Timestamp) -> Tile {
    let Some(rollout) = rollout else { return Tile::new("Rollout", "None", Tone::Quiet) };
    let RolloutSummary { selected, updated, updating, pending, failed, .. } = *rollout;
    let tone = match &*rollout.phase {
        "Halted" | "RolledBack" => Tone::Bad,
        "Paused" | "Waiting" => Tone::Wait,
        "Complete" if failed == 0 => Tone::Good,
        _ => Tone::Plain,
    };
    let phase = if rollout.phase.is_empty() { "Not begun" } else { &rollout.phase };
    let tile = Tile::new("Rollout", phase, tone);
    if selected == 0 {
        return tile.line(Tone::Quiet, "no workload is selected");
    }
    let rest = selected.saturating_sub(updated).saturating_sub(updating).saturating_sub(failed);
    let mut tile = tile
        .bar([(updated, Tone::Good), (updating, Tone::Wait), (failed, Tone::Bad), (rest, Tone::Plain)])
        .line(Tone::Quiet, format!("{updated} of {selected} workloads updated"))
        .count(Tone::Bad, failed, |count| format!("{count} failed"));
    let others = in_words([(updating, "restarting"), (pending, "pending")]);
    if !others.is_empty() {
        tile = tile.line(Tone::Quiet, others);
    }
    if let Some(seconds) = rollout.at_least_seconds {
        tile = tile.line(Tone::Quiet, format!("at least {} left", rounded(Duration::from_secs(seconds))));
    }
    if let Some(opens) = rollout.next_window {
        tile = tile.line(Tone::Quiet, format!("the window opens {}", clock(opens, now)));
    }
    tile
}

fn of_proxies(pods: Option<RolloutPods>) -> Tile {
    const NAME: &str = "Current proxies";
    let Some(pods) = pods else { return Tile::new(NAME, "Not known", Tone::Quiet) };
    let RolloutPods { meshed, current, outdated, uninjected, .. } = pods;
    if meshed + uninjected == 0 {
        return Tile::new(NAME, "None", Tone::Quiet).line(Tone::Quiet, "no Pod is in the mesh");
    }
    let others = in_words([
        (pods.pinned, "pinned"),
        (pods.unknown, "unknown"),
        (pods.waiting_for_network, "waiting for the network"),
        (pods.other_shape, "of another shape"),
    ]);
    let tone = if outdated + uninjected == 0 { Tone::Good } else { Tone::Plain };
    let rest = meshed - current - outdated;
    let tile = Tile::new(NAME, format!("{current} of {meshed}"), tone)
        .bar([(current, Tone::Good), (outdated, Tone::Wait), (rest, Tone::Plain), (uninjected, Tone::Bad)])
        .count(Tone::Wait, outdated, |count| format!("{count} outdated"))
        .count(Tone::Bad, uninjected, |count| format!("{} without a proxy", counted(count, "Pod")));
    if others.is_empty() { tile } else { tile.line(Tone::Quiet, others) }
}

/// The replica that leads holds the Leases. A job may have a Lease of its own, which another replica can hold.
pub(super) fn of_replicas(running: Option<usize>, leases: &[LeaseRow], identity: &str) -> Tile {
    let mut held: BTreeMap<&str, usize> = BTreeMap::new();
    for holder in leases.iter().filter_map(|it| it.holder.as_deref()).filter(|holder| !holder.is_empty()) {
        *held.entry(holder).or_default() += 1;
    }
    let own = leases.iter().filter(|it| it.leads).count();
    let (leads, tone) = match (own, held.len()) {
        _ if leases.is_empty() => ("No leader is needed", Tone::Quiet),
        (_, 0) => ("None leads", Tone::Bad),
        // Its Lease was not renewed in time, so it does not write, and no other replica has taken the Lease over.
        (0, _) if held.contains_key(identity) => ("None leads", Tone::Bad),
        (1.., 1) => ("This replica leads", Tone::Good),
        (1.., _) => ("This replica leads in part", Tone::Good),
        (0, _) => ("Another replica leads", Tone::Good),
    };
    let mut tile = match running {
        Some(running) => {
            let is_bad = tone == Tone::Bad;
            let tile =
                Tile::new("Replicas", format!("{running} running"), if is_bad { Tone::Bad } else { Tone::Plain });
            tile.line(tone, leads)
        }
        None => Tile::new("Replicas", leads, tone),
    };
    let leader = if tone == Tone::Bad { "last leader" } else { "leader" };
    for (holder, count) in &held {
        let part =
            if held.len() > 1 { format!(" of {count} of {}", counted(leases.len(), "Lease")) } else { String::new() };
        tile = tile.line(Tone::Quiet, format!("{leader}{part}: {}", replica(holder)));
    }
    match leases.iter().filter(|it| it.problem.is_some()).count() {
        0 => tile,
        problems => tile.line(Tone::Bad, format!("{} with a problem: see Process", counted(problems, "Lease"))),
    }
}

pub(super) fn of_external_workloads(counts: Option<ExternalWorkloadCounts>) -> Tile {
    const NAME: &str = "ExternalWorkloads";
    let Some(counts) = counts else { return Tile::new(NAME, "Not watched", Tone::Quiet) };
    let ExternalWorkloadCounts { total, not_ready, without_service } = counts;
    if total == 0 {
        return Tile::new(NAME, "None", Tone::Quiet);
    }
    let tile = match not_ready {
        0 => Tile::new(NAME, total.to_string(), Tone::Good).line(Tone::Quiet, "all are ready"),
        _ => Tile::new(NAME, format!("{} of {total}", total - not_ready), Tone::Wait)
            .line(Tone::Wait, format!("{not_ready} not ready")),
    };
    match without_service {
        0 => tile,
        _ => tile.line(Tone::Wait, format!("{without_service} without a Service")),
    }
}

/// `not_after` is absent before the first certificate.
pub(super) fn of_certificate(is_needed: bool, not_after: Option<Timestamp>, now: Timestamp) -> Tile {
    const NAME: &str = "Certificate";
    if !is_needed {
        return Tile::new(NAME, "None", Tone::Quiet).line(Tone::Quiet, "no webhook is enabled");
    }
    let Some(end) = not_after else {
        return Tile::new(NAME, "None yet", Tone::Bad).line(Tone::Quiet, "of the webhooks");
    };
    let (value, tone) = match Duration::try_from(end.duration_since(now)).ok().filter(|left| !left.is_zero()) {
        None => ("Expired".to_owned(), Tone::Bad),
        Some(left) if left < DAY => (format!("{} left", rounded(left)), Tone::Wait),
        Some(left) => {
            let days = left.as_secs() / DAY.as_secs();
            (format!("{days} d left"), if left < SOON { Tone::Wait } else { Tone::Good })
        }
    };
    let until = format!("until {}", clock(end, now));
    Tile::new(NAME, value, tone).line(Tone::Quiet, "of the webhooks").line(Tone::Quiet, until)
}

/// Returns the name of a replica without the suffix that makes it unique.
fn replica(identity: &str) -> &str {
    let is_suffix = |text: &str| text.len() == SUFFIX && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    identity.rsplit_once('_').filter(|(_, suffix)| is_suffix(suffix)).map_or(identity, |(name, _)| name)
}

/// Returns the counts above zero.
fn in_words<const N: usize>(counts: [(i64, &str); N]) -> String {
    let above_zero = counts.into_iter().filter(|(count, _)| *count > 0);
    above_zero.map(|(count, what)| format!("{count} {what}")).collect::<Vec<_>>().join(", ")
}

/// Returns a time in UTC, as kubectl prints it; with the day, unless it is today.
fn clock(time: Timestamp, now: Timestamp) -> String {
    let is_today = time.strftime("%F").to_string() == now.strftime("%F").to_string();
    time.strftime(if is_today { "%T" } else { "%F %H:%M" }).to_string()
}

#[cfg(test)]
#[path = "tiles_tests.rs"]
mod tests;
