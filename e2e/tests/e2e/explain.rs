//! `linkerd-operator explain`, run as a user runs it, on a real API server.
//!
//! * Always: on a control plane of the test's own, because a LinkerdConfig belongs to no namespace.

use std::{
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use e2e::{
    ControlPlane, Manager, ManagerOptions, Options, User, eventually, mesh::SOON, process::beside_this_executable,
};
use serde_json::{Value, json};
use tokio::{process::Command, time::timeout};

/// Nobody reads secrets or writes anything to see what would happen.
const READER: &str = r#"
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: explainer}
rules:
  - {apiGroups: [config.linkerd.io], resources: [linkerdconfigs], verbs: [list]}
  - {apiGroups: [""], resources: [configmaps], verbs: [list]}
  - {apiGroups: [apps], resources: [controllerrevisions], verbs: [list]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: explainer}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: explainer}
subjects: [{apiGroup: rbac.authorization.k8s.io, kind: User, name: explainer}]
"#;

/// What the command printed, and how it ended.
struct Told {
    code: Option<i32>,
    stdout: String,
    stderr: String,
}

impl Told {
    fn document(&self) -> Result<Value> {
        serde_json::from_str(&self.stdout).with_context(|| format!("{}{}", self.stdout, self.stderr))
    }
}

struct Explained {
    control_plane: ControlPlane,
    kubeconfig: PathBuf,
}

impl Explained {
    /// Linkerd's namespace and our definition; of Linkerd nothing yet.
    async fn start() -> Result<Self> {
        let users = vec![User { name: "explainer".to_owned(), groups: Vec::new() }];
        let control_plane = ControlPlane::start(Options { users, ..Options::default() }).await?;
        control_plane.install_crds("crd").await?;
        control_plane.kubectl(&["create", "namespace", "linkerd"]).await?;
        Ok(Self { kubeconfig: control_plane.kubeconfig().to_owned(), control_plane })
    }

    async fn explain(&self, args: &[&str]) -> Result<Told> {
        let mut command = Command::new(beside_this_executable("linkerd-operator", "LINKERD_OPERATOR_BIN")?);
        command.arg("explain").args(args).arg("--kubeconfig").arg(&self.kubeconfig);
        command.env_remove("KUBECONFIG").stdin(Stdio::null()).kill_on_drop(true);
        let output = timeout(Duration::from_secs(30), command.output()).await.context("the command did not end")??;
        let text = |bytes: Vec<u8>| String::from_utf8(bytes);
        Ok(Told { code: output.status.code(), stdout: text(output.stdout)?, stderr: text(output.stderr)? })
    }

    /// A manifest with this spec, as a file.
    fn manifest(&self, name: &str, spec: &Value) -> Result<String> {
        let object = json!({
            "apiVersion": "config.linkerd.io/v1alpha1", "kind": "LinkerdConfig", "metadata": {"name": name}, "spec": spec,
        });
        self.file(name, &object.to_string())
    }

    fn file(&self, name: &str, text: &str) -> Result<String> {
        let path = self.control_plane.directory().join(format!("{name}.yaml"));
        std::fs::write(&path, text)?;
        Ok(path.display().to_string())
    }

    async fn apply(&self, file: &str) -> Result<()> {
        self.control_plane.kubectl(&["apply", "-f", file]).await.map(drop)
    }

    /// As Helm does it.
    async fn install(&self) -> Result<()> {
        let helm = ["apply", "--server-side", "--field-manager=helm", "-f", &sample("linkerd")];
        self.control_plane.kubectl(&helm).await.map(drop)
    }

    /// Everything that the command could have written.
    async fn stored(&self) -> Result<String> {
        let kinds = "linkerdconfigs,configmaps,controllerrevisions";
        self.control_plane.kubectl(&["-n", "linkerd", "get", kinds, "-o", "yaml", "--show-managed-fields"]).await
    }
}

fn sample(name: &str) -> String {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../config/samples/{name}.yaml")).display().to_string()
}

