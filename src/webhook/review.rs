//! The admission reviews that the API server sends, and the answers.
//!
//! In: the bytes of a request, with content that tenants control. Out: a [`ReviewRequest`], or an error; the bytes of an
//! answer. Always holds: an answer has the UID and the API version of its request.

use bytes::Bytes;
use http::{Response, StatusCode};
use http_body_util::Full;
use json_patch::Patch;
use k8s_openapi::ByteString;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Value, json};

use crate::{
    api::{OPERATOR, WEBHOOK_AUDIT_ANNOTATION, is_dns_label},
    text::truncated,
};

/// The maximum number of warnings of an answer, and the maximum length of one. The API server truncates longer ones.
pub const MAX_WARNINGS: usize = 10;
const MAX_WARNING_BYTES: usize = 250;

/// A request about one object, which is decoded as `T`.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", bound = "T: Deserialize<'de>")]
pub struct ReviewRequest<T> {
    #[serde(default)]
    uid: String,
    #[serde(skip)]
    api_version: String,
    #[serde(default)]
    pub kind: ReviewedKind,
    /// Empty, or a valid name.
    #[serde(default)]
    pub namespace: String,
    /// `CREATE`, `UPDATE` or `DELETE`.
    #[serde(default)]
    pub operation: String,
    /// Empty for the object itself.
    #[serde(default)]
    pub sub_resource: String,
    /// Nothing must be written for this request, except the answer.
    #[serde(default, deserialize_with = "null_as_false")]
    pub dry_run: bool,
    /// `None` if the object is deleted.
    pub object: Option<T>,
    /// The object before an update or a deletion.
    pub old_object: Option<T>,
}

/// The kind of the object under review.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct ReviewedKind {
    pub group: String,
    pub version: String,
    pub kind: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", bound = "T: Deserialize<'de>")]
struct Review<T> {
    #[serde(default)]
    api_version: String,
    request: Option<ReviewRequest<T>>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ReviewResponse<'a> {
    uid: &'a str,
    allowed: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    patch: Option<ByteString>,
    #[serde(skip_serializing_if = "Option::is_none")]
    patch_type: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    status: Option<Value>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    warnings: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    audit_annotations: Option<Value>,
}

// === impl ReviewRequest ===

impl<'de, T: Deserialize<'de>> ReviewRequest<T> {
    /// Reads a request.
    ///
    /// # Errors
    /// Returns a sentence if it is not an admission review with a request. The answer is [`invalid`].
    pub fn read(body: &'de [u8]) -> Result<Self, String> {
        let review: Review<T> = serde_json::from_slice(body)
            .map_err(|error| format!("failed to decode admission review request: {error}"))?;
        let is_valid = |request: &Self| {
            !request.uid.is_empty() && (request.namespace.is_empty() || is_dns_label(&request.namespace))
        };
        let request = review.request.filter(is_valid);
        let Some(request) = request else { return Err("invalid admission review request".to_owned()) };
        Ok(Self { api_version: review.api_version, ..request })
    }
}

impl<T> ReviewRequest<T> {
    /// Returns the answer that allows the object, with a patch.
    pub fn allowed(&self, patch: &Patch, warnings: Vec<String>) -> Vec<u8> {
        self.allowed_with(patch, warnings, None)
    }

    /// Returns the same answer with the name of this program in an audit annotation.
    pub fn allowed_by_name(&self, patch: &Patch, warnings: Vec<String>) -> Vec<u8> {
        self.allowed_with(patch, warnings, Some(json!({ WEBHOOK_AUDIT_ANNOTATION: server_name() })))
    }

    fn allowed_with(&self, patch: &Patch, warnings: Vec<String>, audit_annotations: Option<Value>) -> Vec<u8> {
        let has_patch = !patch.0.is_empty();
        self.answer(&ReviewResponse {
            uid: &self.uid,
            allowed: true,
            patch: has_patch.then(|| ByteString(json!(patch).to_string().into_bytes())),
            patch_type: has_patch.then_some("JSONPatch"),
            status: None,
            warnings: limited(warnings),
            audit_annotations,
        })
    }

