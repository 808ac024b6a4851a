//! The body of a review of a LinkerdConfig, an ExternalWorkload or a ServiceProfile, through all validators.

use std::{convert::Infallible, sync::Arc};

use futures::FutureExt;
use http::{Request, Response, StatusCode};
use http_body_util::BodyExt;
use kube::{Client, client::Body, runtime::watcher::Event};
use prometheus::Registry;
use serde_json::{Value, json};
use tokio::runtime::{Builder, Runtime};

use crate::{
    cluster::{Kind, testing::Feed},
    external_workload::ExternalWorkloadValidator,
    linkerd_config::LinkerdConfigValidator,
    service_profile_validator::{DropInHandler, ServiceProfileValidator},
    webhook::{Handler, VALIDATION_PATH, ValidationHandler, ValidationMetrics, Validator, review::MAX_WARNINGS},
};

/// The document that Linkerd's chart renders.
const INSTALLED: &str = include_str!("../values/testdata/installed.yaml");
/// The most bytes of an answer beside the parts of the review that it repeats.
const LONGEST_ANSWER: usize = 16 * 1024;

/// Both handlers of reviews that validate, and the runtime of their clients.
struct Validators {
    runtime: Runtime,
    manager: Arc<ValidationHandler>,
    drop_in: Arc<DropInHandler>,
}

thread_local! {
    static VALIDATORS: Validators = Validators::new();
}

/// The body of a review of any of these kinds.
pub fn validation_review(data: &[u8]) {
    VALIDATORS.with(|validators| {
        let of_manager = validators.answer(Arc::clone(&validators.manager) as Arc<dyn Handler>, data);
        check(&of_manager, data, LONGEST_ANSWER);
        // The answer to a review depends on the time only if roots are about to expire.
        assert_eq!(of_manager, validators.answer(Arc::clone(&validators.manager) as Arc<dyn Handler>, data));
        let of_drop_in = validators.answer(Arc::clone(&validators.drop_in) as Arc<dyn Handler>, data);
        // It repeats the review. In JSON, a control character of YAML takes six bytes.
        check(&of_drop_in, data, LONGEST_ANSWER + 6 * data.len());
    });
}

/// Checks an answer to a review: its status and its body.
fn check((status, body): &(StatusCode, Vec<u8>), data: &[u8], longest: usize) {
    // A uid and an API version of any length are repeated, and each of their characters may have to be escaped.
    assert!(body.len() <= longest + 6 * data.len(), "{} bytes", body.len());
    match *status {
        StatusCode::OK => {
            let answer: Value = serde_json::from_slice(body).expect("an answer is JSON");
            let response = &answer["response"];
            let is_allowed = response["allowed"].as_bool().expect("an answer allows or denies");
            assert!(response["uid"].as_str().is_some_and(|uid| !uid.is_empty()), "{response}");
            assert_eq!(is_allowed, response.get("status").is_none(), "{response}");
            let warnings = response["warnings"].as_array().map_or(&[][..], Vec::as_slice);
            assert!(warnings.len() <= MAX_WARNINGS && warnings.iter().all(Value::is_string), "{response}");
        }
        status => assert_eq!(status, StatusCode::BAD_REQUEST),
    }
}

// === impl Validators ===

impl Validators {
    fn new() -> Self {
        let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime");
        let client = {
            let _entered = runtime.enter();
            Client::new(tower::service_fn(no_object), "default")
        };
        let mut feed = Feed::default();
        let metadata = json!({"name": "linkerd-config", "namespace": "linkerd", "uid": "u"});
        let installed = json!({"metadata": metadata, "data": {"values": INSTALLED}});
        feed.apply(Kind::ConfigMap, Event::Apply(installed));
        let validators: Vec<Arc<dyn Validator>> = vec![
            Arc::new(LinkerdConfigValidator::new(&client, Some(feed.cluster.clone()), "linkerd")),
            Arc::new(ExternalWorkloadValidator),
            Arc::new(ServiceProfileValidator::new(&client, true, "cluster.local")),
        ];
        let metrics = || ValidationMetrics::register(&Registry::new()).expect("a new registry");
        let manager = Arc::new(ValidationHandler::new(validators, metrics()));
        Self { runtime, manager, drop_in: Arc::new(DropInHandler::new(metrics())) }
    }

    fn answer(&self, handler: Arc<dyn Handler>, data: &[u8]) -> (StatusCode, Vec<u8>) {
        let answered = handler.answer(VALIDATION_PATH.to_owned(), data.to_vec().into());
        let (head, body) = self.runtime.block_on(answered).into_parts();
        let body = body.collect().now_or_never().expect("the body is complete").expect("the body cannot fail");
        (head.status, body.to_bytes().to_vec())
    }
}

/// An API server without any object.
async fn no_object(_: Request<Body>) -> Result<Response<Body>, Infallible> {
    let status = json!({
        "apiVersion": "v1", "kind": "Status", "status": "Failure", "message": "none", "reason": "NotFound", "code": 404,
    });
    let mut response = Response::new(Body::from(status.to_string().into_bytes()));
    *response.status_mut() = StatusCode::NOT_FOUND;
    Ok(response)
}
