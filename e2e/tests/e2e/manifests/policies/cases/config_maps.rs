//! The writes to ConfigMaps: the document, the bundle of trust anchors, and the document of a canary.

use http::Method;
use serde_json::{Value, json};

use super::{BUNDLE, PolicyCase, case, core, patch};

pub(super) fn all() -> Vec<PolicyCase> {
    const POLICY: &str = "linkerd-operator-config-map";
    let change = |body: Value| patch(core("configmaps", "linkerd", "linkerd-config"), body);
    let ours = json!({
        "config.linkerd.io/managed-by": "linkerd-operator", "config.linkerd.io/config-hash": "1",
        "config.linkerd.io/base-revision": "1",
    });
    let owner = |kind: &str, version: &str| json!({"apiVersion": version, "kind": kind, "name": "mesh", "uid": kind});
    let foreign = owner("ConfigMap", "v1");
    let refused = [
        json!({"data": {"values": "{}", "global": "other"}}),
        json!({"data": {"kept": null}}),
        json!({"binaryData": {"other": "AAAA"}}),
        json!({"immutable": true}),
        json!({"metadata": {"annotations": {"meta.helm.sh/release-name": "mine"}}}),
        json!({"metadata": {"annotations": {"kept": null}}}),
        json!({"metadata": {"labels": {"kept": null}}}),
        json!({"metadata": {"finalizers": ["example.com/mine"]}}),
        json!({"metadata": {"ownerReferences": []}}),
        json!({"metadata": {"ownerReferences": [foreign, owner("Pod", "v1")]}}),
    ];
    let mut cases = vec![
        change(json!({"metadata": {"annotations": ours}, "data": {"values": "proxy: {}"}})),
        change(json!({"metadata": {"ownerReferences": [foreign]}})),
    ];
    cases.extend(refused.map(|body| change(body).refused_by(POLICY)));
    cases.extend(canary_config_map());
    cases.extend(bundle());
    cases
}

/// The bundle of trust anchors before: two certificates, one with other line ends, text around them, and no line end.
pub(super) const ANCHORS: &str = "# ours\n-----BEGIN CERTIFICATE-----\r\nAAAA \t\r\n BB==\r\n-----END CERTIFICATE-----\r\n\
                       # next\n-----BEGIN CERTIFICATE-----\nCCCC\n-----END CERTIFICATE-----";

/// The operator adds to the bundle of trust anchors, or removes some of them.
fn bundle() -> Vec<PolicyCase> {
    const POLICY: &str = "linkerd-operator-config-map";
    let change = |body: Value| patch(core("configmaps", "linkerd", BUNDLE), body);
    let block = |text: &str| format!("-----BEGIN CERTIFICATE-----\n{text}\n-----END CERTIFICATE-----");
    let whole = |text: String| json!({"data": {"ca-bundle.crt": text}});
    let after = |text: &str| whole(format!("{ANCHORS}{text}"));
    let (first, second, third) = (block("AAAA\nBB=="), block("CCCC"), block("DDDD"));
    let refused = [
        whole(String::new()),
        whole("\n".to_owned()),
        whole(format!("{third}\n{ANCHORS}")),
        after("x\n"),
        after("\nthird\n"),
        after(&third),
        after("\n-----BEGIN CERTIFICATE-----\nDDDD\n"),
        after(&format!("\n{third}{third}")),
        after(&format!("\n{third}\n# more")),
        after("\n-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n"),
        after(&format!("\n{}", block(&"A".repeat(65_536)))),
        whole(third.clone()),
        whole(format!("{first}\n{third}\n")),
        whole(block("AAAA")),
        whole(block("AAAA\nBB==\nCCCC")),
        whole(format!("{first}{second}")),
        whole(format!("# ours\n{first}\n")),
        whole(format!("{second}\n-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n")),
        json!({"data": {"ca-bundle.crt": null}}),
        json!({"data": {"ca-bundle.crt": format!("{ANCHORS}\n{third}"), "values": "{}"}}),
        json!({"data": {"kept": null}}),
    ];
    let permitted = [
        after(&format!("\n{third}")),
        after(&format!("\n{third}\n{}\n", block("AA+/\nA="))),
        whole(first.clone()),
        whole(format!("{}\n", block("AAAABB=="))),
        whole(format!("{second}\n{first}\n")),
    ];
    let values = patch(core("configmaps", "linkerd", "linkerd-config"), json!({"data": {"ca-bundle.crt": "third\n"}}));
    let refused_values = [values.refused_by(POLICY)];
    let refused = refused.map(|body| change(body).refused_by(POLICY));
    permitted.map(change).into_iter().chain(refused_values).chain(refused).collect()
}

fn canary_config_map() -> Vec<PolicyCase> {
    const POLICY: &str = "linkerd-operator-canary-config-map";
    let create = |over: Value| {
        let owner =
            json!({"apiVersion": "config.linkerd.io/v1alpha1", "kind": "LinkerdConfig", "name": "mesh", "uid": "1"});
        let mut body = json!({
            "metadata": {
                "name": "linkerd-config-canary", "ownerReferences": [owner],
                "annotations": {"config.linkerd.io/managed-by": "linkerd-operator"},
            },
            "data": {"values": "proxy: {}"},
        });
        e2e::mesh::merge(&mut body, over);
        case(Method::POST, "/api/v1/namespaces/linkerd/configmaps".to_owned(), Some(body))
    };
    let refused = [
        json!({"metadata": {"name": "another"}}),
        json!({"metadata": {"annotations": {"meta.helm.sh/release-name": "mine"}}}),
        json!({"metadata": {"labels": {"linkerd.io/control-plane-ns": "linkerd"}}}),
        json!({"metadata": {"finalizers": ["example.com/mine"]}}),
        json!({"metadata": {"ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": "web", "uid": "1"}]}}),
        json!({"data": {"other": "text"}}),
    ];
    let mut cases = vec![create(json!({}))];
    cases.extend(refused.map(|over| create(over).refused_by(POLICY)));
    cases
}
