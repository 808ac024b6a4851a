//! The values for one Pod: the values of the document, with the overrides of the annotations.
//!
//! In: the values of the document, the annotations, the Pod. Out: the values of this Pod, and warnings for its author.
//! Always holds: an invalid annotation changes nothing, and the Pod is injected as without it.

use std::collections::HashMap;

use serde_json::Value;

use super::{
    annotations::{Annotations, NATIVE_SIDECAR_ALPHA, NATIVE_SIDECAR_BETA, OPENTELEMETRY, PREFIX, WAIT_BEFORE_EXIT},
    reviewed::ReviewedObject,
    warnings::{AuthorWarnings, shown},
};
use crate::{
    api::{ADDITIONAL_ENV_ANNOTATION, INJECT_ANNOTATION, OPAQUE_PORTS_ANNOTATION, quantity::Quantity},
    cluster::kinds::port_ranges,
    go,
    values::{MountValues, ProxyEnvVar, ProxyValues},
};

/// The values of an inbound policy.
const POLICIES: [&str; 6] =
    ["all-unauthenticated", "all-authenticated", "cluster-unauthenticated", "cluster-authenticated", "deny", "audit"];
/// The labels of a Pod that name its service in traces. The first one that it has counts.
const SERVICE_LABELS: [&str; 2] = ["app.kubernetes.io/instance", "app.kubernetes.io/name"];

/// Reads annotations, and collects warnings.
struct Reader<'a> {
    annotations: Annotations<'a>,
    warnings: AuthorWarnings,
}

/// Returns the values for a Pod, and warnings.
pub(super) fn overridden(
    values: &ProxyValues,
    annotations: Annotations<'_>,
    pod: &ReviewedObject,
) -> (ProxyValues, AuthorWarnings) {
    let mut values = values.clone();
    let mut read = Reader { annotations, warnings: AuthorWarnings::default() };
    read.images(&mut values);
    read.proxy(&mut values, pod);
    read.resources(&mut values);
    read.init(&mut values);
    read.tracing(&mut values, pod);
    let env = additional_env(&values.proxy.additional_env, &mut read);
    values.proxy.additional_env = env;
    (values, read.warnings)
}

// === impl Reader ===

