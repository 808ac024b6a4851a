//! Tests of the stand-in for Linkerd's proxy injector, through the API server and directly.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use e2e::{
    Injector, TestNamespace,
    control_plane::PERMIT_DEADLINE,
    eventually, holds,
    injector::{Behaviour, FailurePolicy, NOT_A_PATCH, NOT_BASE64, unregister},
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
    net::TcpStream,
    sync::{Mutex, MutexGuard},
    time::timeout,
};

/// The values that Helm installs.
const HELM: &str = include_str!("../../../src/linkerd_config/values/testdata/installed.yaml");
const ROOTS: &str = "one\n";
/// `printf 'one\n' | sha256sum`
const ROOTS_SHA256: &str = "2c8b08da5ce60398e1f19af0e5dccc744df274b826abe585eaba68c525434806";
const SOON: Duration = Duration::from_secs(45);
/// How long a test waits for an unexpected change.
const MOMENT: Duration = Duration::from_millis(400);
/// Serializes the tests, because a cluster has one injector.
static TURN: Mutex<()> = Mutex::const_new(());

struct Setup {
    injector: Injector,
    namespace: TestNamespace,
    maps: Api<ConfigMap>,
    client: Client,
    _turn: MutexGuard<'static, ()>,
}

impl Setup {
    /// Starts an injector with the document [`HELM`], marked `a`, and the trust roots [`ROOTS`].
    async fn new(replicas: usize) -> Result<Self> {
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
        let injector = Injector::start(control_plane, namespace.name(), &[], replicas).await?;
        Ok(Self { injector, namespace, maps, client, _turn: turn })
    }

    async fn write(&self, values: &str) -> Result<()> {
        let patch = Patch::Merge(json!({"data": {"values": values}}));
        self.maps.patch("linkerd-config", &PatchParams::default(), &patch).await?;
        Ok(())
    }

