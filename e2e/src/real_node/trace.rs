//! Detects what a node leaves on the host.
//!
//! * Out: the current [`Traces`], and the differences between two of them. Always: changes by other programs are
//!   excluded, as far as they can be distinguished.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
    process::Command,
};

use anyhow::{Context, Result, ensure};

/// Prefixes of the names of a node's processes, because the kernel truncates names.
const PROGRAMS: [&str; 6] = ["containerd", "kubelet", "kube-proxy", "runc", "pause", "bridge"];
const SYSCTLS: [&str; 7] = [
    "vm/overcommit_memory",
    "vm/panic_on_oom",
    "kernel/panic",
    "kernel/panic_on_oops",
    "kernel/keys/root_maxkeys",
    "kernel/keys/root_maxbytes",
    "net/ipv4/ip_forward",
];
const DIRECTORIES: [&str; 11] = [
    "/etc/cni/net.d",
    "/opt/cni",
    "/opt/containerd",
    "/run/cni",
    "/run/containerd",
    "/run/netns",
    "/var/lib/cni",
    "/var/lib/containerd",
    "/var/lib/kubelet",
    "/var/log/containers",
    "/var/log/pods",
];
const CGROUPS: &str = "/sys/fs/cgroup";

/// Each line describes one object and its state.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Traces(BTreeSet<String>);

impl Traces {
    pub fn now() -> Result<Self> {
        let mut found = BTreeSet::new();
        found.extend(processes().into_iter().map(|(id, name)| format!("process {id} {name}")));
        found.extend(fs::read_to_string("/proc/self/mountinfo")?.lines().map(|line| format!("mount {}", mount(line))));
        found.extend(names("/sys/class/net").map(|name| format!("interface {name}")));
        let routes = fs::read_to_string("/proc/net/route")?;
        found.extend(routes.lines().skip(1).map(|line| format!("route {}", route(line))));
        found.extend(rules()?.lines().map(|line| format!("nft {line}")));
        for sysctl in SYSCTLS {
            let value = fs::read_to_string(format!("/proc/sys/{sysctl}"));
            found.extend(value.ok().map(|value| format!("sysctl {sysctl} = {}", value.trim())));
        }
        for directory in DIRECTORIES {
            if Path::new(directory).exists() {
                found.insert(format!("directory {directory}"));
            }
            found.extend(names(directory).map(|name| format!("directory {directory}/{name}")));
        }
        for hierarchy in hierarchies() {
            let ours = names(&hierarchy).filter(|name| name.contains("kube") || name.starts_with(super::PREFIX));
            found.extend(ours.map(|name| format!("cgroup {hierarchy}/{name}")));
        }
        Ok(Self(found))
    }

    /// The lines that were added or removed since `before`.
    pub fn differences(&self, before: &Self) -> Vec<String> {
        let new = self.0.difference(&before.0).map(|line| format!("left behind: {line}"));
        let removed = before.0.difference(&self.0).map(|line| format!("removed: {line}"));
        new.chain(removed).collect()
    }
}

/// The directories in which a cgroup must be created to exist in all hierarchies.
pub(super) fn hierarchies() -> Vec<String> {
    if Path::new(CGROUPS).join("cgroup.controllers").exists() {
        return vec![CGROUPS.to_owned()];
    }
    names(CGROUPS)
        .map(|name| format!("{CGROUPS}/{name}"))
        .filter(|path| Path::new(path).join("cgroup.procs").exists() && !Path::new(path).is_symlink())
        .collect()
}

pub(super) fn names(directory: &str) -> impl Iterator<Item = String> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    entries.map(|entry| entry.file_name().to_string_lossy().into_owned())
}

fn processes() -> BTreeMap<String, String> {
    let named = names("/proc").filter(|name| name.bytes().all(|byte| byte.is_ascii_digit()));
    let named = named.filter_map(|id| Some((fs::read_to_string(format!("/proc/{id}/comm")).ok()?, id)));
    let ours = named.filter(|(name, _)| PROGRAMS.iter().any(|program| name.starts_with(program)));
    let ours = ours.filter(|(_, id)| is_of_a_node(id));
    ours.map(|(name, id)| (id, name.trim().to_owned())).collect()
}

/// Returns whether the process belongs to a node of the harness and not to other containers on this host. The node's
/// programs have its directory in their arguments or mounts, and the containers are in its cgroup.
fn is_of_a_node(id: &str) -> bool {
    let files = ["cmdline", "mountinfo", "cgroup"].map(|file| format!("/proc/{id}/{file}"));
    files.iter().any(|file| fs::read(file).is_ok_and(|text| String::from_utf8_lossy(&text).contains(super::PREFIX)))
}

/// Without the ids of the mount and its parent, which are not stable.
fn mount(line: &str) -> String {
    line.split_whitespace().skip(4).collect::<Vec<_>>().join(" ")
}

/// Interface, destination, gateway.
fn route(line: &str) -> String {
    line.split_whitespace().take(3).collect::<Vec<_>>().join(" ")
}

fn rules() -> Result<String> {
    let output = Command::new("nft").args(["list", "tables"]).output().context("running nft")?;
    ensure!(output.status.success(), "nft list tables: {}", String::from_utf8_lossy(&output.stderr).trim());
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

#[cfg(test)]
mod tests {
    use std::process::{Child, Stdio};

    use super::*;

    /// Runs a shell with this name, which ends when its input is closed.
    fn run(directory: &Path, name: &str) -> Child {
        let program = directory.join(name);
        fs::copy("/bin/sh", &program).unwrap();
        let mut command = Command::new(program);
        command.args(["-c", "echo; read line"]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        // The name of a process is its program's only after the exec.
        std::io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut [0]).unwrap();
        child
    }

    #[test]
    fn only_processes_of_a_node_are_traces() {
        let ours = tempfile::Builder::new().prefix(super::super::PREFIX).tempdir().unwrap();
        let others = tempfile::Builder::new().prefix("others-").tempdir().unwrap();
        let [mut runc, mut of_others, mut no_program] =
            [run(ours.path(), "runc-test"), run(others.path(), "runc-test"), run(ours.path(), "other-test")];
        let found = processes();
        for child in [&mut runc, &mut of_others, &mut no_program] {
            drop(child.stdin.take());
            child.wait().unwrap();
        }
        let name = |child: &Child| found.get(&child.id().to_string()).map(String::as_str);
        assert_eq!([name(&runc), name(&of_others), name(&no_program)], [Some("runc-test"), None, None]);
    }
}
