//! The requirements of Linkerd's chart and injector on values, beyond their types.
//!
//! Each rule prevents a failure that was observed: denied Pods, a crash of the injector, or a proxy that does not
//! start.

use ipnet::IpNet;
use serde_json::Value;

use super::{Document, Path, ProxyContainerValues, ProxyValues, model::GoStruct, problems::Findings, scalar::resolve};
use crate::api::{go_duration, quantity::Quantity};

/// The keys that Linkerd's injector or its template dereferences without a nil check, besides those that our injector
/// requires. Every chart renders them.
const NEEDED: [&[&str]; 7] = [
    // Annotations of Pods override values in this map, so the injector dereferences it.
    &["debugContainer"],
    &["debugContainer", "image"],
    // The template dereferences it.
    &["proxyInit", "xtMountPath"],
    // An absent port is port 0.
    &["proxy", "ports", "admin"],
    &["proxy", "ports", "control"],
    &["proxy", "ports", "inbound"],
    &["proxy", "ports", "outbound"],
];
/// The keys that only some modes or releases dereference. A document may lack them, but no patch may remove them.
const KEPT: [&[&str]; 9] = [
    &["clusterDomain"],
    &["linkerdVersion"],
    &["networkValidator"],
    &["proxy", "control"],
    &["proxy", "image", "name"],
    &["proxy", "startupProbe"],
    &["proxy", "tracing"],
    &["proxy", "uid"],
    &["proxyInit", "iptablesMode"],
];

/// The required form of a string. An empty string counts as absent, except for `OneOfExactly`.
enum Rule {
    OneOf(&'static [&'static str]),
    /// One of these words. The template compares the string even if it is empty.
    OneOfExactly(&'static [&'static str]),
    /// A duration as the proxy parses it: a whole number and a unit.
    ProxyDuration,
    GoDuration,
    /// Ports and port ranges, separated by commas.
    Ports,
    Networks,
    /// A string that a template renders without quotes, where `off` is a bool.
    Unquoted,
}

const POLICIES: &[&str] =
    &["all-authenticated", "all-unauthenticated", "audit", "cluster-authenticated", "cluster-unauthenticated", "deny"];
const PULL_POLICIES: &[&str] = &["Always", "IfNotPresent", "Never"];

const RULES: [(&[&str], Rule); 31] = [
    (&["clusterDomain"], Rule::Unquoted),
    (&["clusterNetworks"], Rule::Networks),
    (&["debugContainer", "image", "pullPolicy"], Rule::OneOf(PULL_POLICIES)),
    (&["identity", "issuer", "clockSkewAllowance"], Rule::GoDuration),
    (&["identity", "issuer", "issuanceLifetime"], Rule::GoDuration),
    (&["identityTrustDomain"], Rule::Unquoted),
    (&["imagePullPolicy"], Rule::OneOf(PULL_POLICIES)),
    (&["networkValidator", "logFormat"], Rule::Unquoted),
    (&["networkValidator", "logLevel"], Rule::Unquoted),
    (&["networkValidator", "timeout"], Rule::ProxyDuration),
    (&["proxy", "control", "streams", "idleTimeout"], Rule::ProxyDuration),
    (&["proxy", "control", "streams", "initialTimeout"], Rule::ProxyDuration),
    (&["proxy", "control", "streams", "lifetime"], Rule::ProxyDuration),
    (&["proxy", "defaultInboundPolicy"], Rule::OneOf(POLICIES)),
    (&["proxy", "image", "name"], Rule::Unquoted),
    (&["proxy", "image", "pullPolicy"], Rule::OneOf(PULL_POLICIES)),
    (&["proxy", "inboundConnectTimeout"], Rule::ProxyDuration),
    (&["proxy", "inboundDiscoveryCacheUnusedTimeout"], Rule::ProxyDuration),
    (&["proxy", "logHTTPHeaders"], Rule::OneOf(&["off", "insecure"])),
    (&["proxy", "opaquePorts"], Rule::Ports),
    (&["proxy", "outboundConnectTimeout"], Rule::ProxyDuration),
    (&["proxy", "outboundDiscoveryCacheUnusedTimeout"], Rule::ProxyDuration),
    (&["proxy", "requireIdentityOnInboundPorts"], Rule::Ports),
    (&["proxy", "shutdownGracePeriod"], Rule::ProxyDuration),
    (&["proxyInit", "ignoreInboundPorts"], Rule::Ports),
    (&["proxyInit", "ignoreOutboundPorts"], Rule::Ports),
    (&["proxyInit", "iptablesMode"], Rule::OneOfExactly(&["nft", "legacy"])),
    (&["proxyInit", "kubeAPIServerPorts"], Rule::Ports),
    (&["proxyInit", "logFormat"], Rule::Unquoted),
    (&["proxyInit", "logLevel"], Rule::Unquoted),
    (&["proxyInit", "skipSubnets"], Rule::Networks),
];

