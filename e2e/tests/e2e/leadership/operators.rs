//! Two operators in two namespaces for one control plane, as after an installation under another name: one leads.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use e2e::{Job, Manager, ManagerOptions, Rig, Signal, eventually, holds, mesh::SOON};
use k8s_openapi::api::coordination::v1::Lease;
use kube::Api;

use super::{DURATION, EXPIRED, NAMESPACE, RETRY, STOP, short_times};

const LEASE: &str = "linkerd-operator";
const NAMESPACES: [&str; 2] = ["operator-a", "operator-b"];

/// A rig with our CRD, Linkerd's namespace and the namespaces of two operators.
struct Operators(Rig);

impl Operators {
    async fn new() -> Result<Self> {
        let rig = Rig::bare().crds("crd").namespace(NAMESPACE).namespace(NAMESPACES[0]).namespace(NAMESPACES[1]);
        Ok(Self(rig.start().await?))
    }

    /// Starts an operator with short times in this namespace. The namespace is its identity, too.
    async fn operator(&self, namespace: &str) -> Result<Manager> {
        let options = ManagerOptions::only(Job::LinkerdConfig).args([format!("--operator-namespace={namespace}")]);
        options.args(short_times()).identity(namespace).ready(&self.0).await
    }

    /// Returns the holder of the Lease in a namespace; empty without a Lease.
    async fn holder(&self, namespace: &str) -> Result<String> {
        let leases: Api<Lease> = Api::namespaced(self.0.client.clone(), namespace);
        let spec = leases.get_opt(LEASE).await?.and_then(|lease| lease.spec);
        Ok(spec.and_then(|spec| spec.holder_identity).unwrap_or_default())
    }
}

#[tokio::test]
async fn of_two_operators_in_different_namespaces_exactly_one_leads() -> Result<()> {
    let operators = Operators::new().await?;
    let mut first = operators.operator(NAMESPACES[0]).await?;
    first.leads(LEASE, SOON).await?;
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
    second.leads(LEASE, EXPIRED).await?;
    ensure!(operators.holder(NAMESPACE).await? == NAMESPACES[1], "the second operator must hold the Lease");
    Ok(())
}

/// A replica of an earlier version holds the Lease in the operator's namespace. Here it is an elector of client-go.
#[tokio::test]
async fn a_replica_of_an_earlier_version_and_a_new_one_do_not_lead_together() -> Result<()> {
    let operators = Operators::new().await?;
    let namespace = NAMESPACES[0];
    let mut earlier = operators.0.start_elector(namespace, LEASE)?;
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
    manager.leads(LEASE, SOON).await?;

    // A rollback: the earlier version takes the Lease in the operator's namespace. The new one stops at once, and
    // releases its Lease.
    let patch = r#"{"spec": {"holderIdentity": "earlier", "leaseDurationSeconds": 600}}"#;
    let edit = ["-n", namespace, "patch", "lease", LEASE, "--type=merge", "-p", patch];
    operators.0.kubectl(&edit).await?;
    eventually(SOON, "the new version to stop", async || {
        ensure!(!manager.is_leading(LEASE).await, "it leads");
        ensure!(operators.holder(NAMESPACE).await?.is_empty(), "it still holds the Lease in Linkerd's namespace");
        Ok(())
    })
    .await?;
    let log = manager.log();
    log.find("the Lease that it requires was lost").map(drop).with_context(|| log.clone())
}
