//! The output for a resource, a ConfigMap and a base, as text and as JSON.

use std::sync::Arc;

use serde_json::json;

use super::*;
use crate::{
    cluster::kinds::linkerd_config::LinkerdConfig,
    explain::{
        print::text,
        testing::{INSTALLED, config, config_map, input, with_injection_hash},
    },
    values::testing::OTHER_TRUST_ANCHORS,
};

fn edited(keys: &[&str], value: Value) -> String {
    let mut document = Document::parse(INSTALLED).unwrap();
    document.set(&Path::from(keys), value);
    with_injection_hash(&document)
}

#[test]
fn changes_are_marked_and_each_value_has_its_source() {
    let spec = json!({
        "proxy": {"logLevel": "debug", "proxyImage": {"name": "cr.l5d.io/linkerd/proxy"}},
        "values": {"proxyInit": {"iptablesMode": "nft"}, "heartbeatSchedule": null, "new": {"a": "x".repeat(99)}},
        "global": {"omitWebhookSideEffects": true},
    });
    let input = ExplainInput { bundle: Some(OTHER_TRUST_ANCHORS.into()), ..input(&spec) };
    let output = ExplainOutput::new(&input, false);
    assert!(output.is_accepted());
    let others = Document::parse(INSTALLED).unwrap().split_injection_hash().0.leaves().count() - 5;
    let expected = format!(
        "\
LinkerdConfig:  mesh
Target:         ConfigMap linkerd/linkerd-config
Mode:           Enforce
In effect:      yes
Base:           revision 2, which would be saved first
Verdict:        OutOfSync: 4 values would change
New Pods:       every Pod that is created from now on gets: proxy.logLevel \"debug\"; spec.rollout cannot delay it
Deprecated:     spec.global.omitWebhookSideEffects: without effect
Warning:        spec.values has keys that Linkerd does not have up to edge-26.8.3, so no Pod gets them: new

    PATH                      FROM          LIVE                                EFFECTIVE
-   heartbeatSchedule         spec.values   \"\"                                  -
~   identityTrustAnchorsPEM   trust roots   (PEM, 1 certificate)                (PEM, 1 certificate)
+   new.a                     spec.values   -                                   \"xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx…
    proxy.image.name          spec          \"cr.l5d.io/linkerd/proxy\"           \"cr.l5d.io/linkerd/proxy\"
~   proxy.logLevel            spec          \"warn,linkerd=info,hickory=error\"   \"debug\"
    proxyInit.iptablesMode    spec.values   \"nft\"                               \"nft\"

unmanaged: {others} other values stay as the installer wrote them
"
    );
    assert_eq!(text(&output), expected);
}

