//! Free ports, and the process behind a port.
//!
//! * Out: ports that are not in use now. Always: below the kernel's range for outgoing connections, so that the port of
//!   a stopped server is still free when the server is started again. This process gets a port only once, because a
//!   server listens on its port only some time after the port was chosen.

use std::{
    collections::BTreeSet,
    fs,
    hash::{BuildHasher, RandomState},
    net::{IpAddr, Ipv4Addr, TcpListener},
    sync::{Mutex, PoisonError},
};

use anyhow::{Context, Result};

const FIRST: u64 = 12_000;
const COUNT: u64 = 20_000;

static GIVEN: Mutex<BTreeSet<u16>> = Mutex::new(BTreeSet::new());

/// A free port on loopback.
pub fn free() -> Result<u16> {
    free_at(Ipv4Addr::LOCALHOST.into())
}

/// A free port on an address of this host.
pub fn free_at(address: IpAddr) -> Result<u16> {
    let random = RandomState::new();
    let mut given = GIVEN.lock().unwrap_or_else(PoisonError::into_inner);
    (0..200u64)
        .map(|attempt| FIRST + random.hash_one(attempt) % COUNT)
        .filter_map(|port| u16::try_from(port).ok())
        .find(|port| !given.contains(port) && TcpListener::bind((address, *port)).is_ok() && given.insert(*port))
        .with_context(|| format!("no free port on {address}"))
}

/// The process of this user that listens on a port.
///
/// # Errors
/// When no process of this user listens on it.
pub fn listener(port: u16) -> Result<u32> {
    let sockets: BTreeSet<String> = ["/proc/net/tcp", "/proc/net/tcp6"]
        .iter()
        .filter_map(|path| fs::read_to_string(path).ok())
        .flat_map(|table| table.lines().filter_map(|line| listening_socket(line, port)).collect::<Vec<_>>())
        .collect();
    let processes = fs::read_dir("/proc")?.flatten();
    let mut ids = processes.filter_map(|process| process.file_name().to_str()?.parse().ok());
    let listens = |id: &u32| {
        let files = fs::read_dir(format!("/proc/{id}/fd")).into_iter().flatten().flatten();
        let mut targets = files.filter_map(|file| fs::read_link(file.path()).ok());
        targets.any(|target| sockets.contains(&*target.to_string_lossy()))
    };
    ids.find(listens).with_context(|| format!("no process listens on port {port}"))
}

/// The socket in a line of `/proc/net/tcp` if it listens on the port.
fn listening_socket(line: &str, port: u16) -> Option<String> {
    const LISTENS: &str = "0A";
    let fields: Vec<&str> = line.split_whitespace().collect();
    let [_, local, _, state, _, _, _, _, _, inode, ..] = fields.as_slice() else { return None };
    let is_its = *state == LISTENS && local.ends_with(&format!(":{port:04X}"));
    is_its.then(|| format!("socket:[{inode}]"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_process_of_a_port_is_found() {
        let listens = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = listens.local_addr().unwrap().port();
        assert_eq!(listener(port).unwrap(), std::process::id());
        drop(listens);
        listener(port).unwrap_err();
    }

    #[test]
    fn no_port_is_given_twice() {
        // Among 1,000 of 20,000 random numbers, the probability of no pair is below 1e-10.
        let ports: Vec<u16> = (0..1_000).map(|_| free().unwrap()).collect();
        let different: BTreeSet<u16> = ports.iter().copied().collect();
        assert_eq!(different.len(), ports.len());
    }
}
