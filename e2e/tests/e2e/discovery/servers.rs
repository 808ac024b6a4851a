//! Servers: the ports that they make opaque, and how their changes reach open streams.

use anyhow::{Context, Result};
use serde_json::{Value, json};

use super::{
    QUIET, Rig, Settings, add,
    objects::{
        Object, address, but, container, field, meshed, of_pod, of_workload, opaque_server, proxy, server, service,
        slice, workload,
    },
    received::{self, traits},
};

const MESHED: &str = "h2 4143 identity http2";
const OPAQUE: &str = "opaque 4143 identity http2";

fn of_pods(selector: Value) -> Value {
    but(json!({"port": 8080, "proxyProtocol": "opaque"}), field("podSelector", selector))
}

/// Creates `web:80` with a Pod, a Pod with other labels, an ExternalWorkload and a plain address.
async fn rig(settings: Settings, prefix: &str) -> Result<Rig> {
    let rig = Rig::with(settings, prefix).await?;
    let endpoints = [
        of_pod("192.0.2.1", "web-1"),
        of_pod("192.0.2.2", "other-1"),
        of_workload("192.0.2.3", "vm"),
        address("192.0.2.4"),
    ];
    rig.put_all([
        meshed("web-1").labelled("tier", "front"),
        meshed("other-1").labelled("app", "other"),
        workload("vm"),
        service("web"),
        slice("web", "web", &endpoints),
    ])
    .await?;
    Ok(rig)
}

