//! Answers admission reviews.
//!
//! In: the body of a request. Out: an answer. Always holds: a Pod is denied only if it requests a proxy that cannot be
//! injected, or if its namespace cannot be read; every other object is allowed; an answer waits for no Event, and a dry
//! run causes none.

use std::sync::Arc;

use bytes::Bytes;
use futures::{FutureExt, future::BoxFuture};
use http::Response;
use http_body_util::Full;
use json_patch::Patch;
use tokio::time::Instant;
use tracing::{debug, warn};

use super::{
    canary::is_never_included,
    events,
    inject::{Injector, ObjectKind, ReviewTarget},
    lookup::{NamespaceMetadata, ObjectLookup},
    metrics::{InjectorMetrics, RequestLabels},
    owner::Workload,
    reviewed::ReviewedObject,
    source::CurrentConfiguration,
};
use crate::{
    api::INJECT_ANNOTATION,
    client,
    events::{Events, Notice},
    webhook::{
        Handler,
        review::{self, ReviewRequest},
    },
};

pub(super) struct InjectionHandler {
    pub(super) lookup: ObjectLookup,
    pub(super) current: Arc<CurrentConfiguration>,
    pub(super) controller_namespace: String,
    pub(super) version: String,
    pub(super) metrics: InjectorMetrics,
    pub(super) events: Events,
}

// === impl InjectionHandler ===

impl InjectionHandler {
    async fn review(&self, request: ReviewRequest<ReviewedObject>) -> Vec<u8> {
        let Some(kind) = ObjectKind::of(&request.kind.kind) else {
            return request.allowed(&Patch::default(), Vec::new());
        };
        let absent = ReviewedObject::default();
        let object = request.object.as_ref().unwrap_or(&absent);
        let pod = &object.metadata;
        if pod.is_too_long() {
            return request.allowed(&Patch::default(), Vec::new());
        }
        let workload = async {
            let lookup = self.lookup.workload(&request.namespace, &pod.name, &pod.owner_references);
            if kind == ObjectKind::Pod { Some(lookup.await) } else { None }
        };
        // Both may wait for the API server.
        let (workload, namespace) = tokio::join!(workload, self.lookup.namespace(&request.namespace));
        let (namespace, unknown) = match namespace {
            Ok(namespace) => (namespace, None),
            Err(error) => (NamespaceMetadata::default(), Some(client::describe(&*error))),
        };
        let regarding = workload.as_ref().and_then(|workload| workload.reference(&request.namespace));
        let regarding = regarding.filter(|_| !request.dry_run);
        let owner_kind = workload.as_ref().map(Workload::metrics_kind).unwrap_or_default();
        // Any client may send a review, so only a namespace that was found is a label.
        let found = if unknown.is_none() { request.namespace.as_str() } else { "" };
        let mut labels = RequestLabels { owner_kind: &owner_kind, namespace: found, annotation_at: "" };
        // The annotations of the namespace may request a proxy for the Pod.
        if let Some(unknown) = unknown.filter(|_| kind == ObjectKind::Pod) {
            self.metrics.denied(&labels);
            warn!(namespace = request.namespace, error = unknown, "denied a Pod");
            self.publish(regarding.map(|workload| events::of_denied(&workload, &unknown)));
            return request.denied(&unknown);
        }
        let injector = Injector { controller_namespace: &self.controller_namespace, version: &self.version };
        let target = ReviewTarget {
            namespace: &namespace.annotations,
            namespace_name: &request.namespace,
            inject_label: namespace.labels.get(INJECT_ANNOTATION).map(|value| &**value),
            workload: workload.as_ref(),
        };
        let configuration = match is_never_included(&request.namespace, &self.controller_namespace) {
            true => self.current.get(),
            false => self.current.of_labels(&namespace.labels),
        };
        match injector.decide(configuration.as_deref(), kind, target, object) {
            Ok(mut outcome) => {
                self.publish(regarding.iter().flat_map(|workload| events::of_admitted(workload, &outcome)));
                let (patch, decision) = (std::mem::take(&mut outcome.patch), &outcome.decision);
                labels.annotation_at = decision.annotation_at;
                self.metrics.allowed(&labels, decision, !patch.is_empty());
                debug!(namespace = request.namespace, pod = pod.name, skipped = ?decision.skipped, "reviewed an object");
                // The LinkerdConfig controller recognizes the operator's injector by the name.
                request.allowed_by_name(&Patch(patch), outcome.into_warnings())
            }
            Err(reason) => {
                self.metrics.denied(&labels);
                warn!(namespace = request.namespace, pod = pod.name, %reason, "denied a Pod");
                self.publish(regarding.map(|workload| events::of_denied(&workload, &reason.to_string())));
                request.denied(&format!("linkerd-operator cannot inject a proxy: {reason}"))
            }
        }
    }

