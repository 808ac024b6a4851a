//! Tests when windows are open and when that changes: with literal times, and against a model that steps through time
//! by the minute.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;

fn spec(zone: &str, allow: &[(&str, &str)], deny: &[(&str, &str)]) -> WindowSpec {
    let allow: Vec<Value> = allow.iter().map(|(cron, duration)| json!({"cron": cron, "duration": duration})).collect();
    let deny: Vec<Value> = deny.iter().map(|(from, to)| json!({"from": from, "to": to})).collect();
    serde_json::from_value(json!({"timeZone": zone, "allow": allow, "deny": deny})).unwrap()
}

fn windows(zone: &str, allow: &[(&str, &str)], deny: &[(&str, &str)]) -> MaintenanceWindows {
    MaintenanceWindows::parse(&spec(zone, allow, deny)).unwrap()
}

fn time(text: &str) -> Timestamp {
    text.parse().unwrap()
}

/// Asserts the successive changes after an instant. `opens` is whether the first change opens the window.
#[track_caller]
fn assert_changes(windows: &MaintenanceWindows, from: &str, opens: bool, changes: &[&str]) {
    let (mut now, mut open) = (time(from), !opens);
    for expected in changes {
        let window = windows.at(now);
        assert_eq!((window.open, window.changes), (open, Some(time(expected))), "at {now}");
        (now, open) = (time(expected), !open);
    }
}

#[test]
fn a_window_opens_at_its_time_and_closes_after_its_duration() {
    let nightly = windows("UTC", &[("0 2 * * 1-5", "4h")], &[]);
    // A Friday.
    assert_changes(
        &nightly,
        "2026-11-20T01:59:59Z",
        true,
        &["2026-11-20T02:00:00Z", "2026-11-20T06:00:00Z", "2026-11-23T02:00:00Z", "2026-11-23T06:00:00Z"],
    );
    for (now, open) in
        [("02:00:00Z", true), ("05:59:59.999999999Z", true), ("06:00:00Z", false), ("01:59:59.999999999Z", false)]
    {
        assert_eq!(nightly.at(time(&format!("2026-11-20T{now}"))).open, open, "{now}");
    }
}

#[test]
fn without_windows_restarts_are_always_allowed_except_in_denied_periods() {
    let now = time("2026-11-20T00:00:00Z");
    assert_eq!(windows("UTC", &[], &[]).at(now), WindowState { open: true, changes: None });
    let denied = windows("UTC", &[], &[("2026-12-20T00:00:00+01:00", "2027-01-02T00:00:00+01:00")]);
    assert_changes(&denied, "2026-11-20T00:00:00Z", false, &["2026-12-19T23:00:00Z", "2027-01-01T23:00:00Z"]);
    assert_eq!(denied.at(time("2027-01-01T23:00:00Z")), WindowState { open: true, changes: None });
}

#[test]
fn a_window_may_last_past_midnight_and_for_days() {
    let late = windows("UTC", &[("30 22 * * sat", "3h")], &[]);
    assert_changes(&late, "2026-11-20T00:00:00Z", true, &["2026-11-21T22:30:00Z", "2026-11-22T01:30:00Z"]);
    let weekend = windows("UTC", &[("0 18 * * 5", "60h")], &[]);
    assert_changes(&weekend, "2026-11-20T00:00:00Z", true, &["2026-11-20T18:00:00Z", "2026-11-23T06:00:00Z"]);
    assert!(weekend.at(time("2026-11-23T05:00:00Z")).open, "the window of Friday is open on Monday");
}

#[test]
fn windows_that_overlap_or_touch_are_merged() {
    let two =
        windows("UTC", &[("0 2 * * *", "2h"), ("0 3 * * *", "2h"), ("0 5 * * *", "30m"), ("0 7 * * *", "1m")], &[]);
    assert_changes(
        &two,
        "2026-11-20T00:00:00Z",
        true,
        &["2026-11-20T02:00:00Z", "2026-11-20T05:30:00Z", "2026-11-20T07:00:00Z", "2026-11-20T07:01:00Z"],
    );
    let twice = windows("UTC", &[("0,30 2 * * *", "1h")], &[]);
    assert_changes(&twice, "2026-11-20T00:00:00Z", true, &["2026-11-20T02:00:00Z", "2026-11-20T03:30:00Z"]);
}

