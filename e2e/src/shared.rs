//! The control plane and the manager that the tests of one process share; each test has its own namespace.
//!
//! * Always: started by the first caller; ended, and its directory removed, when the process ends, because the
//!   supervisors detect that.

use std::{ops::Deref, thread};

use anyhow::Result;
use tokio::sync::OnceCell;

use crate::{
    control_plane::{ControlPlane, Options},
    manager::{Manager, ManagerOptions},
    shipped::{CLUSTER_ROLES, OPERATOR_NAMESPACE},
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

/// Other clusters with Linkerd's CRDs, without controllers: `east` and `north`. Tests must not restart them.
pub async fn shared_other(name: &str) -> Result<&'static ControlPlane> {
    static OTHERS: [OnceCell<ControlPlane>; 2] = [const { OnceCell::const_new() }; 2];
    let [east, north] = &OTHERS;
    let other = if name == "east" { east } else { north };
    other
        .get_or_try_init(async || {
            let control_plane = ControlPlane::launch(Options::default()).await?;
            control_plane.install_crds("crd/linkerd").await?;
            anyhow::Ok(control_plane)
        })
        .await
}

/// A manager that several tests use, with the permissions of the manifests. Its drop at the end of a test fails the test
/// if a request of this manager has been denied so far, during any test.
pub struct SharedManager(&'static Manager);

/// The shared control plane with Linkerd's CRDs, and one manager that leads.
pub async fn shared_manager() -> Result<(&'static ControlPlane, SharedManager)> {
    static MANAGER: OnceCell<Manager> = OnceCell::const_new();
    let control_plane = shared().await?;
    let manager = MANAGER.get_or_try_init(async || {
        install(control_plane).await?;
        let mut options = ManagerOptions::default();
        // On an existing cluster the manager runs with the permissions of the caller's kubeconfig.
        if control_plane.ca_pem().is_ok() {
            options = options.kubeconfig(control_plane.operator_kubeconfig().await?);
            options = options.args([format!("--operator-namespace={OPERATOR_NAMESPACE}")]);
        }
        options.ready(control_plane).await
    });
    Ok((control_plane, SharedManager(manager.await?)))
}

async fn install(control_plane: &ControlPlane) -> Result<()> {
    control_plane.install_crds("crd/linkerd").await?;
    // The namespace may exist on an existing cluster.
    if control_plane.kubectl(&["get", "namespace", "linkerd"]).await.is_err() {
        control_plane.kubectl(&["create", "namespace", "linkerd"]).await?;
    }
    if control_plane.ca_pem().is_ok() {
        control_plane.deploy_without_manager(&CLUSTER_ROLES).await?;
        control_plane.install_crds("crd").await?;
    }
    Ok(())
}

impl Deref for SharedManager {
    type Target = Manager;

    fn deref(&self) -> &Manager {
        self.0
    }
}

impl Drop for SharedManager {
    fn drop(&mut self) {
        let log = self.log();
        let denied = denied(&log);
        // A second panic would abort the process.
        assert!(denied.is_none() || thread::panicking(), "the API server denied a request of a manager: {denied:?}");
    }
}

/// The first line about a denied request. A terminating namespace also rejects new objects with "is forbidden", but that
/// message contains no user.
fn denied(log: &str) -> Option<&str> {
    log.lines().find(|line| line.contains("is forbidden: User"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_denied_request_is_found_and_a_terminating_namespace_is_not_one() {
        let terminating = r#"slices.discovery.k8s.io "a" is forbidden: unable to create new content in namespace b"#;
        let refused = r#"events.events.k8s.io is forbidden: User "operator" cannot create resource "events""#;
        assert_eq!(denied(&format!("ready\n{terminating}\n")), None);
        assert_eq!(denied(&format!("ready\n{terminating}\n{refused}\n")), Some(refused));
    }
}
