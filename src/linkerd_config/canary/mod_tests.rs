use serde_json::{Value, json};

use super::{problems::problems, *};
use crate::{
    api::{NamespacedName, linkerd_config::Mode},
    cluster::{Problems, Projected, testing::Feed},
    linkerd_config::status::{
        conditions::{add_canary, condition_rows, to_conditions},
        conflicted_status,
    },
};

const HASH: &str = "0123456789abcdef";

fn config(spec: &Value) -> LinkerdConfig {
    let object = json!({"metadata": {"name": "mesh"}, "spec": spec});
    LinkerdConfig::project(serde_json::from_value(object).unwrap(), &mut Problems::default())
}

fn canary(phase: CanaryPhase) -> CanaryStatus {
    CanaryStatus { phase, hash: HASH.to_owned(), message: "so far".to_owned(), ..CanaryStatus::default() }
}

fn status(phase: CanaryPhase) -> LinkerdConfigStatus {
    LinkerdConfigStatus { canary: Some(canary(phase)), ..LinkerdConfigStatus::default() }
}

fn selector() -> Value {
    json!({"namespaceSelector": {"matchLabels": {"canary": "yes"}}})
}

/// The conditions as `Type=Status/Reason`.
fn conditions(phase: CanaryPhase) -> (LinkerdConfigStatus, Vec<String>) {
    let target = NamespacedName::new("linkerd", "linkerd-config");
    let mut rows = condition_rows(&target, Mode::Enforce, &PlanVerdict::Canary, None, None);
    add_canary(&mut rows, &canary(phase));
    let none = LinkerdConfigStatus::default();
    let conditions = to_conditions(&rows, &none, 1, Timestamp::UNIX_EPOCH);
    let texts = conditions.iter().map(|it| format!("{}={}/{}", it.type_, it.status, it.reason)).collect();
    (LinkerdConfigStatus { conditions, ..none }, texts)
}

#[test]
fn only_a_canary_that_makes_no_progress_prevents_ready() {
    let (accepted, synced) = ("Accepted=True/Accepted", "ConfigMapSynced=False/Canary");
    for phase in [CanaryPhase::Progressing, CanaryPhase::Soaking, CanaryPhase::AwaitingPromotion] {
        let (status, texts) = conditions(phase);
        assert_eq!(texts, [accepted, synced, "Ready=True/Canary"], "{phase:?}");
        let expected = format!("configuration {HASH} is {phase:?}: so far");
        assert_eq!(status.message(ConditionType::Ready), expected);
    }
    assert_eq!(conditions(CanaryPhase::Waiting).1, [accepted, synced, "Ready=False/Canary"]);
    for (phase, stalled) in [
        (CanaryPhase::Failed, "Stalled=True/CanaryFailed"),
        (CanaryPhase::Unsupported, "Stalled=True/CanaryUnsupported"),
    ] {
        let (status, texts) = conditions(phase);
        assert_eq!(texts, [accepted, synced, "Ready=False/Canary", stalled]);
        assert!(status.message(ConditionType::Ready).ends_with("so far"));
    }
}

#[test]
fn namespaces_have_a_configuration_of_their_own_only_while_a_canary_is_active_and_enforced() {
    let hash = |spec: &Value, phase| {
        active_canary(&config(spec), &status(phase), None).map(|active| active.injection_hash.to_string())
    };
    let spec = json!({"canary": selector()});
    for phase in [CanaryPhase::Progressing, CanaryPhase::Soaking, CanaryPhase::AwaitingPromotion] {
        assert_eq!(hash(&spec, phase).as_deref(), Some(HASH));
        assert_eq!(hash(&json!({}), phase), None, "{phase:?}");
        assert_eq!(hash(&json!({"canary": selector(), "mode": "Observe"}), phase), None);
    }
    for phase in [CanaryPhase::Waiting, CanaryPhase::Unsupported, CanaryPhase::Promoted, CanaryPhase::Failed] {
        assert_eq!(hash(&spec, phase), None, "{phase:?}");
    }
    let document = |hash: &str| CanaryDocument {
        hash: hash.to_owned(),
        values: String::new(),
        proxy_version: Some("edge-2".to_owned()),
        proxy_shape: None,
    };
    let version = |document: &CanaryDocument| {
        active_canary(&config(&spec), &status(CanaryPhase::Soaking), Some(document)).unwrap().proxy_version
    };
    assert_eq!(version(&document(HASH)).as_deref(), Some("edge-2"));
    assert_eq!(version(&document("fedcba9876543210")), None, "the version of another document");
}

