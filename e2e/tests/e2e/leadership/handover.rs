//! The leader ends, and the other replica takes over.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use anyhow::{Result, ensure};
use e2e::{Action, FaultProxy, Manager, Rule, eventually, holds, mesh::SOON};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use serde_json::json;

use super::{DURATION, EXPIRED, LEASE, STOP, Stage, gap, is_leading, replica, signed, slice_writes, writes};

#[tokio::test]
async fn on_sigterm_the_leader_releases_its_lease_and_the_other_replica_writes() -> Result<()> {
    let stage = Stage::new().await?;
    let mut first = stage.start(replica("first")).await?;
    first.leads(LEASE, SOON).await?;
    stage.mesh.shows("web", &[("vm", true)]).await?;
    // The proxy counts all requests: the metrics of a replica may not cover every write.
    let proxy = FaultProxy::start(&stage.control_plane).await?;
    let second = stage.start(replica("second").through(&proxy)).await?;
    stage.flip(false).await?;
    holds(Duration::from_secs(3), "the follower to write nothing", async || {
        let sent = ["POST", "PUT", "PATCH", "DELETE"].iter().map(|method| proxy.count(method, "")).sum::<usize>();
        ensure!(sent == 0 && writes(&second).await? == 0.0, "the follower sent {sent} writes");
        Ok(())
    })
    .await?;
    let (version, before) = (stage.version().await?, stage.record().await?);
    ensure!(before.holder_identity.as_deref() == Some("first"), "{before:?}");

    let status = first.terminate(STOP).await?;
    let ended = Instant::now();
    ensure!(status.success(), "{status}");
    stage.mesh.set_ready("vm", true).await?;
    stage.mesh.shows("web", &[("vm", true)]).await?;
    eprintln!("written {:?} after the leader had ended", ended.elapsed());
    let after = stage.is_released(&version, "first").await?;
    ensure!(after.holder_identity.as_deref() == Some("second"), "{after:?}");
    assert_eq!(after.lease_transitions, before.lease_transitions.map(|transitions| transitions + 1));
    assert_eq!(slice_writes(&proxy), 1, "only the flip must be written");
    Ok(())
}

#[tokio::test]
async fn after_a_kill_the_other_replica_takes_over_only_when_the_lease_has_expired() -> Result<()> {
    let stage = Stage::new().await?;
    let (mut first, second) = stage.pair().await?;
    first.kill().await?;
    let last = stage.record().await?;
    // Changes while no replica leads.
    stage.mesh.put_service("late", json!({})).await?;
    stage.mesh.put_workload("vm-late", "late", &["192.0.2.5"]).await?;
    stage.mesh.put_workload("vm-2", "web", &["192.0.2.6"]).await?;
    stage.mesh.set_ready("vm", false).await?;
    ensure!(writes(&second).await? == 0.0, "the follower wrote");

    let record = stage.held_by("second", EXPIRED).await?;
    let gap = gap(&last, &record)?;
    ensure!(gap >= signed(DURATION)?, "taken {gap:?} after the last renewal");
    eprintln!("taken {gap:?} after the last renewal");
    assert_eq!(record.lease_transitions, last.lease_transitions.map(|transitions| transitions + 1));
    stage.mesh.shows("web", &[("vm", false), ("vm-2", true)]).await?;
    stage.mesh.shows("late", &[("vm-late", true)]).await
}

