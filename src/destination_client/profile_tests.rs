//! The changes of a profile, and its JSON.

use std::collections::BTreeMap;

use super::*;
use crate::proto::{
    destination::{
        AuthorityOverride, Http2ClientParams, HttpStatusRange, PathMatch, ProtocolHint, RequestMatch, ResponseClass,
        ResponseMatch, RetryBudget, Route, TlsIdentity, WeightedAddr, WeightedDst,
        http2_client_params::{FlowControl, Internals, KeepAlive},
        protocol_hint::{H2, Opaque, OpaqueTransport, Protocol},
        request_match, response_match,
        tls_identity::{DnsLikeIdentity, Strategy, UriLikeIdentity},
    },
    http_types::{HttpMethod, http_method},
    meta::{Metadata, Resource, metadata},
    net::{IPv6, IpAddress, TcpAddress, ip_address::Ip},
};

fn pretty(profile: DestinationProfile) -> String {
    format!("{}\n", serde_json::to_string_pretty(&ProfileState { known: Some(profile) }.known()).unwrap())
}

fn compact(message: &impl Serialize) -> String {
    serde_json::to_string(message).unwrap()
}

fn named(name: &str) -> DestinationProfile {
    DestinationProfile { fully_qualified_name: name.to_owned(), ..DestinationProfile::default() }
}

fn seconds(seconds: i64) -> Option<prost_types::Duration> {
    Some(prost_types::Duration { seconds, nanos: 0 })
}

fn budget() -> Option<RetryBudget> {
    Some(RetryBudget { retry_ratio: 0.2, min_retries_per_second: 10, ttl: seconds(10) })
}

fn labels(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}

