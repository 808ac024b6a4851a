//! Services whose endpoints are those of other Services, in this cluster and in others, as the labels and annotations
//! of Linkerd's multicluster extension name them. Linkerd has two kinds, federated Services and remote discovery. Both
//! are called federated in this program: remote discovery is the case of one member, in another cluster.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use strum::{IntoStaticStr, VariantArray};

use crate::{
    api::{LOCAL_DISCOVERY_ANNOTATION, REMOTE_DISCOVERY, REMOTE_SERVICE_LABEL},
    cluster::Problems,
};

/// The maximum number of members of a federated Service. Any user who can edit the Service can list thousands, and each
/// costs a lookup whenever the endpoints are computed.
const LONGEST: usize = 100;

/// The Services that a federated Service gets its endpoints from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FederatedService {
    pub kind: FederationKind,
    /// Sorted, each once. Empty for remote discovery if the Service in the other cluster is not named.
    pub members: Box<[ServiceMember]>,
}

/// The kinds of federated Services, as a metric label.
#[derive(Clone, Copy, Debug, PartialEq, Eq, IntoStaticStr, VariantArray)]
#[strum(serialize_all = "snake_case", const_into_str)]
pub enum FederationKind {
    /// It has the endpoints of one Service in another cluster.
    RemoteDiscovery,
    /// It has the endpoints of its members in all clusters.
    Federated,
}

/// A Service whose endpoints a federated Service has, in the same namespace.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ServiceMember {
    /// `None` for this cluster.
    pub cluster: Option<Arc<str>>,
    pub service: Arc<str>,
}

// === impl FederatedService ===

impl FederatedService {
    /// Returns `None` for an ordinary Service. A Service with the marks of both kinds is federated, as in Linkerd.
    pub fn of(
        labels: &BTreeMap<String, String>,
        annotations: &BTreeMap<String, String>,
        problems: &mut Problems,
    ) -> Option<Self> {
        let local = annotations.get(LOCAL_DISCOVERY_ANNOTATION);
        let remote = annotations.get(REMOTE_DISCOVERY);
        if local.is_some() || remote.is_some() {
            let local = local.map(|service| service.trim()).filter(|service| !service.is_empty());
            let local = local.map(|service| ServiceMember { cluster: None, service: service.into() });
            // An empty list has one empty entry. People write a space after a comma.
            let listed = remote.into_iter().flat_map(|text| text.split(',')).map(str::trim);
            let listed = listed.filter(|entry| !entry.is_empty());
            let mut members: BTreeSet<ServiceMember> = local.into_iter().collect();
            for entry in listed {
                let Some(member) = ServiceMember::parse(entry) else {
                    problems.add(format_args!("{REMOTE_DISCOVERY}: {entry:?} is not SERVICE@CLUSTER, ignored"));
                    continue;
                };
                if members.len() == LONGEST && !members.contains(&member) {
                    problems.add(format_args!("{REMOTE_DISCOVERY}: only the first {LONGEST} members are used"));
                    break;
                }
                members.insert(member);
            }
            return Some(Self { kind: FederationKind::Federated, members: members.into_iter().collect() });
        }
        let cluster = labels.get(REMOTE_DISCOVERY)?;
        let service = labels.get(REMOTE_SERVICE_LABEL);
        let member = service
            .map(|service| ServiceMember { cluster: Some(cluster.as_str().into()), service: service.as_str().into() });
        Some(Self { kind: FederationKind::RemoteDiscovery, members: member.into_iter().collect() })
    }
}

// === impl ServiceMember ===

impl ServiceMember {
    /// Parses `SERVICE@CLUSTER`. Neither name contains a space.
    fn parse(text: &str) -> Option<Self> {
        let (service, cluster) = text.split_once('@')?;
        let is_name = |name: &str| !name.is_empty() && !name.contains(|c: char| c == '@' || c.is_whitespace());
        let is_valid = is_name(service) && is_name(cluster);
        is_valid.then(|| Self { cluster: Some(cluster.into()), service: service.into() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn federated(labels: &[(&str, &str)], annotations: &[(&str, &str)]) -> (Option<FederatedService>, Problems) {
        let owned =
            |pairs: &[(&str, &str)]| pairs.iter().map(|(key, value)| ((*key).into(), (*value).into())).collect();
        let mut problems = Problems::default();
        (FederatedService::of(&owned(labels), &owned(annotations), &mut problems), problems)
    }

    fn names(service: &FederatedService) -> Vec<String> {
        let members = service.members.iter();
        members.map(|it| format!("{}@{}", it.service, it.cluster.as_deref().unwrap_or("local"))).collect()
    }

    #[test]
    fn a_federated_service_has_the_members_of_both_annotations_and_a_malformed_entry_costs_only_itself() {
        for (annotations, expected, ignored) in [
            (vec![("multicluster.linkerd.io/local-discovery", "bb")], vec!["bb@local"], 0),
            (vec![("multicluster.linkerd.io/local-discovery", "")], vec![], 0),
            (vec![("multicluster.linkerd.io/remote-discovery", "")], vec![], 0),
            (
                vec![
                    ("multicluster.linkerd.io/local-discovery", "bb"),
                    ("multicluster.linkerd.io/remote-discovery", "bb@north,bb@east,bb@east"),
                ],
                vec!["bb@local", "bb@east", "bb@north"],
                0,
            ),
            (vec![("multicluster.linkerd.io/remote-discovery", "bb,a@b@c,@east,bb@,bb@east")], vec!["bb@east"], 4),
            (
                vec![
                    ("multicluster.linkerd.io/local-discovery", " bb "),
                    (
                        "multicluster.linkerd.io/remote-discovery",
                        "bb@west, bb@east,\n  bb@north , ,b b@east,bb @east,bb@ east",
                    ),
                ],
                vec!["bb@local", "bb@east", "bb@north", "bb@west"],
                3,
            ),
        ] {
            let remote_label = [("multicluster.linkerd.io/remote-discovery", "west")];
            for labels in [&[][..], &remote_label] {
                let (service, problems) = federated(labels, &annotations);
                let service = service.unwrap();
                assert_eq!(
                    (service.kind, names(&service)),
                    (FederationKind::Federated, expected.iter().map(|it| (*it).to_owned()).collect())
                );
                assert_eq!(problems.len(), ignored, "{annotations:?}: {problems}");
            }
        }
    }

    #[test]
    fn remote_discovery_needs_the_name_of_the_service_in_the_other_cluster() {
        let cluster = ("multicluster.linkerd.io/remote-discovery", "east");
        let (service, _) = federated(&[cluster, ("multicluster.linkerd.io/remote-service", "web")], &[]);
        let service = service.unwrap();
        assert_eq!((service.kind, names(&service)), (FederationKind::RemoteDiscovery, vec!["web@east".to_owned()]));
        let (service, _) = federated(&[cluster], &[]);
        assert!(service.unwrap().members.is_empty());
        assert_eq!(federated(&[("multicluster.linkerd.io/remote-service", "web")], &[]).0, None);
    }

    #[test]
    fn an_annotation_of_thousands_of_members_is_cut() {
        let text: Vec<String> = (0..5_000).map(|number| format!("bb@cluster-{number}")).collect();
        let (service, problems) = federated(&[], &[("multicluster.linkerd.io/remote-discovery", &text.join(","))]);
        assert_eq!(service.unwrap().members.len(), 100);
        assert_eq!(problems.len(), 1);
    }
}
