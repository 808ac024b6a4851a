//! Meshed Pods without a kubelet: Deployments with ten Pods, each with its ReplicaSet, Service and EndpointSlice.
//!
//! * Always: distributed over namespaces of twenty Deployments; opted in, up to date, running and ready; each Pod is as
//!   large as a real one. No controllers run that would delete or replace objects.

use std::net::Ipv4Addr;

use anyhow::{Context, Result};
use e2e::{
    objects::{create_all, kind},
    workload::Proxy,
};
use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api, Client,
    api::{Patch, PatchParams},
};
use serde_json::{Value, json};

pub(super) const PODS_EACH: usize = 10;
const WORKLOADS_EACH: usize = 20;
const NODES: usize = 20;
const TIME: &str = "2026-11-22T06:00:00Z";
const CONDITIONS: [&str; 5] = ["PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady", "PodScheduled"];
const VARIABLES: usize = 50;

pub(super) struct WorkloadCrowd {
    client: Client,
    proxy: Proxy,
    workloads: usize,
}

impl WorkloadCrowd {
    /// An empty crowd, whose Pods will have such proxies.
    pub(super) fn new(client: &Client, proxy: Proxy) -> Self {
        Self { client: client.clone(), proxy, workloads: 0 }
    }

    /// Creates objects until this number of workloads exists.
    pub(super) async fn grow(&mut self, workloads: usize) -> Result<()> {
        let new = self.workloads..workloads;
        eprintln!("{} Pods in {workloads} workloads", workloads * PODS_EACH);
        if self.workloads == 0 {
            self.put("v1", "Node", (0..NODES).map(node)).await?;
        }
        let namespaces = new.clone().filter(|workload| workload % WORKLOADS_EACH == 0);
        let named = |workload| json!({"metadata": {"name": namespace(workload)}});
        self.put("v1", "Namespace", namespaces.map(named)).await?;
        self.put("v1", "Service", new.clone().map(service)).await?;
        self.put("discovery.k8s.io/v1", "EndpointSlice", new.clone().map(slice)).await?;
        self.put("apps/v1", "Deployment", new.clone().map(deployment)).await?;
        self.put("apps/v1", "ReplicaSet", new.clone().map(replica_set)).await?;
        let pods = new.start * PODS_EACH..new.end * PODS_EACH;
        self.put("v1", "Pod", pods.map(|number| pod(number, &self.proxy))).await?;
        self.workloads = workloads;
        Ok(())
    }

    /// Changes a label of the Pod, so that its workload is evaluated again.
    pub(super) async fn touch(&self, number: usize, value: &str) -> Result<()> {
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), &namespace(number / PODS_EACH));
        let patch = Patch::Merge(json!({"metadata": {"labels": {"bench": value}}}));
        pods.patch_metadata(&pod_name(number), &PatchParams::default(), &patch).await?;
        Ok(())
    }

    /// The size of a Pod in a watch, with and without managedFields.
    pub(super) async fn pod_bytes(&self) -> Result<(usize, usize)> {
        let path = format!("/api/v1/namespaces/{}/pods/{}", namespace(0), pod_name(0));
        let text = self.client.request_text(http::Request::get(path).body(Vec::new())?).await?;
        let mut pod: Value = serde_json::from_str(&text)?;
        let metadata = pod.get_mut("metadata").and_then(Value::as_object_mut).context("a Pod without metadata")?;
        metadata.remove("managedFields");
        Ok((text.len(), pod.to_string().len()))
    }

    async fn put(&self, version: &str, name: &str, objects: impl Iterator<Item = Value>) -> Result<()> {
        create_all(&self.client, &kind(version, name), None, objects).await
    }
}

fn namespace(workload: usize) -> String {
    format!("apps-{:02}", workload / WORKLOADS_EACH)
}

fn app(workload: usize) -> String {
    format!("web-{workload:04}")
}

/// The name of the only ReplicaSet of a workload.
fn replica_set_name(workload: usize) -> String {
    format!("{}-5d4f8c7b9", app(workload))
}

fn pod_name(number: usize) -> String {
    let workload = number / PODS_EACH;
    format!("{}-{:05}", replica_set_name(workload), number % PODS_EACH)
}

fn address(number: usize) -> Ipv4Addr {
    let [second, third] = [number / 250, 1 + number % 250];
    #[allow(clippy::cast_possible_truncation, reason = "none is larger than 250")]
    Ipv4Addr::new(10, 1, second as u8, third as u8)
}

fn node_name(number: usize) -> String {
    format!("node-{}", number % NODES)
}

fn node(number: usize) -> Value {
    json!({"metadata": {"name": node_name(number), "labels": {"topology.kubernetes.io/zone": format!("zone-{}", number % 3)}}})
}

