//! The components of overlays: which objects they change, and that the manager works with the permissions that remain.

use std::{collections::BTreeSet, net::SocketAddr};

use anyhow::{Context, Result, ensure};
use e2e::{
    ControlPlane, Manager, ManagerOptions, Rig, eventually,
    injector::machine_address,
    mesh::SOON,
    plain_http, port,
    shipped::{OPERATOR_NAMESPACE, is_named},
};
use http::{Request, header};
use http_body_util::Full;
use serde_json::{Value, json};
use tokio::net::TcpStream;

use super::{id, of_kind};

const ACCOUNT: &str = "linkerd-operator";
const DESTINATION: &str = "linkerd-operator-destination";
const EXTERNAL_WORKLOAD: &str = "linkerd-operator-external-workload";

pub(crate) fn components(names: &[&str]) -> String {
    let paths: Vec<_> = names.iter().map(|name| format!("../../config/components/{name}")).collect();
    format!("components: [{}]", paths.join(", "))
}

fn ids(objects: &[Value]) -> BTreeSet<String> {
    objects.iter().map(id).collect()
}

#[tokio::test]
async fn the_components_of_the_webhooks_add_their_objects_and_settings_and_change_nothing_else() -> Result<()> {
    let control_plane = e2e::shared().await?;
    let folder = "config/default";
    let whole = control_plane.shipped(folder).await?;
    let server = ["ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding"]
        .map(|kind| format!("{kind}/linkerd-operator-webhook-certificate"));
    let injector = ["ClusterRole", "ClusterRoleBinding"].map(|kind| format!("{kind}/linkerd-operator-proxy-injector"));
    let mut added: BTreeSet<_> = server.into_iter().chain(injector).collect();
    added.insert("Service/linkerd-operator-webhook".to_owned());
    added.insert("MutatingWebhookConfiguration/linkerd-operator-proxy-injector".to_owned());
    added.insert("ValidatingWebhookConfiguration/linkerd-operator-validation".to_owned());
    // In another namespace, after a component that adds a Deployment.
    let lines = format!(
        "{}\nnamespace: mesh-operator\n",
        components(&["separate-destination", "webhook-server", "proxy-injector", "webhooks"])
    );
    let objects =
        control_plane.shipped_with(folder, &components(&["webhook-server", "proxy-injector", "webhooks"])).await?;
    assert_eq!(ids(&objects).difference(&ids(&whole)).cloned().collect::<BTreeSet<_>>(), added);
    for object in &whole {
        let changed = objects
            .iter()
            .find(|it| id(it) == id(object) && it["metadata"]["namespace"] == object["metadata"]["namespace"]);
        let is_extended = ["Deployment", "NetworkPolicy"].contains(&object["kind"].as_str().unwrap_or_default());
        ensure!(changed.is_some_and(|it| it == object || is_extended), "{} changed", id(object));
    }
    let container = &of_kind(&objects, "Deployment")[0]["spec"]["template"]["spec"]["containers"][0];
    let env = container["env"].as_array().context("env")?;
    for (name, value) in [
        ("LINKERD_OPERATOR_WEBHOOK_CERTIFICATE_SECRET", "linkerd-operator-webhook"),
        ("LINKERD_OPERATOR_ENABLE_PROXY_INJECTOR", "true"),
        ("LINKERD_OPERATOR_ENABLE_WEBHOOKS", "true"),
    ] {
        ensure!(env.contains(&json!({"name": name, "value": value})), "{name}: {env:?}");
    }
    ensure!(
        container["ports"]
            .as_array()
            .is_some_and(|ports| ports.contains(&json!({"name": "webhook", "containerPort": 9443}))),
        "{container}"
    );

    let elsewhere = control_plane.shipped_with(folder, &lines).await?;
    for kind in ["MutatingWebhookConfiguration", "ValidatingWebhookConfiguration"] {
        let [configuration] = of_kind(&elsewhere, kind)[..] else { anyhow::bail!("expected one {kind}") };
        let service = &configuration["webhooks"][0]["clientConfig"]["service"];
        assert_eq!(
            (&service["namespace"], &service["name"]),
            (&json!("mesh-operator"), &json!("linkerd-operator-webhook"))
        );
        assert_eq!(configuration["webhooks"][0]["failurePolicy"], "Ignore");
    }
    for deployment in of_kind(&elsewhere, "Deployment") {
        let text = deployment.to_string();
        let is_server = deployment["metadata"]["name"] == ACCOUNT;
        assert_eq!(text.contains("WEBHOOK_CERTIFICATE_SECRET"), is_server, "{}", id(deployment));
    }
    let from = |labels: Value| json!([{"namespaceSelector": labels}]);
    let metrics = json!({"from": from(json!({"matchLabels": {"metrics": "enabled"}})), "ports": [{"port": "admin"}]});
    let discovery = json!({"from": from(json!({})), "ports": [{"port": "grpc"}]});
    let webhook = json!({"ports": [{"port": "webhook"}]});
    for (objects, rules) in [
        (&whole, json!([metrics])),
        (&objects, json!([metrics, webhook])),
        (&elsewhere, json!([metrics, discovery, webhook])),
    ] {
        assert_eq!(of_kind(objects, "NetworkPolicy")[0]["spec"]["ingress"], rules);
    }
    Ok(())
}