    /// Returns the answer that denies the object.
    pub fn denied(&self, message: &str) -> Vec<u8> {
        self.answer(&ReviewResponse {
            uid: &self.uid,
            allowed: false,
            patch: None,
            patch_type: None,
            status: Some(json!({"message": message})),
            warnings: Vec::new(),
            audit_annotations: None,
        })
    }

    fn answer(&self, response: &ReviewResponse<'_>) -> Vec<u8> {
        let review = json!({"apiVersion": self.api_version, "kind": "AdmissionReview", "response": response});
        review.to_string().into_bytes()
    }
}

/// The name of this program, for audit logs.
fn server_name() -> String {
    format!("{OPERATOR}/{}", env!("CARGO_PKG_VERSION"))
}

/// Returns the HTTP response with the answer to a review.
pub fn answered(answer: Vec<u8>) -> Response<Full<Bytes>> {
    Response::new(Full::new(answer.into()))
}

/// Returns the HTTP response to a request that is not a review.
pub fn invalid(reason: String) -> Response<Full<Bytes>> {
    let mut response = answered(reason.into_bytes());
    *response.status_mut() = StatusCode::BAD_REQUEST;
    response
}

/// Returns as many warnings as an answer may have, and none that is longer than the API server shows.
pub fn limited(mut warnings: Vec<String>) -> Vec<String> {
    warnings.truncate(MAX_WARNINGS);
    warnings.into_iter().map(|warning| truncated(warning, MAX_WARNING_BYTES)).collect()
}

fn null_as_false<'de, D: Deserializer<'de>>(deserializer: D) -> Result<bool, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn review(request: &Value) -> Vec<u8> {
        json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}).to_string().into()
    }

    #[test]
    fn a_request_without_uid_or_that_is_no_review_is_refused() {
        let refused = |body: &[u8]| ReviewRequest::<Value>::read(body).unwrap_err();
        assert!(refused(b"{").starts_with("failed to decode admission review request: "));
        assert!(refused(b"[]").starts_with("failed to decode admission review request: "));
        assert_eq!(refused(b"{}"), "invalid admission review request");
        assert_eq!(refused(&review(&json!({"uid": ""}))), "invalid admission review request");
        for namespace in ["a/b", "..", "Shop", &"n".repeat(64)] {
            let request = json!({"uid": "u", "namespace": namespace});
            assert_eq!(refused(&review(&request)), "invalid admission review request", "{namespace}");
        }
    }

    #[test]
    fn an_answer_has_the_uid_and_the_version_of_its_request() {
        let body = review(&json!({"uid": "u", "kind": {"kind": "POD"}, "dryRun": null, "object": null}));
        let request = ReviewRequest::<Value>::read(&body).unwrap();
        assert_eq!((request.kind.kind.as_str(), request.dry_run), ("POD", false));
        let denied: Value = serde_json::from_slice(&request.denied("no")).unwrap();
        let expected = json!({"uid": "u", "allowed": false, "status": {"message": "no"}});
        assert_eq!((&denied["response"], &denied["apiVersion"]), (&expected, &json!("admission.k8s.io/v1")));
        let name = format!("linkerd-operator/{}", env!("CARGO_PKG_VERSION"));
        let named: Value = serde_json::from_slice(&request.allowed_by_name(&Patch::default(), Vec::new())).unwrap();
        let expected = json!({"uid": "u", "allowed": true, "auditAnnotations": {"answered-by": name}});
        assert_eq!(named["response"], expected);
        let unchanged: Value = serde_json::from_slice(&request.allowed(&Patch::default(), Vec::new())).unwrap();
        assert_eq!(unchanged["response"], json!({"uid": "u", "allowed": true}));
    }

    #[test]
    fn warnings_are_few_and_short() {
        let body = review(&json!({"uid": "u"}));
        let request = ReviewRequest::<Value>::read(&body).unwrap();
        let warnings = vec!["w".repeat(10_000); 100];
        let allowed: Value = serde_json::from_slice(&request.allowed(&Patch::default(), warnings)).unwrap();
        let shown = allowed["response"]["warnings"].as_array().unwrap();
        assert!(shown.len() == 10 && shown.iter().all(|it| it.as_str().unwrap().len() <= 250));
    }
}
