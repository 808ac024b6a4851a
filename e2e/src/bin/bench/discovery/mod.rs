//! The destination server: the cost of streams, and the latency of updates.
//!
//! * In: a server of the Destination API, ours or another, and a cluster whose objects are created here ([`cluster`]).
//!   Out: rows.
//! * Always: the server has a dedicated core; API server, etcd and the clients share another. Our server is restarted
//!   for every row: memory that an earlier row has freed would hide the needs of a later one. A failed row does not
//!   stop the others.

mod attacks;
mod change;
mod changing;
mod cluster;
mod clusters;
mod giant;
mod growth;
mod largest;
mod moments;
mod noise;
mod opaque;
mod profiles;
mod recovery;
mod rest;
mod rig;
mod streams;
mod taken;

use anyhow::Result;

use self::cluster::ClusterSize;
use crate::report::Report;
use rig::DiscoveryBench;
pub(crate) use rig::Other;

/// Has a cluster of its own.
pub(crate) const LARGEST: &str = "largest";
const LONG_OUTAGE: &str = "long-outage";
/// Measured only by name: the objects of the largest cluster take a quarter of an hour to create, and the long outage
/// takes an hour.
pub(crate) const ONLY_BY_NAME: [&str; 2] = [LARGEST, LONG_OUTAGE];

pub(crate) const FIGURES: [&str; 18] = [
    "start",
    "connect",
    "streams",
    "change",
    "threads",
    "churn",
    "profiles",
    "servers",
    "profile-servers",
    "noise",
    "profile-noise",
    "relist",
    "giant",
    "unread",
    "recovery",
    LONG_OUTAGE,
    "clusters",
    "attacks",
];

pub(crate) async fn discovery(report: &mut Report, other: Option<Other>, wanted: impl Fn(&str) -> bool) -> Result<()> {
    let rig = DiscoveryBench::start(report, other).await?;
    // Ordered by the objects that each figure adds: none, Services and Pods, Servers, the giant Service, Services
    // of other clusters, those of attackers.
    if wanted("start") {
        let result = rest::empty(report, &rig).await;
        keep(report, "start", result);
    }
    // Without these objects nothing can be measured, so an error ends the run.
    cluster::populate(&rig.client, ClusterSize::USUAL).await?;
    cluster::run_pods(&rig.client, ClusterSize::USUAL).await?;
    rig.answers().await?;
    for figure in FIGURES.into_iter().filter(|figure| wanted(figure)) {
        eprintln!("{figure}");
        let result = match figure {
            "start" => rest::ready(report, &rig).await,
            "connect" => streams::connect(report, &rig).await,
            "streams" => streams::streams(report, &rig).await,
            "change" => change::changes(report, &rig).await,
            "threads" => change::threads(report, &rig).await,
            "churn" => change::churn(report, &rig).await,
            "profiles" => profiles::profiles(report, &rig).await,
            "servers" => streams::servers(report, &rig).await,
            "profile-servers" => profiles::servers(report, &rig).await,
            "noise" => noise::noise(report, &rig).await,
            "profile-noise" => profiles::noise(report, &rig).await,
            "relist" => noise::relist(report, &rig).await,
            "giant" => giant::giant(report, &rig).await,
            "unread" => giant::unread(report, &rig).await,
            "recovery" => recovery::recovery(report, &rig).await,
            LONG_OUTAGE => recovery::long_outage(report, &rig).await,
            "clusters" => clusters::clusters(report, &rig).await,
            _ => attacks::attacks(report, &rig).await,
        };
        keep(report, figure, result);
    }
    Ok(())
}

/// Measures the largest cluster that Kubernetes supports, with our server.
pub(crate) async fn largest(report: &mut Report) -> Result<()> {
    let mut rig = DiscoveryBench::start(report, None).await?;
    largest::largest(report, &mut rig).await
}

fn keep(report: &mut Report, figure: &str, result: Result<()>) {
    if let Err(error) = result {
        report.failed(figure, &error);
    }
}