/// Returns the keys that an injector requires.
fn needed() -> impl Iterator<Item = Vec<&'static str>> {
    let top = ProxyValues::REQUIRED.iter().map(|key| vec![*key]);
    let of_proxy = ProxyContainerValues::REQUIRED.iter().map(|key| vec!["proxy", *key]);
    top.chain(of_proxy).chain(NEEDED.map(<[_]>::to_vec))
}

pub(super) fn is_needed(path: &Path) -> bool {
    needed().chain(KEPT.map(<[_]>::to_vec)).any(|keys| path.keys().iter().map(|key| &**key).eq(keys))
}

pub(super) fn check(document: &Document, problems: &mut Findings) {
    let document = DocumentView(document);
    check_needed(&document, problems);
    for (keys, rule) in &RULES {
        if let Some(Value::String(text)) = document.at(keys)
            && let Some(reason) = violation(rule, text)
        {
            problems.add(&Path::from(*keys), document.at(keys), reason);
        }
    }
    check_numbers(&document, problems);
    check_resources(&document, problems);
    check_together(&document, problems);
    check_env(&document, problems);
}

const EMPTY: &str = "must not be empty: otherwise no proxy can start";

struct DocumentView<'a>(&'a Document);

// === impl DocumentView ===

impl<'a> DocumentView<'a> {
    fn at(&self, keys: &[&str]) -> Option<&'a Value> {
        let (first, rest) = keys.split_first()?;
        let top = self.0.as_map().get(*first)?;
        rest.iter().try_fold(top, |value, key| value.get(*key)).filter(|value| !value.is_null())
    }

    fn is_true(&self, keys: &[&str]) -> bool {
        self.at(keys).and_then(Value::as_bool).unwrap_or_default()
    }

    fn number(&self, keys: &[&str]) -> i64 {
        self.at(keys).and_then(Value::as_i64).unwrap_or_default()
    }

    fn is_empty(&self, keys: &[&str]) -> bool {
        self.at(keys).is_none_or(|value| value.as_str() == Some(""))
    }
}

fn check_needed(document: &DocumentView<'_>, problems: &mut Findings) {
    let mut require = |keys: &[&str], reason: &str| {
        let above = keys.split_last().map_or(&[][..], |(_, above)| above);
        // Only the topmost missing map is reported.
        if document.at(keys).is_none() && (above.is_empty() || document.at(above).is_some_and(Value::is_object)) {
            problems.add(&Path::from(keys), None, reason);
        }
    };
    for keys in needed() {
        require(&keys, "is missing: the injector requires it");
    }
    if document.is_true(&["cniEnabled"]) {
        require(&["networkValidator"], "is missing: the injector requires it if cniEnabled is true");
    }
    if document.is_true(&["proxy", "nativeSidecar"]) && document.is_true(&["proxy", "await"]) {
        require(&["proxy", "startupProbe"], "is missing: the injector requires it if proxy.await is true");
    }
    if document.is_empty(&["clusterDomain"]) {
        problems.add(&Path::from(&["clusterDomain"][..]), document.at(&["clusterDomain"]), EMPTY);
    }
    if document.at(&["proxy", "image"]).is_some_and(Value::is_object) {
        let name = ["proxy", "image", "name"];
        if document.is_empty(&name) {
            problems.add(&Path::from(&name[..]), document.at(&name), EMPTY);
        }
        let (version, fallback) = (["proxy", "image", "version"], ["linkerdVersion"]);
        if document.is_empty(&version) && document.is_empty(&fallback) {
            problems.add(&Path::from(&fallback[..]), document.at(&fallback), EMPTY);
        }
    }
}

