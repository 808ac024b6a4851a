//! The ExternalWorkload controller as its users see it, on the shared control plane, with a namespace for each test.
//!
//! The D-numbers are those of the acceptance table. Unit tests of the plan cover the placement of endpoints in slices.
//! The tests here need a real API server, with its defaults, its garbage collector and its own slices.

use std::{collections::BTreeMap, time::Duration};

use anyhow::{Context, Result, ensure};
use e2e::{
    TestNamespace, eventually, holds,
    mesh::{MANAGED_BY, Mesh, SOON},
    shared_manager,
};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::{
    ResourceExt,
    api::{DeleteParams, Patch, PatchParams, PostParams},
};
use serde_json::json;

/// How long a test waits for an unexpected write.
const QUIET: Duration = Duration::from_millis(1500);

async fn mesh(prefix: &str) -> Result<Mesh> {
    let (control_plane, _) = shared_manager().await?;
    let client = control_plane.client().await?;
    let namespace = TestNamespace::create(&client, prefix).await?;
    Ok(Mesh::new(&client, namespace.name()))
}

/// The resourceVersion of each slice, by name: every write changes it.
async fn versions(mesh: &Mesh, service: &str) -> Result<BTreeMap<String, String>> {
    let slices = mesh.our_slices(service).await?;
    Ok(slices.into_iter().map(|slice| (slice.name_any(), slice.resource_version().unwrap_or_default())).collect())
}

async fn stays_untouched(mesh: &Mesh, service: &str) -> Result<()> {
    let before = versions(mesh, service).await?;
    holds(QUIET, "no slice to be written", async || {
        let now = versions(mesh, service).await?;
        ensure!(now == before, "{before:?} became {now:?}");
        Ok(())
    })
    .await
}

async fn only_slice(mesh: &Mesh, service: &str) -> Result<EndpointSlice> {
    let mut slices = mesh.our_slices(service).await?;
    ensure!(slices.len() == 1, "Service {} has {} of our slices", service, slices.len());
    slices.pop().context("one slice")
}

async fn patch_slice(mesh: &Mesh, slice: &EndpointSlice, patch: serde_json::Value) -> Result<()> {
    mesh.slices.patch(&slice.name_any(), &PatchParams::default(), &Patch::Merge(patch)).await?;
    Ok(())
}

#[tokio::test]
async fn a_workload_becomes_an_endpoint_of_the_service_that_selects_it() -> Result<()> {
    let mesh = mesh("first").await?;
    let service = mesh.put_web_over_vm().await?;
    let slice = only_slice(&mesh, "web").await?;
    assert!(slice.name_any().starts_with("linkerd-external-web-"));
    assert_eq!(slice.labels()["endpointslice.kubernetes.io/managed-by"], MANAGED_BY);
    let owner = &slice.owner_references()[0];
    assert_eq!((&owner.uid, owner.controller), (&service.uid().unwrap(), Some(true)));
    let endpoint = &slice.endpoints[0];
    assert_eq!(endpoint.addresses, ["192.0.2.4"]);
    let conditions = endpoint.conditions.as_ref().unwrap();
    assert_eq!((conditions.ready, conditions.serving, conditions.terminating), (Some(true), Some(true), Some(false)));
    let target = endpoint.target_ref.as_ref().unwrap();
    assert_eq!((target.kind.as_deref(), target.api_version.as_deref()), (Some("ExternalWorkload"), None));
    Ok(())
}

#[tokio::test]
async fn unchanged_and_annotated_objects_cause_no_write_d1() -> Result<()> {
    let mesh = mesh("d1").await?;
    mesh.put_web_over_vm().await?;
    let before = versions(&mesh, "web").await?;
    mesh.patch_service("web", json!({"metadata": {"annotations": {"note": "touched"}}})).await?;
    mesh.patch_workload("vm", json!({"metadata": {"annotations": {"note": "touched"}}})).await?;
    stays_untouched(&mesh, "web").await?;
    assert_eq!(versions(&mesh, "web").await?, before);
    Ok(())
}

