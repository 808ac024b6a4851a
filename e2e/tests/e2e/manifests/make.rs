//! The targets of `make` that change a cluster, and what they must not change.

use std::{collections::BTreeMap, time::Duration};

use anyhow::{Context, Result, ensure};
use e2e::{
    Rig,
    command::Ended,
    eventually,
    mesh::SOON,
    shipped::{in_repository, path_to_repository, remove_makes_variables},
};
use serde_json::{Value, json};
use tokio::process::Command;

use super::components::components;

const DEADLINE: Duration = Duration::from_secs(180);
/// The name of a LinkerdConfig with a finalizer that the operator would have to remove.
const RESTORING: &str = "restoring";

/// A rig that `make` changes.
struct MakeRig(Rig);

impl MakeRig {
    /// Runs make. Returns whether it succeeded, and its output.
    async fn make(&self, args: &[&str]) -> Result<(bool, String)> {
        let mut command = Command::new("make");
        command.current_dir(in_repository("")).args(args);
        command.arg(format!("KUBECTL={}", self.0.kubectl_path()?.display()));
        // The deployed kustomization must not be in the checkout, which other runs may use.
        let overlay = self.0.directory().join("overlay");
        tokio::fs::create_dir_all(&overlay).await?;
        command.arg(format!("OVERLAY={}", overlay.display()));
        command.arg(format!("OVERLAY_BASE={}", path_to_repository(&overlay)?));
        remove_makes_variables(&mut command);
        command.env("KUBECONFIG", self.0.kubeconfig()).env("HOME", self.0.directory());
        let Ended { code, stdout, stderr } = Ended::of(command, DEADLINE).await?;
        Ok((code == Some(0), stdout + &stderr))
    }

    async fn makes(&self, args: &[&str]) -> Result<String> {
        let (success, text) = self.make(args).await?;
        ensure!(success, "make {}: {text}", args.join(" "));
        Ok(text)
    }

    /// The UID and resourceVersion of each object in the namespace `linkerd`, except Events.
    async fn in_linkerd(&self) -> Result<BTreeMap<String, String>> {
        let kinds = self.0.kubectl(&["api-resources", "--namespaced", "--verbs=list", "-o", "name"]).await?;
        let kinds: Vec<_> = kinds.lines().filter(|kind| !kind.starts_with("events")).collect();
        let columns = "custom-columns=K:.kind,N:.metadata.name,U:.metadata.uid,V:.metadata.resourceVersion";
        let list = ["get", &kinds.join(","), "-n", "linkerd", "--no-headers", "-o", columns];
        let text = self.0.kubectl(&list).await?;
        let line = |line: &str| {
            let words: Vec<&str> = line.split_whitespace().collect();
            Some((format!("{}/{}", words.first()?, words.get(1)?), words.get(2..)?.join(" ")))
        };
        text.lines().map(|text| line(text).with_context(|| format!("{text:?}"))).collect()
    }

    async fn names(&self, args: &[&str]) -> Result<Vec<String>> {
        let text = self.0.kubectl(&[&["get", "-o", "name"], args].concat()).await?;
        Ok(text.lines().map(str::to_owned).collect())
    }

    async fn declare(&self, name: &str, finalizers: &[&str]) -> Result<()> {
        let config = json!({
            "apiVersion": "config.linkerd.io/v1alpha1", "kind": "LinkerdConfig",
            "metadata": {"name": name, "finalizers": finalizers}, "spec": {},
        });
        self.0.apply(&[config]).await
    }

    /// Applies overlays with the optional components, as a user does.
    async fn add_components(&self) -> Result<()> {
        let overlays = [
            ("config/default", vec!["webhook-server", "webhooks", "proxy-injector"]),
            ("config/control-plane", vec!["proxy-injector/control-plane", "multicluster/control-plane", "identity"]),
        ];
        for (folder, names) in overlays {
            self.0.apply(&self.0.shipped_with(folder, &components(&names)).await?).await?;
        }
        Ok(())
    }

