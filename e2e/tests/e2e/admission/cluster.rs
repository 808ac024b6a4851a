//! A cluster with the shipped manifests and components, and managers with the ServiceAccount and the environment of the
//! shipped Deployment, to which the API server connects through the shipped Service and webhook configuration.

use std::{net::SocketAddr, time::Duration};

use anyhow::{Context, Result, ensure};
use e2e::{
    Manager, ManagerOptions, Rig, eventually,
    injector::machine_address,
    mesh::SOON,
    port,
    shipped::{OPERATOR_NAMESPACE, is_named},
    tls::certificate_of,
};
use k8s_openapi::{
    ByteString,
    api::{
        admissionregistration::v1::MutatingWebhookConfiguration,
        core::v1::{Pod, Secret},
        discovery::v1::EndpointSlice,
    },
};
use kube::{
    Api,
    api::{DeleteParams, Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};
use tokio::sync::{Mutex, MutexGuard};

pub(crate) const SECRET: &str = "linkerd-operator-webhook";
pub(crate) const SERVICE: &str = "linkerd-operator-webhook";
pub(crate) const LEASE: &str = "linkerd-operator-webhook-certificate";
pub(crate) const CONFIGURATION: &str = "linkerd-operator-proxy-injector";
pub(crate) const NAME: &str = "linkerd-operator-webhook.linkerd-operator-system.svc";
/// The namespace of the created Pods.
pub(crate) const APP: &str = "app";
/// The components, in both folders.
const COMPONENTS: &str = "components: [../../config/components/webhook-server, ../../config/components/proxy-injector]";
const LINKERDS_COMPONENTS: &str = "components: [../../config/components/proxy-injector/control-plane]";

/// Serializes the tests with so many reviews or connections that a machine with few cores has time for one of them.
static TURN: Mutex<()> = Mutex::const_new(());

pub(crate) struct WebhookRig {
    pub(crate) control_plane: Rig,
    /// The memory limit of its managers, in bytes.
    pub(crate) memory_limit: Option<u64>,
    objects: Vec<Value>,
    _turn: Option<MutexGuard<'static, ()>>,
}

pub(crate) struct WebhookReplica {
    pub(crate) manager: Manager,
    pub(crate) address: SocketAddr,
    slice: String,
}

impl WebhookRig {
    /// Starts a cluster with all manifests except the webhook configuration, and without managers.
    pub(crate) async fn start() -> Result<Self> {
        Self::with(COMPONENTS).await
    }

    /// The same, when no other test of this kind runs.
    pub(crate) async fn under_load() -> Result<Self> {
        let turn = TURN.lock().await;
        Ok(Self { _turn: Some(turn), ..Self::start().await? })
    }

    /// The same with other components in the overlay of `config/default`.
    pub(crate) async fn with(components: &str) -> Result<Self> {
        let control_plane = Rig::bare().namespace("linkerd").namespace(APP).start().await?;
        let objects = control_plane.shipped_with("config/default", components).await?;
        let is_applied =
            |object: &Value| object["kind"] != "Deployment" && object["kind"] != "MutatingWebhookConfiguration";
        let mut applied: Vec<_> = objects.iter().filter(|object| is_applied(object)).cloned().collect();
        // Without kube-proxy and the controllers, the test writes the endpoints of the Service.
        for service in applied.iter_mut().filter(|object| object["kind"] == "Service" && is_named(object, SERVICE)) {
            service["spec"].as_object_mut().context("no spec")?.remove("selector");
        }
        for (name, key, text) in [
            ("linkerd-config", "values", crate::proxy_injector::HELM),
            ("linkerd-identity-trust-roots", "ca-bundle.crt", crate::proxy_injector::TRUST_ANCHORS),
        ] {
            let metadata = json!({"name": name, "namespace": "linkerd"});
            applied.push(json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {key: text}}));
        }
        applied.extend(control_plane.shipped_with("config/control-plane", LINKERDS_COMPONENTS).await?);
        control_plane.apply(&applied).await?;
        Ok(Self { control_plane, memory_limit: None, objects, _turn: None })
    }

    /// Applies the shipped webhook configuration with this failure policy, as `kubectl apply --server-side` does.
    pub(crate) async fn register(&self, policy: &str) -> Result<()> {
        self.register_with(policy, None).await
    }

    /// The same with another time for each review.
    pub(crate) async fn register_with(&self, policy: &str, timeout_seconds: Option<u32>) -> Result<()> {
        let shipped = self.objects.iter().find(|object| object["kind"] == "MutatingWebhookConfiguration");
        let mut configuration = shipped.context("no webhook configuration is shipped")?.clone();
        configuration["webhooks"][0]["failurePolicy"] = json!(policy);
        if let Some(seconds) = timeout_seconds {
            configuration["webhooks"][0]["timeoutSeconds"] = json!(seconds);
        }
        self.control_plane.apply(&[configuration]).await
    }

    /// Applies the shipped configuration of the validation with this failure policy.
    pub(crate) async fn register_validation(&self, policy: &str) -> Result<()> {
        let component = "components: [../../config/components/webhooks]";
        let objects = self.control_plane.shipped_with("config/default", component).await?;
        let shipped = objects.into_iter().find(|object| object["kind"] == "ValidatingWebhookConfiguration");
        let mut configuration = shipped.context("no webhook configuration is shipped")?;
        configuration["webhooks"][0]["failurePolicy"] = json!(policy);
        self.control_plane.apply(&[configuration]).await
    }

    /// Starts a manager without waiting for it.
    pub(crate) async fn replica(&self) -> Result<WebhookReplica> {
        let deployment = self.objects.iter().find(|object| object["kind"] == "Deployment");
        let container = &deployment.context("no Deployment")?["spec"]["template"]["spec"]["containers"][0];
        let env = container["env"].as_array().into_iter().flatten();
        let env = env.filter_map(|it| Some((it["name"].as_str()?.to_owned(), it["value"].as_str()?.to_owned())));
        let ip = machine_address()?;
        let address = SocketAddr::from((ip, port::free_at(ip)?));
        let mut args = vec![
            format!("--operator-namespace={OPERATOR_NAMESPACE}"),
            format!("--webhook-addr={address}"),
            "--leader-election-lease-duration=5s".to_owned(),
            "--leader-election-renew-deadline=3s".to_owned(),
            "--leader-election-retry-period=500ms".to_owned(),
        ];
        args.extend(["destination", "external-workload", "linkerd-config"].map(|job| format!("--enable-{job}=false")));
        let options = ManagerOptions::new(args).kubeconfig(self.control_plane.operator_kubeconfig().await?);
        let options = ManagerOptions { env: env.collect(), ..options.memory_limit(self.memory_limit) };
        let manager = options.start(&self.control_plane)?;
        Ok(WebhookReplica { manager, address, slice: format!("{SERVICE}-{}", address.port()) })
    }

    /// Starts a manager, waits until it is ready, and makes it an endpoint of the Service.
    pub(crate) async fn ready_replica(&self) -> Result<WebhookReplica> {
        let mut replica = self.replica().await?;
        replica.manager.ready(SOON).await?;
        self.add_endpoint(&replica).await?;
        Ok(replica)
    }

    pub(crate) async fn add_endpoint(&self, replica: &WebhookReplica) -> Result<()> {
        let slice: EndpointSlice = serde_json::from_value(json!({
            "metadata": {"name": replica.slice, "labels": {"kubernetes.io/service-name": SERVICE}},
            "addressType": "IPv4",
            "endpoints": [{"addresses": [replica.address.ip()], "conditions": {"ready": true}}],
            "ports": [{"name": "webhook", "port": replica.address.port(), "protocol": "TCP"}],
        }))?;
        self.slices().create(&PostParams::default(), &slice).await?;
        Ok(())
    }

    pub(crate) async fn remove_endpoint(&self, replica: &WebhookReplica) -> Result<()> {
        self.slices().delete(&replica.slice, &DeleteParams::default()).await?;
        Ok(())
    }

    fn slices(&self) -> Api<EndpointSlice> {
        Api::namespaced(self.control_plane.client.clone(), OPERATOR_NAMESPACE)
    }

    pub(crate) fn secrets(&self) -> Api<Secret> {
        Api::namespaced(self.control_plane.client.clone(), OPERATOR_NAMESPACE)
    }

    pub(crate) fn configurations(&self) -> Api<MutatingWebhookConfiguration> {
        Api::all(self.control_plane.client.clone())
    }

    /// Creates a Pod that asks for a proxy, as a dry run, and checks that it has one.
    pub(crate) async fn inject(&self) -> Result<()> {
        let pod: Pod = serde_json::from_value(json!({
            "metadata": {"generateName": "web-", "annotations": {"linkerd.io/inject": "enabled"}},
            "spec": {"serviceAccountName": "default", "containers": [{"name": "web", "image": "web"}]},
        }))?;
        let params = PostParams { dry_run: true, ..PostParams::default() };
        let pod = Api::<Pod>::namespaced(self.control_plane.client.clone(), APP).create(&params, &pod).await?;
        let mut containers = pod.spec.iter().flat_map(|spec| spec.init_containers.iter().flatten());
        ensure!(containers.any(|it| it.name == "linkerd-proxy"), "the Pod has no proxy");
        Ok(())
    }

    pub(crate) async fn injects(&self) -> Result<()> {
        eventually(SOON, "a Pod to get a proxy", async || self.inject().await).await
    }

    /// Waits until the API server calls the webhook, which no replica serves.
    pub(crate) async fn calls_webhook(&self) -> Result<()> {
        eventually(SOON, "the webhook to be called", async || {
            let error = self.inject().await.err().context("a Pod was created")?;
            ensure!(format!("{error:#}").contains("failed calling webhook"), "{error:#}");
            Ok(())
        })
        .await
    }

    /// A value of the Secret; empty if it is missing.
    pub(crate) async fn value(&self, key: &str) -> Result<Vec<u8>> {
        let secret = self.secrets().get_opt(SECRET).await?;
        let data = secret.and_then(|secret| secret.data).unwrap_or_default();
        Ok(data.get(key).map(|value| value.0.clone()).unwrap_or_default())
    }

    /// The `caBundle` of the configuration. It is empty if the configuration or the field does not exist.
    pub(crate) async fn bundle(&self) -> Result<String> {
        let configuration = self.configurations().get_opt(CONFIGURATION).await?;
        let webhook = configuration.and_then(|it| it.webhooks?.into_iter().next());
        let bundle = webhook.and_then(|it| it.client_config.ca_bundle).unwrap_or_default();
        Ok(String::from_utf8(bundle.0)?)
    }

    /// Sets the `caBundle`, or removes it if the text is empty.
    pub(crate) async fn set_bundle(&self, pem: &str) -> Result<()> {
        let (path, bundle) = ("/webhooks/0/clientConfig/caBundle", ByteString(pem.as_bytes().to_vec()));
        let operation = match pem {
            "" => json!([{"op": "remove", "path": path}]),
            _ => json!([{"op": "add", "path": path, "value": bundle}]),
        };
        let patch = Patch::<()>::Json(serde_json::from_value(operation)?);
        self.configurations().patch(CONFIGURATION, &PatchParams::default(), &patch).await?;
        Ok(())
    }

    /// Deletes a key of the Secret.
    pub(crate) async fn delete_key(&self, key: &str) -> Result<()> {
        let operation = json!([{"op": "remove", "path": format!("/data/{key}")}]);
        let patch = Patch::<()>::Json(serde_json::from_value(operation)?);
        self.secrets().patch(SECRET, &PatchParams::default(), &patch).await?;
        Ok(())
    }

    pub(crate) async fn delete_secret(&self) -> Result<()> {
        self.secrets().delete(SECRET, &DeleteParams::default()).await?;
        Ok(())
    }

    /// Waits until each replica presents the leaf of the Secret, which is not `before` and which the API server trusts.
    pub(crate) async fn rotated(&self, before: &[u8], replicas: &[&WebhookReplica], deadline: Duration) -> Result<()> {
        eventually(deadline, "the new leaf in each replica", async || {
            let leaf = self.value("tls.crt").await?;
            ensure!(!leaf.is_empty() && leaf != before, "the Secret has the old leaf or none");
            let bundle = self.bundle().await?;
            for replica in replicas {
                let presented = certificate_of(replica.address, NAME, &bundle).await?;
                let leaf = pem_to_der(&leaf)?;
                ensure!(presented.as_ref() == leaf, "{} presents the old leaf", replica.address);
            }
            Ok(())
        })
        .await
    }
}

/// The bytes of one certificate.
fn pem_to_der(pem: &[u8]) -> Result<Vec<u8>> {
    let text = std::str::from_utf8(pem)?;
    let base64: String = text.lines().filter(|line| !line.starts_with("-----")).collect();
    let ByteString(der) = serde_json::from_value(json!(base64))?;
    Ok(der)
}
