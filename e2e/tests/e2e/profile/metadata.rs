//! The metadata of a Pod in profiles: hint, identity, HTTP/2 settings and labels, field by field.

use std::collections::{BTreeMap, HashMap};

use anyhow::{Context, Result};
use linkerd2_proxy_api::{
    destination::{
        DestinationProfile, Http2ClientParams, ProtocolHint, TlsIdentity, WeightedAddr,
        http2_client_params::KeepAlive,
        protocol_hint::{H2, Opaque, OpaqueTransport, Protocol},
        tls_identity::{DnsLikeIdentity, Strategy},
    },
    net::{IpAddress, TcpAddress, ip_address::Ip},
};
use serde_json::{Value, json};

use super::{MESHED, OPAQUE, at, default_budget, ip, running};
use crate::discovery::{
    Rig, Settings,
    objects::{KEPT, Object, but, container, job, meshed, meshed_with, owner, pod, proxy, proxy_with, replica_set},
    received,
};

const OPAQUE_PORTS: &str = "config.linkerd.io/opaque-ports";
const SKIPPED_PORTS: &str = "config.linkerd.io/skip-inbound-ports";

/// A Pod, the requested port, and the expected summary, in which `NAME` stands for the kind and name of the Pod.
type Row<'a> = (Object, u16, &'a str);

async fn check(rig: &Rig, rows: impl IntoIterator<Item = Row<'_>>) -> Result<()> {
    for (row, (pod, port, expected)) in rows.into_iter().enumerate() {
        let (name, ip, object) = (format!("row-{row}"), ip(), pod.value.to_string());
        rig.put_with_status(pod.with(json!({"metadata": { "name": name }})), running(&[&ip])).await?;
        let shown = rig.opens_with(&at(&ip, port), &expected.replace("NAME", &format!("pod {name}"))).await;
        shown.with_context(|| format!("port {port} of {object}"))?;
    }
    Ok(())
}

fn opaque_ports(ports: &str) -> Object {
    meshed("").annotated(OPAQUE_PORTS, ports)
}

fn skipping(ports: &str) -> Object {
    meshed("").annotated(SKIPPED_PORTS, ports)
}

fn labels(profile: &DestinationProfile) -> Option<BTreeMap<String, String>> {
    Some(profile.endpoint.as_ref()?.metric_labels.clone().into_iter().collect())
}

#[tokio::test]
async fn a_pod_of_a_deployment_is_sent_with_complete_metadata() -> Result<()> {
    let rig = Rig::start("whole").await?;
    let ip = ip();
    rig.put(replica_set("web-5d4c").owned_by("apps/v1", "Deployment", "web")).await?;
    let object = meshed("web-5d4c-1")
        .labelled("pod-template-hash", "5d4c")
        .owned_by("apps/v1", "ReplicaSet", "web-5d4c")
        .annotated(OPAQUE_PORTS, "4242");
    rig.run(object, &[&ip]).await?;
    let strings = |pairs: &[(&str, &str)]| -> HashMap<String, String> { received::pairs(pairs).into_iter().collect() };
    let name = format!("web.{}.serviceaccount.identity.linkerd.cluster.local", rig.name());
    let seconds = |seconds| Some(prost_types::Duration { seconds, nanos: 0 });
    let bits = u32::from(ip.parse::<std::net::Ipv4Addr>()?);
    let expected = |port: u16, protocol| DestinationProfile {
        opaque_protocol: port == 4242,
        retry_budget: default_budget(),
        endpoint: Some(WeightedAddr {
            addr: Some(TcpAddress { ip: Some(IpAddress { ip: Some(Ip::Ipv4(bits)) }), port: port.into() }),
            weight: 10_000,
            metric_labels: strings(&[
                ("pod", "web-5d4c-1"),
                ("deployment", "web"),
                ("serviceaccount", "web"),
                ("control_plane_ns", "linkerd"),
                ("pod_template_hash", "5d4c"),
                ("zone", ""),
                ("namespace", rig.name()),
            ]),
            tls_identity: Some(TlsIdentity {
                server_name: Some(DnsLikeIdentity { name: name.clone() }),
                strategy: Some(Strategy::DnsLikeIdentity(DnsLikeIdentity { name: name.clone() })),
            }),
            protocol_hint: Some(ProtocolHint {
                opaque_transport: Some(OpaqueTransport { inbound_port: 4143 }),
                protocol: Some(protocol),
            }),
            authority_override: None,
            http2: Some(Http2ClientParams {
                flow_control: None,
                keep_alive: Some(KeepAlive { interval: seconds(10), timeout: seconds(3), while_idle: true }),
                internals: None,
            }),
            resource_ref: None,
        }),
        ..DestinationProfile::default()
    };
    rig.open(&at(&ip, 8080)).await?.becomes_exactly(&expected(8080, Protocol::H2(H2 {}))).await?;
    rig.open(&at(&ip, 4242)).await?.becomes_exactly(&expected(4242, Protocol::Opaque(Opaque {}))).await
}

