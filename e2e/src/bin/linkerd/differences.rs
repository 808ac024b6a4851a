//! The differences between an answer of ours and one of Linkerd's, and their numbers in the documentation.
//!
//! * In: both answers, and the objects they were given about. Out: each field that differs, with the row of
//!   `docs/internals/src/differences.md` that describes it.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::SocketAddr,
};

use e2e::{
    answers::profile_difference,
    oracle::{Answer, ApiState, ProfileAnswer, Request},
    query::Received,
};
use linkerd2_proxy_api::destination::{DestinationProfile, WeightedAddr};

use crate::rows;

/// The beginning of the client's error about a message with two endpoints for one address.
const REPEATED_ADDRESS: &str = "an Add contains an address twice";

/// The client's error about a message in which Linkerd's server left out every endpoint.
const NO_ENDPOINTS: &str = "an Add without endpoints";

/// What differs.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Difference {
    /// The number in the documentation; `None` if no row describes it.
    pub(crate) number: Option<u32>,
    pub(crate) what: String,
}

/// Returns each difference with a description of this case. Equal answers have none.
pub(crate) fn of(state: &ApiState, request: &Request, ours: &Received, theirs: &Received) -> Vec<(Difference, String)> {
    let mut found = match (ours, theirs) {
        (Received::Endpoints(ours), Received::Endpoints(theirs)) => {
            of_endpoints(state, request, ours.as_ref(), theirs.as_ref())
        }
        (Received::Profile(ours), Received::Profile(theirs)) => {
            of_profiles(state, request, ours.as_ref(), theirs.as_ref())
        }
        _ => Vec::new(),
    };
    for (difference, _) in &mut found {
        difference.number = difference.number.or_else(|| rows::of_port(state, request));
    }
    found
}

fn of_endpoints(
    state: &ApiState,
    request: &Request,
    ours: Option<&Answer>,
    theirs: Option<&Answer>,
) -> Vec<(Difference, String)> {
    match (ours, theirs) {
        (ours, theirs) if ours == theirs => Vec::new(),
        (Some(Answer::Endpoints(ours)), None) if ours.is_empty() => {
            vec![difference(Some(1), "Get: NoEndpoints, they send nothing", "")]
        }
        (Some(Answer::Endpoints(ours)), Some(Answer::Refused(_, text))) if text == NO_ENDPOINTS && ours.is_empty() => {
            vec![difference(Some(1), "Get: NoEndpoints, they send a message without endpoints", "")]
        }
        (Some(Answer::Endpoints(ours)), None) => of_sets(state, ours, &BTreeMap::new()),
        (Some(Answer::Endpoints(ours)), Some(Answer::Endpoints(theirs))) => of_sets(state, ours, theirs),
        (Some(Answer::Endpoints(ours)), Some(Answer::Refused(_, text))) if text == NO_ENDPOINTS => {
            of_sets(state, ours, &BTreeMap::new())
        }
        (Some(Answer::Endpoints(ours)), Some(Answer::Refused(_, text))) if text.starts_with(REPEATED_ADDRESS) => {
            vec![difference(
                rows::of_repeated_address(state, request, ours),
                "Get: their message contains an address twice",
                text,
            )]
        }
        (ours, theirs) => vec![difference(None, &format!("Get: {} against {}", shown(ours), shown(theirs)), "")],
    }
}

fn of_sets(
    state: &ApiState,
    ours: &BTreeMap<SocketAddr, WeightedAddr>,
    theirs: &BTreeMap<SocketAddr, WeightedAddr>,
) -> Vec<(Difference, String)> {
    let mut found = Vec::new();
    for (address, endpoint) in ours {
        match theirs.get(address) {
            None => {
                let row = rows::of_endpoint_from_us(state, endpoint);
                found.push(difference(row, "Get: an endpoint only from us", &format!("{address}: {endpoint:?}")));
            }
            Some(other) => {
                let example = format!("{address}: ours {endpoint:?}, theirs {other:?}");
                for (row, field) in differing_fields(state, endpoint, other) {
                    found.push(difference(row, &format!("Get: an endpoint differs in {field}"), &example));
                }
            }
        }
    }
    for (address, endpoint) in theirs.iter().filter(|(address, _)| !ours.contains_key(address)) {
        let row = rows::of_endpoint_from_them(state, endpoint);
        found.push(difference(row, "Get: an endpoint only from them", &format!("{address}: {endpoint:?}")));
    }
    found
}

