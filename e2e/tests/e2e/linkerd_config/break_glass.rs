//! The page about edits by hand in an outage: its commands are run as they stand, with the names of the test.

use anyhow::{Context, Result, ensure};
use e2e::{TestNamespace, holds};
use k8s_openapi::api::apps::v1::Deployment;
use kube::{Api, api::PostParams};
use serde_json::json;

use super::{Installation, QUIET, WELL};
use crate::page::{Shell, shell_blocks};

const PAGE: &str = include_str!("../../../../docs/src/operate/break-glass.md");
/// The editor sets `imagePullPolicy` to `Always`.
const EDITOR: &str = "sed -i 's/imagePullPolicy: .*/imagePullPolicy: Always/'";

/// The shell blocks of a section, in order.
fn blocks(section: &str) -> Result<Vec<String>> {
    let (_, rest) = PAGE.split_once(&format!("\n## {section}\n")).with_context(|| format!("no section {section}"))?;
    let section = rest.split("\n## ").next().unwrap_or_default();
    Ok(shell_blocks(section).into_iter().map(|block| block.text).collect())
}

/// Runs a block in the names of the test.
async fn run(installation: &Installation, application: &str, shell: &Shell, block: &str) -> Result<()> {
    let block = block
        .replace("linkerdconfig mesh", &format!("linkerdconfig {}", installation.full("mesh")))
        .replace("linkerdconfig/mesh", &format!("linkerdconfig/{}", installation.full("mesh")))
        .replace("-n linkerd ", &format!("-n {} ", installation.namespace))
        .replace("-n app ", &format!("-n {application} "));
    shell.run(&block, EDITOR).await
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
    installation.adopt("mesh", json!({"proxy": {"accessLog": "json"}})).await?;
    let directory = installation.control_plane.directory().join(&application);
    tokio::fs::create_dir(&directory).await?;
    let shell = Shell::with_kubectl(&installation.control_plane, &directory)?;
    let run = async |block: &str| run(&installation, &application, &shell, block).await;

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
