//! Changes on open streams: an address, and an address with a conflict.
//!
//! The random clusters have the other changes: `discovery/oracle.rs` on a real API server, and
//! `src/destination/oracle_tests.rs` for any order of events. The table of cases has the answers to new requests.

use anyhow::Result;
use e2e::discovery::socket_address;
use linkerd2_proxy_api::destination::{DestinationProfile, WeightedAddr};
use tonic::Code;

use super::{MESHED, at, default_budget, ip, workload_at};
use crate::discovery::{
    Served,
    objects::{meshed, pod},
};

#[tokio::test]
async fn an_unused_address_is_a_plain_endpoint_until_a_pod_has_it() -> Result<()> {
    let rig = Served::start("unknown").await?;
    let ip = ip();
    let mut open = rig.opens_with(&at(&ip, 8080), "address").await?;
    let address = open.stream.last()?.endpoint.as_ref().and_then(|endpoint| endpoint.addr);
    assert_eq!(address.as_ref().map(socket_address).transpose()?, Some(at(&ip, 8080).parse()?));
    let bare = DestinationProfile {
        retry_budget: default_budget(),
        endpoint: Some(WeightedAddr { addr: address, weight: 10_000, ..WeightedAddr::default() }),
        ..DestinationProfile::default()
    };
    assert_eq!(open.stream.last()?, &bare);
    open.has_received(1).await?;
    rig.run(meshed("web-1"), &[&ip]).await?;
    open.becomes(&format!("pod web-1 {MESHED}")).await?;
    rig.delete("Pod", "web-1").await?;
    open.becomes_exactly(&bare).await?;
    open.has_received(3).await
}

#[tokio::test]
async fn a_new_conflict_ends_the_stream_and_a_resolved_one_is_forgotten() -> Result<()> {
    let rig = Served::start("conflict").await?;
    let ip = ip();
    let path = at(&ip, 8080);
    rig.put(workload_at("e", &[&ip])).await?;
    let open = rig.opens_with(&path, &format!("external_workload e {MESHED}")).await?;
    rig.put(workload_at("f", &[&ip])).await?;
    let conflict = "found 2 externalworkloads with a conflicting ip";
    open.ends_and_then_is_refused(Code::FailedPrecondition, conflict).await?;
    // A Pod takes precedence over both.
    rig.run(pod("g"), &[&ip]).await?;
    let open = rig.opens_with(&path, "pod g").await?;
    rig.delete("Pod", "g").await?;
    open.ends_and_then_is_refused(Code::FailedPrecondition, conflict).await?;
    rig.delete("ExternalWorkload", "e").await?;
    rig.opens_with(&path, &format!("external_workload f {MESHED}")).await.map(drop)
}
