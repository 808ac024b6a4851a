//! The process that serves both methods: missing CRDs, permissions, an unavailable API server, and API requests.

use anyhow::{Context, Result, ensure};
use e2e::{
    FaultProxy, Manager,
    discovery::{Endpoints, token},
    eventually,
    mesh::SOON,
    profile::Profiles,
    shared_manager,
};
use hyper::StatusCode;
use serde_json::json;

use super::{at, becomes, ip, routes, summary, workload_at};
use crate::discovery::{
    QUIET, Served,
    objects::{
        address, meshed, node, of_pod, of_workload, opaque_server, replica_set, service, service_profile, slice,
    },
    received::{self, traits},
    serving::{BACKED_OFF, Own, discovery_through},
};

const MESHED: &str = "h2 4143 identity http2";
const OPAQUE: &str = "opaque 4143 identity http2";

/// Opens a stream on a dedicated manager.
async fn open_profile(manager: &Manager, path: &str) -> Result<Profiles> {
    let discovery = manager.discovery().await?;
    eventually(SOON, format_args!("{path} to be answered"), async || Ok(discovery.get_profile(path, "").await?)).await
}

async fn becomes_workload(stream: &mut Profiles) -> Result<()> {
    stream.until("the ExternalWorkload", |profile| summary(profile).starts_with("external_workload vm")).await
}

/// Waits until the stream has exactly these endpoints, with these traits.
async fn have_traits(stream: &mut Endpoints, expected: &[(&str, &str)]) -> Result<()> {
    received::wait_for(stream, traits, expected.iter().map(|(at, traits)| (*at, (*traits).to_owned()))).await
}

#[tokio::test]
async fn without_linkerds_crds_it_serves_the_other_kinds_and_adds_them_later() -> Result<()> {
    let own = Own::start().await?;
    let endpoints = [of_pod("192.0.2.1", "web-1"), of_workload("192.0.2.2", "vm"), address("192.0.2.3")];
    own.put_all([service("web"), meshed("web-1"), slice("web", "web", &endpoints)]).await?;
    let mut stream = own.get("web:80").await?;
    have_traits(&mut stream, &[("192.0.2.1:8080", MESHED), ("192.0.2.3:8080", "")]).await?;
    let (status, body) = own.manager.get("/ready").await?;
    ensure!(status == StatusCode::OK, "{status} {body}");
    let mut named = open_profile(&own.manager, &own.path("web:80")).await?;
    let mut unknown = open_profile(&own.manager, "192.0.2.2:8080").await?;
    becomes(&mut named, "service web").await?;
    becomes(&mut unknown, "address").await?;
    named.is_quiet_for(QUIET).await?;

    own.control_plane.install_crds("crd/linkerd").await?;
    own.put_all([
        workload_at("vm", &["192.0.2.2"]),
        opaque_server("web", json!(8080)),
        service_profile(&own.full_name("web"), routes(&["a"])),
    ])
    .await?;
    // The new kinds are discovered with backoff, and reach the streams that were open before.
    eventually(BACKED_OFF, "the objects of Linkerd to take effect", async || {
        let expected = [("192.0.2.1:8080", OPAQUE), ("192.0.2.2:8080", MESHED), ("192.0.2.3:8080", "")];
        have_traits(&mut stream, &expected).await?;
        becomes(&mut named, "service web with routes a").await?;
        becomes_workload(&mut unknown).await
    })
    .await
}

#[tokio::test]
async fn the_granted_permissions_are_sufficient() -> Result<()> {
    let own = Own::with_granted_permissions().await?;
    assert_eq!(own.manager.get("/ready").await?, (StatusCode::OK, "ready\n".to_owned()));
    own.put_all([
        service("web"),
        service_profile(&own.full_name("web"), routes(&["a"])),
        replica_set("web-5d4c").owned_by("apps/v1", "Deployment", "web"),
        meshed("web-1").owned_by("apps/v1", "ReplicaSet", "web-5d4c"),
        workload_at("vm", &["192.0.2.2"]),
        opaque_server("web", json!(8080)),
        slice("web", "web", &[of_pod("192.0.2.1", "web-1"), of_workload("192.0.2.2", "vm")]),
    ])
    .await?;
    let mut stream = own.get("web:80").await?;
    let traits_and_owner = |endpoint: &_| (traits(endpoint), received::labels(endpoint).remove("deployment"));
    let expected = [
        ("192.0.2.1:8080", (OPAQUE.to_owned(), Some("web".to_owned()))),
        ("192.0.2.2:8080", (MESHED.to_owned(), None)),
    ];
    received::wait_for(&mut stream, traits_and_owner, expected).await?;
    becomes(&mut open_profile(&own.manager, &own.path("web:80")).await?, "service web with routes a").await?;
    ensure!(!own.manager.log().contains("forbidden"), "{}", own.manager.log());
    Ok(())
}

