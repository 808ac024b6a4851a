//! The validated content of a ServiceProfile. Pure.
//!
//! In: a decoded spec. Out: its routes, retry budget and overrides, or the reason why the whole is invalid, in the
//! words of Linkerd's validator. Always holds: clients can decode the content as a message of the Destination API.

use std::sync::OnceLock;

use bytes::Bytes;

use super::weight::weight;
use crate::{api, cluster::Problems, go};

/// The deepest nesting of matches. Each level takes up to four nested messages, and clients decode at most one hundred.
pub const DEEPEST: usize = 20;
/// The limit for a message of the Destination API, in bytes. gRPC clients reject messages of more than 4 MiB by
/// default; the difference is a margin for the upper bound that is computed in advance.
pub const MAX_MESSAGE_BYTES: usize = 3 * 1024 * 1024;
/// The size of what an override adds to its authority, in bytes: the keys and lengths of the nested messages, a weight,
/// and a port with a pair of brackets.
const OVERRIDE_OVERHEAD: usize = 32;
/// The size of a route without its texts, matches and classes, in bytes. It includes the key of the metric label with
/// the name, and a timeout that may be negative, which takes the longest encoding.
const ROUTE_OVERHEAD: usize = 54;
/// The size of a response class without its match, in bytes.
const CLASS_OVERHEAD: usize = 12;
/// The size of the keys and lengths of a nested match, in bytes: it has up to three messages.
const MATCH_OVERHEAD: usize = 15;
/// The maximum length of an override's authority in bytes: more than any host name and port.
const MAX_AUTHORITY_BYTES: usize = 1024;
const STATUSES: std::ops::RangeInclusive<u32> = 100..=599;

/// The content of a ServiceProfile that is the same for all ports of its Service.
#[derive(Clone, Debug)]
pub struct ProfileContent {
    pub routes: Vec<Route>,
    /// `None` for the default.
    pub retry_budget: Option<RetryBudget>,
    pub overrides: Vec<Override>,
    /// The encoded routes, set when the first client needs them.
    pub encoded_routes: OnceLock<Bytes>,
}

/// A class of requests, and the classification of its responses.
#[derive(Clone, Debug, PartialEq)]
pub struct Route {
    pub name: String,
    pub condition: RequestMatch,
    pub response_classes: Vec<ResponseClass>,
    pub is_retryable: bool,
    pub timeout: Option<Nanoseconds>,
}

/// A duration of Go, which may be negative; never 0.
pub type Nanoseconds = std::num::NonZeroI64;

#[derive(Clone, Debug, PartialEq)]
pub struct RetryBudget {
    pub retry_ratio: f32,
    pub min_retries_per_second: u32,
    pub ttl: Option<Nanoseconds>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RequestMatch {
    All(Vec<RequestMatch>),
    Any(Vec<RequestMatch>),
    /// The method in upper case.
    Method(String),
    Not(Box<RequestMatch>),
    PathRegex(String),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResponseClass {
    pub condition: ResponseMatch,
    pub is_failure: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ResponseMatch {
    All(Vec<ResponseMatch>),
    Any(Vec<ResponseMatch>),
    /// Inclusive; 0 for an open end.
    Status {
        min: u32,
        max: u32,
    },
    Not(Box<ResponseMatch>),
}

/// A destination for a part of the traffic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Override {
    /// The text of the object, possibly without a port.
    pub authority: Box<str>,
    pub weight: u32,
}

/// Why a ServiceProfile is invalid as a whole.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum Invalid {
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
    #[error("the ttl of its retryBudget is not a duration: {0:?}")]
    Ttl(String),
    #[error("the retryRatio of its retryBudget is too large")]
    RetryRatio,
    #[error("a null override")]
    NullOverride,
    #[error("the weight of override {0:?} is not a quantity")]
    Weight(String),
    #[error("the authority of an override has {0} bytes, and the maximum is {MAX_AUTHORITY_BYTES}")]
    LongAuthority(usize),
    #[error("it would be a message of up to {0} bytes, and clients refuse more than {MAX_MESSAGE_BYTES}")]
    Long(usize),
}

#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidMatch {
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
    #[error("matches are nested more than {DEEPEST} levels deep")]
    Deep,
}