#[test]
fn a_window_uses_the_clock_of_its_time_zone() {
    let nightly = |zone| windows(zone, &[("0 2 * * 1", "1h")], &[]);
    let now = "2026-11-21T00:00:00Z";
    assert_changes(&nightly("Asia/Tokyo"), now, true, &["2026-11-22T17:00:00Z", "2026-11-22T18:00:00Z"]);
    assert_changes(&nightly("America/New_York"), now, true, &["2026-11-23T07:00:00Z", "2026-11-23T08:00:00Z"]);
    assert_changes(&nightly("Asia/Kathmandu"), now, true, &["2026-11-22T20:15:00Z", "2026-11-22T21:15:00Z"]);
    assert_changes(&nightly("asia/tokyo"), now, true, &["2026-11-22T17:00:00Z"]);
}

#[test]
fn a_start_that_the_clock_skips_moves_to_the_end_of_the_gap() {
    // The clock goes from 02:00 to 03:00.
    let berlin = windows("Europe/Berlin", &[("30 2 * * *", "1h")], &[]);
    assert_changes(
        &berlin,
        "2026-03-28T00:00:00Z",
        true,
        &[
            "2026-03-28T01:30:00Z",
            "2026-03-28T02:30:00Z",
            "2026-03-29T01:00:00Z",
            "2026-03-29T02:00:00Z",
            "2026-03-30T00:30:00Z",
        ],
    );
    let new_york = windows("America/New_York", &[("15 2 * * *", "30m")], &[]);
    assert_changes(&new_york, "2026-03-08T00:00:00-05:00", true, &["2026-03-08T07:00:00Z", "2026-03-08T07:30:00Z"]);
    // The clock goes from 02:00 to 02:30.
    let lord_howe = windows("Australia/Lord_Howe", &[("10 2 * * *", "15m")], &[]);
    assert_changes(&lord_howe, "2026-10-03T12:00:00Z", true, &["2026-10-03T15:30:00Z", "2026-10-03T15:45:00Z"]);
    // Apia skipped 2011-12-30.
    let apia = windows("Pacific/Apia", &[("0 12 30 * *", "1h")], &[]);
    assert_changes(&apia, "2011-12-30T00:00:00Z", true, &["2011-12-30T10:00:00Z", "2011-12-30T11:00:00Z"]);
}

#[test]
fn a_start_that_the_clock_repeats_opens_the_window_only_the_first_time() {
    // The clock goes back from 03:00 to 02:00.
    let berlin = windows("Europe/Berlin", &[("30 2 * * *", "20m")], &[]);
    assert_changes(
        &berlin,
        "2026-10-24T22:00:00Z",
        true,
        &["2026-10-25T00:30:00Z", "2026-10-25T00:50:00Z", "2026-10-26T01:30:00Z"],
    );
    let new_york = windows("America/New_York", &[("*/30 1 * * *", "10m")], &[]);
    assert_changes(
        &new_york,
        "2026-11-01T04:00:00Z",
        true,
        &[
            "2026-11-01T05:00:00Z",
            "2026-11-01T05:10:00Z",
            "2026-11-01T05:30:00Z",
            "2026-11-01T05:40:00Z",
            "2026-11-02T06:00:00Z",
        ],
    );
    // The clock goes back from 02:00 to 01:30.
    let lord_howe = windows("Australia/Lord_Howe", &[("45 1 * * *", "10m")], &[]);
    assert_changes(
        &lord_howe,
        "2026-04-04T12:00:00Z",
        true,
        &["2026-04-04T14:45:00Z", "2026-04-04T14:55:00Z", "2026-04-05T15:15:00Z"],
    );
}

