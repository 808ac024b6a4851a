//! The operator in place of Linkerd's `sp-validator`, against Linkerd's own.
//!
//! * In: the path of Linkerd's controller. Out: both answers to the same reviews of ServiceProfiles.
//! * Always: the status of the answer, the decision, the message and the code are compared. Texts of decoders are not
//!   compared where the two parse JSON differently.

use std::path::Path;

use anyhow::{Context, Result};
use e2e::{ControlPlane, Options, validator::WebhookProcess};
use serde_json::{Value, json};

/// A review, and both answers.
pub(crate) struct ProfileCompared {
    pub(crate) review: String,
    pub(crate) linkerd: String,
    pub(crate) operator: String,
    /// Whether a row of the documentation explains a difference.
    pub(crate) is_documented: bool,
}

/// Routes, conditions and others, each in the place of `spec`.
const SPECS: &[&str] = &[
    "null",
    "[]",
    "{}",
    r#"{"foo": 1}"#,
    r#"{"zoo": 1, "routes": 5}"#,
    r#"{"zoo": 1, "dstOverrides": [{"weight": "x"}]}"#,
    r#"{"Routes": [null]}"#,
    r#"{"routes": {}}"#,
    r#"{"routes": ["x"]}"#,
    r#"{"opaquePorts": ["80"]}"#,
    r#"{"opaquePorts": {"80": {}, "081": null}}"#,
    r#"{"opaquePorts": {"x": {}}}"#,
    r#"{"opaquePorts": {"80": {"a": 1}}}"#,
    r#"{"opaquePorts": {"80": 5}}"#,
    r#"{"retryBudget": []}"#,
    r#"{"retryBudget": {}}"#,
    r#"{"retryBudget": {"retryRatio": -0.2}}"#,
    r#"{"retryBudget": {"retryRatio": -1e-9}}"#,
    r#"{"retryBudget": {"retryRatio": -1e30}}"#,
    r#"{"retryBudget": {"retryRatio": -0.0}}"#,
    r#"{"retryBudget": {"retryRatio": 1e39}}"#,
    r#"{"retryBudget": {"ttl": "foo"}}"#,
    r#"{"retryBudget": {"ttl": 10}}"#,
    r#"{"retryBudget": {"ttl": "10s", "minRetriesPerSecond": -5}}"#,
    r#"{"retryBudget": {"ttl": "10s", "minRetriesPerSecond": 1.0}}"#,
    r#"{"retryBudget": {"ttl": "10s", "minRetriesPerSecond": 18446744073709551616}}"#,
    r#"{"retryBudget": {"ttl": "-10s"}}"#,
];
const ROUTES: &[&str] = &[
    "null",
    "[]",
    "{}",
    r#"{"name": ""}"#,
    r#"{"name": 5, "condition": {"method": "GET"}}"#,
    r#"{"name": "r", "condition": null}"#,
    r#"{"name": "r", "timeout": "x", "condition": {}}"#,
    r#"{"name": "r", "isRetryable": "true", "condition": {"method": "GET"}}"#,
    r#"{"name": "r", "condition": {"method": "GET"}, "responseClasses": {}}"#,
];
const TIMEOUTS: &[&str] = &[
    r#""""#,
    r#""0""#,
    "0",
    "5",
    "1.5",
    "true",
    "[]",
    r#""5""#,
    r#""1d""#,
    r#""s""#,
    r#"".s""#,
    r#""+""#,
    r#""1.5.5s""#,
    r#""1h2""#,
    r#""one-second""#,
    r#""9999999999h""#,
    r#""-1h30m""#,
    r#""1s\n\"é""#,
    r#""1hé2s""#,
];
const CONDITIONS: &[&str] = &[
    "{}",
    "[]",
    r#"{"method": ""}"#,
    r#"{"method": 5}"#,
    r#"{"method": {}}"#,
    r#"{"METHOD": "GET"}"#,
    r#"{"pathRegex": "["}"#,
    r#"{"foo": 1}"#,
    r#"{"b": 1, "a": 1}"#,
    r#"{"all": null}"#,
    r#"{"all": []}"#,
    r#"{"all": [null]}"#,
    r#"{"all": [{}]}"#,
    r#"{"all": [{"foo": 1}], "method": "GET"}"#,
    r#"{"any": []}"#,
    r#"{"any": [null], "all": [null]}"#,
    r#"{"not": {}, "any": [null]}"#,
    r#"{"not": null}"#,
    r#"{"not": {"method": "GET"}}"#,
    r#"{"not": [{"method": "GET"}]}"#,
    r#"{"method": "GET", "not": {}}"#,
];
const CLASSES: &[&str] = &["null", "{}", r#"{"condition": null}"#, r#"{"condition": []}"#, r#"{"isFailure": 1}"#];
const RESPONSES: &[&str] = &[
    "{}",
    r#"{"status": null}"#,
    r#"{"status": []}"#,
    r#"{"status": {}}"#,
    r#"{"status": {"min": 99}}"#,
    r#"{"status": {"min": 100, "max": 599}}"#,
    r#"{"status": {"min": 600, "max": 99}}"#,
    r#"{"status": {"max": 600}}"#,
    r#"{"status": {"min": 500, "max": 400}}"#,
    r#"{"status": {"min": 200, "max": 0}}"#,
    r#"{"status": {"min": 1.5}}"#,
    r#"{"status": {"min": 1e2}}"#,
    r#"{"status": {"min": "100"}}"#,
    r#"{"status": {"min": false}}"#,
    r#"{"status": {"min": 4294967296}}"#,
    r#"{"status": {"foo": 1}}"#,
    r#"{"status": {"min": 1}, "not": {}}"#,
    r#"{"status": {"min": 1}, "all": [null]}"#,
    r#"{"any": [null]}"#,
    r#"{"all": []}"#,
    r#"{"not": []}"#,
    r#"{"not": {"status": {"min": 1}}}"#,
];
const WEIGHTS: &[&str] = &[
    "null",
    "5",
    "1.5",
    "true",
    "[]",
    r#""""#,
    r#""x""#,
    r#"" 1""#,
    r#""1k""#,
    r#""1ki""#,
    r#""1KI""#,
    r#""1e""#,
    r#""1e1000""#,
    r#""1.2.3""#,
    r#""1 k""#,
    r#""--1""#,
    r#""-""#,
    r#""m""#,
    r#"".5""#,
    r#""1.""#,
    r#""1E""#,
    r#""500m""#,
];
const METADATA: &[&str] = &[
    "null",
    "[]",
    "{}",
    r#"{"name": "^.^"}"#,
    r#"{"name": "A"}"#,
    r#"{"name": "a..b"}"#,
    r#"{"name": "aé\"\\"}"#,
    r#"{"name": 5}"#,
    r#"{"name": true}"#,
    r#"{"name": []}"#,
    r#"{"name": "a", "foo": 1}"#,
    r#"{"name": "a", "labels": []}"#,
    r#"{"name": "a", "labels": {"a": 1}}"#,
    r#"{"name": "a", "labels": {"a": []}}"#,
    r#"{"name": "a", "generation": "1"}"#,
    r#"{"name": "a", "generation": 1.5}"#,
    r#"{"name": "a", "creationTimestamp": null}"#,
    r#"{"name": "a", "creationTimestamp": "2026-01-02T03:04:05Z"}"#,
    r#"{"name": "a", "creationTimestamp": 5}"#,
    r#"{"name": "a", "ownerReferences": [{"foo": 1}]}"#,
    r#"{"name": "a", "managedFields": [{"manager": "m", "fieldsV1": {"f:a": {}}}]}"#,
    r#"{"name": "a", "name": "b"}"#,
];
/// Whole bodies. The texts of errors of the decoders differ.
const BODIES: &[&str] = &[
    "",
    "{}",
    "null",
    r#"{"request": null}"#,
    r#"{"request": {"uid": ""}}"#,
    r#"{"request": {"uid": "u"}}"#,
    r#"{"request": {"uid": "u", "operation": "DELETE", "oldObject": {"metadata": {"name": "a"}}}}"#,
    r#"{"request": {"uid": "u", "object": []}}"#,
    r#"{"request": {"uid": "u", "object": "x"}}"#,
    r#"{"request": {"uid": "u", "object": {"metadata": {"name": "a"}, "status": {}}}}"#,
    r#"{"request": {"uid": "u", "object": {"metadata": {"name": "a"}, "apiVersion": 5}}}"#,
    "request: {uid: u, object: {metadata: {name: b}, spec: {routes: [null]}}}",
    "{",
    "[]",
    r#"{"request": []}"#,
    r#"{"kind": 7, "request": {"uid": "u"}}"#,
];

pub(crate) async fn compare(controller: &Path) -> Result<Vec<ProfileCompared>> {
    let control_plane = ControlPlane::start(Options::default()).await?;
    let linkerd = WebhookProcess::linkerd(&control_plane, controller).await?;
    let operator = WebhookProcess::sp_validator(&control_plane, control_plane.kubeconfig()).await?;
    let mut compared = Vec::new();
    for body in bodies() {
        let (of_linkerd, of_operator) = (answer(&linkerd, &body).await?, answer(&operator, &body).await?);
        compared.push(ProfileCompared {
            review: body,
            linkerd: of_linkerd,
            operator: of_operator,
            is_documented: false,
        });
    }
    // Linkerd parses a review as YAML, in which some texts have no escape, and has another limit of the depth.
    let nested = format!("{}{{\"method\": \"GET\"}}{}", "{\"all\": [".repeat(200), "]}".repeat(200));
    for body in [of_metadata("{\"name\": \"\\ud83d\\ude00\"}"), of_route(&with_condition(&nested))] {
        let (of_linkerd, of_operator) = (answer(&linkerd, &body).await?, answer(&operator, &body).await?);
        compared.push(ProfileCompared {
            review: body,
            linkerd: of_linkerd,
            operator: of_operator,
            is_documented: true,
        });
    }
    Ok(compared)
}

fn bodies() -> Vec<String> {
    let route = |more: String| of_route(&format!(r#"{{"name": "r", "condition": {{"method": "GET"}}, {more}}}"#));
    let class = |class: &str| route(format!(r#""responseClasses": [{class}]"#));
    let mut bodies: Vec<String> = BODIES.iter().map(|&body| body.to_owned()).collect();
    bodies.extend(METADATA.iter().map(|metadata| of_metadata(metadata)));
    bodies.extend(SPECS.iter().map(|spec| of_spec(spec)));
    bodies.extend(ROUTES.iter().map(|route| of_route(route)));
    bodies.extend(TIMEOUTS.iter().map(|timeout| route(format!(r#""timeout": {timeout}"#))));
    bodies.extend(CONDITIONS.iter().map(|condition| of_route(&with_condition(condition))));
    bodies.extend(CLASSES.iter().map(|it| class(it)));
    bodies.extend(RESPONSES.iter().map(|response| class(&format!(r#"{{"condition": {response}}}"#))));
    bodies.extend(
        WEIGHTS
            .iter()
            .map(|weight| of_spec(&format!(r#"{{"dstOverrides": [{{"authority": "a", "weight": {weight}}}]}}"#))),
    );
    bodies
}

fn with_condition(condition: &str) -> String {
    format!(r#"{{"name": "r", "condition": {condition}}}"#)
}

fn of_route(route: &str) -> String {
    of_spec(&format!(r#"{{"routes": [{route}]}}"#))
}

fn of_spec(spec: &str) -> String {
    of_object(&format!(r#"{{"metadata": {{"name": "a"}}, "spec": {spec}}}"#))
}

fn of_metadata(metadata: &str) -> String {
    of_object(&format!(r#"{{"metadata": {metadata}}}"#))
}

fn of_object(object: &str) -> String {
    format!(
        r#"{{"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": {{"uid": "u", "operation": "CREATE", "object": {object}}}}}"#
    )
}

/// Returns what is compared of an answer.
async fn answer(webhook: &WebhookProcess, body: &str) -> Result<String> {
    let (status, answer) = webhook.post("/", body.to_owned()).await.with_context(|| body.to_owned())?;
    let text = String::from_utf8_lossy(&answer).trim().to_owned();
    let Ok(mut review) = serde_json::from_str::<Value>(&text) else {
        // Both name the decoder's reason after the colon.
        return Ok(format!("{status} {}", text.split(": ").next().unwrap_or_default()));
    };
    // Linkerd's validator has none.
    if let Some(response) = review.get_mut("response").and_then(Value::as_object_mut) {
        response.remove("warnings");
    }
    let has_request = review.get("request").is_some();
    let versions = [review.get("apiVersion"), review.get("kind")];
    Ok(json!([status.as_u16(), versions, has_request, review.get("response")]).to_string())
}

// === impl ProfileCompared ===

impl ProfileCompared {
    pub(crate) fn is_equal(&self) -> bool {
        self.linkerd == self.operator
    }

    pub(crate) fn is_explained(&self) -> bool {
        self.is_equal() || self.is_documented
    }
}
