//! The consequences are those of `linkerd/service-profiles/src/proto.rs` in linkerd2-proxy.

use serde_json::{Value, json, value::RawValue};

use super::*;
use crate::service_profile_validator::rules::validate;

fn of(object: &Value, cluster_domain: Option<&str>) -> Vec<String> {
    let object = RawValue::from_string(object.to_string()).unwrap();
    warnings(&validate(Some(&object)).unwrap(), cluster_domain)
}

fn of_spec(spec: &Value) -> Vec<String> {
    let metadata = json!({"name": "web.shop.svc.cluster.local", "namespace": "shop"});
    of(&json!({"metadata": metadata, "spec": spec}), Some("cluster.local"))
}

fn of_route(condition: &Value, is_retryable: bool) -> Vec<String> {
    of_spec(&json!({"routes": [{"name": "r", "condition": condition, "isRetryable": is_retryable}]}))
}

#[test]
fn a_usual_profile_has_no_warning() {
    let classes = json!([{"condition": {"status": {"min": 500, "max": 599}}, "isFailure": true}]);
    let spec = json!({
        "routes": [
            {"name": "GET /", "condition": {"method": "get", "pathRegex": "/"}, "isRetryable": true, "timeout": "300ms"},
            {"name": "one", "condition": {"pathRegex": "/books/[^/]*"}, "responseClasses": classes},
            {"name": "two", "condition": {"all": [{"any": [{"not": {"pathRegex": "^/(a|b)$"}}]}, {"method": "POST"}]}},
        ],
        "retryBudget": {"retryRatio": 0.2, "minRetriesPerSecond": 10, "ttl": "10s"},
        "dstOverrides": [
            {"authority": "web.shop.svc.cluster.local", "weight": 1},
            {"authority": "web-2.shop.svc.cluster.local:8080", "weight": "500m"},
            {"authority": "db-0.db.shop.svc.cluster.local:80", "weight": 1},
        ],
    });
    assert_eq!(of_spec(&spec), Vec::<String>::new());
    assert_eq!(of_spec(&json!(null)), Vec::<String>::new());
}

#[test]
fn an_invalid_regular_expression_has_the_consequence_of_its_place() {
    let decimal = "the pathRegex \"/books/{id}\" is not valid: repetition quantifier expects a valid decimal";
    let bad = json!({"pathRegex": "/books/{id}"});
    let more = "proxies ignore this condition, so the route matches more requests";
    let fewer = "proxies ignore this condition, so the route matches fewer requests";
    for (condition, effect) in [
        (bad.clone(), "proxies ignore the route"),
        (json!({"not": bad}), "proxies ignore the route"),
        (json!({"all": [{"method": "GET"}, bad]}), more),
        (json!({"any": [{"method": "GET"}, bad]}), fewer),
        (json!({"method": "GET", "pathRegex": "/books/{id}"}), more),
        (json!({"not": {"all": [{"method": "GET"}, bad]}}), fewer),
        (json!({"all": [{"not": {"any": [bad]}}]}), more),
    ] {
        assert_eq!(of_route(&condition, false), [format!("route \"r\": {effect}: {decimal}")], "{condition}");
    }
    let retried = of_route(&json!({"method": "GET", "pathRegex": "/books/{id}"}), true);
    assert_eq!(retried, [format!("route \"r\": {more}, and they are retried: {decimal}")]);
}

#[test]
fn regular_expressions_are_those_of_the_proxy() {
    let reason = |regex: &str| {
        let warnings = of_route(&json!({ "pathRegex": regex }), false).join("; ");
        warnings.rsplit_once("is not valid: ").map(|(_, reason)| reason.to_owned())
    };
    assert!(reason("/(?!health).*").unwrap().starts_with("look-around"));
    assert_eq!(reason("["), Some("unclosed character class".to_owned()));
    assert_eq!(reason("/\\p{Nothing}"), Some("Unicode property not found".to_owned()));
    // Valid with the anchor that the proxy adds, or with the blanks that it removes.
    assert_eq!([reason("*"), reason(" /a ")], [None, None]);
    assert_eq!(of_route(&json!({"pathRegex": "^/a$|^/b$"}), false), [""; 0], "each alternative is anchored");
    let half = of_route(&json!({"pathRegex": "/a|/b"}), false);
    let expected = "route \"r\": the pathRegex \"/a|/b\" is anchored at one end of each alternative only: write (…|…)";
    assert_eq!(half, [expected]);
}

/// The limit is that of the regex crate for a compiled expression: 10 MiB.
#[test]
fn a_regular_expression_that_is_too_large_has_the_consequence_of_its_place() {
    let large = "the pathRegex \"(a{1000}){1000}\" is too large: it needs more than 10 MiB";
    let bad = json!({"pathRegex": "(a{1000}){1000}"});
    assert_eq!(of_route(&bad, false), [format!("route \"r\": proxies ignore the route: {large}")]);
    let more = "proxies ignore this condition, so the route matches more requests, and they are retried";
    assert_eq!(of_route(&json!({"all": [{"method": "GET"}, bad]}), true), [format!("route \"r\": {more}: {large}")]);
    for (regex, is_too_large) in [
        ("a{5000000}", true),
        ("(((a{100}){100}){100}){100}", true),
        ("\\w{300}", true),
        ("[a-z]{1000}|(\\w{250})", true),
        ("(a{1000}){300}", false),
        ("(a{1000}){160}", false),
        ("\\w{100}", false),
        ("[^/]{1000}", false),
        ("(((((?:){1000}){1000}){1000}){1000}", false),
    ] {
        let warnings = of_route(&json!({ "pathRegex": regex }), false);
        assert_eq!(
            warnings.iter().any(|it| it.ends_with(" is too large: it needs more than 10 MiB")),
            is_too_large,
            "{regex}: {warnings:?}"
        );
    }
}

