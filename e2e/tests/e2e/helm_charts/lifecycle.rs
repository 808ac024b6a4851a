//! The life of a release, on a cluster with simulated nodes: installation, upgrade, rollback, removal, and what keeps a
//! CRD from losing a stored version.

use anyhow::{Result, ensure};
use e2e::{Options, Rig, command::Ended, eventually, mesh::SOON, shipped::OPERATOR_NAMESPACE};
use serde_json::{Value, json};
use tokio::process::Command;

use super::{CRDS, Helm, IMAGE, OPERATOR, copy, path};

/// The command of docs/src/install/helm.md.
const NAMESPACE_LABELS: [&str; 4] = [
    "pod-security.kubernetes.io/enforce=restricted",
    "pod-security.kubernetes.io/audit=restricted",
    "pod-security.kubernetes.io/warn=restricted",
    "config.linkerd.io/admission-webhooks=disabled",
];
const CONFIG: &str = "linkerdconfigs.config.linkerd.io/mesh";
const WORKLOAD: &str = "externalworkloads.workload.linkerd.io/vm";

/// A rig with the namespaces of both releases, and Helm.
struct ReleaseRig {
    rig: Rig,
    version: &'static str,
}

// === impl ReleaseRig ===

impl ReleaseRig {
    async fn start(version: &'static str, options: Options) -> Result<Self> {
        let rig = Rig::bare().options(options).namespace("linkerd").namespace(OPERATOR_NAMESPACE).start().await?;
        rig.kubectl(&[&["label", "namespace", OPERATOR_NAMESPACE], &NAMESPACE_LABELS[..]].concat()).await?;
        Ok(Self { rig, version })
    }

