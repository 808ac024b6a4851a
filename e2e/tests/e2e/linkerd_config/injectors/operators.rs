//! The operator's own injector, in the same process as the LinkerdConfig controller.

use std::time::Instant;

use anyhow::{Context, Result};
use e2e::injector::{Injector, OperatorWebhook, unregister};
use k8s_openapi::api::core::v1::Pod;
use kube::{Api, api::PostParams};
use serde_json::json;

use super::{Installation, SYNCED};

/// Returns the variables of the proxy that a new Pod gets, as `NAME=VALUE`.
async fn injected(installation: &Installation) -> Result<Vec<String>> {
    let pod = json!({
        "metadata": {"generateName": "web-", "annotations": {"linkerd.io/inject": "enabled"}},
        "spec": {"serviceAccountName": "default", "containers": [{"name": "web", "image": "web"}]},
    });
    let pods: Api<Pod> = Api::namespaced(installation.client.clone(), &installation.namespace);
    let params = PostParams { dry_run: true, ..PostParams::default() };
    let pod = pods.create(&params, &serde_json::from_value(pod)?).await?;
    let containers = pod.spec.and_then(|spec| spec.init_containers).context("no init containers")?;
    let proxy = containers.into_iter().find(|it| it.name == "linkerd-proxy").context("no proxy")?;
    let variables = proxy.env.unwrap_or_default().into_iter();
    Ok(variables.filter_map(|it| Some(format!("{}={}", it.name, it.value?))).collect())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_manager_that_injects_proxies_itself_is_probed_and_injects_a_change_at_once() -> Result<()> {
    let installation = Installation::new().await?;
    let (client, namespace) = (&installation.client, &installation.namespace);
    unregister(client).await?;
    let webhook = OperatorWebhook::register(&installation.control_plane, namespace).await?;
    let args = webhook.args();
    let manager = installation.manager_with(&args.each_ref().map(String::as_str)).await?;
    webhook.serve().await?;
    let probe = json!({"method": "Probe"});
    installation.declare("mesh", json!({"injectorSync": probe, "proxy": {"accessLog": "json"}})).await?;
    let status = installation.reaches("mesh", &SYNCED).await?;
    assert_eq!((&status["injector"]["ready"], &status["injector"]["synced"]), (&json!(1), &json!(1)));

    let begun = Instant::now();
    installation.change("mesh", json!({"proxy": {"accessLog": "apache"}})).await?;
    let status = installation.reaches("mesh", &SYNCED).await?;
    println!("the injector used the change {:?} after it was sent", begun.elapsed());
    let variables = injected(&installation).await?;
    let hash = status["injectionHash"].as_str().context("no injection hash")?;
    for expected in ["LINKERD2_PROXY_ACCESS_LOG=apache", &format!("LINKERD_CONFIG_HASH={hash}")] {
        assert!(variables.iter().any(|variable| variable == expected), "{expected}: {variables:?}");
    }

    // While Linkerd's injector is registered, too, for other namespaces, its replicas are probed as well.
    let linkerds = Injector::start(&installation.control_plane, namespace, &[], 2).await?;
    installation.change("mesh", json!({"proxy": {"accessLog": "json"}})).await?;
    let status = installation.reaches("mesh", &SYNCED).await?;
    assert_eq!((&status["injector"]["ready"], &status["injector"]["synced"]), (&json!(3), &json!(3)));
    assert!(linkerds.requests(0) > 0 && linkerds.requests(1) > 0);
    unregister(client).await?;
    drop(manager);
    Ok(())
}
