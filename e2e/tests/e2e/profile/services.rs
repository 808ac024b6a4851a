//! Services without a ServiceProfile, ports that they do not have, and Services that go, come back and change.

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

/// What a Service's port is of.
pub(super) fn parent(profile: &DestinationProfile) -> Result<&Resource> {
    match profile.parent_ref.as_ref().and_then(|parent| parent.kind.as_ref()) {
        Some(Kind::Resource(resource)) => Ok(resource),
        other => anyhow::bail!("the parent is {other:?}"),
    }
}

/// As it is sent: the profile of a Service that has none. Whether it refers to one is left open.
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
            let mut asked = rig.ask(&path).await?;
            asked.looks("service name2").await?;
            let mut told = asked.stream.last()?.clone();
            let refers_to = told.profile_ref.take();
            assert_eq!(told, expected, "{path}");
            if let Some(Kind::Resource(profile)) = refers_to.and_then(|profile| profile.kind) {
                assert_eq!(profile, Resource { group: "linkerd.io".to_owned(), ..Resource::default() });
            }
            asked.has_told(1).await?;
        }
    }
    Ok(())
}

#[tokio::test]
async fn a_profile_says_of_which_service_and_port_it_is_and_where_it_comes_from() -> Result<()> {
    let rig = Rig::start("refers").await?;
    let client = Rig::start("client").await?;
    rig.put_all([service("web"), rig.profile("web", routes(&["a"]))]).await?;
    client.put(rig.profile("web", routes(&["b"]))).await?;
    let mut asked = rig.ask_for("web:80").await?;
    asked.looks("service web with routes a").await?;
    let mut by_client = rig.ask_from(client.name(), "web:80").await?;
    by_client.looks("service web with routes b").await?;
    for (asked, namespace) in [(&asked, rig.name()), (&by_client, client.name())] {
        let told = asked.stream.last()?;
        let whole = default_profile(&rig, "web", 80);
        assert_eq!((&told.parent_ref, &told.retry_budget), (&whole.parent_ref, &whole.retry_budget));
        let profile = Resource {
            group: "linkerd.io".to_owned(),
            kind: "ServiceProfile".to_owned(),
            name: rig.full_name("web"),
            namespace: namespace.to_owned(),
            ..Resource::default()
        };
        assert_eq!(told.profile_ref, Some(Metadata { kind: Some(Kind::Resource(profile)) }));
        ensure!(told.endpoint.is_none() && told.dst_overrides.is_empty(), "{told:?}");
    }
    Ok(())
}

#[tokio::test]
async fn of_a_port_that_the_service_does_not_have_nothing_is_said() -> Result<()> {
    let rig = Rig::start("port").await?;
    let target = json!({"spec": {"type": "NodePort", "ports": [{"port": 80, "targetPort": 8080, "protocol": "UDP"}]}});
    let created = rig.create(service("web").with(target)).await?;
    rig.put_all([
        rig.profile("web", routes(&["a"])),
        service("none").with(json!({"spec": {"clusterIP": "None", "ports": null}})),
    ])
    .await?;
    // Whatever its protocol.
    rig.ask_for("web:80").await?.looks("service web with routes a").await?;
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
        let mut asked = rig.ask(&path).await?;
        // Also on a port that is opaque by default, and for a Service that has a profile.
        asked.looks("nothing").await?;
        asked.has_told(1).await?;
    }
    Ok(())
}

#[tokio::test]
async fn ports_that_a_service_gets_and_loses_are_told_to_open_streams() -> Result<()> {
    let rig = Rig::start("ports").await?;
    let ip = rig.put_service(service("web").with(ports(&[80]))).await?;
    rig.put(rig.profile("web", routes(&["a"]))).await?;
    let mut kept = rig.hears(&rig.path("web:80"), "service web with routes a").await?;
    let mut by_name = rig.hears(&rig.path("web:8989"), "nothing").await?;
    let mut by_ip = rig.hears(&super::at(&ip, 8989), "nothing").await?;
    for (list, seen) in
        [(&[80, 8989][..], "service web with routes a"), (&[80], "nothing"), (&[80, 8989], "service web with routes a")]
    {
        rig.patch("Service", "web", ports(list)).await?;
        by_name.looks(seen).await?;
        by_ip.looks(seen).await?;
    }
    by_name.has_told(4).await?;
    kept.has_told(1).await
}

#[tokio::test]
async fn a_service_that_is_deleted_leaves_its_streams_open_and_they_go_on_when_it_is_back() -> Result<()> {
    let rig = Rig::start("deleted").await?;
    rig.put(service("web").annotated("config.linkerd.io/opaque-ports", "80")).await?;
    let mut open = rig.hears(&rig.path("web:80"), "opaque service web").await?;
    rig.delete("Service", "web").await?;
    // What is opaque by default, without the Service.
    open.stream.until("the default", |profile| super::look(profile) == "service web").await?;
    rig.is_refused(&rig.path("web:80"), Code::Unknown, "").await?;
    // Its profile counts all the same.
    rig.put(rig.profile("web", routes(&["a"]))).await?;
    open.stream.until("the profile", |profile| super::look(profile) == "service web with routes a").await?;
    rig.put(service("web").annotated("config.linkerd.io/opaque-ports", "80")).await?;
    open.looks("opaque service web with routes a").await?;
    rig.delete("ServiceProfile", &rig.full_name("web")).await?;
    open.looks("opaque service web").await?;
    // Back without the port, and then with it.
    rig.delete("Service", "web").await?;
    open.stream.until("the default", |profile| super::look(profile) == "service web").await?;
    rig.put(service("web").with(ports(&[8080]))).await?;
    open.looks("nothing").await?;
    rig.patch("Service", "web", ports(&[80, 8080])).await?;
    open.looks("service web").await?;
    open.is_quiet().await
}