impl Reader<'_> {
    fn images(&mut self, values: &mut ProxyValues) {
        let image = |text: &str| (!text.is_empty()).then(|| text.to_owned());
        self.parsed("proxy-image", "the name of an image", image, &mut values.proxy.image.name);
        self.text("proxy-version", &mut values.proxy.image.version);
        self.text("image-pull-policy", &mut values.proxy.image.pull_policy);
        let debug = &mut values.debug_container.image;
        self.text("debug-image", &mut debug.name);
        self.text("debug-image-version", &mut debug.version);
        self.text("debug-image-pull-policy", &mut debug.pull_policy);
    }

    fn proxy(&mut self, values: &mut ProxyValues, pod: &ReviewedObject) {
        let ports = &mut values.proxy.ports;
        for (name, port) in [
            ("control-port", &mut ports.control),
            ("inbound-port", &mut ports.inbound),
            ("admin-port", &mut ports.admin),
            ("outbound-port", &mut ports.outbound),
        ] {
            self.parsed(name, "a port", |text| text.parse().ok(), port);
        }
        self.bool("proxy-metrics-hostname-labels", &mut values.proxy.metrics.hostname_labels);
        let proxy = &mut values.proxy;
        proxy.is_ingress |= self.annotations.whole(INJECT_ANNOTATION) == Some("ingress");
        self.switch("proxy-admin-shutdown", &mut proxy.enable_shutdown_endpoint);
        self.text("proxy-log-level", &mut proxy.log_level);
        self.text("proxy-log-format", &mut proxy.log_format);
        self.text("proxy-log-http-headers", &mut proxy.log_http_headers);
        self.text("proxy-require-identity-inbound-ports", &mut proxy.require_identity_on_inbound_ports);
        self.milliseconds("proxy-outbound-connect-timeout", &mut proxy.outbound_connect_timeout);
        self.milliseconds("proxy-inbound-connect-timeout", &mut proxy.inbound_connect_timeout);
        self.milliseconds("shutdown-grace-period", &mut proxy.shutdown_grace_period);
        self.seconds(
            "proxy-outbound-discovery-cache-unused-timeout",
            &mut proxy.outbound_discovery_cache_unused_timeout,
        );
        self.seconds("proxy-inbound-discovery-cache-unused-timeout", &mut proxy.inbound_discovery_cache_unused_timeout);
        self.bool(
            "proxy-disable-outbound-protocol-detect-timeout",
            &mut proxy.disable_outbound_protocol_detect_timeout,
        );
        self.bool("proxy-disable-inbound-protocol-detect-timeout", &mut proxy.disable_inbound_protocol_detect_timeout);
        self.bool("enable-gateway", &mut proxy.is_gateway);
        self.bool("enable-external-profiles", &mut proxy.enable_external_profiles);
        self.switch("proxy-await", &mut proxy.r#await);
        self.text("access-log", &mut proxy.access_log);
        self.parsed(
            "default-inbound-policy",
            "an inbound policy",
            |text| POLICIES.contains(&text).then(|| text.to_owned()),
            &mut proxy.default_inbound_policy,
        );
        let whole = "a number that is not negative";
        self.parsed_at(WAIT_BEFORE_EXIT, whole, |text| text.parse().ok(), &mut proxy.wait_before_exit_seconds);
        self.parsed("proxy-uid", "a whole number", |text| text.parse().ok(), &mut proxy.uid);
        self.parsed("proxy-gid", "a whole number", |text| text.parse().ok(), &mut proxy.gid);
        // The first key that is present counts, even if its value is invalid.
        let stable = format!("{PREFIX}proxy-enable-native-sidecar");
        let keys = [stable.as_str(), NATIVE_SIDECAR_BETA, NATIVE_SIDECAR_ALPHA];
        if let Some(key) = keys.into_iter().find(|key| self.annotations.whole(key).is_some()) {
            self.parsed_at(key, "true or false", go::bool::parse, &mut proxy.native_sidecar);
        }
        if let Some(text) = self.annotations.get("opaque-ports") {
            proxy.opaque_ports = self.opaque_ports(text, pod);
        }
        proxy.capabilities = pod.spec.capabilities().or(proxy.capabilities.take());
        if let Some(mount) = pod.spec.token_mount() {
            proxy.sa_mount_path = Some(MountValues {
                mount_path: mount.mount_path.clone(),
                name: mount.name.clone(),
                read_only: mount.read_only,
            });
        }
    }

    fn resources(&mut self, values: &mut ProxyValues) {
        let (resources, workers) = (&mut values.proxy.resources, &mut values.proxy.runtime.workers);
        self.quantity("proxy-memory-request", &mut resources.memory.request);
        self.quantity("proxy-memory-limit", &mut resources.memory.limit);
        self.quantity("proxy-ephemeral-storage-request", &mut resources.ephemeral_storage.request);
        self.quantity("proxy-ephemeral-storage-limit", &mut resources.ephemeral_storage.limit);
        for (name, text, cores) in [
            ("proxy-cpu-request", &mut resources.cpu.request, &mut workers.minimum),
            ("proxy-cpu-limit", &mut resources.cpu.limit, &mut workers.maximum),
        ] {
            if let Some(quantity) = self.quantity(name, text) {
                *cores = whole_cores(quantity);
            }
        }
        let ratio = |text: &str| text.parse().ok().filter(|ratio: &f64| *ratio > 0.0 && *ratio < 1.0);
        self.parsed("proxy-cpu-ratio-limit", "a number between 0 and 1", ratio, &mut workers.maximum_cpu_ratio);
    }

    fn init(&mut self, values: &mut ProxyValues) {
        let init = &mut values.proxy_init;
        self.text("skip-inbound-ports", &mut init.ignore_inbound_ports);
        self.text("skip-outbound-ports", &mut init.ignore_outbound_ports);
        self.text("skip-subnets", &mut init.skip_subnets);
        let seconds = |text: &str| Some(go::duration::parse(text)? / 1_000_000_000);
        self.parsed("close-wait-timeout", A_DURATION, seconds, &mut init.close_wait_timeout_secs);
    }

    fn tracing(&self, values: &mut ProxyValues, pod: &ReviewedObject) {
        let Some(tracing) = &mut values.proxy.tracing else { return };
        if let Some(service) = SERVICE_LABELS.iter().find_map(|key| pod.metadata.labels.get(*key)) {
            tracing.labels.insert("service.name".to_owned(), service.clone());
        }
        let attributes = self.annotations.pod.iter();
        let attributes = attributes.filter_map(|(key, value)| Some((key.strip_prefix(OPENTELEMETRY)?, value)));
        tracing.labels.extend(attributes.map(|(key, value)| (key.to_owned(), value.clone())));
    }

    /// Reads a list of ports, ranges and names of ports. Other items are left out, with a warning.
    fn opaque_ports(&mut self, text: &str, pod: &ReviewedObject) -> String {
        let wanted = "a port, a range such as 9000-9100 or the name of a port";
        let invalid = |item: &str| self.warn(OPAQUE_PORTS_ANNOTATION, item, wanted);
        let kept = port_ranges::listed(text, pod.spec.named_ports(), invalid);
        let kept =
            kept.into_iter().map(|(low, high)| if low == high { low.to_string() } else { format!("{low}-{high}") });
        kept.collect::<Vec<_>>().join(",")
    }

    fn text(&self, name: &str, target: &mut String) {
        if let Some(text) = self.annotations.get(name) {
            text.clone_into(target);
        }
    }

    fn bool(&mut self, name: &str, target: &mut bool) {
        self.parsed(name, "true or false", go::bool::parse, target);
    }

    fn switch(&mut self, name: &str, target: &mut bool) {
        let parse = |text: &str| match text {
            "enabled" => Some(true),
            "disabled" => Some(false),
            _ => None,
        };
        self.parsed(name, "enabled or disabled", parse, target);
    }

    fn milliseconds(&mut self, name: &str, target: &mut String) {
        let parse = |text: &str| Some(format!("{}ms", go::duration::parse(text)? / 1_000_000));
        self.parsed(name, A_DURATION, parse, target);
    }

    fn seconds(&mut self, name: &str, target: &mut String) {
        let parse = |text: &str| Some(format!("{}s", go::duration::parse(text)? / 1_000_000_000));
        self.parsed(name, A_DURATION, parse, target);
    }

    /// Keeps the text of a quantity, and returns the quantity.
    fn quantity(&mut self, name: &str, target: &mut String) -> Option<Quantity> {
        let mut found: Option<(Quantity, String)> = None;
        let parse = |text: &str| Some(Some((text.parse().ok()?, text.to_owned())));
        self.parsed(name, "a quantity such as 100m or 250Mi", parse, &mut found);
        let (quantity, text) = found?;
        *target = text;
        Some(quantity)
    }

    fn parsed<T>(&mut self, name: &str, wanted: &str, parse: impl FnOnce(&str) -> Option<T>, target: &mut T) {
        self.parsed_at(&format!("{PREFIX}{name}"), wanted, parse, target);
    }

    fn parsed_at<T>(&mut self, key: &str, wanted: &str, parse: impl FnOnce(&str) -> Option<T>, target: &mut T) {
        let Some(text) = self.annotations.whole(key) else { return };
        match parse(text) {
            Some(value) => *target = value,
            None => self.warn(key, text, wanted),
        }
    }

    fn warn(&mut self, key: &str, text: &str, wanted: &str) {
        self.warnings.add(format_args!("the annotation {key} is ignored: {:?} is not {wanted}", shown(text)));
    }
}