/// The expected traits of the four endpoints; the plain address never has any.
fn expected(opaque: [bool; 3]) -> [(&'static str, String); 4] {
    let of = |at: usize| if opaque.get(at) == Some(&true) { OPAQUE } else { MESHED };
    [
        ("192.0.2.1:8080", of(0).to_owned()),
        ("192.0.2.2:8080", of(1).to_owned()),
        ("192.0.2.3:8080", of(2).to_owned()),
        ("192.0.2.4:8080", String::new()),
    ]
}

#[tokio::test]
async fn a_server_makes_the_selected_ports_opaque() -> Result<()> {
    let rig = rig(Settings::Helm, "servers").await?;
    let mut stream = rig.get("web:80").await?;
    received::wait_for(&mut stream, traits, expected([false; 3])).await?;
    let expression = |operator: &str, values: Value| json!([{"key": "app", "operator": operator, "values": values}]);
    let by = |expressions: Value| of_pods(json!({ "matchExpressions": expressions }));
    let workloads = |selector: Value, port: Value| json!({"externalWorkloadSelector": selector, "port": port, "proxyProtocol": "opaque"});
    let web = json!({"matchLabels": {"app": "web"}});
    let on_port = |port: Value, protocol: &str| json!({"podSelector": web, "port": port, "proxyProtocol": protocol});
    let rows = [
        (of_pods(web.clone()), [true, false, false]),
        (of_pods(json!({})), [true, true, false]),
        (of_pods(json!({"matchLabels": {}})), [true, true, false]),
        (of_pods(json!({"matchLabels": {"app": "no-match"}})), [false, false, false]),
        (of_pods(json!({"matchLabels": {"app": "web", "tier": "back"}})), [false, false, false]),
        (by(expression("In", json!(["web", "x"]))), [true, false, false]),
        (by(expression("NotIn", json!(["web"]))), [false, true, false]),
        (by(json!([{"key": "tier", "operator": "Exists"}])), [true, false, false]),
        (by(json!([{"key": "tier", "operator": "DoesNotExist"}])), [false, true, false]),
        (
            of_pods(
                json!({"matchLabels": {"app": "web"}, "matchExpressions": [{"key": "tier", "operator": "DoesNotExist"}]}),
            ),
            [false, false, false],
        ),
        (workloads(json!({}), json!(8080)), [false, false, true]),
        (workloads(json!({"matchLabels": {"app": "vm"}}), json!("http")), [false, false, true]),
        (workloads(json!({"matchLabels": {"app": "vm"}}), json!("grpc")), [false, false, false]),
        (workloads(json!({"matchLabels": {"app": "web"}}), json!(8080)), [false, false, false]),
        (on_port(json!("http"), "opaque"), [true, false, false]),
        (on_port(json!("grpc"), "opaque"), [false, false, false]),
        (on_port(json!(80), "opaque"), [false, false, false]),
        (on_port(json!("8080"), "opaque"), [false, false, false]),
        (on_port(json!(8080), "Opaque"), [false, false, false]),
        (on_port(json!(8080), "HTTP/1"), [false, false, false]),
        (on_port(json!(8080), "unknown"), [false, false, false]),
        // An invalid selector disables only its own Server.
        (by(expression("In", json!([]))), [false, false, false]),
        (by(json!([{"key": "app", "operator": "Exists", "values": ["web"]}])), [false, false, false]),
        (by(json!([{"key": "not a key!", "operator": "Exists"}])), [false, false, false]),
    ];
    for (row, (spec, opaque)) in rows.into_iter().enumerate() {
        let name = format!("row-{row}");
        rig.put(server(&name, spec.clone())).await?;
        if opaque == [false; 3] {
            // This Server changes nothing. A second Server shows when it has been processed.
            rig.put(server("after", of_pods(json!({})))).await?;
            received::wait_for(&mut stream, traits, expected([true, true, false]))
                .await
                .with_context(|| spec.to_string())?;
            rig.delete("Server", "after").await?;
        }
        received::wait_for(&mut stream, traits, expected(opaque)).await.with_context(|| spec.to_string())?;
        let mut fresh = rig.get("web:80").await?;
        fresh.next().await?;
        received::wait_for(&mut fresh, traits, expected(opaque)).await.with_context(|| format!("fresh: {spec}"))?;
        rig.delete("Server", &name).await?;
        received::wait_for(&mut stream, traits, expected([false; 3]))
            .await
            .with_context(|| format!("without {spec}"))?;
    }
    Ok(())
}

#[tokio::test]
async fn a_server_cannot_make_an_opaque_port_non_opaque() -> Result<()> {
    let rig = Rig::start("never").await?;
    let annotated = |name: &str, ports: &str| meshed(name).annotated("config.linkerd.io/opaque-ports", ports);
    rig.put_all([
        annotated("web-1", "8080"),
        annotated("web-2", ""),
        service("web"),
        slice("web", "web", &[of_pod("192.0.2.1", "web-1"), of_pod("192.0.2.2", "web-2")]),
        server("http", json!({"podSelector": {}, "port": 8080, "proxyProtocol": "HTTP/2"})),
        server("mysql", json!({"podSelector": {}, "port": 3306, "proxyProtocol": "HTTP/1"})),
    ])
    .await?;
    let mut stream = rig.get("web:80").await?;
    let expected = [("192.0.2.1:8080", OPAQUE), ("192.0.2.2:8080", MESHED)].map(|(at, traits)| (at, traits.to_owned()));
    received::wait_for(&mut stream, traits, expected).await?;
    // An empty opaque-ports annotation does not override the Server.
    rig.put(opaque_server("opaque", json!(8080))).await?;
    let expected = [("192.0.2.1:8080", OPAQUE), ("192.0.2.2:8080", OPAQUE)].map(|(at, traits)| (at, traits.to_owned()));
    received::wait_for(&mut stream, traits, expected).await
}

#[tokio::test]
async fn an_edit_of_a_server_sends_one_add_of_the_affected_endpoints() -> Result<()> {
    for (settings, plain, opaque) in
        [(Settings::Helm, MESHED, OPAQUE), (Settings::Upstream, "h2 identity http2", OPAQUE)]
    {
        let rig = Rig::with(settings, "flip").await?;
        let native = json!({"spec": {"initContainers": [but(proxy("0.0.0.0:4143"), json!({"restartPolicy": "Always"})),
            but(container("app", 8080), json!({"restartPolicy": "Always"}))], "containers": [container("main", 1)]}});
        rig.put_all([
            meshed("web-1"),
            meshed("web-2").with(native),
            meshed("other-1").labelled("app", "other"),
            service("web"),
            slice(
                "web",
                "web",
                &[of_pod("192.0.2.1", "web-1"), of_pod("192.0.2.2", "web-2"), of_pod("192.0.2.3", "other-1")],
            ),
            opaque_server("web", json!("http")),
        ])
        .await?;
        let expected = |two: &str| {
            [
                ("192.0.2.1:8080", two.to_owned()),
                ("192.0.2.2:8080", two.to_owned()),
                ("192.0.2.3:8080", plain.to_owned()),
            ]
        };
        let mut stream = rig.get("web:80").await?;
        received::wait_for(&mut stream, traits, expected(opaque)).await?;
        for (patch, two) in [
            (json!({"spec": {"podSelector": {"matchLabels": {"app": "no-match"}}}}), plain),
            (json!({"spec": {"podSelector": {"matchLabels": {"app": "web"}}}}), opaque),
            (json!({"spec": {"proxyProtocol": "HTTP/2"}}), plain),
            (json!({"spec": {"proxyProtocol": "opaque"}}), opaque),
            (json!({"spec": {"port": 9999}}), plain),
            (json!({"spec": {"port": 8080}}), opaque),
        ] {
            rig.patch("Server", "web", patch).await?;
            assert_eq!(stream.next().await?, Some(add(&["192.0.2.1:8080", "192.0.2.2:8080"])?));
            received::wait_for(&mut stream, traits, expected(two)).await?;
        }
        rig.delete("Server", "web").await?;
        assert_eq!(stream.next().await?, Some(add(&["192.0.2.1:8080", "192.0.2.2:8080"])?));
        received::wait_for(&mut stream, traits, expected(plain)).await?;
        stream.is_quiet_for(QUIET).await?;
    }
    Ok(())
}

#[tokio::test]
async fn one_of_several_servers_is_enough_to_make_a_port_opaque() -> Result<()> {
    let rig = rig(Settings::Helm, "several").await?;
    rig.put_all([opaque_server("a", json!(8080)), opaque_server("b", json!("http"))]).await?;
    let mut stream = rig.get("web:80").await?;
    received::wait_for(&mut stream, traits, expected([true, false, false])).await?;
    // Server `b` still makes the port opaque, so the endpoint does not change.
    rig.patch("Server", "a", json!({"spec": {"proxyProtocol": "HTTP/2"}})).await?;
    rig.patch("Server", "a", json!({"spec": {"podSelector": {"matchLabels": {"app": "other"}}}})).await?;
    stream.is_quiet_for(QUIET).await?;
    rig.delete("Server", "b").await?;
    received::wait_for(&mut stream, traits, expected([false; 3])).await?;
    rig.patch("Server", "a", json!({"spec": {"proxyProtocol": "opaque"}})).await?;
    received::wait_for(&mut stream, traits, expected([false, true, false])).await?;
    rig.delete("Server", "a").await?;
    received::wait_for(&mut stream, traits, expected([false; 3])).await
}

#[tokio::test]
async fn a_server_of_another_namespace_has_no_effect() -> Result<()> {
    let rig = rig(Settings::Helm, "ours").await?;
    let elsewhere = Rig::start("elsewhere").await?;
    let mut stream = rig.get("web:80").await?;
    received::wait_for(&mut stream, traits, expected([false; 3])).await?;
    elsewhere
        .put_all([
            opaque_server("web", json!(8080)),
            meshed("web-1"),
            service("web"),
            slice("web", "web", &[of_pod("192.0.2.1", "web-1")]),
        ])
        .await?;
    // The Server takes effect in its own namespace.
    let mut theirs = elsewhere.get("web:80").await?;
    received::wait_for_only(&mut theirs, traits, OPAQUE.to_owned()).await?;
    stream.is_quiet_for(QUIET).await
}

#[tokio::test]
async fn changed_labels_add_a_workload_to_a_server_and_remove_it() -> Result<()> {
    let rig = rig(Settings::Helm, "labels").await?;
    rig.put_all([
        opaque_server("pods", json!(8080)),
        server(
            "workloads",
            json!({"externalWorkloadSelector": {"matchLabels": {"opaque": "yes"}}, "port": 8080,
            "proxyProtocol": "opaque"}),
        ),
    ])
    .await?;
    let mut stream = rig.get("web:80").await?;
    received::wait_for(&mut stream, traits, expected([true, false, false])).await?;
    rig.patch("Pod", "web-1", json!({"metadata": {"labels": {"app": "else"}}})).await?;
    received::wait_for(&mut stream, traits, expected([false, false, false])).await?;
    rig.patch("Pod", "other-1", json!({"metadata": {"labels": {"app": "web"}}})).await?;
    received::wait_for(&mut stream, traits, expected([false, true, false])).await?;
    rig.patch("ExternalWorkload", "vm", json!({"metadata": {"labels": {"opaque": "yes"}}})).await?;
    received::wait_for(&mut stream, traits, expected([false, true, true])).await
}

#[tokio::test]
async fn a_named_port_of_a_server_is_a_container_port_or_its_host_port() -> Result<()> {
    let rig = Rig::start("host-port").await?;
    let ports =
        json!([{"name": "http", "containerPort": 80, "hostPort": 8080}, {"name": "admin", "containerPort": 9990}]);
    let container = json!({"name": "app", "image": "app", "ports": ports});
    let pod: Object = meshed("web-1").with(json!({"spec": {"containers": [container, proxy("0.0.0.0:4143")]}}));
    rig.put_all([
        pod,
        service("web"),
        slice("web", "web", &[of_pod("192.0.2.1", "web-1")]),
        opaque_server("named", json!("http")),
    ])
    .await?;
    for (port, expected) in [(80, OPAQUE), (8080, OPAQUE), (9990, MESHED)] {
        let authority = format!("web:{port}");
        let mut stream = rig.get(&authority).await?;
        received::wait_for_only(&mut stream, traits, expected.to_owned()).await.with_context(|| authority)?;
    }
    // The container port itself, requested by its number.
    rig.patch("EndpointSlice", "web", json!({"ports": [{"name": "http", "port": 80}]})).await?;
    let mut stream = rig.get("web:80").await?;
    stream.shows(&["192.0.2.1:80"]).await?;
    received::wait_for_only(&mut stream, traits, OPAQUE.to_owned()).await
}
