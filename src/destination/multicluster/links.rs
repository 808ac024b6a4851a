//! Follows the Secrets with the kubeconfigs of other clusters. They appear, change and vanish while the process runs.

use std::{collections::BTreeMap, sync::Arc};

use tokio::{sync::Notify, time::Instant};

use super::Multicluster;
use crate::{
    api::REMOTE_KUBECONFIG_TYPE,
    cluster::{
        Change, Cluster, Kind, Observer, State, WatchScope,
        kinds::remote_kubeconfig::{Link, RemoteKubeconfig},
    },
};

/// Wakes the task that links clusters when a Secret changes.
pub struct LinksObserver {
    namespace: Arc<str>,
    changed: Notify,
}

// === impl LinksObserver ===

impl LinksObserver {
    /// `namespace` is that of the control plane.
    pub fn new(namespace: &str) -> Arc<Self> {
        Arc::new(Self { namespace: namespace.into(), changed: Notify::new() })
    }
}

impl Observer for LinksObserver {
    fn kinds(&self) -> &'static [Kind] {
        &[Kind::Secret]
    }

    fn scope(&self, _: Kind) -> WatchScope {
        WatchScope {
            namespace: Some(Arc::clone(&self.namespace)),
            labels: None,
            fields: Some(format!("type={REMOTE_KUBECONFIG_TYPE}")),
        }
    }

    fn blocks_readiness(&self) -> bool {
        true
    }

    fn changed(&self, _: &State, _: &[Change], _: Instant) {
        self.changed.notify_one();
    }
}

/// Links the clusters that the Secrets name, forever.
pub(in crate::destination) async fn follow(
    multicluster: Arc<Multicluster>,
    cluster: Cluster,
    observer: Arc<LinksObserver>,
) {
    cluster.known(observer.kinds()).await;
    loop {
        let links = links(cluster.read().remote_kubeconfigs.iter().map(|secret| &**secret));
        multicluster.link(links);
        observer.changed.notified().await;
    }
}

/// Returns one link for each cluster. If several Secrets name a cluster, the first by name is used.
fn links<'a>(secrets: impl Iterator<Item = &'a RemoteKubeconfig>) -> Vec<Link> {
    let by_name: BTreeMap<_, _> = secrets.filter_map(|secret| Some((&secret.key, secret.link.as_ref()?))).collect();
    let mut links: BTreeMap<&Arc<str>, &Link> = BTreeMap::new();
    for link in by_name.into_values() {
        links.entry(&link.cluster).or_insert(link);
    }
    links.into_values().cloned().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::NamespacedName;

    #[test]
    fn a_cluster_that_several_secrets_name_has_the_first_one_by_name() {
        let secret = |name: &str, cluster: Option<&str>, trust_domain: &str| RemoteKubeconfig {
            key: NamespacedName::new("linkerd", name),
            link: cluster.map(|cluster| Link {
                cluster: cluster.into(),
                trust_domain: trust_domain.into(),
                kubeconfig: "".into(),
            }),
        };
        let secrets = [
            secret("c", Some("east"), "third"),
            secret("b", Some("east"), "second"),
            secret("a", None, ""),
            secret("d", Some("north"), "other"),
        ];
        let names: Vec<_> = links(secrets.iter()).into_iter().map(|link| (link.cluster, link.trust_domain)).collect();
        assert_eq!(names, [("east".into(), "second".into()), ("north".into(), "other".into())]);
    }
}