#[test]
fn a_window_keeps_its_duration_across_a_clock_change() {
    let spring = windows("Europe/Berlin", &[("0 1 * * *", "4h")], &[]);
    assert_changes(&spring, "2026-03-28T12:00:00Z", true, &["2026-03-29T00:00:00Z", "2026-03-29T04:00:00Z"]);
    let autumn = windows("Europe/Berlin", &[("0 1 * * *", "4h")], &[]);
    assert_changes(&autumn, "2026-10-24T12:00:00Z", true, &["2026-10-24T23:00:00Z", "2026-10-25T03:00:00Z"]);
    // Each window ends after 24 hours. On the day with 25 hours, an hour is left before the next one.
    let daily = windows("Europe/Berlin", &[("0 4 * * *", "24h")], &[]);
    assert_changes(&daily, "2026-10-01T00:00:00Z", false, &["2026-10-25T02:00:00Z", "2026-10-25T03:00:00Z"]);
}

#[test]
fn a_denied_period_overrides_allowed_windows() {
    let freeze = [("2026-11-20T03:00:00Z", "2026-11-20T04:00:00Z"), ("2026-11-21T00:00:00Z", "2026-11-23T03:30:00Z")];
    let nightly = windows("UTC", &[("0 2 * * *", "4h")], &freeze);
    assert_changes(
        &nightly,
        "2026-11-20T00:00:00Z",
        true,
        &[
            "2026-11-20T02:00:00Z",
            "2026-11-20T03:00:00Z",
            "2026-11-20T04:00:00Z",
            "2026-11-20T06:00:00Z",
            "2026-11-23T03:30:00Z",
            "2026-11-23T06:00:00Z",
        ],
    );
    // Denied periods may touch and overlap.
    let chain = [
        ("2026-11-20T04:00:00Z", "2026-11-20T05:00:00Z"),
        ("2026-11-20T02:00:00Z", "2026-11-20T04:00:00Z"),
        ("2026-11-20T03:00:00Z", "2026-11-20T05:30:00Z"),
    ];
    let always = windows("UTC", &[], &chain);
    assert_changes(&always, "2026-11-20T00:00:00Z", false, &["2026-11-20T02:00:00Z", "2026-11-20T05:30:00Z"]);
}

#[test]
fn a_state_without_a_change_is_found_in_bounded_time() {
    let now = time("2026-11-20T00:00:30Z");
    let (never, always) = (WindowState { open: false, changes: None }, WindowState { open: true, changes: None });
    let of = |allow: &[(&str, &str)], deny: &[(&str, &str)]| windows("UTC", allow, deny).at(now);
    assert_eq!(of(&[("0 0 30 2 *", "4h")], &[]), never);
    assert_eq!(of(&[("0 0 30 2 *", "4h"); 20], &[]), never);
    assert_eq!(of(&[("* * * * *", "1m")], &[]), always);
    assert_eq!(of(&[("* * * * *", "168h"); 20], &[]), always);
    assert_eq!(of(&[("*/2 * * * *", "1m"), ("1-59/2 * * * *", "1m")], &[]), always);
    // Except in the hour that the clock repeats.
    let berlin = windows("Europe/Berlin", &[("* * * * *", "1m")], &[]);
    assert_changes(&berlin, "2026-11-20T00:00:00Z", false, &["2027-10-31T01:00:00Z", "2027-10-31T02:00:00Z"]);
    assert_eq!(windows("Europe/Berlin", &[("* * * * *", "61m"); 20], &[]).at(now), always);
    let forever = [("2026-01-01T00:00:00Z", "9999-01-01T00:00:00Z"); 50];
    assert_eq!(of(&[("*/2 * * * *", "1m")], &forever), never);
    assert_eq!(of(&[], &forever), never);
    let for_years = [("2026-01-01T00:00:00Z", "2029-01-01T00:00:30Z"); 50];
    let opens = |at: &str| WindowState { open: false, changes: Some(time(at)) };
    assert_eq!(of(&[("* * * * *", "1s")], &for_years), opens("2029-01-01T00:01:00Z"));
    assert_eq!(of(&[("* * * * *", "1m")], &for_years), opens("2029-01-01T00:00:30Z"));
    assert_eq!(of(&[("0 0 29 2 *", "1h")], &[]), opens("2028-02-29T00:00:00Z"));
    assert_eq!(of(&[("0 0 29 2 *", "1h")], &[("2028-02-01T00:00:00Z", "2028-03-01T00:00:00Z")]), never);
}

