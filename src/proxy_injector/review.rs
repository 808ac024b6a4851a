//! The admission reviews that the API server sends, and the answers.
//!
//! In: the bytes of a request, with content that tenants control. Out: a [`ReviewRequest`], or an error; the
//! bytes of an answer. Always holds: an answer has the UID and the API version of its request.

use json_patch::Patch;
use k8s_openapi::ByteString;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{inject::ObjectKind, reviewed::ReviewedObject};
use crate::text::truncated;

/// The maximum number of warnings of an answer, and the maximum length of one. The API server truncates longer ones.
const MAX_WARNINGS: usize = 10;
const MAX_WARNING_BYTES: usize = 250;

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct ReviewObject {
    #[serde(default)]
    api_version: String,
    request: Option<RequestObject>,
}

#[derive(Debug, Deserialize)]
struct RequestObject {
    #[serde(default)]
    uid: String,
    #[serde(default)]
    kind: KindObject,
    #[serde(default)]
    namespace: String,
    object: Option<ReviewedObject>,
}

#[derive(Debug, Default, Deserialize)]
struct KindObject {
    #[serde(default)]
    kind: String,
}

/// A request about one object.
#[derive(Debug)]
pub(super) struct ReviewRequest {
    api_version: String,
    uid: String,
    /// `None` for a kind that is never changed.
    pub(super) kind: Option<ObjectKind>,
    pub(super) namespace: String,
    pub(super) object: ReviewedObject,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ResponseObject<'a> {
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
}

// === impl ReviewRequest ===

impl ReviewRequest {
    /// Reads a request.
    ///
    /// # Errors
    /// Returns a sentence if it is not an admission review with a request.
    pub(super) fn read(body: &[u8]) -> Result<Self, String> {
        let review: ReviewObject = serde_json::from_slice(body)
            .map_err(|error| format!("failed to decode admission review request: {error}"))?;
        let request = review.request.filter(|request| !request.uid.is_empty());
        let Some(request) = request else { return Err("invalid admission review request".to_owned()) };
        let kind = match request.kind.kind.to_ascii_lowercase().as_str() {
            "pod" => Some(ObjectKind::Pod),
            "service" => Some(ObjectKind::Service),
            _ => None,
        };
        Ok(Self {
            api_version: review.api_version,
            uid: request.uid,
            kind,
            namespace: request.namespace,
            object: request.object.unwrap_or_default(),
        })
    }

    /// Returns the answer that allows the object, with a patch.
    pub(super) fn allowed(&self, patch: &Patch, mut warnings: Vec<String>) -> Vec<u8> {
        let has_patch = !patch.0.is_empty();
        warnings.truncate(MAX_WARNINGS);
        let warnings = warnings.into_iter().map(|warning| truncated(warning, MAX_WARNING_BYTES)).collect();
        self.answer(&ResponseObject {
            uid: &self.uid,
            allowed: true,
            patch: has_patch.then(|| ByteString(json!(patch).to_string().into_bytes())),
            patch_type: has_patch.then_some("JSONPatch"),
            status: None,
            warnings,
        })
    }

    /// Returns the answer that denies the object.
    pub(super) fn denied(&self, message: &str) -> Vec<u8> {
        self.answer(&ResponseObject {
            uid: &self.uid,
            allowed: false,
            patch: None,
            patch_type: None,
            status: Some(json!({"message": message})),
            warnings: Vec::new(),
        })
    }

    fn answer(&self, response: &ResponseObject<'_>) -> Vec<u8> {
        let review = json!({"apiVersion": self.api_version, "kind": "AdmissionReview", "response": response});
        review.to_string().into_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn review(request: &Value) -> Vec<u8> {
        json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}).to_string().into()
    }

    #[test]
    fn a_request_without_uid_or_that_is_no_review_is_refused() {
        let refused = |body: &[u8]| ReviewRequest::read(body).unwrap_err();
        assert!(refused(b"{").starts_with("failed to decode admission review request: "));
        assert!(refused(b"[]").starts_with("failed to decode admission review request: "));
        assert_eq!(refused(b"{}"), "invalid admission review request");
        assert_eq!(refused(&review(&json!({"uid": ""}))), "invalid admission review request");
    }

    #[test]
    fn an_answer_has_the_uid_and_the_version_of_its_request() {
        let request =
            ReviewRequest::read(&review(&json!({"uid": "u", "kind": {"kind": "POD"}, "object": null}))).unwrap();
        assert_eq!(request.kind, Some(ObjectKind::Pod));
        let denied: Value = serde_json::from_slice(&request.denied("no")).unwrap();
        let expected = json!({"uid": "u", "allowed": false, "status": {"message": "no"}});
        assert_eq!((&denied["response"], &denied["apiVersion"]), (&expected, &json!("admission.k8s.io/v1")));
        let unchanged: Value = serde_json::from_slice(&request.allowed(&Patch::default(), Vec::new())).unwrap();
        assert_eq!(unchanged["response"], json!({"uid": "u", "allowed": true}));
    }

    #[test]
    fn warnings_are_few_and_short() {
        let request = ReviewRequest::read(&review(&json!({"uid": "u"}))).unwrap();
        let warnings = vec!["w".repeat(10_000); 100];
        let allowed: Value = serde_json::from_slice(&request.allowed(&Patch::default(), warnings)).unwrap();
        let shown = allowed["response"]["warnings"].as_array().unwrap();
        assert!(shown.len() == 10 && shown.iter().all(|it| it.as_str().unwrap().len() <= 250));
    }
}
