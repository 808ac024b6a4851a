//! The webhook in place of Linkerd's container.
//!
//! In: the body of a request on any path. Out: the answer of Linkerd's container, with warnings. Always holds: an answer repeats the
//! review, and has the UID of its request; every operation is validated, also a deletion, which has no object and is
//! denied.

use std::{fmt::Display, sync::Arc};

use bytes::Bytes;
use futures::{FutureExt, future::BoxFuture};
use http::{HeaderValue, Response, StatusCode, header};
use http_body_util::Full;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json, value::RawValue};
use tracing::debug;

use super::{rules::validate, warnings::warnings};
use crate::{
    values::manifest,
    webhook::{Handler, ValidationMetrics, ValidationVerdict, review::limited},
};

/// The answer to a review without a request.
const INVALID: &str = "invalid admission review request";

pub struct DropInHandler {
    metrics: ValidationMetrics,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ReceivedReview<'a> {
    api_version: Option<String>,
    kind: Option<String>,
    #[serde(borrow)]
    request: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct ReceivedRequest<'a> {
    #[serde(default)]
    uid: String,
    #[serde(borrow)]
    object: Option<&'a RawValue>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct AnsweredReview<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    kind: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    api_version: Option<&'a str>,
    request: &'a RawValue,
    response: Value,
}

// === impl DropInHandler ===

impl DropInHandler {
    pub fn new(metrics: ValidationMetrics) -> Self {
        Self { metrics }
    }

    /// Returns the answer to a review.
    ///
    /// # Errors
    /// Returns the text of the error if the body is not a review.
    fn review(&self, body: &[u8]) -> Result<Vec<u8>, String> {
        match body.trim_ascii() {
            // Both formats agree on it.
            b"null" => Err(INVALID.to_owned()),
            json if json.starts_with(b"{") => self.review_json(json),
            yaml => self.review_json(json_of_yaml(yaml)?.as_bytes()),
        }
    }

    fn review_json(&self, body: &[u8]) -> Result<Vec<u8>, String> {
        let review: ReceivedReview<'_> = serde_json::from_slice(body).map_err(undecodable)?;
        let request = review.request.ok_or(INVALID)?;
        let ReceivedRequest { uid, object } = serde_json::from_str(request.get()).map_err(undecodable)?;
        if uid.is_empty() {
            return Err(INVALID.to_owned());
        }
        // The flags of Linkerd's container do not name the domain of the cluster.
        let verdict = match validate(object) {
            Err(message) => ValidationVerdict::denied(message),
            Ok(profile) => ValidationVerdict { denied: None, warnings: warnings(&profile, None) },
        };
        self.metrics.count("ServiceProfile", verdict.result());
        debug!(uid, result = verdict.result(), "reviewed a ServiceProfile");
        let response = match verdict.denied {
            None if verdict.warnings.is_empty() => json!({"uid": uid, "allowed": true}),
            None => json!({"uid": uid, "allowed": true, "warnings": limited(verdict.warnings)}),
            Some(message) => {
                json!({"uid": uid, "allowed": false, "status": {"metadata": {}, "message": message, "code": 400}})
            }
        };
        let ReceivedReview { api_version, kind, .. } = &review;
        let answer = AnsweredReview { kind: kind.as_deref(), api_version: api_version.as_deref(), request, response };
        serde_json::to_vec(&answer).map_err(undecodable)
    }
}

impl Handler for DropInHandler {
    fn answer(self: Arc<Self>, _: String, body: Bytes) -> BoxFuture<'static, Response<Full<Bytes>>> {
        async move {
            let (status, content_type, body) = match self.review(&body) {
                Ok(answer) => (StatusCode::OK, "application/json", answer),
                Err(reason) => {
                    self.metrics.count("other", "invalid");
                    (StatusCode::BAD_REQUEST, "text/plain; charset=utf-8", reason.into_bytes())
                }
            };
            let mut response = Response::new(Full::new(body.into()));
            *response.status_mut() = status;
            response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
            response
        }
        .boxed()
    }
}

fn undecodable(error: impl Display) -> String {
    format!("failed to decode admission review request: {error}")
}