#[test]
fn new_pods_get_a_change_at_once_whatever_the_rollout_says() {
    let line = |spec: Value| {
        let output = ExplainOutput::new(&input(&spec), false);
        let text = text(&output);
        text.lines().find_map(|line| line.strip_prefix("New Pods:")).map(|line| line.trim().to_owned())
    };
    let halted = json!({"policy": "Off", "paused": true, "optIn": "Label"});
    let spec = json!({
        "rollout": halted, "proxy": {"logLevel": "debug", "additionalEnv": [{"name": "A", "value": "SECRET"}]},
        "values": {"heartbeatSchedule": "0 0 * * *", "proxy": {"accessLog": null}},
    });
    let text = line(spec).unwrap();
    assert!(text.starts_with("every Pod that is created from now on gets: proxy.additionalEnv"), "{text}");
    assert!(text.ends_with(r#", proxy.logLevel "debug"; spec.rollout cannot delay it"#), "{text}");
    assert!(!text.contains("SECRET") && !text.contains("heartbeatSchedule"), "{text}");
    // A value of the control plane only, no change, a mode that writes nothing, and an unknown document.
    assert_eq!(line(json!({"values": {"heartbeatSchedule": "0 0 * * *"}})).as_deref(), Some("no change"));
    assert_eq!(line(json!({})).as_deref(), Some("no change"));
    assert_eq!(line(json!({"mode": "Observe", "proxy": {"logLevel": "debug"}})).as_deref(), Some("no change"));
    assert_eq!(line(json!({"mode": "Suspend"})), None);

    let output = ExplainOutput::new(&input(&json!({"proxy": {"logLevel": "debug"}})), false);
    let output = serde_json::to_value(&output).unwrap();
    assert_eq!(output["newPods"], json!({"changes": [{"path": "proxy.logLevel", "value": "debug"}]}));
}

#[test]
fn values_that_the_control_plane_does_not_use_are_a_warning() {
    let spec = json!({"values": {"proxy": {"defaultInboundPolicy": "deny", "logLevel": "debug"}}});
    let output = ExplainOutput::new(&input(&spec), false);
    let line =
        "Warning:        the control plane keeps the installer's values of proxy.defaultInboundPolicy: set the same";
    assert!(text(&output).contains(line), "{}", text(&output));
    let without = serde_json::to_value(ExplainOutput::new(&input(&json!({})), false)).unwrap();
    assert_eq!(without.get("controlPlaneMismatch"), None);
    // The deprecated field has the same effect, and another source.
    let deprecated = text(&ExplainOutput::new(&input(&json!({"proxy": {"defaultInboundPolicy": "deny"}})), false));
    let warning =
        "Warning:        deprecated, still in effect: spec.proxy.defaultInboundPolicy: set the values with Helm";
    assert!(deprecated.contains(line) && deprecated.contains(warning), "{deprecated}");
    let row = "~   proxy.defaultInboundPolicy   spec   \"all-unauthenticated\"   \"deny\"\n";
    assert!(deprecated.contains(row), "{deprecated}");
}

#[test]
fn drift_is_shown_with_its_manager_and_the_restored_value() {
    let live = Some(config_map("kubectl-edit", &edited(&["proxy", "accessLog"], json!("apache"))));
    let output = ExplainOutput::new(&ExplainInput { live, ..input(&json!({})) }, false);
    let text = text(&output);
    assert!(
        text.contains("Verdict:        OutOfSync: 1 value would change, including changes by other field managers\n"),
        "{text}"
    );
    assert!(text.contains("Drift:          kubectl-edit changed proxy.accessLog\n"), "{text}");
    let row = "~   proxy.accessLog   base   \"apache\"   \"\"\n";
    assert!(text.contains(row), "{text}");
    let output = serde_json::to_value(&output).unwrap();
    assert_eq!(output["drift"], json!({"manager": "kubectl-edit", "paths": ["proxy.accessLog"]}));
    assert_eq!(
        output["values"],
        json!([{"path": "proxy.accessLog", "from": "base", "live": "apache", "effective": "", "changes": true}])
    );
}

#[test]
fn drift_is_not_shown_as_reverted_while_the_revert_is_suspended() {
    for (manager, stalled, reason, part) in [
        ("kubectl-edit", "RepeatedDrift", "Drifted", "not reverted for now"),
        ("argocd-controller", "InstallerReverts", "InstallerReverts", "argocd-controller keeps writing"),
    ] {
        let live = Some(config_map(manager, &edited(&["proxy", "accessLog"], json!("apache"))));
        let mut input = ExplainInput { live, ..input(&json!({})) };
        let status = json!({"revisions": {"base": 1}, "conditions": [{
            "type": "Stalled", "status": "True", "reason": stalled, "message": "", "lastTransitionTime": "2026-11-21T10:00:00Z",
        }]});
        let mut config = LinkerdConfig::clone(&input.config);
        config.status = Arc::new(serde_json::from_value(status).unwrap());
        input.config = Arc::new(config);
        let output = ExplainOutput::new(&input, false);
        assert_eq!(output.reason, reason);
        assert!(output.verdict.contains(part), "{}", output.verdict);
    }
}

#[test]
fn drift_that_is_only_reported_would_not_change() {
    let live = Some(config_map("kubectl-edit", &edited(&["proxy", "accessLog"], json!("apache"))));
    let output = ExplainOutput::new(&ExplainInput { live, ..input(&json!({"drift": {"action": "Report"}})) }, false);
    let row = "    proxy.accessLog   base   \"apache\"   \"\"\n";
    assert!(output.reason == "Drifted" && text(&output).contains(row), "{}", text(&output));
}

#[test]
fn every_value_of_the_effective_document_counts_once() {
    let output = ExplainOutput::new(
        &input(&json!({"proxy": {"logLevel": "debug"}, "values": {"proxy": {"await": false}}})),
        true,
    );
    let total = Document::parse(INSTALLED).unwrap().split_injection_hash().0.leaves().count();
    assert_eq!((output.values.len(), output.unmanaged, output.unmanaged_values.len()), (2, total - 2, total - 2));
    assert!(output.unmanaged_values.iter().all(|row| row.from == "base" && !row.changes));
    assert!(text(&output).lines().count() > total);
}

#[test]
fn a_synced_config_map_has_the_message_of_the_status() {
    let text = text(&ExplainOutput::new(&input(&json!({})), false));
    assert!(text.contains("Verdict:        Synced: the ConfigMap holds the declared configuration\n"), "{text}");
    assert!(!text.contains("PATH"), "{text}");
}

#[test]
fn a_missing_injection_hash_is_the_only_change() {
    let input = ExplainInput { live: Some(config_map("helm", INSTALLED)), ..input(&json!({})) };
    let text = text(&ExplainOutput::new(&input, false));
    assert!(
        text.contains("Verdict:        OutOfSync: only the variable LINKERD_CONFIG_HASH would be written\n"),
        "{text}"
    );
}

#[test]
fn a_resource_with_lower_priority_shows_the_winner_and_its_own_changes() {
    let input =
        ExplainInput { winner: Some(config("other", &json!({}))), ..input(&json!({"proxy": {"logLevel": "debug"}})) };
    let output = ExplainOutput::new(&input, false);
    assert!(!output.is_accepted());
    let text = text(&output);
    assert!(
        text.contains("In effect:      no: LinkerdConfig other has a higher priority, is older, or is first by name\n"),
        "{text}"
    );
    assert!(text.contains("1 value would change, if it were in effect\n"), "{text}");
    assert_eq!(serde_json::to_value(&output).unwrap()["winner"], "other");
}

#[test]
fn all_problems_are_listed_and_no_secret_is_shown() {
    let spec = json!({"values": {"proxy": {"LogLevel": "x", "await": 1}, "new": {"keyPEM": "SECRET"}}});
    let output = ExplainOutput::new(&input(&spec), true);
    assert!(!output.is_accepted());
    let text = text(&output);
    assert!(text.contains("Verdict:        Invalid: nothing would be written: 3 problems\n"), "{text}");
    assert!(text.contains("\n  new.keyPEM (not shown): a private key"), "{text}");
    assert!(text.contains("\n  proxy.LogLevel: Linkerd spells"), "{text}");

    let spec =
        json!({"proxy": {"additionalEnv": [{"name": "A", "value": "SECRET"}]}, "values": {"proxy": {"await": "x"}}});
    let mut installed = Document::parse(INSTALLED).unwrap();
    installed.set(&Path::from(&["identity", "issuer", "tls", "keyPEM"][..]), json!("SECRET"));
    let key = Some(config_map("helm", &installed.to_yaml()));
    for (live, verdict, path) in [
        (input(&spec).live, "Invalid", "proxy.additionalEnv"),
        (key, "ValidationFailed", "identity.issuer.tls.keyPEM (not shown)"),
    ] {
        let output = ExplainOutput::new(&ExplainInput { live, ..input(&spec) }, true);
        let text = crate::explain::print::text(&output);
        assert!(text.contains(verdict) && text.contains(path), "{text}");
        assert!(!text.contains("SECRET") && !serde_json::to_string(&output).unwrap().contains("SECRET"), "{text}");
    }
}

#[test]
fn a_verdict_without_an_effective_document_has_no_table() {
    let sentence = |input: &ExplainInput| {
        let output = ExplainOutput::new(input, true);
        assert!(!output.is_accepted() && output.values.is_empty());
        text(&output).lines().find_map(|line| line.strip_prefix("Verdict:")).unwrap().trim().to_owned()
    };
    let missing = ExplainInput { live: None, ..input(&json!({})) };
    assert!(sentence(&missing).starts_with("TargetNotFound: "), "{}", sentence(&missing));
    let broken = ExplainInput { live: Some(config_map("helm", "proxy: [")), ..input(&json!({})) };
    assert!(sentence(&broken).starts_with("InvalidBase: "), "{}", sentence(&broken));
    assert!(sentence(&input(&json!({"mode": "Suspend"}))).starts_with("Suspended: "));
}

#[test]
fn a_broken_document_is_replaced_as_a_whole() {
    let live = Some(config_map("kubectl-edit", "proxy: ["));
    let output = ExplainOutput::new(&ExplainInput { live, ..input(&json!({})) }, false);
    assert_eq!(output.unmanaged, 0);
    assert!(text(&output).contains("Drift:          kubectl-edit changed the document\n"), "{}", text(&output));
}

#[test]
fn the_warnings_of_the_webhook_are_shown() {
    let spec = json!({
        "proxy": {"proxyVersion": "edge-26.1.1"},
        "rollout": {"onFailure": "Continue"},
    });
    let output = ExplainOutput::new(&input(&spec), false);
    assert_eq!(output.warnings.len(), 2, "{:?}", output.warnings);
    let text = text(&output);
    for expected in [
        "\nWarning:        new proxies get edge-26.1.1, which is older than the control plane",
        "\nWarning:        spec.rollout.onFailure is Continue: a configuration that proxies do not start with reaches every selected workload\n",
    ] {
        assert!(text.contains(expected), "{text}");
    }
    assert!(ExplainOutput::new(&input(&json!({})), false).warnings.is_empty());
}
