//! Conditions of routes and responses: the order of fields, and invalid conditions.

use linkerd2_proxy_api::{
    destination::{RequestMatch, ResponseMatch, request_match, response_match},
    http_types::http_method::Type,
};

use super::{
    super::{condition, field::Invalid, service_profile},
    *,
};

/// A match as short text: `all[GET, path /]`.
fn request_words(request: &RequestMatch) -> String {
    let words = |seq: &request_match::Seq| seq.matches.iter().map(request_words).collect::<Vec<_>>().join(", ");
    match request.r#match.as_ref().unwrap() {
        request_match::Match::All(seq) => format!("all[{}]", words(seq)),
        request_match::Match::Any(seq) => format!("any[{}]", words(seq)),
        request_match::Match::Not(not) => format!("not {}", request_words(not)),
        request_match::Match::Path(path) => format!("path {}", path.regex),
        request_match::Match::Method(method) => match method.r#type.as_ref().unwrap() {
            Type::Registered(number) => format!("method {number}"),
            Type::Unregistered(name) => format!("method {name}"),
        },
    }
}

fn response_words(response: &ResponseMatch) -> String {
    let words = |seq: &response_match::Seq| seq.matches.iter().map(response_words).collect::<Vec<_>>().join(", ");
    match response.r#match.as_ref().unwrap() {
        response_match::Match::All(seq) => format!("all[{}]", words(seq)),
        response_match::Match::Any(seq) => format!("any[{}]", words(seq)),
        response_match::Match::Not(not) => format!("not {}", response_words(not)),
        response_match::Match::Status(range) => format!("{}-{}", range.min, range.max),
    }
}

#[test]
fn the_fields_of_a_request_match_have_a_fixed_order() {
    for (given, expected) in [
        (json!({"method": "GET"}), "method 0"),
        (json!({"method": "trace"}), "method 8"),
        (json!({"method": "propFind"}), "method PROPFIND"),
        (json!({"pathRegex": "("}), "path ("),
        (json!({"method": "GET", "pathRegex": "/"}), "all[method 0, path /]"),
        (json!({"method": "", "pathRegex": "/", "not": null}), "path /"),
        (json!({"all": []}), "all[]"),
        (json!({"all": [{"any": [{"method": "PUT"}]}]}), "all[any[method 2]]"),
        (json!({"not": {"method": "POST", "pathRegex": "/"}}), "not all[method 1, path /]"),
        (json!({"not": [{"method": "POST"}]}), "not method 1"),
        (
            json!({"pathRegex": "/", "not": {"method": "HEAD"}, "method": "DELETE", "any": [], "all": [{"pathRegex": "x"}]}),
            "all[all[path x], any[], method 3, not method 7, path /]",
        ),
        (json!({"method": "GET", "unknown": 1}), "method 0"),
    ] {
        assert_eq!(condition::request(&given).map(|given| request_words(&given)), Ok(expected.to_owned()), "{given}");
    }
}

#[test]
fn the_fields_of_a_response_match_have_a_fixed_order() {
    for (given, expected) in [
        (json!({"status": {"min": 500, "max": 599}}), "500-599"),
        (json!({"status": {"min": 200}}), "200-0"),
        (json!({"status": {"max": 599}}), "0-599"),
        (json!({"status": {}}), "0-0"),
        (json!({"status": {"min": 404, "max": 404}}), "404-404"),
        (json!({"status": {"min": 400, "max": 499}, "not": {"status": {"min": 404}}}), "all[400-499, not 404-0]"),
        (
            json!({"not": {"all": []}, "status": {"max": 100}, "any": [{"status": {}}], "all": []}),
            "all[all[], any[0-0], 0-100, not all[]]",
        ),
    ] {
        assert_eq!(condition::response(&given).map(|given| response_words(&given)), Ok(expected.to_owned()), "{given}");
    }
}

#[test]
fn a_condition_without_a_meaning_is_invalid_at_any_depth() {
    for given in [
        json!(null),
        json!("GET"),
        json!({}),
        json!({"method": "", "pathRegex": ""}),
        json!({"all": null}),
        json!({"all": [null]}),
        json!({"any": [null]}),
        json!({"all": [{}]}),
        json!({"any": [{"all": [{"not": {}}]}]}),
        json!({"all": {}}),
        json!({"not": []}),
        json!({"not": [null]}),
        json!({"not": [{"method": "GET"}, {"method": "PUT"}]}),
        json!({"method": 1}),
        json!({"pathRegex": ["/"]}),
    ] {
        assert_eq!(condition::request(&given), Err(Invalid), "{given}");
    }
    for given in [
        json!({}),
        json!({"status": null}),
        json!({"all": [null]}),
        json!({"any": [{"not": {}}]}),
        json!({"not": [{"status": {"min": 500}}]}),
        json!({"status": {"min": 201, "max": 200}}),
        json!({"status": {"min": 1}}),
        json!({"status": {"min": 99, "max": 200}}),
        json!({"status": {"max": 600}}),
        json!({"status": {"min": -1}}),
        json!({"status": {"min": 500.5}}),
        json!({"status": {"min": false}}),
        json!({"status": 500}),
        json!({"not": {"status": {"min": 300, "max": 200}}}),
    ] {
        assert_eq!(condition::response(&given), Err(Invalid), "{given}");
    }
}