#[test]
fn a_plan_that_decides_nothing_leaves_the_canary_as_it_is() {
    let spec = json!({"canary": selector()});
    let next = |spec: &Value, verdict| {
        let plan = ConfigPlan { injection_hash: Some("fedcba9876543210".to_owned()), ..ConfigPlan::only(verdict) };
        next_canary(&config(spec), &status(CanaryPhase::Soaking), &plan, None, Timestamp::UNIX_EPOCH)
    };
    for verdict in [PlanVerdict::Invalid(Vec::new()), PlanVerdict::Suspended, PlanVerdict::Observing(Vec::new())] {
        assert_eq!(next(&spec, verdict), Some(canary(CanaryPhase::Soaking)));
    }
    assert_eq!(next(&spec, PlanVerdict::Synced), None, "the declared document is that of all namespaces");
    assert_eq!(next(&json!({}), PlanVerdict::Synced), None, "spec.canary was removed");
}

#[test]
fn a_resource_that_does_not_enforce_has_no_canary() {
    for mode in ["Observe", "Suspend"] {
        let spec = json!({"canary": selector(), "mode": mode});
        let next = |phase| {
            let plan = ConfigPlan::only(PlanVerdict::Suspended);
            next_canary(&config(&spec), &status(phase), &plan, None, Timestamp::UNIX_EPOCH).map(|canary| canary.phase)
        };
        for phase in [CanaryPhase::Progressing, CanaryPhase::Soaking, CanaryPhase::AwaitingPromotion] {
            assert_eq!(next(phase), None, "{mode} {phase:?}");
        }
    }
}

#[test]
fn a_canary_that_failed_is_kept_until_the_resource_changes_also_if_the_retry_cannot_be_written() {
    let with = |phase, observed| LinkerdConfigStatus { observed_generation: Some(observed), ..status(phase) };
    let spec = json!({"canary": selector()});
    let mut resource = config(&spec);
    resource.generation = 2;
    let rollout = crate::api::linkerd_config::RolloutStatus::default();
    let kept = |phase, observed| {
        let before = LinkerdConfigStatus { rollout: Some(rollout.clone()), ..with(phase, observed) };
        kept_canary(&resource, &before).map(|canary| canary.phase)
    };
    assert_eq!(kept(CanaryPhase::Failed, 2), Some(CanaryPhase::Failed));
    assert_eq!(kept(CanaryPhase::Failed, 1), None);
    assert_eq!(kept(CanaryPhase::Soaking, 1), Some(CanaryPhase::Soaking));
}

#[test]
fn an_injector_is_late_only_after_its_timeout_since_the_canary_began() {
    let at = |seconds| Timestamp::from_second(seconds).unwrap();
    let timed_out = |reason: &str, phase| {
        let since = Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(at(100)));
        let conditions = json!([{
            "type": "InjectorSynced", "status": "False", "reason": reason, "message": "", "lastTransitionTime": "1970-01-01T00:00:00Z",
        }]);
        LinkerdConfigStatus {
            conditions: serde_json::from_value(conditions).unwrap(),
            canary: Some(CanaryStatus { since, ..canary(phase) }),
            ..LinkerdConfigStatus::default()
        }
    };
    let is_late =
        |reason, phase, hash, now| super::is_late(&timed_out(reason, phase), hash, Duration::from_secs(180), at(now));
    assert!(is_late("Timeout", CanaryPhase::Progressing, HASH, 280));
    assert!(!is_late("Timeout", CanaryPhase::Progressing, HASH, 279), "the timeout is from before the canary");
    assert!(!is_late("Timeout", CanaryPhase::Progressing, HASH, 50), "the clock was set back");
    assert!(!is_late("Timeout", CanaryPhase::Progressing, "fedcba9876543210", 280));
    assert!(!is_late("Timeout", CanaryPhase::Waiting, HASH, 280));
    assert!(!is_late("Propagating", CanaryPhase::Progressing, HASH, 280));
}

#[test]
fn a_resource_that_is_not_active_remembers_only_a_canary_that_failed() {
    let mut resource = config(&json!({"canary": selector()}));
    resource.generation = 2;
    let remembered = |phase, observed| {
        let before = LinkerdConfigStatus {
            observed_generation: Some(observed),
            rollout: Some(crate::api::linkerd_config::RolloutStatus::default()),
            ..status(phase)
        };
        let after = conflicted_status(&resource, &before, &config(&json!({})), Timestamp::UNIX_EPOCH);
        after.canary.map(|canary| canary.phase)
    };
    assert_eq!(remembered(CanaryPhase::Failed, 2), Some(CanaryPhase::Failed));
    assert_eq!(remembered(CanaryPhase::Failed, 1), None);
    assert_eq!(remembered(CanaryPhase::Soaking, 2), None);
}

