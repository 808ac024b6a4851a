//! The process around the streams: its end, what it does without ServiceProfiles, what it needs and what it costs.

use anyhow::{Context, Result, ensure};
use e2e::{FaultProxy, Manager, ManagerOptions, eventually, mesh::SOON, profile::Profiles};
use hyper::StatusCode;
use linkerd2_proxy_api::destination::DestinationProfile;
use serde_json::json;

use super::{at, ip, look, machine, routes, running};
use crate::discovery::{
    QUIET, Rig, Settings,
    objects::{external_name, meshed, pod, service, service_profile},
    serving::{BACKED_OFF, Own, STOP, discovery_only},
};

/// A stream of a manager of the test's own.
async fn ask(manager: &Manager, path: &str) -> Result<Profiles> {
    let discovery = manager.discovery().await?;
    eventually(SOON, format_args!("{path} to be answered"), async || Ok(discovery.get_profile(path, "").await?)).await
}

async fn looks(stream: &mut Profiles, expected: &str) -> Result<()> {
    stream.until(expected, |profile| look(profile) == expected).await
}

#[tokio::test]
async fn at_sigterm_all_streams_end_with_ok_and_then_the_process() -> Result<()> {
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
        (rig.path("web:81"), "nothing"),
        (rig.path("away"), "nothing"),
        (at(&ip, 8080), "pod web-1"),
        (at(&super::ip(), 8080), "nobody"),
    ] {
        for _ in 0..3 {
            let mut stream = ask(&manager, &path).await?;
            looks(&mut stream, expected).await?;
            streams.push(stream);
        }
    }
    let ends = async {
        for stream in &mut streams {
            ensure!(stream.next().await?.is_none(), "a message, and no end: {:?}", stream.messages.last());
        }
        anyhow::Ok(())
    };
    let (ended, status) = tokio::join!(ends, manager.terminate(STOP));
    ended?;
    ensure!(status?.success());
    Ok(())
}

#[tokio::test]
async fn without_the_definition_there_are_no_profiles_until_it_comes() -> Result<()> {
    let own = Own::start().await?;
    own.put_all([service("web"), meshed("web-1")]).await?;
    let (status, body) = own.manager.get("/ready").await?;
    ensure!(status == StatusCode::OK, "{status} {body}");
    let path = format!("web.{}.svc.cluster.local:80", own.namespace.name());
    let (mut named, mut unknown) = (ask(&own.manager, &path).await?, ask(&own.manager, "192.0.2.1:8080").await?);
    looks(&mut named, "service web").await?;
    looks(&mut unknown, "nobody").await?;
    named.is_quiet_for(QUIET).await?;
    own.control_plane.install_crds("crd/linkerd").await?;
    let name = format!("web.{}.svc.cluster.local", own.namespace.name());
    own.put_all([service_profile(&name, routes(&["a"])), machine("vm", &["192.0.2.1"])]).await?;
    // The new kinds are probed for at their own pace, on the streams that were there all along.
    eventually(BACKED_OFF, "the profile and the machine to count", async || {
        looks(&mut named, "service web with routes a").await?;
        unknown.until("the machine", |profile| look(profile).starts_with("external_workload vm")).await
    })
    .await
}

#[tokio::test]
async fn what_the_repository_grants_discovery_is_enough_for_profiles() -> Result<()> {
    let own = Own::with_granted_permissions().await?;
    let name = format!("web.{}.svc.cluster.local", own.namespace.name());
    own.put_all([service("web"), service_profile(&name, routes(&["a"]))]).await?;
    let mut stream = ask(&own.manager, &format!("{name}:80")).await?;
    looks(&mut stream, "service web with routes a").await?;
    ensure!(!own.manager.log().contains("forbidden"), "{}", own.manager.log());
    Ok(())
}

#[tokio::test]
async fn without_the_api_server_old_streams_stay_and_new_ones_are_told_the_same() -> Result<()> {
    let mut own = Own::start().await?;
    own.control_plane.install_crds("crd/linkerd").await?;
    let name = format!("web.{}.svc.cluster.local", own.namespace.name());
    own.put_all([service("web"), service_profile(&name, routes(&["a"])), machine("vm", &["192.0.2.1"])]).await?;
    let paths = [format!("{name}:80"), "192.0.2.1:8080".to_owned(), "192.0.2.2:8080".to_owned()];
    let mut old = Vec::new();
    for path in &paths {
        old.push(ask(&own.manager, path).await?);
    }
    eventually(BACKED_OFF, "all to be known", async || {
        looks(&mut old[0], "service web with routes a").await?;
        old[1].until("the machine", |profile| look(profile).starts_with("external_workload vm")).await
    })
    .await?;
    looks(&mut old[2], "nobody").await?;
    own.control_plane.stop_api_server(true).await?;
    for (path, old) in paths.iter().zip(&mut old) {
        old.is_quiet_for(QUIET).await?;
        let mut new = ask(&own.manager, path).await?;
        new.next().await?;
        assert_eq!(new.last()?, old.last()?, "{path}");
    }
    own.control_plane.start_api_server().await?;
    // A new list of what is unchanged brings nothing; what is new arrives.
    let messages: Vec<usize> = old.iter().map(|stream| stream.messages.len()).collect();
    let profiles = kube::Api::<kube::api::DynamicObject>::namespaced_with(
        own.namespace.client().clone(),
        own.namespace.name(),
        &crate::discovery::objects::resource("ServiceProfile"),
    );
    let patch = kube::api::Patch::Merge(json!({"spec": routes(&["b"])}));
    profiles.patch(&name, &kube::api::PatchParams::default(), &patch).await?;
    eventually(BACKED_OFF, "the edit", async || looks(&mut old[0], "service web with routes b").await).await?;
    let now: Vec<usize> = old.iter().map(|stream| stream.messages.len()).collect();
    assert_eq!(now, [messages[0] + 1, messages[1], messages[2]]);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn streams_cost_the_api_server_nothing() -> Result<()> {
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
    ensure!(reads() == before, "{} requests for 200 streams", reads() - before);
    Ok(())
}

#[tokio::test]
async fn a_thousand_streams_share_a_connection_and_leave_nothing_behind() -> Result<()> {
    let rig = Rig::start("thousand").await?;
    let (control_plane, _) = Settings::Helm.manager().await?;
    let mut manager = Manager::start(control_plane, discovery_only(&[]))?;
    manager.ready(SOON).await?;
    let ips: Vec<String> = (0..10).map(|_| ip()).collect();
    for (number, ip) in ips.iter().enumerate() {
        rig.put_all([service(&format!("web-{number}")), machine(&format!("vm-{number}"), &[ip])]).await?;
    }
    for kind in ["Service", "ExternalWorkload"] {
        rig.seen(kind).await?;
    }
    drop(ask(&manager, &rig.path("web-9")).await?);
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
    eventually(SOON, "nobody to be counted", async || {
        let seen =
            (manager.metric("workload_subscribers", &[]).await, manager.metric("service_subscribers", &[]).await);
        ensure!(seen == (Some(0.0), None), "{seen:?}");
        Ok(())
    })
    .await
}
