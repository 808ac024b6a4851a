//! `linkerd-operator trust`, run as a user runs it, against a real API server without the operator.

use std::{fs, path::Path, time::Duration};

use anyhow::{Context, Result, ensure};
use e2e::{ControlPlane, TestNamespace, command::Ended, identity::MeshAuthority};
use k8s_openapi::api::core::v1::{ConfigMap, Pod, Secret};
use kube::{
    Api,
    api::{Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};
use tempfile::TempDir;

/// The namespace of a control plane, which is also that of its workloads.
struct TrustMesh {
    control_plane: &'static ControlPlane,
    namespace: TestNamespace,
    folder: TempDir,
}

impl TrustMesh {
    /// Creates a mesh with this root in its bundle, and an issuer that it signed, in the files of cert-manager.
    async fn create(root: &MeshAuthority) -> Result<Self> {
        let control_plane = e2e::shared().await?;
        let namespace = TestNamespace::create(&control_plane.client().await?, "trust").await?;
        let mesh = Self { control_plane, namespace, folder: tempfile::tempdir()? };
        mesh.put_bundle(&root.pem()).await?;
        let issuer = root.signs("identity.linkerd.cluster.local")?;
        mesh.put_issuer(&issuer.pem(), &issuer.key_pem()).await?;
        Ok(mesh)
    }

    async fn apply<K>(&self, name: &str, object: &Value) -> Result<()>
    where
        K: kube::Resource<Scope = kube::core::NamespaceResourceScope>
            + Clone
            + serde::de::DeserializeOwned
            + std::fmt::Debug,
        K::DynamicType: Default,
    {
        let api: Api<K> = self.namespace.api();
        api.patch(name, &PatchParams::apply("e2e").force(), &Patch::Apply(object)).await?;
        Ok(())
    }

    async fn put_bundle(&self, bundle: &str) -> Result<()> {
        let name = "linkerd-identity-trust-roots";
        let object = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {"ca-bundle.crt": bundle}});
        self.apply::<ConfigMap>(name, &object).await
    }

    async fn put_issuer(&self, certificates: &str, key: &str) -> Result<()> {
        let name = "linkerd-identity-issuer";
        let object = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "type": "kubernetes.io/tls",
            "stringData": {"tls.crt": certificates, "tls.key": key}});
        self.apply::<Secret>(name, &object).await
    }

    /// Creates a Pod with these anchors in the environment of its proxy.
    async fn put_pod(&self, name: &str, anchors: &str) -> Result<()> {
        let env = json!([{"name": "LINKERD2_PROXY_LOG", "value": "warn"}, {"name": "LINKERD2_PROXY_IDENTITY_TRUST_ANCHORS", "value": anchors}]);
        let pod = json!({
            "metadata": {"name": name, "labels": {"linkerd.io/control-plane-ns": self.namespace.name()}},
            "spec": {"initContainers": [{"name": "linkerd-proxy", "image": "proxy", "env": env, "restartPolicy": "Always"}],
                "containers": [{"name": "app", "image": "app"}]},
        });
        let pods: Api<Pod> = self.namespace.api();
        pods.create(&PostParams::default(), &serde_json::from_value(pod)?).await?;
        Ok(())
    }

    async fn trust(&self, args: &[&str]) -> Result<Ended> {
        let kubeconfig = self.control_plane.kubeconfig().display().to_string();
        let args = [&["trust", "--namespace", self.namespace.name(), "--kubeconfig", &kubeconfig], args].concat();
        Ended::operator(&args, Duration::from_secs(30)).await
    }

    /// Returns the exit code and the document.
    async fn report(&self) -> Result<(Option<i32>, Value)> {
        let ended = self.trust(&["-o", "json"]).await?;
        Ok((ended.code, serde_json::from_str(&ended.stdout).with_context(|| ended.stderr)?))
    }

    /// Expects this exit code, and a next step with this text.
    async fn expect(&self, code: i32, next: &str) -> Result<Value> {
        let (found, report) = self.report().await?;
        let sentence = report["nextStep"]["sentence"].as_str().unwrap_or_default();
        ensure!(found == Some(code) && sentence.contains(next), "{found:?}: {report:#}");
        Ok(report)
    }

    fn path(&self, name: &str) -> Result<String> {
        self.folder.path().join(name).to_str().map(str::to_owned).context("a path is not UTF-8")
    }

    /// Makes a new root, an issuer, and a bridge from the old root. Returns the folder.
    async fn new_root(&self, old: &MeshAuthority) -> Result<String> {
        fs::write(self.path("old.crt")?, old.pem())?;
        fs::write(self.path("old.key")?, old.key_pem())?;
        let folder = self.path("pki")?;
        let args =
            ["trust", "new", &folder, "--bridge-from", &self.path("old.crt")?, "--old-key", &self.path("old.key")?];
        let ended = Ended::operator(&args, Duration::from_secs(30)).await?;
        ensure!(ended.code == Some(0), "{}", ended.stderr);
        ensure!(!ended.stdout.contains("PRIVATE KEY"), "{}", ended.stdout);
        Ok(folder)
    }
}

fn read(folder: &str, name: &str) -> Result<String> {
    fs::read_to_string(Path::new(folder).join(name)).with_context(|| format!("no {name}"))
}

