//! The types of fields in Go, and how its decoders find the field of a key.

/// The type of a value, with the types below it.
#[derive(Clone, Copy, Debug)]
pub(crate) enum GoType {
    Text,
    Bool,
    /// Whole numbers, with the bounds of the Go type.
    Int(i64, i64),
    Uint,
    /// The largest number of the Go type.
    Float(f64),
    /// A string in some releases of Linkerd and a number in others, so it is not converted.
    Scalar,
    /// A `resource.Quantity` of Kubernetes, as text or as a number.
    Quantity,
    List(&'static GoType),
    /// A map with any keys.
    Map(&'static GoType),
    Struct(&'static [GoField]),
    /// A field of an embedded struct. Go's YAML reader does not find its type, so a number is not converted to a
    /// string.
    Embedded(&'static GoType),
    Any,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct GoField {
    pub(crate) name: &'static str,
    pub(crate) holds: GoType,
}

/// A Rust type, with the Go type of the field that it is read from.
pub(crate) trait GoTyped {
    const TYPE: GoType;
}

/// Returns a field.
pub(crate) const fn is(name: &'static str, holds: GoType) -> GoField {
    GoField { name, holds }
}

/// Implements [`GoTyped`] for a type that holds no other type.
macro_rules! go_types {
    ($($type:ty => $go:expr,)*) => {
        $(impl GoTyped for $type {
            const TYPE: GoType = $go;
        })*
    };
}

go_types! {
    String => GoType::Text,
    bool => GoType::Bool,
    i32 => GoType::Int(i32::MIN as i64, i32::MAX as i64),
    i64 => GoType::Int(i64::MIN, i64::MAX),
    u64 => GoType::Uint,
    f32 => GoType::Float(f32::MAX as f64),
    f64 => GoType::Float(f64::MAX),
    serde_json::Value => GoType::Any,
    serde_json::Map<String, serde_json::Value> => GoType::Map(&GoType::Any),
}

impl<T: GoTyped> GoTyped for Option<T> {
    const TYPE: GoType = T::TYPE;
}

impl<T: GoTyped> GoTyped for Vec<T> {
    const TYPE: GoType = GoType::List(&T::TYPE);
}

impl<T: GoTyped> GoTyped for std::collections::BTreeMap<String, T> {
    const TYPE: GoType = GoType::Map(&T::TYPE);
}

/// Returns the field of a key: the one with this name, or one whose name differs only in case.
pub(crate) fn find<'a, F>(fields: &'a [F], name: impl Fn(&F) -> &'static str, key: &str) -> Option<&'a F> {
    fields.iter().find(|field| name(field) == key).or_else(|| fields.iter().find(|field| folds_to(name(field), key)))
}

/// Compares keys as encoding/json does. The names are ASCII, and two non-ASCII letters fold to ASCII letters.
fn folds_to(name: &str, key: &str) -> bool {
    let folded = |c: char| match c {
        'ſ' => 's',
        '\u{212a}' => 'k',
        c => c.to_ascii_lowercase(),
    };
    name.chars().map(folded).eq(key.chars().map(folded))
}

// === impl GoType ===

impl GoType {
    /// Returns a key in the spelling of this type, and the type of its value; `None` if a struct does not have the key.
    pub(crate) fn at<'a>(&self, key: &'a str) -> Option<(&'a str, Self)> {
        match self {
            Self::Struct(fields) => find(fields, |field| field.name, key).map(|field| (field.name, field.holds)),
            Self::Map(item) => Some((key, **item)),
            Self::Embedded(inner) => inner.at(key),
            _ => Some((key, Self::Any)),
        }
    }

    /// Returns the type of the value of a key. A value is not checked if a struct does not have its key.
    pub(crate) fn below(&self, key: &str) -> Self {
        self.at(key).map_or(Self::Any, |(_, below)| below)
    }
}
