//! The memory limit of a command: that of a control group, as in a container, or else `RLIMIT_DATA`.
//!
//! In: a number of bytes. Out: a process that starts its child under this limit. Always holds: the control group is
//! removed when the limit is dropped, if no process is left in it.

use std::{
    fs::{self, OpenOptions},
    io::{self, Write},
    path::{Path, PathBuf},
    process,
};

use e2e::memory::CONTROL_GROUP;
use rustix::process::{Resource, Rlimit, setrlimit};

/// A limit under which this process starts its next child.
pub(crate) enum MemoryLimit {
    /// What the processes use, whatever they have mapped. Only root may make such groups.
    ControlGroup { group: PathBuf, own: PathBuf },
    /// What the processes may map. It counts what they do not use, such as stacks, so it is stricter.
    Data,
}

/// One hierarchy of control groups.
struct Hierarchy {
    root: &'static str,
    /// The controllers of its line in `/proc/self/cgroup`.
    controllers: &'static str,
    limit: &'static str,
    /// Without it, the kernel would move memory to a swap device instead of refusing it.
    swap: (&'static str, fn(u64) -> u64),
}

const HIERARCHIES: [Hierarchy; 2] = [
    Hierarchy { root: "/sys/fs/cgroup", controllers: "", limit: "memory.max", swap: ("memory.swap.max", |_| 0) },
    Hierarchy {
        root: "/sys/fs/cgroup/memory",
        controllers: "memory",
        limit: "memory.limit_in_bytes",
        swap: ("memory.memsw.limit_in_bytes", |memory| memory),
    },
];

// === impl MemoryLimit ===

impl MemoryLimit {
    /// Puts this process under a limit in bytes, until it leaves.
    pub(crate) fn enter(bytes: u64) -> io::Result<Self> {
        let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        if let Some(limit) = HIERARCHIES.iter().find_map(|hierarchy| hierarchy.enter(&groups, bytes)) {
            return Ok(limit);
        }
        setrlimit(Resource::Data, Rlimit { current: Some(bytes), maximum: Some(bytes) })?;
        Ok(Self::Data)
    }

    /// Takes this process out of the group in which its child stays. A limit of the process itself remains: it needs
    /// little memory.
    pub(crate) fn leave(&self) -> io::Result<()> {
        match self {
            Self::ControlGroup { own, .. } => join(own),
            Self::Data => Ok(()),
        }
    }
}

impl Drop for MemoryLimit {
    fn drop(&mut self) {
        if let Self::ControlGroup { group, .. } = self {
            let _ = fs::remove_dir(group);
        }
    }
}

// === impl Hierarchy ===

impl Hierarchy {
    /// Makes a group with this limit, and joins it. `None` if this hierarchy does not limit memory, or if this process
    /// may not make groups.
    fn enter(&self, groups: &str, bytes: u64) -> Option<MemoryLimit> {
        let line = |line: &str| {
            let (controllers, group) = line.split_once(':')?.1.split_once(':')?;
            (controllers == self.controllers).then(|| group.trim_start_matches('/').to_owned())
        };
        let own = PathBuf::from(groups.lines().find_map(line)?);
        let root = Path::new(self.root);
        // In version 2, a group with processes has no limited groups inside, but one around it may have.
        own.ancestors().find_map(|around| {
            let group = root.join(around).join(format!("{CONTROL_GROUP}{}", process::id()));
            fs::create_dir(&group).ok()?;
            let limit = MemoryLimit::ControlGroup { group: group.clone(), own: root.join(&own) };
            set(&group, self.limit, bytes).ok()?;
            let (swap, most) = self.swap;
            let _ = set(&group, swap, most(bytes));
            join(&group).ok()?;
            Some(limit)
        })
    }
}

fn join(group: &Path) -> io::Result<()> {
    set(group, "cgroup.procs", process::id().into())
}

/// Sets a value of a group. Never creates the file: where the hierarchy has no such value, it would be a mere file.
fn set(group: &Path, name: &str, value: u64) -> io::Result<()> {
    OpenOptions::new().write(true).open(group.join(name))?.write_all(value.to_string().as_bytes())
}