#[tokio::test]
async fn an_unnamed_port_converges_d1b() -> Result<()> {
    let mesh = mesh("d1b").await?;
    mesh.put_service("web", json!({"ports": [{"port": 80}]})).await?;
    mesh.put_workload("vm-1", "web", &["192.0.2.1"]).await?;
    mesh.put_workload("vm-2", "web", &["192.0.2.2"]).await?;
    mesh.shows("web", &[("vm-1", true), ("vm-2", true)]).await?;
    stays_untouched(&mesh, "web").await
}

#[tokio::test]
async fn a_headless_service_without_ports_converges_and_has_hostnames_d10() -> Result<()> {
    let mesh = mesh("d10").await?;
    mesh.put_service("db", json!({"clusterIP": "None", "ports": []})).await?;
    mesh.put_workload("vm", "db", &["192.0.2.4"]).await?;
    mesh.shows("db", &[("vm", true)]).await?;
    let slice = only_slice(&mesh, "db").await?;
    assert_eq!(slice.labels()["service.kubernetes.io/headless"], "");
    assert_eq!(slice.endpoints[0].hostname.as_deref(), Some("vm"));
    stays_untouched(&mesh, "db").await
}

#[tokio::test]
async fn a_slice_left_by_a_deleted_service_of_the_same_name_is_replaced_d8_d27() -> Result<()> {
    let mesh = mesh("d27").await?;
    mesh.put_web_over_vm().await?;
    for _ in 0..3 {
        mesh.services.delete("web", &DeleteParams::default()).await?;
        let uid = mesh.put_service("web", json!({})).await?.uid().unwrap();
        eventually(SOON, "the new Service to own the only slice", async || {
            let slice = only_slice(&mesh, "web").await?;
            ensure!(slice.owner_references()[0].uid == uid, "the owner is {:?}", slice.owner_references());
            ensure!(slice.endpoints.len() == 1, "it is empty");
            Ok(())
        })
        .await?;
    }
    Ok(())
}

#[tokio::test]
async fn a_terminating_service_gets_updates_but_no_new_slices_d9() -> Result<()> {
    let mesh = mesh("d9").await?;
    mesh.put_service("web", json!({})).await?;
    mesh.patch_service("web", json!({"metadata": {"finalizers": ["example.com/wait"]}})).await?;
    mesh.put_workload("vm", "web", &["192.0.2.4"]).await?;
    mesh.shows("web", &[("vm", true)]).await?;
    mesh.services.delete("web", &DeleteParams::default()).await?;
    mesh.set_ready("vm", false).await?;
    mesh.shows("web", &[("vm", false)]).await?;
    // Endpoints with other ports need a separate slice.
    mesh.put_workload_with("vm-2", "web", json!({"spec": {"workloadIPs": [{"ip": "192.0.2.5"}], "ports": []}})).await?;
    holds(QUIET, "no new slice", async || only_slice(&mesh, "web").await.map(drop)).await?;
    mesh.patch_service("web", json!({"metadata": {"finalizers": null}})).await?;
    Ok(())
}

#[tokio::test]
async fn the_slice_of_the_last_workload_is_emptied_and_then_deleted_d11_d38() -> Result<()> {
    let mesh = mesh("d11").await?;
    mesh.put_web_over_vm().await?;
    let name = only_slice(&mesh, "web").await?.name_any();
    let mut seen = mesh.watch_slices().await?;
    mesh.delete_workload("vm").await?;
    // The order matters: Linkerd's Go destination ignores the endpoints of a deleted slice.
    assert_eq!(seen.next_of(&name).await?, "modified with 0 endpoints");
    assert_eq!(seen.next_of(&name).await?, "deleted with 0 endpoints");
    assert!(mesh.our_slices("web").await?.is_empty());
    Ok(())
}

