//! Bursts of Pods through one API server, and rolls of the replicas under a stream of Pods: every Pod is injected.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use anyhow::{Result, ensure};
use e2e::{eventually, mesh::SOON};
use tokio::{
    sync::Semaphore,
    task::JoinSet,
    time::{Instant, interval, sleep},
};

use super::cluster::{WebhookReplica, WebhookRig};

/// The time for a review. On a machine with few cores, which also run the API server and other tests, thousands of
/// reviews at the same time take longer than the shipped 10 s.
const REVIEW: u32 = 30;
/// The largest number of Pods of a stream that are being created at the same time: a stream is no burst, in which a slow
/// machine would take so long for each request that the endpoint of a stopped replica is removed too late.
const AT_ONCE: usize = 64;
/// The time after which no node sends requests to an endpoint that has left.
const ENDPOINTS: Duration = Duration::from_secs(1);

async fn cluster(policy: &str) -> Result<(Arc<WebhookRig>, [WebhookReplica; 2])> {
    let cluster = WebhookRig::under_load().await?;
    let replicas = [cluster.ready_replica().await?, cluster.ready_replica().await?];
    cluster.register_with(policy, Some(REVIEW)).await?;
    cluster.injects().await?;
    Ok((Arc::new(cluster), replicas))
}

/// Creates a Pod. Returns an error if it was refused or has no proxy. A request for which the API server itself has too
/// little time, as on a slow machine, is sent again.
async fn created(cluster: Arc<WebhookRig>) -> Option<String> {
    loop {
        match cluster.inject().await {
            Ok(()) => return None,
            Err(error) if is_timeout_without_webhook(&error) => {}
            Err(error) => return Some(format!("{error:#}")),
        }
    }
}

/// Whether a request took longer than a minute as a whole, for which no webhook waits, or longer than ten seconds in the
/// admission of quotas, which comes after all webhooks.
fn is_timeout_without_webhook(error: &anyhow::Error) -> bool {
    matches!(error.downcast_ref(), Some(kube::Error::Api(status))
        if status.code == 504 || status.message == "resource quota evaluation timed out")
}

/// Creates this number of Pods concurrently. Returns an error for each Pod that was refused or has no proxy.
async fn burst(cluster: &Arc<WebhookRig>, count: usize) -> Result<Vec<String>> {
    let mut pods = JoinSet::new();
    for _ in 0..count {
        pods.spawn(created(Arc::clone(cluster)));
    }
    Ok(pods.join_all().await.into_iter().flatten().collect())
}

#[tokio::test(flavor = "multi_thread")]
async fn every_pod_of_a_burst_is_injected() -> Result<()> {
    let (cluster, _replicas) = cluster("Ignore").await?;
    for policy in ["Ignore", "Fail"] {
        cluster.register_with(policy, Some(REVIEW)).await?;
        for count in [200, 600, 2_000] {
            let begun = Instant::now();
            let lost = burst(&cluster, count).await?;
            println!("{policy}: {count} Pods at once took {:?}, {} were lost", begun.elapsed(), lost.len());
            ensure!(lost.is_empty(), "{policy}: {} of {count} Pods were lost, first: {:?}", lost.len(), lost.first());
        }
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn every_pod_is_injected_while_all_replicas_are_replaced() -> Result<()> {
    for policy in ["Ignore", "Fail"] {
        let (cluster, replicas) = cluster(policy).await?;
        let rolled = Arc::<AtomicBool>::default();
        let pods = tokio::spawn(stream(Arc::clone(&cluster), Arc::clone(&rolled)));
        let _replicas = roll(&cluster, replicas).await?;
        rolled.store(true, Ordering::Relaxed);
        let results = pods.await?;
        let lost: Vec<_> = results.iter().flatten().collect();
        println!("{policy}: {} of {} Pods were lost", lost.len(), results.len());
        ensure!(lost.is_empty(), "{policy}: {} of {} Pods: {:?}", lost.len(), results.len(), lost.first());
        ensure!(results.len() > 500, "only {} Pods", results.len());
    }
    Ok(())
}

/// Creates 60 Pods per second until the replicas are replaced, or as many as the machine can. Returns the error of each
/// Pod that was refused or has no proxy.
async fn stream(cluster: Arc<WebhookRig>, rolled: Arc<AtomicBool>) -> Vec<Option<String>> {
    let (mut pods, mut due) = (JoinSet::new(), interval(Duration::from_millis(16)));
    let slots = Arc::new(Semaphore::new(AT_ONCE));
    while !rolled.load(Ordering::Relaxed) {
        due.tick().await;
        let slot = Arc::clone(&slots).acquire_owned().await;
        let cluster = Arc::clone(&cluster);
        pods.spawn(async move {
            let _slot = slot;
            created(cluster).await
        });
    }
    pods.join_all().await
}

/// Replaces each replica as a rolling update does: a new one is ready, then the old one stops, and leaves the endpoints a
/// while later.
async fn roll(cluster: &WebhookRig, replicas: [WebhookReplica; 2]) -> Result<Vec<WebhookReplica>> {
    let mut new = Vec::new();
    for mut old in replicas {
        new.push(cluster.ready_replica().await?);
        old.manager.begin_to_terminate()?;
        eventually(SOON, "the replica to be unready", async || {
            let (status, _) = old.manager.get("/ready").await?;
            ensure!(status.as_u16() == 503, "{status}");
            Ok(())
        })
        .await?;
        sleep(ENDPOINTS).await;
        cluster.remove_endpoint(&old).await?;
        let status = old.manager.wait(SOON).await?;
        ensure!(status.success(), "{status}");
    }
    Ok(new)
}
