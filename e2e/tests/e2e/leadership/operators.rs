//! Two operators in two namespaces for one control plane, as after an installation under another name: one leads.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use e2e::{ControlPlane, Manager, ManagerOptions, Options, Signal, eventually, holds, mesh::SOON};
use k8s_openapi::api::coordination::v1::Lease;
use kube::Api;

use super::{DURATION, EXPIRED, NAMESPACE, RETRY, STOP, short_times};

const LEASE: &str = "linkerd-operator";
const NAMESPACES: [&str; 2] = ["operator-a", "operator-b"];

/// A control plane with our CRD, Linkerd's namespace and the namespaces of two operators.
struct Operators {
    control_plane: ControlPlane,
}

impl Operators {
    async fn new() -> Result<Self> {
        let control_plane = ControlPlane::start(Options::default()).await?;
        control_plane.install_crds("crd").await?;
        for namespace in [&[NAMESPACE], &NAMESPACES[..]].concat() {
            control_plane.kubectl(&["create", "namespace", namespace]).await?;
        }
        Ok(Self { control_plane })
    }

    /// Starts an operator with short times in this namespace. The namespace is its identity, too.
    async fn operator(&self, namespace: &str) -> Result<Manager> {
        let own = [
            "--enable-external-workload=false".to_owned(),
            "--enable-destination=false".to_owned(),
            format!("--operator-namespace={namespace}"),
        ];
        let options = ManagerOptions {
            args: own.into_iter().chain(short_times()).collect(),
            identity: Some(namespace.to_owned()),
            ..ManagerOptions::default()
        };
        let mut manager = Manager::start(&self.control_plane, options)?;
        manager.ready(SOON).await?;
        Ok(manager)
    }

    /// Returns the holder of the Lease in a namespace; empty without a Lease.
    async fn holder(&self, namespace: &str) -> Result<String> {
        let leases: Api<Lease> = Api::namespaced(self.control_plane.client().await?, namespace);
        let spec = leases.get_opt(LEASE).await?.and_then(|lease| lease.spec);
        Ok(spec.and_then(|spec| spec.holder_identity).unwrap_or_default())
    }
}

async fn leads(manager: &Manager, deadline: Duration) -> Result<()> {
    eventually(deadline, "the operator to lead", async || {
        ensure!(manager.is_leading(LEASE).await, "it does not lead");
        Ok(())
    })
    .await
}

#[tokio::test]
async fn of_two_operators_in_different_namespaces_exactly_one_leads() -> Result<()> {
    let operators = Operators::new().await?;
    let mut first = operators.operator(NAMESPACES[0]).await?;
    leads(&first, SOON).await?;
    let second = operators.operator(NAMESPACES[1]).await?;
    eventually(SOON, "the second operator to hold the Lease in its namespace", async || {
        ensure!(operators.holder(NAMESPACES[1]).await? == NAMESPACES[1], "it does not hold it");
        Ok(())
    })
    .await?;
    holds(DURATION + RETRY, "only the first operator to lead", async || {
        let leading = (first.is_leading(LEASE).await, second.is_leading(LEASE).await);
        ensure!(leading == (true, false), "{leading:?}");
        ensure!(operators.holder(NAMESPACE).await? == NAMESPACES[0], "the Lease changed its holder");
        Ok(())
    })
    .await?;
    first.kill().await?;
    leads(&second, EXPIRED).await?;
    ensure!(operators.holder(NAMESPACE).await? == NAMESPACES[1], "the second operator must hold the Lease");
    Ok(())
}

/// A replica of an earlier version holds the Lease in the operator's namespace. Here it is an elector of client-go.
#[tokio::test]
async fn a_replica_of_an_earlier_version_and_a_new_one_do_not_lead_together() -> Result<()> {
    let operators = Operators::new().await?;
    let namespace = NAMESPACES[0];
    let mut earlier = operators.control_plane.start_elector(namespace, LEASE)?;
    let holder = eventually(Duration::from_secs(60), "the earlier version to lead", async || {
        let holder = operators.holder(namespace).await?;
        ensure!(!holder.is_empty(), "no replica holds the Lease");
        Ok(holder)
    })
    .await?;
    let manager = operators.operator(namespace).await?;
    holds(DURATION + RETRY, "the new version to wait", async || {
        ensure!(!manager.is_leading(LEASE).await, "it leads");
        ensure!(operators.holder(namespace).await? == holder, "the Lease changed its holder");
        ensure!(operators.holder(NAMESPACE).await?.is_empty(), "the Lease in Linkerd's namespace is held");
        Ok(())
    })
    .await?;
    earlier.signal(Signal::TERM)?;
    earlier.wait(STOP).await?;
    leads(&manager, SOON).await?;

    // A rollback: the earlier version takes the Lease in the operator's namespace. The new one stops at once, and
    // releases its Lease.
    let patch = r#"{"spec": {"holderIdentity": "earlier", "leaseDurationSeconds": 600}}"#;
    let edit = ["-n", namespace, "patch", "lease", LEASE, "--type=merge", "-p", patch];
    operators.control_plane.kubectl(&edit).await?;
    eventually(SOON, "the new version to stop", async || {
        ensure!(!manager.is_leading(LEASE).await, "it leads");
        ensure!(operators.holder(NAMESPACE).await?.is_empty(), "it still holds the Lease in Linkerd's namespace");
        Ok(())
    })
    .await?;
    let log = manager.log();
    log.find("the Lease that it requires was lost").map(drop).with_context(|| log.clone())
}
