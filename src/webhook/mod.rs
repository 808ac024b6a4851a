//! The HTTPS server of admission webhooks.
//!
//! ```text
//! tls.crt, tls.key ──follow──▶ ServingCertificate
//!                                    │ TLS handshake
//! TcpListener ─accept─▶ Connections ─┴─▶ connection: HTTP/1 ──▶ requests: the whole body ──▶ Handler
//!                            └─ at the limit: closes a connection without a whole request, or waits
//! ```
//!
//! In: a listener, a certificate and its key, a [`Handler`]. Out: the handler's answers. [`Routes`] is the handler of
//! several webhooks, [`ValidationHandler`] that of the validators of several kinds. Only [`review`] reads and writes
//! admission reviews.
//!
//! Always holds: the number of connections, their memory, that of all bodies and the time of each step are bounded; a
//! client that sends no whole requests cannot keep another client out; a handler that panics does not end the server; a new pair of
//! files that is not valid does not replace the pair in use.

mod certificate;
mod connection;
mod connections;
mod requests;
pub mod review;
mod routes;
mod server;
#[cfg(test)]
mod testing;
mod validation;

pub use certificate::ServingCertificate;
pub use routes::Routes;
pub use server::{Handler, WebhookServer};
pub use validation::{
    VALIDATION_PATH, ValidationHandler, ValidationMetrics, ValidationRequest, ValidationVerdict, Validator,
};

/// The certificate and its key, below the folder of Linkerd's containers.
pub const TLS_FOLDER: &str = "tls";
