//! Warnings about ExternalWorkloads: values that Linkerd's schema admits, and that no endpoint can have. Pure, except for
//! the [`Validator`] around it.
//!
//! In: an ExternalWorkload. Out: warnings. Always holds: no ExternalWorkload is denied, because Linkerd accepts it; the
//! words about addresses and names are those of the Events; the number of warnings and their length are bounded.

use std::collections::HashSet;

use futures::{FutureExt, future::BoxFuture};
use rustls::pki_types::DnsName;
use serde_json::value::RawValue;

use super::endpoint::{INVALID_HOSTNAME, describe_invalid};
use crate::{
    api::{self, EXTERNAL_WORKLOAD_KIND, is_dns_label},
    cluster::{Problems, Projected, kinds::external_workload::ExternalWorkload},
    text::{and_more, truncate},
    webhook::{ValidationRequest, ValidationVerdict, Validator},
};

const GROUP: &str = "workload.linkerd.io";
/// The protocols that a port of a Service can have.
const PROTOCOLS: [&str; 3] = ["TCP", "UDP", "SCTP"];
/// The maximum length of a text of the object in a warning, in bytes.
const TEXT_SHOWN: usize = 64;
/// The maximum number of ports in a warning.
const PORTS_SHOWN: usize = 3;

pub struct ExternalWorkloadValidator;

// === impl ExternalWorkloadValidator ===

impl Validator for ExternalWorkloadValidator {
    fn kind(&self) -> (&'static str, &'static str) {
        (GROUP, EXTERNAL_WORKLOAD_KIND)
    }

    fn validate<'a>(&'a self, request: &'a ValidationRequest<'a>) -> BoxFuture<'a, ValidationVerdict> {
        let read = |object: &RawValue| serde_json::from_str(object.get()).ok();
        // The schema of the API server has read the object already.
        let object = request.object.and_then(read);
        let warnings = object.map(|object| warnings(&request.kind.version, object)).unwrap_or_default();
        async { ValidationVerdict { denied: None, warnings } }.boxed()
    }
}

/// Returns the warnings about an object that a client has sent in this version of the API.
fn warnings(version: &str, object: api::ExternalWorkload) -> Vec<String> {
    let mut problems = Problems::default();
    let declared: Vec<_> = object.spec.iter().flat_map(|spec| spec.ports.iter().flatten()).cloned().collect();
    let workload = ExternalWorkload::project(object, &mut problems);
    let mut warnings = Vec::new();
    if version == "v1alpha1" {
        warnings.push(
            "spec.meshTls of v1alpha1 is dropped, because v1beta1 names it meshTLS: proxies connect without TLS; use \
             v1beta1"
                .to_owned(),
        );
    } else {
        warnings.extend(identity_problem(&workload));
    }
    warnings.extend(match workload.addresses.is_empty() {
        true => Some("spec.workloadIPs is empty: the workload is an endpoint of no Service".to_owned()),
        false => describe_invalid(&workload.addresses),
    });
    warnings.extend(ports(&declared));
    if !is_dns_label(&workload.key.name) && !workload.key.name.is_empty() {
        warnings.push(format!("As an endpoint of a headless Service: {INVALID_HOSTNAME}"));
    }
    if !problems.is_empty() {
        warnings.push(format!("annotation config.linkerd.io/opaque-ports: {problems}"));
    }
    warnings
}

/// Returns a warning if proxies cannot parse the identity or the server name: they then connect without TLS.
fn identity_problem(workload: &ExternalWorkload) -> Option<String> {
    let (identity, server_name) = (&*workload.mesh.identity, &*workload.mesh.server_name);
    let is_uri = identity.split_once("://").is_some_and(|(scheme, rest)| !scheme.is_empty() && !rest.is_empty());
    let (field, text, wanted) = if !is_uri {
        ("identity", identity, "a URI such as spiffe://root.linkerd.cluster.local/vm")
    } else if DnsName::try_from(server_name).is_err() {
        ("serverName", server_name, "a DNS name")
    } else {
        return None;
    };
    let text = truncate(text, TEXT_SHOWN);
    Some(format!("spec.meshTLS.{field} {text:?} is not {wanted}: proxies ignore the identity and connect without TLS"))
}

