//! HTTP/2 over plain TCP. One task serves a connection with all its streams.
//!
//! In: accepted sockets. Out: requests, and the frames of their responses. The limits apply to a connection, which
//! clients may share: behind the server's own proxy, all clients with one identity use the same connection.

mod arrivals;
mod budget;
pub(super) mod connection;
pub(super) mod frames;
pub(super) mod handshakes;
mod keepalive;
mod reset_limit;
pub(super) mod stall;
pub(super) mod stream;
pub(super) mod transport;
pub(super) mod wake_time;
