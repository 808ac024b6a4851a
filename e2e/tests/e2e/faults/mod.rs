//! The operator when its dependencies fail: an API server that restarts, expires watches, refuses requests, is slow or
//! silent; revoked permissions; a process that is killed between two writes.
//!
//! Each test has a dedicated control plane. The manager connects through the fault proxy and the test directly, so
//! faults never affect the test itself.

mod compaction;
mod crash;
#[allow(clippy::indexing_slicing, reason = "a panic reports its location; an absent field of JSON is null")]
mod large_objects;
#[allow(clippy::indexing_slicing, reason = "a panic reports its location; an absent field of JSON is null")]
mod linkerd;
mod lost_answers;
mod namespaces;
mod permissions;
mod refusals;
mod slices;
mod watches;

use std::{
    collections::BTreeMap,
    ops::{Deref, DerefMut},
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use anyhow::{Result, ensure};
use e2e::{
    Fault, FaultProxy, Job, Manager, ManagerOptions, Options, Rig, TestNamespace, eventually,
    manager::{BACKED_OFF, QUIET},
    mesh::{MANAGED_BY, Mesh},
    shipped::{CLUSTER_ROLES, OPERATOR_ACCOUNT, OPERATOR_NAMESPACE},
};
use futures::StreamExt;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::{
    Client, ResourceExt,
    api::{ListParams, WatchEvent, WatchParams},
};
use tokio::task::JoinHandle;

const KINDS: [&str; 3] = ["/services", "/endpointslices", "/externalworkloads"];

/// The uid and resourceVersion of each slice, by name: every write changes them.
type Versions = BTreeMap<String, String>;

/// A namespace of a rig, and the proxy between its managers and the API server.
pub(super) struct FaultRig {
    rig: Rig,
    pub(super) mesh: Mesh,
    pub(super) proxy: FaultProxy,
}

impl FaultRig {
    async fn start(options: Options) -> Result<Self> {
        let rig = Rig::linkerd().options(options).start().await?;
        let mesh = new_mesh(&rig.client).await?;
        let proxy = FaultProxy::start(&rig).await?;
        Ok(Self { rig, mesh, proxy })
    }

    /// As [`FaultRig::start`], with the objects of `make deploy`: managers have the operator's ServiceAccount, these of
    /// the shipped ClusterRoles, and the shipped admission policies.
    async fn shipped_with(options: Options, bound: &[&str]) -> Result<Self> {
        let mut rig = Self::start(options).await?;
        rig.deploy_without_manager(bound).await?;
        rig.proxy = FaultProxy::start_with_token(&rig, OPERATOR_ACCOUNT, &rig.operator_token().await?).await?;
        Ok(rig)
    }

    pub(super) async fn shipped(options: Options) -> Result<Self> {
        Self::shipped_with(options, &CLUSTER_ROLES).await
    }

    /// Starts a manager with all jobs in the namespaces of [`FaultRig::shipped`], and waits until it is ready.
    pub(super) async fn shipped_manager(&self) -> Result<Manager> {
        let options = ManagerOptions::new([format!("--operator-namespace={OPERATOR_NAMESPACE}")]);
        self.behind(options).ready(self).await
    }

    /// Starts a manager behind the proxy that only writes slices, and waits until it is ready.
    async fn manager(&self) -> Result<Manager> {
        self.slice_writer().ready(self).await
    }

    fn slice_writer(&self) -> ManagerOptions {
        self.behind(ManagerOptions::only(Job::ExternalWorkload))
    }

    /// All managers have the same identity, so the next one leads without waiting for the Lease to expire.
    fn behind(&self, options: ManagerOptions) -> ManagerOptions {
        options.identity("operator").through(&self.proxy)
    }

    /// The number of attempts of the manager to change slices of the test's namespace.
    fn writes(&self) -> usize {
        let path = format!("/{}/endpointslices", self.mesh.namespace());
        ["POST", "PUT", "PATCH", "DELETE"].iter().map(|method| self.proxy.count(method, &path)).sum()
    }

    /// The number of complete lists of each kind, which are streamed.
    fn lists<const N: usize>(&self, kinds: [&str; N]) -> [usize; N] {
        let log = self.proxy.log();
        kinds.map(|kind| {
            let is_list = |path: &str| path.contains(&format!("{kind}?")) && path.contains("sendInitialEvents=true");
            log.iter().filter(|request| request.status == Some(200) && is_list(&request.path)).count()
        })
    }

    async fn versions(&self) -> Result<Versions> {
        let slices = self.mesh.slices.list(&ours()).await?;
        let version = |slice: &EndpointSlice| format!("{:?}/{:?}", slice.uid(), slice.resource_version());
        Ok(slices.iter().map(|slice| (slice.name_any(), version(slice))).collect())
    }

    /// Waits until a new change in another namespace reaches the slices and /ready reports no problem: then all watches
    /// work.
    async fn processes_changes(&self, manager: &Manager) -> Result<()> {
        let elsewhere = new_mesh(&self.client).await?;
        elsewhere.put_service("canary", serde_json::json!({})).await?;
        elsewhere.put_workload("canary", "canary", &["192.0.2.250"]).await?;
        eventually(BACKED_OFF, "changes to be processed again", async || {
            let seen = elsewhere.readiness("canary").await?;
            ensure!(seen.get("canary") == Some(&true), "{seen:?}");
            manager.has_no_problem().await
        })
        .await
    }
}

impl Deref for FaultRig {
    type Target = Rig;

    fn deref(&self) -> &Rig {
        &self.rig
    }
}

impl DerefMut for FaultRig {
    fn deref_mut(&mut self) -> &mut Rig {
        &mut self.rig
    }
}

/// With the garbage collector, which removes the slices of deleted Services. The short request timeout makes the API
/// server stop quickly: on shutdown it waits for open watches up to this timeout, one minute by default.
fn restartable() -> Options {
    let extra_api_server_args = vec!["--request-timeout=5s".to_owned()];
    Options { extra_api_server_args, ..Options::with_controllers() }
}

async fn new_mesh(client: &Client) -> Result<Mesh> {
    let namespace = TestNamespace::create(client, "fault").await?;
    Ok(Mesh::new(client, namespace.name()))
}

fn ours() -> ListParams {
    ListParams::default().labels(&format!("endpointslice.kubernetes.io/managed-by={MANAGED_BY}"))
}

/// Waits for an Event with this reason on an object, and fails if there is more than one. Returns its note.
async fn expect_one_event(mesh: &Mesh, name: &str, reason: &str) -> Result<String> {
    let note = mesh.expect_event(name, reason).await?;
    let events = mesh.events_of(name).await?;
    let count = events.iter().filter(|event| event.starts_with(reason)).count();
    ensure!(count == 1, "{count} Events {reason} on {name}: {events:?}");
    Ok(note)
}

/// Waits until the fault has intercepted `count` requests, and returns the time between the first and the last.
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

/// Records every version of our slices in a namespace, so that no intermediate state is missed.
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

    /// The workloads in each recorded version of the slices with this name prefix.
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
