use serde_json::{Value, json};

use super::*;
use crate::cluster::{Problems, Projected, kinds::linkerd_config::LinkerdConfig};

const SINCE: &str = "2026-11-27T11:48:10Z";

fn at(time: &str) -> Timestamp {
    time.parse().unwrap()
}

fn now() -> Timestamp {
    at("2026-11-27T12:00:00Z")
}

/// Returns the value, the tone and the lines of a tile.
fn shown(tile: &Tile) -> (&str, Tone, Vec<(&str, Tone)>) {
    (&tile.value, tile.tone, tile.lines.iter().map(|line| (line.text.as_str(), line.tone)).collect())
}

/// Returns the tiles of a LinkerdConfig with these conditions and this rollout.
fn tiles(conditions: &[(&str, &str, &str)], rollout: &Value, in_effect: bool) -> [Tile; 3] {
    let condition = |(type_, status, reason): &(&str, &str, &str)| json!({"type": type_, "status": status, "reason": reason, "message": "m", "lastTransitionTime": SINCE});
    let conditions: Vec<Value> = conditions.iter().map(condition).collect();
    let status = json!({"observedGeneration": 1, "conditions": conditions, "rollout": rollout});
    let object = json!({"metadata": {"name": "mesh", "generation": 1}, "spec": {}, "status": status});
    let config = LinkerdConfig::project(serde_json::from_value(object).unwrap(), &mut Problems::default());
    of_config(&ConfigSummary::new(&config, in_effect, now()), &config.status.conditions, now())
}

#[test]
fn the_configuration_is_in_effect_only_if_ready_says_so() {
    for (status, reason, expected) in [
        ("True", "Reconciled", ("In effect", Tone::Good)),
        ("True", "Observing", ("Only observed", Tone::Quiet)),
        ("True", "Suspended", ("Suspended", Tone::Wait)),
        ("True", "Canary", ("In a canary", Tone::Wait)),
        ("False", "Canary", ("In a canary", Tone::Wait)),
        ("False", "Propagating", ("On its way", Tone::Wait)),
        ("False", "RolledBack", ("Not in effect", Tone::Bad)),
        ("False", "Drifted", ("Not in effect", Tone::Bad)),
        ("Unknown", "Reconciled", ("Not known yet", Tone::Quiet)),
    ] {
        let [tile, ..] = tiles(&[("Ready", status, reason)], &json!({}), true);
        assert_eq!((tile.value.as_str(), tile.tone), expected, "{status} {reason}");
        let since = format!("{reason}, since 11:48:10");
        assert_eq!(shown(&tile).2, [("mesh, mode Enforce", Tone::Quiet), (&since, Tone::Quiet)]);
    }
    let [tile, ..] = tiles(&[], &json!({}), true);
    assert_eq!(shown(&tile), ("Not known yet", Tone::Quiet, vec![("mesh, mode Enforce", Tone::Quiet)]));
    let [tile, ..] = tiles(&[("Accepted", "False", "Conflicted")], &json!({}), false);
    assert_eq!((tile.value.as_str(), tile.tone), ("In reserve", Tone::Quiet));
}

#[test]
fn warnings_are_counted_on_the_tile() {
    let conditions = [("Ready", "True", "Reconciled"), ("VersionSkew", "True", "ProxyOlder")];
    let [tile, ..] = tiles(&conditions, &json!({}), true);
    assert_eq!(shown(&tile).2.last(), Some(&("1 warning: see Configuration", Tone::Wait)));
}

#[test]
fn a_halted_rollout_has_its_counts_a_bar_and_the_time_that_is_left() {
    let workloads = json!({"selected": 167, "updated": 69, "updating": 1, "pending": 88, "failed": 9});
    let [_, tile, _] = tiles(&[], &json!({"phase": "Halted", "workloads": workloads}), true);
    // 89 restarts at 30 s each, one at a time.
    let lines = vec![
        ("69 of 167 workloads updated", Tone::Quiet),
        ("9 failed", Tone::Bad),
        ("1 restarting, 88 pending", Tone::Quiet),
        ("at least 44 min 30 s left", Tone::Quiet),
    ];
    assert_eq!(shown(&tile), ("Halted", Tone::Bad, lines));
    let bar: Vec<_> = tile.bar.iter().map(|part| (part.count, part.tone)).collect();
    assert_eq!(bar, [(69, Tone::Good), (1, Tone::Wait), (9, Tone::Bad), (88, Tone::Plain)]);
}

