use rcgen::{CertificateParams, KeyPair, date_time_ymd};
use serde_json::Value;

use super::*;
use crate::{
    cluster::{Problems, Projected, kinds::config_map::ConfigMap},
    linkerd_config::{
        plan::{PlanInput, plan},
        status::conditions::verdict_condition,
    },
};

const INSTALLED: &str = include_str!("../../values/testdata/installed.yaml");

fn now() -> Timestamp {
    "2026-11-25T12:00:00Z".parse().unwrap()
}

fn spec(spec: &Value) -> LinkerdConfigSpec {
    serde_json::from_value(spec.clone()).unwrap()
}

fn installed(changes: &Value) -> Document {
    let mut document = Document::parse(INSTALLED).unwrap();
    document.merge(changes.as_object().unwrap());
    document
}

/// Returns the review of a new spec over the installed document with these changes.
fn over(changes: &Value, declared: &Value) -> SpecReview {
    let document = installed(changes);
    review(&spec(declared), None, InstalledLinkerd { document: Some(&document), bundle: None }, now())
}

fn unknown(declared: &Value) -> SpecReview {
    review(&spec(declared), None, InstalledLinkerd { document: None, bundle: None }, now())
}

fn denied(message: &str) -> SpecReview {
    SpecReview { denied: Some(message.to_owned()), warnings: Vec::new() }
}

fn warned(warnings: &[&str]) -> SpecReview {
    SpecReview { denied: None, warnings: warnings.iter().map(|text| (*text).to_owned()).collect() }
}

/// A certificate that expires on this day.
fn certificate(year: i32, month: u8, day: u8) -> String {
    let mut params = CertificateParams::new(vec!["root".to_owned()]).unwrap();
    params.not_after = date_time_ymd(year, month, day);
    params.self_signed(&KeyPair::generate().unwrap()).unwrap().pem()
}

#[test]
fn a_resource_with_defaults_has_neither_problems_nor_warnings() {
    assert_eq!(unknown(&json!({})), SpecReview::default());
    assert_eq!(over(&json!({}), &json!({"proxy": {"logLevel": "debug"}})), SpecReview::default());
    assert_eq!(permissive_document().problems(), []);
}

#[test]
fn what_the_resource_declares_wrongly_is_denied_whatever_is_installed() {
    for (declared, message) in [
        (
            json!({"values": {"proxy": {"await": 1}}}),
            "proxy.await (1): must be true or false: otherwise the injector denies every Pod",
        ),
        (
            json!({"values": {"proxy": {"LogLevel": "debug"}}}),
            "proxy.LogLevel: Linkerd spells this key \"logLevel\" and ignores case",
        ),
        (
            json!({"values": {"clusterNetworks": "10.0.0.0"}}),
            "clusterNetworks (\"10.0.0.0\"): must be a comma-separated list of networks such as 10.0.0.0/8",
        ),
        (
            json!({"values": {"proxyInit": {"iptablesMode": "ebpf"}}}),
            "proxyInit.iptablesMode (\"ebpf\"): must be one of nft, legacy",
        ),
        (
            json!({"values": {"identity": {"issuer": {"tls": {"keyPEM": "x"}}}}}),
            "identity.issuer.tls.keyPEM (not shown): a private key must not be stored in a ConfigMap, which many users may \
             read",
        ),
        (
            json!({"values": {"proxy": {"ports": null}}}),
            "proxy.ports (null): must not be removed: the injector requires it",
        ),
        (
            json!({"values": {"proxy": {"logLevel": "debug"}}, "proxy": {"logLevel": "info"}}),
            "proxy.logLevel: spec.values and a field of the resource both set it (proxy.logLevel): keep one of them",
        ),
        (
            json!({"rollout": {"window": {"timeZone": "Europe/Nowhere"}}}),
            "spec.rollout.window: timeZone: unknown time zone \"Europe/Nowhere\"",
        ),
        (
            json!({"rollout": {"window": {"allow": [{"cron": "0 25 * * *", "duration": "1h"}]}}}),
            "spec.rollout.window: allow[0].cron: ",
        ),
        (
            json!({"global": {"identityContext": {"trustAnchorsPEM": "-----BEGIN CERTIFICATE-----\nx"}}}),
            "spec.global.identityContext.trustAnchorsPEM: a section has no end: a certificate is incomplete",
        ),
        (
            json!({"global": {"identityContext":
                {"trustAnchorsPEM": "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"}}}),
            "spec.global.identityContext.trustAnchorsPEM: certificate 1 of 1 is not a valid X.509 certificate: \
             linkerd2-proxy would skip it, but linkerd2-proxy-identity, which starts the proxy, ends with an error. \
             Remove or replace it",
        ),
    ] {
        for review in [unknown(&declared), over(&json!({}), &declared)] {
            let found = review.denied.unwrap_or_default();
            let is_expected = if message.ends_with(": ") { found.starts_with(message) } else { found == message };
            assert!(is_expected, "{declared}: {found}");
        }
    }
}