/// The component for Linkerd's namespace that belongs to a component.
fn in_linkerd(name: &str) -> Option<&str> {
    match name {
        "separate-destination" | "metrics-authentication" => None,
        "separate-external-workloads" => Some("separate-external-workloads/control-plane"),
        name => Some(name),
    }
}

/// A rig to which overlays of both folders with these components are applied, without the Deployments.
struct ComponentRig {
    control_plane: Rig,
    objects: Vec<Value>,
}

impl ComponentRig {
    async fn start(names: &[&str]) -> Result<Self> {
        let control_plane = Rig::linkerd().start().await?;
        let objects = control_plane.shipped_with("config/default", &components(names)).await?;
        let mut applied: Vec<_> = objects.iter().filter(|object| object["kind"] != "Deployment").cloned().collect();
        let in_linkerd: Vec<_> = names.iter().filter_map(|name| in_linkerd(name)).collect();
        applied.extend(control_plane.shipped_with("config/control-plane", &components(&in_linkerd)).await?);
        control_plane.apply(&applied).await?;
        control_plane.install_crds("crd").await?;
        Ok(Self { control_plane, objects })
    }

    async fn manager(&self, deployment: &str) -> Result<Manager> {
        start_manager(&self.control_plane, &self.objects, deployment, OPERATOR_NAMESPACE, &[]).await
    }

    async fn may(&self, account: &str, verb: &str, resource: &str) -> bool {
        self.control_plane.may(OPERATOR_NAMESPACE, account, verb, resource, "--all-namespaces").await
    }
}

/// Starts the manager of a Deployment with [`manager_options`].
pub(crate) async fn start_manager(
    control_plane: &ControlPlane,
    objects: &[Value],
    deployment: &str,
    namespace: &str,
    flags: &[String],
) -> Result<Manager> {
    manager_options(control_plane, objects, deployment, namespace, flags).await?.start(control_plane)
}

/// The options with which the manager of a Deployment runs as in its Pod: with its ServiceAccount and its environment,
/// except what the environment has from a field of the Pod. `flags` are added, and take precedence over the environment.
pub(crate) async fn manager_options(
    control_plane: &ControlPlane,
    objects: &[Value],
    deployment: &str,
    namespace: &str,
    flags: &[String],
) -> Result<ManagerOptions> {
    let deployments = of_kind(objects, "Deployment");
    let object = deployments.into_iter().find(|object| e2e::shipped::is_named(object, deployment));
    let pod = &object.with_context(|| format!("no Deployment {deployment}"))?["spec"]["template"]["spec"];
    let account = pod["serviceAccountName"].as_str().context("no ServiceAccount")?;
    let text = |value: &Value| value.as_str().map(str::to_owned);
    let env = pod["containers"][0]["env"].as_array().into_iter().flatten();
    Ok(ManagerOptions {
        args: [&[format!("--operator-namespace={namespace}")], flags].concat(),
        env: env.filter_map(|variable| Some((text(&variable["name"])?, text(&variable["value"])?))).collect(),
        kubeconfig: Some(control_plane.kubeconfig_for_service_account(namespace, account).await?),
        ..ManagerOptions::default()
    })
}

