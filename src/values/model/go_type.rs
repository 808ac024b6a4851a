//! The Go types of values, and the declaration of a struct that has such a type.

/// The type of a value, with the types below it.
#[derive(Clone, Copy, Debug)]
pub(in crate::values) enum GoType {
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
pub(in crate::values) struct GoField {
    pub(in crate::values) name: &'static str,
    pub(in crate::values) holds: GoType,
}

/// A Rust type, with the Go type of the field that it is read from.
pub(in crate::values) trait GoTyped {
    const TYPE: GoType;
}

/// The keys of a struct, by the programs that read them.
pub(in crate::values) trait GoStruct {
    /// The injector refuses a document without these keys.
    const REQUIRED: &'static [&'static str];
    /// These keys reach an injected Pod.
    const INJECTED: &'static [&'static str];
    /// Only the control plane reads these keys.
    const CONTROL_PLANE: &'static [&'static str];
}

pub(super) const fn is(name: &'static str, holds: GoType) -> GoField {
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

/// Declares structs of Linkerd: the Rust structs that the injector reads, and the Go types of all keys.
///
/// The keys in the braces of a struct and the `required` ones are fields, with a Rust type. The other keys have a
/// [`GoType`] and no field: injectors of other releases use the keys of `unread`, and only the control plane uses the
/// keys of `control_plane`.
macro_rules! go_structs {
    ($(
        $(#[$attribute:meta])*
        struct $name:ident { $($(#[$serde:meta])* $key:literal => $field:ident: $type:ty,)+ }
        $(required { $($required_key:literal => $required:ident: $required_type:ty,)+ })?
        $(unread { $($unread:literal => $unread_type:expr,)+ })?
        $(control_plane { $($control_plane:literal => $control_plane_type:expr,)+ })?
    )+) => {$(
        $(#[$attribute])*
        #[derive(Clone, Debug, Default, PartialEq, serde::Deserialize)]
        pub(crate) struct $name {
            $($(#[$serde])* #[serde(default, rename = $key)] pub(crate) $field: $type,)+
            $($(#[serde(rename = $required_key)] pub(crate) $required: $required_type,)+)?
        }

        impl GoTyped for $name {
            const TYPE: GoType = GoType::Struct(&[
                $(is($key, <$type as GoTyped>::TYPE),)+
                $($(is($required_key, <$required_type as GoTyped>::TYPE),)+)?
                $($(is($unread, $unread_type),)+)?
                $($(is($control_plane, $control_plane_type),)+)?
            ]);
        }

        impl GoStruct for $name {
            const REQUIRED: &'static [&'static str] = &[$($($required_key),+)?];
            const INJECTED: &'static [&'static str] = &[$($key,)+ $($($required_key,)+)? $($($unread,)+)?];
            const CONTROL_PLANE: &'static [&'static str] = &[$($($control_plane),+)?];
        }
    )+};
}

pub(super) use go_structs;
