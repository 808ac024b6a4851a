//! What clients of a view are told, as an immutable value; and what has to be sent to get from one to the next. Pure.
//!
//! In: encoded endpoints, sorted by socket address. Out: finished gRPC frames. Always holds: folding the frames between two
//! snapshots into the first gives the second; an Add goes before a Remove; nothing is framed when nothing differs. A small
//! message is encoded once and shared by all who get it; a large one is put together from its endpoints piece by piece, so
//! that a client that reads slowly costs two snapshots, which share what they have in common, and one piece.

use std::{
    collections::BTreeMap,
    net::SocketAddr,
    sync::{
        Arc, OnceLock, Weak,
        atomic::{AtomicU64, Ordering},
    },
};

use bytes::{Bytes, BytesMut};
use parking_lot::Mutex;
use prost::{
    Message,
    encoding::{WireType, encode_key, encode_varint, encoded_len_varint},
};
use tokio::time::Instant;

use super::endpoint_set::{Endpoint, EndpointSet, Source, Step, Walk};
use crate::cluster::kinds::service_profile::route::MAX_MESSAGE_BYTES;
use crate::destination::{endpoint::weighted_addr::tcp_address, frame, metrics::Messages};
use crate::proto::destination::{NoEndpoints, Update, WeightedAddrSet, update};

/// What is encoded once and shared by all clients is no longer.
const SHARED: usize = 64 * 1024;
/// What is made for one client is no longer at a time: a frame of HTTP/2.
const PIECE: usize = 16 * 1024;

/// The fields of `Update`.
const ADD: u32 = 1;
const REMOVE: u32 = 2;
/// The field of `WeightedAddrSet` and `AddrSet` that holds addresses.
const ADDRS: u32 = 1;

/// The whole state of a view at one time.
#[derive(Debug)]
pub(in crate::destination) struct Snapshot {
    /// No two snapshots of a process have the same.
    version: u64,
    /// The labels of the set, as fields of `WeightedAddrSet`.
    labels: Box<[u8]>,
    endpoints: EndpointSet,
    /// The first message for new streams, for as long as any of them has not got rid of it: they come in crowds.
    full: Mutex<Weak<Whole>>,
    /// What leads here from the version before.
    delta: Option<(u64, Shared)>,
    /// When the event was received that this is the answer to.
    pub(in crate::destination) received: Instant,
}

/// Finished frames, and how many messages they are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::destination) struct Shared {
    pub(in crate::destination) frames: Bytes,
    pub(in crate::destination) messages: Messages,
}

/// A snapshot in one message. Owned by all who send it.
#[derive(Debug)]
struct Whole(Shared);

/// What is sent to one client, in pieces that are made when they are asked for.
#[derive(Debug)]
pub(in crate::destination) enum Frames {
    Shared(Option<Shared>),
    Made(Box<Made>),
}

#[derive(Debug)]
pub(in crate::destination) struct Made {
    from: Option<Arc<Snapshot>>,
    to: Arc<Snapshot>,
    phase: Phase,
    /// All endpoints have to be told anew: their set has other labels.
    relabelled: bool,
    /// How far both snapshots were walked.
    at: Walk,
    /// Items left of the message under way.
    left: usize,
    /// The messages that began with the piece under way.
    begun: Messages,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Add,
    Remove,
    Done,
}

// === impl Endpoint ===

impl Endpoint {
    pub(in crate::destination) fn new(address: SocketAddr, weighted_address: &[u8], source: Option<Source>) -> Self {
        Self { address, field: field(ADDRS, weighted_address), source }
    }

    /// Whether this is how it looks.
    pub(in crate::destination) fn is(&self, weighted_address: &[u8]) -> bool {
        self.field.ends_with(weighted_address) && self.field.len() == field_length(ADDRS, weighted_address.len())
    }
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