#[test]
fn a_selector_may_match_no_namespace_or_all_but_those_of_the_control_plane() {
    let mut feed = Feed::default();
    for name in ["a", "b", "linkerd", "kube-system"] {
        let namespace = json!({"metadata": {"name": name, "labels": {"kubernetes.io/metadata.name": name}}});
        feed.apply(crate::cluster::Kind::Namespace, kube::runtime::watcher::Event::Apply(namespace));
    }
    let found = |operator: &str| {
        let expression = json!({"key": "kubernetes.io/metadata.name", "operator": operator});
        let spec = config(&json!({"canary": {"namespaceSelector": {"matchExpressions": [expression]}}})).spec;
        assert_eq!(problems(&spec), []);
        let filter = namespaces_of(spec.canary.as_ref().unwrap());
        names(&canary_namespaces(&feed.cluster.read(), &filter, "linkerd"))
    };
    assert_eq!(found("Exists"), ["a", "b"].map(Arc::from));
    assert_eq!(found("DoesNotExist"), []);
}

#[test]
fn a_canary_needs_the_triggers_without_which_untouched_workloads_count_as_up_to_date() {
    let found = |triggers: &[&str]| {
        let canary = json!({"namespaceSelector": {"matchLabels": {"canary": "yes"}}});
        let spec = config(&json!({"canary": canary, "rollout": {"triggers": triggers}})).spec;
        problems(&spec).iter().map(|problem| problem.path.to_string()).collect::<Vec<_>>()
    };
    assert_eq!(found(&["ProxyConfig", "ProxyVersion"]), [""; 0]);
    for missing in [&["ProxyVersion", "TrustRoots"][..], &["ProxyConfig"], &["Uninjected"]] {
        assert_eq!(found(missing), ["spec.rollout.triggers"], "{missing:?}");
    }
}

#[test]
fn namespaces_that_are_never_injected_are_no_canary() {
    let mut feed = Feed::default();
    for (name, over) in [
        ("b", json!({})),
        ("a", json!({})),
        ("linkerd", json!({})),
        ("kube-system", json!({})),
        ("deleted", json!({"deletionTimestamp": "2026-01-01T00:00:00Z"})),
        ("exempt", json!({"labels": {"config.linkerd.io/admission-webhooks": "disabled"}})),
        ("other", json!({"labels": {"canary": "no"}})),
    ] {
        let mut metadata = json!({"name": name, "labels": {"canary": "yes"}});
        json_patch::merge(&mut metadata, &over);
        feed.apply(
            crate::cluster::Kind::Namespace,
            kube::runtime::watcher::Event::Apply(json!({"metadata": metadata})),
        );
    }
    let spec = config(&json!({"canary": selector()})).spec;
    let filter = namespaces_of(spec.canary.as_ref().unwrap());
    let found = canary_namespaces(&feed.cluster.read(), &filter, "linkerd");
    assert_eq!(names(&found), ["a", "b"].map(Arc::from));
}

#[test]
fn the_injectors_are_probed_for_the_namespaces_whose_annotations_change_the_injection_least() {
    let namespace = |name: &str, annotations: &Value| {
        let object = json!({"metadata": {"name": name, "annotations": annotations}});
        Arc::new(Namespace::project(serde_json::from_value(object).unwrap(), &mut Problems::default()))
    };
    let invalid = namespace("aa", &json!({"linkerd.io/inject": "bogus"}));
    let headers = json!({"linkerd.io/inject": "enabled", "config.linkerd.io/proxy-log-http-headers": "bogus"});
    let headers = namespace("bb", &headers);
    let enabled = namespace("cc", &json!({"linkerd.io/inject": "enabled", "note": "of a person", "another": ""}));
    let [disabled, plain] =
        [("dd", json!({"linkerd.io/inject": "disabled"})), ("ee", json!({}))].map(|(name, it)| namespace(name, &it));
    let probed = |namespaces: &[&Arc<Namespace>]| {
        probed_namespaces(&namespaces.iter().map(|it| Arc::clone(it)).collect::<Vec<_>>())
    };
    let all = probed(&[&invalid, &headers, &enabled, &disabled, &plain]);
    assert_eq!(all, Ok(vec!["ee".into(), "cc".into(), "dd".into()]));
    assert_eq!(probed(&[&invalid, &headers]), Ok(vec!["bb".into()]));
    assert_eq!(
        probed(&[&invalid]),
        Err("no Pod of the canary namespaces gets a proxy: the annotation linkerd.io/inject of namespace aa has an invalid \
             value; set it to enabled, ingress or disabled"
            .to_owned())
    );
    assert_eq!(probed(&[]), Err("no namespace has the labels of spec.canary.namespaceSelector".to_owned()));
}
