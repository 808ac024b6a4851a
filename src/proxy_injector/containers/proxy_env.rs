//! The environment of the proxy.
//!
//! In: the values of one Pod. Out: the variables. Always holds: a variable comes after those that it refers to as
//! `$(NAME)`; variables of users come after Linkerd's, because the last one of a name counts; the hash of the
//! configuration is that of the document, also if a Pod declares another one.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::{fields::NotRenderable, proxy::ProxyContext};
use crate::{
    api::{CONFIG_HASH_ENV, PROXY_NAME},
    values::{Parameters, ProxyContainerValues, ProxyEnvVar, ProxyValues, TracingValues},
};

const PREFIX: &str = "LINKERD2_PROXY_";
/// A timeout that never expires in practice.
const NEVER: &str = "365d";
/// Keeps headers, which may contain secrets, out of the log.
const WITHOUT_HEADERS: &str = ",[{headers}]=off,[{request}]=off";
const SHOWS_HEADERS: &str = "insecure";

/// Collects variables.
#[derive(Default)]
struct Env(Vec<Value>);

pub(super) fn env(values: &ProxyValues, context: ProxyContext<'_>) -> Result<Vec<Value>, NotRenderable> {
    let mut env = Env::default();
    pod(&mut env);
    runtime(&mut env, &values.proxy);
    logging(&mut env, &values.proxy)?;
    services(&mut env, values, context);
    timeouts(&mut env, &values.proxy);
    listeners(&mut env, values, context);
    behavior(&mut env, values);
    if let Some(tracing) = values.proxy.tracing.as_ref().filter(|tracing| tracing.enabled) {
        tracing_env(&mut env, values, tracing, context)?;
    }
    parameters(&mut env, &values.proxy);
    env.set_unless_empty("INBOUND_PORTS_DISABLE_PROTOCOL_DETECTION", &values.proxy.opaque_ports);
    env.set(
        "DESTINATION_CONTEXT",
        "{\"ns\":\"$(_pod_ns)\", \"nodeName\":\"$(_pod_nodeName)\", \"pod\":\"$(_pod_name)\"}\n",
    );
    identity(&mut env, values, context)?;
    env.set_unless_empty("ACCESS_LOG", &values.proxy.access_log);
    env.set_unless_empty("SHUTDOWN_GRACE_PERIOD", &values.proxy.shutdown_grace_period);
    let of_users = values.proxy.additional_env.iter().chain(&values.proxy.experimental_env);
    env.0.extend(of_users.filter(|variable| variable.name != CONFIG_HASH_ENV).map(of_user));
    env.whole(CONFIG_HASH_ENV, context.injection_hash);
    Ok(env.0)
}

fn pod(env: &mut Env) {
    env.field("_pod_name", "metadata.name");
    env.field("_pod_ns", "metadata.namespace");
    env.field("_pod_uid", "metadata.uid");
    env.field("_pod_ip", "status.podIP");
    env.field("_pod_nodeName", "spec.nodeName");
    env.whole("_pod_containerName", PROXY_NAME);
}

fn runtime(env: &mut Env, proxy: &ProxyContainerValues) {
    let workers = &proxy.runtime.workers;
    if proxy.cores != 0 {
        env.set("CORES", &proxy.cores.to_string());
        env.set("CORES_MIN", &proxy.cores.to_string());
        return;
    }
    if workers.minimum == 0 && workers.maximum == 0 && workers.maximum_cpu_ratio == 0.0 {
        return;
    }
    let minimum = if workers.minimum == 0 { 1 } else { workers.minimum };
    env.set("CORES", &minimum.to_string());
    env.set("CORES_MIN", &minimum.to_string());
    if workers.maximum != 0 {
        env.set("CORES_MAX", &workers.maximum.to_string());
    }
    if workers.maximum_cpu_ratio != 0.0 {
        env.set("CORES_MAX_RATIO", &go_float(workers.maximum_cpu_ratio));
    }
}