/// Returns the name of each field and label that differs, with its row.
fn differing_fields(state: &ApiState, ours: &WeightedAddr, theirs: &WeightedAddr) -> Vec<(Option<u32>, String)> {
    let fields = [
        ("addr", ours.addr != theirs.addr),
        ("weight", ours.weight != theirs.weight),
        ("tls_identity", ours.tls_identity != theirs.tls_identity),
        ("protocol_hint", ours.protocol_hint != theirs.protocol_hint),
        ("authority_override", ours.authority_override != theirs.authority_override),
        ("http2", ours.http2 != theirs.http2),
        ("resource_ref", ours.resource_ref != theirs.resource_ref),
    ];
    let fields = fields.into_iter().filter(|(_, differs)| *differs).map(|(field, _)| field.to_owned());
    let labels: BTreeSet<&String> = ours.metric_labels.keys().chain(theirs.metric_labels.keys()).collect();
    let labels = labels.into_iter().filter(|label| ours.metric_labels.get(*label) != theirs.metric_labels.get(*label));
    let all = fields.chain(labels.map(|label| format!("the label {label}")));
    all.map(|field| (rows::of_endpoint_field(state, &field, ours, theirs), field)).collect()
}

fn of_profiles(
    state: &ApiState,
    request: &Request,
    ours: Option<&ProfileAnswer>,
    theirs: Option<&ProfileAnswer>,
) -> Vec<(Difference, String)> {
    match (ours, theirs) {
        (ours, theirs) if ours == theirs => Vec::new(),
        (Some(ProfileAnswer::Profile(ours)), None) => {
            let row = rows::of_missing_profile(state, ours);
            vec![difference(row, "GetProfile: a profile, they send nothing", &format!("{ours:?}"))]
        }
        (Some(ProfileAnswer::Profile(ours)), Some(ProfileAnswer::Profile(theirs))) => {
            of_profile_fields(state, ours, theirs)
        }
        (Some(ProfileAnswer::Refused(ours, text)), Some(ProfileAnswer::Refused(theirs, other))) if ours == theirs => {
            let row = rows::of_refusal(*ours);
            let example = format!("ours {text:?}, theirs {other:?}");
            vec![difference(row, &format!("GetProfile: another text of {ours:?}"), &example)]
        }
        (ours, theirs) => {
            let shown = |answer: Option<&ProfileAnswer>| match answer {
                None => "nothing".to_owned(),
                Some(ProfileAnswer::Refused(code, _)) => format!("{code:?}"),
                Some(ProfileAnswer::Profile(_)) => "a profile".to_owned(),
            };
            let row = rows::of_hostname(state, request, ours, theirs);
            let example = format!("ours {ours:?}, theirs {theirs:?}");
            vec![difference(row, &format!("GetProfile: {} against {}", shown(ours), shown(theirs)), &example)]
        }
    }
}

fn of_profile_fields(
    state: &ApiState,
    ours: &DestinationProfile,
    theirs: &DestinationProfile,
) -> Vec<(Difference, String)> {
    let [left, right] = [ours, theirs].map(|profile| ProfileAnswer::Profile(Box::new(profile.clone())));
    let lines = profile_difference(&right, Some(&left));
    let fields = lines.lines().filter_map(|line| Some((line.split_once(':')?.0, line)));
    let found = fields.map(|(field, line)| {
        let row = rows::of_profile_field(state, field, ours, theirs);
        // The endpoint shows why a profile is opaque.
        let endpoints = || format!("{line}; endpoint: ours {:?}, theirs {:?}", ours.endpoint, theirs.endpoint);
        let example = if field == "opaque_protocol" { endpoints() } else { line.to_owned() };
        difference(row, &format!("GetProfile: differs in {field}"), &example)
    });
    found.collect()
}

fn difference(number: Option<u32>, what: &str, example: &str) -> (Difference, String) {
    (Difference { number, what: what.to_owned() }, example.to_owned())
}

fn shown(answer: Option<&Answer>) -> String {
    match answer {
        None => "nothing".to_owned(),
        Some(Answer::Refused(code, text)) => format!("{code:?} {text:?}"),
        Some(Answer::Endpoints(endpoints)) if endpoints.is_empty() => "no endpoints".to_owned(),
        Some(Answer::Endpoints(_)) => "endpoints".to_owned(),
    }
}
