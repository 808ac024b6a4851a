//! How two answers to one request differ. Pure.
//!
//! In: two first answers, the names of their servers. Out: a verdict, with a line for each difference. Always holds:
//! silence, and a message without endpoints, are the same answer: a proxy has no endpoint after both.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::SocketAddr,
};

use serde::Serialize;
use serde_json::Value;

use super::requests::CompareRequest;
use crate::{
    cli::streams::{FIRST_ANSWER, FirstAnswer},
    destination_client::{
        endpoints::{EndpointRow, EndpointsState},
        profile::ProfileState,
    },
    text::counted,
};

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) enum Verdict {
    Equal,
    /// One line for each difference.
    Different(Vec<String>),
    /// The reason why an answer is missing.
    Failed(String),
}

/// A request, and how its two answers compare.
#[derive(Debug)]
pub(super) struct Comparison {
    pub(super) request: CompareRequest,
    pub(super) verdict: Verdict,
}

/// The answer of a server, or the reason why there is none.
enum Answer<T> {
    Content(T),
    /// The code and the message. Another request would be refused, too.
    Refused(String),
    /// The reason why the server did not answer this time.
    Missing(String),
}

pub(super) fn of_endpoints(
    one: &FirstAnswer<EndpointsState>,
    other: &FirstAnswer<EndpointsState>,
    names: &[String; 2],
) -> Verdict {
    let answers = [one, other].map(|answer| {
        Answer::new(answer, |state| {
            let rows = state.into_iter().flat_map(EndpointsState::known);
            rows.map(|row| (SocketAddr::new(row.ip, row.port), row.clone())).collect::<BTreeMap<_, _>>()
        })
    });
    verdict(answers, names, endpoint_lines, |rows| counted(rows.len(), "endpoint"))
}

pub(super) fn of_profiles(
    one: &FirstAnswer<ProfileState>,
    other: &FirstAnswer<ProfileState>,
    names: &[String; 2],
) -> Verdict {
    let answers = [one, other].map(|answer| {
        Answer::new(answer, |state| serde_json::to_value(state.and_then(ProfileState::known)).unwrap_or_default())
    });
    verdict(
        answers,
        names,
        profile_lines,
        |profile| {
            if profile.is_null() { no_profile() } else { "a profile".to_owned() }
        },
    )
}

fn verdict<T: PartialEq>(
    answers: [Answer<T>; 2],
    names: &[String; 2],
    lines: impl Fn(&T, &T, &[String; 2]) -> Vec<String>,
    summary: impl Fn(&T) -> String,
) -> Verdict {
    let [one_name, other_name] = names;
    match answers {
        [Answer::Missing(why), _] => Verdict::Failed(format!("{one_name}: {why}")),
        [_, Answer::Missing(why)] => Verdict::Failed(format!("{other_name}: {why}")),
        [Answer::Content(one), Answer::Content(other)] if one == other => Verdict::Equal,
        [Answer::Content(one), Answer::Content(other)] => Verdict::Different(lines(&one, &other, names)),
        [Answer::Refused(one), Answer::Refused(other)] if one == other => Verdict::Equal,
        [Answer::Refused(one), Answer::Refused(other)] => different(names, &one, &other),
        [Answer::Content(one), Answer::Refused(other)] => different(names, &summary(&one), &other),
        [Answer::Refused(one), Answer::Content(other)] => different(names, &one, &summary(&other)),
    }
}

fn different([one_name, other_name]: &[String; 2], one: &str, other: &str) -> Verdict {
    Verdict::Different(vec![format!("{one_name}: {one}"), format!("{other_name}: {other}")])
}

fn no_profile() -> String {
    format!("no profile within {} s", FIRST_ANSWER.as_secs())
}

fn endpoint_lines(
    one: &BTreeMap<SocketAddr, EndpointRow>,
    other: &BTreeMap<SocketAddr, EndpointRow>,
    [one_name, other_name]: &[String; 2],
) -> Vec<String> {
    let common = one.iter().filter_map(|(address, row)| match other.get(address) {
        None => Some(format!("{address} only from {one_name}")),
        Some(same) if row == same => None,
        Some(same) => {
            let fields: Vec<String> =
                row.differs(same).into_iter().map(|field| field_difference(field, &json(row), &json(same))).collect();
            Some(format!("{address} differs in {}", fields.join(", ")))
        }
    });
    let added = other.keys().filter(|address| !one.contains_key(address));
    common.chain(added.map(|address| format!("{address} only from {other_name}"))).collect()
}

fn profile_lines(one: &Value, other: &Value, names: &[String; 2]) -> Vec<String> {
    let (Value::Object(one_fields), Value::Object(other_fields)) = (one, other) else {
        let silent = names.iter().zip([one, other]).filter(|(_, profile)| profile.is_null());
        return silent.map(|(name, _)| format!("{name}: {}", no_profile())).collect();
    };
    let fields: BTreeSet<&String> = one_fields.keys().chain(other_fields.keys()).collect();
    let differing = fields.into_iter().filter(|field| one.get(field) != other.get(field));
    differing.map(|field| field_difference(field, one, other)).collect()
}

/// Returns a field with both of its values, if these are short.
fn field_difference(field: &str, one: &Value, other: &Value) -> String {
    const LONGEST: usize = 60;
    let shown = |whole: &Value| whole.get(field).map_or("absent".to_owned(), Value::to_string);
    let (one, other) = (shown(one), shown(other));
    if one.len() <= LONGEST && other.len() <= LONGEST { format!("{field} ({one}, {other})") } else { field.to_owned() }
}

