//! An upgrade of Linkerd's release with older values, with the real Helm. Situation 18.

use std::{collections::HashMap, fs};

use anyhow::{Context, Result, ensure};
use e2e::{Rig, command::Ended, identity::MeshAuthority};

use super::{ReportedMesh, SOON, bundle, bundle_becomes, bundle_is, deployed, manager};
use crate::helm_charts::{Helm, VERSIONS};

/// As Linkerd's chart renders it.
const CONFIG_MAP: &str = "\
apiVersion: v1
kind: ConfigMap
metadata:
  name: linkerd-identity-trust-roots
  annotations: {release: {{ .Values.release | quote }}}
data:
  ca-bundle.crt: |-
    {{- .Values.roots | trim | nindent 4 }}
";

/// Helm 3 writes back what it finds different from its values. Helm 4 refuses to take the bundle from the operator.
#[tokio::test(flavor = "multi_thread")]
async fn an_upgrade_with_older_values_takes_no_declared_root_from_the_bundle_for_long_or_is_refused() -> Result<()> {
    for version in VERSIONS {
        upgraded(version).await.context(version)?;
    }
    Ok(())
}

/// Installs or upgrades the release of Linkerd with these roots in its values.
async fn release(rig: &Rig, version: &str, number: usize, roots: &[&MeshAuthority]) -> Result<Ended> {
    let (chart, file) = (rig.directory().join("control-plane"), rig.directory().join("roots"));
    fs::create_dir_all(chart.join("templates"))?;
    fs::write(chart.join("Chart.yaml"), "apiVersion: v2\nname: control-plane\nversion: 1.0.0\n")?;
    fs::write(chart.join("templates/roots.yaml"), CONFIG_MAP)?;
    fs::write(&file, roots.iter().map(|root| root.pem()).collect::<String>())?;
    let (chart, roots) = (chart.display().to_string(), format!("roots={}", file.display()));
    let (number, own) = (format!("release={number}"), ["--namespace=linkerd", "--install", "--set"]);
    let helm = Helm::new(version, rig).await?;
    helm.output(&[&["upgrade", "linkerd", &chart][..], &own, &[&number, "--set-file", &roots]].concat()).await
}

async fn upgraded(version: &str) -> Result<()> {
    let (rig, old, new) = (deployed().await?, MeshAuthority::root("old")?, MeshAuthority::root("new")?);
    let manager = manager(&rig, &rig.operator_kubeconfig().await?).await?;
    let installed = release(&rig, version, 1, &[&old]).await?;
    ensure!(installed.code == Some(0), "{}", installed.stderr);
    let mut mesh = ReportedMesh { rig, manager, old, proxies: HashMap::new() };
    let issuer = mesh.old.signs("issuer")?;
    mesh.put_proxy("web", &mesh.old.pem(), &[&issuer]).await?;
    mesh.permit().await?;
    mesh.put_trust("mesh", Some(&new.pem())).await?;
    mesh.enforce().await?;
    let both = format!("{}{}", mesh.old.pem(), new.pem());
    let both = both.trim_end();
    bundle_becomes(&mesh.rig, both).await?;
    mesh.expect_event("TrustAnchorAdded", ", which helm wrote before").await?;

    let upgraded = release(&mesh.rig, version, 2, &[&mesh.old]).await?;
    match version {
        "helm3" => {
            ensure!(upgraded.code == Some(0), "{}", upgraded.stderr);
            bundle_becomes(&mesh.rig, both).await?;
            let written = mesh.manager.metric("linkerd_operator_trust_bundle_writes_total", &[("result", "ok")]).await;
            ensure!(written == Some(2.0), "Helm has removed the root once: {written:?}");
        }
        _ => {
            ensure!(upgraded.code != Some(0) && upgraded.stderr.contains(".data.ca-bundle.crt"), "{}", upgraded.stderr);
            bundle_is(&mesh.rig, both).await?;
        }
    }
    // With the declared roots in the values, both do.
    let upgraded = release(&mesh.rig, version, 3, &[&mesh.old, &new]).await?;
    ensure!(upgraded.code == Some(0), "{}", upgraded.stderr);
    bundle_is(&mesh.rig, both).await?;
    mesh.reaches(SOON, "Spreading", &["BundleSynced=False/RootsDiffer"]).await?;
    ensure!(bundle(&mesh.rig).await? == both, "the bundle has changed");
    Ok(())
}
