//! The messages of open and new streams during API server outages, after expired watches, and before the first lists.

use std::time::Duration;

use anyhow::{Result, ensure};
use e2e::{
    FaultProxy, Manager, ManagerOptions, Rule, discovery::Discovery, eventually, fault_proxy::Action, mesh::SOON,
    profile::Profiles,
};
use futures::future::try_join_all;
use hyper::StatusCode;
use serde_json::json;
use tonic::Code;

use super::{at, ip, routes, summary, workload_at};
use crate::discovery::{
    QUIET, Rig, Settings,
    objects::{meshed, opaque_server, service},
    serving::discovery_only,
};

const GONE: Action = Action::Status { code: 410, retry_after: None };
const KINDS: [&str; 9] = [
    "pods",
    "services",
    "endpointslices",
    "externalworkloads",
    "servers",
    "serviceprofiles",
    "nodes",
    "replicasets",
    "jobs",
];

/// Starts a dedicated manager behind a proxy with these faults.
async fn behind_proxy(faults: &[(Rule, Action)]) -> Result<(Manager, FaultProxy)> {
    let (control_plane, _) = Settings::Helm.manager().await?;
    let proxy = FaultProxy::start(control_plane).await?;
    for (rule, action) in faults {
        proxy.inject(rule.clone(), action.clone());
    }
    let options = ManagerOptions { kubeconfig: Some(proxy.kubeconfig().to_owned()), ..discovery_only(&[]) };
    Ok((Manager::start(control_plane, options)?, proxy))
}

async fn becomes(stream: &mut Profiles, expected: &str) -> Result<()> {
    stream.until(expected, |profile| summary(profile) == expected).await
}

#[tokio::test(flavor = "multi_thread")]
async fn until_the_profiles_are_listed_no_default_is_sent() -> Result<()> {
    let rig = Rig::start("unlisted").await?;
    rig.put_all([service("web"), rig.profile("web", routes(&["a"]))]).await?;
    let unlisted = Action::Status { code: 503, retry_after: None };
    let (mut manager, proxy) = behind_proxy(&[(Rule::path("/serviceprofiles"), unlisted)]).await?;
    eventually(SOON, "a request for profiles", async || {
        ensure!(proxy.count("GET", "/serviceprofiles") > 0, "not yet");
        let (status, body) = manager.get("/ready").await?;
        ensure!(status == StatusCode::SERVICE_UNAVAILABLE, "{status} {body}");
        Ok(())
    })
    .await?;
    // No connection, no response or UNAVAILABLE is allowed.
    if let Ok(discovery) = Discovery::connect(manager.destination_address()).await {
        match tokio::time::timeout(QUIET, discovery.get_profile(&rig.path("web"), "")).await {
            Err(_) => {}
            Ok(Err(status)) => ensure!(status.code() == Code::Unavailable, "{status:?}"),
            Ok(Ok(mut stream)) => stream.is_quiet_for(QUIET).await?,
        }
    }
    proxy.clear();
    manager.ready(Duration::from_secs(60)).await?;
    let profile = manager.discovery().await?.first_profile(&rig.path("web"), "").await?;
    assert_eq!(summary(&profile), "service web with routes a");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_relist_sends_only_the_changes() -> Result<()> {
    let rig = Rig::start("lists").await?;
    let (pod_ip, workload_ip, late_ip) = (ip(), ip(), ip());
    let name = rig.full_name("web");
    rig.put_all([
        service("web"),
        rig.profile("web", routes(&["a"])),
        workload_at("vm", &[&workload_ip]),
        opaque_server("web", json!(8080)),
    ])
    .await?;
    rig.run(meshed("web-1"), &[&pod_ip]).await?;
    let (mut manager, proxy) = behind_proxy(&[]).await?;
    manager.ready(SOON).await?;
    let discovery = manager.discovery().await?;
    let paths = [rig.path("web:80"), at(&pod_ip, 8080), at(&workload_ip, 8080), at(&late_ip, 8080)];
    let mut streams = try_join_all(paths.iter().map(|path| discovery.get_profile(path, ""))).await?;
    let vm = format!("external_workload vm {}", super::MESHED);
    let pod = format!("opaque pod web-1 {}", super::OPAQUE);
    for (stream, expected) in streams.iter_mut().zip(["service web with routes a", &pod, &vm, "address"]) {
        becomes(stream, expected).await?;
    }
    let expire = || -> Vec<e2e::Fault> {
        KINDS.iter().map(|kind| proxy.inject(Rule::path(&format!("/{kind}?&watch=true")).times(1), GONE)).collect()
    };
    let relisted = async |faults: Vec<e2e::Fault>| {
        eventually(SOON, "each kind to be relisted", async || {
            let hits: Vec<usize> = faults.iter().map(e2e::Fault::hits).collect();
            ensure!(hits == [1; KINDS.len()], "{KINDS:?}: {hits:?}");
            let (_, body) = manager.get("/ready").await?;
            ensure!(body == "ready\n", "{body}");
            Ok(())
        })
        .await
    };
    let faults = expire();
    proxy.cut_all();
    relisted(faults).await?;
    try_join_all(streams.iter_mut().map(|stream| stream.is_quiet_for(QUIET))).await?;

    let away = proxy.inject(Rule::any(), Action::Cut);
    proxy.cut_all();
    rig.delete("ServiceProfile", &name).await?;
    rig.delete("Server", "web").await?;
    rig.delete("ExternalWorkload", "vm").await?;
    rig.run(meshed("late").labelled("app", "late"), &[&late_ip]).await?;
    try_join_all(streams.iter_mut().map(|stream| stream.is_quiet_for(QUIET))).await?;
    let faults = expire();
    away.remove();
    relisted(faults).await?;
    let (pod, late) = (format!("pod web-1 {}", super::MESHED), format!("pod late {}", super::MESHED));
    for (stream, expected) in streams.iter_mut().zip(["service web", &pod, "address", &late]) {
        becomes(stream, expected).await?;
        stream.is_quiet_for(QUIET).await?;
        ensure!(stream.messages.len() == 2, "{:?}", stream.messages);
    }
    Ok(())
}
