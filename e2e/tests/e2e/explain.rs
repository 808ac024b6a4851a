//! `linkerd-operator explain`, run as a user runs it, against a real API server.
//!
//! Each test has a dedicated control plane, because LinkerdConfigs are cluster-scoped.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use e2e::{Job, Manager, ManagerOptions, Options, Rig, User, command::Ended, eventually, mesh::SOON};
use serde_json::{Value, json};

/// The groups and resources that `explain` lists. It neither reads Secrets nor writes.
const READER: &[(&str, &[&str])] =
    &[("config.linkerd.io", &["linkerdconfigs"]), ("", &["configmaps"]), ("apps", &["controllerrevisions"])];
/// Those that it also lists with `--workloads`.
const READER_OF_WORKLOADS: &[(&str, &[&str])] = &[
    ("", &["pods", "namespaces"]),
    ("apps", &["deployments", "statefulsets", "daemonsets", "replicasets"]),
    ("batch", &["jobs"]),
    ("policy", &["poddisruptionbudgets"]),
];

struct Explained {
    control_plane: Rig,
    kubeconfig: PathBuf,
}

impl Explained {
    /// Starts a control plane with the CRD and Linkerd's namespace. Linkerd is not installed yet.
    async fn start() -> Result<Self> {
        let users = vec![User { name: "explainer".to_owned(), groups: Vec::new() }];
        let rig = Rig::bare().options(Options { users, ..Options::default() }).crds("crd").namespace("linkerd");
        let control_plane = rig.start().await?;
        Ok(Self { kubeconfig: control_plane.kubeconfig().to_owned(), control_plane })
    }

    /// Permits the user `explainer` to list these resources.
    async fn permit(&self, name: &str, lists: &[(&str, &[&str])]) -> Result<()> {
        let rule = |(group, resources): &(&str, &[&str])| json!({"apiGroups": [group], "resources": resources, "verbs": ["list"]});
        let (group, version) = ("rbac.authorization.k8s.io", "rbac.authorization.k8s.io/v1");
        let role = json!({
            "apiVersion": version, "kind": "ClusterRole", "metadata": {"name": name},
            "rules": lists.iter().map(rule).collect::<Vec<_>>(),
        });
        let binding = json!({
            "apiVersion": version, "kind": "ClusterRoleBinding", "metadata": {"name": name},
            "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": name},
            "subjects": [{"apiGroup": group, "kind": "User", "name": "explainer"}],
        });
        self.control_plane.apply(&[role, binding]).await
    }

    /// Starts a manager that is ready.
    async fn manager(&self) -> Result<Manager> {
        let options = ManagerOptions::only(Job::LinkerdConfig).args(["--operator-namespace=linkerd"]);
        options.ready(&self.control_plane).await
    }

    async fn explain(&self, args: &[&str]) -> Result<Ended> {
        let kubeconfig = self.kubeconfig.display().to_string();
        let args = [&["explain"], args, &["--kubeconfig", &kubeconfig]].concat();
        Ended::operator(&args, Duration::from_secs(30)).await
    }

    /// Writes a manifest with this spec to a file, and returns the path.
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

    /// Applies what Linkerd's installation leaves, as Helm's field manager.
    async fn install(&self) -> Result<()> {
        self.control_plane.install_linkerd().await
    }

    /// Returns all objects that the command could have written.
    async fn stored(&self) -> Result<String> {
        let kinds = "linkerdconfigs,configmaps,controllerrevisions";
        self.control_plane.kubectl(&["-n", "linkerd", "get", kinds, "-o", "yaml", "--show-managed-fields"]).await
    }
}

