//! The manager with the permissions and the environment that a release gives it, in namespaces of other names.

use anyhow::{Context, Result, ensure};
use e2e::{Manager, Rig};
use serde_json::{Value, json};

use super::{CRDS, Helm, IMAGE, OPERATOR, path};
use crate::manifests::{
    components::{lacks_nothing, start_manager},
    of_kind,
};

pub(super) const NAMESPACE: &str = "mesh-operator";
pub(super) const LINKERD: &str = "mesh";

/// A rig with both releases. kube-controller-manager does not run, so no Pod starts.
pub(super) struct OtherNamesRig {
    pub(super) rig: Rig,
    pub(super) objects: Vec<Value>,
}

// === impl OtherNamesRig ===

impl OtherNamesRig {
    pub(super) async fn start(values: &[&str]) -> Result<Self> {
        let rig = Rig::bare().namespace(NAMESPACE).namespace(LINKERD).namespace("shop").namespace("other");
        let rig = rig.start().await?;
        let helm = Helm::new("helm4", &rig).await?;
        helm.run(&["install", CRDS, &path(CRDS), "--namespace", NAMESPACE, "--set=linkerdCRDs.install=true"]).await?;
        let linkerds = format!("controlPlane.namespace={LINKERD}");
        let values = [&IMAGE[..], &[linkerds.as_str()], values].concat();
        let chart = path(OPERATOR);
        let mut install = vec!["install", OPERATOR, &chart, "--namespace", NAMESPACE];
        install.extend(values.iter().flat_map(|value| ["--set", value]));
        helm.run(&install).await?;
        rig.install_crds("crd").await?;
        let objects = helm.template(OPERATOR, NAMESPACE, &values).await?;
        Ok(Self { rig, objects })
    }

    async fn manager(&self, deployment: &str) -> Result<Manager> {
        self.manager_with(deployment, &[]).await
    }

    pub(super) async fn manager_with(&self, deployment: &str, flags: &[String]) -> Result<Manager> {
        // The harness passes the default of this flag, and a flag takes precedence over a variable.
        let variable = json!({"name": "LINKERD_OPERATOR_CONTROLLER_NAMESPACE", "value": LINKERD});
        for object in of_kind(&self.objects, "Deployment") {
            let env = object["spec"]["template"]["spec"]["containers"][0]["env"].as_array().context("env")?;
            ensure!(env.contains(&variable), "{env:?}");
        }
        let flags = [&[format!("--controller-namespace={LINKERD}")], flags].concat();
        start_manager(&self.rig, &self.objects, deployment, NAMESPACE, &flags).await
    }

    async fn may(&self, account: &str, verb: &str, resource: &str, namespace: &str) -> bool {
        self.rig.may(NAMESPACE, account, verb, resource, &format!("--namespace={namespace}")).await
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_release_in_other_namespaces_gives_each_deployment_the_permissions_that_it_needs() -> Result<()> {
    let values =
        ["jobs.destination.separate=true", "jobs.destination.multicluster=true", "jobs.externalWorkload.separate=true"];
    let cluster = OtherNamesRig::start(&values).await?;
    for deployment in [OPERATOR, "linkerd-operator-destination", "linkerd-operator-external-workload"] {
        lacks_nothing(&mut cluster.manager(deployment).await?).await.with_context(|| deployment.to_owned())?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn permissions_to_write_can_be_limited_to_namespaces() -> Result<()> {
    let cluster = OtherNamesRig::start(&[
        "jobs.linkerdConfig.rollouts.namespaces={shop}",
        "jobs.externalWorkload.namespaces={shop}",
    ])
    .await?;
    for (verb, resource, expected) in [
        ("patch", "deployments.apps", false),
        ("patch", "statefulsets.apps", false),
        ("create", "pods/eviction", false),
        ("create", "endpointslices.discovery.k8s.io", false),
        ("delete", "endpointslices.discovery.k8s.io", false),
        ("list", "pods", true),
        ("watch", "deployments.apps", true),
        ("list", "endpointslices.discovery.k8s.io", true),
    ] {
        ensure!(cluster.may(OPERATOR, verb, resource, "shop").await, "{verb} {resource} in shop");
        let may = cluster.may(OPERATOR, verb, resource, "other").await;
        ensure!(may == expected, "{verb} {resource} in another namespace is {may}");
    }
    lacks_nothing(&mut cluster.manager(OPERATOR).await?).await
}
