//! The requirements of the programs that read the values, beyond the types of the values.
//!
//! Each rule prevents a failure that was observed: denied or rejected Pods, a crash of the injector, a proxy that does
//! not start, or a value without effect. Always holds: one table has the rules, for the LinkerdConfig controller, its
//! webhook and the injector; each row says which Pods cannot run if it is violated.

pub(super) mod forms;
pub(super) mod mounts;
mod needed;
mod pod;
pub(super) mod quantities;
pub(super) mod security_context;
pub(super) mod strings;
#[cfg(test)]
mod tests;
pub(super) mod variables;

use std::borrow::Cow;

use serde_json::Value;

use self::Breaks::{AllPods, CniPods, DualStackPods, InitPods, Nothing, Others, UnversionedPods};
use super::{Document, Path, model::GoStruct, problems::Findings};
use forms::Form;
pub(super) use needed::is_needed;

/// The Pods or programs that do not work if a value violates a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Breaks {
    /// The API server rejects every injected Pod, or its proxy does not start.
    AllPods,
    /// The same for Pods with linkerd-init: those without the CNI plugin.
    InitPods,
    /// The same for Pods with linkerd-init that has rules for IPv6, too.
    DualStackPods,
    /// The same for Pods with the network validator: those with the CNI plugin.
    CniPods,
    /// The same for Pods whose proxy has the version of Linkerd, because its image names none.
    UnversionedPods,
    /// Linkerd's own injector or control plane, Pods with a debug container, or what the author meant.
    Others,
    /// The value has no effect.
    Nothing,
}

const POLICIES: &[&str] =
    &["all-authenticated", "all-unauthenticated", "audit", "cluster-authenticated", "cluster-unauthenticated", "deny"];
const PULL_POLICIES: &[&str] = &["Always", "IfNotPresent", "Never"];
const LOG_FORMATS: &[&str] = &["plain", "json"];
/// The levels that linkerd-init parses.
const INIT_LOG_LEVELS: &[&str] = &["panic", "fatal", "error", "warn", "warning", "info", "debug", "trace"];

const RULES: [(&[&str], Breaks, Form); 50] = [
    (&["clusterDomain"], AllPods, Form::DnsName),
    (&["clusterDomain"], Others, Form::Unquoted),
    (&["clusterNetworks"], AllPods, Form::TemplateNetworks),
    (&["debugContainer", "image", "name"], Others, Form::ImageName),
    (&["debugContainer", "image", "pullPolicy"], Others, Form::OneOf(PULL_POLICIES)),
    (&["debugContainer", "image", "version"], Others, Form::ImageVersion),
    (&["identity", "issuer", "clockSkewAllowance"], Others, Form::GoDuration),
    (&["identity", "issuer", "issuanceLifetime"], Others, Form::GoDuration),
    (&["identityTrustDomain"], AllPods, Form::DnsName),
    (&["identityTrustDomain"], Others, Form::Unquoted),
    (&["imagePullPolicy"], AllPods, Form::OneOf(PULL_POLICIES)),
    (&["linkerdVersion"], UnversionedPods, Form::ImageVersion),
    (&["networkValidator", "connectAddr"], CniPods, Form::Address),
    (&["networkValidator", "listenAddr"], CniPods, Form::Address),
    (&["networkValidator", "logFormat"], Others, Form::Unquoted),
    (&["networkValidator", "logLevel"], Others, Form::Unquoted),
    (&["networkValidator", "timeout"], CniPods, Form::ProxyDuration),
    (&["proxy", "accessLog"], Nothing, Form::OneOfInAnyCase(&["apache", "json"])),
    (&["proxy", "control", "streams", "idleTimeout"], AllPods, Form::ProxyDuration),
    (&["proxy", "control", "streams", "initialTimeout"], AllPods, Form::ProxyDuration),
    (&["proxy", "control", "streams", "lifetime"], AllPods, Form::ProxyDuration),
    (&["proxy", "defaultInboundPolicy"], AllPods, Form::OneOf(POLICIES)),
    (&["proxy", "image", "name"], AllPods, Form::ImageName),
    (&["proxy", "image", "name"], Others, Form::Unquoted),
    (&["proxy", "image", "pullPolicy"], AllPods, Form::OneOf(PULL_POLICIES)),
    (&["proxy", "image", "version"], AllPods, Form::ImageVersion),
    (&["proxy", "inbound", "server", "http2", "keepAliveInterval"], AllPods, Form::ProxyDuration),
    (&["proxy", "inbound", "server", "http2", "keepAliveTimeout"], AllPods, Form::ProxyDuration),
    (&["proxy", "inboundConnectTimeout"], AllPods, Form::ProxyDuration),
    (&["proxy", "inboundDiscoveryCacheUnusedTimeout"], AllPods, Form::ProxyDuration),
    (&["proxy", "logFormat"], Nothing, Form::OneOfInAnyCase(LOG_FORMATS)),
    (&["proxy", "logHTTPHeaders"], AllPods, Form::OneOf(&["off", "insecure"])),
    (&["proxy", "logLevel"], Nothing, Form::LogFilter),
    (&["proxy", "opaquePorts"], AllPods, Form::ProxyPorts),
    (&["proxy", "outbound", "server", "http2", "keepAliveInterval"], AllPods, Form::ProxyDuration),
    (&["proxy", "outbound", "server", "http2", "keepAliveTimeout"], AllPods, Form::ProxyDuration),
    (&["proxy", "outboundConnectTimeout"], AllPods, Form::ProxyDuration),
    (&["proxy", "outboundDiscoveryCacheUnusedTimeout"], AllPods, Form::ProxyDuration),
    (&["proxy", "requireIdentityOnInboundPorts"], AllPods, Form::ProxyPorts),
    (&["proxy", "shutdownGracePeriod"], AllPods, Form::ProxyDuration),
    (&["proxyInit", "ignoreInboundPorts"], Others, Form::InitPorts),
    // The inbound ports that linkerd-init ignores always have those of the proxy.
    (&["proxyInit", "ignoreOutboundPorts"], InitPods, Form::AnyInitPort),
    (&["proxyInit", "ignoreOutboundPorts"], Others, Form::InitPorts),
    (&["proxyInit", "iptablesMode"], InitPods, Form::OneOfExactly(&["nft", "legacy"])),
    (&["proxyInit", "kubeAPIServerPorts"], Others, Form::InitPorts),
    (&["proxyInit", "logFormat"], Nothing, Form::OneOf(LOG_FORMATS)),
    (&["proxyInit", "logFormat"], Others, Form::Unquoted),
    (&["proxyInit", "logLevel"], InitPods, Form::OneOfInAnyCase(INIT_LOG_LEVELS)),
    (&["proxyInit", "skipSubnets"], InitPods, Form::InitNetworks),
    (&["proxyInit", "skipSubnets"], DualStackPods, Form::NoNetworks),
];

