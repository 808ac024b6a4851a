//! The values of metric labels that several files use.

use strum::{EnumString, IntoStaticStr, VariantArray};

/// A method of the Destination API.
#[derive(Clone, Copy, Debug, PartialEq, Eq, EnumString, IntoStaticStr, VariantArray)]
#[strum(const_into_str)]
pub(super) enum RpcMethod {
    Get,
    GetProfile,
}

/// The state of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, IntoStaticStr, VariantArray)]
#[strum(serialize_all = "snake_case", const_into_str)]
pub(super) enum StreamState {
    /// No frame was passed to the transport yet.
    Opening,
    /// The client has received all updates.
    Idle,
    /// Frames wait for the client.
    Blocked,
}

/// The reason why a stream ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, IntoStaticStr, VariantArray)]
#[strum(serialize_all = "snake_case", const_into_str)]
pub(super) enum EndReason {
    /// The client reset the stream, or its connection ended.
    Client,
    /// The process stops.
    Shutdown,
    /// The target now needs another kind of response; the client opens a new stream.
    Rerouted,
    /// The client accepted no data for too long.
    Stalled,
    /// The client accepted no data while the server needed memory.
    Memory,
    /// The content of the stream could not be computed.
    Panicked,
}

/// The reason why a valid stream was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, IntoStaticStr, VariantArray)]
#[strum(serialize_all = "snake_case", const_into_str)]
pub(super) enum OverloadReason {
    /// The request had waited too long in the queue.
    Waited,
    /// The maximum number of streams was open.
    Full,
    /// The connection had its share of the streams.
    Share,
    /// The memory budget had no room.
    Memory,
}

/// The number of messages of each kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct MessageCounts {
    pub(super) add: u32,
    pub(super) remove: u32,
    pub(super) no_endpoints: u32,
    pub(super) profile: u32,
}
