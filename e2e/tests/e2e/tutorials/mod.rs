//! The tutorials and the first steps of the README: each shell block runs as it stands, in order, and prints what the
//! page shows.
//!
//! No block is left out. `linkerd`, the only program that the harness does not have, is a [stand-in](linkerd).

mod cluster;
mod linkerd;

use std::{collections::BTreeSet, fs};

use anyhow::{Context, Result, ensure};
use e2e::shipped::in_repository;

use crate::page::{commands, shell_blocks, shown};
use cluster::TutorialRig;

const FOLDER: &str = "docs/src/tutorials";
/// The tutorial of the test `from_nothing`, which begins without the operator.
const FROM_NOTHING: &str = "from-nothing";
const PAGES: [&str; 5] =
    ["change-log-level", "linkerd-upgrade", "one-team-first", "rollout-halts", "vm-behind-a-service"];
const README: &str = include_str!("../../../../README.md");
/// What the README's command has in addition where the operator injects the proxies.
const INJECTS: &str = "--set jobs.proxyInjector.enabled=true";

fn tutorial(name: &str) -> Result<String> {
    Ok(fs::read_to_string(in_repository(&format!("{FOLDER}/{name}.md")))?)
}

/// The section of the README about the installation.
fn installation() -> Result<&'static str> {
    let (_, rest) = README.split_once("\n## Install\n").context("the README has no section Install")?;
    rest.split("\n## ").next().context("the section Install is empty")
}

/// Installs the operator with the README's commands, in a cluster with this version of Linkerd.
async fn installed(version: &str, more: &str) -> Result<TutorialRig> {
    let mut cluster = TutorialRig::start(version).await?;
    let blocks = shell_blocks(installation()?);
    let install = blocks.first().context("no commands")?;
    for command in commands(&install.text) {
        let is_operator = command.contains(" charts/linkerd-operator ");
        let text = if is_operator { format!("{command} {more}") } else { command.clone() };
        let output = cluster.output(&text).await?;
        if let Some((_, line)) = command.split_once("# the last line: ") {
            shown::ends_with(&output, line).context(text)?;
        }
        if is_operator {
            cluster.run_operator().await?;
        }
    }
    Ok(cluster)
}

/// Runs a tutorial, in a mesh of this version of Linkerd whose proxies are injected by the operator.
async fn follows(name: &str, version: &str) -> Result<()> {
    let cluster = installed(version, INJECTS).await?;
    cluster.injects().await?;
    cluster.follow(name, &shell_blocks(&tutorial(name)?)).await
}

#[test]
fn every_tutorial_is_run_and_no_block_of_it_is_left_out() -> Result<()> {
    let mut pages = BTreeSet::new();
    for file in fs::read_dir(in_repository(FOLDER))? {
        pages.insert(file?.path().file_stem().context("a page without a name")?.to_string_lossy().into_owned());
    }
    assert_eq!(pages, PAGES.into_iter().chain([FROM_NOTHING]).map(str::to_owned).collect());
    let mut of_linkerd = BTreeSet::new();
    for name in PAGES {
        let page = tutorial(name)?;
        let blocks = shell_blocks(&page);
        let outputs = blocks.iter().filter(|block| block.shown.is_some()).count();
        ensure!(blocks.len() >= 5 && outputs >= 2, "{name}: {} blocks, {outputs} outputs", blocks.len());
        // A block in another language or an output elsewhere would not be compared.
        assert_eq!(page.matches("```").count(), 2 * (blocks.len() + outputs), "{name}");
        for command in blocks.iter().flat_map(|block| commands(&block.text)) {
            if command.starts_with("linkerd ") {
                of_linkerd.insert(command.split(" | ").next().unwrap_or_default().to_owned());
            }
        }
    }
    assert_eq!(of_linkerd, linkerd::COMMANDS.into_iter().map(|arguments| format!("linkerd {arguments}")).collect());
    let first_steps = shell_blocks(installation()?);
    assert_eq!(first_steps.iter().map(|block| block.shown.is_some()).collect::<Vec<_>>(), [false, true]);
    Ok(())
}

/// Linkerd's container injects the proxies in a default installation, and the page needs none.
#[tokio::test(flavor = "multi_thread")]
async fn the_first_steps_of_the_readme_and_the_tutorial_about_a_vm_work() -> Result<()> {
    let cluster = installed(linkerd::CURRENT, "").await?;
    let blocks = shell_blocks(installation()?);
    cluster.follow("README", blocks.get(1..).context("no first steps")?).await?;
    cluster.follow("vm-behind-a-service", &shell_blocks(&tutorial("vm-behind-a-service")?)).await
}

#[tokio::test(flavor = "multi_thread")]
async fn the_tutorial_about_the_log_level_works() -> Result<()> {
    follows("change-log-level", linkerd::CURRENT).await
}

#[tokio::test(flavor = "multi_thread")]
async fn the_tutorial_about_a_canary_works() -> Result<()> {
    follows("one-team-first", linkerd::CURRENT).await
}

#[tokio::test(flavor = "multi_thread")]
async fn the_tutorial_about_a_halted_rollout_works() -> Result<()> {
    follows("rollout-halts", linkerd::CURRENT).await
}

#[tokio::test(flavor = "multi_thread")]
async fn the_tutorial_about_an_upgrade_of_linkerd_works() -> Result<()> {
    follows("linkerd-upgrade", linkerd::PREVIOUS).await
}
