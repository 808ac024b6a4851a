//! Decodes a ServiceProfile as strictly as Linkerd's validator, and with its errors. Pure.
//!
//! In: the text of an object, with content that tenants control. Out: its name and its spec, or the first error in Go's
//! words. Always holds: a field that the type does not have, in any case of letters, is an error; scalars become strings
//! where the type is a string; keys are decoded in sorted order, so that the first error is that of Linkerd.

use k8s_openapi::jiff::Timestamp;
use serde_json::{Map, Number, Value, value::RawValue};

use super::shape::{FieldShape, ObjectShape, SERVICE_PROFILE, Shape};
use crate::api::{ServiceProfileSpec, go_quote::quoted, quantity::Quantity};

/// The parts of a ServiceProfile that the rules examine.
#[derive(Debug, Default)]
pub(super) struct DecodedProfile {
    pub(super) name: String,
    pub(super) namespace: String,
    pub(super) spec: ServiceProfileSpec,
}

#[derive(Default)]
struct Decoder {
    /// The first error that does not end the decoding.
    first: Option<String>,
    /// The keys of the present field, from the top.
    path: Vec<&'static str>,
}

/// Decodes an object; without one, as for the review of a deletion, an empty ServiceProfile.
///
/// # Errors
/// Returns the text of the first error.
pub(super) fn decode(object: Option<&RawValue>) -> Result<DecodedProfile, String> {
    // The parser limits the depth, so that all recursion below is bounded.
    let object: Value =
        serde_json::from_str(object.map_or("null", RawValue::get)).map_err(|error| error.to_string())?;
    let mut decoder = Decoder::default();
    let decoded = decoder.object(object, &SERVICE_PROFILE, None)?;
    if let Some(first) = decoder.first {
        return Err(first);
    }
    let mut fields = match decoded {
        Value::Object(fields) => fields,
        _ => Map::new(),
    };
    let text = |key: &str| fields.get("metadata").and_then(|metadata| metadata.get(key)?.as_str()).unwrap_or_default();
    let (name, namespace) = (text("name").to_owned(), text("namespace").to_owned());
    let spec = fields.remove("spec").unwrap_or_default();
    let spec: Option<ServiceProfileSpec> = serde_json::from_value(spec).map_err(|error| error.to_string())?;
    Ok(DecodedProfile { name, namespace, spec: spec.unwrap_or_default() })
}

// === impl Decoder ===

impl Decoder {
    /// Returns a value in the form of its type. `owner` is the type of the object that has the present field. An error
    /// that does not end the decoding is kept, and the value is null.
    fn value(&mut self, value: Value, shape: &'static Shape, owner: &ObjectShape) -> Result<Value, String> {
        let decoded = match (shape, value) {
            (_, Value::Null) => Value::Null,
            (Shape::Object(shape), value) => return self.object(value, shape, Some(owner)),
            (Shape::List(item), Value::Array(items)) => {
                let items = items.into_iter().map(|value| self.value(value, item, owner));
                Value::Array(items.collect::<Result<_, _>>()?)
            }
            (Shape::Texts, Value::Object(map)) => {
                let texts =
                    sorted(map).into_iter().map(|(key, value)| Ok((key, self.value(value, &Shape::Text, owner)?)));
                Value::Object(texts.collect::<Result<_, String>>()?)
            }
            (Shape::Ports, Value::Object(map)) => {
                for (key, value) in sorted(map) {
                    self.port(&key, value, owner);
                }
                Value::Null
            }
            (Shape::Text | Shape::StrictText, value @ Value::String(_))
            | (Shape::Bool, value @ Value::Bool(_))
            | (Shape::Anything, value) => value,
            (Shape::Text, Value::Number(number)) => Value::String(go_number(&number)),
            (Shape::Text, Value::Bool(value)) => Value::String(value.to_string()),
            (Shape::Time, Value::String(text)) => match text.parse::<Timestamp>() {
                Ok(_) => Value::String(text),
                Err(_) => {
                    return Err(format!(
                        "parsing time {text:?} as \"2006-01-02T15:04:05Z07:00\": it is not such a time"
                    ));
                }
            },
            (Shape::Quantity, value) => match is_quantity(&value) {
                Ok(()) => value,
                Err(reason) => return Err(reason.to_owned()),
            },
            (Shape::Uint32 | Shape::Int64 | Shape::Float32, Value::Number(number)) => {
                let fits = match shape {
                    Shape::Uint32 => whole(&number).and_then(|it| u32::try_from(it).ok()).map(Value::from),
                    Shape::Int64 => whole(&number).map(Value::from),
                    _ => single(&number).map(|_| Value::Number(number.clone())),
                };
                fits.unwrap_or_else(|| self.mismatch(&format!("number {}", go_number(&number)), &shape.name(), owner))
            }
            (shape, value) => self.mismatch(json_type(&value), &shape.name(), owner),
        };
        Ok(decoded)
    }

