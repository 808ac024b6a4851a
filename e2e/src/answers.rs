//! Fetches a manager's answers in a form that can be compared with the [`oracle`](crate::oracle).
//!
//! * In: a connection and a request. Out: an [`Answer`], and a description of how two answers differ.
//! * Always: [`settings`] returns the same settings twice, as manager flags and as input of the oracle.

use std::fmt::Debug;

use anyhow::{Context, Result};
use linkerd2_proxy_api::destination::DestinationProfile;
use tonic::Status;

use crate::{
    discovery::Discovery,
    oracle::{Answer, ProfileAnswer, Request, Settings},
};

/// Returns the settings that change answers: for the oracle, and as flags of the manager.
pub fn settings() -> (Settings, Vec<String>) {
    let settings = Settings {
        cluster_domain: "cluster.local".to_owned(),
        trust_domain: "cluster.local".to_owned(),
        controller_namespace: "linkerd".to_owned(),
        default_opaque_ports: "25".to_owned(),
        transport_header: true,
        h2_upgrade: true,
        ipv6: true,
        zone_weights: true,
        http2: None,
    };
    let flags = [
        // EndpointSlices written by that controller would change the answers during the comparison.
        "--enable-external-workload=false",
        "--default-opaque-ports=25",
        "--enable-ipv6=true",
        "--ext-endpoint-zone-weights=true",
        "--meshed-http2-client-params=",
    ];
    (settings, flags.map(str::to_owned).to_vec())
}

pub fn refusal(status: &Status) -> Answer {
    Answer::Refused(status.code(), status.message().to_owned())
}

/// Returns the complete answer to a new stream: its first message, or its refusal.
///
/// # Errors
/// Fails when the stream ends without a first message.
pub async fn first_answer(discovery: &Discovery, request: &Request) -> Result<Answer> {
    match discovery.get(&request.path, &request.token).await {
        Err(status) => Ok(refusal(&status)),
        Ok(mut stream) => {
            stream.next().await?.context("the stream ended before its first message")?;
            Ok(Answer::Endpoints(stream.known))
        }
    }
}

/// Returns the refusal of `GetProfile`. The details about an invalid path are dropped, because they differ between
/// parsers.
pub fn profile_refusal(status: &Status) -> ProfileAnswer {
    let mut reasons = ["invalid authority", "invalid service"].into_iter();
    let reason = reasons.find(|reason| status.message().starts_with(reason));
    ProfileAnswer::Refused(status.code(), reason.unwrap_or(status.message()).to_owned())
}

/// Returns the first message of a new stream of `GetProfile`, or its refusal.
///
/// # Errors
/// Fails when the stream ends without a first message.
pub async fn first_profile_answer(discovery: &Discovery, request: &Request) -> Result<ProfileAnswer> {
    match discovery.get_profile(&request.path, &request.token).await {
        Err(status) => Ok(profile_refusal(&status)),
        Ok(mut stream) => {
            let first = stream.next().await?.context("the stream ended before its first message")?;
            Ok(ProfileAnswer::Profile(Box::new(first)))
        }
    }
}

/// Describes the missing, the unexpected and the differing endpoints, one per line.
pub fn difference(expected: &Answer, seen: Option<&Answer>) -> String {
    let (wanted, known) = match (expected, seen) {
        (Answer::Endpoints(wanted), Some(Answer::Endpoints(known))) => (wanted, known),
        (expected, Some(seen)) => return format!("expected {expected:?}, saw {seen:?}"),
        (expected, None) => return format!("expected {expected:?}, saw no answer"),
    };
    let mut lines = Vec::new();
    for (address, endpoint) in wanted {
        match known.get(address) {
            Some(other) if other == endpoint => {}
            Some(other) => lines.push(format!("{address}: expected {endpoint:?}, saw {other:?}")),
            None => lines.push(format!("{address} is missing: {endpoint:?}")),
        }
    }
    let unexpected = known.iter().filter(|(address, _)| !wanted.contains_key(address));
    lines.extend(unexpected.map(|(address, endpoint)| format!("{address} is unexpected: {endpoint:?}")));
    lines.join("\n")
}