fn logging(env: &mut Env, proxy: &ProxyContainerValues) -> Result<(), NotRenderable> {
    env.set_unless_empty("INBOUND_PORTS_REQUIRE_IDENTITY", &proxy.require_identity_on_inbound_ports);
    env.set("SHUTDOWN_ENDPOINT_ENABLED", &proxy.enable_shutdown_endpoint.to_string());
    let suffix = match proxy.log_http_headers.as_str() {
        SHOWS_HEADERS => "",
        "" | "off" => WITHOUT_HEADERS,
        other => {
            let field = "proxy.logHTTPHeaders, or the annotation config.linkerd.io/proxy-log-http-headers,";
            return Err(NotRenderable::new(field, other, "off or insecure"));
        }
    };
    env.set("LOG", &format!("{}{suffix}", proxy.log_level));
    env.set("LOG_FORMAT", &proxy.log_format);
    Ok(())
}

fn services(env: &mut Env, values: &ProxyValues, context: ProxyContext<'_>) {
    let (namespace, domain) = (context.controller_namespace, &values.cluster_domain);
    env.set("DESTINATION_SVC_ADDR", &format!("linkerd-dst-headless.{namespace}.svc.{domain}.:8086"));
    env.set("DESTINATION_PROFILE_NETWORKS", &values.cluster_networks);
    env.set("POLICY_SVC_ADDR", &format!("linkerd-policy.{namespace}.svc.{domain}.:8090"));
    env.set("POLICY_WORKLOAD", "{\"ns\":\"$(_pod_ns)\", \"pod\":\"$(_pod_name)\"}\n");
    env.set("INBOUND_DEFAULT_POLICY", &values.proxy.default_inbound_policy);
    env.set("POLICY_CLUSTER_NETWORKS", &values.cluster_networks);
}

fn timeouts(env: &mut Env, proxy: &ProxyContainerValues) {
    let streams = &proxy.control.streams;
    env.set("CONTROL_STREAM_INITIAL_TIMEOUT", &streams.initial_timeout);
    env.set("CONTROL_STREAM_IDLE_TIMEOUT", &streams.idle_timeout);
    env.set("CONTROL_STREAM_LIFETIME", &streams.lifetime);
    env.set_unless_empty("INBOUND_CONNECT_TIMEOUT", &proxy.inbound_connect_timeout);
    env.set_unless_empty("OUTBOUND_CONNECT_TIMEOUT", &proxy.outbound_connect_timeout);
    env.set_unless_empty("OUTBOUND_DISCOVERY_IDLE_TIMEOUT", &proxy.outbound_discovery_cache_unused_timeout);
    env.set_unless_empty("INBOUND_DISCOVERY_IDLE_TIMEOUT", &proxy.inbound_discovery_cache_unused_timeout);
    if proxy.disable_outbound_protocol_detect_timeout {
        env.set("OUTBOUND_DETECT_TIMEOUT", NEVER);
    }
    if proxy.disable_inbound_protocol_detect_timeout {
        env.set("INBOUND_DETECT_TIMEOUT", NEVER);
    }
}

fn listeners(env: &mut Env, values: &ProxyValues, context: ProxyContext<'_>) {
    let ports = &values.proxy.ports;
    let any = if values.disable_ipv6 { "0.0.0.0" } else { "[::]" };
    env.set("CONTROL_LISTEN_ADDR", &format!("{any}:{}", ports.control));
    env.set("ADMIN_LISTEN_ADDR", &format!("{any}:{}", ports.admin));
    let outbound = format!("127.0.0.1:{}", ports.outbound);
    env.set("OUTBOUND_LISTEN_ADDR", &outbound);
    let both = if values.disable_ipv6 { outbound } else { format!("{outbound},[::1]:{}", ports.outbound) };
    env.set("OUTBOUND_LISTEN_ADDRS", &both);
    env.set("INBOUND_LISTEN_ADDR", &format!("{any}:{}", ports.inbound));
    env.field(&format!("{PREFIX}INBOUND_IPS"), "status.podIPs");
    env.set("INBOUND_PORTS", context.inbound_ports);
}

fn behavior(env: &mut Env, values: &ProxyValues) {
    let (proxy, suffix) = (&values.proxy, format!("svc.{}.", values.cluster_domain));
    if proxy.is_gateway {
        env.set("INBOUND_GATEWAY_SUFFIXES", &suffix);
    }
    if proxy.is_ingress {
        env.set("INGRESS_MODE", "true");
    }
    env.set("DESTINATION_PROFILE_SUFFIXES", if proxy.enable_external_profiles { "." } else { &suffix });
    env.set("INBOUND_ACCEPT_KEEPALIVE", "10000ms");
    env.set("OUTBOUND_CONNECT_KEEPALIVE", "10000ms");
    env.set("INBOUND_ACCEPT_USER_TIMEOUT", "30s");
    env.set("OUTBOUND_CONNECT_USER_TIMEOUT", "30s");
    env.set("OUTBOUND_METRICS_HOSTNAME_LABELS", &values.proxy.metrics.hostname_labels.to_string());
}

