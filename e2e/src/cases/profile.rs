//! The expected profile.
//!
//! * In: the fields that the message has, as in the files. Out: the complete `DestinationProfile`.
//! * Always: a field that is not given is absent from the message. Matches have the form of the API's text: `{method:
//!   GET}`, `{path: /a}`, `{all: [...]}`, `{any: [...]}`, `{not: ...}`, `{status: [200, 299]}`.

use std::{collections::HashMap, net::SocketAddr};

use anyhow::{Context, Result, bail};
use linkerd2_proxy_api::{
    destination::{
        DestinationProfile, HttpStatusRange, PathMatch, RequestMatch, ResponseClass, ResponseMatch, RetryBudget, Route,
        WeightedDst, request_match, response_match,
    },
    http_types::{HttpMethod, http_method::Type},
    meta::{Metadata, Resource, metadata},
};
use prost_types::Duration;
use serde::Deserialize;
use serde_json::{Map, Value};

use super::endpoint;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Profile {
    #[serde(default)]
    name: String,
    #[serde(default)]
    opaque: bool,
    #[serde(default)]
    routes: Vec<RouteFields>,
    budget: Option<Budget>,
    #[serde(default)]
    overrides: Vec<(String, u32)>,
    /// With its address as `at`.
    endpoint: Option<Map<String, Value>>,
    parent: Option<Reference>,
    profile: Option<Reference>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RouteFields {
    #[serde(default)]
    name: String,
    condition: Value,
    #[serde(default)]
    retryable: bool,
    timeout: Option<Time>,
    #[serde(default)]
    classes: Vec<ClassFields>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ClassFields {
    condition: Value,
    #[serde(default)]
    failure: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Budget {
    ratio: f32,
    retries: u32,
    ttl: Option<Time>,
}

/// Seconds, or seconds and nanoseconds.
#[derive(Clone, Copy, Deserialize)]
#[serde(untagged)]
enum Time {
    Whole(i64),
    Parts(i64, i32),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Reference {
    group: String,
    #[serde(default)]
    kind: String,
    #[serde(default)]
    name: String,
    #[serde(default)]
    namespace: String,
    #[serde(default)]
    port: u32,
}

/// The numbers of the methods in the API.
const METHODS: [&str; 9] = ["GET", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "CONNECT", "HEAD", "TRACE"];

pub(super) fn profile(fields: &Value) -> Result<DestinationProfile> {
    let fields: Profile = serde_json::from_value(fields.clone()).with_context(|| format!("the profile {fields}"))?;
    let weighted = |(authority, weight): (String, u32)| WeightedDst { authority, weight, backend_ref: None };
    let endpoint = fields.endpoint.map(|mut fields| {
        let at = fields.remove("at").context("the endpoint of a profile has an address `at`")?;
        let address: SocketAddr =
            at.as_str().unwrap_or_default().parse().with_context(|| format!("the address {at}"))?;
        endpoint::endpoint(address, &Value::Object(fields))
    });
    Ok(DestinationProfile {
        fully_qualified_name: fields.name,
        opaque_protocol: fields.opaque,
        routes: fields.routes.into_iter().map(route).collect::<Result<_>>()?,
        retry_budget: fields.budget.map(|budget| RetryBudget {
            retry_ratio: budget.ratio,
            min_retries_per_second: budget.retries,
            ttl: budget.ttl.map(duration),
        }),
        dst_overrides: fields.overrides.into_iter().map(weighted).collect(),
        endpoint: endpoint.transpose()?,
        parent_ref: fields.parent.map(reference),
        profile_ref: fields.profile.map(reference),
    })
}

fn route(route: RouteFields) -> Result<Route> {
    let class = |class: ClassFields| {
        Ok(ResponseClass { condition: Some(response(&class.condition)?), is_failure: class.failure })
    };
    Ok(Route {
        condition: Some(request(&route.condition)?),
        response_classes: route.classes.into_iter().map(class).collect::<Result<_>>()?,
        metrics_labels: HashMap::from([("route".to_owned(), route.name)]),
        is_retryable: route.retryable,
        timeout: route.timeout.map(duration),
    })
}

fn duration(time: Time) -> Duration {
    match time {
        Time::Whole(seconds) => Duration { seconds, nanos: 0 },
        Time::Parts(seconds, nanos) => Duration { seconds, nanos },
    }
}

fn reference(reference: Reference) -> Metadata {
    let Reference { group, kind, name, namespace, port } = reference;
    let resource = Resource { group, kind, name, namespace, section: String::new(), port };
    Metadata { kind: Some(metadata::Kind::Resource(resource)) }
}

fn request(condition: &Value) -> Result<RequestMatch> {
    use request_match::{Match, Seq};
    let sequence = |value: &Value| -> Result<Seq> {
        Ok(Seq { matches: items(value)?.iter().map(request).collect::<Result<_>>()? })
    };
    let matched = match only_field(condition)? {
        ("all", value) => Match::All(sequence(value)?),
        ("any", value) => Match::Any(sequence(value)?),
        ("not", value) => Match::Not(Box::new(request(value)?)),
        ("path", value) => Match::Path(PathMatch { regex: text(value)? }),
        ("method", value) => {
            let name = text(value)?;
            let number = METHODS.iter().position(|known| *known == name);
            let known = number.map(|number| i32::try_from(number).map(Type::Registered)).transpose()?;
            Match::Method(HttpMethod { r#type: Some(known.unwrap_or(Type::Unregistered(name))) })
        }
        (other, _) => bail!("{other:?} is not a match of a request"),
    };
    Ok(RequestMatch { r#match: Some(matched) })
}

fn response(condition: &Value) -> Result<ResponseMatch> {
    use response_match::{Match, Seq};
    let sequence = |value: &Value| -> Result<Seq> {
        Ok(Seq { matches: items(value)?.iter().map(response).collect::<Result<_>>()? })
    };
    let matched = match only_field(condition)? {
        ("all", value) => Match::All(sequence(value)?),
        ("any", value) => Match::Any(sequence(value)?),
        ("not", value) => Match::Not(Box::new(response(value)?)),
        ("status", value) => {
            let (min, max) = serde_json::from_value(value.clone()).with_context(|| format!("the range {value}"))?;
            Match::Status(HttpStatusRange { min, max })
        }
        (other, _) => bail!("{other:?} is not a match of a response"),
    };
    Ok(ResponseMatch { r#match: Some(matched) })
}

fn only_field(value: &Value) -> Result<(&str, &Value)> {
    let mut fields = value.as_object().into_iter().flatten();
    match (fields.next(), fields.next()) {
        (Some((name, value)), None) => Ok((name, value)),
        _ => bail!("the match {value} does not have one field"),
    }
}

fn items(value: &Value) -> Result<&Vec<Value>> {
    value.as_array().with_context(|| format!("{value} is not a list"))
}

fn text(value: &Value) -> Result<String> {
    Ok(value.as_str().with_context(|| format!("{value} is not a text"))?.to_owned())
}
