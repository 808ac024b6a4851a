//! The requirements of the API server for an injected Pod: ids, ports, resources, variables and security contexts.
//!
//! The operator repeats these rules instead of sending a dry run, because the ServiceAccount of Linkerd's injector may
//! not create Pods.

use k8s_openapi::api::core::v1::SecurityContext;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};

use super::{
    breaks::{
        Breaks::{self, AllPods, CniPods, InitPods},
        DocumentView,
    },
    forms::{is_host_and_port, is_image},
    mounts::EMPTY_VOLUMES,
    security_context::{ADMIN, unusable_fields},
    strings::unusable_string,
    variables::{is_variable_name, unusable_source},
};
use crate::{
    api::{is_dns_name, quantity::Quantity},
    values::{Path, findings::Findings},
};

/// The largest id of a user or a group.
const MAX_ID: i64 = i32::MAX as i64;
const MAX_PORT: i64 = u16::MAX as i64;
const MAX_SECONDS: i64 = i32::MAX as i64;

/// The whole numbers with bounds.
const NUMBERS: [(&[&str], Breaks, i64, i64); 17] = [
    (&["proxy", "ports", "admin"], AllPods, 1, MAX_PORT),
    (&["proxy", "ports", "control"], AllPods, 1, MAX_PORT),
    (&["proxy", "ports", "inbound"], AllPods, 1, MAX_PORT),
    (&["proxy", "ports", "outbound"], AllPods, 1, MAX_PORT),
    // A negative group is left out.
    (&["proxy", "gid"], AllPods, i64::MIN, MAX_ID),
    (&["proxy", "uid"], AllPods, 0, MAX_ID),
    (&["proxy", "cores"], AllPods, 0, i64::MAX),
    // The types of these fields say that they are not negative.
    (&["proxy", "livenessProbe", "initialDelaySeconds"], AllPods, i64::MIN, MAX_SECONDS),
    (&["proxy", "livenessProbe", "timeoutSeconds"], AllPods, i64::MIN, MAX_SECONDS),
    (&["proxy", "readinessProbe", "initialDelaySeconds"], AllPods, i64::MIN, MAX_SECONDS),
    (&["proxy", "readinessProbe", "timeoutSeconds"], AllPods, i64::MIN, MAX_SECONDS),
    (&["proxy", "startupProbe", "failureThreshold"], AllPods, i64::MIN, MAX_SECONDS),
    (&["proxy", "startupProbe", "initialDelaySeconds"], AllPods, i64::MIN, MAX_SECONDS),
    (&["proxy", "startupProbe", "periodSeconds"], AllPods, i64::MIN, MAX_SECONDS),
    (&["proxyInit", "closeWaitTimeoutSecs"], InitPods, 0, i64::MAX),
    (&["proxyInit", "runAsGroup"], InitPods, 0, MAX_ID),
    (&["proxyInit", "runAsUser"], InitPods, 0, MAX_ID),
];

pub(super) fn check(document: &DocumentView<'_>, counts: impl Fn(Breaks) -> bool, problems: &mut Findings) {
    check_numbers(document, &counts, problems);
    check_resources(document, problems);
    check_together(document, problems);
    check_workers(document, problems);
    check_user(document, problems);
    check_image(document, problems);
    check_capabilities(document, &counts, problems);
    for direction in ["inbound", "outbound"] {
        check_parameters(document, direction, problems);
    }
    for list in ["additionalEnv", "experimentalEnv"] {
        check_env(document, &["proxy", list], problems);
    }
    for (keys, breaks) in
        [(&["proxy", "securityContext"][..], AllPods), (&["networkValidator", "securityContext"], CniPods)]
    {
        if counts(breaks) {
            check_security_context(document, keys, problems);
        }
    }
}

/// Linkerd's own injector writes large numbers with an exponent. This operator's does not.
pub(super) fn check_linkerds_limits(document: &DocumentView<'_>, problems: &mut Findings) {
    if document.is_true(&["cniEnabled"]) {
        return;
    }
    for keys in [&["proxy", "uid"][..], &["proxy", "gid"], &["proxyInit", "closeWaitTimeoutSecs"]] {
        if (1_000_000..=MAX_ID).contains(&document.number(keys)) {
            let reason =
                "must be less than 1000000: otherwise the injector writes it as 1e+06, which linkerd-init rejects";
            problems.add(&Path::from(keys), document.at(keys), reason);
        }
    }
}

