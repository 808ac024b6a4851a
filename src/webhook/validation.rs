//! The webhook that validates the objects of several kinds, each with its own [`Validator`].
//!
//! In: the body of a request. Out: an answer that allows or denies the object, with warnings. Always holds: an object of
//! another kind, a deletion, a subresource, and an object that is being deleted are allowed; the metric has one series
//! for each kind that has a validator, whatever a client sends.

use std::sync::Arc;

use bytes::Bytes;
use futures::{FutureExt, future::BoxFuture};
use http::Response;
use http_body_util::Full;
use json_patch::Patch;
use prometheus::{IntCounterVec, Registry, register_int_counter_vec_with_registry};
use serde::Deserialize;
use serde_json::value::RawValue;
use tracing::debug;

use super::{
    review::{self, ReviewRequest},
    server::Handler,
};

/// The path of this webhook.
pub const VALIDATION_PATH: &str = "/validate";
/// The kind of a request that no validator reads, in the metric.
const OTHER: &str = "other";

/// A request about an object that is not decoded yet.
pub type ValidationRequest<'a> = ReviewRequest<&'a RawValue>;

/// The decision about an object.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct ValidationVerdict {
    /// Why the object is denied.
    pub denied: Option<String>,
    /// Warnings for the author of an object that is allowed.
    pub warnings: Vec<String>,
}

/// Validates the objects of one kind.
pub trait Validator: Send + Sync + 'static {
    /// Returns the group and the kind of the objects.
    fn kind(&self) -> (&'static str, &'static str);

    /// Returns the decision about an object that is created or updated. The future is dropped after a deadline.
    fn validate<'a>(&'a self, request: &'a ValidationRequest<'a>) -> BoxFuture<'a, ValidationVerdict>;
}

/// The number of reviews by kind and result.
#[derive(Clone)]
pub struct ValidationMetrics(IntCounterVec);

pub struct ValidationHandler {
    validators: Vec<Arc<dyn Validator>>,
    metrics: ValidationMetrics,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct DeletedObject {
    metadata: DeletedMetadata,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct DeletedMetadata {
    deletion_timestamp: Option<String>,
}

// === impl ValidationVerdict ===

impl ValidationVerdict {
    pub fn denied(message: String) -> Self {
        Self { denied: Some(message), warnings: Vec::new() }
    }

    /// Returns the label of this result in metrics.
    pub fn result(&self) -> &'static str {
        match (&self.denied, self.warnings.is_empty()) {
            (Some(_), _) => "denied",
            (None, true) => "allowed",
            (None, false) => "warned",
        }
    }
}

// === impl ValidationMetrics ===

impl ValidationMetrics {
    /// # Errors
    /// When the metric is registered already.
    pub fn register(registry: &Registry) -> prometheus::Result<Self> {
        let reviews = register_int_counter_vec_with_registry!(
            "linkerd_operator_validation_reviews_total",
            "Admission reviews of objects that were validated, by kind and result",
            &["kind", "result"],
            registry
        )?;
        Ok(Self(reviews))
    }

    pub fn count(&self, kind: &'static str, result: &'static str) {
        self.0.with_label_values(&[kind, result]).inc();
    }
}

// === impl ValidationHandler ===

impl ValidationHandler {
    pub fn new(validators: Vec<Arc<dyn Validator>>, metrics: ValidationMetrics) -> Self {
        Self { validators, metrics }
    }

    async fn review(&self, request: &ValidationRequest<'_>) -> Vec<u8> {
        let kind = (request.kind.group.as_str(), request.kind.kind.as_str());
        let validator = self.validators.iter().find(|validator| validator.kind() == kind);
        let name = validator.map_or(OTHER, |validator| validator.kind().1);
        let verdict = match validator.filter(|_| is_validated(request)) {
            Some(validator) => validator.validate(request).await,
            None => ValidationVerdict::default(),
        };
        self.metrics.count(name, verdict.result());
        debug!(kind = name, namespace = request.namespace, result = verdict.result(), "reviewed an object");
        match verdict {
            ValidationVerdict { denied: Some(message), .. } => request.denied(&message),
            ValidationVerdict { denied: None, warnings } => request.allowed(&Patch::default(), warnings),
        }
    }
}

impl Handler for ValidationHandler {
    fn answer(self: Arc<Self>, _: String, body: Bytes) -> BoxFuture<'static, Response<Full<Bytes>>> {
        async move {
            match ValidationRequest::read(&body) {
                Ok(request) => review::answered(self.review(&request).await),
                Err(reason) => {
                    self.metrics.count(OTHER, "invalid");
                    review::invalid(reason)
                }
            }
        }
        .boxed()
    }
}

