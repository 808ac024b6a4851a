//! The samples for API servers: the audit policy records who changes what runs in meshed Pods, and the admission policy
//! permits images of some registries only.

use anyhow::{Context, Result, ensure};
use e2e::{Options, Rig, User, eventually, kubeconfig, mesh::SOON, shipped::in_repository};
use http::Method;
use hyper::StatusCode;
use serde_json::{Value, json};

use super::{object, probe::Probe};

const CONFIGS: &str = "/apis/config.linkerd.io/v1alpha1/linkerdconfigs";
const POLICY: &str = "linkerd-image-registries";
const OURS: &str = "cr.l5d.io/linkerd/proxy";
/// The registry without the slash, and then something else.
const FOREIGN: &str = "cr.l5d.io/linkerd-evil/proxy";

fn config(spec: &Value) -> Value {
    object("config.linkerd.io/v1alpha1", "LinkerdConfig", None, "mesh", json!({ "spec": spec }))
}

fn annotated(kind: &str, namespace: Option<&str>, annotation: &str, image: &str) -> Value {
    let spec = json!({"containers": [{"name": "web", "image": "web"}]});
    let spec = if kind == "Pod" { spec } else { json!({}) };
    let metadata = json!({"annotations": {format!("config.linkerd.io/{annotation}"): image}});
    object("v1", kind, namespace, "images", json!({"metadata": metadata, "spec": spec}))
}

/// Objects with this image, each with what it is and where it is created. The keys of values are read in any case.
fn with_image(image: &str) -> Vec<(&'static str, &'static str, Value)> {
    let values = |values: &Value| config(&json!({ "values": values }));
    vec![
        ("proxyImage", CONFIGS, config(&json!({"proxy": {"proxyImage": {"name": image}}}))),
        ("proxyInitImage", CONFIGS, config(&json!({"proxy": {"proxyInitImage": {"name": image}}}))),
        ("values.proxy", CONFIGS, values(&json!({"proxy": {"image": {"name": image}}}))),
        ("values.PROXY", CONFIGS, values(&json!({"PROXY": {"Image": {"NAME": image}}}))),
        ("values.proxyInit", CONFIGS, values(&json!({"proxyInit": {"image": {"name": image}}}))),
        ("values.debugContainer", CONFIGS, values(&json!({"debugContainer": {"image": {"name": image}}}))),
        ("a Pod", "/api/v1/namespaces/app/pods", annotated("Pod", Some("app"), "proxy-image", image)),
        ("a debug container", "/api/v1/namespaces/app/pods", annotated("Pod", Some("app"), "debug-image", image)),
        ("a namespace", "/api/v1/namespaces", annotated("Namespace", None, "proxy-image", image)),
    ]
}

