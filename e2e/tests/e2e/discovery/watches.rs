//! The messages of open streams during API server outages, after expired watches, and when their Service is rerouted.
//!
//! The number of messages matters as much as their content, so each message is compared.

use std::time::Duration;

use anyhow::{Result, ensure};
use e2e::{
    Fault, Manager, Rule,
    discovery::{Message, WATCHED, expire},
    eventually,
    fault_proxy::Action,
    mesh::SOON,
};
use kube::api::DeleteParams;
use serde_json::json;
use tonic::Code;

use super::crowd::{Crowd, address, shows};

const QUIET: Duration = Duration::from_secs(1);

fn add(numbers: impl IntoIterator<Item = u32>) -> Message {
    Message::Add(numbers.into_iter().map(address).collect())
}

fn remove(numbers: impl IntoIterator<Item = u32>) -> Message {
    Message::Remove(numbers.into_iter().map(address).collect())
}

/// Waits until every watch has expired once, was followed by a list, and /ready reports no problem.
pub(crate) async fn relisted(manager: &Manager, faults: &[Fault]) -> Result<()> {
    eventually(SOON, "each kind to be listed again", async || {
        let hits: Vec<usize> = faults.iter().map(Fault::hits).collect();
        ensure!(hits == [1; WATCHED.len()], "{WATCHED:?}: {hits:?}");
        manager.has_no_problem().await
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn without_the_api_server_endpoints_stay_and_afterwards_only_the_difference_is_sent() -> Result<()> {
    let (crowd, proxy) = Crowd::behind_proxy().await?;
    crowd.put("web", 0..3).await?;
    let mut open = crowd.shows("web", 0..3).await?;
    let away = proxy.inject(Rule::any(), Action::Cut);
    proxy.cut_all();
    eventually(SOON, "the outage to be reported", async || {
        let (status, body) = crowd.manager.get("/ready").await?;
        ensure!(status == hyper::StatusCode::OK, "the cache must still be served: {body}");
        ensure!(body.contains("cannot list or watch endpointslices"), "{body}");
        Ok(())
    })
    .await?;
    crowd.set_slice("web-0", 1..5).await?;
    open.is_quiet_for(QUIET).await?;
    let mut new = crowd.shows("web", 0..3).await?;

    away.remove();
    for stream in [&mut open, &mut new] {
        shows(stream, 1..5).await?;
        stream.is_quiet_for(QUIET).await?;
        assert_eq!(stream.messages, [add(0..3), add(3..5), remove([0])]);
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_relist_sends_only_the_difference() -> Result<()> {
    let (crowd, proxy) = Crowd::behind_proxy().await?;
    crowd.put("web", 0..3).await?;
    crowd.put_slice("web", "more", 10..12).await?;
    let mut stream = crowd.known(&crowd.manager.discovery().await?, "web").await?;
    stream.until("both slices", |known| known.len() == 5).await?;
    let messages = stream.messages.len();
    let faults = expire(&proxy);
    proxy.cut_all();
    relisted(&crowd.manager, &faults).await?;
    stream.is_quiet_for(QUIET).await?;

    let away = proxy.inject(Rule::any(), Action::Cut);
    proxy.cut_all();
    crowd.mesh.slices.delete("more", &DeleteParams::default()).await?;
    crowd.set_slice("web-0", 0..2).await?;
    let faults = expire(&proxy);
    away.remove();
    relisted(&crowd.manager, &faults).await?;
    shows(&mut stream, 0..2).await?;
    // A list is applied in one batch or object by object, so one or two messages are allowed.
    let removed: usize = stream.messages[messages..]
        .iter()
        .map(|message| if let Message::Remove(addresses) = message { addresses.len() } else { 0 })
        .sum();
    assert_eq!((removed, stream.messages.len() - messages <= 2), (3, true), "{:?}", stream.messages);
    Ok(())
}

#[tokio::test]
async fn a_service_that_becomes_an_external_name_ends_its_streams_and_is_refused() -> Result<()> {
    let crowd = Crowd::start(&[]).await?;
    crowd.put("web", 0..2).await?;
    let mut streams = vec![crowd.shows("web", 0..2).await?, crowd.shows("web", 0..2).await?];
    let away = json!({"type": "ExternalName", "externalName": "example.com", "clusterIP": null, "clusterIPs": null});
    crowd.mesh.patch_service("web", json!({ "spec": away })).await?;
    for stream in &mut streams {
        ensure!(stream.next().await?.is_none(), "{:?}", stream.messages);
    }
    let discovery = crowd.manager.discovery().await?;
    let (code, text) = discovery.refusal(&crowd.path("web"), "").await?;
    assert_eq!((code, text), (Code::InvalidArgument, format!("Invalid authority: {}", crowd.path("web"))));
    crowd.manager.counts("linkerd_operator_discovery_streams_ended_total", &[("reason", "rerouted")], 2.0).await?;
    crowd.mesh.patch_service("web", json!({"spec": {"type": "ClusterIP", "externalName": null}})).await?;
    crowd.shows("web", 0..2).await.map(drop)
}
