//! What a node needs of the machine.
//!
//! * Out: all that is missing at once, with the way to get it. Nothing is installed here.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

/// Programs, and the Debian package each is in.
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
/// Where Debian has the CNI plugins, and where others have them.
const PLUGINS: [&str; 2] = ["/usr/lib/cni", "/opt/cni/bin"];

/// # Errors
/// Names everything that is missing.
pub fn check() -> Result<()> {
    let mut missing = Vec::new();
    if !cfg!(target_os = "linux") {
        missing.push("Linux".to_owned());
    }
    if !rustix::process::geteuid().is_root() {
        missing.push("root: namespaces, mounts and interfaces are made".to_owned());
    }
    let absent = PROGRAMS.iter().filter(|(program, _)| !is_in_path(program));
    missing.extend(absent.map(|(program, package)| format!("{program} (Debian's package {package})")));
    if plugins().is_err() {
        missing.push("CNI plugins (Debian's package containernetworking-plugins)".to_owned());
    }
    ensure!(
        missing.is_empty(),
        "a node cannot be run here; missing:\n  {}\n`make e2e-node-packages` installs the packages on Debian",
        missing.join("\n  ")
    );
    Ok(())
}

/// The directory of the CNI plugins.
pub(super) fn plugins() -> Result<PathBuf> {
    let found = PLUGINS.map(PathBuf::from).into_iter().find(|directory| directory.join("bridge").is_file());
    found.context("no CNI plugins")
}

fn is_in_path(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|directory: PathBuf| Path::new(&directory).join(program).is_file())
}