fn check_numbers(document: &DocumentView<'_>, problems: &mut Findings) {
    for port in ["admin", "control", "inbound", "outbound"] {
        let keys = ["proxy", "ports", port];
        if let Some(Value::Number(number)) = document.at(&keys)
            && number.as_i64().is_some_and(|port| !(1..=65535).contains(&port))
        {
            problems.add(&Path::from(&keys[..]), document.at(&keys), "must be a port from 1 to 65535");
        }
    }
    if !document.is_true(&["cniEnabled"]) {
        for keys in [&["proxy", "uid"][..], &["proxy", "gid"], &["proxyInit", "closeWaitTimeoutSecs"]] {
            if document.number(keys) >= 1_000_000 {
                let reason =
                    "must be less than 1000000: otherwise the injector writes it as 1e+06, which linkerd-init rejects";
                problems.add(&Path::from(keys), document.at(keys), reason);
            }
        }
    }
}

fn check_resources(document: &DocumentView<'_>, problems: &mut Findings) {
    for resource in ["cpu", "memory", "ephemeral-storage"] {
        let request = check_quantity(document, &["proxy", "resources", resource, "request"], problems);
        let limit = check_quantity(document, &["proxy", "resources", resource, "limit"], problems);
        if let Some((request, limit)) = request.zip(limit)
            && request > limit
        {
            let keys = ["proxy", "resources", resource, "request"];
            problems.add(&Path::from(&keys[..]), document.at(&keys), "must not exceed the limit");
        }
    }
}

fn check_quantity(document: &DocumentView<'_>, keys: &[&str], problems: &mut Findings) -> Option<Quantity> {
    let Some(value @ Value::String(text)) = document.at(keys) else { return None };
    // The template skips an empty string.
    if text.is_empty() {
        return None;
    }
    let quantity = text.parse().ok().filter(|quantity: &Quantity| !quantity.is_negative());
    if quantity.is_none() {
        let reason = "must be a quantity that is not negative, such as 100m, 1 or 250Mi";
        problems.add(&Path::from(keys), Some(value), reason);
    }
    quantity
}

fn check_together(document: &DocumentView<'_>, problems: &mut Findings) {
    let keys = ["proxyInit", "closeWaitTimeoutSecs"];
    let init = !document.is_true(&["cniEnabled"]);
    if init && document.number(&keys) != 0 && !document.is_true(&["proxyInit", "runAsRoot"]) {
        problems.add(&Path::from(&keys[..]), document.at(&keys), "requires proxyInit.runAsRoot");
    }
    if document.is_true(&["proxy", "tracing", "enabled"]) {
        for required in [&["endpoint"][..], &["meshIdentity", "namespace"], &["meshIdentity", "serviceAccountName"]] {
            let keys = [&["proxy", "tracing", "collector"], required].concat();
            if document.is_empty(&keys) {
                problems.add(&Path::from(&keys[..]), None, "is missing: proxy.tracing.enabled requires it");
            }
        }
    }
}

fn check_env(document: &DocumentView<'_>, problems: &mut Findings) {
    for list in ["additionalEnv", "experimentalEnv"] {
        let keys = ["proxy", list];
        let nameless = |variable: &Value| variable.get("name").and_then(Value::as_str).is_none_or(str::is_empty);
        if let Some(Value::Array(items)) = document.at(&keys)
            && let Some(at) = items.iter().position(nameless)
        {
            let reason = format!("entry {at} has no name: the API server rejects the Pods");
            problems.add(&Path::from(&keys[..]), document.at(&keys), reason);
        }
    }
}

