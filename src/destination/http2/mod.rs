//! HTTP/2 over plain TCP: one task for each connection and all its streams.
//!
//! In: accepted sockets. Out: requests, and the frames of their responses. Its limits hold for one connection, which may be
//! shared: in front of a proxy of the mesh, all clients with one identity use the same connection.

mod budget;
pub(super) mod connection;
mod keepalive;
mod reset_limit;
pub(super) mod stall;
pub(super) mod transport;
pub(super) mod wake_time;
