//! IPv4 and IPv6 addresses of an ExternalWorkload that changes.

use anyhow::Result;
use serde_json::json;

use super::{MESHED, at, ip, ipv6, workload_at};
use crate::discovery::Rig;

#[tokio::test]
async fn open_streams_follow_the_addresses_of_a_workload() -> Result<()> {
    let rig = Rig::start("later").await?;
    let (v4, v6) = (ip(), ipv6());
    rig.put(workload_at("vm", &[&v4])).await?;
    let expected = format!("external_workload vm {MESHED}");
    let mut old = rig.opens_with(&at(&v4, 8080), &expected).await?;
    let mut new = rig.opens_with(&at(&v6, 8080), "address").await?;
    for (ips, of_old, of_new) in [
        (vec![&v4, &v6], expected.as_str(), expected.as_str()),
        (vec![&v6], "address", &expected),
        (vec![&v4], &expected, "address"),
    ] {
        let ips: Vec<_> = ips.iter().map(|ip| json!({ "ip": ip })).collect();
        rig.patch("ExternalWorkload", "vm", json!({"spec": { "workloadIPs": ips }})).await?;
        new.becomes(of_new).await?;
        old.becomes(of_old).await?;
    }
    old.has_received(3).await?;
    new.has_received(3).await
}
