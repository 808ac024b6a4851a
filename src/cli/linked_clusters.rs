//! Finds the problems of the other clusters that Services have their endpoints in.
//!
//! In: the Services, from the API server; `/ready` of the Pod that answers. Out: its lines about these clusters. Always
//! holds: it only helps people, so it has a deadline, and its failure does not fail the command.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use futures::future::join_all;
use k8s_openapi::api::core::v1::Service;
use kube::{Api, Client};
use tokio::time::timeout;

use super::{check, connect::PodPort, no_endpoints::AuthorityParts};
use crate::cluster::{Problems, kinds::federated_service::FederatedService};

const DEADLINE: Duration = Duration::from_secs(5);

/// Returns what the Pod says about the other clusters of the authorities.
pub(super) async fn problems(pod_port: &PodPort, authorities: &[String]) -> Vec<String> {
    let read = async {
        let client = pod_port.pods.clone().into_client();
        let clusters = join_all(authorities.iter().map(|authority| clusters_of(&client, authority))).await;
        let clusters: BTreeSet<Arc<str>> = clusters.into_iter().flatten().flatten().collect();
        if clusters.is_empty() {
            return None;
        }
        let pod = pod_port.pod().await.ok()?;
        Some(about(check::waiting_for(&client, &pod).await?, &clusters))
    };
    timeout(DEADLINE, read).await.ok().flatten().unwrap_or_default()
}

async fn clusters_of(client: &Client, authority: &str) -> Option<BTreeSet<Arc<str>>> {
    let AuthorityParts { namespace, name, .. } = AuthorityParts::of(authority)?;
    let service = Api::<Service>::namespaced(client.clone(), namespace).get(name).await.ok()?;
    Some(named(service))
}

/// Returns the clusters that a Service names.
fn named(service: Service) -> BTreeSet<Arc<str>> {
    let (labels, annotations) = (service.metadata.labels, service.metadata.annotations);
    let (labels, annotations) = (labels.unwrap_or_default(), annotations.unwrap_or_default());
    let federated = FederatedService::of(&labels, &annotations, &mut Problems::default());
    federated.into_iter().flat_map(|federated| federated.members).filter_map(|member| member.cluster).collect()
}

/// Returns the lines of `/ready` about these clusters, and about Secrets of links that name no cluster.
fn about(mut waiting_for: Vec<String>, clusters: &BTreeSet<Arc<str>>) -> Vec<String> {
    waiting_for.retain(|line| match line.strip_prefix("cluster ").and_then(|line| line.split_once(": ")) {
        Some((cluster, _)) => clusters.contains(cluster),
        None => line.starts_with("Secret "),
    });
    waiting_for
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, from_value, json};

    use super::*;

    #[test]
    fn the_clusters_of_a_service_are_those_of_its_members() {
        let of = |metadata: Value| -> Vec<String> {
            named(from_value(json!({ "metadata": metadata })).unwrap()).iter().map(ToString::to_string).collect()
        };
        let remote = json!({"labels": {"multicluster.linkerd.io/remote-discovery": "east",
            "multicluster.linkerd.io/remote-service": "web"}});
        assert_eq!(of(remote), ["east"]);
        let federated = json!({"annotations": {"multicluster.linkerd.io/remote-discovery": "web@west,web@east",
            "multicluster.linkerd.io/local-discovery": "web"}});
        assert_eq!(of(federated), ["east", "west"]);
        assert_eq!(of(json!({"labels": {"app": "web"}})), [""; 0]);
    }

    #[test]
    fn only_lines_about_the_clusters_of_the_services_are_shown() {
        let lines = [
            "list and watch of nodes are denied, grant them to this ServiceAccount: no",
            "cluster east: Secret linkerd/a has no usable link: the key kubeconfig is empty",
            "cluster east-2: Secret linkerd/b has no usable link: the key kubeconfig is empty",
            "cluster west: namespace ns: cannot list or watch pods: cluster east: no",
            "Secret linkerd/c links no cluster: the label is missing",
            "cluster east: and 2 more problems",
        ];
        let shown = about(lines.map(str::to_owned).to_vec(), &BTreeSet::from(["east".into()]));
        assert_eq!(shown, [lines[1], lines[4], lines[5]]);
    }
}
