//! Tests of the owner of a target, and of the ports that Servers make opaque.

use serde_json::{Value, json};

use super::*;
use crate::{
    cluster::{Kind, index::label_selector::counters::counted},
    destination::{
        get::members::Member,
        testing::{endpoint, members, settings, slice},
    },
};

/// A Pod `ns/web-1`, and a slice with this Pod.
fn pod_with(metadata: &Value, spec: &Value) -> Vec<(Kind, Value)> {
    let mut pod = json!({"metadata": {"name": "web-1"}, "spec": spec});
    pod["metadata"].as_object_mut().unwrap().extend(metadata.as_object().unwrap().clone());
    vec![(Kind::Pod, pod), slice("a", &json!([{"port": 8080}]), &[endpoint("10.0.0.1", "Pod", "web-1")])]
}

fn target(objects: Vec<(Kind, Value)>) -> EndpointTarget {
    let mut members = members(objects).members;
    assert_eq!(members.len(), 1);
    members.remove(0).target
}

#[test]
fn the_top_owner_is_found_through_known_replica_sets_and_jobs() {
    let owner = |kind: &str, name: &str| json!({"apiVersion": "v1", "kind": kind, "name": name, "uid": "u"});
    let owned =
        |kind, name: &str, owners: &[Value]| (kind, json!({"metadata": {"name": name, "ownerReferences": owners}}));
    let replica_set = |owners: &[Value]| vec![owned(Kind::ReplicaSet, "t2-5f79f964bc", owners)];
    let job = |owners: &[Value]| vec![owned(Kind::Job, "slow-cooker", owners)];
    let (of_replica_set, of_job) = (owner("ReplicaSet", "t2-5f79f964bc"), owner("Job", "slow-cooker"));
    for (pods, between, expected) in [
        (vec![], vec![], None),
        (vec![owner("ReplicationController", "web")], vec![], Some("ReplicationController/web")),
        (vec![owner("Node", "node-1"), of_replica_set.clone()], vec![], None),
        (vec![of_replica_set.clone()], replica_set(&[owner("Deployment", "t2")]), Some("Deployment/t2")),
        (vec![of_replica_set.clone()], replica_set(&[owner("statefulset", "t2")]), Some("statefulset/t2")),
        (vec![of_replica_set.clone()], replica_set(&[owner("DaemonSet", "t2")]), Some("DaemonSet/t2")),
        (vec![of_replica_set.clone()], replica_set(&[owner("Job", "t2")]), Some("Job/t2")),
        (vec![of_replica_set.clone()], vec![], Some("ReplicaSet/t2-5f79f964bc")),
        (vec![of_replica_set.clone()], replica_set(&[]), Some("ReplicaSet/t2-5f79f964bc")),
        (vec![of_replica_set.clone()], replica_set(&[owner("Rollout", "t2")]), Some("ReplicaSet/t2-5f79f964bc")),
        (
            vec![of_replica_set.clone()],
            replica_set(&[owner("Deployment", "t2"), owner("Deployment", "t3")]),
            Some("ReplicaSet/t2-5f79f964bc"),
        ),
        (vec![of_job.clone()], job(&[owner("CronJob", "my-cronjob")]), Some("CronJob/my-cronjob")),
        (vec![of_job.clone()], job(&[owner("Workflow", "flow")]), Some("Workflow/flow")),
        (vec![of_job.clone()], job(&[]), Some("Job/slow-cooker")),
        (vec![of_job.clone()], vec![], Some("Job/slow-cooker")),
        (vec![of_job], replica_set(&[owner("Deployment", "t2")]), Some("Job/slow-cooker")),
        // Owners are followed for one step, not for two.
        (
            vec![owner("Deployment", "t2-5f79f964bc")],
            replica_set(&[owner("Job", "t2")]),
            Some("Deployment/t2-5f79f964bc"),
        ),
    ] {
        let mut objects = pod_with(&json!({ "ownerReferences": pods }), &json!({}));
        objects.extend(between.clone());
        let EndpointTarget::Pod(pod) = target(objects) else { panic!("the target is not a Pod") };
        let found = pod.owner.as_ref().map(|owner| format!("{}/{}", owner.kind, owner.name));
        assert_eq!(found.as_deref(), expected, "{pods:?} through {between:?}");
    }
}