#[tokio::test]
async fn both_families_are_published_and_removed_separately_d12() -> Result<()> {
    let mesh = mesh("d12").await?;
    let dual = json!({"ipFamilies": ["IPv4", "IPv6"], "ipFamilyPolicy": "RequireDualStack"});
    mesh.put_service("web", dual).await?;
    mesh.put_workload("vm", "web", &["192.0.2.4", "fd08::5678:0000:0000:9abc:def0"]).await?;
    let families = async || -> Result<BTreeMap<String, Vec<String>>> {
        let slices = mesh.our_slices("web").await?;
        let addresses = |slice: &EndpointSlice| slice.endpoints.iter().flat_map(|e| e.addresses.clone()).collect();
        Ok(slices.iter().map(|slice| (slice.address_type.clone(), addresses(slice))).collect())
    };
    let expect = async |what: &str, expected: &[(&str, &str)]| {
        let expected: BTreeMap<String, Vec<String>> =
            expected.iter().map(|(family, ip)| ((*family).to_owned(), vec![(*ip).to_owned()])).collect();
        eventually(SOON, what, async || {
            let seen = families().await?;
            ensure!(seen == expected, "{seen:?}");
            Ok(())
        })
        .await
    };
    // The only spelling that the API server accepts.
    let v6 = ("IPv6", "fd08::5678:0:0:9abc:def0");
    expect("both families", &[("IPv4", "192.0.2.4"), v6]).await?;
    // The readiness of each family is a write of its own.
    eventually(SOON, "both families to be ready", async || {
        let slices = mesh.our_slices("web").await?;
        let conditions = slices.iter().flat_map(|slice| &slice.endpoints).filter_map(|e| e.conditions.as_ref());
        let ready = conditions.filter(|conditions| conditions.ready == Some(true)).count();
        ensure!(ready == 2, "{ready} of the endpoints are ready");
        Ok(())
    })
    .await?;
    stays_untouched(&mesh, "web").await?;
    mesh.patch_workload("vm", json!({"spec": {"workloadIPs": [{"ip": v6.1}]}})).await?;
    expect("IPv6 alone", &[v6]).await?;
    mesh.patch_workload("vm", json!({"spec": {"workloadIPs": [{"ip": v6.1}, {"ip": "192.0.2.9"}]}})).await?;
    expect("both again", &[("IPv4", "192.0.2.9"), v6]).await?;
    // The Service loses its second family.
    mesh.patch_service("web", json!({"spec": {"ipFamilyPolicy": "SingleStack", "ipFamilies": ["IPv4"]}})).await?;
    expect("IPv4 alone", &[("IPv4", "192.0.2.9")]).await
}

#[tokio::test]
async fn a_changed_address_and_a_changed_port_stay_in_their_slice_d13_d39() -> Result<()> {
    let mesh = mesh("d13").await?;
    mesh.put_web_over_vm().await?;
    let name = only_slice(&mesh, "web").await?.name_any();
    mesh.patch_workload("vm", json!({"spec": {"workloadIPs": [{"ip": "192.0.2.5"}]}})).await?;
    let ports = json!([{"name": "http", "port": 8080}]);
    mesh.patch_workload("vm", json!({"spec": {"ports": ports}})).await?;
    mesh.patch_service("web", json!({"spec": {"ports": [{"name": "http", "port": 80, "targetPort": "http"}]}})).await?;
    eventually(SOON, "the new address and port", async || {
        let (endpoint, ports) = mesh.published("web").await?.remove("vm").context("vm is not published")?;
        ensure!(
            endpoint.addresses == ["192.0.2.5"] && ports == [("http".to_owned(), 8080)].into(),
            "{endpoint:?} {ports:?}"
        );
        Ok(())
    })
    .await?;
    assert_eq!(only_slice(&mesh, "web").await?.name_any(), name);
    Ok(())
}

#[tokio::test]
async fn an_endpoint_in_two_slices_is_removed_from_one_d14() -> Result<()> {
    let mesh = mesh("d14").await?;
    mesh.put_service("web", json!({})).await?;
    mesh.put_workload("vm-1", "web", &["192.0.2.1"]).await?;
    mesh.put_workload("vm-2", "web", &["192.0.2.2"]).await?;
    mesh.shows("web", &[("vm-1", true), ("vm-2", true)]).await?;
    // A failed handover from the Go controller could leave such a second slice.
    let mut twin = only_slice(&mesh, "web").await?;
    twin.metadata.name = Some("linkerd-external-web-twin".to_owned());
    twin.metadata.uid = None;
    twin.metadata.resource_version = None;
    twin.endpoints.pop();
    mesh.slices.create(&PostParams::default(), &twin).await?;
    mesh.shows("web", &[("vm-1", true), ("vm-2", true)]).await
}