#[test]
fn one_invalid_field_makes_the_whole_profile_invalid() {
    let valid = |spec: Value| service_profile::read(&json!({ "spec": spec }), 80);
    assert_eq!(service_profile::read(&json!({}), 80), Some(service_profile::Content::default()));
    for spec in [
        json!(null),
        json!({}),
        json!({"routes": null, "retryBudget": null, "dstOverrides": null}),
        json!({"opaquePorts": ["80"]}),
        json!({"opaquePorts": {"80": {}}}),
        json!({"opaquePorts": 80, "unknown": {}}),
    ] {
        assert_eq!(valid(spec), Some(service_profile::Content::default()));
    }
    let timeout = |timeout: &str| {
        let spec = json!({"routes": [{"condition": {"method": "GET"}, "name": null, "timeout": timeout}]});
        valid(spec).unwrap().routes[0].timeout
    };
    assert_eq!((timeout("1s"), timeout("soon"), timeout(""), timeout("0s")), (seconds(1), None, None, None));
    let get = json!({"method": "GET"});
    for spec in [
        json!("x"),
        json!([]),
        json!({"routes": {}}),
        json!({"routes": [null]}),
        json!({"routes": [{"name": "a"}]}),
        json!({"routes": [{"name": "a", "condition": null}]}),
        json!({"routes": [{"name": 1, "condition": get}]}),
        json!({"routes": [{"name": "a", "condition": get, "timeout": 5}]}),
        json!({"routes": [{"name": "a", "condition": get, "isRetryable": "true"}]}),
        json!({"routes": [{"name": "a", "condition": get, "responseClasses": [null]}]}),
        json!({"routes": [{"name": "a", "condition": get, "responseClasses": [{"isFailure": true}]}]}),
        json!({"routes": [{"name": "a", "condition": get, "responseClasses": [{"condition": null}]}]}),
        json!({"routes": [{"name": "a", "condition": get, "responseClasses": [{"condition": {"all": []}, "isFailure": 1}]}]}),
        json!({"routes": [{"name": "a", "condition": get}, {"name": "b", "condition": {}}]}),
        json!({"retryBudget": {}}),
        json!({"retryBudget": {"ttl": null, "retryRatio": 0.2, "minRetriesPerSecond": 10}}),
        json!({"retryBudget": {"ttl": "10"}}),
        json!({"retryBudget": {"ttl": "10s", "minRetriesPerSecond": -1}}),
        json!({"retryBudget": {"ttl": "10s", "minRetriesPerSecond": 4_294_967_296_u64}}),
        json!({"retryBudget": {"ttl": "10s", "retryRatio": "0.2"}}),
        json!({"retryBudget": {"ttl": "10s", "retryRatio": 1e39}}),
        json!({"retryBudget": "10s"}),
        json!({"dstOverrides": [null]}),
        json!({"dstOverrides": {}}),
        json!({"dstOverrides": [{"authority": 1}]}),
        json!({"dstOverrides": [{"authority": "a", "weight": "heavy"}]}),
    ] {
        assert_eq!(valid(spec.clone()), None, "{spec}");
    }
    let budget = valid(json!({"retryBudget": {"ttl": "-1s", "minRetriesPerSecond": 7}})).unwrap().retry_budget.unwrap();
    assert_eq!(budget, RetryBudget { retry_ratio: 0.0, min_retries_per_second: 7, ttl: seconds(-1) });
    assert_eq!(valid(json!({"retryBudget": {"ttl": "0s"}})).unwrap().retry_budget.unwrap().ttl, None);
    let overrides = valid(json!({"dstOverrides": [{}, {"weight": null}, {"weight": 2}]})).unwrap().overrides;
    assert_eq!(
        overrides.iter().map(|one| (one.authority.as_str(), one.weight)).collect::<Vec<_>>(),
        [(":80", 0), (":80", 0), (":80", 20_000)]
    );
}
