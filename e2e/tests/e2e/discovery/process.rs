//! Startup and shutdown of a process that serves discovery.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use e2e::{
    FaultProxy, Manager, Rule, eventually,
    fault_proxy::Action,
    mesh::SOON,
    slow_client::{SlowClient, Windows},
};
use futures::future::try_join_all;
use hyper::StatusCode;
use tokio::net::TcpStream;
use tonic::{Code, transport::Channel};
use tonic_health::pb::{HealthCheckRequest, health_check_response::ServingStatus, health_client::HealthClient};

use super::crowd::{Crowd, discovery_only, shows};

const STOP: Duration = Duration::from_secs(45);
const SERVICES: [&str; 2] = ["", "io.linkerd.proxy.destination.Destination"];

async fn health(manager: &Manager) -> Result<Vec<ServingStatus>> {
    let channel = Channel::from_shared(format!("http://{}", manager.destination_address()))?.connect().await?;
    try_join_all(SERVICES.map(|service| {
        let mut client = HealthClient::new(channel.clone());
        async move {
            let request = HealthCheckRequest { service: service.to_owned() };
            Ok(client.check(request).await?.into_inner().status())
        }
    }))
    .await
}

async fn is_not_ready(manager: &Manager, body: &str) -> Result<()> {
    eventually(SOON, format_args!("/ready to return {body:?}"), async || {
        let seen = manager.get("/ready").await?;
        ensure!(seen == (StatusCode::SERVICE_UNAVAILABLE, body.to_owned()), "{seen:?}");
        Ok(())
    })
    .await
}

#[tokio::test]
async fn on_sigterm_streams_end_cleanly_and_stalled_clients_do_not_delay_the_exit() -> Result<()> {
    let mut crowd = Crowd::start(&[]).await?;
    crowd.put("web", 0..300).await?;
    let mut streams = Vec::new();
    for _ in 0..5 {
        streams.push(crowd.shows("web", 0..300).await?);
    }
    let address = crowd.manager.destination_address();
    let discovery = crowd.manager.discovery().await?;
    let mut last = crowd.known(&discovery, "web").await?;
    shows(&mut last, 0..300).await?;
    let unread = SlowClient::connect(address, Windows::OF_PROXIES).await?;
    let unread_streams = unread.get_many(&crowd.path("web"), 20).await?;
    let windowless = SlowClient::connect(address, Windows { stream: 0, ..Windows::OF_PROXIES }).await?;
    let windowless_streams = windowless.get_many(&crowd.path("web"), 20).await?;
    let silent = TcpStream::connect(address).await?;

    crowd.manager.begin_to_terminate()?;
    is_not_ready(&crowd.manager, "not ready\n").await?;
    // Connections must be refused, not accepted and left waiting.
    eventually(SOON, "connections to be refused", async || {
        ensure!(TcpStream::connect(address).await.is_err(), "it still listens");
        Ok(())
    })
    .await?;
    ensure!(crowd.manager.is_running(), "the manager refuses connections because it has exited");
    let (code, text) = discovery.refusal(&crowd.path("web"), "").await?;
    // The status of the server, or that of the client library for a connection that takes no more streams.
    ensure!([Code::Unavailable, Code::Cancelled, Code::Unknown].contains(&code), "{code:?} {text}");
    for stream in streams.iter_mut().chain([&mut last]) {
        ensure!(stream.next().await?.is_none(), "{:?}", stream.messages.last());
        ensure!(stream.messages.len() == 1, "{} messages", stream.messages.len());
    }
    let status = crowd.manager.wait(STOP).await?;
    ensure!(status.success(), "{status}: {}", crowd.manager.log());
    drop((unread_streams, windowless_streams, silent));
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn no_request_is_answered_before_every_kind_is_listed() -> Result<()> {
    let crowd = Crowd::start(&[]).await?;
    crowd.put("web", 0..3).await?;
    let is_blocked_by = async |kind: &'static str| {
        let proxy = FaultProxy::start(crowd.control_plane).await?;
        let (plural, _) = kind.split_once('.').unwrap_or((kind, ""));
        let held = proxy.inject(Rule::path(&format!("/{plural}?")), Action::Hold);
        let mut manager = Manager::start(crowd.control_plane, discovery_only(proxy.kubeconfig(), &[]))?;
        is_not_ready(&manager, &format!("not ready\nwaiting: the first list of {kind} has not completed yet\n"))
            .await?;
        let discovery = manager.discovery().await?;
        for path in [crowd.path("web"), crowd.path("missing")] {
            let (code, text) = discovery.refusal(&path, "").await?;
            ensure!(code == Code::Unavailable, "{path}: {code:?} {text}");
        }
        let status = health(&manager).await?;
        ensure!(status == [ServingStatus::NotServing; 2], "{status:?}");

        held.remove();
        manager.ready(SOON).await?;
        let mut stream = discovery.get(&crowd.path("web"), "").await?;
        stream.next().await?;
        shows(&mut stream, 0..3).await?;
        ensure!(stream.messages.len() == 1, "{:?}", stream.messages);
        ensure!(discovery.refusal(&crowd.path("missing"), "").await?.0 == Code::NotFound);
        eventually(SOON, "the health service to report SERVING", async || {
            let status = health(&manager).await?;
            ensure!(status == [ServingStatus::Serving; 2], "{status:?}");
            Ok(())
        })
        .await
    };
    let kinds = ["pods", "services", "endpointslices.discovery.k8s.io", "nodes"];
    try_join_all(kinds.map(async |kind| is_blocked_by(kind).await.with_context(|| kind.to_owned()))).await?;
    Ok(())
}