fn check_numbers(document: &DocumentView<'_>, counts: impl Fn(Breaks) -> bool, problems: &mut Findings) {
    for (keys, _, least, most) in NUMBERS.iter().filter(|(_, breaks, ..)| counts(*breaks)) {
        let Some(value @ Value::Number(number)) = document.at(keys) else { continue };
        let is_within = number.as_i64().is_some_and(|number| (*least..=*most).contains(&number));
        // The type of the field says it already.
        let is_typed = number.is_i64() || number.is_u64();
        if is_typed && !is_within {
            let reason = match (*least, *most) {
                (1, MAX_PORT) => "must be a port from 1 to 65535".to_owned(),
                (0, i64::MAX) => "must not be negative".to_owned(),
                (i64::MIN, most) => format!("must be at most {most}"),
                (least, most) => format!("must be from {least} to {most}"),
            };
            problems.add(&Path::from(*keys), Some(value), reason);
        }
    }
    let ports = ["admin", "control", "inbound", "outbound"].map(|port| (port, document.at(&["proxy", "ports", port])));
    for (at, (name, port)) in ports.iter().enumerate() {
        let same = ports.iter().take(at).find(|(_, other)| port.is_some() && other == port);
        if let Some((other, _)) = same {
            let keys = ["proxy", "ports", *name];
            let reason = format!("must differ from proxy.ports.{other}: the proxy listens on both");
            problems.add(&Path::from(&keys[..]), *port, reason);
        }
    }
}

