//! A pool of control planes. One test at a time uses each of them, because LinkerdConfigs are cluster-scoped and a
//! manager watches all of them.
//!
//! * A control plane is lent without managers, injectors, LinkerdConfigs and workloads.
//! * A returned control plane keeps running for a short time, for the next test. Then it is stopped, to free its
//!   resources.

use std::{
    ops::Deref,
    path::Path,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use anyhow::{Context, Result};
use e2e::{ControlPlane, Options, control_plane::PERMIT_DEADLINE, injector::unregister, workload};
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, DynamicObject, ListParams, Patch, PatchParams},
};
use serde_json::json;
use tokio::{
    sync::{Semaphore, SemaphorePermit},
    time::timeout,
};

use super::kind;

/// Limits the control planes that are lent at the same time.
static LENT: Semaphore = Semaphore::const_new(2);
static IDLE: Mutex<Vec<Idle>> = Mutex::new(Vec::new());
static RETURNED: AtomicU64 = AtomicU64::new(0);
const IDLE_FOR: Duration = Duration::from_secs(3);

struct Idle {
    number: u64,
    has_nodes: bool,
    control_plane: ControlPlane,
}

pub(super) struct Lent {
    control_plane: Option<ControlPlane>,
    has_nodes: bool,
    /// `None` for a control plane that does not return to the pool.
    turn: Option<SemaphorePermit<'static>>,
}

impl Lent {
    pub(super) async fn take() -> Result<Self> {
        Self::take_one(false).await
    }

    /// Lends a control plane with two nodes, on which workloads run.
    pub(super) async fn take_with_nodes() -> Result<Self> {
        Self::take_one(true).await
    }

    async fn take_one(has_nodes: bool) -> Result<Self> {
        let turn = timeout(PERMIT_DEADLINE, LENT.acquire())
            .await
            .context("other tests held the lent control planes for too long")??;
        let waiting = {
            let mut idle = idle();
            let place = idle.iter().position(|idle| idle.has_nodes == has_nodes);
            place.map(|place| idle.swap_remove(place).control_plane)
        };
        let control_plane = match waiting {
            Some(control_plane) => control_plane,
            None if has_nodes => {
                let control_plane = ControlPlane::start(Options::full()).await?;
                for node in ["node-a", "node-b"] {
                    control_plane.add_node(node, "zone").await?;
                }
                control_plane
            }
            None => ControlPlane::start(Options::default()).await?,
        };
        let lent = Self { control_plane: Some(control_plane), has_nodes, turn: Some(turn) };
        lent.clear().await?;
        Ok(lent)
    }

    /// Starts a control plane with controllers, for one test only.
    pub(super) async fn with_controllers() -> Result<Self> {
        let control_plane = Some(ControlPlane::start(Options::with_controllers()).await?);
        let lent = Self { control_plane, has_nodes: false, turn: None };
        lent.clear().await?;
        Ok(lent)
    }

    /// Starts a control plane with the CRDs in this folder, for one test only.
    pub(super) async fn with_crds(folder: &Path) -> Result<Self> {
        let control_plane = ControlPlane::start(Options::default()).await?;
        control_plane.install_crds(&folder.display().to_string()).await?;
        Ok(Self { control_plane: Some(control_plane), has_nodes: false, turn: None })
    }

    async fn clear(&self) -> Result<()> {
        self.install_crds("crd").await?;
        // The webhook has a fixed name in the cluster, and outlives the injectors of the test that registered it.
        unregister(&self.client().await?).await?;
        let configs: Api<DynamicObject> = Api::all_with(self.client().await?, &kind());
        for config in configs.list(&ListParams::default()).await? {
            let name = config.name_any();
            let free = Patch::Merge(json!({"metadata": {"finalizers": null}}));
            configs.patch(&name, &PatchParams::default(), &free).await?;
            // Fails if the object is already deleted, because its deletion waited only for the finalizers.
            let _ = configs.delete(&name, &DeleteParams::default()).await;
        }
        if self.has_nodes {
            workload::remove_all(&self.client().await?).await?;
        }
        Ok(())
    }
}

impl Deref for Lent {
    type Target = ControlPlane;

    fn deref(&self) -> &ControlPlane {
        match &self.control_plane {
            Some(control_plane) => control_plane,
            None => unreachable!("the control plane is present until the drop"),
        }
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        let (Some(control_plane), Some(_)) = (self.control_plane.take(), &self.turn) else { return };
        let mut waiting = idle();
        let number = RETURNED.fetch_add(1, Ordering::Relaxed);
        waiting.push(Idle { number, has_nodes: self.has_nodes, control_plane });
        std::thread::spawn(move || {
            std::thread::sleep(IDLE_FOR);
            let unused = idle().extract_if(.., |idle| idle.number == number).collect::<Vec<_>>();
            drop(unused);
        });
    }
}

fn idle() -> MutexGuard<'static, Vec<Idle>> {
    IDLE.lock().unwrap_or_else(PoisonError::into_inner)
}
