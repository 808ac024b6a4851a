//! Tests of the stand-in for Linkerd's proxy injector, through the API server and directly. Replicas that lag or fail are
//! tested with the operator.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use e2e::{
    Injector, TestNamespace,
    control_plane::PERMIT_DEADLINE,
    eventually, holds,
    injector::{FailurePolicy, unregister},
};
use http::StatusCode;
use k8s_openapi::{
    ByteString,
    api::core::v1::{ConfigMap, Pod, Service},
};
use kube::{
    Api, Client,
    api::{Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};
use tokio::{
    sync::{Mutex, MutexGuard},
    time::timeout,
};

/// The values that Helm installs.
pub(crate) const HELM: &str = include_str!("../../../src/values/testdata/installed.yaml");
const ROOTS: &str = "one\n";
/// `printf 'one\n' | sha256sum`
const ROOTS_SHA256: &str = "2c8b08da5ce60398e1f19af0e5dccc744df274b826abe585eaba68c525434806";
const SOON: Duration = Duration::from_secs(45);
/// How long a test waits for an unexpected change.
const MOMENT: Duration = Duration::from_millis(400);
/// Serializes the tests, because a cluster has one injector.
static TURN: Mutex<()> = Mutex::const_new(());

pub(crate) struct Setup {
    pub(crate) injector: Injector,
    pub(crate) namespace: TestNamespace,
    maps: Api<ConfigMap>,
    pub(crate) client: Client,
    _turn: MutexGuard<'static, ()>,
}

impl Setup {
    /// Starts an injector with the document [`HELM`], marked `a`, and the trust roots [`ROOTS`].
    async fn new(replicas: usize) -> Result<Self> {
        Self::start(replicas, None, &[]).await
    }

    /// The same with the operator in place of Linkerd's container. It is also called for the namespaces `others`.
    pub(crate) async fn with_operator(replicas: usize, others: &[&str]) -> Result<Self> {
        Self::start(replicas, Some(false), others).await
    }

    /// The same with a manager that watches the ConfigMaps.
    pub(crate) async fn with_manager() -> Result<Self> {
        Self::start(1, Some(true), &[]).await
    }

    /// With the operator, it is given whether that watches the ConfigMaps.
    async fn start(replicas: usize, operator: Option<bool>, others: &[&str]) -> Result<Self> {
        let turn =
            timeout(PERMIT_DEADLINE, TURN.lock()).await.context("other tests held the injectors for too long")?;
        let control_plane = e2e::shared().await?;
        let client = control_plane.client().await?;
        let namespace = TestNamespace::create(&client, "injector").await?;
        let maps = namespace.api::<ConfigMap>();
        for (name, key, text) in [
            ("linkerd-config", "values", marked("a").as_str()),
            ("linkerd-identity-trust-roots", "ca-bundle.crt", ROOTS),
        ] {
            let map = serde_json::from_value(json!({"metadata": {"name": name}, "data": {key: text}}))?;
            maps.create(&PostParams::default(), &map).await?;
        }
        let name = namespace.name();
        let injector = match operator {
            Some(watches) => Injector::start_operator(watches, control_plane, name, others, replicas).await?,
            None => Injector::start(control_plane, name, others, replicas).await?,
        };
        Ok(Self { injector, namespace, maps, client, _turn: turn })
    }

    pub(crate) async fn write(&self, values: &str) -> Result<()> {
        let patch = Patch::Merge(json!({"data": {"values": values}}));
        self.maps.patch("linkerd-config", &PatchParams::default(), &patch).await?;
        Ok(())
    }

    /// Creates a Pod through the API server, as a dry run, and returns the result.
    pub(crate) async fn create(&self, pod: &Value) -> kube::Result<Pod> {
        let params = PostParams { dry_run: true, ..PostParams::default() };
        let pod = serde_json::from_value(pod.clone()).map_err(kube::Error::SerdeError)?;
        self.namespace.api::<Pod>().create(&params, &pod).await
    }

    async fn is_injected(&self) -> Result<bool> {
        Ok(proxy_env(&self.create(&meshed()).await?, "MARK").is_some())
    }

    /// The response of a replica to a review that is sent directly, as the operator does.
    async fn response(&self, replica: usize) -> Result<Value> {
        let (status, body) = self.injector.post(replica, review()).await?;
        ensure!(status == StatusCode::OK, "{status}");
        Ok(serde_json::from_slice(&body)?)
    }

    async fn mark(&self, replica: usize) -> Result<String> {
        let response = self.response(replica).await?;
        let patch: ByteString =
            serde_json::from_value(response.pointer("/response/patch").cloned().unwrap_or_default())?;
        let patch: Value = serde_json::from_slice(&patch.0)?;
        let operations = patch.as_array().context("no list of operations")?.iter();
        let proxy = operations.map(|operation| &operation["value"]).find(|value| value["name"] == "linkerd-proxy");
        let env = proxy.context("no proxy")?["env"].as_array().context("no env")?;
        let mark = env.iter().find(|variable| variable["name"] == "MARK").context("no mark")?;
        mark["value"].as_str().map(str::to_owned).context("no value")
    }
}

#[tokio::test]
async fn a_pod_created_through_the_api_server_gets_the_proxy() -> Result<()> {
    let setup = Setup::new(1).await?;
    assert_eq!(setup.injector.requests(0), 0);
    let pod = setup.create(&meshed()).await?;
    let containers = pod.spec.iter().flat_map(|spec| spec.init_containers.iter().flatten());
    let containers: Vec<_> = containers.map(|c| (c.name.as_str(), c.restart_policy.as_deref())).collect();
    assert_eq!(containers, [("linkerd-init", None), ("linkerd-proxy", Some("Always")), ("mine", None)]);
    assert_eq!(proxy_env(&pod, "MARK").as_deref(), Some("a"));
    let annotations = pod.metadata.annotations.unwrap_or_default();
    let annotation = |name: &str| annotations.get(&format!("linkerd.io/{name}")).map(String::as_str);
    assert_eq!(annotation("trust-root-sha256"), Some(ROOTS_SHA256));
    assert_eq!(annotation("proxy-version"), Some("edge-26.8.3"));
    assert_eq!(annotation("created-by"), Some("linkerd/proxy-injector edge-26.8.3"));

    assert_eq!(setup.injector.requests(0), 1);
    let review = setup.injector.last_review(0).context("no review")?;
    assert_eq!((&review["request"]["dryRun"], &review["request"]["operation"]), (&json!(true), &json!("CREATE")));
    Ok(())
}

#[tokio::test]
async fn the_webhook_is_called_for_every_pod_of_its_namespaces_only() -> Result<()> {
    let setup = Setup::new(1).await?;
    let left = setup.create(&json!({"metadata": {"name": "web"}, "spec": meshed()["spec"]})).await?;
    assert_eq!(proxy_env(&left, "MARK"), None);
    assert_eq!(setup.injector.requests(0), 1);
    let mut own = meshed();
    own["metadata"]["labels"] = json!({"linkerd.io/control-plane-component": "identity"});
    setup.create(&own).await?;
    let other = TestNamespace::create(&setup.client, "injector-other").await?;
    let params = PostParams { dry_run: true, ..PostParams::default() };
    other.api::<Pod>().create(&params, &serde_json::from_value(meshed())?).await?;
    assert_eq!(setup.injector.requests(0), 1);
    // The webhook is not called for the injector's own new Pods either.
    setup.injector.restart_replica(0).await?;
    assert_eq!(setup.injector.requests(0), 0);
    unregister(&setup.client).await?;
    eventually(SOON, "the webhook to be removed", async || {
        ensure!(!setup.is_injected().await?, "the webhook is still called");
        Ok(())
    })
    .await
}

#[tokio::test]
async fn an_undecodable_document_denies_every_pod_and_service() -> Result<()> {
    let setup = Setup::new(1).await?;
    setup.write("proxy: {").await?;
    let pod = json!({"metadata": {"name": "web"}, "spec": meshed()["spec"]});
    let service: Service =
        serde_json::from_value(json!({"metadata": {"name": "web"}, "spec": {"ports": [{"port": 80}]}}))?;
    let params = PostParams { dry_run: true, ..PostParams::default() };
    eventually(SOON, "the Pod to be denied", async || {
        let error = setup.create(&pod).await.err().context("it was created")?;
        ensure!(error.to_string().contains("error converting YAML to JSON"), "{error}");
        Ok(())
    })
    .await?;
    assert!(setup.namespace.api::<Service>().create(&params, &service).await.is_err());

    // An error of the template denies only Pods for which the template is rendered.
    setup.write(&HELM.replace("logHTTPHeaders: \"off\"", "logHTTPHeaders: loud")).await?;
    eventually(SOON, "the Pod to be created", async || Ok(setup.create(&pod).await.map(drop)?)).await?;
    let error = setup.create(&meshed()).await.err().context("it was created")?;
    assert!(error.to_string().contains("logHTTPHeaders must not be loud"), "{error}");
    Ok(())
}

#[tokio::test]
async fn a_document_without_a_required_map_breaks_the_connection() -> Result<()> {
    let setup = Setup::new(1).await?;
    setup.write("{}").await?;
    eventually(SOON, "the Pod to be created without a proxy", async || {
        ensure!(!setup.is_injected().await?, "it has a proxy");
        Ok(())
    })
    .await?;
    assert!(setup.response(0).await.is_err());
    setup.injector.set_failure_policy(FailurePolicy::Fail).await?;
    eventually(SOON, "the Pod to be refused", async || {
        let error = setup.create(&meshed()).await.err().context("it was created")?;
        ensure!(error.to_string().contains("failed calling webhook"), "{error}");
        Ok(())
    })
    .await
}

#[tokio::test]
async fn without_trust_roots_all_reviews_are_denied_until_they_exist() -> Result<()> {
    let setup = Setup::new(1).await?;
    setup.maps.delete("linkerd-identity-trust-roots", &kube::api::DeleteParams::default()).await?;
    // The mounted file stays.
    holds(MOMENT, "the mark of the replica", async || {
        ensure!(setup.mark(0).await? == "a", "it has another one");
        Ok(())
    })
    .await?;
    setup.injector.set_lag(0, Duration::MAX)?;
    setup.injector.restart_replica(0).await?;
    let denied = setup.response(0).await?;
    let message = "open /var/run/linkerd/identity/trust-roots/ca-bundle.crt: no such file or directory";
    assert_eq!(denied["response"]["status"]["message"], message);
    let map = json!({"metadata": {"name": "linkerd-identity-trust-roots"}, "data": {"ca-bundle.crt": ROOTS}});
    setup.maps.create(&PostParams::default(), &serde_json::from_value(map)?).await?;
    eventually(SOON, "the replica to accept Pods", async || {
        ensure!(setup.mark(0).await? == "a", "its mark is another one");
        Ok(())
    })
    .await
}

/// [`HELM`] with this mark in the environment of every proxy.
fn marked(mark: &str) -> String {
    HELM.replacen("additionalEnv: null", &format!("additionalEnv: [{{name: MARK, value: \"{mark}\"}}]"), 1)
}

fn meshed() -> Value {
    json!({
        "metadata": {"generateName": "web-", "annotations": {"linkerd.io/inject": "enabled"}},
        "spec": {
            "initContainers": [{"name": "mine", "image": "mine"}],
            "containers": [{"name": "web", "image": "web"}],
        },
    })
}

fn review() -> String {
    json!({
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "request": {
            "uid": "7",
            "kind": {"group": "", "version": "v1", "kind": "Pod"},
            "resource": {"group": "", "version": "v1", "resource": "pods"},
            "operation": "CREATE",
            "namespace": "default",
            "dryRun": true,
            "object": meshed(),
        },
    })
    .to_string()
}

fn proxy_env(pod: &Pod, name: &str) -> Option<String> {
    let containers = pod.spec.iter().flat_map(|spec| spec.init_containers.iter().flatten());
    let mut variables =
        containers.filter(|c| c.name == "linkerd-proxy").flat_map(|container| container.env.iter().flatten());
    variables.find(|variable| variable.name == name)?.value.clone()
}
