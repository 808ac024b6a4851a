//! `linkerd-operator trust`, run as a user runs it, against a real API server without the operator.

use std::{fs, net::SocketAddr, path::Path, time::Duration};

use anyhow::{Context, Result, ensure};
use e2e::{
    ControlPlane, TestNamespace,
    command::Ended,
    identity::MeshAuthority,
    shown_proxy::{FRESH, ShownProxy},
};
use k8s_openapi::api::core::v1::{ConfigMap, Pod, Secret};
use kube::{
    Api,
    api::{DeleteParams, Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::net::TcpListener;

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

    /// Replaces the Secret by one of the form of Linkerd's chart.
    async fn put_issuer_of_chart(&self, issuer: &MeshAuthority) -> Result<()> {
        let (name, secrets) = ("linkerd-identity-issuer", self.namespace.api::<Secret>());
        secrets.delete(name, &DeleteParams::default()).await?;
        let secret =
            json!({"metadata": {"name": name}, "stringData": {"crt.pem": issuer.pem(), "key.pem": issuer.key_pem()}});
        secrets.create(&PostParams::default(), &serde_json::from_value(secret)?).await?;
        Ok(())
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

    /// Returns the plan for the LinkerdTrust in the folder.
    async fn plan(&self, folder: &str) -> Result<String> {
        let kubeconfig = self.control_plane.kubeconfig().display().to_string();
        let args = ["trust", "plan", "-f", &format!("{folder}/linkerdtrust.yaml"), "--kubeconfig", &kubeconfig];
        let ended = Ended::operator(&args, Duration::from_secs(30)).await?;
        ensure!(ended.code == Some(0), "{ended:?}");
        Ok(ended.stdout)
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
        let args = [&args[..], &["--namespace", self.namespace.name()]].concat();
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
    let plan = mesh.plan(&folder).await?;
    for part in ["1. add root.", "2. write an issuer", "3. wait until", "4. remove root.", ": 2 workloads, 2 Pods\n"] {
        ensure!(plan.contains(part), "no {part}: {plan}");
    }
    mesh.put_bundle(&format!("{}{}", read(&folder, "ca.crt")?, old.pem())).await?;
    let report = mesh.expect(0, "with a bridge nothing has to restart").await?;
    assert_eq!((&report["workloadsBehind"], &report["behind"][1]["name"]), (&json!(2), &json!("web-2")));
    assert_eq!(report["behind"][1]["state"], "Behind");

    mesh.put_issuer(&read(&folder, "issuer.crt")?, &read(&folder, "issuer.key")?).await?;
    mesh.expect(0, "wait until all proxies have renewed their certificates, at the latest in 24 h; then remove root.linkerd.cluster.local (").await?;

    mesh.put_bundle(&read(&folder, "ca.crt")?).await?;
    mesh.put_pod("web-3", &read(&folder, "ca.crt")?).await?;
    ensure!(mesh.plan(&folder).await?.starts_with("nothing to do"), "the rotation is complete");
    let report = mesh.expect(2, "put the root root.linkerd.cluster.local (").await?;
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

/// The commands are those of the output, word for word.
#[tokio::test]
async fn the_printed_commands_replace_the_root_and_keep_the_other_roots_of_the_bundle() -> Result<()> {
    let (old, west) = (MeshAuthority::root("root.linkerd.cluster.local")?, MeshAuthority::root("west")?);
    for is_of_chart in [false, true] {
        let mesh = TrustMesh::create(&old).await?;
        // The last line has no end, as after an edit by hand.
        mesh.put_bundle(format!("{}{}", old.pem(), west.pem()).trim_end()).await?;
        if is_of_chart {
            mesh.put_issuer_of_chart(&old.signs("identity.linkerd.cluster.local")?).await?;
        }
        fs::write(mesh.path("old.crt")?, old.pem())?;
        fs::write(mesh.path("old.key")?, old.key_pem())?;
        let folder = mesh.path("my pki; true")?;
        let (root, key) = (mesh.path("old.crt")?, mesh.path("old.key")?);
        let namespace = mesh.namespace.name();
        let args = ["trust", "new", &folder, "--namespace", namespace, "--bridge-from", &root, "--old-key", &key];
        let printed = Ended::operator(&args, Duration::from_secs(30)).await?.stdout;
        let commands: Vec<&str> = printed.lines().filter_map(|line| line.strip_prefix("   ")).collect();
        let [save, declare, join, write, tls, _, chart, retire] = commands[..] else { anyhow::bail!("{printed}") };
        ensure!(declare.starts_with("kubectl apply -f ") && declare.ends_with("/linkerdtrust.yaml"), "{declare}");
        for command in [save, join, write, if is_of_chart { chart } else { tls }] {
            mesh.control_plane.shell(command).await?;
        }
        let report = mesh.expect(0, "wait until all proxies have renewed").await?;
        let roots = report["roots"].as_array().context("no roots")?;
        let reached: Vec<_> = roots.iter().map(|root| (&root["inBundle"], &root["reached"])).collect();
        assert_eq!(reached.iter().filter(|it| **it == (&json!(true), &json!(true))).count(), 2, "{report:#}");
        assert_eq!(reached.iter().filter(|it| **it == (&json!(true), &json!(false))).count(), 1, "{report:#}");
        mesh.control_plane.shell(retire).await?;
        let (_, report) = mesh.report().await?;
        assert_eq!(report["roots"].as_array().map(Vec::len), Some(1), "{report:#}");
        let back = printed.lines().find_map(|line| line.strip_prefix("Before step 3, this goes back: "));
        mesh.control_plane.shell(back.context("no way back")?).await?;
        mesh.expect(0, "every proxy trusts west").await?;
    }
    Ok(())
}

#[tokio::test]
async fn an_issuer_is_renewed_under_its_root() -> Result<()> {
    let root = MeshAuthority::root("root.linkerd.cluster.local")?;
    let mesh = TrustMesh::create(&root).await?;
    mesh.put_pod("web-1", &root.pem()).await?;
    fs::write(mesh.path("ca.crt")?, root.pem())?;
    fs::write(mesh.path("ca.key")?, root.key_pem())?;
    let (folder, ca, key) = (mesh.path("issuer")?, mesh.path("ca.crt")?, mesh.path("ca.key")?);
    let namespace = mesh.namespace.name();
    let args = ["trust", "issuer", &folder, "--root", &ca, "--key", &key, "--days", "20", "--namespace", namespace];
    let made = Ended::operator(&args, Duration::from_secs(30)).await?;
    ensure!(made.code == Some(0) && !made.stdout.contains("PRIVATE"), "{made:?}");
    let tls = made.stdout.lines().find_map(|line| line.strip_prefix("   ")).context("no command")?;
    mesh.control_plane.shell(tls).await?;
    let report = mesh.expect(0, "nothing to do").await?;
    let expires: k8s_openapi::jiff::Timestamp = report["issuer"]["expires"].as_str().context("no end")?.parse()?;
    let left = expires.duration_since(k8s_openapi::jiff::Timestamp::now()).as_hours();
    ensure!((19 * 24..=20 * 24).contains(&left), "{left} h");
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
    ensure!(ended.code == Some(2), "{ended:?}");
    for part in [
        "1 of 1",
        "it is unknown whether proxies accept",
        "Secret linkerd-identity-issuer: ",
        "run this command as a user who can read",
    ] {
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
    ensure!(again.code == Some(1) && again.stderr.contains("ca.crt exists: give another folder"), "{again:?}");
    assert_eq!(read(&folder, "ca.crt")?, before);
    fs::write(mesh.path("other.key")?, other.key_pem())?;
    let args =
        ["trust", "bridge", "--root", &format!("{folder}/ca.crt"), "--old-root", &mesh.path("old.crt")?, "--old-key"];
    let wrong = Ended::operator(&[&args[..], &[&mesh.path("other.key")?]].concat(), Duration::from_secs(30)).await?;
    ensure!(
        wrong.code == Some(1) && wrong.stderr.contains("the key is not the key of the certificate that signs"),
        "{wrong:?}"
    );
    let bridge = Ended::operator(&[&args[..], &[&mesh.path("old.key")?]].concat(), Duration::from_secs(30)).await?;
    ensure!(bridge.code == Some(0) && bridge.stdout.starts_with("-----BEGIN CERTIFICATE-----\n"), "{bridge:?}");

    let expired = MeshAuthority::expired_root("expired")?;
    fs::write(mesh.path("expired.crt")?, expired.pem())?;
    fs::write(mesh.path("expired.key")?, expired.key_pem())?;
    let (crt, key, issuer) = (mesh.path("expired.crt")?, mesh.path("expired.key")?, mesh.path("issuer")?);
    for (root, key, why) in [
        (&*crt, &*key, "the root ended at "),
        // A device has no length.
        ("/dev/zero", &key, "/dev/zero is longer than"),
    ] {
        let refused = ["trust", "issuer", &issuer, "--root", root, "--key", key];
        let refused = Ended::operator(&refused, Duration::from_secs(30)).await?;
        ensure!(refused.code == Some(1) && refused.stderr.contains(why), "{refused:?}");
    }
    ensure!(!fs::exists(&issuer)?, "nothing is written");
    let file = format!("{folder}/linkerdtrust.yaml");
    let twice = format!("{0}---\n{0}", fs::read_to_string(&file)?);
    fs::write(&file, twice)?;
    let refused = mesh.plan(&folder).await.expect_err("kubectl would apply both").to_string();
    ensure!(refused.contains("has several objects"), "{refused}");
    Ok(())
}

const WEB: &str = "web.app.serviceaccount.identity.linkerd.cluster.local";

#[tokio::test(flavor = "multi_thread")]
async fn a_probe_tells_who_accepts_the_certificate_of_a_proxy() -> Result<()> {
    let (root, other) = (MeshAuthority::root("root.linkerd.cluster.local")?, MeshAuthority::root("other")?);
    let mesh = TrustMesh::create(&root).await?;
    let issuer = root.signs("identity.linkerd.cluster.local")?;
    let kubeconfig = mesh.control_plane.kubeconfig().display().to_string();
    let serve =
        async |issuer: &MeshAuthority, root: &MeshAuthority| ShownProxy::start(WEB, &[issuer], root, FRESH).await;
    let probe = async |proxy: SocketAddr, more: &[&str]| {
        let proxy = proxy.to_string();
        let namespace = mesh.namespace.name();
        let args = ["trust", "probe", &proxy, "--namespace", namespace, "--kubeconfig", &kubeconfig];
        Ended::operator(&[&args[..], more].concat(), Duration::from_secs(30)).await
    };
    // The proxy refuses a client without a certificate, after it has presented its own.
    let proxy = serve(&issuer, &root).await?;
    let good = probe(proxy.address, &["--identity", WEB]).await?;
    ensure!(good.code == Some(0), "{good:?}");
    for part in
        ["OK   accepted by proxies that trust root.linkerd.cluster.local", WEB, "identity.linkerd.cluster.local"]
    {
        ensure!(good.stdout.contains(part), "no {part}: {}", good.stdout);
    }
    // Only the certificate of a client shows what a proxy trusts.
    let (next, bridge) = (other.signs("next")?, root.bridges(&other, "other")?);
    let (file, bridged, key) = (mesh.path("next.crt")?, mesh.path("bridged.crt")?, mesh.path("next.key")?);
    fs::write(&file, next.pem())?;
    fs::write(&bridged, next.pem() + &bridge.pem())?;
    fs::write(&key, next.key_pem())?;
    let with =
        async |issuer: &str| probe(proxy.address, &["--identity", WEB, "--issuer", issuer, "--issuer-key", &key]).await;
    let untrusted = with(&file).await?;
    ensure!(
        untrusted.code == Some(1) && untrusted.stdout.contains("Refuses    certificates of next: "),
        "{untrusted:?}"
    );
    let trusted = with(&bridged).await?;
    ensure!(trusted.code == Some(0) && trusted.stdout.contains("Accepts    certificates of next\n"), "{trusted:?}");
    let foreign = other.signs("identity.linkerd.cluster.local")?;
    let of_other = serve(&foreign, &other).await?;
    let refused = probe(of_other.address, &["--identity", WEB]).await?;
    ensure!(refused.code == Some(1) && refused.stdout.starts_with("PROBLEM   refused with each root"), "{refused:?}");
    let another_name =
        probe(proxy.address, &["--identity", "db.app.serviceaccount.identity.linkerd.cluster.local"]).await?;
    ensure!(another_name.code == Some(1) && another_name.stdout.contains("PROBLEM"), "{another_name:?}");
    let silent = TcpListener::bind("127.0.0.1:0").await?;
    let silent = probe(silent.local_addr()?, &["--identity", WEB]).await?;
    ensure!(silent.code == Some(1) && silent.stderr.contains("did not answer in time"), "{silent:?}");
    let unnamed = probe(proxy.address, &[]).await?;
    ensure!(unnamed.code == Some(1) && unnamed.stderr.contains("give --identity"), "{unnamed:?}");
    Ok(())
}
