use std::sync::LazyLock;

use serde_json::{Value, json};

use crate::{
    proxy_injector::{
        annotations::AnnotationMap,
        configuration::Configuration,
        decision::NotInjected,
        inject::{AdmissionOutcome, Injector, ObjectKind, ReviewTarget},
        reviewed::ReviewedObject,
    },
    values::testing::TRUST_ANCHORS,
};

pub(super) const INSTALLED: &str = include_str!("../../values/testdata/installed.yaml");
static CONFIGURATION: LazyLock<Configuration> =
    LazyLock::new(|| Configuration::read(INSTALLED, TRUST_ANCHORS).unwrap());

/// Where an object is created: the annotations of the namespace, and its label `linkerd.io/inject`.
#[derive(Default)]
pub(super) struct Target<'a> {
    namespace: AnnotationMap,
    inject_label: Option<&'a str>,
}

pub(super) fn map(annotations: &[(&str, &str)]) -> AnnotationMap {
    annotations.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
}

pub(super) fn enabled() -> Target<'static> {
    Target { namespace: map(&[("linkerd.io/inject", "enabled")]), inject_label: None }
}

pub(super) fn review(kind: ObjectKind, object: Value, target: &Target<'_>) -> AdmissionOutcome {
    reviewed(&CONFIGURATION, kind, object, target)
}

pub(super) fn reviewed(
    configuration: &Configuration,
    kind: ObjectKind,
    object: Value,
    target: &Target<'_>,
) -> AdmissionOutcome {
    let object: ReviewedObject = serde_json::from_value(object).unwrap();
    let Target { namespace, inject_label } = target;
    let target = ReviewTarget { namespace, namespace_name: "shop", inject_label: *inject_label, workload: None };
    let injector = Injector { controller_namespace: "linkerd", version: "v" };
    injector.decide(Ok(configuration), kind, target, &object).unwrap()
}

fn pod(annotations: &[(&str, &str)]) -> Value {
    json!({"metadata": {"annotations": map(annotations)}, "spec": {"containers": [{"name": "web"}]}})
}

fn warned(pod: Value, target: &Target<'_>) -> Vec<String> {
    review(ObjectKind::Pod, pod, target).into_warnings()
}

/// Returns the warnings of a Pod with these annotations below `config.linkerd.io/`, in a namespace with injection.
pub(super) fn configured(annotations: &[(&str, &str)]) -> Vec<String> {
    let keys: Vec<_> = annotations.iter().map(|(name, text)| (format!("config.linkerd.io/{name}"), *text)).collect();
    let annotations: Vec<_> = keys.iter().map(|(key, text)| (key.as_str(), *text)).collect();
    warned(pod(&annotations), &enabled())
}

#[test]
fn another_value_of_the_annotation_for_injection_has_a_warning() {
    for text in ["true", "Enabled", "false", "enabled "] {
        let expected =
            format!("linkerd.io/inject is {text:?}: it must be enabled, ingress or disabled; no proxy is injected");
        assert_eq!(warned(pod(&[("linkerd.io/inject", text)]), &Target::default()), [expected.as_str()]);
        assert_eq!(warned(pod(&[("linkerd.io/inject", text)]), &enabled()), [expected]);
        let target = Target { namespace: map(&[("linkerd.io/inject", text)]), inject_label: None };
        let of_namespace = format!(
            "linkerd.io/inject of the namespace is {text:?}: it must be enabled, ingress or disabled; no proxy is injected"
        );
        assert_eq!(warned(pod(&[]), &target), [of_namespace]);
    }
    for text in ["enabled", "ingress", "disabled", ""] {
        let warnings = warned(pod(&[("linkerd.io/inject", text)]), &Target::default());
        assert!(warnings.is_empty(), "{warnings:?}");
    }
}