/// Creates a Deployment, its ReplicaSet and its Pod with the status that the controllers would set. The Pod was
/// injected before the first LinkerdConfig.
async fn deployment(mesh: &Explained, name: &str, labels: Value) -> Result<()> {
    let owner = |api_version: &str, kind: &str, uid: &str| json!([{"apiVersion": api_version, "kind": kind, "name": name, "uid": uid, "controller": true}]);
    let labelled = json!({"app": name});
    let annotations = json!({"linkerd.io/inject": "enabled", "linkerd.io/proxy-version": "edge-26.8.3"});
    let proxy = json!({"name": "linkerd-proxy", "image": "proxy:edge-26.8.3", "restartPolicy": "Always"});
    let containers = json!([{"name": "web", "image": "web"}]);
    let spec = json!({"initContainers": [proxy], "containers": containers});
    let template =
        json!({"metadata": {"labels": labelled, "annotations": annotations}, "spec": {"containers": containers}});
    let selector = json!({"matchLabels": labelled});
    let create = async |kind: &str, version: &str, mut metadata: Value, spec: Value| -> Result<String> {
        let common = [("name", name), ("namespace", "app")].map(|(key, value)| (key.to_owned(), json!(value)));
        metadata.as_object_mut().context("no metadata")?.extend(common);
        let object = json!({"apiVersion": version, "kind": kind, "metadata": metadata, "spec": spec});
        let file = mesh.file(&format!("{kind}-{name}"), &object.to_string())?;
        mesh.control_plane.kubectl(&["create", "-f", &file, "-o", "jsonpath={.metadata.uid}"]).await
    };
    let workload = json!({"replicas": 1, "selector": selector, "template": template});
    let uid = create("Deployment", "apps/v1", json!({ "labels": labels }), workload.clone()).await?;
    let metadata = json!({"labels": labelled, "ownerReferences": owner("apps/v1", "Deployment", &uid)});
    let uid = create("ReplicaSet", "apps/v1", metadata, workload).await?;
    let labels = json!({"app": name, "linkerd.io/control-plane-ns": "linkerd"});
    let owners = owner("apps/v1", "ReplicaSet", &uid);
    create("Pod", "v1", json!({"labels": labels, "annotations": annotations, "ownerReferences": owners}), spec).await?;
    let status = json!({"status": {
        "observedGeneration": 1, "replicas": 1, "updatedReplicas": 1, "readyReplicas": 1, "availableReplicas": 1,
    }});
    let patch =
        ["-n", "app", "patch", "deployment", name, "--subresource=status", "--type=merge", "-p", &status.to_string()];
    mesh.control_plane.kubectl(&patch).await.map(drop)
}

fn sample(name: &str) -> String {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../config/samples/{name}.yaml")).display().to_string()
}

#[tokio::test]
async fn the_changes_of_a_manifest_are_explained_before_it_is_applied() -> Result<()> {
    let mesh = Explained::start().await?;
    let minimal = sample("linkerdconfig-minimal");

    let output = mesh.explain(&[]).await?;
    assert_eq!((output.code, &*output.stdout), (Some(1), ""));
    assert!(output.stderr.contains("no LinkerdConfig is in effect for linkerd/linkerd-config"), "{}", output.stderr);
    let output = mesh.explain(&["-f", &minimal]).await?;
    assert_eq!(output.code, Some(1));
    assert!(
        output.stdout.contains(
            "Verdict:        TargetNotFound: ConfigMap linkerd/linkerd-config does not exist: install Linkerd"
        ),
        "{}",
        output.stdout
    );

    mesh.install().await?;
    let before = mesh.stored().await?;
    let output = mesh.explain(&["-f", &minimal]).await?;
    let expected = "\
LinkerdConfig:  mesh (the manifest)
Target:         ConfigMap linkerd/linkerd-config
Mode:           Enforce
In effect:      it would be
Base:           revision 1, which would be saved first
Verdict:        OutOfSync: 1 value would change
New Pods:       every Pod that is created from now on gets: proxy.accessLog \"apache\"; spec.rollout cannot delay it

    PATH                      FROM          LIVE                   EFFECTIVE
    identityTrustAnchorsPEM   trust roots   (PEM, 1 certificate)   (PEM, 1 certificate)
~   proxy.accessLog           spec          \"\"                     \"apache\"

unmanaged: ";
    assert!(output.stdout.starts_with(expected), "{}{}", output.stdout, output.stderr);
    assert_eq!((output.code, &*output.stderr), (Some(0), ""));
    assert_eq!(mesh.explain(&["-f", &minimal, "--exit-code"]).await?.code, Some(1));
    let nothing = mesh.manifest("nothing", &json!({"values": {"proxy": {"accessLog": ""}}}))?;
    assert_eq!(mesh.explain(&["-f", &nothing, "--exit-code"]).await?.code, Some(1), "the injection hash is missing");
    assert_eq!(mesh.explain(&["absent", "--exit-code"]).await?.code, Some(2));
    let all = mesh.explain(&["-f", &minimal, "--all", "-o", "json"]).await?.document()?;
    let unmanaged = all["unmanagedValues"].as_array().context("no values")?;
    assert_eq!(json!(unmanaged.len()), all["unmanaged"]);
    let log_level = json!({
        "path": "proxy.logLevel", "from": "base", "changes": false,
        "live": "warn,linkerd=info,hickory=error", "effective": "warn,linkerd=info,hickory=error",
    });
    assert!(unmanaged.contains(&log_level), "{unmanaged:?}");

    // The API server rejects violations of the schema and of its rules, and unknown fields.
    let refused = [
        ("spec.proxy.logFormat", json!({"proxy": {"logFormat": "xml"}})),
        ("spec.proxy.ignoreInboundPorts[0]", json!({"proxy": {"ignoreInboundPorts": ["high"]}})),
        ("unknown field \"spec.proxy.requireTLS\"", json!({"proxy": {"requireTLS": true}})),
        ("unknown field \"spec.proxy.logLevl\"", json!({"proxy": {"logLevl": "debug"}})),
        ("\n  spec.proxy.logLevl: did you mean spec.proxy.logLevel?", json!({"proxy": {"logLevl": "debug"}})),
    ];
    for (reason, spec) in refused {
        let output = mesh.explain(&["-f", &mesh.manifest("refused", &spec)?]).await?;
        assert_eq!((output.code, &*output.stdout), (Some(1), ""), "{spec}");
        assert!(output.stderr.contains("the API server rejected LinkerdConfig refused:"), "{}", output.stderr);
        assert!(output.stderr.contains(reason), "{}", output.stderr);
    }
    assert_eq!(mesh.stored().await?, before, "explain must not write");
    Ok(())
}

