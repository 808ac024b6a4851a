//! One endpoint, as the streams of both methods describe it: its target and its encoding.

pub(super) mod target;
pub(super) mod weighted_addr;
