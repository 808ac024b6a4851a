//! What is read of the three kinds, and which change is one.

use serde_json::{Value, json};

use super::*;

/// `ns/web`, from what users and controllers write. Metadata is of generation 3.
fn workload(kind: WorkloadKind, metadata: &Value, spec: &Value, status: &Value) -> AppsWorkload {
    fn project<W: WorkloadObject>(object: Value) -> AppsWorkload {
        AppsWorkloadOf::<W>::project(serde_json::from_value(object).unwrap(), &mut Problems::default()).resource
    }
    let mut all = json!({"name": "web", "namespace": "ns", "uid": "u", "resourceVersion": "1", "generation": 3});
    all.as_object_mut().unwrap().extend(metadata.as_object().unwrap().clone());
    let object = json!({"metadata": all, "spec": spec, "status": status});
    match kind {
        WorkloadKind::Deployment => project::<DeploymentObject>(object),
        WorkloadKind::StatefulSet => project::<StatefulSetObject>(object),
        WorkloadKind::DaemonSet => project::<DaemonSetObject>(object),
    }
}

use WorkloadKind::{DaemonSet, Deployment, StatefulSet};

const ALL: [WorkloadKind; 3] = [Deployment, StatefulSet, DaemonSet];

#[test]
fn every_kind_says_who_it_is_and_what_of_it_is_about_rollouts() {
    let metadata = json!({"labels": {"app": "web"}, "annotations": {
        "config.linkerd.io/rollout-hash": "h", "config.linkerd.iov/a": "b", "linkerd.io/inject": "enabled"}});
    let template = json!({"spec": {"hostNetwork": true}, "metadata": {"annotations": {
        "linkerd.io/inject": "ingress", "config.linkerd.io/restarted-for": "h-t"}}});
    for kind in ALL {
        let found = workload(kind, &metadata, &json!({ "template": template }), &json!({}));
        assert_eq!(found.workload, WorkloadKey::new("ns", kind.as_str(), "web"));
        assert_eq!((&*found.uid, &*found.version, found.deleting, found.paused), ("u", "1", false, false));
        assert_eq!(found.labels.get("app").map(|app| &**app), Some("web"));
        assert_eq!(found.annotations, BTreeMap::from([("config.linkerd.io/rollout-hash".into(), "h".into())]));
        let restarted_for = Some("h-t".into());
        let expected = Template { reconcile: None, restarted_for, inject: Inject::Enabled, host_network: true };
        assert_eq!(found.template, expected);
    }
    let deleting = json!({"deletionTimestamp": "2026-01-01T00:00:00Z"});
    assert!(workload(DaemonSet, &deleting, &json!({}), &json!({})).deleting);
}

#[test]
fn on_a_template_the_label_comes_before_the_annotation() {
    let reconcile = |value: &str| json!({"config.linkerd.io/reconcile": value});
    for (metadata, expected) in [
        (json!({}), None),
        (json!({"labels": reconcile("auto")}), Some("auto")),
        (json!({"annotations": reconcile("disabled")}), Some("disabled")),
        (json!({"labels": reconcile("auto"), "annotations": reconcile("disabled")}), Some("auto")),
    ] {
        let spec = json!({"template": {"metadata": metadata}});
        let found = workload(Deployment, &json!({}), &spec, &json!({})).template;
        assert_eq!(found.reconcile.as_deref(), expected, "{metadata}");
    }
}

#[test]
fn strategies_are_read_where_each_kind_has_them() {
    let partition = |number: i64| json!({"type": "RollingUpdate", "rollingUpdate": {"partition": number}});
    let rolling = UpdateStrategy::Rolling;
    for (kind, field, strategy, expected) in [
        (Deployment, "strategy", json!(null), rolling),
        (Deployment, "strategy", json!({"type": "RollingUpdate", "rollingUpdate": {"maxSurge": "25%"}}), rolling),
        (Deployment, "strategy", json!({"type": "Recreate"}), UpdateStrategy::Recreate),
        (Deployment, "updateStrategy", json!({"type": "OnDelete"}), rolling),
        (StatefulSet, "updateStrategy", json!({"type": "OnDelete"}), UpdateStrategy::OnDelete),
        (
            StatefulSet,
            "updateStrategy",
            json!({"type": "OnDelete", "rollingUpdate": {"partition": 1}}),
            UpdateStrategy::OnDelete,
        ),
        (StatefulSet, "updateStrategy", json!({"type": "RollingUpdate"}), rolling),
        (StatefulSet, "updateStrategy", partition(0), rolling),
        (StatefulSet, "updateStrategy", partition(2), UpdateStrategy::Partition(2)),
        (DaemonSet, "updateStrategy", json!({"type": "OnDelete"}), UpdateStrategy::OnDelete),
        (DaemonSet, "updateStrategy", partition(2), rolling),
    ] {
        let found = workload(kind, &json!({}), &json!({ field: strategy }), &json!({})).update;
        assert_eq!(found, expected, "{kind:?} {field} {strategy}");
    }
    for (kind, expected) in [(Deployment, true), (StatefulSet, false)] {
        assert_eq!(workload(kind, &json!({}), &json!({"paused": true}), &json!({})).paused, expected);
    }
}