#[test]
fn a_replica_set_of_another_namespace_is_ignored() {
    let owner = |kind: &str, name: &str| json!([{"apiVersion": "v1", "kind": kind, "name": name, "uid": "u"}]);
    let mut objects = pod_with(&json!({"ownerReferences": owner("ReplicaSet", "t2-5f79")}), &json!({}));
    let metadata = json!({"name": "t2-5f79", "namespace": "other", "ownerReferences": owner("Deployment", "t2")});
    objects.push((Kind::ReplicaSet, json!({ "metadata": metadata })));
    let EndpointTarget::Pod(pod) = target(objects) else { panic!("the target is not a Pod") };
    assert_eq!(&*pod.owner.as_ref().unwrap().kind, "ReplicaSet");
}

fn server(name: &str, spec: &Value) -> (Kind, Value) {
    let namespace = if name == "foreign" { "other" } else { "ns" };
    (Kind::Server, json!({"metadata": {"name": name, "namespace": namespace}, "spec": spec}))
}

#[test]
fn servers_add_opaque_ports_to_pods_by_number_and_by_name() {
    let selects =
        |port: Value| json!({"podSelector": {"matchLabels": {"app": "web"}}, "port": port, "proxyProtocol": "opaque"});
    let spec = json!({
    "initContainers": [{"name": "sidecar", "ports": [{"name": "init", "containerPort": 9000}]}],
    "containers": [
        {"name": "app", "ports": [{"name": "http", "containerPort": 8080, "hostPort": 80}, {"containerPort": 7000}]},
        {"name": "twin", "ports": [{"name": "http", "containerPort": 8081}]},
    ]});
    let other = |change: Value| {
        let mut spec = selects(json!(8080));
        spec.as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
        spec
    };
    let candidates = [80, 7000, 8080, 8081, 9000];
    for (servers, expected) in [
        (vec![], &[][..]),
        (vec![server("number", &selects(json!(8080)))], &[8080]),
        (vec![server("no-container-has-it", &selects(json!(7000)))], &[7000]),
        (vec![server("name", &selects(json!("http")))], &[80, 8080, 8081]),
        (vec![server("init", &selects(json!("init")))], &[9000]),
        (vec![server("unknown", &selects(json!("grpc")))], &[]),
        (vec![server("digits", &selects(json!("8080")))], &[]),
        (vec![server("none", &selects(json!(0)))], &[]),
        (vec![server("all", &other(json!({"podSelector": {}})))], &[8080]),
        (vec![server("nothing", &other(json!({"podSelector": null})))], &[]),
        (vec![server("others", &other(json!({"podSelector": {"matchLabels": {"app": "db"}}})))], &[]),
        (vec![server("workloads", &other(json!({"podSelector": null, "externalWorkloadSelector": {}})))], &[]),
        (vec![server("http2", &other(json!({"proxyProtocol": "HTTP/2"})))], &[]),
        (vec![server("foreign", &selects(json!(8080)))], &[]),
        (vec![server("a", &selects(json!(8080))), server("b", &other(json!({"proxyProtocol": "HTTP/1"})))], &[8080]),
        (vec![server("a", &selects(json!(8080))), server("b", &selects(json!("init")))], &[8080, 9000]),
    ] {
        let mut objects = pod_with(&json!({"labels": {"app": "web"}}), &spec);
        objects.extend(servers.clone());
        let EndpointTarget::Pod(pod) = target(objects) else { panic!("the target is not a Pod") };
        let opaque: Vec<u16> = candidates.into_iter().filter(|port| pod.is_opaque(*port, &settings())).collect();
        assert_eq!(opaque, expected, "{servers:?}");
    }
}

