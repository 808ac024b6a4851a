//! Tests of the results that depend on the Service.

use kube::runtime::watcher::Event;
use serde_json::{Value, json};
use tonic::Code;

use super::*;
use crate::cluster::{Kind as Watched, testing::Feed};

const PATH: &str = "web.ns.svc.cluster.local:80";

fn request(node: &str) -> GetRequest {
    GetRequest::new(ServiceAuthority::parse(PATH, "cluster.local").unwrap(), node)
}

fn feed(services: impl IntoIterator<Item = Value>) -> Feed {
    let mut feed = Feed::default();
    for service in services {
        feed.apply(Watched::Service, Event::Apply(service));
    }
    feed
}

fn service(labels: &Value, annotations: &Value, spec: &Value) -> Value {
    json!({"metadata": {"name": "web", "namespace": "ns", "labels": labels, "annotations": annotations}, "spec": spec})
}

#[test]
fn an_absent_service_is_not_found_even_if_another_namespace_has_one_with_its_name() {
    let elsewhere = json!({"metadata": {"name": "web", "namespace": "other"}, "spec": {}});
    let feed = feed([elsewhere]);
    let request = request("");
    let refusal = request.resolve(&feed.cluster.read()).unwrap_err();
    let status = request.refused(&refusal, PATH);
    assert_eq!((status.code(), status.message()), (Code::NotFound, "Service web.ns not found"));
    assert_eq!(request.refused(&GetRefusal::Stopping, PATH).code(), Code::Unavailable, "clients try another replica");
}

#[test]
fn the_view_has_the_zone_of_the_node_and_has_the_node_only_under_the_local_policy() {
    for (policy, node, expected) in [
        (json!(null), "node-1", (Some("a"), None)),
        (json!("Cluster"), "node-1", (Some("a"), None)),
        (json!("Local"), "node-1", (Some("a"), Some("node-1"))),
        (json!("local"), "node-1", (Some("a"), None)),
        (json!("Local"), "", (None, Some(""))),
        (json!("Local"), "node-without-pods", (None, Some(""))),
        (json!(null), "", (None, None)),
        (json!("Local"), "node-2", (None, Some("node-2"))),
        (json!(null), "no-such-node", (None, None)),
    ] {
        let mut feed = feed([service(&json!({}), &json!({}), &json!({"internalTrafficPolicy": policy}))]);
        let labels = json!({"topology.kubernetes.io/zone": "a"});
        feed.apply(Watched::Node, Event::Apply(json!({"metadata": {"name": "node-1", "labels": labels}})));
        feed.apply(Watched::Node, Event::Apply(json!({"metadata": {"name": "node-2"}})));
        let labels = json!({"topology.kubernetes.io/zone": "b"});
        feed.apply(Watched::Node, Event::Apply(json!({"metadata": {"name": "node-without-pods", "labels": labels}})));
        for node in ["node-1", "node-2"] {
            let pod = json!({"metadata": {"name": node, "namespace": "other"}, "spec": {"nodeName": node}});
            feed.apply(Watched::Pod, Event::Apply(pod));
        }
        let view = request(node).resolve(&feed.cluster.read()).unwrap();
        assert_eq!((view.location.zone.as_deref(), view.location.node.as_deref()), expected, "{policy} on {node:?}");
        let state = feed.cluster.read();
        assert!(view.is_for(&Members::of(&state, &view.service)));
    }
}

#[test]
fn clients_leave_a_view_if_the_service_needs_another_kind_of_result_but_not_if_it_is_deleted() {
    let plain = feed([service(&json!({}), &json!({}), &json!({"type": "ClusterIP"}))]);
    let view = request("node-1").resolve(&plain.cluster.read()).unwrap();
    assert!(view.is_for(&Members::of(&State::default(), &view.service)), "a deleted Service has no other view");
    let remote = json!({"multicluster.linkerd.io/remote-discovery": "east"});
    let federated = json!({"multicluster.linkerd.io/local-discovery": "web"});
    for (labels, annotations, spec, stays) in [
        (json!({}), json!({}), json!({"type": "ClusterIP", "clusterIP": "None"}), true),
        (json!({}), json!({}), json!({"type": "NodePort"}), true),
        (json!({"any": "label"}), json!({}), json!({"ports": [{"port": 80}]}), true),
        (json!({}), json!({}), json!({"internalTrafficPolicy": "Local"}), false),
        (json!({}), json!({}), json!({"type": "ExternalName"}), false),
        (remote, json!({}), json!({}), false),
        (json!({}), federated, json!({}), false),
    ] {
        let feed = feed([service(&labels, &annotations, &spec)]);
        let state = feed.cluster.read();
        assert_eq!(
            view.is_for(&Members::of(&state, &view.service)),
            stays,
            "labels {labels}, annotations {annotations}, spec {spec}"
        );
    }
}
