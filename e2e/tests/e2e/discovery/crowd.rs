//! Services with many endpoints, and a dedicated manager that serves them.
//!
//! * In: the shared control plane, flags. Out: Services without a selector, whose slices the test writes.
//! * Every endpoint belongs to the ExternalWorkload `vm`, so each takes about 350 bytes and one edit changes all.
//! * One crowd exists at a time: each keeps all cores busy, and beside another one a flood would be too slow to be one.

use std::{
    net::{Ipv4Addr, SocketAddr},
    ops::Range,
};

use anyhow::Result;
use e2e::{
    ControlPlane, FaultProxy, Job, Manager, ManagerOptions,
    discovery::{Discovery, Endpoints},
    eventually,
    mesh::{Mesh, SOON},
    shared_manager,
};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::api::{Patch, PatchParams, PostParams};
use serde_json::{Value, json};
use tokio::sync::{Mutex, MutexGuard};

use super::{Objects, serving::discovery_through};

/// For tests whose requests must not be refused because a busy host let them wait.
pub(super) const NEVER_TOO_LATE: &[&str] = &["--max-stream-wait=60s"];

static TURN: Mutex<()> = Mutex::const_new(());

pub(super) struct Crowd {
    pub(super) control_plane: &'static ControlPlane,
    pub(super) objects: Objects,
    pub(super) mesh: Mesh,
    pub(super) manager: Manager,
    _turn: MutexGuard<'static, ()>,
}

impl Crowd {
    pub(super) async fn start(args: &[&str]) -> Result<Self> {
        // The shared manager's setup installs Linkerd's CRDs.
        let (control_plane, _) = shared_manager().await?;
        Self::start_with(control_plane, ManagerOptions::only(Job::Destination).args(args.iter().copied())).await
    }

    /// Starts a manager that reaches the API server through a fault proxy.
    pub(super) async fn behind_proxy() -> Result<(Self, FaultProxy)> {
        let (control_plane, _) = shared_manager().await?;
        let proxy = FaultProxy::start(control_plane).await?;
        Ok((Self::start_with(control_plane, discovery_through(&proxy)).await?, proxy))
    }

    /// Starts a manager with a memory limit in bytes.
    pub(super) async fn with_memory(limit: u64) -> Result<Self> {
        let (control_plane, _) = shared_manager().await?;
        Self::start_with(control_plane, ManagerOptions::only(Job::Destination).memory_limit(limit)).await
    }

    async fn start_with(control_plane: &'static ControlPlane, options: ManagerOptions) -> Result<Self> {
        let turn = TURN.lock().await;
        let objects = Objects::create_in(&control_plane.client().await?, "crowd").await?;
        let mesh = Mesh::new(&objects.client, objects.name());
        let identity = format!("spiffe://root.linkerd.cluster.local/{}", "long/".repeat(40));
        mesh.put_workload_with("vm", "vm", json!({"spec": {"meshTLS": {"identity": identity}}})).await?;
        Ok(Self { control_plane, objects, mesh, manager: options.ready(control_plane).await?, _turn: turn })
    }

    /// Creates a Service with these endpoints, a thousand per slice. The slices are named `<service>-<number>`.
    pub(super) async fn put(&self, service: &str, endpoints: Range<u32>) -> Result<()> {
        self.mesh.put_service(service, json!({ "selector": null })).await?;
        for (number, first) in endpoints.clone().step_by(1000).enumerate() {
            self.put_slice(service, &format!("{service}-{number}"), first..endpoints.end.min(first + 1000)).await?;
        }
        Ok(())
    }

    pub(super) async fn put_slice(&self, service: &str, name: &str, endpoints: Range<u32>) -> Result<()> {
        let slice = json!({
            "metadata": {"name": name, "labels": {"kubernetes.io/service-name": service}},
            "addressType": "IPv4", "endpoints": self.endpoints(endpoints), "ports": [{"name": "http", "port": 8080}],
        });
        self.mesh.slices.create(&PostParams::default(), &serde_json::from_value::<EndpointSlice>(slice)?).await?;
        Ok(())
    }

    pub(super) async fn set_slice(&self, name: &str, endpoints: Range<u32>) -> Result<()> {
        let patch = json!({ "endpoints": self.endpoints(endpoints) });
        self.mesh.slices.patch(name, &PatchParams::default(), &Patch::Merge(patch)).await?;
        Ok(())
    }

    fn endpoints(&self, numbers: Range<u32>) -> Vec<Value> {
        let target = json!({"kind": "ExternalWorkload", "name": "vm", "namespace": self.mesh.namespace()});
        numbers.map(|number| json!({"addresses": [address(number).ip()], "targetRef": target})).collect()
    }

    pub(super) fn path(&self, service: &str) -> String {
        self.objects.path(service)
    }

    /// Returns a stream on a new connection whose first message has exactly these endpoints.
    pub(super) async fn shows(&self, service: &str, endpoints: Range<u32>) -> Result<Endpoints> {
        let discovery = self.manager.discovery().await?;
        // The manager may not have all endpoints yet, so this stream may receive them in several messages.
        shows(&mut self.known(&discovery, service).await?, endpoints.clone()).await?;
        let mut stream = discovery.get(&self.path(service), "").await?;
        shows(&mut stream, endpoints).await?;
        Ok(stream)
    }

    /// Opens a stream as soon as the Service is in the manager's cache.
    pub(super) async fn known(&self, discovery: &Discovery, service: &str) -> Result<Endpoints> {
        let path = self.path(service);
        eventually(SOON, format_args!("{path} to be served"), async || Ok(discovery.get(&path, "").await?)).await
    }
}

/// Reads until the stream has exactly these endpoints.
pub(super) async fn shows(stream: &mut Endpoints, endpoints: Range<u32>) -> Result<()> {
    let what = format!("endpoints {endpoints:?}");
    stream.until(&what, |known| known.keys().copied().eq(endpoints.clone().map(address))).await
}

/// The address of endpoint `number`; addresses increase with the number.
pub(super) fn address(number: u32) -> SocketAddr {
    let first = u32::from(Ipv4Addr::new(10, 0, 0, 0));
    SocketAddr::from((Ipv4Addr::from(first + number), 8080))
}
