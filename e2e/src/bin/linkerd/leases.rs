//! Our manager and Linkerd's destination take turns on the Lease for EndpointSlices.
//!
//! * In: the path of Linkerd's controller. Out: what happened at each hand-over.
//! * Always: before each hand-over the slices are those of the present workloads; then a hand-over must not change
//!   them, also after SIGKILL, because both controllers write the same slices.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use e2e::{ControlPlane, Rig, TestNamespace, eventually, mesh::Mesh};
use k8s_openapi::api::coordination::v1::Lease;
use kube::{Api, ResourceExt};
use serde_json::json;
use tokio::time::sleep;

use crate::replica::{EitherReplica, LEASE, ServerKind};

const SERVICE: &str = "web";
/// Longer than the Lease, which has to expire after SIGKILL.
const SOON: Duration = Duration::from_secs(60);
const WORKLOADS: usize = 20;
/// The time in which a new leader would rewrite slices that it does not like.
const EXAMINED: Duration = Duration::from_secs(3);

/// One hand-over.
pub(crate) struct HandOver {
    pub(crate) what: &'static str,
    /// From the signal until the other one holds the Lease.
    pub(crate) taken: Duration,
    /// The slices that were written although no workload had changed.
    pub(crate) rewritten: usize,
    /// From a change of a workload, after that, until its slice has it.
    pub(crate) followed: Duration,
}

struct LeaseScene {
    controller: PathBuf,
    control_plane: ControlPlane,
    mesh: Mesh,
    leases: Api<Lease>,
    /// How often the workloads were changed.
    changes: usize,
}

pub(crate) async fn take_turns(controller: &Path) -> Result<Vec<HandOver>> {
    let Rig { control_plane, client } = Rig::linkerd().start().await?;
    let namespace = TestNamespace::create(&client, "turns").await?;
    let mesh = Mesh::new(&client, namespace.name());
    let leases = Api::namespaced(client.clone(), "linkerd");
    let mut scene = LeaseScene { controller: controller.to_owned(), control_plane, mesh, leases, changes: 0 };
    scene.mesh.put_service(SERVICE, json!({})).await?;
    // Linkerd's server does not start without any EndpointSlice in the cluster.
    for number in 0..WORKLOADS {
        scene.mesh.put_workload(&name(number), SERVICE, &[&format!("192.0.2.{}", number + 1)]).await?;
    }
    let mut holder = scene.start(ServerKind::Ours).await?;
    scene.change().await?;
    let mut turns = Vec::new();
    for (what, kill) in [
        ("from ours to Linkerd's, SIGTERM", false),
        ("from Linkerd's to ours, SIGTERM", false),
        ("from ours to Linkerd's, SIGKILL", true),
        ("from Linkerd's to ours, SIGKILL", true),
    ] {
        holder = scene.hand_over(holder, what, kill, &mut turns).await?;
    }
    Ok(turns)
}

fn name(number: usize) -> String {
    format!("vm-{number:02}")
}

// === impl LeaseScene ===

impl LeaseScene {
    async fn start(&self, server: ServerKind) -> Result<EitherReplica> {
        EitherReplica::start(server, &self.controller, &self.control_plane, &[]).await
    }

    /// Starts the other process, ends the holder, and waits until the other one has taken over.
    async fn hand_over(
        &mut self,
        holder: EitherReplica,
        what: &'static str,
        kill: bool,
        turns: &mut Vec<HandOver>,
    ) -> Result<EitherReplica> {
        let next = match holder.server() {
            ServerKind::Theirs => ServerKind::Ours,
            ServerKind::Ours => ServerKind::Theirs,
        };
        let next = self.start(next).await?;
        let (before, held) = (self.versions().await?, self.holder().await?);
        let begun = Instant::now();
        if kill {
            holder.kill().await?;
        } else {
            holder.terminate().await?;
        }
        eventually(SOON, format_args!("{what}: another holder"), async || {
            let now = self.holder().await?;
            ensure!(now != held && !now.is_empty(), "the holder is {now:?}");
            Ok(())
        })
        .await?;
        let taken = begun.elapsed();
        // A new leader examines every Service at once. That the change below is written shows that it does write.
        sleep(EXAMINED).await;
        let after = self.versions().await?;
        let rewritten = after.iter().filter(|(slice, version)| before.get(*slice) != Some(*version)).count();
        let begun = Instant::now();
        self.change().await.with_context(|| what.to_owned())?;
        turns.push(HandOver { what, taken, rewritten, followed: begun.elapsed() });
        Ok(next)
    }

    /// Changes the readiness of a workload, and waits until the slices show exactly the present workloads.
    async fn change(&mut self) -> Result<()> {
        self.changes += 1;
        self.mesh.set_ready(&name(self.changes % WORKLOADS), self.changes.is_multiple_of(2)).await?;
        let mut expected: BTreeMap<String, bool> = (0..WORKLOADS).map(|number| (name(number), true)).collect();
        for change in 1..=self.changes {
            expected.insert(name(change % WORKLOADS), change.is_multiple_of(2));
        }
        eventually(SOON, "the slices to show all workloads", async || {
            let seen = self.mesh.readiness(SERVICE).await?;
            ensure!(seen == expected, "{seen:?}");
            Ok(())
        })
        .await
    }

    async fn holder(&self) -> Result<String> {
        let lease = self.leases.get(LEASE).await?;
        Ok(lease.spec.and_then(|spec| spec.holder_identity).unwrap_or_default())
    }

    async fn versions(&self) -> Result<BTreeMap<String, Option<String>>> {
        let slices = self.mesh.our_slices(SERVICE).await?;
        Ok(slices.into_iter().map(|slice| (slice.name_any(), slice.resource_version())).collect())
    }
}
