//! The first act: virtual machines become endpoints of a Service, and proxies receive them.

use anyhow::{Result, ensure};
use e2e::{
    ControlPlane, Manager, Process, Spawn,
    executable::operator_binary,
    mesh::{Mesh, SOON},
    wait::eventually,
};

use crate::{Kubectl, metrics, operator, say, watcher::Watcher};

pub(crate) const NAMESPACE: &str = "mixed";
const SLICES: [&str; 7] = [
    "-n",
    NAMESPACE,
    "get",
    "endpointslices",
    "-l",
    "kubernetes.io/service-name=legacy",
    "-o=custom-columns=SLICE:.metadata.name,ADDRESSES:.endpoints[*].addresses[0],READY:.endpoints[*].conditions.ready,PORT:.ports[*].port",
];

pub(crate) async fn act(control_plane: &ControlPlane, manager: &Manager) -> Result<()> {
    let show = Kubectl(control_plane);
    say("A Service over two virtual machines and one Pod (config/samples/external-workload.yaml).");
    show.file("-k", "config/samples").await?;
    let mesh = Mesh::new(&control_plane.client().await?, NAMESPACE);
    mesh.shows("legacy", &[("vm-1", false), ("vm-2", false)]).await?;
    eventually(SOON, "the Pod to be an endpoint", async || {
        let slices = control_plane.kubectl(&SLICES).await?;
        ensure!(slices.lines().count() == 3, "{slices}");
        Ok(())
    })
    .await?;
    say(
        "One EndpointSlice is ours, with the virtual machines; the other one is Kubernetes' own, with the Pod. Consumers merge both.\n\
         The virtual machines are not ready yet, because no health checker has set their condition Ready.",
    );
    show.run(&SLICES).await?;

    say("A health checker sets the condition Ready in their status.");
    for workload in ["vm-1", "vm-2"] {
        set_ready(&show, workload, true).await?;
    }
    mesh.shows("legacy", &[("vm-1", true), ("vm-2", true)]).await?;
    show.run(&SLICES).await?;

    say(
        "The endpoints of the Service for a Linkerd proxy: the virtual machines and the Pod, from the same process. The stream stays\n\
         open, as a proxy's does.",
    );
    let mut proxy = proxy(control_plane, manager, "legacy.mixed.svc.cluster.local:80")?;
    proxy.prints(&["vm-1", "vm-2", "pod-1"]).await?;

    say("Before a proxy connects to an address, it requests the profile of that address: here of a virtual machine.");
    println!("{}", profile(control_plane, manager, "192.0.2.11:8080").await?);

    say("vm-2 becomes unready: it stays in the EndpointSlice, and the proxy receives an update that removes it.");
    set_ready(&show, "vm-2", false).await?;
    mesh.shows("legacy", &[("vm-1", true), ("vm-2", false)]).await?;
    show.run(&SLICES).await?;
    proxy.prints(&["vm-2"]).await?;

    say("vm-2 becomes ready again.");
    set_ready(&show, "vm-2", true).await?;
    mesh.shows("legacy", &[("vm-1", true), ("vm-2", true)]).await?;
    show.run(&SLICES).await?;
    proxy.prints(&["vm-2"]).await?;

    say(
        "A third virtual machine has a typing error in its address. It is left out, an Event reports that, and the others stay.",
    );
    show.file("-f", "config/samples/bad-address.yaml").await?;
    mesh.expect_event("vm-3", "InvalidWorkloadIP").await?;
    mesh.shows("legacy", &[("vm-1", true), ("vm-2", true)]).await?;
    show.run(&SLICES).await?;

    say("The Events of the operator, as `kubectl describe` and `kubectl events` show them.");
    mesh.expect_event("vm-2", "BecameUnready").await?;
    let columns = "-o=custom-columns=TYPE:.type,REASON:.reason,OBJECT:.regarding.name,NOTE:.note";
    let ours = "--field-selector=reportingController=linkerd-operator";
    show.run(&["-n", NAMESPACE, "get", "events.events.k8s.io", ours, columns]).await?;

    say("The metrics: slices written, endpoints by readiness, the leader, the subscribers.");
    metrics(
        manager,
        &[
            "linkerd_operator_endpointslice_writes_total{result=\"ok\"",
            "linkerd_operator_external_workload_endpoints",
            "linkerd_operator_leader{",
            "externalworkload_cache_size",
            "workqueue_adds_total",
            "endpoints_subscribers",
            "linkerd_operator_discovery_messages_total",
        ],
    )
    .await?;
    Ok(())
}

/// A client of the Destination API that runs until it is dropped.
pub(crate) fn proxy(control_plane: &ControlPlane, manager: &Manager, authority: &str) -> Result<Watcher> {
    let address = manager.destination_address().to_string();
    println!("$ linkerd-operator endpoints --watch --addr {address} {authority}");
    let binary = operator_binary()?;
    let log =
        control_plane.directory().join(format!("endpoints-{}.log", authority.split('.').next().unwrap_or_default()));
    let args = ["endpoints", "--watch", "--addr", &address, authority];
    Ok(Watcher::of(Process::spawn(Spawn::new("endpoints --watch", binary, log).args(args))?))
}

/// The profile of the address, as the CLI prints it.
async fn profile(control_plane: &ControlPlane, manager: &Manager, authority: &str) -> Result<String> {
    let address = manager.destination_address().to_string();
    println!("$ linkerd-operator profile --addr {address} {authority}");
    let printed = operator(control_plane, &["profile", "--addr", &address, authority].map(str::to_owned)).await?;
    ensure!(printed.contains("external_workload"), "{printed}");
    Ok(printed.trim_end().to_owned())
}

async fn set_ready(show: &Kubectl<'_>, workload: &str, ready: bool) -> Result<()> {
    let status = if ready { "True" } else { "False" };
    let patch = format!(r#"{{"status":{{"conditions":[{{"type":"Ready","status":"{status}"}}]}}}}"#);
    let target = ["-n", NAMESPACE, "patch", "externalworkload", workload];
    show.run(&[&target[..], &["--subresource=status", "--type=merge", "-p", &patch]].concat()).await
}