#[test]
fn progress_is_what_the_controller_said_of_this_generation() {
    let replicas = json!({"observedGeneration": 3, "replicas": 5, "updatedReplicas": 4, "readyReplicas": 3, "availableReplicas": 2});
    let nodes = json!({"observedGeneration": 3, "desiredNumberScheduled": 6, "currentNumberScheduled": 5,
        "updatedNumberScheduled": 4, "numberReady": 3, "numberAvailable": 2});
    let expected = WorkloadProgress { observed: true, wanted: 6, total: 5, updated: 4, ready: 3, available: 2 };
    let six = json!({"replicas": 6});
    for (kind, status) in [(Deployment, &replicas), (StatefulSet, &replicas), (DaemonSet, &nodes)] {
        assert_eq!(workload(kind, &json!({}), &six, status).progress, expected, "{kind:?}");
        assert!(!workload(kind, &json!({"generation": 4}), &six, status).progress.observed, "{kind:?}");
    }
    for (kind, spec, wanted) in
        [(Deployment, json!({}), 1), (StatefulSet, json!({"replicas": 0}), 0), (DaemonSet, six, 0)]
    {
        let progress = workload(kind, &json!({}), &spec, &json!(null)).progress;
        assert_eq!(progress, WorkloadProgress { wanted, ..WorkloadProgress::default() }, "{kind:?}");
    }
}

#[test]
fn that_no_pods_can_be_made_says_more_than_that_it_takes_too_long() {
    let condition = |kind: &str, status: &str, message: &str| json!({"type": kind, "status": status, "reason": "Reason", "message": message});
    let (late, fine) = (condition("Progressing", "False", "too long"), condition("Progressing", "True", "fine"));
    let quota = condition("ReplicaFailure", "True", "exceeded quota");
    for (conditions, expected) in [
        (json!(null), None),
        (json!([fine]), None),
        (json!([condition("ReplicaFailure", "False", "no")]), None),
        (json!([late]), Some("too long")),
        (json!([late, quota]), Some("exceeded quota")),
        (json!([condition("Progressing", "False", "")]), Some("Reason")),
    ] {
        let found = workload(Deployment, &json!({}), &json!({}), &json!({ "conditions": conditions })).failure;
        assert_eq!(found.as_deref(), expected, "{conditions}");
    }
    let long = json!({"conditions": [condition("Progressing", "False", &"é".repeat(1000))]});
    assert_eq!(workload(Deployment, &json!({}), &json!({}), &long).failure.unwrap().len(), 256);
}

#[test]
fn every_shape_of_a_workload_is_read() {
    for (spec, status) in [
        (json!(null), json!(null)),
        (json!({}), json!({})),
        (
            json!({"template": null, "strategy": null, "updateStrategy": null, "replicas": null}),
            json!({"conditions": null}),
        ),
        (
            json!({"template": {"metadata": null, "spec": null}, "updateStrategy": {"rollingUpdate": {}}}),
            json!({"conditions": [{}]}),
        ),
        (json!({"template": {"metadata": {"labels": null, "annotations": null}}}), json!({"replicas": null})),
    ] {
        for kind in ALL {
            assert_eq!(workload(kind, &json!({}), &spec, &status).template, Template::default());
        }
    }
}

#[test]
fn another_version_of_the_same_is_kept_and_is_no_change() {
    let mut state = State::default();
    let apply = |state: &mut State, metadata: Value, status: Value| {
        let resource = workload(Deployment, &metadata, &json!({}), &status);
        AppsWorkloadOf::<DeploymentObject> { resource, wire: PhantomData }.apply(state).is_some()
    };
    let itself = WorkloadKey::new("ns", "Deployment", "web");
    assert!(apply(&mut state, json!({}), json!({})));
    assert!(!apply(&mut state, json!({"resourceVersion": "2"}), json!({})));
    assert_eq!(&*state.apps_workloads.get(&itself).unwrap().version, "2", "it is what a patch goes out from");
    assert!(apply(&mut state, json!({"resourceVersion": "3"}), json!({"readyReplicas": 1})));
    let key = NamespacedName::new("ns", "web");
    assert!(AppsWorkloadOf::<StatefulSetObject>::remove(&key, &mut state).is_none(), "another kind");
    assert!(AppsWorkloadOf::<DeploymentObject>::remove(&key, &mut state).is_some());
    assert!(state.apps_workloads.is_empty());
}

#[test]
fn all_of_a_namespace_or_of_a_kind_are_found() {
    let mut resources = AppsWorkloads::default();
    for (namespace, name) in [("n", "a"), ("ns", "b"), ("ns", "a"), ("nsx", "a")] {
        for kind in ALL {
            let metadata = json!({"namespace": namespace, "name": name});
            resources.insert(workload(kind, &metadata, &json!({}), &json!({})));
        }
    }
    let found: Vec<_> = resources.in_namespace("ns").map(|it| it.workload.to_string()).collect();
    let expected = ["DaemonSet/a", "DaemonSet/b", "Deployment/a", "Deployment/b", "StatefulSet/a", "StatefulSet/b"];
    assert_eq!(found, expected.map(|it| format!("ns/{it}")));
    assert_eq!((resources.of_kind(StatefulSet).count(), resources.len()), (4, 12));
    assert_eq!(resources.in_namespace("none").count(), 0);
}
