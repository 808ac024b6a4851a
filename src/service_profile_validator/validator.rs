//! The validator of ServiceProfiles in the manager.
//!
//! In: a review of a ServiceProfile; whether Linkerd's own webhook is registered. Out: a decision, and warnings. Always
//! holds: where Linkerd's webhook is registered, every ServiceProfile is allowed, so that an author gets one denial from
//! one validator; the registration is read at most once per interval, with a deadline.

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

use super::{rules::validate, warnings::warnings};
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
    cluster_domain: String,
}

// === impl ServiceProfileValidator ===

impl ServiceProfileValidator {
    pub fn new(client: &Client, serves_profiles: bool, cluster_domain: &str) -> Self {
        let (webhooks, cluster_domain) = (Api::all(client.clone()), cluster_domain.to_owned());
        Self { webhooks, registered: Mutex::default(), serves_profiles, cluster_domain }
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
            match validate(request.object) {
                Err(_) if self.is_linkerds_registered().await => ValidationVerdict::default(),
                Err(message) => ValidationVerdict::denied(message),
                Ok(profile) => {
                    let ignored = request.object.filter(|_| self.serves_profiles).and_then(ignored);
                    let others = warnings(&profile, Some(&self.cluster_domain));
                    ValidationVerdict { denied: None, warnings: ignored.into_iter().chain(others).collect() }
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

    async fn verdict(validator: &ServiceProfileValidator, name: &str, spec: &Value) -> ValidationVerdict {
        let body = json!({"request": {"uid": "u", "operation": "CREATE",
            "object": {"metadata": {"name": name}, "spec": spec}}});
        let body = body.to_string();
        validator.validate(&ValidationRequest::read(body.as_bytes()).unwrap()).await
    }

    fn validator(client: &Client, serves_profiles: bool) -> ServiceProfileValidator {
        ServiceProfileValidator::new(client, serves_profiles, "cluster.local")
    }

    const WEB: &str = "web.ns.svc.cluster.local";

    #[tokio::test(start_paused = true)]
    async fn where_linkerds_webhook_is_registered_everything_is_allowed_and_the_registration_is_read_once() {
        let (client, requests) = client(StatusCode::OK);
        let validator = validator(&client, true);
        let denied = json!({"routes": [null]});
        for _ in 0..5 {
            assert_eq!(verdict(&validator, WEB, &denied).await, ValidationVerdict::default());
        }
        assert_eq!(requests.load(Ordering::Relaxed), 1);
        tokio::time::advance(INTERVAL).await;
        verdict(&validator, WEB, &denied).await;
        assert_eq!(requests.load(Ordering::Relaxed), 2);
    }

    #[tokio::test(start_paused = true)]
    async fn without_linkerds_webhook_or_the_permission_to_read_it_bad_profiles_are_denied() {
        for status in [StatusCode::NOT_FOUND, StatusCode::FORBIDDEN] {
            let validator = validator(&client(status).0, true);
            let denied = ValidationVerdict::denied(format!("ServiceProfile {WEB:?} has a null route"));
            assert_eq!(verdict(&validator, WEB, &json!({"routes": [null]})).await, denied);
            assert_eq!(verdict(&validator, WEB, &json!({})).await, ValidationVerdict::default());
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_allowed_profile_has_warnings_also_where_linkerds_webhook_is_registered() {
        for status in [StatusCode::OK, StatusCode::NOT_FOUND] {
            let validator = validator(&client(status).0, true);
            let warnings = verdict(&validator, "web", &json!({})).await.warnings;
            let expected = "the name \"web\" is not SERVICE.NAMESPACE.svc.cluster.local: the ServiceProfile applies to \
                            no client";
            assert_eq!(warnings, [expected]);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_profile_that_the_operator_ignores_has_a_warning_where_it_serves_profiles() {
        let spec = json!({"dstOverrides": [null]});
        let client = client(StatusCode::NOT_FOUND).0;
        let expected = ["linkerd-operator ignores this ServiceProfile: a null override"];
        assert_eq!(verdict(&validator(&client, true), WEB, &spec).await.warnings, expected);
        assert_eq!(verdict(&validator(&client, false), WEB, &spec).await, ValidationVerdict::default());
    }
}
