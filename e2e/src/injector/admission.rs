//! Parses AdmissionReviews and builds their answers.
//!
//! * In: the body of a request. Out: a [`AdmissionReview`], and from it the answer.
//! * Always: an answer is the request with a `response` added, as in Linkerd's injector, so that version, kind and uid
//!   match.

use k8s_openapi::ByteString;
use serde_json::{Value, json};

pub(super) struct AdmissionReview(Value);

impl AdmissionReview {
    /// `None` for an empty body. The error is the text of a 400.
    pub(super) fn parse(body: &[u8]) -> Result<Option<Self>, String> {
        if body.is_empty() {
            return Ok(None);
        }
        let review = serde_json::from_slice(body)
            .map(Self)
            .map_err(|error| format!("failed to decode admission review request: {error}"))?;
        match review.text("/request/uid") {
            Some("") | None => Err("invalid admission review request".to_owned()),
            Some(_) => Ok(Some(review)),
        }
    }

    pub(super) fn is_about_a_pod(&self) -> bool {
        self.text("/request/kind/kind") == Some("Pod")
    }

    pub(super) fn namespace(&self) -> &str {
        self.text("/request/namespace").unwrap_or_default()
    }

    /// The object to admit.
    pub(super) fn object(&self) -> &Value {
        self.0.pointer("/request/object").unwrap_or(&Value::Null)
    }

    pub(super) fn allowed(self) -> Value {
        let response = json!({"uid": self.uid(), "allowed": true});
        self.answered(response)
    }

    pub(super) fn patched(self, operations: &[Value]) -> Value {
        // Base64 in JSON.
        let patch = json!(ByteString(json!(operations).to_string().into_bytes()));
        let response = json!({"uid": self.uid(), "allowed": true, "patchType": "JSONPatch", "patch": patch});
        self.answered(response)
    }

    pub(super) fn denied(self, message: &str) -> Value {
        let response = json!({"uid": self.uid(), "allowed": false, "status": {"metadata": {}, "message": message}});
        self.answered(response)
    }

    fn answered(mut self, response: Value) -> Value {
        if let Some(review) = self.0.as_object_mut() {
            review.insert("response".to_owned(), response);
        }
        self.0
    }

    fn uid(&self) -> &str {
        self.text("/request/uid").unwrap_or_default()
    }

    fn text(&self, pointer: &str) -> Option<&str> {
        self.0.pointer(pointer).and_then(Value::as_str)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_review_without_a_uid_is_invalid() {
        assert!(AdmissionReview::parse(b"").unwrap().is_none());
        for body in ["{}", r#"{"request": {"uid": ""}}"#, r#"{"request": null}"#, "{"] {
            assert!(AdmissionReview::parse(body.as_bytes()).is_err(), "{body}");
        }
    }
}