fn tracing_env(
    env: &mut Env,
    values: &ProxyValues,
    tracing: &TracingValues,
    context: ProxyContext<'_>,
) -> Result<(), NotRenderable> {
    let (collector, identity) = (&tracing.collector, &tracing.collector.mesh_identity);
    for (field, value) in [
        ("endpoint", &collector.endpoint),
        ("meshIdentity.serviceAccountName", &identity.service_account_name),
        ("meshIdentity.namespace", &identity.namespace),
    ] {
        if value.is_empty() {
            return Err(NotRenderable::missing(&format!("proxy.tracing.collector.{field}")));
        }
    }
    env.set("TRACE_ATTRIBUTES_PATH", "/var/run/linkerd/podinfo/labels");
    env.set("TRACE_ANNOTATIONS_PATH", "/var/run/linkerd/podinfo/annotations");
    env.set("TRACE_PROTOCOL", if tracing.protocol.is_empty() { "opentelemetry" } else { &tracing.protocol });
    env.set("TRACE_SERVICE_NAME", &tracing.trace_service_name);
    env.set("TRACE_COLLECTOR_SVC_ADDR", &collector.endpoint);
    let name = identity_name(&identity.service_account_name, &identity.namespace, values, context);
    env.set("TRACE_COLLECTOR_SVC_NAME", &name);
    let attributes: String = tracing.labels.iter().map(|(key, value)| format!("{key}={value}\n")).collect();
    env.set("TRACE_EXTRA_ATTRIBUTES", &attributes);
    Ok(())
}

/// Adds the parameters that have no variable of their own.
fn parameters(env: &mut Env, proxy: &ProxyContainerValues) {
    let mut scope = |direction: &str, parameters: &Parameters| {
        for (scope, protocols) in parameters {
            for (protocol, parameters) in protocols {
                // Sorted by key, like the maps of scopes and protocols.
                for (parameter, value) in parameters.iter().collect::<BTreeMap<_, _>>() {
                    let name = [scope, protocol, parameter].map(|part| env_name(part)).join("_");
                    env.set(&format!("{direction}_{name}"), &parameter_text(value));
                }
            }
        }
    };
    scope("INBOUND", &proxy.inbound);
    scope("OUTBOUND", &proxy.outbound);
}

fn identity(env: &mut Env, values: &ProxyValues, context: ProxyContext<'_>) -> Result<(), NotRenderable> {
    let (namespace, domain) = (context.controller_namespace, &values.cluster_domain);
    env.field("_pod_sa", "spec.serviceAccountName");
    env.whole("_l5d_ns", namespace);
    env.whole("_l5d_trustdomain", values.trust_domain());
    env.set("IDENTITY_DIR", "/var/run/linkerd/identity/end-entity");
    let anchors = context.trust_anchors.trim();
    if anchors.is_empty() {
        return Err(NotRenderable::missing("the bundle of trust anchors"));
    }
    // Linkerd's template is YAML, in which both are one line break.
    env.set("IDENTITY_TRUST_ANCHORS", &format!("{}\n", anchors.replace("\r\n", "\n")));
    let token = match values.identity.service_account_token_projection {
        true => "/var/run/secrets/tokens/linkerd-identity-token",
        false => "/var/run/secrets/kubernetes.io/serviceaccount/token",
    };
    env.set("IDENTITY_TOKEN_FILE", token);
    env.set("IDENTITY_SVC_ADDR", &format!("linkerd-identity-headless.{namespace}.svc.{domain}.:8080"));
    env.set("IDENTITY_LOCAL_NAME", &identity_name("$(_pod_sa)", "$(_pod_ns)", values, context));
    env.set("IDENTITY_SVC_NAME", &identity_name("linkerd-identity", namespace, values, context));
    // Both servers run in the Pods of the destination.
    for service in ["DESTINATION_SVC_NAME", "POLICY_SVC_NAME"] {
        env.set(service, &identity_name("linkerd-destination", namespace, values, context));
    }
    Ok(())
}

