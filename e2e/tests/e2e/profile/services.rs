//! Services without a ServiceProfile, undeclared ports, and Services that are deleted, recreated and changed.

use anyhow::{Context, Result, ensure};
use linkerd2_proxy_api::{
    destination::DestinationProfile,
    meta::{Metadata, Resource, metadata::Kind},
};
use serde_json::{Value, json};
use tonic::Code;

use super::{default_budget, routes};
use crate::discovery::{
    Rig, Settings,
    objects::{external_name, pod, service},
};

/// The message for a Service without a ServiceProfile. Its `profile_ref` is not compared.
fn default_profile(rig: &Rig, service: &str, port: u32) -> DestinationProfile {
    let parent = Resource {
        group: "core".to_owned(),
        kind: "Service".to_owned(),
        name: service.to_owned(),
        namespace: rig.name().to_owned(),
        port,
        ..Resource::default()
    };
    DestinationProfile {
        fully_qualified_name: rig.full_name(service),
        retry_budget: default_budget(),
        parent_ref: Some(Metadata { kind: Some(Kind::Resource(parent)) }),
        ..DestinationProfile::default()
    }
}

fn ports(ports: &[u16]) -> Value {
    let port = |port: &u16| json!({"name": format!("p-{port}"), "port": port});
    json!({"spec": {"ports": ports.iter().map(port).collect::<Vec<_>>()}})
}

#[tokio::test]
async fn a_service_without_a_profile_has_the_default_one() -> Result<()> {
    for settings in [Settings::Helm, Settings::Upstream] {
        let rig = Rig::with(settings, "default").await?;
        let ip = rig.put_service(service("name2").with(ports(&[8989]))).await?;
        let expected = default_profile(&rig, "name2", 8989);
        for path in [rig.path("name2:8989"), super::at(&ip, 8989)] {
            let mut open = rig.open(&path).await?;
            open.becomes("service name2").await?;
            let mut profile = open.stream.last()?.clone();
            let profile_ref = profile.profile_ref.take();
            assert_eq!(profile, expected, "{path}");
            if let Some(Kind::Resource(profile)) = profile_ref.and_then(|profile| profile.kind) {
                assert_eq!(profile, Resource { group: "linkerd.io".to_owned(), ..Resource::default() });
            }
            open.has_received(1).await?;
        }
    }
    Ok(())
}

#[tokio::test]
async fn a_profile_refers_to_its_service_port_and_service_profile() -> Result<()> {
    let rig = Rig::start("refers").await?;
    let client = Rig::start("client").await?;
    rig.put_all([service("web"), rig.profile("web", routes(&["a"]))]).await?;
    client.put(rig.profile("web", routes(&["b"]))).await?;
    let mut open = rig.open_service("web:80").await?;
    open.becomes("service web with routes a").await?;
    let mut by_client = rig.open_service_from(client.name(), "web:80").await?;
    by_client.becomes("service web with routes b").await?;
    for (open, namespace) in [(&open, rig.name()), (&by_client, client.name())] {
        let message = open.stream.last()?;
        let whole = default_profile(&rig, "web", 80);
        assert_eq!((&message.parent_ref, &message.retry_budget), (&whole.parent_ref, &whole.retry_budget));
        let profile = Resource {
            group: "linkerd.io".to_owned(),
            kind: "ServiceProfile".to_owned(),
            name: rig.full_name("web"),
            namespace: namespace.to_owned(),
            ..Resource::default()
        };
        assert_eq!(message.profile_ref, Some(Metadata { kind: Some(Kind::Resource(profile)) }));
        ensure!(message.endpoint.is_none() && message.dst_overrides.is_empty(), "{message:?}");
    }
    Ok(())
}