#[tokio::test]
async fn a_workload_without_the_port_is_published_without_it_and_reported_d15() -> Result<()> {
    let mesh = mesh("d15").await?;
    mesh.put_service("web", json!({})).await?;
    mesh.put_workload("vm-1", "web", &["192.0.2.1"]).await?;
    mesh.put_workload_with("vm-2", "web", json!({"spec": {"workloadIPs": [{"ip": "192.0.2.2"}], "ports": []}})).await?;
    mesh.shows("web", &[("vm-1", true), ("vm-2", false)]).await?;
    let note = mesh.expect_event("vm-2", "UnmatchedPort").await?;
    assert!(note.contains("80/TCP"), "{note}");
    assert!(mesh.published("web").await?["vm-2"].1.is_empty());
    Ok(())
}

#[tokio::test]
async fn slices_of_other_controllers_are_never_changed_d16() -> Result<()> {
    let mesh = mesh("d16").await?;
    let service = mesh.put_service("web", json!({})).await?;
    let foreign: EndpointSlice = serde_json::from_value(json!({
        "metadata": {"name": "theirs", "labels": {"kubernetes.io/service-name": "web",
            "endpointslice.kubernetes.io/managed-by": "other-controller"},
            "ownerReferences": [{"apiVersion": "v1", "kind": "Service", "name": "web", "uid": service.uid()}]},
        "addressType": "IPv4", "endpoints": [{"addresses": ["203.0.113.1"]}], "ports": [],
    }))?;
    let before = mesh.slices.create(&PostParams::default(), &foreign).await?;
    mesh.put_workload("vm", "web", &["192.0.2.4"]).await?;
    mesh.shows("web", &[("vm", true)]).await?;
    mesh.delete_workload("vm").await?;
    mesh.shows("web", &[]).await?;
    assert_eq!(mesh.slices.get("theirs").await?.resource_version(), before.resource_version());
    Ok(())
}

#[tokio::test]
async fn edited_emptied_and_deleted_slices_are_restored_d17_d18_d24() -> Result<()> {
    let mesh = mesh("d17").await?;
    mesh.put_web_over_vm().await?;
    let slice = only_slice(&mesh, "web").await?;
    let is_restored = async |what: &str| {
        eventually(SOON, format_args!("the slice to be restored after {what}"), async || {
            let now = only_slice(&mesh, "web").await?;
            ensure!(now.endpoints == slice.endpoints && now.ports == slice.ports, "{now:?}");
            ensure!(now.labels() == slice.labels(), "{:?}", now.labels());
            Ok(())
        })
        .await
    };
    let edited = json!({"endpoints": [{"addresses": ["203.0.113.1"], "conditions": {"ready": true}}]});
    patch_slice(&mesh, &slice, edited).await?;
    is_restored("an edit").await?;
    patch_slice(&mesh, &slice, json!({"ports": [{"name": "other", "port": 1, "protocol": "TCP"}]})).await?;
    is_restored("an edit of its ports").await?;
    patch_slice(&mesh, &slice, json!({"metadata": {"labels": {"theirs": "label"}}})).await?;
    is_restored("a new label").await?;
    patch_slice(&mesh, &slice, json!({"endpoints": []})).await?;
    is_restored("it is emptied").await?;
    let name = only_slice(&mesh, "web").await?.name_any();
    mesh.slices.delete(&name, &DeleteParams::default()).await?;
    is_restored("its deletion").await
}

#[tokio::test]
async fn hints_that_another_client_writes_are_kept() -> Result<()> {
    let mesh = mesh("hints").await?;
    mesh.put_web_over_vm().await?;
    let mut endpoints = serde_json::to_value(&only_slice(&mesh, "web").await?.endpoints)?;
    endpoints[0]["hints"] = json!({"forZones": [{"name": "b"}]});
    patch_slice(&mesh, &only_slice(&mesh, "web").await?, json!({ "endpoints": endpoints })).await?;
    stays_untouched(&mesh, "web").await?;
    mesh.set_ready("vm", false).await?;
    mesh.shows("web", &[("vm", false)]).await?;
    let kept = serde_json::to_value(&only_slice(&mesh, "web").await?.endpoints[0].hints)?;
    assert_eq!(kept, json!({"forZones": [{"name": "b"}]}));
    Ok(())
}

