//! Profiles: the time until streams for Pod addresses and Service names have them, and the cost of Servers.

use std::time::Duration;

use anyhow::Result;
use serde_json::json;
use tokio::time::sleep;

use super::{
    cluster::{
        ClusterSize, SERVERS, SERVICES, populate_servers, profiles_of_pods, profiles_of_services, run_pods, select,
        server_kind, touch,
    },
    opaque,
    rig::DiscoveryBench,
    streams::{Herd, STREAMS},
};
use crate::report::Report;

const CONNECTIONS: usize = 100;
const TOUCHES: usize = 2_000;
/// The time in which no message may arrive.
const QUIET: Duration = Duration::from_secs(3);
/// Time for another server to receive the written objects; our server is started after the writes.
const LEARNED: Duration = Duration::from_secs(10);

/// Profiles by Pod address, each of another Pod, and by Service name.
pub(super) async fn profiles(report: &mut Report, rig: &DiscoveryBench) -> Result<()> {
    run(rig).await?;
    let of_pods = Herd {
        what: format!("{STREAMS} profiles by Pod IP on {CONNECTIONS} connections"),
        connections: CONNECTIONS,
        requests: profiles_of_pods(STREAMS),
        first: "all < 1 s, none refused (Go: 0.92 s)",
        memory: Some("≤ 8 KiB"),
        ..Herd::default()
    };
    of_pods.measure(report, rig).await?;
    let of_services = Herd {
        what: format!("{STREAMS} profiles of {SERVICES} Services on {CONNECTIONS} connections"),
        connections: CONNECTIONS,
        requests: profiles_of_services(STREAMS),
        first: "all < 1 s, none refused",
        memory: Some(""),
        ..Herd::default()
    };
    of_services.measure(report, rig).await
}

/// The same for Pods with Servers, and the effect of one more Server.
pub(super) async fn servers(report: &mut Report, rig: &DiscoveryBench) -> Result<()> {
    run(rig).await?;
    populate_servers(&rig.client).await?;
    for everything in [true, false] {
        select(&rig.client, everything).await?;
        learned(rig).await;
        let selecting = if everything { "everything" } else { "one app" };
        let herd = Herd {
            what: format!(
                "{STREAMS} profiles by Pod IP on {CONNECTIONS} connections, with {SERVERS} Servers that each select {selecting}"
            ),
            connections: CONNECTIONS,
            requests: profiles_of_pods(STREAMS),
            first: "all < 1 s, none refused (Go: 13.4 s, p50 9.2 s)",
            memory: None,
            ..Herd::default()
        };
        let measured = herd.measure(report, rig).await;
        // Restores the selectors for later rows, also after an error.
        select(&rig.client, false).await?;
        measured?;
    }
    opaque::opaque(report, rig).await
}

/// Edits annotations of Servers, which no profile contains.
pub(super) async fn noise(report: &mut Report, rig: &DiscoveryBench) -> Result<()> {
    run(rig).await?;
    populate_servers(&rig.client).await?;
    let subject = rig.subject().await?;
    let load = rig.open(&subject, CONNECTIONS, profiles_of_pods(STREAMS)).await?;
    let phase = rig.phase(&subject)?;
    for first in (0..TOUCHES).step_by(SERVERS) {
        let names = (first..TOUCHES.min(first + SERVERS)).map(|number| format!("server-{}", number % SERVERS));
        touch(&rig.client, &server_kind(), names).await?;
    }
    sleep(QUIET).await;
    let spent = phase.end()?;
    let messages = load.counts().messages;
    // The streams still work.
    opaque::change_and_wait(&rig.client, &load).await?;
    load.none_ended()?;
    let figure = format!("messages to {STREAMS} profiles by Pod IP after {TOUCHES} touches of Servers");
    report.row(figure, messages.to_string(), "0", json!(messages));
    report.spent(&spent);
    load.close().await;
    Ok(())
}

async fn run(rig: &DiscoveryBench) -> Result<()> {
    run_pods(&rig.client, ClusterSize::USUAL).await?;
    learned(rig).await;
    Ok(())
}

async fn learned(rig: &DiscoveryBench) {
    if !rig.is_ours() {
        sleep(LEARNED).await;
    }
}
