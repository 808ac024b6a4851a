//! The metadata of a Pod that a client receives: protocol hint, identity, HTTP/2 settings and labels, field by field.

use std::collections::HashMap;

use anyhow::{Context, Result};
use linkerd2_proxy_api::{
    destination::{
        AuthorityOverride, Http2ClientParams, ProtocolHint, TlsIdentity, Update, WeightedAddr, WeightedAddrSet,
        http2_client_params::KeepAlive,
        protocol_hint::{H2, OpaqueTransport, Protocol},
        tls_identity::{DnsLikeIdentity, Strategy},
        update,
    },
    net::{IpAddress, TcpAddress, ip_address::Ip},
};
use serde_json::json;

use super::{
    Rig, Settings,
    objects::{
        Object, address, but, container, meshed, meshed_with, node, of_pod, of_workload, pod, proxy, proxy_with,
        replica_set, service, slice, workload,
    },
    received::{self, identity, traits},
};

const MESHED: &str = "h2 4143 identity http2";
const OPAQUE: &str = "opaque 4143 identity http2";
/// Neither hint nor identity, as for a Pod without a proxy.
const PLAIN: &str = "";

/// A Pod, the requested port, and the expected traits of the endpoint.
type Row = (Object, u16, &'static str);

/// Creates a Service for each Pod, and checks the traits of its endpoint.
async fn check(rig: &Rig, rows: impl IntoIterator<Item = Row>) -> Result<()> {
    for (row, (pod, port, expected)) in rows.into_iter().enumerate() {
        let name = format!("row-{row}");
        let object = pod.value.to_string();
        rig.put_all([
            pod.with(json!({"metadata": {"name": name}})),
            service(&name),
            slice(&name, &name, &[of_pod("192.0.2.1", &name)]),
        ])
        .await?;
        let mut stream = rig.get(&format!("{name}:{port}")).await?;
        received::wait_for_only(&mut stream, traits, expected.to_owned())
            .await
            .with_context(|| format!("port {port} of {object}"))?;
    }
    Ok(())
}

fn opaque_ports(ports: &str) -> Object {
    meshed("").annotated("config.linkerd.io/opaque-ports", ports)
}

fn skipping(ports: &str) -> Object {
    meshed("").annotated("config.linkerd.io/skip-inbound-ports", ports)
}

#[tokio::test]
async fn a_pod_of_a_deployment_is_sent_with_complete_metadata() -> Result<()> {
    let rig = Rig::start("whole").await?;
    let client = format!("{}-client", rig.name());
    rig.put_all([
        node(&client, Some("zone-1")),
        replica_set("web-5d4c").owned_by("apps/v1", "Deployment", "web"),
        meshed("web-5d4c-1").labelled("pod-template-hash", "5d4c").owned_by("apps/v1", "ReplicaSet", "web-5d4c"),
        service("web"),
        slice("web", "web", &[but(of_pod("192.0.2.5", "web-5d4c-1"), json!({"zone": "zone-1"}))]),
    ])
    .await?;
    let mut stream = rig.get_from("web:80", &client).await?;
    let complete = |labels: &std::collections::BTreeMap<String, String>| labels.contains_key("deployment");
    stream
        .until("the owner and the zone", |known| known.values().any(|endpoint| complete(&received::labels(endpoint))))
        .await?;
    rig.begins_with("web:80", &e2e::discovery::token("", &client), &["192.0.2.5:8080"]).await?;
    let first = rig.discovery.first_update(&rig.path("web:80"), &e2e::discovery::token("", &client)).await?;

    let strings = |pairs: &[(&str, &str)]| -> HashMap<String, String> { received::pairs(pairs).into_iter().collect() };
    let name = format!("web.{}.serviceaccount.identity.linkerd.cluster.local", rig.name());
    let seconds = |seconds| Some(prost_types::Duration { seconds, nanos: 0 });
    let expected = WeightedAddr {
        addr: Some(TcpAddress { ip: Some(IpAddress { ip: Some(Ip::Ipv4(0xC000_0205)) }), port: 8080 }),
        weight: 10_000,
        metric_labels: strings(&[
            ("pod", "web-5d4c-1"),
            ("deployment", "web"),
            ("serviceaccount", "web"),
            ("control_plane_ns", "linkerd"),
            ("pod_template_hash", "5d4c"),
            ("zone", "zone-1"),
            ("zone_locality", "local"),
        ]),
        tls_identity: Some(TlsIdentity {
            server_name: Some(DnsLikeIdentity { name: name.clone() }),
            strategy: Some(Strategy::DnsLikeIdentity(DnsLikeIdentity { name })),
        }),
        protocol_hint: Some(ProtocolHint {
            opaque_transport: Some(OpaqueTransport { inbound_port: 4143 }),
            protocol: Some(Protocol::H2(H2 {})),
        }),
        authority_override: None::<AuthorityOverride>,
        http2: Some(Http2ClientParams {
            flow_control: None,
            keep_alive: Some(KeepAlive { interval: seconds(10), timeout: seconds(3), while_idle: true }),
            internals: None,
        }),
        resource_ref: None,
    };
    let set = strings(&[("service", "web"), ("namespace", rig.name())]);
    let add = update::Update::Add(WeightedAddrSet { addrs: vec![expected], metric_labels: set });
    assert_eq!(first, Update { update: Some(add) });
    Ok(())
}

#[tokio::test]
async fn a_pod_with_a_control_plane_label_is_meshed_and_has_an_identity_if_the_label_names_ours() -> Result<()> {
    let rig = Rig::start("meshed").await?;
    let control_plane = |namespace: &str| meshed("").labelled("linkerd.io/control-plane-ns", namespace);
    check(
        &rig,
        [
            (meshed(""), 80, MESHED),
            (pod(""), 80, PLAIN),
            // Opaque ports have no effect on Pods outside the mesh.
            (pod(""), 3306, PLAIN),
            (control_plane("other"), 80, "h2 4143 http2"),
            (control_plane("other"), 3306, "opaque 4143 http2"),
            (control_plane(""), 80, PLAIN),
            // The control-plane label decides, not the container.
            (meshed_with("", container("sidecar", 9999)), 80, "h2 identity http2"),
        ],
    )
    .await
}

#[tokio::test]
async fn the_admin_and_control_ports_of_a_proxy_have_no_opaque_transport() -> Result<()> {
    let rig = Rig::start("proxy").await?;
    let listeners = |inbound: &str, admin: &str, control: &str| {
        meshed_with("", proxy_with(&[("INBOUND", inbound), ("ADMIN", admin), ("CONTROL", control)]))
    };
    let native = |inits: serde_json::Value, containers: serde_json::Value| {
        meshed("").with(json!({"spec": {"initContainers": inits, "containers": containers}}))
    };
    let always = |container: serde_json::Value| but(container, json!({"restartPolicy": "Always"}));
    let app = container("app", 8080);
    check(
        &rig,
        [
            (meshed(""), 4191, "h2 identity http2"),
            (meshed(""), 4190, "h2 identity http2"),
            // The inbound port gets opaque transport, unlike the admin and control ports.
            (meshed(""), 4143, MESHED),
            (listeners("0.0.0.0:4143", "0.0.0.0:9191", "[::]:9190"), 9191, "h2 identity http2"),
            (listeners("0.0.0.0:4143", "0.0.0.0:9191", "[::]:9190"), 9190, "h2 identity http2"),
            (listeners("0.0.0.0:4143", "0.0.0.0:9191", "[::]:9190"), 4191, MESHED),
            (opaque_ports("4191,4190"), 4191, "opaque identity http2"),
            (opaque_ports("4191,4190"), 4190, "opaque identity http2"),
            (meshed_with("", proxy("1.2.3.4:8080")), 80, "h2 8080 identity http2"),
            (meshed_with("", proxy("[2001:db8::94]:8080")), 80, "h2 8080 identity http2"),
            (meshed_with("", proxy("[::1]:4143")), 80, MESHED),
            (native(json!([always(proxy("0.0.0.0:5143"))]), json!([app])), 80, "h2 5143 identity http2"),
            (
                native(
                    json!([always(container("app", 8080)), always(proxy("0.0.0.0:5143"))]),
                    json!([container("main", 1)]),
                ),
                4191,
                "h2 identity http2",
            ),
        ],
    )
    .await
}

#[tokio::test]
async fn an_unparsable_proxy_container_disables_only_the_opaque_transport() -> Result<()> {
    let rig = Rig::start("unparsed").await?;
    let with = |listeners: &[(&str, &str)]| meshed_with("", proxy_with(listeners));
    let (inbound, admin, control) =
        (("INBOUND", "0.0.0.0:4143"), ("ADMIN", "127.0.0.1:4191"), ("CONTROL", "0.0.0.0:4190"));
    let without_transport = "h2 identity http2";
    let from =
        json!({"name": "LINKERD2_PROXY_ADMIN_LISTEN_ADDR", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}});
    let mut indirect = proxy_with(&[inbound, control]);
    if let Some(env) = indirect["env"].as_array_mut() {
        env.push(from);
    }
    let mut rows: Vec<Row> = vec![
        (with(&[]), 80, without_transport),
        (with(&[inbound, admin]), 80, without_transport),
        (with(&[inbound, control]), 80, without_transport),
        (with(&[admin, control]), 80, without_transport),
        (meshed_with("", indirect), 80, without_transport),
        (meshed_with("", json!({"name": "linkerd-proxy", "image": "proxy"})), 80, without_transport),
        (meshed_with("", container("no-proxy", 1)), 80, without_transport),
        (meshed_with("", container("no-proxy", 1)), 3306, "opaque identity http2"),
    ];
    for address in [
        "",
        ":4143",
        "localhost:4143",
        "0.0.0.0",
        "0.0.0.0:",
        "0.0.0.0:http",
        "0.0.0.0:65536",
        "0.0.0.0:4143,[::]:4143",
        "4143",
    ] {
        rows.push((with(&[("INBOUND", address), admin, control]), 80, without_transport));
        rows.push((with(&[inbound, ("ADMIN", address), control]), 80, without_transport));
        rows.push((with(&[inbound, admin, ("CONTROL", address)]), 80, without_transport));
    }
    check(&rig, rows).await
}

