//! Documents that are taken back: failed configurations, the base of a deleted resource, reverted drift. Pure.

pub(super) mod kept;
pub(super) mod next_predecessor;
pub mod predecessor;
pub mod redeclare;
pub(super) mod restore;