#[test]
fn a_denial_has_the_message_of_the_condition() {
    let declared = json!({"values": {"proxy": {"await": 1, "nativeSidecar": "x"}, "clusterNetworks": "all"}});
    let object = json!({"metadata": {"name": "linkerd-config", "namespace": "linkerd"}, "data": {"values": INSTALLED}});
    let live = ConfigMap::project(serde_json::from_value(object).unwrap(), &mut Problems::default());
    let document = Document::read(INSTALLED);
    let plan = plan(&PlanInput {
        spec: &spec(&declared),
        live: Some(&live),
        document: Some(&document),
        base: None,
        bundle: None,
        first_time: true,
        revert_suspended: false,
        failed: &[],
        predecessor: None,
        holds_back: false,
    });
    let condition = verdict_condition(&live.key, &plan.verdict, None);
    assert_eq!(condition.reason.as_str(), "Invalid");
    assert_eq!(unknown(&declared), denied(&condition.message));
}

#[test]
fn what_depends_on_the_installers_values_is_a_warning() {
    for (changes, declared, problem) in [
        (
            json!({}),
            json!({"values": {"proxyInit": {"closeWaitTimeoutSecs": 30}}}),
            "proxyInit.closeWaitTimeoutSecs (30): requires proxyInit.runAsRoot",
        ),
        (
            json!({"proxy": {"resources": {"cpu": {"limit": "100m"}}}}),
            json!({"proxy": {"resource": {"requests": {"cpu": "1"}}}}),
            "proxy.resources.cpu.request (\"1\"): must not exceed the limit",
        ),
        (
            json!({}),
            json!({"global": {"identityContext": {"trustAnchorsPolicy": "Verify", "trustAnchorsPEM": certificate(2036, 1, 1)}}}),
            "spec.global.identityContext.trustAnchorsPEM: it cannot be verified: ConfigMap linkerd-identity-trust-roots is \
             missing or has no key ca-bundle.crt in data",
        ),
    ] {
        let expected = format!("not accepted for now: {problem}");
        assert_eq!(over(&changes, &declared), warned(&[&expected]), "{declared}");
        assert_eq!(unknown(&declared), SpecReview::default(), "{declared}");
    }
    let fine = json!({"values": {"proxyInit": {"closeWaitTimeoutSecs": 30}}});
    assert_eq!(over(&json!({"proxyInit": {"runAsRoot": true}}), &fine), SpecReview::default());
    let own = json!({"values": {"proxyInit": {"closeWaitTimeoutSecs": 30, "runAsRoot": false}, "cniEnabled": false}});
    let message = "proxyInit.closeWaitTimeoutSecs (30): requires proxyInit.runAsRoot";
    assert_eq!(over(&json!({"proxyInit": {"runAsRoot": true}}), &own), denied(message));
}

