//! The fields of a Service that say which clients receive a workload: `trafficDistribution` and
//! `publishNotReadyAddresses`.

use anyhow::{Context, Result, ensure};
use e2e::{eventually, mesh::SOON};
use kube::ResourceExt;
use serde_json::{Value, json};

use super::{Watched, mesh, only_slice, stays_untouched};

/// Waits until the only endpoint of the Service has these hints and conditions.
async fn has(mesh: &Watched, service: &str, hints: Value, [ready, serving]: [bool; 2]) -> Result<()> {
    let conditions = json!({"ready": ready, "serving": serving, "terminating": false});
    eventually(SOON, format_args!("{service} to have {hints} and {conditions}"), async || {
        let slice = only_slice(mesh, service).await?;
        let endpoint = slice.endpoints.first().context("no endpoint")?;
        ensure!(json!(endpoint.hints) == hints && json!(endpoint.conditions) == conditions, "{endpoint:?}");
        Ok(())
    })
    .await
}

#[tokio::test]
async fn hints_and_readiness_follow_the_service_in_the_same_slice() -> Result<()> {
    let mesh = mesh("traffic").await?;
    mesh.put_service("near", json!({"trafficDistribution": "PreferSameNode", "publishNotReadyAddresses": true}))
        .await?;
    let labels = json!({"topology.kubernetes.io/zone": "zone-a"});
    let vm = json!({"metadata": {"labels": labels}, "spec": {"workloadIPs": [{"ip": "192.0.2.4"}]}});
    mesh.put_workload_with("vm", "near", vm).await?;
    let for_zone = json!({"forZones": [{"name": "zone-a"}]});
    has(&mesh, "near", for_zone.clone(), [true, false]).await?;
    let note = mesh.expect_event("vm", "Published").await?;
    ensure!(note.ends_with("not ready, but it receives traffic because of publishNotReadyAddresses"), "{note}");
    stays_untouched(&mesh, "near").await?;
    let name = only_slice(&mesh, "near").await?.name_any();

    mesh.patch_service("near", json!({"spec": {"publishNotReadyAddresses": false}})).await?;
    has(&mesh, "near", Value::Null, [false, false]).await?;
    mesh.set_ready("vm", true).await?;
    has(&mesh, "near", for_zone, [true, true]).await?;
    mesh.patch_service("near", json!({"spec": {"trafficDistribution": null}})).await?;
    has(&mesh, "near", Value::Null, [true, true]).await?;
    assert_eq!(only_slice(&mesh, "near").await?.name_any(), name);
    Ok(())
}

#[tokio::test]
async fn a_workload_without_a_zone_is_reported() -> Result<()> {
    let mesh = mesh("zoneless").await?;
    mesh.put_service("near", json!({"trafficDistribution": "PreferSameZone"})).await?;
    mesh.put_workload("vm", "near", &["192.0.2.4"]).await?;
    mesh.expect_event("vm", "MissingZone").await?;
    has(&mesh, "near", Value::Null, [true, true]).await
}
