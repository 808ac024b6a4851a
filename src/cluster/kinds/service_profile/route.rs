//! What a ServiceProfile says, in the messages of the Destination API. Pure.
//!
//! In: a spec that could be decoded. Out: its routes and the rest, or what makes the whole invalid, in the words of Linkerd's
//! validator. Always holds: what comes out can be encoded, and decoded by a client.

use std::collections::BTreeMap;

use prost::Message;
use prost_types::Duration;

use crate::{
    api,
    proto::{
        destination::{
            HttpStatusRange, PathMatch, RequestMatch, ResponseClass, ResponseMatch, RetryBudget, Route,
            request_match::{self, Match},
            response_match,
        },
        http_types::{HttpMethod, http_method},
    },
};
use crate::{
    api::go_duration,
    cluster::{Problems, quantity},
};

/// Each match in a match is up to four messages in each other, and clients decode a hundred.
const DEEPEST: usize = 20;
/// Clients of gRPC refuse messages of more than 4 MiB.
const LONGEST_MESSAGE: usize = 3 * 1024 * 1024;
const STATUSES: std::ops::RangeInclusive<u32> = 100..=599;

/// What all ports of a Service have of a ServiceProfile in common.
#[derive(Clone, Debug, PartialEq)]
pub struct Content {
    pub routes: Vec<Route>,
    /// `None` leaves it to the default.
    pub retry_budget: Option<RetryBudget>,
    pub overrides: Vec<Override>,
}

/// Where a part of the traffic goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Override {
    /// As it stands in the object: maybe without a port.
    pub authority: Box<str>,
    pub weight: u32,
}

/// What makes a profile one that nobody is told of.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(in crate::cluster) enum Invalid {
    #[error("a null route")]
    NullRoute,
    #[error("route {0:?} has no condition")]
    NoCondition(String),
    #[error("route {0:?} has an invalid condition: {1}")]
    Condition(String, InvalidMatch),
    #[error("route {0:?} has a null response class")]
    NullResponseClass(String),
    #[error("route {0:?} has a response class with no condition")]
    NoResponseCondition(String),
    #[error("route {0:?} has a response class with an invalid condition: {1}")]
    ResponseCondition(String, InvalidMatch),
    #[error("its retryBudget has no ttl that is a duration: {0:?}")]
    Ttl(String),
    #[error("a null override")]
    NullOverride,
    #[error("the weight of override {0:?} is no quantity")]
    Weight(String),
    #[error("it would be a message of {0} bytes, and clients refuse more than {LONGEST_MESSAGE}")]
    Long(usize),
}

