use serde_json::{Value, json};

use super::*;
use request_match::Match;

use crate::cluster::{
    Problems,
    kinds::service_profile::route::{DEEPEST, ProfileContent},
};

fn content(spec: Value) -> Result<ProfileContent, String> {
    let spec = serde_json::from_value(spec).map_err(|error| error.to_string())?;
    ProfileContent::of(spec, &mut Problems::default()).map_err(|error| error.to_string())
}

fn routes(content: &ProfileContent) -> Vec<Route> {
    content.routes.iter().map(route).collect()
}

fn condition(condition: &Value) -> Result<RequestMatch, String> {
    let content = content(json!({"routes": [{"name": "r", "condition": condition}]}))?;
    Ok(routes(&content)[0].condition.clone().unwrap())
}

fn response(condition: &Value) -> Result<ResponseMatch, String> {
    let class = json!({"condition": condition, "isFailure": true});
    let route = json!({"name": "r", "condition": {"method": "GET"}, "responseClasses": [class]});
    let content = content(json!({"routes": [route]}))?;
    Ok(routes(&content)[0].response_classes[0].condition.clone().unwrap())
}

fn registered(method: http_method::Registered) -> RequestMatch {
    let r#type = Some(http_method::Type::Registered(method.into()));
    RequestMatch { r#match: Some(Match::Method(HttpMethod { r#type })) }
}

fn path(regex: &str) -> RequestMatch {
    RequestMatch { r#match: Some(Match::Path(PathMatch { regex: regex.to_owned() })) }
}

fn not(it: RequestMatch) -> RequestMatch {
    RequestMatch { r#match: Some(Match::Not(Box::new(it))) }
}

fn all(matches: Vec<RequestMatch>) -> RequestMatch {
    RequestMatch { r#match: Some(Match::All(request_match::Seq { matches })) }
}

fn any(matches: Vec<RequestMatch>) -> RequestMatch {
    RequestMatch { r#match: Some(Match::Any(request_match::Seq { matches })) }
}

#[test]
fn one_field_becomes_the_match_and_several_fields_are_wrapped_in_linkerds_order() {
    use http_method::Registered::{Get, Post};
    for (written, expected) in [
        (json!({"method": "GET"}), registered(Get)),
        (json!({"pathRegex": "/a/.*"}), path("/a/.*")),
        (json!({"method": "", "pathRegex": "/a"}), path("/a")),
        (json!({"pathRegex": "/a", "method": "post"}), all(vec![registered(Post), path("/a")])),
        (json!({"not": {"pathRegex": "/a"}, "method": "GET"}), all(vec![registered(Get), not(path("/a"))])),
        (json!({"all": []}), all(vec![])),
        (json!({"any": []}), any(vec![])),
        (json!({"all": [{"method": "GET"}]}), all(vec![registered(Get)])),
        (
            json!({"pathRegex": "/a", "not": {"method": "GET"}, "any": [{"method": "GET"}], "all": [{"pathRegex": "/b"}], "method": "POST"}),
            all(vec![
                all(vec![path("/b")]),
                any(vec![registered(Get)]),
                registered(Post),
                not(registered(Get)),
                path("/a"),
            ]),
        ),
    ] {
        assert_eq!(condition(&written), Ok(expected), "{written}");
    }
}

#[test]
fn http_methods_are_registered_and_all_other_methods_are_sent_in_upper_case() {
    for (number, method) in
        ["GET", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "CONNECT", "HEAD", "TRACE"].into_iter().enumerate()
    {
        let r#type = Some(http_method::Type::Registered(i32::try_from(number).unwrap()));
        let it = condition(&json!({"method": method.to_lowercase()})).unwrap();
        assert_eq!(it.r#match, Some(Match::Method(HttpMethod { r#type })));
    }
    let unregistered = HttpMethod { r#type: Some(http_method::Type::Unregistered("PURGE".to_owned())) };
    assert_eq!(condition(&json!({"method": "purge"})).unwrap().r#match, Some(Match::Method(unregistered)));
}

#[test]
fn a_match_without_fields_or_with_a_null_makes_the_profile_invalid() {
    for (written, error) in [
        (json!({}), "a request match must have a field set"),
        (json!({"method": "", "pathRegex": ""}), "a request match must have a field set"),
        (json!({"any": [{"not": {}}]}), "a request match must have a field set"),
        (json!({"all": [null]}), "null condition \"all\""),
        (json!({"any": [null]}), "null condition \"any\""),
    ] {
        assert_eq!(condition(&written), Err(format!("route \"r\" has an invalid condition: {error}")));
    }
    assert_eq!(condition(&json!(null)), Err("route \"r\" has no condition".to_owned()));
    for (written, error) in [
        (json!({}), "a response match must have a field set"),
        (json!({"all": [null]}), "null condition \"all\""),
        (json!({"any": [{"all": [null]}]}), "null condition \"all\""),
        (json!({"status": {"min": 201, "max": 200}}), "range maximum cannot be smaller than minimum"),
        (json!({"status": {"min": 99}}), "range minimum must be between 100 and 599, inclusive"),
        (json!({"not": {"status": {"max": 600}}}), "range maximum must be between 100 and 599, inclusive"),
    ] {
        let expected = format!("route \"r\" has a response class with an invalid condition: {error}");
        assert_eq!(response(&written), Err(expected));
    }
    let classes = |classes: Value| {
        content(json!({"routes": [{"name": "r", "condition": {"method": "GET"}, "responseClasses": classes}]}))
    };
    assert_eq!(classes(json!([null])).unwrap_err(), "route \"r\" has a null response class");
    assert_eq!(classes(json!([{}])).unwrap_err(), "route \"r\" has a response class with no condition");
}

#[test]
fn response_ranges_may_be_open_and_status_precedes_not() {
    use response_match::{Match, Seq};
    let is = |it| ResponseMatch { r#match: Some(it) };
    let status = |min, max| is(Match::Status(HttpStatusRange { min, max }));
    for (written, expected) in [
        (json!({"status": {"min": 500, "max": 599}}), status(500, 599)),
        (json!({"status": {"min": 200}}), status(200, 0)),
        (json!({"status": {"max": 200}}), status(0, 200)),
        (json!({"status": {}}), status(0, 0)),
        (json!({"any": [{"status": {"min": 420}}]}), is(Match::Any(Seq { matches: vec![status(420, 0)] }))),
        (
            json!({"not": {"status": {"min": 404}}, "status": {"min": 400, "max": 499}}),
            is(Match::All(Seq { matches: vec![status(400, 499), is(Match::Not(Box::new(status(404, 0))))] })),
        ),
    ] {
        assert_eq!(response(&written), Ok(expected), "{written}");
    }
}

#[test]
fn a_route_without_a_name_has_an_empty_label_and_routes_keep_their_fields() {
    let written = json!([{"condition": {"method": "GET"}},
        {"name": "a", "condition": {"method": "GET"}, "isRetryable": true, "timeout": "-1.5s"},
        {"name": "b", "condition": {"method": "GET"}, "timeout": "0s"}]);
    let content = content(json!({ "routes": written })).unwrap();
    let routes = routes(&content);
    let names: Vec<_> = routes.iter().map(|route| route.metrics_labels["route"].as_str()).collect();
    assert_eq!(names, ["", "a", "b"]);
    assert!(routes[1].is_retryable && !routes[0].is_retryable);
    let timeouts: Vec<_> = routes.iter().map(|route| route.timeout).collect();
    assert_eq!(timeouts, [None, Some(Duration { seconds: -1, nanos: -500_000_000 }), None]);
}

#[test]
fn a_retry_budget_that_is_set_has_no_defaults() {
    let budget =
        |budget: Value| content(json!({ "retryBudget": budget })).map(|it| it.retry_budget.as_ref().map(retry_budget));
    let expected =
        RetryBudget { retry_ratio: 0.0, min_retries_per_second: 0, ttl: Some(Duration { seconds: 60, nanos: 0 }) };
    assert_eq!(budget(json!({"ttl": "1m"})), Ok(Some(expected)));
    assert_eq!(budget(json!(null)), Ok(None));
    assert_eq!(budget(json!({"ttl": "0s", "retryRatio": 0.5})).unwrap().unwrap().ttl, None);
    for ttl in [json!(null), json!(""), json!("foo"), json!("10")] {
        assert!(budget(json!({"retryRatio": 0.2, "ttl": ttl})).unwrap_err().contains("ttl"), "{ttl}");
    }
}

#[test]
fn overrides_keep_their_order_and_an_invalid_weight_makes_the_profile_invalid() {
    let overrides = json!([{"authority": "b", "weight": "500m"}, {"weight": 1}, {"authority": "a"}]);
    let content_of = |overrides: Value| content(json!({ "dstOverrides": overrides }));
    let found = content_of(overrides).unwrap().overrides;
    let found: Vec<_> = found.iter().map(|it| (&*it.authority, it.weight)).collect();
    assert_eq!(found, [("b", 5_000), ("", 10_000), ("a", 0)]);
    assert_eq!(
        content_of(json!([{"authority": "a", "weight": "x"}])).unwrap_err(),
        "the weight of override \"a\" is not a quantity"
    );
    assert_eq!(content_of(json!([null])).unwrap_err(), "a null override");
}

#[test]
fn matches_are_nested_at_most_as_deep_as_clients_can_decode() {
    use crate::proto::destination::DestinationProfile;
    use prost::Message;
    let nested = |depth: usize| {
        let around = |inner: Value, _| json!({"method": "GET", "all": [inner]});
        condition(&(1..depth).fold(json!({"method": "GET", "pathRegex": "/a"}), around))
    };
    let deepest = nested(DEEPEST).unwrap();
    let route = Route { condition: Some(deepest), ..Route::default() };
    let bytes = DestinationProfile { routes: vec![route], ..DestinationProfile::default() }.encode_to_vec();
    assert!(DestinationProfile::decode(&*bytes).is_ok());
    assert!(nested(DEEPEST + 1).unwrap_err().contains("nested more than 20 levels deep"));
}

#[test]
fn a_profile_of_the_maximum_object_size_is_parsed_quickly_and_rejected_if_clients_cannot_decode_it() {
    let begun = std::time::Instant::now();
    let overrides = |count: usize| format!("{{\"dstOverrides\": [{}]}}", vec!["{}"; count].join(","));
    let read = |text: &str| {
        let spec = serde_json::from_str(text).map_err(|error| error.to_string())?;
        ProfileContent::of(spec, &mut Problems::default()).map(|_| ()).map_err(|error| error.to_string())
    };
    assert_eq!(read(&overrides(90_000)), Ok(()));
    assert!(read(&overrides(500_000)).unwrap_err().contains("clients refuse"));
    // A `not` does not copy its content, so a hundred of them around a megabyte use one megabyte.
    let innermost = format!("{{\"all\": [{}]}}", vec!["{\"all\":[]}"; 120_000].join(","));
    let nested = (0..100).fold(innermost, |inner, _| format!("{{\"not\": {inner}}}"));
    let spec = format!("{{\"routes\": [{{\"name\": \"r\", \"condition\": {{\"all\": [{nested}]}}}}]}}");
    assert!(read(&spec).unwrap_err().contains("nested more than"));
    assert!(begun.elapsed() < std::time::Duration::from_secs(10), "{:?}", begun.elapsed());
}
