//! The metadata of a Pod in profiles, as a whole. The table of cases has its fields one by one.

use std::collections::HashMap;

use anyhow::Result;
use linkerd2_proxy_api::{
    destination::{
        DestinationProfile, Http2ClientParams, ProtocolHint, TlsIdentity, WeightedAddr,
        http2_client_params::KeepAlive,
        protocol_hint::{H2, Opaque, OpaqueTransport, Protocol},
        tls_identity::{DnsLikeIdentity, Strategy},
    },
    net::{IpAddress, TcpAddress, ip_address::Ip},
};
use serde_json::json;

use super::{at, default_budget, ip};
use crate::discovery::{
    Rig,
    objects::{meshed, owner, replica_set},
    received,
};

const OPAQUE_PORTS: &str = "config.linkerd.io/opaque-ports";
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
async fn the_label_of_the_owner_follows_its_changes() -> Result<()> {
    let rig = Rig::start("owner").await?;
    let ip = ip();
    rig.put(replica_set("web-5d4c").owned_by("apps/v1", "Deployment", "web")).await?;
    rig.run(meshed("web-1").owned_by("apps/v1", "ReplicaSet", "web-5d4c"), &[&ip]).await?;
    let is = |name: &'static str| {
        move |profile: &DestinationProfile| {
            let labels = profile.endpoint.as_ref().map(|endpoint| &endpoint.metric_labels);
            labels.and_then(|labels| labels.get("deployment")).is_some_and(|owner| owner == name)
        }
    };
    let mut open = rig.open(&at(&ip, 8080)).await?;
    open.shows("the owner", is("web")).await?;
    let other = json!([owner("apps/v1", "Deployment", "renamed")]);
    rig.patch("ReplicaSet", "web-5d4c", json!({"metadata": {"ownerReferences": other}})).await?;
    open.shows("the new owner", is("renamed")).await
}