#[tokio::test(flavor = "multi_thread")]
async fn only_images_of_the_listed_registries_are_admitted() -> Result<()> {
    let control_plane = Rig::bare().crds("crd").namespace("app").start().await?;
    control_plane.kubectl(&["-n", "app", "create", "serviceaccount", "default"]).await?;
    let client = &control_plane.client;
    let create = async |path: &str, body: &Value| {
        Probe::new(Method::POST, format!("{path}?dryRun=All"), Some(body.clone())).send(client).await
    };
    for (what, path, body) in with_image(FOREIGN) {
        let (status, text) = create(path, &body).await?;
        ensure!(status.is_success(), "without the policy, {what}: {status} {text}");
    }
    control_plane.kubectl(&["apply", "-f", &in_repository("config/samples/image-registries.yaml")]).await?;
    for (what, path, body) in with_image(FOREIGN) {
        eventually(SOON, format_args!("{POLICY} to refuse {what}"), async || {
            let (status, text) = create(path, &body).await?;
            let named = text.contains(&format!("ValidatingAdmissionPolicy '{POLICY}'"));
            ensure!(status == StatusCode::FORBIDDEN && named, "{status} {text}");
            Ok(())
        })
        .await?;
    }
    let permitted = [
        ("no image", CONFIGS, config(&json!({}))),
        ("no name", CONFIGS, config(&json!({"proxy": {"proxyImage": {"pullPolicy": "Always"}}}))),
        ("other values", CONFIGS, config(&json!({"values": {"proxy": {"logLevel": "warn"}, "imagePullSecrets": []}}))),
        ("a removed value", CONFIGS, config(&json!({"values": {"proxy": {"image": null}, "debugContainer": null}}))),
        ("another annotation", "/api/v1/namespaces", annotated("Namespace", None, "proxy-log-level", "warn")),
    ];
    for (what, path, body) in with_image(OURS).into_iter().chain(permitted) {
        let (status, text) = create(path, &body).await?;
        ensure!(status.is_success(), "{what}: {status} {text}");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_audit_log_names_who_changed_what_runs_in_meshed_pods_and_nothing_else() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let log = folder.path().join("audit.log");
    let args = vec![
        format!("--audit-policy-file={}", in_repository("config/samples/audit-policy.yaml")),
        format!("--audit-log-path={}", log.display()),
    ];
    let alice = User { name: "alice".to_owned(), groups: vec!["system:masters".to_owned()] };
    let options = Options { users: vec![alice], extra_api_server_args: args, ..Options::default() };
    let control_plane = Rig::linkerd().options(options).crds("crd").namespace("app").start().await?;
    let client = kubeconfig::client(&control_plane.kubeconfig_for("alice")?).await?;
    let image = json!({"proxy": {"proxyImage": {"name": OURS}}});
    let labels = json!({"app": "web"});
    let template = json!({"metadata": {"labels": labels, "annotations": {"config.linkerd.io/proxy-image": OURS}},
        "spec": {"containers": [{"name": "web", "image": "web", "env": [{"name": "PASSWORD", "value": "secret"}]}]}});
    let deployment = json!({"spec": {"selector": {"matchLabels": labels}, "template": template}});
    let workload =
        json!({"spec": {"meshTLS": {"identity": "vm", "serverName": "vm"}, "workloadIPs": [{"ip": "198.51.100.1"}]}});
    let app = "/api/v1/namespaces/app";
    let secret = object("v1", "Secret", Some("app"), "s", json!({}));
    for (method, path, body) in [
        (Method::POST, CONFIGS, config(&image)),
        (
            Method::POST,
            "/apis/workload.linkerd.io/v1beta1/namespaces/app/externalworkloads",
            object("workload.linkerd.io/v1beta1", "ExternalWorkload", Some("app"), "vm", workload),
        ),
        (
            Method::POST,
            "/api/v1/namespaces/linkerd/configmaps",
            object("v1", "ConfigMap", Some("linkerd"), "linkerd-config", json!({"data": {"values": "a: 1"}})),
        ),
        (Method::PUT, app, annotated("Namespace", None, "proxy-image", OURS)),
        (
            Method::POST,
            "/apis/apps/v1/namespaces/app/deployments",
            object("apps/v1", "Deployment", Some("app"), "web", deployment),
        ),
        (Method::POST, "/api/v1/namespaces/app/secrets", secret),
        (Method::POST, "/api/v1/namespaces/app/configmaps", object("v1", "ConfigMap", Some("app"), "c", json!({}))),
    ] {
        let mut body = body;
        if method == Method::PUT {
            body["metadata"]["name"] = json!("app");
        }
        let (status, text) = Probe::new(method, path.to_owned(), Some(body)).send(&client).await?;
        ensure!(status.is_success(), "{path}: {status} {text}");
    }
    let (status, text) = Probe::get(CONFIGS).send(&client).await?;
    ensure!(status.is_success(), "{status} {text}");
    let recorded = std::fs::read_to_string(&log).with_context(|| format!("reading {}", log.display()))?;
    let entries = recorded.lines().map(serde_json::from_str).collect::<Result<Vec<Value>, _>>()?;
    let of_alice = entries.iter().filter(|entry| entry["user"]["username"] == "alice");
    let of_alice: Vec<String> = of_alice
        .map(|entry| {
            let [level, verb, resource] =
                [&entry["level"], &entry["verb"], &entry["objectRef"]["resource"]].map(|it| it.as_str().unwrap_or("?"));
            let has_object = if entry["requestObject"].is_null() { "" } else { " with the object" };
            format!("{level} {verb} {resource}{has_object}")
        })
        .collect();
    assert_eq!(
        of_alice,
        [
            "Request create linkerdconfigs with the object",
            "Request create externalworkloads with the object",
            "Request create configmaps with the object",
            "Request update namespaces with the object",
            "Metadata create deployments",
        ]
    );
    ensure!(!recorded.contains("PASSWORD"), "the log has the environment of a workload");
    Ok(())
}
