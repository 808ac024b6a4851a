//! The trust of a mesh: which roots its proxies trust, which ones their certificates reach, and the next step of a
//! rotation. Pure.
//!
//! In: [`SeenTrust`], what was read of a cluster. Out: a [`TrustReport`]. Always holds: two rules decide everything. A
//! certificate may be issued if each proxy trusts a root that it reaches; a root may leave the bundle if each
//! certificate reaches another one. Nothing is stored, so the same cluster has the same report.

pub(crate) mod accepted;
pub mod behind;
pub(crate) mod bundle_change;
pub(crate) mod declared;
pub(crate) mod distrusted;
pub(crate) mod issuer_change;
mod leaf_reach;
mod next_step;
pub(crate) mod obstacle;
pub mod plan;
pub mod problems;
pub mod report;
mod roots;
pub mod rotation;
pub mod seen;
pub(crate) mod signers;
mod sufficient;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;
pub mod words;

pub use self::{next_step::RotationStep, plan::TrustPlan, report::TrustReport, seen::SeenTrust};
