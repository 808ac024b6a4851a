//! The documents: the installer's, which is the base, and the one that a resource declares over it. Pure.
//!
//! In: texts of ConfigMaps and ControllerRevisions, a resource. Out: the base, the declared document, their
//! differences, and the writers of changes.

pub mod base;
pub mod drift;
pub mod overlay;
pub(super) mod resolve_base;
pub mod skew;
pub mod trust_anchors;
