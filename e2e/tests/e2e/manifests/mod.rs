//! The shipped manifests: their content, their validation by an API server, the reason for each permission, the
//! admission policies, the components of overlays, and the targets of `make` that apply them.

pub(crate) mod components;
mod identity;
mod make;
mod policies;
mod probe;
mod rules;
mod samples;

use anyhow::{Context, Result, ensure};
use e2e::{
    Rig,
    mesh::merge,
    shipped::{OPERATOR_ACCOUNT, OPERATOR_NAMESPACE, is_named},
};
use serde_json::{Value, json};

/// The folders that `make deploy` applies.
const FOLDERS: [&str; 2] = ["config/default", "config/control-plane"];
/// The optional folder.
const OPTIONAL: [&str; 1] = ["config/prometheus"];

async fn shipped(folders: &[&str]) -> Result<Vec<Value>> {
    let mut objects = Vec::new();
    for folder in folders {
        objects.extend(e2e::shared().await?.shipped(folder).await?);
    }
    Ok(objects)
}

/// An object with this merged into it. Without a namespace it is cluster-scoped.
fn object(version: &str, kind: &str, namespace: Option<&str>, name: &str, rest: Value) -> Value {
    let mut object = json!({"apiVersion": version, "kind": kind, "metadata": {"name": name}});
    if let Some(namespace) = namespace {
        object["metadata"]["namespace"] = json!(namespace);
    }
    merge(&mut object, rest);
    object
}

pub(crate) fn id(object: &Value) -> String {
    format!(
        "{}/{}",
        object["kind"].as_str().unwrap_or_default(),
        object["metadata"]["name"].as_str().unwrap_or_default()
    )
}

pub(crate) fn of_kind<'a>(objects: &'a [Value], kind: &str) -> Vec<&'a Value> {
    objects.iter().filter(|object| object["kind"] == kind).collect()
}

#[tokio::test]
async fn only_roles_are_in_linkerds_namespace_and_no_object_has_linkerds_labels() -> Result<()> {
    for object in shipped(&[FOLDERS.as_slice(), &OPTIONAL].concat()).await? {
        let (id, metadata) = (id(&object), &object["metadata"]);
        match metadata["namespace"].as_str() {
            Some("linkerd") => ensure!(id.starts_with("Role/") || id.starts_with("RoleBinding/"), "{id} is in linkerd"),
            Some(namespace) => ensure!(namespace == OPERATOR_NAMESPACE, "{id} is in {namespace}"),
            None => {
                let global = [
                    "Namespace/linkerd-operator-system",
                    "CustomResourceDefinition/linkerdconfigs.config.linkerd.io",
                    "CustomResourceDefinition/linkerdtrusts.config.linkerd.io",
                ];
                let is_global = ["ClusterRole", "ValidatingAdmissionPolicy"].iter().any(|kind| id.starts_with(kind));
                ensure!(is_global || global.contains(&&*id), "{id} is in no namespace");
            }
        }
        // `linkerd prune` lists objects with these labels, and `linkerd check` examines them.
        for labels in [&metadata["labels"], &object["spec"]["template"]["metadata"]["labels"]] {
            let linkerds: Vec<_> = labels
                .as_object()
                .into_iter()
                .flat_map(serde_json::Map::keys)
                .filter(|key| key.contains("linkerd.io/") && *key != "config.linkerd.io/admission-webhooks")
                .collect();
            ensure!(linkerds.is_empty(), "{id}: {linkerds:?}");
        }
        if !id.starts_with("CustomResourceDefinition/") {
            ensure!(metadata["labels"]["app.kubernetes.io/name"] == "linkerd-operator", "{id}: {metadata}");
        }
    }
    Ok(())
}

#[tokio::test]
async fn each_role_is_bound_to_the_operator_once_and_the_roles_for_users_are_not_bound() -> Result<()> {
    let objects = shipped(&FOLDERS).await?;
    let subject = json!([{"kind": "ServiceAccount", "name": OPERATOR_ACCOUNT, "namespace": OPERATOR_NAMESPACE}]);
    for kind in ["Role", "ClusterRole"] {
        let bindings = of_kind(&objects, &format!("{kind}Binding"));
        let roles = of_kind(&objects, kind);
        for binding in &bindings {
            ensure!(binding["subjects"] == subject, "{binding}");
            let bound = |role: &&&Value| {
                let reference =
                    json!({"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": role["metadata"]["name"]});
                binding["roleRef"] == reference && binding["metadata"]["namespace"] == role["metadata"]["namespace"]
            };
            ensure!(roles.iter().filter(bound).count() == 1, "{} binds no role that is shipped", id(binding));
        }
        for role in roles {
            let name = role["metadata"]["name"].as_str().context("no name")?;
            let binds = |binding: &&&Value| {
                is_named(binding, name) && binding["metadata"]["namespace"] == role["metadata"]["namespace"]
            };
            let is_for_users = name.contains("-linkerdconfig-");
            let count = bindings.iter().filter(binds).count();
            ensure!(count == usize::from(!is_for_users), "{} is bound {count} times", id(role));
            let labels = role["metadata"]["labels"].to_string();
            ensure!(!labels.contains("aggregate") && role.get("aggregationRule").is_none(), "{}: {labels}", id(role));
        }
    }
    Ok(())
}

