use serde_json::json;

use super::*;
use crate::values::testing::{OTHER_TRUST_ANCHORS, TRUST_ANCHORS};

fn overlay(spec: Value, bundle: Option<&str>) -> Result<Overlay, Vec<String>> {
    let spec: LinkerdConfigSpec = serde_json::from_value(spec).unwrap();
    Overlay::new(&spec, bundle, None)
        .map_err(|problems| problems.into_iter().map(|it| format!("{}: {}", it.path, it.reason)).collect())
}

/// Returns the base document with the overlay of the spec applied.
fn over(spec: Value, base: &str) -> Value {
    let document = overlay(spec, None).unwrap().apply_to(&Document::parse(base).unwrap());
    Value::Object(document.as_map().clone())
}

#[test]
fn each_typed_field_sets_its_path_and_no_other() {
    for (spec, expected) in [
        (json!({"global": {"version": "edge-26.8.3"}}), json!({"linkerdVersion": "edge-26.8.3"})),
        (
            json!({"global": {"cniEnabled": true, "clusterDomain": "example"}}),
            json!({"cniEnabled": true, "clusterDomain": "example"}),
        ),
        (
            json!({"global": {"identityContext": {"trustDomain": "mesh.example"}}}),
            json!({"identityTrustDomain": "mesh.example"}),
        ),
        (
            json!({"proxy": {"proxyImage": {"name": "proxy", "pullPolicy": "Always"}, "proxyVersion": "v1"}}),
            json!({"proxy": {"image": {"name": "proxy", "pullPolicy": "Always", "version": "v1"}}}),
        ),
        (
            json!({"proxy": {"adminPort": 1, "controlPort": 2, "inboundPort": 3, "outboundPort": 4, "proxyUID": 5, "proxyGID": 6}}),
            json!({"proxy": {"ports": {"admin": 1, "control": 2, "inbound": 3, "outbound": 4}, "uid": 5, "gid": 6}}),
        ),
        (
            json!({"proxy": {"ignoreInboundPorts": ["1", "3-5"], "ignoreOutboundPorts": [], "skipSubnets": ["10.0.0.0/8"]}}),
            json!({"proxyInit": {"ignoreInboundPorts": "1,3-5", "ignoreOutboundPorts": "", "skipSubnets": "10.0.0.0/8"}}),
        ),
        (
            json!({"global": {"clusterNetworks": ["10.0.0.0/8", "fd00::/8"], "disableIPv6": false}}),
            json!({"clusterNetworks": "10.0.0.0/8,fd00::/8", "disableIPv6": false}),
        ),
        (
            json!({"proxy": {"opaquePorts": ["25", "8000-8010"], "defaultInboundPolicy": "deny"}}),
            json!({"proxy": {"opaquePorts": "25,8000-8010", "defaultInboundPolicy": "deny"}}),
        ),
        (
            json!({"global": {"clusterNetworks": []}, "proxy": {"opaquePorts": []}}),
            json!({"clusterNetworks": "", "proxy": {"opaquePorts": ""}}),
        ),
        (json!({"proxy": {"disableExternalProfiles": true}}), json!({"proxy": {"enableExternalProfiles": false}})),
        (
            json!({"proxy": {"logLevel": "info", "logFormat": "json", "accessLog": "apache"}}),
            json!({"proxy": {"logLevel": "info", "logFormat": "json", "accessLog": "apache"}}),
        ),
        (
            json!({"proxy": {"shutdownGracePeriod": "60s", "inboundConnectTimeout": "200ms", "outboundConnectTimeout": "2s"}}),
            json!({"proxy": {"shutdownGracePeriod": "60s", "inboundConnectTimeout": "200ms", "outboundConnectTimeout": "2s"}}),
        ),
        (
            json!({"proxy": {"await": false, "nativeSidecar": true}}),
            json!({"proxy": {"await": false, "nativeSidecar": true}}),
        ),
        (
            json!({"proxy": {"resource": {"requests": {"cpu": "100m"}, "limits": {"memory": "250Mi", "ephemeral-storage": "1Gi"}}}}),
            json!({"proxy": {"resources": {"cpu": {"request": "100m"}, "memory": {"limit": "250Mi"}, "ephemeral-storage": {"limit": "1Gi"}}}}),
        ),
    ] {
        assert_eq!(over(spec.clone(), "{}"), expected, "{spec}");
    }
}

