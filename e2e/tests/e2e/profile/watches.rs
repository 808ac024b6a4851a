//! The messages of open streams of profiles after expired watches.

use anyhow::{Result, ensure};
use e2e::{FaultProxy, Rule, discovery::expire, fault_proxy::Action, shared_manager};
use futures::future::try_join_all;
use serde_json::json;

use super::{at, becomes, ip, routes, workload_at};
use crate::discovery::{
    QUIET, Served,
    objects::{meshed, opaque_server, service},
    serving::discovery_through,
    watches::relisted,
};

#[tokio::test(flavor = "multi_thread")]
async fn a_relist_sends_only_the_changes() -> Result<()> {
    let rig = Served::start("lists").await?;
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
    let (control_plane, _) = shared_manager().await?;
    let proxy = FaultProxy::start(control_plane).await?;
    let manager = discovery_through(&proxy).ready(control_plane).await?;
    let discovery = manager.discovery().await?;
    let paths = [rig.path("web:80"), at(&pod_ip, 8080), at(&workload_ip, 8080), at(&late_ip, 8080)];
    let mut streams = try_join_all(paths.iter().map(|path| discovery.get_profile(path, ""))).await?;
    let vm = format!("external_workload vm {}", super::MESHED);
    let pod = format!("opaque pod web-1 {}", super::OPAQUE);
    for (stream, expected) in streams.iter_mut().zip(["service web with routes a", &pod, &vm, "address"]) {
        becomes(stream, expected).await?;
    }
    let faults = expire(&proxy);
    proxy.cut_all();
    relisted(&manager, &faults).await?;
    try_join_all(streams.iter_mut().map(|stream| stream.is_quiet_for(QUIET))).await?;

    let away = proxy.inject(Rule::any(), Action::Cut);
    proxy.cut_all();
    rig.delete("ServiceProfile", &name).await?;
    rig.delete("Server", "web").await?;
    rig.delete("ExternalWorkload", "vm").await?;
    rig.run(meshed("late").labelled("app", "late"), &[&late_ip]).await?;
    try_join_all(streams.iter_mut().map(|stream| stream.is_quiet_for(QUIET))).await?;
    let faults = expire(&proxy);
    away.remove();
    relisted(&manager, &faults).await?;
    let (pod, late) = (format!("pod web-1 {}", super::MESHED), format!("pod late {}", super::MESHED));
    for (stream, expected) in streams.iter_mut().zip(["service web", &pod, "address", &late]) {
        becomes(stream, expected).await?;
        stream.is_quiet_for(QUIET).await?;
        ensure!(stream.messages.len() == 2, "{:?}", stream.messages);
    }
    Ok(())
}