#[test]
fn servers_add_opaque_ports_to_external_workloads() {
    let spec = json!({"ports": [{"name": "http", "port": 8080}, {"name": "admin", "port": 9000}]});
    let workload = json!({"metadata": {"name": "vm", "labels": {"app": "web"}}, "spec": spec});
    for (selector, port, expected) in [
        (json!({}), json!(8080), &[8080][..]),
        (json!({}), json!(7000), &[7000]),
        (json!({"matchLabels": {"app": "web"}}), json!("http"), &[8080]),
        (json!({"matchLabels": {"app": "db"}}), json!("http"), &[]),
        (json!({}), json!("grpc"), &[]),
        (json!(null), json!(8080), &[]),
    ] {
        let endpoints = [endpoint("192.0.2.1", "ExternalWorkload", "vm")];
        let spec =
            json!({"externalWorkloadSelector": selector, "podSelector": null, "port": port, "proxyProtocol": "opaque"});
        let objects =
            vec![(Kind::ExternalWorkload, workload.clone()), slice("a", &json!([]), &endpoints), server("s", &spec)];
        let EndpointTarget::Workload(workload) = target(objects) else {
            panic!("the target is not an ExternalWorkload")
        };
        let opaque: Vec<u16> =
            [7000, 8080, 9000].into_iter().filter(|it| workload.is_opaque(*it, &settings())).collect();
        assert_eq!(opaque, expected, "{selector} {port}");
    }
}

#[test]
fn an_annotation_replaces_the_defaults_and_servers_only_add_to_it() {
    let ports = json!([{"name": "http", "port": 8080, "containerPort": 8080}]);
    for (annotation, expected) in [
        (None, &[443, 9000][..]),
        (Some(""), &[9000]),
        (Some("8080"), &[8080, 9000]),
        (Some("http"), &[8080, 9000]),
        (Some("443-8080"), &[443, 8080, 9000]),
        (Some("garbage"), &[9000]),
    ] {
        let annotations = annotation.map(|text| json!({"config.linkerd.io/opaque-ports": text}));
        let pod = json!({"metadata": {"name": "web-1", "annotations": annotations}, "spec": {"containers": [{"name": "app", "ports": ports}]}});
        let workload = json!({"metadata": {"name": "vm", "annotations": annotations}, "spec": {"ports": ports}});
        let everything =
            json!({"podSelector": {}, "externalWorkloadSelector": {}, "port": 9000, "proxyProtocol": "opaque"});
        let members = members([
            (Kind::Pod, pod),
            (Kind::ExternalWorkload, workload),
            server("all", &everything),
            slice("a", &ports, &[endpoint("10.0.0.1", "Pod", "web-1"), endpoint("10.0.0.2", "ExternalWorkload", "vm")]),
        ]);
        for member in members.members {
            let is_opaque = |port: &u16| match &member.target {
                EndpointTarget::Pod(pod) => pod.is_opaque(*port, &settings()),
                EndpointTarget::Workload(workload) => workload.is_opaque(*port, &settings()),
                EndpointTarget::Address => panic!("the target is a bare address"),
            };
            let opaque: Vec<u16> = [443, 8080, 9000].into_iter().filter(is_opaque).collect();
            assert_eq!(opaque, expected, "{annotation:?}");
        }
    }
}

#[test]
fn servers_are_not_evaluated_while_the_members_of_a_service_are_looked_up() {
    let pod = |name: &str| (Kind::Pod, json!({"metadata": {"name": name, "labels": {"app": name}}}));
    let endpoints = ["web-1", "web-2", "db-1"].map(|name| endpoint("10.0.0.1", "Pod", name));
    let expression = json!({"key": "app", "operator": "In", "values": ["web-1", "web-2"]});
    let spec = json!({"podSelector": {"matchExpressions": [expression]}, "port": 80, "proxyProtocol": "opaque"});
    let objects = [pod("web-1"), pod("web-2"), pod("db-1"), server("s", &spec), slice("a", &json!([]), &endpoints)];
    let (members, evaluations, _) = counted(|| members(objects));
    assert_eq!((members.members.len(), evaluations), (3, 0));
    let is_opaque = |member: &Member| member.target.is_opaque(80, &settings());
    let (opaque, evaluations, _) = counted(|| members.members.iter().map(is_opaque).collect::<Vec<_>>());
    assert_eq!((opaque, evaluations), (vec![true, true, false], 3));
}
