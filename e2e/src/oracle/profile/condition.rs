//! Conditions of routes and response classes.
//!
//! * In: a condition as JSON. Out: the protobuf message, with the fields in a fixed order.
//! * Always: a single field is used directly, several fields are wrapped in an `all`, no field is invalid. An empty
//!   list counts as a field.

use linkerd2_proxy_api::{
    destination::{HttpStatusRange, PathMatch, RequestMatch, ResponseMatch, request_match, response_match},
    http_types::{
        HttpMethod,
        http_method::{Registered, Type},
    },
};
use serde_json::Value;

use super::field::{Fields, Invalid, fields, get, list, text, whole};

/// Converts a request condition. The order is `all`, `any`, `method`, `not`, `path`.
pub(super) fn request(condition: &Value) -> Result<RequestMatch, Invalid> {
    use request_match::{Match, Seq};
    let condition = fields(condition)?;
    let nested = |key: &str| -> Result<Option<Seq>, Invalid> {
        let Some(listed) = list(condition, key)? else { return Ok(None) };
        Ok(Some(Seq { matches: listed.iter().map(request).collect::<Result<_, _>>()? }))
    };
    let (method, path) = (text(condition, "method")?, text(condition, "pathRegex")?);
    let not = get(condition, "not").map(|not| request(only(not)?)).transpose()?;
    let set = [
        nested("all")?.map(Match::All),
        nested("any")?.map(Match::Any),
        (!method.is_empty()).then(|| Match::Method(http_method(method))),
        not.map(|not| Match::Not(Box::new(not))),
        (!path.is_empty()).then(|| Match::Path(PathMatch { regex: path.to_owned() })),
    ];
    let mut set: Vec<Match> = set.into_iter().flatten().collect();
    let only = if set.len() > 1 {
        let matches = set.into_iter().map(|one| RequestMatch { r#match: Some(one) }).collect();
        Match::All(Seq { matches })
    } else {
        set.pop().ok_or(Invalid)?
    };
    Ok(RequestMatch { r#match: Some(only) })
}

/// The CRD requires a list where Linkerd's controller requires an object: a list with one item counts as that item.
fn only(not: &Value) -> Result<&Value, Invalid> {
    match not.as_array().map(Vec::as_slice) {
        None => Ok(not),
        Some([one]) => Ok(one),
        Some(_) => Err(Invalid),
    }
}

/// Converts a response condition. The order is `all`, `any`, `status`, `not`.
pub(super) fn response(condition: &Value) -> Result<ResponseMatch, Invalid> {
    use response_match::{Match, Seq};
    let condition = fields(condition)?;
    let nested = |key: &str| -> Result<Option<Seq>, Invalid> {
        let Some(listed) = list(condition, key)? else { return Ok(None) };
        Ok(Some(Seq { matches: listed.iter().map(response).collect::<Result<_, _>>()? }))
    };
    let status = get(condition, "status").map(|status| range(fields(status)?)).transpose()?;
    let not = get(condition, "not").map(response).transpose()?;
    let set = [
        nested("all")?.map(Match::All),
        nested("any")?.map(Match::Any),
        status.map(Match::Status),
        not.map(|not| Match::Not(Box::new(not))),
    ];
    let mut set: Vec<Match> = set.into_iter().flatten().collect();
    let only = if set.len() > 1 {
        let matches = set.into_iter().map(|one| ResponseMatch { r#match: Some(one) }).collect();
        Match::All(Seq { matches })
    } else {
        set.pop().ok_or(Invalid)?
    };
    Ok(ResponseMatch { r#match: Some(only) })
}

/// A missing bound is 0, and 0 means no bound.
fn range(status: &Fields) -> Result<HttpStatusRange, Invalid> {
    let (min, max) = (whole(status, "min")?, whole(status, "max")?);
    let possible = |bound: u32| bound == 0 || (100..600).contains(&bound);
    let empty = min != 0 && max != 0 && max < min;
    if possible(min) && possible(max) && !empty { Ok(HttpStatusRange { min, max }) } else { Err(Invalid) }
}

/// Any word is a method; registered methods have a number.
fn http_method(name: &str) -> HttpMethod {
    let name = name.to_uppercase();
    let registered = match name.as_str() {
        "GET" => Some(Registered::Get),
        "POST" => Some(Registered::Post),
        "PUT" => Some(Registered::Put),
        "DELETE" => Some(Registered::Delete),
        "PATCH" => Some(Registered::Patch),
        "OPTIONS" => Some(Registered::Options),
        "CONNECT" => Some(Registered::Connect),
        "HEAD" => Some(Registered::Head),
        "TRACE" => Some(Registered::Trace),
        _ => None,
    };
    let of_type = registered.map_or(Type::Unregistered(name), |registered| Type::Registered(registered.into()));
    HttpMethod { r#type: Some(of_type) }
}
