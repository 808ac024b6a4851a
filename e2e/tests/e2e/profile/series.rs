//! Metrics for dashboards: subscribers, updates and calls. `discovery/serving.rs` has those of the cache.

use anyhow::{Result, ensure};
use e2e::{Job, ManagerOptions, eventually, mesh::SOON, shared_manager};
use serde_json::json;
use tonic::Code;

use super::{MESHED, at, ip, routes, summary, workload_at};
use crate::discovery::{
    Served,
    objects::{external_name, meshed, service},
    serving::counts_calls,
};

/// Waits until a Service has this number of subscribers; `None` means that it has no series.
async fn service_has(rig: &Served, service: &str, subscribers: Option<f64>) -> Result<()> {
    let labels = [("namespace", rig.name()), ("name", service)];
    rig.manager.counts("service_subscribers", &labels, subscribers).await
}

#[tokio::test]
async fn a_service_counts_its_streams_by_name_and_by_address() -> Result<()> {
    let rig = Served::start("service").await?;
    let ip = rig.put_service(service("web")).await?;
    rig.put(service("other")).await?;
    let by_name = rig.opens_with(&rig.path("web:80"), "service web").await?;
    service_has(&rig, "web", Some(1.0)).await?;
    let by_ip = rig.opens_with(&at(&ip, 80), "service web").await?;
    let by_client = rig.open_service_from("client", "web:80").await?;
    let other = rig.opens_with(&rig.path("other:80"), "service other").await?;
    service_has(&rig, "web", Some(3.0)).await?;
    service_has(&rig, "other", Some(1.0)).await?;
    drop((by_name, by_client));
    service_has(&rig, "web", Some(1.0)).await?;
    drop((by_ip, other));
    service_has(&rig, "web", None).await?;
    service_has(&rig, "other", None).await
}

#[tokio::test]
async fn a_profile_counts_its_subscribers_and_updates() -> Result<()> {
    let (rig, client) = (Served::start("profile").await?, Served::start("client").await?);
    let name = rig.full_name("web");
    rig.put(service("web")).await?;
    let of = |namespace| [("namespace", namespace), ("profile", name.as_str())];
    let (own, clients) = (of(rig.name()), of(client.name()));
    let without = rig.opens_with(&rig.path("web"), "service web").await?;
    let mut with = rig.open_service_from(client.name(), "web").await?;
    with.becomes("service web").await?;
    // Clients can name any namespace, so a profile that does not exist has no series.
    rig.manager.counts("profile_subscribers", &own, Some(2.0)).await?;
    rig.manager.counts("profile_subscribers", &clients, None).await?;
    rig.put(rig.profile("web", routes(&["a"]))).await?;
    with.becomes("service web with routes a").await?;
    let updates =
        async |labels: &[(&str, &str)]| rig.manager.metric("profile_updates", labels).await.unwrap_or_default();
    let before = updates(&own).await;
    for (count, route) in [(1.0, "b"), (2.0, "c")] {
        rig.patch("ServiceProfile", &name, json!({"spec": routes(&[route])})).await?;
        with.becomes(&format!("service web with routes {route}")).await?;
        rig.manager.counts("profile_updates", &own, Some(before + count)).await?;
    }
    rig.delete("ServiceProfile", &name).await?;
    with.becomes("service web").await?;
    // The series of a deleted profile may be deleted.
    let last = rig.manager.metric("profile_updates", &own).await;
    ensure!(last.is_none_or(|last| last == before + 3.0), "it was {before} and is {last:?}");
    ensure!(updates(&clients).await == 0.0, "an update of a profile that does not exist");
    client.put(rig.profile("web", routes(&["d"]))).await?;
    with.becomes("service web with routes d").await?;
    rig.manager.counts("profile_subscribers", &own, Some(2.0)).await?;
    rig.manager.counts("profile_subscribers", &clients, Some(1.0)).await?;
    drop((without, with));
    eventually(SOON, "no subscriber to be counted", async || {
        for labels in [&own, &clients] {
            let seen = rig.manager.metric("profile_subscribers", labels).await;
            ensure!(seen.unwrap_or_default() == 0.0, "{labels:?}: {seen:?}");
        }
        Ok(())
    })
    .await
}

