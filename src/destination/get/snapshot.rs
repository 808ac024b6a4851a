//! The content of a view as an immutable value, and the gRPC frames that lead from one snapshot to another. Pure.
//!
//! In: encoded endpoints, sorted by socket address. Out: complete gRPC frames. Always holds: folding the frames between
//! two snapshots into the first gives the second; an Add precedes a Remove; equal snapshots have no frames between
//! them. A small message is encoded once and shared by all streams. A large message is assembled from its endpoints in
//! pieces, so that a slow client costs two snapshots, which share their common chunks, and one piece.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, OnceLock, Weak,
        atomic::{AtomicU64, Ordering},
    },
};

use bytes::{Bytes, BytesMut};
use parking_lot::Mutex;
use prost::{
    Message,
    encoding::{WireType, encode_key, encode_varint},
};
use tokio::time::Instant;

use super::{
    encoded_endpoint::{ADDRS, EncodedEndpoint, Field, field, field_length},
    endpoint_set::{EndpointSet, Walk, WalkStep},
};
use crate::{
    destination::{endpoint::weighted_addr::tcp_address, frame, labels::MessageCounts},
    proto::destination::{NoEndpoints, Update, WeightedAddrSet, update},
};

/// The maximum size of frames that are encoded once and shared by all clients.
const SHARED_BYTES: usize = 64 * 1024;
/// The maximum size of a piece that is assembled for one client: an HTTP/2 frame.
const PIECE_BYTES: usize = 16 * 1024;

/// The fields of `Update`.
const ADD: u32 = 1;
const REMOVE: u32 = 2;

/// The content of a view at one time.
#[derive(Debug)]
pub(in crate::destination) struct Snapshot {
    /// Unique in the process.
    version: u64,
    /// The labels of the set, encoded as fields of `WeightedAddrSet`.
    labels: Box<[u8]>,
    endpoints: EndpointSet,
    /// The first message of new streams, cached while any stream still sends it, because many streams open together.
    full: Mutex<Weak<CachedFull>>,
    /// The previous version, and the frames that lead from it to this snapshot.
    delta: Option<(u64, EncodedFrames)>,
    /// When the event that led to this snapshot was received.
    pub(in crate::destination) received: Instant,
}

/// Complete frames, and the number of messages that begin in them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::destination) struct EncodedFrames {
    pub(in crate::destination) frames: Bytes,
    pub(in crate::destination) messages: MessageCounts,
}

/// A snapshot in one message, owned by the streams that send it.
#[derive(Debug)]
struct CachedFull(EncodedFrames);

/// The frames for one client, in pieces that are assembled when they are sent.
#[derive(Debug)]
pub(in crate::destination) enum Frames {
    Shared(Option<EncodedFrames>),
    Encoded(Box<FrameEncoder>),
}

#[derive(Debug)]
pub(in crate::destination) struct FrameEncoder {
    from: Option<Arc<Snapshot>>,
    to: Arc<Snapshot>,
    phase: EncodePhase,
    /// Whether all endpoints have to be sent again, because the labels of the set differ.
    relabelled: bool,
    /// The position in both snapshots.
    at: Walk,
    /// The port that the client requested.
    port: u16,
    /// The remaining items of the current message.
    left: usize,
    /// The number of messages that began in the current piece.
    begun: MessageCounts,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum EncodePhase {
    Add,
    Remove,
    Done,
}

// === impl Snapshot ===

impl Snapshot {
    pub(in crate::destination) fn new(
        labels: BTreeMap<String, String>,
        endpoints: EndpointSet,
        received: Instant,
    ) -> Self {
        static VERSIONS: AtomicU64 = AtomicU64::new(0);
        Self {
            version: VERSIONS.fetch_add(1, Ordering::Relaxed),
            labels: WeightedAddrSet { addrs: Vec::new(), metric_labels: labels }.encode_to_vec().into(),
            endpoints,
            full: Mutex::default(),
            delta: None,
            received,
        }
    }

    /// Returns whether the frames depend on the port that a client requests.
    fn depends_on_port(&self) -> bool {
        self.endpoints.iter().next().is_some_and(|endpoint| endpoint.depends_on_port())
    }

