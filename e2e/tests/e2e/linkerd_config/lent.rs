//! Control planes that tests use one after the other: one test at a time, because a LinkerdConfig belongs to no namespace and a
//! manager looks at all of them.
//!
//! * Always: without managers, injectors and LinkerdConfigs when it is lent. Who comes soon finds it running; then it ends, so
//!   that tests elsewhere get their turn.

use std::{
    ops::Deref,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use anyhow::Result;
use e2e::{ControlPlane, Options, injector::unregister};
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, DynamicObject, ListParams, Patch, PatchParams},
};
use serde_json::json;
use tokio::sync::{Semaphore, SemaphorePermit};

use super::kind;

/// As many as there may be of all that belong to one test.
static LENT: Semaphore = Semaphore::const_new(2);
static IDLE: Mutex<Vec<(u64, ControlPlane)>> = Mutex::new(Vec::new());
static RETURNED: AtomicU64 = AtomicU64::new(0);
const IDLE_FOR: Duration = Duration::from_secs(3);

pub(super) struct Lent {
    control_plane: Option<ControlPlane>,
    /// None of one that does not come back.
    turn: Option<SemaphorePermit<'static>>,
}

impl Lent {
    pub(super) async fn take() -> Result<Self> {
        let turn = LENT.acquire().await?;
        let waiting = idle().pop();
        let control_plane = match waiting {
            Some((_, control_plane)) => control_plane,
            None => ControlPlane::start(Options::default()).await?,
        };
        let lent = Self { control_plane: Some(control_plane), turn: Some(turn) };
        lent.clear().await?;
        Ok(lent)
    }

    /// One with controllers, for one test.
    pub(super) async fn with_controllers() -> Result<Self> {
        let options = Options { controller_manager: true, ..Options::default() };
        let lent = Self { control_plane: Some(ControlPlane::start(options).await?), turn: None };
        lent.clear().await?;
        Ok(lent)
    }

    async fn clear(&self) -> Result<()> {
        self.install_crds("crd").await?;
        // It has one name in a cluster, and outlives the injectors of the test that registered it.
        unregister(&self.client().await?).await?;
        let configs: Api<DynamicObject> = Api::all_with(self.client().await?, &kind());
        for config in configs.list(&ListParams::default()).await? {
            let name = config.name_any();
            let free = Patch::Merge(json!({"metadata": {"finalizers": null}}));
            configs.patch(&name, &PatchParams::default(), &free).await?;
            // Gone already, if its deletion waited.
            let _ = configs.delete(&name, &DeleteParams::default()).await;
        }
        Ok(())
    }
}

impl Deref for Lent {
    type Target = ControlPlane;

    fn deref(&self) -> &ControlPlane {
        match &self.control_plane {
            Some(control_plane) => control_plane,
            None => unreachable!("it is there until this is dropped"),
        }
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        let (Some(control_plane), Some(_)) = (self.control_plane.take(), &self.turn) else { return };
        let mut waiting = idle();
        let number = RETURNED.fetch_add(1, Ordering::Relaxed);
        waiting.push((number, control_plane));
        std::thread::spawn(move || {
            std::thread::sleep(IDLE_FOR);
            let unused = idle().extract_if(.., |(own, _)| *own == number).collect::<Vec<_>>();
            drop(unused);
        });
    }
}

fn idle() -> MutexGuard<'static, Vec<(u64, ControlPlane)>> {
    IDLE.lock().unwrap_or_else(PoisonError::into_inner)
}
