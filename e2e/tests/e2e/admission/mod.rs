//! Admission through the operator's webhook: bursts of Pods, rolls of the replicas, attacks on the port.

mod attacks;
mod bursts;
pub(crate) mod cluster;