#[test]
fn a_version_that_differs_from_the_control_plane_is_a_warning() {
    let pinned = |version: &str| over(&json!({}), &json!({"proxy": {"proxyVersion": version}})).warnings;
    let old = pinned("edge-26.1.1");
    assert_eq!(old.len(), 1, "{old:?}");
    assert!(old[0].starts_with("new proxies get edge-26.1.1, which is older than the control plane"), "{old:?}");
    assert!(pinned("edge-27.1.1")[0].contains("which is newer than the control plane"));
    let refused = pinned("edge-19.12.3");
    assert!(
        refused[0].starts_with("not accepted for now: proxy.image.version (edge-19.12.3): it is older than"),
        "{refused:?}"
    );
    let domain = over(&json!({}), &json!({"global": {"clusterDomain": "example.org"}}));
    assert_eq!(
        domain,
        warned(&[
            "the control plane keeps the installer's values of clusterDomain: set the same values with Helm, or remove them",
            "deprecated, still in effect: spec.global.clusterDomain: set the values with Helm or spec.values",
        ])
    );
}

#[test]
fn an_update_is_not_denied_for_what_was_wrong_before() {
    let (bad, worse) =
        (json!({"values": {"proxy": {"await": 1}}}), json!({"values": {"proxy": {"await": 1, "uid": "x"}}}));
    let after = |before: &Value, after: &Value| {
        review(&spec(after), Some(&spec(before)), InstalledLinkerd { document: None, bundle: None }, now())
    };
    assert_eq!(after(&bad, &bad), SpecReview::default());
    let mut other = bad.clone();
    other["priority"] = json!(1);
    assert_eq!(
        after(&bad, &other),
        warned(&[
            "not accepted for now: proxy.await (1): must be true or false: otherwise the injector denies every Pod"
        ])
    );
    assert!(after(&bad, &worse).denied.is_some());
    assert!(after(&json!({}), &bad).denied.is_some());
    assert_eq!(after(&bad, &json!({})), SpecReview::default());
}

