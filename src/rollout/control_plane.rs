//! The control plane that proxies depend on: its version and the progress of its update. Pure.
//!
//! In: the Deployments of the control plane, the version of the proxy. Out: why restarts have to wait for the control
//! plane. Always holds: a version that cannot be parsed is unknown, and an unknown version blocks no restart.

use std::sync::Arc;

use crate::{
    api::{APP_VERSION_LABEL, CONTROL_PLANE_COMPONENT_LABEL},
    cluster::kinds::apps_workload::{AppsWorkload, WorkloadKind, WorkloadProgress},
    values::LinkerdVersion,
};

/// The components that proxies connect to, or that inject them. Linkerd upgrades them before its proxies.
const COMPONENTS: [&str; 3] = ["destination", "identity", "proxy-injector"];

/// Returns why no workload may be restarted with this proxy version yet; `None` if the control plane is ready for it.
/// `workloads` are those of the namespace of the control plane.
pub(super) fn not_ready_for<'a>(
    workloads: impl Iterator<Item = &'a Arc<AppsWorkload>>,
    proxy_version: Option<&str>,
) -> Option<String> {
    let mut found: Vec<String> = workloads.filter(is_core).filter_map(|it| reason(it, proxy_version)).collect();
    // The order of the cache is arbitrary, and each change of the message writes the status.
    found.sort();
    found.into_iter().next()
}

/// Whether the workload is a Deployment that proxies depend on. One without replicas serves no proxy.
fn is_core(workload: &&Arc<AppsWorkload>) -> bool {
    let component = workload.labels.get(CONTROL_PLANE_COMPONENT_LABEL);
    component.is_some_and(|component| COMPONENTS.contains(&&**component))
        && workload.kind == WorkloadKind::Deployment
        && workload.progress.wanted > 0
        && !workload.deleting
}

fn reason(deployment: &AppsWorkload, proxy_version: Option<&str>) -> Option<String> {
    let name = &deployment.workload.name;
    let label = deployment.labels.get(APP_VERSION_LABEL);
    if let (Some(label), Some(wanted)) = (label, proxy_version)
        && let (Some(version), Some(parsed)) = (LinkerdVersion::parse(label), LinkerdVersion::parse(wanted))
        && parsed.is_newer_than(version)
    {
        return Some(format!(
            "Deployment {name} has version {label}, and new proxies get {wanted}: upgrade the control plane first"
        ));
    }
    let WorkloadProgress { observed, wanted, total, updated, available, .. } = deployment.progress;
    // A replica that is unavailable after the update, for example because no node has room for it, blocks no restart.
    let is_rolled_out = observed && updated >= wanted && total <= updated && available > 0;
    (!is_rolled_out).then(|| format!("the update of Deployment {name} is not complete"))
}

#[cfg(test)]
mod tests {
    use kube::runtime::watcher::Event;
    use serde_json::{Value, json};

    use super::*;
    use crate::cluster::{Kind, testing::Feed};

    const CURRENT: [i64; 4] = [3, 3, 3, 3];

    /// A Deployment with the version `edge-26.8.3` and these numbers of wanted, total, updated and available replicas.
    fn deployment(component: &str, version: Option<&str>, counts: [i64; 4]) -> Value {
        let [wanted, total, updated, available] = counts;
        let mut labels = json!({"linkerd.io/control-plane-component": component});
        if let Some(version) = version {
            labels["app.kubernetes.io/version"] = json!(version);
        }
        json!({
            "metadata": {"name": format!("linkerd-{component}"), "namespace": "linkerd", "generation": 2, "labels": labels},
            "spec": {"replicas": wanted},
            "status": {"observedGeneration": 2, "replicas": total, "updatedReplicas": updated, "availableReplicas": available},
        })
    }

    fn gate(deployments: &[Value], proxy_version: Option<&str>) -> Option<String> {
        let mut feed = Feed::default();
        for deployment in deployments {
            feed.apply(Kind::Deployment, Event::Apply(deployment.clone()));
        }
        not_ready_for(feed.cluster.read().apps_workloads_in("linkerd"), proxy_version)
    }

    #[test]
    fn an_older_deployment_of_the_control_plane_is_named_with_both_versions() {
        let of = |component, version| deployment(component, Some(version), CURRENT);
        let all = |version| ["destination", "identity", "proxy-injector"].map(|component| of(component, version));
        let [destination, identity, _] = all("edge-26.9.1");
        let old = of("proxy-injector", "edge-26.8.3");
        assert_eq!(
            gate(&[destination, identity, old], Some("edge-26.9.1")).unwrap(),
            "Deployment linkerd-proxy-injector has version edge-26.8.3, and new proxies get edge-26.9.1: \
             upgrade the control plane first"
        );
        assert_eq!(gate(&all("edge-26.9.1"), Some("edge-26.9.1")), None);
        assert_eq!(gate(&all("edge-26.9.1"), Some("edge-26.8.3")), None, "an older proxy works");
        assert_eq!(gate(&[of("web", "edge-26.8.3")], Some("edge-26.9.1")), None, "no proxy depends on it");
    }

    #[test]
    fn an_unknown_version_does_not_block_restarts() {
        for (label, wanted) in [
            (None, Some("edge-26.9.1")),
            (Some("our-build"), Some("edge-26.9.1")),
            (Some("edge-26.8.3"), Some("v2.300.0")),
            (Some("edge-26.8.3"), None),
        ] {
            let injector = deployment("proxy-injector", label, CURRENT);
            assert_eq!(gate(&[injector], wanted), None, "{label:?}, {wanted:?}");
        }
        assert_eq!(gate(&[], Some("edge-26.9.1")), None);
    }

    #[test]
    fn restarts_wait_until_no_replica_of_the_previous_template_is_left() {
        for (counts, is_ready) in [
            (CURRENT, true),
            ([3, 4, 3, 4], false),
            ([3, 3, 1, 3], false),
            // Two nodes and required anti-affinity: the third replica stays pending.
            ([3, 3, 3, 2], true),
            ([1, 1, 1, 0], false),
            ([0, 0, 0, 0], true),
        ] {
            let found = gate(&[deployment("identity", None, counts)], None);
            let expected = "the update of Deployment linkerd-identity is not complete";
            assert_eq!(found.as_deref(), (!is_ready).then_some(expected), "{counts:?}");
        }
        let mut unobserved = deployment("identity", None, CURRENT);
        unobserved["metadata"]["generation"] = json!(3);
        assert!(gate(&[unobserved], None).is_some());
    }
}