/// Waits until the manager reports no missing permission, and checks that it was denied nothing.
pub(crate) async fn lacks_nothing(manager: &mut Manager) -> Result<()> {
    manager.ready(SOON).await?;
    manager.is_well(SOON).await?;
    let log = manager.log();
    let denied = log.lines().find(|line| line.contains("is forbidden: User"));
    ensure!(denied.is_none(), "{denied:?}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_separate_destination_serves_proxies_with_an_account_that_writes_nothing() -> Result<()> {
    let cluster = ComponentRig::start(&["separate-destination"]).await?;
    let mut destination = cluster.manager(DESTINATION).await?;
    let mut controllers = cluster.manager(ACCOUNT).await?;
    lacks_nothing(&mut destination).await?;
    lacks_nothing(&mut controllers).await?;
    destination.discovery().await?.get("kubernetes.default.svc.cluster.local:443", "").await?;
    ensure!(controllers.discovery().await.is_err(), "the controllers must not listen for proxies");
    for (verb, resource) in [
        ("patch", "deployments.apps"),
        ("patch", "daemonsets.apps"),
        ("create", "endpointslices.discovery.k8s.io"),
        ("patch", "linkerdconfigs.config.linkerd.io"),
        ("create", "events.events.k8s.io"),
    ] {
        ensure!(cluster.may(ACCOUNT, verb, resource).await, "the controllers may not {verb} {resource}");
        ensure!(!cluster.may(DESTINATION, verb, resource).await, "the destination may {verb} {resource}");
    }
    ensure!(cluster.may(DESTINATION, "list", "nodes").await, "the destination may not list nodes");
    ensure!(!cluster.may(ACCOUNT, "list", "nodes").await, "the controllers may list nodes");
    let selector = json!({"app.kubernetes.io/name": DESTINATION});
    assert_eq!(of_kind(&cluster.objects, "Service")[0]["spec"]["selector"], selector);
    // Only these Pods listen on their own addresses.
    let address = json!({"name": "LINKERD_OPERATOR_DESTINATION_ADDR", "value": "[::]:8086"});
    for deployment in of_kind(&cluster.objects, "Deployment") {
        let container = &deployment["spec"]["template"]["spec"]["containers"][0];
        let (env, ports) = (container["env"].to_string(), container["ports"].to_string());
        let serves = is_named(deployment, DESTINATION);
        assert_eq!((env.contains(&address.to_string()), ports.contains("8086")), (serves, serves), "{env} {ports}");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn separate_external_workloads_are_written_by_an_account_that_restarts_nothing() -> Result<()> {
    let cluster = ComponentRig::start(&["separate-destination", "separate-external-workloads"]).await?;
    for deployment in [DESTINATION, EXTERNAL_WORKLOAD, ACCOUNT] {
        lacks_nothing(&mut cluster.manager(deployment).await?).await.with_context(|| deployment.to_owned())?;
    }
    for (verb, resource, by) in [
        ("create", "endpointslices.discovery.k8s.io", EXTERNAL_WORKLOAD),
        ("delete", "endpointslices.discovery.k8s.io", EXTERNAL_WORKLOAD),
        ("patch", "deployments.apps", ACCOUNT),
        ("patch", "linkerdconfigs.config.linkerd.io", ACCOUNT),
        ("list", "nodes", DESTINATION),
    ] {
        for account in [DESTINATION, EXTERNAL_WORKLOAD, ACCOUNT] {
            let may = cluster.may(account, verb, resource).await;
            ensure!(may == (account == by), "{account}: {verb} {resource} is {may}");
        }
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_job_the_manager_lacks_no_permission() -> Result<()> {
    for (component, verb, resource) in [
        ("without-external-workloads", "create", "endpointslices.discovery.k8s.io"),
        ("without-linkerd-config", "patch", "deployments.apps"),
    ] {
        let cluster = ComponentRig::start(&[component]).await?;
        lacks_nothing(&mut cluster.manager(ACCOUNT).await?).await.with_context(|| component.to_owned())?;
        ensure!(!cluster.may(ACCOUNT, verb, resource).await, "{component}: it may {verb} {resource}");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn with_authentication_the_metrics_need_a_token_of_a_user_who_may_get_them() -> Result<()> {
    const READER: &str = "linkerd-operator-metrics-reader";
    let cluster = ComponentRig::start(&["metrics-authentication"]).await?;
    let control_plane = &cluster.control_plane;
    let component = "components: [../../config/prometheus/metrics-authentication]";
    let mut monitoring = control_plane.shipped_with("config/prometheus", component).await?;
    monitoring.retain(|object| is_named(object, READER));
    assert_eq!(
        ids(&monitoring),
        ["ClusterRoleBinding", "Secret", "ServiceAccount"].map(|kind| format!("{kind}/{READER}")).into()
    );
    control_plane.apply(&monitoring).await?;

    let port = port::free()?;
    let flags = [format!("--admin-addr=0.0.0.0:{port}")];
    let objects = &cluster.objects;
    let manager = start_manager(control_plane, objects, ACCOUNT, OPERATOR_NAMESPACE, &flags).await?;
    let address = SocketAddr::from((machine_address()?, port));
    let get = async |address: SocketAddr, path: &str, token: Option<&str>| -> Result<(u16, String)> {
        let mut request = Request::get(path).header(header::HOST, address.to_string());
        if let Some(token) = token {
            request = request.header(header::AUTHORIZATION, format!("Bearer {token}"));
        }
        let stream = TcpStream::connect(address).await?;
        let (status, body) = plain_http::exchanged(stream, request.body(Full::default())?).await?;
        Ok((status.as_u16(), String::from_utf8_lossy(&body).into_owned()))
    };
    eventually(SOON, "the manager to be ready", async || {
        let (status, body) = get(address, "/ready", None).await?;
        ensure!(status == 200, "{body}");
        Ok(())
    })
    .await?;
    for path in ["/live", "/ping", "/ready"] {
        assert_eq!(get(address, path, None).await?.0, 200, "{path}");
    }
    let reader = control_plane.service_account_token(OPERATOR_NAMESPACE, READER).await?;
    let other = control_plane.service_account_token(OPERATOR_NAMESPACE, ACCOUNT).await?;
    for path in ["/metrics", "/issued"] {
        for (token, status) in [(None, 401), (Some("invented"), 401), (Some(&*other), 403)] {
            assert_eq!(get(address, path, token).await?.0, status, "{path}, {token:?}");
        }
    }
    // This process issues none.
    assert_eq!(get(address, "/issued", Some(&reader)).await?.0, 404);
    let (status, metrics) = get(address, "/metrics", Some(&reader)).await?;
    ensure!(status == 200 && metrics.contains("linkerd_operator_build_info"), "{status} {metrics}");
    // As a port-forward connects.
    let (status, metrics) = get(([127, 0, 0, 1], port).into(), "/metrics", None).await?;
    ensure!(status == 200 && metrics.contains("linkerd_operator_build_info"), "{status} {metrics}");

    // Without its permission, the operator refuses what it cannot review.
    let binding = "linkerd-operator-metrics-authentication";
    control_plane.kubectl(&["delete", "clusterrolebinding", binding]).await?;
    let mut unknown = 0;
    eventually(SOON, "reviews to be refused", async || {
        unknown += 1;
        let (status, body) = get(address, "/metrics", Some(&format!("unknown-{unknown}"))).await?;
        ensure!(status == 503, "{status} {body}");
        Ok(())
    })
    .await?;
    assert_eq!(get(address, "/metrics", Some(&reader)).await?.0, 200, "it was permitted within the last hour");
    let log = manager.log();
    ensure!(log.contains("could not review a client of the metrics"), "{log}");
    for token in [&*reader, &*other, "unknown-1"] {
        ensure!(!log.contains(token), "a token is in the log");
    }
    Ok(())
}
