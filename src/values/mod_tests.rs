//! Tests of the whole document. Tests of a single file are in that file.

use serde_json::json;

use super::{
    properties::NASTY,
    testing::{fixture, path},
    *,
};

fn map(value: Value) -> Map<String, Value> {
    match value {
        Value::Object(map) => map,
        other => panic!("{other} is not a map"),
    }
}

#[test]
fn the_document_of_the_chart_has_no_problem_and_survives_a_round_trip() {
    let document = fixture();
    assert_eq!(document.problems(), []);
    let written = document.to_yaml();
    let again = Document::parse(&written).unwrap();
    assert_eq!(again.as_map(), document.as_map());
    assert_eq!(again.to_yaml(), written);
    assert_eq!((again.hash(), again.differences(&document)), (document.hash(), vec![]));
    assert!(document.as_map().len() > 55);
}

/// The hashes are stored in the cluster: another value after an upgrade of the operator would restart every mesh.
#[test]
fn hashes_do_not_change() {
    // As the fixture was when the hashes were recorded.
    let anchors = "-----BEGIN CERTIFICATE-----\nMIIBjTCCATSgAwIBAgIRAIMD4XLxwxvmNPAOcIuzz/EwCgYIKoZIzj0EAwIwJTEj\n\
                   MCEGA1UEAxMacm9vdC5saW5rZXJkLmNsdXN0ZXIubG9jYWw=\n-----END CERTIFICATE-----\n";
    let mut document = fixture();
    document.set(&path("identityTrustAnchorsPEM"), json!(anchors));
    assert_eq!(
        (document.hash().to_string(), document.injection_hash().to_string()),
        ("333e69f00c540c05".to_owned(), "908ca4a6135c5e2c".to_owned())
    );
}

#[test]
fn keys_and_values_have_the_form_that_linkerd_gives_them() {
    let text = "PROXY: {loglevel: 5, OpaquePorts: 25, Ports: {ADMIN: 12e2}, await: on}\ncliversion: off\n\
                podLabels: {A: 1.50, a: no}\nunknown: {proxy: 1.0, PROXY: 2}\nproxyInjector: {CRTPEM: 5}\n";
    let expected = json!({
        "proxy": {"logLevel": "5", "opaquePorts": "25", "ports": {"admin": 1200}, "await": true},
        "cliVersion": "false",
        "podLabels": {"A": "1.5", "a": "false"},
        "unknown": {"proxy": 1, "PROXY": 2},
        "proxyInjector": {"crtPEM": 5},
    });
    assert_eq!(json!(Document::parse(text).unwrap().as_map()), expected);
}

#[test]
fn two_spellings_of_one_key_are_rejected() {
    for (text, at, one, other) in [
        ("Proxy: {}\nproxy: {}\n", "proxy", "Proxy", "proxy"),
        ("proxy: {LOGLEVEL: a, logLEVEL: b}\n", "proxy.logLevel", "LOGLEVEL", "logLEVEL"),
        ("proxy: {acce\u{17f}\u{17f}Log: a, accessLog: b}\n", "proxy.accessLog", "accessLog", "acceſſLog"),
    ] {
        let expected = InvalidDocument::TwoSpellings { path: path(at), one: one.to_owned(), other: other.to_owned() };
        assert_eq!(Document::parse(text), Err(expected), "{text}");
    }
}

#[test]
fn values_are_found_set_and_removed_in_any_spelling() {
    let mut document = fixture();
    assert_eq!(document.get(&path("proxy.LOGFORMAT")), Some(&json!("plain")));
    assert_eq!(document.get(&path("proxy.logFormat.deeper")), None);
    assert_eq!(document.get(&Path::default()), None);

    document.set(&path("proxy.ACCESSLOG"), json!(5));
    document.set(&path("proxyinit.ports.deep.down"), json!(2.0));
    document.set(&path("cliVersion.below"), json!(true));
    assert_eq!(document.get(&path("proxy.accessLog")), Some(&json!("5")));
    assert_eq!(document.get(&path("proxyInit.ports")), Some(&json!({"deep": {"down": 2}})));
    assert_eq!(document.get(&path("cliVersion")), Some(&json!({"below": true})));

    assert_eq!(document.remove(&path("proxy.accesslog")), Some(json!("5")));
    assert_eq!(document.remove(&path("proxy.accessLog")), None);
    assert_eq!(document.remove(&path("no.such.thing")), None);
    document.set(&Path::default(), json!(1));
    assert_eq!(document.remove(&Path::default()), None);
}

#[test]
fn a_patch_merges_maps_replaces_lists_and_removes_with_null() {
    let mut document =
        Document::parse("proxy: {logLevel: a, ports: {admin: 1, control: 2}, cores: 1}\npodLabels: {a: b}\n").unwrap();
    document.merge(&map(json!({
        "proxy": {"logLevel": 7, "ports": {"admin": null, "inbound": 3}, "cores": {"x": {"y": null}}, "metrics": null},
        "podLabels": "gone",
        "imagePullSecrets": [{"name": null}],
        "PROXY": {"logLevel": "this spelling does not count"},
    })));
    let expected = json!({
        "proxy": {"logLevel": "7", "ports": {"control": 2, "inbound": 3}, "cores": {"x": {}}},
        "podLabels": "gone",
        "imagePullSecrets": [{"name": null}],
    });
    assert_eq!(json!(document.as_map()), expected);
}

