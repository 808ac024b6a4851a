//! The kubectl plugin: the real Krew installs it from the archive, and the real kubectl runs it.

use std::{fs, path::Path};

use anyhow::{Context, Result, ensure};
use e2e::{archive::digest, binaries::Binaries, executable::operator_binary, image::architecture};
use serde_json::{Value, json};
use tokio::process::Command;

use super::{Release, VERSION, path_with, run};

const PLUGIN: &str = "linkerd-operator";

fn archive(architecture: &str) -> String {
    format!("{PLUGIN}-{VERSION}-linux-{architecture}.tar.gz")
}

/// Installs the plugin from an archive instead of from the address in the manifest.
async fn install(release: &Release, root: &Path, archive: &str) -> Result<String> {
    let krew = tokio::task::spawn_blocking(Binaries::find_or_build_krew).await??.tool("krew")?;
    let mut command = Command::new(krew);
    command.arg("install").arg("--manifest").arg(release.path(&format!("{PLUGIN}.yaml")));
    command.arg("--archive").arg(release.path(archive)).env("KREW_ROOT", root);
    run(command).await
}

#[tokio::test]
async fn krew_installs_the_plugin_from_the_archive_of_the_release_and_kubectl_runs_it() -> Result<()> {
    let release = Release::new()?;
    release.write_image("registry.example.com/team")?;
    let own = archive(architecture());
    release.make(&["release-cli", &format!("STATIC={}", operator_binary()?.display())]).await?;
    // The archive of another host with another content.
    let other = archive(if architecture() == "amd64" { "arm64" } else { "amd64" });
    fs::write(release.path(&other), "other")?;
    let manifest = async |address: &[&str]| -> Result<Value> {
        let url = "RELEASE_URL=https://example.com/v1";
        release.make(&[&["krew-manifest", url], address].concat()).await?;
        Ok(serde_yaml::from_slice(&release.read(&format!("{PLUGIN}.yaml"))?)?)
    };
    let linked = manifest(&["DOCS_URL=https://docs.example.com"]).await?;
    assert_eq!(linked["spec"]["homepage"], "https://docs.example.com");

    let manifest = manifest(&[]).await?;
    assert_eq!(manifest["spec"].get("homepage"), None);
    assert_eq!(manifest["spec"]["version"], format!("v{VERSION}"));
    let platforms = manifest["spec"]["platforms"].as_array().context("no platforms")?;
    assert_eq!(platforms.len(), 2, "{manifest}");
    for platform in platforms {
        let architecture = platform["selector"]["matchLabels"]["arch"].as_str().context("arch")?;
        let name = archive(architecture);
        assert_eq!(platform["selector"], json!({"matchLabels": {"os": "linux", "arch": architecture}}));
        assert_eq!(platform["uri"], format!("https://example.com/v1/{name}"));
        assert_eq!(platform["sha256"], digest(&release.read(&name)?));
    }

    let root = release.path("krew");
    let refusal = install(&release, &root, &other).await.unwrap_or_else(|error| format!("{error:#}"));
    ensure!(refusal.contains("checksum does not match"), "{refusal}");
    install(&release, &root, &own).await?;
    let installed = root.join(format!("store/{PLUGIN}/v{VERSION}"));
    let mut files: Vec<_> = fs::read_dir(&installed)?
        .map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()))
        .collect::<Result<_>>()?;
    files.sort();
    assert_eq!(files, ["LICENSE", "THIRD-PARTY-NOTICES", PLUGIN]);

    let kubectl = tokio::task::spawn_blocking(Binaries::find_or_build).await??.tool("kubectl")?;
    let mut command = Command::new(kubectl);
    command.args([PLUGIN, "version", "-o", "json"]).env("PATH", path_with(Some(&root.join("bin"))));
    let version: Value = serde_json::from_str(&run(command).await?)?;
    assert_eq!(version["version"], VERSION);
    Ok(())
}
