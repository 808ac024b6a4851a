//! Why a restart does not give the Pods of a workload the present bundle. Pure.
//!
//! In: a Deployment, StatefulSet or DaemonSet. Out: the obstacle, if there is one.

use crate::cluster::kinds::apps_workload::{AppsWorkload, UpdateStrategy};

/// The obstacle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RestartObstacle {
    /// Its template contains the proxy, with its roots.
    ProxyInTemplate,
    OnDelete,
    Partition,
    Paused,
    /// The Pods that have a set of roots are all being deleted.
    Deleted,
}

// === impl RestartObstacle ===

impl RestartObstacle {
    pub(crate) fn of(workload: &AppsWorkload) -> Option<Self> {
        match workload.update {
            _ if workload.template.has_proxy => Some(Self::ProxyInTemplate),
            _ if workload.paused => Some(Self::Paused),
            UpdateStrategy::OnDelete => Some(Self::OnDelete),
            UpdateStrategy::Partition(_) => Some(Self::Partition),
            UpdateStrategy::Rolling | UpdateStrategy::Recreate => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::apps::v1::StatefulSet;
    use serde_json::{from_value, json};

    use super::*;
    use crate::cluster::{
        Problems, Projected,
        kinds::apps_workload::{AppsObject, AppsWorkloadOf},
    };

    #[test]
    fn what_a_restart_does_not_help_is_read_from_the_workload() {
        let update = |strategy| json!({"spec": {"updateStrategy": strategy}});
        let proxy = json!({"spec": {"template": {"spec": {"initContainers": [{"name": "linkerd-proxy"}]}}}});
        for (object, expected) in [
            (json!({"spec": {"template": {"spec": {"containers": [{"name": "app"}]}}}}), None),
            (update(json!({"type": "RollingUpdate"})), None),
            (proxy, Some(RestartObstacle::ProxyInTemplate)),
            (update(json!({"type": "OnDelete"})), Some(RestartObstacle::OnDelete)),
            (update(json!({"rollingUpdate": {"partition": 1}})), Some(RestartObstacle::Partition)),
        ] {
            let mut wire = json!({"metadata": {"name": "a"}});
            json_patch::merge(&mut wire, &object);
            let wire: AppsObject<StatefulSet> = from_value(wire).unwrap();
            let found = AppsWorkloadOf::project(wire, &mut Problems::default());
            assert_eq!(RestartObstacle::of(&found.resource), expected, "{object}");
        }
    }
}