/// Whether a request changes what an author declares. Neither the status, nor the removal of a finalizer must ever be
/// blocked.
fn is_validated(request: &ValidationRequest<'_>) -> bool {
    let is_deleting = |object: &RawValue| {
        let object: DeletedObject = serde_json::from_str(object.get()).unwrap_or_default();
        object.metadata.deletion_timestamp.is_some()
    };
    request.sub_resource.is_empty()
        && matches!(request.operation.as_str(), "CREATE" | "UPDATE")
        && request.object.is_some_and(|object| !is_deleting(object))
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt;
    use serde_json::{Value, json};

    use super::*;

    /// Denies an object with a field `deny`, and warns of one with a field `warn`.
    struct Thing;

    impl Validator for Thing {
        fn kind(&self) -> (&'static str, &'static str) {
            ("example.com", "Thing")
        }

        fn validate<'a>(&'a self, request: &'a ValidationRequest<'a>) -> BoxFuture<'a, ValidationVerdict> {
            let object: Value = serde_json::from_str(request.object.unwrap().get()).unwrap();
            let text = |key: &str| object.get(key).and_then(Value::as_str).map(str::to_owned);
            let verdict = ValidationVerdict { denied: text("deny"), warnings: text("warn").into_iter().collect() };
            async { verdict }.boxed()
        }
    }

    async fn responses(requests: &[Value]) -> (Vec<Value>, Registry) {
        let registry = Registry::new();
        let metrics = ValidationMetrics::register(&registry).unwrap();
        let handler = Arc::new(ValidationHandler::new(vec![Arc::new(Thing)], metrics));
        let mut responses = Vec::new();
        for request in requests {
            let mut body = json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": {
                "uid": "u", "operation": "CREATE", "kind": {"group": "example.com", "version": "v1", "kind": "Thing"}}});
            let fields = request.as_object().unwrap().clone();
            body["request"].as_object_mut().unwrap().extend(fields);
            let answer = Arc::clone(&handler).answer(VALIDATION_PATH.to_owned(), body.to_string().into()).await;
            let bytes = answer.into_body().collect().await.unwrap().to_bytes();
            responses.push(serde_json::from_slice::<Value>(&bytes).unwrap()["response"].clone());
        }
        (responses, registry)
    }

    fn counts(registry: &Registry) -> Vec<(String, String)> {
        let families = registry.gather();
        let metrics = families.iter().flat_map(prometheus::proto::MetricFamily::get_metric);
        let counts = metrics.map(|metric| {
            let labels: Vec<_> = metric.get_label().iter().map(prometheus::proto::LabelPair::value).collect();
            (labels.join(" "), metric.get_counter().get_value().to_string())
        });
        counts.collect()
    }

    #[tokio::test]
    async fn a_validator_denies_or_warns_about_objects_of_its_kind() {
        let (responses, registry) = responses(&[
            json!({"object": {"deny": "no"}}),
            json!({"object": {"warn": "careful"}}),
            json!({"object": {}, "operation": "UPDATE", "oldObject": {}}),
        ])
        .await;
        assert_eq!(responses[0], json!({"uid": "u", "allowed": false, "status": {"message": "no"}}));
        assert_eq!(responses[1], json!({"uid": "u", "allowed": true, "warnings": ["careful"]}));
        assert_eq!(responses[2], json!({"uid": "u", "allowed": true}));
        let expected = ["Thing allowed", "Thing denied", "Thing warned"];
        assert_eq!(counts(&registry), expected.map(|labels| (labels.to_owned(), "1".to_owned())));
    }

    #[tokio::test]
    async fn other_kinds_deletions_subresources_and_objects_that_are_being_deleted_are_allowed() {
        let bad = json!({"deny": "no"});
        let (responses, registry) = responses(&[
            json!({"object": bad, "kind": {"group": "example.com", "version": "v1", "kind": "Other"}}),
            json!({"object": bad, "kind": {"group": "example.org", "version": "v1", "kind": "Thing"}}),
            json!({"object": null, "oldObject": bad, "operation": "DELETE"}),
            json!({"object": bad, "operation": "UPDATE", "subResource": "status"}),
            json!({"object": {"deny": "no", "metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}, "operation": "UPDATE"}),
        ])
        .await;
        assert_eq!(responses, vec![json!({"uid": "u", "allowed": true}); 5]);
        assert_eq!(
            counts(&registry),
            [("Thing allowed", "3"), ("other allowed", "2")]
                .map(|(labels, count)| (labels.to_owned(), count.to_owned()))
        );
    }

    #[tokio::test]
    async fn a_request_that_is_no_review_is_answered_with_400() {
        let registry = Registry::new();
        let metrics = ValidationMetrics::register(&registry).unwrap();
        let handler = Arc::new(ValidationHandler::new(Vec::new(), metrics));
        let answer = handler.answer(VALIDATION_PATH.to_owned(), Bytes::from_static(b"{}")).await;
        assert_eq!(answer.status(), http::StatusCode::BAD_REQUEST);
        assert_eq!(counts(&registry), [("other invalid".to_owned(), "1".to_owned())]);
    }
}