#[tokio::test]
async fn a_pod_outside_the_mesh_has_only_labels() -> Result<()> {
    let rig = Rig::start("outside").await?;
    let ip = ip();
    rig.run(pod("web-1"), &[&ip]).await?;
    rig.opens_with(&at(&ip, 3306), "opaque pod web-1").await?;
    let open = rig.opens_with(&at(&ip, 8080), "pod web-1").await?;
    let mut endpoint = open.stream.last()?.endpoint.clone().context("an endpoint")?;
    assert_eq!(
        std::mem::take(&mut endpoint.metric_labels).into_iter().collect::<BTreeMap<_, _>>(),
        received::pairs(&[("pod", "web-1"), ("serviceaccount", "web"), ("zone", ""), ("namespace", rig.name())])
    );
    assert_eq!(endpoint, WeightedAddr { addr: endpoint.addr, weight: 10_000, ..WeightedAddr::default() });
    Ok(())
}

#[tokio::test]
async fn hint_and_identity_follow_the_labels_the_proxy_and_the_port() -> Result<()> {
    let rig = Rig::start("rows").await?;
    let (meshed_as, opaque_as) = (format!("NAME {MESHED}"), format!("opaque NAME {OPAQUE}"));
    let (whole, opaque) = (meshed_as.as_str(), opaque_as.as_str());
    let control_plane = |namespace: &str| meshed("").labelled("linkerd.io/control-plane-ns", namespace);
    let native = |inits: Value, containers: Value| {
        meshed("").with(json!({"spec": {"initContainers": inits, "containers": containers}}))
    };
    let always = |container: Value| but(container, json!({"restartPolicy": "Always"}));
    let other_ports = || {
        meshed_with("", proxy_with(&[("INBOUND", "0.0.0.0:5143"), ("ADMIN", "[::]:9191"), ("CONTROL", "0.0.0.0:9190")]))
    };
    check(
        &rig,
        [
            (meshed(""), 8080, whole),
            // Also an undeclared port.
            (meshed(""), 1, whole),
            (pod(""), 8080, "NAME"),
            (control_plane("other"), 8080, "NAME with h2 4143 http2"),
            (control_plane("other"), 3306, "opaque NAME with opaque 4143 http2"),
            (control_plane(""), 8080, "NAME"),
            // The ports of the proxy itself.
            (meshed(""), 4191, "NAME with h2 identity http2"),
            (meshed(""), 4190, "NAME with h2 identity http2"),
            (meshed(""), 4143, whole),
            (other_ports(), 8080, "NAME with h2 5143 identity http2"),
            (other_ports(), 9191, "NAME with h2 identity http2"),
            (other_ports(), 9190, "NAME with h2 identity http2"),
            (other_ports(), 4191, "NAME with h2 5143 identity http2"),
            (opaque_ports("4191"), 4191, "opaque NAME with opaque identity http2"),
            // The proxy as a native sidecar.
            (
                native(json!([always(proxy("[::]:5143"))]), json!([container("app", 8080)])),
                8080,
                "NAME with h2 5143 identity http2",
            ),
            // An unparsable proxy container disables the opaque transport.
            (meshed_with("", container("no-proxy", 1)), 8080, "NAME with h2 identity http2"),
            (meshed_with("", proxy("localhost:4143")), 8080, "NAME with h2 identity http2"),
            (meshed_with("", proxy_with(&[("INBOUND", "0.0.0.0:4143")])), 8080, "NAME with h2 identity http2"),
            // Skipped ports have no hint or identity, but may be opaque.
            (skipping("24224"), 24224, "NAME"),
            (skipping("24224"), 8080, whole),
            (skipping("24000-25000"), 24224, "NAME"),
            (skipping("http"), 8080, whole),
            (skipping("3306"), 3306, "opaque NAME"),
            (skipping("8080").annotated(OPAQUE_PORTS, "8080"), 8080, "opaque NAME"),
            // Opaque ports.
            (meshed(""), 3306, opaque),
            (meshed(""), 25, opaque),
            (meshed(""), 443, whole),
            (opaque_ports("8080"), 8080, opaque),
            (opaque_ports("8080"), 3306, whole),
            (opaque_ports(""), 3306, whole),
            (opaque_ports("http"), 8080, opaque),
            (opaque_ports("8000-9000,"), 8080, opaque),
            (opaque_ports(" 1 , 8080 "), 8080, opaque),
            (opaque_ports("abc,-1,70000,9000-8000,8080"), 8080, opaque),
            (opaque_ports("8070 - 8090"), 8080, whole),
            (pod("").annotated(OPAQUE_PORTS, "8080"), 8080, "opaque NAME"),
            (pod("").annotated(OPAQUE_PORTS, ""), 3306, "NAME"),
        ],
    )
    .await
}

