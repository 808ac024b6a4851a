//! Changes that clients cannot observe cause no message.

use anyhow::Result;
use futures::future::try_join_all;
use serde_json::{Value, json};

use super::{OpenStream, at, ip, routes, running, workload_at};
use crate::discovery::{
    QUIET, Rig,
    objects::{address, but, meshed, node, of_pod, opaque_server, pod, replica_set, server, service, slice},
};

/// Changes every object that profiles depend on in every way that does not matter.
#[tokio::test]
async fn irrelevant_changes_cause_no_message() -> Result<()> {
    let rig = Rig::start("touched").await?;
    let client = Rig::start("client").await?;
    let (pod_ip, workload_ip, host, unknown, pending) = (ip(), ip(), ip(), ip(), ip());
    let own_node = format!("{}-node", rig.name());
    let name = rig.full_name("web");
    let cluster_ip = rig.put_service(service("web")).await?;
    let port = json!({"name": "http", "containerPort": 8080, "hostPort": 7777});
    let on_host =
        pod("host-1").with(json!({"spec": {"containers": [{"name": "app", "image": "app", "ports": [port]}]}}));
    let on_host = on_host.labelled("app", "host");
    rig.put_all([
        node(&own_node, Some("here")),
        rig.profile("web", routes(&["a"])),
        service("plain"),
        slice("web", "web", &[but(of_pod(&pod_ip, "web-1"), json!({"hostname": "web-1"}))]),
        workload_at("vm", &[&workload_ip]),
        opaque_server("web", json!(8080)),
        server("workloads", json!({"externalWorkloadSelector": {}, "port": 8080, "proxyProtocol": "opaque"})),
        replica_set("web-5d4c").owned_by("apps/v1", "Deployment", "web"),
    ])
    .await?;
    rig.run(meshed("web-1").owned_by("apps/v1", "ReplicaSet", "web-5d4c"), &[&pod_ip]).await?;
    rig.put_with_status(on_host, json!({"phase": "Running", "hostIP": host, "hostIPs": [{ "ip": host }]})).await?;
    rig.run(meshed("pending"), &[&pending]).await?;
    rig.set_status("Pod", "pending", super::phase("Pending")).await?;
    for kind in ["Pod", "Service", "ServiceProfile", "ExternalWorkload", "Server"] {
        rig.catches_up(kind).await?;
    }
    let mut streams = Vec::new();
    for path in [
        rig.path("web:80"),
        rig.path("web:81"),
        rig.path("plain:80"),
        rig.path("web-1.web:8080"),
        at(&cluster_ip, 80),
        at(&pod_ip, 8080),
        at(&pod_ip, 9999),
        at(&workload_ip, 8080),
        at(&host, 7777),
        at(&unknown, 8080),
        at(&pending, 8080),
    ] {
        for namespace in ["", client.name()] {
            let mut open = rig.open_with(&path, &e2e::discovery::token(namespace, "node")).await?;
            open.stream.next().await?;
            open.matches_new_stream().await?;
            streams.push(open);
        }
    }
    // Owners may arrive later than the objects that they own.
    let settle = async |open: &mut OpenStream<'_>| {
        open.stream.settle(QUIET).await?;
        open.matches_new_stream().await
    };
    try_join_all(streams.iter_mut().map(settle)).await?;

    for (kind, object) in [
        ("Service", "web"),
        ("Service", "plain"),
        ("ServiceProfile", name.as_str()),
        ("Pod", "web-1"),
        ("Pod", "host-1"),
        ("Pod", "pending"),
        ("ExternalWorkload", "vm"),
        ("Server", "web"),
        ("Server", "workloads"),
        ("EndpointSlice", "web"),
        ("ReplicaSet", "web-5d4c"),
        ("Node", &own_node),
    ] {
        rig.annotate(kind, object, "example.com/touched", Some("once")).await?;
        rig.label(kind, object, "example.com/touched", Some("once")).await?;
    }
    let ready = |status: &str| json!({"conditions": [{"type": "Ready", "status": status}]});
    for (kind, object) in [("Pod", "web-1"), ("Pod", "host-1"), ("Pod", "pending"), ("ExternalWorkload", "vm")] {
        rig.set_status(kind, object, ready("True")).await?;
        rig.set_status(kind, object, ready("False")).await?;
    }
    let patches: [(&str, &str, Value); 7] = [
        // Ports without a stream, and fields that profiles do not use.
        (
            "Service",
            "plain",
            json!({"spec": {"ports": [{"name": "http", "port": 80, "targetPort": 99}, {"name": "b", "port": 81}]}}),
        ),
        ("Service", "plain", json!({"metadata": {"annotations": {"config.linkerd.io/opaque-ports": "1-79"}}})),
        ("Service", "web", json!({"spec": {"sessionAffinity": "ClientIP", "type": "NodePort"}})),
        ("ServiceProfile", &name, json!({"spec": {"opaquePorts": ["80"], "dstOverrides": []}})),
        ("Pod", "web-1", json!({"metadata": {"annotations": {"config.linkerd.io/opaque-ports": "8080"}}})),
        ("Server", "web", json!({"spec": {"port": "http"}})),
        (
            "ExternalWorkload",
            "vm",
            json!({"spec": {"ports": [{"name": "http", "port": 8080}, {"name": "more", "port": 1}]}}),
        ),
    ];
    for (kind, object, patch) in patches {
        rig.patch(kind, object, patch).await?;
    }
    // Only the annotation of the Service itself sets its opaque ports.
    rig.annotate("Namespace", rig.name(), "config.linkerd.io/opaque-ports", Some("80")).await?;
    rig.put_all([
        slice("more", "web", &[address("192.0.2.1")]),
        server("other-port", json!({"podSelector": {}, "port": 1234, "proxyProtocol": "opaque"})),
        server("http", json!({"podSelector": {}, "port": 8080, "proxyProtocol": "HTTP/1"})),
    ])
    .await?;
    rig.put_with_status(pod("elsewhere"), running(&[&ip()])).await?;
    client.put(rig.profile("other", routes(&["b"]))).await?;
    for kind in ["Pod", "Service", "ServiceProfile", "ExternalWorkload", "Server"] {
        rig.catches_up(kind).await?;
    }
    try_join_all(streams.iter_mut().map(OpenStream::is_quiet)).await?;
    try_join_all(streams.iter_mut().map(OpenStream::matches_new_stream)).await?;

    // The next message has the next relevant change.
    rig.patch("ServiceProfile", &name, json!({"spec": routes(&["b"])})).await?;
    rig.patch("Pod", "web-1", json!({"metadata": {"labels": {"pod-template-hash": "5d4c"}}})).await?;
    let before: usize = streams.iter().map(|open| open.stream.messages.len()).sum();
    try_join_all(streams.iter_mut().map(settle)).await?;
    let after: usize = streams.iter().map(|open| open.stream.messages.len()).sum();
    // The Service by name and by address, and the Pod by name and at two ports, each for two clients.
    assert_eq!(after - before, 2 * (2 + 3));
    Ok(())
}