#[tokio::test]
async fn an_undeclared_port_has_an_empty_profile() -> Result<()> {
    let rig = Rig::start("port").await?;
    let target = json!({"spec": {"type": "NodePort", "ports": [{"port": 80, "targetPort": 8080, "protocol": "UDP"}]}});
    let created = rig.create(service("web").with(target)).await?;
    rig.put_all([
        rig.profile("web", routes(&["a"])),
        service("none").with(json!({"spec": {"clusterIP": "None", "ports": null}})),
    ])
    .await?;
    // The protocol of the port does not matter.
    rig.open_service("web:80").await?.becomes("service web with routes a").await?;
    let node_port = created.data["spec"]["ports"][0]["nodePort"].as_u64().context("a nodePort")?;
    let ip = created.data["spec"]["clusterIP"].as_str().context("a clusterIP")?;
    for path in [
        rig.path("web:8080"),
        rig.path("web:81"),
        rig.path(&format!("web:{node_port}")),
        rig.path("web:25"),
        super::at(ip, 8080),
        rig.path("none:80"),
    ] {
        let mut open = rig.open(&path).await?;
        // This includes a port that is opaque by default, and a Service with a profile.
        open.becomes("empty").await?;
        open.has_received(1).await?;
    }
    Ok(())
}

#[tokio::test]
async fn open_streams_follow_added_and_removed_ports_of_a_service() -> Result<()> {
    let rig = Rig::start("ports").await?;
    let ip = rig.put_service(service("web").with(ports(&[80]))).await?;
    rig.put(rig.profile("web", routes(&["a"]))).await?;
    let mut kept = rig.opens_with(&rig.path("web:80"), "service web with routes a").await?;
    let mut by_name = rig.opens_with(&rig.path("web:8989"), "empty").await?;
    let mut by_ip = rig.opens_with(&super::at(&ip, 8989), "empty").await?;
    for (list, seen) in
        [(&[80, 8989][..], "service web with routes a"), (&[80], "empty"), (&[80, 8989], "service web with routes a")]
    {
        rig.patch("Service", "web", ports(list)).await?;
        by_name.becomes(seen).await?;
        by_ip.becomes(seen).await?;
    }
    by_name.has_received(4).await?;
    kept.has_received(1).await
}

#[tokio::test]
async fn streams_of_a_deleted_service_stay_open_and_continue_when_it_is_recreated() -> Result<()> {
    let rig = Rig::start("deleted").await?;
    rig.put(service("web").annotated("config.linkerd.io/opaque-ports", "80")).await?;
    let mut open = rig.opens_with(&rig.path("web:80"), "opaque service web").await?;
    rig.delete("Service", "web").await?;
    // Without the Service, the default opaque ports apply.
    open.stream.until("the default", |profile| super::summary(profile) == "service web").await?;
    rig.is_refused(&rig.path("web:80"), Code::Unknown, "").await?;
    // The profile still applies.
    rig.put(rig.profile("web", routes(&["a"]))).await?;
    open.stream.until("the profile", |profile| super::summary(profile) == "service web with routes a").await?;
    rig.put(service("web").annotated("config.linkerd.io/opaque-ports", "80")).await?;
    open.becomes("opaque service web with routes a").await?;
    rig.delete("ServiceProfile", &rig.full_name("web")).await?;
    open.becomes("opaque service web").await?;
    // The Service is recreated without the port, which is then added.
    rig.delete("Service", "web").await?;
    open.stream.until("the default", |profile| super::summary(profile) == "service web").await?;
    rig.put(service("web").with(ports(&[8080]))).await?;
    open.becomes("empty").await?;
    rig.patch("Service", "web", ports(&[80, 8080])).await?;
    open.becomes("service web").await?;
    open.is_quiet().await
}

#[tokio::test]
async fn a_deleted_service_has_the_default_opaque_ports() -> Result<()> {
    let rig = Rig::start("default").await?;
    let object = || service("db").with(ports(&[3306])).annotated("config.linkerd.io/opaque-ports", "");
    rig.put(object()).await?;
    let mut open = rig.opens_with(&rig.path("db:3306"), "service db").await?;
    rig.delete("Service", "db").await?;
    open.stream.until("the default", |profile| super::summary(profile) == "opaque service db").await?;
    rig.put(object()).await?;
    open.becomes("service db").await?;
    open.has_received(3).await
}

