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
    inject::{AdmissionOutcome, Injector, ObjectKind, ReviewTarget},
    lookup::{NamespaceMetadata, ObjectLookup},
    metrics::{InjectorMetrics, RequestLabels},
    owner::Workload,
    reviewed::ReviewedObject,
    source::CurrentConfiguration,
};
use crate::{
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
        let workload = async {
            let lookup = self.lookup.workload(&request.namespace, &pod.name, &pod.owner_references);
            if kind == ObjectKind::Pod { Some(lookup.await) } else { None }
        };
        // Both may wait for the API server.
        let (workload, namespace) = tokio::join!(workload, self.lookup.namespace(&request.namespace));
        let (namespace, unknown) = match namespace {
            Ok(namespace) => (namespace, None),
            Err(error) => (NamespaceMetadata::default(), Some(format!("{error:#}"))),
        };
        let regarding = workload.as_ref().and_then(|workload| workload.reference(&request.namespace));
        let regarding = regarding.filter(|_| !request.dry_run);
        let owner_kind = workload.as_ref().map(Workload::metrics_kind).unwrap_or_default();
        let mut labels = RequestLabels { owner_kind: &owner_kind, namespace: &request.namespace, annotation_at: "" };
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
            workload: workload.as_ref(),
        };
        let configuration = match is_never_included(&request.namespace, &self.controller_namespace) {
            true => self.current.get(),
            false => self.current.of_labels(&namespace.labels),
        };
        match injector.decide(configuration.as_deref(), kind, target, object) {
            Ok(outcome) => {
                self.publish(regarding.iter().flat_map(|workload| events::of_admitted(workload, &outcome)));
                let AdmissionOutcome { decision, patch, warnings } = outcome;
                labels.annotation_at = decision.annotation_at;
                self.metrics.allowed(&labels, &decision, !patch.is_empty());
                debug!(namespace = request.namespace, pod = pod.name, skipped = ?decision.skipped, "reviewed an object");
                // The LinkerdConfig controller recognizes the operator's injector by the name.
                request.allowed_by_name(&Patch(patch), warnings)
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
