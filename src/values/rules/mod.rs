//! The requirements of the programs that read the values, beyond the types of the values.
//!
//! Each rule prevents a failure that was observed: denied or rejected Pods, a crash of the injector, a proxy that does
//! not start, or a value without effect. Always holds: one table has the rules, for the LinkerdConfig controller, its
//! webhook and the injector; each row says which Pods cannot run if it is violated.

mod breaks;
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

use self::breaks::{
    Breaks::{self, AllPods, CniPods, DualStackPods, InitPods, Nothing, Others, UnversionedPods},
    DocumentView,
};
use super::{Document, Path, findings::Findings};
use forms::Form;
pub(super) use needed::is_needed;

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
    // The inbound list has no such row: the injector always adds the ports of the proxy to it.
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
