//! The proxy injector of the operator, with Pods that the kubelet runs.
//!
//! * In: a deployed operator. Out: the operator with its webhook, as `docs/src/guides/proxy-injector.md` says, and two
//!   Deployments with proxies of both shapes, whose containers found all that they need.

use std::{fs, path::Path, time::Instant};

use anyhow::{Context, Result, ensure};
use e2e::{ControlPlane, eventually, mesh::SOON, shipped::in_repository};

use crate::deployment::{self, Deployment};

const NAMESPACE: &str = "meshed";
/// The Deployments in `meshed.yaml`, and whether their proxy is a native sidecar.
const SHAPES: [(&str, bool); 2] = [("with-sidecar", true), ("with-container", false)];
/// Overlays of the one that `make deploy` writes, and of `config/control-plane`.
const OVERLAYS: [(&str, &str); 2] = [
    (
        "dist/overlay-injector-control-plane",
        "resources: [../../config/control-plane]\ncomponents: [../../config/components/proxy-injector/control-plane]\n",
    ),
    (
        "dist/overlay-injector",
        "resources: [../overlay]\n\
         components: [../../config/components/webhook-server, ../../config/components/proxy-injector]\n",
    ),
];
const WEBHOOK: [&str; 3] = ["delete", "mutatingwebhookconfiguration", "linkerd-operator-proxy-injector"];

/// Applies the components of the injector, and runs workloads with proxies.
pub(crate) async fn injects(control_plane: &ControlPlane, deployment: &Deployment<'_>) -> Result<()> {
    let begun = Instant::now();
    for (folder, kustomization) in OVERLAYS {
        let folder = in_repository(folder);
        fs::create_dir_all(&folder)?;
        fs::write(Path::new(&folder).join("kustomization.yaml"), kustomization)?;
        control_plane.kubectl(&["apply", "--server-side", "-k", &folder]).await?;
    }
    deployment.rolled_out().await?;
    eventually(SOON, "the webhook to have a caBundle", async || {
        let args = ["get", WEBHOOK[1], WEBHOOK[2], "-o=jsonpath={.webhooks[0].clientConfig.caBundle}"];
        ensure!(!control_plane.kubectl(&args).await?.is_empty(), "it is empty");
        Ok(())
    })
    .await?;
    crate::step(
        "The components webhook-server and proxy-injector: both replicas are available, with a certificate",
        begun,
    );

    let begun = Instant::now();
    control_plane.kubectl(&["apply", "-f", &in_repository("e2e/src/bin/node/meshed.yaml")]).await?;
    for (name, native) in SHAPES {
        runs(control_plane, name, native).await.with_context(|| format!("the Deployment {name}"))?;
    }
    crate::step(
        "Pods with a proxy as native sidecar and as container: linkerd-init could set up the firewall, and the proxy has its \
         identity token, trust anchors, directories and probes",
        begun,
    );

    let begun = Instant::now();
    eventually(SOON, "the configuration to be in all replicas of the injector", async || {
        let path = r#"-o=jsonpath={.status.conditions[?(@.type=="InjectorSynced")].status}"#;
        let status = control_plane.kubectl(&["get", "linkerdconfig", "mesh", path]).await?;
        ensure!(status == "True", "the condition InjectorSynced is {status:?}");
        Ok(())
    })
    .await?;
    crate::step("LinkerdConfig: InjectorSynced is True, through probes of both replicas", begun);
    Ok(())
}

async fn runs(control_plane: &ControlPlane, name: &str, native: bool) -> Result<()> {
    let get = |path: &'static str| {
        let selector = format!("--selector=app={name}");
        async move { control_plane.kubectl(&["-n", NAMESPACE, "get", "pods", &selector, path]).await }
    };
    eventually(deployment::ROLL_DEADLINE, "the Pod to be ready", async || {
        let ready = get(r#"-o=jsonpath={.items[*].status.conditions[?(@.type=="Ready")].status}"#).await?;
        let status = get("-o=jsonpath={.items[*].status}").await?;
        ensure!(ready == "True", "its status is {status}");
        Ok(())
    })
    .await?;
    let proxies = match native {
        true => get(r#"-o=jsonpath={.items[*].spec.initContainers[*].name}"#).await?,
        false => get(r#"-o=jsonpath={.items[*].spec.containers[*].name}"#).await?,
    };
    ensure!(proxies.contains("linkerd-proxy"), "the proxy has another shape: {proxies:?}");
    let restarts = get("-o=jsonpath={.items[*].status..restartCount}").await?;
    ensure!(restarts.split(' ').all(|count| count == "0"), "containers restarted {restarts} times");
    let logs = |container: &'static str| {
        let selector = format!("--selector=app={name}");
        async move { control_plane.kubectl(&["-n", NAMESPACE, "logs", &selector, "--container", container]).await }
    };
    let (init, proxy) = (logs("linkerd-init").await?, logs("linkerd-proxy").await?);
    ensure!(init.contains("the firewall can be set up"), "linkerd-init prints {init:?}");
    ensure!(proxy.starts_with("hash "), "the proxy prints {proxy:?}");
    eventually(SOON, "the Event of the injection", async || {
        let involved = format!("--field-selector=reason=Injected,involvedObject.name={name}");
        let events = control_plane.kubectl(&["-n", NAMESPACE, "get", "events", &involved, "-o=name"]).await?;
        ensure!(!events.is_empty(), "the Deployment has no Event Injected");
        Ok(())
    })
    .await
}

/// Deletes what the components of the injector and this test created.
pub(crate) async fn delete(control_plane: &ControlPlane) -> Result<()> {
    control_plane.kubectl(&WEBHOOK).await?;
    control_plane.kubectl(&["delete", "namespace", NAMESPACE]).await?;
    for (folder, _) in OVERLAYS {
        control_plane.kubectl(&["delete", "--ignore-not-found", "-k", &in_repository(folder)]).await?;
    }
    Ok(())
}
