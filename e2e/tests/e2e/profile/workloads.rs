//! Profiles of ExternalWorkloads, by address and port.

use std::collections::{BTreeMap, HashMap};

use anyhow::{Context, Result};
use linkerd2_proxy_api::{
    destination::{
        DestinationProfile, Http2ClientParams, ProtocolHint, TlsIdentity, WeightedAddr,
        http2_client_params::KeepAlive,
        protocol_hint::{H2, OpaqueTransport, Protocol},
        tls_identity::{DnsLikeIdentity, Strategy, UriLikeIdentity},
    },
    net::{IpAddress, TcpAddress, ip_address::Ip},
};
use serde_json::{Value, json};

use super::{MESHED, OPAQUE, at, default_budget, ip, workload_at};
use crate::discovery::{
    Rig, Settings,
    objects::{KEPT, Object, meshed, owner},
    received,
};

const OPAQUE_PORTS: &str = "config.linkerd.io/opaque-ports";

/// An ExternalWorkload with the ports `http` 8080, 8989, 4242, 3306 and 4191, and the proxy port 5143.
fn cool(name: &str, ip: &str) -> Object {
    let ports = json!([{"name": "http", "port": 8080}, {"port": 8989}, {"port": 4242}, {"port": 3306},
        {"port": 4191}, {"name": "linkerd-proxy", "port": 5143}]);
    let tls = json!({"identity": "spiffe://some-domain/cool", "serverName": "server.local"});
    workload_at(name, &[ip]).with(json!({"spec": {"ports": ports, "meshTLS": tls}}))
}

fn labels(profile: &DestinationProfile) -> Option<BTreeMap<String, String>> {
    Some(profile.endpoint.as_ref()?.metric_labels.clone().into_iter().collect())
}

