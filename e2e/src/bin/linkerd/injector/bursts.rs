//! The same bursts of Pods through Linkerd's injector and through the operator's.
//!
//! * In: the path of Linkerd's controller. Out: for each burst, the Pods that got no proxy, and the time that it took.
//! * Always: one API server, two replicas, dry runs, `failurePolicy: Ignore`, one injector after the other.

use std::{
    path::Path,
    time::{Duration, Instant},
};

use anyhow::Result;
use e2e::{
    ControlPlane, Injector, Options,
    injector::{CertificateKind, install},
};
use k8s_openapi::api::core::v1::Pod;
use kube::{Api, Client, api::PostParams};
use serde_json::json;
use tokio::task::JoinSet;

use super::scene::{APP, LINKERD, REPLICAS};

const SIZES: [usize; 3] = [200, 600, 2_000];

/// A burst through one injector.
pub(crate) struct Burst {
    pub(crate) injector: &'static str,
    pub(crate) pods: usize,
    pub(crate) lost: usize,
    pub(crate) took: Duration,
}

/// Creates the bursts through each injector.
pub(crate) async fn bursts(controller: &Path) -> Result<Vec<Burst>> {
    let control_plane = ControlPlane::start(Options::default()).await?;
    install(&control_plane, LINKERD, APP).await?;
    let client = control_plane.client().await?;
    let mut bursts = Vec::new();
    for injector in ["Linkerd", "this operator"] {
        let running = match injector {
            "Linkerd" => {
                let signed = CertificateKind::SignedByAuthority;
                Injector::start_linkerd(controller, signed, &control_plane, LINKERD, &[APP], REPLICAS).await?
            }
            _ => Injector::start_operator(false, &control_plane, LINKERD, &[APP], REPLICAS).await?,
        };
        for pods in SIZES {
            let begun = Instant::now();
            let lost = burst(&client, pods).await;
            bursts.push(Burst { injector, pods, lost, took: begun.elapsed() });
        }
        // The API server would call the endpoints of this injector for the next one's Pods.
        for replica in running.replicas() {
            running.remove_replica(replica).await?;
        }
    }
    Ok(bursts)
}

/// Creates Pods at once, and returns how many of them got no proxy.
async fn burst(client: &Client, count: usize) -> usize {
    let mut pods = JoinSet::new();
    for _ in 0..count {
        let pods_of_app = Api::<Pod>::namespaced(client.clone(), APP);
        pods.spawn(async move {
            let pod = serde_json::from_value(json!({
                "metadata": {"generateName": "web-", "annotations": {"linkerd.io/inject": "enabled"}},
                "spec": {"serviceAccountName": "default", "containers": [{"name": "web", "image": "web"}]},
            }));
            let pod = pod.map_err(kube::Error::SerdeError)?;
            pods_of_app.create(&PostParams { dry_run: true, ..PostParams::default() }, &pod).await
        });
    }
    let is_injected = |pod: Pod| {
        let spec = pod.spec.unwrap_or_default();
        spec.init_containers.iter().flatten().chain(&spec.containers).any(|it| it.name == "linkerd-proxy")
    };
    pods.join_all().await.into_iter().filter(|created| !matches!(created, Ok(pod) if is_injected(pod.clone()))).count()
}