// === impl ProfileContent ===

impl ProfileContent {
    pub fn of(spec: api::ServiceProfileSpec, problems: &mut Problems) -> Result<Self, Invalid> {
        let routes = spec.routes.into_iter().flatten();
        let routes = routes.map(|it| route(it.ok_or(Invalid::NullRoute)?, problems));
        let overrides = spec.dst_overrides.into_iter().flatten();
        let overrides = overrides.map(|it| Override::of(it.ok_or(Invalid::NullOverride)?));
        let content = Self {
            routes: routes.collect::<Result<_, _>>()?,
            retry_budget: spec.retry_budget.map(retry_budget).transpose()?,
            overrides: overrides.collect::<Result<_, _>>()?,
            encoded_routes: OnceLock::new(),
        };
        let length = content.longest();
        if length > MAX_MESSAGE_BYTES { Err(Invalid::Long(length)) } else { Ok(content) }
    }

    /// An upper bound of the length of the message for any port, in bytes.
    fn longest(&self) -> usize {
        let routes: usize = self.routes.iter().map(Route::longest).sum();
        let overrides: usize = self.overrides.iter().map(|it| it.authority.len() + OVERRIDE_OVERHEAD).sum();
        routes + overrides
    }
}

impl PartialEq for ProfileContent {
    fn eq(&self, other: &Self) -> bool {
        let Self { routes, retry_budget, overrides, encoded_routes: _ } = self;
        *routes == other.routes && *retry_budget == other.retry_budget && *overrides == other.overrides
    }
}

impl Route {
    fn longest(&self) -> usize {
        let classes: usize = self.response_classes.iter().map(|class| class.condition.longest() + CLASS_OVERHEAD).sum();
        self.name.len() + self.condition.longest() + classes + ROUTE_OVERHEAD
    }
}

impl RequestMatch {
    fn longest(&self) -> usize {
        let inner: usize = match self {
            Self::All(matches) | Self::Any(matches) => matches.iter().map(Self::longest).sum(),
            Self::Method(text) | Self::PathRegex(text) => text.len(),
            Self::Not(inner) => inner.longest(),
        };
        inner + MATCH_OVERHEAD
    }
}

impl ResponseMatch {
    fn longest(&self) -> usize {
        let inner: usize = match self {
            Self::All(matches) | Self::Any(matches) => matches.iter().map(Self::longest).sum(),
            Self::Status { .. } => 0,
            Self::Not(inner) => inner.longest(),
        };
        inner + MATCH_OVERHEAD
    }
}

impl Override {
    fn of(spec: api::WeightedDst) -> Result<Self, Invalid> {
        let authority = spec.authority.unwrap_or_default();
        let Some(weight) = weight(&spec.weight) else { return Err(Invalid::Weight(authority)) };
        if authority.len() > MAX_AUTHORITY_BYTES {
            return Err(Invalid::LongAuthority(authority.len()));
        }
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
        let nanoseconds = go::duration::parse(&text);
        if nanoseconds.is_none() {
            problems.add(format_args!("the timeout of route {name:?} is no duration: {text:?}"));
        }
        Nanoseconds::new(nanoseconds?)
    });
    Ok(Route { name, condition, response_classes, is_retryable: spec.is_retryable.unwrap_or_default(), timeout })
}

fn response_class(class: Option<api::ResponseClassSpec>, route: &str) -> Result<ResponseClass, Invalid> {
    let class = class.ok_or_else(|| Invalid::NullResponseClass(route.to_owned()))?;
    let condition = class.condition.ok_or_else(|| Invalid::NoResponseCondition(route.to_owned()))?;
    let condition =
        response_match(condition, 0).map_err(|error| Invalid::ResponseCondition(route.to_owned(), error))?;
    Ok(ResponseClass { condition, is_failure: class.is_failure.unwrap_or_default() })
}

