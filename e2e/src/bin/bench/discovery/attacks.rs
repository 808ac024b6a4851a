//! The latency of changes while clients and tenants attack the server.
//!
//! The attackers share a core with the API server and with the client that measures, and delay both. So the latency is
//! also read from the server's own histogram: from the receipt of an event until a stream has taken its change.

use std::time::Duration;

use anyhow::Result;
use e2e::{
    ManagerOptions,
    attack::{Attack, Target},
    memory::mebibytes,
};
use serde_json::json;
use tokio::time::sleep;

use super::{
    changing::{ChangeKind, Changing},
    cluster::stream_requests,
    rig::DiscoveryBench,
};
use crate::report::Report;

const NAMESPACE: &str = "attackers";
const SERVICE: &str = "web-0";
const STREAMS: usize = 100;
const CONNECTIONS: usize = 10;
const CHANGES: u16 = 100;
/// The time between two changes, and for an attack to begin.
const PAUSE: Duration = Duration::from_millis(50);
const BEGUN: Duration = Duration::from_secs(2);
/// The memory limit of the shipped Deployment.
const LIMIT: u64 = 250 * 1024 * 1024;

/// Makes changes during each attack. The attackers share a core with the API server, not with our server.
pub(super) async fn attacks(report: &mut Report, rig: &DiscoveryBench) -> Result<()> {
    if !rig.is_ours() {
        // Other servers are not attacked.
        return Ok(());
    }
    // An existing cluster may have the namespace.
    let _ = rig.control_plane.kubectl(&["create", "namespace", NAMESPACE]).await;
    for attack in Attack::ALL {
        attack.prepare(&rig.client, NAMESPACE).await?;
    }
    for attack in Attack::ALL {
        let figure = format!("one change to {STREAMS} streams during {attack:?}, {CHANGES} times");
        if let Err(error) = attacked(report, rig, attack, figure.clone()).await {
            report.failed(&figure, &error);
        }
    }
    Ok(())
}

async fn attacked(report: &mut Report, rig: &DiscoveryBench, attack: Attack, figure: String) -> Result<()> {
    let changing = Changing::prepare(&rig.client, SERVICE, ChangeKind::Move).await?;
    let subject = rig.subject_with(ManagerOptions { memory_limit: Some(LIMIT), ..ManagerOptions::default() }).await?;
    let load = rig.open(&subject, CONNECTIONS, stream_requests(STREAMS, 1)).await?;
    let target = Target { client: rig.client.clone(), namespace: NAMESPACE.to_owned(), server: subject.address };
    let mut running = attack.begin(target)?;
    sleep(BEGUN).await;
    load.reset();
    let before = subject.taken().await?;
    for number in 0..CHANGES {
        changing.change_and_wait(number, &load, STREAMS as u64).await?;
        sleep(PAUSE).await;
    }
    running.is_running()?;
    let server = subject.taken().await?.since(&before).bound(0.99);
    let late = changing.lateness(&load)?;
    let peak = subject.memory()?.unwrap_or_default().peak;
    let text = format!(
        "at the client {}; at the server p99 ≤ {:.1} ms; {:.0} MiB at the peak",
        late.since_seen.text(),
        server * 1000.0,
        mebibytes(peak)
    );
    let raw = json!({"since_watch_event": late.since_seen.histogram(), "server_p99_seconds": server, "peak_memory_bytes": peak});
    report.row(figure, text, "p99 ≤ 50 ms, < 250 MiB", raw);
    load.close().await;
    Ok(())
}