fn json(row: &EndpointRow) -> Value {
    serde_json::to_value(row).unwrap_or_default()
}

// === impl Answer ===

impl<T> Answer<T> {
    /// `content` returns what a state says, or what silence says.
    fn new<S>(answer: &FirstAnswer<S>, content: impl Fn(Option<&S>) -> T) -> Self {
        match answer {
            FirstAnswer::State(state) => Self::Content(content(Some(state))),
            FirstAnswer::Silence => Self::Content(content(None)),
            FirstAnswer::Refused(refused) if refused.is_temporary() => Self::Missing(refused.code_and_message()),
            FirstAnswer::Refused(refused) => Self::Refused(refused.code_and_message()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use tonic::Status;

    use super::*;
    use crate::{
        destination_client::{AuthorityState, DestinationError},
        proto::{
            destination::{DestinationProfile, NoEndpoints, Update, WeightedAddr, WeightedAddrSet, update},
            net::{IpAddress, TcpAddress, ip_address::Ip},
        },
    };

    fn names() -> [String; 2] {
        ["ours", "theirs"].map(str::to_owned)
    }

    fn endpoints(weights: &[(u8, u32)]) -> FirstAnswer<EndpointsState> {
        let addrs = weights.iter().map(|(last, weight)| {
            let ip = Some(IpAddress { ip: Some(Ip::Ipv4(u32::from_be_bytes([10, 0, 0, *last]))) });
            WeightedAddr { addr: Some(TcpAddress { ip, port: 80 }), weight: *weight, ..WeightedAddr::default() }
        });
        let set = WeightedAddrSet { addrs: addrs.collect(), metric_labels: BTreeMap::new() };
        state(Update { update: Some(update::Update::Add(set)) })
    }

    fn no_endpoints() -> FirstAnswer<EndpointsState> {
        state(Update { update: Some(update::Update::NoEndpoints(NoEndpoints { exists: true })) })
    }

    fn profile(name: &str, is_opaque: bool) -> FirstAnswer<ProfileState> {
        state(DestinationProfile {
            fully_qualified_name: name.to_owned(),
            opaque_protocol: is_opaque,
            ..DestinationProfile::default()
        })
    }

    fn state<S: AuthorityState>(message: S::Message) -> FirstAnswer<S> {
        let mut state = S::default();
        state.apply(message);
        FirstAnswer::State(state)
    }

    fn refused<S>(status: Status) -> FirstAnswer<S> {
        FirstAnswer::Refused(DestinationError::from(status))
    }

    fn lines(lines: &[&str]) -> Verdict {
        Verdict::Different(lines.iter().map(|&line| line.to_owned()).collect())
    }

    #[test]
    fn endpoints_that_are_missing_added_or_changed_are_lines() {
        let one = endpoints(&[(1, 1), (2, 1), (3, 1)]);
        assert_eq!(of_endpoints(&one, &one, &names()), Verdict::Equal);
        let expected =
            ["10.0.0.1:80 only from ours", "10.0.0.2:80 differs in weight (1, 7)", "10.0.0.4:80 only from theirs"];
        assert_eq!(of_endpoints(&one, &endpoints(&[(2, 7), (3, 1), (4, 1)]), &names()), lines(&expected));
    }

    #[test]
    fn a_server_that_is_silent_about_a_service_without_endpoints_says_the_same() {
        assert_eq!(of_endpoints(&no_endpoints(), &FirstAnswer::Silence, &names()), Verdict::Equal);
        let expected = lines(&["10.0.0.1:80 only from ours"]);
        assert_eq!(of_endpoints(&endpoints(&[(1, 1)]), &FirstAnswer::Silence, &names()), expected);
    }

    #[test]
    fn refusals_are_equal_if_code_and_message_are() {
        let unknown = || refused(Status::not_found("Service web.prod not found"));
        assert_eq!(of_endpoints(&unknown(), &unknown(), &names()), Verdict::Equal);
        let expected = lines(&["ours: 1 endpoint", "theirs: NotFound: Service web.prod not found"]);
        assert_eq!(of_endpoints(&endpoints(&[(1, 1)]), &unknown(), &names()), expected);
        let other = refused(Status::invalid_argument("Service web.prod not found"));
        let expected = lines(&[
            "ours: NotFound: Service web.prod not found",
            "theirs: InvalidArgument: Service web.prod not found",
        ]);
        assert_eq!(of_endpoints(&unknown(), &other, &names()), expected);
    }

    #[test]
    fn a_server_that_cannot_answer_now_is_a_failure_even_if_both_cannot() {
        let busy = || refused(Status::unavailable("it restarts"));
        let expected = Verdict::Failed("theirs: Unavailable: it restarts".to_owned());
        assert_eq!(of_endpoints(&endpoints(&[]), &busy(), &names()), expected);
        assert!(matches!(of_endpoints(&busy(), &busy(), &names()), Verdict::Failed(_)));
    }

    #[test]
    fn the_fields_in_which_profiles_differ_are_lines() {
        let one = profile("web.prod.svc.cluster.local", false);
        assert_eq!(of_profiles(&one, &one, &names()), Verdict::Equal);
        let opaque = of_profiles(&one, &profile("web.prod.svc.cluster.local", true), &names());
        assert_eq!(opaque, lines(&["opaque_protocol (absent, true)"]));
        assert_eq!(of_profiles(&one, &FirstAnswer::Silence, &names()), lines(&["theirs: no profile within 5 s"]));
        let both_silent = of_profiles(&FirstAnswer::Silence, &FirstAnswer::Silence, &names());
        assert_eq!(both_silent, Verdict::Equal);
    }
}
