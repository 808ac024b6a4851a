//! The resource that a request to the API server is about.
//!
//! In: the path of a request. Out: the plural name with its group, such as `deployments.apps`. Always holds: the set of
//! names is closed, so that the label of a metric has few values, whatever a path contains.

/// The resources that the manager reads or writes.
pub(super) const RESOURCES: [&str; 24] = [
    "configmaps",
    "controllerrevisions.apps",
    "daemonsets.apps",
    "deployments.apps",
    "endpointslices.discovery.k8s.io",
    "events.events.k8s.io",
    "externalworkloads.workload.linkerd.io",
    "jobs.batch",
    "leases.coordination.k8s.io",
    "linkerdconfigs.config.linkerd.io",
    "linkerdtrusts.config.linkerd.io",
    "mutatingwebhookconfigurations.admissionregistration.k8s.io",
    "namespaces",
    "nodes",
    "poddisruptionbudgets.policy",
    "pods",
    "replicasets.apps",
    "replicationcontrollers",
    "secrets",
    "servers.policy.linkerd.io",
    "serviceprofiles.linkerd.io",
    "services",
    "statefulsets.apps",
    "validatingwebhookconfigurations.admissionregistration.k8s.io",
];
pub(super) const OTHER: &str = "other";

/// Returns the resource of a path: `/api/VERSION/…` or `/apis/GROUP/VERSION/…`, then `namespaces/NAMESPACE/` for a
/// namespaced resource, then its plural name. A subresource counts as its resource.
pub(super) fn resource(path: &str) -> &'static str {
    let mut parts = path.split('/').filter(|part| !part.is_empty());
    let group = match parts.next() {
        Some("api") => "",
        Some("apis") => parts.next().unwrap_or_default(),
        _ => return OTHER,
    };
    let mut parts = parts.skip(1);
    let first = parts.next().unwrap_or_default();
    let plural = match first {
        // Without a further part, the path is that of a Namespace.
        "namespaces" => parts.nth(1).unwrap_or(first),
        _ => first,
    };
    let is_it = |name: &str| match name.split_once('.') {
        Some((of_name, of_group)) => (of_name, of_group) == (plural, group),
        None => group.is_empty() && name == plural,
    };
    RESOURCES.into_iter().find(|name| is_it(name)).unwrap_or(OTHER)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::Kind;

    #[test]
    fn the_resource_of_a_request_is_the_plural_name_with_its_group() {
        for (path, expected) in [
            ("/api/v1/pods", "pods"),
            ("/api/v1/namespaces/shop/pods/web-1/eviction", "pods"),
            ("/api/v1/namespaces", "namespaces"),
            ("/api/v1/namespaces/shop", "namespaces"),
            ("/api/v1/namespaces/linkerd/configmaps/linkerd-config", "configmaps"),
            ("/apis/apps/v1/namespaces/shop/deployments/web", "deployments.apps"),
            ("/apis/apps/v1/deployments", "deployments.apps"),
            ("/apis/coordination.k8s.io/v1/namespaces/linkerd/leases/linkerd-operator", "leases.coordination.k8s.io"),
            ("/apis/events.k8s.io/v1/namespaces/shop/events", "events.events.k8s.io"),
            ("/apis/config.linkerd.io/v1alpha1/linkerdconfigs/mesh/status", "linkerdconfigs.config.linkerd.io"),
        ] {
            assert_eq!(resource(path), expected, "{path}");
        }
    }

    #[test]
    fn a_path_of_any_other_resource_has_the_name_other() {
        for path in [
            "/apis/argoproj.io/v1alpha1/namespaces/shop/rollouts/web",
            "/apis/example.com/v1/namespaces/shop/pods/web",
            "/apis/apps/v1/namespaces/shop/pods/web",
            "/version",
            "/api/v1",
            "",
        ] {
            assert_eq!(resource(path), OTHER, "{path}");
        }
    }

    #[test]
    fn each_watched_kind_has_a_name() {
        for kind in Kind::ALL {
            assert!(RESOURCES.contains(&kind.resource()), "{}", kind.resource());
        }
    }
}
