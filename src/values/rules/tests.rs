//! Tests of the rules.

use serde_json::json;

use crate::values::testing::{fixture, path};

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
        ("proxyInit.skipSubnets", &[json!("10.0.0.0/8, 192.168.0.0/16"), json!("")]),
        ("proxyInit.ignoreOutboundPorts", &[json!("443,8443-8450"), json!(4567)]),
        ("proxy.capabilities", &[json!({"add": ["SYS_ADMIN", "ALL"], "drop": ["CAP_SYS_ADMIN"]})]),
        ("proxy.inbound", &[json!({"a b": {"c-d": {"e": 1}}, "": null})]),
        ("proxy.saMountPath", &[json!({"mountPath": "/x", "name": "linkerd-identity-token"}), json!(null)]),
        ("proxy.image", &[json!({"name": "a/b@sha256", "version": "0123456789abcdef".repeat(4)})]),
        ("debugContainer.image", &[json!({"name": "a.b/c", "version": "v1"}), json!({"name": "", "version": ""})]),
        ("proxy.logLevel", &[json!("a".repeat(126 << 10))]),
        (
            "proxy.additionalEnv",
            &[
                json!([{"name": "A", "value": "x".repeat(131_069)}]),
                json!([{"name": "A", "valueFrom": {"fileKeyRef": {
                    "volumeName": "linkerd-identity-end-entity", "path": "b", "key": "C",
                }}}]),
            ],
        ),
        ("proxy.securityContext", &[json!({"runAsUser": 5, "privileged": false}), json!({})]),
        ("proxy.inboundConnectTimeout", &[json!("1d"), json!(0), json!(" 5s ")]),
        ("proxy.ports.admin", &[json!(1), json!(65535)]),
        ("proxy.resources.cpu.limit", &[json!("100m"), json!(1), json!(1.5), json!("-0")]),
        ("proxy.resources.memory", &[json!({"request": "1Gi", "limit": "1024Mi"}), json!({"limit": "", "request": 5})]),
        ("proxy.resources.ephemeral-storage", &[json!({"request": "1k", "limit": "1Ki"}), json!({"request": "1Ei"})]),
        ("proxy.gid", &[json!(0), json!(2102)]),
        ("identityTrustDomain", &[json!(""), json!("mesh.example")]),
        ("networkValidator.connectAddr", &[json!("[fd00::1]:20001")]),
        ("proxy.inbound.server.http2.keepAliveInterval", &[json!("10s"), json!(0)]),
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
    assert_eq!(paths(&[("proxyInit.closeWaitTimeoutSecs", json!(5)), ("proxyInit.runAsRoot", json!(true))]), [""; 0]);
    assert_eq!(paths(&[("proxy.uid", json!(1_000_690_000)), ("cniEnabled", json!(true))]), [""; 0]);
    let admin = ("proxy.capabilities.add", json!(["CAP_SYS_ADMIN"]));
    let context = ("proxy.securityContext", json!({"runAsUser": 5}));
    assert_eq!(paths(&[admin, context, ("proxyInit.privileged", json!(true))]), [""; 0]);
    assert_eq!(paths(&[("disableIPv6", json!(false)), ("proxyInit.skipSubnets", json!(""))]), [""; 0]);
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
        (
            "proxyInit.skipSubnets",
            &[json!("no"), json!("10.0.0.0/8,"), json!("fd00::/8"), json!("10.0.0.0/8,fd00::/8")],
        ),
        ("proxyInit.ignoreInboundPorts", &[json!("443, 8443"), json!("mysql")]),
        (
            "proxyInit.ignoreOutboundPorts",
            &[json!("443, 8443"), json!("443,[4222]"), json!("mysql"), json!(" 443"), json!(",")],
        ),
        ("proxy.capabilities.add", &[json!(["NET_RAW", "CAP_SYS_ADMIN"])]),
        ("proxy.securityContext.windowsOptions", &[json!({}), json!({"runAsUserName": "a"})]),
        ("proxy.securityContext.seccompProfile", &[json!({"type": "Localhost", "localhostProfile": "/a"})]),
        ("networkValidator.securityContext.appArmorProfile", &[json!({"type": "Localhost", "localhostProfile": " a"})]),
        ("linkerdVersion", &[json!("edge "), json!("edge\n")]),
        ("debugContainer.image.name", &[json!(" x"), json!("a:b")]),
        ("debugContainer.image.version", &[json!("v1 ")]),
        ("proxy.accessLog", &[json!("apache\0")]),
        ("proxy.opaquePorts", &[json!("1,".repeat(65_536))]),
        ("clusterNetworks", &[json!(format!("10.0.0.0/8{}", ",10.0.0.0/8".repeat(12_000)))]),
        ("proxy.tracing.traceServiceName", &[json!("a\0")]),
        ("proxy.inbound.server.http2.x", &[json!("a\0"), json!("a".repeat(128 << 10))]),
        (
            "proxy.additionalEnv",
            &[
                json!([{"name": "A", "value": "x".repeat(131_070)}]),
                json!([{"name": "A", "value": "x\0y"}]),
                json!([{"name": "A", "valueFrom": {"fileKeyRef": {"volumeName": "a", "path": "b", "key": "C"}}}]),
            ],
        ),
        ("proxyInit.closeWaitTimeoutSecs", &[json!(-1)]),
        ("proxyInit.logLevel", &[json!("loud")]),
        ("proxy.image.version", &[json!("{{ .Values.x }}"), json!("${VERSION}")]),
        ("proxy.uid", &[json!(-1), json!(5_000_000_000_i64)]),
        ("proxy.securityContext.runAsUser", &[json!("x")]),
        ("proxyInit.xtMountPath.mountPath", &[json!(""), json!("/a:b")]),
        ("proxy.experimentalEnv", &[json!([{"name": "A=B", "value": "x"}])]),
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
        (
            "clusterDomain",
            &[json!("a b"), json!("a..b"), json!(" cluster.local "), json!("cluster.local."), json!(null)],
        ),
        ("identityTrustDomain", &[json!("a b"), json!("a..b"), json!(" cluster.local ")]),
        ("proxy.inbound.server.http2.keepAliveInterval", &[json!("x"), json!("10 s"), json!("100"), json!(100)]),
        ("proxy.outbound.server.http2.keepAliveTimeout", &[json!("x"), json!(100)]),
        ("proxy.cores", &[json!(-1)]),
        ("proxy.runtime.workers.minimum", &[json!(-1)]),
        ("proxy.runtime.workers.maximumCPURatio", &[json!(-0.5)]),
        ("proxy.uid", &[json!(0)]),
        ("proxy.startupProbe.initialDelaySeconds", &[json!(-1), json!(3_000_000_000_i64)]),
        ("networkValidator.connectAddr", &[json!("1.1.1.1"), json!("a b:1")]),
        ("networkValidator.listenAddr", &[json!(":4140"), json!("0.0.0.0:99999")]),
        ("proxyInit.xtMountPath.mountPath", &[json!("/var/run/secrets/kubernetes.io/serviceaccount")]),
        ("proxy.image.name", &[json!("cr.l5d.io/Linkerd/proxy"), json!("cr.l5d.io//proxy")]),
        ("proxy.image.version", &[json!("a:b"), json!("a/b")]),
    ] {
        for value in values {
            assert_eq!(paths(&[(at, value.clone())]), [at], "{at}: {value}");
        }
    }
}