#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(in crate::cluster) enum InvalidMatch {
    #[error("null condition {0:?}")]
    Null(&'static str),
    #[error("a {0} match must have a field set")]
    Nothing(&'static str),
    #[error("range minimum must be between 100 and 599, inclusive")]
    Minimum,
    #[error("range maximum must be between 100 and 599, inclusive")]
    Maximum,
    #[error("range maximum cannot be smaller than minimum")]
    Reversed,
    #[error("matches are nested more than {DEEPEST} deep")]
    Deep,
}

// === impl Content ===

impl Content {
    pub(in crate::cluster) fn of(spec: api::ServiceProfileSpec, problems: &mut Problems) -> Result<Self, Invalid> {
        let routes = spec.routes.into_iter().flatten();
        let routes = routes.map(|it| route(it.ok_or(Invalid::NullRoute)?, problems));
        let overrides = spec.dst_overrides.into_iter().flatten();
        let overrides = overrides.map(|it| Override::of(it.ok_or(Invalid::NullOverride)?));
        let content = Self {
            routes: routes.collect::<Result<_, _>>()?,
            retry_budget: spec.retry_budget.map(retry_budget).transpose()?,
            overrides: overrides.collect::<Result<_, _>>()?,
        };
        let length = content.longest();
        if length > LONGEST_MESSAGE { Err(Invalid::Long(length)) } else { Ok(content) }
    }

    /// What it may take in a message, whatever the port.
    fn longest(&self) -> usize {
        /// The keys and lengths of a message in another, a weight, and a port with a pair of brackets.
        const AROUND: usize = 32;
        let routes: usize = self.routes.iter().map(|route| route.encoded_len() + AROUND).sum();
        let overrides: usize = self.overrides.iter().map(|it| it.authority.len() + AROUND).sum();
        routes + overrides
    }
}

impl Override {
    fn of(spec: api::WeightedDst) -> Result<Self, Invalid> {
        let authority = spec.authority.unwrap_or_default();
        let Some(weight) = quantity::weight(&spec.weight) else { return Err(Invalid::Weight(authority)) };
        Ok(Self { authority: authority.into(), weight })
    }
}

fn route(spec: api::RouteSpec, problems: &mut Problems) -> Result<Route, Invalid> {
    let name = spec.name.unwrap_or_default();
    let Some(condition) = spec.condition else { return Err(Invalid::NoCondition(name)) };
    let condition = request_match(condition, 0).map_err(|error| Invalid::Condition(name.clone(), error))?;
    let classes = spec.response_classes.into_iter().flatten();
    let response_classes = classes.map(|class| response_class(class, &name)).collect::<Result<_, _>>()?;
    let timeout = spec.timeout.filter(|text| !text.is_empty()).and_then(|text| {
        let nanoseconds = go_duration::parse(&text);
        if nanoseconds.is_none() {
            problems.add(format_args!("the timeout of route {name:?} is no duration: {text:?}"));
        }
        duration(nanoseconds?)
    });
    Ok(Route {
        condition: Some(condition),
        response_classes,
        metrics_labels: BTreeMap::from([("route".to_owned(), name)]),
        is_retryable: spec.is_retryable.unwrap_or_default(),
        timeout,
    })
}

fn response_class(class: Option<api::ResponseClass>, route: &str) -> Result<ResponseClass, Invalid> {
    let class = class.ok_or_else(|| Invalid::NullResponseClass(route.to_owned()))?;
    let condition = class.condition.ok_or_else(|| Invalid::NoResponseCondition(route.to_owned()))?;
    let condition =
        response_match(condition, 0).map_err(|error| Invalid::ResponseCondition(route.to_owned(), error))?;
    Ok(ResponseClass { condition: Some(condition), is_failure: class.is_failure.unwrap_or_default() })
}

fn retry_budget(spec: api::RetryBudgetSpec) -> Result<RetryBudget, Invalid> {
    let ttl = spec.ttl.unwrap_or_default();
    let Some(nanoseconds) = go_duration::parse(&ttl) else { return Err(Invalid::Ttl(ttl)) };
    Ok(RetryBudget {
        retry_ratio: spec.retry_ratio.unwrap_or_default(),
        min_retries_per_second: spec.min_retries_per_second.unwrap_or_default(),
        ttl: duration(nanoseconds),
    })
}

/// `None` for none at all, as Linkerd has it.
fn duration(nanoseconds: i64) -> Option<Duration> {
    const SECOND: i64 = 1_000_000_000;
    let nanos = i32::try_from(nanoseconds % SECOND).ok()?;
    (nanoseconds != 0).then_some(Duration { seconds: nanoseconds / SECOND, nanos })
}

/// The fields in the order in which Linkerd puts them; of several all have to match.
fn request_match(spec: api::RequestMatch, depth: usize) -> Result<RequestMatch, InvalidMatch> {
    if depth == DEEPEST {
        return Err(InvalidMatch::Deep);
    }
    let api::RequestMatch { all, any, method, not, path_regex } = spec;
    let several = |list: Vec<Option<api::RequestMatch>>, name| {
        let each = list.into_iter().map(|it| request_match(it.ok_or(InvalidMatch::Null(name))?, depth + 1));
        Ok(request_match::Seq { matches: each.collect::<Result<_, _>>()? })
    };
    let mut set = Vec::new();
    if let Some(all) = all {
        set.push(Match::All(several(all, "all")?));
    }
    if let Some(any) = any {
        set.push(Match::Any(several(any, "any")?));
    }
    if let Some(method) = method.filter(|method| !method.is_empty()) {
        set.push(Match::Method(http_method(&method)));
    }
    if let Some(not) = not {
        set.push(Match::Not(Box::new(request_match(*not, depth + 1)?)));
    }
    if let Some(regex) = path_regex.filter(|regex| !regex.is_empty()) {
        set.push(Match::Path(PathMatch { regex }));
    }
    let mut matches: Vec<RequestMatch> = set.into_iter().map(|it| RequestMatch { r#match: Some(it) }).collect();
    match matches.len() {
        0 => Err(InvalidMatch::Nothing("request")),
        1 => Ok(matches.remove(0)),
        _ => Ok(RequestMatch { r#match: Some(Match::All(request_match::Seq { matches })) }),
    }
}

fn http_method(text: &str) -> HttpMethod {
    let text = text.to_uppercase();
    let r#type = match http_method::Registered::from_str_name(&text) {
        Some(registered) => http_method::Type::Registered(registered.into()),
        None => http_method::Type::Unregistered(text),
    };
    HttpMethod { r#type: Some(r#type) }
}

fn response_match(spec: api::ResponseMatch, depth: usize) -> Result<ResponseMatch, InvalidMatch> {
    use response_match::{Match, Seq};
    if depth == DEEPEST {
        return Err(InvalidMatch::Deep);
    }
    let api::ResponseMatch { all, any, status, not } = spec;
    let several = |list: Vec<Option<api::ResponseMatch>>, name| {
        let each = list.into_iter().map(|it| response_match(it.ok_or(InvalidMatch::Null(name))?, depth + 1));
        Ok(Seq { matches: each.collect::<Result<_, _>>()? })
    };
    let mut set = Vec::new();
    if let Some(all) = all {
        set.push(Match::All(several(all, "all")?));
    }
    if let Some(any) = any {
        set.push(Match::Any(several(any, "any")?));
    }
    if let Some(status) = status {
        set.push(Match::Status(status_range(status)?));
    }
    if let Some(not) = not {
        set.push(Match::Not(Box::new(response_match(*not, depth + 1)?)));
    }
    let mut matches: Vec<ResponseMatch> = set.into_iter().map(|it| ResponseMatch { r#match: Some(it) }).collect();
    match matches.len() {
        0 => Err(InvalidMatch::Nothing("response")),
        1 => Ok(matches.remove(0)),
        _ => Ok(ResponseMatch { r#match: Some(Match::All(Seq { matches })) }),
    }
}

fn status_range(spec: api::StatusRange) -> Result<HttpStatusRange, InvalidMatch> {
    let (min, max) = (spec.min.unwrap_or_default(), spec.max.unwrap_or_default());
    match (min, max) {
        (min, _) if min != 0 && !STATUSES.contains(&min) => Err(InvalidMatch::Minimum),
        (_, max) if max != 0 && !STATUSES.contains(&max) => Err(InvalidMatch::Maximum),
        (min, max) if min != 0 && max != 0 && max < min => Err(InvalidMatch::Reversed),
        (min, max) => Ok(HttpStatusRange { min, max }),
    }
}

#[cfg(test)]
#[path = "route_tests.rs"]
mod tests;