#[tokio::test]
async fn a_root_is_replaced_over_a_bridge_and_each_step_is_told() -> Result<()> {
    let old = MeshAuthority::root("root.linkerd.cluster.local")?;
    let mesh = TrustMesh::create(&old).await?;
    mesh.put_pod("web-1", &old.pem()).await?;
    mesh.put_pod("web-2", &old.pem()).await?;
    mesh.expect(0, "nothing to do").await?;

    let folder = mesh.new_root(&old).await?;
    mesh.put_bundle(&read(&folder, "ca-bundle.crt")?).await?;
    let report = mesh.expect(0, "With a bridge nothing has to restart").await?;
    assert_eq!((&report["workloadsBehind"], &report["behind"][1]["name"]), (&json!(2), &json!("web-2")));
    assert_eq!(report["behind"][1]["refuses"], false);

    mesh.put_issuer(&read(&folder, "issuer.crt")?, &read(&folder, "issuer.key")?).await?;
    mesh.expect(0, "wait until all proxies have renewed their certificates, at the latest in 24 h; then remove root.linkerd.cluster.local (").await?;

    mesh.put_bundle(&read(&folder, "ca.crt")?).await?;
    mesh.put_pod("web-3", &read(&folder, "ca.crt")?).await?;
    let report = mesh.expect(0, "nothing is urgent: 2 proxies know only an older root").await?;
    let trusted: Vec<_> =
        report["roots"].as_array().context("no roots")?.iter().map(|root| &root["trustedBy"]).collect();
    assert_eq!(trusted, [&json!(1), &json!(2)], "the newest root is the first");
    assert_eq!(report["proxies"]["refusing"], 0);

    // Without the bridge.
    let issuer = read(&folder, "issuer.crt")?;
    let end = "-----END CERTIFICATE-----\n";
    let (first, _) = issuer.split_once(end).context("no certificate")?;
    mesh.put_issuer(&format!("{first}{end}"), &read(&folder, "issuer.key")?).await?;
    let report = mesh.expect(1, "restart these workloads: their proxies refuse new certificates").await?;
    assert_eq!((&report["verdict"], &report["proxies"]["refusing"]), (&json!("Broken"), &json!(2)));
    let text = mesh.trust(&[]).await?;
    ensure!(text.stdout.starts_with("PROBLEM   2 proxies refuse new certificates"), "{}", text.stdout);
    ensure!(!text.stdout.contains("PRIVATE KEY"), "{}", text.stdout);
    Ok(())
}

#[tokio::test]
async fn a_user_without_the_secret_of_the_issuer_sees_the_rest() -> Result<()> {
    let root = MeshAuthority::root("root.linkerd.cluster.local")?;
    let mesh = TrustMesh::create(&root).await?;
    mesh.put_pod("web-1", &root.pem()).await?;
    let (name, rbac) = (mesh.namespace.name(), "rbac.authorization.k8s.io");
    let role = json!({"apiVersion": format!("{rbac}/v1"), "kind": "ClusterRole", "metadata": {"name": name}, "rules": [
        {"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]},
        {"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get"]}]});
    let binding = json!({"apiVersion": format!("{rbac}/v1"), "kind": "ClusterRoleBinding", "metadata": {"name": name},
        "roleRef": {"apiGroup": rbac, "kind": "ClusterRole", "name": name},
        "subjects": [{"apiGroup": rbac, "kind": "User", "name": name}]});
    mesh.control_plane.apply(&[role, binding]).await?;
    let ended = mesh.trust(&["--as", name]).await?;
    ensure!(ended.code == Some(0), "{ended:?}");
    for part in ["1 of 1", "unknown", "Secret linkerd-identity-issuer cannot be read", "let somebody run this command"]
    {
        ensure!(ended.stdout.contains(part), "no {part}: {}", ended.stdout);
    }
    let nobody = mesh.trust(&["--as", "nobody"]).await?;
    ensure!(nobody.code == Some(1) && nobody.stderr.contains("cannot list the Pods of the mesh"), "{nobody:?}");
    Ok(())
}

#[tokio::test]
async fn files_that_exist_and_keys_of_others_are_left_alone() -> Result<()> {
    let (old, other) = (MeshAuthority::root("old")?, MeshAuthority::root("other")?);
    let mesh = TrustMesh::create(&old).await?;
    let folder = mesh.new_root(&old).await?;
    let before = read(&folder, "ca.crt")?;
    let again = Ended::operator(&["trust", "new", &folder], Duration::from_secs(30)).await?;
    ensure!(again.code == Some(1) && again.stderr.contains("ca.crt: File exists"), "{again:?}");
    assert_eq!(read(&folder, "ca.crt")?, before);
    fs::write(mesh.path("other.key")?, other.key_pem())?;
    let args =
        ["trust", "bridge", "--root", &format!("{folder}/ca.crt"), "--old-root", &mesh.path("old.crt")?, "--old-key"];
    let wrong = Ended::operator(&[&args[..], &[&mesh.path("other.key")?]].concat(), Duration::from_secs(30)).await?;
    ensure!(wrong.code == Some(1) && wrong.stderr.contains("the key is not the key of the old root"), "{wrong:?}");
    let bridge = Ended::operator(&[&args[..], &[&mesh.path("old.key")?]].concat(), Duration::from_secs(30)).await?;
    ensure!(bridge.code == Some(0) && bridge.stdout.starts_with("-----BEGIN CERTIFICATE-----\n"), "{bridge:?}");
    Ok(())
}
