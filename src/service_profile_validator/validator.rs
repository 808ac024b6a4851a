//! The validator of ServiceProfiles in the manager.
//!
//! In: a review of a ServiceProfile; whether Linkerd's own webhook is registered. Out: a decision. Always holds: where
//! Linkerd's webhook is registered, every ServiceProfile is allowed without a warning, so that an author gets one answer
//! from one validator; the API server is asked at most once per interval, with a deadline.

use std::time::Duration;

use futures::{FutureExt, future::BoxFuture};
use k8s_openapi::api::admissionregistration::v1::ValidatingWebhookConfiguration;
use kube::{Api, Client};
use serde_json::value::RawValue;
use tokio::{
    sync::Mutex,
    time::{Instant, timeout},
};
use tracing::debug;

use super::rules::validate;
use crate::{
    api::{self, ServiceProfileSpec},
    cluster::{Problems, kinds::service_profile::route::ProfileContent},
    webhook::{ValidationRequest, ValidationVerdict, Validator},
};

/// The registration of Linkerd's own validator.
pub const LINKERD_WEBHOOK: &str = "linkerd-sp-validator-webhook-config";
const INTERVAL: Duration = Duration::from_secs(30);
/// Shorter than the timeout of the webhook.
const DEADLINE: Duration = Duration::from_secs(2);

pub struct ServiceProfileValidator {
    webhooks: Api<ValidatingWebhookConfiguration>,
    /// Whether Linkerd's webhook is registered, and when that was read.
    registered: Mutex<Option<(bool, Instant)>>,
    /// Whether this process sends profiles to proxies. It may ignore a ServiceProfile that Linkerd accepts.
    serves_profiles: bool,
}

// === impl ServiceProfileValidator ===

impl ServiceProfileValidator {
    pub fn new(client: &Client, serves_profiles: bool) -> Self {
        Self { webhooks: Api::all(client.clone()), registered: Mutex::default(), serves_profiles }
    }

    /// Whether Linkerd's own webhook is registered. If that cannot be read, ServiceProfiles are validated: both
    /// validators give the same answer.
    async fn is_linkerds_registered(&self) -> bool {
        // Other reviews wait here for the one answer.
        let mut registered = self.registered.lock().await;
        if let Some((is_registered, _)) = registered.filter(|(_, read)| read.elapsed() < INTERVAL) {
            return is_registered;
        }
        let is_registered = match timeout(DEADLINE, self.webhooks.get_metadata_opt(LINKERD_WEBHOOK)).await {
            Ok(Ok(found)) => found.is_some(),
            Ok(Err(error)) => {
                debug!(%error, "could not read the registration of Linkerd's validator");
                false
            }
            Err(_) => {
                debug!("the registration of Linkerd's validator was not read in time");
                false
            }
        };
        *registered = Some((is_registered, Instant::now()));
        is_registered
    }
}

impl Validator for ServiceProfileValidator {
    fn kind(&self) -> (&'static str, &'static str) {
        ("linkerd.io", "ServiceProfile")
    }

    fn validate<'a>(&'a self, request: &'a ValidationRequest<'a>) -> BoxFuture<'a, ValidationVerdict> {
        async move {
            if self.is_linkerds_registered().await {
                return ValidationVerdict::default();
            }
            match validate(request.object) {
                Err(message) => ValidationVerdict::denied(message),
                Ok(()) => {
                    let ignored = request.object.filter(|_| self.serves_profiles).and_then(ignored);
                    ValidationVerdict { denied: None, warnings: ignored.into_iter().collect() }
                }
            }
        }
        .boxed()
    }
}

/// Returns why the operator's destination ignores a ServiceProfile that Linkerd's validator accepts.
fn ignored(object: &RawValue) -> Option<String> {
    let profile: api::ServiceProfile = serde_json::from_str(object.get()).ok()?;
    let spec: Result<Option<ServiceProfileSpec>, _> =
        serde_json::from_str(profile.spec.as_ref().map_or("null", |spec| spec.get()));
    let content = spec.map_err(|error| error.to_string()).and_then(|spec| {
        ProfileContent::of(spec.unwrap_or_default(), &mut Problems::default()).map_err(|invalid| invalid.to_string())
    });
    content.err().map(|reason| format!("linkerd-operator ignores this ServiceProfile: {reason}"))
}

#[cfg(test)]
mod tests {
    use std::sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    };

    use http::{Request, Response, StatusCode};
    use kube::client::Body;
    use serde_json::{Value, json};

    use super::*;

    /// A client whose API server answers with this status, and the number of its requests.
    fn client(status: StatusCode) -> (Client, Arc<AtomicUsize>) {
        let requests = Arc::<AtomicUsize>::default();
        let counted = Arc::clone(&requests);
        let service = tower::service_fn(move |request: Request<Body>| {
            counted.fetch_add(1, Ordering::Relaxed);
            assert!(request.uri().path().ends_with(&format!("validatingwebhookconfigurations/{LINKERD_WEBHOOK}")));
            let body = match status {
                StatusCode::OK => json!({"apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadata",
                    "metadata": {"name": LINKERD_WEBHOOK}}),
                status => json!({"apiVersion": "v1", "kind": "Status", "status": "Failure", "message": "no",
                    "reason": "NotFound", "code": status.as_u16()}),
            };
            let response = Response::builder().status(status).body(Body::from(body.to_string().into_bytes()));
            async { anyhow::Ok(response?) }
        });
        (Client::new(service, "default"), requests)
    }

    async fn verdict(validator: &ServiceProfileValidator, spec: &Value) -> ValidationVerdict {
        let body = json!({"request": {"uid": "u", "operation": "CREATE",
            "object": {"metadata": {"name": "a"}, "spec": spec}}});
        let body = body.to_string();
        validator.validate(&ValidationRequest::read(body.as_bytes()).unwrap()).await
    }

    #[tokio::test(start_paused = true)]
    async fn where_linkerds_webhook_is_registered_everything_is_allowed_and_the_registration_is_read_once() {
        let (client, requests) = client(StatusCode::OK);
        let validator = ServiceProfileValidator::new(&client, true);
        for _ in 0..5 {
            assert_eq!(verdict(&validator, &json!({"routes": [null]})).await, ValidationVerdict::default());
        }
        assert_eq!(requests.load(Ordering::Relaxed), 1);
        tokio::time::advance(INTERVAL).await;
        verdict(&validator, &json!({})).await;
        assert_eq!(requests.load(Ordering::Relaxed), 2);
    }

    #[tokio::test(start_paused = true)]
    async fn without_linkerds_webhook_or_the_permission_to_read_it_bad_profiles_are_denied() {
        for status in [StatusCode::NOT_FOUND, StatusCode::FORBIDDEN] {
            let validator = ServiceProfileValidator::new(&client(status).0, true);
            let denied = ValidationVerdict::denied("ServiceProfile \"a\" has a null route".to_owned());
            assert_eq!(verdict(&validator, &json!({"routes": [null]})).await, denied);
            assert_eq!(verdict(&validator, &json!({})).await, ValidationVerdict::default());
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_profile_that_the_operator_ignores_has_a_warning_where_it_serves_profiles() {
        let spec = json!({"dstOverrides": [null]});
        let client = client(StatusCode::NOT_FOUND).0;
        let serving = ServiceProfileValidator::new(&client, true);
        let expected = ["linkerd-operator ignores this ServiceProfile: a null override"];
        assert_eq!(verdict(&serving, &spec).await.warnings, expected);
        let other = ServiceProfileValidator::new(&client, false);
        assert_eq!(verdict(&other, &spec).await, ValidationVerdict::default());
    }
}
