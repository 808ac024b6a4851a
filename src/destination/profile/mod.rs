//! `GetProfile`: what a proxy is to know of an address or a name before it connects.
//!
//! ```text
//! DirtySet ──▶ views: State ─▶ Answer ─▶ frame ──watch──▶ updates ─▶ stream ─▶ proxy
//!                                   (target, answer: pure)
//! ```
//!
//! In: targets that clients ask for. Out: whole profiles, each in place of the one before. Always holds: a name or a ClusterIP
//! is answered with the profile of a Service, any other address with that of one endpoint; a stream whose target would now be
//! answered in another way ends, so that its client asks again.

pub(super) mod collector;
pub(super) mod request;
mod route;
pub(super) mod updates;
pub(super) mod view;
pub(super) mod views;