#[tokio::test]
async fn applied_resources_are_explained_as_the_controller_evaluates_them() -> Result<()> {
    let mut mesh = Explained::start().await?;
    mesh.install().await?;
    mesh.apply(&mesh.manifest("high", &json!({"priority": 1, "proxy": {"logLevel": "debug"}}))?).await?;
    mesh.apply(&sample("linkerdconfig-minimal")).await?;
    mesh.apply(&mesh.manifest("elsewhere", &json!({"priority": 9, "global": {"linkerdNamespace": "other"}}))?).await?;

    let output = mesh.explain(&["-o", "json"]).await?;
    let report = output.document()?;
    assert_eq!((output.code, &report["name"], &report["inEffect"]), (Some(0), &json!("high"), &json!(true)));
    let output = mesh.explain(&["mesh"]).await?;
    assert_eq!(output.code, Some(1));
    assert!(
        output.stdout.contains("In effect:      no: LinkerdConfig high has a higher priority"),
        "{}",
        output.stdout
    );
    assert!(output.stdout.contains("OutOfSync: 1 value would change, if it were in effect\n"), "{}", output.stdout);
    let output = mesh.explain(&["absent"]).await?;
    assert_eq!((output.code, &*output.stderr), (Some(1), "error: LinkerdConfig absent does not exist\n"));

    // A manifest of an existing resource is evaluated with that resource's age.
    let raised = mesh.manifest("mesh", &json!({"priority": 2, "proxy": {"accessLog": "json"}}))?;
    let report = mesh.explain(&["-f", &raised, "-o", "json"]).await?.document()?;
    assert_eq!((&report["inEffect"], &report["applied"]), (&json!(true), &json!(false)));

    // The controller reaches the same result.
    let mut manager = mesh.manager().await?;
    eventually(SOON, "explain to report Synced", async || {
        let report = mesh.explain(&["-o", "json"]).await?.document()?;
        ensure!(report["reason"] == "Synced" && report["base"] == json!({"revision": 1, "kept": true}), "{report}");
        Ok(())
    })
    .await?;
    assert_eq!(mesh.explain(&["--exit-code"]).await?.code, Some(0));
    assert_eq!(mesh.explain(&["-f", &raised, "--exit-code"]).await?.code, Some(1));
    let refused = mesh.explain(&["mesh", "--exit-code"]).await?;
    assert_eq!(refused.code, Some(2), "a resource that is not in effect: {}", refused.stdout);
    manager.terminate(SOON).await?;
    let output = mesh.explain(&[]).await?;
    assert_eq!(output.code, Some(0));

    // A read-only user gets the same output. For a manifest the checks of the API server are left out.
    mesh.permit("explainer", READER).await?;
    let expected = output.stdout;
    mesh.kubeconfig = mesh.control_plane.kubeconfig_for("explainer")?;
    eventually(SOON, "the permissions to take effect", async || {
        let output = mesh.explain(&[]).await?;
        ensure!(output.code == Some(0), "{}", output.stderr);
        assert_eq!(output.stdout, expected);
        Ok(())
    })
    .await?;
    let output = mesh.explain(&["-f", &raised]).await?;
    assert_eq!(output.code, Some(0), "{}", output.stderr);
    assert!(output.stderr.starts_with("not checked by the API server"), "{}", output.stderr);
    Ok(())
}

