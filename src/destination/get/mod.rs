//! The method `Get`: the endpoints of a Service, and every change of them.
//!
//! ```text
//! request ─▶ views, queue: State ─▶ Members ─▶ EndpointSet ─▶ Snapshot ──watch──▶ updates ─▶ stream
//!      (request, hinted_node, exclusions, members, set_labels, port_selector, view, endpoint_set, snapshot: pure)
//! ```
//!
//! In: a Service, a port, optionally a hostname, and the location of the client. Out: the endpoints of the Service,
//! then the added and removed endpoints.

pub(super) mod collector;
mod encoded_endpoint;
mod endpoint_set;
mod exclusions;
mod federated;
mod hinted_node;
pub(super) mod members;
mod port_selector;
pub(super) mod queue;
pub(super) mod request;
mod set_labels;
mod snapshot;
pub(super) mod updates;
mod view;
pub(super) mod views;
