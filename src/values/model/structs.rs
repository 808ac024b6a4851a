//! The declaration of a struct of Linkerd's values.

/// The keys of a struct, by the programs that read them.
pub(in crate::values) trait GoStruct {
    /// The injector refuses a document without these keys.
    const REQUIRED: &'static [&'static str];
    /// These keys reach an injected Pod.
    const INJECTED: &'static [&'static str];
    /// Only the control plane reads these keys.
    const CONTROL_PLANE: &'static [&'static str];
}

/// Declares structs of Linkerd: the Rust structs that the injector reads, and the Go types of all keys.
///
/// The keys in the braces of a struct and the `required` ones are fields, with a Rust type. The other keys have a
/// `GoType` and no field: injectors of other releases use the keys of `unread`, and only the control plane uses the
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