#[tokio::test]
async fn a_changed_zone_and_a_changed_service_label_reach_the_slice_d19_d20() -> Result<()> {
    let mesh = mesh("d19").await?;
    mesh.put_web_over_vm().await?;
    let zone = async |expected: Option<&str>| {
        eventually(SOON, format_args!("zone {expected:?}"), async || {
            let zone = only_slice(&mesh, "web").await?.endpoints[0].zone.clone();
            ensure!(zone.as_deref() == expected, "{zone:?}");
            Ok(())
        })
        .await
    };
    mesh.patch_workload("vm", json!({"metadata": {"labels": {"topology.kubernetes.io/zone": "zone-a"}}})).await?;
    zone(Some("zone-a")).await?;
    mesh.patch_workload("vm", json!({"metadata": {"labels": {"topology.kubernetes.io/zone": null}}})).await?;
    zone(None).await?;
    for value in [Some("x"), None] {
        mesh.patch_service("web", json!({"metadata": {"labels": {"team": value}}})).await?;
        eventually(SOON, format_args!("label team={value:?}"), async || {
            let slice = only_slice(&mesh, "web").await?;
            ensure!(slice.labels().get("team").map(String::as_str) == value, "{:?}", slice.labels());
            Ok(())
        })
        .await?;
    }
    Ok(())
}

#[tokio::test]
async fn a_relabelled_slice_stays_unchanged_and_a_new_one_replaces_it_d21() -> Result<()> {
    let mesh = mesh("d21").await?;
    mesh.put_service("web", json!({})).await?;
    mesh.put_service("other", json!({})).await?;
    mesh.put_workload("vm", "web", &["192.0.2.4"]).await?;
    for (label, value) in [
        ("endpointslice.kubernetes.io/managed-by", "other-controller"),
        ("kubernetes.io/service-name", "no-such-service"),
    ] {
        mesh.shows("web", &[("vm", true)]).await?;
        let slice = only_slice(&mesh, "web").await?;
        patch_slice(&mesh, &slice, json!({"metadata": {"labels": {label: value}}})).await?;
        eventually(SOON, "a replacement under another name", async || {
            let now = only_slice(&mesh, "web").await?;
            ensure!(now.name_any() != slice.name_any() && now.endpoints.len() == 1, "{}", now.name_any());
            Ok(())
        })
        .await?;
        assert_eq!(mesh.slices.get(&slice.name_any()).await?.labels()[label], value);
    }
    // A slice whose label names another Service is not owned by that Service, and is deleted.
    let slice = only_slice(&mesh, "web").await?;
    patch_slice(&mesh, &slice, json!({"metadata": {"labels": {"kubernetes.io/service-name": "other"}}})).await?;
    eventually(SOON, "the mislabeled slice to be deleted", async || {
        ensure!(mesh.our_slices("other").await?.is_empty(), "it still exists");
        only_slice(&mesh, "web").await.map(drop)
    })
    .await
}

#[tokio::test]
async fn an_invalid_address_is_left_out_and_reported_d22() -> Result<()> {
    let mesh = mesh("d22").await?;
    mesh.put_service("web", json!({})).await?;
    mesh.put_workload("good", "web", &["192.0.2.4"]).await?;
    for (name, ip) in [
        ("loopback", "127.0.0.1"),
        ("bogus", "bogus"),
        ("empty", ""),
        ("link-local", "169.254.1.1"),
        ("zeros", "010.0.0.1"),
    ] {
        mesh.put_workload(name, "web", &[ip]).await?;
        let note = mesh.expect_event(name, "InvalidWorkloadIP").await?;
        assert!(note.contains(&format!("{ip:?}")), "{note}");
    }
    mesh.put_workload_with("no-ip", "web", json!({"spec": {"workloadIPs": [{}]}})).await?;
    mesh.expect_event("no-ip", "InvalidWorkloadIP").await?;
    mesh.put_workload_with("no-ips", "web", json!({})).await?;
    mesh.put_workload("also-good", "web", &["192.0.2.5"]).await?;
    mesh.shows("web", &[("also-good", true), ("good", true)]).await?;
    assert_eq!(mesh.events_of("no-ips").await?, Vec::<String>::new(), "a workload without addresses is valid");
    // A corrected address is published.
    mesh.patch_workload("bogus", json!({"spec": {"workloadIPs": [{"ip": "192.0.2.6"}]}})).await?;
    mesh.shows("web", &[("also-good", true), ("bogus", true), ("good", true)]).await
}

