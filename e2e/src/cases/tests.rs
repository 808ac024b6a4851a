//! The oracle answers every case as expected; and the reader, with small files.

use std::{collections::BTreeSet, fs, path::Path};

use super::*;

/// Reads a file of `Get` with the flags, kinds and messages of the table.
fn read(text: &str) -> Result<Vec<Case>> {
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("topic.yaml");
    fs::write(&file, text)?;
    let base = Base::read(&Path::new(env!("CARGO_MANIFEST_DIR")).join("cases/base.yaml"))?;
    file::read(&base, Method::Get, &file)?.iter().map(|row| row.case(Some(300))).collect()
}

const ONE_ROW: &str = "rows:\n- name: one\n  service: web:80\n  endpoints: {}\n";

fn error(text: &str) -> String {
    format!("{:#}", read(text).unwrap_err())
}

#[test]
fn the_oracle_gives_the_expected_answer_to_every_case() {
    let mut failed = Vec::new();
    let cases = cases().unwrap();
    for case in &cases {
        if let Some(difference) = case.expected.difference(&case.oracle().unwrap()) {
            failed.push(format!("{}\n  {} {:?}\n  {difference}", case.name, case.request.path, case.request.token));
        }
    }
    assert!(failed.is_empty(), "{} of {} cases:\n{}", failed.len(), cases.len(), failed.join("\n"));
}

/// A line of a failed run leads to one place.
#[test]
fn each_case_has_its_own_name_or_request() {
    let mut seen = BTreeSet::new();
    for case in cases().unwrap() {
        assert!(seen.insert((case.name.clone(), case.request.clone())), "{} is there twice", case.name);
    }
}

#[test]
fn objects_requests_and_answers_are_completed_by_defaults() {
    let cases = read(
        r#"
objects: {EndpointSlice/web: {endpoints: [192.0.2.1 Pod/web-0, {at: 192.0.2.2, zone: a}]}}
rows:
- name: one
  flags: [--cluster-domain=example.org]
  objects: {Service/web: {spec: {type: NodePort}}, Node/case-b: {}, Pod/case-other/web-0: {metadata: {labels: null}}}
  node: case-b
  service: web:81
  endpoints: {"192.0.2.1:80": {is: plain, weight: 7, labels: {service: null, more: case-ns}}}
"#,
    )
    .unwrap();
    let [case] = &cases[..] else { panic!("{cases:?}") };
    assert_eq!(case.name, "get/topic: one");
    assert_eq!(case.settings.cluster_domain, "example.org");
    assert!(case.flags.contains(&"--cluster-domain=example.org".to_owned()), "{:?}", case.flags);
    assert_eq!(case.request.path, "web.c300-ns.svc.example.org:81");
    assert_eq!(case.request.token, "{\"ns\":\"c300-ns\", \"nodeName\":\"c300-b\", \"pod\":\"client\"}\n");
    let objects: Vec<String> =
        case.objects.iter().map(|(key, _)| format!("{:?} {}/{}", key.kind, key.namespace, key.name)).collect();
    assert_eq!(objects, ["EndpointSlice c300-ns/web", "Node /c300-b", "Pod c300-other/web-0", "Service c300-ns/web"]);
    let slice = &case.objects[0].1;
    let target = serde_json::json!({"kind": "Pod", "namespace": "c300-ns", "name": "web-0"});
    assert_eq!(slice["endpoints"][0], serde_json::json!({"addresses": ["100.65.44.1"], "targetRef": target}));
    assert_eq!(slice["endpoints"][1], serde_json::json!({"addresses": ["100.65.44.2"], "zone": "a"}));
    assert_eq!(case.objects[2].1.pointer("/metadata/labels"), None, "null removes a field");
    assert_eq!(case.objects[3].1["spec"]["type"], "NodePort");
    let Expected::Get(Answer::Endpoints(endpoints)) = &case.expected else { panic!("{:?}", case.expected) };
    let endpoint = &endpoints[&"100.65.44.1:80".parse().unwrap()];
    assert_eq!((endpoint.weight, endpoint.metric_labels["more"].as_str()), (7, "c300-ns"));
    assert!(!endpoint.metric_labels.contains_key("service"), "{endpoint:?}");
}

