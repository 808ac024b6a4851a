//! The values that Linkerd's control plane reads from its own flags, and not from the ConfigMap. Pure.
//!
//! In: the installer's document and the document that proxies get, or a patch. Out: the paths at which the two
//! documents differ, or the paths of the patch that no proxy gets. Always holds: an installer renders the flags and its
//! document from the same values, so the control plane uses the values of the installer's document.

use serde_json::{Map, Value};

use super::{
    Document, Path,
    model::{GoStruct, IdentityValues, ProxyContainerValues, ProxyInitValues, ProxyValues},
    unknown_keys::OF_CHART,
};

const TRUST_DOMAIN: &[&str] = &["identityTrustDomain"];
const CLUSTER_DOMAIN: &[&str] = &["clusterDomain"];
/// The values that shape an injected Pod, and are also flags of the destination, policy or identity controller.
const FLAGS: [&[&str]; 6] = [
    CLUSTER_DOMAIN,
    &["clusterNetworks"],
    &["disableIPv6"],
    TRUST_DOMAIN,
    &["proxy", "defaultInboundPolicy"],
    &["proxy", "opaquePorts"],
];

/// Returns the paths at which proxies get another value than the control plane uses.
pub fn control_plane_mismatch(installed: &Document, proxies: &Document) -> Vec<Path> {
    let differs = |keys: &&[&str]| value(installed, keys) != value(proxies, keys);
    FLAGS.into_iter().filter(differs).map(Path::from).collect()
}

/// Returns the topmost keys of a patch that only the installer reads, to render the control plane, sorted. A null
/// removes a key and is not among them.
pub fn control_plane_keys(patch: &Map<String, Value>) -> Vec<Path> {
    let mut found = Vec::new();
    for (key, value) in patch.iter().filter(|(_, value)| !value.is_null()) {
        let top = Path::default().with(key);
        if ProxyValues::CONTROL_PLANE.contains(&key.as_str()) || OF_CHART.contains(&key.as_str()) {
            found.push(top);
            continue;
        }
        let is_of_control_plane = |below: &str| match key.as_str() {
            // Its unknown keys belong to the control plane, too.
            "identity" => !IdentityValues::INJECTED.contains(&below),
            "proxy" => ProxyContainerValues::CONTROL_PLANE.contains(&below),
            "proxyInit" => ProxyInitValues::CONTROL_PLANE.contains(&below),
            _ => false,
        };
        let below = value.as_object().into_iter().flatten().filter(|(_, value)| !value.is_null());
        found.extend(below.filter(|(below, _)| is_of_control_plane(below)).map(|(below, _)| top.with(below)));
    }
    found.sort();
    found
}

/// Returns a value as Linkerd uses it: a zero is the same as an absent value, and the trust domain is by default the
/// cluster domain.
fn value<'a>(document: &'a Document, keys: &[&str]) -> Option<&'a Value> {
    let is_set = |value: &&Value| !matches!(value, Value::Null | Value::Bool(false)) && value.as_str() != Some("");
    let found = document.get(&Path::from(keys)).filter(is_set);
    if keys == TRUST_DOMAIN { found.or_else(|| value(document, CLUSTER_DOMAIN)) } else { found }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn between(installed: Value, proxies: Value) -> Vec<String> {
        let [installed, proxies] = [installed, proxies].map(|document| Document::parse(&document.to_string()).unwrap());
        control_plane_mismatch(&installed, &proxies).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn only_values_that_are_flags_of_the_control_plane_are_a_mismatch() {
        let installed = json!({"clusterDomain": "a", "disableIPv6": true, "proxy": {"opaquePorts": "25", "uid": 1}});
        let same = between(installed.clone(), installed.clone());
        assert_eq!(same, [""; 0]);
        let others = json!({"clusterDomain": "a", "disableIPv6": true, "linkerdVersion": "v2",
            "proxy": {"opaquePorts": "25", "uid": 2, "logLevel": "debug"}});
        assert_eq!(between(installed.clone(), others), [""; 0]);
        let proxies = json!({"clusterDomain": "a", "clusterNetworks": "10.0.0.0/8", "identityTrustDomain": "b",
            "proxy": {"opaquePorts": "25,3306", "defaultInboundPolicy": "deny"}});
        let all = [
            "clusterNetworks",
            "disableIPv6",
            "identityTrustDomain",
            "proxy.defaultInboundPolicy",
            "proxy.opaquePorts",
        ];
        assert_eq!(between(installed, proxies), all);
    }

    #[test]
    fn the_default_of_the_trust_domain_is_the_cluster_domain() {
        let explicit = json!({"clusterDomain": "a", "identityTrustDomain": "a"});
        assert_eq!(between(json!({"clusterDomain": "a", "identityTrustDomain": ""}), explicit), [""; 0]);
        let moved = json!({"clusterDomain": "b"});
        assert_eq!(between(json!({"clusterDomain": "a"}), moved), ["clusterDomain", "identityTrustDomain"]);
    }

    #[test]
    fn a_key_that_no_proxy_gets_is_found_and_one_that_a_proxy_gets_is_not() {
        let found = |patch: Value| {
            let keys = control_plane_keys(patch.as_object().unwrap());
            keys.iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        let installed = Document::parse(include_str!("testdata/installed.yaml")).unwrap();
        let injected = found(Value::Object(installed.injection_subset().as_map().clone()));
        assert_eq!(injected, [""; 0]);
        let both = json!({"clusterDomain": "a", "proxy": {"defaultInboundPolicy": "deny"}, "tolerations": null});
        assert_eq!(found(both), [""; 0], "the control plane and proxies");
        let patch = json!({
            "identity": {"issuer": {}, "new": 1, "kubeAPI": null, "serviceAccountTokenProjection": true},
            "tolerations": [], "runtimeClassName": "a", "spValidator": {"a": {"b": 1}}, "new": 1,
        });
        assert_eq!(found(patch), ["identity.issuer", "identity.new", "runtimeClassName", "spValidator", "tolerations"]);
    }
}