#[test]
fn a_label_in_place_of_the_annotation_for_injection_has_a_warning() {
    let labelled = |value: &str| json!({"metadata": {"labels": {"linkerd.io/inject": value}}});
    let of_pod = "linkerd.io/inject is a label; Linkerd reads the annotation";
    assert_eq!(warned(labelled("enabled"), &Target::default()), [of_pod]);
    assert_eq!(warned(labelled("disabled"), &enabled()), [of_pod], "the Pod has a proxy");
    assert_eq!(warned(labelled("enabled"), &enabled()), [""; 0]);
    let namespace = Target { inject_label: Some("enabled"), ..Target::default() };
    let of_namespace = "linkerd.io/inject is a label of the namespace; Linkerd reads the annotation";
    assert_eq!(warned(pod(&[]), &namespace), [of_namespace]);
    assert_eq!(warned(pod(&[("linkerd.io/inject", "enabled")]), &namespace), [""; 0], "the Pod has a proxy");
}

#[test]
fn an_unknown_annotation_of_a_pod_or_a_namespace_has_a_warning() {
    let unknown = |key: &str, of: &str| format!("the annotation {key}{of} is unknown and has no effect");
    for key in [
        "config.linkerd.io/skip-oubound-ports",
        "config.alpha.linkerd.io/proxy-wait-before-exit-secs",
        "config.beta.linkerd.io/proxy-enable-native-sidecars",
        "linkerd.io/injected",
    ] {
        assert_eq!(warned(pod(&[(key, "true")]), &enabled()), [unknown(key, "")]);
        let mut target = enabled();
        target.namespace.insert(key.to_owned(), "true".to_owned());
        assert_eq!(warned(pod(&[]), &target), [unknown(key, " of the namespace")]);
    }
    let without_proxy = |key: &str| warned(pod(&[(key, "enabled")]), &Target::default());
    assert_eq!(without_proxy("linkerd.io/injected"), [unknown("linkerd.io/injected", "")]);
    assert_eq!(without_proxy("config.linkerd.io/proxy-loglevel"), [""; 0]);
    let mut target = enabled();
    target.namespace.insert("config.linkerd.io/enable-gateway".to_owned(), "true".to_owned());
    let expected =
        "the annotation config.linkerd.io/enable-gateway of the namespace has no effect: set it in the Pod template";
    assert_eq!(warned(pod(&[]), &target), [expected]);
}

