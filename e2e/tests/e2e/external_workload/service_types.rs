//! Services that change their type, their cluster IP or their address families, and back. The manager has the shipped
//! permissions and admission policies, and its writes are counted.

use std::collections::BTreeMap;

use anyhow::{Result, ensure};
use e2e::{
    Options, eventually,
    mesh::{Mesh, SOON},
};
use kube::ResourceExt;
use serde_json::{Value, json};

use crate::faults::FaultRig;

const HEADLESS: &str = "service.kubernetes.io/headless";

fn both_families() -> Value {
    json!({"type": "ClusterIP", "ipFamilies": ["IPv4", "IPv6"], "ipFamilyPolicy": "RequireDualStack"})
}

/// Waits until the Service has one slice of ours for each of these families, with the workload's address and with or
/// without the label of headless Services.
async fn has(mesh: &Mesh, service: &str, families: &[(&str, &str)], headless: bool) -> Result<()> {
    let expected: BTreeMap<&str, &str> = families.iter().copied().collect();
    eventually(SOON, format_args!("{service} to have {expected:?}, headless: {headless}"), async || {
        let slices = mesh.our_slices(service).await?;
        ensure!(slices.len() == expected.len(), "{slices:?}");
        for slice in &slices {
            let addresses: Vec<&String> = slice.endpoints.iter().flat_map(|endpoint| &endpoint.addresses).collect();
            let wanted = expected.get(&*slice.address_type).copied();
            ensure!(addresses.iter().map(|it| it.as_str()).eq(wanted), "{slice:?}");
            ensure!(slice.labels().contains_key(HEADLESS) == headless, "{:?}", slice.labels());
        }
        Ok(())
    })
    .await
}

const V4: (&str, &str) = ("IPv4", "192.0.2.4");
const V6: (&str, &str) = ("IPv6", "2001:db8::4");

#[tokio::test(flavor = "multi_thread")]
async fn slices_follow_services_that_change_their_families_and_their_type_and_back() -> Result<()> {
    let rig = FaultRig::shipped(Options::with_controllers()).await?;
    let manager = rig.shipped_manager().await?;
    let mesh = &rig.mesh;
    for name in ["families", "type", "steady"] {
        mesh.put_service(name, json!({})).await?;
        mesh.put_workload(name, name, &["192.0.2.4", "2001:db8::4"]).await?;
        has(mesh, name, &[V4], false).await?;
    }
    // Its readiness is a second write.
    mesh.shows("steady", &[("steady", true)]).await?;
    let steady = mesh.our_slices("steady").await?;
    mesh.put_service("headless", json!({"clusterIP": "None"})).await?;
    mesh.put_workload("headless", "headless", &["192.0.2.4", "2001:db8::4"]).await?;
    has(mesh, "headless", &[V4], true).await?;

    let single = json!({"ipFamilies": ["IPv4"], "ipFamilyPolicy": "SingleStack"});
    for _ in 0..2 {
        for name in ["families", "headless"] {
            mesh.patch_service(
                name,
                json!({"spec": {"ipFamilies": ["IPv4", "IPv6"], "ipFamilyPolicy": "RequireDualStack"}}),
            )
            .await?;
            has(mesh, name, &[V4, V6], name == "headless").await?;
            mesh.patch_service(name, json!({ "spec": single })).await?;
            has(mesh, name, &[V4], name == "headless").await?;
        }
        let external = json!({"type": "ExternalName", "externalName": "example.com", "clusterIP": null, "clusterIPs": null,
            "ipFamilies": null, "ipFamilyPolicy": null});
        mesh.patch_service("type", json!({ "spec": external })).await?;
        has(mesh, "type", &[], false).await?;
        let mut headless = both_families();
        headless["clusterIP"] = json!("None");
        headless["externalName"] = Value::Null;
        mesh.patch_service("type", json!({ "spec": headless })).await?;
        has(mesh, "type", &[V4, V6], true).await?;
        // A cluster IP can only be removed together with the type.
        mesh.patch_service("type", json!({ "spec": external })).await?;
        has(mesh, "type", &[], false).await?;
        let mut cluster_ip = both_families();
        cluster_ip["externalName"] = Value::Null;
        mesh.patch_service("type", json!({ "spec": cluster_ip })).await?;
        has(mesh, "type", &[V4, V6], false).await?;
        mesh.patch_service("type", json!({ "spec": single })).await?;
        has(mesh, "type", &[V4], false).await?;
    }
    // Without a pause between the changes, the last one counts.
    for number in 0..20 {
        let spec = if number % 2 == 0 { both_families() } else { single.clone() };
        mesh.patch_service("families", json!({ "spec": spec })).await?;
    }
    has(mesh, "families", &[V4], false).await?;
    rig.proxy.rests().await?;
    for name in ["families", "type", "steady"] {
        has(mesh, name, &[V4], false).await?;
    }
    has(mesh, "headless", &[V4], true).await?;
    assert_eq!(mesh.our_slices("steady").await?, steady, "the slice of a Service that does not change was written");
    let log = manager.log();
    ensure!(!log.contains("could not be written"), "{log}");
    Ok(())
}
