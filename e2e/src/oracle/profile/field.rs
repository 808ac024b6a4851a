//! The fields of a user's object, by type.
//!
//! * In: a JSON object. Out: the value of a field; empty if the field is absent or null.
//! * Always: a value of another type makes the whole object [`Invalid`].

use serde_json::{Map, Value};

/// The object cannot be decoded, or has no meaning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Invalid;

pub(super) type Fields = Map<String, Value>;

/// The value as an object.
pub(super) fn fields(value: &Value) -> Result<&Fields, Invalid> {
    value.as_object().ok_or(Invalid)
}

pub(super) fn get<'a>(fields: &'a Fields, key: &str) -> Option<&'a Value> {
    fields.get(key).filter(|value| !value.is_null())
}

pub(super) fn list<'a>(fields: &'a Fields, key: &str) -> Result<Option<&'a [Value]>, Invalid> {
    get(fields, key).map(|value| value.as_array().map(Vec::as_slice).ok_or(Invalid)).transpose()
}

/// A string; "" if absent.
pub(super) fn text<'a>(fields: &'a Fields, key: &str) -> Result<&'a str, Invalid> {
    get(fields, key).map_or(Ok(""), |value| value.as_str().ok_or(Invalid))
}

pub(super) fn flag(fields: &Fields, key: &str) -> Result<bool, Invalid> {
    get(fields, key).map_or(Ok(false), |value| value.as_bool().ok_or(Invalid))
}

/// An unsigned 32-bit integer; 0 if absent. A fraction or a sign is invalid.
pub(super) fn whole(fields: &Fields, key: &str) -> Result<u32, Invalid> {
    let number = |value: &Value| value.as_u64().and_then(|number| u32::try_from(number).ok()).ok_or(Invalid);
    get(fields, key).map_or(Ok(0), number)
}

/// A number; 0 if absent. A number that overflows the message's float is invalid.
pub(super) fn ratio(fields: &Fields, key: &str) -> Result<f32, Invalid> {
    let number = |value: &Value| {
        let ratio = value.as_f64().map(|ratio| ratio as f32);
        ratio.filter(|ratio| ratio.is_finite()).ok_or(Invalid)
    };
    get(fields, key).map_or(Ok(0.0), number)
}