#[test]
fn each_value_makes_a_case_and_keeps_its_type() {
    let row = "
rows:
- name: ports
  each: [8080, http]
  objects: {Server/s: {spec: {port: <each>}}}
  path: <each>.x
  refused: {InvalidArgument: not <each>}
- name: pairs
  each: [{a: 1, b: two}]
  path: <a>-<b>
  endpoints: {}
";
    let cases = read(row).unwrap();
    let paths: Vec<&str> = cases.iter().map(|case| case.request.path.as_str()).collect();
    assert_eq!(paths, ["8080.x", "http.x", "1-two"]);
    let ports: Vec<&Value> = cases[..2].iter().map(|case| &case.objects[0].1["spec"]["port"]).collect();
    assert_eq!(ports, [&serde_json::json!(8080), &serde_json::json!("http")]);
    assert_eq!(cases[1].name, "get/topic: ports (\"http\")");
    let refused = Answer::Refused(tonic::Code::InvalidArgument, "not http".to_owned());
    assert_eq!(cases[1].expected, Expected::Get(refused));
}

#[test]
fn requests_share_objects_and_fields_and_side_by_side_also_names() {
    let requests = "
rows:
- name: several
  objects: {Service/web: {}}
  endpoints: {}
  requests: [{service: web:80}, {service: web:81, node: case-node}]
";
    let cases = read(requests).unwrap();
    assert_eq!(cases.len(), 2);
    assert_eq!(cases[0].objects, cases[1].objects);
    assert_ne!(cases[0].request, cases[1].request);
}

#[test]
fn what_the_format_does_not_have_is_an_error() {
    assert_eq!(read(ONE_ROW).unwrap().len(), 1);
    for (text, reason) in [
        ("rows: []\nmore: 1", "unknown field `more`"),
        (&format!("{ONE_ROW}  more: 1"), "unknown field `more`"),
        (&format!("{ONE_ROW}  refused: {{NotFound: x}}"), "one expected answer"),
        (&format!("{ONE_ROW}  path: web"), "either `service` or `path`"),
        (&format!("{ONE_ROW}  token: x\n  node: y"), "either `token`, or `node`"),
        (&format!("{ONE_ROW}  flags: [--more=1]"), "--more does not change answers"),
        (&format!("{ONE_ROW}  flags: [-enable-ipv6=true]"), "two dashes"),
        (&format!("{ONE_ROW}  objects: {{More/x: {{}}}}"), "no defaults of the kind More"),
        (&format!("{ONE_ROW}  objects: {{Pod/x: null}}"), "does not exist"),
        (&format!("{ONE_ROW}  each: []"), "`each` is empty"),
        (&ONE_ROW.replace("{}", "{\"192.0.2.1:80\": more}"), "no message has the name \"more\""),
        (&ONE_ROW.replace("{}", "{\"192.0.2.1:80\": {is: plain, more: 1}}"), "unknown field `more`"),
        (&ONE_ROW.replace("{}", "{\"192.0.2.1\": plain}"), "not an address and a port"),
        (&ONE_ROW.replace("endpoints: {}", "refused: {Ok: x}"), "no code has the name"),
        (&format!("flags: more\n{ONE_ROW}"), "no flags have the name"),
    ] {
        assert!(error(text).contains(reason), "{text}: {}", error(text));
    }
}

/// The texts and the wire form are literals here, because the oracle and the reader are written by the same hands.
#[test]
fn a_complete_endpoint_has_each_field_of_the_message() {
    let row = r#"
rows:
- name: one
  service: web:80
  endpoints:
    "[2001:db8::5]:8080":
      is: pod
      authority: x:80
"#;
    let cases = read(row).unwrap();
    let Expected::Get(Answer::Endpoints(endpoints)) = &cases[0].expected else { panic!("refused") };
    let text = format!("{:?}", endpoints.values().next().unwrap());
    for part in [
        "first: 2306139568135208960, last: 5",
        "port: 8080",
        "weight: 10000",
        "\"pod\": \"web-0\"",
        "DnsLikeIdentity { name: \"web.c300-ns.serviceaccount.identity.linkerd.cluster.local\" }",
        "inbound_port: 4143",
        "H2(H2)",
        "interval: Some(Duration { seconds: 10, nanos: 0 })",
        "timeout: Some(Duration { seconds: 3, nanos: 0 }), while_idle: true",
        "authority_override: \"x:80\"",
    ] {
        assert!(text.contains(part), "{part} is not in {text}");
    }
}
