//! The ExternalWorkloads of one Service, some of which change continuously.
//!
//! * Out: the expected endpoints and since when they are expected; the time of each change until it is in the
//!   EndpointSlices.
//! * Always: a change that does not reach the EndpointSlices is an error, because no later write would include it.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, Ipv4Addr, SocketAddr},
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use e2e::mesh::Mesh;
use kube::Client;
use serde_json::json;
use tokio::{sync::watch, task::JoinHandle};

pub(crate) const NAMESPACE: &str = "rolled";
pub(crate) const SERVICE: &str = "web";
const MACHINES: u8 = 40;
/// The number of workloads that become ready and unready in turn.
const CHANGING: u8 = 4;
/// The time for a slice write, including a hand-over of the Lease.
const WRITTEN: Duration = Duration::from_secs(40);
const LOOK: Duration = Duration::from_millis(20);
const PAUSE: Duration = Duration::from_millis(100);

/// The expected state, shared with the clients that check it.
#[derive(Clone, Default)]
pub(crate) struct Truth(Arc<Mutex<BTreeMap<SocketAddr, (bool, Instant)>>>);

pub(crate) struct EndpointChurn {
    pub(crate) truth: Truth,
    stop: watch::Sender<bool>,
    running: JoinHandle<Result<Vec<Duration>>>,
}

impl Truth {
    /// Returns whether the known addresses are exactly the ready ones.
    pub(crate) fn is(&self, known: impl Iterator<Item = SocketAddr>) -> bool {
        let truth = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        truth.iter().filter(|(_, (ready, _))| *ready).map(|(address, _)| *address).eq(known)
    }

    /// Returns whether the address has been ready for this time.
    pub(crate) fn ready_for(&self, address: SocketAddr, time: Duration) -> bool {
        let truth = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        truth.get(&address).is_some_and(|(ready, since)| *ready && since.elapsed() >= time)
    }

    /// The addresses that have been ready for this time and are not known.
    pub(crate) fn missing(&self, known: &BTreeSet<SocketAddr>, time: Duration) -> Vec<SocketAddr> {
        let truth = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let ready = truth.iter().filter(|(_, (ready, since))| *ready && since.elapsed() >= time);
        ready.map(|(address, _)| *address).filter(|address| !known.contains(address)).collect()
    }

    fn set(&self, address: SocketAddr, ready: bool) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(address, (ready, Instant::now()));
    }
}

impl EndpointChurn {
    /// Creates the Service and its workloads, all ready, and starts the changes.
    pub(crate) async fn start(client: &Client) -> Result<Self> {
        let mesh = Mesh::new(client, NAMESPACE);
        mesh.put_service(SERVICE, json!({})).await?;
        let truth = Truth::default();
        for number in 1..=MACHINES {
            mesh.put_workload(&name(number), SERVICE, &[&ip(number).to_string()]).await?;
            truth.set(address(number), true);
        }
        written(&mesh, |readiness| readiness.len() == usize::from(MACHINES) && readiness.values().all(|ready| *ready))
            .await?;
        let (stop, stopped) = watch::channel(false);
        let running = tokio::spawn(changes(mesh, truth.clone(), stopped));
        Ok(Self { truth, stop, running })
    }

    /// Stops the changes. Returns the time from each change until it was in the slice.
    pub(crate) async fn stop(self) -> Result<Vec<Duration>> {
        self.stop.send(true)?;
        self.running.await.context("the task of the changes failed")?
    }
}

async fn changes(mesh: Mesh, truth: Truth, stopped: watch::Receiver<bool>) -> Result<Vec<Duration>> {
    let mut took = Vec::new();
    for round in 0u32.. {
        for number in 1..=CHANGING {
            if *stopped.borrow() && round % 2 == 0 {
                return Ok(took);
            }
            let ready = round % 2 == 1;
            // Set before the change, because clients may receive it immediately after the request.
            truth.set(address(number), ready);
            let begun = Instant::now();
            mesh.set_ready(&name(number), ready).await?;
            written(&mesh, |readiness| readiness.get(&name(number)) == Some(&ready)).await?;
            took.push(begun.elapsed());
            tokio::time::sleep(PAUSE).await;
        }
    }
    Ok(took)
}

async fn written(mesh: &Mesh, wanted: impl Fn(&BTreeMap<String, bool>) -> bool) -> Result<()> {
    let end = Instant::now() + WRITTEN;
    loop {
        let seen = mesh.readiness(SERVICE).await;
        if seen.as_ref().is_ok_and(&wanted) {
            return Ok(());
        }
        ensure!(Instant::now() < end, "the slices were not written within {WRITTEN:?}: {seen:?}");
        tokio::time::sleep(LOOK).await;
    }
}

fn name(number: u8) -> String {
    format!("vm-{number}")
}

fn ip(number: u8) -> IpAddr {
    Ipv4Addr::new(192, 0, 2, 100 + number).into()
}

fn address(number: u8) -> SocketAddr {
    SocketAddr::new(ip(number), 80)
}
