//! The operator as the proxy injector, in place of Linkerd's container: through the API server, which accepts what it
//! injects.

mod rejections;

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use e2e::{
    Injector, TestNamespace,
    control_plane::PERMIT_DEADLINE,
    eventually,
    injector::FailurePolicy,
    mesh::SOON,
    workload::{self, Kind},
};
use k8s_openapi::api::{
    apps::v1::DaemonSet,
    core::v1::{ConfigMap, Event, Namespace, Pod, Service},
};
use kube::{
    Api, Client, ResourceExt,
    api::{ListParams, Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};
use tokio::{
    sync::{Mutex, MutexGuard},
    time::timeout,
};

/// The values that Helm installs.
pub(crate) const HELM: &str = include_str!("../../../src/values/testdata/installed.yaml");
pub(crate) const TRUST_ANCHORS: &str = include_str!("../../../src/values/testdata/root.pem");
/// Serializes the tests, because a cluster has one injector.
static TURN: Mutex<()> = Mutex::const_new(());
const INIT_IMAGE: &str = "cr.l5d.io/linkerd/proxy:edge-26.8.3";

struct InjectorSetup {
    injector: Injector,
    namespace: TestNamespace,
    maps: Api<ConfigMap>,
    client: Client,
    _turn: MutexGuard<'static, ()>,
}

impl InjectorSetup {
    /// Starts replicas of the operator in place of Linkerd's container, with the document [`HELM`]. They are called for
    /// a namespace of the test and for the namespaces `others`.
    async fn with_operator(replicas: usize, others: &[&str]) -> Result<Self> {
        Self::start(replicas, false, others).await
    }

    /// The same with a manager that watches the ConfigMaps.
    async fn with_manager() -> Result<Self> {
        Self::start(1, true, &[]).await
    }

    async fn start(replicas: usize, watches: bool, others: &[&str]) -> Result<Self> {
        let turn =
            timeout(PERMIT_DEADLINE, TURN.lock()).await.context("other tests held the injectors for too long")?;
        let control_plane = e2e::shared().await?;
        let client = control_plane.client().await?;
        let namespace = TestNamespace::create(&client, "injector").await?;
        let maps = namespace.api::<ConfigMap>();
        for (name, key, text) in
            [("linkerd-config", "values", HELM), ("linkerd-identity-trust-roots", "ca-bundle.crt", TRUST_ANCHORS)]
        {
            let map = serde_json::from_value(json!({"metadata": {"name": name}, "data": {key: text}}))?;
            maps.create(&PostParams::default(), &map).await?;
        }
        let injector = Injector::start_operator(watches, control_plane, namespace.name(), others, replicas).await?;
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
}

/// The Pod of an author who asks for a proxy.
fn meshed(annotations: &Value) -> Value {
    let mut pod = json!({
        "metadata": {"generateName": "web-", "annotations": {"linkerd.io/inject": "enabled"}},
        "spec": {
            // The harness's API server does not set it.
            "serviceAccountName": "default",
            "containers": [{"name": "web", "image": "web", "ports": [{"containerPort": 3306}]}],
        },
    });
    e2e::mesh::merge(&mut pod, json!({"metadata": {"annotations": annotations}}));
    pod
}

/// The names of the init containers, then those of the containers.
fn containers(pod: &Pod) -> Vec<&str> {
    let spec = pod.spec.iter();
    spec.flat_map(|spec| spec.init_containers.iter().flatten().chain(&spec.containers))
        .map(|it| it.name.as_str())
        .collect()
}

/// A variable of the proxy.
fn variable(pod: &Pod, name: &str) -> Option<String> {
    let containers = pod.spec.iter().flat_map(|spec| spec.init_containers.iter().flatten());
    let mut env = containers.filter(|it| it.name == "linkerd-proxy").flat_map(|it| it.env.iter().flatten());
    env.find(|it| it.name == name)?.value.clone()
}

#[tokio::test]
async fn the_api_server_accepts_an_injected_pod_and_shows_the_authors_mistakes() -> Result<()> {
    let setup = InjectorSetup::with_operator(1, &[]).await?;
    let pod = setup.create(&meshed(&json!({"config.linkerd.io/proxy-log-level": "debug,\"quoted\"=off"}))).await?;
    assert_eq!(containers(&pod), ["linkerd-init", "linkerd-proxy", "web"]);
    let init = pod.spec.as_ref().and_then(|spec| spec.init_containers.as_ref()?.first()?.image.clone());
    assert_eq!(init.as_deref(), Some(INIT_IMAGE));
    let log = variable(&pod, "LINKERD2_PROXY_LOG").context("no log level")?;
    assert_eq!(log, "debug,\"quoted\"=off,[{headers}]=off,[{request}]=off");
    // The Pod's port is one of the default opaque ports.
    assert_eq!(variable(&pod, "LINKERD2_PROXY_INBOUND_PORTS_DISABLE_PROTOCOL_DETECTION").as_deref(), Some("3306"));
    let annotations = pod.annotations();
    assert_eq!(annotations.get("config.linkerd.io/opaque-ports").map(String::as_str), Some("3306"));
    assert_eq!(pod.labels().get("linkerd.io/workload-ns").map(String::as_str), Some(setup.namespace.name()));
    let denied = setup.create(&meshed(&json!({"config.linkerd.io/close-wait-timeout": "30s"}))).await;
    let error = denied.err().context("it was created")?.to_string();
    ensure!(error.contains("config.linkerd.io/close-wait-timeout") && error.contains("runAsRoot"), "{error}");
    Ok(())
}

/// The injector warns that the API server rejects these Pods, and that it accepts the others.
#[tokio::test]
async fn the_api_server_rejects_a_pod_for_each_annotation_that_the_injector_says() -> Result<()> {
    let setup = InjectorSetup::with_operator(1, &[]).await?;
    for (name, text, is_accepted) in [
        ("admin-port", "0", false),
        ("inbound-port", "70000", false),
        ("control-port", "-4190", true),
        ("proxy-uid", "-1", false),
        ("proxy-uid", "2147483648", false),
        ("proxy-uid", "0", true),
        ("proxy-gid", "2147483648", false),
        ("image-pull-policy", "always", false),
        ("proxy-image", " proxy", false),
        ("proxy-version", "edge ", false),
        ("proxy-image", "proxy@sha256", true),
        ("proxy-cpu-request", "-1", false),
        ("proxy-additional-env", r#"[{"name": ""}]"#, false),
        ("proxy-additional-env", r#"[{"name": "a=b"}]"#, false),
        ("proxy-additional-env", r#"[{"name": "A", "valueFrom": {}}]"#, false),
        ("proxy-additional-env", r#"[{"name": "A", "valueFrom": "a"}]"#, false),
        (
            "proxy-additional-env",
            r#"[{"name": "A", "valueFrom": {"fileKeyRef": {"volumeName": "a", "path": "b", "key": "c"}}}]"#,
            false,
        ),
        (
            "proxy-additional-env",
            r#"[{"name": "A", "valueFrom": {"resourceFieldRef": {"resource": "limits.memory", "divisor": "1e3"}}}]"#,
            false,
        ),
        (
            "proxy-additional-env",
            r#"[{"name": "A", "valueFrom": {"resourceFieldRef": {"resource": "limits.memory", "divisor": "1000k"}}}]"#,
            true,
        ),
        ("proxy-additional-env", r#"[{"name": "A", "value": "a\u0000b"}]"#, true),
        ("proxy-image", "cr.l5d.io/linkerd/proxy:edge-26.8.3", true),
        ("skip-subnets", "fd00::/8", true),
        ("access-log", "combined", true),
    ] {
        let created = setup.create(&meshed(&json!({format!("config.linkerd.io/{name}"): text}))).await;
        ensure!(created.is_ok() == is_accepted, "{name} {text:?}: {:?}", created.err());
    }
    let limit =
        json!({"config.linkerd.io/proxy-memory-request": "200Mi", "config.linkerd.io/proxy-memory-limit": "100Mi"});
    ensure!(setup.create(&meshed(&limit)).await.is_err());
    Ok(())
}

#[tokio::test]
async fn a_pod_for_windows_is_created_without_a_proxy() -> Result<()> {
    let setup = InjectorSetup::with_operator(1, &[]).await?;
    for spec in [json!({"os": {"name": "windows"}}), json!({"nodeSelector": {"kubernetes.io/os": "windows"}})] {
        let mut pod = meshed(&json!({}));
        e2e::mesh::merge(&mut pod, json!({ "spec": spec }));
        assert_eq!(containers(&setup.create(&pod).await?), ["web"], "{spec}");
    }
    Ok(())
}

/// An owner reference may have any name, and a label may not.
#[tokio::test]
async fn a_pod_whose_owner_has_a_name_that_is_no_value_of_a_label_is_created() -> Result<()> {
    let setup = InjectorSetup::with_operator(1, &[]).await?;
    for name in ["n".repeat(64), "a b".to_owned(), "-".to_owned()] {
        let mut pod = meshed(&json!({}));
        let uid = "00000000-0000-0000-0000-000000000001";
        pod["metadata"]["ownerReferences"] =
            json!([{"apiVersion": "apps/v1", "kind": "DaemonSet", "name": name, "uid": uid}]);
        assert!(containers(&setup.create(&pod).await?).contains(&"linkerd-proxy"), "{name}");
    }
    Ok(())
}

/// The API server verifies the length only after the webhooks.
#[tokio::test]
async fn a_pod_whose_annotations_are_too_long_has_the_error_of_the_api_server() -> Result<()> {
    let setup = InjectorSetup::with_operator(1, &[]).await?;
    let denied = setup.create(&meshed(&json!({"config.linkerd.io/opaque-ports": ",".repeat(300 << 10)}))).await;
    let error = denied.err().context("it was created")?.to_string();
    ensure!(error.contains("metadata.annotations: Too long"), "{error}");
    Ok(())
}

#[tokio::test]
async fn a_pod_without_the_annotation_and_a_service_get_only_their_opaque_ports() -> Result<()> {
    let setup = InjectorSetup::with_operator(1, &[]).await?;
    let pod = setup.create(&json!({"metadata": {"name": "web"}, "spec": meshed(&json!({}))["spec"]})).await?;
    assert_eq!(containers(&pod), ["web"]);
    assert_eq!(pod.annotations().get("config.linkerd.io/opaque-ports").map(String::as_str), Some("3306"));
    let service: Service = serde_json::from_value(
        json!({"metadata": {"name": "db"}, "spec": {"ports": [{"port": 9090, "targetPort": 3306}]}}),
    )?;
    let params = PostParams { dry_run: true, ..PostParams::default() };
    let service = setup.namespace.api::<Service>().create(&params, &service).await?;
    assert_eq!(service.annotations().get("config.linkerd.io/opaque-ports").map(String::as_str), Some("9090"));
    Ok(())
}

/// The namespace may not be in the cache yet when its first Pod is created.
#[tokio::test]
async fn a_pod_of_a_namespace_that_was_just_created_is_injected_as_the_namespace_says() -> Result<()> {
    let name = format!("fresh-{:08x}", rand::random::<u32>());
    let names: Vec<String> = (0..20).map(|number| format!("{name}-{number}")).collect();
    let others: Vec<&str> = names.iter().map(String::as_str).collect();
    let setup = InjectorSetup::with_operator(1, &others).await?;
    let namespaces: Api<Namespace> = Api::all(setup.client.clone());
    for name in &names {
        let annotations = json!({"linkerd.io/inject": "enabled",
            "config.linkerd.io/proxy-additional-env": "[{\"name\": \"OF_NAMESPACE\", \"value\": \"a \\\"b\\\"\"}]"});
        let namespace = json!({"metadata": {"name": name, "annotations": annotations}});
        namespaces.create(&PostParams::default(), &serde_json::from_value(namespace)?).await?;
        let pods: Api<Pod> = Api::namespaced(setup.client.clone(), name);
        let pod = json!({"metadata": {"name": "web"}, "spec": meshed(&json!({}))["spec"]});
        let params = PostParams { dry_run: true, ..PostParams::default() };
        let pod = pods.create(&params, &serde_json::from_value(pod)?).await?;
        assert_eq!(containers(&pod), ["linkerd-init", "linkerd-proxy", "web"], "{name}");
        assert_eq!(variable(&pod, "OF_NAMESPACE").as_deref(), Some("a \"b\""));
    }
    Ok(())
}

/// [`HELM`] of another version.
fn version(number: u32) -> String {
    HELM.replace("linkerdVersion: edge-26.8.3", &format!("linkerdVersion: v{number}"))
}

/// Waits until the proxies of new Pods have this version.
async fn shows(setup: &InjectorSetup, expected: &str) -> Result<()> {
    eventually(SOON, format_args!("Pods of {expected}"), async || {
        let pod = setup.create(&meshed(&json!({}))).await?;
        let seen = pod.annotations().get("linkerd.io/proxy-version").cloned().unwrap_or_default();
        ensure!(seen == expected, "the version is {seen}");
        Ok(())
    })
    .await
}

#[tokio::test]
async fn a_manager_uses_a_changed_config_map_without_files_and_keeps_the_last_one_that_is_usable() -> Result<()> {
    let setup = InjectorSetup::with_manager().await?;
    setup.write(&version(1)).await?;
    shows(&setup, "v1").await?;
    for (number, bad) in
        ["proxy: null", &version(2).replace("iptablesMode: nft", "iptablesMode: other")].iter().enumerate()
    {
        setup.write(bad).await?;
        eventually(SOON, "the document to be refused", async || {
            let log = setup.injector.log(0).await?;
            let refused = log.matches("the proxy injector keeps its last configuration").count();
            ensure!(refused == number + 1, "{log}");
            Ok(())
        })
        .await?;
        shows(&setup, "v1").await?;
    }
    setup.write(&version(3)).await?;
    shows(&setup, "v3").await
}

/// The failure policy is `Ignore`, so a Pod that no replica reviews would be created without a proxy.
#[tokio::test]
async fn a_replica_that_starts_with_a_refused_document_denies_pods_and_annotates_services() -> Result<()> {
    let setup = InjectorSetup::with_operator(1, &[]).await?;
    setup.write(&HELM.replace("iptablesMode: nft", "iptablesMode: other")).await?;
    let file = setup.injector.directory(0)?.join("config/values");
    eventually(SOON, "the file of the document", async || {
        ensure!(std::fs::read_to_string(&file)?.contains("iptablesMode: other"), "it is the last one");
        Ok(())
    })
    .await?;
    setup.injector.restart_replica(0).await?;
    eventually(SOON, "Pods to be denied", async || {
        let denied =
            setup.create(&meshed(&json!({}))).await.err().map(|error| format!("{error:#}")).unwrap_or_default();
        ensure!(denied.contains("no Pod can run with these values: proxyInit.iptablesMode"), "{denied}");
        Ok(())
    })
    .await?;
    let service = json!({"metadata": {"name": "db"}, "spec": {"ports": [{"port": 3306}]}});
    let services: Api<k8s_openapi::api::core::v1::Service> = setup.namespace.api();
    let params = PostParams { dry_run: true, ..PostParams::default() };
    let service = services.create(&params, &serde_json::from_value(service)?).await?;
    ensure!(service.annotations()["config.linkerd.io/opaque-ports"] == "3306", "{:?}", service.annotations());
    Ok(())
}

#[tokio::test]
async fn a_document_that_cannot_be_used_leaves_the_last_one_in_use_and_a_good_one_replaces_it() -> Result<()> {
    let setup = InjectorSetup::with_operator(1, &[]).await?;
    setup.write(&version(1)).await?;
    shows(&setup, "v1").await?;
    for bad in ["proxy: {", "proxy: null", &version(9).replace("iptablesMode: nft", "iptablesMode: other")] {
        setup.write(bad).await?;
        let file = setup.injector.directory(0)?.join("config/values");
        eventually(SOON, "the file of the document", async || {
            ensure!(std::fs::read_to_string(&file)? == bad, "it is the last one");
            Ok(())
        })
        .await?;
        // Longer than the interval at which files are read.
        tokio::time::sleep(Duration::from_millis(1_500)).await;
        shows(&setup, "v1").await?;
    }
    setup.write(&version(2)).await?;
    shows(&setup, "v2").await
}

/// With the failure policy `Fail`, a Pod that no replica reviews is not created, and its ReplicaSet creates it again.
#[tokio::test(flavor = "multi_thread")]
async fn while_replicas_are_killed_in_turn_no_pod_is_lost_and_none_is_without_a_proxy() -> Result<()> {
    let setup = InjectorSetup::with_operator(2, &[]).await?;
    setup.injector.set_failure_policy(FailurePolicy::Fail).await?;
    let namespace = setup.namespace.name();
    let over = json!({"spec": {"template": {
        "metadata": {"annotations": {"linkerd.io/inject": "enabled"}},
        "spec": {"serviceAccountName": "default"},
    }}});
    workload::put(&setup.client, namespace, Kind::Deployment, "web", 0, over).await?;
    let deployments: Api<k8s_openapi::api::apps::v1::Deployment> = setup.namespace.api();
    for (round, replicas) in [10, 20, 30, 40].into_iter().enumerate() {
        let scale = Patch::Merge(json!({"spec": {"replicas": replicas}}));
        deployments.patch("web", &PatchParams::default(), &scale).await?;
        setup.injector.restart_replica(round % 2).await?;
    }
    let pods: Api<Pod> = setup.namespace.api();
    eventually(Duration::from_secs(90), "all Pods to exist", async || {
        let created = pods.list(&ListParams::default().labels("app=web")).await?.items;
        ensure!(created.len() == 40, "{} Pods", created.len());
        let bare = created.iter().filter(|pod| !containers(pod).contains(&"linkerd-proxy")).count();
        assert_eq!(bare, 0, "Pods without a proxy");
        let owner =
            created.iter().all(|pod| pod.labels().get("linkerd.io/proxy-deployment").is_some_and(|it| it == "web"));
        assert!(owner, "a Pod does not name its Deployment");
        Ok(())
    })
    .await
}

/// The Events of the injector in a namespace, sorted, as `Type Reason Kind/name: message`.
async fn events(setup: &InjectorSetup) -> Result<Vec<String>> {
    let events = setup.namespace.api::<Event>().list(&ListParams::default()).await?.items;
    let of_injector =
        events.into_iter().filter(|event| event.reporting_component.as_deref() == Some("linkerd-proxy-injector"));
    let line = |event: Event| {
        let [type_, reason, message] = [event.type_, event.reason, event.message].map(Option::unwrap_or_default);
        let object = event.involved_object;
        let [kind, name] = [object.kind, object.name].map(Option::unwrap_or_default);
        format!("{type_} {reason} {kind}/{name}: {message}")
    };
    let mut lines: Vec<_> = of_injector.map(line).collect();
    lines.sort();
    Ok(lines)
}

/// Creates one Deployment for each Event, with one Pod, and other Pods that must have none.
async fn expect_events(setup: &InjectorSetup) -> Result<()> {
    let namespace = setup.namespace.name();
    // A Pod without a workload, and a Pod that is only tried: neither causes an Event.
    // It selects no node, so it has no Pods of its own.
    let nowhere = json!({"spec": {"template": {"spec": {"nodeSelector": {"no": "node"}}}}});
    workload::put(&setup.client, namespace, Kind::DaemonSet, "agent", 1, nowhere).await?;
    let agent: DaemonSet = setup.namespace.api().get("agent").await?;
    let uid = agent.metadata.uid.context("no uid")?;
    let owned = |name: &str| json!([{"apiVersion": "apps/v1", "kind": "DaemonSet", "name": name, "uid": uid}]);
    let mut bare = meshed(&json!({}));
    let pods = setup.namespace.api::<Pod>();
    pods.create(&PostParams::default(), &serde_json::from_value(bare.clone())?).await?;
    bare["metadata"]["ownerReferences"] = owned("agent");
    assert!(containers(&setup.create(&bare).await?).contains(&"linkerd-proxy"));
    // The Pod of the owner, and one that only says so.
    for name in ["agent", "invented"] {
        bare["metadata"]["ownerReferences"] = owned(name);
        pods.create(&PostParams::default(), &serde_json::from_value(bare.clone())?).await?;
    }

    let annotations = |annotations: Value| {
        json!({"spec": {"template": {
            "metadata": {"annotations": annotations}, "spec": {"serviceAccountName": "default"},
        }}})
    };
    for (name, own) in [
        ("injected", json!({"linkerd.io/inject": "enabled"})),
        ("warned", json!({"linkerd.io/inject": "enabled", "config.linkerd.io/proxy-loglevel": "debug"})),
        ("skipped", json!({"linkerd.io/inject": "disabled"})),
        ("misspelled", json!({"linkerd.io/inject": "true"})),
        ("rejected", json!({"linkerd.io/inject": "enabled", "config.linkerd.io/admin-port": "70000"})),
        ("denied", json!({"linkerd.io/inject": "enabled", "config.linkerd.io/close-wait-timeout": "30s"})),
    ] {
        workload::put(&setup.client, namespace, Kind::Deployment, name, 1, annotations(own)).await?;
    }
    let expected = [
        "Normal Injected DaemonSet/agent: Linkerd sidecar proxy injected",
        "Normal Injected Deployment/injected: Linkerd sidecar proxy injected",
        "Normal Injected Deployment/warned: Linkerd sidecar proxy injected",
        "Normal InjectionSkipped Deployment/misspelled: Linkerd sidecar proxy injection skipped: invalid value for \
         annotation \"linkerd.io/inject\" at workload",
        "Normal InjectionSkipped Deployment/skipped: Linkerd sidecar proxy injection skipped: neither the namespace \
         nor the pod have the annotation \"linkerd.io/inject:enabled\"",
        "Warning InjectionWarning Deployment/misspelled: Linkerd sidecar proxy injection skipped with warnings: \
         linkerd.io/inject is \"true\": it must be enabled, ingress or disabled; no proxy is injected",
        "Warning InjectionWarning Deployment/warned: Linkerd sidecar proxy injected with warnings: the annotation \
         config.linkerd.io/proxy-loglevel is unknown and has no effect",
    ];
    eventually(SOON, "the Events", async || {
        let seen = events(setup).await?;
        let (failed, others): (Vec<_>, Vec<_>) = seen.into_iter().partition(|it| it.contains("InjectionFailed"));
        ensure!(others == expected, "{others:?}");
        let [denied, rejected] = &failed[..] else { anyhow::bail!("{failed:?}") };
        let begin = "Warning InjectionFailed Deployment/denied: Linkerd sidecar proxy injection failed: ";
        ensure!(denied.starts_with(begin) && denied.contains("close-wait-timeout"), "{denied}");
        let begin = "Warning InjectionFailed Deployment/rejected: the Pod is rejected with its Linkerd sidecar proxy: ";
        ensure!(rejected.starts_with(begin) && rejected.contains("admin-port"), "{rejected}");
        Ok(())
    })
    .await?;
    // `kubectl describe` selects Events by this uid.
    let deployments: Api<k8s_openapi::api::apps::v1::Deployment> = setup.namespace.api();
    let deployment = deployments.get("injected").await?.metadata.uid.context("no uid")?;
    let selected = ListParams::default().fields(&format!("involvedObject.uid={deployment}"));
    let selected = setup.namespace.api::<Event>().list(&selected).await?.items;
    ensure!(selected.iter().any(|event| event.reason.as_deref() == Some("Injected")), "{selected:?}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn in_place_of_linkerds_injector_each_workload_has_its_events() -> Result<()> {
    expect_events(&InjectorSetup::with_operator(1, &[]).await?).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_manager_writes_the_same_events() -> Result<()> {
    expect_events(&InjectorSetup::with_manager().await?).await
}