#[test]
fn a_field_without_an_effect_sets_no_path_and_is_listed() {
    let spec = json!({
        "global": {
            "configMap": "linkerd-config", "omitWebhookSideEffects": true,
            "identityContext": {"issuanceLifeTime": "48h", "clockSkewAllowance": "20s", "scheme": "linkerd.io/tls"},
        },
        "proxy": {"proxyInitImage": {"name": "x"}, "proxyInitImageVersion": "v1"},
    });
    assert_eq!(over(spec.clone(), "{}"), json!({}));
    let listed = [
        "spec.global.configMap",
        "spec.global.identityContext.clockSkewAllowance",
        "spec.global.identityContext.issuanceLifeTime",
        "spec.global.identityContext.scheme",
        "spec.global.omitWebhookSideEffects",
        "spec.proxy.proxyInitImage",
        "spec.proxy.proxyInitImageVersion",
    ];
    let spec = serde_json::from_value(spec).unwrap();
    assert_eq!((deprecated(&spec), ineffective(&spec)), (listed.map(str::to_owned).to_vec(), deprecated(&spec)));
    assert_eq!(superseded_warning(&spec), None);
    assert_eq!(deprecated(&LinkerdConfigSpec::default()), [""; 0]);
}

#[test]
fn a_deprecated_field_that_still_has_an_effect_is_listed_and_a_warning_names_its_replacement() {
    let spec = json!({
        "global": {
            "configMap": "linkerd-config", "clusterDomain": "example", "clusterNetworks": ["10.0.0.0/8"],
            "disableIPv6": false, "identityContext": {"trustDomain": "mesh.example"},
        },
        "proxy": {"defaultInboundPolicy": "deny", "opaquePorts": ["9999"]},
    });
    let spec = serde_json::from_value(spec).unwrap();
    let listed = [
        "spec.global.clusterDomain",
        "spec.global.clusterNetworks",
        "spec.global.configMap",
        "spec.global.disableIPv6",
        "spec.global.identityContext.trustDomain",
        "spec.proxy.defaultInboundPolicy",
        "spec.proxy.opaquePorts",
    ];
    assert_eq!(deprecated(&spec), listed);
    assert_eq!(ineffective(&spec), ["spec.global.configMap"]);
    let expected = "deprecated, still in effect: spec.global.clusterDomain, spec.global.clusterNetworks, \
                    spec.global.disableIPv6, spec.global.identityContext.trustDomain, \
                    spec.proxy.defaultInboundPolicy, spec.proxy.opaquePorts: set the values with Helm or spec.values";
    assert_eq!(superseded_warning(&spec).as_deref(), Some(expected));
}

#[test]
fn variables_are_merged_by_name_into_those_of_the_document() {
    let spec = json!({"proxy": {"additionalEnv": [{"name": "B", "value": "ours"}, {"name": "C", "value": "new"}]}});
    let base = r#"{"proxy": {"additionalEnv": [{"name": "A", "value": "theirs"}, {"name": "B", "value": "theirs"}]}}"#;
    let variables = over(spec, base)["proxy"]["additionalEnv"].clone();
    let expected =
        [("A", "theirs"), ("B", "ours"), ("C", "new")].map(|(name, value)| json!({"name": name, "value": value}));
    assert_eq!(variables, json!(expected));
}

#[test]
fn values_are_a_merge_patch_in_which_null_removes() {
    let spec = json!({"values": {"proxy": {"logLevel": "debug", "accessLog": null}, "podLabels": {"a": "b"}}});
    let base = r#"{"proxy": {"logLevel": "warn", "accessLog": "apache", "uid": 2102}}"#;
    assert_eq!(over(spec, base), json!({"proxy": {"logLevel": "debug", "uid": 2102}, "podLabels": {"a": "b"}}));
}