#[tokio::test]
async fn transparent_mode_uses_opaque_transport_for_opaque_ports_only() -> Result<()> {
    let rig = Rig::with(Settings::Upstream, "transparent").await?;
    check(
        &rig,
        [
            (meshed(""), 8080, "NAME with h2 identity http2"),
            (meshed(""), 443, "opaque NAME with opaque 4143 identity http2"),
            (opaque_ports("4242"), 4242, "opaque NAME with opaque 4143 identity http2"),
            (opaque_ports("4191"), 4191, "opaque NAME with opaque identity http2"),
            (skipping("24224"), 24224, "NAME"),
            (pod(""), 3306, "opaque NAME"),
        ],
    )
    .await
}

#[tokio::test]
async fn without_the_h2_upgrade_the_hint_has_no_protocol() -> Result<()> {
    let rig = Rig::with(Settings::Contrary, "no-h2").await?;
    check(
        &rig,
        [
            (meshed(""), 8080, "NAME with hint 4143 identity"),
            (meshed(""), 4191, "NAME with hint identity"),
            (meshed(""), 3306, "NAME with hint 4143 identity"),
            (opaque_ports("8080"), 8080, "opaque NAME with opaque 4143 identity"),
            (pod(""), 8080, "NAME"),
        ],
    )
    .await
}

#[tokio::test]
async fn the_owner_label_names_the_top_owner_and_follows_its_changes() -> Result<()> {
    let rig = Rig::start("owner").await?;
    let (apps, batch) = ("apps/v1", "batch/v1");
    rig.put_all([
        replica_set("t2-5f79f964bc").owned_by(apps, "Deployment", "t2"),
        replica_set("of-rollout").owned_by("argoproj.io/v1alpha1", "Rollout", "web"),
        replica_set("without-owner"),
        job("nightly-1").owned_by(batch, "CronJob", "nightly"),
        job("slow-cooker"),
    ])
    .await?;
    let by = |api_version: &str, kind: &str, name: &str| vec![owner(api_version, kind, name)];
    let usual = |name: &str, account: &str| {
        received::pairs(&[
            ("pod", name),
            ("serviceaccount", account),
            ("control_plane_ns", "linkerd"),
            ("zone", ""),
            ("namespace", rig.name()),
        ])
    };
    let rows = [
        (by(apps, "ReplicaSet", "t2-5f79f964bc"), Some(("deployment", "t2"))),
        (by(apps, "ReplicaSet", "of-rollout"), Some(("replicaset", "of-rollout"))),
        (by(apps, "ReplicaSet", "without-owner"), Some(("replicaset", "without-owner"))),
        (by(apps, "ReplicaSet", "t1-b4f55d87f"), Some(("replicaset", "t1-b4f55d87f"))),
        (by(batch, "Job", "nightly-1"), Some(("cronjob", "nightly"))),
        (by(batch, "Job", "slow-cooker"), Some(("k8s_job", "slow-cooker"))),
        (by(apps, "StatefulSet", "db"), Some(("statefulset", "db"))),
        (by("v1", "ReplicationController", "web"), Some(("replicationcontroller", "web"))),
        ([by(apps, "StatefulSet", "db"), by(apps, "DaemonSet", "agent")].concat(), None),
        (vec![], None),
    ];
    for (row, (owners, expected)) in rows.into_iter().enumerate() {
        let (name, ip) = (format!("row-{row}"), ip());
        let owned = json!({"metadata": {"finalizers": [KEPT], "ownerReferences": owners}});
        rig.run(meshed(&name).with(owned), &[&ip]).await?;
        let mut expected_labels = usual(&name, "web");
        expected_labels.extend(expected.map(|(kind, owner)| (kind.to_owned(), owner.to_owned())));
        let mut open = rig.open(&at(&ip, 8080)).await?;
        open.shows(&format!("{expected_labels:?}"), |profile| labels(profile).as_ref() == Some(&expected_labels))
            .await?;
        if name == "row-0" {
            let other = json!([owner(apps, "Deployment", "renamed")]);
            rig.patch("ReplicaSet", "t2-5f79f964bc", json!({"metadata": {"ownerReferences": other}})).await?;
            expected_labels.insert("deployment".to_owned(), "renamed".to_owned());
            open.shows("the new owner", |profile| labels(profile).as_ref() == Some(&expected_labels)).await?;
        }
    }
    let ip = ip();
    rig.run(meshed("nameless").with(json!({"spec": {"serviceAccountName": ""}})), &[&ip]).await?;
    let expected = usual("nameless", "default");
    let mut open = rig.open(&at(&ip, 8080)).await?;
    open.shows("the default account", |profile| labels(profile).as_ref() == Some(&expected)).await?;
    let identity = open.stream.last()?.endpoint.as_ref().map(received::identity);
    let name = format!("default.{}.serviceaccount.identity.linkerd.cluster.local", rig.name());
    assert_eq!(identity, Some(format!("dns {name} sni {name}")));
    Ok(())
}
