//! Documents that are taken back: the base of a deleted resource. Pure.

pub(super) mod restore;
