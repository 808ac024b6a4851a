//! The destination server: what streams cost, and how late they are told.
//!
//! * In: a server of the Destination API, ours or another, and a cluster whose objects are made here ([`cluster`]). Out: rows.
//! * Always: the server has one core to itself; API server, etcd and the clients share the other. Ours is started anew for
//!   every row: memory that an earlier one freed would hide what a later one takes. A row that fails does not stop the next.

mod change;
mod changing;
mod cluster;
mod giant;
mod noise;
mod opaque;
mod profiles;
mod rest;
mod rig;
mod streams;

use anyhow::Result;

use crate::report::Report;
pub(crate) use rig::Other;
use rig::Rig;

pub(crate) const FIGURES: [&str; 13] = [
    "start",
    "connect",
    "streams",
    "change",
    "churn",
    "profiles",
    "servers",
    "profile-servers",
    "noise",
    "profile-noise",
    "relist",
    "giant",
    "unread",
];

pub(crate) async fn discovery(report: &mut Report, other: Option<Other>, wanted: impl Fn(&str) -> bool) -> Result<()> {
    let rig = Rig::start(report, other).await?;
    // The order is that of what each adds to the cluster: nothing, Services and Pods, addresses for these, Servers, a giant.
    if wanted("start") {
        let result = rest::empty(report, &rig).await;
        keep(report, "start", result);
    }
    // Without them there is nothing to be measured.
    cluster::populate(&rig.client).await?;
    rig.answers().await?;
    for figure in FIGURES.into_iter().filter(|figure| wanted(figure)) {
        eprintln!("{figure}");
        let result = match figure {
            "start" => rest::ready(report, &rig).await,
            "connect" => streams::connect(report, &rig).await,
            "streams" => streams::streams(report, &rig).await,
            "change" => change::changes(report, &rig).await,
            "churn" => change::churn(report, &rig).await,
            "profiles" => profiles::profiles(report, &rig).await,
            "servers" => streams::servers(report, &rig).await,
            "profile-servers" => profiles::servers(report, &rig).await,
            "noise" => noise::noise(report, &rig).await,
            "profile-noise" => profiles::noise(report, &rig).await,
            "relist" => noise::relist(report, &rig).await,
            "giant" => giant::giant(report, &rig).await,
            _ => giant::unread(report, &rig).await,
        };
        keep(report, figure, result);
    }
    Ok(())
}

fn keep(report: &mut Report, figure: &str, result: Result<()>) {
    if let Err(error) = result {
        report.failed(figure, &error);
    }
}