#[tokio::test]
async fn every_address_that_we_accept_is_accepted_by_the_api_server() -> Result<()> {
    let mesh = mesh("addresses").await?;
    let dual = json!({"ipFamilies": ["IPv4", "IPv6"], "ipFamilyPolicy": "RequireDualStack"});
    mesh.put_service("web", dual).await?;
    for (at, ip) in
        ["0.0.0.1", "255.255.255.255", "239.1.1.1", "100.64.0.1", "ff05::1", "2001:DB8::A", "::2", "::192.0.2.1"]
            .iter()
            .enumerate()
    {
        mesh.put_workload(&format!("vm-{at}"), "web", &[ip]).await?;
    }
    let all: Vec<String> = (0..8).map(|at| format!("vm-{at}")).collect();
    let all: Vec<(&str, bool)> = all.iter().map(|name| (name.as_str(), true)).collect();
    mesh.shows("web", &all).await
}

#[tokio::test]
async fn a_name_that_is_not_a_valid_hostname_is_published_without_one_d23() -> Result<()> {
    let mesh = mesh("d23").await?;
    mesh.put_service("db", json!({"clusterIP": "None"})).await?;
    let long = "a".repeat(64);
    for name in ["vm", "vm.example.com", &long] {
        mesh.put_workload(name, "db", &["192.0.2.4"]).await?;
    }
    mesh.shows("db", &[(&long, true), ("vm", true), ("vm.example.com", true)]).await?;
    let published = mesh.published("db").await?;
    assert_eq!(published["vm"].0.hostname.as_deref(), Some("vm"));
    for name in ["vm.example.com", &long] {
        assert_eq!(published[name].0.hostname, None);
        mesh.expect_event(name, "InvalidHostname").await?;
    }
    Ok(())
}

#[tokio::test]
async fn workloads_of_another_namespace_do_not_count_d30() -> Result<()> {
    let (here, there) = (mesh("d30-here").await?, mesh("d30-there").await?);
    here.put_service("web", json!({})).await?;
    there.put_workload("vm-there", "web", &["192.0.2.4"]).await?;
    here.put_workload("vm-here", "web", &["192.0.2.5"]).await?;
    here.shows("web", &[("vm-here", true)]).await?;
    assert!(there.our_slices("web").await?.is_empty());
    Ok(())
}

#[tokio::test]
async fn kube_system_is_ignored_d31() -> Result<()> {
    let (control_plane, _) = shared_manager().await?;
    let system = Mesh::new(&control_plane.client().await?, "kube-system");
    system.put_service("d31", json!({})).await?;
    system.put_workload("d31", "d31", &["192.0.2.4"]).await?;
    // A workload in another namespace is published, so the controller is running.
    let mesh = mesh("d31").await?;
    mesh.put_web_over_vm().await?;
    assert!(system.our_slices("d31").await?.is_empty());
    Ok(())
}

#[tokio::test]
async fn two_addresses_of_a_family_are_one_endpoint_d32() -> Result<()> {
    let mesh = mesh("d32").await?;
    mesh.put_service("web", json!({})).await?;
    mesh.put_workload("vm", "web", &["192.0.2.9", "192.0.2.4"]).await?;
    mesh.shows("web", &[("vm", true)]).await?;
    assert_eq!(only_slice(&mesh, "web").await?.endpoints[0].addresses, ["192.0.2.4", "192.0.2.9"]);
    Ok(())
}

#[tokio::test]
async fn the_application_protocol_is_copied_to_the_slice_d34() -> Result<()> {
    let mesh = mesh("d34").await?;
    mesh.put_service("web", json!({"ports": [{"name": "http", "port": 80, "appProtocol": "kubernetes.io/h2c"}]}))
        .await?;
    mesh.put_workload("vm", "web", &["192.0.2.4"]).await?;
    mesh.shows("web", &[("vm", true)]).await?;
    let ports = only_slice(&mesh, "web").await?.ports.unwrap_or_default();
    assert_eq!(ports[0].app_protocol.as_deref(), Some("kubernetes.io/h2c"));
    Ok(())
}

