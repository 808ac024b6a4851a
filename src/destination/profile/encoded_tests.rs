//! Tests of the pieces of a profile: whatever its size, they are one message.

use serde_json::{Value, json};

use super::*;
use crate::{
    api::NamespacedName,
    cluster::Problems,
    destination::{profile::request::ServiceTarget, testing::settings},
};

impl EncodedProfile {
    /// Decodes the message that a client receives.
    pub(in crate::destination) fn decoded(&self) -> DestinationProfile {
        let received: Vec<u8> = self.clone().pieces().flatten().collect();
        let (header, message) = received.split_at(5);
        assert_eq!(header[0], 0, "not compressed");
        assert_eq!(u32::from_be_bytes(header[1..].try_into().unwrap()) as usize, message.len());
        DestinationProfile::decode(message).unwrap()
    }
}

fn encoded(spec: Value, port: u16) -> EncodedProfile {
    let service = NamespacedName::new("ns", "web");
    let target = ServiceTarget { service: service.clone(), port, dotted: false, client_namespace: None };
    let content = ProfileContent::of(serde_json::from_value(spec).unwrap(), &mut Problems::default()).unwrap();
    let inputs = ProfileInputs::Service { target, opaque: true, profile: Some((service, Arc::new(content))) };
    EncodedProfile::of(&inputs, &settings())
}

/// A ServiceProfile with this number of routes and overrides, some of them with a port.
fn spec(routes: usize, overrides: usize) -> Value {
    let route =
        |number: usize| json!({"name": format!("r-{number}"), "condition": {"pathRegex": format!("/{number}")}});
    let authority = |number: usize| format!("web-{number}{}", if number.is_multiple_of(2) { ":8080" } else { "" });
    let overrides = (0..overrides).map(|number| json!({"authority": authority(number), "weight": number}));
    json!({
        "routes": (0..routes).map(route).collect::<Vec<_>>(), "dstOverrides": overrides.collect::<Vec<_>>(),
        "retryBudget": {"retryRatio": 0.5, "minRetriesPerSecond": 7, "ttl": "3s"},
    })
}

#[test]
fn the_pieces_are_one_message_with_all_routes_and_overrides_in_order() {
    for (routes, overrides) in [(0, 0), (1, 1), (3, 0), (0, 3), (2_000, 0), (0, 2_000), (2_000, 2_000)] {
        let profile = encoded(spec(routes, overrides), 90).decoded();
        let name = |it: &crate::proto::destination::Route| it.metrics_labels["route"].clone();
        let names: Vec<String> = profile.routes.iter().map(name).collect();
        assert_eq!(names, (0..routes).map(|number| format!("r-{number}")).collect::<Vec<_>>());
        let authorities: Vec<&str> = profile.dst_overrides.iter().map(|it| it.authority.as_str()).collect();
        let port = |number: usize| if number.is_multiple_of(2) { 8080 } else { 90 };
        let expected: Vec<String> = (0..overrides).map(|number| format!("web-{number}:{}", port(number))).collect();
        assert_eq!(authorities, expected);
        assert!(profile.opaque_protocol);
        assert_eq!(profile.fully_qualified_name, "web.ns.svc.mycluster.local");
        assert_eq!(profile.retry_budget.unwrap().min_retries_per_second, 7);
    }
}

#[test]
fn a_small_profile_is_one_piece_and_a_large_one_has_pieces_of_some_kib() {
    assert_eq!(encoded(spec(3, 3), 90).pieces().count(), 1);
    let pieces: Vec<Bytes> = encoded(spec(0, 5_000), 90).pieces().collect();
    assert!(pieces.len() > 3 && pieces.iter().all(|piece| piece.len() < 2 * PIECE));
}

#[test]
fn profiles_with_the_same_content_are_equal_and_others_are_not() {
    let large = || spec(2_000, 2_000);
    assert_eq!(encoded(large(), 90), encoded(large(), 90));
    assert_ne!(encoded(large(), 90), encoded(large(), 91));
    assert_ne!(encoded(large(), 90), encoded(spec(2_000, 2_001), 90));
    let mut other = large();
    other["routes"][7]["isRetryable"] = true.into();
    assert_ne!(encoded(large(), 90), encoded(other, 90));
}

#[test]
fn an_authority_that_is_longer_than_any_host_name_is_invalid() {
    let long = json!({"dstOverrides": [{"authority": "x".repeat(1_025), "weight": 1}]});
    let error = ProfileContent::of(serde_json::from_value(long).unwrap(), &mut Problems::default()).unwrap_err();
    assert_eq!(error.to_string(), "the authority of an override has 1025 bytes, and the maximum is 1024");
}