/// Returns the JSON of a body in YAML.
fn json_of_yaml(body: &[u8]) -> Result<String, String> {
    let text = std::str::from_utf8(body).map_err(undecodable)?;
    let review: Map<String, Value> = manifest(text).map_err(undecodable)?;
    Ok(Value::Object(review).to_string())
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt;
    use prometheus::Registry;

    use super::*;

    async fn answer(body: &str) -> (u16, String) {
        let handler = Arc::new(DropInHandler::new(ValidationMetrics::register(&Registry::new()).unwrap()));
        let response = handler.answer("/any".to_owned(), body.to_owned().into()).await;
        let status = response.status().as_u16();
        let text = response.into_body().collect().await.unwrap().to_bytes();
        (status, String::from_utf8(text.into()).unwrap())
    }

    async fn reviewed(body: &str) -> Value {
        let (status, text) = answer(body).await;
        assert_eq!(status, 200, "{text}");
        serde_json::from_str(&text).unwrap()
    }

    #[tokio::test]
    async fn an_answer_repeats_the_review_and_adds_the_response() {
        let request = json!({"uid": "u", "operation": "CREATE", "dryRun": true, "object": {"metadata": {"name": "web.ns.svc.cluster.local"}}});
        let review = json!({"apiVersion": "admission.k8s.io/v1beta1", "kind": "AdmissionReview", "request": request});
        let mut expected = review.clone();
        expected["response"] = json!({"uid": "u", "allowed": true});
        assert_eq!(reviewed(&review.to_string()).await, expected);
    }

    #[tokio::test]
    async fn an_allowed_profile_that_does_something_else_than_it_says_has_warnings() {
        let review = reviewed(r#"{"request": {"uid": "u", "object": {"metadata": {"name": "web"}}}}"#).await;
        let warning = "the name \"web\" is not SERVICE.NAMESPACE.svc.DOMAIN: the ServiceProfile applies to no client";
        assert_eq!(review["response"], json!({"uid": "u", "allowed": true, "warnings": [warning]}));
    }

    #[tokio::test]
    async fn a_denial_has_the_message_and_the_code_400() {
        let body = r#"{"request": {"uid": "u", "object": {"metadata": {"name": "a"}, "spec": {"routes": [null]}}}}"#;
        let status = json!({"metadata": {}, "message": "ServiceProfile \"a\" has a null route", "code": 400});
        let expected = json!({"uid": "u", "allowed": false, "status": status});
        assert_eq!(reviewed(body).await["response"], expected);
    }

    #[tokio::test]
    async fn a_deletion_is_denied_because_it_has_no_object() {
        let review = reviewed(r#"{"request": {"uid": "u", "operation": "DELETE", "object": null}}"#).await;
        assert_eq!(review["response"]["allowed"], false);
        let message = review["response"]["status"]["message"].as_str().unwrap();
        assert!(message.starts_with("ServiceProfile \"\" has invalid name: "), "{message}");
    }

    #[tokio::test]
    async fn a_review_may_be_yaml() {
        let review = reviewed("request:\n  uid: u\n  object: {metadata: {name: b}, spec: {routes: [null]}}\n").await;
        assert_eq!(review["response"]["status"]["message"], "ServiceProfile \"b\" has a null route");
        assert_eq!(review["request"]["object"]["metadata"]["name"], "b");
    }

    #[tokio::test]
    async fn a_body_that_is_no_review_is_answered_with_400() {
        for body in
            ["{}", r#"{"request": null}"#, r#"{"request": {"uid": ""}}"#, r#"{"request": {}}"#, "uid: 1", " null\n"]
        {
            assert_eq!(answer(body).await, (400, "invalid admission review request".to_owned()), "{body}");
        }
        for body in ["{", "[]", "\"x\"", r#"{"request": []}"#, r#"{"kind": 7, "request": {"uid": "u"}}"#, "a: b: c"] {
            let (status, text) = answer(body).await;
            assert_eq!(status, 400);
            assert!(text.starts_with("failed to decode admission review request: "), "{text}");
        }
    }

    #[tokio::test]
    async fn an_object_that_is_nested_too_deep_is_denied() {
        let nested = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
        let review = answer(&format!(r#"{{"request": {{"uid": "u", "object": {nested}}}}}"#)).await;
        assert_eq!(review.0, 200);
        assert!(review.1.contains("\"allowed\":false"));
    }
}
