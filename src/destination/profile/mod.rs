//! The method `GetProfile`: the data that a proxy needs about an address or a name before it connects.
//!
//! ```text
//! request ─▶ views, queue: State ─▶ ProfileInputs ─▶ EncodedProfile ──watch──▶ updates ─▶ stream
//!                   (request, view, route, encoded: pure)
//! ```
//!
//! In: the targets of clients. Out: complete profiles, each of which replaces the previous profile. Always holds: the
//! name and the ClusterIP of a Service have the profile of the Service; any other address, and the hostname of an
//! endpoint, have the profile of one endpoint; a stream ends when its target needs another kind of profile, so that its
//! client opens a new stream.

pub(super) mod collector;
mod encoded;
pub(super) mod queue;
pub(super) mod request;
mod route;
pub(super) mod updates;
mod view;
pub(super) mod views;