/// A workload that changes its family changes its slice: the new slice is created, the old one is emptied, then
/// deleted.
#[tokio::test]
async fn the_next_leader_completes_the_writes_of_a_killed_one_f18() -> Result<()> {
    let stage = Stage::new().await?;
    stage
        .mesh
        .put_service("both", json!({"ipFamilies": ["IPv4", "IPv6"], "ipFamilyPolicy": "PreferDualStack"}))
        .await?;
    stage.mesh.put_workload("vm-both", "both", &["192.0.2.7"]).await?;
    let rounds = [("POST", "IPv6", "2001:db8::7"), ("PUT", "IPv4", "192.0.2.7"), ("DELETE", "IPv6", "2001:db8::7")];
    for (round, (method, family, address)) in rounds.into_iter().enumerate() {
        let proxy = FaultProxy::start(&stage.control_plane).await?;
        let mut first = stage.manager_behind(&proxy, &format!("first-{round}")).await?;
        first.leads(LEASE, SOON).await?;
        // A write for the other Service must not be the one that is held.
        stage.mesh.shows("web", &[("vm", true)]).await?;
        stage.mesh.shows("both", &[("vm-both", true)]).await?;
        let held = proxy.inject(Rule::path("/endpointslices").method(method).times(1), Action::Hold);
        stage.mesh.patch_workload("vm-both", json!({"spec": {"workloadIPs": [{"ip": address}]}})).await?;
        held.is_hit(|hits| hits == 1).await?;
        first.kill().await?;
        let slices = stage.mesh.our_slices("both").await?.len();
        ensure!(slices == [1, 2, 2][round], "{slices} slices before {method}");

        let second_proxy = FaultProxy::start(&stage.control_plane).await?;
        let mut second = stage.manager_behind(&second_proxy, &format!("second-{round}")).await?;
        eventually(EXPIRED, format_args!("one slice after the lost {method}"), async || {
            let slices = stage.mesh.our_slices("both").await?;
            let right = |slice: &EndpointSlice| slice.address_type == family && slice.endpoints.len() == 1;
            ensure!(slices.len() == 1 && slices.iter().all(right), "{slices:?}");
            Ok(())
        })
        .await?;
        // Only the remaining writes are made. The proxy counts them, because a manager counts a write only after its
        // response.
        assert_eq!(slice_writes(&second_proxy), [3, 2, 1][round]);
        second.terminate(STOP).await?;
    }
    Ok(())
}

#[tokio::test]
async fn replicas_that_end_in_turn_under_churn_publish_every_endpoint_once() -> Result<()> {
    const SERVICES: usize = 3;
    const WORKLOADS: usize = 48;
    let stage = Stage::new().await?;
    let service = |number: usize| format!("web-{}", number % SERVICES);
    for number in 0..SERVICES {
        stage.mesh.put_service(&service(number), json!({})).await?;
    }
    // The expected final readiness by workload.
    let mut expected: BTreeMap<usize, bool> = BTreeMap::new();
    let put = async |number: usize| {
        stage
            .mesh
            .put_workload(&format!("vm-{number}"), &service(number), &[&format!("198.51.100.{}", number + 1)])
            .await
    };
    for number in 0..WORKLOADS {
        put(number).await?;
        expected.insert(number, true);
    }
    let mut replicas = vec![stage.manager("replica-0").await?, stage.manager("replica-1").await?];
    for round in 0..4 {
        let mut leader = replicas.remove(leader_of(&replicas).await?);
        let end = async {
            // Alternately as during an update and as during a node failure.
            if round % 2 == 0 { leader.terminate(STOP).await.map(drop) } else { leader.kill().await }
        };
        // Changes during the handover: most flip the readiness, some delete or create a workload.
        let churn = async {
            for step in 0..WORKLOADS {
                let number = (step * 7 + round) % WORKLOADS;
                let name = format!("vm-{number}");
                match expected.get(&number).copied() {
                    Some(_) if step % 6 == 5 => {
                        stage.mesh.delete_workload(&name).await?;
                        expected.remove(&number);
                    }
                    Some(ready) => {
                        stage.mesh.set_ready(&name, !ready).await?;
                        expected.insert(number, !ready);
                    }
                    None => {
                        put(number).await?;
                        expected.insert(number, true);
                    }
                }
            }
            anyhow::Ok(())
        };
        tokio::try_join!(end, churn)?;
        replicas.push(stage.manager(&format!("replica-{}", round + 2)).await?);
    }
    for number in 0..SERVICES {
        let names: Vec<(String, bool)> = expected
            .iter()
            .filter(|(workload, _)| *workload % SERVICES == number)
            .map(|(workload, ready)| (format!("vm-{workload}"), *ready))
            .collect();
        let shown: Vec<(&str, bool)> = names.iter().map(|(name, ready)| (name.as_str(), *ready)).collect();
        // This also fails while a workload is in two slices.
        stage.mesh.shows(&service(number), &shown).await?;
        let slices = stage.mesh.our_slices(&service(number)).await?;
        ensure!(slices.len() == 1, "{} slices for {} workloads", slices.len(), shown.len());
    }
    Ok(())
}

/// Waits until a replica and returns its index.
async fn leader_of(replicas: &[Manager]) -> Result<usize> {
    eventually(EXPIRED, "a replica to lead", async || {
        for (place, replica) in replicas.iter().enumerate() {
            if is_leading(replica).await {
                return Ok(place);
            }
        }
        anyhow::bail!("no replica leads")
    })
    .await
}
