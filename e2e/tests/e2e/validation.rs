//! The validation of objects by the manager's webhook, and by the operator in place of Linkerd's `sp-validator`: through
//! the API server, which rejects an object if the webhook does not answer.

use std::{path::Path, time::Duration};

use anyhow::{Context, Result, ensure};
use e2e::{
    ControlPlane, TestNamespace, eventually,
    mesh::{SOON, merge},
    metric, plain_http,
    validator::{LABEL, WebhookProcess, unregister},
};
use http::{Method, Request, StatusCode};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{Client, api::PostParams, client::Body};
use serde_json::{Value, json};

const INSTALLED: &str = include_str!("../../../src/values/testdata/installed.yaml");
const PROFILES: &str = "linkerd.io/v1alpha2";
const WORKLOADS: &str = "workload.linkerd.io/v1beta1";
const CONFIGS: &str = "config.linkerd.io/v1alpha1";
/// The registration of Linkerd's own validator.
const LINKERD_WEBHOOK: &str = "linkerd-sp-validator-webhook-config";

/// A registered webhook, and the namespace of its objects.
struct WebhookSetup {
    client: Client,
    namespace: TestNamespace,
    webhook: WebhookProcess,
    label: String,
}

/// What the API server answered.
#[derive(Debug)]
struct ApiAnswer {
    status: StatusCode,
    message: String,
    warnings: Vec<String>,
}

// === impl WebhookSetup ===

impl WebhookSetup {
    async fn manager(flags: &[&str]) -> Result<Self> {
        let (control_plane, client, namespace) = prepared().await?;
        let controller_namespace = format!("--controller-namespace={}", namespace.name());
        let flags: Vec<&str> = [controller_namespace.as_str()].into_iter().chain(flags.iter().copied()).collect();
        let webhook = WebhookProcess::manager(control_plane, &flags).await?;
        Self::registered(client, namespace, webhook, "/validate").await
    }

    async fn registered(client: Client, namespace: TestNamespace, webhook: WebhookProcess, path: &str) -> Result<Self> {
        let label = namespace.name().to_owned();
        webhook.register(&client, &label, path).await?;
        let setup = Self { client, namespace, webhook, label };
        eventually(SOON, "the API server to call the webhook", async || {
            let denied = setup.profile("web", &json!({"routes": [{"name": "r", "condition": {}}]})).await?;
            ensure!(denied.status != StatusCode::CREATED, "{denied:?}");
            Ok(())
        })
        .await?;
        Ok(setup)
    }

    /// The name of a profile of a Service in the namespace of the test.
    fn service_name(&self) -> String {
        format!("web.{}.svc.cluster.local", self.namespace.name())
    }

    async fn profile(&self, name: &str, spec: &Value) -> Result<ApiAnswer> {
        self.create(PROFILES, "ServiceProfile", "serviceprofiles", &json!({"metadata": {"name": name}, "spec": spec}))
            .await
    }

    async fn workload(&self, version: &str, name: &str, spec: &Value) -> Result<ApiAnswer> {
        let object = json!({"metadata": {"name": name}, "spec": spec});
        self.create(version, "ExternalWorkload", "externalworkloads", &object).await
    }

    /// Creates a LinkerdConfig for the control plane in the test's namespace.
    async fn config(&self, spec: &Value) -> Result<ApiAnswer> {
        let mut object = json!({"metadata": {"name": self.namespace.name()}, "spec": {
            "global": {"linkerdNamespace": self.namespace.name()}}});
        merge(&mut object, json!({ "spec": spec }));
        self.create(CONFIGS, "LinkerdConfig", "linkerdconfigs", &object).await
    }

    /// Creates an object as a dry run: nothing is stored, but it is validated.
    async fn create(&self, version: &str, kind: &str, plural: &str, object: &Value) -> Result<ApiAnswer> {
        let mut whole = json!({"apiVersion": version, "kind": kind, "metadata": {"labels": {LABEL: self.label}}});
        merge(&mut whole, object.clone());
        let namespace = if kind == "LinkerdConfig" { "" } else { &format!("/namespaces/{}", self.namespace.name()) };
        let request = Request::post(format!("/apis/{version}{namespace}/{plural}?dryRun=All"))
            .header("content-type", "application/json")
            .body(Body::from(whole.to_string().into_bytes()))?;
        let response = self.client.send(request).await?;
        let (head, body) = response.into_parts();
        let warnings =
            head.headers.get_all("warning").iter().map(|header| header.to_str().unwrap_or_default().to_owned());
        let warnings = warnings.collect();
        let body: Value = serde_json::from_slice(&body.collect_bytes().await?)?;
        let message = body.get("message").and_then(Value::as_str).unwrap_or_default().to_owned();
        Ok(ApiAnswer { status: head.status, message, warnings })
    }

    async fn reviews(&self, kind: &str, result: &str) -> Result<f64> {
        let admin = self.webhook.admin_address();
        let (_, body) = plain_http::request(admin, Method::GET, "/metrics", "", Duration::from_secs(2)).await?;
        let samples = metric::parse(std::str::from_utf8(&body)?);
        let labels = [("kind", kind), ("result", result)];
        let found = samples.iter().find(|it| it.name == "linkerd_operator_validation_reviews_total" && it.has(&labels));
        Ok(found.map_or(0.0, |sample| sample.value))
    }