    /// The snapshot that comes after another, with the frames between them. `None` when clients see no difference.
    pub(in crate::destination) fn after(self, before: &Arc<Self>) -> Option<Self> {
        // Labels come with endpoints: there is no message for those of an empty set.
        if (self.labels == before.labels || self.is_empty()) && same(&before.endpoints, &self.endpoints) {
            return None;
        }
        let next = Arc::new(self);
        let frames = shared(&mut Made::new(Some(Arc::clone(before)), Arc::clone(&next)));
        // Nobody else has it yet.
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
    /// The first message of a stream: all endpoints. Of none there is nothing to say but [`no_endpoints`].
    pub(in crate::destination) fn first(to: &Arc<Snapshot>) -> Self {
        let length: usize = to.endpoints.iter().map(|endpoint| endpoint.field.len()).sum();
        if length + to.labels.len() > SHARED {
            return Self::Made(Box::new(Made::new(None, Arc::clone(to))));
        }
        let mut full = to.full.lock();
        let whole = full.upgrade().or_else(|| {
            let whole = Arc::new(Whole(shared(&mut Made::new(None, Arc::clone(to)))?));
            *full = Arc::downgrade(&whole);
            Some(whole)
        });
        match whole {
            Some(whole) => {
                let messages = whole.0.messages;
                Self::Shared(Some(Shared { frames: Bytes::from_owner(Owned(whole)), messages }))
            }
            None => Self::Made(Box::new(Made::new(None, Arc::clone(to)))),
        }
    }

    /// The message for a Service that has no endpoints.
    pub(in crate::destination) fn no_endpoints() -> Self {
        static FRAME: OnceLock<Bytes> = OnceLock::new();
        let frame = || {
            let none = update::Update::NoEndpoints(NoEndpoints { exists: true });
            frame::of(&Update { update: Some(none) })
        };
        let messages = Messages { no_endpoints: 1, ..Messages::default() };
        Self::Shared(Some(Shared { frames: FRAME.get_or_init(frame).clone(), messages }))
    }

    /// What leads from one snapshot to another, not necessarily the next.
    pub(in crate::destination) fn between(from: &Arc<Snapshot>, to: &Arc<Snapshot>) -> Self {
        match &to.delta {
            Some((version, frames)) if *version == from.version => Self::Shared(Some(frames.clone())),
            _ => Self::Made(Box::new(Made::new(Some(Arc::clone(from)), Arc::clone(to)))),
        }
    }

    pub(in crate::destination) fn is_shared(&self) -> bool {
        matches!(self, Self::Shared(_))
    }

    /// The next piece, of at most 16 KiB unless it is shared or one endpoint alone is longer, and the messages that begin in it. `None` at
    /// the end.
    pub(in crate::destination) fn next(&mut self) -> Option<Shared> {
        match self {
            Self::Shared(frames) => frames.take(),
            Self::Made(made) => {
                let frames = made.next(PIECE)?;
                Some(Shared { frames, messages: std::mem::take(&mut made.begun) })
            }
        }
    }
}

/// All frames in one, if they are short enough for one piece.
fn shared(made: &mut Made) -> Option<Shared> {
    let frames = made.next(SHARED).unwrap_or_default();
    (made.phase == Phase::Done).then_some(Shared { frames, messages: made.begun })
}

/// Keeps a snapshot's message for as long as bytes of it are under way.
struct Owned(Arc<Whole>);

impl AsRef<[u8]> for Owned {
    fn as_ref(&self) -> &[u8] {
        &self.0.0.frames
    }
}

// === impl Made ===

impl Made {
    fn new(from: Option<Arc<Snapshot>>, to: Arc<Snapshot>) -> Self {
        let relabelled = from.as_ref().is_some_and(|from| from.labels != to.labels);
        Self { from, to, phase: Phase::Add, relabelled, at: Walk::default(), left: 0, begun: Messages::default() }
    }

    fn next(&mut self, longest: usize) -> Option<Bytes> {
        let mut piece = BytesMut::new();
        while self.phase != Phase::Done {
            if self.left == 0 && !self.begin_message(&mut piece) {
                (self.phase, self.at) = (self.phase.next(), Walk::default());
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

    /// Counts what goes into the next message and writes what stands before it. `false` when nothing is left for this phase.
    fn begin_message(&mut self, piece: &mut BytesMut) -> bool {
        let to = Arc::clone(&self.to);
        let labels: &[u8] = if self.phase == Phase::Add { &to.labels } else { &[] };
        let (mut count, mut length, mut at) = (0, labels.len(), self.at);
        while let Some(item) = self.item(&mut at) {
            if count > 0 && length + item.length() > MAX_MESSAGE_BYTES {
                break;
            }
            count += 1;
            length += item.length();
        }
        if count > 0 {
            let update = if self.phase == Phase::Add { ADD } else { REMOVE };
            match self.phase {
                Phase::Add => self.begun.add += 1,
                Phase::Remove | Phase::Done => self.begun.remove += 1,
            }
            frame::header(field_length(update, length), piece);
            encode_key(update, WireType::LengthDelimited, piece);
            encode_varint(length as u64, piece);
            piece.extend_from_slice(labels);
            self.left = count;
        }
        count > 0
    }

    /// The next endpoint that has to be told in this phase, at or after the cursor, which then stands behind it.
    fn item(&self, at: &mut Walk) -> Option<Item<'_>> {
        static NOTHING: EndpointSet = EndpointSet::empty();
        let from = self.from.as_deref().map_or(&NOTHING, |from| &from.endpoints);
        loop {
            let step = at.next(from, &self.to.endpoints, !self.relabelled)?;
            match (self.phase, step) {
                (Phase::Add, Step::New(new)) => return Some(Item::Added(&new.field)),
                (Phase::Add, Step::Both(old, new)) if self.relabelled || old != new => {
                    return Some(Item::Added(&new.field));
                }
                (Phase::Remove, Step::Old(old)) => {
                    return Some(Item::Removed(field(ADDRS, &tcp_address(old.address).encode_to_vec())));
                }
                _ => {}
            }
        }
    }
}

enum Item<'a> {
    Added(&'a [u8]),
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
            Self::Added(field) => piece.extend_from_slice(field),
            Self::Removed(field) => piece.extend_from_slice(field),
        }
    }
}

impl Phase {
    const fn next(self) -> Self {
        match self {
            Self::Add => Self::Remove,
            Self::Remove | Self::Done => Self::Done,
        }
    }
}

/// Whether clients see no difference.
fn same(old: &EndpointSet, new: &EndpointSet) -> bool {
    let mut walk = Walk::default();
    std::iter::from_fn(|| walk.next(old, new, true)).all(|step| matches!(step, Step::Both(old, new) if old == new))
}

fn field(tag: u32, content: &[u8]) -> Box<[u8]> {
    let mut field = Vec::with_capacity(field_length(tag, content.len()));
    encode_key(tag, WireType::LengthDelimited, &mut field);
    encode_varint(content.len() as u64, &mut field);
    field.extend_from_slice(content);
    field.into()
}

fn field_length(tag: u32, content: usize) -> usize {
    prost::encoding::key_len(tag) + encoded_len_varint(content as u64) + content
}

#[cfg(test)]
#[path = "snapshot_tests.rs"]
mod tests;