#[test]
fn a_rollout_that_is_complete_is_good_and_one_that_selects_nothing_has_no_bar() {
    let complete = json!({"phase": "Complete", "workloads": {"selected": 3, "updated": 3}});
    let [_, tile, _] = tiles(&[], &complete, true);
    assert_eq!(shown(&tile), ("Complete", Tone::Good, vec![("3 of 3 workloads updated", Tone::Quiet)]));
    let [_, tile, _] = tiles(&[], &json!({"phase": "Idle"}), true);
    assert_eq!(shown(&tile), ("Idle", Tone::Plain, vec![("no workload is selected", Tone::Quiet)]));
    assert!(tile.bar.is_empty());
    let [_, tile, _] = tiles(&[], &json!({"phase": "Paused", "workloads": {"selected": 3, "pending": 3}}), true);
    assert_eq!((tile.value.as_str(), tile.tone), ("Paused", Tone::Wait));
    let window = json!({"phase": "Waiting", "workloads": {"selected": 1}, "nextWindow": "2026-11-28T02:00:00Z"});
    let [_, tile, _] = tiles(&[], &window, true);
    assert_eq!(shown(&tile).2.last(), Some(&("the window opens 2026-11-28 02:00", Tone::Quiet)));
}

#[test]
fn pods_without_a_proxy_are_bad_and_outdated_ones_wait() {
    let pods = json!({"meshed": 10, "current": 7, "outdated": 2, "pinned": 1, "uninjected": 3});
    let [_, _, tile] = tiles(&[], &json!({"pods": pods}), true);
    let lines = vec![("2 outdated", Tone::Wait), ("3 Pods without a proxy", Tone::Bad), ("1 pinned", Tone::Quiet)];
    assert_eq!(shown(&tile), ("7 of 10", Tone::Plain, lines));
    let bar: Vec<_> = tile.bar.iter().map(|part| (part.count, part.tone)).collect();
    assert_eq!(bar, [(7, Tone::Good), (2, Tone::Wait), (1, Tone::Plain), (3, Tone::Bad)]);
    let [_, _, tile] = tiles(&[], &json!({"pods": {"meshed": 10, "current": 10}}), true);
    assert_eq!(shown(&tile), ("10 of 10", Tone::Good, vec![]));
    let [_, _, tile] = tiles(&[], &json!({"pods": {}}), true);
    assert_eq!((tile.value.as_str(), tile.tone), ("None", Tone::Quiet));
}

#[test]
fn without_a_linkerd_config_nothing_is_good() {
    let tiles = without_config();
    let values: Vec<_> = tiles.iter().map(|tile| (tile.name, tile.value.as_str(), tile.tone)).collect();
    let expected = [
        ("Configuration", "None", Tone::Quiet),
        ("Rollout", "None", Tone::Quiet),
        ("Current proxies", "Not known", Tone::Quiet),
    ];
    assert_eq!(values, expected);
}

fn lease(holder: Option<&str>, leads: bool) -> LeaseRow {
    let holder = holder.map(str::to_owned);
    LeaseRow { namespace: "linkerd".to_owned(), name: "linkerd-operator", holder, leads, problem: None }
}

const ONE: &str = "operator-5f6d-x2x4q_0123456789abcdef";
const OTHER: &str = "operator-5f6d-abcde_fedcba9876543210";