#[tokio::test]
async fn probes_name_ports_that_the_manager_listens_on() -> Result<()> {
    let objects = shipped(&[FOLDERS.as_slice(), &OPTIONAL].concat()).await?;
    let [deployment] = of_kind(&objects, "Deployment")[..] else { anyhow::bail!("expected one Deployment") };
    let pod = &deployment["spec"]["template"];
    let container = &pod["spec"]["containers"][0];
    // Discovery listens on loopback, so that it has neither a port nor a Service.
    assert_eq!(container["ports"], json!([{"name": "admin", "containerPort": 9996}]));
    ensure!(of_kind(&objects, "Service").is_empty() && !container["env"].to_string().contains("DESTINATION_ADDR"));
    let probe = |path: &str| json!({"path": path, "port": "admin"});
    assert_eq!(container["livenessProbe"]["httpGet"], probe("/live"));
    assert_eq!(container["readinessProbe"]["httpGet"], probe("/ready"));
    assert_eq!(container["image"], "linkerd-operator:dev");
    let own = json!({"app.kubernetes.io/name": "linkerd-operator"});
    for selector in [
        &deployment["spec"]["selector"]["matchLabels"],
        &of_kind(&objects, "PodDisruptionBudget")[0]["spec"]["selector"]["matchLabels"],
    ] {
        assert_eq!(*selector, own);
    }
    // They also select a Deployment for discovery alone.
    let all = json!({"app.kubernetes.io/part-of": "linkerd-operator"});
    for selector in [
        &of_kind(&objects, "PodMonitor")[0]["spec"]["selector"]["matchLabels"],
        &of_kind(&objects, "NetworkPolicy")[0]["spec"]["podSelector"]["matchLabels"],
    ] {
        assert_eq!(*selector, all);
    }
    assert_eq!(pod["metadata"]["labels"]["app.kubernetes.io/part-of"], "linkerd-operator");
    for (key, value) in own.as_object().context("labels")? {
        assert_eq!(pod["metadata"]["labels"][key], *value);
    }
    Ok(())
}

/// Every field is known, every value is valid, and the Pods pass the Pod Security Standard `restricted`.
#[tokio::test]
async fn an_api_server_accepts_the_manifests_without_a_warning_and_the_pods_as_restricted() -> Result<()> {
    let control_plane = Rig::bare().namespace("linkerd").start().await?;
    // Dry runs fail in a namespace that does not exist.
    let namespace = control_plane.shipped("config/manager").await?;
    control_plane.apply(&of_kind(&namespace, "Namespace").into_iter().cloned().collect::<Vec<_>>()).await?;
    for folder in [FOLDERS.as_slice(), &["crd/linkerd"]].concat() {
        let path = format!("{}/../{folder}", env!("CARGO_MANIFEST_DIR"));
        let strictly = ["apply", "--dry-run=server", "--validate=strict", "--warnings-as-errors", "-k", &path];
        for how in [&["--server-side"][..], &[]] {
            let output = control_plane.kubectl(&[&strictly, how].concat()).await.with_context(|| folder.to_owned())?;
            ensure!(output.contains("(server dry run)"), "{folder}: {output}");
        }
    }
    let objects = control_plane.shipped("config/default").await?;
    let pod = &of_kind(&objects, "Deployment")[0]["spec"]["template"];
    let create = async |pod: &Value| {
        let mut pod = pod.clone();
        pod["apiVersion"] = json!("v1");
        pod["kind"] = json!("Pod");
        pod["metadata"]["name"] = json!("one");
        pod["metadata"]["namespace"] = json!(OPERATOR_NAMESPACE);
        let file = control_plane.directory().join("pod.json");
        tokio::fs::write(&file, pod.to_string()).await?;
        let file = file.display().to_string();
        control_plane.kubectl(&["create", "--dry-run=server", "--warnings-as-errors", "-f", &file]).await
    };
    create(pod).await?;
    // Pods that are not restricted are rejected, so the standard is enforced.
    for (part, field) in [("pod", "runAsNonRoot"), ("pod", "seccompProfile"), ("container", "capabilities")] {
        let mut lax = pod.clone();
        let context = match part {
            "pod" => &mut lax["spec"]["securityContext"],
            _ => &mut lax["spec"]["containers"][0]["securityContext"],
        };
        ensure!(context.as_object_mut().context("a securityContext")?.remove(field).is_some(), "no {field}");
        let refusal = create(&lax).await.err().with_context(|| format!("the Pod was accepted without {field}"))?;
        ensure!(format!("{refusal:#}").contains("violates PodSecurity \"restricted"), "{refusal:#}");
    }
    Ok(())
}