/// Describes the fields in which two profiles differ, one per line; "" when they are equal.
pub fn profile_difference(expected: &ProfileAnswer, seen: Option<&ProfileAnswer>) -> String {
    let (wanted, known) = match (expected, seen) {
        (ProfileAnswer::Profile(wanted), Some(ProfileAnswer::Profile(known))) => (wanted, known),
        (expected, Some(seen)) if expected == seen => return String::new(),
        (expected, Some(seen)) => return format!("expected {expected:?}, saw {seen:?}"),
        (expected, None) => return format!("expected {expected:?}, saw no answer"),
    };
    // Destructured, so that a field added to the protocol is a compile error here.
    let DestinationProfile {
        fully_qualified_name,
        opaque_protocol,
        routes,
        retry_budget,
        dst_overrides,
        endpoint,
        parent_ref,
        profile_ref,
    } = &**wanted;
    let lines = [
        field_difference("fully_qualified_name", fully_qualified_name, &known.fully_qualified_name),
        field_difference("opaque_protocol", opaque_protocol, &known.opaque_protocol),
        field_difference("routes", routes, &known.routes),
        field_difference("retry_budget", retry_budget, &known.retry_budget),
        field_difference("dst_overrides", dst_overrides, &known.dst_overrides),
        field_difference("endpoint", endpoint, &known.endpoint),
        field_difference("parent_ref", parent_ref, &known.parent_ref),
        field_difference("profile_ref", profile_ref, &known.profile_ref),
    ];
    lines.into_iter().flatten().collect::<Vec<_>>().join("\n")
}

fn field_difference<T: PartialEq + Debug>(field: &str, expected: &T, seen: &T) -> Option<String> {
    (expected != seen).then(|| format!("{field}: expected {expected:?}, saw {seen:?}"))
}

#[cfg(test)]
mod tests {
    use linkerd2_proxy_api::destination::WeightedAddr;

    use super::*;

    fn endpoints(weights: &[(u8, u32)]) -> Answer {
        let endpoint = |(last, weight): &(u8, u32)| {
            let address = std::net::SocketAddr::from(([10, 0, 0, *last], 80));
            (address, WeightedAddr { weight: *weight, ..WeightedAddr::default() })
        };
        Answer::Endpoints(weights.iter().map(endpoint).collect())
    }

    #[test]
    fn a_missing_outdated_or_unexpected_endpoint_is_reported() {
        let wanted = endpoints(&[(1, 1), (2, 1)]);
        for (seen, named) in [
            (endpoints(&[(1, 1)]), "10.0.0.2:80 is missing"),
            (endpoints(&[(1, 1), (2, 7)]), "10.0.0.2:80: expected"),
            (endpoints(&[(1, 1), (2, 1), (3, 1)]), "10.0.0.3:80 is unexpected"),
        ] {
            assert!(difference(&wanted, Some(&seen)).starts_with(named));
        }
        assert_eq!(difference(&wanted, Some(&wanted)), "");
    }

    #[test]
    fn only_the_fields_that_differ_between_two_profiles_are_reported() {
        let profile = |name: &str, opaque_protocol| {
            let fully_qualified_name = name.to_owned();
            let profile = DestinationProfile { fully_qualified_name, opaque_protocol, ..DestinationProfile::default() };
            ProfileAnswer::Profile(Box::new(profile))
        };
        let refused = ProfileAnswer::Refused(tonic::Code::Unknown, "no".to_owned());
        let wanted = profile("web", true);
        for (seen, named) in [
            (&profile("web", true), ""),
            (&profile("api", true), "fully_qualified_name: expected \"web\", saw \"api\""),
            (&profile("web", false), "opaque_protocol: expected true, saw false"),
            (&refused, "expected Profile(DestinationProfile {"),
        ] {
            let difference = profile_difference(&wanted, Some(seen));
            assert!(difference.starts_with(named) && difference.is_empty() == named.is_empty(), "{difference}");
        }
        assert_eq!(profile_difference(&refused, Some(&refused)), "");
        assert!(profile_difference(&refused, None).ends_with("saw no answer"));
    }
}