fn retry_budget(spec: api::RetryBudgetSpec) -> Result<RetryBudget, Invalid> {
    let ttl = spec.ttl.unwrap_or_default();
    let Some(nanoseconds) = go::duration::parse(&ttl) else { return Err(Invalid::Ttl(ttl)) };
    let retry_ratio = spec.retry_ratio.unwrap_or_default();
    // A JSON number that is too large for the wire becomes infinite.
    if !retry_ratio.is_finite() {
        return Err(Invalid::RetryRatio);
    }
    Ok(RetryBudget {
        retry_ratio,
        min_retries_per_second: spec.min_retries_per_second.unwrap_or_default(),
        ttl: Nanoseconds::new(nanoseconds),
    })
}

/// Returns the match of the set fields, in the order of Linkerd. If several fields are set, all of them must match.
fn request_match(spec: api::RequestMatchSpec, depth: usize) -> Result<RequestMatch, InvalidMatch> {
    if depth == DEEPEST {
        return Err(InvalidMatch::Deep);
    }
    let api::RequestMatchSpec { all, any, method, not, path_regex } = spec;
    let several = |list: Vec<Option<api::RequestMatchSpec>>, name| {
        let each = list.into_iter().map(|it| request_match(it.ok_or(InvalidMatch::Null(name))?, depth + 1));
        each.collect::<Result<_, _>>()
    };
    let mut matches = Vec::new();
    if let Some(all) = all {
        matches.push(RequestMatch::All(several(all, "all")?));
    }
    if let Some(any) = any {
        matches.push(RequestMatch::Any(several(any, "any")?));
    }
    if let Some(method) = method.filter(|method| !method.is_empty()) {
        matches.push(RequestMatch::Method(method.to_uppercase()));
    }
    if let Some(not) = not {
        matches.push(RequestMatch::Not(Box::new(request_match(*not, depth + 1)?)));
    }
    if let Some(regex) = path_regex.filter(|regex| !regex.is_empty()) {
        matches.push(RequestMatch::PathRegex(regex));
    }
    match matches.len() {
        0 => Err(InvalidMatch::Nothing("request")),
        1 => Ok(matches.remove(0)),
        _ => Ok(RequestMatch::All(matches)),
    }
}

fn response_match(spec: api::ResponseMatchSpec, depth: usize) -> Result<ResponseMatch, InvalidMatch> {
    if depth == DEEPEST {
        return Err(InvalidMatch::Deep);
    }
    let api::ResponseMatchSpec { all, any, status, not } = spec;
    let several = |list: Vec<Option<api::ResponseMatchSpec>>, name| {
        let each = list.into_iter().map(|it| response_match(it.ok_or(InvalidMatch::Null(name))?, depth + 1));
        each.collect::<Result<_, _>>()
    };
    let mut matches = Vec::new();
    if let Some(all) = all {
        matches.push(ResponseMatch::All(several(all, "all")?));
    }
    if let Some(any) = any {
        matches.push(ResponseMatch::Any(several(any, "any")?));
    }
    if let Some(status) = status {
        matches.push(status_range(status)?);
    }
    if let Some(not) = not {
        matches.push(ResponseMatch::Not(Box::new(response_match(*not, depth + 1)?)));
    }
    match matches.len() {
        0 => Err(InvalidMatch::Nothing("response")),
        1 => Ok(matches.remove(0)),
        _ => Ok(ResponseMatch::All(matches)),
    }
}

fn status_range(spec: api::StatusRange) -> Result<ResponseMatch, InvalidMatch> {
    let (min, max) = (spec.min.unwrap_or_default(), spec.max.unwrap_or_default());
    match (min, max) {
        (min, _) if min != 0 && !STATUSES.contains(&min) => Err(InvalidMatch::Minimum),
        (_, max) if max != 0 && !STATUSES.contains(&max) => Err(InvalidMatch::Maximum),
        (min, max) if min != 0 && max != 0 && max < min => Err(InvalidMatch::Reversed),
        (min, max) => Ok(ResponseMatch::Status { min, max }),
    }
}
