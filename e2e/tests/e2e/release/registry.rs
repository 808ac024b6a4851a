//! `make publish` to a real registry, and what Helm installs from there.

use std::{fs, path::PathBuf};

use anyhow::{Context, Result, ensure};
use e2e::{
    Process, Rig, Spawn,
    archive::digest,
    binaries::Binaries,
    chart::{CONFIG_TYPE, CONTENT_TYPE},
    command::Ended,
    eventually,
    image::architecture,
    mesh::SOON,
    port,
    shipped::OPERATOR_NAMESPACE,
};
use serde_json::{Value, json};
use tokio::process::Command;

use super::{CREATED, LABEL, Release, VERSION, run, unpack};
use crate::helm_charts::{CRDS, Helm, OPERATOR, VERSIONS};

/// crane's registry, which keeps everything in memory.
struct Registry {
    crane: PathBuf,
    address: String,
    _process: Process,
    _folder: tempfile::TempDir,
}

// === impl Registry ===

impl Registry {
    async fn start() -> Result<Self> {
        let crane = tokio::task::spawn_blocking(Binaries::find_or_build_crane).await??.tool("crane")?;
        let folder = tempfile::tempdir()?;
        let address = format!("127.0.0.1:{}", port::free()?);
        let spawn = Spawn::new("registry", &crane, folder.path().join("registry.log"));
        let process = Process::spawn(spawn.args(["registry", "serve", "--address", &address]))?;
        let registry = Self { crane, address, _process: process, _folder: folder };
        eventually(SOON, "the registry to listen", async || registry.run(&["catalog", &registry.address]).await)
            .await?;
        Ok(registry)
    }

    /// Runs crane.
    async fn run(&self, args: &[&str]) -> Result<String> {
        let mut command = Command::new(&self.crane);
        command.args(args);
        run(command).await
    }

    /// The parsed output of crane.
    async fn json(&self, command: &str, image: &str) -> Result<Value> {
        serde_json::from_str(&self.run(&[command, image]).await?).with_context(|| image.to_owned())
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn helm_installs_what_was_published_and_the_image_of_the_chart_is_in_the_registry() -> Result<()> {
    let control_plane = Rig::bare().namespace("linkerd").namespace(OPERATOR_NAMESPACE).start().await?;
    let registry = Registry::start().await?;
    let team = format!("{}/team", registry.address);
    let release = Release::new()?;
    release.write_image(&team)?;
    release.write_charts(&format!("{team}/linkerd-operator")).await?;
    let crane = format!("CRANE={}", registry.crane.display());
    release.make(&["publish", &crane, &format!("REGISTRY={team}")]).await?;

    // Each chart has the digest of its layout, also for Helm, whose own push differs in the time and in white space.
    for chart in [CRDS, OPERATOR] {
        let layout = unpack(&release.read(&format!("{chart}-{VERSION}-oci.tar"))?[..])?;
        let index: Value = serde_json::from_slice(&layout["index.json"])?;
        let expected = index["manifests"][0]["digest"].as_str().context("digest")?;
        let published = format!("{team}/charts/{chart}:{VERSION}");
        assert_eq!(registry.run(&["digest", &published]).await?.trim(), expected);
        let manifest = registry.json("manifest", &published).await?;
        let name = format!("{chart}-{VERSION}.tgz");
        let package = release.read(&name)?;
        for version in VERSIONS {
            let helm = Helm::new(version, &control_plane).await?;
            let folder = release.path(version);
            fs::create_dir_all(&folder)?;
            let (to, charts) = (folder.display().to_string(), format!("oci://{team}/charts/{chart}"));
            let pull = ["pull", &charts, "--version", VERSION, "--plain-http", "--destination", &to];
            let Ended { code, stdout, stderr } = helm.output(&pull).await?;
            ensure!(code == Some(0) && format!("{stdout}{stderr}").contains(expected), "{version}: {stdout}{stderr}");
            ensure!(fs::read(folder.join(&name))? == package, "{version} pulled other bytes");

            let pushed = format!("{}/{version}", registry.address);
            let file = release.path(&name).display().to_string();
            helm.run(&["push", &file, &format!("oci://{pushed}"), "--plain-http"]).await?;
            let pushed = format!("{pushed}/{chart}");
            let mut helms = registry.json("manifest", &format!("{pushed}:{VERSION}")).await?;
            let content = json!([{
                "mediaType": CONTENT_TYPE, "digest": format!("sha256:{}", digest(&package)), "size": package.len(),
            }]);
            assert_eq!((&manifest["layers"], &helms["layers"]), (&content, &content));
            let key = "org.opencontainers.image.created";
            ensure!(helms["annotations"][key].is_string(), "{helms}");
            assert_eq!(manifest["annotations"][key], CREATED[1]);
            helms["annotations"][key] = json!(CREATED[1]);
            assert_eq!(manifest["annotations"], helms["annotations"], "{version}");
            let mut configs = Vec::new();
            for (repository, manifest) in [(&published, &manifest), (&pushed, &helms)] {
                assert_eq!(manifest["config"]["mediaType"], CONFIG_TYPE);
                let repository = repository.trim_end_matches(&format!(":{VERSION}"));
                let blob = manifest["config"]["digest"].as_str().context("digest")?;
                configs.push(registry.json("blob", &format!("{repository}@{blob}")).await?);
            }
            assert_eq!(configs[0], configs[1], "{version}");
        }
    }

    for version in VERSIONS {
        let helm = Helm::new(version, &control_plane).await?;
        for (chart, values) in [(CRDS, "linkerdCRDs.install=true"), (OPERATOR, "replicas=2")] {
            let from = format!("oci://{team}/charts/{chart}");
            let install = ["install", chart, &from, "--version", VERSION, "--plain-http", "--set", values];
            helm.run(&[&install[..], &["--namespace", OPERATOR_NAMESPACE]].concat()).await?;
        }
        let path = "jsonpath={.spec.template.spec.containers[0].image}";
        let image =
            control_plane.kubectl(&["-n", OPERATOR_NAMESPACE, "get", "deployment", OPERATOR, "-o", path]).await?;
        assert_eq!(image, format!("{team}/linkerd-operator:{VERSION}"));
        registry.run(&["validate", "--remote", &image]).await?;
        let platforms = &registry.json("manifest", &image).await?["manifests"];
        assert_eq!(platforms[0]["platform"], json!({"os": "linux", "architecture": architecture()}));
        let config = registry.json("config", &format!("{image}-{}", architecture())).await?;
        assert_eq!(config["config"]["Labels"][LABEL], VERSION);
        for chart in [OPERATOR, CRDS] {
            helm.run(&["uninstall", chart, "--namespace", OPERATOR_NAMESPACE]).await?;
        }
    }
    Ok(())
}
