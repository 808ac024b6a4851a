//! `GetProfile`: what a proxy has to know of an address or a name before it connects.
//!
//! ```text
//! request ─▶ views: State ─▶ ProfileInputs ─▶ frame ──watch──▶ updates ─▶ stream
//!                   (request, view: pure)
//! ```
//!
//! In: the targets of clients. Out: whole profiles, each of which replaces the one before. Always holds: a name or a ClusterIP is
//! answered with the profile of a Service, any other address with the profile of one endpoint; a stream whose target would
//! now be answered in another way ends, so that its client opens a new one.

pub(super) mod collector;
pub(super) mod request;
mod route;
pub(super) mod updates;
mod view;
pub(super) mod views;
