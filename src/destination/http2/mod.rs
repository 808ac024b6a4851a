//! HTTP/2 on plain TCP: one task for each connection and all its streams.

pub(super) mod budget;
pub(super) mod connection;
pub(super) mod keepalive;
pub(super) mod reset_limit;
pub(super) mod stall;
pub(super) mod transport;
pub(super) mod wake_time;
