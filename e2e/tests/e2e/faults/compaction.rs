//! Compactions of etcd while the watches of a replica are interrupted: the API server answers that their history has
//! expired, and the replica lists everything again. It has the shipped permissions and admission policies.

use anyhow::{Result, ensure};
use e2e::{Action, Fault, Rule, eventually};
use kube::{
    ResourceExt,
    api::{DeleteParams, PostParams},
};
use serde_json::json;

use super::{BACKED_OFF, FaultRig, linkerd::Linkerd, restartable};

/// All kinds of which the tests change objects.
const WATCHED: [&str; 4] = ["/services", "/endpointslices", "/externalworkloads", "/configmaps"];

/// Holds all new watches and lists of the replica, and closes the open ones. It keeps its Leases.
fn interrupt_watches(rig: &FaultRig) -> Fault {
    let held = rig.proxy.inject(Rule::path("watch=true"), Action::Hold);
    rig.proxy.cut_all();
    held
}

/// Removes all history, also that in the watch cache of the API server.
async fn compact(rig: &mut FaultRig) -> Result<()> {
    rig.control_plane.compact_etcd().await?;
    rig.control_plane.restart_api_server(true).await
}

#[tokio::test(flavor = "multi_thread")]
async fn after_a_compaction_a_replica_whose_watches_were_cut_repairs_what_changed_and_writes_nothing_else() -> Result<()>
{
    let mut rig = FaultRig::shipped(restartable()).await?;
    let manager = rig.shipped_manager().await?;
    let linkerd = Linkerd::install(&rig.client).await?;
    for (number, service) in ["steady", "loses", "broken", "doomed"].into_iter().enumerate() {
        rig.mesh.put_service(service, json!({})).await?;
        rig.mesh.put_workload(service, service, &[&format!("192.0.2.{number}")]).await?;
        rig.mesh.put_workload(&format!("{service}-b"), service, &[&format!("192.0.2.1{number}")]).await?;
        rig.mesh.shows(service, &[(service, true), (&format!("{service}-b"), true)]).await?;
    }

    // Nothing changes: everything is listed again, and nothing is written.
    rig.proxy.rests().await?;
    let versions = rig.versions().await?;
    let (before, listed) = (rig.proxy.writes(), rig.lists(WATCHED));
    let held = interrupt_watches(&rig);
    // Without a newer revision the history has not expired.
    let other = serde_json::from_value(json!({"metadata": {"name": "other"}}))?;
    linkerd.maps.create(&PostParams::default(), &other).await?;
    compact(&mut rig).await?;
    held.remove();
    is_listed_again(&rig, &listed).await?;
    manager.is_well(BACKED_OFF).await?;

    // Objects change, whose events no watch delivers.
    let listed = rig.lists(WATCHED);
    let held = interrupt_watches(&rig);
    linkerd.edit_access_log("apache").await?;
    rig.mesh.delete_workload("loses").await?;
    rig.mesh.services.delete("doomed", &DeleteParams::default()).await?;
    for slice in rig.mesh.our_slices("broken").await? {
        rig.mesh.slices.delete(&slice.name_any(), &DeleteParams::default()).await?;
    }
    rig.mesh.put_service("new", json!({})).await?;
    rig.mesh.put_workload("new", "new", &["192.0.2.9"]).await?;
    compact(&mut rig).await?;
    assert_eq!(rig.proxy.writes(), before, "the replica wrote with caches that are out of date");
    held.remove();
    is_listed_again(&rig, &listed).await?;

    linkerd.has_access_log("json").await?;
    rig.mesh.shows("steady", &[("steady", true), ("steady-b", true)]).await?;
    rig.mesh.shows("loses", &[("loses-b", true)]).await?;
    rig.mesh.shows("broken", &[("broken", true), ("broken-b", true)]).await?;
    rig.mesh.shows("new", &[("new", true)]).await?;
    eventually(BACKED_OFF, "the slices of the deleted Service to be removed", async || {
        ensure!(rig.mesh.our_slices("doomed").await?.is_empty(), "they are left");
        Ok(())
    })
    .await?;
    rig.proxy.rests().await?;
    let after = rig.versions().await?;
    let steady = versions.iter().find(|(name, _)| name.starts_with("linkerd-external-steady-"));
    ensure!(steady.is_some_and(|(name, version)| after.get(name) == Some(version)), "{versions:?} became {after:?}");
    let writes = rig.proxy.writes().split_off(before.len());
    let count = |text: &str| writes.iter().filter(|write| write.contains(text)).count();
    // `loses` is updated, `broken` and `new` are created.
    assert_eq!(count("PUT /apis/discovery.k8s.io"), 1, "{writes:?}");
    // The watches recover one after the other. If the slices are listed before the Services, the slice of `doomed` is
    // missing while its Service is still known: it is created once more, and the garbage collector removes it.
    ensure!((2..=3).contains(&count("POST /apis/discovery.k8s.io")), "{writes:?}");
    assert_eq!(count("DELETE /apis/discovery.k8s.io"), 0, "{writes:?}");
    assert_eq!(count("/configmaps/linkerd-config"), 1, "{writes:?}");
    // The reverted document is saved.
    assert_eq!(count("/controllerrevisions"), 1, "{writes:?}");
    Ok(())
}

async fn is_listed_again(rig: &FaultRig, before: &[usize; 4]) -> Result<()> {
    eventually(BACKED_OFF, "a list of each kind", async || {
        let now = rig.lists(WATCHED);
        ensure!(now.iter().zip(before).all(|(now, before)| now > before), "{now:?} after {before:?}");
        Ok(())
    })
    .await
}