    /// Returns an object whose keys have the spelling of its type. `owner` is `None` for the whole object.
    fn object(
        &mut self,
        value: Value,
        shape: &'static ObjectShape,
        owner: Option<&ObjectShape>,
    ) -> Result<Value, String> {
        let map = match (value, owner) {
            (Value::Object(map), _) => map,
            (Value::Null, _) => return Ok(Value::Null),
            (value, Some(owner)) => return Ok(self.mismatch(json_type(&value), &shape.qualified_name(), owner)),
            (value, None) => {
                let error = format!(
                    "json: cannot unmarshal {} into Go value of type {}",
                    json_type(&value),
                    shape.qualified_name()
                );
                self.keep(error);
                return Ok(Value::Null);
            }
        };
        let mut decoded = Map::new();
        for (key, value) in sorted(map) {
            let Some((name, field)) = field(shape, &key) else {
                self.keep(format!("json: unknown field {}", quoted(&key)));
                continue;
            };
            self.path.push(*name);
            let value = self.value(value, field, shape)?;
            self.path.pop();
            decoded.insert((*name).to_owned(), value);
        }
        Ok(Value::Object(decoded))
    }

    /// Checks one entry of the set of ports, whose values have no fields.
    fn port(&mut self, key: &str, value: Value, owner: &ObjectShape) {
        if key.parse::<u32>().is_err() {
            self.mismatch(&format!("number {key}"), "uint32", owner);
        }
        match value {
            Value::Null => {}
            Value::Object(map) => {
                if let Some((unknown, _)) = sorted(map).into_iter().next() {
                    self.keep(format!("json: unknown field {}", quoted(&unknown)));
                }
            }
            value => _ = self.mismatch(json_type(&value), "struct {}", owner),
        }
    }

    /// Keeps the error of a value that does not fit its type.
    fn mismatch(&mut self, found: &str, wanted: &str, owner: &ObjectShape) -> Value {
        let path = match self.path.as_slice() {
            // Both are fields of an embedded type.
            [field @ ("apiVersion" | "kind")] => format!("TypeMeta.{field}"),
            path => path.join("."),
        };
        self.keep(format!(
            "json: cannot unmarshal {found} into Go struct field {}.{path} of type {wanted}",
            owner.name
        ));
        Value::Null
    }

    fn keep(&mut self, error: String) {
        self.first.get_or_insert(error);
    }
}

/// Returns the entries in the order of their keys.
fn sorted(map: Map<String, Value>) -> Vec<(String, Value)> {
    let mut entries: Vec<_> = map.into_iter().collect();
    entries.sort_by(|(one, _), (other, _)| one.cmp(other));
    entries
}

/// Returns a field by its name. Go ignores case if no field has exactly this name.
fn field(shape: &'static ObjectShape, key: &str) -> Option<&'static FieldShape> {
    let exact = shape.fields.iter().find(|(name, _)| *name == key);
    exact.or_else(|| shape.fields.iter().find(|(name, _)| name.eq_ignore_ascii_case(key)))
}

fn json_type(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "bool",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

/// Returns a whole number, which may be written as `1.0` or `1e2`.
fn whole(number: &Number) -> Option<i64> {
    // Floats of this size are exact.
    const EXACT: f64 = 9_007_199_254_740_992.0;
    let float = || number.as_f64().filter(|it| it.fract() == 0.0 && it.abs() <= EXACT);
    number.as_i64().or_else(|| format!("{:.0}", float()?).parse().ok())
}

/// Returns a number that fits into a float of 32 bits.
fn single(number: &Number) -> Option<f32> {
    number.to_string().parse::<f32>().ok().filter(|it| it.is_finite())
}

/// Returns a number as Go writes it.
fn go_number(number: &Number) -> String {
    match number.as_f64().filter(|_| number.is_f64()) {
        None => number.to_string(),
        Some(0.0) => "0".to_owned(),
        Some(float) if float.abs() < 1e-6 || float.abs() >= 1e21 => {
            let text = format!("{float:e}");
            if text.contains("e-") { text } else { text.replace('e', "e+") }
        }
        Some(float) => float.to_string(),
    }
}

/// Checks that a value is a Kubernetes quantity. Linkerd's decoder also accepts one without digits, which counts as 0.
fn is_quantity(value: &Value) -> Result<(), &'static str> {
    const FORM: &str = "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'";
    const SUFFIX: &str = "unable to parse quantity's suffix";
    let text = match value {
        Value::Number(number) => number.to_string(),
        // Blanks around it are ignored.
        Value::String(text) => text.trim().to_owned(),
        _ => return Err(FORM),
    };
    let digits = |c: char| c.is_ascii_digit();
    let unsigned = text.strip_prefix(['+', '-']).unwrap_or(&text);
    let fraction = unsigned.trim_start_matches(digits);
    let suffix = fraction.strip_prefix('.').unwrap_or(fraction).trim_start_matches(digits);
    let exponent = suffix.trim_start_matches(|c| "eEinumkKMGTP".contains(c));
    let rest = exponent.strip_prefix(['+', '-']).unwrap_or(exponent).trim_start_matches(digits);
    if text.is_empty() || !rest.is_empty() {
        return Err(FORM);
    }
    // The suffix decides; a number of any size is accepted.
    format!("0{suffix}").parse::<Quantity>().map(drop).map_err(|_| SUFFIX)
}