const A_DURATION: &str = "a duration such as 100ms or 5s";

/// Returns the cores of a quantity, rounded up. A number that is too large sets no number of workers.
fn whole_cores(quantity: Quantity) -> i64 {
    let milli = quantity.milli_value();
    let cores = milli.div_euclid(1000) + i128::from(milli.rem_euclid(1000) != 0);
    i64::try_from(cores).ok().filter(|cores| *cores < i64::MAX).unwrap_or_default()
}

/// Merges the variables of the document, the namespace and the Pod, in this order. A variable replaces an earlier one with
/// the same name. Variables of the namespace also apply if the Pod has some. Without an annotation, the list of the
/// document is not changed.
fn additional_env(of_document: &[ProxyEnvVar], read: &mut Reader<'_>) -> Vec<ProxyEnvVar> {
    if read.annotations.get("proxy-additional-env").is_none() {
        return of_document.to_vec();
    }
    let mut lists = vec![of_document.to_vec()];
    for annotations in [read.annotations.namespace, read.annotations.pod] {
        let Some(text) = annotations.get(ADDITIONAL_ENV_ANNOTATION) else { continue };
        match variables(text) {
            Some(variables) => lists.push(variables),
            None => read.warn(ADDITIONAL_ENV_ANNOTATION, text, "a JSON list of variables"),
        }
    }
    let mut merged: Vec<ProxyEnvVar> = Vec::new();
    let mut places = HashMap::new();
    for variable in lists.into_iter().flatten() {
        let place = *places.entry(variable.name.clone()).or_insert(merged.len());
        match merged.get_mut(place) {
            Some(same) => *same = variable,
            None => merged.push(variable),
        }
    }
    merged
}

