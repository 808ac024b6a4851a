//! Decodes JSON into a type as strictly as encoding/json under sigs.k8s.io/yaml, and with its errors. Pure.
//!
//! In: a text with content that tenants control, the shape of a type. Out: JSON with the keys of the type, or the first
//! error in Go's words. Always holds: a field that the type does not have, in any case of letters, is an error; scalars
//! become strings where the type is a string; keys are decoded in sorted order, so that the first error is that of Go.

use serde_json::{Map, Value};

use super::{number, quote::quoted, types::find};

/// The type of a field.
pub(crate) enum Shape {
    /// A string. Numbers and bools become strings.
    Text,
    /// A string of the embedded struct with this name. Go's YAML reader does not find its type, so numbers and bools
    /// are errors.
    EmbeddedText(&'static str),
    Bool,
    Uint32,
    Int64,
    Float32,
    /// A type with a decoder of its own, which reads a string. Returns false for a value of another type; an error ends
    /// the decoding.
    Own(fn(&Value) -> Result<bool, String>),
    Anything,
    /// A map of strings.
    Texts,
    /// A set of ports, as the keys of a map.
    Ports,
    Object(&'static ObjectShape),
    List(&'static Shape),
}

/// The type of an object.
pub(crate) struct ObjectShape {
    /// The package of apimachinery has the name `v1`.
    pub(crate) package: &'static str,
    pub(crate) name: &'static str,
    pub(crate) fields: &'static [FieldShape],
}

/// The name of a field, and its type.
pub(crate) type FieldShape = (&'static str, Shape);

#[derive(Default)]
struct Decoder {
    /// The first error that does not end the decoding.
    first: Option<String>,
    /// The keys of the present field, from the top.
    path: Vec<&'static str>,
}

/// Decodes a text. The recursion is bounded, because the parser limits the depth.
///
/// # Errors
/// The text of the first error.
pub(crate) fn decode(text: &str, shape: &'static ObjectShape) -> Result<Value, String> {
    let value = serde_json::from_str(text).map_err(|error| error.to_string())?;
    let mut decoder = Decoder::default();
    let decoded = decoder.object(value, shape, None)?;
    decoder.first.map_or(Ok(decoded), Err)
}

// === impl Shape ===

impl Shape {
    /// Returns Go's name of the type.
    fn name(&self) -> String {
        match self {
            Self::Text | Self::EmbeddedText(_) | Self::Own(_) | Self::Anything => "string".to_owned(),
            Self::Bool => "bool".to_owned(),
            Self::Uint32 => "uint32".to_owned(),
            Self::Int64 => "int64".to_owned(),
            Self::Float32 => "float32".to_owned(),
            Self::Texts => "map[string]string".to_owned(),
            Self::Ports => "map[uint32]struct {}".to_owned(),
            Self::Object(shape) => shape.qualified_name(),
            // The lists of apimachinery hold values, not pointers.
            Self::List(Self::Object(shape)) if shape.package != "v1" => format!("[]*{}", shape.qualified_name()),
            Self::List(item) => format!("[]{}", item.name()),
        }
    }
}

// === impl ObjectShape ===

impl ObjectShape {
    fn qualified_name(&self) -> String {
        format!("{}.{}", self.package, self.name)
    }
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
            (Shape::Text | Shape::EmbeddedText(_), value @ Value::String(_))
            | (Shape::Bool, value @ Value::Bool(_))
            | (Shape::Anything, value) => value,
            (Shape::Text, Value::Number(number)) => Value::String(number::as_text(&number)),
            (Shape::Text, Value::Bool(value)) => Value::String(value.to_string()),
            (Shape::Own(fits), value) if fits(&value)? => value,
            (Shape::Uint32 | Shape::Int64 | Shape::Float32, Value::Number(number)) => {
                // A whole number may be written as `1.0` or `1e2`.
                let whole = number::whole(number.clone());
                let fits = match shape {
                    Shape::Uint32 => whole.as_u64().is_some_and(|it| u32::try_from(it).is_ok()),
                    Shape::Int64 => whole.is_i64(),
                    _ => number.to_string().parse().is_ok_and(f32::is_finite),
                };
                match fits {
                    true => Value::Number(whole),
                    false => self.mismatch(&format!("number {}", number::as_json(&number)), &shape.name(), owner),
                }
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
            let Some((name, field)) = find(shape.fields, |(name, _)| name, &key) else {
                self.keep(format!("json: unknown field {}", quoted(&key)));
                continue;
            };
            let depth = self.path.len();
            if let Shape::EmbeddedText(of) = field {
                self.path.push(of);
            }
            self.path.push(*name);
            let value = self.value(value, field, shape)?;
            self.path.truncate(depth);
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
        let path = self.path.join(".");
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
