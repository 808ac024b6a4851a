//! What is told of a resource, a ConfigMap and a base, as text and as JSON.

use std::sync::Arc;

use serde_json::json;

use super::*;
use crate::{
    api,
    cli::explain::print::text,
    cluster::{
        Problems, Projected,
        kinds::{config_map::ConfigMap, linkerd_config::LinkerdConfig},
    },
    linkerd_config::base::Base,
};

/// What the chart renders, as far as Linkerd cannot do without.
const INSTALLED: &str = include_str!("../../linkerd_config/values/fixture.yaml");
const BUNDLE: &str = "-----BEGIN CERTIFICATE-----\nMIIA\n-----END CERTIFICATE-----\n";

pub(in crate::cli::explain) fn config(name: &str, spec: &Value) -> Arc<LinkerdConfig> {
    let object: api::LinkerdConfig = serde_json::from_value(json!({
        "apiVersion": "config.linkerd.io/v1alpha1", "kind": "LinkerdConfig",
        "metadata": {"name": name, "uid": name}, "spec": spec, "status": {"revisions": {"base": 1}},
    }))
    .unwrap();
    Arc::new(LinkerdConfig::project(object, &mut Problems::default()))
}

fn config_map(manager: &str, values: &str) -> ConfigMap {
    let object = serde_json::from_value(json!({
        "metadata": {"name": "linkerd-config", "namespace": "linkerd", "managedFields": [
            {"manager": manager, "operation": "Update", "fieldsV1": {"f:data": {"f:values": {}}}},
        ]},
        "data": {"values": values},
    }));
    ConfigMap::project(object.unwrap(), &mut Problems::default())
}

/// In effect, over what was installed and is still there.
pub(in crate::cli::explain) fn found(spec: &Value) -> Found {
    let config = config("mesh", spec);
    Found {
        winner: Some(Arc::clone(&config)),
        config,
        applied: true,
        live: Some(config_map("helm", &marked(&Document::parse(INSTALLED).unwrap()))),
        base: Ok(Some(Base::new(1, INSTALLED, None).unwrap())),
        bundle: None,
        good: Vec::new(),
        workloads: None,
    }
}

fn edited(keys: &[&str], value: Value) -> String {
    let mut document = Document::parse(INSTALLED).unwrap();
    document.set(&Path::from(keys), value);
    marked(&document)
}

/// As it is once we have written it.
fn marked(document: &Document) -> String {
    document.marked(&document.injection_hash().to_string()).to_yaml()
}

