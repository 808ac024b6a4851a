//! Rows 1 to 10 of the result table, and the context token.

use tonic::Code;

use super::*;

#[test]
fn an_authority_is_parsed_as_in_go() {
    let cluster = Cluster::new();
    let invalid = |path: &str| (Code::InvalidArgument, format!("Invalid authority: {path}"));
    for path in [
        "",
        ":80",
        "::1",
        "[::1]",
        "a:b:80",
        "linkerd.io",
        "web.prod.svc.cluster.local:",
        "web.prod.svc.cluster.local:0",
        "web.prod.svc.cluster.local:65536",
        "web.prod.svc.cluster.local:-1",
        "web.prod.svc.cluster.local: 80",
        "web.prod.svc.cluster.local:0x50",
        "web.prod.svc.cluster.local:+",
        "web.prod.svc.cluster.local:8_0",
        "web.prod",
        "web.prod.svc",
        "web.prod.svc.cluster.local.",
        "web.prod.SVC.cluster.local",
        "web.prod.svc.example.org",
        "prod.svc.cluster.local",
        "svc.cluster.local",
        "a.b.web.prod.svc.cluster.local",
        "[web.prod.svc.cluster.local]",
        "[web.prod.svc.cluster.local:80",
        "[web.prod].svc.cluster.local:80",
        "[web.prod.svc.cluster.local]]:80",
    ] {
        let (code, text) = invalid(path);
        assert_eq!(cluster.get(&settings(), path, ""), Answer::Refused(code, text));
    }
    for (path, host) in
        [("10.0.0.1", "10.0.0.1"), ("10.0.0.1:80", "10.0.0.1"), ("[::1]:80", "::1"), ("[10.0.0.1]:80", "10.0.0.1")]
    {
        let text = format!("IP queries not supported by Get API: host={host}");
        assert_eq!(cluster.get(&settings(), path, ""), Answer::Refused(Code::InvalidArgument, text));
    }
    for path in [
        "web.prod.svc.cluster.local",
        "web.prod.svc.cluster.local:80",
        "web.prod.svc.cluster.local:+80",
        "web.prod.svc.cluster.local:0080",
        "[web.prod.svc.cluster.local]:80",
        ".web.prod.svc.cluster.local:80",
    ] {
        assert_eq!(cluster.endpoints(&settings(), path, "").len(), 1, "{path}");
    }
}

#[test]
fn a_missing_or_redirected_service_is_refused_with_the_reason() {
    let labels = |labels: Value| json!({"metadata": {"labels": labels}});
    let annotations = |annotations: Value| json!({"metadata": {"annotations": annotations}});
    let remote = "multicluster.linkerd.io/remote-discovery";
    for (patch, code, text) in [
        (json!({"spec": {"type": "ExternalName"}}), Code::InvalidArgument, format!("Invalid authority: {WEB}")),
        (
            labels(json!({remote: "east"})),
            Code::FailedPrecondition,
            format!("Remote discovery service missing remote service name {WEB}"),
        ),
        (
            labels(json!({remote: "east", "multicluster.linkerd.io/remote-service": "web"})),
            Code::NotFound,
            "Remote cluster not found: east".to_owned(),
        ),
        (annotations(json!({remote: ""})), Code::Unknown, "service prod/web is not a federated service".to_owned()),
        (
            annotations(json!({"multicluster.linkerd.io/local-discovery": "web"})),
            Code::Unknown,
            "service prod/web is not a federated service".to_owned(),
        ),
    ] {
        let mut cluster = Cluster::new();
        cluster.edit("Service/web", patch);
        assert_eq!(cluster.get(&settings(), WEB, ""), Answer::Refused(code, text));
    }
    let mut cluster = Cluster::new();
    cluster.edit("Service/web", json!({"spec": {"type": "ExternalName"}, "metadata": {"labels": {remote: "east"}}}));
    assert!(matches!(cluster.get(&settings(), WEB, ""), Answer::Refused(Code::FailedPrecondition, _)));
    cluster.remove("Service/web");
    let not_found = Answer::Refused(Code::NotFound, "Service web.prod not found".to_owned());
    assert_eq!(cluster.get(&settings(), WEB, ""), not_found);
    let nameless = Answer::Refused(Code::NotFound, "Service .prod not found".to_owned());
    assert_eq!(cluster.get(&settings(), ".prod.svc.cluster.local:80", ""), nameless);
}

#[test]
fn an_open_stream_survives_the_deletion_of_its_service_but_not_its_redirection() {
    let request = Request { path: WEB.to_owned(), token: String::new() };
    let mut cluster = Cluster::new();
    cluster.edit("Service/web", json!({"spec": {"type": "ExternalName"}}));
    assert!(matches!(super::super::answer_while_open(&cluster.state(), &settings(), &request), Answer::Refused(..)));
    cluster.remove("Service/web");
    let empty = Answer::Endpoints(BTreeMap::new());
    assert_eq!(super::super::answer_while_open(&cluster.state(), &settings(), &request), empty);
}

#[test]
fn the_node_is_read_from_valid_tokens_and_invalid_ones_are_no_error() {
    for (token, locality) in [
        ("{\"ns\":\"prod\", \"nodeName\":\"node-a\", \"pod\":\"client\"}\n", "local"),
        (r#"{"NODENAME":"node-a"}"#, "local"),
        (r#"{"ns":1,"nodeName":"node-a","other":{}}"#, "local"),
        (r#"{"nodeName":"node-z"}"#, "unknown"),
        (r#"{"nodeName":1}"#, "unknown"),
        (r#"{"nodeName":null}"#, "unknown"),
        (r#"{"nodeName":"node-a"} x"#, "unknown"),
        ("ns:prod", "unknown"),
        ("123fa-test", "unknown"),
        ("[]", "unknown"),
        ("", "unknown"),
    ] {
        let endpoints = Cluster::new().endpoints(&settings(), WEB, token);
        let seen: Vec<_> =
            endpoints.values().map(|endpoint| endpoint.metric_labels["zone_locality"].as_str()).collect();
        assert_eq!(seen, [locality], "{token}");
    }
}
