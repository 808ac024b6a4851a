//! The opaque ports of a Service: those of its annotation, otherwise the default ones.

use anyhow::{Context, Result};
use serde_json::{Value, json};

use super::{ip, routes, running};
use crate::discovery::{
    Rig, Settings,
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
async fn an_annotation_replaces_the_default_and_its_invalid_items_are_ignored() -> Result<()> {
    let rig = Rig::start("annotation").await?;
    let ports = [25, 80, 443, 446, 3306];
    let rows: [(Option<&str>, &[u16]); 22] = [
        (None, &[25, 3306]),
        // An empty annotation means no opaque ports.
        (Some(""), &[]),
        (Some("80"), &[80]),
        (Some("80,3306"), &[80, 3306]),
        (Some(" 80 , 443"), &[80, 443]),
        (Some("80,"), &[80]),
        (Some("443-446"), &[443, 446]),
        (Some("25,443-447,3306"), &[25, 443, 446, 3306]),
        (Some("23-25"), &[25]),
        (Some("0-65535"), &[25, 80, 443, 446, 3306]),
        (Some("0,80"), &[80]),
        (Some("p-80"), &[80]),
        (Some("p-80, p-3306,25"), &[25, 80, 3306]),
        (Some("P-80,80x,80"), &[80]),
        // Invalid items are ignored.
        (Some("notanumber"), &[]),
        (Some("80,notanumber,-23,-23-25,26-23,65536,443"), &[80, 443]),
        (Some("20 - 90"), &[]),
        (Some("443 -446,80"), &[80]),
        (Some("1000"), &[]),
        (Some(" "), &[]),
        (Some("25,,"), &[25]),
        (Some("*"), &[]),
    ];
    for (row, (annotation, opaque)) in rows.into_iter().enumerate() {
        let name = format!("row-{row}");
        let object = with_ports(&name, &ports);
        rig.put(annotation.iter().fold(object, |object, text| object.annotated(OPAQUE_PORTS, text))).await?;
        for port in ports {
            let open =
                rig.opens_with(&rig.path(&format!("{name}:{port}")), &expected(&name, opaque.contains(&port))).await;
            open.with_context(|| format!("port {port} with {annotation:?}"))?;
        }
    }
    Ok(())
}

#[tokio::test]
async fn a_blank_item_does_not_match_an_unnamed_port() -> Result<()> {
    let rig = Rig::start("blank").await?;
    let unnamed = |name: &str| service(name).with(json!({"spec": {"ports": [{"port": 80}]}}));
    for (name, ports) in [("space", " "), ("commas", "25,,"), ("comma", ",")] {
        rig.put(unnamed(name).annotated(OPAQUE_PORTS, ports)).await?;
        rig.opens_with(&rig.path(name), &expected(name, false)).await?;
    }
    // An item that matches a port name is a name, even if it is also a range.
    let ports = json!({"spec": {"ports": [{"name": "1-2", "port": 80}, {"name": "b", "port": 2}]}});
    rig.put(service("range").with(ports).annotated(OPAQUE_PORTS, "1-2")).await?;
    rig.opens_with(&rig.path("range:80"), &expected("range", true)).await?;
    rig.opens_with(&rig.path("range:2"), &expected("range", false)).await.map(drop)
}

#[tokio::test]
async fn the_default_is_set_by_the_flag() -> Result<()> {
    for (settings, opaque) in
        [(Settings::Helm, &[25, 3306, 6379][..]), (Settings::Upstream, &[25, 443, 3306]), (Settings::Contrary, &[])]
    {
        let rig = Rig::with(settings, "flag").await?;
        let ports = [25, 80, 443, 3306, 6379];
        rig.put(with_ports("web", &ports)).await?;
        for port in ports {
            rig.opens_with(&rig.path(&format!("web:{port}")), &expected("web", opaque.contains(&port))).await?;
            let ip = ip();
            let address = if opaque.contains(&port) { "opaque address" } else { "address" };
            rig.opens_with(&super::at(&ip, port), address).await?;
        }
    }
    Ok(())
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