#[test]
fn differences_name_leaves_and_never_values() {
    let mut other = fixture();
    other.set(&path("proxy.logLevel"), json!("debug"));
    other.set(&path("proxy.additionalEnv"), json!([{"name": "A"}]));
    other.set(&path("podLabels.a"), json!("b"));
    other.set(&path("new.one"), json!({"x": 1, "y": {}}));
    other.remove(&path("proxy.control"));
    let found: Vec<_> = fixture().differences(&other).iter().map(ToString::to_string).collect();
    let expected = [
        "new.one.x",
        "new.one.y",
        "podLabels",
        "podLabels.a",
        "proxy.additionalEnv",
        "proxy.control.streams.idleTimeout",
        "proxy.control.streams.initialTimeout",
        "proxy.control.streams.lifetime",
        "proxy.logLevel",
    ];
    assert_eq!(found, expected);
    assert_eq!(fixture().differences(&other), other.differences(&fixture()));
}

#[test]
fn debug_output_shows_no_value() {
    assert!(!format!("{:?}", fixture()).contains("cluster"));
}

/// An end-to-end test passes the same files to kubectl, which parses YAML as Go does.
#[test]
fn the_written_yaml_is_the_golden_file_that_kubectl_parses() {
    let golden: Value = serde_json::from_str(include_str!("testdata/written.json")).unwrap();
    let mut document = Document::default();
    document.merge(&map(golden.clone()));
    document.set(&path("extension"), golden["extension"].clone());
    assert_eq!(document.to_yaml(), include_str!("testdata/written.yaml"));
    assert_eq!(json!(Document::parse(include_str!("testdata/written.yaml")).unwrap().as_map()), golden);
    let values: Vec<&str> =
        golden["extension"]["values"].as_array().unwrap().iter().filter_map(Value::as_str).collect();
    for text in NASTY {
        assert!(values.contains(&text) && golden["extension"]["keys"].get(text).is_some(), "{text:?}");
    }
}

/// Returns the document with another value of the same type at one path.
fn changed(document: &Document, at: &Path, value: &Value) -> Document {
    let mut document = document.clone();
    document.set(
        at,
        match value {
            Value::Bool(it) => json!(!it),
            Value::Number(it) => json!(it.as_i64().unwrap() + 7),
            Value::String(it) => json!(format!("{it}x")),
            _ => json!([{"name": "NEW", "value": "x"}]),
        },
    );
    document
}

#[test]
fn the_injection_hash_covers_exactly_the_values_that_affect_pods() {
    let affects_pods = |path: &Path| {
        let text = path.to_string();
        let top =
            ["clusterDomain", "clusterNetworks", "cniEnabled", "disableIPv6", "identityTrustDomain", "imagePullPolicy"];
        let below = ["debugContainer.", "networkValidator.", "proxy.", "proxyInit."];
        (top.contains(&&*text) || below.iter().any(|below| text.starts_with(below)))
            || ["linkerdVersion", "identity.serviceAccountTokenProjection"].contains(&&*text)
    };
    let document = fixture();
    let mut covered = 0;
    for (at, value) in document.leaves() {
        let control_plane = ["proxy.outboundTransportMode", "proxyInit.kubeAPIServerPorts"].contains(&&*at.to_string());
        let expected = affects_pods(&at) && !control_plane;
        let changed = changed(&document, &at, value);
        assert_eq!(changed.injection_hash() != document.injection_hash(), expected, "{at}");
        assert_ne!(changed.hash(), document.hash(), "{at}");
        covered += usize::from(expected);
    }
    assert!(covered > 70, "{covered}");
}

#[test]
fn the_injection_hash_ignores_nulls_zeros_and_itself() {
    let document = fixture();
    let mut other = document.clone();
    for (at, value) in document.leaves() {
        let zero = match value {
            Value::Bool(it) => !it,
            Value::Number(it) => it.as_i64() == Some(0),
            Value::String(it) => it.is_empty(),
            Value::Object(map) => map.is_empty(),
            Value::Null => true,
            Value::Array(_) => false,
        };
        // Only fields of a Go struct: in a Go map, false differs from absent.
        if zero && !at.starts_with(&path("networkValidator.securityContext")) {
            other.set(&at, Value::Null);
        }
    }
    assert_ne!(other.hash(), document.hash());
    assert_eq!(other.injection_hash(), document.injection_hash());
    other.set(&path("proxy.additionalEnv"), json!([{"name": CONFIG_HASH_ENV, "value": "0123456789abcdef"}]));
    assert_eq!(other.injection_hash(), document.injection_hash());
    other.set(&path("proxy.additionalEnv"), json!([{"name": CONFIG_HASH_ENV, "value": "0"}, {"name": "A"}]));
    assert_ne!(other.injection_hash(), document.injection_hash());
}
