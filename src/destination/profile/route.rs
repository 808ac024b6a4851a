//! Converts the content of a ServiceProfile to messages of the Destination API. Pure.

use std::collections::BTreeMap;

use prost_types::Duration;

use crate::{
    cluster::kinds::service_profile::route::{self, Nanoseconds},
    proto::{
        destination::{
            HttpStatusRange, PathMatch, RequestMatch, ResponseClass, ResponseMatch, RetryBudget, Route, request_match,
            response_match,
        },
        http_types::{HttpMethod, http_method},
    },
};

pub(super) fn route(route: &route::Route) -> Route {
    Route {
        condition: Some(request_match(&route.condition)),
        response_classes: route.response_classes.iter().map(response_class).collect(),
        metrics_labels: BTreeMap::from([("route".to_owned(), route.name.clone())]),
        is_retryable: route.is_retryable,
        timeout: route.timeout.and_then(duration),
    }
}

pub(super) fn retry_budget(budget: &route::RetryBudget) -> RetryBudget {
    RetryBudget {
        retry_ratio: budget.retry_ratio,
        min_retries_per_second: budget.min_retries_per_second,
        ttl: budget.ttl.and_then(duration),
    }
}

fn response_class(class: &route::ResponseClass) -> ResponseClass {
    ResponseClass { condition: Some(response_match(&class.condition)), is_failure: class.is_failure }
}

/// Converts a duration. Both parts have the sign of the whole, as protobuf requires.
fn duration(nanoseconds: Nanoseconds) -> Option<Duration> {
    const SECOND: i64 = 1_000_000_000;
    let nanos = i32::try_from(nanoseconds.get() % SECOND).ok()?;
    Some(Duration { seconds: nanoseconds.get() / SECOND, nanos })
}

fn request_match(it: &route::RequestMatch) -> RequestMatch {
    use request_match::{Match, Seq};
    let several = |matches: &[route::RequestMatch]| Seq { matches: matches.iter().map(request_match).collect() };
    let r#match = match it {
        route::RequestMatch::All(matches) => Match::All(several(matches)),
        route::RequestMatch::Any(matches) => Match::Any(several(matches)),
        route::RequestMatch::Method(method) => Match::Method(http_method(method)),
        route::RequestMatch::Not(inner) => Match::Not(Box::new(request_match(inner))),
        route::RequestMatch::PathRegex(regex) => Match::Path(PathMatch { regex: regex.clone() }),
    };
    RequestMatch { r#match: Some(r#match) }
}

fn http_method(method: &str) -> HttpMethod {
    let r#type = match http_method::Registered::from_str_name(method) {
        Some(registered) => http_method::Type::Registered(registered.into()),
        None => http_method::Type::Unregistered(method.to_owned()),
    };
    HttpMethod { r#type: Some(r#type) }
}

fn response_match(it: &route::ResponseMatch) -> ResponseMatch {
    use response_match::{Match, Seq};
    let several = |matches: &[route::ResponseMatch]| Seq { matches: matches.iter().map(response_match).collect() };
    let r#match = match it {
        route::ResponseMatch::All(matches) => Match::All(several(matches)),
        route::ResponseMatch::Any(matches) => Match::Any(several(matches)),
        route::ResponseMatch::Status { min, max } => Match::Status(HttpStatusRange { min: *min, max: *max }),
        route::ResponseMatch::Not(inner) => Match::Not(Box::new(response_match(inner))),
    };
    ResponseMatch { r#match: Some(r#match) }
}

#[cfg(test)]
#[path = "route_tests.rs"]
mod tests;