    /// Checks that no object of the operator is left in the cluster.
    async fn has_no_operator(&self) -> Result<()> {
        let label = "app.kubernetes.io/part-of=linkerd-operator";
        let kinds = "namespaces,clusterroles,clusterrolebindings,roles,rolebindings,deployments,services,\
            serviceaccounts,poddisruptionbudgets,networkpolicies,\
            validatingadmissionpolicies,validatingadmissionpolicybindings,mutatingwebhookconfigurations,\
            validatingwebhookconfigurations";
        let left = self.names(&[kinds, "--all-namespaces", "-l", label]).await?;
        ensure!(left.is_empty(), "{left:?}");
        Ok(())
    }
}

/// Objects of a Linkerd installation that a faulty target could delete.
fn linkerds() -> Vec<Value> {
    let object = |version: &str, kind: &str, name: &str, mut rest: Value| {
        rest["metadata"] = json!({"labels": {"linkerd.io/control-plane-ns": "linkerd"}});
        super::object(version, kind, Some("linkerd"), name, rest)
    };
    let rbac = "rbac.authorization.k8s.io/v1";
    vec![
        object("v1", "ConfigMap", "linkerd-config", json!({"data": {"values": "{}"}})),
        object("v1", "Secret", "linkerd-identity-issuer", json!({"stringData": {"key": "secret"}})),
        object("v1", "ServiceAccount", "linkerd-destination", json!({})),
        object("v1", "Service", "linkerd-dst", json!({"spec": {"ports": [{"port": 8086}]}})),
        object("coordination.k8s.io/v1", "Lease", "linkerd-destination-endpoint-write", json!({"spec": {}})),
        object(rbac, "Role", "remote-discovery", json!({"rules": []})),
    ]
}

