//! The memory that the process has allocated, and the budget that clients may fill.
//!
//! In: every allocation, counted by the global allocator; the memory limit of the process. Out: whether there is room
//! for more. Always holds: nothing is estimated that the allocator counts. Caches, views, frames, requests and pages of
//! lists are all in one number. Code that adds memory on behalf of a client compares that number with the budget.

use cap::Cap;
use tikv_jemallocator::Jemalloc;

/// Counts the allocated bytes. It sets no limit, because a failed allocation aborts the process.
#[global_allocator]
static ALLOCATOR: Cap<Jemalloc> = Cap::new(Jemalloc, usize::MAX);

/// The memory of an idle process without objects and clients. The measurements are in docs/internals/src/benchmarks.md.
const BYTES_OF_THE_PROCESS: usize = 20 * 1024 * 1024;
/// The memory of a stream.
pub const BYTES_OF_A_STREAM: usize = 5 * 1024;
/// The memory of a connection.
const BYTES_OF_A_CONNECTION: usize = 40 * 1024;
/// The streams of a client with one connection: fewer than proxies usually have.
const STREAMS_OF_A_CLIENT: usize = 8;

/// The part of the memory limit in percent up to which clients may add memory. The rest is for what the allocator
/// does not count: its own fragmentation, stacks, code, and the buffers of sockets in the kernel.
const ROOM_PERCENT: u64 = 60;
/// Objects of other clusters may take all but the third part of [`ROOM_PERCENT`], which stays for clients.
const CLIENTS_PART: usize = 3;
/// The part of the memory limit in percent above which clients that hold memory lose their streams. It is higher than
/// [`ROOM_PERCENT`], because existing streams have priority over new ones.
const EXHAUSTED_PERCENT: u64 = 70;

/// The amount of memory that the process may allocate, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryBudget {
    room: usize,
    exhausted: usize,
}

/// Returns the number of bytes that are allocated now.
pub fn allocated() -> usize {
    ALLOCATOR.allocated()
}

// === impl MemoryBudget ===

impl MemoryBudget {
    /// The budget without a memory limit.
    pub const UNLIMITED: Self = Self { room: usize::MAX, exhausted: usize::MAX };
    /// A budget that has no room for anything.
    #[cfg(test)]
    pub(crate) const EXHAUSTED: Self = Self { room: 0, exhausted: 0 };

    /// Returns the budget of a process with this memory limit in bytes.
    pub fn of_limit(limit: u64) -> Self {
        let percent = |percent| usize::try_from(limit / 100 * percent).unwrap_or(usize::MAX);
        Self { room: percent(ROOM_PERCENT), exhausted: percent(EXHAUSTED_PERCENT) }
    }

    /// Returns the allocated bytes above which clients, other clusters and clients that do not read get no more memory.
    pub fn bytes(self) -> [(&'static str, usize); 3] {
        let other_clusters = self.of_other_clusters().room;
        [("clients", self.room), ("other_clusters", other_clusters), ("blocked_clients", self.exhausted)]
    }

    /// Returns whether a client may make the process allocate `bytes` more.
    pub fn has_room_for(self, bytes: usize) -> bool {
        allocated().saturating_add(bytes) <= self.room
    }

    /// Returns whether so much is allocated that memory must be taken from clients that do not read.
    pub fn is_exhausted(self) -> bool {
        allocated() > self.exhausted
    }

    /// Returns the budget of the objects of other clusters. It ends below that of clients, so that an enormous cluster
    /// takes no room from them.
    pub fn of_other_clusters(self) -> Self {
        Self { room: self.room - self.room / CLIENTS_PART, ..self }
    }

    /// Returns how many clients with one connection and some streams fit into an idle process: their connections and
    /// their streams. The caches are not part of it, so clients may be refused earlier, because memory is short.
    pub fn clients(self) -> (usize, usize) {
        let each = BYTES_OF_A_CONNECTION + STREAMS_OF_A_CLIENT * BYTES_OF_A_STREAM;
        let connections = (self.room.saturating_sub(BYTES_OF_THE_PROCESS) / each).max(1);
        (connections, connections.saturating_mul(STREAMS_OF_A_CLIENT))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = 1024 * 1024;

    #[test]
    fn what_is_allocated_is_counted_until_it_is_freed() {
        // Other tests allocate at the same time, but not this much.
        let before = allocated();
        let large = vec![1_u8; 512 * MIB];
        assert!(allocated() > before + 256 * MIB);
        drop(large);
        assert!(allocated() < before + 256 * MIB);
    }

    #[test]
    fn there_is_room_until_the_allocated_bytes_reach_the_budget() {
        let budget = MemoryBudget { room: allocated() + 512 * MIB, exhausted: allocated() + 600 * MIB };
        assert!(budget.has_room_for(128 * MIB) && !budget.has_room_for(1024 * MIB));
        assert!(!budget.is_exhausted());
        assert!(MemoryBudget::UNLIMITED.has_room_for(usize::MAX) && !MemoryBudget::UNLIMITED.is_exhausted());
        assert!(!MemoryBudget::EXHAUSTED.has_room_for(0) && MemoryBudget::EXHAUSTED.is_exhausted());
    }

    #[test]
    fn the_budget_follows_from_the_memory_limit() {
        let budget = MemoryBudget::of_limit(250 * MIB as u64);
        assert_eq!((budget.room / MIB, budget.exhausted / MIB), (150, 175));
        // (150 - 20) MiB / (40 + 8 * 5) KiB
        assert_eq!(budget.clients(), (1_664, 13_312));
        assert_eq!(budget.of_other_clusters().room / MIB, 100, "40 % of the limit");
        let uses = budget.bytes().map(|(use_, bytes)| (use_, bytes / MIB));
        assert_eq!(uses, [("clients", 150), ("other_clusters", 100), ("blocked_clients", 175)]);
        assert_eq!(MemoryBudget::of_limit(MIB as u64).clients(), (1, 8), "not zero");
    }
}