#[test]
fn the_ends_of_the_timestamp_range_cause_no_error() {
    let nightly = windows("Pacific/Kiritimati", &[("0 2 * * *", "168h")], &[]);
    for now in [Timestamp::MIN, Timestamp::MAX] {
        let window = nightly.at(now);
        assert!(window.changes.is_none_or(|changes| changes > now), "{window:?}");
    }
}

#[test]
fn an_invalid_window_is_reported_with_its_path() {
    let (night, day) = (("0 2 * * *", "4h"), ("2026-12-24T00:00:00Z", "2026-12-25T00:00:00Z"));
    for (spec, why) in [
        (spec("Mars/Olympus_Mons", &[], &[]), r#"timeZone: unknown time zone "Mars/Olympus_Mons""#),
        (spec("", &[], &[]), r#"timeZone: unknown time zone """#),
        (spec("Etc/Unknown", &[], &[]), "timeZone: "),
        (spec("/usr/share/zoneinfo/UTC", &[], &[]), "timeZone: "),
        (spec("UTC", &[night, ("0 25 * * *", "4h")], &[]), r#"allow[1].cron: hour: "25" is not a number from 0 to 23"#),
        (spec("UTC", &[("0 2 * * *", "1d")], &[]), r#"allow[0].duration: "1d" is not a duration"#),
        (spec("UTC", &[("0 2 * * *", "0s")], &[]), "allow[0].duration: \"0s\" must be positive"),
        (spec("UTC", &[("0 2 * * *", "-4h")], &[]), "allow[0].duration: \"-4h\" must be positive"),
        (spec("UTC", &[("0 2 * * *", "168h1ns")], &[]), "at most seven days"),
        (spec("UTC", &[], &[day, ("yesterday", "2026-12-25T00:00:00Z")]), r#"deny[1].from: "yesterday" is not a time"#),
        (spec("UTC", &[], &[("2026-12-24", "2026-12-25T00:00:00Z")]), "deny[0].from: "),
        (spec("UTC", &[], &[(day.1, day.0)]), "deny[0].to: "),
        (spec("UTC", &[], &[(day.0, day.0)]), "deny[0].to: "),
        (spec("UTC", &[night; 21], &[]), "allow has 21 entries; at most 20 are allowed"),
        (spec("UTC", &[], &[day; 51]), "deny has 51 entries; at most 50 are allowed"),
    ] {
        let error = MaintenanceWindows::parse(&spec).unwrap_err();
        assert!(error.contains(why), "{spec:?}: {error}");
    }
    MaintenanceWindows::parse(&spec("UTC", &[("0 2 * * *", "168h")], &[day])).unwrap();
}

/// Maintenance windows computed minute by minute from the local clock. This is exact because all times are whole
/// minutes.
struct Model {
    first: i128,
    open: Vec<bool>,
}

impl Model {
    /// Computes a number of minutes from an instant on. No window may be longer than `before` minutes.
    fn new(windows: &MaintenanceWindows, from: i128, minutes: usize, before: usize) -> Self {
        let first = from - i128::try_from(before).unwrap() * MINUTE;
        let shown = |at: usize| {
            let instant = first + i128::try_from(at).unwrap() * MINUTE;
            windows.zone.to_datetime(Timestamp::from_nanosecond(instant).unwrap())
        };
        let mut open = vec![windows.allowed.is_empty(); before + minutes];
        // The latest time that the clock has shown.
        let mut latest = shown(0);
        for at in 1..open.len() {
            let now = shown(at);
            while latest < now {
                latest = latest.checked_add(1.minute()).unwrap();
                for allowed in &windows.allowed {
                    if allowed.cron.matches_day(latest.date())
                        && allowed.cron.matches_minute(latest.hour(), latest.minute())
                    {
                        let until = at + usize::try_from(allowed.nanoseconds / MINUTE).unwrap();
                        open.iter_mut().take(until).skip(at).for_each(|open| *open = true);
                    }
                }
            }
        }
        for (at, open) in open.iter_mut().enumerate() {
            let now = first + i128::try_from(at).unwrap() * MINUTE;
            *open &= !windows.denied.iter().any(|denied| denied.contains(&now));
        }
        Self { first: from, open: open.split_off(before) }
    }

    fn instant(&self, at: usize) -> i128 {
        self.first + i128::try_from(at).unwrap() * MINUTE
    }
}

fn cron() -> impl Strategy<Value = String> {
    let minute = prop_oneof![Just("*".to_owned()), Just("*/7".to_owned()), (0..60_u8).prop_map(|it| it.to_string())];
    let hour = prop_oneof![Just("*".to_owned()), Just("1-3".to_owned()), (0..24_u8).prop_map(|it| it.to_string())];
    let day = prop_oneof![3 => Just("*"), 1 => Just("*/2"), 1 => Just("28-31,1,2")];
    let weekday = prop_oneof![3 => Just("*"), 1 => Just("sat-sun"), 1 => Just("1-5")];
    (minute, hour, day, weekday).prop_map(|(minute, hour, day, weekday)| format!("{minute} {hour} {day} * {weekday}"))
}

fn any_windows() -> impl Strategy<Value = (MaintenanceWindows, Timestamp)> {
    // About a day before a clock change, or without a clock change.
    let place = prop_oneof![
        Just(("Europe/Berlin", "2026-03-27T22:10:00Z")),
        Just(("Europe/Berlin", "2026-10-23T21:30:00Z")),
        Just(("America/New_York", "2026-03-06T23:00:00Z")),
        Just(("America/New_York", "2026-10-31T00:00:00Z")),
        Just(("Australia/Lord_Howe", "2026-04-03T08:00:00Z")),
        Just(("Australia/Lord_Howe", "2026-10-02T12:00:00Z")),
        // Clock changes at midnight, forward and back.
        Just(("America/Havana", "2026-03-07T00:00:00Z")),
        Just(("America/Sao_Paulo", "2018-02-16T12:00:00Z")),
        Just(("America/Sao_Paulo", "2018-11-02T12:00:00Z")),
        Just(("Pacific/Apia", "2011-12-28T18:00:00Z")),
        Just(("Asia/Kathmandu", "2026-11-20T00:00:00Z")),
        Just(("UTC", "2026-12-30T00:00:00Z")),
    ];
    let minutes = prop_oneof![1..90_i64, 1..2880_i64];
    let allowed = prop::collection::vec((cron(), minutes), 0..4);
    let denied = prop::collection::vec((-1000..3000_i64, 1..1500_i64), 0..3);
    (place, allowed, denied, 0..2880_i64, 0..60_i64).prop_map(|((zone, from), allowed, denied, minutes, seconds)| {
        let from = time(from);
        let after = |minutes: i64| from.checked_add(minutes.minutes()).unwrap().to_string();
        let allowed: Vec<_> = allowed.into_iter().map(|(cron, minutes)| (cron, format!("{minutes}m"))).collect();
        let denied: Vec<_> = denied.into_iter().map(|(start, length)| (after(start), after(start + length))).collect();
        let [allowed, denied] = [&allowed, &denied]
            .map(|pairs| pairs.iter().map(|(one, other)| (one.as_str(), other.as_str())).collect::<Vec<_>>());
        let now = from.checked_add(minutes.minutes().seconds(seconds)).unwrap();
        (windows(zone, &allowed, &denied), now)
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn windows_agree_with_the_model((windows, now) in any_windows()) {
        let window = windows.at(now);
        let whole = now.as_nanosecond().div_euclid(MINUTE) * MINUTE;
        let model = Model::new(&windows, whole, 3 * 24 * 60, 2 * 24 * 60);
        prop_assert_eq!(window.open, model.open[0]);
        let changes = model.open.iter().position(|open| *open != window.open).map(|at| model.instant(at));
        match (changes, window.changes.map(Timestamp::as_nanosecond)) {
            (None, Some(later)) => prop_assert!(later >= model.instant(model.open.len())),
            (expected, found) => prop_assert_eq!(found, expected),
        }
    }
}
