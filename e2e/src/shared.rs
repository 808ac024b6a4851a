//! The control plane that the tests of one process share, a namespace each.
//!
//! * Always: started by the first who asks; ended, with its directory, when the process ends, because its supervisors notice.

use anyhow::Result;
use tokio::sync::OnceCell;

use crate::{
    control_plane::{ControlPlane, Options},
    manager::{Manager, ManagerOptions},
    mesh::SOON,
};

static SHARED: OnceCell<ControlPlane> = OnceCell::const_new();

/// A full control plane with the nodes `node-a` (zone `zone-a`), `node-b` and `node-c`. Nobody may restart it: it is only lent.
pub async fn shared() -> Result<&'static ControlPlane> {
    SHARED
        .get_or_try_init(async || {
            let control_plane = ControlPlane::launch(Options::full()).await?;
            // Not on somebody's real cluster.
            if control_plane.ca_pem().is_ok() {
                for letter in ["a", "b", "c"] {
                    control_plane.add_node(&format!("node-{letter}"), &format!("zone-{letter}")).await?;
                }
            }
            Ok(control_plane)
        })
        .await
}

/// The shared control plane with Linkerd's CRDs, and one manager that leads.
pub async fn shared_manager() -> Result<(&'static ControlPlane, &'static Manager)> {
    static MANAGER: OnceCell<Manager> = OnceCell::const_new();
    let control_plane = shared().await?;
    let manager = MANAGER
        .get_or_try_init(async || {
            control_plane.install_crds("crd/linkerd").await?;
            // It may exist on an existing cluster.
            if control_plane.kubectl(&["get", "namespace", "linkerd"]).await.is_err() {
                control_plane.kubectl(&["create", "namespace", "linkerd"]).await?;
            }
            let mut manager = Manager::start(control_plane, ManagerOptions::default())?;
            manager.ready(SOON).await?;
            anyhow::Ok(manager)
        })
        .await?;
    Ok((control_plane, manager))
}
