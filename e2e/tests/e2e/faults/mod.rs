//! The operator when what it depends on fails: an API server that restarts, forgets, refuses, is late or silent; permissions
//! that go; a process that is killed between two writes.
//!
//! Each test breaks a control plane of its own. The manager goes through the fault proxy, the test past it, so what the test
//! sees and does is never touched by the fault.

mod crash;
mod lost_answers;
mod namespaces;
mod permissions;
mod refusals;
mod slices;
mod watches;

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use anyhow::{Result, ensure};
use e2e::{
    ControlPlane, Fault, FaultProxy, Manager, ManagerOptions, Options, TestNamespace, eventually,
    mesh::{MANAGED_BY, Mesh, SOON},
};
use futures::StreamExt;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::{
    Client, ResourceExt,
    api::{ListParams, WatchEvent, WatchParams},
};
use tokio::task::JoinHandle;

/// Longer than the longest pause between two attempts.
const BACKED_OFF: Duration = Duration::from_secs(70);
/// Long enough for a write that should not come to come.
const QUIET: Duration = Duration::from_secs(2);

const KINDS: [&str; 3] = ["/services", "/endpointslices", "/externalworkloads"];

/// Slices by name, with all that a write changes.
type Versions = BTreeMap<String, String>;

struct Rig {
    mesh: Mesh,
    proxy: FaultProxy,
    client: Client,
    control_plane: ControlPlane,
}

impl Rig {
    /// A control plane with Linkerd's CRDs, its namespace, and one for the test.
    async fn start(options: Options) -> Result<Self> {
        let control_plane = ControlPlane::start(options).await?;
        control_plane.install_crds("crd/linkerd").await?;
        control_plane.kubectl(&["create", "namespace", "linkerd"]).await?;
        let client = control_plane.client().await?;
        let mesh = new_mesh(&client).await?;
        let proxy = FaultProxy::start(&control_plane).await?;
        Ok(Self { mesh, proxy, client, control_plane })
    }

    /// A manager behind the proxy that writes slices and does nothing else.
    async fn manager(&self) -> Result<Manager> {
        let mut manager = self.unready_manager()?;
        manager.ready(SOON).await?;
        Ok(manager)
    }

    fn unready_manager(&self) -> Result<Manager> {
        self.start_manager(&["--enable-destination=false", "--enable-linkerd-config=false"])
    }

    /// Always under one name, so that the next one leads without waiting for a Lease to expire.
    fn start_manager(&self, args: &[&str]) -> Result<Manager> {
        let options = ManagerOptions {
            args: args.iter().map(|arg| (*arg).to_owned()).collect(),
            identity: Some("operator".to_owned()),
            kubeconfig: Some(self.proxy.kubeconfig().to_owned()),
            ..ManagerOptions::default()
        };
        Manager::start(&self.control_plane, options)
    }

    /// How often the manager tried to change slices of the test's namespace.
    fn writes(&self) -> usize {
        let path = format!("/{}/endpointslices", self.mesh.namespace());
        ["POST", "PUT", "PATCH", "DELETE"].iter().map(|method| self.proxy.count(method, &path)).sum()
    }

    /// How often it listed each kind.
    fn lists(&self) -> [usize; 3] {
        let log = self.proxy.log();
        KINDS.map(|kind| {
            let of_kind = |path: &str| path.contains(&format!("{kind}?")) && !path.contains("watch=true");
            log.iter().filter(|request| request.method == "GET" && of_kind(&request.path)).count()
        })
    }

    async fn versions(&self) -> Result<Versions> {
        let slices = self.mesh.slices.list(&ours()).await?;
        let version = |slice: &EndpointSlice| format!("{:?}/{:?}", slice.uid(), slice.resource_version());
        Ok(slices.iter().map(|slice| (slice.name_any(), version(slice))).collect())
    }

    /// Waits until a change made now, in another namespace, reaches the slices, and nothing is amiss: then all watches work.
    async fn follows(&self, manager: &Manager) -> Result<()> {
        let elsewhere = new_mesh(&self.client).await?;
        elsewhere.put_service("canary", serde_json::json!({})).await?;
        elsewhere.put_workload("canary", "canary", &["192.0.2.250"]).await?;
        eventually(BACKED_OFF, "changes to be followed again", async || {
            let seen = elsewhere.readiness("canary").await?;
            ensure!(seen.get("canary") == Some(&true), "{seen:?}");
            let (_, body) = manager.get("/ready").await?;
            ensure!(body == "ready\n", "{body}");
            Ok(())
        })
        .await
    }
}

async fn new_mesh(client: &Client) -> Result<Mesh> {
    let namespace = TestNamespace::create(client, "fault").await?;
    Ok(Mesh::new(client, namespace.name()))
}

fn ours() -> ListParams {
    ListParams::default().labels(&format!("endpointslice.kubernetes.io/managed-by={MANAGED_BY}"))
}

/// Exactly one of its kind, among the Events of an object.
async fn told_once(mesh: &Mesh, name: &str, reason: &str) -> Result<String> {
    let note = mesh.tells(name, reason).await?;
    let events = mesh.events_of(name).await?;
    let count = events.iter().filter(|event| event.starts_with(reason)).count();
    ensure!(count == 1, "{count} Events {reason} on {name}: {events:?}");
    Ok(note)
}

/// Waits until the fault has met so many requests, and returns how long after the first one the last one came.
async fn spacing(fault: &Fault, count: usize) -> Result<Duration> {
    let reached = async |count: usize| {
        eventually(BACKED_OFF, format_args!("attempt {count}"), async || {
            ensure!(fault.hits() >= count, "{} so far", fault.hits());
            Ok(Instant::now())
        })
        .await
    };
    let first = reached(1).await?;
    Ok(reached(count).await? - first)
}

/// Every version of our slices in a namespace from its start on, so that nothing that happened in between is missed.
struct Recorder {
    seen: Arc<Mutex<Vec<EndpointSlice>>>,
    task: JoinHandle<()>,
}

impl Recorder {
    async fn start(mesh: &Mesh) -> Result<Self> {
        let now = mesh.slices.list(&ours()).await?.metadata.resource_version.unwrap_or_default();
        let labels = format!("endpointslice.kubernetes.io/managed-by={MANAGED_BY}");
        let params = WatchParams::default().labels(&labels).timeout(290);
        let mut watch = mesh.slices.watch(&params, &now).await?.boxed();
        let seen = Arc::<Mutex<Vec<EndpointSlice>>>::default();
        let into = seen.clone();
        let task = tokio::spawn(async move {
            while let Some(Ok(event)) = watch.next().await {
                if let WatchEvent::Added(slice) | WatchEvent::Modified(slice) | WatchEvent::Deleted(slice) = event {
                    into.lock().unwrap_or_else(PoisonError::into_inner).push(slice);
                }
            }
        });
        Ok(Self { seen, task })
    }

    /// The workloads that each version held, of the slices with this prefix.
    fn workloads(&self, prefix: &str) -> Vec<Vec<String>> {
        let seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let names = |slice: &EndpointSlice| {
            let targets = slice.endpoints.iter().filter_map(|endpoint| endpoint.target_ref.as_ref()?.name.clone());
            targets.collect()
        };
        seen.iter().filter(|slice| slice.name_any().starts_with(prefix)).map(names).collect()
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        self.task.abort();
    }
}