#[tokio::test]
async fn a_workload_is_sent_with_all_fields() -> Result<()> {
    let rig = Rig::start("whole").await?;
    let ip = ip();
    rig.put(cool("my-cool-workload", &ip)).await?;
    let seconds = |seconds| Some(prost_types::Duration { seconds, nanos: 0 });
    let bits = u32::from(ip.parse::<std::net::Ipv4Addr>()?);
    let labels = [("external_workload", "my-cool-workload"), ("zone", ""), ("namespace", rig.name())];
    let strings: HashMap<String, String> = received::pairs(&labels).into_iter().collect();
    let expected = DestinationProfile {
        retry_budget: default_budget(),
        endpoint: Some(WeightedAddr {
            addr: Some(TcpAddress { ip: Some(IpAddress { ip: Some(Ip::Ipv4(bits)) }), port: 8989 }),
            weight: 10_000,
            metric_labels: strings,
            tls_identity: Some(TlsIdentity {
                server_name: Some(DnsLikeIdentity { name: "server.local".to_owned() }),
                strategy: Some(Strategy::UriLikeIdentity(UriLikeIdentity {
                    uri: "spiffe://some-domain/cool".to_owned(),
                })),
            }),
            protocol_hint: Some(ProtocolHint {
                opaque_transport: Some(OpaqueTransport { inbound_port: 5143 }),
                protocol: Some(Protocol::H2(H2 {})),
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
    let known = "external_workload my-cool-workload with h2 5143 identity http2";
    let mut open = rig.opens_with(&at(&ip, 8989), known).await?;
    open.becomes_exactly(&expected).await?;
    open.has_received(1).await
}

#[tokio::test]
async fn a_workload_is_meshed_with_any_flags() -> Result<()> {
    for (settings, plain, opaque, port_3306) in [
        (Settings::Helm, "with h2 5143 identity http2", "with opaque 5143 identity http2", true),
        (Settings::Upstream, "with h2 identity http2", "with opaque 5143 identity http2", true),
        (Settings::Contrary, "with h2 5143 identity", "with opaque 5143 identity", false),
    ] {
        let rig = Rig::with(settings, "flags").await?;
        for (annotation, row) in [
            (None, "none"),
            (Some("4242"), "number"),
            (Some("http"), "name"),
            (Some(""), "empty"),
            (Some(" "), "blank"),
        ] {
            let (ip, object) = (ip(), cool(row, ""));
            let object = annotation.iter().fold(object, |object, text| object.annotated(OPAQUE_PORTS, text));
            rig.put(object.with(json!({"spec": {"workloadIPs": [{ "ip": ip }]}}))).await?;
            for port in [8080, 8989, 4242, 3306] {
                let is_opaque = match annotation {
                    None => port == 3306 && port_3306,
                    Some("4242") => port == 4242,
                    Some("http") => port == 8080,
                    _ => false,
                };
                let expected = if is_opaque {
                    format!("opaque external_workload {row} {opaque}")
                } else {
                    format!("external_workload {row} {plain}")
                };
                let shown = rig.opens_with(&at(&ip, port), &expected).await;
                shown.with_context(|| format!("port {port} with {annotation:?}"))?;
            }
        }
    }
    Ok(())
}

#[tokio::test]
async fn workloads_have_no_skipped_or_proxy_ports() -> Result<()> {
    let rig = Rig::start("no-port").await?;
    let ip = ip();
    rig.put(
        cool("vm", &ip)
            .annotated("config.linkerd.io/skip-inbound-ports", "8080")
            .labelled("linkerd.io/control-plane-ns", "other"),
    )
    .await?;
    for port in [8080, 4191, 5143] {
        rig.opens_with(&at(&ip, port), "external_workload vm with h2 5143 identity http2").await?;
    }
    // Without a port named `linkerd-proxy`, the default inbound port is used.
    let other = super::ip();
    rig.put(workload_at("other", &[&other])).await?;
    rig.opens_with(&at(&other, 8080), &format!("external_workload other {MESHED}")).await.map(drop)
}

#[tokio::test]
async fn readiness_of_a_workload_does_not_matter() -> Result<()> {
    let rig = Rig::start("ready").await?;
    let ip = ip();
    rig.put(workload_at("vm", &[&ip])).await?;
    let mut open = rig.opens_with(&at(&ip, 8080), &format!("external_workload vm {MESHED}")).await?;
    for status in ["True", "False"] {
        let conditions = json!({"conditions": [{"type": "Ready", "status": status}]});
        rig.set_status("ExternalWorkload", "vm", conditions).await?;
    }
    rig.catches_up("ExternalWorkload").await?;
    open.matches_new_stream().await?;
    open.has_received(1).await
}

#[tokio::test]
async fn every_change_of_a_workload_is_sent() -> Result<()> {
    let rig = Rig::start("changes").await?;
    let ip = ip();
    let mut open = rig.opens_with(&at(&ip, 8080), "address").await?;
    rig.put(workload_at("vm", &[&ip])).await?;
    let expected = format!("external_workload vm {MESHED}");
    open.becomes(&expected).await?;
    rig.annotate("ExternalWorkload", "vm", OPAQUE_PORTS, Some("8080")).await?;
    open.becomes(&format!("opaque external_workload vm {OPAQUE}")).await?;
    rig.annotate("ExternalWorkload", "vm", OPAQUE_PORTS, None).await?;
    open.becomes(&expected).await?;
    let patch = async |spec: Value| rig.patch("ExternalWorkload", "vm", json!({ "spec": spec })).await;
    patch(json!({"meshTLS": {"identity": "spiffe://elsewhere/vm"}})).await?;
    let elsewhere = |profile: &DestinationProfile| {
        profile
            .endpoint
            .as_ref()
            .is_some_and(|endpoint| received::identity(endpoint).starts_with("uri spiffe://elsewhere/vm"))
    };
    open.shows("the identity", elsewhere).await?;
    patch(json!({"ports": [{"name": "http", "port": 8080}, {"name": "linkerd-proxy", "port": 5143}]})).await?;
    open.becomes("external_workload vm with h2 5143 identity http2").await?;
    patch(json!({"ports": [{"name": "http", "port": 8081}]})).await?;
    open.becomes("address").await?;
    patch(json!({"ports": [{"name": "http", "port": 8080}]})).await?;
    open.becomes(&expected).await?;
    rig.delete("ExternalWorkload", "vm").await?;
    open.becomes("address").await?;
    rig.put(workload_at("other", &[&ip])).await?;
    open.becomes(&format!("external_workload other {MESHED}")).await?;
    open.has_received(10).await
}

#[tokio::test]
async fn a_terminating_workload_is_served_until_it_is_deleted() -> Result<()> {
    let rig = Rig::start("terminating").await?;
    let ip = ip();
    rig.put(workload_at("vm", &[&ip]).with(json!({"metadata": {"finalizers": [KEPT]}}))).await?;
    let mut open = rig.opens_with(&at(&ip, 8080), &format!("external_workload vm {MESHED}")).await?;
    rig.delete("ExternalWorkload", "vm").await?;
    rig.catches_up("ExternalWorkload").await?;
    open.matches_new_stream().await?;
    open.is_quiet().await?;
    rig.patch("ExternalWorkload", "vm", json!({"metadata": {"finalizers": null}})).await?;
    open.becomes("address").await
}

#[tokio::test]
async fn an_owner_is_labeled_by_its_kind_in_lower_case() -> Result<()> {
    let rig = Rig::start("owner").await?;
    let two = json!([owner("v1", "Node", "one"), owner("v1", "Node", "two")]);
    for (row, object, expected) in [
        (
            "grouped",
            workload_at("grouped", &[]).owned_by("workload.linkerd.io/v1alpha1", "WorkloadGroup", "wg"),
            Some(("workloadgroup", "wg")),
        ),
        ("of-node", workload_at("of-node", &[]).owned_by("v1", "Node", "node-a"), Some(("node", "node-a"))),
        (
            "of-two",
            workload_at("of-two", &[]).with(json!({"metadata": {"finalizers": [KEPT], "ownerReferences": two}})),
            None,
        ),
        ("alone", workload_at("alone", &[]), None),
    ] {
        let ip = ip();
        rig.put(object.with(json!({"spec": {"workloadIPs": [{ "ip": ip }]}}))).await?;
        let mut expected_labels =
            received::pairs(&[("external_workload", row), ("zone", ""), ("namespace", rig.name())]);
        expected_labels.extend(expected.map(|(kind, name)| (kind.to_owned(), name.to_owned())));
        let mut open = rig.open(&at(&ip, 8080)).await?;
        open.shows(&format!("{expected_labels:?}"), |profile| labels(profile).as_ref() == Some(&expected_labels))
            .await?;
    }
    Ok(())
}

#[tokio::test]
async fn a_pod_at_the_same_address_takes_precedence_until_it_is_deleted() -> Result<()> {
    let rig = Rig::start("pod").await?;
    let ip = ip();
    rig.put(workload_at("vm", &[&ip]).annotated(OPAQUE_PORTS, "8080")).await?;
    let mut open = rig.opens_with(&at(&ip, 8080), &format!("opaque external_workload vm {OPAQUE}")).await?;
    rig.run(meshed("web-1"), &[&ip]).await?;
    open.becomes(&format!("pod web-1 {MESHED}")).await?;
    // A change of the hidden ExternalWorkload causes no message.
    rig.annotate("ExternalWorkload", "vm", OPAQUE_PORTS, None).await?;
    rig.catches_up("ExternalWorkload").await?;
    open.has_received(2).await?;
    rig.delete("Pod", "web-1").await?;
    open.becomes(&format!("external_workload vm {MESHED}")).await?;
    rig.delete("ExternalWorkload", "vm").await?;
    open.becomes("address").await
}
