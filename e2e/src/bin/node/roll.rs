//! An upgrade and the loss of a replica, while clients are connected and workloads change.

use std::{
    net::SocketAddr,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use e2e::ControlPlane;
use kube::Client;

use crate::{
    churn::{self, EndpointChurn},
    clients::NodeClients,
    deployment::Deployment,
};

/// The time limit for a client that lost its stream to know all endpoints again.
const RECOVERED: Duration = Duration::from_secs(3);
/// Linkerd's Lease; its holder writes the EndpointSlices.
const LEASE: (&str, &str) = ("linkerd", "linkerd-destination-endpoint-write");

pub(crate) async fn under_load(
    control_plane: &ControlPlane,
    deployment: &Deployment<'_>,
    client: &Client,
    outside: SocketAddr,
) -> Result<()> {
    let begun = Instant::now();
    control_plane.kubectl(&["create", "namespace", churn::NAMESPACE]).await?;
    let churn = EndpointChurn::start(client).await?;
    let clients = NodeClients::start(outside, &churn.truth).await?;
    crate::step("Clients know all endpoints of a Service, some of which change continuously", begun);

    let begun = Instant::now();
    deployment.roll().await?;
    deployment.was_never_forbidden().await?;
    crate::step("kubectl rollout restart: both replicas were replaced", begun);

    let begun = Instant::now();
    let holder = deployment.delete_holder(LEASE.0, LEASE.1).await?;
    crate::step(&format!("The leader {holder} was deleted, and another replica took over"), begun);

    let begun = Instant::now();
    let written = churn.stop().await?;
    let recovered = clients.stop().await?;
    let longest = recovered.last().context("no client lost its stream, so nothing was tested")?;
    ensure!(
        *longest <= RECOVERED,
        "a client that lost its stream knew all endpoints only after {longest:?}; all times: {recovered:?}"
    );
    let median = recovered.get(recovered.len() / 2).context("no client lost its stream")?;
    let latest = written.iter().max().context("no workload changed, so nothing was tested")?;
    crate::step(
        &format!(
            "{} streams were lost, and their clients knew all endpoints again after {median:.1?}, at most {longest:.1?}; no message \
             was wrong; all {} changes reached the slices, the slowest after {latest:.1?}",
            recovered.len(),
            written.len()
        ),
        begun,
    );
    Ok(())
}
