//! Placement of endpoints in existing slices: the packing cases of the acceptance table, on a real API server.
//!
//! Workloads and slices exist before the manager starts, as a predecessor would leave them. The manager then makes only
//! the writes of the case. All cases run concurrently, each in a separate namespace.

use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};
use e2e::{
    ControlPlane, Manager, ManagerOptions, Options, TestNamespace, eventually,
    mesh::{MANAGED_BY, Mesh, SOON},
};
use futures::{StreamExt, TryStreamExt, stream};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::{ResourceExt, api::PostParams};
use serde_json::json;

struct Case {
    name: &'static str,
    /// The workloads in each slice.
    slices: &'static [std::ops::Range<usize>],
    /// Workloads that are ready in their slice but not in their status.
    flipped: &'static [usize],
    /// The workloads that exist.
    workloads: std::ops::Range<usize>,
    /// The final number of endpoints per slice, largest first.
    lengths: &'static [usize],
    /// The number of initial slices that are not written.
    untouched: usize,
}

const CASES: [Case; 6] = [
    Case {
        name: "d2",
        slices: &[0..62, 62..123],
        flipped: &[],
        workloads: 0..250,
        lengths: &[100, 89, 61],
        untouched: 1,
    },
    Case {
        name: "d3",
        slices: &[0..74, 74..148],
        flipped: &[],
        workloads: 0..300,
        lengths: &[100, 74, 74, 52],
        untouched: 2,
    },
    Case {
        name: "d4",
        slices: &[0..80, 80..100],
        flipped: &[0, 80],
        workloads: 0..115,
        lengths: &[95, 20],
        untouched: 0,
    },
    Case { name: "d5", slices: &[0..99, 0..0], flipped: &[], workloads: 0..199, lengths: &[100, 99], untouched: 1 },
    Case { name: "d6", slices: &[0..1, 0..0], flipped: &[], workloads: 0..100, lengths: &[100], untouched: 0 },
    Case {
        name: "d7",
        slices: &[0..100, 100..150],
        flipped: &[],
        workloads: 10..155,
        lengths: &[95, 50],
        untouched: 1,
    },
];

#[tokio::test]
async fn existing_slices_are_packed_as_by_kubernetes_and_others_are_not_written() -> Result<()> {
    let control_plane = ControlPlane::start(Options::default()).await?;
    control_plane.kubectl(&["create", "namespace", "linkerd"]).await?;
    control_plane.install_crds("crd/linkerd").await?;
    let client = control_plane.client().await?;
    let mut prepared = Vec::new();
    for case in &CASES {
        let namespace = TestNamespace::create(&client, case.name).await?;
        let mesh = Mesh::new(&client, namespace.name());
        let before = prepare(case, &mesh).await?;
        prepared.push((case, mesh, before));
    }
    let _manager = Manager::start(&control_plane, ManagerOptions::default())?;
    for (case, mesh, before) in prepared {
        let slices = eventually(SOON, format_args!("{} to have slices of {:?}", case.name, case.lengths), async || {
            let slices = mesh.our_slices("web").await?;
            let mut lengths: Vec<usize> = slices.iter().map(|slice| slice.endpoints.len()).collect();
            lengths.sort_by(|a, b| b.cmp(a));
            ensure!(lengths == case.lengths, "{lengths:?}");
            Ok(slices)
        })
        .await?;
        let untouched =
            slices.iter().filter(|slice| slice.resource_version() == before.get(&slice.name_any()).cloned());
        assert_eq!(untouched.count(), case.untouched, "{}", case.name);
        // Each initial slice was updated at most once: its creation is generation 1.
        for slice in slices.iter().filter(|slice| before.contains_key(&slice.name_any())) {
            assert!(slice.metadata.generation <= Some(2), "{}: {:?}", case.name, slice.metadata.generation);
        }
        assert_eq!(mesh.published("web").await?.len(), case.workloads.len(), "{}", case.name);
    }
    Ok(())
}

/// Creates the workloads, and the slices as the controller would have left them. Returns their resourceVersions.
async fn prepare(case: &Case, mesh: &Mesh) -> Result<BTreeMap<String, String>> {
    let service = mesh.put_service("web", json!({})).await?;
    stream::iter(case.workloads.clone())
        .map(|number| async move {
            let spec = json!({"spec": {"workloadIPs": [{"ip": address(number)}]}});
            mesh.put_workload_with(&name(number), "web", spec).await
        })
        .buffer_unordered(8)
        .try_for_each(|()| std::future::ready(Ok(())))
        .await?;
    let mut uids = BTreeMap::new();
    for workload in mesh.workloads.list(&kube::api::ListParams::default()).await? {
        uids.insert(workload.name_any(), workload.uid());
    }
    let mut versions = BTreeMap::new();
    for (at, held) in case.slices.iter().enumerate() {
        let endpoint = |number: usize| {
            let ready = case.flipped.contains(&number);
            json!({"addresses": [address(number)],
                "conditions": {"ready": ready, "serving": ready, "terminating": false},
                "targetRef": {"kind": "ExternalWorkload", "namespace": mesh.namespace(), "name": name(number), "uid": uids.get(&name(number))}})
        };
        let slice: EndpointSlice = serde_json::from_value(json!({
            "metadata": {"generateName": "linkerd-external-web-",
                "labels": {"kubernetes.io/service-name": "web", "endpointslice.kubernetes.io/managed-by": MANAGED_BY},
                "ownerReferences": [{"apiVersion": "v1", "kind": "Service", "name": "web", "uid": service.uid(),
                    "controller": true, "blockOwnerDeletion": true}]},
            "addressType": "IPv4",
            "ports": [{"name": "http", "port": 80, "protocol": "TCP"}],
            "endpoints": held.clone().map(endpoint).collect::<Vec<_>>(),
        }))?;
        let slice = mesh.slices.create(&PostParams::default(), &slice).await.with_context(|| format!("slice {at}"))?;
        versions.insert(slice.name_any(), slice.resource_version().unwrap_or_default());
    }
    Ok(versions)
}

fn name(number: usize) -> String {
    format!("vm-{number:04}")
}

fn address(number: usize) -> String {
    format!("192.0.{}.{}", 2 + number / 250, 1 + number % 250)
}
