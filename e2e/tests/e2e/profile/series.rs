//! What dashboards read: subscribers and updates, queues that never overflow, the cache, the lag and the calls.

use anyhow::{Result, ensure};
use e2e::{Manager, eventually, mesh::SOON};
use serde_json::json;
use tonic::Code;

use super::{Asked, MESHED, at, ip, look, machine, routes};
use crate::discovery::{
    Rig, Settings,
    objects::{external_name, meshed, service},
    serving::{counts_calls, discovery_only},
};

/// Waits until a series has this value; `None` when there is none.
async fn has(manager: &Manager, name: &str, labels: &[(&str, &str)], expected: Option<f64>) -> Result<()> {
    eventually(SOON, format_args!("{name}{labels:?} to be {expected:?}"), async || {
        let seen = manager.metric(name, labels).await;
        ensure!(seen == expected, "{seen:?}");
        Ok(())
    })
    .await
}

/// Of a Service without subscribers there is no series.
pub(super) async fn service_has(rig: &Rig, service: &str, subscribers: Option<f64>) -> Result<()> {
    has(rig.manager, "service_subscribers", &[("namespace", rig.name()), ("name", service)], subscribers).await
}

#[tokio::test]
async fn a_service_counts_its_streams_by_name_and_by_address() -> Result<()> {
    let rig = Rig::start("service").await?;
    let ip = rig.put_service(service("web")).await?;
    rig.put(service("other")).await?;
    let by_name = rig.hears(&rig.path("web:80"), "service web").await?;
    service_has(&rig, "web", Some(1.0)).await?;
    let by_ip = rig.hears(&at(&ip, 80), "service web").await?;
    let by_client = rig.ask_from("client", "web:80").await?;
    let other = rig.hears(&rig.path("other:80"), "service other").await?;
    service_has(&rig, "web", Some(3.0)).await?;
    service_has(&rig, "other", Some(1.0)).await?;
    drop((by_name, by_client));
    service_has(&rig, "web", Some(1.0)).await?;
    drop((by_ip, other));
    service_has(&rig, "web", None).await?;
    service_has(&rig, "other", None).await
}

#[tokio::test]
async fn a_profile_counts_who_asks_for_it_and_its_changes() -> Result<()> {
    let (rig, client) = (Rig::start("profile").await?, Rig::start("client").await?);
    let name = rig.full_name("web");
    rig.put(service("web")).await?;
    let of = |namespace| [("namespace", namespace), ("profile", name.as_str())];
    let (own, clients) = (of(rig.name()), of(client.name()));
    let without = rig.hears(&rig.path("web"), "service web").await?;
    let mut with = rig.ask_from(client.name(), "web").await?;
    with.looks("service web").await?;
    // Clients may say that they are anywhere: what is not there has no series.
    has(rig.manager, "profile_subscribers", &own, Some(2.0)).await?;
    has(rig.manager, "profile_subscribers", &clients, None).await?;
    rig.put(rig.profile("web", routes(&["a"]))).await?;
    with.looks("service web with routes a").await?;
    let updates =
        async |labels: &[(&str, &str)]| rig.manager.metric("profile_updates", labels).await.unwrap_or_default();
    let before = updates(&own).await;
    for (count, route) in [(1.0, "b"), (2.0, "c")] {
        rig.patch("ServiceProfile", &name, json!({"spec": routes(&[route])})).await?;
        with.looks(&format!("service web with routes {route}")).await?;
        has(rig.manager, "profile_updates", &own, Some(before + count)).await?;
    }
    rig.delete("ServiceProfile", &name).await?;
    with.looks("service web").await?;
    // Of what has gone the count may go too.
    let last = rig.manager.metric("profile_updates", &own).await;
    ensure!(last.is_none_or(|last| last == before + 3.0), "{before} and then {last:?}");
    ensure!(updates(&clients).await == 0.0, "an update of what is not there");
    client.put(rig.profile("web", routes(&["d"]))).await?;
    with.looks("service web with routes d").await?;
    has(rig.manager, "profile_subscribers", &own, Some(2.0)).await?;
    has(rig.manager, "profile_subscribers", &clients, Some(1.0)).await?;
    drop((without, with));
    eventually(SOON, "nobody to be counted", async || {
        for labels in [&own, &clients] {
            let seen = rig.manager.metric("profile_subscribers", labels).await;
            ensure!(seen.unwrap_or_default() == 0.0, "{labels:?}: {seen:?}");
        }
        Ok(())
    })
    .await
}

#[tokio::test]
async fn a_profile_that_nobody_asks_for_counts_its_changes_too() -> Result<()> {
    let rig = Rig::start("lonely").await?;
    let name = rig.full_name("lonely");
    let labels = [("namespace", rig.name()), ("profile", name.as_str())];
    rig.put(rig.profile("lonely", routes(&["a"]))).await?;
    rig.seen("ServiceProfile").await?;
    let before = rig.manager.metric("profile_updates", &labels).await.unwrap_or_default();
    for (count, route) in [(1.0, "b"), (2.0, "c")] {
        rig.patch("ServiceProfile", &name, json!({"spec": routes(&[route])})).await?;
        has(rig.manager, "profile_updates", &labels, Some(before + count)).await?;
    }
    has(rig.manager, "profile_subscribers", &labels, Some(0.0)).await
}

