//! The objects of the mesh: a namespace, ServiceAccounts, Pods, one Service and its EndpointSlice.
//!
//! * In: a [`ControlPlane`] without controllers. Out: objects as kubelet and the controllers of Kubernetes write them.
//! * Always: the Service has at most one endpoint, so the endpoint that answers shows which state a proxy uses.

use std::net::{Ipv4Addr, SocketAddr};

use anyhow::{Context, Result};
use e2e::ControlPlane;
use k8s_openapi::api::{
    core::v1::{Pod, Service, ServiceAccount},
    discovery::v1::EndpointSlice,
};
use kube::{
    Api, Client,
    api::{DeleteParams, Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};

pub(crate) const NAMESPACE: &str = "traffic";
pub(crate) const SERVER: &str = "web";
pub(crate) const CLIENT: &str = "client";
pub(crate) const PORT: u16 = 8000;

pub(crate) struct Cluster {
    client: Client,
    /// The number of Pods of the Service so far.
    pods: usize,
}

// === impl Cluster ===

impl Cluster {
    pub(crate) async fn create(control_plane: &ControlPlane) -> Result<Self> {
        control_plane.create_namespaces(&["linkerd", NAMESPACE]).await?;
        control_plane.install_crds("crd/linkerd").await?;
        let cluster = Self { client: control_plane.client().await?, pods: 0 };
        let accounts: Api<ServiceAccount> = cluster.api();
        for account in [SERVER, CLIENT] {
            let account = serde_json::from_value(json!({"metadata": {"name": account}}))?;
            accounts.create(&PostParams::default(), &account).await?;
        }
        // Linkerd's destination does not start in a cluster without any slice.
        let slices: Api<EndpointSlice> = cluster.api();
        let slice = json!({
            "metadata": {"name": SERVER, "labels": {"kubernetes.io/service-name": SERVER}},
            "addressType": "IPv4", "endpoints": [], "ports": [{"name": "http", "port": PORT}],
        });
        slices.create(&PostParams::default(), &serde_json::from_value(slice)?).await?;
        Ok(cluster)
    }

    /// Creates the Service. Returns its address.
    pub(crate) async fn create_service(&self) -> Result<SocketAddr> {
        let services: Api<Service> = self.api();
        let service = json!({
            "metadata": {"name": SERVER},
            "spec": {"selector": {"app": SERVER}, "ipFamilies": ["IPv4"], "ipFamilyPolicy": "SingleStack",
                "ports": [{"name": "http", "port": 80, "targetPort": PORT}]},
        });
        let created = services.create(&PostParams::default(), &serde_json::from_value(service)?).await?;
        let address = created.spec.and_then(|spec| spec.cluster_ip).context("the Service has no address")?;
        Ok(SocketAddr::new(address.parse()?, 80))
    }

    /// Creates a running Pod with a proxy.
    pub(crate) async fn create_pod(&self, name: &str, account: &str, address: Ipv4Addr) -> Result<()> {
        let pods: Api<Pod> = self.api();
        let pod = json!({
            "metadata": {
                "name": name,
                "labels": {"app": account, "linkerd.io/control-plane-ns": "linkerd", "linkerd.io/workload-ns": NAMESPACE},
                "annotations": {"linkerd.io/proxy-version": "edge-26.8"},
            },
            "spec": {"serviceAccountName": account, "nodeName": "node-1", "containers": [
                {"name": "application", "image": "none", "ports": [{"name": "http", "containerPort": PORT}]},
                {"name": "linkerd-proxy", "image": "none",
                    "env": [
                        {"name": "LINKERD2_PROXY_INBOUND_LISTEN_ADDR", "value": "0.0.0.0:4143"},
                        {"name": "LINKERD2_PROXY_ADMIN_LISTEN_ADDR", "value": "0.0.0.0:4191"},
                        {"name": "LINKERD2_PROXY_CONTROL_LISTEN_ADDR", "value": "0.0.0.0:4190"},
                    ],
                    "ports": [{"name": "linkerd-proxy", "containerPort": 4143},
                        {"name": "linkerd-admin", "containerPort": 4191}]},
            ]},
        });
        let created = pods.create(&PostParams::default(), &serde_json::from_value(pod)?).await;
        created.with_context(|| format!("creating Pod {name}"))?;
        let containers = ["application", "linkerd-proxy"].map(|name| {
            let state = json!({"running": {}});
            json!({"name": name, "ready": true, "restartCount": 0, "image": "none", "imageID": "none", "state": state})
        });
        let status = json!({"status": {
            "phase": "Running", "podIP": address, "podIPs": [{"ip": address}], "hostIP": "192.0.2.1",
            "conditions": [{"type": "Ready", "status": "True"}],
            "containerStatuses": containers,
        }});
        let patched = pods.patch_status(name, &PatchParams::default(), &Patch::Merge(status)).await;
        patched.map(drop).with_context(|| format!("writing the status of Pod {name}"))
    }

    /// The number of Pods that [`Cluster::next_pod`] has created.
    pub(crate) fn pods(&self) -> usize {
        self.pods
    }

    /// Creates the next Pod of the Service. It has no endpoint before [`Cluster::publish`].
    pub(crate) async fn next_pod(&mut self, address: Ipv4Addr) -> Result<String> {
        self.pods += 1;
        let name = format!("{SERVER}-{}", self.pods);
        self.create_pod(&name, SERVER, address).await?;
        Ok(name)
    }

    pub(crate) async fn delete_pod(&self, name: &str) -> Result<()> {
        let pods: Api<Pod> = self.api();
        let now = DeleteParams { grace_period_seconds: Some(0), ..DeleteParams::default() };
        pods.delete(name, &now).await.map(drop).with_context(|| format!("deleting Pod {name}"))
    }

    /// Makes this Pod the only endpoint of the Service.
    pub(crate) async fn publish(&self, pod: &str, address: Ipv4Addr) -> Result<()> {
        let target = json!({"kind": "Pod", "name": pod, "namespace": NAMESPACE});
        self.write_endpoints(json!([{
            "addresses": [address], "nodeName": "node-1", "targetRef": target,
            "conditions": {"ready": true, "serving": true, "terminating": false},
        }]))
        .await
    }

    /// Removes the endpoint of the Service.
    pub(crate) async fn publish_nothing(&self) -> Result<()> {
        self.write_endpoints(json!([])).await
    }

    async fn write_endpoints(&self, endpoints: Value) -> Result<()> {
        let slices: Api<EndpointSlice> = self.api();
        let patch = Patch::Merge(json!({ "endpoints": endpoints }));
        let patched = slices.patch(SERVER, &PatchParams::default(), &patch).await;
        patched.map(drop).context("writing the EndpointSlice")
    }

    fn api<K>(&self) -> Api<K>
    where
        K: kube::Resource<Scope = kube::core::NamespaceResourceScope>,
        K::DynamicType: Default,
    {
        Api::namespaced(self.client.clone(), NAMESPACE)
    }
}
