//! Registers the replicas with the API server and for clients: the webhook, its Service, Pods and EndpointSlices.
//!
//! * In: a namespace, and per replica a name and an address. Out: objects in the API server.
//! * Always: the same objects as in Linkerd's chart, with three differences. The webhook selects only some namespaces,
//!   so that tests on one cluster do not affect each other. The Service has no selector, so that no controller creates
//!   EndpointSlices. All replicas share the host's address, so each has its own port and therefore its own
//!   EndpointSlice.

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

use super::{injection::VERSION, operator_webhook};
use crate::wait::eventually;

/// Linkerd's name, which is the same in every cluster.
pub const WEBHOOK: &str = "linkerd-proxy-injector-webhook-config";
pub(super) const SERVICE: &str = "linkerd-proxy-injector";
/// The label selector of the replicas' Pods.
pub(super) const COMPONENT: &str = "linkerd.io/control-plane-component=proxy-injector";
const PORT_NAME: &str = "proxy-injector";
const REACHED_DEADLINE: Duration = Duration::from_secs(30);

/// The treatment of a Pod when the injector does not answer.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum FailurePolicy {
    /// The Pod is created without a proxy.
    #[default]
    Ignore,
    /// The Pod is rejected.
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

    /// Replaces the webhook of another injector.
    pub(super) async fn put_webhook(
        &self,
        path: &str,
        ca_pem: &str,
        namespaces: &[String],
        policy: FailurePolicy,
    ) -> Result<()> {
        let webhook = json!({
            "apiVersion": "admissionregistration.k8s.io/v1",
            "kind": "MutatingWebhookConfiguration",
            "metadata": {"name": WEBHOOK, "labels": self.labels()},
            "webhooks": [{
                "name": "linkerd-proxy-injector.linkerd.io",
                "clientConfig": {
                    "service": {"name": SERVICE, "namespace": self.namespace, "path": path, "port": 443},
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

    /// Creates a Pod that is running but not ready. It is not scheduled and has no kubelet.
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

    /// Creates the EndpointSlice of this Pod, with the same name.
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

    /// Sets the readiness of the Pod, and then of its endpoint, in the same order as a cluster.
    pub(super) async fn set_ready(&self, pod: &str, uid: &str, address: SocketAddr, ready: bool) -> Result<()> {
        let params = PatchParams::default();
        let status = json!({"status": {"conditions": conditions(ready)}});
        self.pods.patch_status(pod, &params, &Patch::Merge(status)).await?;
        let slice = json!({"endpoints": [endpoint(&self.namespace, pod, uid, address, ready)]});
        self.slices.patch(pod, &params, &Patch::Merge(slice)).await?;
        Ok(())
    }

    /// Deletes the objects of a replica, if they exist.
    pub(super) async fn remove(&self, pod: &str) -> Result<()> {
        ignore_missing(self.slices.delete(pod, &DeleteParams::default()).await.map(drop))?;
        ignore_missing(self.pods.delete(pod, &DeleteParams::default().grace_period(0)).await.map(drop))
    }

    /// Waits until the API server uses the webhook and its endpoints, that is until `seen` returns true.
    pub(super) async fn is_reached(&self, seen: impl Fn() -> bool) -> Result<()> {
        let pod: Pod = serde_json::from_value(json!({
            "metadata": {"generateName": "is-the-injector-reached-"},
            "spec": {"containers": [{"name": "none", "image": "none"}]},
        }))?;
        let params = PostParams { dry_run: true, ..PostParams::default() };
        eventually(REACHED_DEADLINE, "the API server to call the injector", async || {
            // The creation may be denied, if the values do not exist yet.
            let created = self.pods.create(&params, &pod).await;
            ensure!(seen(), "a Pod was created without a call: {:?}", created.map(|pod| pod.name_any()));
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

/// Deletes the webhooks, so that the API server calls no injector. A dropped [`Injector`](super::Injector) leaves the
/// webhook, and its failure policy then applies in its namespaces.
pub async fn unregister(client: &Client) -> Result<()> {
    let webhooks: Api<MutatingWebhookConfiguration> = Api::all(client.clone());
    for webhook in [WEBHOOK, operator_webhook::CONFIGURATION] {
        ignore_missing(webhooks.delete(webhook, &DeleteParams::default()).await.map(drop))?;
    }
    Ok(())
}

/// An address of this host for endpoints, which must not be loopback addresses.
pub fn machine_address() -> Result<IpAddr> {
    let socket = UdpSocket::bind(("0.0.0.0", 0))?;
    // An address for documentation. Nothing is sent; the kernel only selects the source address.
    socket.connect(("198.51.100.1", 9)).context("this host has no IPv4 route, so it has no address for endpoints")?;
    let address = socket.local_addr()?.ip();
    ensure!(!address.is_loopback() && !address.is_unspecified(), "this host has no IPv4 address except {address}");
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
