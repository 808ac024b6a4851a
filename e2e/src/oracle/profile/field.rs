//! The fields of an object that users write, by their types.
//!
//! * In: JSON of an object. Out: a field's value; nothing, for one that is absent or null.
//! * Always: a value of another type is [`Invalid`], and so is the whole object then.

use serde_json::{Map, Value};

/// The object does not decode, or means nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Invalid;

pub(super) type Fields = Map<String, Value>;

/// What has to be an object.
pub(super) fn fields(value: &Value) -> Result<&Fields, Invalid> {
    value.as_object().ok_or(Invalid)
}

pub(super) fn get<'a>(fields: &'a Fields, key: &str) -> Option<&'a Value> {
    fields.get(key).filter(|value| !value.is_null())
}

pub(super) fn list<'a>(fields: &'a Fields, key: &str) -> Result<Option<&'a [Value]>, Invalid> {
    get(fields, key).map(|value| value.as_array().map(Vec::as_slice).ok_or(Invalid)).transpose()
}

/// "" for one that is absent.
pub(super) fn text<'a>(fields: &'a Fields, key: &str) -> Result<&'a str, Invalid> {
    get(fields, key).map_or(Ok(""), |value| value.as_str().ok_or(Invalid))
}

pub(super) fn flag(fields: &Fields, key: &str) -> Result<bool, Invalid> {
    get(fields, key).map_or(Ok(false), |value| value.as_bool().ok_or(Invalid))
}

/// 0 for one that is absent. Not one with a fraction or a sign.
pub(super) fn whole(fields: &Fields, key: &str) -> Result<u32, Invalid> {
    let number = |value: &Value| value.as_u64().and_then(|number| u32::try_from(number).ok()).ok_or(Invalid);
    get(fields, key).map_or(Ok(0), number)
}

/// 0 for one that is absent. Not one that is too large for the message.
pub(super) fn ratio(fields: &Fields, key: &str) -> Result<f32, Invalid> {
    let number = |value: &Value| {
        let ratio = value.as_f64().map(|ratio| ratio as f32);
        ratio.filter(|ratio| ratio.is_finite()).ok_or(Invalid)
    };
    get(fields, key).map_or(Ok(0.0), number)
}
