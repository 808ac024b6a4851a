//! The messages are answers of Linkerd's sp-validator (edge-26.8) to the same objects.

use proptest::prelude::*;
use serde_json::value::RawValue;

use super::*;

const DECODING: &str = "failed to validate ServiceProfile: error unmarshaling JSON: while decoding JSON: ";
const NAME: &str = "has invalid name: a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, \
                    '-' or '.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used \
                    for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')";

/// Returns the message about an object; empty if it is valid.
fn message(object: &str) -> String {
    let object = RawValue::from_string(object.to_owned()).unwrap();
    validate(Some(&object)).err().unwrap_or_default()
}

/// Returns the message about a spec of the ServiceProfile `a`, without the name.
fn of_spec(spec: &str) -> String {
    let message = message(&format!(r#"{{"metadata": {{"name": "a"}}, "spec": {spec}}}"#));
    match message.strip_prefix("ServiceProfile \"a\" ").or(message.strip_prefix(DECODING)) {
        Some(rest) => rest.to_owned(),
        None => message,
    }
}

fn of_route(route: &str) -> String {
    of_spec(&format!(r#"{{"routes": [{route}]}}"#))
}

fn of_condition(condition: &str) -> String {
    of_route(&format!(r#"{{"name": "r", "condition": {condition}}}"#))
}

fn of_class(class: &str) -> String {
    of_route(&format!(r#"{{"name": "r", "condition": {{"method": "GET"}}, "responseClasses": [{class}]}}"#))
}

#[test]
fn a_name_must_be_a_dns_subdomain() {
    for name in ["a", "web.ns.svc.cluster.local", "a-b.c", "1", &format!("{}.b", "a".repeat(251))] {
        assert_eq!(message(&format!(r#"{{"metadata": {{"name": "{name}"}}}}"#)), "", "{name}");
    }
    for name in ["^.^", "A", "a..b", ".a", "a.", "-a", "a-", "a_b", "\u{e9}", "a b"] {
        let expected = format!("ServiceProfile \"{name}\" {NAME}");
        assert_eq!(message(&format!(r#"{{"metadata": {{"name": "{name}"}}}}"#)), expected);
    }
    let long = "a".repeat(254);
    let expected = format!("ServiceProfile \"{long}\" has invalid name: must be no more than 253 characters");
    assert_eq!(message(&format!(r#"{{"metadata": {{"name": "{long}"}}}}"#)), expected);
    for nameless in ["null", "{}", r#"{"metadata": null}"#, r#"{"metadata": {"name": null}, "spec": {}}"#] {
        assert_eq!(message(nameless), format!("ServiceProfile \"\" {NAME}"));
    }
    assert_eq!(validate(None).unwrap_err(), format!("ServiceProfile \"\" {NAME}"));
}

#[test]
fn a_spec_may_be_absent_or_empty() {
    for spec in [
        "null",
        "{}",
        r#"{"routes": null}"#,
        r#"{"routes": []}"#,
        r#"{"retryBudget": null}"#,
        r#"{"dstOverrides": []}"#,
    ] {
        assert_eq!(of_spec(spec), "", "{spec}");
    }
}

#[test]
fn a_route_needs_a_name_and_a_condition_and_its_timeout_is_a_duration() {
    let timeout =
        |text: &str| of_route(&format!(r#"{{"name": "r", "timeout": {text}, "condition": {{"method": "GET"}}}}"#));
    for (route, expected) in [
        ("null", "has a null route"),
        ("{}", "has a route with no name"),
        (r#"{"name": ""}"#, "has a route with no name"),
        (r#"{"name": "", "timeout": "x"}"#, "has a route with no name"),
        (r#"{"name": "r"}"#, "has a route with no condition"),
        (r#"{"name": "r", "condition": null}"#, "has a route with no condition"),
        (
            r#"{"name": "r", "timeout": "x", "condition": {}}"#,
            r#"has a route with an invalid timeout: time: invalid duration "x""#,
        ),
    ] {
        assert_eq!(of_route(route), expected);
    }
    for valid in [r#""""#, "null", r#""10s""#, r#""-1h30m""#, r#""0""#, "0"] {
        assert_eq!(timeout(valid), "", "{valid}");
    }
    for (invalid, reason) in [
        (r#""one-second""#, r#"invalid duration "one-second""#),
        (r#""5""#, r#"missing unit in duration "5""#),
        ("5", r#"missing unit in duration "5""#),
        ("1.5", r#"missing unit in duration "1.5""#),
        // sigs.k8s.io/yaml makes these texts of floats.
        ("1e6", r#"unknown unit "e+" in duration "1e+06""#),
        ("1234567.5", r#"unknown unit "e+" in duration "1.2345675e+06""#),
        (r#""1d""#, r#"unknown unit "d" in duration "1d""#),
    ] {
        assert_eq!(timeout(invalid), format!("has a route with an invalid timeout: time: {reason}"));
    }
}

#[test]
fn a_condition_of_a_route_needs_a_field_at_each_level() {
    const INVALID: &str = "has a route with an invalid condition: ";
    for valid in [
        r#"{"method": "GET"}"#,
        r#"{"pathRegex": "["}"#,
        r#"{"all": []}"#,
        r#"{"any": []}"#,
        r#"{"not": {"method": "GET"}}"#,
        r#"{"all": [{"any": [{"not": {"pathRegex": "/"}}]}], "method": ""}"#,
        r#"{"Method": "GET"}"#,
        r#"{"method": 5}"#,
    ] {
        assert_eq!(of_condition(valid), "", "{valid}");
    }
    for (invalid, reason) in [
        ("{}", "A request match must have a field set"),
        (r#"{"method": ""}"#, "A request match must have a field set"),
        (r#"{"all": null, "not": null}"#, "A request match must have a field set"),
        (r#"{"all": [{}]}"#, "A request match must have a field set"),
        (r#"{"method": "GET", "not": {}}"#, "A request match must have a field set"),
        (r#"{"all": [null]}"#, r#"null condition "all""#),
        (r#"{"any": [null]}"#, r#"null condition "any""#),
        (r#"{"any": [null], "all": [null]}"#, r#"null condition "all""#),
        (r#"{"not": {}, "any": [null]}"#, r#"null condition "any""#),
    ] {
        assert_eq!(of_condition(invalid), format!("{INVALID}{reason}"));
    }
}

#[test]
fn a_response_class_needs_a_condition_with_a_valid_range() {
    const INVALID: &str = "has a response class with an invalid condition: ";
    assert_eq!(of_class("null"), "has a null response class");
    assert_eq!(of_class("{}"), "has a response class with no condition");
    assert_eq!(of_class(r#"{"isFailure": true, "condition": null}"#), "has a response class with no condition");
    let condition = |condition: &str| of_class(&format!(r#"{{"condition": {condition}}}"#));
    for valid in [
        r#"{"all": []}"#,
        r#"{"status": {}}"#,
        r#"{"status": {"min": 0, "max": 200}}"#,
        r#"{"status": {"min": 200, "max": 0}}"#,
        r#"{"status": {"min": 100, "max": 599}}"#,
        r#"{"status": {"min": 100.0, "max": 1e2}}"#,
        r#"{"not": {"any": [{"status": {"min": 500}}]}}"#,
    ] {
        assert_eq!(condition(valid), "", "{valid}");
    }
    for (invalid, reason) in [
        ("{}", "A response match must have a field set"),
        (r#"{"status": null}"#, "A response match must have a field set"),
        (r#"{"not": {}}"#, "A response match must have a field set"),
        (r#"{"all": [null]}"#, r#"null condition "all""#),
        (r#"{"any": [null]}"#, r#"null condition "any""#),
        (r#"{"status": {"min": 99}}"#, "Range minimum must be between 100 and 599, inclusive"),
        (r#"{"status": {"min": 600, "max": 99}}"#, "Range minimum must be between 100 and 599, inclusive"),
        (r#"{"status": {"max": 99}}"#, "Range maximum must be between 100 and 599, inclusive"),
        (r#"{"status": {"max": 600}}"#, "Range maximum must be between 100 and 599, inclusive"),
        (r#"{"status": {"min": 500, "max": 400}}"#, "Range maximum cannot be smaller than minimum"),
        (r#"{"status": {"min": 1}, "not": {}}"#, "Range minimum must be between 100 and 599, inclusive"),
        (r#"{"status": {"min": 1}, "all": [null]}"#, r#"null condition "all""#),
        (r#"{"not": {"status": {"min": 1}}}"#, "Range minimum must be between 100 and 599, inclusive"),
    ] {
        assert_eq!(condition(invalid), format!("{INVALID}{reason}"));
    }
}

#[test]
fn a_retry_budget_needs_a_ttl_and_a_ratio_that_is_not_negative() {
    for (budget, expected) in [
        (r#"{"ttl": "10s"}"#, ""),
        (r#"{"ttl": "-10s", "retryRatio": 9e9, "minRetriesPerSecond": 4294967295}"#, ""),
        ("{}", "RetryBudget missing TTL field"),
        (r#"{"retryRatio": 0.2, "ttl": ""}"#, "RetryBudget missing TTL field"),
        (r#"{"retryRatio": -0.0}"#, "RetryBudget missing TTL field"),
        (r#"{"ttl": "foo"}"#, r#"RetryBudget: time: invalid duration "foo""#),
        (r#"{"ttl": 10}"#, r#"RetryBudget: time: missing unit in duration "10""#),
        (r#"{"ttl": true}"#, r#"RetryBudget: time: invalid duration "true""#),
        (r#"{"retryRatio": -0.2, "ttl": ""}"#, "RetryBudget RetryRatio must be non-negative: -0.200000"),
        (r#"{"retryRatio": -1e-9}"#, "RetryBudget RetryRatio must be non-negative: -0.000000"),
        (
            r#"{"retryRatio": -1e30}"#,
            "RetryBudget RetryRatio must be non-negative: -1000000015047466219876688855040.000000",
        ),
    ] {
        assert_eq!(of_spec(&format!(r#"{{"retryBudget": {budget}}}"#)), expected, "{budget}");
    }
}

#[test]
fn a_field_that_linkerd_does_not_have_is_unknown_at_each_level() {
    for object in [
        r#"{"metadata": {"name": "a"}, "foo": 1}"#,
        r#"{"metadata": {"name": "a", "foo": 1}}"#,
        r#"{"metadata": {"name": "a", "ownerReferences": [{"foo": 1}]}}"#,
        r#"{"metadata": {"name": "A"}, "spec": {"foo": 1}}"#,
        r#"{"spec": {"routes": [null, {"foo": 1}]}}"#,
        r#"{"spec": {"routes": [{"condition": {"all": [{"foo": {}}]}}]}}"#,
        r#"{"spec": {"routes": [{"responseClasses": [{"condition": {"status": {"foo": 1}}}]}]}}"#,
        r#"{"spec": {"retryBudget": {"foo": 1}}}"#,
        r#"{"spec": {"dstOverrides": [{"foo": 1}]}}"#,
        r#"{"spec": {"opaquePorts": {"80": {"foo": 1}}}}"#,
    ] {
        assert_eq!(message(object), format!("{DECODING}json: unknown field \"foo\""), "{object}");
    }
    assert_eq!(
        message(r#"{"metadata": {"name": "a"}, "status": {}}"#),
        format!("{DECODING}json: unknown field \"status\"")
    );
}

#[test]
fn a_value_of_a_wrong_type_is_an_error_in_the_words_of_go() {
    for (spec, expected) in [
        ("[]", "array into Go struct field ServiceProfile.spec of type v1alpha2.ServiceProfileSpec"),
        (
            r#"{"routes": {}}"#,
            "object into Go struct field ServiceProfileSpec.spec.routes of type []*v1alpha2.RouteSpec",
        ),
        (
            r#"{"routes": ["x"]}"#,
            "string into Go struct field ServiceProfileSpec.spec.routes of type v1alpha2.RouteSpec",
        ),
        (
            r#"{"routes": [{"name": "r", "condition": []}]}"#,
            "array into Go struct field RouteSpec.spec.routes.condition of type v1alpha2.RequestMatch",
        ),
        (
            r#"{"routes": [{"name": "r", "condition": {"not": [{"method": "GET"}]}}]}"#,
            "array into Go struct field RequestMatch.spec.routes.condition.not of type v1alpha2.RequestMatch",
        ),
        (
            r#"{"routes": [{"name": "r", "condition": {"method": {}}}]}"#,
            "object into Go struct field RequestMatch.spec.routes.condition.method of type string",
        ),
        (
            r#"{"routes": [{"isRetryable": "true"}]}"#,
            "string into Go struct field RouteSpec.spec.routes.isRetryable of type bool",
        ),
        (
            r#"{"routes": [{"responseClasses": [{"condition": {"status": {"min": false}}}]}]}"#,
            "bool into Go struct field Range.spec.routes.responseClasses.condition.status.min of type uint32",
        ),
        (
            r#"{"routes": [{"responseClasses": [{"condition": {"status": {"min": 1.5}}}]}]}"#,
            "number 1.5 into Go struct field Range.spec.routes.responseClasses.condition.status.min of type uint32",
        ),
        (
            r#"{"retryBudget": {"minRetriesPerSecond": -5}}"#,
            "number -5 into Go struct field RetryBudget.spec.retryBudget.minRetriesPerSecond of type uint32",
        ),
        (
            r#"{"retryBudget": {"minRetriesPerSecond": 18446744073709551616}}"#,
            "number 18446744073709552000 into Go struct field RetryBudget.spec.retryBudget.minRetriesPerSecond of type \
             uint32",
        ),
        (
            r#"{"retryBudget": {"retryRatio": 1e39}}"#,
            "number 1e+39 into Go struct field RetryBudget.spec.retryBudget.retryRatio of type float32",
        ),
        (
            r#"{"opaquePorts": ["80"]}"#,
            "array into Go struct field ServiceProfileSpec.spec.opaquePorts of type map[uint32]struct {}",
        ),
        (
            r#"{"opaquePorts": {"x": {}}}"#,
            "number x into Go struct field ServiceProfileSpec.spec.opaquePorts of type uint32",
        ),
        (
            r#"{"opaquePorts": {"80": 5}}"#,
            "number into Go struct field ServiceProfileSpec.spec.opaquePorts of type struct {}",
        ),
        // The first of several errors, by the order of keys.
        (
            r#"{"zoo": 1, "routes": 5}"#,
            "number into Go struct field ServiceProfileSpec.spec.routes of type []*v1alpha2.RouteSpec",
        ),
    ] {
        assert_eq!(of_spec(spec), format!("json: cannot unmarshal {expected}"), "{spec}");
    }
    for (object, expected) in [
        ("[]", "array into Go value of type v1alpha2.ServiceProfile"),
        (r#""x""#, "string into Go value of type v1alpha2.ServiceProfile"),
        (
            r#"{"apiVersion": 5, "kind": true}"#,
            "number into Go struct field ServiceProfile.TypeMeta.apiVersion of type string",
        ),
        (
            r#"{"metadata": {"labels": []}}"#,
            "array into Go struct field ObjectMeta.metadata.labels of type map[string]string",
        ),
        (
            r#"{"metadata": {"labels": {"a": []}}}"#,
            "array into Go struct field ObjectMeta.metadata.labels of type string",
        ),
        (
            r#"{"metadata": {"generation": "1"}}"#,
            "string into Go struct field ObjectMeta.metadata.generation of type int64",
        ),
        (
            r#"{"metadata": {"creationTimestamp": 5}}"#,
            "number into Go struct field ObjectMeta.metadata.creationTimestamp of type string",
        ),
    ] {
        assert_eq!(message(object), format!("{DECODING}json: cannot unmarshal {expected}"), "{object}");
    }
}

#[test]
fn a_weight_must_be_a_quantity() {
    const FORM: &str = "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'";
    const SUFFIX: &str = "unable to parse quantity's suffix";
    let weight = |weight: &str| of_spec(&format!(r#"{{"dstOverrides": [{{"authority": "a", "weight": {weight}}}]}}"#));
    for valid in
        ["null", "5", "1.5", r#""1k""#, r#"" 1""#, r#""500m""#, r#""1e1000""#, r#"".5""#, r#""1.""#, r#""-""#, r#""m""#]
    {
        assert_eq!(weight(valid), "", "{valid}");
    }
    for invalid in [r#""x""#, r#""""#, "true", "[]", "{}", r#""1.2.3""#, r#""1e1.5""#, r#""1 k""#, r#""1KI""#] {
        assert_eq!(weight(invalid), FORM, "{invalid}");
    }
    for invalid in [r#""1ki""#, r#""1e""#, r#""--1""#] {
        assert_eq!(weight(invalid), SUFFIX, "{invalid}");
    }
}

#[test]
fn the_metadata_of_the_api_server_is_valid() {
    let object = r#"{"apiVersion": "linkerd.io/v1alpha2", "kind": "ServiceProfile", "metadata": {"name": "a",
        "namespace": "ns", "uid": "u", "resourceVersion": "1", "generation": 1, "creationTimestamp": "2026-01-02T03:04:05Z",
        "deletionTimestamp": null, "labels": {"a": "b"}, "annotations": {"c": "d"}, "finalizers": ["x/y"],
        "ownerReferences": [{"apiVersion": "v1", "kind": "Service", "name": "s", "uid": "u", "controller": true}],
        "managedFields": [{"manager": "kubectl", "operation": "Update", "apiVersion": "linkerd.io/v1alpha2",
            "time": "2026-01-02T03:04:05Z", "fieldsType": "FieldsV1", "fieldsV1": {"f:spec": {}}}]}, "spec": {}}"#;
    assert_eq!(message(object), "");
}

#[test]
fn a_key_and_a_whole_number_are_read_as_by_encoding_json() {
    for object in [
        r#"{"metadata": {"name": "a", "generation": 1e18}}"#,
        r#"{"metadata": {"name": "a"}, "\u017fpec": {"routeſ": []}}"#,
    ] {
        assert_eq!(message(object), "", "{object}");
    }
}

#[test]
fn deep_nesting_is_valid_up_to_a_limit_and_then_an_error() {
    let nested = |levels: usize| {
        of_condition(&format!("{}{{\"method\": \"GET\"}}{}", "{\"all\": [".repeat(levels), "]}".repeat(levels)))
    };
    assert_eq!(nested(60), "");
    assert!(nested(62).contains("recursion limit exceeded"), "{}", nested(62));
    assert!(nested(500_000).contains("recursion limit exceeded"));
}

#[test]
fn a_message_has_a_maximum_length() {
    for object in [
        format!(r#"{{"metadata": {{"name": "{}"}}}}"#, "\u{e9}".repeat(1 << 20)),
        format!(r#"{{"{}": 1}}"#, "x".repeat(1 << 20)),
    ] {
        assert!((4000..=MAX_MESSAGE_BYTES).contains(&message(&object).len()));
    }
}

/// Returns JSON texts with the keys of ServiceProfiles.
fn objects() -> impl Strategy<Value = serde_json::Value> {
    let keys = [
        "metadata",
        "name",
        "spec",
        "routes",
        "condition",
        "all",
        "any",
        "not",
        "method",
        "timeout",
        "responseClasses",
        "status",
        "min",
        "max",
        "retryBudget",
        "ttl",
        "retryRatio",
        "dstOverrides",
        "weight",
        "opaquePorts",
        "Spec",
        "80",
    ];
    let leaf = prop_oneof![
        Just(serde_json::Value::Null),
        any::<bool>().prop_map(Into::into),
        any::<i64>().prop_map(Into::into),
        any::<f64>().prop_map(Into::into),
        "[0-9a-zµ.\\-+\u{e9}\"\\\\]{0,6}".prop_map(Into::into),
    ];
    leaf.prop_recursive(8, 64, 4, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Into::into),
            prop::collection::vec((prop::sample::select(keys.to_vec()).prop_map(str::to_owned), inner), 0..6)
                .prop_map(|entries| serde_json::Value::Object(entries.into_iter().collect())),
        ]
    })
}

proptest! {
    #[test]
    fn any_object_is_allowed_or_denied_with_a_message(spec in objects(), text in "\\PC{0,40}") {
        let object = serde_json::json!({"metadata": {"name": "a"}, "spec": spec}).to_string();
        _ = message(&object);
        _ = message(&spec.to_string());
        _ = message(&serde_json::json!({"metadata": {"name": text}}).to_string());
    }
}
