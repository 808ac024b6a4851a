//! The text of `status`. Pure.

use std::{fmt::Write, time::Duration};

use k8s_openapi::{api::coordination::v1::LeaseSpec, jiff::Timestamp};

use super::StatusDocument;
use crate::{
    summary::{Attention, ConfigSummary, RolloutSummary, rounded},
    text::printable,
};

/// The width of a bar, in characters.
const BAR: usize = 30;
/// The largest number of workloads in a list. The status has at most twenty.
const SHOWN: usize = 20;

pub(super) fn text(document: &StatusDocument) -> String {
    let mut text = String::new();
    if document.has_leader == Some(false) {
        text.push_str("PROBLEM   no operator leads, so nothing changes, and what follows is old\n");
        line(&mut text, "Next", "linkerd-operator check");
        text.push('\n');
    }
    if document.linkerd_configs.is_empty() {
        text.push_str("No LinkerdConfig exists. To preview one: linkerd-operator explain -f FILE\n");
    }
    for config in &document.linkerd_configs {
        of_config(config, &mut text);
        text.push('\n');
    }
    line(&mut text, "Leader", &document.leader);
    text
}

fn of_config(config: &ConfigSummary, text: &mut String) {
    let mark = match config.attention {
        Attention::Done => "OK",
        Attention::Progressing => "IN PROGRESS",
        Attention::Waiting => "WAITING",
        Attention::Problem => "PROBLEM",
    };
    let effect = if config.in_effect { "in effect" } else { "not in effect" };
    // Writing to a String cannot fail.
    _ = writeln!(text, "{mark}   {}: {}", printable(&config.name), printable(&config.sentence));
    if let Some(next) = &config.next {
        line(text, "Next", next);
    }
    if let Some(command) = &config.command {
        line(text, "", command);
    }
    line(text, "ConfigMap", &format!("{}, mode {:?}, {effect}", config.target, config.mode));
    if let Some(rollout) = &config.rollout {
        of_rollout(rollout, text);
    }
    for warning in &config.warnings {
        line(text, "Warning", warning);
    }
}

fn of_rollout(rollout: &RolloutSummary, text: &mut String) {
    if rollout.selected > 0 {
        line(text, "Rollout", &format!("{} {} {}", rollout.phase, bar(rollout), rollout.progress()));
    } else {
        line(text, "Rollout", &format!("{}, no workload is selected", rollout.phase));
    }
    if let Some(seconds) = rollout.at_least_seconds {
        let time = rounded(Duration::from_secs(seconds));
        line(text, "Time left", &format!("at least {time}, by the limits of spec.rollout"));
    }
    let pods = &rollout.pods;
    let mut proxies = format!("{} current, {} outdated, {} without", pods.current, pods.outdated, pods.uninjected);
    for (count, what) in
        [(pods.pinned, "pinned"), (pods.unknown, "unknown"), (pods.waiting_for_network, "without a network")]
    {
        if count > 0 {
            _ = write!(proxies, ", {count} {what}");
        }
    }
    line(text, "Proxies", &proxies);
    for failure in rollout.failures.iter().take(SHOWN) {
        let workload = format!("{}/{}/{}", failure.namespace, failure.kind, failure.name);
        line(text, "Failed", &format!("{workload}: {}: {}", failure.reason, failure.message));
    }
    for workload in rollout.restarting.iter().take(SHOWN) {
        line(text, "Restarting", workload);
    }
    for skipped in &rollout.skipped {
        line(text, "Skipped", &format!("{} {}", skipped.count, skipped.reason));
    }
}

/// Appends a field. Tenants write parts of the values, so each stays on its line.
fn line(text: &mut String, field: &str, value: &str) {
    _ = writeln!(text, "  {field:<11} {}", printable(value));
}

/// Returns a bar whose filled part is that of the updated workloads.
fn bar(rollout: &RolloutSummary) -> String {
    let selected = usize::try_from(rollout.selected).unwrap_or_default().max(1);
    let updated = usize::try_from(rollout.updated).unwrap_or_default().min(selected);
    let filled = updated * BAR / selected;
    format!("[{}{}]", "#".repeat(filled), ".".repeat(BAR - filled))
}

