//! The page about edits by hand in an outage: its commands are run as they stand, with the names of the test.

use std::{path::Path, process::Stdio, time::Duration};

use anyhow::{Context, Result, ensure};
use e2e::{TestNamespace, holds};
use k8s_openapi::api::apps::v1::Deployment;
use kube::{Api, api::PostParams};
use serde_json::json;

use super::{Installation, QUIET, WELL};

const PAGE: &str = include_str!("../../../../docs/src/operate/break-glass.md");
const DEADLINE: Duration = Duration::from_secs(120);

/// The shell blocks of a section, in order.
fn blocks(section: &str) -> Result<Vec<String>> {
    let (_, rest) = PAGE.split_once(&format!("\n## {section}\n")).with_context(|| format!("no section {section}"))?;
    let section = rest.split("\n## ").next().unwrap_or_default();
    let blocks = section.split("```sh\n").skip(1).filter_map(|block| block.split("```").next());
    Ok(blocks.map(str::to_owned).collect())
}

/// Runs a block with `sh`, in the names of the test. The editor sets `imagePullPolicy` to `Always`.
async fn run(installation: &Installation, application: &str, directory: &Path, block: &str) -> Result<()> {
    let control_plane = &installation.control_plane;
    let block = block
        .replace("linkerdconfig mesh", &format!("linkerdconfig {}", installation.full("mesh")))
        .replace("linkerdconfig/mesh", &format!("linkerdconfig/{}", installation.full("mesh")))
        .replace("-n linkerd ", &format!("-n {} ", installation.namespace))
        .replace("-n app ", &format!("-n {application} "));
    let kubectl = control_plane.kubectl_path()?;
    let tools = kubectl.parent().map(|path| path.display().to_string()).unwrap_or_default();
    let mut command = tokio::process::Command::new("sh");
    command.args(["-e", "-u", "-c", &block]).current_dir(directory).stdin(Stdio::null()).kill_on_drop(true);
    command.env("KUBECONFIG", control_plane.kubeconfig()).env("HOME", directory);
    command.env("PATH", format!("{tools}:{}", std::env::var("PATH").unwrap_or_default()));
    command.env("KUBE_EDITOR", "sed -i 's/imagePullPolicy: .*/imagePullPolicy: Always/'");
    let output = tokio::time::timeout(DEADLINE, command.output()).await.with_context(|| block.clone())??;
    ensure!(output.status.success(), "{block}\n{}", String::from_utf8_lossy(&output.stderr));
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_commands_of_the_page_take_the_configuration_over_and_give_it_back() -> Result<()> {
    let installation = Installation::new().await?;
    let application = TestNamespace::create(&installation.client, "app").await?.name().to_owned();
    for (namespace, name) in [(&installation.namespace, "linkerd-proxy-injector"), (&application, "web")] {
        let labels = json!({"app": name});
        let object = json!({"metadata": {"name": name}, "spec": {"replicas": 0, "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "c", "image": "c"}]}}}});
        let deployments: Api<Deployment> = Api::namespaced(installation.client.clone(), namespace);
        deployments.create(&PostParams::default(), &serde_json::from_value(object)?).await?;
    }
    let _manager = installation.manager().await?;
    installation.declare("mesh", json!({"proxy": {"accessLog": "json"}})).await?;
    installation.reaches("mesh", &WELL).await?;
    let directory = installation.control_plane.directory().join(&application);
    tokio::fs::create_dir(&directory).await?;
    let run = async |block: &str| run(&installation, &application, &directory, block).await;

    let [suspend, save, edit, restore, restart_injector, restart] = &blocks("Take over")?[..] else {
        anyhow::bail!("the section has other blocks");
    };
    for block in [suspend, save, edit] {
        run(block).await?;
    }
    let edited = installation.helm_with(json!({"proxy": {"accessLog": "json"}, "imagePullPolicy": "Always"})).await?;
    let is = async |expected: &serde_json::Value| {
        let document = installation.document().await?;
        ensure!(&document == expected, "{}", super::difference(&document, expected));
        Ok(())
    };
    is(&edited).await?;
    holds(QUIET, "the edit", async || is(&edited).await).await?;
    run(restore).await?;
    assert_eq!(installation.text().await?, super::HELM);
    for block in [restart_injector, restart] {
        run(block).await?;
    }
    // The person decides for the edit after all.
    run(edit).await?;

    let [declare, enforce, allow] = &blocks("Give back")?[..] else {
        anyhow::bail!("the section has other blocks");
    };
    run(declare).await?;
    is(&installation.helm_with(json!({"imagePullPolicy": "Always"})).await?).await?;
    run(enforce).await?;
    is(&installation.helm_with(json!({"proxy": {"logLevel": "warn"}})).await?).await?;
    run(allow).await?;
    installation.reaches("mesh", &WELL).await?;
    assert_eq!(installation.bases().await?, [super::HELM]);
    Ok(())
}
