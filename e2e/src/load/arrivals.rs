//! The messages that the streams of a load received.
//!
//! * Always: equal messages to many streams in one read are counted, not stored: a million messages are some thousand
//!   entries.

use std::{
    collections::{BTreeMap, HashMap},
    ops::AddAssign,
    time::{Duration, Instant},
};

use super::message::What;

/// The messages of the streams, and their times.
#[derive(Debug, Default)]
pub struct Arrivals {
    /// From the opening of the load to each stream's first message, including retries.
    pub first: Vec<Duration>,
    /// All later messages.
    pub changes: Vec<SentChange>,
    /// The number of streams that received each change.
    received: HashMap<(What, u16), u64>,
    pub counts: Counts,
    /// When connections have left a server for the other one.
    pub left: Vec<Instant>,
    /// Streams that ended after a message, or whose connection ended: their number, by reason.
    pub ended: BTreeMap<String, u64>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    pub messages: u64,
    /// The total size of the messages, with their prefixes.
    pub bytes: u64,
    /// The number of socket reads for all of it.
    pub reads: u64,
    /// The number of times a stream was refused and requested again.
    pub refused: u64,
    /// The number of times a stream got no message in time and was requested again.
    pub timed_out: u64,
}

/// The same message to some streams at the same time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SentChange {
    pub what: What,
    /// The port of the last endpoint; 0 for a profile without an endpoint.
    pub port: u16,
    pub at: Instant,
    pub streams: u64,
}

impl Arrivals {
    /// Records a later message to one stream.
    pub(super) fn changed(&mut self, what: What, port: u16, at: Instant) {
        // The streams of a connection receive the same few messages in turn.
        let mut newest = self.changes.iter_mut().rev().take(8);
        match newest.find(|change| (change.what, change.port, change.at) == (what, port, at)) {
            Some(change) => change.streams += 1,
            None => self.changes.push(SentChange { what, port, at, streams: 1 }),
        }
    }

    pub(super) fn ended(&mut self, why: String, streams: u64) {
        *self.ended.entry(why).or_default() += streams;
    }

    /// Moves the content of `other` into this.
    pub(super) fn absorb(&mut self, other: &mut Self) {
        self.first.append(&mut other.first);
        for change in &other.changes {
            *self.received.entry((change.what, change.port)).or_default() += change.streams;
        }
        self.changes.append(&mut other.changes);
        self.counts += std::mem::take(&mut other.counts);
        for (why, streams) in std::mem::take(&mut other.ended) {
            self.ended(why, streams);
        }
    }

    /// The number of streams that received this message for this port.
    pub fn received(&self, what: What, port: u16) -> u64 {
        self.received.get(&(what, port)).copied().unwrap_or_default()
    }
}

impl AddAssign for Counts {
    fn add_assign(&mut self, other: Self) {
        self.messages += other.messages;
        self.bytes += other.bytes;
        self.reads += other.reads;
        self.refused += other.refused;
        self.timed_out += other.timed_out;
    }
}
