//! The memory of a process: resident, at its peak, and as its container is charged for it.
//!
//! * In: a process. Out: numbers of bytes.
//! * Always: `container` is known only for a process with a control group of its own, which [`crate::process::Spawn`]
//!   makes for a process with a memory limit, if this process may make such groups.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};

/// The begin of the name of a control group that is made for one process.
pub const CONTROL_GROUP: &str = "linkerd-operator-e2e-";

/// The memory of a process, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Memory {
    /// The resident memory.
    pub resident: u64,
    /// The part of it that is pages of files, and so of the binary. How many are mapped depends on the kernel's page cache.
    pub files: u64,
    /// The most resident memory since its start.
    pub peak: u64,
    /// The working set of its control group, as a kubelet reports it: what counts against a container's limit, without
    /// the file pages that the kernel can drop at once. It contains memory of the kernel, such as that of connections;
    /// in version 1 of control groups, it does not contain the buffers of TCP.
    pub container: Option<u64>,
}

impl Memory {
    /// # Errors
    /// The process has ended.
    pub fn of_process(pid: u32) -> Result<Self> {
        let path = format!("/proc/{pid}/status");
        let status = fs::read_to_string(&path).with_context(|| format!("reading {path}"))?;
        let bytes = |name| field(&status, name).with_context(|| format!("{path} has no {name}: the process has ended"));
        Ok(Self {
            resident: bytes("VmRSS:")?,
            files: bytes("RssFile:")?,
            peak: bytes("VmHWM:")?,
            container: working_set(pid),
        })
    }
}

#[must_use]
#[allow(clippy::cast_precision_loss, reason = "for people")]
pub fn mebibytes(bytes: u64) -> f64 {
    bytes as f64 / 1024.0 / 1024.0
}

/// A field in kibibytes of `/proc/PID/status`, in bytes.
fn field(status: &str, name: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix(name))?;
    let kibibytes: u64 = line.split_whitespace().next()?.parse().ok()?;
    Some(kibibytes * 1024)
}

fn working_set(pid: u32) -> Option<u64> {
    let groups = fs::read_to_string(format!("/proc/{pid}/cgroup")).ok()?;
    let (group, usage, inactive) = own_group(&groups)?;
    let read = |name: &str| fs::read_to_string(Path::new(&group).join(name)).ok();
    let used: u64 = read(usage)?.trim().parse().ok()?;
    let stat = read("memory.stat")?;
    let unused = stat.lines().find_map(|line| line.strip_prefix(inactive)?.trim().parse::<u64>().ok());
    Some(used.saturating_sub(unused.unwrap_or_default()))
}

/// The control group that the supervisor made for a process: its directory, the file with its usage, the field of its
/// inactive file pages.
fn own_group(groups: &str) -> Option<(PathBuf, &'static str, &'static str)> {
    groups.lines().find_map(|line| {
        let (controllers, group) = line.split_once(':')?.1.split_once(':')?;
        let (root, usage, inactive) = match controllers {
            "" => ("/sys/fs/cgroup", "memory.current", "inactive_file "),
            "memory" => ("/sys/fs/cgroup/memory", "memory.usage_in_bytes", "total_inactive_file "),
            _ => return None,
        };
        let group = Path::new(group.trim_start_matches('/'));
        let is_own = group.file_name()?.to_string_lossy().starts_with(CONTROL_GROUP);
        is_own.then(|| (Path::new(root).join(group), usage, inactive))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fields_of_a_status_are_read_in_bytes() {
        assert_eq!(field("Name:\tx\nVmRSS:\t    2048 kB\n", "VmRSS:"), Some(2 * 1024 * 1024));
        assert_eq!(field("Name:\tx\n", "VmRSS:"), None);
    }

    #[test]
    fn this_process_has_memory_and_no_more_than_its_peak() {
        let memory = Memory::of_process(std::process::id()).unwrap();
        assert!(memory.files > 0 && memory.files < memory.resident && memory.resident <= memory.peak, "{memory:?}");
    }

    #[test]
    fn only_a_group_that_was_made_for_the_process_counts() {
        let found = |groups| own_group(groups).map(|(group, usage, _)| (group.display().to_string(), usage));
        let own = "/sys/fs/cgroup/memory/a/linkerd-operator-e2e-7".to_owned();
        assert_eq!(found("9:cpu:/\n4:memory:/a/linkerd-operator-e2e-7\n0::/\n"), Some((own, "memory.usage_in_bytes")));
        let own = "/sys/fs/cgroup/linkerd-operator-e2e-7".to_owned();
        assert_eq!(found("0::/linkerd-operator-e2e-7\n"), Some((own, "memory.current")));
        assert_eq!(found("4:memory:/a\n0::/\n"), None);
    }
}
