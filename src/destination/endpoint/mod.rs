//! One endpoint, as the streams of both methods describe it: what it stands for, and how it is encoded.

pub(super) mod target;
pub(super) mod weighted_addr;
