//! The HTTPS server of admission webhooks.
//!
//! ```text
//! tls.crt, tls.key ──follow──▶ ServingCertificate
//!                                    │ TLS handshake
//! TcpListener ─accept─▶ Connections ─┴─▶ connection: HTTP/1 or HTTP/2 ──▶ requests: the whole body ──▶ Handler
//!                            └─ at the limit: closes the connection that has been idle for the longest time
//! ```
//!
//! In: a listener, a certificate and its key, a [`Handler`]. Out: the handler's answers. The module does not know what
//! an admission review is.
//!
//! Always holds: the number of connections, the memory of all bodies and the time of each step are bounded; a client
//! that sends nothing cannot keep another client out; a handler that panics does not end the server; a new pair of
//! files that is not valid does not replace the pair in use.

mod certificate;
mod connection;
mod connections;
mod requests;
mod server;
#[cfg(test)]
mod testing;

pub use certificate::ServingCertificate;
pub use server::{Handler, WebhookServer};