fn ports(ports: &[api::ExternalWorkloadPort]) -> Vec<String> {
    if ports.is_empty() {
        return vec!["spec.ports is empty: no Service reaches a port of the workload".to_owned()];
    }
    let of = |port: &api::ExternalWorkloadPort| port.protocol.clone().unwrap_or_else(|| "TCP".to_owned());
    let name = |port: &api::ExternalWorkloadPort| port.name.clone().unwrap_or_default();
    let mut seen = HashSet::new();
    let unknown = ports.iter().map(of).filter(|protocol| !PROTOCOLS.contains(&protocol.as_str()));
    let unknown = listed(unknown, "has a protocol that no Service has", "must be TCP, UDP or SCTP");
    let named = || ports.iter().map(name).filter(|name| !name.is_empty());
    let unnameable = named().filter(|name| !is_port_name(name));
    let unnameable = listed(
        unnameable,
        "has a name that no Service can target",
        "must have at most 15 characters of a-z, 0-9 and -, one of them a letter",
    );
    let twice = ports.iter().filter(|port| !name(port).is_empty() && !seen.insert((name(port), of(port))));
    let twice = listed(
        twice.map(name),
        "has the same name and protocol twice",
        "counts only once, as the first of these ports",
    );
    [unknown, unnameable, twice].into_iter().flatten().collect()
}

/// Returns one warning about texts of ports; `None` without any.
fn listed(texts: impl Iterator<Item = String>, what: &str, then: &str) -> Option<String> {
    let texts: Vec<_> = texts.collect();
    let shown = texts.iter().take(PORTS_SHOWN).map(|text| format!("{:?}", truncate(text, TEXT_SHOWN)));
    (!texts.is_empty()).then(|| format!("spec.ports {what} ({}): it {then}", and_more(shown, texts.len(), ", ")))
}

