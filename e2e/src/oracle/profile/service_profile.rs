//! The content of a ServiceProfile.
//!
//! * In: the object as JSON, and the requested port. Out: routes, retry budget and overrides, as they are sent.
//! * Always: one invalid field makes the whole ServiceProfile invalid, except an invalid timeout, which is omitted.

use std::collections::HashMap;

use linkerd2_proxy_api::destination::{ResponseClass, RetryBudget, Route, WeightedDst};
use serde_json::Value;

use super::{
    super::authority::split,
    condition, duration,
    field::{Fields, Invalid, fields, flag, get, list, ratio, text, whole},
    quantity,
};

#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Content {
    pub(super) routes: Vec<Route>,
    /// `None` means the default.
    pub(super) retry_budget: Option<RetryBudget>,
    pub(super) overrides: Vec<WeightedDst>,
}

/// `None` for an invalid ServiceProfile.
pub(super) fn read(object: &Value, port: u16) -> Option<Content> {
    match object.get("spec").filter(|spec| !spec.is_null()) {
        None => Some(Content::default()),
        Some(spec) => fields(spec).and_then(|spec| content(spec, port)).ok(),
    }
}

/// `opaquePorts` is ignored: only the Service's annotation counts.
fn content(spec: &Fields, port: u16) -> Result<Content, Invalid> {
    let routes = list(spec, "routes")?.unwrap_or_default();
    let overrides = list(spec, "dstOverrides")?.unwrap_or_default();
    Ok(Content {
        routes: routes.iter().map(route).collect::<Result<_, _>>()?,
        retry_budget: get(spec, "retryBudget").map(budget).transpose()?,
        overrides: overrides.iter().map(|one| weighted(one, port)).collect::<Result<_, _>>()?,
    })
}

fn route(route: &Value) -> Result<Route, Invalid> {
    let route = fields(route)?;
    let classes = list(route, "responseClasses")?.unwrap_or_default();
    Ok(Route {
        condition: Some(condition::request(get(route, "condition").ok_or(Invalid)?)?),
        response_classes: classes.iter().map(class).collect::<Result<_, _>>()?,
        metrics_labels: HashMap::from([("route".to_owned(), text(route, "name")?.to_owned())]),
        is_retryable: flag(route, "isRetryable")?,
        timeout: duration::parse(text(route, "timeout")?).and_then(duration::wire),
    })
}

fn class(class: &Value) -> Result<ResponseClass, Invalid> {
    let class = fields(class)?;
    let condition = condition::response(get(class, "condition").ok_or(Invalid)?)?;
    Ok(ResponseClass { condition: Some(condition), is_failure: flag(class, "isFailure")? })
}

/// Absent fields are 0, not the default; `ttl` is required.
fn budget(budget: &Value) -> Result<RetryBudget, Invalid> {
    let budget = fields(budget)?;
    let ttl = duration::parse(text(budget, "ttl")?).ok_or(Invalid)?;
    Ok(RetryBudget {
        retry_ratio: ratio(budget, "retryRatio")?,
        min_retries_per_second: whole(budget, "minRetriesPerSecond")?,
        ttl: duration::wire(ttl),
    })
}

fn weighted(weighted: &Value, port: u16) -> Result<WeightedDst, Invalid> {
    let weighted = fields(weighted)?;
    let weight = get(weighted, "weight").map(|weight| quantity::weight(weight).ok_or(Invalid));
    Ok(WeightedDst {
        authority: with_port(text(weighted, "authority")?, port),
        weight: weight.transpose()?.unwrap_or_default(),
        backend_ref: None,
    })
}

/// Appends the requested port unless the text has a port; text with several colons is taken as IPv6 and gets brackets.
pub(super) fn with_port(authority: &str, port: u16) -> String {
    match split(authority) {
        Some(_) => authority.to_owned(),
        None if authority.contains(':') => format!("[{authority}]:{port}"),
        None => format!("{authority}:{port}"),
    }
}
