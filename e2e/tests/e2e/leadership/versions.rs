//! Two versions of the operator take turns on the Lease for EndpointSlices: an upgrade, the way back, and both again
//! with a leader that is killed.

use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};
use e2e::{FaultProxy, Replica, eventually, holds, mesh::SOON};
use kube::ResourceExt;
use serde_json::json;

use super::{EXPIRED, LEASE, RETRY, STOP, Stage, replica, short_times, slice_writes};
use crate::other_version::{OtherVersion, Version};

/// More than one EndpointSlice holds.
const CROWD: usize = 130;
/// The Services, and a workload of each whose readiness changes.
const CHANGING: [(&str, &str); 3] = [("crowd", "vm-007"), ("both", "vm-both"), ("named", "vm-named")];

/// The identity of each EndpointSlice: its name → its uid and resourceVersion.
type Slices = BTreeMap<String, (Option<String>, Option<String>)>;

impl Stage {
    async fn replica(&self, other: &OtherVersion, version: Version, identity: &str) -> Result<Replica> {
        let proxy = FaultProxy::start(self).await?;
        let options = replica(identity).args(short_times()).binary(other.binary(version)).through(&proxy);
        Ok(Replica { manager: self.start(options).await?, proxy })
    }

    /// A Service with several EndpointSlices, one with two address families, and one with a named port.
    async fn put_services(&self) -> Result<()> {
        self.mesh.put_service("crowd", json!({})).await?;
        for number in 0..CROWD {
            self.mesh.put_workload(&workload(number), "crowd", &[&format!("198.51.100.{}", number + 1)]).await?;
        }
        self.mesh
            .put_service("both", json!({"ipFamilies": ["IPv4", "IPv6"], "ipFamilyPolicy": "PreferDualStack"}))
            .await?;
        self.mesh.put_workload("vm-both", "both", &["192.0.2.7", "2001:db8::7"]).await?;
        self.mesh.put_service("named", json!({"ports": [{"name": "web", "port": 80, "targetPort": "http"}]})).await?;
        self.mesh.put_workload("vm-named", "named", &["192.0.2.8"]).await
    }

    async fn slices(&self) -> Result<Slices> {
        let mut slices = Slices::new();
        for service in ["web", "crowd", "both", "named"] {
            for slice in self.mesh.our_slices(service).await? {
                slices.insert(slice.name_any(), (slice.uid(), slice.resource_version()));
            }
        }
        Ok(slices)
    }

    /// Waits until exactly the workloads of [`Stage::put_services`] are published, and those that change are `ready`.
    async fn shows_all(&self, ready: bool) -> Result<()> {
        let crowd: Vec<String> = (0..CROWD).map(workload).collect();
        let crowd: Vec<(&str, bool)> = crowd.iter().map(|name| (name.as_str(), ready || name != "vm-007")).collect();
        self.mesh.shows("crowd", &crowd).await?;
        self.mesh.shows("both", &[("vm-both", ready)]).await?;
        self.mesh.shows("named", &[("vm-named", ready)]).await
    }
}

fn workload(number: usize) -> String {
    format!("vm-{number:03}")
}

#[tokio::test]
async fn two_versions_take_turns_and_write_a_slice_only_for_a_change() -> Result<()> {
    let Some(other) = OtherVersion::given("two_versions_take_turns_and_write_a_slice_only_for_a_change")? else {
        return Ok(());
    };
    let stage = Stage::new().await?;
    stage.put_services().await?;
    let mut leader = stage.replica(&other, Version::Other, "other-0").await?;
    leader.manager.leads(LEASE, SOON).await?;
    stage.mesh.shows("web", &[("vm", true)]).await?;
    stage.shows_all(true).await?;
    let mut ready = true;
    for (turn, (to, kill)) in
        (1..).zip([(Version::This, false), (Version::Other, false), (Version::This, true), (Version::Other, true)])
    {
        let next = stage.replica(&other, to, &format!("{}-{turn}", to.name())).await?;
        let what = format!("turn {turn}, to {to:?}, SIG{}", if kill { "KILL" } else { "TERM" });
        take_over(&stage, leader, &next, kill, ready).await.context(what)?;
        ready = !ready;
        leader = next;
    }
    Ok(())
}

/// Ends the leader, and checks that the next replica writes each change once and nothing else. The workloads that
/// change are `ready` before it, and not ready after it, or the reverse.
async fn take_over(stage: &Stage, leader: Replica, next: &Replica, kill: bool, ready: bool) -> Result<()> {
    let before = stage.slices().await?;
    let record = stage.record().await?;
    leader.end(kill, STOP).await?;
    ensure!(slice_writes(&next.proxy) == 0, "a follower wrote a slice");
    next.manager.leads(LEASE, EXPIRED).await?;
    let transitions = stage.record().await?.lease_transitions;
    ensure!(transitions == record.lease_transitions.map(|before| before + 1), "{transitions:?} transitions");

    // A new leader examines every Service. It writes this change after that.
    stage.flip(!ready).await?;
    let web = stage.mesh.our_slices("web").await?;
    let written: Vec<String> = web.iter().map(ResourceExt::name_any).collect();
    for (name, identity) in stage.slices().await? {
        let known = before.get(&name).with_context(|| format!("{name} is new"))?;
        ensure!(written.contains(&name) || known == &identity, "{name} was written without a change");
    }
    let writes = slice_writes(&next.proxy);
    ensure!(writes == 1, "{writes} writes for one change");

    for (_, workload) in CHANGING {
        stage.mesh.set_ready(workload, !ready).await?;
    }
    stage.shows_all(!ready).await?;
    let after = stage.slices().await?;
    let uids = |slices: &Slices| slices.iter().map(|(name, (uid, _))| (name.clone(), uid.clone())).collect::<Vec<_>>();
    ensure!(uids(&after) == uids(&before), "the slices were {before:?}, and are {after:?}");
    // One for `web`, and one for each slice of the changed workloads: `both` has a slice for each address family.
    let expected = 1 + CHANGING.len() + 1;
    let is_right = async || {
        let writes = slice_writes(&next.proxy);
        ensure!(writes == expected, "{writes} writes instead of {expected}");
        Ok(())
    };
    eventually(SOON, "each changed slice to be written", is_right).await?;
    holds(RETRY, "no further write", is_right).await
}
