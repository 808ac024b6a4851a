//! Slices that are refused or whose names are taken, next to slices that are written.

use anyhow::{Context, Result, ensure};
use e2e::{Options, eventually, mesh::SOON};
use k8s_openapi::api::{
    admissionregistration::v1::{ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding},
    discovery::v1::EndpointSlice,
};
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, PostParams},
};
use serde_json::{Value, json};

use super::{BACKED_OFF, FaultRig, expect_one_event, new_mesh};

fn dual_stack() -> Value {
    json!({"ipFamilies": ["IPv4", "IPv6"], "ipFamilyPolicy": "RequireDualStack"})
}

/// Creates a policy that refuses IPv6 slices in one namespace, and waits until it is in force.
async fn refuse_ipv6(rig: &FaultRig) -> Result<()> {
    let policies: Api<ValidatingAdmissionPolicy> = Api::all(rig.client.clone());
    let policy = json!({
        "metadata": {"name": "no-ipv6"},
        "spec": {
            "failurePolicy": "Fail",
            "matchConstraints": {"resourceRules": [{"apiGroups": ["discovery.k8s.io"], "apiVersions": ["v1"],
                "operations": ["CREATE", "UPDATE"], "resources": ["endpointslices"]}]},
            "validations": [{"expression": "object.addressType != 'IPv6'", "message": "IPv6 slices are not allowed"}]}});
    policies.create(&PostParams::default(), &serde_json::from_value(policy)?).await?;
    let bindings: Api<ValidatingAdmissionPolicyBinding> = Api::all(rig.client.clone());
    let binding = json!({
        "metadata": {"name": "no-ipv6"},
        "spec": {"policyName": "no-ipv6", "validationActions": ["Deny"], "matchResources": {"namespaceSelector":
            {"matchLabels": {"kubernetes.io/metadata.name": rig.mesh.namespace()}}}}});
    bindings.create(&PostParams::default(), &serde_json::from_value(binding)?).await?;
    let probe: EndpointSlice = serde_json::from_value(
        json!({"metadata": {"name": "probe"}, "addressType": "IPv6", "endpoints": [], "ports": []}),
    )?;
    let dry = PostParams { dry_run: true, ..PostParams::default() };
    eventually(BACKED_OFF, "the policy to be in force", async || {
        ensure!(rig.mesh.slices.create(&dry, &probe).await.is_err(), "the policy is not in force yet");
        Ok(())
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slice_that_a_policy_refuses_does_not_delay_others() -> Result<()> {
    let rig = FaultRig::start(Options::default()).await?;
    let _manager = rig.manager().await?;
    refuse_ipv6(&rig).await?;
    for name in ["web", "alone"] {
        rig.mesh.put_service(name, if name == "web" { dual_stack() } else { json!({}) }).await?;
        rig.mesh.put_workload(&format!("vm-{name}"), name, &["192.0.2.1", "2001:db8::1"]).await?;
    }
    let elsewhere = new_mesh(&rig.client).await?;
    elsewhere.put_service("web", dual_stack()).await?;
    elsewhere.put_workload("vm", "web", &["192.0.2.1", "2001:db8::1"]).await?;
    let families = async |mesh: &e2e::mesh::Mesh| {
        let slices = mesh.our_slices("web").await?;
        let mut families: Vec<_> = slices.into_iter().map(|slice| slice.address_type).collect();
        families.sort();
        anyhow::Ok(families)
    };
    rig.mesh.shows("alone", &[("vm-alone", true)]).await?;
    rig.mesh.shows("web", &[("vm-web", true)]).await?;
    eventually(SOON, "both families in the other namespace", async || {
        let seen = families(&elsewhere).await?;
        ensure!(seen == ["IPv4", "IPv6"], "{seen:?}");
        Ok(())
    })
    .await?;
    assert_eq!(families(&rig.mesh).await?, ["IPv4"]);
    let note = expect_one_event(&rig.mesh, "web", "EndpointSliceWriteFailed").await?;
    assert!(note.contains("IPv6 slices are not allowed"), "{note}");
    // The allowed family is still updated while the other is refused.
    rig.mesh.put_workload("second", "web", &["192.0.2.2"]).await?;
    rig.mesh.shows("web", &[("vm-web", true), ("second", true)]).await?;
    rig.mesh.delete_workload("second").await?;
    rig.mesh.shows("web", &[("vm-web", true)]).await?;

    let bindings: Api<ValidatingAdmissionPolicyBinding> = Api::all(rig.client.clone());
    bindings.delete("no-ipv6", &DeleteParams::default()).await?;
    eventually(BACKED_OFF, "both families in this namespace", async || {
        let seen = families(&rig.mesh).await?;
        ensure!(seen == ["IPv4", "IPv6"], "{seen:?}");
        Ok(())
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn taken_names_are_skipped_until_one_is_free() -> Result<()> {
    let rig = FaultRig::start(Options::default()).await?;
    let manager = rig.manager().await?;
    rig.mesh.put_service("web", json!({})).await?;
    let mut taken = Vec::<EndpointSlice>::new();
    for _ in 0..4 {
        rig.mesh.put_workload("vm", "web", &["192.0.2.4"]).await?;
        rig.mesh.shows("web", &[("vm", true)]).await?;
        let name = rig.mesh.our_slices("web").await?.first().context("a slice of ours")?.name_any();
        rig.mesh.delete_workload("vm").await?;
        eventually(SOON, "the name to be free", async || {
            ensure!(rig.mesh.slices.get_opt(&name).await?.is_none(), "{name} still exists");
            Ok(())
        })
        .await?;
        // The conflicting slices also include one with the label of this Service, and two that claim to be managed by
        // us.
        let labels = match taken.len() {
            0 => json!({}),
            1 => json!({"kubernetes.io/service-name": "web"}),
            _ => {
                json!({"kubernetes.io/service-name": "other", "endpointslice.kubernetes.io/managed-by": e2e::mesh::MANAGED_BY})
            }
        };
        let squatter = json!({"metadata": {"name": name, "labels": labels}, "addressType": "IPv4",
            "endpoints": [{"addresses": ["203.0.113.1"]}], "ports": []});
        taken.push(rig.mesh.slices.create(&PostParams::default(), &serde_json::from_value(squatter)?).await?);
    }
    let posts = rig.proxy.count("POST", "/endpointslices");
    rig.mesh.put_workload("vm", "web", &["192.0.2.4"]).await?;
    rig.mesh.shows("web", &[("vm", true)]).await?;
    let name = rig.mesh.our_slices("web").await?.first().context("a slice of ours")?.name_any();
    assert!(taken.iter().all(|slice| slice.name_any() != name));
    assert!(rig.proxy.count("POST", "/endpointslices") - posts <= 5, "each name must be tried only once");
    for slice in &taken {
        assert_eq!(rig.mesh.slices.get(&slice.name_any()).await?.resource_version(), slice.resource_version());
    }
    let log = manager.log();
    assert!(!log.contains("could not be written"), "{log}");
    Ok(())
}