#[test]
fn maps_with_invalid_entries_and_values_that_contradict_each_other_are_problems() {
    for resource in ["cpu", "memory", "ephemeral-storage"] {
        for (request, limit) in [("101m", "100m"), ("1Gi", "1G"), ("1", "0"), ("9", "8999m")] {
            let at = format!("proxy.resources.{resource}");
            let given = json!({"request": request, "limit": limit});
            assert_eq!(paths(&[(&at, given)]), [format!("{at}.request")], "{request} {limit}");
        }
    }
    for (name, path, problem) in [
        ("", "/x", "name"),
        ("nope", "/x", "name"),
        ("linkerd-identity-token", "", "mountPath"),
        ("linkerd-identity-token", "/var/run/secrets/tokens", "mountPath"),
        ("linkerd-identity-end-entity", "/var/run/linkerd/identity/end-entity", "mountPath"),
        ("linkerd-podinfo", "/var/run/linkerd/podinfo", "mountPath"),
        // The path of proxyInit.xtMountPath.
        ("linkerd-identity-end-entity", "/run", "mountPath"),
    ] {
        let mount = json!({"name": name, "mountPath": path});
        assert_eq!(paths(&[("proxy.saMountPath", mount)]), [format!("proxy.saMountPath.{problem}")], "{name} {path}");
    }
    let root = json!({"runAsNonRoot": true, "runAsUser": 0});
    assert_eq!(paths(&[("proxy.securityContext", root)]), ["proxy.securityContext.runAsUser"]);
    for (scope, protocol, parameter) in [("a=b", "x", "y"), ("sérver", "http2", "y"), ("server", "http2", "a\nb")] {
        let given = json!({scope: {protocol: {parameter: 1}}});
        let path = crate::values::Path::from(&["proxy", "outbound", scope, protocol, parameter][..]);
        assert_eq!(paths(&[("proxy.outbound", given)]), [path.to_string()]);
    }
    let subnets = ("proxyInit.skipSubnets", json!("10.0.0.0/8"));
    assert_eq!(paths(&[("disableIPv6", json!(false)), subnets]), ["proxyInit.skipSubnets"]);
    let admin = ("proxy.capabilities.add", json!(["CAP_SYS_ADMIN"]));
    for context in [("proxy.securityContext", json!({"runAsUser": 5})), ("proxyInit.privileged", json!(true))] {
        assert_eq!(paths(&[admin.clone(), context]), ["proxy.capabilities.add"]);
    }
    let digest = json!({"name": "a/b@sha256", "version": null});
    assert_eq!(paths(&[("proxy.image", digest)]), ["proxy.image.version"]);
    let missing = [
        "proxy.tracing.collector.endpoint",
        "proxy.tracing.collector.meshIdentity.namespace",
        "proxy.tracing.collector.meshIdentity.serviceAccountName",
    ];
    assert_eq!(paths(&[("proxy.tracing.enabled", json!(true))]), missing);
    let identity = json!({"namespace": "a", "serviceAccountName": "b"});
    for endpoint in ["a b:4317", "a", "a:", "a:99999"] {
        let collector = json!({"endpoint": endpoint, "meshIdentity": identity});
        let changes = [("proxy.tracing.enabled", json!(true)), ("proxy.tracing.collector", collector)];
        assert_eq!(paths(&changes), ["proxy.tracing.collector.endpoint"], "{endpoint}");
    }
}

#[test]
fn a_missing_map_that_the_injector_requires_is_reported_once() {
    for needed in ["proxy", "proxy.ports", "proxy.metrics", "proxyInit.xtMountPath", "identity", "debugContainer.image"]
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