#[tokio::test]
async fn a_service_that_stops_selecting_loses_our_slices_d35() -> Result<()> {
    let mesh = mesh("d35").await?;
    for name in ["external", "selectorless"] {
        mesh.put_service(name, json!({})).await?;
        mesh.put_workload(&format!("vm-{name}"), name, &["192.0.2.4"]).await?;
        mesh.shows(name, &[(&format!("vm-{name}"), true)]).await?;
    }
    let external = json!({"spec": {"type": "ExternalName", "externalName": "example.com", "clusterIP": null,
        "clusterIPs": null, "ipFamilies": null, "ipFamilyPolicy": null}});
    mesh.patch_service("external", external).await?;
    mesh.patch_service("selectorless", json!({"spec": {"selector": null}})).await?;
    for name in ["external", "selectorless"] {
        mesh.shows(name, &[]).await?;
        mesh.expect_event(&format!("vm-{name}"), "Unpublished").await?;
    }
    // The slices return when the selector is restored.
    mesh.patch_service("selectorless", json!({"spec": {"selector": {"app": "selectorless"}}})).await?;
    mesh.shows("selectorless", &[("vm-selectorless", true)]).await
}

#[tokio::test]
async fn a_readiness_change_is_one_write_and_one_event_d36() -> Result<()> {
    let mesh = mesh("d36").await?;
    mesh.put_service("web", json!({})).await?;
    mesh.put_workload("vm-1", "web", &["192.0.2.1"]).await?;
    mesh.put_workload("vm-2", "web", &["192.0.2.2"]).await?;
    mesh.shows("web", &[("vm-1", true), ("vm-2", true)]).await?;
    let generation = only_slice(&mesh, "web").await?.metadata.generation.unwrap();
    mesh.set_ready("vm-2", false).await?;
    mesh.shows("web", &[("vm-1", true), ("vm-2", false)]).await?;
    assert_eq!(only_slice(&mesh, "web").await?.metadata.generation.unwrap(), generation + 1);
    mesh.expect_event("vm-2", "BecameUnready").await?;
    mesh.set_ready("vm-2", true).await?;
    mesh.shows("web", &[("vm-1", true), ("vm-2", true)]).await?;
    mesh.delete_workload("vm-2").await?;
    mesh.shows("web", &[("vm-1", true)]).await?;
    mesh.expect_event("vm-2", "Unpublished").await?;
    Ok(())
}

#[tokio::test]
async fn a_recreated_workload_stays_in_its_slice_with_its_new_uid_d37() -> Result<()> {
    let mesh = mesh("d37").await?;
    mesh.put_service("web", json!({})).await?;
    mesh.put_workload("stays", "web", &["192.0.2.1"]).await?;
    mesh.put_workload("vm", "web", &["192.0.2.2"]).await?;
    mesh.shows("web", &[("stays", true), ("vm", true)]).await?;
    mesh.delete_workload("vm").await?;
    mesh.put_workload("vm", "web", &["192.0.2.2"]).await?;
    let uid = mesh.workloads.get("vm").await?.uid();
    eventually(SOON, "the new uid", async || {
        let (endpoint, _) = mesh.published("web").await?.remove("vm").context("vm is not published")?;
        let seen = endpoint.target_ref.and_then(|target| target.uid);
        ensure!(seen == uid, "{seen:?}");
        only_slice(&mesh, "web").await.map(drop)
    })
    .await
}

#[tokio::test]
async fn changed_labels_and_selectors_update_the_services_left_and_joined() -> Result<()> {
    let mesh = mesh("labels").await?;
    for name in ["left", "joined"] {
        mesh.put_service(name, json!({})).await?;
    }
    mesh.put_workload("vm", "left", &["192.0.2.4"]).await?;
    mesh.shows("left", &[("vm", true)]).await?;
    mesh.patch_workload("vm", json!({"metadata": {"labels": {"app": "joined"}}})).await?;
    mesh.shows("left", &[]).await?;
    mesh.shows("joined", &[("vm", true)]).await?;
    mesh.patch_service("left", json!({"spec": {"selector": {"app": "joined"}}})).await?;
    mesh.shows("left", &[("vm", true)]).await?;
    mesh.shows("joined", &[("vm", true)]).await
}

