//! The certificate that the operator manages for its webhooks, on a real API server that verifies it: with the shipped
//! manifests and permissions, under load, with two replicas.

use std::{
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use e2e::{
    command::Ended,
    eventually,
    mesh::SOON,
    shipped::{OPERATOR_NAMESPACE, in_repository},
};
use kube::api::{DeleteParams, Patch, PatchParams};
use serde_json::json;
use tokio::task::JoinSet;

use crate::admission::cluster::{CONFIGURATION, LEASE, SECRET, WebhookReplica, WebhookRig};

/// A rotation of the authority waits for the API servers, and then everything must happen soon.
const ROTATION: Duration = Duration::from_secs(60);

/// Clients that create Pods all the time, through a webhook whose failure policy is `Fail`.
struct PodLoad {
    created: Arc<AtomicUsize>,
    lost: Arc<Mutex<Vec<String>>>,
    stop: Arc<AtomicBool>,
    tasks: JoinSet<()>,
}

impl PodLoad {
    fn start(cluster: &Arc<WebhookRig>) -> Self {
        let (created, lost) = (Arc::<AtomicUsize>::default(), Arc::<Mutex<Vec<String>>>::default());
        let (stop, mut tasks) = (Arc::<AtomicBool>::default(), JoinSet::new());
        for _ in 0..4 {
            let (cluster, created, lost) = (Arc::clone(cluster), Arc::clone(&created), Arc::clone(&lost));
            let stop = Arc::clone(&stop);
            tasks.spawn(async move {
                while !stop.load(Ordering::Relaxed) {
                    match cluster.inject().await {
                        Ok(()) => _ = created.fetch_add(1, Ordering::Relaxed),
                        Err(error) => {
                            lost.lock().unwrap_or_else(PoisonError::into_inner).push(format!("{error:#}"));
                        }
                    }
                    tokio::time::sleep(Duration::from_millis(10)).await;
                }
            });
        }
        Self { created, lost, stop, tasks }
    }

    /// Stops the clients, and returns the number of created Pods.
    async fn lost_nothing(mut self) -> Result<usize> {
        self.stop.store(true, Ordering::Relaxed);
        while let Some(ended) = self.tasks.join_next().await {
            ended?;
        }
        let lost = self.lost.lock().unwrap_or_else(PoisonError::into_inner);
        let created = self.created.load(Ordering::Relaxed);
        ensure!(lost.is_empty(), "{} of {created} Pods were lost, first: {:?}", lost.len(), lost.first());
        Ok(created)
    }
}

/// On a busy host, reviews that the API server has sent before may take long.
async fn is_called_no_more(replica: &WebhookReplica) -> Result<()> {
    let answered = async || {
        let answered = replica.manager.metric("linkerd_operator_proxy_injector_review_seconds_count", &[]).await;
        answered.context("no review was counted")
    };
    eventually(SOON, "a replica without an endpoint to be called no more", async || {
        let before = answered().await?;
        tokio::time::sleep(Duration::from_secs(2)).await;
        let after = answered().await?;
        ensure!(before.total_cmp(&after).is_eq(), "{} reviews in 2 s", after - before);
        Ok(())
    })
    .await
}

async fn is_led_by(replica: &WebhookReplica) -> bool {
    replica.manager.is_leading(LEASE).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fresh_install_works_in_any_order_and_what_others_break_is_repaired() -> Result<()> {
    let cluster = WebhookRig::start().await?;
    // The configuration is there before the operator.
    cluster.register("Fail").await?;
    cluster.calls_webhook().await?;
    let replica = cluster.ready_replica().await?;
    cluster.injects().await?;
    let (leaf, bundle) = (cluster.value("tls.crt").await?, cluster.bundle().await?);
    assert_eq!(bundle.matches("BEGIN CERTIFICATE").count(), 1, "{bundle}");

    // The configuration is created again, and applied again without a `caBundle`.
    cluster.configurations().delete(CONFIGURATION, &DeleteParams::default()).await?;
    cluster.register("Fail").await?;
    cluster.injects().await?;
    cluster.register("Fail").await?;
    assert_eq!(cluster.bundle().await?, bundle, "an apply of the manifest keeps the caBundle");

    // Another client writes another authority, and then none.
    for reset in [cluster.control_plane.ca_pem()?, ""] {
        cluster.set_bundle(reset).await?;
        eventually(SOON, "the caBundle to be repaired", async || {
            let repaired = cluster.bundle().await?;
            ensure!(repaired.starts_with(&bundle), "it is another one: {repaired}");
            Ok(())
        })
        .await?;
    }
    cluster.injects().await?;
    assert_eq!(cluster.value("tls.crt").await?, leaf, "nothing of this needs a new certificate");

    // Without our label, the Secret is not changed, and the replica keeps its certificate.
    let patch = Patch::Merge(json!({"metadata": {"labels": {"config.linkerd.io/managed-certificate": null}}}));
    cluster.secrets().patch(SECRET, &PatchParams::default(), &patch).await?;
    cluster.delete_key("tls.crt").await?;
    eventually(SOON, "the log to name the Secret", async || {
        ensure!(replica.manager.log().contains("exists without the label"), "it does not");
        Ok(())
    })
    .await?;
    assert_eq!(cluster.value("tls.crt").await?, b"");
    cluster.inject().await?;
    let (_, ready) = replica.manager.get("/ready").await?;
    ensure!(ready.contains("it has no tls.crt yet"), "{ready}");
    Ok(())
}

/// With the overlay and the resource of the page.
#[tokio::test(flavor = "multi_thread")]
async fn the_page_about_validation_turns_it_on_and_shows_what_kubectl_prints() -> Result<()> {
    let page = tokio::fs::read_to_string(in_repository("docs/src/guides/validation.md")).await?;
    let components = page.lines().find(|line| line.starts_with("components: ")).context("no overlay")?;
    let cluster = WebhookRig::with(&components.replace("../config", "../../config")).await?;
    let _replica = cluster.ready_replica().await?;
    let (_, example) = page.split_once("kubectl apply --dry-run=server -f - <<'EOF'\n").context("no example")?;
    let (resource, printed) = example.split_once("\nEOF\n").context("no end of the example")?;
    let (printed, _) = printed.split_once("\n```").context("no output")?;
    let file = cluster.control_plane.directory().join("denied.yaml");
    tokio::fs::write(&file, resource).await?;
    let command =
        format!("{} apply --dry-run=server -f - < {}", cluster.control_plane.kubectl_path()?.display(), file.display());
    eventually(SOON, "the page's output", async || {
        let mut shell = tokio::process::Command::new("sh");
        shell.args(["-c", &command]).env("KUBECONFIG", cluster.control_plane.kubeconfig());
        let stderr = Ended::of(shell, SOON).await?.stderr;
        // The page wraps its lines.
        ensure!(stderr.trim() == printed.replace('\n', " "), "{stderr}");
        Ok(())
    })
    .await
}

/// Both configurations with `Fail`, and no operator.
#[tokio::test(flavor = "multi_thread")]
async fn without_the_operator_nothing_is_refused_that_it_would_not_change_or_that_its_start_needs() -> Result<()> {
    let cluster = WebhookRig::start().await?;
    cluster.register("Fail").await?;
    cluster.register_validation("Fail").await?;
    cluster.calls_webhook().await?;
    let ports = |list: &str| json!({"config.linkerd.io/opaque-ports": list});
    let opaque = ports("3306");
    let port = json!([{"port": 3306}]);
    let containers = |name: &str| json!([{"name": name, "image": "x"}]);
    let proxied = json!({"serviceAccountName": "default", "containers": containers("web"), "initContainers": containers("linkerd-proxy")});
    let plain = json!({"serviceAccountName": "default", "containers": containers("web")});
    for (kind, namespace, annotations, spec, is_refused) in [
        ("services", "app", json!({}), json!({"ports": port}), true),
        ("services", "app", opaque.clone(), json!({"ports": port}), false),
        ("services", "app", ports("80,3306,59999"), json!({"ports": port}), false),
        // The answer would have a warning, or may have one.
        ("services", "app", ports("70000"), json!({"ports": port}), true),
        ("services", "app", ports("80,65536"), json!({"ports": port}), true),
        ("services", "app", ports("8080-80"), json!({"ports": port}), true),
        ("services", "app", ports("9000-9100"), json!({"ports": port}), true),
        ("services", "app", ports("80,"), json!({"ports": port}), true),
        ("pods", "app", opaque.clone(), plain.clone(), true),
        ("pods", "app", json!({}), proxied.clone(), true),
        ("pods", "app", opaque.clone(), proxied, false),
        ("pods", "kube-system", json!({}), plain.clone(), false),
        ("pods", "linkerd", json!({}), plain.clone(), false),
        ("pods", OPERATOR_NAMESPACE, json!({}), plain, false),
    ] {
        let object = json!({"metadata": {"generateName": "a-", "annotations": annotations}, "spec": spec});
        let request = http::Request::post(format!("/api/v1/namespaces/{namespace}/{kind}?dryRun=All"));
        let request = request.header("content-type", "application/json").body(object.to_string().into_bytes())?;
        let error = cluster
            .control_plane
            .client
            .request_text(request)
            .await
            .err()
            .map(|error| error.to_string())
            .unwrap_or_default();
        // The namespace of the operator has a Pod Security Standard, which this Pod violates.
        assert_eq!(error.contains("failed calling webhook"), is_refused, "{kind} in {namespace}: {object}: {error}");
    }

    // A LinkerdConfig that existed before can be labeled and deleted, also with a finalizer.
    let config = |labels: serde_json::Value, spec: serde_json::Value| {
        json!({"apiVersion": "config.linkerd.io/v1alpha1", "kind": "LinkerdConfig",
            "metadata": {"name": "mesh", "labels": labels, "finalizers": ["example.com/keep"]}, "spec": spec})
    };
    let refused = async |object: &serde_json::Value| {
        cluster.control_plane.apply(std::slice::from_ref(object)).await.err().map(|error| format!("{error:#}"))
    };
    cluster.register_validation("Ignore").await?;
    eventually(SOON, "the policy Ignore", async || {
        ensure!(refused(&config(json!({}), json!({}))).await.is_none(), "it is refused");
        Ok(())
    })
    .await?;
    cluster.register_validation("Fail").await?;
    eventually(SOON, "the policy Fail", async || {
        let error = refused(&config(json!({}), json!({"mode": "Observe"}))).await.context("it is accepted")?;
        ensure!(error.contains("failed calling webhook"), "{error}");
        Ok(())
    })
    .await?;
    assert_eq!(refused(&config(json!({"team": "mesh"}), json!({}))).await, None);
    let delete = ["delete", "linkerdconfig", "mesh", "--wait=false"];
    cluster.control_plane.kubectl(&delete).await?;
    let without = ["patch", "linkerdconfig", "mesh", "--type=merge", "-p", r#"{"metadata":{"finalizers":null}}"#];
    cluster.control_plane.kubectl(&without).await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replica_without_a_certificate_is_not_ready_but_runs() -> Result<()> {
    let cluster = WebhookRig::start().await?;
    // Without its Role, the operator can neither read nor write the Secret.
    cluster
        .control_plane
        .kubectl(&["delete", "role", "linkerd-operator-webhook-certificate", "-n", "linkerd-operator-system"])
        .await?;
    let mut replica = cluster.replica().await?;
    eventually(SOON, "/ready to name the Secret", async || {
        let (status, body) = replica.manager.get("/ready").await?;
        ensure!(!status.is_success() && body.contains("the webhooks have no certificate"), "{status} {body}");
        ensure!(body.contains("secrets \"linkerd-operator-webhook\" is forbidden"), "{body}");
        Ok(())
    })
    .await?;
    ensure!(replica.manager.is_running(), "it ended");
    let shipped = cluster
        .control_plane
        .shipped_with("config/default", "components: [../../config/components/webhook-server]")
        .await?;
    let role = shipped
        .into_iter()
        .find(|it| it["kind"] == "Role" && it["metadata"]["name"] == "linkerd-operator-webhook-certificate");
    cluster.control_plane.apply(&[role.context("the Role is not shipped")?]).await?;
    replica.manager.ready(ROTATION).await
}

/// Also the leader is killed between the new authority and its leaf.
#[tokio::test(flavor = "multi_thread")]
async fn a_hundred_rotations_under_load_lose_no_admission() -> Result<()> {
    let cluster = Arc::new(WebhookRig::start().await?);
    let mut first = cluster.ready_replica().await?;
    let mut second = cluster.ready_replica().await?;
    cluster.register("Fail").await?;
    cluster.injects().await?;
    let load = PodLoad::start(&cluster);

    for _ in 0..100 {
        let before = cluster.value("tls.crt").await?;
        cluster.delete_key("tls.crt").await?;
        cluster.rotated(&before, &[&first, &second], SOON).await?;
    }
    for _ in 0..3 {
        let (before, authorities) = (cluster.value("tls.crt").await?, cluster.value("ca.crt").await?);
        cluster.delete_secret().await?;
        cluster.rotated(&before, &[&first, &second], ROTATION).await?;
        ensure!(cluster.value("ca.crt").await? != authorities, "the authority is the old one");
    }

    // The leader dies when the Secret has a new authority and no leaf.
    let before = cluster.value("tls.crt").await?;
    cluster.delete_secret().await?;
    eventually(SOON, "a new authority without a leaf", async || {
        let (authorities, leaf) = (cluster.value("ca.crt").await?, cluster.value("tls.crt").await?);
        ensure!(!authorities.is_empty() && leaf.is_empty(), "the leader has not begun, or is done");
        Ok(())
    })
    .await?;
    let (leader, other) = if is_led_by(&first).await { (&mut first, &second) } else { (&mut second, &first) };
    // As a cluster does when a Pod is not ready any more. Otherwise the API server would also call the dead replica.
    cluster.remove_endpoint(leader).await?;
    is_called_no_more(leader).await?;
    leader.manager.kill().await?;
    cluster.rotated(&before, &[other], ROTATION).await?;
    ensure!(is_led_by(other).await, "the other replica does not lead");

    let created = load.lost_nothing().await?;
    println!("{created} Pods were created during 104 rotations");
    ensure!(created > 500, "only {created} Pods were created");
    Ok(())
}
