use std::collections::BTreeSet;

use serde::Deserialize;
use serde_json::{Value, json};

use super::*;
use crate::{cli::check::judge::CheckResult, testing::files};

const NAMESPACE: &str = "linkerd-operator-system";

/// The objects of the manifests.
fn shipped() -> Vec<Value> {
    let texts = files("config/admission-policy", "yaml").into_iter().map(|file| std::fs::read_to_string(file).unwrap());
    let objects = texts.flat_map(|text| {
        let documents = serde_yaml::Deserializer::from_str(&text).map(|it| Value::deserialize(it).unwrap());
        documents.collect::<Vec<_>>()
    });
    objects.filter(|object| object["kind"] != "Kustomization").collect()
}

fn object<K: DeserializeOwned>(kind: &str, name: &str) -> K {
    let found = shipped().into_iter().find(|it| it["kind"] == kind && it["metadata"]["name"] == name);
    serde_json::from_value(found.unwrap_or_else(|| panic!("no {kind} {name}"))).unwrap()
}

/// The policies of the manifests, all type-checked and in force for an operator in this namespace.
pub(in crate::cli::check) fn in_force(namespace: &str) -> Vec<CheckedBinding> {
    let checked = |(name, policy_name, action): (&'static str, &'static str, &'static str)| {
        let mut policy: ValidatingAdmissionPolicy = object("ValidatingAdmissionPolicy", policy_name);
        let conditions = policy.spec.iter_mut().flat_map(|spec| spec.match_conditions.iter_mut().flatten());
        for account in conditions.filter(|condition| condition.name == "account") {
            account.expression = account.expression.replace(NAMESPACE, namespace);
        }
        policy.metadata.generation = Some(1);
        policy.status = serde_json::from_value(json!({"observedGeneration": 1, "typeChecking": {}})).unwrap();
        let binding = object("ValidatingAdmissionPolicyBinding", name);
        CheckedBinding { name, policy_name, action, binding: Ok(Some(binding)), policy: Ok(Some(policy)) }
    };
    BINDINGS.into_iter().map(checked).collect()
}

/// The results and the errors after a change.
fn changed(change: impl FnOnce(&mut Vec<CheckedBinding>)) -> Vec<(CheckResult, String)> {
    let mut bindings = in_force(NAMESPACE);
    change(&mut bindings);
    let checks = judge(&bindings, NAMESPACE);
    checks.into_iter().map(|check| (check.result, check.error.unwrap_or_default())).collect()
}

fn at<'a>(bindings: &'a mut [CheckedBinding], name: &str) -> &'a mut CheckedBinding {
    bindings.iter_mut().find(|it| it.name == format!("linkerd-operator-{name}")).unwrap()
}

#[test]
fn the_names_are_those_of_the_manifests() {
    let names = |kind: &str| -> BTreeSet<String> {
        let objects = shipped().into_iter().filter(|object| object["kind"] == kind);
        objects.map(|object| object["metadata"]["name"].as_str().unwrap().to_owned()).collect()
    };
    let bindings: BTreeSet<_> = BINDINGS.iter().map(|(binding, ..)| (*binding).to_owned()).collect();
    let policies: BTreeSet<_> = BINDINGS.iter().map(|(_, policy, _)| (*policy).to_owned()).collect();
    assert_eq!(bindings, names("ValidatingAdmissionPolicyBinding"));
    assert_eq!(policies, names("ValidatingAdmissionPolicy"));
}

#[test]
fn policies_that_are_in_force_have_two_ticks() {
    let tick = (CheckResult::Success, String::new());
    assert_eq!(changed(|_| ()), [tick.clone(), tick.clone()]);
    // The API server has not checked them yet, so nothing is said about warnings.
    assert_eq!(changed(|all| at(all, "pods").policy.as_mut().unwrap().as_mut().unwrap().status = None), [tick]);
}

