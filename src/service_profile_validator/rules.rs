//! The rules of Linkerd's validator for ServiceProfiles, with its messages. Pure.
//!
//! In: a decoded ServiceProfile. Out: the message of the first rule that it breaks. Always holds: rules are applied in
//! the order of Linkerd, so that the message is the same.

use std::ops::RangeInclusive;

use serde_json::value::RawValue;

use super::decode::{DecodedProfile, decoded_profile};
use crate::{
    api::{RequestMatchSpec, ResponseClassSpec, ResponseMatchSpec, RetryBudgetSpec, RouteSpec, StatusRange},
    go::{
        duration::{self, InvalidDuration},
        quote::quoted,
    },
    text::truncated,
};

/// The maximum length of a message. It may show a text of the object, which can have 10 MiB.
const MAX_MESSAGE_BYTES: usize = 4096;
const MAX_NAME_BYTES: usize = 253;
const STATUSES: RangeInclusive<u32> = 100..=599;

/// Why Linkerd's validator denies a ServiceProfile.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
enum Denial {
    #[error(
        "has invalid name: a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or \
         '.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is \
         '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')"
    )]
    Name,
    #[error("has invalid name: must be no more than {MAX_NAME_BYTES} characters")]
    LongName,
    #[error("has a null route")]
    NullRoute,
    #[error("has a route with no name")]
    NamelessRoute,
    #[error("has a route with an invalid timeout: {0}")]
    Timeout(InvalidDuration),
    #[error("has a route with no condition")]
    NoCondition,
    #[error("has a route with an invalid condition: {0}")]
    Condition(MatchDenial),
    #[error("has a null response class")]
    NullClass,
    #[error("has a response class with no condition")]
    NoClassCondition,
    #[error("has a response class with an invalid condition: {0}")]
    ClassCondition(MatchDenial),
    #[error("RetryBudget RetryRatio must be non-negative: {0}")]
    RetryRatio(String),
    #[error("RetryBudget missing TTL field")]
    NoTtl,
    #[error("RetryBudget: {0}")]
    Ttl(InvalidDuration),
}

#[derive(Debug, PartialEq, Eq, thiserror::Error)]
enum MatchDenial {
    #[error("null condition {0:?}")]
    Null(&'static str),
    #[error("A {0} match must have a field set")]
    NoField(&'static str),
    #[error("Range minimum must be between 100 and 599, inclusive")]
    Minimum,
    #[error("Range maximum must be between 100 and 599, inclusive")]
    Maximum,
    #[error("Range maximum cannot be smaller than minimum")]
    Reversed,
}

/// Decodes and checks an object, which is absent in the review of a deletion.
///
/// # Errors
/// Returns the message of Linkerd's validator.
pub(super) fn validate(object: Option<&RawValue>) -> Result<DecodedProfile, String> {
    let denied = match decoded_profile(object) {
        Ok(profile) => match check(&profile) {
            Ok(()) => return Ok(profile),
            Err(denial) => format!("ServiceProfile {} {denial}", quoted(&profile.name)),
        },
        Err(error) => {
            format!("failed to validate ServiceProfile: error unmarshaling JSON: while decoding JSON: {error}")
        }
    };
    Err(truncated(denied, MAX_MESSAGE_BYTES))
}

fn check(profile: &DecodedProfile) -> Result<(), Denial> {
    let DecodedProfile { name, spec, .. } = profile;
    if name.len() > MAX_NAME_BYTES {
        return Err(Denial::LongName);
    }
    if !name.split('.').all(is_label) {
        return Err(Denial::Name);
    }
    for route in spec.routes.iter().flatten() {
        check_route(route.as_ref().ok_or(Denial::NullRoute)?)?;
    }
    spec.retry_budget.as_ref().map_or(Ok(()), check_retry_budget)
}

pub(super) fn is_label(label: &str) -> bool {
    let is_alphanumeric = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    label.chars().all(|c| is_alphanumeric(c) || c == '-')
        && label.starts_with(is_alphanumeric)
        && label.ends_with(is_alphanumeric)
}

fn check_route(route: &RouteSpec) -> Result<(), Denial> {
    if route.name.as_deref().is_none_or(str::is_empty) {
        return Err(Denial::NamelessRoute);
    }
    if let Some(timeout) = route.timeout.as_deref().filter(|timeout| !timeout.is_empty()) {
        duration::checked(timeout).map_err(Denial::Timeout)?;
    }
    check_request(route.condition.as_ref().ok_or(Denial::NoCondition)?).map_err(Denial::Condition)?;
    for class in route.response_classes.iter().flatten() {
        let ResponseClassSpec { condition, .. } = class.as_ref().ok_or(Denial::NullClass)?;
        check_response(condition.as_ref().ok_or(Denial::NoClassCondition)?).map_err(Denial::ClassCondition)?;
    }
    Ok(())
}

fn check_request(request: &RequestMatchSpec) -> Result<(), MatchDenial> {
    let RequestMatchSpec { all, any, method, not, path_regex } = request;
    for (name, list) in [("all", all), ("any", any)] {
        for inner in list.iter().flatten() {
            check_request(inner.as_ref().ok_or(MatchDenial::Null(name))?)?;
        }
    }
    if let Some(not) = not {
        check_request(not)?;
    }
    let is_set = |text: &Option<String>| text.as_deref().is_some_and(|text| !text.is_empty());
    let has_field = all.is_some() || any.is_some() || not.is_some() || is_set(method) || is_set(path_regex);
    if has_field { Ok(()) } else { Err(MatchDenial::NoField("request")) }
}

fn check_response(response: &ResponseMatchSpec) -> Result<(), MatchDenial> {
    let ResponseMatchSpec { all, any, status, not } = response;
    for (name, list) in [("all", all), ("any", any)] {
        for inner in list.iter().flatten() {
            check_response(inner.as_ref().ok_or(MatchDenial::Null(name))?)?;
        }
    }
    if let Some(status) = status {
        check_status(*status)?;
    }
    if let Some(not) = not {
        check_response(not)?;
    }
    let has_field = all.is_some() || any.is_some() || status.is_some() || not.is_some();
    if has_field { Ok(()) } else { Err(MatchDenial::NoField("response")) }
}

/// An end that is 0 or absent is open.
fn check_status(range: StatusRange) -> Result<(), MatchDenial> {
    let (min, max) = (range.min.unwrap_or_default(), range.max.unwrap_or_default());
    if min != 0 && !STATUSES.contains(&min) {
        return Err(MatchDenial::Minimum);
    }
    if max != 0 && !STATUSES.contains(&max) {
        return Err(MatchDenial::Maximum);
    }
    if max != 0 && min != 0 && max < min {
        return Err(MatchDenial::Reversed);
    }
    Ok(())
}

fn check_retry_budget(budget: &RetryBudgetSpec) -> Result<(), Denial> {
    let ratio = budget.retry_ratio.unwrap_or_default();
    if ratio < 0.0 {
        return Err(Denial::RetryRatio(format!("{ratio:.6}")));
    }
    match budget.ttl.as_deref() {
        None | Some("") => Err(Denial::NoTtl),
        Some(ttl) => duration::checked(ttl).map(drop).map_err(Denial::Ttl),
    }
}

#[cfg(test)]
#[path = "rules_tests.rs"]
mod tests;
