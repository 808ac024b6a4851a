use serde_json::json;

use super::*;

const MARKED: &str = "proxy: {additionalEnv: [{name: LINKERD_CONFIG_HASH, value: 3b23962d1733903a}]}";

/// The field managers of installers in `managedFields`, by tool:
/// * Helm 3 and 4 set `helm` (`cmd/helm/helm.go`, `kube.ManagedFieldsManager`). Programs with Helm's SDK use the base
///   name of their binary (`pkg/kube/client.go`, `getManagedFieldsManager`): so do a renamed Helm of an older version,
///   Terraform's provider, whose binary contains its version, and Fleet's agent.
/// * Flux: `helm-controller`, `kustomize-controller`. Argo CD: `argocd-controller` (`common/common.go`,
///   `ArgoCDSSAManager`), before that and with `Replace=true` `argocd-application-controller`.
/// * Pulumi: `pulumi-kubernetes`, with server-side apply with a random suffix (pulumi-kubernetes, pull request 2271).
/// * kubectl: `kubectl-client-side-apply` and, with `--server-side`, `kubectl`.
const INSTALLERS: [&str; 19] = [
    "helm",
    "helm3",
    "helm4",
    "helm.exe",
    "helm_v3",
    "helmwave",
    "helm-controller",
    "kustomize-controller",
    "argocd-controller",
    "argocd-application-controller",
    "terraform-provider-helm_v2.17.0_x5",
    "terraform-provider-helm_v3.0.2.exe",
    "pulumi-kubernetes",
    "pulumi-kubernetes-1f2e3d4c",
    "pulumi-resource-kubernetes",
    "fleetagent",
    "fleet-agent",
    "kubectl-client-side-apply",
    "kubectl",
];

#[test]
fn the_default_patterns_match_every_installer_and_no_editor() {
    let drift = DriftSpec::default();
    let is_trusted = |manager: &str| is_installation(&drift, manager, Some("proxy: {}"));
    for manager in INSTALLERS {
        assert!(is_trusted(manager), "{manager}");
    }
    let others = [
        "kubectl-edit",
        "kubectl-patch",
        "kubectl-replace",
        "kubectl-set",
        "k9s",
        "Mozilla",
        "argocd-server",
        "unknown",
        "",
        "my-helm",
        "linkerd-config-operator",
        "terraform-provider-kubernetes_v2.38.0_x5",
        "python-requests",
    ];
    for manager in others {
        assert!(!is_trusted(manager), "{manager}");
    }
}

#[test]
fn the_default_of_an_older_schema_that_is_stored_in_a_resource_matches_every_installer() {
    let stored = json!({"trustedManagers": [
        "helm", "helm-controller", "argocd-controller", "kustomize-controller", "kubectl-client-side-apply",
    ]});
    let drift: DriftSpec = serde_json::from_value(stored).unwrap();
    for manager in INSTALLERS {
        assert!(is_installation(&drift, manager, Some("proxy: {}")), "{manager}");
    }
    assert!(!is_installation(&drift, "kubectl-edit", Some("proxy: {}")));
}

#[test]
fn a_copy_of_our_document_is_an_edit_whoever_wrote_it() {
    let drift = DriftSpec::default();
    for manager in INSTALLERS {
        assert!(!is_installation(&drift, manager, Some(MARKED)), "{manager}");
        assert!(is_installation(&drift, manager, None), "{manager}");
    }
}

#[test]
fn a_fragment_from_kubectl_apply_does_not_replace_the_base() {
    let document = |text: &str| Document::parse(text).unwrap();
    let base = document("proxy: {uid: 1}\nclusterDomain: a");
    let (whole, fragment) = (document("proxy: {uid: 2}\nclusterDomain: b\nnew: 1"), document("proxy: {uid: 2}"));
    for manager in ["kubectl", "kubectl-client-side-apply"] {
        assert!(replaces_base(manager, &whole, &base) && !replaces_base(manager, &fragment, &base), "{manager}");
    }
    assert!(replaces_base("helm", &fragment, &base));
}

#[test]
fn a_star_matches_any_number_of_characters() {
    for (pattern, manager, expected) in [
        ("helm", "helm", true),
        ("helm", "helm3", false),
        ("helm", "", false),
        ("*", "", true),
        ("*", "anything", true),
        ("**", "anything", true),
        ("helm*", "helm", true),
        ("*helm", "my-helm", true),
        ("*helm", "helm3", false),
        ("a*a", "a", false),
        ("a*a", "aa", true),
        ("ab*ba", "aba", false),
        ("*b*", "abc", true),
        ("*b*b*", "abc", false),
        ("a*bc*d", "abcbd", true),
        ("a*bc*d", "abd", false),
        ("terraform-provider-helm_v*_x5", "terraform-provider-helm_v2.17.0_x5", true),
        ("hel?", "helm", false),
        ("h[e]lm", "helm", false),
        ("*é*", "café-manager", true),
    ] {
        assert_eq!(matches(pattern, manager), expected, "{pattern} {manager}");
    }
}

#[test]
fn a_pattern_that_would_make_a_backtracking_matcher_hang_takes_few_steps() {
    assert!(!matches(&format!("{}b", "*a".repeat(63)), &"a".repeat(128)));
    assert!(!matches(&format!("{}*b*", "*a".repeat(62)), &"a".repeat(128)));
}

#[test]
fn the_remedy_names_the_setting_of_the_tool() {
    for (manager, part) in [
        ("argocd-controller", "ignoreDifferences"),
        ("argocd-application-controller", "ignoreDifferences"),
        ("helm-controller", "driftDetection.ignore"),
        ("kustomize-controller", "spec.interval"),
        ("helm", "stop the job"),
        ("fleetagent", "stop the job"),
    ] {
        assert!(remedy(manager).contains(part), "{manager}: {}", remedy(manager));
    }
}
