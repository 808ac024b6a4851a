//! Answers admission reviews.
//!
//! In: the body of a request. Out: an answer. Always holds: a Pod is denied only if it requests a proxy that cannot be
//! injected, or if its namespace cannot be read; every other object is allowed; an answer waits for no Event, and a dry
//! run causes none.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use futures::{FutureExt, future::BoxFuture};
use http::Response;
use http_body_util::Full;
use json_patch::Patch;
use parking_lot::Mutex;
use tokio::time::Instant;
use tracing::{debug, warn};

use super::{
    canary::is_never_included,
    events,
    inject::{Injector, ObjectKind, ReviewTarget},
    lookup::{NamespaceMetadata, ObjectLookup, pace::Pace},
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
    pub(super) denials: DenialLog,
}

/// The log lines about denied Pods. Any client may send a review, so their rate is limited.
pub(super) struct DenialLog(Mutex<DenialLines>);

struct DenialLines {
    pace: Pace,
    /// The number of lines that were left out since the last one.
    omitted: u64,
}

// === impl DenialLog ===

impl Default for DenialLog {
    fn default() -> Self {
        // As many lines as people read, in a burst and then one every ten seconds.
        let pace = Pace::new(Duration::from_secs(10), 20);
        Self(Mutex::new(DenialLines { pace, omitted: 0 }))
    }
}

impl DenialLog {
    fn log(&self, namespace: &str, pod: &str, reason: &str) {
        let Some(omitted) = self.admit(Instant::now()) else { return };
        warn!(namespace, pod, reason, omitted, "denied a Pod");
    }