    /// Returns this snapshot as the successor of another, with the frames between them. `None` if clients receive no
    /// difference.
    pub(in crate::destination) fn after(self, before: &Arc<Self>) -> Option<Self> {
        // Labels are sent only with endpoints, so the labels of an empty set make no difference.
        if (self.labels == before.labels || self.is_empty()) && same(&before.endpoints, &self.endpoints) {
            return None;
        }
        if self.depends_on_port() || before.depends_on_port() {
            return Some(self);
        }
        let next = Arc::new(self);
        let frames = encode_all(&mut FrameEncoder::new(Some(Arc::clone(before)), Arc::clone(&next), 0));
        // No other reference exists yet.
        let mut next = Arc::into_inner(next)?;
        next.delta = frames.map(|frames| (before.version, frames));
        Some(next)
    }

    pub(in crate::destination) fn len(&self) -> usize {
        self.endpoints.len()
    }

    pub(in crate::destination) fn is_empty(&self) -> bool {
        self.endpoints.is_empty()
    }

    pub(in crate::destination) fn endpoints(&self) -> &EndpointSet {
        &self.endpoints
    }

    pub(in crate::destination) fn is_version_of(&self, other: &Self) -> bool {
        self.version == other.version
    }
}

// === impl Frames ===

impl Frames {
    /// Returns the first message of a stream, with all endpoints. An empty snapshot needs [`Frames::no_endpoints`]
    /// instead.
    pub(in crate::destination) fn first(to: &Arc<Snapshot>, port: u16) -> Self {
        let length = || -> usize { to.endpoints.iter().map(|endpoint| endpoint.field(port).len()).sum() };
        if to.depends_on_port() || length() + to.labels.len() > SHARED_BYTES {
            return Self::Encoded(Box::new(FrameEncoder::new(None, Arc::clone(to), port)));
        }
        let mut full = to.full.lock();
        let cached = full.upgrade().or_else(|| {
            let cached = Arc::new(CachedFull(encode_all(&mut FrameEncoder::new(None, Arc::clone(to), port))?));
            *full = Arc::downgrade(&cached);
            Some(cached)
        });
        match cached {
            Some(cached) => {
                let messages = cached.0.messages;
                Self::Shared(Some(EncodedFrames { frames: Bytes::from_owner(FullOwner(cached)), messages }))
            }
            None => Self::Encoded(Box::new(FrameEncoder::new(None, Arc::clone(to), port))),
        }
    }

    /// Returns the message for a Service without endpoints.
    pub(in crate::destination) fn no_endpoints() -> Self {
        static FRAME: OnceLock<Bytes> = OnceLock::new();
        let frame = || {
            let none = update::Update::NoEndpoints(NoEndpoints { exists: true });
            frame::encode(&Update { update: Some(none) })
        };
        let messages = MessageCounts { no_endpoints: 1, ..MessageCounts::default() };
        Self::Shared(Some(EncodedFrames { frames: FRAME.get_or_init(frame).clone(), messages }))
    }

    /// Returns the frames that lead from one snapshot to another, which may be more than one version later.
    pub(in crate::destination) fn between(from: &Arc<Snapshot>, to: &Arc<Snapshot>, port: u16) -> Self {
        match &to.delta {
            Some((version, frames)) if *version == from.version => Self::Shared(Some(frames.clone())),
            _ => Self::Encoded(Box::new(FrameEncoder::new(Some(Arc::clone(from)), Arc::clone(to), port))),
        }
    }

    pub(in crate::destination) fn is_shared(&self) -> bool {
        matches!(self, Self::Shared(_))
    }

    /// Returns the next piece, or `None` at the end. A piece has at most 16 KiB, unless it is shared or has one longer
    /// endpoint.
    pub(in crate::destination) fn next(&mut self) -> Option<EncodedFrames> {
        match self {
            Self::Shared(frames) => frames.take(),
            Self::Encoded(encoder) => {
                let frames = encoder.next(PIECE_BYTES)?;
                Some(EncodedFrames { frames, messages: std::mem::take(&mut encoder.begun) })
            }
        }
    }
}

/// Returns all frames, if they are short enough to be shared.
fn encode_all(encoder: &mut FrameEncoder) -> Option<EncodedFrames> {
    let frames = encoder.next(SHARED_BYTES).unwrap_or_default();
    (encoder.phase == EncodePhase::Done).then_some(EncodedFrames { frames, messages: encoder.begun })
}

/// Keeps the message of a snapshot while bytes of it are being sent.
struct FullOwner(Arc<CachedFull>);

impl AsRef<[u8]> for FullOwner {
    fn as_ref(&self) -> &[u8] {
        &self.0.0.frames
    }
}

// === impl FrameEncoder ===

impl FrameEncoder {
    fn new(from: Option<Arc<Snapshot>>, to: Arc<Snapshot>, port: u16) -> Self {
        let relabelled = from.as_ref().is_some_and(|from| from.labels != to.labels);
        Self {
            from,
            to,
            phase: EncodePhase::Add,
            relabelled,
            at: Walk::for_port(port),
            port,
            left: 0,
            begun: MessageCounts::default(),
        }
    }

