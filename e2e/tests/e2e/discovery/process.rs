//! Startup and shutdown of a process that serves discovery.

use anyhow::{Context, Result, ensure};
use e2e::{
    FaultProxy, Manager, Rule, eventually,
    fault_proxy::Action,
    manager::STOP,
    mesh::SOON,
    slow_client::{SlowClient, Windows},
};
use futures::future::try_join_all;
use hyper::StatusCode;
use serde_json::json;
use tokio::net::TcpStream;
use tonic::{Code, transport::Channel};
use tonic_health::pb::{HealthCheckRequest, health_check_response::ServingStatus, health_client::HealthClient};

use super::{
    crowd::{Crowd, shows},
    objects::service_profile,
    serving::discovery_through,
};

/// Checks the status that the health service reports for the process and for discovery; it knows no other service.
async fn reports_health(manager: &Manager, status: ServingStatus) -> Result<()> {
    let channel = Channel::from_shared(format!("http://{}", manager.destination_address()))?.connect().await?;
    let mut health = HealthClient::new(channel);
    let discovery = "io.linkerd.proxy.destination.Destination";
    for (service, expected) in [("", Ok(status)), (discovery, Ok(status)), ("other", Err(Code::NotFound))] {
        let answer = health.check(HealthCheckRequest { service: service.to_owned() }).await;
        let seen = answer.map(|answer| answer.into_inner().status()).map_err(|status| status.code());
        ensure!(seen == expected, "{service:?}: {seen:?}");
    }
    Ok(())
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
    crowd.put("empty", 0..0).await?;
    let mut empty = crowd.known(&discovery, "empty").await?;
    empty.next().await?;
    streams.extend([last, empty]);
    // Profiles of a Service, of a port that it does not have, and of an address that no test uses.
    let undeclared = crowd.path("web").replace(":80", ":81");
    let mut profiles = Vec::new();
    for path in [crowd.path("web").as_str(), undeclared.as_str(), "233.252.0.1:8080"] {
        for _ in 0..3 {
            let mut stream = discovery.get_profile(path, "").await?;
            stream.next().await?;
            profiles.push(stream);
        }
    }
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
    for stream in &mut streams {
        ensure!(stream.next().await?.is_none(), "{:?}", stream.messages.last());
        ensure!(stream.messages.len() == 1, "{} messages", stream.messages.len());
    }
    for stream in &mut profiles {
        ensure!(stream.next().await?.is_none(), "a message instead of the end: {:?}", stream.messages.last());
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
    let routes = json!({"routes": [{"name": "a", "condition": {"method": "GET"}}]});
    crowd.objects.put(service_profile(&crowd.objects.full_name("web"), routes)).await?;
    let is_blocked_by = async |kind: &'static str| {
        let proxy = FaultProxy::start(crowd.control_plane).await?;
        let (plural, _) = kind.split_once('.').unwrap_or((kind, ""));
        let held = proxy.inject(Rule::path(&format!("/{plural}?")), Action::Hold);
        let mut manager = discovery_through(&proxy).start(crowd.control_plane)?;
        is_not_ready(&manager, &format!("not ready\nwaiting: the first list of {kind} has not completed yet\n"))
            .await?;
        let discovery = manager.discovery().await?;
        for path in [crowd.path("web"), crowd.path("missing")] {
            for (code, text) in [discovery.refusal(&path, "").await?, discovery.profile_refusal(&path, "").await?] {
                ensure!(code == Code::Unavailable, "{path}: {code:?} {text}");
            }
        }
        reports_health(&manager, ServingStatus::NotServing).await?;

        held.remove();
        manager.ready(SOON).await?;
        let mut stream = discovery.get(&crowd.path("web"), "").await?;
        stream.next().await?;
        shows(&mut stream, 0..3).await?;
        ensure!(stream.messages.len() == 1, "{:?}", stream.messages);
        ensure!(discovery.refusal(&crowd.path("missing"), "").await?.0 == Code::NotFound);
        let profile = discovery.first_profile(&crowd.path("web"), "").await?;
        ensure!(profile.routes.len() == 1, "{profile:?}");
        eventually(SOON, "the health service to report SERVING", async || {
            reports_health(&manager, ServingStatus::Serving).await
        })
        .await
    };
    let kinds = ["pods", "services", "endpointslices.discovery.k8s.io", "nodes", "serviceprofiles.linkerd.io"];
    try_join_all(kinds.map(async |kind| is_blocked_by(kind).await.with_context(|| kind.to_owned()))).await?;
    Ok(())
}
