//! Leader election: one replica writes at a time, through failures of replicas, of their Lease and of the network.
//!
//! Each test runs its replicas on a dedicated control plane, most of them with shorter times than the defaults, so that
//! a Lease expires quickly.

mod fence;
mod handover;
mod interop;
mod lease;
mod operators;
mod versions;

use std::{ops::Deref, time::Duration};

use anyhow::{Context, Result, bail, ensure};
use e2e::{
    FaultProxy, Manager, ManagerOptions, Rig, eventually,
    manager::STOP,
    mesh::{Mesh, SOON},
};
use futures::{StreamExt, TryStreamExt};
use hyper::StatusCode;
use k8s_openapi::{
    api::coordination::v1::{Lease, LeaseSpec},
    jiff::SignedDuration,
};
use kube::{
    Api,
    api::{WatchEvent, WatchParams},
};
use serde_json::json;
use tokio::time::timeout;

const LEASE: &str = "linkerd-destination-endpoint-write";
const NAMESPACE: &str = "linkerd";

/// The Lease duration of managers from [`Stage::manager`] and of [`ControlPlane::start_elector`].
const DURATION: Duration = Duration::from_secs(6);
const RENEW_DEADLINE: Duration = Duration::from_secs(3);
const RETRY: Duration = Duration::from_secs(1);
/// Additional time for what may happen late on a busy host.
const SLACK: Duration = Duration::from_millis(1500);
/// Deadline for changes that must wait for a Lease to expire.
const EXPIRED: Duration = Duration::from_secs(45);

/// A rig with the Service `web` and its workload `vm`.
struct Stage {
    rig: Rig,
    mesh: Mesh,
    leases: Api<Lease>,
}

impl Stage {
    async fn new() -> Result<Self> {
        let rig = Rig::linkerd().start().await?;
        let mesh = Mesh::new(&rig.client, "default");
        mesh.put_service("web", json!({})).await?;
        mesh.put_workload("vm", "web", &["192.0.2.4"]).await?;
        Ok(Self { mesh, leases: Api::namespaced(rig.client.clone(), NAMESPACE), rig })
    }

    /// Starts a replica with short times.
    async fn manager(&self, identity: &str) -> Result<Manager> {
        self.start(replica(identity).args(short_times())).await
    }

    /// Starts a replica with short times, behind a proxy.
    async fn manager_behind(&self, proxy: &FaultProxy, identity: &str) -> Result<Manager> {
        self.start(replica(identity).args(short_times()).through(proxy)).await
    }

    /// Starts a replica, and waits until it is ready with synced caches.
    async fn start(&self, options: ManagerOptions) -> Result<Manager> {
        let manager = options.ready(self).await?;
        let cached = manager.metric("externalworkload_cache_size", &[]).await;
        ensure!(cached.is_some_and(|size| size > 0.0), "ready with {cached:?} workloads in the cache");
        Ok(manager)
    }

    /// Starts two replicas: the first leads and has published `vm`.
    async fn pair(&self) -> Result<(Manager, Manager)> {
        let first = self.manager("first").await?;
        first.leads(LEASE, SOON).await?;
        self.mesh.shows("web", &[("vm", true)]).await?;
        Ok((first, self.manager("second").await?))
    }

    /// Waits for the next holder after `from`, and checks that `from` released the Lease before: it did not expire.
    /// `version` is a resourceVersion at which `from` holds the Lease.
    async fn is_released(&self, version: &str, from: &str) -> Result<LeaseSpec> {
        let params = WatchParams::default().fields(&format!("metadata.name={LEASE}")).timeout(290);
        let mut events = self.leases.watch(&params, version).await?.boxed();
        let mut released = false;
        let next = async {
            loop {
                let Some(WatchEvent::Modified(lease)) = events.try_next().await? else {
                    bail!("the watch of the Lease ended")
                };
                let record = lease.spec.context("a Lease without a spec")?;
                match record.holder_identity.as_deref().unwrap_or_default() {
                    "" => released = true,
                    holder if holder == from => {}
                    holder => {
                        ensure!(released, "{holder} took the Lease, and {from} had not released it");
                        return Ok(record);
                    }
                }
            }
        };
        timeout(SOON, next).await.with_context(|| format!("no replica took the Lease of {from}"))?
    }

    async fn version(&self) -> Result<String> {
        self.leases.get(LEASE).await?.metadata.resource_version.context("a Lease without a resourceVersion")
    }

    async fn record(&self) -> Result<LeaseSpec> {
        self.leases.get(LEASE).await?.spec.context("a Lease without a spec")
    }

    async fn holder(&self) -> Result<String> {
        Ok(self.record().await?.holder_identity.unwrap_or_default())
    }

    async fn held_by(&self, identity: &str, deadline: Duration) -> Result<LeaseSpec> {
        eventually(deadline, format_args!("{identity} to hold the Lease"), async || {
            let record = self.record().await?;
            ensure!(record.holder_identity.as_deref() == Some(identity), "{record:?}");
            Ok(record)
        })
        .await
    }

    /// Makes `vm` ready or not, and waits until readers see it.
    async fn flip(&self, ready: bool) -> Result<()> {
        self.mesh.set_ready("vm", ready).await?;
        self.mesh.shows("web", &[("vm", ready)]).await
    }
}

impl Deref for Stage {
    type Target = Rig;

    fn deref(&self) -> &Rig {
        &self.rig
    }
}

/// A replica without the LinkerdConfig job, which uses another Lease.
fn replica(identity: &str) -> ManagerOptions {
    ManagerOptions::new(["--enable-linkerd-config=false"]).identity(identity)
}

fn short_times() -> Vec<String> {
    let flag = |name: &str, value: Duration| format!("--leader-election-{name}={}s", value.as_secs());
    vec![flag("lease-duration", DURATION), flag("renew-deadline", RENEW_DEADLINE), flag("retry-period", RETRY)]
}

async fn is_leading(manager: &Manager) -> bool {
    manager.is_leading(LEASE).await
}

async fn stops_leading(manager: &Manager, deadline: Duration) -> Result<()> {
    eventually(deadline, "the replica to stop leading", async || {
        let leading = manager.metric("linkerd_operator_leader", &[]).await;
        ensure!(leading == Some(0.0), "{leading:?}");
        Ok(())
    })
    .await
}

/// The number of attempted slice writes, with any result.
async fn writes(manager: &Manager) -> Result<f64> {
    manager.metric("linkerd_operator_endpointslice_writes_total", &[]).await.context("no metric of writes")
}

/// The number of requests through the proxy that would change a slice.
fn slice_writes(proxy: &FaultProxy) -> usize {
    ["POST", "PUT", "PATCH", "DELETE"].iter().map(|method| proxy.count(method, "/endpointslices")).sum()
}

/// Checks that the manager is live and ready: a replica that does not lead must be neither restarted nor left out.
async fn serves(manager: &Manager) -> Result<()> {
    for path in ["/live", "/ready"] {
        let (status, body) = manager.get(path).await?;
        ensure!(status == StatusCode::OK, "{path}: {status} {body}");
    }
    Ok(())
}

/// The time from the last renewal of one holder until the next one acquired the Lease, by their shared clock.
fn gap(before: &LeaseSpec, after: &LeaseSpec) -> Result<SignedDuration> {
    let renewed = before.renew_time.as_ref().context("no renewTime")?;
    let acquired = after.acquire_time.as_ref().context("no acquireTime")?;
    Ok(acquired.0.duration_since(renewed.0))
}

fn signed(duration: Duration) -> Result<SignedDuration> {
    Ok(SignedDuration::try_from(duration)?)
}