#[tokio::test]
async fn a_published_workload_gets_one_event_for_each_change() -> Result<()> {
    let mesh = mesh("events").await?;
    mesh.put_service("web", json!({})).await?;
    mesh.put_workload_with("vm", "web", json!({"spec": {"workloadIPs": [{"ip": "192.0.2.4"}]}})).await?;
    let note = mesh.expect_event("vm", "Published").await?;
    assert!(note.contains("Service web") && note.contains("192.0.2.4") && note.contains("not ready"), "{note}");
    mesh.set_ready("vm", true).await?;
    mesh.expect_event("vm", "BecameReady").await?;
    let reasons: Vec<String> =
        mesh.events_of("vm").await?.iter().filter_map(|e| e.split(':').next().map(str::to_owned)).collect();
    assert_eq!(reasons, ["Published", "BecameReady"]);
    let event = mesh.events.list(&kube::api::ListParams::default().fields("reason=Published")).await?.items.remove(0);
    assert_eq!(event.related.and_then(|related| related.kind).as_deref(), Some("Service"));
    assert_eq!(event.type_.as_deref(), Some("Normal"));
    Ok(())
}

#[tokio::test]
async fn more_than_a_hundred_workloads_are_split_over_slices() -> Result<()> {
    let mesh = mesh("many").await?;
    mesh.put_service("web", json!({})).await?;
    let names: Vec<String> = (0..130).map(|number| format!("vm-{number:03}")).collect();
    for (number, name) in names.iter().enumerate() {
        let ip = format!("192.0.2.{}", 1 + number);
        mesh.put_workload_with(name, "web", json!({"spec": {"workloadIPs": [{ "ip": ip }]}})).await?;
    }
    let all: Vec<(&str, bool)> = names.iter().map(|name| (name.as_str(), false)).collect();
    mesh.shows("web", &all).await?;
    let lengths: Vec<usize> = mesh.our_slices("web").await?.iter().map(|slice| slice.endpoints.len()).collect();
    assert_eq!(lengths.iter().sum::<usize>(), 130);
    assert!(lengths.len() == 2 && lengths.iter().all(|length| *length <= 100), "{lengths:?}");
    stays_untouched(&mesh, "web").await
}

#[tokio::test]
async fn a_slice_with_an_unsupported_address_type_is_deleted() -> Result<()> {
    let mesh = mesh("fqdn").await?;
    let service = mesh.put_service("web", json!({})).await?;
    let slice: EndpointSlice = serde_json::from_value(json!({
        "metadata": {"name": "linkerd-external-web-fqdn", "labels": {"kubernetes.io/service-name": "web",
            "endpointslice.kubernetes.io/managed-by": MANAGED_BY},
            "ownerReferences": [{"apiVersion": "v1", "kind": "Service", "name": "web", "uid": service.uid()}]},
        "addressType": "FQDN", "endpoints": [{"addresses": ["example.com"]}], "ports": [],
    }))?;
    mesh.slices.create(&PostParams::default(), &slice).await?;
    eventually(SOON, "the slice to be deleted", async || {
        ensure!(mesh.our_slices("web").await?.is_empty(), "it still exists");
        Ok(())
    })
    .await
}

#[tokio::test]
async fn a_foreign_slice_with_our_name_keeps_it() -> Result<()> {
    let mesh = mesh("names").await?;
    mesh.put_web_over_vm().await?;
    let name = only_slice(&mesh, "web").await?.name_any();
    mesh.delete_workload("vm").await?;
    mesh.shows("web", &[]).await?;
    eventually(SOON, "the name to be free", async || {
        ensure!(mesh.slices.get_opt(&name).await?.is_none(), "{name} still exists");
        Ok(())
    })
    .await?;
    let squatter: EndpointSlice = serde_json::from_value(
        json!({"metadata": {"name": name}, "addressType": "IPv4", "endpoints": [{"addresses": ["203.0.113.1"]}], "ports": []}),
    )?;
    let squatter = mesh.slices.create(&PostParams::default(), &squatter).await?;
    mesh.put_workload("vm", "web", &["192.0.2.4"]).await?;
    mesh.shows("web", &[("vm", true)]).await?;
    assert_ne!(only_slice(&mesh, "web").await?.name_any(), name);
    assert_eq!(mesh.slices.get(&name).await?.resource_version(), squatter.resource_version());
    Ok(())
}