/// Reads a JSON list of variables, whose keys may be written in any case.
fn variables(text: &str) -> Option<Vec<ProxyEnvVar>> {
    if text.is_empty() {
        return Some(Vec::new());
    }
    let listed: Option<Vec<serde_json::Map<String, Value>>> = serde_json::from_str(text).ok()?;
    let canonical = |map: serde_json::Map<String, Value>| {
        let key = |key: String| ["name", "value", "valueFrom"].into_iter().find(|it| it.eq_ignore_ascii_case(&key));
        let fields = map.into_iter().filter_map(|(name, value)| Some((key(name)?.to_owned(), value)));
        serde_json::from_value(Value::Object(fields.collect())).ok()
    };
    listed.unwrap_or_default().into_iter().map(canonical).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::proxy_injector::annotations::AnnotationMap;

    fn variable(name: &str, value: &str) -> ProxyEnvVar {
        serde_json::from_value(json!({"name": name, "value": value})).unwrap()
    }

    /// Returns the names and values of the variables, and the number of warnings.
    fn merged(of_document: &[ProxyEnvVar], namespace: Option<&str>, pod: Option<&str>) -> (String, usize) {
        let map = |text: Option<&str>| -> AnnotationMap {
            text.into_iter().map(|text| (ADDITIONAL_ENV_ANNOTATION.to_owned(), text.to_owned())).collect()
        };
        let (namespace, pod) = (map(namespace), map(pod));
        let annotations = Annotations { pod: &pod, namespace: &namespace };
        let mut read = Reader { annotations, warnings: AuthorWarnings::default() };
        let variables = additional_env(of_document, &mut read);
        let text = variables.iter().map(|it| format!("{}={}", it.name, it.value)).collect::<Vec<_>>().join(" ");
        (text, read.warnings.into_texts().len())
    }

    #[test]
    fn variables_of_the_namespace_replace_those_of_the_document_and_variables_of_the_pod_replace_both() {
        let document = [variable("A", "1"), variable("B", "1")];
        let namespace = r#"[{"name": "B", "value": "2"}, {"name": "C", "value": "2"}]"#;
        let pod = r#"[{"NAME": "C", "Value": "3", "more": 1}]"#;
        assert_eq!(merged(&document, Some(namespace), Some(pod)), ("A=1 B=2 C=3".to_owned(), 0));
        assert_eq!(merged(&document, Some(namespace), Some("")), ("A=1 B=2 C=2".to_owned(), 0));
        assert_eq!(merged(&document, Some(namespace), Some("{}")), ("A=1 B=2 C=2".to_owned(), 1));
        // Linkerd's injector changes the list of the document only if there is an annotation.
        let twice = [variable("A", "1"), variable("A", "2")];
        assert_eq!(merged(&twice, None, None), ("A=1 A=2".to_owned(), 0));
        assert_eq!(merged(&twice, None, Some("[]")), ("A=2".to_owned(), 0));
    }

    #[test]
    fn ten_warnings_are_kept_of_a_hundred_thousand_invalid_ports() {
        let pod = AnnotationMap::from([("config.linkerd.io/opaque-ports".to_owned(), "x,".repeat(100_000) + "80,web")]);
        let containers = json!({"spec": {"containers": [{"ports": [{"name": "web", "containerPort": 8080}]}]}});
        let pod_spec: ReviewedObject = serde_json::from_value(containers).unwrap();
        let annotations = Annotations { pod: &pod, namespace: &AnnotationMap::new() };
        let (values, warnings) = overridden(&ProxyValues::default(), annotations, &pod_spec);
        assert_eq!((values.proxy.opaque_ports.as_str(), warnings.into_texts().len()), ("80,8080", 10));
    }
}