fn check_resources(document: &DocumentView<'_>, problems: &mut Findings) {
    for resource in ["cpu", "memory", "ephemeral-storage"] {
        let request = check_quantity(document, &["proxy", "resources", resource, "request"], problems);
        let limit = check_quantity(document, &["proxy", "resources", resource, "limit"], problems);
        if let Some((request, limit)) = request.zip(limit)
            && request.may_exceed(limit)
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
    if init && document.number(&keys) > 0 && !document.is_true(&["proxyInit", "runAsRoot"]) {
        problems.add(&Path::from(&keys[..]), document.at(&keys), "requires proxyInit.runAsRoot");
    }
    if document.is_true(&["proxy", "tracing", "enabled"]) {
        for required in [&["endpoint"][..], &["meshIdentity", "namespace"], &["meshIdentity", "serviceAccountName"]] {
            let keys = [&["proxy", "tracing", "collector"], required].concat();
            if document.is_empty(&keys) {
                problems.add(&Path::from(&keys[..]), None, "is missing: proxy.tracing.enabled requires it");
            } else if let Some(value @ Value::String(text)) = document.at(&keys) {
                let (fits, wanted) = match required {
                    ["endpoint"] => {
                        (is_host_and_port(text), "must be a host and a port, such as collector.linkerd:4317")
                    }
                    // It is a part of a longer name.
                    _ => (is_dns_name(&format!("{text}.linkerd")), "must be a name in Kubernetes"),
                };
                if !fits {
                    problems.add(&Path::from(&keys[..]), Some(value), wanted);
                }
            }
        }
    }
}

/// The injector ignores the workers if `proxy.cores` is set.
fn check_workers(document: &DocumentView<'_>, problems: &mut Findings) {
    if document.number(&["proxy", "cores"]) != 0 {
        return;
    }
    for key in ["maximum", "maximumCPURatio", "minimum"] {
        let keys = ["proxy", "runtime", "workers", key];
        let value = document.at(&keys);
        if value.and_then(Value::as_f64).is_some_and(|number| number < 0.0) {
            problems.add(&Path::from(&keys[..]), value, "must not be negative");
        }
    }
}

/// The kubelet does not start a proxy as root, because the injector sets `runAsNonRoot`, unless the values have a
/// security context.
fn check_user(document: &DocumentView<'_>, problems: &mut Findings) {
    let user = document.at(&["proxy", "uid"]);
    if !has_context(document) && user.and_then(Value::as_i64) == Some(0) {
        problems.add(&Path::from(&["proxy", "uid"][..]), user, "must not be 0: the proxy must not run as root");
    }
}

/// Whether the values replace the security context of the proxy.
fn has_context(document: &DocumentView<'_>) -> bool {
    document.at(&["proxy", "securityContext"]).and_then(Value::as_object).is_some_and(|it| !it.is_empty())
}

/// The injector copies the capabilities to containers that must not escalate their privileges: to linkerd-init, unless
/// it is privileged, and to the proxy, unless the values have a security context.
fn check_capabilities(document: &DocumentView<'_>, counts: impl Fn(Breaks) -> bool, problems: &mut Findings) {
    let keys = ["proxy", "capabilities", "add"];
    let is_admin = |added: &&Value| added.as_array().is_some_and(|it| it.iter().any(|name| name == ADMIN));
    let Some(added) = document.at(&keys).filter(is_admin) else { return };
    let is_privileged =
        document.is_true(&["proxyInit", "privileged"]) || document.number(&["proxyInit", "closeWaitTimeoutSecs"]) > 0;
    if !has_context(document) || counts(InitPods) && !is_privileged {
        let reason = format!("must not have {ADMIN}, because the containers of the proxy must not escalate privileges");
        problems.add(&Path::from(&keys[..]), Some(added), reason);
    }
}

/// The checks of forms report an invalid name or version.
fn check_image(document: &DocumentView<'_>, problems: &mut Findings) {
    let text = |keys: &[&str]| document.at(keys).and_then(Value::as_str).unwrap_or_default();
    let keys = ["proxy", "image", "version"];
    let version = if document.is_empty(&keys) { text(&["linkerdVersion"]) } else { text(&keys) };
    if !is_image(text(&["proxy", "image", "name"]), version) {
        let reason = "must have the 64 digits of a digest, because the name of the image ends with @sha256";
        problems.add(&Path::from(&keys[..]), document.at(&keys), reason);
    }
}

/// The injector makes the name of a variable from the keys of a parameter.
fn check_parameters(document: &DocumentView<'_>, direction: &str, problems: &mut Findings) {
    for (scope, protocols) in entries(document.at(&["proxy", direction])) {
        for (protocol, parameters) in entries(Some(protocols)) {
            for (parameter, value) in entries(Some(parameters)) {
                if !is_variable_name(&[scope, protocol, parameter].map(String::as_str).join("_")) {
                    let path = Path::from(&["proxy", direction, scope, protocol, parameter][..]);
                    let reason = "must have keys of printable ASCII characters without the sign =";
                    problems.add(&path, Some(value), reason);
                }
            }
        }
    }
}

fn entries(map: Option<&Value>) -> impl Iterator<Item = (&String, &Value)> {
    map.and_then(Value::as_object).into_iter().flatten()
}

/// Checks the variables. A reason names no value, because a variable may be a secret.
fn check_env(document: &DocumentView<'_>, keys: &[&str], problems: &mut Findings) {
    let Some(Value::Array(items)) = document.at(keys) else { return };
    for (at, variable) in items.iter().enumerate() {
        if let Some(reason) = unusable_variable(variable) {
            let reason = format!("entry {at} {reason}: the API server rejects the Pods");
            problems.add(&Path::from(keys), document.at(keys), reason);
            return;
        }
    }
}

fn unusable_variable(variable: &Value) -> Option<String> {
    let name = variable.get("name").and_then(Value::as_str).unwrap_or_default();
    if name.is_empty() {
        return Some("has no name".to_owned());
    }
    if !is_variable_name(name) {
        return Some("has a name with a character that a variable cannot have".to_owned());
    }
    let text = variable.get("value").and_then(Value::as_str).unwrap_or_default();
    if let Some(reason) = unusable_string(text, name.len() + 1) {
        return Some(format!("has a value that {reason}"));
    }
    let is_set = |value: &Value| !value.is_null() && value.as_str() != Some("");
    let source = variable.get("valueFrom").filter(|source| !source.is_null())?;
    if variable.get("value").is_some_and(is_set) {
        return Some("has a value and a valueFrom".to_owned());
    }
    let volume = source.pointer("/fileKeyRef/volumeName").and_then(Value::as_str);
    let reason = unusable_source(source).or_else(|| {
        volume.filter(|it| !EMPTY_VOLUMES.contains(it)).map(|_| "fileKeyRef.volumeName must be an emptyDir")
    });
    reason.map(|reason| format!("has no valid source: {reason}"))
}

fn check_security_context(document: &DocumentView<'_>, keys: &[&str], problems: &mut Findings) {
    let Some(Value::Object(context)) = document.at(keys) else { return };
    for (key, value) in context {
        let at = [keys, &[key.as_str()]].concat();
        if !fits::<SecurityContext>(key, value) {
            problems.add(
                &Path::from(&at[..]),
                Some(value),
                "must have the type that a securityContext has in Kubernetes",
            );
        } else if ["runAsUser", "runAsGroup"].contains(&key.as_str())
            && value.as_i64().is_some_and(|id| !(0..=MAX_ID).contains(&id))
        {
            problems.add(&Path::from(&at[..]), Some(value), format!("must be from 0 to {MAX_ID}"));
        }
    }
    for (key, reason) in unusable_fields(context) {
        let at = [keys, &[key]].concat();
        problems.add(&Path::from(&at[..]), document.at(&at), reason);
    }
    let is = |key: &str, wanted: bool| context.get(key) == Some(&Value::Bool(wanted));
    if is("privileged", true) && is("allowPrivilegeEscalation", false) {
        let at = [keys, &["allowPrivilegeEscalation"]].concat();
        problems.add(&Path::from(&at[..]), document.at(&at), "must not be false if privileged is true");
    }
    if is("runAsNonRoot", true) && context.get("runAsUser").and_then(Value::as_i64) == Some(0) {
        let at = [keys, &["runAsUser"]].concat();
        let reason = "must not be 0 if runAsNonRoot is true: the kubelet does not start the container";
        problems.add(&Path::from(&at[..]), document.at(&at), reason);
    }
}

/// Whether Kubernetes can read a field of a type. It ignores fields that the type does not have.
fn fits<T: DeserializeOwned>(key: &str, value: &Value) -> bool {
    let field = Map::from_iter([(key.to_owned(), value.clone())]);
    serde_json::from_value::<T>(json!(field)).is_ok()
}