fn identity_name(account: &str, namespace: &str, values: &ProxyValues, context: ProxyContext<'_>) -> String {
    let (mesh, domain) = (context.controller_namespace, values.trust_domain());
    format!("{account}.{namespace}.serviceaccount.identity.{mesh}.{domain}")
}

// === impl Env ===

impl Env {
    /// Sets a variable of the proxy.
    fn set(&mut self, name: &str, value: &str) {
        self.whole(&format!("{PREFIX}{name}"), value);
    }

    fn set_unless_empty(&mut self, name: &str, value: &str) {
        if !value.is_empty() {
            self.set(name, value);
        }
    }

    fn whole(&mut self, name: &str, value: &str) {
        self.0.push(json!({"name": name, "value": value}));
    }

    fn field(&mut self, name: &str, path: &str) {
        self.0.push(json!({"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}));
    }
}

fn of_user(variable: &ProxyEnvVar) -> Value {
    let mut map = Map::from_iter([("name".to_owned(), variable.name.as_str().into())]);
    if !variable.value.is_empty() {
        map.insert("value".to_owned(), variable.value.as_str().into());
    }
    if let Some(source) = &variable.value_from {
        map.insert("valueFrom".to_owned(), source.0.clone());
    }
    map.into()
}

/// Returns a key of a parameter in the form of a variable: `keepAliveInterval` is `KEEP_ALIVE_INTERVAL`.
///
/// Digits belong to the word before them, if an upper-case letter or the end follows; before a lower-case letter they
/// begin a word.
fn env_name(key: &str) -> String {
    let characters: Vec<char> = key.chars().collect();
    let at = |index: usize| characters.get(index).copied();
    let mut name = String::with_capacity(key.len() + 4);
    for (index, character) in characters.iter().enumerate() {
        let before = index.checked_sub(1).and_then(at);
        let begins_word = match (before, character) {
            (None | Some('_' | '-'), _) => false,
            (Some(before), it) if it.is_ascii_uppercase() => {
                let is_last_of_acronym =
                    before.is_ascii_uppercase() && at(index + 1).is_some_and(|next| next.is_ascii_lowercase());
                before.is_ascii_lowercase() || before.is_ascii_digit() || is_last_of_acronym
            }
            (Some(before), it) if it.is_ascii_digit() => {
                let after = characters.iter().skip(index).find(|it| !it.is_ascii_digit());
                !before.is_ascii_digit() && after.is_some_and(char::is_ascii_lowercase)
            }
            _ => false,
        };
        if begins_word {
            name.push('_');
        }
        name.push(if *character == '-' { '_' } else { character.to_ascii_uppercase() });
    }
    name
}

fn parameter_text(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

/// Returns a number in Go's shortest form: with an exponent below 0.0001.
fn go_float(number: f64) -> String {
    if number >= 1e-4 {
        return number.to_string();
    }
    let shortest = format!("{number:e}");
    let (mantissa, exponent) = shortest.split_once('e').unwrap_or((&shortest, "0"));
    let exponent: i32 = exponent.parse().unwrap_or_default();
    format!("{mantissa}e-{:02}", exponent.unsigned_abs())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The names are those that Linkerd's injector was seen to write.
    #[test]
    fn keys_of_parameters_become_names_of_variables() {
        for (key, name) in [
            ("http2", "HTTP2"),
            ("keepAliveInterval", "KEEP_ALIVE_INTERVAL"),
            ("httpDetect", "HTTP_DETECT"),
            ("HTTPServer", "HTTP_SERVER"),
            ("fooBarBAZ", "FOO_BAR_BAZ"),
            ("foo-bar", "FOO_BAR"),
            ("foo1Bar2", "FOO1_BAR2"),
            ("h2c", "H_2C"),
            ("a1b", "A_1B"),
            ("x_y", "X_Y"),
        ] {
            assert_eq!(env_name(key), name, "{key}");
        }
    }

    #[test]
    fn small_ratios_have_an_exponent() {
        assert_eq!(
            (go_float(0.5), go_float(0.0001), go_float(0.00001)),
            ("0.5".into(), "0.0001".into(), "1e-05".into())
        );
    }
}
