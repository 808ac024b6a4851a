//! What makes the API server ask the replicas, and lets others find them: the webhook, its Service, Pods and EndpointSlices.
//!
//! * In: a namespace, and per replica a name and an address. Out: objects in the API server.
//! * Always: as Linkerd's chart makes them, except that the webhook is for some namespaces only, so that tests which share a
//!   cluster leave each other alone; that the Service has no selector, so that no controller makes slices besides ours; and that
//!   all replicas have one address, which is the machine's, so each has a port and therefore a slice of its own.

use std::{
    net::{IpAddr, SocketAddr, UdpSocket},
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use k8s_openapi::{
    ByteString,
    api::{
        admissionregistration::v1::MutatingWebhookConfiguration,
        core::v1::{Pod, Service},
        discovery::v1::EndpointSlice,
    },
};
use kube::{
    Api, Client, ResourceExt,
    api::{DeleteParams, Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};

use super::injection::VERSION;
use crate::wait::eventually;

/// Linkerd's, in every cluster: there is one injector.
pub const WEBHOOK: &str = "linkerd-proxy-injector-webhook-config";
pub(super) const SERVICE: &str = "linkerd-proxy-injector";
/// Of the Pods of the replicas.
pub(super) const COMPONENT: &str = "linkerd.io/control-plane-component=proxy-injector";
const PORT_NAME: &str = "proxy-injector";
const REACHED_DEADLINE: Duration = Duration::from_secs(30);

/// What becomes of a Pod when the injector gives no answer.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum FailurePolicy {
    /// It is created without a proxy.
    #[default]
    Ignore,
    /// It is not created.
    Fail,
}

pub(super) struct Registration {
    pub(super) namespace: String,
    pub(super) pods: Api<Pod>,
    slices: Api<EndpointSlice>,
    services: Api<Service>,
    webhooks: Api<MutatingWebhookConfiguration>,
}

impl Registration {
    pub(super) fn new(client: &Client, namespace: &str) -> Self {
        Self {
            namespace: namespace.to_owned(),
            pods: Api::namespaced(client.clone(), namespace),
            slices: Api::namespaced(client.clone(), namespace),
            services: Api::namespaced(client.clone(), namespace),
            webhooks: Api::all(client.clone()),
        }
    }

    pub(super) async fn put_service(&self) -> Result<()> {
        let service = json!({
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": SERVICE, "labels": self.labels()},
            "spec": {
                "type": "ClusterIP",
                "ports": [{"name": PORT_NAME, "port": 443, "targetPort": PORT_NAME}],
            },
        });
        self.services.patch(SERVICE, &apply(), &Patch::Apply(service)).await.context("creating the Service")?;
        Ok(())
    }

    /// Takes the place of another injector's.
    pub(super) async fn put_webhook(&self, ca_pem: &str, namespaces: &[String], policy: FailurePolicy) -> Result<()> {
        let webhook = json!({
            "apiVersion": "admissionregistration.k8s.io/v1",
            "kind": "MutatingWebhookConfiguration",
            "metadata": {"name": WEBHOOK, "labels": self.labels()},
            "webhooks": [{
                "name": "linkerd-proxy-injector.linkerd.io",
                "clientConfig": {
                    "service": {"name": SERVICE, "namespace": self.namespace, "path": "/", "port": 443},
                    "caBundle": ByteString(ca_pem.as_bytes().to_vec()),
                },
                "rules": [{
                    "operations": ["CREATE"],
                    "apiGroups": [""],
                    "apiVersions": ["v1"],
                    "resources": ["pods", "services"],
                    "scope": "Namespaced",
                }],
                "namespaceSelector": {"matchExpressions": [
                    {"key": "config.linkerd.io/admission-webhooks", "operator": "NotIn", "values": ["disabled"]},
                    {"key": "kubernetes.io/metadata.name", "operator": "NotIn", "values": ["kube-system", "cert-manager"]},
                    {"key": "kubernetes.io/metadata.name", "operator": "In", "values": namespaces},
                ]},
                "objectSelector": {"matchExpressions": [
                    {"key": "linkerd.io/control-plane-component", "operator": "DoesNotExist"},
                    {"key": "linkerd.io/cni-resource", "operator": "DoesNotExist"},
                ]},
                "admissionReviewVersions": ["v1", "v1beta1"],
                "failurePolicy": match policy { FailurePolicy::Ignore => "Ignore", FailurePolicy::Fail => "Fail" },
                "matchPolicy": "Equivalent",
                "reinvocationPolicy": "Never",
                "sideEffects": "None",
                "timeoutSeconds": 10,
            }],
        });
        self.webhooks.patch(WEBHOOK, &apply(), &Patch::Apply(webhook)).await.context("creating the webhook")?;
        Ok(())
    }

    /// A Pod that runs and is not ready. Nobody schedules it, and no kubelet has it.
    pub(super) async fn put_pod(&self, address: SocketAddr) -> Result<Pod> {
        let pod: Pod = serde_json::from_value(json!({
            "metadata": {
                "generateName": format!("{SERVICE}-"),
                "labels": self.labels(),
                "annotations": {"linkerd.io/created-by": format!("linkerd/helm {VERSION}")},
            },
            "spec": {
                "schedulerName": "none",
                "containers": [{
                    "name": "proxy-injector",
                    "image": format!("cr.l5d.io/linkerd/controller:{VERSION}"),
                    "ports": [{"name": PORT_NAME, "containerPort": address.port()}],
                }],
            },
        }))?;
        let pod = self.pods.create(&PostParams::default(), &pod).await.context("creating the Pod of an injector")?;
        let name = pod.name_any();
        let status = json!({"status": {
            "phase": "Running",
            "podIP": address.ip(),
            "podIPs": [{"ip": address.ip()}],
            "conditions": conditions(false),
        }});
        self.pods.patch_status(&name, &PatchParams::default(), &Patch::Merge(status)).await?;
        Ok(pod)
    }

    /// The slice of this Pod; it has the same name.
    pub(super) async fn put_slice(&self, pod: &str, uid: &str, address: SocketAddr) -> Result<()> {
        let slice: EndpointSlice = serde_json::from_value(json!({
            "metadata": {
                "name": pod,
                "labels": {
                    "kubernetes.io/service-name": SERVICE,
                    "endpointslice.kubernetes.io/managed-by": "e2e-injector",
                },
            },
            "addressType": if address.is_ipv4() { "IPv4" } else { "IPv6" },
            "endpoints": [endpoint(&self.namespace, pod, uid, address, false)],
            "ports": [{"name": PORT_NAME, "port": address.port(), "protocol": "TCP"}],
        }))?;
        self.slices.create(&PostParams::default(), &slice).await.context("creating the slice of an injector")?;
        Ok(())
    }

    /// First the Pod, then its endpoint, as it happens in a cluster.
    pub(super) async fn set_ready(&self, pod: &str, uid: &str, address: SocketAddr, ready: bool) -> Result<()> {
        let params = PatchParams::default();
        let status = json!({"status": {"conditions": conditions(ready)}});
        self.pods.patch_status(pod, &params, &Patch::Merge(status)).await?;
        let slice = json!({"endpoints": [endpoint(&self.namespace, pod, uid, address, ready)]});
        self.slices.patch(pod, &params, &Patch::Merge(slice)).await?;
        Ok(())
    }

    /// Whether or not they are there.
    pub(super) async fn remove(&self, pod: &str) -> Result<()> {
        ignore_missing(self.slices.delete(pod, &DeleteParams::default()).await.map(drop))?;
        ignore_missing(self.pods.delete(pod, &DeleteParams::default().grace_period(0)).await.map(drop))
    }

    /// Waits until the API server has learnt of the webhook and its endpoints: until something it does is seen.
    pub(super) async fn is_reached(&self, seen: impl Fn() -> bool) -> Result<()> {
        let pod: Pod = serde_json::from_value(json!({
            "metadata": {"generateName": "is-the-injector-reached-"},
            "spec": {"containers": [{"name": "none", "image": "none"}]},
        }))?;
        let params = PostParams { dry_run: true, ..PostParams::default() };
        eventually(REACHED_DEADLINE, "the API server to ask the injector", async || {
            // It may be denied, where there are no values yet.
            let created = self.pods.create(&params, &pod).await;
            ensure!(seen(), "a Pod was created without: {:?}", created.map(|pod| pod.name_any()));
            Ok(())
        })
        .await
    }

    fn labels(&self) -> Value {
        json!({
            "linkerd.io/control-plane-component": "proxy-injector",
            "linkerd.io/control-plane-ns": self.namespace,
            "app.kubernetes.io/part-of": "Linkerd",
            "app.kubernetes.io/version": VERSION,
        })
    }
}

/// The webhook goes, so that the API server asks nobody. An [`Injector`](super::Injector) that is dropped leaves it, and then
/// its failure policy decides in its namespaces.
pub async fn unregister(client: &Client) -> Result<()> {
    let webhooks: Api<MutatingWebhookConfiguration> = Api::all(client.clone());
    ignore_missing(webhooks.delete(WEBHOOK, &DeleteParams::default()).await.map(drop))
}

/// An address of this machine that an endpoint may have, which those of loopback may not.
pub(super) fn machine_address() -> Result<IpAddr> {
    let socket = UdpSocket::bind(("0.0.0.0", 0))?;
    // An address for documentation. Nothing is sent; the kernel only says from where it would be.
    socket.connect(("198.51.100.1", 9)).context("this machine has no IPv4 route, so no address for endpoints")?;
    let address = socket.local_addr()?.ip();
    ensure!(!address.is_loopback() && !address.is_unspecified(), "this machine has no IPv4 address besides {address}");
    Ok(address)
}

fn conditions(ready: bool) -> Value {
    let condition = |name: &str, holds: bool| json!({"type": name, "status": if holds { "True" } else { "False" }});
    json!([condition("Initialized", true), condition("ContainersReady", ready), condition("Ready", ready)])
}

fn endpoint(namespace: &str, pod: &str, uid: &str, address: SocketAddr, ready: bool) -> Value {
    json!({
        "addresses": [address.ip()],
        "conditions": {"ready": ready, "serving": ready, "terminating": false},
        "targetRef": {"kind": "Pod", "namespace": namespace, "name": pod, "uid": uid},
    })
}

fn apply() -> PatchParams {
    PatchParams::apply("e2e-injector").force()
}

fn ignore_missing(result: kube::Result<()>) -> Result<()> {
    match result {
        Err(kube::Error::Api(status)) if status.is_not_found() => Ok(()),
        result => Ok(result?),
    }
}