#[test]
fn a_path_that_is_set_twice_is_rejected_and_all_problems_are_reported() {
    let spec = json!({"proxy": {"logLevel": "debug", "proxyVersion": "v1"},
        "values": {"proxy": {"logLevel": "info", "image": {"version": "v2"}}}});
    let problems = overlay(spec, None).unwrap_err();
    assert_eq!(problems.len(), 2, "{problems:?}");
    assert!(problems.iter().any(|it| it.starts_with("proxy.logLevel: spec.values and a field")), "{problems:?}");
    let above = json!({"proxy": {"logLevel": "debug"}, "values": {"proxy": null}});
    assert!(overlay(above, None).is_err());
    let deprecated = json!({"proxy": {"opaquePorts": ["25"]}, "values": {"proxy": {"opaquePorts": "25"}}});
    assert!(overlay(deprecated, None).unwrap_err()[0].starts_with("proxy.opaquePorts: spec.values and a field"));
    let with_bytes = |bytes: usize| overlay(json!({"values": {"podLabels": {"a": "x".repeat(bytes)}}}), None);
    assert!(with_bytes(MAX_PATCH_BYTES - 100).is_ok());
    let problems = with_bytes(MAX_PATCH_BYTES).unwrap_err();
    assert!(problems[0].starts_with("spec.values: it has") && problems[0].contains("131072"), "{problems:?}");
}

#[test]
fn the_trust_anchors_in_use_win_and_declared_ones_are_verified_or_a_fallback() {
    let spec = |policy: &str, given: Option<&str>| json!({"global": {"identityContext": {"trustAnchorsPolicy": policy, "trustAnchorsPEM": given}}});
    let (one, other) = (TRUST_ANCHORS.to_owned(), OTHER_TRUST_ANCHORS);
    let padded = format!("\n  {one}\n");
    let garbage = "-----BEGIN CERTIFICATE-----\nYQ==\n-----END CERTIFICATE-----\n".to_owned();
    let source =
        |spec: Value, bundle: Option<&str>| overlay(spec, bundle).map(|it| it.anchors_source()).map_err(|it| it.len());
    for (policy, given, bundle, expected) in [
        ("Reuse", None, Some(&one), Ok(Some(ValueSource::TrustRoots))),
        ("Reuse", Some(other), Some(&one), Ok(Some(ValueSource::TrustRoots))),
        ("Reuse", Some(other), None, Ok(Some(ValueSource::Typed))),
        ("Reuse", Some(other), Some(&garbage), Ok(Some(ValueSource::Typed))),
        ("Reuse", None, Some(&garbage), Ok(None)),
        ("Reuse", None, None, Ok(None)),
        ("Verify", Some(&*one), Some(&one), Ok(Some(ValueSource::TrustRoots))),
        ("Verify", Some(&*one), Some(&padded), Ok(Some(ValueSource::TrustRoots))),
        ("Verify", Some(other), Some(&one), Err(1)),
        ("Verify", Some(other), None, Err(1)),
        ("Verify", Some(other), Some(&garbage), Err(1)),
        ("Reuse", Some("no PEM"), Some(&one), Err(1)),
        ("Reuse", Some(&garbage), Some(&one), Err(1)),
    ] {
        assert_eq!(source(spec(policy, given), bundle.map(String::as_str)), expected, "{policy} {given:?}");
    }
    for (bundle, reason) in [
        (Some(&*one), "it differs from the bundle that the mesh trusts, in ConfigMap linkerd-identity-trust-roots"),
        (Some(&garbage), "ConfigMap linkerd-identity-trust-roots: certificate 1 of 1 is not a valid X.509 certificate"),
        (None, "ConfigMap linkerd-identity-trust-roots is missing or has no key ca-bundle.crt in data"),
    ] {
        let problem = overlay(spec("Verify", Some(other)), bundle).unwrap_err().remove(0);
        assert!(problem.starts_with("spec.global.identityContext.trustAnchorsPEM: "), "{problem}");
        assert!(problem.contains(reason), "{problem}");
    }
}

#[test]
fn a_declared_copy_of_the_trust_anchors_must_be_usable() {
    for (copy, expected) in [
        (json!(TRUST_ANCHORS), None),
        (json!(""), None),
        (json!(null), None),
        (json!("anchors"), Some("identityTrustAnchorsPEM: it has no certificate")),
        (
            json!("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"),
            Some("identityTrustAnchorsPEM: certificate 1 of 1 is not a valid X.509 certificate"),
        ),
    ] {
        let problems = overlay(json!({"values": {"identityTrustAnchorsPEM": copy}}), Some(TRUST_ANCHORS)).err();
        let problems = problems.unwrap_or_default();
        assert_eq!(problems.len(), usize::from(expected.is_some()), "{copy}: {problems:?}");
        assert!(problems.iter().all(|problem| problem.starts_with(expected.unwrap())), "{problems:?}");
    }
}

