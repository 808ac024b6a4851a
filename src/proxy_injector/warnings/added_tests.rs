//! Tests of the warnings about values of the document that only some Pods need, and about what is added to a Pod.

use serde_json::{Value, json};

use super::tests::{INSTALLED, configured, enabled, map, review, reviewed};
use crate::{
    proxy_injector::{configuration::Configuration, inject::ObjectKind},
    values::{Document, testing::TRUST_ANCHORS},
};

/// Returns the warnings of a Pod with these annotations, with another value at each path of the document.
fn warned(changes: &[(&str, Value)], annotations: &[(&str, &str)], spec: &Value) -> Vec<String> {
    let (mut document, _) = Document::read(INSTALLED).unwrap();
    changes.iter().for_each(|(at, value)| document.set(&at.split('.').collect(), value.clone()));
    let configuration = Configuration::read(&document.to_yaml(), TRUST_ANCHORS).unwrap();
    let pod = json!({"metadata": {"annotations": map(annotations)}, "spec": spec});
    reviewed(&configuration, ObjectKind::Pod, pod, &enabled()).into_warnings()
}

#[test]
fn a_value_of_the_document_that_only_some_pods_need_has_a_warning_with_these_pods() {
    let debugged = &[("config.linkerd.io/enable-debug-sidecar", "true")][..];
    for (key, value, effect) in [
        ("name", " x", "which is not free of spaces at its ends: the API server rejects the Pod"),
        ("name", "a:b", "which is not the reference of an image without its tag: the image cannot be pulled"),
        ("version", "a b", "which is not the tag of an image: the image cannot be pulled"),
        ("pullPolicy", "always", "which is not Always, IfNotPresent or Never: the API server rejects the Pod"),
    ] {
        let changes = [(&*format!("debugContainer.image.{key}"), json!(value))];
        let expected = format!("the value debugContainer.image.{key} has {value:?}, {effect}");
        assert_eq!(warned(&changes, debugged, &json!({}))[0], expected);
        assert_eq!(warned(&changes, &[], &json!({})), [""; 0], "the Pod gets no debug container");
    }
    let changes = [("linkerdVersion", json!("edge ")), ("proxy.image.version", json!("edge-26.8.3"))];
    let expected = "the value linkerdVersion has \"edge \", which is not free of spaces at its ends: the API server rejects \
                    the Pod";
    assert_eq!(warned(&changes, debugged, &json!({}))[0], expected);
    let skipped = &[("config.linkerd.io/skip-subnets", "10.0.0.0/8")][..];
    let dual_stack = [("disableIPv6", json!(false))];
    let expected = "the annotation config.linkerd.io/skip-subnets requires the value disableIPv6, because linkerd-init \
                    passes the networks to ip6tables, too: the firewall cannot be set up, so the Pod cannot start";
    assert_eq!(warned(&dual_stack, skipped, &json!({})), [expected]);
    assert_eq!(warned(&[("cniEnabled", json!(true)), dual_stack[0].clone()], skipped, &json!({})), [""; 0]);
}

#[test]
fn a_pod_without_a_token_and_a_mount_of_the_document_that_does_not_fit_it_has_a_warning() {
    let token = json!({"containers": [{"volumeMounts": [{
        "name": "token", "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount",
    }]}], "volumes": [{"name": "token"}]});
    for (mount, expected) in [
        (
            json!({"mountPath": "/x", "name": "nope"}),
            "the container linkerd-init mounts the volume \"nope\" of the value proxy.saMountPath, which the Pod lacks: the \
             API server rejects the Pod",
        ),
        (
            json!({"mountPath": "/var/run/secrets/tokens", "name": "linkerd-identity-token"}),
            "the container linkerd-proxy has two mounts at \"/var/run/secrets/tokens\": the API server rejects the Pod",
        ),
    ] {
        let changes = [("proxy.saMountPath", mount)];
        assert_eq!(warned(&changes, &[], &json!({}))[0], expected);
        assert_eq!(warned(&changes, &[], &token), [""; 0], "the mount of the token replaces it");
    }
}

