//! Linkerd's values, declared once: the structs that the proxy injector reads, and the Go type of each key.
//!
//! The canonical form, the problems, the injection hash and the injector use this model. Always holds: each key has one
//! spelling. A key that is not listed is kept and not checked: Go ignores unknown keys, and a newer Linkerd may use
//! them.

mod control_plane_parts;
mod proxy_values;
mod structs;

pub(crate) use proxy_values::{
    CapabilitiesValues, ConstraintsValues, ImageValues, MountValues, Parameters, ProbeValues, ProxyContainerValues,
    ProxyEnvVar, ProxyValues, ResourcesValues, TracingValues,
};
pub(super) use proxy_values::{IdentityValues, ProxyInitValues};
pub(super) use structs::GoStruct;

use crate::go::types::{GoType, GoTyped};

/// The type of a whole document.
pub(super) static VALUES: GoType = ProxyValues::TYPE;

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::go::types::GoField;

    /// Returns the keys of structs that Go reads as the same key as another one.
    fn spelled_twice(above: &str, holds: &GoType) -> Vec<String> {
        match holds {
            GoType::Struct(fields) => {
                let mut seen = BTreeSet::new();
                let is_again = |field: &&GoField| !seen.insert(field.name.to_ascii_lowercase());
                let mut found: Vec<_> =
                    fields.iter().filter(is_again).map(|field| format!("{above}.{}", field.name)).collect();
                let below = |field: &GoField| spelled_twice(&format!("{above}.{}", field.name), &field.holds);
                found.extend(fields.iter().flat_map(below));
                found
            }
            GoType::List(inner) | GoType::Map(inner) | GoType::Embedded(inner) => spelled_twice(above, inner),
            _ => Vec::new(),
        }
    }

    #[test]
    fn a_struct_has_each_key_once_in_one_spelling() {
        assert_eq!(spelled_twice("", &VALUES), [""; 0]);
        let twice = GoType::Struct(&[
            GoField { name: "logLevel", holds: GoType::Text },
            GoField { name: "loglevel", holds: GoType::Text },
        ]);
        assert_eq!(spelled_twice("proxy", &GoType::Map(Box::leak(Box::new(twice)))), ["proxy.loglevel"]);
    }
}