fn violation(rule: &Rule, text: &str) -> Option<String> {
    if text.is_empty() && !matches!(rule, Rule::OneOfExactly(_)) {
        return None;
    }
    let (fits, wanted) = match rule {
        Rule::OneOf(words) | Rule::OneOfExactly(words) => {
            (words.contains(&text), format!("one of {}", words.join(", ")))
        }
        Rule::ProxyDuration => {
            (is_proxy_duration(text), "a whole number and a unit, such as 100ms, 5s or 1h".to_owned())
        }
        Rule::GoDuration => (go_duration::parse(text).is_some(), "a duration, such as 20s or 24h0m0s".to_owned()),
        Rule::Ports => (text.split(',').all(is_ports), "a comma-separated list of ports and port ranges".to_owned()),
        Rule::Networks => (
            text.trim_matches(',').split(',').all(is_network),
            "a comma-separated list of networks such as 10.0.0.0/8".to_owned(),
        ),
        Rule::Unquoted => {
            let fits = resolve(text).is_some_and(|value| value.is_string()) && !text.chars().any(char::is_control);
            (fits, "a string that YAML does not parse as another type".to_owned())
        }
    };
    (!fits).then(|| format!("must be {wanted}"))
}

/// `^\s*(\d+)(ms|s|m|h|d)?\s*$`; only 0 may lack a unit.
fn is_proxy_duration(text: &str) -> bool {
    let text = text.trim();
    let (number, unit) =
        text.split_at_checked(text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len())).unwrap_or_default();
    match (number.parse::<u64>(), unit) {
        (Ok(number), "") => number == 0,
        (Ok(_), unit) => ["ms", "s", "m", "h", "d"].contains(&unit),
        (Err(_), _) => false,
    }
}

/// Whether an item is a port or a port range. A blank item is ignored.
fn is_ports(item: &str) -> bool {
    let item = item.trim();
    let port = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse::<u16>().ok())?;
    let (low, high) = item.split_once('-').unwrap_or((item, item));
    item.is_empty() || port(low).zip(port(high)).is_some_and(|(low, high)| low <= high)
}