#[tokio::test]
async fn a_deleted_service_is_opaque_where_the_default_says_so() -> Result<()> {
    let rig = Rig::start("default").await?;
    let object = || service("db").with(ports(&[3306])).annotated("config.linkerd.io/opaque-ports", "");
    rig.put(object()).await?;
    let mut open = rig.hears(&rig.path("db:3306"), "service db").await?;
    rig.delete("Service", "db").await?;
    open.stream.until("the default", |profile| super::look(profile) == "opaque service db").await?;
    rig.put(object()).await?;
    open.looks("service db").await?;
    open.has_told(3).await
}

#[tokio::test]
async fn a_stream_by_address_waits_for_its_service_until_the_address_is_anothers() -> Result<()> {
    let rig = Rig::start("address").await?;
    let ip = rig.put_service(service("web")).await?;
    let again = |name: &str| service(name).with(json!({"spec": { "clusterIP": ip }}));
    let path = super::at(&ip, 80);
    rig.put(rig.profile("web", routes(&["a"]))).await?;
    let mut open = rig.hears(&path, "service web with routes a").await?;
    rig.delete("Service", "web").await?;
    rig.put(rig.profile("other", routes(&["b"]))).await?;
    rig.delete("ServiceProfile", &rig.full_name("web")).await?;
    open.stream.until("the default", |profile| super::look(profile) == "service web").await?;
    open.is_quiet().await?;
    rig.put(again("web")).await?;
    rig.hears(&path, "service web").await?;
    open.looks("service web").await?;
    open.is_quiet().await?;
    rig.delete("Service", "web").await?;
    rig.put(again("other")).await?;
    open.ends_and_then_looks("service other with routes b").await?;

    let open = rig.ask(&path).await?;
    rig.delete("Service", "other").await?;
    rig.run(pod("web-1"), &[&ip]).await?;
    open.ends_and_then_looks("pod web-1").await?;
    // The other way round: from a Pod to a Service.
    let open = rig.hears(&path, "pod web-1").await?;
    rig.put(again("third")).await?;
    open.ends_and_then_looks("service third").await
}

#[tokio::test]
async fn a_stream_by_address_ends_when_its_service_is_back_elsewhere() -> Result<()> {
    let rig = Rig::start("elsewhere").await?;
    let ip = rig.put_service(service("web")).await?;
    let mut by_name = rig.hears(&rig.path("web"), "service web").await?;
    let open = rig.hears(&super::at(&ip, 80), "service web").await?;
    rig.delete("Service", "web").await?;
    rig.is_refused(&rig.path("web"), Code::Unknown, "").await?;
    rig.put(service("web").with(json!({"spec": {"clusterIP": "None"}}))).await?;
    open.ends_and_then_looks("nobody").await?;
    by_name.agrees().await?;
    by_name.has_told(1).await
}

#[tokio::test]
async fn a_service_that_becomes_an_external_name_ends_the_streams_that_would_be_refused() -> Result<()> {
    let rig = Rig::start("external").await?;
    let away = json!({"spec": {"type": "ExternalName", "externalName": "example.com", "clusterIP": null,
        "clusterIPs": null, "ipFamilies": null, "ipFamilyPolicy": null}});
    rig.put(service("web")).await?;
    let listed = rig.hears(&rig.path("web:80"), "service web").await?;
    let mut unlisted = rig.hears(&rig.path("web:81"), "nothing").await?;
    rig.patch("Service", "web", away).await?;
    let path = rig.path("web:80");
    listed.ends_and_then_is_refused(Code::InvalidArgument, &format!("Invalid authority: {path}")).await?;
    unlisted.is_quiet().await?;
    unlisted.agrees().await?;
    // Without the port there is nothing to say; with it, again, only to refuse.
    rig.patch("Service", "web", json!({"spec": {"ports": [{"name": "other", "port": 81}]}})).await?;
    unlisted.ends_and_then_is_refused(Code::InvalidArgument, "Invalid authority: ").await?;
    let mut nothing = rig.hears(&path, "nothing").await?;
    rig.patch("Service", "web", json!({"spec": {"type": "ClusterIP", "externalName": null}})).await?;
    rig.patch("Service", "web", ports(&[80])).await?;
    nothing.looks("service web").await
}

#[tokio::test]
async fn services_of_every_type_have_a_profile() -> Result<()> {
    let rig = Rig::start("types").await?;
    rig.put_all([
        service("headless").with(json!({"spec": {"clusterIP": "None"}})),
        service("node-port").with(json!({"spec": {"type": "NodePort"}})),
        service("balanced").with(json!({"spec": {"type": "LoadBalancer"}})),
        // Of other clusters' Services nothing else is said than of any.
        service("mirror").labelled("multicluster.linkerd.io/remote-discovery", "east"),
        service("federated").annotated("multicluster.linkerd.io/remote-discovery", "web@east"),
        external_name("away"),
    ])
    .await?;
    for name in ["headless", "node-port", "balanced", "mirror", "federated"] {
        rig.hears(&rig.path(name), &format!("service {name}")).await?;
    }
    rig.hears(&rig.path("away"), "nothing").await.map(drop)
}
