//! The memory and the file descriptors that this process may use.
//!
//! In: the files in which Linux reports the limits of the process and of its control groups. Out: the memory budget,
//! and the default limits for connections and streams of the destination server. A client that exceeds them is
//! refused. Without limits the kernel could kill the process, or the process could run out of descriptors for its API
//! server, and all clients would be affected.

pub mod shares;

use std::{
    fs::read_to_string,
    path::{Path, PathBuf},
};

use rustix::{
    io,
    process::{Resource, Rlimit, getrlimit, setrlimit},
};

use crate::memory::MemoryBudget;

/// The limits without a memory limit: what all proxies of a large mesh need if each has its own connection.
const CONNECTIONS: usize = 20_000;
const STREAMS: usize = 250_000;
/// The descriptors that are not for clients' connections: watches, the admin port, files, and handshakes.
const OTHER_DESCRIPTORS: usize = 128;
/// The minimum and the maximum number of webhook connections.
const WEBHOOK_CONNECTIONS: (usize, usize) = (256, 4096);
/// The memory of an open webhook connection in most cases: TLS, and the read buffer. A hostile one can take twice as much.
const BYTES_OF_A_WEBHOOK_CONNECTION: usize = 32 * 1024;
/// The part of the memory limit for webhook connections, and the part for bodies under review.
const WEBHOOK_CONNECTIONS_PART: u64 = 8;
const WEBHOOK_BODIES_PART: u64 = 6;
/// The minimum and the maximum memory of bodies under review. The largest body has 10 MiB.
const WEBHOOK_BODIES: (usize, usize) = (12 << 20, 64 << 20);

/// The limits of the process. `None` is no limit, or one that cannot be read.
#[derive(Clone, Copy, Debug, Default)]
pub struct Resources {
    memory_bytes: Option<u64>,
    descriptors: Option<usize>,
}

// === impl Resources ===

impl Resources {
    pub fn of_this_process() -> Self {
        let files = memory_limit_files(&read_to_string("/proc/self/cgroup").unwrap_or_default());
        let groups = files.iter().filter_map(|path| memory_limit(&read_to_string(path).ok()?));
        let limits = read_to_string("/proc/self/limits").unwrap_or_default();
        // `ulimit -d` sets it.
        let data = soft_limit(&limits, "Max data size").and_then(memory_limit);
        Self {
            memory_bytes: groups.chain(data).min(),
            descriptors: soft_limit(&limits, "Max open files").and_then(|number| number.parse().ok()),
        }
    }

    /// Returns the memory limit of the process in bytes; `None` if it has none.
    pub fn memory_limit(self) -> Option<u64> {
        self.memory_bytes
    }

    /// Returns the budget for everything that the process allocates.
    pub fn memory_budget(self) -> MemoryBudget {
        self.memory_bytes.map_or(MemoryBudget::UNLIMITED, MemoryBudget::of_limit)
    }

    /// Returns the number of streams for which there is memory.
    pub fn streams(self) -> usize {
        self.memory_budget().clients().1.min(STREAMS)
    }

    /// Returns the number of connections for which there are memory and descriptors.
    pub fn connections(self) -> usize {
        let open = self
            .descriptors
            .map_or(CONNECTIONS, |all| all.saturating_sub(OTHER_DESCRIPTORS + self.webhook_connections()).max(1));
        self.memory_budget().clients().0.min(open).min(CONNECTIONS)
    }

    /// Returns the number of webhook connections for which there are memory and descriptors.
    pub fn webhook_connections(self) -> usize {
        let (least, most) = WEBHOOK_CONNECTIONS;
        let memory = self.part(WEBHOOK_CONNECTIONS_PART).map_or(most, |bytes| bytes / BYTES_OF_A_WEBHOOK_CONNECTION);
        memory.min(self.descriptors.map_or(most, |all| all / 8)).clamp(least, most)
    }

    /// Returns the memory for the bodies that webhooks review at the same time, in bytes.
    pub fn webhook_bodies(self) -> usize {
        let (least, most) = WEBHOOK_BODIES;
        self.part(WEBHOOK_BODIES_PART).map_or(most, |bytes| bytes.clamp(least, most))
    }

    /// Returns one of so many equal parts of the memory limit.
    fn part(self, parts: u64) -> Option<usize> {
        self.memory_bytes.map(|bytes| usize::try_from(bytes / parts).unwrap_or(usize::MAX))
    }
}

/// Raises the number of files that the process may open to the hard limit, as the runtime of Go does. Recent container
/// runtimes start processes with 1,024, for programs that cannot use more.
///
/// # Errors
/// When the kernel does not permit it.
pub fn raise_open_files() -> io::Result<()> {
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit })
}