fn service(workload: usize) -> Value {
    let app = app(workload);
    json!({"metadata": {"name": app, "namespace": namespace(workload)},
        "spec": {"selector": {"app": app}, "ports": [{"name": "http", "port": 80}]}})
}

fn slice(workload: usize) -> Value {
    let app = app(workload);
    let endpoint = |number: usize| {
        json!({"addresses": [address(number)], "conditions": {"ready": true, "serving": true, "terminating": false},
            "nodeName": node_name(number), "zone": format!("zone-{}", number % NODES % 3),
            "targetRef": {"kind": "Pod", "namespace": namespace(workload), "name": pod_name(number)}})
    };
    let endpoints: Vec<Value> = (workload * PODS_EACH..(workload + 1) * PODS_EACH).map(endpoint).collect();
    let labels = json!({"kubernetes.io/service-name": app});
    json!({"metadata": {"name": format!("{app}-x7k2p"), "namespace": namespace(workload), "labels": labels},
        "addressType": "IPv4", "ports": [{"name": "http", "port": 8080}], "endpoints": endpoints})
}

fn template(workload: usize) -> Value {
    json!({"metadata": {"labels": labels(workload), "annotations": {"linkerd.io/inject": "enabled"}},
        "spec": {"serviceAccountName": app(workload), "containers": [application()]}})
}

fn labels(workload: usize) -> Value {
    json!({"app": app(workload), "pod-template-hash": "5d4f8c7b9"})
}

fn deployment(workload: usize) -> Value {
    let app = app(workload);
    json!({
        "metadata": {"name": app, "namespace": namespace(workload), "labels": {"app": app, "config.linkerd.io/reconcile": "auto"}},
        "spec": {"replicas": PODS_EACH, "selector": {"matchLabels": {"app": app}}, "template": template(workload)},
        "status": {"observedGeneration": 1, "replicas": PODS_EACH, "updatedReplicas": PODS_EACH, "readyReplicas": PODS_EACH, "availableReplicas": PODS_EACH},
    })
}

fn replica_set(workload: usize) -> Value {
    let owner =
        json!({"apiVersion": "apps/v1", "kind": "Deployment", "name": app(workload), "uid": "0", "controller": true});
    json!({
        "metadata": {"name": replica_set_name(workload), "namespace": namespace(workload), "labels": labels(workload), "ownerReferences": [owner]},
        "spec": {"replicas": PODS_EACH, "selector": {"matchLabels": labels(workload)}, "template": template(workload)},
        "status": {"observedGeneration": 1, "replicas": PODS_EACH, "fullyLabeledReplicas": PODS_EACH, "readyReplicas": PODS_EACH, "availableReplicas": PODS_EACH},
    })
}

fn application() -> Value {
    let probe = |path: &str| json!({"httpGet": {"path": path, "port": 8080}, "periodSeconds": 10});
    let environment: Vec<Value> =
        (0..8).map(|n| json!({"name": format!("SETTING_{n}"), "value": "something"})).collect();
    json!({"name": "web", "image": "registry.example.com/shop/web:1.42.0", "ports": [{"name": "http", "containerPort": 8080}],
        "env": environment, "livenessProbe": probe("/live"), "readinessProbe": probe("/ready"),
        "resources": {"requests": {"cpu": "100m", "memory": "128Mi"}, "limits": {"memory": "256Mi"}}})
}