#[tokio::test]
async fn without_the_api_server_old_streams_stay_and_new_ones_are_served_from_the_cache() -> Result<()> {
    let mut own = Own::start().await?;
    own.control_plane.install_crds("crd/linkerd").await?;
    let name = own.full_name("web");
    own.put_all([
        service("web"),
        meshed("web-1"),
        slice("web", "web", &[of_pod("192.0.2.1", "web-1")]),
        service_profile(&name, routes(&["a"])),
        workload_at("vm", &["192.0.2.2"]),
    ])
    .await?;
    let mut endpoints = own.get("web:80").await?;
    // The stream may have been opened after the Service but before its slice.
    endpoints.shows(&["192.0.2.1:8080"]).await?;
    let paths = [own.path("web:80"), "192.0.2.2:8080".to_owned(), "192.0.2.3:8080".to_owned()];
    let mut old = Vec::new();
    for path in &paths {
        old.push(open_profile(&own.manager, path).await?);
    }
    eventually(BACKED_OFF, "all objects to be served", async || {
        becomes(&mut old[0], "service web with routes a").await?;
        becomes_workload(&mut old[1]).await
    })
    .await?;
    becomes(&mut old[2], "address").await?;
    let of_endpoints = endpoints.messages.len();
    let of_profiles: Vec<usize> = old.iter().map(|stream| stream.messages.len()).collect();

    own.control_plane.stop_api_server(true).await?;
    own.get("web:80").await?.shows(&["192.0.2.1:8080"]).await?;
    endpoints.is_quiet_for(QUIET).await?;
    for (path, old) in paths.iter().zip(&mut old) {
        old.is_quiet_for(QUIET).await?;
        let mut new = open_profile(&own.manager, path).await?;
        new.next().await?;
        assert_eq!(new.last()?, old.last()?, "{path}");
    }
    own.control_plane.start_api_server().await?;
    // A relist of unchanged objects causes no message; changes arrive.
    own.put_all([slice("more", "web", &[address("192.0.2.9")])]).await?;
    own.patch("ServiceProfile", &name, json!({"spec": routes(&["b"])})).await?;
    eventually(BACKED_OFF, "the changes", async || {
        endpoints.shows(&["192.0.2.1:8080", "192.0.2.9:8080"]).await?;
        becomes(&mut old[0], "service web with routes b").await
    })
    .await?;
    ensure!(endpoints.messages.len() == of_endpoints + 1, "{:?}", endpoints.messages);
    let now: Vec<usize> = old.iter().map(|stream| stream.messages.len()).collect();
    assert_eq!(now, [of_profiles[0] + 1, of_profiles[1], of_profiles[2]]);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn streams_cause_no_api_requests() -> Result<()> {
    let rig = Served::start("cost").await?;
    let (ip, here) = (ip(), format!("{}-here", rig.name()));
    let cluster_ip = rig.put_service(service("web")).await?;
    rig.put_all([
        node(&here, Some("here")),
        rig.profile("web", routes(&["a"])),
        slice("web", "web", &[of_pod("192.0.2.1", "web-1"), of_workload("192.0.2.2", "missing")]),
    ])
    .await?;
    rig.run(meshed("web-1").owned_by("apps/v1", "ReplicaSet", "missing"), &[&ip]).await?;
    let (control_plane, _) = shared_manager().await?;
    let proxy = FaultProxy::start(control_plane).await?;
    let manager = discovery_through(&proxy).ready(control_plane).await?;
    let reads = || proxy.log().iter().filter(|request| !request.path.contains("watch=true")).count();
    // One list per kind; missing owners and targets are not requested.
    let before = reads();
    ensure!(before <= 12, "{before} requests besides watches: {:?}", proxy.log());
    let discovery = manager.discovery().await?;
    let (mut endpoints, mut profiles) = (Vec::new(), Vec::new());
    for number in 0..200_u16 {
        let node = if number % 2 == 0 { here.as_str() } else { "no-such-node" };
        let token = token(rig.name(), node);
        let mut stream = discovery.get(&rig.path(&format!("web:{}", 80 + number % 5)), &token).await?;
        stream.next().await?;
        endpoints.push(stream);
        discovery.refusal(&rig.path("missing"), "").await?;
        let paths = [
            rig.path(&format!("web:{}", 80 + number % 3)),
            at(&cluster_ip, 80),
            at(&ip, 8000 + number),
            at(&super::ip(), 80),
        ];
        let path = paths.get(usize::from(number) % paths.len()).context("a path")?;
        let mut stream = discovery.get_profile(path, &token).await?;
        stream.next().await?;
        profiles.push(stream);
        discovery.profile_refusal(&rig.path("missing"), "").await?;
    }
    ensure!(reads() == before, "{} requests were sent for 400 streams", reads() - before);
    Ok(())
}
