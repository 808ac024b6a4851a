//! The metadata of endpoints that are not Pods: ExternalWorkloads, plain addresses, and gateways of other clusters.

use anyhow::{Context, Result};
use serde_json::json;

use super::{
    Rig, Settings,
    objects::{Object, address, but, of_workload, service, slice, slice_v6, workload},
    received::{self, authority, identity, traits},
};

const GATEWAY: &str = "mirror.linkerd.io/remote-gateway-identity";
const REMOTE_NAME: &str = "mirror.linkerd.io/remote-svc-fq-name";
const CLUSTER: &str = "mirror.linkerd.io/cluster-name";
const OPAQUE_PORTS: &str = "config.linkerd.io/opaque-ports";

#[tokio::test]
async fn a_workload_is_always_meshed() -> Result<()> {
    let with_ports = |ports: serde_json::Value| workload("").with(json!({"spec": {"ports": ports}}));
    let inbound = json!([{"name": "linkerd-proxy", "port": 1111}, {"name": "http", "port": 8080}]);
    let (h2, opaque) = ("h2 4143 identity http2", "opaque 4143 identity http2");
    // The workload, the port, and the traits with the Helm (transport-header) and Upstream (transparent) settings.
    let rows: [(Object, u16, &str, &str); 14] = [
        (workload(""), 80, h2, "h2 identity http2"),
        (with_ports(inbound.clone()), 80, "h2 1111 identity http2", "h2 identity http2"),
        (with_ports(inbound), 3306, "opaque 1111 identity http2", "opaque 1111 identity http2"),
        (workload(""), 3306, opaque, opaque),
        // The admin and control ports of a proxy are exempt in Pods only.
        (workload(""), 4191, h2, "h2 identity http2"),
        (workload("").annotated(OPAQUE_PORTS, "8080"), 80, opaque, opaque),
        (workload("").annotated(OPAQUE_PORTS, "http"), 80, opaque, opaque),
        (workload("").annotated(OPAQUE_PORTS, "8000-8100,"), 80, opaque, opaque),
        (workload("").annotated(OPAQUE_PORTS, "x,-1,8080"), 80, opaque, opaque),
        (workload("").annotated(OPAQUE_PORTS, "9999"), 3306, h2, "h2 identity http2"),
        (workload("").annotated(OPAQUE_PORTS, ""), 3306, h2, "h2 identity http2"),
        (workload("").annotated("config.linkerd.io/skip-inbound-ports", "8080"), 80, h2, "h2 identity http2"),
        (workload("").labelled("linkerd.io/control-plane-ns", "other"), 80, h2, "h2 identity http2"),
        (with_ports(json!([])), 80, h2, "h2 identity http2"),
    ];
    for (settings, at) in [(Settings::Helm, 0), (Settings::Upstream, 1)] {
        let rig = Rig::with(settings, "machine").await?;
        for (row, (object, port, helm, upstream)) in rows.iter().enumerate() {
            let name = format!("row-{row}");
            rig.put_all([
                object.clone().with(json!({"metadata": {"name": name}})),
                service(&name),
                slice(&name, &name, &[of_workload("192.0.2.1", &name)]),
            ])
            .await?;
            let mut stream = rig.get(&format!("{name}:{port}")).await?;
            let expected = [*helm, *upstream][at].to_owned();
            received::wait_for_only(&mut stream, traits, expected)
                .await
                .with_context(|| format!("port {port} of {}", object.value))?;
        }
    }
    Ok(())
}

#[tokio::test]
async fn a_workload_has_the_identity_and_server_name_of_its_mesh_tls() -> Result<()> {
    let rig = Rig::start("identity").await?;
    let names = json!({"spec": {"meshTLS": {"identity": "spiffe://some-domain/cool", "serverName": "server.local"}}});
    let zoned = but(of_workload("192.0.2.1", "vm"), json!({"zone": "zone-9"}));
    rig.put_all([workload("vm").with(names), service("web"), slice("web", "web", &[zoned])]).await?;
    let mut stream = rig.get_from("web:80", "no-such-node").await?;
    received::wait_for_only(&mut stream, identity, "uri spiffe://some-domain/cool sni server.local".into()).await?;
    let labels = [("external_workload", "vm"), ("zone", "zone-9"), ("zone_locality", "unknown")];
    received::wait_for_only(&mut stream, received::labels, received::pairs(&labels)).await?;
    // A targetRef without a namespace refers to the namespace of the slice.
    let unnamed = but(of_workload("192.0.2.2", "vm"), json!({"targetRef": {"namespace": null}}));
    rig.set_endpoints("web", &[unnamed]).await?;
    stream.shows(&["192.0.2.2:8080"]).await?;
    let labels = [("external_workload", "vm"), ("zone", ""), ("zone_locality", "unknown")];
    received::wait_for_only(&mut stream, received::labels, received::pairs(&labels)).await
}

