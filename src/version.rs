//! What this binary was made of. `make image` says it when it compiles; elsewhere commit and date are `unknown`.

use std::sync::LazyLock;

pub const VERSION: &str = env!("CARGO_PKG_VERSION");
/// With `-dirty` where the tree had changes.
pub const COMMIT: &str = known(option_env!("LINKERD_OPERATOR_COMMIT"));
/// RFC 3339.
pub const BUILD_DATE: &str = known(option_env!("LINKERD_OPERATOR_BUILD_DATE"));

static WHOLE: LazyLock<String> = LazyLock::new(|| format!("{VERSION} (commit {COMMIT}, built {BUILD_DATE})"));

/// All of it, for people.
pub fn whole() -> &'static str {
    &WHOLE
}

const fn known(said: Option<&'static str>) -> &'static str {
    match said {
        Some(said) if !said.is_empty() => said,
        _ => "unknown",
    }
}