/// Returns the files with the memory limits of the process, from the lines of `/proc/self/cgroup`:
/// `<hierarchy>:<controllers>:<path>`, where version 2 of control groups has no controllers.
///
/// A group is also limited by the groups around it. A file may be missing: in a container, the path may be the host's,
/// and only the root of the hierarchy is there, which is the container's own group. So the roots are always included.
fn memory_limit_files(groups: &str) -> Vec<PathBuf> {
    let roots = ["/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"];
    let mut files = Vec::from(roots.map(PathBuf::from));
    for line in groups.lines() {
        let mut parts = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(group)) = (parts.next(), parts.next()) else { continue };
        let (root, file) = match controllers {
            "" => ("/sys/fs/cgroup", "memory.max"),
            "memory" => ("/sys/fs/cgroup/memory", "memory.limit_in_bytes"),
            _ => continue,
        };
        let around = Path::new(group.trim_start_matches('/')).ancestors().filter(|group| *group != Path::new(""));
        files.extend(around.map(|group| Path::new(root).join(group).join(file)));
    }
    files
}

/// Parses a memory limit. No limit is `max` in version 2, and a number that no machine has in version 1.
fn memory_limit(text: &str) -> Option<u64> {
    const NONE: u64 = 1 << 60;
    text.trim().parse().ok().filter(|bytes| *bytes < NONE)
}

/// Returns a soft limit of the process: `Max open files   1024   524288   files`. A number, or `unlimited`.
fn soft_limit<'a>(limits: &'a str, name: &str) -> Option<&'a str> {
    limits.lines().find_map(|line| line.strip_prefix(name))?.split_whitespace().next()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_small_container_is_limited_by_its_memory() {
        let small = Resources { memory_bytes: Some(250 * 1024 * 1024), descriptors: Some(1_048_576) };
        assert_eq!((small.streams(), small.connections()), (13_312, 1_664));
        // 250 MiB / 8 / 32 KiB, and 250 MiB / 6
        assert_eq!((small.webhook_connections(), small.webhook_bodies() >> 20), (1_000, 41));
        let tiny = Resources { memory_bytes: Some(32 << 20), ..small };
        assert_eq!((tiny.webhook_connections(), tiny.webhook_bodies() >> 20), (256, 12));
    }

    #[test]
    fn descriptors_are_reserved_for_the_watches() {
        let few = Resources { memory_bytes: None, descriptors: Some(1_024) };
        assert_eq!((few.streams(), few.connections(), few.webhook_connections()), (STREAMS, 640, 256));
    }

    #[test]
    fn without_limits_the_defaults_are_bounded() {
        let machine = Resources::default();
        assert_eq!((machine.streams(), machine.connections()), (STREAMS, CONNECTIONS));
        assert_eq!((machine.webhook_connections(), machine.webhook_bodies() >> 20), (4_096, 64));
        let huge = Resources { memory_bytes: Some(1 << 50), descriptors: None };
        assert_eq!((huge.streams(), huge.connections()), (STREAMS, CONNECTIONS));
    }

    #[test]
    fn the_limits_of_all_control_groups_around_the_process_count() {
        let roots = ["/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"].map(PathBuf::from);
        let version_1 = memory_limit_files("5:devices:/a\n4:memory:/kubepods/pod-1\n0::/\n");
        let groups = [
            "/sys/fs/cgroup/memory/kubepods/pod-1/memory.limit_in_bytes",
            "/sys/fs/cgroup/memory/kubepods/memory.limit_in_bytes",
        ];
        assert_eq!(version_1, [roots.clone(), groups.map(PathBuf::from)].concat());
        let version_2 = memory_limit_files("0::/system.slice\n");
        assert_eq!(version_2, [&roots[..], &["/sys/fs/cgroup/system.slice/memory.max".into()]].concat());
        assert_eq!(memory_limit_files("no group"), roots);
    }

    #[test]
    fn the_soft_limit_of_open_files_is_raised_to_the_hard_one() {
        let hard = getrlimit(Resource::Nofile).maximum;
        // Not much lower, because other tests open files at the same time.
        setrlimit(Resource::Nofile, Rlimit { current: hard.map(|hard| hard - 1), maximum: hard }).unwrap();
        raise_open_files().unwrap();
        let all = Resources::of_this_process().descriptors;
        assert_eq!(all, hard.and_then(|hard| usize::try_from(hard).ok()));
    }

    #[test]
    fn the_kernels_formats_are_parsed() {
        assert_eq!(memory_limit("262144000\n"), Some(262_144_000));
        assert_eq!(memory_limit("max\n"), None);
        assert_eq!(memory_limit("9223372036854771712\n"), None, "no limit in version 1");
        let limits = "Limit   Soft Limit   Hard Limit   Units\n\
            Max data size             262144000            unlimited            bytes\n\
            Max open files            unlimited            524288               files\n";
        assert_eq!(soft_limit(limits, "Max data size").and_then(memory_limit), Some(262_144_000));
        assert_eq!(soft_limit(limits, "Max open files").and_then(memory_limit), None);
    }
}