    /// Creates a Pod through the API server, as a dry run, and returns the result.
    async fn create(&self, pod: &Value) -> kube::Result<Pod> {
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

    async fn gets_mark(&self, replica: usize, mark: &str) -> Result<()> {
        eventually(SOON, format_args!("replica {replica} to use mark {mark}"), async || {
            let seen = self.mark(replica).await?;
            ensure!(seen == mark, "its mark is {seen}");
            Ok(())
        })
        .await
    }

    async fn keeps_mark(&self, replica: usize, mark: &str) -> Result<()> {
        holds(MOMENT, format_args!("mark {mark} of replica {replica}"), async || {
            let seen = self.mark(replica).await?;
            ensure!(seen == mark, "its mark is {seen}");
            Ok(())
        })
        .await
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
async fn a_replica_lags_until_it_is_nudged() -> Result<()> {
    let setup = Setup::new(2).await?;
    setup.injector.set_lag(0, Duration::MAX)?;
    setup.write(&marked("b")).await?;
    setup.gets_mark(1, "b").await?;
    setup.keeps_mark(0, "a").await?;
    assert_eq!((setup.injector.nudges(0), setup.injector.nudges(1)), (0, 0));
    let patch = Patch::Merge(json!({"metadata": {"annotations": {"nudged": "1"}}}));
    let pods = setup.namespace.api::<Pod>();
    // The nudge syncs all earlier writes, even if their watch events are late.
    setup.write(&marked("c")).await?;
    pods.patch(&setup.injector.pod(0)?, &PatchParams::default(), &patch).await?;
    eventually(SOON, "the nudge", async || {
        ensure!(setup.injector.nudges(0) == 1, "{} nudges", setup.injector.nudges(0));
        Ok(())
    })
    .await?;
    setup.gets_mark(0, "c").await?;
    assert_eq!(setup.injector.nudges(1), 0);

    // The replica still lags after the nudge.
    setup.write(&marked("d")).await?;
    setup.gets_mark(1, "d").await?;
    setup.keeps_mark(0, "c").await?;
    setup.injector.set_lag(0, Duration::ZERO)?;
    setup.gets_mark(0, "d").await?;

    setup.injector.set_lag(0, Duration::from_secs(1))?;
    let written = Instant::now();
    setup.write(&marked("e")).await?;
    setup.gets_mark(0, "e").await?;
    assert!(written.elapsed() >= Duration::from_secs(1), "{:?}", written.elapsed());
    Ok(())
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
    setup.keeps_mark(0, "a").await?;
    setup.injector.set_lag(0, Duration::MAX)?;
    setup.injector.restart_replica(0).await?;
    let denied = setup.response(0).await?;
    let message = "open /var/run/linkerd/identity/trust-roots/ca-bundle.crt: no such file or directory";
    assert_eq!(denied["response"]["status"]["message"], message);
    let map = json!({"metadata": {"name": "linkerd-identity-trust-roots"}, "data": {"ca-bundle.crt": ROOTS}});
    setup.maps.create(&PostParams::default(), &serde_json::from_value(map)?).await?;
    setup.gets_mark(0, "a").await
}

#[tokio::test]
async fn it_has_the_configured_behaviour() -> Result<()> {
    let setup = Setup::new(1).await?;
    let injector = &setup.injector;
    let respond = async |behaviour| {
        injector.set_behaviour(0, behaviour).await?;
        anyhow::Ok(setup.response(0).await?["response"].clone())
    };
    let denied = respond(Behaviour::Denies("no".to_owned())).await?;
    assert_eq!(denied, json!({"uid": "7", "allowed": false, "status": {"metadata": {}, "message": "no"}}));
    assert!(setup.create(&meshed()).await.is_err());
    assert_eq!(respond(Behaviour::Unpatched).await?, json!({"uid": "7", "allowed": true}));
    for patch in [NOT_BASE64, NOT_A_PATCH] {
        let response = respond(Behaviour::BadPatch(patch.to_owned())).await?;
        assert_eq!((&response["allowed"], &response["patch"]), (&json!(true), &json!(patch)));
    }
    let before = injector.requests(0);
    injector.set_behaviour(0, Behaviour::Garbage).await?;
    let (status, body) = injector.post(0, review()).await?;
    assert!(status == StatusCode::OK && serde_json::from_slice::<Value>(&body).is_err());
    injector.set_behaviour(0, Behaviour::Breaks).await?;
    assert!(setup.response(0).await.is_err());
    injector.set_behaviour(0, Behaviour::Hangs).await?;
    assert!(timeout(MOMENT, setup.response(0)).await.is_err());
    assert_eq!(injector.requests(0), before + 3);
    for behaviour in [Behaviour::WrongCertificate, Behaviour::Unreachable] {
        injector.set_behaviour(0, behaviour).await?;
        assert!(setup.response(0).await.is_err());
        // The failure policy of the webhook is Ignore.
        assert!(!setup.is_injected().await?);
    }
    assert_eq!(injector.requests(0), before + 3);
    injector.set_behaviour(0, Behaviour::Right).await?;
    assert_eq!(setup.mark(0).await?, "a");
    assert!(setup.is_injected().await?);
    Ok(())
}

#[tokio::test]
async fn it_requires_a_review_with_a_uid() -> Result<()> {
    let setup = Setup::new(1).await?;
    let (status, _) = setup.injector.post(0, "{}").await?;
    assert_eq!(status, StatusCode::BAD_REQUEST);
    let (status, body) = setup.injector.post(0, "").await?;
    assert_eq!((status, body.as_ref()), (StatusCode::OK, &[][..]));
    Ok(())
}

#[tokio::test]
async fn replicas_are_added_removed_and_restarted() -> Result<()> {
    let setup = Setup::new(2).await?;
    let injector = &setup.injector;
    assert_eq!(injector.replicas(), [0, 1]);
    injector.set_ready(0, false).await?;
    eventually(SOON, "only the ready replica to be called", async || {
        let (zero, one) = (injector.requests(0), injector.requests(1));
        for _ in 0..10 {
            ensure!(setup.is_injected().await?);
        }
        ensure!(injector.requests(0) == zero && injector.requests(1) == one + 10, "{zero}, {one}");
        Ok(())
    })
    .await?;
    // An unready replica still responds.
    assert_eq!(setup.mark(0).await?, "a");
    let pods = setup.namespace.api::<Pod>();
    let ready = async |name: &str| {
        let conditions = pods.get_status(name).await?.status.and_then(|status| status.conditions).unwrap_or_default();
        anyhow::Ok(conditions.iter().any(|condition| condition.type_ == "Ready" && condition.status == "True"))
    };
    assert!(!ready(&injector.pod(0)?).await? && ready(&injector.pod(1)?).await?);

    let (removed, address) = (injector.pod(1)?, injector.address(1)?);
    injector.remove_replica(1).await?;
    assert!(pods.get_opt(&removed).await?.is_none());
    assert!(TcpStream::connect(address).await.is_err());
    assert_eq!((injector.replicas(), injector.requests(1)), (vec![0], 0));

    injector.set_lag(0, Duration::MAX)?;
    setup.write(&marked("b")).await?;
    setup.keeps_mark(0, "a").await?;
    let old = injector.pod(0)?;
    injector.restart_replica(0).await?;
    assert_ne!(injector.pod(0)?, old);
    assert_eq!((injector.requests(0), injector.nudges(0)), (0, 0));
    assert_eq!(setup.mark(0).await?, "b");
    setup.write(&marked("c")).await?;
    setup.keeps_mark(0, "b").await?;
    assert_eq!(injector.add_replica().await?, 2);
    assert_eq!(setup.mark(2).await?, "c");
    Ok(())
}

#[tokio::test]
async fn it_stops_when_it_is_dropped() -> Result<()> {
    let Setup { injector, _turn, .. } = Setup::new(1).await?;
    let address = injector.address(0)?;
    drop(TcpStream::connect(address).await?);
    drop(injector);
    eventually(SOON, "the listener to be closed", async || {
        ensure!(TcpStream::connect(address).await.is_err(), "the port still accepts connections");
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
