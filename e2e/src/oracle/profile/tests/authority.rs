//! Valid and invalid authorities, and the client's namespace in the token.

use super::*;

fn cluster() -> Cluster {
    Cluster::new(&[
        service("web", &json!({"clusterIPs": ["10.96.0.1", "2001:db8::1"], "ports": [{"port": 80}, {"port": 8989}]})),
        service("external", &json!({"type": "ExternalName", "externalName": "linkerd.io", "ports": [{"port": 80}]})),
    ])
}

#[test]
fn an_invalid_authority_or_service_name_is_refused() {
    for path in [
        "foo:",
        "foo:http",
        "foo:8_0",
        "foo:99999999999999999999",
        "foo:0",
        "foo:65536",
        "foo:-1",
        "foo: 80",
        "::1",
        "2001:db8::1:80",
        "a:b:c",
        "[::1]",
        "[foo:80",
        "[fo]o]:80",
    ] {
        assert_eq!(cluster().get(path), refused(Code::InvalidArgument, "invalid authority"), "{path}");
    }
    for path in [
        "",
        ":80",
        "foo",
        "foo:080",
        "foo:+80",
        "[foo]:80",
        "linkerd.io",
        "10.0.0.01",
        "[fe80::1%eth0]:80",
        "web.ns",
        "web.ns.svc",
        "web.ns.svc.mycluster.local.",
        "web.ns.SVC.mycluster.local",
        "web.ns.svc.Mycluster.local",
        "web.ns.svc.cluster.local:80",
        "svc.mycluster.local",
        "ns.svc.mycluster.local",
        "a.b.web.ns.svc.mycluster.local",
    ] {
        assert_eq!(cluster().get(path), refused(Code::InvalidArgument, "invalid service"), "{path}");
    }
}

#[test]
fn a_service_is_found_by_name_and_by_every_spelling_of_its_addresses() {
    for (path, name) in [
        ("web.ns.svc.mycluster.local", "web.ns.svc.mycluster.local"),
        ("web.ns.svc.mycluster.local:80", "web.ns.svc.mycluster.local"),
        ("web.ns.svc.mycluster.local:+080", "web.ns.svc.mycluster.local"),
        ("[web.ns.svc.mycluster.local]:80", "web.ns.svc.mycluster.local"),
        // Without a hostname, but returned as requested.
        (".web.ns.svc.mycluster.local:80", ".web.ns.svc.mycluster.local"),
        ("10.96.0.1", "web.ns.svc.mycluster.local"),
        ("[10.96.0.1]:80", "web.ns.svc.mycluster.local"),
        ("[::ffff:10.96.0.1]:80", "web.ns.svc.mycluster.local"),
        ("[2001:db8::1]:80", "web.ns.svc.mycluster.local"),
        ("[2001:DB8:0:0::1]:80", "web.ns.svc.mycluster.local"),
    ] {
        let profile = cluster().profile(path);
        assert_eq!(profile.fully_qualified_name, name, "{path}");
        assert_eq!(
            profile,
            DestinationProfile { fully_qualified_name: name.to_owned(), ..cluster().profile("10.96.0.1") }
        );
    }
    let mut cluster = cluster();
    cluster.edit("Service/ns/web", json!({"spec": {"clusterIPs": ["2001:DB8::0:1"], "clusterIP": "10.96.0.1"}}));
    assert_eq!(cluster.profile("[2001:db8::1]:80").fully_qualified_name, "web.ns.svc.mycluster.local");
    assert_eq!(
        cluster.profile("10.96.0.1:80").fully_qualified_name,
        "",
        "the list takes precedence over the single address"
    );
    cluster.edit("Service/ns/web", json!({"spec": {"clusterIPs": []}}));
    assert_eq!(cluster.profile("10.96.0.1:80").fully_qualified_name, "web.ns.svc.mycluster.local");
}

#[test]
fn a_missing_service_is_an_unknown_error_and_a_shared_cluster_ip_is_a_conflict() {
    let mut cluster = cluster();
    let not_found = |name: &str| refused(Code::Unknown, format!("service \"{name}\" not found"));
    assert_eq!(cluster.get("api.ns.svc.mycluster.local:80"), not_found("api"));
    assert_eq!(cluster.get("web.other.svc.mycluster.local:80"), not_found("web"));
    assert_eq!(cluster.get(".ns.svc.mycluster.local:80"), not_found(""));
    cluster.put(service("api", &json!({"clusterIP": "10.96.0.1", "clusterIPs": ["10.96.0.1", "10.96.0.1"]})));
    let conflict = "found 2 services with conflicting cluster IP 10.96.0.1";
    assert_eq!(cluster.get("[::ffff:10.96.0.1]:1"), refused(Code::FailedPrecondition, conflict));
    cluster.remove("Service/ns/web");
    assert_eq!(cluster.profile("10.96.0.1:80"), DestinationProfile::default(), "a repeated address counts once");
}

#[test]
fn a_port_that_the_service_does_not_have_gets_an_empty_message() {
    let mut cluster = cluster();
    let empty = ProfileAnswer::Profile(Box::default());
    for path in ["web.ns.svc.mycluster.local:81", "10.96.0.1:81", "external.ns.svc.mycluster.local:81"] {
        assert_eq!(cluster.get(path), empty);
    }
    let path = "external.ns.svc.mycluster.local";
    assert_eq!(cluster.get(path), refused(Code::InvalidArgument, format!("Invalid authority: {path}")));
    assert_eq!(cluster.get_while_open(path), cluster.get(path));
    cluster.edit("Service/ns/web", json!({"spec": {"ports": [{"port": 8080, "targetPort": 80, "nodePort": 80}]}}));
    assert_eq!(cluster.get("web.ns.svc.mycluster.local:80"), empty);
    assert_eq!(cluster.get_while_open("web.ns.svc.mycluster.local:80"), empty);
    cluster.edit("Service/ns/web", json!({"spec": {"ports": [{"port": 80, "protocol": "UDP"}]}}));
    assert_ne!(cluster.get("web.ns.svc.mycluster.local:80"), empty);
    cluster.edit("Service/ns/web", json!({"spec": {"ports": null}}));
    assert_eq!(cluster.get("web.ns.svc.mycluster.local:80"), empty);
}

#[test]
fn the_namespace_is_read_from_valid_tokens_and_invalid_ones_are_no_error() {
    let mut cluster = cluster();
    cluster.put(profile_of("web", "client", &json!({"routes": [route("client", "/")]})));
    for (token, has_namespace) in [
        ("{\"ns\":\"client\", \"nodeName\":\"node-1\", \"pod\":\"x\"}\n", true),
        (r#"{"NS":"client"}"#, true),
        (r#"{"nodeName":5,"ns":"client","x":{}}"#, true),
        ("ns:client", true),
        ("ns: client", false),
        ("ns:client:x", false),
        ("NS:client", false),
        ("ns:", false),
        (r#"{"ns":5}"#, false),
        (r#"{"ns":null}"#, false),
        (r#"{"ns":"client"} x"#, false),
        (r#""ns:client""#, false),
        ("123fa-test", false),
        ("[]", false),
        ("null", false),
        ("", false),
    ] {
        let answer = cluster.get_as(&settings(), "web.ns.svc.mycluster.local", token);
        let ProfileAnswer::Profile(profile) = answer else { panic!("{token}: {answer:?}") };
        assert_eq!(!profile.routes.is_empty(), has_namespace, "{token}");
    }
}