    async fn helm(&self) -> Result<Helm<'_>> {
        Helm::new(self.version, &self.rig).await
    }

    /// Runs `helm VERB RELEASE CHART`, and waits for the Pods.
    async fn release(&self, verb: &str, release: &str, chart: &str, args: &[&str]) -> Result<()> {
        let mut all = vec![verb, release, chart, "--namespace", OPERATOR_NAMESPACE, "--wait", "--timeout=120s"];
        all.extend(args);
        self.helm().await?.run(&all).await.map(drop)
    }

    /// What kubectl prints for the difference between a release and the cluster.
    async fn difference(&self, release: &str) -> Result<String> {
        let manifest = self.helm().await?.run(&["get", "manifest", release, "--namespace", OPERATOR_NAMESPACE]).await?;
        let file = self.rig.directory().join("manifest.yaml");
        tokio::fs::write(&file, manifest).await?;
        let mut command = Command::new(self.rig.kubectl_path()?);
        command.args(["diff", "--server-side", "--force-conflicts", "-f"]).arg(&file);
        command.env("KUBECONFIG", self.rig.kubeconfig()).env("HOME", self.rig.directory());
        let Ended { code, stdout, stderr } = Ended::of(command, SOON).await?;
        // 1 means that there is a difference.
        ensure!(code.is_some_and(|code| code < 2), "kubectl diff: {stderr}");
        ensure!((code == Some(0)) == stdout.is_empty(), "{code:?}: {stdout}");
        Ok(stdout)
    }

    async fn get(&self, object: &str) -> Result<Value> {
        self.rig.get(&[object]).await
    }

    /// Creates a LinkerdConfig and an ExternalWorkload. Returns their UIDs and specs.
    async fn store(&self) -> Result<Vec<Value>> {
        // Both exist. This waits until they are served.
        for folder in ["crd", "crd/linkerd"] {
            self.rig.install_crds(folder).await?;
        }
        let spec = json!({"mode": "Observe", "proxy": {"accessLog": "apache"}});
        let config = json!({"apiVersion": "config.linkerd.io/v1alpha1", "kind": "LinkerdConfig", "metadata": {"name": "mesh"}, "spec": spec});
        let workload = json!({
            "apiVersion": "workload.linkerd.io/v1beta1", "kind": "ExternalWorkload",
            "metadata": {"name": "vm", "namespace": "default"},
            "spec": {"meshTLS": {"identity": "spiffe://a/vm", "serverName": "vm.example"}, "workloadIPs": [{"ip": "192.0.2.1"}]},
        });
        self.rig.apply(&[config, workload]).await?;
        self.stored().await
    }

    async fn stored(&self) -> Result<Vec<Value>> {
        let mut seen = Vec::new();
        for object in [CONFIG, WORKLOAD] {
            let object = self.get(object).await?;
            seen.push(json!({"uid": object["metadata"]["uid"], "spec": object["spec"]}));
        }
        Ok(seen)
    }

    async fn image(&self) -> Result<String> {
        let path = "jsonpath={.spec.template.spec.containers[0].image}";
        self.rig.kubectl(&["-n", OPERATOR_NAMESPACE, "get", "deployment", OPERATOR, "-o", path]).await
    }

    /// The objects of the operator that are in the cluster, except CRDs.
    async fn objects(&self) -> Result<Vec<String>> {
        let kinds = "clusterroles,clusterrolebindings,roles,rolebindings,deployments,services,serviceaccounts,\
            poddisruptionbudgets,validatingadmissionpolicies,validatingadmissionpolicybindings";
        let label = "app.kubernetes.io/part-of=linkerd-operator";
        let text = self.rig.kubectl(&["get", kinds, "-A", "-l", label, "-o", "name"]).await?;
        Ok(text.lines().map(str::to_owned).collect())
    }

    /// The whole life: a previous version, this one, the previous one again, and nothing.
    async fn lives(&self) -> Result<()> {
        let folder = self.rig.directory();
        let (before, before_crds) = (copy(OPERATOR, "0.0.9", folder).await?, copy(CRDS, "0.0.9", folder).await?);
        self.release("install", CRDS, &before_crds, &["--set", "linkerdCRDs.install=true"]).await?;
        let image = ["--set", "image.repository=registry.example.com/linkerd-operator"];
        self.release("install", OPERATOR, &before, &image).await?;
        assert_eq!(self.image().await?, "registry.example.com/linkerd-operator:0.0.9");
        let pods = ["-n", OPERATOR_NAMESPACE, "get", "pods", "--field-selector=status.phase=Running", "-o", "name"];
        assert_eq!(self.rig.kubectl(&pods).await?.lines().count(), 2);
        for release in [CRDS, OPERATOR] {
            assert_eq!(self.difference(release).await?, "", "{release}");
        }
        // The comparison finds a difference.
        let scale = ["-n", OPERATOR_NAMESPACE, "scale", "deployment", OPERATOR, "--replicas=3"];
        self.rig.kubectl(&scale).await?;
        ensure!(self.difference(OPERATOR).await?.contains("replicas"), "no difference");
        self.rig.kubectl(&[&scale[..5], &["--replicas=2"]].concat()).await?;
        let stored = self.store().await?;

        self.release("upgrade", CRDS, &path(CRDS), &["--reuse-values"]).await?;
        self.release("upgrade", OPERATOR, &path(OPERATOR), &["--reuse-values"]).await?;
        let version = env!("CARGO_PKG_VERSION");
        assert_eq!(self.image().await?, format!("registry.example.com/linkerd-operator:{version}"));
        let crd = self.get("crd/linkerdconfigs.config.linkerd.io").await?;
        assert_eq!(crd["metadata"]["labels"]["app.kubernetes.io/version"], version);
        assert_eq!(self.stored().await?, stored);
        for release in [CRDS, OPERATOR] {
            assert_eq!(self.difference(release).await?, "", "{release}");
        }

        // A job that is off loses its permissions, and gets them back.
        let whole = self.objects().await?;
        let off =
            [&image[..], &["--set", "jobs.linkerdConfig.enabled=false,jobs.externalWorkload.enabled=false"]].concat();
        self.release("upgrade", OPERATOR, &path(OPERATOR), &off).await?;
        let may =
            async |verb: &str, resource: &str| self.rig.may(OPERATOR_NAMESPACE, OPERATOR, verb, resource, "-A").await;
        ensure!(!may("patch", "deployments.apps").await && !may("create", "endpointslices.discovery.k8s.io").await);
        ensure!(may("list", "nodes").await);
        self.release("upgrade", OPERATOR, &path(OPERATOR), &image).await?;
        ensure!(may("patch", "deployments.apps").await && may("create", "endpointslices.discovery.k8s.io").await);
        assert_eq!(self.objects().await?, whole);

        self.keeps_the_certificate(&image).await?;
        let rollback = ["rollback", OPERATOR, "1", "--namespace", OPERATOR_NAMESPACE, "--wait", "--timeout=120s"];
        self.helm().await?.run(&rollback).await?;
        assert_eq!(self.image().await?, "registry.example.com/linkerd-operator:0.0.9");
        assert_eq!(self.difference(OPERATOR).await?, "");
        assert_eq!(self.stored().await?, stored);

        self.helm().await?.run(&["uninstall", OPERATOR, "--namespace", OPERATOR_NAMESPACE, "--wait"]).await?;
        assert_eq!(self.objects().await?, [""; 0]);
        let output = self.helm().await?.run(&["uninstall", CRDS, "--namespace", OPERATOR_NAMESPACE]).await?;
        ensure!(output.contains("linkerdconfigs.config.linkerd.io"), "Helm does not say what it keeps: {output}");
        assert_eq!(self.stored().await?, stored);
        // The release is installed again over the CRDs that it kept.
        self.release("install", CRDS, &path(CRDS), &["--set", "linkerdCRDs.install=true"]).await?;
        assert_eq!(self.stored().await?, stored);
        Ok(())
    }

    /// An upgrade keeps the certificate authority that the operator writes into its webhook configurations.
    async fn keeps_the_certificate(&self, image: &[&str]) -> Result<()> {
        let webhook = "validatingwebhookconfigurations/linkerd-operator-validation";
        let authority = json!("Q0E=");
        let enabled = [image, &["--set", "jobs.validation.enabled=true"]].concat();
        self.release("upgrade", OPERATOR, &path(OPERATOR), &enabled).await?;
        let patch = json!([{"op": "add", "path": "/webhooks/0/clientConfig/caBundle", "value": authority}]).to_string();
        self.rig.kubectl(&["patch", webhook, "--type=json", "-p", &patch]).await?;
        let other = [&enabled[..], &["--set", "jobs.validation.failurePolicy=Fail"]].concat();
        self.release("upgrade", OPERATOR, &path(OPERATOR), &other).await?;
        let registered = &self.get(webhook).await?["webhooks"][0];
        assert_eq!(
            (&registered["failurePolicy"], &registered["clientConfig"]["caBundle"]),
            (&json!("Fail"), &authority)
        );
        assert_eq!(self.difference(OPERATOR).await?, "");
        Ok(())
    }

    /// A CRD cannot lose a version in which objects are stored.
    async fn keeps_stored_versions(&self) -> Result<()> {
        let name = "crd/linkerdconfigs.config.linkerd.io";
        self.release("install", CRDS, &path(CRDS), &["--set", "linkerdCRDs.install=true"]).await?;
        let stored = self.store().await?;
        let before = self.get(name).await?;
        assert_eq!(before["status"]["storedVersions"], json!(["v1alpha1"]));
        let other = copy(CRDS, "0.0.1", self.rig.directory()).await?;
        let file = format!("{other}/templates/linkerdconfigs.yaml");
        let text = tokio::fs::read_to_string(&file).await?;
        ensure!(text.contains("\n    name: v1alpha1\n"), "{text}");
        tokio::fs::write(&file, text.replace("\n    name: v1alpha1\n", "\n    name: v1alpha0\n")).await?;
        let downgrade = ["upgrade", CRDS, &other, "--namespace", OPERATOR_NAMESPACE, "--reuse-values"];
        let refusal = self.helm().await?.fails(&downgrade).await?;
        println!("{}: {refusal}", self.version);
        for part in ["status.storedVersions", "v1alpha1", "spec.versions"] {
            ensure!(refusal.contains(part), "{part} is missing in: {refusal}");
        }
        assert_eq!(self.get(name).await?["spec"], before["spec"]);
        assert_eq!(self.stored().await?, stored);
        // The release recovers with the next upgrade.
        self.release("upgrade", CRDS, &path(CRDS), &["--reuse-values"]).await?;
        assert_eq!(self.difference(CRDS).await?, "");
        assert_eq!(self.stored().await?, stored);
        Ok(())
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn helm_3_installs_upgrades_rolls_back_and_uninstalls_the_charts() -> Result<()> {
    ReleaseRig::start("helm3", Options::full()).await?.lives().await
}

#[tokio::test(flavor = "multi_thread")]
async fn helm_4_installs_upgrades_rolls_back_and_uninstalls_the_charts() -> Result<()> {
    ReleaseRig::start("helm4", Options::full()).await?.lives().await
}

#[tokio::test(flavor = "multi_thread")]
async fn helm_3_cannot_remove_a_version_of_the_crd_in_which_objects_are_stored() -> Result<()> {
    ReleaseRig::start("helm3", Options::default()).await?.keeps_stored_versions().await
}

#[tokio::test(flavor = "multi_thread")]
async fn helm_4_cannot_remove_a_version_of_the_crd_in_which_objects_are_stored() -> Result<()> {
    ReleaseRig::start("helm4", Options::default()).await?.keeps_stored_versions().await
}

/// What the page about Helm warns of: the API server protects versions, and not fields.
#[tokio::test(flavor = "multi_thread")]
async fn an_older_crd_hides_a_field_that_it_does_not_have_and_the_next_write_removes_it() -> Result<()> {
    let cluster = ReleaseRig::start("helm4", Options::default()).await?;
    cluster.release("install", CRDS, &path(CRDS), &["--set", "linkerdCRDs.install=true"]).await?;
    cluster.store().await?;
    let older = copy(CRDS, "0.0.1", cluster.rig.directory()).await?;
    let file = format!("{older}/templates/linkerdconfigs.yaml");
    let text = tokio::fs::read_to_string(&file).await?;
    ensure!(text.matches("\n                  accessLog:\n").count() == 1, "{text}");
    tokio::fs::write(&file, text.replace("\n                  accessLog:\n", "\n                  removed:\n")).await?;
    let shows = async |field: Value| {
        eventually(SOON, format_args!("accessLog to be {field}"), async || {
            let config = cluster.get(CONFIG).await?;
            ensure!(config["spec"]["proxy"]["accessLog"] == field, "{config}");
            Ok(())
        })
        .await
    };
    let upgrade = async |chart: &str| cluster.release("upgrade", CRDS, chart, &["--reuse-values"]).await;
    upgrade(&older).await?;
    shows(Value::Null).await?;
    // Without a write, the newer CRD shows the field again.
    upgrade(&path(CRDS)).await?;
    shows(json!("apache")).await?;
    upgrade(&older).await?;
    shows(Value::Null).await?;
    cluster.rig.kubectl(&["label", CONFIG, "written=true"]).await?;
    upgrade(&path(CRDS)).await?;
    // The field is shown to be served, and the stored one is gone.
    eventually(SOON, "the newer CRD to be served", async || {
        let patch = json!({"spec": {"proxy": {"accessLog": "json"}}}).to_string();
        cluster.rig.kubectl(&["patch", CONFIG, "--type=merge", "--dry-run=server", "-p", &patch]).await?;
        let output = cluster.rig.kubectl(&["explain", "linkerdconfig.spec.proxy.accessLog"]).await?;
        ensure!(output.contains("accessLog"), "{output}");
        Ok(())
    })
    .await?;
    shows(Value::Null).await
}

/// From kustomize to Helm: Helm takes over the objects, and deletes none of them.
async fn takes_over(version: &'static str, flags: &[&str]) -> Result<()> {
    let cluster = ReleaseRig::start(version, Options::full()).await?;
    let control_plane = &cluster.rig;
    control_plane.install_crds("crd/linkerd").await?;
    control_plane.install_crds("crd").await?;
    for folder in ["config/default", "config/control-plane"] {
        control_plane.apply_folder(folder).await?;
    }
    let stored = cluster.store().await?;
    let uids = async || -> Result<String> {
        let columns = "custom-columns=K:.kind,N:.metadata.name,U:.metadata.uid";
        let kinds = "clusterroles,roles,deployments,services,serviceaccounts,validatingadmissionpolicies";
        let label = "app.kubernetes.io/part-of=linkerd-operator";
        control_plane.kubectl(&["get", kinds, "-A", "-l", label, "-o", columns]).await
    };
    let before = uids().await?;
    let values: Vec<&str> = IMAGE.iter().flat_map(|value| ["--set", value]).collect();
    let chart = path(OPERATOR);
    let install = [&["install", OPERATOR, &chart, "--namespace", OPERATOR_NAMESPACE], &values[..]].concat();
    let refusal = cluster.helm().await?.fails(&install).await?;
    ensure!(refusal.contains("cannot be imported into the current release"), "{refusal}");
    cluster.release("install", CRDS, &path(CRDS), flags).await?;
    cluster.release("install", OPERATOR, &path(OPERATOR), &[flags, &values].concat()).await?;
    assert_eq!(cluster.stored().await?, stored);
    assert_eq!(uids().await?, before);
    for release in [CRDS, OPERATOR] {
        assert_eq!(cluster.difference(release).await?, "", "{release}");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn helm_3_takes_over_an_installation_of_kustomize() -> Result<()> {
    takes_over("helm3", &["--take-ownership"]).await
}

#[tokio::test(flavor = "multi_thread")]
async fn helm_4_takes_over_an_installation_of_kustomize() -> Result<()> {
    takes_over("helm4", &["--take-ownership", "--force-conflicts"]).await
}
