//! The page that leads from nothing to a mesh and back: its commands are run as they stand. Linkerd's own are left out,
//! and its objects that the operator needs are applied instead.

use anyhow::{Context, Result, bail, ensure};
use e2e::{
    Rig, eventually,
    mesh::SOON,
    shipped::{OPERATOR_ACCOUNT, OPERATOR_NAMESPACE},
};

use crate::{
    manifests::components::{lacks_nothing, start_manager},
    page::{Shell, in_the_checkout, shell_blocks},
};

const PAGE: &str = include_str!("../../../docs/src/tutorials/from-nothing.md");
/// The most commands of a section.
const MOST: usize = 10;

/// What a command of the page needs.
#[derive(Debug, PartialEq, Eq)]
enum Needs {
    Cluster,
    /// Linkerd's CLI, or what only the internet has.
    Linkerd,
    /// Pods with containers.
    Containers,
}

/// The commands of a section, in order, with their numbers checked.
fn commands(section: &str) -> Result<Vec<(Needs, String)>> {
    let (_, rest) = PAGE.split_once(&format!("\n## {section}\n")).with_context(|| format!("no section {section}"))?;
    let section = rest.split("\n## ").next().unwrap_or_default();
    let mut commands = Vec::new();
    for (number, block) in (1..).zip(shell_blocks(section)) {
        ensure!(block.before.contains(&format!("\n{number}. ")), "step {number} has another number");
        let command = block.text.lines().map(str::trim).collect::<Vec<_>>().join("\n");
        let needs = match command.split_whitespace().next() {
            Some("linkerd") => Needs::Linkerd,
            Some("kubectl") if command.contains("https://") => Needs::Linkerd,
            Some("linkerd-operator") => Needs::Containers,
            Some("kubectl" | "helm" | "make") => Needs::Cluster,
            _ => bail!("unknown command {command:?}"),
        };
        commands.push((needs, command.trim().to_owned()));
    }
    ensure!((5..=MOST).contains(&commands.len()), "{} commands", commands.len());
    Ok(commands)
}

struct PageRig {
    rig: Rig,
    shell: Shell,
}

// === impl PageRig ===

impl PageRig {
    /// A rig with the objects of Linkerd on which the operator depends, and a folder with the programs that the page uses.
    async fn start(helm: &str) -> Result<Self> {
        let rig = Rig::full().crds("crd/linkerd").namespace("linkerd").start().await?;
        rig.install_linkerd().await?;
        let shell = Shell::new(&rig, helm).await?;
        Ok(Self { rig, shell })
    }

    /// Runs the commands of a section that need only a cluster. Returns their number.
    async fn follow(&self, section: &str) -> Result<usize> {
        let mut count = 0;
        for (_, command) in commands(section)?.iter().filter(|(needs, _)| *needs == Needs::Cluster) {
            self.shell.run(&in_the_checkout(&self.rig, command)?, "true").await?;
            count += 1;
        }
        Ok(count)
    }

    /// Waits until the operator has done what the page says, with a process in the place of a Pod.
    async fn reconciles(&self) -> Result<()> {
        let deployments = self.rig.operator_deployments().await?;
        let image = &deployments[0]["spec"]["template"]["spec"]["containers"][0]["image"];
        assert_eq!(image, &format!("registry.example.com/team/linkerd-operator:{}", env!("CARGO_PKG_VERSION")));
        let mut manager = start_manager(&self.rig, &deployments, OPERATOR_ACCOUNT, OPERATOR_NAMESPACE, &[]).await?;
        lacks_nothing(&mut manager).await?;
        eventually(SOON, "the document and the EndpointSlice of the page", async || {
            let values = ["-n", "linkerd", "get", "configmap", "linkerd-config", "-o", "jsonpath={.data.values}"];
            let values = self.rig.kubectl(&values).await?;
            ensure!(values.contains("accessLog: apache") || values.contains(r#""accessLog":"apache""#), "{values}");
            let slices = self.rig.kubectl(&["-n", "mixed", "get", "endpointslices"]).await?;
            let ours = slices.lines().find(|line| line.starts_with("linkerd-external-legacy-"));
            ensure!(ours.is_some_and(|line| line.contains("192.0.2.11,192.0.2.12")), "{slices}");
            Ok(())
        })
        .await?;
        let active =
            ["get", "linkerdconfig", "mesh", "-o", "jsonpath={.status.conditions[?(@.type==\"Accepted\")].status}"];
        assert_eq!(self.rig.kubectl(&active).await?, "True");
        Ok(())
    }

    /// Checks that only Linkerd is left.
    async fn has_nothing_of_the_operator(&self) -> Result<()> {
        let kinds = "namespaces,clusterroles,clusterrolebindings,validatingadmissionpolicies,\
            validatingadmissionpolicybindings,customresourcedefinitions,roles,rolebindings,leases";
        let left = self.rig.kubectl(&["get", kinds, "--all-namespaces", "-o", "name"]).await?;
        let left: Vec<_> =
            left.lines().filter(|name| name.contains("linkerd-operator") || name.contains("linkerdconfig")).collect();
        ensure!(left.is_empty(), "{left:?}");
        self.rig.kubectl(&["get", "namespace", "linkerd"]).await.map(drop)
    }

    async fn there_and_back(&self, way: &str, forth: usize, back: usize) -> Result<()> {
        assert_eq!(self.follow(&format!("With {way}")).await?, forth);
        self.reconciles().await?;
        assert_eq!(self.follow(&format!("Back from {way}")).await?, back);
        self.has_nothing_of_the_operator().await
    }
}

#[test]
fn a_section_begins_with_linkerd_and_its_way_back_ends_with_it() -> Result<()> {
    for way in ["Helm", "kustomize"] {
        let forth = commands(&format!("With {way}"))?;
        let needs = |commands: &[(Needs, String)]| commands.iter().all(|(needs, _)| *needs == Needs::Linkerd);
        ensure!(
            needs(&forth[..4]) && forth[forth.len() - 1] == (Needs::Containers, "linkerd-operator check".to_owned())
        );
        let back = commands(&format!("Back from {way}"))?;
        ensure!(needs(&back[back.len() - 2..]) && !needs(&back[..1]), "{back:?}");
        assert_eq!(forth[1].1.split(" --crds").next(), Some("linkerd install"));
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn helm_3_leads_from_nothing_to_the_operator_and_back_as_the_page_says() -> Result<()> {
    PageRig::start("helm3").await?.there_and_back("Helm", 5, 7).await
}

#[tokio::test(flavor = "multi_thread")]
async fn helm_4_leads_from_nothing_to_the_operator_and_back_as_the_page_says() -> Result<()> {
    PageRig::start("helm4").await?.there_and_back("Helm", 5, 7).await
}

#[tokio::test(flavor = "multi_thread")]
async fn kustomize_leads_from_nothing_to_the_operator_and_back_as_the_page_says() -> Result<()> {
    PageRig::start("helm4").await?.there_and_back("kustomize", 4, 3).await
}
