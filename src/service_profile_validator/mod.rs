//! The validator of ServiceProfiles: an admission webhook in place of Linkerd's `sp-validator`.
//!
//! ```text
//!   review ──▶ validator (of the manager) ─┐
//!   review ──▶ drop_in (of the container) ─┴─▶ decode: the strict types ─▶ rules ─▶ denied, or warnings
//! ```
//!
//! In: admission reviews of ServiceProfiles. Out: the decisions and messages of Linkerd's validator, and warnings about
//! what proxies do with an allowed profile. Always holds: apart from whether Linkerd's own webhook is registered, a
//! decision depends on the object alone.

mod decode;
mod drop_in;
#[cfg(any(test, fuzzing))]
#[allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a panic of a target is what the fuzzer looks for"
)]
pub(crate) mod fuzzing;
mod path_regex;
mod rules;
mod validator;
mod warnings;

pub use drop_in::DropInHandler;
pub use validator::{LINKERD_WEBHOOK, ServiceProfileValidator};