/// Whether a Service can have the name as `targetPort`.
fn is_port_name(name: &str) -> bool {
    let inner = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    (1..=15).contains(&name.len())
        && name.chars().all(inner)
        && name.chars().any(|c| c.is_ascii_lowercase())
        && !name.starts_with('-')
        && !name.ends_with('-')
        && !name.contains("--")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;

    fn of(name: &str, annotations: &Value, spec: &Value) -> Vec<String> {
        let object = json!({"metadata": {"name": name, "namespace": "ns", "annotations": annotations}, "spec": spec});
        warnings("v1beta1", serde_json::from_value(object).unwrap())
    }

    /// A spec without any warning, with these changes.
    fn spec(changes: &Value) -> Value {
        let mut spec = json!({
            "meshTLS": {"identity": "spiffe://root.linkerd.cluster.local/vm", "serverName": "vm.cluster.local"},
            "workloadIPs": [{"ip": "192.0.2.1"}, {"ip": "2001:db8::1"}],
            "ports": [{"name": "http", "port": 80}, {"name": "http", "port": 80, "protocol": "UDP"}, {"port": 81}],
        });
        spec.as_object_mut().unwrap().extend(changes.as_object().unwrap().clone());
        spec
    }

    fn warnings_of(changes: &Value) -> Vec<String> {
        of("vm", &json!({}), &spec(changes))
    }

    #[test]
    fn a_workload_that_can_be_an_endpoint_has_no_warning() {
        assert_eq!(warnings_of(&json!({})), [""; 0]);
        assert_eq!(
            of("vm", &json!({"config.linkerd.io/opaque-ports": "http,81,9000-9100"}), &spec(&json!({}))),
            [""; 0]
        );
    }

    #[test]
    fn addresses_that_no_endpoint_can_have_are_named() {
        for (ips, expected) in [
            (json!([]), "spec.workloadIPs is empty: the workload is an endpoint of no Service"),
            (json!(null), "spec.workloadIPs is empty: the workload is an endpoint of no Service"),
            (
                json!([{}]),
                "workloadIPs contains \"\", which is not a valid endpoint address: it is empty; it is skipped",
            ),
            (
                json!([{"ip": "127.0.0.1"}]),
                "workloadIPs contains \"127.0.0.1\", which is not a valid endpoint address: it is a loopback address; it \
                 is skipped",
            ),
            (
                json!([{"ip": "192.0.2.1"}, {"ip": "vm.example"}]),
                "workloadIPs contains \"vm.example\", which is not a valid endpoint address: it is not an IP address; it \
                 is skipped",
            ),
        ] {
            assert_eq!(warnings_of(&json!({ "workloadIPs": ips })), [expected]);
        }
    }

    #[test]
    fn ports_that_no_service_can_reach_are_named() {
        for (ports, expected) in [
            (json!([]), "spec.ports is empty: no Service reaches a port of the workload"),
            (
                json!([{"port": 80, "protocol": "tcp"}, {"port": 81, "protocol": ""}]),
                "spec.ports has a protocol that no Service has (\"tcp\", \"\"): it must be TCP, UDP or SCTP",
            ),
            (
                json!([{"port": 80, "name": "HTTP"}, {"port": 81, "name": "a-name-that-is-long"}]),
                "spec.ports has a name that no Service can target (\"HTTP\", \"a-name-that-is-long\"): it must have at most \
                 15 characters of a-z, 0-9 and -, one of them a letter",
            ),
            (
                json!([{"port": 80, "name": "http"}, {"port": 81, "name": "http"}, {"port": 82, "name": "http", "protocol": "UDP"}]),
                "spec.ports has the same name and protocol twice (\"http\"): it counts only once, as the first of these ports",
            ),
        ] {
            assert_eq!(warnings_of(&json!({ "ports": ports })), [expected]);
        }
    }

    #[test]
    fn names_that_proxies_ignore_are_named() {
        let tls = |identity: &str, server_name: &str| {
            warnings_of(&json!({"meshTLS": {"identity": identity, "serverName": server_name}}))
        };
        assert_eq!(
            tls("vm.example", "vm.example"),
            [
                "spec.meshTLS.identity \"vm.example\" is not a URI such as spiffe://root.linkerd.cluster.local/vm: proxies \
              ignore the identity and connect without TLS"
            ]
        );
        for name in ["vm example", "", "-x", "192.0.2.1", "vm..example"] {
            let ignored = "is not a DNS name: proxies ignore the identity and connect without TLS";
            let expected = format!("spec.meshTLS.serverName {name:?} {ignored}");
            assert_eq!(tls("spiffe://mesh.example/vm", name), [expected]);
        }
    }

    #[test]
    fn a_name_that_is_no_hostname_and_an_unusable_annotation_have_warnings() {
        assert_eq!(
            of("vm.example", &json!({"config.linkerd.io/opaque-ports": "80,mysql"}), &spec(&json!({}))),
            [
                "As an endpoint of a headless Service: its name is not a hostname (63 characters of a-z, 0-9 and -, no \
                 dots); it is published without a hostname",
                "annotation config.linkerd.io/opaque-ports: \"mysql\" is neither a port, nor a range, nor the name of a port",
            ]
        );
    }

    #[test]
    fn an_object_in_v1alpha1_loses_its_identity() {
        let spec = json!({"meshTls": {"identity": "i", "serverName": "s"}, "workloadIPs": [{"ip": "192.0.2.1"}], "ports": [{"port": 80}]});
        let object = json!({"metadata": {"name": "vm", "namespace": "ns"}, "spec": spec});
        let warnings = warnings("v1alpha1", serde_json::from_value(object).unwrap());
        assert_eq!(warnings.len(), 1, "{warnings:?}");
        assert!(warnings[0].contains("meshTls of v1alpha1 is dropped"));
    }

    proptest! {
        #[test]
        fn warnings_are_few_and_their_texts_of_the_object_are_short(
            name in "\\PC{0,80}", texts in prop::collection::vec("\\PC{0,200}", 0..30), ports in prop::collection::vec(any::<i64>(), 0..30),
        ) {
            let ports: Vec<_> = ports.iter().zip(&texts).map(|(port, text)| json!({"port": port, "name": text, "protocol": text})).collect();
            let ips: Vec<_> = texts.iter().map(|text| json!({"ip": text})).collect();
            let identity = texts.first().cloned().unwrap_or_default();
            let changes = json!({"ports": ports, "workloadIPs": ips, "meshTLS": {"identity": identity, "serverName": identity}});
            let warnings = of(&name, &json!({"config.linkerd.io/opaque-ports": texts.join(",")}), &changes);
            prop_assert!(warnings.len() <= 7 && warnings.iter().all(|text| text.len() < 4_000), "{warnings:?}");
        }
    }
}
