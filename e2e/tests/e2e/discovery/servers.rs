//! Changes of Servers, and of the labels that they select, on open streams.

use anyhow::Result;
use serde_json::json;

use super::{
    QUIET, Rig, Settings, add,
    objects::{
        address, but, container, meshed, of_pod, of_workload, opaque_server, proxy, server, service, slice, workload,
    },
    received::{self, traits},
};

const MESHED: &str = "h2 4143 identity http2";
const OPAQUE: &str = "opaque 4143 identity http2";

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