#[tokio::test]
async fn streams_of_single_addresses_are_counted_together() -> Result<()> {
    let rig = Rig::start("workloads").await?;
    let (control_plane, _) = Settings::Helm.manager().await?;
    let mut manager = Manager::start(control_plane, discovery_only(&[]))?;
    manager.ready(SOON).await?;
    let discovery = manager.discovery().await?;
    has(&manager, "workload_subscribers", &[], Some(0.0)).await?;
    let (pod_ip, machine_ip) = (ip(), ip());
    rig.put_all([service("web"), machine("vm", &[&machine_ip])]).await?;
    let mut streams = Vec::new();
    for path in [at(&pod_ip, 8080), at(&pod_ip, 8080), at(&pod_ip, 9999), at(&machine_ip, 8080)] {
        let mut stream = discovery.get_profile(&path, "").await?;
        stream.next().await?;
        streams.push(stream);
    }
    // A Service's stream is none of them.
    let path = rig.path("web");
    let of_service =
        eventually(SOON, "the Service to be known", async || Ok(discovery.get_profile(&path, "").await?)).await?;
    has(&manager, "workload_subscribers", &[], Some(4.0)).await?;
    let before = manager.metric("workload_updates", &[]).await.unwrap_or_default();
    ensure!(before >= 1.0, "{before} updates for four streams");
    rig.run(meshed("web-1"), &[&pod_ip]).await?;
    for stream in streams.iter_mut().take(3) {
        stream.until("the Pod", |profile| look(profile).starts_with("pod web-1")).await?;
    }
    eventually(SOON, "updates to be counted", async || {
        let now = manager.metric("workload_updates", &[]).await.unwrap_or_default();
        ensure!(now > before, "{now}");
        Ok(())
    })
    .await?;
    streams.truncate(1);
    has(&manager, "workload_subscribers", &[], Some(1.0)).await?;
    drop((streams, of_service));
    has(&manager, "workload_subscribers", &[], Some(0.0)).await
}

#[tokio::test]
async fn nothing_overflows_and_the_cache_and_its_lag_are_told() -> Result<()> {
    let rig = Rig::start("always").await?;
    let mut open: Vec<Asked<'_>> = Vec::new();
    rig.put_all([service("web"), rig.profile("web", routes(&["a"]))]).await?;
    open.push(rig.hears(&rig.path("web"), "service web with routes a").await?);
    open.push(rig.hears(&at(&ip(), 8080), "nobody").await?);
    let samples = rig.manager.metrics().await?;
    for name in ["profile_updates_queue_overflow", "endpoint_profile_updates_queue_overflow"] {
        let series: Vec<_> = samples.iter().filter(|sample| sample.name == name).collect();
        ensure!(series.len() == 1 && series.iter().all(|sample| sample.value == 0.0), "{name}: {series:?}");
    }
    for bound in ["0.5", "1", "2.5", "5", "10", "25", "50", "100", "250", "1000", "+Inf"] {
        let bucket = rig.manager.metric("serviceprofiles_informer_lag_seconds_bucket", &[("le", bound)]).await;
        ensure!(bucket.is_some(), "no bucket up to {bound}");
    }
    // A change shows the lag, unless it is of the second in which the object was made: times are told in seconds.
    let count =
        async || rig.manager.metric("serviceprofiles_informer_lag_seconds_count", &[]).await.unwrap_or_default();
    let before = count().await;
    rig.patch("ServiceProfile", &rig.full_name("web"), json!({"spec": routes(&["b"])})).await?;
    if let Some(open) = open.first_mut() {
        open.looks("service web with routes b").await?;
    }
    let mut edits = 0;
    eventually(SOON, "the lag", async || {
        edits += 1;
        rig.patch("ServiceProfile", &rig.full_name("web"), json!({"spec": routes(&[&format!("c{edits}")])})).await?;
        let now = count().await;
        ensure!(now > before, "{now}");
        Ok(())
    })
    .await?;
    let size = rig.manager.metric("serviceprofile_cache_size", &[("cluster", "local")]).await;
    ensure!(size.is_some_and(|size| size >= 1.0), "{size:?}");
    Ok(())
}

#[tokio::test]
async fn calls_are_counted_by_their_end() -> Result<()> {
    let rig = Rig::start("calls").await?;
    let codes = ["InvalidArgument", "Unknown", "NotFound", "FailedPrecondition", "OK"];
    counts_calls(rig.manager, "GetProfile", &codes, async || {
        let ip = ip();
        rig.put_all([service("web"), external_name("away")]).await?;
        rig.run(meshed("web-1"), &[&ip]).await?;
        let open = rig.hears(&at(&ip, 8080), &format!("pod web-1 {MESHED}")).await?;
        rig.run(meshed("web-2"), &[&ip]).await?;
        open.ends_and_then_is_refused(Code::FailedPrecondition, "").await?;
        rig.is_refused("linkerd.io", Code::InvalidArgument, "").await?;
        rig.is_refused(&rig.path("missing"), Code::Unknown, "").await?;
        rig.is_refused(&rig.path("web-0.web"), Code::NotFound, "").await?;
        Ok(())
    })
    .await
}
