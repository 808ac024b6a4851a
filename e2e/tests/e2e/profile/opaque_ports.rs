//! Changes of the opaque ports of a Service, on open streams.

use anyhow::{Context, Result};
use serde_json::{Value, json};

use super::{ip, routes, running};
use crate::discovery::{
    Rig,
    objects::{Object, meshed, of_pod, server, service, slice},
};

const OPAQUE_PORTS: &str = "config.linkerd.io/opaque-ports";

/// A Service with these ports, named `p-<number>`.
fn with_ports(name: &str, ports: &[u16]) -> Object {
    let port = |port: &u16| json!({"name": format!("p-{port}"), "port": port, "targetPort": 1000});
    service(name).with(json!({"spec": {"ports": ports.iter().map(port).collect::<Vec<Value>>()}}))
}

fn expected(service: &str, opaque: bool) -> String {
    if opaque { format!("opaque service {service}") } else { format!("service {service}") }
}

#[tokio::test]
async fn a_changed_annotation_is_sent_only_to_streams_of_affected_ports() -> Result<()> {
    let rig = Rig::start("live").await?;
    let ip = rig.put_service(with_ports("web", &[80, 3306])).await?;
    let mut web = rig.opens_with(&rig.path("web:80"), &expected("web", false)).await?;
    let mut by_ip = rig.opens_with(&super::at(&ip, 80), &expected("web", false)).await?;
    let mut sql = rig.opens_with(&rig.path("web:3306"), &expected("web", true)).await?;
    let mut messages = (1, 1);
    let mut last = (false, true);
    for (annotation, opaque) in [
        (Some("3306"), (false, true)),
        (Some("3306, 665"), (false, true)),
        (Some("80"), (true, false)),
        (Some("p-80,p-3306"), (true, true)),
        (Some(""), (false, false)),
        (None, (false, true)),
        (Some("0-65535"), (true, true)),
        (Some("p-81"), (false, false)),
    ] {
        rig.annotate("Service", "web", OPAQUE_PORTS, annotation).await?;
        web.becomes(&expected("web", opaque.0)).await.with_context(|| format!("{annotation:?}"))?;
        by_ip.becomes(&expected("web", opaque.0)).await.with_context(|| format!("{annotation:?}"))?;
        sql.becomes(&expected("web", opaque.1)).await.with_context(|| format!("{annotation:?}"))?;
        messages.0 += usize::from(last.0 != opaque.0);
        messages.1 += usize::from(last.1 != opaque.1);
        last = opaque;
    }
    // The annotation applies to a renamed port by its new name.
    let renamed = json!({"spec": {"ports": [{"name": "p-81", "port": 80}, {"name": "p-3306", "port": 3306}]}});
    rig.patch("Service", "web", renamed).await?;
    web.becomes(&expected("web", true)).await?;
    by_ip.becomes(&expected("web", true)).await?;
    web.has_received(messages.0 + 1).await?;
    by_ip.has_received(messages.0 + 1).await?;
    sql.has_received(messages.1).await
}

#[tokio::test]
async fn a_stream_opened_after_the_last_one_closed_receives_the_same() -> Result<()> {
    let rig = Rig::start("again").await?;
    rig.put_all([with_ports("web", &[80, 3306]).annotated(OPAQUE_PORTS, "80"), with_ports("db", &[3306, 80])]).await?;
    for _ in 0..3 {
        for (path, service, opaque) in
            [("web:80", "web", true), ("web:3306", "web", false), ("db:3306", "db", true), ("db:80", "db", false)]
        {
            let mut first = rig.open_service(path).await?;
            first.becomes(&expected(service, opaque)).await?;
            first.has_received(1).await?;
            drop(first);
        }
        for service in ["web", "db"] {
            super::series::service_has(&rig, service, None).await?;
        }
    }
    // A later stream also follows changes.
    let mut open = rig.open_service("web:80").await?;
    open.becomes(&expected("web", true)).await?;
    rig.annotate("Service", "web", OPAQUE_PORTS, Some("")).await?;
    open.becomes(&expected("web", false)).await
}

#[tokio::test]
async fn only_the_annotation_of_the_service_counts() -> Result<()> {
    let rig = Rig::start("own").await?;
    let (pod_ip, namespace) = (ip(), rig.name().to_owned());
    let namespaces = kube::Api::<k8s_openapi::api::core::v1::Namespace>::all(rig.client.clone());
    let annotated = kube::api::Patch::Merge(json!({"metadata": {"annotations": {OPAQUE_PORTS: "80"}}}));
    namespaces.patch(&namespace, &kube::api::PatchParams::default(), &annotated).await?;
    rig.put_all([
        with_ports("web", &[80]),
        rig.profile("web", json!({"opaquePorts": ["80"], "routes": routes(&["a"])["routes"]})),
        slice("web", "web", &[of_pod(&pod_ip, "web-1")]).annotated(OPAQUE_PORTS, "80"),
        server("all", json!({"podSelector": {}, "port": 80, "proxyProtocol": "opaque"})),
    ])
    .await?;
    rig.put_with_status(meshed("web-1").annotated(OPAQUE_PORTS, "80"), running(&[&pod_ip])).await?;
    for kind in ["Pod", "Server", "ServiceProfile"] {
        rig.catches_up(kind).await?;
    }
    rig.opens_with(&rig.path("web:80"), "service web with routes a").await.map(drop)
}
