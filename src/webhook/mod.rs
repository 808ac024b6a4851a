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
//! Always holds: the number of connections, their memory, that of all bodies and answers and the time of each step are
//! bounded; a client that sends no whole requests or takes no answers cannot keep another client out; a handler that panics
//! does not end the server; a new pair of files that is not valid does not replace the pair in use.

mod answer;
mod certificate;
mod connection;
mod connections;
#[cfg(any(test, fuzzing))]
#[allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a panic of a target is what the fuzzer looks for"
)]
pub(crate) mod fuzzing;
mod limits;
mod requests;
pub mod review;
mod review_memory;
mod routes;
mod server;
#[cfg(test)]
mod testing;
mod validation;

pub use certificate::{ServingCertificate, expired_at};
pub use routes::Routes;
pub use server::{Handler, WebhookServer};
pub use validation::{
    VALIDATION_PATH, ValidationHandler, ValidationMetrics, ValidationRequest, ValidationVerdict, Validator,
};

/// The certificate and its key, below the folder of Linkerd's containers.
pub const TLS_FOLDER: &str = "tls";

/// The size of the kernel's buffer for what a connection sends: a usual answer. The rest of a longer one stays in the
/// process, which bounds its memory.
pub const SEND_BUFFER: u32 = 16 * 1024;
