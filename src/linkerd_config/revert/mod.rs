//! Documents that are taken back: the base of a deleted resource, reverted drift. Pure.

pub(super) mod kept;
pub(super) mod restore;
