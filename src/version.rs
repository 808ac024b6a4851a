//! The version of this binary. `make image` sets commit and build date at compile time; in other builds they are
//! `unknown`.

use std::sync::LazyLock;

pub const VERSION: &str = env!("CARGO_PKG_VERSION");
/// The commit, with the suffix `-dirty` if the tree had changes.
pub const COMMIT: &str = known(option_env!("LINKERD_OPERATOR_COMMIT"));
/// The build date in RFC 3339.
pub const BUILD_DATE: &str = known(option_env!("LINKERD_OPERATOR_BUILD_DATE"));

static WHOLE: LazyLock<String> = LazyLock::new(|| format!("{VERSION} (commit {COMMIT}, built {BUILD_DATE})"));

/// Returns the version with commit and build date, for people.
pub fn whole() -> &'static str {
    &WHOLE
}

const fn known(value: Option<&'static str>) -> &'static str {
    match value {
        Some(value) if !value.is_empty() => value,
        _ => "unknown",
    }
}