    /// Returns the number of lines that were left out before this one; `None` if this one is left out, too.
    fn admit(&self, now: Instant) -> Option<u64> {
        let mut lines = self.0.lock();
        if lines.pace.admit(now) {
            return Some(std::mem::take(&mut lines.omitted));
        }
        lines.omitted += 1;
        None
    }
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
        // Both lookups may wait for the API server.
        let (workload, namespace) = tokio::join!(workload, self.lookup.namespace(&request.namespace));
        let (namespace, unknown) = match namespace {
            Ok(namespace) => (namespace, None),
            Err(error) => (Arc::<NamespaceMetadata>::default(), Some(client::describe(&*error))),
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
            self.denials.log(&request.namespace, &pod.name, &unknown);
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
        let opaque_ports = if configuration.is_none() { self.current.opaque_ports() } else { Arc::default() };
        match injector.decide(configuration.as_deref().ok_or(&*opaque_ports), kind, target, object) {
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
                // Without a configuration, the reason is that of the configuration.
                let problem = if configuration.is_none() { self.current.problem() } else { None };
                let reason = problem.unwrap_or_else(|| reason.to_string());
                self.metrics.denied(&labels);
                self.denials.log(&request.namespace, &pod.name, &reason);
                self.publish(regarding.map(|workload| events::of_denied(&workload, &reason)));
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

    use http_body_util::BodyExt;
    use k8s_openapi::ByteString;
    use kube::{Client, client::Body};
    use parking_lot::Mutex;
    use prometheus::{Registry, proto::MetricFamily};
    use serde_json::{Value, json};

    use super::*;
    use crate::{
        cluster::testing::Feed,
        events::{self, EventsApi},
        tasks::Tasks,
    };

    /// The objects that the API server has, and their uids.
    const FOUND: [(&str, &str); 7] = [
        ("/api/v1/namespaces/shop", "n"),
        ("/apis/apps/v1/namespaces/shop/replicasets/web-5f8d", "r"),
        ("/apis/apps/v1/namespaces/shop/daemonsets/agent", "d"),
        ("/api/v1/namespaces/shop/replicationcontrollers/old", "c"),
        // These have annotations.
        ("/apis/apps/v1/namespaces/shop/replicasets/web-annotated", "ra"),
        ("/apis/apps/v1/namespaces/shop/statefulsets/annotated", "sa"),
        ("/apis/batch/v1/namespaces/shop/jobs/annotated", "ja"),
    ];

    /// The answer that the API server received.
    #[derive(Default)]
    struct Received {
        /// The paths of reads.
        reads: Vec<String>,
        /// The kinds, names and notes of Events.
        events: Vec<String>,
        under_way: usize,
        most_under_way: usize,
    }

    /// An injector that finds only [`FOUND`], its metrics, and what its API server receives. A read takes 10 ms.
    fn injector() -> (Arc<InjectionHandler>, Registry, Arc<Mutex<Received>>) {
        let received = Arc::<Mutex<Received>>::default();
        let seen = Arc::clone(&received);
        let api_server = tower::service_fn(move |request: http::Request<Body>| {
            let seen = Arc::clone(&seen);
            async move {
                let path = request.uri().path().to_owned();
                if request.method() == http::Method::POST {
                    let event = request.into_body().collect().await.unwrap().to_bytes();
                    let event: Value = serde_json::from_slice(&event).unwrap();
                    let regarding = [&event["regarding"]["kind"], &event["regarding"]["name"]].map(Value::as_str);
                    let [kind, name] = regarding.map(Option::unwrap);
                    seen.lock().events.push(format!("{kind}/{name}: {}", event["note"].as_str().unwrap()));
                    return Ok::<_, Infallible>(Response::new(Body::from(event.to_string().into_bytes())));
                }
                {
                    let mut seen = seen.lock();
                    seen.reads.push(path.clone());
                    seen.under_way += 1;
                    seen.most_under_way = seen.most_under_way.max(seen.under_way);
                }
                tokio::time::sleep(Duration::from_millis(10)).await;
                seen.lock().under_way -= 1;
                let found = FOUND.iter().find(|(known, _)| *known == path);
                let deployment = json!([{"apiVersion": "apps/v1", "kind": "Deployment", "name": "web", "uid": "w"}]);
                let annotations = json!({
                    "linkerd.io/inject": "enabled", "config.linkerd.io/skip-outbound-ports": "25",
                    "config.linkerd.io/reconcile": "true", "config.linkerd.io/rollout-state": "updated", "team": "x",
                });
                let body = match found {
                    Some((_, uid)) => json!({
                        "apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadata",
                        "metadata": {
                            "uid": uid,
                            "ownerReferences": if uid.starts_with('r') { deployment } else { json!(null) },
                            "annotations": if uid.ends_with('a') { annotations } else { json!(null) },
                        },
                    }),
                    None => {
                        json!({"kind": "Status", "status": "Failure", "message": "no", "reason": "NotFound", "code": 404})
                    }
                };
                let response = Response::builder().status(if found.is_some() { 200 } else { 404 });
                Ok(response.body(Body::from(body.to_string().into_bytes())).unwrap())
            }
        });
        let (client, registry) = (Client::new(api_server, "default"), Registry::new());
        let mut tasks = Tasks::default();
        let events = events::spawn(&client, EventsApi::Events, "replica", &registry, &mut tasks).unwrap();
        // The task of the Events runs until the test ends.
        std::mem::forget(tasks);
        let handler = InjectionHandler {
            lookup: ObjectLookup::new(Feed::default().cluster, client),
            current: Arc::default(),
            controller_namespace: "linkerd".to_owned(),
            version: "test".to_owned(),
            metrics: InjectorMetrics::register(&registry).unwrap(),
            events,
            denials: DenialLog::default(),
        };
        (Arc::new(handler), registry, received)
    }

    /// A Pod with this owner.
    fn owned([api_version, kind, name, uid]: [&str; 4]) -> Value {
        let owner = json!({"apiVersion": api_version, "kind": kind, "name": name, "uid": uid});
        json!({"metadata": {"name": "p", "ownerReferences": [owner]}})
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
        let (handler, registry, _) = injector();
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
    async fn without_a_usable_configuration_a_pod_is_denied_with_the_reason_and_everything_else_gets_its_annotation() {
        let (handler, ..) = injector();
        let installed = include_str!("../values/testdata/installed.yaml");
        let bad = installed.replace("iptablesMode: nft", "iptablesMode: other");
        handler.current.offer_texts(&bad, crate::values::testing::TRUST_ANCHORS);
        let annotations = json!({"linkerd.io/inject": "enabled"});
        let denied = review(&handler, "Pod", "shop", &json!({"metadata": {"annotations": annotations}})).await;
        let message = denied["status"]["message"].as_str().unwrap();
        assert_eq!(denied["allowed"], false);
        assert!(message.contains("is refused: no Pod can run with these values: proxyInit.iptablesMode"), "{message}");
        let service = json!({"spec": {"ports": [{"port": 3306}, {"port": 80}]}});
        let pod = json!({"spec": {"containers": [{"ports": [{"containerPort": 3306}]}]}});
        for (kind, object) in [("Service", service), ("Pod", pod)] {
            let allowed = review(&handler, kind, "shop", &object).await;
            let patch: ByteString = serde_json::from_value(allowed["patch"].clone()).unwrap();
            let added = json!([
                {"op": "add", "path": "/metadata/annotations", "value": {"config.linkerd.io/opaque-ports": "3306"}},
            ]);
            assert_eq!(serde_json::from_slice::<Value>(&patch.0).unwrap(), added, "{kind}");
        }
    }

    #[tokio::test]
    async fn an_object_that_the_api_server_will_reject_for_its_length_is_allowed_without_a_look_at_it() {
        let (handler, ..) = injector();
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

    #[tokio::test(start_paused = true)]
    async fn reviews_of_invented_names_cause_a_bounded_number_of_requests() {
        let (handler, _, received) = injector();
        let begun = Instant::now();
        let reviews = (0..2_000).map(|number| {
            let handler = Arc::clone(&handler);
            async move {
                let pod = owned(["apps/v1", "ReplicaSet", &format!("invented-{number}"), "u"]);
                review(&handler, "Pod", &format!("invented-{number}"), &pod).await["allowed"].clone()
            }
        });
        let allowed = futures::future::join_all(reviews).await;
        assert!(allowed.iter().all(|allowed| *allowed == false));
        // Each review ends within its deadline, with an answer of the API server or without one.
        let seconds = begun.elapsed().as_secs_f64();
        assert!(seconds <= 3.1, "{seconds} s");
        let received = received.lock();
        let (reads, at_once) = (received.reads.len(), received.most_under_way);
        assert!((100..=360).contains(&reads) && at_once <= 20, "{reads} reads, {at_once} at once");
    }

    #[tokio::test(start_paused = true)]
    async fn equal_reads_are_one_request_and_an_absent_object_is_read_once_a_second() {
        let (handler, _, received) = injector();
        let reads = || std::mem::take(&mut received.lock().reads).len();
        let pod = json!({"metadata": {"name": "p"}});
        for namespace in ["shop", "invented"] {
            futures::future::join_all((0..100).map(|_| review(&handler, "Pod", namespace, &pod))).await;
            assert_eq!(reads(), 1, "{namespace}");
        }
        review(&handler, "Pod", "invented", &pod).await;
        assert_eq!(reads(), 0);
        tokio::time::sleep(Duration::from_secs(1)).await;
        review(&handler, "Pod", "invented", &pod).await;
        // A namespace that exists may change at any time.
        review(&handler, "Pod", "shop", &pod).await;
        review(&handler, "Pod", "shop", &pod).await;
        assert_eq!(reads(), 3);
    }

    #[tokio::test(start_paused = true)]
    async fn only_an_owner_that_exists_with_the_uid_of_the_reference_has_events() {
        let (handler, _, received) = injector();
        for owner in [
            ["apps/v1", "ReplicaSet", "web-5f8d", "r"],
            ["apps/v1", "DaemonSet", "agent", "d"],
            ["v1", "ReplicationController", "old", "c"],
            // The others do not exist.
            ["apps/v1", "ReplicaSet", "web-5f8d", "other"],
            ["apps/v1", "ReplicaSet", "other", "r"],
            ["apps/v1", "DaemonSet", "agent", "other"],
            ["apps/v1", "StatefulSet", "agent", "d"],
            ["apps/v1", "Deployment", "web", "w"],
            ["batch/v1", "CronJob", "daily", "u"],
        ] {
            review(&handler, "Pod", "shop", &owned(owner)).await;
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
        let mut owners: Vec<_> =
            received.lock().events.iter().map(|it| it[..it.find(':').unwrap()].to_owned()).collect();
        owners.sort();
        assert_eq!(owners, ["DaemonSet/agent", "Deployment/web", "ReplicationController/old"]);
    }

    /// The controller of Deployments copies their annotations to their ReplicaSets.
    #[tokio::test(start_paused = true)]
    async fn an_annotation_of_the_workload_that_its_template_lacks_has_a_warning() {
        let (handler, _, received) = injector();
        let warned = async |owner: [&str; 4], annotations: Value| {
            let mut pod = owned(owner);
            pod["metadata"]["annotations"] = annotations;
            review(&handler, "Pod", "shop", &pod).await["warnings"].clone()
        };
        let of = |kind: &str| {
            format!(
                "linkerd.io/inject is an annotation of the {kind} itself; Linkerd reads the one of its Pod template"
            )
        };
        let set = ["apps/v1", "ReplicaSet", "web-annotated", "ra"];
        assert_eq!(warned(set, json!({})).await, json!([of("Deployment")]));
        assert_eq!(warned(["apps/v1", "StatefulSet", "annotated", "sa"], json!({})).await, json!([of("StatefulSet")]));
        assert_eq!(warned(["batch/v1", "Job", "annotated", "ja"], json!({})).await, json!([of("Job")]));
        assert_eq!(warned(["apps/v1", "ReplicaSet", "web-annotated", "other"], json!({})).await, json!(null));
        assert_eq!(warned(["apps/v1", "ReplicaSet", "web-5f8d", "r"], json!({})).await, json!(null));
        assert_eq!(warned(set, json!({"linkerd.io/inject": "disabled"})).await, json!(null));
        tokio::time::sleep(Duration::from_secs(1)).await;
        let note =
            format!("Deployment/web: Linkerd sidecar proxy injection skipped with warnings: {}", of("Deployment"));
        assert!(received.lock().events.contains(&note), "{:?}", received.lock().events);

        let installed = include_str!("../values/testdata/installed.yaml");
        handler.current.offer_texts(installed, crate::values::testing::TRUST_ANCHORS);
        let of_proxy = "the annotation config.linkerd.io/skip-outbound-ports of the Deployment itself has no effect: set it \
                        in the Pod template";
        assert_eq!(warned(set, json!({"linkerd.io/inject": "enabled"})).await, json!([of_proxy]));
        let both = json!({"linkerd.io/inject": "enabled", "config.linkerd.io/skip-outbound-ports": "26"});
        assert_eq!(warned(set, both).await, json!(null));
    }

    #[test]
    fn log_lines_about_denied_pods_are_few_and_say_how_many_were_left_out() {
        let (log, now) = (DenialLog::default(), Instant::now());
        let lines = (0..1000).filter(|_| log.admit(now).is_some()).count();
        assert_eq!(lines, 20);
        assert_eq!(log.admit(now + Duration::from_secs(10)), Some(980));
        assert_eq!(log.admit(now + Duration::from_secs(10)), None);
        assert_eq!(log.admit(now + Duration::from_secs(20)), Some(1));
    }
}