/// The API server says: Duplicate value: "linkerd-init"; Invalid value: cannot set `allowPrivilegeEscalation` to false and
/// `capabilities.Add` CAP_SYS_ADMIN; volumeName: Not found: "a"; referenced volume must be of type emptyDir.
#[test]
fn a_pod_with_what_the_api_server_rejects_together_with_the_proxy_has_a_warning() {
    let spec = |spec: Value| {
        let outcome = review(ObjectKind::Pod, json!({ "spec": spec }), &enabled());
        (outcome.warnings.is_rejected(), outcome.into_warnings().join("; "))
    };
    let named = |name: &str| spec(json!({"containers": [{"name": "web"}, {"name": name}]}));
    let (is_rejected, text) = named("linkerd-init");
    let expected = "the Pod has a container with the name \"linkerd-init\", which the injector adds: the API server \
                    rejects the Pod";
    assert_eq!((is_rejected, text.as_str()), (true, expected));
    assert_eq!(named("linkerd-debug"), (false, String::new()), "the Pod gets no debug container");
    let debugged = json!({
        "metadata": {"annotations": {"config.linkerd.io/enable-debug-sidecar": "true"}},
        "spec": {"containers": [{"name": "linkerd-debug"}]},
    });
    assert!(review(ObjectKind::Pod, debugged, &enabled()).warnings.is_rejected());
    let (is_rejected, text) = spec(json!({"volumes": [{"name": "a"}, {"name": "linkerd-identity-token"}]}));
    let expected = "the Pod has a volume with the name \"linkerd-identity-token\", which the injector adds: the API server \
                    rejects the Pod";
    assert_eq!((is_rejected, text.as_str()), (true, expected));
    let adds = |name: &str| {
        spec(json!({"containers": [{"name": "web", "securityContext": {"capabilities": {"add": ["NET_RAW", name]}}}]}))
    };
    let (is_rejected, text) = adds("CAP_SYS_ADMIN");
    assert!(is_rejected && text.matches("must not be false if CAP_SYS_ADMIN is added").count() == 2, "{text}");
    assert!(
        text.starts_with("securityContext.allowPrivilegeEscalation of the container linkerd-init, which"),
        "{text}"
    );
    assert_eq!(adds("SYS_ADMIN"), (false, String::new()));
    let file = |volumes: Value| {
        let env = r#"[{"name": "A", "valueFrom": {"fileKeyRef": {"volumeName": "a", "path": "b", "key": "c"}}}]"#;
        let annotations = map(&[("config.linkerd.io/proxy-additional-env", env)]);
        let pod = json!({"metadata": {"annotations": annotations}, "spec": {"volumes": volumes}});
        review(ObjectKind::Pod, pod, &enabled()).warnings
    };
    assert!(file(json!([{"name": "a", "emptyDir": {}}])).is_empty());
    assert!(file(json!([])).is_rejected() && file(json!([{"name": "a", "configMap": {"name": "a"}}])).is_rejected());
}

/// Linux starts no process with these, and the API server accepts them.
#[test]
fn a_text_that_no_container_can_have_has_a_warning() {
    let env = format!(r#"[{{"name": "A", "value": "{}"}}]"#, "x".repeat(131_070));
    for (name, text, of) in [
        (
            "access-log",
            "json\0",
            "variable \"LINKERD2_PROXY_ACCESS_LOG\" of the container linkerd-proxy must not contain",
        ),
        (
            "proxy-log-level",
            &"a".repeat(200_000),
            "variable \"LINKERD2_PROXY_LOG\" of the container linkerd-proxy must be",
        ),
        ("proxy-additional-env", r#"[{"name": "A", "value": "x\u0000y"}]"#, "variable \"A\" of the container"),
        ("proxy-additional-env", &env, "variable \"A\" of the container"),
        ("skip-outbound-ports", &"443,".repeat(32_768), "argument \"443,443,"),
    ] {
        let warnings = configured(&[(name, text)]);
        let found = |it: &String| it.contains(of) && it.ends_with("no container starts with it");
        assert!(warnings.iter().any(found), "{name}: {warnings:?}");
    }
    let env = format!(r#"[{{"name": "A", "value": "{}"}}]"#, "x".repeat(131_069));
    assert_eq!(configured(&[("proxy-additional-env", &env)]), [""; 0]);
}
