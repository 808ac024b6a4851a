//! The process that serves profiles: shutdown, a missing ServiceProfile CRD, permissions and API requests.

use anyhow::{Context, Result, ensure};
use e2e::{FaultProxy, Manager, ManagerOptions, eventually, mesh::SOON, profile::Profiles};
use hyper::StatusCode;
use linkerd2_proxy_api::destination::DestinationProfile;
use serde_json::json;

use super::{at, ip, routes, running, summary, workload_at};
use crate::discovery::{
    QUIET, Rig, Settings,
    objects::{external_name, meshed, pod, service, service_profile},
    serving::{BACKED_OFF, Own, STOP, discovery_only},
};

/// Opens a stream on a dedicated manager.
async fn open_profile(manager: &Manager, path: &str) -> Result<Profiles> {
    let discovery = manager.discovery().await?;
    eventually(SOON, format_args!("{path} to be answered"), async || Ok(discovery.get_profile(path, "").await?)).await
}

async fn becomes(stream: &mut Profiles, expected: &str) -> Result<()> {
    stream.until(expected, |profile| summary(profile) == expected).await
}

#[tokio::test]
async fn on_sigterm_all_streams_end_with_ok_and_then_the_process_exits() -> Result<()> {
    let rig = Rig::start("term").await?;
    let ip = ip();
    rig.put_all([service("web"), rig.profile("web", routes(&["a"])), external_name("away")]).await?;
    rig.run(pod("web-1"), &[&ip]).await?;
    let (control_plane, _) = Settings::Helm.manager().await?;
    let mut manager = Manager::start(control_plane, discovery_only(&[]))?;
    manager.ready(SOON).await?;
    let mut streams = Vec::new();
    for (path, expected) in [
        (rig.path("web"), "service web with routes a"),
        (rig.path("web:81"), "empty"),
        (rig.path("away"), "empty"),
        (at(&ip, 8080), "pod web-1"),
        (at(&super::ip(), 8080), "address"),
    ] {
        for _ in 0..3 {
            let mut stream = open_profile(&manager, &path).await?;
            becomes(&mut stream, expected).await?;
            streams.push(stream);
        }
    }
    let ends = async {
        for stream in &mut streams {
            ensure!(stream.next().await?.is_none(), "a message instead of the end: {:?}", stream.messages.last());
        }
        anyhow::Ok(())
    };
    let (ended, status) = tokio::join!(ends, manager.terminate(STOP));
    ended?;
    ensure!(status?.success());
    Ok(())
}

#[tokio::test]
async fn without_the_crd_there_are_no_profiles_until_it_is_installed() -> Result<()> {
    let own = Own::start().await?;
    own.put_all([service("web"), meshed("web-1")]).await?;
    let (status, body) = own.manager.get("/ready").await?;
    ensure!(status == StatusCode::OK, "{status} {body}");
    let path = format!("web.{}.svc.cluster.local:80", own.namespace.name());
    let (mut named, mut unknown) =
        (open_profile(&own.manager, &path).await?, open_profile(&own.manager, "192.0.2.1:8080").await?);
    becomes(&mut named, "service web").await?;
    becomes(&mut unknown, "address").await?;
    named.is_quiet_for(QUIET).await?;
    own.control_plane.install_crds("crd/linkerd").await?;
    let name = format!("web.{}.svc.cluster.local", own.namespace.name());
    own.put_all([service_profile(&name, routes(&["a"])), workload_at("vm", &["192.0.2.1"])]).await?;
    // The new kinds are discovered with backoff, and reach the streams that were open before.
    eventually(BACKED_OFF, "the profile and the ExternalWorkload to take effect", async || {
        becomes(&mut named, "service web with routes a").await?;
        unknown.until("the ExternalWorkload", |profile| summary(profile).starts_with("external_workload vm")).await
    })
    .await
}

#[tokio::test]
async fn the_granted_permissions_are_sufficient_for_profiles() -> Result<()> {
    let own = Own::with_granted_permissions().await?;
    let name = format!("web.{}.svc.cluster.local", own.namespace.name());
    own.put_all([service("web"), service_profile(&name, routes(&["a"]))]).await?;
    let mut stream = open_profile(&own.manager, &format!("{name}:80")).await?;
    becomes(&mut stream, "service web with routes a").await?;
    ensure!(!own.manager.log().contains("forbidden"), "{}", own.manager.log());
    Ok(())
}

