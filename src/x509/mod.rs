//! X.509 certificates and their chains, as far as proxies depend on them. Pure, except for [`handshake`].

pub mod anchor_set;
pub mod anchors;
pub mod authority;
pub mod certificate;
pub mod chain;
pub mod der;
pub mod ecdsa;
pub mod handshake;
pub mod leaf;
pub mod pem;
#[cfg(test)]
pub(crate) mod testing;
pub mod unusual;
pub mod verify;
