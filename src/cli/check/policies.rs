//! The admission policies that limit the operator's accounts, and their bindings.
//!
//! In: the policies and bindings of `config/admission-policy`, by name. Out: a check for their presence, and one for
//! the warnings of the API server about their expressions. Always holds: without any of them, which the chart permits,
//! there is a warning; if only some are missing, the installation is incomplete, which is a failure.

use futures::{StreamExt, stream};
use k8s_openapi::api::admissionregistration::v1::{ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding};
use kube::{Api, Client};
use serde::de::DeserializeOwned;

use super::{
    judge::{InstallationCheck, listed},
    unread::{Known, Unread},
};

/// The number of requests at the same time.
const CONCURRENCY: usize = 8;
/// Each binding, its policy, and an action that it has.
const BINDINGS: [(&str, &str, &str); 13] = [
    ("linkerd-operator-canary-config-map", "linkerd-operator-canary-config-map", "Deny"),
    ("linkerd-operator-config-map", "linkerd-operator-config-map", "Deny"),
    ("linkerd-operator-controller-revisions", "linkerd-operator-controller-revisions", "Deny"),
    ("linkerd-operator-endpoint-slices", "linkerd-operator-endpoint-slices", "Deny"),
    ("linkerd-operator-evictions", "linkerd-operator-evictions", "Deny"),
    ("linkerd-operator-leases", "linkerd-operator-leases", "Deny"),
    ("linkerd-operator-linkerd-configs", "linkerd-operator-linkerd-configs", "Deny"),
    ("linkerd-operator-linkerd-trusts", "linkerd-operator-linkerd-trusts", "Deny"),
    ("linkerd-operator-pods", "linkerd-operator-pods", "Deny"),
    ("linkerd-operator-rollout-annotations", "linkerd-operator-rollout-annotations", "Deny"),
    ("linkerd-operator-rollout-annotations-of-copies", "linkerd-operator-rollout-annotations", "Warn"),
    ("linkerd-operator-secrets", "linkerd-operator-secrets", "Deny"),
    ("linkerd-operator-workloads", "linkerd-operator-workloads", "Deny"),
];

/// A policy and one of its bindings, each of which may be missing.
pub(super) struct CheckedBinding {
    name: &'static str,
    policy_name: &'static str,
    action: &'static str,
    binding: Known<Option<ValidatingAdmissionPolicyBinding>>,
    policy: Known<Option<ValidatingAdmissionPolicy>>,
}

pub(super) async fn read(client: &Client) -> Vec<CheckedBinding> {
    let reads = stream::iter(BINDINGS).map(async |(name, policy_name, action)| {
        let (binding, policy) = tokio::join!(get(client, name), get(client, policy_name));
        CheckedBinding { name, policy_name, action, binding, policy }
    });
    reads.buffered(CONCURRENCY).collect().await
}

async fn get<K>(client: &Client, name: &str) -> Known<Option<K>>
where
    K: kube::Resource<Scope = k8s_openapi::ClusterResourceScope, DynamicType = ()>
        + Clone
        + std::fmt::Debug
        + DeserializeOwned,
{
    Ok(Api::<K>::all(client.clone()).get_opt(name).await?)
}

/// Judges the policies of an operator in this namespace.
pub(super) fn judge(bindings: &[CheckedBinding], operator_namespace: &str) -> Vec<InstallationCheck> {
    let description = "the operator's admission policies are in force";
    if let Some(unread) = unread(bindings) {
        return vec![InstallationCheck::unread(description, &unread)];
    }
    let exists = |it: &CheckedBinding| matches!(it.binding, Ok(Some(_))) || matches!(it.policy, Ok(Some(_)));
    if !bindings.iter().any(exists) {
        let warning = "there are none: the operator's token can change every workload that its roles permit";
        return vec![InstallationCheck::warning(description, warning)];
    }
    let mut problems: Vec<String> = bindings.iter().filter_map(|it| problem(it, operator_namespace)).collect();
    // A policy with two bindings is missing once.
    problems.dedup();
    let mut checks = vec![match problems.as_slice() {
        [] => InstallationCheck::success(description),
        problems => InstallationCheck::error(
            description,
            format!("{}\napply the manifests or upgrade the release again, with the same version", listed(problems)),
        ),
    }];
    checks.extend(type_checks(bindings));
    checks
}