/// Returns the holder of a Lease.
///
/// # Errors
/// Returns why no replica holds it, in words.
pub(super) fn leader(lease: Option<LeaseSpec>, now: Timestamp) -> Result<String, String> {
    let Some(lease) = lease else {
        return Err("none: no operator runs with the LinkerdConfig controller".to_owned());
    };
    let holder = lease.holder_identity.filter(|holder| !holder.is_empty());
    let lasts = Duration::from_secs(lease.lease_duration_seconds.map_or(30, |seconds| seconds.unsigned_abs().into()));
    let age = lease.renew_time.and_then(|time| Duration::try_from(now.duration_since(time.0)).ok()).unwrap_or_default();
    match holder {
        None => Err("none: the last leader released the Lease".to_owned()),
        Some(holder) if age > lasts => Err(format!("none: {holder} has not renewed the Lease for {}", rounded(age))),
        Some(holder) => Ok(holder),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::cluster::{Problems, Projected, kinds::linkerd_config::LinkerdConfig};

    fn lease(spec: serde_json::Value) -> Result<String, String> {
        leader(serde_json::from_value(spec).unwrap(), "2026-11-27T12:00:30Z".parse().unwrap())
    }

    #[test]
    fn without_a_leader_the_first_line_says_that_what_follows_is_old() {
        let of = |has_leader| {
            let leader = "none: the last leader released the Lease".to_owned();
            text(&StatusDocument { linkerd_configs: Vec::new(), leader, has_leader })
        };
        assert!(of(Some(false)).starts_with("PROBLEM   no operator leads"), "{}", of(Some(false)));
        assert!(of(None).starts_with("No LinkerdConfig exists") && of(Some(true)).starts_with("No LinkerdConfig"));
    }

    #[test]
    fn the_leader_is_the_holder_of_a_lease_that_is_renewed() {
        let held = |time: &str| json!({"holderIdentity": "one", "leaseDurationSeconds": 30, "renewTime": time});
        assert_eq!(lease(held("2026-11-27T12:00:10.000000Z")).unwrap(), "one");
        for (spec, why) in [
            (held("2026-11-27T11:00:00.000000Z"), "none: one has not renewed the Lease for 1 h"),
            (json!({"holderIdentity": ""}), "none: the last leader released"),
            (json!(null), "none: no operator runs"),
        ] {
            let found = lease(spec).unwrap_err();
            assert!(found.starts_with(why), "{found}");
        }
    }

    #[test]
    fn a_halted_rollout_is_one_screen_that_begins_with_the_problem() {
        let status = json!({
            "observedGeneration": 1,
            "conditions": [{"type": "Stalled", "status": "True", "reason": "RolloutHalted",
                "message": "1 workload failed", "lastTransitionTime": "2026-11-27T11:00:00Z"}],
            "rollout": {
                "phase": "Halted",
                "workloads": {"selected": 10, "updated": 5, "pending": 4, "failed": 1},
                "pods": {"meshed": 20, "current": 11, "outdated": 9},
                "failures": [{"kind": "Deployment", "namespace": "ads", "name": "web",
                    "reason": "ProgressDeadlineExceeded", "message": "0 of 1 Pods\n are available"}],
            },
        });
        let object = json!({"metadata": {"name": "mesh", "generation": 1}, "spec": {}, "status": status});
        let config = LinkerdConfig::project(serde_json::from_value(object).unwrap(), &mut Problems::default());
        let now = "2026-11-27T12:00:00Z".parse().unwrap();
        let summary = ConfigSummary::new(&config, true, now);
        let document =
            StatusDocument { linkerd_configs: vec![summary], leader: "one".to_owned(), has_leader: Some(true) };
        let expected = "\
PROBLEM   mesh: 1 workload failed
  Next        Fix the cause, then run linkerd-operator rollout retry or change the declared values.
              linkerd-operator rollout retry mesh
  ConfigMap   linkerd/linkerd-config, mode Enforce, in effect
  Rollout     Halted [###############...............] 5 of 10 workloads updated, 4 pending, 1 failed
  Time left   at least 2 min, by the limits of spec.rollout
  Proxies     11 current, 9 outdated, 0 without
  Failed      ads/Deployment/web: ProgressDeadlineExceeded: 0 of 1 Pods\\n are available

  Leader      one
";
        assert_eq!(text(&document), expected);
    }
}