#[test]
fn each_dangerous_setting_has_a_warning() {
    for (declared, expected) in [
        (json!({"rollout": {"onFailure": "Continue", "maxFailures": "100%"}}), "spec.rollout.onFailure is Continue: "),
        (json!({"rollout": {"maxFailures": "100%"}}), "spec.rollout.maxFailures is 100%: "),
        (json!({"rollout": {"maxConcurrent": "100%"}}), "spec.rollout.maxConcurrent is 100%: "),
        (json!({"rollout": {"optIn": "All"}}), "spec.rollout.optIn is All, without a window or a selector: "),
        (json!({"rollout": {"respectPDB": false}}), "spec.rollout.respectPDB is false: "),
        (json!({"rollout": {"namespaceSelector": {}}}), "spec.rollout.namespaceSelector is empty: "),
        (json!({"rollout": {"workloadSelector": {"matchLabels": {}}}}), "spec.rollout.workloadSelector is empty: "),
        (
            json!({"rollout": {"window": {"allow": [{"cron": "0 0 30 2 *", "duration": "1h"}]}}}),
            "spec.rollout.window: no restart can begin within the next five years",
        ),
        (
            json!({"rollout": {"window": {"deny": [{"from": "2026-01-01T00:00:00Z", "to": "9999-01-01T00:00:00Z"}]}}}),
            "spec.rollout.window: no restart can begin within the next five years",
        ),
        (
            json!({"rollout": {"window": {"deny": [{"from": "2026-01-01T00:00:00Z", "to": "2027-06-01T00:00:00Z"}]}}}),
            "spec.rollout.window: no restart can begin before 2027-06-01T00:00:00Z",
        ),
        (json!({"injectorSync": {"method": "Delay"}}), "spec.injectorSync.method is Delay: "),
        (json!({"injectorSync": {"onTimeout": "Proceed"}}), "spec.injectorSync.onTimeout is Proceed: "),
        (json!({"drift": {"trustedManagers": ["helm", "*"]}}), "spec.drift.trustedManagers has *: "),
        (
            json!({"values": {"proxy": {"logHTTPHeaders": "insecure"}}}),
            "spec.values: proxy.logHTTPHeaders is insecure: ",
        ),
        (
            json!({"values": {"proxy": {"defaultInboundPolicy": "deny"}}}),
            "spec.values: proxy.defaultInboundPolicy is deny: ",
        ),
        (
            json!({"values": {"identity": {"serviceAccountTokenProjection": false}}}),
            "spec.values: identity.serviceAccountTokenProjection is false: ",
        ),
        (
            json!({"global": {"identityContext": {"trustAnchorsPEM": certificate(2026, 12, 1)}}}),
            "a trust anchor in spec.global.identityContext.trustAnchorsPEM expires at 2026-12-01T00:00:00Z: ",
        ),
        (
            json!({"global": {"identityContext": {"trustAnchorsPEM": certificate(2026, 11, 1)}}}),
            "a trust anchor in spec.global.identityContext.trustAnchorsPEM expired at 2026-11-01T00:00:00Z: ",
        ),
        (
            json!({"values": {"proxy": {"resources": {"memory": {"limit": "250"}}}}}),
            "proxy.resources.memory.limit (\"250\"): is 250 bytes: did you mean 250Mi?",
        ),
        (
            json!({"proxy": {"resource": {"limits": {"cpu": "100M"}}}}),
            "proxy.resources.cpu.limit (\"100M\"): is 100000000 cores: did you mean 100m?",
        ),
        (
            json!({"proxy": {"logLevel": "verbose"}}),
            "proxy.logLevel (\"verbose\"): must be a filter such as warn,linkerd=info (the proxy takes any other word for",
        ),
        (json!({"global": {"configMap": "linkerd-config"}}), "deprecated, without effect: spec.global.configMap"),
        (
            json!({"proxy": {"opaquePorts": ["25"]}}),
            "deprecated, still in effect: spec.proxy.opaquePorts: set the values with Helm or spec.values",
        ),
    ] {
        let SpecReview { denied, warnings } = unknown(&declared);
        assert_eq!((denied, warnings.len()), (None, 1), "{declared}: {warnings:?}");
        assert!(warnings[0].starts_with(expected) && warnings[0].len() <= 250, "{warnings:?}");
    }
}

#[test]
fn settings_that_limit_a_danger_have_no_warning() {
    for declared in [
        json!({"rollout": {"optIn": "All", "window": {"allow": [{"cron": "0 2 * * *", "duration": "4h"}]}}}),
        json!({"rollout": {"optIn": "All", "namespaceSelector": {"matchLabels": {"a": "b"}}}}),
        json!({"rollout": {"policy": "Off", "optIn": "All", "onFailure": "Continue", "respectPDB": false}}),
        json!({"rollout": {"window": {"deny": [{"from": "2026-12-20T00:00:00Z", "to": "2027-01-02T00:00:00Z"}]}}}),
        json!({"rollout": {"maxFailures": "50%", "maxConcurrent": "99%"}}),
        json!({"values": {"proxy": {"logHTTPHeaders": "off", "defaultInboundPolicy": "all-authenticated"}}}),
        json!({"global": {"identityContext": {"trustAnchorsPEM": certificate(2036, 1, 1)}}}),
    ] {
        assert_eq!(unknown(&declared), SpecReview::default(), "{declared}");
    }
}

#[test]
fn the_bundle_of_the_mesh_that_expires_is_a_warning() {
    let bundle = certificate(2026, 12, 24);
    let installed = InstalledLinkerd { document: None, bundle: Some(&bundle) };
    let warnings = review(&spec(&json!({})), None, installed, now()).warnings;
    assert_eq!(warnings.len(), 1, "{warnings:?}");
    assert!(
        warnings[0].starts_with("a trust anchor in the ConfigMap linkerd-identity-trust-roots expires at 2026-12-24")
    );
}
