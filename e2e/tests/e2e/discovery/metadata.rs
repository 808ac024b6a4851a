//! The metadata of a Pod, as a whole message. The table of cases has its fields one by one.

use std::collections::HashMap;

use anyhow::Result;
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
    Served,
    objects::{but, meshed, node, of_pod, replica_set, service, slice},
    received,
};

#[tokio::test]
async fn a_pod_of_a_deployment_is_sent_with_complete_metadata() -> Result<()> {
    let rig = Served::start("whole").await?;
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