fn path(regex: &str) -> RequestMatch {
    RequestMatch { r#match: Some(request_match::Match::Path(PathMatch { regex: regex.to_owned() })) }
}

fn method(of: Option<http_method::Type>) -> RequestMatch {
    RequestMatch { r#match: Some(request_match::Match::Method(HttpMethod { r#type: of })) }
}

fn all(matches: Vec<RequestMatch>) -> RequestMatch {
    RequestMatch { r#match: Some(request_match::Match::All(request_match::Seq { matches })) }
}

#[test]
fn only_a_message_that_differs_is_a_change_even_on_another_stream() {
    let mut state = ProfileState::default();
    let changed = |profile: &DestinationProfile| Some(ProfileChange { profile: profile.clone() });
    let empty = DestinationProfile::default();
    assert_eq!(state.apply(empty.clone()), changed(&empty), "an empty profile is a change too");
    assert_eq!(state.apply(named("web")), changed(&named("web")));
    assert_eq!(state.apply(named("web")), None);
    state.reopen();
    assert_eq!(state.apply(named("web")), None);
    assert_eq!(state.apply(empty.clone()), changed(&empty));
}

#[test]
fn a_change_contains_the_whole_profile() {
    let change = ProfileState::default().apply(named("web")).unwrap();
    assert_eq!(compact(&change), r#"{"profile":{"fully_qualified_name":"web"}}"#);
}

#[test]
fn the_profile_of_a_port_that_a_service_does_not_have_is_an_empty_object() {
    assert_eq!(pretty(DestinationProfile::default()), "{}\n");
}

#[test]
fn the_profile_of_a_service_has_its_references() {
    let resource = |resource| Some(Metadata { kind: Some(metadata::Kind::Resource(resource)) });
    let parent = Resource {
        group: "core".to_owned(),
        kind: "Service".to_owned(),
        name: "web".to_owned(),
        namespace: "prod".to_owned(),
        section: String::new(),
        port: 8080,
    };
    let profile = DestinationProfile {
        fully_qualified_name: "web.prod.svc.cluster.local".to_owned(),
        opaque_protocol: true,
        retry_budget: budget(),
        dst_overrides: vec![WeightedDst { authority: "a:80".to_owned(), weight: 5000, backend_ref: None }],
        parent_ref: resource(parent),
        profile_ref: resource(Resource { group: "linkerd.io".to_owned(), ..Resource::default() }),
        ..DestinationProfile::default()
    };
    let expected = r#"{
  "fully_qualified_name": "web.prod.svc.cluster.local",
  "opaque_protocol": true,
  "retry_budget": {
    "retry_ratio": 0.2,
    "min_retries_per_second": 10,
    "ttl": {
      "seconds": 10
    }
  },
  "dst_overrides": [
    {
      "authority": "a:80",
      "weight": 5000
    }
  ],
  "parent_ref": {
    "Kind": {
      "Resource": {
        "group": "core",
        "kind": "Service",
        "name": "web",
        "namespace": "prod",
        "port": 8080
      }
    }
  },
  "profile_ref": {
    "Kind": {
      "Resource": {
        "group": "linkerd.io"
      }
    }
  }
}
"#;
    assert_eq!(pretty(profile), expected);
}

#[test]
fn the_profile_of_a_meshed_pod_has_its_endpoint() {
    let dns = |name: &str| DnsLikeIdentity { name: name.to_owned() };
    let keep_alive = KeepAlive { interval: seconds(10), timeout: seconds(3), while_idle: true };
    let endpoint = WeightedAddr {
        addr: Some(TcpAddress { ip: Some(IpAddress { ip: Some(Ip::Ipv4(168_430_090)) }), port: 8080 }),
        weight: 10_000,
        metric_labels: labels(&[("zone", ""), ("pod", "web-1"), ("namespace", "prod")]),
        tls_identity: Some(TlsIdentity {
            strategy: Some(Strategy::DnsLikeIdentity(dns("web.prod"))),
            server_name: Some(dns("web.prod")),
        }),
        protocol_hint: Some(ProtocolHint {
            protocol: Some(Protocol::H2(H2 {})),
            opaque_transport: Some(OpaqueTransport { inbound_port: 4143 }),
        }),
        http2: Some(Http2ClientParams { keep_alive: Some(keep_alive), ..Http2ClientParams::default() }),
        ..WeightedAddr::default()
    };
    let profile =
        DestinationProfile { retry_budget: budget(), endpoint: Some(endpoint), ..DestinationProfile::default() };
    let expected = r#"{
  "retry_budget": {
    "retry_ratio": 0.2,
    "min_retries_per_second": 10,
    "ttl": {
      "seconds": 10
    }
  },
  "endpoint": {
    "addr": {
      "ip": {
        "Ip": {
          "Ipv4": 168430090
        }
      },
      "port": 8080
    },
    "weight": 10000,
    "metric_labels": {
      "namespace": "prod",
      "pod": "web-1",
      "zone": ""
    },
    "tls_identity": {
      "server_name": {
        "name": "web.prod"
      },
      "Strategy": {
        "DnsLikeIdentity": {
          "name": "web.prod"
        }
      }
    },
    "protocol_hint": {
      "opaque_transport": {
        "inbound_port": 4143
      },
      "Protocol": {
        "H2": {}
      }
    },
    "http2": {
      "keep_alive": {
        "interval": {
          "seconds": 10
        },
        "timeout": {
          "seconds": 3
        },
        "while_idle": true
      }
    }
  }
}
"#;
    assert_eq!(pretty(profile), expected);
}

#[test]
fn an_unset_oneof_is_null() {
    assert_eq!(compact(&ProtocolHint::default()), r#"{"Protocol":null}"#);
    assert_eq!(compact(&TlsIdentity::default()), r#"{"Strategy":null}"#);
    assert_eq!(compact(&Metadata::default()), r#"{"Kind":null}"#);
    assert_eq!(compact(&RequestMatch::default()), r#"{"Match":null}"#);
    assert_eq!(compact(&ResponseMatch::default()), r#"{"Match":null}"#);
    assert_eq!(compact(&HttpMethod::default()), r#"{"Type":null}"#);
    let address = TcpAddress { ip: Some(IpAddress { ip: None }), port: 80 };
    assert_eq!(compact(&address), r#"{"ip":{"Ip":null},"port":80}"#);
    assert_eq!(compact(&TcpAddress::default()), "{}");
}

#[test]
fn a_oneof_is_shown_even_if_its_value_is_zero() {
    let get = method(Some(http_method::Type::Registered(0)));
    assert_eq!(compact(&get), r#"{"Match":{"Method":{"Type":{"Registered":0}}}}"#);
    let none = method(Some(http_method::Type::Unregistered(String::new())));
    assert_eq!(compact(&none), r#"{"Match":{"Method":{"Type":{"Unregistered":""}}}}"#);
    assert_eq!(compact(&all(vec![])), r#"{"Match":{"All":{}}}"#);
    let default = Metadata { kind: Some(metadata::Kind::Default(String::new())) };
    assert_eq!(compact(&default), r#"{"Kind":{"Default":""}}"#);
    let any_port = TcpAddress { ip: Some(IpAddress { ip: Some(Ip::Ipv4(0)) }), port: 0 };
    assert_eq!(compact(&any_port), r#"{"ip":{"Ip":{"Ipv4":0}}}"#);
}

#[test]
fn a_route_is_shown_with_its_conditions() {
    use response_match::Match;
    let matching = |r#match| ResponseMatch { r#match: Some(r#match) };
    let status = |min, max| matching(Match::Status(HttpStatusRange { min, max }));
    let not = RequestMatch { r#match: Some(request_match::Match::Not(Box::new(path("/b")))) };
    let any = RequestMatch { r#match: Some(request_match::Match::Any(request_match::Seq { matches: vec![not] })) };
    let seq = response_match::Seq { matches: vec![status(500, 0), matching(Match::Not(Box::new(status(0, 404))))] };
    let route = Route {
        condition: Some(all(vec![method(Some(http_method::Type::Registered(1))), path("/a"), any])),
        response_classes: vec![
            ResponseClass { condition: Some(matching(Match::All(seq.clone()))), is_failure: true },
            ResponseClass { condition: Some(matching(Match::Any(seq))), is_failure: false },
        ],
        metrics_labels: labels(&[("route", "GET <all>")]),
        is_retryable: true,
        timeout: Some(prost_types::Duration { seconds: 0, nanos: 200_000_000 }),
    };
    let matches =
        r#"{"matches":[{"Match":{"Status":{"min":500}}},{"Match":{"Not":{"Match":{"Status":{"max":404}}}}}]}"#;
    let expected = [
        r#"{"condition":{"Match":{"All":{"matches":["#,
        r#"{"Match":{"Method":{"Type":{"Registered":1}}}},"#,
        r#"{"Match":{"Path":{"regex":"/a"}}},"#,
        r#"{"Match":{"Any":{"matches":[{"Match":{"Not":{"Match":{"Path":{"regex":"/b"}}}}}]}}}]}}},"#,
        &format!(r#""response_classes":[{{"condition":{{"Match":{{"All":{matches}}}}},"is_failure":true}},"#),
        &format!(r#"{{"condition":{{"Match":{{"Any":{matches}}}}}}}],"#),
        r#""metrics_labels":{"route":"GET <all>"},"is_retryable":true,"timeout":{"nanos":200000000}}"#,
    ];
    assert_eq!(compact(&route), expected.concat());
}

#[test]
fn the_other_fields_of_an_endpoint_are_shown() {
    let ipv6 = IPv6 { first: 0x2001_0db8_85a3_0000, last: u64::MAX };
    let uri = Strategy::UriLikeIdentity(UriLikeIdentity { uri: "spiffe://mesh/vm".to_owned() });
    let endpoint = WeightedAddr {
        addr: Some(TcpAddress { ip: Some(IpAddress { ip: Some(Ip::Ipv6(ipv6)) }), port: 1 }),
        tls_identity: Some(TlsIdentity { strategy: Some(uri), server_name: None }),
        protocol_hint: Some(ProtocolHint { protocol: Some(Protocol::Opaque(Opaque {})), opaque_transport: None }),
        authority_override: Some(AuthorityOverride { authority_override: "b:80".to_owned() }),
        http2: Some(Http2ClientParams {
            flow_control: Some(FlowControl {
                initial_connection_window_size: 1,
                initial_stream_window_size: 2,
                adaptive_flow_control: true,
            }),
            keep_alive: Some(KeepAlive { interval: seconds(0), timeout: None, while_idle: false }),
            internals: Some(Internals { max_concurrent_reset_streams: 3, max_frame_size: 4, max_send_buf_size: 5 }),
        }),
        resource_ref: Some(Metadata { kind: Some(metadata::Kind::Default("x".to_owned())) }),
        ..WeightedAddr::default()
    };
    let expected = [
        r#"{"addr":{"ip":{"Ip":{"Ipv6":{"first":2306139570357600256,"last":18446744073709551615}}},"port":1},"#,
        r#""tls_identity":{"Strategy":{"UriLikeIdentity":{"uri":"spiffe://mesh/vm"}}},"#,
        r#""protocol_hint":{"Protocol":{"Opaque":{}}},"authority_override":{"authority_override":"b:80"},"#,
        r#""http2":{"flow_control":{"initial_connection_window_size":1,"initial_stream_window_size":2,"#,
        r#""adaptive_flow_control":true},"keep_alive":{"interval":{}},"#,
        r#""internals":{"max_concurrent_reset_streams":3,"max_frame_size":4,"max_send_buf_size":5}},"#,
        r#""resource_ref":{"Kind":{"Default":"x"}}}"#,
    ];
    assert_eq!(compact(&endpoint), expected.concat());
}
