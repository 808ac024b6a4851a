//! The differences between an answer of ours and one of Linkerd's, and their numbers in the documentation.
//!
//! * In: both answers. Out: each difference: what differs, and the row of
//!   `docs/src/reference/differences.md` that describes it.

use std::collections::BTreeSet;

use e2e::{
    answers::profile_difference,
    oracle::{Answer, ProfileAnswer},
};
use linkerd2_proxy_api::destination::WeightedAddr;

use crate::answers::Received;

/// What differs.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Difference {
    /// The number in the documentation; `None` if no row describes it.
    pub(crate) number: Option<u32>,
    pub(crate) what: String,
}

/// Returns each difference with a description of this case. Equal answers have none.
pub(crate) fn of(ours: &Received, theirs: &Received) -> Vec<(Difference, String)> {
    let found = match (ours, theirs) {
        (Received::Endpoints(ours), Received::Endpoints(theirs)) => of_endpoints(ours.as_ref(), theirs.as_ref()),
        (Received::Profile(ours), Received::Profile(theirs)) => of_profiles(ours.as_ref(), theirs.as_ref()),
        _ => Vec::new(),
    };
    let numbered = found.into_iter().map(|(what, example)| {
        let number = number(&what);
        (Difference { number, what }, example)
    });
    numbered.collect()
}

fn of_endpoints(ours: Option<&Answer>, theirs: Option<&Answer>) -> Vec<(String, String)> {
    let (ours, theirs) = match (ours, theirs) {
        (ours, theirs) if ours == theirs => return Vec::new(),
        (Some(Answer::Endpoints(ours)), None) if ours.is_empty() => {
            return vec![("Get: NoEndpoints, they send nothing".to_owned(), String::new())];
        }
        (Some(Answer::Endpoints(ours)), Some(Answer::Endpoints(theirs))) => (ours, theirs),
        (ours, theirs) => return vec![(format!("Get: {} against {}", shown(ours), shown(theirs)), String::new())],
    };
    let mut found = Vec::new();
    for (address, endpoint) in ours {
        match theirs.get(address) {
            None => found.push(("Get: an endpoint only from us".to_owned(), format!("{address}: {endpoint:?}"))),
            Some(other) if other == endpoint => {}
            Some(other) => {
                let fields = [
                    ("addr", endpoint.addr != other.addr),
                    ("weight", endpoint.weight != other.weight),
                    ("metric_labels", endpoint.metric_labels != other.metric_labels),
                    ("tls_identity", endpoint.tls_identity != other.tls_identity),
                    ("protocol_hint", endpoint.protocol_hint != other.protocol_hint),
                    ("authority_override", endpoint.authority_override != other.authority_override),
                    ("http2", endpoint.http2 != other.http2),
                    ("resource_ref", endpoint.resource_ref != other.resource_ref),
                ];
                let fields = fields.iter().filter(|(_, differs)| *differs).map(|(name, _)| match *name {
                    "metric_labels" => format!("labels {}", differing_labels(endpoint, other)),
                    name => name.to_owned(),
                });
                let what = format!("Get: an endpoint differs in {}", fields.collect::<Vec<_>>().join(", "));
                found.push((what, format!("{address}: ours {endpoint:?}, theirs {other:?}")));
            }
        }
    }
    for (address, endpoint) in theirs.iter().filter(|(address, _)| !ours.contains_key(address)) {
        found.push(("Get: an endpoint only from them".to_owned(), format!("{address}: {endpoint:?}")));
    }
    found
}

/// Returns the names of the labels that differ.
fn differing_labels(ours: &WeightedAddr, theirs: &WeightedAddr) -> String {
    let names: BTreeSet<&String> = ours.metric_labels.keys().chain(theirs.metric_labels.keys()).collect();
    let differing = names.into_iter().filter(|name| ours.metric_labels.get(*name) != theirs.metric_labels.get(*name));
    differing.map(String::as_str).collect::<Vec<_>>().join(" ")
}

fn of_profiles(ours: Option<&ProfileAnswer>, theirs: Option<&ProfileAnswer>) -> Vec<(String, String)> {
    match (ours, theirs) {
        (ours, theirs) if ours == theirs => Vec::new(),
        (Some(ProfileAnswer::Profile(_)), None) => {
            vec![("GetProfile: a profile, they send nothing".to_owned(), format!("{ours:?}"))]
        }
        (Some(ours @ ProfileAnswer::Profile(_)), Some(theirs @ ProfileAnswer::Profile(_))) => {
            let lines = profile_difference(theirs, Some(ours));
            let fields: Vec<&str> = lines.lines().filter_map(|line| line.split(':').next()).collect();
            vec![(format!("GetProfile: differs in {}", fields.join(", ")), lines.replace('\n', "; "))]
        }
        (Some(ProfileAnswer::Refused(ours, text)), Some(ProfileAnswer::Refused(theirs, other))) if ours == theirs => {
            vec![(format!("GetProfile: another text of {ours:?}"), format!("ours {text:?}, theirs {other:?}"))]
        }
        (ours, theirs) => {
            let shown = |answer: Option<&ProfileAnswer>| match answer {
                None => "nothing".to_owned(),
                Some(ProfileAnswer::Refused(code, text)) => format!("{code:?} {text:?}"),
                Some(ProfileAnswer::Profile(_)) => "a profile".to_owned(),
            };
            vec![(format!("GetProfile: {} against {}", shown(ours), shown(theirs)), String::new())]
        }
    }
}

fn shown(answer: Option<&Answer>) -> String {
    match answer {
        None => "nothing".to_owned(),
        Some(Answer::Refused(code, text)) => format!("{code:?} {text:?}"),
        Some(Answer::Endpoints(endpoints)) if endpoints.is_empty() => "no endpoints".to_owned(),
        Some(Answer::Endpoints(_)) => "endpoints".to_owned(),
    }
}

/// Returns the row of the documentation that describes a difference.
fn number(what: &str) -> Option<u32> {
    match what {
        "Get: NoEndpoints, they send nothing" => Some(1),
        "GetProfile: a profile, they send nothing" => Some(11),
        "GetProfile: differs in profile_ref" => Some(36),
        "GetProfile: another text of InvalidArgument" => Some(38),
        _ => what
            .strip_prefix("Get: an endpoint differs in labels ")
            .and_then(|labels| labels.split(' ').all(|label| label.starts_with("target_")).then_some(37)),
    }
}