#[tokio::test]
async fn a_skipped_port_has_no_hint_or_identity_but_keeps_its_labels() -> Result<()> {
    let rig = Rig::start("skip").await?;
    check(
        &rig,
        [
            (skipping("24224"), 24224, PLAIN),
            (skipping("24224"), 80, MESHED),
            (skipping("24224"), 24225, MESHED),
            (skipping("1,24000-25000,9"), 24224, PLAIN),
            (skipping("24000-24223,24225-25000"), 24224, MESHED),
            // The annotation names the endpoint port, 8080, not the requested Service port, 80.
            (skipping("80"), 80, MESHED),
            (skipping("8080"), 80, PLAIN),
            // This annotation takes numbers only, not port names.
            (skipping("http"), 80, MESHED),
            (skipping("http,-1,70000,5-3,x-y,8080,"), 80, PLAIN),
            (skipping(""), 80, MESHED),
            // Skipped ports take precedence over opaque ports.
            (skipping("3306"), 3306, PLAIN),
        ],
    )
    .await?;
    let labels = [
        ("pod", "row-0"),
        ("serviceaccount", "web"),
        ("control_plane_ns", "linkerd"),
        ("zone", ""),
        ("zone_locality", "unknown"),
    ];
    let mut stream = rig.get("row-0:24224").await?;
    received::wait_for_only(&mut stream, received::labels, received::pairs(&labels)).await
}

