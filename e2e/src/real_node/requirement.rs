//! The requirements of a node on the host.
//!
//! * Out: one error with everything that is missing, and how to get it. Nothing is installed.

use std::path::PathBuf;

use anyhow::{Context, Result, ensure};

/// The programs, with their Debian packages.
const PROGRAMS: [(&str, &str); 9] = [
    ("containerd", "containerd"),
    ("containerd-shim-runc-v2", "containerd"),
    ("ctr", "containerd"),
    ("runc", "runc"),
    ("nft", "nftables"),
    ("ip", "iproute2"),
    ("unshare", "util-linux"),
    ("nsenter", "util-linux"),
    ("cc", "gcc and libc6-dev"),
];
/// The directories of the CNI plugins, in Debian and in other distributions.
const PLUGINS: [&str; 2] = ["/usr/lib/cni", "/opt/cni/bin"];

/// # Errors
/// Lists everything that is missing.
pub fn check() -> Result<()> {
    let mut missing = Vec::new();
    if !cfg!(target_os = "linux") {
        missing.push("Linux".to_owned());
    }
    if !rustix::process::geteuid().is_root() {
        missing.push("root, to create namespaces, mounts and interfaces".to_owned());
    }
    let absent = PROGRAMS.iter().filter(|(program, _)| !is_in_path(program));
    missing.extend(absent.map(|(program, package)| format!("{program} (Debian package {package})")));
    if plugins().is_err() {
        missing.push("CNI plugins (Debian package containernetworking-plugins)".to_owned());
    }
    ensure!(
        missing.is_empty(),
        "a node cannot run on this host; missing:\n  {}\n`make e2e-node-packages` installs the packages on Debian",
        missing.join("\n  ")
    );
    Ok(())
}

/// The directory of the CNI plugins.
pub(super) fn plugins() -> Result<PathBuf> {
    let found = PLUGINS.map(PathBuf::from).into_iter().find(|directory| directory.join("bridge").is_file());
    found.context("no CNI plugins")
}

pub fn is_in_path(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|directory| directory.join(program).is_file())
}