#[test]
fn a_pod_for_windows_gets_no_proxy() {
    let required = json!({"nodeSelectorTerms": [
        {"matchExpressions": [{"key": "kubernetes.io/os", "operator": "In", "values": ["windows"]}]},
    ]});
    for spec in [
        json!({"os": {"name": "windows"}}),
        json!({"nodeSelector": {"kubernetes.io/os": "windows"}}),
        json!({"nodeSelector": {"beta.kubernetes.io/os": "windows"}}),
        json!({"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}}),
    ] {
        let outcome = review(ObjectKind::Pod, json!({ "spec": spec }), &enabled());
        assert_eq!(outcome.decision.skipped, [NotInjected::Windows], "{spec}");
        let expected = "no proxy is injected: pod runs on Windows, and the proxy runs on Linux only";
        assert_eq!(outcome.into_warnings(), [expected]);
    }
    for spec in [json!({"os": {"name": "linux"}}), json!({"nodeSelector": {"kubernetes.io/os": "linux"}})] {
        assert!(review(ObjectKind::Pod, json!({ "spec": spec }), &enabled()).decision.injects(), "{spec}");
    }
}

/// The value that is injected is the one that Linkerd's injector writes, and discovery reads the annotation equally.
#[test]
fn a_range_with_spaces_is_no_opaque_port() {
    let outcome =
        review(ObjectKind::Pod, pod(&[("config.linkerd.io/opaque-ports", "9000 - 9100, 80-80,+81")]), &enabled());
    let patch = json!(outcome.patch).to_string();
    let variable = r#"{"name":"LINKERD2_PROXY_INBOUND_PORTS_DISABLE_PROTOCOL_DETECTION","value":"80,81"}"#;
    assert!(patch.contains(variable), "{patch}");
    let expected = "the annotation config.linkerd.io/opaque-ports is ignored: \"9000 - 9100\" is not a port, a range such \
                    as 9000-9100 or the name of a port";
    assert_eq!(outcome.into_warnings(), [expected]);
}

/// The way in which each program reads a text: the proxy (linkerd2-proxy, `app/src/env`), `linkerd-init`
/// (linkerd2-proxy-init, `pkg/util` and `cmd`), the kubelet, and the validation of Pods.
#[test]
fn a_value_that_its_reader_cannot_use_has_a_warning() {
    const REJECTED: &str = "the API server rejects the Pod";
    const NO_START: &str = "the proxy cannot start";
    const NO_IMAGE: &str = "the image cannot be pulled";
    const NO_FIREWALL: &str = "the firewall cannot be set up, so the Pod cannot start";
    const LOGS_NOTHING: &str = "the proxy takes it for a module, and logs nothing else without a level";
    for (name, text, part, effect) in [
        ("skip-outbound-ports", "443, 8443", " 8443", "the port is not skipped"),
        ("skip-inbound-ports", "mysql", "mysql", "the port is not skipped"),
        ("skip-inbound-ports", "9000 - 9100", "9000 - 9100", "the port is not skipped"),
        ("skip-inbound-ports", "1-70000,80", "1-70000", "the port is not skipped"),
        ("skip-outbound-ports", ",", ",", NO_FIREWALL),
        ("skip-outbound-ports", "mysql", "mysql", NO_FIREWALL),
        ("skip-outbound-ports", " 443", " 443", NO_FIREWALL),
        ("skip-subnets", "fd00::/8", "fd00::/8", NO_FIREWALL),
        ("skip-subnets", "10.0.0.0/8, ::ffff:10.0.0.0/104", " ::ffff:10.0.0.0/104", NO_FIREWALL),
        ("skip-subnets", "10.0.0.1", "10.0.0.1", NO_FIREWALL),
        ("skip-subnets", "10.0.0.0/8, 010.0.0.0/8", " 010.0.0.0/8", NO_FIREWALL),
        ("skip-subnets", "10.0.0.0/8,", "", NO_FIREWALL),
        ("proxy-require-identity-inbound-ports", "8080,http", "http", "the proxy cannot read the list"),
        ("pod-inbound-ports", "80", "80", "the ports of the containers are used"),
        ("access-log", "combined", "combined", "the proxy writes no access log"),
        ("proxy-log-level", "warn,linkerd=inf o", "linkerd=inf o", "the proxy ignores it"),
        ("proxy-log-level", "linkerd=inf", "linkerd=inf", "the proxy ignores it"),
        ("proxy-log-level", "verbose", "verbose", LOGS_NOTHING),
        ("proxy-log-level", "warn;linkerd=debug", "warn;linkerd=debug", LOGS_NOTHING),
        ("proxy-log-format", "yaml", "yaml", "the proxy writes plain lines"),
        ("enable-debug-sidecar", "yes", "yes", "there is no debug container"),
        ("proxy-image", " a", " a", REJECTED),
        ("proxy-version", "a ", "a ", REJECTED),
        ("proxy-image", "proxy@sha256", "proxy@sha256", NO_IMAGE),
        ("proxy-image", "cr.l5d.io/Linkerd/proxy", "cr.l5d.io/Linkerd/proxy", NO_IMAGE),
        ("proxy-image", "cr.l5d.io//proxy", "cr.l5d.io//proxy", NO_IMAGE),
        ("proxy-image", "https://cr.l5d.io/proxy", "https://cr.l5d.io/proxy", NO_IMAGE),
        ("proxy-image", "cr.l5d.io/linkerd/proxy:edge-26.8.3", "cr.l5d.io/linkerd/proxy:edge-26.8.3", NO_IMAGE),
        ("proxy-version", "sha256:abc", "sha256:abc", NO_IMAGE),
        ("proxy-version", "a@sha256:abc", "a@sha256:abc", NO_IMAGE),
        ("proxy-version", "-a", "-a", NO_IMAGE),
        ("debug-image", "A b", "A b", NO_IMAGE),
        ("debug-image", " a", " a", REJECTED),
        ("debug-image-version", "a/b", "a/b", NO_IMAGE),
        ("image-pull-policy", "always", "always", REJECTED),
        ("admin-port", "70000", "70000", REJECTED),
        ("admin-port", "0", "0", REJECTED),
        ("inbound-port", "-1", "-1", REJECTED),
        ("control-port", "-4190", "-4190", NO_START),
        ("outbound-port", "65536", "65536", NO_START),
        ("proxy-uid", "-1", "-1", REJECTED),
        ("proxy-uid", "2147483648", "2147483648", REJECTED),
        ("proxy-uid", "0", "0", "the kubelet does not start the proxy as root"),
        ("proxy-gid", "99999999999", "99999999999", REJECTED),
        ("proxy-inbound-connect-timeout", "-1s", "-1s", NO_START),
        ("proxy-outbound-discovery-cache-unused-timeout", "-5s", "-5s", NO_START),
    ] {
        let debugged = name.starts_with("debug-").then_some(("enable-debug-sidecar", "true"));
        let warnings = configured(&debugged.into_iter().chain([(name, text)]).collect::<Vec<_>>());
        let [warning, ..] = &warnings[..] else { panic!("{name}: {text:?} has no warning") };
        let begin = format!("the annotation config.linkerd.io/{name} has {part:?}, which is not ");
        assert!(warning.starts_with(&begin) && warning.ends_with(effect), "{name}: {text:?}: {warnings:?}");
    }
    for (name, text) in [
        ("skip-outbound-ports", "443,9000-9100,"),
        ("skip-inbound-ports", ""),
        ("skip-subnets", "10.0.0.0/8, 192.168.1.1/16"),
        ("proxy-require-identity-inbound-ports", "1, ,3- 5"),
        ("access-log", "Apache"),
        ("proxy-log-level", "warn,linkerd=info,hickory=error,[{headers}]=off,linkerd_app::x=trace,"),
        ("proxy-log-format", " JSON"),
        ("enable-debug-sidecar", ""),
        ("image-pull-policy", "Never"),
        ("admin-port", "65535"),
        ("proxy-uid", "2147483647"),
        ("proxy-gid", "-1"),
        ("proxy-inbound-connect-timeout", "-0.5ms"),
        ("default-inbound-policy", "audit"),
        // The Pod gets no debug container.
        ("debug-image", " a"),
        ("debug-image-pull-policy", "always"),
        ("proxy-image", "localhost:5000/proxy"),
        ("proxy-version", &format!("edge@sha256:{}", "0".repeat(64))),
    ] {
        assert_eq!(configured(&[(name, text)]), [""; 0], "{name}: {text:?}");
    }
}

#[test]
fn values_that_do_not_fit_together_have_a_warning() {
    let rejected = |text: &str| format!("{text}: the API server rejects the Pod");
    assert_eq!(
        configured(&[("proxy-memory-request", "200Mi"), ("proxy-memory-limit", "100Mi")]),
        [rejected("the memory request of the proxy, 200Mi, exceeds its limit, 100Mi")]
    );
    assert_eq!(
        configured(&[("proxy-cpu-limit", "-1")]),
        [rejected("the annotation config.linkerd.io/proxy-cpu-limit has \"-1\", which is negative")]
    );
    let doubtful = |name: &str, text: &str| configured(&[(name, text)]).join("; ");
    assert_eq!(
        doubtful("proxy-memory-limit", "10"),
        "the annotation config.linkerd.io/proxy-memory-limit has \"10\", which is 10 bytes: did you mean 10Mi?"
    );
    assert_eq!(
        doubtful("proxy-cpu-request", "100M"),
        "the annotation config.linkerd.io/proxy-cpu-request has \"100M\", which is 100000000 cores: did you mean 100m?"
    );
    assert_eq!((doubtful("proxy-memory-request", "20Mi"), doubtful("proxy-cpu-limit", "4")), ("".into(), "".into()));
    assert_eq!(
        configured(&[("admin-port", "4143")]),
        ["the admin port and the inbound port of the proxy are both 4143: it cannot start"]
    );
    let env = |list: &str| configured(&[("proxy-additional-env", list)]);
    let of_env = |text: &str| rejected(&format!("the annotation config.linkerd.io/proxy-additional-env has {text}"));
    let source = |reason: &str| of_env(&format!("no valid source of the variable \"A\": {reason}"));
    assert_eq!(env(r#"[{"name": ""}]"#), [of_env("\"\", which is not the name of a variable")]);
    assert_eq!(env(r#"[{"name": "a=b"}]"#), [of_env("\"a=b\", which is not the name of a variable")]);
    assert_eq!(env(r#"[{"name": "A", "valueFrom": "a"}]"#), [source("valueFrom is not a map")]);
    let one = "valueFrom must have exactly one source";
    assert_eq!(env(r#"[{"name": "A", "valueFrom": {}}]"#), [source(one)]);
    let version = r#"[{"name": "A", "valueFrom": {"fieldRef": {"apiVersion": "v2", "fieldPath": "metadata.name"}}}]"#;
    assert_eq!(env(version), [source("fieldRef.apiVersion must be v1")]);
    let both = r#"[{"name": "A", "value": "1", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}]"#;
    assert_eq!(env(both), [of_env("a value and a source of the variable \"A\"")]);
    assert_eq!(env(r#"[{"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}]"#), [""; 0]);
}

#[test]
fn a_pod_that_conflicts_with_its_proxy_has_a_warning() {
    let spec = |spec: Value| warned(json!({ "spec": spec }), &enabled());
    let port = |number: i64, name: &str| {
        format!("the port {number} of a container is the {name} port of the proxy: only one of them can listen on it")
    };
    let with_port = |port: Value| spec(json!({"containers": [{"name": "web", "ports": [port]}]}));
    assert_eq!(with_port(json!({"containerPort": 4190})), [port(4190, "control")]);
    assert_eq!(with_port(json!({"containerPort": 4191, "protocol": "TCP"})), [port(4191, "admin")]);
    assert_eq!(with_port(json!({"containerPort": 4143, "hostPort": 80})), [port(4143, "inbound")]);
    assert_eq!(with_port(json!({"containerPort": 4140})), [port(4140, "outbound")]);
    assert_eq!(with_port(json!({"containerPort": 4190, "protocol": "UDP"})), [""; 0]);
    let user = "the container \"web\" runs as the user 2102 of the proxy: its traffic bypasses the proxy";
    let web = |user: Value| json!([{"name": "web", "securityContext": {"runAsUser": user}}]);
    assert_eq!(spec(json!({"securityContext": {"runAsUser": 2102}, "containers": [{"name": "web"}]})), [user]);
    assert_eq!(spec(json!({"containers": web(json!(2102))})), [user]);
    assert_eq!(spec(json!({"securityContext": {"runAsUser": 2102}, "containers": web(json!(1000))})), [""; 0]);
    let group = json!({
        "metadata": {"annotations": {"config.linkerd.io/proxy-gid": "2103"}},
        "spec": {"containers": [{"name": "web", "securityContext": {"runAsGroup": 2103}}]},
    });
    let of_group = "the container \"web\" runs as the group 2103 of the proxy: its traffic bypasses the proxy";
    assert_eq!(warned(group, &enabled()), [of_group]);
    let grace = |annotation: &str, seconds: Value| {
        let annotations = map(&[("config.linkerd.io/shutdown-grace-period", annotation)]);
        let spec = json!({"terminationGracePeriodSeconds": seconds});
        warned(json!({"metadata": {"annotations": annotations}, "spec": spec}), &enabled())
    };
    let killed = "the annotation config.linkerd.io/shutdown-grace-period has 5m, but terminationGracePeriodSeconds is 30: \
                  the kubelet kills the proxy before";
    assert_eq!((grace("5m", json!(30)), grace("5m", json!(null))), (vec![killed.to_owned()], vec![killed.to_owned()]));
    assert_eq!((grace("5m", json!(300)), grace("30s", json!(30))), (Vec::new(), Vec::new()));
    let exit = |native: &str, seconds: &str| {
        warned(
            pod(&[
                ("config.linkerd.io/proxy-enable-native-sidecar", native),
                ("config.alpha.linkerd.io/proxy-wait-before-exit-seconds", seconds),
            ]),
            &enabled(),
        )
    };
    let key = "the annotation config.alpha.linkerd.io/proxy-wait-before-exit-seconds has";
    assert_eq!(exit("true", "5"), [format!("{key} no effect on a native sidecar")]);
    let killed = format!("{key} 60, but terminationGracePeriodSeconds is 30: the kubelet kills the proxy before");
    assert_eq!((exit("false", "60"), exit("false", "5")), (vec![killed], Vec::new()));
}

#[test]
fn an_annotation_without_an_effect_on_a_service_has_a_warning() {
    let service = |annotations: &[(&str, &str)]| {
        let spec = json!({"ports": [{"name": "mysql", "port": 3306}, {"port": 80}]});
        let object = json!({"metadata": {"annotations": map(annotations)}, "spec": spec});
        review(ObjectKind::Service, object, &Target::default()).into_warnings()
    };
    assert_eq!(
        service(&[("config.linkerd.io/skip-outbound-ports", "3306")]),
        [
            "the annotation config.linkerd.io/skip-outbound-ports has no effect on a Service: set it on the Pods of its clients"
        ]
    );
    assert_eq!(
        service(&[("linkerd.io/inject", "enabled")]),
        ["the annotation linkerd.io/inject has no effect on a Service: set it on its Pods"]
    );
    let ignored = |item: &str| {
        format!(
            "the annotation config.linkerd.io/opaque-ports has {item:?}, which is not a port, a range such as 9000-9100 \
             or the name of a port of the Service: it is ignored"
        )
    };
    assert_eq!(
        service(&[("config.linkerd.io/opaque-ports", "tcp-mysql,33o6,mysql,80")]),
        [ignored("tcp-mysql"), ignored("33o6")]
    );
    assert_eq!(
        service(&[("config.linkerd.io/opaqe-ports", "80")]),
        ["the annotation config.linkerd.io/opaqe-ports is unknown and has no effect"]
    );
    assert_eq!(service(&[("linkerd.io/created-by", "x"), ("viz.linkerd.io/a", "x"), ("team", "x")]), [""; 0]);
}

#[test]
fn warnings_are_few_and_short_and_those_of_a_rejection_are_first() {
    let mut annotations: Vec<(String, String)> =
        (0..100).map(|at| (format!("config.linkerd.io/unknown-{at}"), "x".to_owned())).collect();
    annotations.push(("config.linkerd.io/opaque-ports".to_owned(), "x".repeat(100_000)));
    annotations.push(("config.linkerd.io/image-pull-policy".to_owned(), "é".repeat(10_000)));
    let annotations: Vec<_> = annotations.iter().map(|(key, text)| (key.as_str(), text.as_str())).collect();
    let outcome = review(ObjectKind::Pod, pod(&annotations), &enabled());
    assert!(outcome.warnings.is_rejected());
    let warnings = outcome.into_warnings();
    assert!(warnings[0].starts_with("the annotation config.linkerd.io/image-pull-policy has"), "{warnings:?}");
    assert!(warnings.len() == 10 && warnings.iter().all(|it| it.len() <= 250), "{warnings:?}");
}

#[test]
fn an_object_has_no_more_annotations_than_the_api_server_accepts() {
    let long = |bytes: usize| json!({"metadata": {"annotations": {"x": "y".repeat(bytes)}}, "spec": {"ports": [{"port": 3306}]}});
    let mut full: ReviewedObject = serde_json::from_value(long((256 << 10) - 10)).unwrap();
    let target = enabled();
    let namespace = &target.namespace;
    let target = ReviewTarget { namespace, namespace_name: "shop", inject_label: None, workload: None };
    let injector = Injector { controller_namespace: "linkerd", version: "v" };
    let denied = injector.decide(Ok(&CONFIGURATION), ObjectKind::Pod, target, &full).unwrap_err();
    assert_eq!(denied.to_string(), "the annotations of the Pod would be longer than 256 KiB with those of the proxy");
    let service = injector.decide(Ok(&CONFIGURATION), ObjectKind::Service, target, &full).unwrap();
    assert!(service.patch.is_empty());
    let expected = "config.linkerd.io/opaque-ports is not added: the annotations would be longer than 256 KiB";
    assert_eq!(service.into_warnings(), [expected]);
    full.metadata.annotations = map(&[("x", "y")]);
    assert!(injector.decide(Ok(&CONFIGURATION), ObjectKind::Pod, target, &full).is_ok());
}