#[tokio::test]
async fn a_profile_without_subscribers_counts_its_updates() -> Result<()> {
    let rig = Served::start("lonely").await?;
    let name = rig.full_name("lonely");
    let labels = [("namespace", rig.name()), ("profile", name.as_str())];
    rig.put(rig.profile("lonely", routes(&["a"]))).await?;
    rig.profiles_catch_up().await?;
    let before = rig.manager.metric("profile_updates", &labels).await.unwrap_or_default();
    for (count, route) in [(1.0, "b"), (2.0, "c")] {
        rig.patch("ServiceProfile", &name, json!({"spec": routes(&[route])})).await?;
        rig.manager.counts("profile_updates", &labels, Some(before + count)).await?;
    }
    rig.manager.counts("profile_subscribers", &labels, Some(0.0)).await
}

#[tokio::test]
async fn streams_of_single_addresses_are_counted_together() -> Result<()> {
    let rig = Served::start("workloads").await?;
    let (control_plane, _) = shared_manager().await?;
    let manager = ManagerOptions::only(Job::Destination).ready(control_plane).await?;
    let discovery = manager.discovery().await?;
    manager.counts("workload_subscribers", &[], Some(0.0)).await?;
    let (pod_ip, workload_ip) = (ip(), ip());
    rig.put_all([service("web"), workload_at("vm", &[&workload_ip])]).await?;
    let mut streams = Vec::new();
    for path in [at(&pod_ip, 8080), at(&pod_ip, 8080), at(&pod_ip, 9999), at(&workload_ip, 8080)] {
        let mut stream = discovery.get_profile(&path, "").await?;
        stream.next().await?;
        streams.push(stream);
    }
    // Streams of Services are not counted here.
    let path = rig.path("web");
    let of_service =
        eventually(SOON, "the Service to be served", async || Ok(discovery.get_profile(&path, "").await?)).await?;
    manager.counts("workload_subscribers", &[], Some(4.0)).await?;
    let before = manager.metric("workload_updates", &[]).await.unwrap_or_default();
    ensure!(before >= 1.0, "{before} updates for four streams");
    rig.run(meshed("web-1"), &[&pod_ip]).await?;
    for stream in streams.iter_mut().take(3) {
        stream.until("the Pod", |profile| summary(profile).starts_with("pod web-1")).await?;
    }
    manager.measures("workload_updates", &[], |now| now > Some(before)).await?;
    streams.truncate(1);
    manager.counts("workload_subscribers", &[], Some(1.0)).await?;
    drop((streams, of_service));
    manager.counts("workload_subscribers", &[], Some(0.0)).await
}

#[tokio::test]
async fn calls_are_counted_by_status_code() -> Result<()> {
    let rig = Served::start("calls").await?;
    let codes = ["InvalidArgument", "Unknown", "NotFound", "FailedPrecondition", "OK"];
    counts_calls(&rig.manager, "GetProfile", &codes, async || {
        let ip = ip();
        rig.put_all([service("web"), external_name("away")]).await?;
        rig.run(meshed("web-1"), &[&ip]).await?;
        let open = rig.opens_with(&at(&ip, 8080), &format!("pod web-1 {MESHED}")).await?;
        rig.run(meshed("web-2"), &[&ip]).await?;
        open.ends_and_then_is_refused(Code::FailedPrecondition, "").await?;
        rig.is_refused("linkerd.io", Code::InvalidArgument, "").await?;
        rig.is_refused(&rig.path("missing"), Code::Unknown, "").await?;
        rig.is_refused(&rig.path("web-0.web"), Code::NotFound, "").await?;
        Ok(())
    })
    .await
}
