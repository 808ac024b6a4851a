//! `Get`: the endpoints of a Service, and every change of them.
//!
//! ```text
//! cluster ──Dirty──▶ views: State ─▶ Members ─▶ Snapshot ──watch──▶ updates ─▶ stream ─▶ proxy
//!                                  (request, members, view, endpoint_set, snapshot: pure)
//! ```

pub(super) mod collector;
pub(super) mod endpoint_set;
pub(super) mod members;
pub(super) mod request;
pub(super) mod snapshot;
pub(super) mod updates;
pub(super) mod view;
pub(super) mod views;