/// Returns why a policy or a binding could not be read. The reasons of the others are the same.
fn unread(bindings: &[CheckedBinding]) -> Option<Unread> {
    let policy = bindings.iter().find_map(|it| it.policy.as_ref().err());
    let binding = bindings.iter().find_map(|it| it.binding.as_ref().err());
    let found: Vec<_> = policy.into_iter().chain(binding).collect();
    let reasons: Vec<_> = found.iter().map(|it| it.reason.clone()).collect();
    let is_denied = found.iter().all(|it| it.is_denied);
    (!found.is_empty()).then(|| Unread { is_denied, reason: listed(&reasons) })
}

/// Returns why the policy does not deny what it should deny.
fn problem(checked: &CheckedBinding, operator_namespace: &str) -> Option<String> {
    let CheckedBinding { name, policy_name, action, binding, policy } = checked;
    let Ok(Some(policy)) = policy else {
        return Some(format!("ValidatingAdmissionPolicy {policy_name} does not exist"));
    };
    let Ok(Some(binding)) = binding else {
        return Some(format!("ValidatingAdmissionPolicyBinding {name} of policy {policy_name} does not exist"));
    };
    let spec = binding.spec.clone().unwrap_or_default();
    if spec.policy_name.as_deref() != Some(policy_name) {
        return Some(format!("ValidatingAdmissionPolicyBinding {name} is not for policy {policy_name}"));
    }
    if !spec.validation_actions.iter().flatten().any(|it| it == action) {
        return Some(format!("ValidatingAdmissionPolicyBinding {name} lacks the action {action}"));
    }
    // The accounts have the namespace in their names.
    let conditions = policy.spec.iter().flat_map(|spec| spec.match_conditions.iter().flatten());
    let mut accounts = conditions.filter(|condition| condition.name == "account");
    let is_for_others =
        accounts.any(|account| !account.expression.contains(&format!("system:serviceaccount:{operator_namespace}:")));
    is_for_others
        .then(|| format!("policy {policy_name} is for accounts in another namespace than {operator_namespace}"))
}

/// Judges the warnings of the API server. It publishes them some time after a policy is created.
fn type_checks(bindings: &[CheckedBinding]) -> Option<InstallationCheck> {
    let description = "the API server has no warning about the admission policies";
    let mut policies: Vec<_> = bindings.iter().filter_map(|it| it.policy.as_ref().ok()?.as_ref()).collect();
    policies.dedup_by_key(|policy| policy.metadata.name.clone());
    let checked = |policy: &ValidatingAdmissionPolicy| {
        let status = policy.status.as_ref()?;
        let is_current = status.observed_generation >= policy.metadata.generation;
        status.type_checking.clone().filter(|_| is_current)
    };
    let mut warnings = Vec::new();
    for policy in &policies {
        let name = policy.metadata.name.as_deref().unwrap_or_default();
        let found = checked(policy).and_then(|checking| checking.expression_warnings).unwrap_or_default();
        warnings.extend(found.iter().map(|it| {
            let text = it.warning.split_whitespace().collect::<Vec<_>>().join(" ");
            format!("{name}: {}: {text}", it.field_ref)
        }));
    }
    match warnings.as_slice() {
        [] => policies.iter().all(|it| checked(it).is_some()).then(|| InstallationCheck::success(description)),
        warnings => Some(InstallationCheck::warning(description, listed(warnings))),
    }
}

#[cfg(test)]
#[path = "policies_tests.rs"]
pub(super) mod tests;