#[tokio::test]
async fn workloads_are_explained_with_the_decision_of_the_rollout_before_and_after_a_manifest_is_applied() -> Result<()>
{
    let mut mesh = Explained::start().await?;
    mesh.install().await?;
    mesh.control_plane.create_namespaces(&["app"]).await?;
    let opted_in = json!({"config.linkerd.io/reconcile": "auto"});
    deployment(&mesh, "web", opted_in.clone()).await?;
    deployment(&mesh, "api", opted_in).await?;
    deployment(&mesh, "stranger", json!({})).await?;
    mesh.control_plane
        .kubectl(&["-n", "app", "patch", "deployment", "api", "-p", r#"{"spec": {"paused": true}}"#])
        .await?;
    let delay = json!({"method": "Delay", "delay": "0s"});
    let spec = |log_level: &str, rollout: Value| json!({"proxy": {"logLevel": log_level}, "injectorSync": delay, "rollout": rollout});
    let installed = "warn,linkerd=info,hickory=error";

    // Before the manifest is applied: an unchanged value restarts nothing, a changed one restarts the workloads that
    // opted in.
    let same = mesh.manifest("mesh", &spec(installed, json!({})))?;
    let output = mesh.explain(&["-f", &same, "--workloads"]).await?;
    assert_eq!(output.code, Some(0), "{}", output.stderr);
    for line in [
        "Rollout:        would begin once the resource is in effect and the injectors use it",
        "app         Deployment   api        1/1    UpToDate      its Pods run with the configuration",
        "app         Deployment   web        1/1    UpToDate      its Pods run with the configuration",
        "workloads: 2 of 2 selected are up to date; Pods: 3 meshed, 3 current",
    ] {
        assert!(output.stdout.contains(line), "{line}: {}", output.stdout);
    }
    let other = mesh.manifest("mesh", &spec("debug", json!({"paused": true})))?;
    let output = mesh.explain(&["-f", &other, "--workloads", "-o", "json"]).await?.document()?;
    let decisions = |output: &Value| -> Vec<Value> {
        let rows = output["workloads"].as_array().into_iter().flatten();
        rows.map(|row| json!([row["name"], row["decision"], row["reason"]])).collect()
    };
    let expected = [
        json!(["api", "Skipped", "Paused"]),
        json!(["stranger", "NotSelected", "NotOptedIn"]),
        json!(["web", "Pending", null]),
    ];
    assert_eq!(decisions(&output), expected);
    let hash = output["rollout"]["hash"].as_str().context("no hash")?.to_owned();

    // After it is applied: the counts equal those of the status, although the rollout is paused.
    mesh.apply(&other).await?;
    let _manager = mesh.manager().await?;
    let wait = ["wait", "--for=jsonpath={.status.rollout.workloads.pending}=1", "linkerdconfig/mesh", "--timeout=20s"];
    mesh.control_plane.kubectl(&wait).await?;
    let output = mesh.explain(&["--workloads", "-o", "json"]).await?.document()?;
    assert_eq!(decisions(&output), expected);
    assert_eq!(output["rollout"]["reason"], "Paused", "{output}");
    let status = mesh.control_plane.get(&["linkerdconfig", "mesh"]).await?["status"]["rollout"].take();
    for (field, expected) in
        [("hash", &json!(hash)), ("workloads", &output["rollout"]["workloads"]), ("pods", &output["rollout"]["pods"])]
    {
        assert_eq!(&status[field], expected, "{field}");
    }
    let message = format!("to be restarted for {hash}: 1 Pod with another configuration");
    assert_eq!(output["workloads"][2]["message"], message);

    // Without the permissions for workloads the error names the missing one.
    mesh.permit("explainer", READER).await?;
    mesh.kubeconfig = mesh.control_plane.kubeconfig_for("explainer")?;
    eventually(SOON, "the first permissions to take effect", async || {
        let output = mesh.explain(&[]).await?;
        ensure!(output.code == Some(0), "{}", output.stderr);
        Ok(())
    })
    .await?;
    let output = mesh.explain(&["--workloads"]).await?;
    assert_eq!(output.code, Some(1));
    let refusal = "error: cannot list namespaces: namespaces is forbidden: User \"explainer\" cannot list resource";
    assert!(output.stderr.starts_with(refusal), "{}", output.stderr);
    mesh.permit("explainer-of-workloads", READER_OF_WORKLOADS).await?;
    eventually(SOON, "the other permissions to take effect", async || {
        let output = mesh.explain(&["--workloads"]).await?;
        ensure!(output.code == Some(0), "{}", output.stderr);
        Ok(())
    })
    .await?;
    Ok(())
}