#[test]
fn a_replica_that_follows_shows_which_one_leads() {
    let leases = [lease(Some(OTHER), false), lease(Some(OTHER), false)];
    let lines = vec![("Another replica leads", Tone::Good), ("leader: operator-5f6d-abcde", Tone::Quiet)];
    assert_eq!(shown(&of_replicas(Some(2), &leases, ONE)), ("2 running", Tone::Plain, lines));
    let leases = [lease(Some(ONE), true), lease(Some(ONE), true)];
    let lines = vec![("leader: operator-5f6d-x2x4q", Tone::Quiet)];
    assert_eq!(shown(&of_replicas(None, &leases, ONE)), ("This replica leads", Tone::Good, lines));
}

#[test]
fn leases_that_two_replicas_share_are_counted() {
    let leases = [lease(Some(ONE), true), lease(Some(OTHER), false), lease(Some(OTHER), false)];
    let lines = vec![
        ("This replica leads in part", Tone::Good),
        ("leader of 2 of 3 Leases: operator-5f6d-abcde", Tone::Quiet),
        ("leader of 1 of 3 Leases: operator-5f6d-x2x4q", Tone::Quiet),
    ];
    assert_eq!(shown(&of_replicas(Some(2), &leases, ONE)), ("2 running", Tone::Plain, lines));
}

#[test]
fn a_lease_without_a_holder_or_of_a_replica_that_cannot_renew_it_has_no_leader() {
    for leases in [[lease(None, false)], [lease(Some(""), false)], [lease(Some(ONE), false)]] {
        let tile = of_replicas(Some(1), &leases, ONE);
        assert_eq!((tile.tone, shown(&tile).2.first()), (Tone::Bad, Some(&("None leads", Tone::Bad))));
    }
    let tile = of_replicas(Some(1), &[], ONE);
    assert_eq!(shown(&tile), ("1 running", Tone::Plain, vec![("No leader is needed", Tone::Quiet)]));
    let unreadable = LeaseRow { problem: Some("refused".to_owned()), ..lease(Some(OTHER), false) };
    let tile = of_replicas(None, &[unreadable], ONE);
    assert_eq!(shown(&tile).2.last(), Some(&("1 Lease with a problem: see Process", Tone::Bad)));
}

#[test]
fn external_workloads_that_are_not_ready_or_that_no_service_selects_wait() {
    let tile = |total, not_ready, without_service| {
        of_external_workloads(Some(ExternalWorkloadCounts { total, not_ready, without_service }))
    };
    assert_eq!(shown(&tile(4, 0, 0)), ("4", Tone::Good, vec![("all are ready", Tone::Quiet)]));
    let lines = vec![("1 not ready", Tone::Wait), ("2 without a Service", Tone::Wait)];
    assert_eq!(shown(&tile(4, 1, 2)), ("3 of 4", Tone::Wait, lines));
    assert_eq!(shown(&tile(0, 0, 0)), ("None", Tone::Quiet, vec![]));
    assert_eq!(of_external_workloads(None).value, "Not watched");
}

#[test]
fn a_certificate_is_good_for_a_week_or_longer_and_bad_when_it_has_expired() {
    for (end, value, tone) in [
        ("2026-12-27T11:00:00Z", "29 d left", Tone::Good),
        ("2026-12-04T12:00:00Z", "7 d left", Tone::Good),
        ("2026-12-04T11:59:59Z", "6 d left", Tone::Wait),
        ("2026-11-27T14:30:00Z", "2 h 30 min left", Tone::Wait),
        ("2026-11-27T12:00:00Z", "Expired", Tone::Bad),
        ("2026-11-26T09:00:00Z", "Expired", Tone::Bad),
    ] {
        let tile = of_certificate(true, Some(at(end)), now());
        assert_eq!((tile.value.as_str(), tile.tone), (value, tone), "{end}");
    }
    let tile = of_certificate(true, Some(at("2026-11-26T09:00:00Z")), now());
    assert_eq!(shown(&tile).2, [("of the webhooks", Tone::Quiet), ("until 2026-11-26 09:00", Tone::Quiet)]);
    assert_eq!(of_certificate(true, None, now()).value, "None yet");
    assert_eq!(of_certificate(false, None, now()).tone, Tone::Quiet);
}