#[tokio::test]
async fn a_plain_address_has_only_an_address_and_a_weight() -> Result<()> {
    for settings in [Settings::Helm, Settings::Upstream, Settings::Contrary] {
        let rig = Rig::with(settings, "plain").await?;
        let zoned = but(address("192.0.2.1"), json!({"zone": "zone-a", "nodeName": "node-a", "hostname": "web-0"}));
        rig.put_all([
            service("web"),
            slice("v4", "web", &[zoned]).annotated(OPAQUE_PORTS, "8080"),
            slice_v6("v6", "web", &[address("2001:db8::1")]),
        ])
        .await?;
        for (path, port) in [("web:80", 8080), ("web:3306", 3306), ("web:4191", 4191)] {
            let mut stream = rig.get_from(path, "node-a").await?;
            stream.shows(&[&format!("192.0.2.1:{port}"), &format!("[2001:db8::1]:{port}")]).await?;
            for endpoint in stream.known.values() {
                assert_eq!((traits(endpoint).as_str(), authority(endpoint), endpoint.weight), ("", None, 10_000));
                assert_eq!(received::labels(endpoint), received::pairs(&[("zone_locality", "unknown")]));
            }
        }
    }
    Ok(())
}

#[tokio::test]
async fn a_mirrored_gateway_has_its_identity_and_the_requested_port_in_its_authority() -> Result<()> {
    // Without the h2 upgrade a gateway has no hint at all, unlike a Pod.
    for (settings, gateway) in [
        (Settings::Helm, "h2 identity http2"),
        (Settings::Upstream, "h2 identity http2"),
        (Settings::Contrary, "identity"),
    ] {
        let rig = Rig::with(settings, "gateway").await?;
        let mirror = |name: &str| slice(name, name, &[address("192.0.2.1"), address("192.0.2.2")]);
        let names = ["both", "identity-only", "name-only", "empty", "neither"];
        rig.put_all(names.map(service)).await?;
        rig.put_all([
            mirror("both").annotated(GATEWAY, "gateway.identity").annotated(REMOTE_NAME, "web.prod.svc.east.local"),
            mirror("identity-only").annotated(GATEWAY, "gateway.identity"),
            mirror("name-only").annotated(REMOTE_NAME, "web.prod.svc.east.local"),
            mirror("empty").annotated(GATEWAY, "").annotated(REMOTE_NAME, "web.prod.svc.east.local"),
            mirror("neither"),
        ])
        .await?;
        let (name, other_name) = (Some("web.prod.svc.east.local:80"), Some("web.prod.svc.east.local:3306"));
        for (service, traits, expected, other) in [
            ("both", gateway, name, other_name),
            ("identity-only", gateway, None, None),
            ("name-only", "", name, other_name),
            ("empty", "", name, other_name),
            ("neither", "", None, None),
        ] {
            // The authority has the requested port, not that of the gateway, and no port of a gateway is opaque.
            for (port, at, expected) in [(80, 8080, expected), (3306, 3306, other)] {
                let mut stream = rig.get(&format!("{service}:{port}")).await?;
                stream.shows(&[&format!("192.0.2.1:{at}"), &format!("192.0.2.2:{at}")]).await?;
                for endpoint in stream.known.values() {
                    assert_eq!(
                        (received::traits(endpoint).as_str(), authority(endpoint)),
                        (traits, expected),
                        "{service}"
                    );
                    let dns = if traits.is_empty() { "" } else { "dns gateway.identity" };
                    assert_eq!(identity(endpoint), dns, "a gateway must have no server name");
                }
            }
        }
    }
    Ok(())
}

#[tokio::test]
async fn the_set_is_labeled_with_the_service_and_its_origin() -> Result<()> {
    let rig = Rig::start("labels").await?;
    let mirror = |name: &str| slice(name, name, &[address("192.0.2.1")]);
    rig.put_all(["plain", "cluster", "full", "short", "name-only"].map(service)).await?;
    rig.put_all([
        mirror("plain"),
        mirror("cluster").labelled(CLUSTER, "east"),
        mirror("full").labelled(CLUSTER, "east").annotated(REMOTE_NAME, "web.prod.svc.east.local"),
        mirror("short").labelled(CLUSTER, "east").annotated(REMOTE_NAME, "web"),
        mirror("name-only").annotated(REMOTE_NAME, "web.prod.svc.east.local"),
    ])
    .await?;
    let origin = [("target_cluster", "east"), ("target_service", "web"), ("target_service_namespace", "prod")];
    for (service, more) in [
        ("plain", &origin[..0]),
        ("cluster", &origin[..1]),
        ("full", &origin[..]),
        ("short", &origin[..1]),
        ("name-only", &origin[..0]),
    ] {
        let mut expected = received::pairs(more);
        expected.extend(received::pairs(&[
            ("service", service),
            ("namespace", rig.name()),
            ("zone_locality", "unknown"),
        ]));
        let mut stream = rig.get(&format!("{service}:80")).await?;
        received::wait_for_only(&mut stream, |endpoint| endpoint.metric_labels.clone().into_iter().collect(), expected)
            .await?;
    }
    Ok(())
}
