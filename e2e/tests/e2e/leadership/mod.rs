//! Who writes: one replica at a time, whatever happens to the replicas, to their Lease and to their way to it.
//!
//! Two replicas on a control plane of their own. Most run with a third of the default times, so that a Lease expires within
//! a test's patience.

mod fence;
mod handover;
mod interop;
mod lease;

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use e2e::{
    ControlPlane, FaultProxy, Manager, ManagerOptions, Options, eventually,
    mesh::{Mesh, SOON},
};
use hyper::StatusCode;
use k8s_openapi::{
    api::coordination::v1::{Lease, LeaseSpec},
    jiff::SignedDuration,
};
use kube::Api;
use serde_json::json;

const LEASE: &str = "linkerd-destination-endpoint-write";
const NAMESPACE: &str = "linkerd";

/// Of the managers that [`Stage::manager`] starts, and of [`ControlPlane::start_elector`].
const DURATION: Duration = Duration::from_secs(6);
const RENEW_DEADLINE: Duration = Duration::from_secs(3);
const RETRY: Duration = Duration::from_secs(1);
/// What a busy machine may add to a time that is bounded.
const SLACK: Duration = Duration::from_millis(1500);
/// For what has to wait for a Lease to expire first.
const EXPIRED: Duration = Duration::from_secs(45);
/// From SIGTERM to the exit.
const STOP: Duration = Duration::from_secs(45);

/// Linkerd's CRD and namespace, the Service `web`, its workload `vm`.
struct Stage {
    control_plane: ControlPlane,
    mesh: Mesh,
    leases: Api<Lease>,
}

impl Stage {
    async fn new() -> Result<Self> {
        let control_plane = ControlPlane::start(Options::default()).await?;
        control_plane.install_crds("crd/linkerd").await?;
        control_plane.kubectl(&["create", "namespace", NAMESPACE]).await?;
        let client = control_plane.client().await?;
        let mesh = Mesh::new(&client, "default");
        mesh.put_service("web", json!({})).await?;
        mesh.put_workload("vm", "web", &["192.0.2.4"]).await?;
        Ok(Self { control_plane, mesh, leases: Api::namespaced(client, NAMESPACE) })
    }

    /// A replica with short times.
    async fn manager(&self, identity: &str) -> Result<Manager> {
        self.start(identity, &short_times(), None).await
    }

    /// A replica with short times, behind a proxy.
    async fn manager_behind(&self, proxy: &FaultProxy, identity: &str) -> Result<Manager> {
        self.start(identity, &short_times(), Some(proxy)).await
    }

    /// A replica with these arguments; ready, and with warm caches, when this returns.
    async fn start(&self, identity: &str, args: &[String], proxy: Option<&FaultProxy>) -> Result<Manager> {
        let options = ManagerOptions {
            // It leads by another Lease.
            args: [&["--enable-linkerd-config=false".to_owned()], args].concat(),
            identity: Some(identity.to_owned()),
            kubeconfig: proxy.map(|proxy| proxy.kubeconfig().to_owned()),
            ..ManagerOptions::default()
        };
        let mut manager = Manager::start(&self.control_plane, options)?;
        manager.ready(SOON).await?;
        let cached = manager.metric("externalworkload_cache_size", &[]).await;
        ensure!(cached.is_some_and(|size| size > 0.0), "ready with {cached:?} workloads in the cache");
        Ok(manager)
    }

    /// Two replicas: the first leads and has published `vm`.
    async fn pair(&self) -> Result<(Manager, Manager)> {
        let first = self.manager("first").await?;
        leads(&first, SOON).await?;
        self.mesh.shows("web", &[("vm", true)]).await?;
        Ok((first, self.manager("second").await?))
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

fn short_times() -> Vec<String> {
    let flag = |name: &str, value: Duration| format!("--leader-election-{name}={}s", value.as_secs());
    vec![flag("lease-duration", DURATION), flag("renew-deadline", RENEW_DEADLINE), flag("retry-period", RETRY)]
}

async fn is_leading(manager: &Manager) -> bool {
    manager.is_leading(LEASE).await
}

async fn leads(manager: &Manager, deadline: Duration) -> Result<()> {
    eventually(deadline, "the replica to lead", async || {
        ensure!(is_leading(manager).await, "it does not");
        Ok(())
    })
    .await
}

async fn follows(manager: &Manager, deadline: Duration) -> Result<()> {
    eventually(deadline, "the replica to lead no longer", async || {
        let leading = manager.metric("linkerd_operator_leader", &[]).await;
        ensure!(leading == Some(0.0), "{leading:?}");
        Ok(())
    })
    .await
}

/// Writes of slices that it tried, with whatever result.
async fn writes(manager: &Manager) -> Result<f64> {
    manager.metric("linkerd_operator_endpointslice_writes_total", &[]).await.context("no metric of writes")
}

/// The requests that would change a slice, as the proxy saw them.
fn slice_writes(proxy: &FaultProxy) -> usize {
    ["POST", "PUT", "PATCH", "DELETE"].iter().map(|method| proxy.count(method, "/endpointslices")).sum()
}

/// Alive and ready: not leading is no reason to be restarted, nor to be left out.
async fn serves(manager: &Manager) -> Result<()> {
    for path in ["/live", "/ready"] {
        let (status, body) = manager.get(path).await?;
        ensure!(status == StatusCode::OK, "{path}: {status} {body}");
    }
    Ok(())
}

/// From one holder's last renewal to the next one's beginning, by the clock they share.
fn gap(before: &LeaseSpec, after: &LeaseSpec) -> Result<SignedDuration> {
    let renewed = before.renew_time.as_ref().context("no renewTime")?;
    let acquired = after.acquire_time.as_ref().context("no acquireTime")?;
    Ok(acquired.0.duration_since(renewed.0))
}

fn signed(duration: Duration) -> Result<SignedDuration> {
    Ok(SignedDuration::try_from(duration)?)
}