    fn next(&mut self, longest: usize) -> Option<Bytes> {
        let mut piece = BytesMut::new();
        while self.phase != EncodePhase::Done {
            if self.left == 0 && !self.begin_message(&mut piece) {
                (self.phase, self.at) = (self.phase.next(), Walk::for_port(self.port));
                continue;
            }
            let mut at = self.at;
            let Some(item) = self.item(&mut at) else { break };
            if !piece.is_empty() && piece.len() + item.length() > longest {
                return Some(piece.freeze());
            }
            item.put(&mut piece);
            (self.at, self.left) = (at, self.left - 1);
        }
        (!piece.is_empty()).then(|| piece.freeze())
    }

    /// Counts the items of the next message and writes its headers. Returns `false` if nothing is left for this phase.
    fn begin_message(&mut self, piece: &mut BytesMut) -> bool {
        let to = Arc::clone(&self.to);
        let labels: &[u8] = if self.phase == EncodePhase::Add { &to.labels } else { &[] };
        let (mut count, mut length, mut at) = (0, labels.len(), self.at);
        while let Some(item) = self.item(&mut at) {
            if count > 0 && length + item.length() > frame::MAX_MESSAGE_BYTES {
                break;
            }
            count += 1;
            length += item.length();
        }
        if count > 0 {
            let update = if self.phase == EncodePhase::Add { ADD } else { REMOVE };
            match self.phase {
                EncodePhase::Add => self.begun.add += 1,
                EncodePhase::Remove | EncodePhase::Done => self.begun.remove += 1,
            }
            frame::put_header(field_length(update, length), piece);
            encode_key(update, WireType::LengthDelimited, piece);
            encode_varint(length as u64, piece);
            piece.extend_from_slice(labels);
            self.left = count;
        }
        count > 0
    }

    /// Returns whether an endpoint of both snapshots has the same bytes.
    fn is_unchanged(&self, old: &EncodedEndpoint, new: &EncodedEndpoint) -> bool {
        old == new || (old.depends_on_port() || new.depends_on_port()) && old.field(self.port) == new.field(self.port)
    }

    /// Returns the next endpoint to send in this phase, and moves `at` past it.
    fn item(&self, at: &mut Walk) -> Option<Item<'_>> {
        static EMPTY: EndpointSet = EndpointSet::empty();
        let from = self.from.as_deref().map_or(&EMPTY, |from| &from.endpoints);
        loop {
            let step = at.next(from, &self.to.endpoints, !self.relabelled)?;
            match (self.phase, step) {
                (EncodePhase::Add, WalkStep::New(new)) => return Some(Item::Added(new.field(self.port))),
                (EncodePhase::Add, WalkStep::Both(old, new)) if self.relabelled || !self.is_unchanged(old, new) => {
                    return Some(Item::Added(new.field(self.port)));
                }
                (EncodePhase::Remove, WalkStep::Old(old)) => {
                    return Some(Item::Removed(field(ADDRS, &tcp_address(old.address_at(self.port)).encode_to_vec())));
                }
                _ => {}
            }
        }
    }
}

enum Item<'a> {
    Added(Field<'a>),
    Removed(Box<[u8]>),
}

impl Item<'_> {
    fn length(&self) -> usize {
        match self {
            Self::Added(field) => field.len(),
            Self::Removed(field) => field.len(),
        }
    }

    fn put(&self, piece: &mut BytesMut) {
        match self {
            Self::Added(field) => field.parts().into_iter().for_each(|part| piece.extend_from_slice(part)),
            Self::Removed(field) => piece.extend_from_slice(field),
        }
    }
}

impl EncodePhase {
    const fn next(self) -> Self {
        match self {
            Self::Add => Self::Remove,
            Self::Remove | Self::Done => Self::Done,
        }
    }
}

/// Returns whether two sets are equal for clients.
fn same(old: &EndpointSet, new: &EndpointSet) -> bool {
    let mut walk = Walk::default();
    std::iter::from_fn(|| walk.next(old, new, true)).all(|step| matches!(step, WalkStep::Both(old, new) if old == new))
}

#[cfg(test)]
#[path = "snapshot_tests.rs"]
mod tests;