#[tokio::test]
async fn a_pods_opaque_ports_replace_the_defaults() -> Result<()> {
    let rig = Rig::start("opaque").await?;
    let two_ports = json!({"spec": {
        "initContainers": [but(container("init", 7070), json!({"restartPolicy": "Always"}))],
        "containers": [container("first", 8081), container("later", 8080), proxy("0.0.0.0:4143")]}});
    let native = json!({"spec": {"initContainers": [but(container("init", 8080), json!({"restartPolicy": "Always"}))],
        "containers": [json!({"name": "app", "image": "app"}), proxy("0.0.0.0:4143")]}});
    check(
        &rig,
        [
            (meshed(""), 25, OPAQUE),
            (meshed(""), 587, OPAQUE),
            (meshed(""), 3306, OPAQUE),
            (meshed(""), 4444, OPAQUE),
            (meshed(""), 5432, OPAQUE),
            (meshed(""), 6379, OPAQUE),
            (meshed(""), 9300, OPAQUE),
            (meshed(""), 11211, OPAQUE),
            (meshed(""), 443, MESHED),
            (opaque_ports("8080"), 80, OPAQUE),
            (opaque_ports("80"), 80, MESHED),
            (opaque_ports("8080"), 3306, MESHED),
            (opaque_ports(""), 3306, MESHED),
            (opaque_ports("8000-9000"), 80, OPAQUE),
            (opaque_ports("8080-8080"), 80, OPAQUE),
            (opaque_ports("0-65535"), 1, OPAQUE),
            (opaque_ports("http"), 80, OPAQUE),
            (opaque_ports("http").with(two_ports.clone()), 80, OPAQUE),
            (opaque_ports("http").with(two_ports.clone()), 8081, MESHED),
            (opaque_ports("http").with(two_ports), 7070, MESHED),
            (opaque_ports("http").with(native), 80, OPAQUE),
            (opaque_ports(" 1 , 8080 ,"), 80, OPAQUE),
            (opaque_ports("80,abc,-1,70000-1,9000-8000,65536,8 080,1-2-3,8080"), 80, OPAQUE),
            (opaque_ports("80,abc,-1,70000-1,8070 - 8090,+8080x"), 80, MESHED),
            // The Service's annotation applies to profiles only.
            (meshed(""), 8989, MESHED),
        ],
    )
    .await?;
    rig.put_all([
        service("annotated").annotated("config.linkerd.io/opaque-ports", "8080"),
        slice("annotated", "annotated", &[of_pod("192.0.2.1", "row-0")]),
    ])
    .await?;
    let mut stream = rig.get("annotated:80").await?;
    received::wait_for_only(&mut stream, traits, MESHED.to_owned()).await
}

