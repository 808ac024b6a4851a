//! The Secret of another cluster, as Linkerd's CLI and chart write it.

use k8s_openapi::ByteString;
use serde_json::{Value, json};

/// The name of [`link`].
pub fn link_name(cluster: &str) -> String {
    format!("cluster-credentials-{cluster}")
}

/// The Secret in the namespace `linkerd` that links a cluster.
pub fn link(cluster: &str, trust_domain: &str, kubeconfig: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Secret", "type": "mirror.linkerd.io/remote-kubeconfig",
        "metadata": {
            "name": link_name(cluster), "namespace": "linkerd",
            "labels": {"multicluster.linkerd.io/cluster-name": cluster},
            "annotations": {"multicluster.linkerd.io/trust-domain": trust_domain, "multicluster.linkerd.io/cluster-domain": "cluster.local"},
        },
        "data": {"kubeconfig": ByteString(kubeconfig.as_bytes().to_vec())},
    })
}
