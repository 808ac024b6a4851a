//! One endpoint, as the streams of both methods describe it.

pub(super) mod weighted_addr;
