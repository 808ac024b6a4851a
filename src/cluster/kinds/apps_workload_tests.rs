//! Which fields of the three kinds are read, and which changes observers are notified of.

use serde_json::{Value, json};

use super::*;
use crate::cluster::{State, Watched};

/// `ns/web` of generation 3, from `spec` and `status`.
fn workload(kind: WorkloadKind, metadata: &Value, spec: &Value, status: &Value) -> AppsWorkload {
    fn project<K: AppsKind>(object: Value) -> AppsWorkload {
        let wire = serde_json::from_value(object).unwrap();
        (*AppsWorkloadOf::<K>::project(wire, &mut Problems::default()).resource).clone()
    }
    let mut all = json!({"name": "web", "namespace": "ns", "uid": "u", "resourceVersion": "1", "generation": 3});
    all.as_object_mut().unwrap().extend(metadata.as_object().unwrap().clone());
    let object = json!({"metadata": all, "spec": spec, "status": status});
    match kind {
        WorkloadKind::Deployment => project::<apps::Deployment>(object),
        WorkloadKind::StatefulSet => project::<apps::StatefulSet>(object),
        WorkloadKind::DaemonSet => project::<apps::DaemonSet>(object),
    }
}

use WorkloadKind::{DaemonSet, Deployment, StatefulSet};

const ALL: [WorkloadKind; 3] = [Deployment, StatefulSet, DaemonSet];

#[test]
fn the_fields_for_rollouts_are_read_from_every_kind() {
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
        let expected = Template {
            reconcile: None,
            restarted_for,
            inject: Inject::Enabled,
            host_network: true,
            ..Template::default()
        };
        assert_eq!(found.template, expected);
    }
    let deleting = json!({"deletionTimestamp": "2026-01-01T00:00:00Z"});
    assert!(workload(DaemonSet, &deleting, &json!({}), &json!({})).deleting);
}

#[test]
fn the_label_of_a_template_overrides_its_annotation() {
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
fn the_strategy_is_read_from_the_field_of_each_kind() {
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
fn progress_counts_only_for_the_observed_generation() {
    let replicas = json!({"observedGeneration": 3, "replicas": 5, "updatedReplicas": 4, "readyReplicas": 3, "availableReplicas": 2});
    let nodes = json!({"observedGeneration": 3, "desiredNumberScheduled": 6, "currentNumberScheduled": 5,
        "updatedNumberScheduled": 4, "numberReady": 3, "numberAvailable": 2});
    let expected =
        WorkloadProgress { observed: true, wanted: 6, total: 5, updated: 4, ready: 3, available: 2, misscheduled: 0 };
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
fn the_pace_of_a_workload_is_read_from_its_spec() {
    for (kind, spec, min_ready, progress_deadline) in [
        (Deployment, json!({}), 0, None),
        // The API server writes 600 into each Deployment without a deadline.
        (Deployment, json!({"minReadySeconds": 45, "progressDeadlineSeconds": 600}), 45, None),
        (Deployment, json!({"minReadySeconds": 45, "progressDeadlineSeconds": 60}), 45, None),
        (Deployment, json!({"minReadySeconds": 45, "progressDeadlineSeconds": 3600}), 45, Some(3600)),
        (Deployment, json!({"progressDeadlineSeconds": i64::MAX}), 0, Some(u32::MAX)),
        (Deployment, json!({"minReadySeconds": -1, "progressDeadlineSeconds": -1}), 0, None),
        (StatefulSet, json!({"minReadySeconds": 30, "progressDeadlineSeconds": 3600}), 30, None),
        (DaemonSet, json!({"minReadySeconds": 30}), 30, None),
        (DaemonSet, json!({"minReadySeconds": null}), 0, None),
    ] {
        let found = workload(kind, &json!({}), &spec, &json!({})).pace;
        assert_eq!(found, WorkloadPace { min_ready, progress_deadline }, "{kind:?} {spec}");
    }
    let paces =
        [json!({}), json!({"minReadySeconds": 1})].map(|spec| workload(DaemonSet, &json!({}), &spec, &json!({})));
    assert!(paces[0].is_change(&paces[1]), "a change of the pace is a change");
}

#[test]
fn a_replica_failure_is_reported_before_a_missed_deadline() {
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

/// The object as a watch delivers it.
fn of_kind<K>(workload: AppsWorkload) -> AppsWorkloadOf<K> {
    AppsWorkloadOf { resource: Arc::new(workload), kind: PhantomData }
}

#[test]
fn a_change_of_only_the_version_is_stored_and_is_no_change() {
    let mut state = State::default();
    let apply = |state: &mut State, metadata: Value, status: Value| {
        of_kind::<apps::Deployment>(workload(Deployment, &metadata, &json!({}), &status)).apply(state).is_some()
    };
    let itself = WorkloadKey::new("ns", "Deployment", "web");
    assert!(apply(&mut state, json!({}), json!({})));
    assert!(!apply(&mut state, json!({"resourceVersion": "2"}), json!({})));
    assert_eq!(&*state.apps_workload(&itself).unwrap().version, "2", "a patch is based on it");
    assert!(apply(&mut state, json!({"resourceVersion": "3"}), json!({"readyReplicas": 1})));
    let key = NamespacedName::new("ns", "web");
    assert!(AppsWorkloadOf::<apps::StatefulSet>::remove(&key, &mut state).is_none(), "another kind");
    assert!(AppsWorkloadOf::<apps::Deployment>::remove(&key, &mut state).is_some());
    assert_eq!(state.apps_workloads().count(), 0);
}

#[test]
fn workloads_are_found_by_key_and_by_namespace() {
    let mut state = State::default();
    for (namespace, name) in [("n", "a"), ("ns", "b"), ("ns", "a"), ("nsx", "a")] {
        let metadata = json!({"namespace": namespace, "name": name});
        let workload = |kind| workload(kind, &metadata, &json!({}), &json!({}));
        of_kind::<apps::Deployment>(workload(Deployment)).apply(&mut state);
        of_kind::<apps::StatefulSet>(workload(StatefulSet)).apply(&mut state);
        of_kind::<apps::DaemonSet>(workload(DaemonSet)).apply(&mut state);
    }
    let mut found: Vec<_> = state.apps_workloads_in("ns").map(|it| it.workload.to_string()).collect();
    found.sort();
    let expected = ["DaemonSet/a", "DaemonSet/b", "Deployment/a", "Deployment/b", "StatefulSet/a", "StatefulSet/b"];
    assert_eq!(found, expected.map(|it| format!("ns/{it}")));
    for key in expected.map(|it| it.split_once('/').unwrap()).map(|(kind, name)| WorkloadKey::new("ns", kind, name)) {
        assert_eq!(state.apps_workload(&key).unwrap().workload, key);
    }
    for (kind, name) in [("Deployment", "c"), ("Rollout", "a")] {
        assert!(state.apps_workload(&WorkloadKey::new("ns", kind, name)).is_none());
    }
    assert_eq!((state.apps_workloads().count(), state.apps_workloads_in("none").count()), (12, 0));
}