#[tokio::test]
async fn without_the_api_server_old_streams_stay_and_new_ones_receive_the_same() -> Result<()> {
    let mut own = Own::start().await?;
    own.control_plane.install_crds("crd/linkerd").await?;
    let name = format!("web.{}.svc.cluster.local", own.namespace.name());
    own.put_all([service("web"), service_profile(&name, routes(&["a"])), workload_at("vm", &["192.0.2.1"])]).await?;
    let paths = [format!("{name}:80"), "192.0.2.1:8080".to_owned(), "192.0.2.2:8080".to_owned()];
    let mut old = Vec::new();
    for path in &paths {
        old.push(open_profile(&own.manager, path).await?);
    }
    eventually(BACKED_OFF, "all objects to be served", async || {
        becomes(&mut old[0], "service web with routes a").await?;
        old[1].until("the ExternalWorkload", |profile| summary(profile).starts_with("external_workload vm")).await
    })
    .await?;
    becomes(&mut old[2], "address").await?;
    own.control_plane.stop_api_server(true).await?;
    for (path, old) in paths.iter().zip(&mut old) {
        old.is_quiet_for(QUIET).await?;
        let mut new = open_profile(&own.manager, path).await?;
        new.next().await?;
        assert_eq!(new.last()?, old.last()?, "{path}");
    }
    own.control_plane.start_api_server().await?;
    // A relist of unchanged objects causes no message; changes arrive.
    let messages: Vec<usize> = old.iter().map(|stream| stream.messages.len()).collect();
    let profiles = kube::Api::<kube::api::DynamicObject>::namespaced_with(
        own.namespace.client().clone(),
        own.namespace.name(),
        &crate::discovery::objects::resource("ServiceProfile"),
    );
    let patch = kube::api::Patch::Merge(json!({"spec": routes(&["b"])}));
    profiles.patch(&name, &kube::api::PatchParams::default(), &patch).await?;
    eventually(BACKED_OFF, "the edit", async || becomes(&mut old[0], "service web with routes b").await).await?;
    let now: Vec<usize> = old.iter().map(|stream| stream.messages.len()).collect();
    assert_eq!(now, [messages[0] + 1, messages[1], messages[2]]);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn streams_cause_no_api_requests() -> Result<()> {
    let rig = Rig::start("cost").await?;
    let ip = ip();
    let cluster_ip = rig.put_service(service("web")).await?;
    rig.put(rig.profile("web", routes(&["a"]))).await?;
    rig.put_with_status(meshed("web-1").owned_by("apps/v1", "ReplicaSet", "missing"), running(&[&ip])).await?;
    let (control_plane, _) = Settings::Helm.manager().await?;
    let proxy = FaultProxy::start(control_plane).await?;
    let options = ManagerOptions { kubeconfig: Some(proxy.kubeconfig().to_owned()), ..discovery_only(&[]) };
    let mut manager = Manager::start(control_plane, options)?;
    manager.ready(SOON).await?;
    let reads = || proxy.log().iter().filter(|request| !request.path.contains("watch=true")).count();
    let before = reads();
    let discovery = manager.discovery().await?;
    let mut streams = Vec::new();
    for number in 0..200_u16 {
        let paths = [
            rig.path(&format!("web:{}", 80 + number % 3)),
            at(&cluster_ip, 80),
            at(&ip, 8000 + number),
            at(&super::ip(), 80),
        ];
        let path = paths.get(usize::from(number) % paths.len()).context("a path")?;
        let mut stream = discovery.get_profile(path, &e2e::discovery::token(rig.name(), "node")).await?;
        stream.next().await?;
        streams.push(stream);
        discovery.profile_refusal(&rig.path("missing"), "").await?;
    }
    ensure!(reads() == before, "{} requests were sent for 200 streams", reads() - before);
    Ok(())
}

#[tokio::test]
async fn a_thousand_streams_share_a_connection_and_release_all_resources() -> Result<()> {
    let rig = Rig::start("thousand").await?;
    let (control_plane, _) = Settings::Helm.manager().await?;
    let mut manager = Manager::start(control_plane, discovery_only(&[]))?;
    manager.ready(SOON).await?;
    let ips: Vec<String> = (0..10).map(|_| ip()).collect();
    for (number, ip) in ips.iter().enumerate() {
        rig.put_all([service(&format!("web-{number}")), workload_at(&format!("vm-{number}"), &[ip])]).await?;
    }
    for kind in ["Service", "ExternalWorkload"] {
        rig.catches_up(kind).await?;
    }
    drop(open_profile(&manager, &rig.path("web-9")).await?);
    let discovery = manager.discovery().await?;
    let paths: Vec<String> = (0..1000)
        .map(|number| match number % 2 {
            0 => rig.path(&format!("web-{}", number / 2 % 10)),
            _ => at(&ips[number / 2 % 10], 8080),
        })
        .collect();
    let open = async |path: &String| -> Result<Profiles> {
        let mut stream = discovery.get_profile(path, "").await?;
        stream.next().await?;
        Ok(stream)
    };
    let mut streams = futures::future::try_join_all(paths.iter().map(open)).await?;
    for number in 0..10 {
        rig.put(rig.profile(&format!("web-{number}"), routes(&["a"]))).await?;
        let opaque = Some("8080");
        rig.annotate("ExternalWorkload", &format!("vm-{number}"), "config.linkerd.io/opaque-ports", opaque).await?;
    }
    let has_changed = |profile: &DestinationProfile| profile.opaque_protocol || !profile.routes.is_empty();
    for stream in &mut streams {
        stream.until("the change", has_changed).await?;
    }
    for (name, labels, expected) in [
        ("workload_subscribers", None, 500.0),
        ("service_subscribers", Some(("namespace", rig.name())), 500.0),
        ("service_subscribers", Some(("name", "web-3")), 50.0),
    ] {
        let seen = manager.metric(name, labels.as_slice()).await;
        ensure!(seen == Some(expected), "{name}: {seen:?}");
    }
    drop((streams, discovery));
    eventually(SOON, "no subscriber to be counted", async || {
        let seen =
            (manager.metric("workload_subscribers", &[]).await, manager.metric("service_subscribers", &[]).await);
        ensure!(seen == (Some(0.0), None), "{seen:?}");
        Ok(())
    })
    .await
}
