//! Tests of which workloads are selected.

use serde_json::json;

use super::{
    WorkloadState,
    selection::{LabelFilter, NotSelected},
};
use crate::{
    api::linkerd_config::OptIn,
    rollout::testing::{BEFORE, World, with},
};

const NO_LABEL: &str = "no label config.linkerd.io/reconcile: auto on it, its template or its namespace";

#[test]
fn the_most_specific_label_decides_the_opt_in() {
    use NotSelected::{ExcludedNamespace, NotOptedIn};
    let label = |value: Option<&str>| json!({"labels": {"config.linkerd.io/reconcile": value}});
    for (own, template, namespace, expected) in [
        (Some("auto"), None, None, Ok(true)),
        (None, Some("auto"), None, Ok(true)),
        (None, None, Some("auto"), Ok(true)),
        (
            Some("disabled"),
            Some("auto"),
            Some("auto"),
            Err("config.linkerd.io/reconcile of the workload is \"disabled\": auto would opt it in"),
        ),
        (
            None,
            Some("disabled"),
            Some("auto"),
            Err("config.linkerd.io/reconcile of its Pod template is \"disabled\": auto would opt it in"),
        ),
        (Some("auto"), Some("disabled"), Some("disabled"), Ok(true)),
        (Some("observe"), None, Some("auto"), Ok(false)),
        (
            Some("true"),
            None,
            None,
            Err(
                "config.linkerd.io/reconcile of the workload is \"true\": it must be auto for a restart, or else observe or disabled",
            ),
        ),
        (
            None,
            None,
            Some("Auto"),
            Err(
                "config.linkerd.io/reconcile of its namespace is \"Auto\": it must be auto for a restart, or else observe or disabled",
            ),
        ),
        (None, None, None, Err(NO_LABEL)),
    ] {
        let mut world =
            World::outdated(&json!({"metadata": label(own), "spec": {"template": {"metadata": label(template)}}}));
        world.namespace("ns", &label(namespace));
        let seen = match world.state("Deployment", "web") {
            WorkloadState::Pending(_) => Ok(true),
            WorkloadState::Observed => Ok(false),
            WorkloadState::Unselected(reason) => {
                assert_eq!(reason.as_str(), if reason == NotOptedIn { "NotOptedIn" } else { "OptedOut" });
                Err(reason.why().into_owned())
            }
            other => panic!("{other:?}"),
        };
        assert_eq!(seen, expected.map_err(str::to_owned), "{own:?} {template:?} {namespace:?}");
    }
    let mut world = World::outdated(&json!({}));
    world.namespace("ns", &json!({"labels": {"config.linkerd.io/admission-webhooks": "disabled"}}));
    assert_eq!(world.state("Deployment", "web"), WorkloadState::Unselected(ExcludedNamespace));
    world.namespace("ns", &json!({}));
    for excluded in ["linkerd", "operator"] {
        let (target, scope) = (&mut world.target.config.config_map, &mut world.target.selection);
        (target.namespace, scope.operator_namespace) =
            (if excluded == "linkerd" { "ns" } else { "linkerd" }.into(), "ns".into());
        let state = world.state("Deployment", "web");
        assert!(matches!(state, WorkloadState::Unselected(ExcludedNamespace) | WorkloadState::Unmeshed), "{state:?}");
    }
}

#[test]
fn with_opt_in_all_every_workload_that_the_selectors_match_and_no_label_opts_out_is_selected() {
    let disabled = || json!({"config.linkerd.io/reconcile": "disabled"});
    let in_front = json!([{"key": "tier", "operator": "In", "values": ["front"]}]);
    let front = json!({"workloadSelector": {"matchExpressions": in_front}});
    let of_a = json!({"namespaceSelector": {"matchLabels": {"team": "a"}}});
    for (spec, of_namespace, of_workload, expected) in [
        (json!({}), json!({}), json!({}), None),
        (json!({}), json!({}), disabled(), Some("OptedOut")),
        (json!({}), disabled(), json!({}), Some("OptedOut")),
        (front.clone(), json!({}), json!({"tier": "front"}), None),
        (front, json!({}), json!({"tier": "back"}), Some("WorkloadNotSelected")),
        (of_a.clone(), json!({"team": "a"}), json!({}), None),
        (of_a, json!({"team": "b"}), json!({}), Some("NamespaceNotSelected")),
        (json!({"kinds": ["StatefulSet", "DaemonSet"]}), json!({}), json!({}), Some("KindNotSelected")),
    ] {
        let mut world = World::new(&spec);
        world.target.selection.opt_in = OptIn::All;
        let selection = &mut world.target.selection;
        selection.workloads = LabelFilter::of(spec.get("workloadSelector"));
        selection.namespaces = LabelFilter::of(spec.get("namespaceSelector"));
        world.namespace("ns", &json!({ "labels": of_namespace }));
        let labels = with(json!({"config.linkerd.io/reconcile": null}), &of_workload);
        world.deployment("web", &json!({"metadata": {"labels": labels}}));
        world.pod("web-1", "web", Some(BEFORE), &json!({}));
        match (world.state("Deployment", "web"), expected) {
            (WorkloadState::Pending(_), None) => {}
            (WorkloadState::Unselected(reason), Some(expected)) => assert_eq!(reason.as_str(), expected, "{spec}"),
            (state, expected) => panic!("{spec}: {state:?} {expected:?}"),
        }
    }
}