/// Whether Go parses the text as a network. `IpNet` itself would also accept octets with leading zeros, which Go
/// rejects.
fn is_network(item: &str) -> bool {
    let network = |(address, length): (&str, &str)| IpNet::new(address.parse().ok()?, length.parse().ok()?).ok();
    !item.contains('+') && item.split_once('/').and_then(network).is_some()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::testing::{fixture, path};

    /// Returns the paths with problems after these changes of the document.
    fn paths(changes: &[(&str, serde_json::Value)]) -> Vec<String> {
        let mut document = fixture();
        for (at, value) in changes {
            document.set(&path(at), value.clone());
        }
        document.problems().iter().map(|problem| problem.path.to_string()).collect()
    }

    #[test]
    fn valid_values_have_no_problem() {
        for (at, values) in [
            ("proxy.logHTTPHeaders", &[json!("insecure"), json!(""), json!(null)][..]),
            ("proxy.defaultInboundPolicy", &[json!("audit"), json!("deny"), json!("")]),
            ("proxyInit.iptablesMode", &[json!("legacy"), json!(null)]),
            ("clusterNetworks", &[json!("10.0.0.0/8"), json!(",fd00::/8,0.0.0.0/0,"), json!("")]),
            ("proxy.opaquePorts", &[json!(25), json!("25, 8000-9000,"), json!("")]),
            ("proxy.inboundConnectTimeout", &[json!("1d"), json!(0), json!(" 5s ")]),
            ("proxy.ports.admin", &[json!(1), json!(65535)]),
            ("proxy.resources.cpu.limit", &[json!("100m"), json!(1), json!(1.5), json!("-0")]),
            (
                "proxy.resources.memory",
                &[json!({"request": "1Gi", "limit": "1024Mi"}), json!({"limit": "", "request": 5})],
            ),
            (
                "proxy.resources.ephemeral-storage",
                &[json!({"request": "1k", "limit": "1Ki"}), json!({"request": "1Ei"})],
            ),
            ("proxy.gid", &[json!(0), json!(2102)]),
            (
                "proxy.tracing",
                &[
                    json!(null),
                    json!({"enabled": true, "collector": {
                        "endpoint": "a:4317", "meshIdentity": {"namespace": "a", "serviceAccountName": "b"},
                    }}),
                ],
            ),
        ] {
            for value in values {
                assert_eq!(paths(&[(at, value.clone())]), [""; 0], "{at}: {value}");
            }
        }
        assert_eq!(
            paths(&[("proxyInit.closeWaitTimeoutSecs", json!(5)), ("proxyInit.runAsRoot", json!(true))]),
            [""; 0]
        );
        assert_eq!(paths(&[("proxy.uid", json!(1_000_690_000)), ("cniEnabled", json!(true))]), [""; 0]);
    }

    #[test]
    fn invalid_values_are_problems() {
        for (at, values) in [
            ("proxy.logHTTPHeaders", &[json!(false), json!("Off"), json!("on")][..]),
            ("proxy.defaultInboundPolicy", &[json!("allow")]),
            ("proxyInit.iptablesMode", &[json!(""), json!("plain")]),
            (
                "clusterNetworks",
                &[
                    json!("10.0.0.0/33"),
                    json!("10.0.0.0/8, fd00::/8"),
                    json!("10.0.0.0"),
                    json!("10.0.0.0/8,,::/0"),
                    json!("010.0.0.0/8"),
                    json!("10.0.0.0/+8"),
                    json!("::/129"),
                ],
            ),
            ("proxyInit.skipSubnets", &[json!("no")]),
            ("proxy.opaquePorts", &[json!("http"), json!("9-8"), json!("65536"), json!(1.5), json!("+1")]),
            ("proxy.inboundConnectTimeout", &[json!("1.5s"), json!(100), json!("1m30s"), json!("s"), json!("1us")]),
            ("identity.issuer.issuanceLifetime", &[json!("1d")]),
            ("proxy.ports.admin", &[json!(0), json!(65536), json!(null)]),
            ("proxy.resources.memory.request", &[json!("1Xi"), json!("lots"), json!("-1Gi"), json!(-1)]),
            ("proxy.resources.cpu.limit", &[json!("-100m"), json!("-1n")]),
            ("proxy.gid", &[json!(1_000_000)]),
            ("proxyInit.logLevel", &[json!("off"), json!("1"), json!("a\nb")]),
            ("proxyInit.closeWaitTimeoutSecs", &[json!(5), json!(-1)]),
            ("imagePullPolicy", &[json!("always")]),
            ("clusterDomain", &[json!("")]),
            ("linkerdVersion", &[json!("")]),
            ("proxy.additionalEnv", &[json!([{"name": "A"}, {"value": "b"}])]),
            ("proxy.tracing.collector.endpoint", &[]),
        ] {
            for value in values {
                assert_eq!(paths(&[(at, value.clone())]), [at], "{at}: {value}");
            }
        }
        for resource in ["cpu", "memory", "ephemeral-storage"] {
            for (request, limit) in [("101m", "100m"), ("1Gi", "1G"), ("1", "0"), ("9", "8999m")] {
                let at = format!("proxy.resources.{resource}");
                let given = json!({"request": request, "limit": limit});
                assert_eq!(paths(&[(&at, given)]), [format!("{at}.request")], "{request} {limit}");
            }
        }
        let missing = [
            "proxy.tracing.collector.endpoint",
            "proxy.tracing.collector.meshIdentity.namespace",
            "proxy.tracing.collector.meshIdentity.serviceAccountName",
        ];
        assert_eq!(paths(&[("proxy.tracing.enabled", json!(true))]), missing);
    }

    #[test]
    fn a_missing_map_that_the_injector_requires_is_reported_once() {
        for needed in
            ["proxy", "proxy.ports", "proxy.metrics", "proxyInit.xtMountPath", "identity", "debugContainer.image"]
        {
            assert_eq!(paths(&[(needed, json!(null))]), [needed]);
        }
        assert_eq!(paths(&[("proxy.startupProbe", json!(null))]), ["proxy.startupProbe"]);
        assert_eq!(paths(&[("proxy.startupProbe", json!(null)), ("proxy.await", json!(false))]), [""; 0]);
        assert_eq!(paths(&[("networkValidator", json!(null))]), [""; 0]);
        assert_eq!(paths(&[("networkValidator", json!(null)), ("cniEnabled", json!(true))]), ["networkValidator"]);
        let empty = super::Document::default().problems();
        let missing = ["clusterDomain", "debugContainer", "identity", "proxy", "proxyInit"];
        assert_eq!(empty.iter().map(|problem| problem.path.to_string()).collect::<Vec<_>>(), missing);
    }
}