    fn publish(&self, notices: impl IntoIterator<Item = Notice>) {
        notices.into_iter().for_each(|notice| self.events.publish(notice));
    }
}

impl Handler for InjectionHandler {
    fn answer(self: Arc<Self>, _: String, body: Bytes) -> BoxFuture<'static, Response<Full<Bytes>>> {
        async move {
            let begun = Instant::now();
            match ReviewRequest::read(&body) {
                Ok(request) => {
                    // The parsed object does not refer to the body.
                    drop(body);
                    let answer = self.review(request).await;
                    self.metrics.answered(begun.elapsed());
                    review::answered(answer)
                }
                Err(reason) => review::invalid(reason),
            }
        }
        .boxed()
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use kube::{Client, client::Body};
    use prometheus::{Registry, proto::MetricFamily};
    use serde_json::{Value, json};

    use super::*;
    use crate::{
        cluster::testing::Feed,
        events::{self, EventsApi},
        tasks::Tasks,
    };

    /// An injector that finds only the namespace `shop`, and its metrics.
    fn injector() -> (Arc<InjectionHandler>, Registry) {
        let api_server = tower::service_fn(|request: http::Request<Body>| async move {
            let found = request.uri().path() == "/api/v1/namespaces/shop";
            let body = match found {
                true => json!({"apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadata", "metadata": {}}),
                false => json!({"kind": "Status", "code": 404, "message": "not found"}),
            };
            let response = Response::builder().status(if found { 200 } else { 404 });
            Ok::<_, Infallible>(response.body(Body::from(body.to_string().into_bytes())).unwrap())
        });
        let (client, registry) = (Client::new(api_server, "default"), Registry::new());
        let events = events::spawn(&client, EventsApi::Events, "replica", &registry, &mut Tasks::default()).unwrap();
        let handler = InjectionHandler {
            lookup: ObjectLookup { cluster: Feed::default().cluster, client },
            current: Arc::default(),
            controller_namespace: "linkerd".to_owned(),
            version: "test".to_owned(),
            metrics: InjectorMetrics::register(&registry).unwrap(),
            events,
        };
        (Arc::new(handler), registry)
    }

    /// Reviews an object. Returns the response.
    async fn review(handler: &Arc<InjectionHandler>, kind: &str, namespace: &str, object: &Value) -> Value {
        let request = json!({"uid": "u", "kind": {"kind": kind}, "namespace": namespace, "object": object});
        let body = json!({"apiVersion": "admission.k8s.io/v1", "request": request}).to_string();
        let answer = handler.review(ReviewRequest::read(body.as_bytes()).unwrap()).await;
        serde_json::from_slice::<Value>(&answer).unwrap()["response"].take()
    }

    #[tokio::test]
    async fn only_a_namespace_that_was_found_is_a_label_of_metrics() {
        let (handler, registry) = injector();
        for (kind, namespace) in [("Service", "shop"), ("Service", "invented"), ("Pod", "also-invented")] {
            review(&handler, kind, namespace, &json!({})).await;
        }
        let families = registry.gather();
        let metrics = families.iter().filter(|family| family.name().starts_with("proxy_inject_"));
        let mut namespaces: Vec<_> = metrics
            .flat_map(MetricFamily::get_metric)
            .flat_map(|metric| metric.get_label().iter().filter(|label| label.name() == "namespace"))
            .map(|label| label.value().to_owned())
            .collect();
        namespaces.sort();
        namespaces.dedup();
        assert_eq!(namespaces, ["", "shop"]);
    }

    #[tokio::test]
    async fn an_object_that_the_api_server_will_reject_for_its_length_is_allowed_without_a_look_at_it() {
        let (handler, _) = injector();
        let pod = |bytes: usize, name: &str| {
            let annotations = json!({"linkerd.io/inject": "enabled", "x": "y".repeat(bytes)});
            json!({"metadata": {"name": name, "annotations": annotations}})
        };
        // Without a configuration, a Pod that requests a proxy is denied.
        let looked_at = review(&handler, "Pod", "shop", &pod(1_000, "web")).await;
        assert_eq!(looked_at["allowed"], false);
        for too_long in [pod(256 << 10, "web"), pod(1, &"n".repeat(254))] {
            assert_eq!(review(&handler, "Pod", "shop", &too_long).await, json!({"uid": "u", "allowed": true}));
        }
    }
}