#[tokio::test]
async fn transparent_mode_uses_opaque_transport_for_opaque_ports_only() -> Result<()> {
    let rig = Rig::with(Settings::Upstream, "transparent").await?;
    check(
        &rig,
        [
            (meshed(""), 80, "h2 identity http2"),
            (opaque_ports("4"), 4, OPAQUE),
            (opaque_ports("4191"), 4191, "opaque identity http2"),
            (meshed(""), 443, OPAQUE),
            (meshed(""), 6379, "h2 identity http2"),
            (skipping("24224"), 24224, PLAIN),
            (pod(""), 80, PLAIN),
        ],
    )
    .await?;
    let mut stream = rig.get("row-0:80").await?;
    stream.shows(&["192.0.2.1:8080"]).await?;
    let name = format!("web.{}.serviceaccount.identity.linkerd.trust.domain", rig.name());
    let endpoint = stream.only()?;
    assert_eq!(identity(endpoint), format!("dns {name} sni {name}"));
    let keep_alive = endpoint.http2.as_ref().and_then(|params| params.keep_alive).context("no keep-alive")?;
    let seconds = [keep_alive.interval, keep_alive.timeout].map(|duration| duration.map(|duration| duration.seconds));
    assert_eq!((seconds, keep_alive.while_idle), ([Some(20), Some(10)], false));
    Ok(())
}

#[tokio::test]
async fn without_the_h2_upgrade_the_hint_has_no_protocol() -> Result<()> {
    let rig = Rig::with(Settings::Contrary, "no-h2").await?;
    check(
        &rig,
        [
            (meshed(""), 80, "hint 4143 identity"),
            (meshed(""), 4191, "hint identity"),
            (meshed(""), 3306, "hint 4143 identity"),
            (opaque_ports("8080"), 80, "opaque 4143 identity"),
            (pod(""), 80, PLAIN),
        ],
    )
    .await?;
    // The endpoint of an ExternalWorkload keeps the h2 hint.
    rig.put_all([service("vm"), workload("vm"), slice("vm", "vm", &[of_workload("192.0.2.1", "vm")])]).await?;
    let mut stream = rig.get("vm:80").await?;
    received::wait_for_only(&mut stream, traits, "h2 4143 identity".to_owned()).await?;
    // An endpoint without a targetRef has no metadata, whatever the flags.
    rig.put_all([service("plain"), slice("plain", "plain", &[address("192.0.2.1")])]).await?;
    let mut stream = rig.get("plain:3306").await?;
    received::wait_for_only(&mut stream, traits, PLAIN.to_owned()).await
}

#[tokio::test]
async fn the_service_account_is_that_of_the_pod_or_default() -> Result<()> {
    let rig = Rig::start("account").await?;
    let nameless = meshed("nameless").with(json!({"spec": {"serviceAccountName": ""}}));
    rig.put_all([service("web"), nameless, slice("web", "web", &[of_pod("192.0.2.1", "nameless")])]).await?;
    let mut stream = rig.get("web:80").await?;
    let name = format!("default.{}.serviceaccount.identity.linkerd.cluster.local", rig.name());
    received::wait_for_only(&mut stream, identity, format!("dns {name} sni {name}")).await?;
    assert_eq!(stream.only()?.metric_labels["serviceaccount"], "default");
    Ok(())
}