#[test]
fn a_policy_or_a_binding_that_is_missing_is_a_failure_and_none_at_all_is_a_warning() {
    let found = changed(|all| at(all, "pods").policy = Ok(None));
    assert_eq!(found[0].0, CheckResult::Error);
    assert!(found[0].1.starts_with("ValidatingAdmissionPolicy linkerd-operator-pods does not exist\n"), "{found:?}");
    let found = changed(|all| at(all, "workloads").binding = Ok(None));
    let missing = "ValidatingAdmissionPolicyBinding linkerd-operator-workloads of policy linkerd-operator-workloads does \
                   not exist\n";
    assert!(found[0].0 == CheckResult::Error && found[0].1.starts_with(missing), "{found:?}");
    let found = changed(|all| {
        for name in ["rollout-annotations", "rollout-annotations-of-copies"] {
            at(all, name).policy = Ok(None);
        }
    });
    assert_eq!(found[0].1.matches("linkerd-operator-rollout-annotations does not exist").count(), 1, "{found:?}");
    let found = changed(|all| {
        for it in all {
            (it.policy, it.binding) = (Ok(None), Ok(None));
        }
    });
    assert!(found.len() == 1 && found[0].0 == CheckResult::Warning, "{found:?}");
    assert!(found[0].1.starts_with("there are none: "), "{found:?}");
}

#[test]
fn a_policy_that_does_not_deny_the_operators_accounts_is_a_failure() {
    type Change = fn(&mut CheckedBinding);
    let changes: [(Change, &str); 3] = [
        (|it| spec(it).validation_actions = Some(vec!["Audit".to_owned()]), "lacks the action Deny"),
        (|it| spec(it).policy_name = Some("other".to_owned()), "is not for policy linkerd-operator-pods"),
        (
            |it| {
                let spec = it.policy.as_mut().unwrap().as_mut().unwrap().spec.as_mut().unwrap();
                let account = spec.match_conditions.as_mut().unwrap().iter_mut().find(|it| it.name == "account");
                account.unwrap().expression =
                    r#"request.userInfo.username.startsWith("system:serviceaccount:other:linkerd-operator")"#
                        .to_owned();
            },
            "is for accounts in another namespace than linkerd-operator-system",
        ),
    ];
    for (change, part) in changes {
        let found = changed(|all| change(at(all, "pods")));
        assert!(found[0].0 == CheckResult::Error && found[0].1.contains(part), "{part}: {found:?}");
    }
}

fn spec(
    checked: &mut CheckedBinding,
) -> &mut k8s_openapi::api::admissionregistration::v1::ValidatingAdmissionPolicyBindingSpec {
    checked.binding.as_mut().unwrap().as_mut().unwrap().spec.as_mut().unwrap()
}

#[test]
fn a_warning_of_the_api_server_is_shown() {
    let found = changed(|all| {
        let policy = at(all, "leases").policy.as_mut().unwrap().as_mut().unwrap();
        let warning = json!({"fieldRef": "spec.validations[0].expression", "warning": "v1 Lease:\n undefined field"});
        let status = json!({"observedGeneration": 1, "typeChecking": {"expressionWarnings": [warning]}});
        policy.status = serde_json::from_value(status).unwrap();
    });
    assert_eq!(found[0].0, CheckResult::Success);
    let expected = "linkerd-operator-leases: spec.validations[0].expression: v1 Lease: undefined field";
    assert_eq!(found[1], (CheckResult::Warning, expected.to_owned()));
}

#[test]
fn policies_that_may_not_be_read_have_no_tick() {
    let denied = "policies is forbidden: User \"alice\" cannot get resource";
    let found = changed(|all| {
        for it in all {
            it.policy = Err(Unread::denied(denied));
        }
    });
    assert_eq!(found, [(CheckResult::Warning, format!("not looked at: {denied}"))]);
    let found = changed(|all| at(all, "pods").binding = Err(Unread::failed("etcd is gone")));
    assert_eq!(found, [(CheckResult::Error, "etcd is gone".to_owned())]);
}