#[test]
fn a_method_that_is_none_is_an_unusable_condition() {
    let expected = "route \"r\": proxies ignore the route: the method \"GE T\" is not valid";
    assert_eq!(of_route(&json!({"method": "GE T"}), false), [expected]);
}

#[test]
fn a_retry_budget_that_proxies_refuse_means_no_retries() {
    let warning = |budget: &Value| of_spec(&json!({ "retryBudget": budget })).pop().unwrap_or_default();
    let budget = |ttl: &str| json!({"retryRatio": 0.2, "minRetriesPerSecond": 10, "ttl": ttl});
    for ttl in ["1s", "60s", "1m"] {
        assert_eq!(warning(&budget(ttl)), "", "{ttl}");
    }
    for ttl in ["120s", "999ms", "60001ms", "-10s", "0"] {
        let expected =
            format!("proxies ignore the retryBudget and retry nothing: its ttl \"{ttl}\" is not between 1s and 60s");
        assert_eq!(warning(&budget(ttl)), expected);
    }
    let ratio = json!({"retryRatio": 1001, "minRetriesPerSecond": 10, "ttl": "10s"});
    assert!(warning(&ratio).ends_with("its retryRatio 1001 is not between 0 and 1000"));
    let many = json!({"retryRatio": 1, "minRetriesPerSecond": 2_147_483_648_u32, "ttl": "10s"});
    assert!(warning(&many).ends_with("its minRetriesPerSecond is greater than 2147483647"));
}

#[test]
fn an_override_must_be_the_name_of_a_service() {
    let warning = |authority: &str| {
        let spec = json!({"dstOverrides": [{"authority": authority, "weight": 1}]});
        of_spec(&spec).pop().unwrap_or_default()
    };
    for authority in [
        "books-v2.default:80",
        "http://books-v3.default.svc.cluster.local:80",
        "books.default.svc.cluster.example:80",
        "books.default.svc.cluster.local:http",
        "books.default.svc.cluster.local:0",
        "books.default.svc.cluster.local.",
        "10.0.0.1:80",
        "[::1]:80",
        "",
    ] {
        let warning = warning(authority);
        let expected = "is not SERVICE.NAMESPACE.svc.cluster.local[:PORT]: it has no endpoints for proxies, or they \
                        ignore it";
        assert!(warning.starts_with("dstOverrides: \"") && warning.ends_with(expected), "{authority}: {warning}");
    }
}

#[test]
fn a_name_that_no_client_uses_and_a_namespace_of_few_clients_have_a_warning() {
    let of_name = |name: &str, namespace: &str, domain| {
        of(&json!({"metadata": {"name": name, "namespace": namespace}}), domain).pop().unwrap_or_default()
    };
    let domain = Some("cluster.local");
    for (name, domain, form) in [
        ("books", domain, "cluster.local"),
        ("books.default.svc.cluster.example", domain, "cluster.local"),
        ("db-0.books.default.svc.cluster.local", domain, "cluster.local"),
        ("example.com", None, "DOMAIN"),
    ] {
        let expected =
            format!("the name \"{name}\" is not SERVICE.NAMESPACE.svc.{form}: the ServiceProfile applies to no client");
        assert_eq!(of_name(name, "default", domain), expected);
    }
    assert_eq!(of_name("books.default.svc.cluster.example", "default", None), "");
    let expected = "the ServiceProfile is not in the namespace default of the Service: it applies only to clients in the \
                    namespace linkerd";
    assert_eq!(of_name("books.default.svc.cluster.local", "linkerd", domain), expected);
}

#[test]
fn what_proxies_leave_out_of_a_route_has_a_warning() {
    let of_rest = |rest: Value| {
        let mut route = json!({"name": "r", "condition": {"method": "GET"}});
        route.as_object_mut().unwrap().extend(rest.as_object().unwrap().clone());
        of_spec(&json!({ "routes": [route] })).pop().unwrap_or_default()
    };
    let negative = "route \"r\": proxies ignore its timeout \"-1s\": it is negative";
    assert_eq!(of_rest(json!({"timeout": "-1s"})), negative);
    let open = "route \"r\": proxies ignore a range of status codes in its responseClasses: it needs min and max";
    for range in [json!({"min": 500}), json!({"max": 599}), json!({"min": 0, "max": 599})] {
        assert_eq!(of_rest(json!({"responseClasses": [{"condition": {"status": range}}]})), open);
        assert_eq!(of_rest(json!({"responseClasses": [{"condition": {"not": {"all": [{"status": range}]}}}]})), open);
    }
}

#[test]
fn warnings_are_few_and_short_and_the_work_is_bounded() {
    let route = json!({"name": "n".repeat(10_000), "condition": {"pathRegex": format!("{{{}", "\u{1b}[".repeat(200))}});
    let warnings = of_spec(&json!({"routes": vec![route; 1000]}));
    assert_eq!(warnings.len(), 10);
    assert!(warnings.iter().all(|warning| warning.len() <= 250 && !warning.contains('\u{1b}')), "{warnings:?}");
    // Each of these classes takes some KiB, and 50 KiB when it is compiled.
    let classes = |number: usize| json!({"name": "r", "condition": {"pathRegex": "\\w".repeat(number)}});
    assert_eq!(of_spec(&json!({"routes": vec![classes(40); 10_000]})), Vec::<String>::new());
    let warnings = of_spec(&json!({"routes": vec![classes(500); 10_000]}));
    assert_eq!(warnings.len(), 2, "only two are compiled: {warnings:?}");
    assert!(
        warnings.iter().all(|warning| warning.ends_with("is too large: it needs more than 10 MiB")),
        "{warnings:?}"
    );
}