// === impl Breaks ===

impl Breaks {
    /// Returns whether a value matters for any Pod.
    fn is_of_a_pod(self, document: &DocumentView<'_>) -> bool {
        match self {
            DualStackPods => !document.is_true(&["disableIPv6"]),
            AllPods | InitPods | CniPods | UnversionedPods | Others => true,
            Nothing => false,
        }
    }

    /// Returns whether a value matters for every Pod that this injector injects.
    fn is_of_every_pod(self, document: &DocumentView<'_>) -> bool {
        let is_cni = document.is_true(&["cniEnabled"]);
        match self {
            AllPods => true,
            InitPods => !is_cni,
            DualStackPods => !is_cni && self.is_of_a_pod(document),
            CniPods => is_cni,
            UnversionedPods => document.is_empty(&["proxy", "image", "version"]),
            Others | Nothing => false,
        }
    }
}

/// Adds all problems of a document.
pub(super) fn check(document: &Document, problems: &mut Findings) {
    let document = DocumentView(document);
    needed::check(&document, problems);
    check_all(&document, |breaks| breaks.is_of_a_pod(&document), problems);
    pod::check_linkerds_limits(&document, problems);
}

/// Adds the problems with which no Pod that this injector injects can run. Of the missing keys, only
/// the domain of the cluster is among them.
pub(super) fn check_injected(document: &Document, problems: &mut Findings) {
    let document = DocumentView(document);
    needed::check_cluster_domain(&document, problems);
    check_all(&document, |breaks| breaks.is_of_every_pod(&document), problems);
}

fn check_all(document: &DocumentView<'_>, counts: impl Fn(Breaks) -> bool, problems: &mut Findings) {
    check_forms(document, &counts, problems);
    pod::check(document, &counts, problems);
    mounts::check(document, &counts, problems);
    strings::check(document, &counts, problems);
}

/// Adds the amounts with which no proxy can run.
pub(super) fn check_doubtful(document: &Document, problems: &mut Findings) {
    let document = DocumentView(document);
    for resource in ["cpu", "memory", "ephemeral-storage"] {
        for kind in ["request", "limit"] {
            let keys = ["proxy", "resources", resource, kind];
            if let Some(value @ Value::String(text)) = document.at(&keys)
                && let Some(doubt) = quantities::doubtful_quantity(resource, text)
            {
                problems.add(&Path::from(&keys[..]), Some(value), doubt);
            }
        }
    }
}

/// Adds the values without effect.
pub(super) fn check_ineffective(document: &Document, problems: &mut Findings) {
    check_forms(&DocumentView(document), |breaks| breaks == Nothing, problems);
}

/// Checks each text once: of several rules for one key, the first that is violated counts.
fn check_forms(document: &DocumentView<'_>, counts: impl Fn(Breaks) -> bool, problems: &mut Findings) {
    let mut last: &[&str] = &[];
    for (keys, _, form) in RULES.iter().filter(|(_, breaks, _)| counts(*breaks)) {
        if *keys != last
            && let Some(text) = document.at(keys).and_then(|value| text(keys, value))
            && let Some(reason) = form.violation(&text)
        {
            problems.add(&Path::from(*keys), document.at(keys), reason);
            last = *keys;
        }
    }
}

/// Returns the text to check. The parameters of the proxy have no type, so the injector writes any value as a text.
fn text<'a>(keys: &[&str], value: &'a Value) -> Option<Cow<'a, str>> {
    match (value, keys) {
        (Value::String(text), _) => Some(text.into()),
        (value, ["proxy", "inbound" | "outbound", ..]) => Some(value.to_string().into()),
        _ => None,
    }
}

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
