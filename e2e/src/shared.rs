//! The control plane that the tests of one process share; each test has its own namespace.
//!
//! * Always: started by the first caller; ended, and its directory removed, when the process ends, because the
//!   supervisors detect that.

use anyhow::{Result, ensure};
use tokio::sync::OnceCell;

use crate::{
    control_plane::{ControlPlane, Options},
    manager::{Manager, ManagerOptions},
    mesh::SOON,
    shipped::{CLUSTER_ROLES, OPERATOR_ACCOUNT, OPERATOR_NAMESPACE},
    watchdog,
};

static SHARED: OnceCell<ControlPlane> = OnceCell::const_new();

/// A full control plane with the nodes `node-a` (zone `zone-a`), `node-b` and `node-c`. Tests must not restart it.
pub async fn shared() -> Result<&'static ControlPlane> {
    watchdog::watch_this_test();
    SHARED
        .get_or_try_init(async || {
            let control_plane = ControlPlane::launch(Options::full()).await?;
            // Never on an existing cluster.
            if control_plane.ca_pem().is_ok() {
                for letter in ["a", "b", "c"] {
                    control_plane.add_node(&format!("node-{letter}"), &format!("zone-{letter}")).await?;
                }
            }
            Ok(control_plane)
        })
        .await
}

/// The shared control plane with Linkerd's CRDs, and one manager that leads and has the permissions of the manifests.
///
/// # Errors
/// Fails also when a request of this manager has been denied so far, during any test.
pub async fn shared_manager() -> Result<(&'static ControlPlane, &'static Manager)> {
    static MANAGER: OnceCell<Manager> = OnceCell::const_new();
    let control_plane = shared().await?;
    let manager = MANAGER
        .get_or_try_init(async || {
            control_plane.install_crds("crd/linkerd").await?;
            // The namespace may exist on an existing cluster.
            if control_plane.kubectl(&["get", "namespace", "linkerd"]).await.is_err() {
                control_plane.kubectl(&["create", "namespace", "linkerd"]).await?;
            }
            let mut options = ManagerOptions::default();
            // On an existing cluster the manager runs with the permissions of the caller's kubeconfig.
            if control_plane.ca_pem().is_ok() {
                control_plane.deploy_without_manager(&CLUSTER_ROLES).await?;
                control_plane.install_crds("crd").await?;
                let account =
                    control_plane.kubeconfig_for_service_account(OPERATOR_NAMESPACE, OPERATOR_ACCOUNT).await?;
                options.kubeconfig = Some(account);
                options.args = vec![format!("--operator-namespace={OPERATOR_NAMESPACE}")];
            }
            let mut manager = Manager::start(control_plane, options)?;
            manager.ready(SOON).await?;
            anyhow::Ok(manager)
        })
        .await?;
    // A terminating namespace also rejects new objects with "is forbidden", but that message contains no user.
    let log = manager.log();
    let denied = log.lines().find(|line| line.contains("is forbidden: User"));
    ensure!(denied.is_none(), "{denied:?}");
    Ok((control_plane, manager))
}
