//! What the API server accepts and rejects in `spec.rollout`.

use anyhow::{Context, Result};
use serde_json::{Value, json};

use super::{all_refused, at, dry_run};

#[tokio::test]
async fn an_invalid_value_is_rejected_with_its_path_and_the_reason() -> Result<()> {
    let control_plane = e2e::shared().await?;
    control_plane.install_crds("crd").await?;
    let client = control_plane.client().await?;
    let number = "must be a number from 1 to 10000, or a percentage from 1% to 100%";
    let (go, zone) = ("must be a Go duration", "must be the name of a time zone");
    let five = "must be the five fields of a cron expression";
    let expression = |expression: Value| rollout(json!({"workloadSelector": {"matchExpressions": [expression]}}));
    let in_expression = |field: &str| format!("spec.rollout.workloadSelector.matchExpressions[0].{field}");
    let allow = |cron: &str, duration: &str| window(json!({"allow": [{"cron": cron, "duration": duration}]}));
    let deny = |from: &str, to: &str| window(json!({"deny": [{"from": from, "to": to}]}));
    let (day, next_day) = ("2026-12-24T00:00:00Z", "2026-12-25T00:00:00Z");
    let fields = [
        (json!({"policy": "Approve"}), "policy", r#"supported values: "Auto", "Off""#),
        (json!({"paused": "no"}), "paused", "must be of type boolean"),
        (json!({"optIn": "Namespace"}), "optIn", r#"supported values: "Label", "All""#),
        (json!({"kinds": ["Job"]}), "kinds[0]", r#""StatefulSet", "DaemonSet""#),
        (json!({"kinds": ["DaemonSet", "DaemonSet"]}), "kinds[1]", "Duplicate value"),
        (json!({"kinds": []}), "kinds", "should have at least 1 items"),
        (json!({"triggers": ["Always"]}), "triggers[0]", r#""ProxyVersion", "TrustRoots""#),
        (json!({"triggers": []}), "triggers", "should have at least 1 items"),
        (json!({"method": "Delete"}), "method", r#"supported values: "Restart", "Evict""#),
        (json!({"maxConcurrent": 0}), "maxConcurrent", number),
        (json!({"maxConcurrent": 10_001}), "maxConcurrent", number),
        (json!({"maxConcurrent": "10"}), "maxConcurrent", number),
        (json!({"maxConcurrent": "0%"}), "maxConcurrent", number),
        (json!({"maxConcurrent": "101%"}), "maxConcurrent", number),
        (json!({"maxConcurrent": 1.5}), "maxConcurrent", "must be of type integer,string"),
        (json!({"maxConcurrentPerNamespace": 0}), "maxConcurrentPerNamespace", "greater than or equal to 1"),
        (json!({"maxConcurrentPerNamespace": "10%"}), "maxConcurrentPerNamespace", "must be of type integer"),
        (json!({"interval": "10"}), "interval", go),
        (json!({"soak": "-30s"}), "soak", go),
        (json!({"progressDeadline": "soon"}), "progressDeadline", go),
        (json!({"progressDeadline": "0s"}), "progressDeadline", "must be greater than zero"),
        (json!({"maxFailures": 0}), "maxFailures", number),
        (json!({"maxFailures": "0%"}), "maxFailures", number),
        (json!({"onFailure": "Ignore"}), "onFailure", r#""Halt", "Rollback", "Continue""#),
        (json!({"namespaceSelector": {"matchLabels": {"a": 1}}}), "namespaceSelector.matchLabels.a", "type string"),
    ];
    let table = fields.into_iter().map(|(spec, path, text)| (rollout(spec), format!("spec.rollout.{path}"), text));
    all_refused(&client, table).await?;
    all_refused(
        &client,
        [
            (expression(json!({"operator": "Exists"})), in_expression("key"), "Required value"),
            (expression(json!({"key": "a b", "operator": "Exists"})), in_expression("key"), "must be a label key"),
            (
                expression(json!({"key": "a", "operator": "Is"})),
                in_expression("operator"),
                r#""In", "NotIn", "Exists""#,
            ),
            (
                expression(json!({"key": "a", "operator": "NotIn"})),
                in_expression("values"),
                "must contain at least one value for In and NotIn",
            ),
            (
                expression(json!({"key": "a", "operator": "Exists", "values": ["b"]})),
                in_expression("values"),
                "must not be set with Exists and DoesNotExist",
            ),
        ],
    )
    .await?;
    let windows = [
        (window(json!({"timeZone": "Europe / Berlin"})), "timeZone", zone),
        (window(json!({"timeZone": ""})), "timeZone", zone),
        (allow("0 2 * *", "4h"), "allow[0].cron", five),
        (allow("@daily", "4h"), "allow[0].cron", five),
        (allow("0 2 * * MON#1", "4h"), "allow[0].cron", five),
        (allow("0 2 * * *", "4"), "allow[0].duration", go),
        (allow("0 2 * * *", "0h"), "allow[0].duration", "must be greater than zero"),
        (allow("0 2 * * *", "168h1s"), "allow[0].duration", "must not be longer than seven days"),
        (window(json!({"allow": [{"cron": "0 2 * * *"}]})), "allow[0].duration", "Required value"),
        (deny(day, "tomorrow"), "deny[0].to", "must be of type date-time"),
        (deny(day, day), "deny[0].to", "must be later than from"),
        (deny(next_day, "2026-12-25T00:00:00+01:00"), "deny[0].to", "must be later than from"),
        (window(json!({"deny": [{"from": day}]})), "deny[0].to", "Required value"),
        (
            window(json!({"allow": vec![json!({"cron": "0 2 * * *", "duration": "1h"}); 21]})),
            "allow",
            "at most 20 items",
        ),
        (window(json!({"deny": vec![json!({"from": day, "to": next_day}); 51]})), "deny", "at most 50 items"),
    ];
    let table = windows.into_iter().map(|(spec, path, text)| (spec, format!("spec.rollout.window.{path}"), text));
    all_refused(&client, table).await
}

#[tokio::test]
async fn unusual_but_valid_values_are_accepted() -> Result<()> {
    let control_plane = e2e::shared().await?;
    control_plane.install_crds("crd").await?;
    let client = control_plane.client().await?;
    for spec in [
        rollout(json!({"maxConcurrent": 10_000, "interval": "0", "soak": "0s", "progressDeadline": "0.5s"})),
        rollout(json!({"maxConcurrent": "100%", "kinds": ["DaemonSet"], "triggers": ["TrustRoots"], "policy": "Off"})),
        rollout(json!({"namespaceSelector": {}, "workloadSelector": {"matchExpressions": [
            {"key": "example.com/a_b", "operator": "DoesNotExist", "values": []},
            {"key": "c", "operator": "In", "values": [""]},
        ]}})),
        window(json!({})),
        window(json!({"timeZone": "America/Argentina/Buenos_Aires", "allow": [
            {"cron": "*/15  0-6,22 1,15 JAN-mar 7", "duration": "1.5h"}, {"cron": "* * * * *", "duration": "168h"},
        ]})),
        window(json!({"deny": [{"from": "2026-12-24T00:00:00.5Z", "to": "2026-12-24T00:00:00-01:00"}]})),
    ] {
        dry_run(&client, spec.clone()).await.with_context(|| spec.to_string())?;
    }
    Ok(())
}

fn rollout(rollout: Value) -> Value {
    at(&["rollout"], rollout)
}

fn window(window: Value) -> Value {
    at(&["rollout", "window"], window)
}