#[test]
fn what_would_change_is_marked_and_each_value_says_where_it_is_from() {
    let spec = json!({
        "proxy": {"logLevel": "debug", "proxyImage": {"name": "cr.l5d.io/linkerd/proxy"}},
        "values": {"proxyInit": {"iptablesMode": "nft"}, "heartbeatSchedule": null, "new": {"a": "x".repeat(99)}},
        "global": {"omitWebhookSideEffects": true},
    });
    let found = Found { bundle: Some(BUNDLE.into()), ..found(&spec) };
    let report = Report::of(&found, false);
    assert!(report.is_accepted());
    let others = Document::parse(INSTALLED).unwrap().unmarked().0.leaves().count() - 5;
    let expected = format!(
        "\
LinkerdConfig:  mesh
Target:         ConfigMap linkerd/linkerd-config
Mode:           Enforce
In effect:      yes
Base:           revision 2, which would be kept first
Verdict:        OutOfSync: 4 values would change
Deprecated:     spec.global.omitWebhookSideEffects: without effect

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
    assert_eq!(text(&report), expected);
}

#[test]
fn what_others_changed_is_named_with_who_did_it_and_where_it_goes_back_to() {
    let live = Some(config_map("kubectl-edit", &edited(&["proxy", "accessLog"], json!("apache"))));
    let report = Report::of(&Found { live, ..found(&json!({})) }, false);
    let text = text(&report);
    assert!(
        text.contains("Verdict:        OutOfSync: 1 value would change, what others changed among them\n"),
        "{text}"
    );
    assert!(text.contains("Drift:          kubectl-edit changed proxy.accessLog\n"), "{text}");
    let row = "~   proxy.accessLog   base   \"apache\"   \"\"\n";
    assert!(text.contains(row), "{text}");
    let report = serde_json::to_value(&report).unwrap();
    assert_eq!(report["drift"], json!({"manager": "kubectl-edit", "paths": ["proxy.accessLog"]}));
    assert_eq!(
        report["values"],
        json!([{"path": "proxy.accessLog", "from": "base", "live": "apache", "effective": "", "changes": true}])
    );
}

#[test]
fn what_the_operator_leaves_for_a_while_is_not_said_to_be_reverted() {
    let live = Some(config_map("kubectl-edit", &edited(&["proxy", "accessLog"], json!("apache"))));
    let mut found = Found { live, ..found(&json!({})) };
    let status = json!({"revisions": {"base": 1}, "conditions": [{
        "type": "Stalled", "status": "True", "reason": "RepeatedDrift", "message": "", "lastTransitionTime": "2026-11-21T10:00:00Z",
    }]});
    let mut config = LinkerdConfig::clone(&found.config);
    config.status = Arc::new(serde_json::from_value(status).unwrap());
    found.config = Arc::new(config);
    let report = Report::of(&found, false);
    assert_eq!((report.reason, report.values.len()), ("Drifted", 1));
    assert!(report.verdict.contains("again and again"), "{}", report.verdict);
}

#[test]
fn what_is_only_reported_would_not_change() {
    let live = Some(config_map("kubectl-edit", &edited(&["proxy", "accessLog"], json!("apache"))));
    let report = Report::of(&Found { live, ..found(&json!({"drift": {"action": "Report"}})) }, false);
    let row = "    proxy.accessLog   base   \"apache\"   \"\"\n";
    assert!(report.reason == "Drifted" && text(&report).contains(row), "{}", text(&report));
}

#[test]
fn every_value_of_the_effective_document_counts_once() {
    let report =
        Report::of(&found(&json!({"proxy": {"logLevel": "debug"}, "values": {"proxy": {"await": false}}})), true);
    let total = Document::parse(INSTALLED).unwrap().unmarked().0.leaves().count();
    assert_eq!((report.values.len(), report.unmanaged, report.unmanaged_values.len()), (2, total - 2, total - 2));
    assert!(report.unmanaged_values.iter().all(|row| row.from == "base" && !row.changes));
    assert!(text(&report).lines().count() > total);
}

#[test]
fn nothing_to_do_is_said_as_the_status_says_it() {
    let text = text(&Report::of(&found(&json!({})), false));
    assert!(text.contains("Verdict:        Synced: the ConfigMap holds what is declared\n"), "{text}");
    assert!(!text.contains("PATH"), "{text}");
}

#[test]
fn that_only_the_marker_is_missing_is_said() {
    let found = Found { live: Some(config_map("helm", INSTALLED)), ..found(&json!({})) };
    let text = text(&Report::of(&found, false));
    assert!(
        text.contains("Verdict:        OutOfSync: only the marker LINKERD_CONFIG_HASH would be written\n"),
        "{text}"
    );
}

#[test]
fn a_loser_is_told_who_is_in_effect_and_what_it_would_do() {
    let found = Found { winner: Some(config("other", &json!({}))), ..found(&json!({"proxy": {"logLevel": "debug"}})) };
    let report = Report::of(&found, false);
    assert!(!report.is_accepted());
    let text = text(&report);
    assert!(text.contains("In effect:      no: LinkerdConfig other has a higher priority, or is older\n"), "{text}");
    assert!(text.contains("1 value would change, if it were in effect\n"), "{text}");
    assert_eq!(serde_json::to_value(&report).unwrap()["winner"], "other");
}

#[test]
fn all_problems_are_listed_and_no_secret_is_shown() {
    let spec = json!({"values": {"proxy": {"LogLevel": "x", "await": 1}, "new": {"keyPEM": "SECRET"}}});
    let report = Report::of(&found(&spec), true);
    assert!(!report.is_accepted());
    let text = text(&report);
    assert!(text.contains("Verdict:        Invalid: nothing would be written: 3 problems\nProblems:\n"), "{text}");
    assert!(text.contains("\n  new.keyPEM (not shown): a private key"), "{text}");
    assert!(text.contains("\n  proxy.LogLevel: Linkerd spells"), "{text}");

    let spec =
        json!({"proxy": {"additionalEnv": [{"name": "A", "value": "SECRET"}]}, "values": {"proxy": {"await": "x"}}});
    let key = Some(config_map("helm", &edited(&["identity", "issuer", "tls", "keyPEM"], json!("SECRET"))));
    for (live, verdict, path) in [
        (found(&spec).live, "Invalid", "proxy.additionalEnv"),
        (key, "ValidationFailed", "identity.issuer.tls.keyPEM (not shown)"),
    ] {
        let report = Report::of(&Found { live, ..found(&spec) }, true);
        let text = super::super::print::text(&report);
        assert!(text.contains(verdict) && text.contains(path), "{text}");
        assert!(!text.contains("SECRET") && !serde_json::to_string(&report).unwrap().contains("SECRET"), "{text}");
    }
}

#[test]
fn what_cannot_be_followed_has_no_table() {
    let sentence = |found: &Found| {
        let report = Report::of(found, true);
        assert!(!report.is_accepted() && report.values.is_empty());
        text(&report).lines().find_map(|line| line.strip_prefix("Verdict:")).unwrap().trim().to_owned()
    };
    let missing = Found { live: None, ..found(&json!({})) };
    assert!(sentence(&missing).starts_with("TargetNotFound: "), "{}", sentence(&missing));
    let broken = Found { live: Some(config_map("helm", "proxy: [")), ..found(&json!({})) };
    assert!(sentence(&broken).starts_with("InvalidBase: "), "{}", sentence(&broken));
    assert!(sentence(&found(&json!({"mode": "Suspend"}))).starts_with("Suspended: "));
}

#[test]
fn a_broken_document_that_is_put_right_is_all_new() {
    let live = Some(config_map("kubectl-edit", "proxy: ["));
    let report = Report::of(&Found { live, ..found(&json!({})) }, false);
    assert_eq!(report.unmanaged, 0);
    assert!(text(&report).contains("Drift:          kubectl-edit changed the document\n"), "{}", text(&report));
}
