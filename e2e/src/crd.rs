//! Installs CustomResourceDefinitions from the repository, with the same command as a user.
//!
//! * In: a folder of the repository, or an absolute path, with a `kustomization.yaml`. Out: CRDs whose served versions all answer.

use std::{path::Path, time::Duration};

use anyhow::{Context, Result, ensure};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::{Api, Client};

use crate::{control_plane::ControlPlane, wait::eventually};

const DEADLINE: Duration = Duration::from_secs(60);

impl ControlPlane {
    /// Applies the folder (for example `crd/linkerd`) unless all its objects exist, and waits until its CRDs are
    /// established and served.
    pub async fn install_crds(&self, folder: &str) -> Result<()> {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().context("the repository has no root")?;
        let folder = root.join(folder).display().to_string();
        // Existing CRDs are left unchanged: on an existing cluster they belong to its owner.
        let names = match self.kubectl(&["get", "-k", &folder, "-o", "name"]).await {
            Ok(names) => names,
            Err(_) => self.kubectl(&["apply", "--server-side", "-k", &folder, "-o", "name"]).await?,
        };
        let client = self.client().await?;
        let definitions: Api<CustomResourceDefinition> = Api::all(client.clone());
        for name in names.lines().filter_map(|line| line.split_once("customresourcedefinition").map(|(_, name)| name)) {
            let name = name.rsplit('/').next().unwrap_or(name);
            eventually(DEADLINE, format_args!("{name} to be established"), async || {
                served(&client, &definitions.get(name).await?).await
            })
            .await?;
        }
        Ok(())
    }
}

async fn served(client: &Client, definition: &CustomResourceDefinition) -> Result<()> {
    let conditions = definition.status.as_ref().and_then(|status| status.conditions.as_ref());
    let established = conditions
        .is_some_and(|all| all.iter().any(|condition| condition.type_ == "Established" && condition.status == "True"));
    ensure!(established, "its conditions are {conditions:?}");
    // The condition Established is set shortly before the paths answer.
    for version in definition.spec.versions.iter().filter(|version| version.served) {
        let path = format!("/apis/{}/{}/{}?limit=1", definition.spec.group, version.name, definition.spec.names.plural);
        client.request_text(http::Request::get(path).body(Vec::new())?).await?;
    }
    Ok(())
}
