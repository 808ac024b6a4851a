//! What the kernel lets this process have: memory and descriptors.
//!
//! In: the files in which Linux says so. Out: how many connections and streams the destination should bear unless a flag
//! says otherwise. A client that opens too many is then refused, instead of all clients losing a process that was killed,
//! or one that cannot connect to its API server any more.

use std::fs::read_to_string;

/// What a stream costs with its part of its connection, generously: measured are 3 to 6 KiB.
const BYTES_OF_A_STREAM: u64 = 8 * 1024;
/// A connection's buffers, and pieces under way.
const BYTES_OF_A_CONNECTION: u64 = 32 * 1024;
/// Where memory has no limit: what every proxy of a large mesh needs if each connects by itself.
const CONNECTIONS: usize = 20_000;
const STREAMS: usize = 250_000;
/// Descriptors for everything but clients' connections: watches, the admin port, files.
const OTHER_DESCRIPTORS: usize = 128;

/// What there is; `None` is no limit, or one that cannot be read.
#[derive(Clone, Copy, Debug, Default)]
pub struct Resources {
    memory_bytes: Option<u64>,
    descriptors: Option<usize>,
}

// === impl Resources ===

impl Resources {
    pub fn of_this_process() -> Self {
        // The process's own control group, as a container sees it: version 2, or 1.
        let memory = ["/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"];
        Self {
            memory_bytes: memory.into_iter().find_map(|path| memory_limit(&read_to_string(path).ok()?)),
            descriptors: read_to_string("/proc/self/limits").ok().and_then(|text| descriptors(&text)),
        }
    }

    /// Streams that half of the memory holds.
    pub fn streams(self) -> usize {
        self.memory_bytes.map_or(STREAMS, |bytes| share(bytes / 2, BYTES_OF_A_STREAM).min(STREAMS))
    }

    /// Connections that a quarter of the memory holds. The last quarter is for the caches.
    pub fn connections(self) -> usize {
        let held = self.memory_bytes.map_or(CONNECTIONS, |bytes| share(bytes / 4, BYTES_OF_A_CONNECTION));
        let open = self.descriptors.map_or(CONNECTIONS, |all| all.saturating_sub(OTHER_DESCRIPTORS).max(1));
        held.min(open).min(CONNECTIONS)
    }
}

fn share(bytes: u64, each: u64) -> usize {
    usize::try_from(bytes / each).unwrap_or(usize::MAX).max(1)
}

/// `max` where there is none. Version 1 then says a number that no machine has.
fn memory_limit(text: &str) -> Option<u64> {
    const NONE: u64 = 1 << 60;
    text.trim().parse().ok().filter(|bytes| *bytes < NONE)
}

/// The soft limit: `Max open files   1024   524288   files`.
fn descriptors(limits: &str) -> Option<usize> {
    let line = limits.lines().find_map(|line| line.strip_prefix("Max open files"))?;
    line.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_small_container_bears_what_it_has_memory_for() {
        let small = Resources { memory_bytes: Some(250 * 1024 * 1024), descriptors: Some(1_048_576) };
        assert_eq!((small.streams(), small.connections()), (16_000, 2_000));
    }

    #[test]
    fn descriptors_are_left_for_the_watches() {
        let few = Resources { memory_bytes: None, descriptors: Some(1_024) };
        assert_eq!((few.streams(), few.connections()), (STREAMS, 896));
    }

    #[test]
    fn without_limits_there_are_bounds_too() {
        let machine = Resources::default();
        assert_eq!((machine.streams(), machine.connections()), (STREAMS, CONNECTIONS));
        let huge = Resources { memory_bytes: Some(1 << 50), descriptors: None };
        assert_eq!((huge.streams(), huge.connections()), (STREAMS, CONNECTIONS));
    }

    #[test]
    fn the_kernels_words_are_read() {
        assert_eq!(memory_limit("262144000\n"), Some(262_144_000));
        assert_eq!(memory_limit("max\n"), None);
        assert_eq!(memory_limit("9223372036854771712\n"), None, "what version 1 says where there is no limit");
        let limits = "Limit   Soft Limit   Hard Limit   Units\nMax open files            1024                 524288               files\n";
        assert_eq!(descriptors(limits), Some(1024));
        assert_eq!(descriptors("Max open files            unlimited            unlimited            files\n"), None);
    }
}