#[tokio::test]
async fn what_a_manifest_would_change_is_told_before_it_is_applied() -> Result<()> {
    let mesh = Explained::start().await?;
    let minimal = sample("linkerdconfig-minimal");

    let told = mesh.explain(&[]).await?;
    assert_eq!((told.code, &*told.stdout), (Some(1), ""));
    assert!(told.stderr.contains("no LinkerdConfig is in effect for linkerd/linkerd-config"), "{}", told.stderr);
    let told = mesh.explain(&["-f", &minimal]).await?;
    assert_eq!(told.code, Some(1));
    assert!(
        told.stdout
            .contains("Verdict:        TargetNotFound: there is no ConfigMap linkerd/linkerd-config: install Linkerd"),
        "{}",
        told.stdout
    );

    mesh.install().await?;
    let before = mesh.stored().await?;
    let told = mesh.explain(&["-f", &minimal]).await?;
    let expected = "\
LinkerdConfig:  mesh (the manifest)
Target:         ConfigMap linkerd/linkerd-config
Mode:           Enforce
In effect:      it would be
Base:           revision 1, which would be kept first
Verdict:        OutOfSync: 1 value would change

    PATH                      FROM          LIVE                   EFFECTIVE
    identityTrustAnchorsPEM   trust roots   (PEM, 1 certificate)   (PEM, 1 certificate)
~   proxy.accessLog           spec          \"\"                     \"apache\"

unmanaged: ";
    assert!(told.stdout.starts_with(expected), "{}{}", told.stdout, told.stderr);
    assert_eq!((told.code, &*told.stderr), (Some(0), ""));
    let all = mesh.explain(&["-f", &minimal, "--all", "-o", "json"]).await?.document()?;
    let unmanaged = all["unmanagedValues"].as_array().context("no values")?;
    assert_eq!(json!(unmanaged.len()), all["unmanaged"]);
    let log_level = json!({
        "path": "proxy.logLevel", "from": "base", "changes": false,
        "live": "warn,linkerd=info,hickory=error", "effective": "warn,linkerd=info,hickory=error",
    });
    assert!(unmanaged.contains(&log_level), "{unmanaged:?}");

    // What the schema and its rules refuse, what nobody knows, and what only Linkerd's types say.
    let refused = [
        ("spec.proxy.logFormat", json!({"proxy": {"logFormat": "xml"}})),
        ("spec.proxy.opaquePorts[0]", json!({"proxy": {"opaquePorts": ["high"]}})),
        ("unknown field \"spec.proxy.logLevl\"", json!({"proxy": {"logLevl": "debug"}})),
    ];
    for (reason, spec) in refused {
        let told = mesh.explain(&["-f", &mesh.manifest("refused", &spec)?]).await?;
        assert_eq!((told.code, &*told.stdout), (Some(1), ""), "{spec}");
        assert!(told.stderr.contains("the API server refuses LinkerdConfig refused:"), "{}", told.stderr);
        assert!(told.stderr.contains(reason), "{}", told.stderr);
    }
    let spec = json!({"proxy": {"logLevel": "debug"}, "values": {"proxy": {"logLevel": "x", "LogFormat": "json"}}});
    let told = mesh.explain(&["-f", &mesh.manifest("refused", &spec)?]).await?;
    assert_eq!(told.code, Some(1));
    for line in [
        "Verdict:        Invalid: nothing would be written: 2 problems",
        "  proxy.LogFormat: Linkerd spells this key \"logFormat\"",
        "  proxy.logLevel: spec.values and a field of the resource both set it",
    ] {
        assert!(told.stdout.contains(line), "{line}: {}", told.stdout);
    }
    assert_eq!(mesh.stored().await?, before, "it wrote something");
    Ok(())
}

#[tokio::test]
async fn what_is_there_is_explained_as_the_controller_sees_it() -> Result<()> {
    let mut mesh = Explained::start().await?;
    mesh.install().await?;
    mesh.apply(&mesh.manifest("high", &json!({"priority": 1, "proxy": {"logLevel": "debug"}}))?).await?;
    mesh.apply(&sample("linkerdconfig-minimal")).await?;
    mesh.apply(&mesh.manifest("elsewhere", &json!({"priority": 9, "global": {"configMap": "other"}}))?).await?;

    let told = mesh.explain(&["-o", "json"]).await?;
    let report = told.document()?;
    assert_eq!((told.code, &report["name"], &report["inEffect"]), (Some(0), &json!("high"), &json!(true)));
    let told = mesh.explain(&["mesh"]).await?;
    assert_eq!(told.code, Some(1));
    assert!(told.stdout.contains("In effect:      no: LinkerdConfig high has a higher priority"), "{}", told.stdout);
    assert!(told.stdout.contains("OutOfSync: 1 value would change, if it were in effect\n"), "{}", told.stdout);
    let told = mesh.explain(&["nobody"]).await?;
    assert_eq!((told.code, &*told.stderr), (Some(1), "error: there is no LinkerdConfig nobody\n"));

    // A change of one that is there is judged as that one, with its age.
    let raised = mesh.manifest("mesh", &json!({"priority": 2, "proxy": {"accessLog": "json"}}))?;
    let report = mesh.explain(&["-f", &raised, "-o", "json"]).await?.document()?;
    assert_eq!((&report["inEffect"], &report["applied"]), (&json!(true), &json!(false)));

    // Once the controller was at work it says the same.
    let args = ["--enable-external-workload=false", "--enable-destination=false", "--operator-namespace=linkerd"];
    let options = ManagerOptions { args: args.map(str::to_owned).to_vec(), ..ManagerOptions::default() };
    let mut manager = Manager::start(&mesh.control_plane, options)?;
    manager.ready(SOON).await?;
    eventually(SOON, "the document to be as declared", async || {
        let report = mesh.explain(&["-o", "json"]).await?.document()?;
        ensure!(report["reason"] == "Synced" && report["base"] == json!({"revision": 1, "kept": true}), "{report}");
        Ok(())
    })
    .await?;
    manager.terminate(SOON).await?;
    let edit = json!({"data": {"values": "proxy: ["}}).to_string();
    let patch = ["-n", "linkerd", "patch", "cm", "linkerd-config", "--field-manager=kubectl-edit", "-p", &edit];
    mesh.control_plane.kubectl(&patch).await?;
    let told = mesh.explain(&[]).await?;
    assert_eq!(told.code, Some(0));
    assert!(told.stdout.contains("Drift:          kubectl-edit changed the document\n"), "{}", told.stdout);

    // Whoever may only read is told the same; of a manifest, what can be told without the API server.
    mesh.control_plane.kubectl(&["apply", "-f", &mesh.file("reader", READER)?]).await?;
    let expected = told.stdout;
    mesh.kubeconfig = mesh.control_plane.kubeconfig_for("explainer")?;
    eventually(SOON, "the permissions to be there", async || {
        let told = mesh.explain(&[]).await?;
        ensure!(told.code == Some(0), "{}", told.stderr);
        assert_eq!(told.stdout, expected);
        Ok(())
    })
    .await?;
    let told = mesh.explain(&["-f", &raised]).await?;
    assert_eq!(told.code, Some(0), "{}", told.stderr);
    assert!(told.stderr.starts_with("not checked by the API server"), "{}", told.stderr);
    Ok(())
}