    async fn end(self) -> Result<()> {
        unregister(&self.client, &self.label).await
    }
}

// === impl ApiAnswer ===

impl ApiAnswer {
    /// Whether the object was denied with a message that ends with this text.
    fn is_denied(&self, message: &str) -> Result<()> {
        let is_denied = self.message.contains("denied the request: ") && self.message.ends_with(message);
        ensure!(is_denied && self.status.is_client_error(), "expected {message:?}: {self:?}");
        Ok(())
    }

    fn is_created(&self, warnings: &[&str]) -> Result<()> {
        let expected: Vec<String> = warnings.iter().map(|text| format!("299 - {}", json!(text))).collect();
        ensure!(self.status == StatusCode::CREATED && self.warnings == expected, "expected {expected:?}: {self:?}");
        Ok(())
    }
}

async fn prepared() -> Result<(&'static ControlPlane, Client, TestNamespace)> {
    let control_plane = e2e::shared().await?;
    control_plane.install_crds("crd").await?;
    control_plane.install_crds("crd/linkerd").await?;
    let client = control_plane.client().await?;
    let namespace = TestNamespace::create(&client, "validation").await?;
    Ok((control_plane, client, namespace))
}

/// A profile that the schema of the API server accepts, with this condition of its route in `all`.
fn with_condition(condition: &Value) -> Value {
    json!({"routes": [{"name": "r", "condition": {"all": [condition]}}]})
}

#[tokio::test]
async fn the_manager_denies_service_profiles_unless_linkerds_validator_is_registered() -> Result<()> {
    let setup = WebhookSetup::manager(&["--enable-linkerd-config=false", "--enable-destination=false"]).await?;
    let message = "ServiceProfile \"web\" has a route with an invalid condition: A request match must have a field set";
    setup.profile("web", &with_condition(&json!({}))).await?.is_denied(message)?;
    let name = setup.service_name();
    setup.profile(&name, &with_condition(&json!({"method": "GET"}))).await?.is_created(&[])?;
    let warning =
        "the name \"web\" is not SERVICE.NAMESPACE.svc.cluster.local: the ServiceProfile applies to no client";
    setup.profile("web", &with_condition(&json!({"method": "GET"}))).await?.is_created(&[warning])?;
    assert!(setup.reviews("ServiceProfile", "denied").await? >= 1.0);
    assert!(setup.reviews("ServiceProfile", "allowed").await? >= 1.0);

    // The first manager has cached for 30 s that this configuration does not exist, so a second one is started.
    let webhook = json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingWebhookConfiguration",
        "metadata": {"name": LINKERD_WEBHOOK}, "webhooks": []});
    let control_plane = e2e::shared().await?;
    let silent = async {
        let file = tempfile::NamedTempFile::new()?;
        std::fs::write(file.path(), webhook.to_string())?;
        control_plane.kubectl(&["create", "-f", &file.path().display().to_string()]).await?;
        let other =
            WebhookProcess::manager(control_plane, &["--enable-linkerd-config=false", "--enable-destination=false"]);
        let other = other.await?;
        let object = json!({"metadata": {"name": "web"}, "spec": {"routes": [null]}});
        let review = json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": {
            "uid": "u", "operation": "CREATE", "object": object,
            "kind": {"group": "linkerd.io", "version": "v1alpha2", "kind": "ServiceProfile"}}});
        let (_, body) = other.post("/validate", review.to_string()).await?;
        anyhow::Ok(serde_json::from_slice::<Value>(&body)?)
    };
    let answer = silent.await;
    unregister(&setup.client, LINKERD_WEBHOOK).await?;
    assert_eq!(answer?["response"], json!({"uid": "u", "allowed": true}));
    setup.end().await
}

#[tokio::test]
async fn the_manager_warns_about_external_workloads_that_cannot_be_endpoints() -> Result<()> {
    let setup = WebhookSetup::manager(&["--enable-linkerd-config=false", "--enable-destination=false"]).await?;
    let mut spec = json!({
        "meshTLS": {"identity": "spiffe://root.linkerd.cluster.local/vm", "serverName": "vm.example"},
        "workloadIPs": [{"ip": "192.0.2.1"}],
        "ports": [{"port": 80, "name": "http"}],
    });
    setup.workload(WORKLOADS, "vm", &spec).await?.is_created(&[])?;
    merge(&mut spec, json!({"workloadIPs": [{"ip": "127.0.0.1"}], "ports": [{"port": 80, "protocol": "tcp"}]}));
    let warnings = [
        "workloadIPs contains \"127.0.0.1\", which is not a valid endpoint address: it is a loopback address; it is skipped",
        "spec.ports has a protocol that no Service has (\"tcp\"): it must be TCP, UDP or SCTP",
    ];
    setup.workload(WORKLOADS, "vm", &spec).await?.is_created(&warnings)?;
    let old = json!({"meshTls": {"identity": "spiffe://mesh.example/vm", "serverName": "vm"}, "workloadIPs": [{"ip": "192.0.2.1"}],
        "ports": [{"port": 80}]});
    let answer = setup.workload("workload.linkerd.io/v1alpha1", "vm", &old).await?;
    answer.is_created(&[
        "spec.meshTls of v1alpha1 is dropped, because v1beta1 names it meshTLS: proxies connect without TLS; \
                         use v1beta1",
    ])?;
    assert!(setup.reviews("ExternalWorkload", "warned").await? >= 2.0);
    setup.end().await
}

