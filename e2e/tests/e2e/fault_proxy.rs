//! Tests of the fault proxy: it applies its rules, and forwards all other requests.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use e2e::{Action, FaultProxy, Rule, TestNamespace, eventually};
use futures::StreamExt;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{
    Api, ResourceExt,
    api::{ListParams, PostParams, WatchEvent, WatchParams},
};
use serde_json::json;
use tokio::time::timeout;

const DEADLINE: Duration = Duration::from_secs(30);
const MOMENT: Duration = Duration::from_millis(300);

/// A proxy, and the ConfigMaps of one namespace through the proxy and directly.
struct ProxiedMaps {
    proxy: FaultProxy,
    through: Api<ConfigMap>,
    direct: Api<ConfigMap>,
}

async fn setup() -> Result<ProxiedMaps> {
    let control_plane = e2e::shared().await?;
    let namespace = TestNamespace::create(&control_plane.client().await?, "proxy").await?;
    let proxy = FaultProxy::start(control_plane).await?;
    let through = Api::namespaced(proxy.client().await?, namespace.name());
    Ok(ProxiedMaps { proxy, through, direct: namespace.api() })
}

fn map(name: &str) -> Result<ConfigMap> {
    Ok(serde_json::from_value(json!({"metadata": {"name": name}}))?)
}

/// Selects the ConfigMap `a`, without the one that Kubernetes creates in every namespace.
fn only_a() -> WatchParams {
    WatchParams::default().timeout(60).fields("metadata.name=a").disable_bookmarks()
}

#[tokio::test]
async fn it_forwards_and_counts_requests() -> Result<()> {
    let ProxiedMaps { proxy, through, direct } = setup().await?;
    through.create(&PostParams::default(), &map("a")?).await?;
    assert_eq!(direct.get("a").await?.name_any(), "a");
    assert!(through.get_opt("b").await?.is_none());
    assert_eq!((proxy.count("POST", "/configmaps"), proxy.count("GET", "/configmaps/b")), (1, 1));
    let statuses: Vec<_> = proxy.log().iter().map(|request| request.status).collect();
    assert_eq!(statuses, [Some(201), Some(404)]);
    Ok(())
}

#[tokio::test]
async fn it_injects_a_status_the_given_number_of_times() -> Result<()> {
    let ProxiedMaps { proxy, through, .. } = setup().await?;
    let fault =
        proxy.inject(Rule::path("/configmaps").method("GET").times(1), Action::Status { code: 503, retry_after: None });
    let limited = proxy.inject(Rule::path("/configmaps").times(1), Action::Status { code: 429, retry_after: Some(1) });
    for code in [503, 429] {
        match through.list(&ListParams::default()).await {
            Err(kube::Error::Api(status)) => assert_eq!(status.code, code),
            other => panic!("{code} expected: {other:?}"),
        }
    }
    through.list(&ListParams::default()).await?;
    assert_eq!((fault.hits(), limited.hits()), (1, 1));
    Ok(())
}

#[tokio::test]
async fn it_cuts_watches() -> Result<()> {
    let ProxiedMaps { proxy, through, direct } = setup().await?;
    let mut watch = through.watch(&only_a(), "0").await?.boxed();
    direct.create(&PostParams::default(), &map("a")?).await?;
    let event = timeout(DEADLINE, watch.next()).await?.context("the watch ended")??;
    assert!(matches!(event, WatchEvent::Added(_)), "{event:?}");
    proxy.cut_all();
    let end = timeout(DEADLINE, watch.next()).await?;
    assert!(end.is_none_or(|event| event.is_err()));
    through.get("a").await?;
    Ok(())
}

#[tokio::test]
async fn it_makes_connections_silent() -> Result<()> {
    let ProxiedMaps { proxy, through, direct } = setup().await?;
    let mut watch = through.watch(&only_a(), "0").await?.boxed();
    proxy.half_open();
    direct.create(&PostParams::default(), &map("a")?).await?;
    assert!(timeout(MOMENT, watch.next()).await.is_err(), "an event passed the proxy");
    proxy.cut_all();
    let end = timeout(DEADLINE, watch.next()).await?;
    assert!(end.is_none_or(|event| event.is_err()));
    // The client's pool may still contain a silent connection.
    eventually(DEADLINE, "a new connection to work", async || through.get("a").await.map(drop).map_err(Into::into))
        .await
}

#[tokio::test]
async fn it_holds_the_nth_write_until_released() -> Result<()> {
    let ProxiedMaps { proxy, through, direct } = setup().await?;
    let fault = proxy.inject(Rule::path("/configmaps").method("POST").skip(1).times(1), Action::Hold);
    through.create(&PostParams::default(), &map("a")?).await?;
    let held = tokio::spawn({
        let (through, map) = (through.clone(), map("b")?);
        async move { through.create(&PostParams::default(), &map).await }
    });
    eventually(DEADLINE, "the second write to arrive", async || {
        ensure!(fault.hits() == 1, "the write has not arrived");
        Ok(())
    })
    .await?;
    through.create(&PostParams::default(), &map("c")?).await?;
    assert!(direct.get_opt("b").await?.is_none());
    fault.release();
    timeout(DEADLINE, held).await???;
    direct.get("b").await?;
    Ok(())
}

#[tokio::test]
async fn it_forwards_a_detained_write_after_the_client_has_disconnected() -> Result<()> {
    let ProxiedMaps { proxy, through, direct } = setup().await?;
    let fault = proxy.inject(Rule::path("/configmaps").method("POST").times(1), Action::Detain);
    assert!(timeout(MOMENT, through.create(&PostParams::default(), &map("late")?)).await.is_err());
    assert!(direct.get_opt("late").await?.is_none());
    fault.release();
    eventually(DEADLINE, "the late write", async || direct.get("late").await.map(drop).map_err(Into::into)).await?;
    assert_eq!(fault.hits(), 1);
    Ok(())
}

#[tokio::test]
async fn it_cuts_connections_before_and_after_a_write() -> Result<()> {
    let ProxiedMaps { proxy, through, direct } = setup().await?;
    proxy.inject(Rule::path("/configmaps").method("POST").times(1), Action::Cut);
    proxy.inject(Rule::path("/configmaps").method("POST").times(1), Action::After);
    assert!(through.create(&PostParams::default(), &map("cut")?).await.is_err());
    assert!(through.create(&PostParams::default(), &map("after")?).await.is_err());
    assert!(direct.get_opt("cut").await?.is_none());
    direct.get("after").await?;
    Ok(())
}

#[tokio::test]
async fn it_delays_and_hangs_requests() -> Result<()> {
    let ProxiedMaps { proxy, through, .. } = setup().await?;
    proxy.inject(Rule::any().times(1), Action::Delay(MOMENT));
    let started = Instant::now();
    through.list(&ListParams::default()).await?;
    assert!(started.elapsed() >= MOMENT);
    proxy.inject(Rule::any(), Action::Hang);
    assert!(timeout(MOMENT, through.list(&ListParams::default())).await.is_err());
    proxy.clear();
    through.list(&ListParams::default()).await?;
    Ok(())
}
