//! The packages of the charts are those of `helm package`, and the same in each build.

use std::{collections::BTreeMap, fs, path::Path};

use anyhow::{Result, ensure};
use flate2::read::GzDecoder;
use serde_json::Value;

use super::{Release, VERSION, unpack};
use crate::helm_charts::{CRDS, Helm, OPERATOR, VERSIONS, path};

fn files(package: &Path) -> Result<BTreeMap<String, Vec<u8>>> {
    unpack(GzDecoder::new(fs::File::open(package)?))
}

#[tokio::test]
async fn a_package_has_the_files_that_helm_packs_and_renders_as_the_folder_does() -> Result<()> {
    let control_plane = e2e::shared().await?;
    let release = Release::new()?;
    release.write_charts("").await?;
    for version in VERSIONS {
        let helm = Helm::new(version, control_plane).await?;
        let destination = release.path(version);
        let to = destination.display().to_string();
        for chart in [CRDS, OPERATOR] {
            helm.run(&["package", &path(chart), "--destination", &to]).await?;
            let name = format!("{chart}-{VERSION}.tgz");
            let ours = release.path(&name);
            let (mut packed, mut expected) = (files(&ours)?, files(&destination.join(&name))?);
            // Helm writes Chart.yaml without its comments.
            let file = format!("{chart}/Chart.yaml");
            let parse = |text: Option<Vec<u8>>| serde_yaml::from_slice::<Value>(&text.unwrap_or_default());
            let metadata = [&mut packed, &mut expected].map(|files| files.remove(&file)).map(parse);
            let [ours_parsed, helms] = metadata;
            let ours_parsed = ours_parsed?;
            ensure!(ours_parsed["name"] == chart, "{ours_parsed}");
            assert_eq!(ours_parsed, helms?, "{chart}: {version}");
            assert_eq!(packed.keys().collect::<Vec<_>>(), expected.keys().collect::<Vec<_>>(), "{chart}: {version}");
            for (file, content) in &packed {
                ensure!(expected.get(file) == Some(content), "{version}: {file} differs");
            }

            let ours = ours.display().to_string();
            helm.run(&["lint", "--strict", &ours]).await?;
            for what in ["chart", "values"] {
                let show = async |chart: &str| helm.run(&["show", what, chart]).await;
                let (package, folder) = (show(&ours).await?, show(&path(chart)).await?);
                ensure!(
                    !package.trim().is_empty() && package == folder,
                    "{version}: helm show {what} {chart}: {package}"
                );
            }
            let template = async |chart: &str| {
                let values = "image.repository=registry.example.com/a";
                let mut args = vec!["template", OPERATOR, chart, "--kube-version=v1.36.3"];
                if chart.contains(&format!("/{OPERATOR}")) && !chart.contains(CRDS) {
                    args.extend(["--set", values]);
                }
                helm.run(&args).await
            };
            let (package, folder) = (template(&ours).await?, template(&path(chart)).await?);
            ensure!(package.contains("kind: ") && package == folder, "{version}: {chart} renders differently");
        }
    }
    Ok(())
}

#[tokio::test]
async fn two_builds_of_the_charts_are_the_same_bytes() -> Result<()> {
    let (first, second) = (Release::new()?, Release::new()?);
    for release in [&first, &second] {
        release.write_charts("registry.example.com/team/linkerd-operator").await?;
    }
    let mut count = 0;
    for entry in fs::read_dir(first.folder.path())? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        ensure!(first.read(&name)? == second.read(&name)?, "{name} differs");
        count += 1;
    }
    assert_eq!(count, 4);
    let values = &files(&first.path(&format!("{OPERATOR}-{VERSION}.tgz")))?[&format!("{OPERATOR}/values.yaml")];
    let repository = fs::read_to_string(format!("{}/values.yaml", path(OPERATOR)))?
        .replace("  repository: \"\"", "  repository: registry.example.com/team/linkerd-operator");
    ensure!(values == repository.as_bytes(), "more than the repository of the image changed");
    Ok(())
}
