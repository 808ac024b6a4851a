//! What the streams of a load were told.
//!
//! * Always: what many streams were told in one read is counted, not repeated: a million messages are some thousand entries.

use std::{
    collections::{BTreeMap, HashMap},
    ops::AddAssign,
    time::{Duration, Instant},
};

use super::message::What;

/// What the streams were told, and when.
#[derive(Debug, Default)]
pub struct Arrivals {
    /// From the moment of opening to each stream's first message, however often it had to ask.
    pub first: Vec<Duration>,
    /// Each later message.
    pub changes: Vec<Change>,
    /// How many streams had each of them.
    told: HashMap<(What, u16), u64>,
    pub counts: Counts,
    /// Streams that had a message and ended, or whose connection did: how many, by why.
    pub ended: BTreeMap<String, u64>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    pub messages: u64,
    /// Of the messages, with their prefixes.
    pub bytes: u64,
    /// In how many pieces all of it came, as far as this client could tell them apart.
    pub reads: u64,
    /// How often a stream was refused, and asked again.
    pub refused: u64,
    /// How often a stream had no message in time, and asked again.
    pub timed_out: u64,
}

/// The same message to some streams, at the same time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Change {
    pub what: What,
    /// Of its last endpoint; 0 of a profile without one.
    pub port: u16,
    pub at: Instant,
    pub streams: u64,
}

impl Arrivals {
    /// A later message to one stream.
    pub(super) fn changed(&mut self, what: What, port: u16, at: Instant) {
        // The streams of a connection are told the same few things in turn.
        let mut newest = self.changes.iter_mut().rev().take(8);
        match newest.find(|change| (change.what, change.port, change.at) == (what, port, at)) {
            Some(change) => change.streams += 1,
            None => self.changes.push(Change { what, port, at, streams: 1 }),
        }
    }

    pub(super) fn ended(&mut self, why: String, streams: u64) {
        *self.ended.entry(why).or_default() += streams;
    }

    /// Takes over what another has gathered, and empties it.
    pub(super) fn absorb(&mut self, other: &mut Self) {
        self.first.append(&mut other.first);
        for change in &other.changes {
            *self.told.entry((change.what, change.port)).or_default() += change.streams;
        }
        self.changes.append(&mut other.changes);
        self.counts += std::mem::take(&mut other.counts);
        for (why, streams) in std::mem::take(&mut other.ended) {
            self.ended(why, streams);
        }
    }

    /// How many streams had a message about this port.
    pub fn told(&self, what: What, port: u16) -> u64 {
        self.told.get(&(what, port)).copied().unwrap_or_default()
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