#[tokio::test]
async fn the_manager_denies_linkerd_configs_with_the_words_of_the_condition_and_warns() -> Result<()> {
    let setup = WebhookSetup::manager(&["--enable-destination=false"]).await?;
    let map = json!({"metadata": {"name": "linkerd-config"}, "data": {"values": INSTALLED}});
    setup.namespace.api::<ConfigMap>().create(&PostParams::default(), &serde_json::from_value(map)?).await?;
    let message = "proxy.await (1): must be true or false: otherwise the injector denies every Pod";
    setup.config(&json!({"values": {"proxy": {"await": 1}}})).await?.is_denied(message)?;
    let message = "spec.rollout.window: timeZone: unknown time zone \"Europe/Nowhere\"";
    setup.config(&json!({"rollout": {"window": {"timeZone": "Europe/Nowhere"}}})).await?.is_denied(message)?;
    setup.config(&json!({"proxy": {"logLevel": "debug"}})).await?.is_created(&[])?;
    let warning = "spec.rollout.onFailure is Continue: a configuration that proxies do not start with reaches every selected \
                   workload";
    setup.config(&json!({"rollout": {"onFailure": "Continue"}})).await?.is_created(&[warning])?;
    // The warning depends on the ConfigMap, which the manager watches.
    let warning = "not accepted for now: proxyInit.closeWaitTimeoutSecs (30): requires proxyInit.runAsRoot";
    eventually(SOON, "the manager to have the ConfigMap", async || {
        let spec = json!({"values": {"proxyInit": {"closeWaitTimeoutSecs": 30}}});
        setup.config(&spec).await?.is_created(&[warning])
    })
    .await?;
    let elsewhere = json!({"global": {"linkerdNamespace": "elsewhere"}});
    let answer = setup.config(&elsewhere).await?;
    ensure!(answer.warnings.iter().any(|it| it.contains("this operator manages namespace")), "{answer:?}");
    setup.end().await
}

#[tokio::test]
async fn the_operator_in_place_of_linkerds_sp_validator_needs_no_api_server() -> Result<()> {
    let (control_plane, client, namespace) = prepared().await?;
    let webhook = WebhookProcess::sp_validator(control_plane, Path::new("/nowhere/kubeconfig")).await?;
    let setup = WebhookSetup::registered(client, namespace, webhook, "/").await?;
    let message = "ServiceProfile \"web\" has a route with an invalid timeout: time: missing unit in duration \"5\"";
    let spec = json!({"routes": [{"name": "r", "timeout": "5", "condition": {"method": "GET"}}]});
    setup.profile("web", &spec).await?.is_denied(message)?;
    let message =
        "failed to validate ServiceProfile: error unmarshaling JSON: while decoding JSON: json: unknown field \"foo\"";
    setup.profile("web", &with_condition(&json!({"foo": 1}))).await?.is_denied(message)?;
    let name = setup.service_name();
    setup.profile(&name, &with_condition(&json!({"pathRegex": "/"}))).await?.is_created(&[])?;
    let warning = "route \"r\": proxies ignore this condition, so the route matches more requests: the pathRegex \
                   \"/books/{id}\" is not valid: repetition quantifier expects a valid decimal";
    let name = format!("books-{name}");
    setup.profile(&name, &with_condition(&json!({"pathRegex": "/books/{id}"}))).await?.is_created(&[warning])?;

    let post = async |body: String| setup.webhook.post("/any/path?timeout=3s", body).await;
    assert_eq!(post(String::new()).await?, (StatusCode::OK, "".into()));
    let invalid = (StatusCode::BAD_REQUEST, "invalid admission review request".into());
    assert_eq!(post("{}".to_owned()).await?, invalid);
    let limit = "limit reached while reading: 10485760";
    assert_eq!(post("x".repeat(10_485_761)).await?, (StatusCode::PAYLOAD_TOO_LARGE, limit.into()));
    let (_, body) =
        post(r#"{"kind": "AdmissionReview", "request": {"uid": "u", "operation": "DELETE"}}"#.to_owned()).await?;
    let review: Value = serde_json::from_slice(&body)?;
    assert_eq!(review["request"], json!({"uid": "u", "operation": "DELETE"}));
    assert_eq!((&review["response"]["allowed"], &review["response"]["status"]["code"]), (&json!(false), &json!(400)));
    let log = setup.webhook.log();
    ensure!(!log.contains("forbidden"), "it asked for something: {log}");
    setup.end().await.context("ending")
}