#[test]
fn the_source_of_each_value_is_known() {
    let overlay = overlay(json!({"proxy": {"logLevel": "debug"}, "values": {"podLabels": {"a": "b"}}}), None).unwrap();
    let base = Document::parse(r#"{"proxy": {"logLevel": "warn", "uid": 1}}"#).unwrap();
    let effective = overlay.apply_to(&base);
    let source = |keys: &[&str]| overlay.source(&Path::from(keys), &effective);
    assert_eq!(source(&["proxy", "logLevel"]), ValueSource::Typed);
    assert_eq!(source(&["podLabels", "a"]), ValueSource::Values);
    assert_eq!(source(&["proxy", "uid"]), ValueSource::Base);
    let paths: Vec<String> = overlay.paths().map(|path| path.to_string()).collect();
    assert_eq!(paths, ["podLabels.a", "proxy.logLevel"]);
    assert_eq!(overlay.apply_to(&effective), effective, "applying the overlay is idempotent");
}

#[test]
fn trust_anchors_of_an_external_ca_are_not_from_the_trust_roots() {
    let overlay = overlay(json!({}), Some(TRUST_ANCHORS)).unwrap();
    for (external, expected) in [(true, ValueSource::Base), (false, ValueSource::TrustRoots)] {
        let base = json!({"identity": {"externalCA": external}, "identityTrustAnchorsPEM": ""}).to_string();
        let effective = overlay.apply_to(&Document::parse(&base).unwrap());
        assert_eq!(overlay.source(&Path::from(&["identityTrustAnchorsPEM"][..]), &effective), expected);
    }
}

#[test]
fn the_injection_hash_variable_cannot_be_declared() {
    let variables = json!([{"name": "A", "value": "1"}, {"name": CONFIG_HASH_ENV, "value": "mine"}]);
    for spec in
        [json!({"proxy": {"additionalEnv": variables}}), json!({"values": {"proxy": {"additionalEnv": variables}}})]
    {
        let spec: LinkerdConfigSpec = serde_json::from_value(spec).unwrap();
        let problems = Overlay::new(&spec, None, None).unwrap_err();
        assert!(
            problems.iter().any(|problem| problem.path == environment_path() && problem.value == CONFIG_HASH_ENV),
            "{problems:?}"
        );
    }
}

#[test]
fn the_shape_of_proxies_is_read_as_injectors_read_it() {
    let shape = |text: &str| {
        let ProxyShapeStatus { native_sidecar, cni_enabled, token_projection } =
            proxy_shape(&Document::parse(text).unwrap());
        [native_sidecar, cni_enabled, token_projection]
    };
    for (text, expected) in [
        (
            "proxy: {nativeSidecar: true}\ncniEnabled: true\nidentity: {serviceAccountTokenProjection: true}\n",
            [true; 3],
        ),
        ("proxy: {nativeSidecar: yes}\n", [true, false, false]),
        ("proxy: {nativeSidecar: null}\ncniEnabled: false\n", [false; 3]),
        ("proxy: {}\n", [false; 3]),
    ] {
        assert_eq!(shape(text), expected, "{text}");
    }
}

#[test]
fn a_bundle_with_a_private_key_is_refused_with_the_name_of_its_config_map() {
    let key = "-----BEGIN EC PRIVATE KEY-----\nSECRET\n-----END EC PRIVATE KEY-----\n";
    let bundle = format!("{TRUST_ANCHORS}{key}");
    let spec: LinkerdConfigSpec = serde_json::from_value(json!({})).unwrap();
    let problems = Overlay::new(&spec, Some(&bundle), None).unwrap_err();
    let [problem] = &problems[..] else { panic!("{problems:?}") };
    let text = problem.to_string();
    assert!(text.starts_with(r#"linkerd-identity-trust-roots["ca-bundle.crt"]: it has a private key"#), "{text}");
    assert!(!format!("{problem:?}").contains("SECRET"), "{problem:?}");
}
