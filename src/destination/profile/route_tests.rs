use serde_json::{Value, json};

use super::*;

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
