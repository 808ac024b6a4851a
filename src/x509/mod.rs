//! X.509 certificates, as far as proxies depend on them. Pure.

pub mod anchor_set;
#[cfg(test)]
pub(crate) mod testing;