#[tokio::test(flavor = "multi_thread")]
async fn deploy_and_undeploy_do_not_change_linkerd() -> Result<()> {
    // The nodes report every Pod as running, whatever its image.
    let cluster = MakeRig(Rig::full().start().await?);
    let control_plane = &cluster.0;
    // Linkerd's chart has already installed one of the CRDs.
    let servers = format!("{}/../crd/linkerd/servers.yaml", env!("CARGO_MANIFEST_DIR"));
    control_plane.kubectl(&["create", "-f", &servers]).await?;
    let version = "jsonpath={.metadata.uid} {.metadata.resourceVersion}";
    let linkerds_definition = ["get", "crd", "servers.policy.linkerd.io", "-o", version];
    let output = cluster.makes(&["install"]).await?;
    ensure!(output.contains("servers.yaml: already installed, left unchanged"), "{output}");
    let before = control_plane.kubectl(&linkerds_definition).await?;

    // Linkerd is not installed.
    let output = cluster.makes(&["deploy", "WAIT=90s"]).await?;
    ensure!(
        output.contains("Namespace linkerd does not exist") && output.contains("successfully rolled out"),
        "{output}"
    );
    cluster.makes(&["undeploy", "WAIT=90s"]).await?;
    cluster.has_no_operator().await?;

    control_plane.create_namespaces(&["linkerd"]).await?;
    control_plane.apply(&linkerds()).await?;
    eventually(SOON, "the objects that every namespace gets", async || {
        let objects = cluster.in_linkerd().await?;
        ensure!(
            objects.contains_key("ServiceAccount/default") && objects.contains_key("ConfigMap/kube-root-ca.crt"),
            "{objects:?}"
        );
        Ok(())
    })
    .await?;
    let linkerd = cluster.in_linkerd().await?;
    let output = cluster.makes(&["deploy", "WAIT=90s"]).await?;
    ensure!(
        !output.contains("Namespace linkerd does not exist") && output.contains("successfully rolled out"),
        "{output}"
    );
    let roles = cluster
        .names(&["roles,rolebindings", "-n", "linkerd", "-l", "app.kubernetes.io/name=linkerd-operator"])
        .await?;
    assert_eq!(roles.len(), 6, "{roles:?}");
    let pods =
        cluster.names(&["pods", "-n", "linkerd-operator-system", "--field-selector=status.phase=Running"]).await?;
    assert_eq!(pods.len(), 2, "{pods:?}");
    // An upgrade without a change.
    cluster.makes(&["deploy", "WAIT=90s"]).await?;

    // The operator does not really run, so the finalizer is not removed.
    cluster.declare("plain", &[]).await?;
    cluster.declare(RESTORING, &["config.linkerd.io/restore-base"]).await?;
    for target in ["undeploy", "uninstall"] {
        let (success, output) = cluster.make(&[target, "WAIT=3s"]).await?;
        ensure!(!success && output.contains("LinkerdConfigs still exist after 3s"), "{output}");
        ensure!(output.contains("\"finalizers\":null"), "{output}");
    }
    assert_eq!(cluster.names(&["linkerdconfigs"]).await?, [format!("linkerdconfig.config.linkerd.io/{RESTORING}")]);
    assert_eq!(cluster.names(&["deployments", "-n", "linkerd-operator-system"]).await?.len(), 1);
    let no_finalizers = r#"{"metadata":{"finalizers":null}}"#;
    control_plane.kubectl(&["patch", "linkerdconfig", RESTORING, "--type=merge", "-p", no_finalizers]).await?;
    cluster.add_components().await?;
    cluster.makes(&["undeploy", "WAIT=90s"]).await?;
    // The garbage collector deletes what has an owner, such as EndpointSlices, some time after its owner.
    eventually(SOON, "only Linkerd's objects to be left", async || {
        cluster.has_no_operator().await?;
        let left = cluster.in_linkerd().await?;
        ensure!(left == linkerd, "{left:?} instead of {linkerd:?}");
        Ok(())
    })
    .await?;

    // An ExternalWorkload still uses one of the CRDs.
    let workload = json!({
        "apiVersion": "workload.linkerd.io/v1beta1", "kind": "ExternalWorkload",
        "metadata": {"name": "vm", "namespace": "default"},
        "spec": {"meshTLS": {"identity": "spiffe://a/vm", "serverName": "vm.example"}, "workloadIPs": [{"ip": "192.0.2.1"}]},
    });
    control_plane.apply(&[workload]).await?;
    let output = cluster.makes(&["uninstall"]).await?;
    ensure!(output.contains("externalworkloads.workload.linkerd.io still has objects"), "{output}");
    let left = cluster.names(&["crd"]).await?;
    let crd = |name: &str| format!("customresourcedefinition.apiextensions.k8s.io/{name}");
    assert_eq!(left, [crd("externalworkloads.workload.linkerd.io"), crd("servers.policy.linkerd.io")]);
    assert_eq!(control_plane.kubectl(&linkerds_definition).await?, before, "Linkerd's CRD must not change");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn targets_name_a_missing_prerequisite() -> Result<()> {
    let cluster = MakeRig(Rig::bare().start().await?);
    let (success, output) = cluster.make(&["deploy", "WAIT=1s", "IMAGE=example.com/operator:1"]).await?;
    ensure!(!success && output.contains("Does the cluster have the image example.com/operator:1?"), "{output}");
    let nowhere = "CERT_MANAGER_URL=http://127.0.0.1:9/cert-manager.yaml";
    let (success, output) = cluster.make(&["cert-manager", nowhere]).await?;
    ensure!(!success && output.contains("this needs the internet"), "{output}");
    let (success, output) = cluster.make(&["emojivoto", "WAIT=1s"]).await?;
    ensure!(!success && output.contains("the nodes pull the images"), "{output}");
    let opted_in = cluster.names(&["deployments", "-n", "emojivoto", "-l", "config.linkerd.io/reconcile=auto"]).await?;
    assert_eq!(opted_in.len(), 3, "{opted_in:?}");
    Ok(())
}