#[tokio::test]
async fn a_stream_by_address_stays_open_until_another_object_has_the_address() -> Result<()> {
    let rig = Rig::start("address").await?;
    let ip = rig.put_service(service("web")).await?;
    let again = |name: &str| service(name).with(json!({"spec": { "clusterIP": ip }}));
    let path = super::at(&ip, 80);
    rig.put(rig.profile("web", routes(&["a"]))).await?;
    let mut open = rig.opens_with(&path, "service web with routes a").await?;
    rig.delete("Service", "web").await?;
    rig.put(rig.profile("other", routes(&["b"]))).await?;
    rig.delete("ServiceProfile", &rig.full_name("web")).await?;
    open.stream.until("the default", |profile| super::summary(profile) == "service web").await?;
    open.is_quiet().await?;
    rig.put(again("web")).await?;
    rig.opens_with(&path, "service web").await?;
    open.becomes("service web").await?;
    open.is_quiet().await?;
    rig.delete("Service", "web").await?;
    rig.put(again("other")).await?;
    open.ends_and_then_becomes("service other with routes b").await?;

    let open = rig.open(&path).await?;
    rig.delete("Service", "other").await?;
    rig.run(pod("web-1"), &[&ip]).await?;
    open.ends_and_then_becomes("pod web-1").await?;
    // The reverse: from a Pod to a Service.
    let open = rig.opens_with(&path, "pod web-1").await?;
    rig.put(again("third")).await?;
    open.ends_and_then_becomes("service third").await
}

#[tokio::test]
async fn a_stream_by_address_ends_when_its_service_is_recreated_at_another_address() -> Result<()> {
    let rig = Rig::start("elsewhere").await?;
    let ip = rig.put_service(service("web")).await?;
    let mut by_name = rig.opens_with(&rig.path("web"), "service web").await?;
    let open = rig.opens_with(&super::at(&ip, 80), "service web").await?;
    rig.delete("Service", "web").await?;
    rig.is_refused(&rig.path("web"), Code::Unknown, "").await?;
    rig.put(service("web").with(json!({"spec": {"clusterIP": "None"}}))).await?;
    open.ends_and_then_becomes("address").await?;
    by_name.matches_new_stream().await?;
    by_name.has_received(1).await
}

#[tokio::test]
async fn a_service_that_becomes_an_external_name_ends_the_streams_that_would_be_refused() -> Result<()> {
    let rig = Rig::start("external").await?;
    let away = json!({"spec": {"type": "ExternalName", "externalName": "example.com", "clusterIP": null,
        "clusterIPs": null, "ipFamilies": null, "ipFamilyPolicy": null}});
    rig.put(service("web")).await?;
    let listed = rig.opens_with(&rig.path("web:80"), "service web").await?;
    let mut unlisted = rig.opens_with(&rig.path("web:81"), "empty").await?;
    rig.patch("Service", "web", away).await?;
    let path = rig.path("web:80");
    listed.ends_and_then_is_refused(Code::InvalidArgument, &format!("Invalid authority: {path}")).await?;
    unlisted.is_quiet().await?;
    unlisted.matches_new_stream().await?;
    // Without the port the stream has an empty profile; with the port the request is refused.
    rig.patch("Service", "web", json!({"spec": {"ports": [{"name": "other", "port": 81}]}})).await?;
    unlisted.ends_and_then_is_refused(Code::InvalidArgument, "Invalid authority: ").await?;
    let mut empty = rig.opens_with(&path, "empty").await?;
    rig.patch("Service", "web", json!({"spec": {"type": "ClusterIP", "externalName": null}})).await?;
    rig.patch("Service", "web", ports(&[80])).await?;
    empty.becomes("service web").await
}

#[tokio::test]
async fn services_of_every_type_have_a_profile() -> Result<()> {
    let rig = Rig::start("types").await?;
    rig.put_all([
        service("headless").with(json!({"spec": {"clusterIP": "None"}})),
        service("node-port").with(json!({"spec": {"type": "NodePort"}})),
        service("balanced").with(json!({"spec": {"type": "LoadBalancer"}})),
        // Services of other clusters have the same profile as any Service.
        service("mirror").labelled("multicluster.linkerd.io/remote-discovery", "east"),
        service("federated").annotated("multicluster.linkerd.io/remote-discovery", "web@east"),
        external_name("away"),
    ])
    .await?;
    for name in ["headless", "node-port", "balanced", "mirror", "federated"] {
        rig.opens_with(&rig.path(name), &format!("service {name}")).await?;
    }
    rig.opens_with(&rig.path("away"), "empty").await.map(drop)
}
