//! Linkerd's identity service: the certificates of all proxies.
//!
//! A proxy sends its name, the token of its ServiceAccount and a certificate signing request (CSR). The service verifies
//! all three, and signs a certificate, the leaf, with the key of the issuer.
//!
//! ```text
//! files ──▶ anchors, issuer: what is trusted, the key, the chain that is sent
//! call  ──▶ csr: parse, check_name ──▶ TokenReview ──▶ username ──▶ csr: verify_possession ──▶ issuer: issue ──▶ leaf
//! ```
//!
//! Always holds: the name in a leaf is the name of the ServiceAccount whose token was sent; the workload chooses nothing
//! else of its leaf but the public key, and it has the private key; no private key is printed.

pub(crate) mod anchors;
mod certificate;
pub(crate) mod csr;
#[cfg(test)]
mod csr_tests;
mod der;
mod ecdsa;
pub(crate) mod issuer;
#[cfg(test)]
mod issuer_tests;
mod leaf;
mod pem;
#[cfg(test)]
mod recorded_tests;
pub(crate) mod refusal;
#[cfg(test)]
mod testing;
pub(crate) mod username;
pub(crate) mod validity;