/// A Pod as the injector and a kubelet leave it.
fn pod(number: usize, proxy: &Proxy) -> Value {
    let (workload, ip, host) = (number / PODS_EACH, address(number), format!("192.168.0.{}", 1 + number % NODES));
    let (app, version) = (app(workload), proxy.version.as_deref().unwrap_or_default());
    let image = format!("cr.l5d.io/linkerd/proxy:{version}");
    let owner = json!({"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": replica_set_name(workload), "uid": "0", "controller": true, "blockOwnerDeletion": true});
    let mount = |name: &str, path: &str| json!({"name": name, "mountPath": path});
    let secured = json!({"allowPrivilegeEscalation": false, "readOnlyRootFilesystem": true, "runAsNonRoot": true, "runAsUser": 2102,
        "capabilities": {"drop": ["ALL"]}, "seccompProfile": {"type": "RuntimeDefault"}});
    let condition = |name: &str| json!({"type": name, "status": "True", "lastTransitionTime": TIME});
    let status = |name: &str, image: &str| {
        json!({"name": name, "image": image, "imageID": format!("{image}@sha256:{}", "0".repeat(64)), "containerID": format!("containerd://{}", "1".repeat(64)),
            "ready": true, "started": true, "restartCount": 0, "state": {"running": {"startedAt": TIME}}, "lastState": {}})
    };
    json!({
        "metadata": {
            "name": pod_name(number), "namespace": namespace(workload), "ownerReferences": [owner],
            "labels": {"app": app, "pod-template-hash": "5d4f8c7b9", "linkerd.io/control-plane-ns": "linkerd",
                "linkerd.io/proxy-deployment": app, "linkerd.io/workload-ns": namespace(workload)},
            "annotations": {"linkerd.io/created-by": "linkerd/proxy-injector edge-26.8.3", "linkerd.io/inject": "enabled",
                "linkerd.io/proxy-version": version},
        },
        "spec": {
            "nodeName": node_name(number), "serviceAccountName": app, "automountServiceAccountToken": false,
            "initContainers": [
                {"name": "linkerd-init", "image": "cr.l5d.io/linkerd/proxy-init:v2.4.3", "securityContext": {"capabilities": {"add": ["NET_ADMIN", "NET_RAW"]}},
                    "args": ["--ipv6=false", "--incoming-proxy-port", "4143", "--outgoing-proxy-port", "4140", "--proxy-uid", "2102", "--inbound-ports-to-ignore", "4190,4191,4567,4568", "--outbound-ports-to-ignore", "4567,4568"],
                    "volumeMounts": [mount("linkerd-proxy-init-xtables-lock", "/run")]},
                {"name": "linkerd-proxy", "image": image, "restartPolicy": "Always", "env": environment(proxy), "securityContext": secured,
                    "ports": [{"name": "linkerd-proxy", "containerPort": 4143}, {"name": "linkerd-admin", "containerPort": 4191}],
                    "livenessProbe": {"httpGet": {"path": "/live", "port": 4191}, "initialDelaySeconds": 10},
                    "readinessProbe": {"httpGet": {"path": "/ready", "port": 4191}, "initialDelaySeconds": 2},
                    "startupProbe": {"httpGet": {"path": "/ready", "port": 4191}, "periodSeconds": 1, "failureThreshold": 120},
                    "lifecycle": {"postStart": {"exec": {"command": ["/usr/lib/linkerd/linkerd-await", "--timeout=2m", "--port=4191"]}}},
                    "volumeMounts": [mount("linkerd-identity-end-entity", "/var/run/linkerd/identity/end-entity"), mount("linkerd-identity-token", "/var/run/secrets/tokens")]},
            ],
            "containers": [application()],
            "tolerations": [
                {"key": "node.kubernetes.io/not-ready", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300},
                {"key": "node.kubernetes.io/unreachable", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300},
            ],
            "volumes": [
                {"name": "linkerd-proxy-init-xtables-lock", "emptyDir": {}},
                {"name": "linkerd-identity-end-entity", "emptyDir": {"medium": "Memory"}},
                {"name": "linkerd-identity-token", "projected": {"sources": [{"serviceAccountToken": {"audience": "identity.l5d.io", "expirationSeconds": 86400, "path": "linkerd-identity-token"}}]}},
            ],
        },
        "status": {
            "phase": "Running", "startTime": TIME, "qosClass": "Burstable",
            "podIP": ip, "podIPs": [{"ip": ip}], "hostIP": host, "hostIPs": [{"ip": host}],
            "conditions": CONDITIONS.map(condition),
            "initContainerStatuses": [status("linkerd-init", "cr.l5d.io/linkerd/proxy-init:v2.4.3"), status("linkerd-proxy", &image)],
            "containerStatuses": [status("web", "registry.example.com/shop/web:1.42.0")],
        },
    })
}

fn environment(proxy: &Proxy) -> Vec<Value> {
    let variable = |name: String, value: &str| json!({"name": name, "value": value});
    let listen = [("INBOUND", 4143), ("OUTBOUND", 4140), ("ADMIN", 4191), ("CONTROL", 4190)];
    let listen =
        listen.map(|(name, port)| variable(format!("LINKERD2_PROXY_{name}_LISTEN_ADDR"), &format!("0.0.0.0:{port}")));
    let others = (0..VARIABLES)
        .map(|n| variable(format!("LINKERD2_PROXY_SETTING_NUMBER_{n}"), "a value of about the usual length"));
    let marker = variable("LINKERD_CONFIG_HASH".to_owned(), proxy.marker.as_deref().unwrap_or_default());
    let anchors = proxy.trust_anchors.as_deref().unwrap_or_default();
    let anchors = variable("LINKERD2_PROXY_IDENTITY_TRUST_ANCHORS".to_owned(), anchors);
    listen.into_iter().chain(others).chain([marker, anchors]).collect()
}
