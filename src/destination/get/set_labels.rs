//! The metric labels of a set of endpoints. Pure.
//!
//! In: the labels of each source of the set. Out: the labels that all sources share, which are sent once for the whole
//! set, and the [traits](SourceTraits) of each source, with the other labels, which are sent with each of its
//! endpoints. A proxy merges both.

use std::{collections::BTreeMap, sync::Arc};

use crate::{api::NamespacedName, cluster::kinds::endpoint_slice::ready::Mirror};

pub(super) type MetricLabels = BTreeMap<String, String>;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct SetLabels {
    pub(super) common: MetricLabels,
    /// For each source; `None` if it has only the common labels, and is in this cluster.
    own: Vec<Option<Arc<SourceTraits>>>,
}

/// The properties of a source that affect the encoding of its endpoints.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct SourceTraits {
    /// The labels that other sources do not have.
    pub(super) labels: MetricLabels,
    /// The trust domain of another cluster.
    pub(super) trust_domain: Option<String>,
}

// === impl SetLabels ===

impl SetLabels {
    /// Each source has all of its labels.
    pub(super) fn of(sources: impl Iterator<Item = SourceTraits>) -> Self {
        let sources: Vec<SourceTraits> = sources.collect();
        let mut common = sources.first().map(|source| source.labels.clone()).unwrap_or_default();
        common.retain(|key, value| sources.iter().all(|source| source.labels.get(key) == Some(value)));
        let own = sources.into_iter().map(|mut source| {
            source.labels.retain(|key, _| !common.contains_key(key));
            (source != SourceTraits::default()).then(|| Arc::new(source))
        });
        Self { own: own.collect(), common }
    }

    pub(super) fn of_source(&self, source: usize) -> Option<&Arc<SourceTraits>> {
        self.own.get(source)?.as_ref()
    }
}

/// Returns the labels of a Service with slices. The slices of a mirrored Service name the Service behind it.
pub(super) fn source_labels<'a>(
    NamespacedName { namespace, name }: &NamespacedName,
    mut mirrors: impl Iterator<Item = &'a Mirror>,
) -> MetricLabels {
    let mut labels = BTreeMap::from([("service", &**name), ("namespace", &**namespace)]);
    if let Some(Mirror { cluster: Some(cluster), service, .. }) = mirrors.find(|it| it.cluster.is_some()) {
        labels.insert("target_cluster", cluster);
        let mut parts = service.as_deref().unwrap_or_default().split('.');
        if let (Some(service), Some(namespace)) = (parts.next(), parts.next()) {
            labels.insert("target_service", service);
            labels.insert("target_service_namespace", namespace);
        }
    }
    labels.into_iter().map(|(key, value)| (key.to_owned(), value.to_owned())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(pairs: &[(&str, &str)]) -> MetricLabels {
        pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    }

    fn source(pairs: &[(&str, &str)], trust_domain: Option<&str>) -> SourceTraits {
        SourceTraits { labels: labels(pairs), trust_domain: trust_domain.map(str::to_owned) }
    }

    #[test]
    fn labels_that_differ_between_sources_are_those_of_each_endpoint() {
        let set = SetLabels::of(
            [
                source(&[("namespace", "ns"), ("service", "a")], None),
                source(&[("namespace", "ns"), ("service", "b"), ("x", "y")], Some("east")),
            ]
            .into_iter(),
        );
        assert_eq!(set.common, labels(&[("namespace", "ns")]));
        assert_eq!(set.of_source(0).map(|it| (**it).clone()), Some(source(&[("service", "a")], None)));
        let other = source(&[("service", "b"), ("x", "y")], Some("east"));
        assert_eq!(set.of_source(1).map(|it| (**it).clone()), Some(other));
        let one = SetLabels::of([source(&[("service", "a")], None)].into_iter());
        assert_eq!(
            (one.common.len(), one.of_source(0), SetLabels::of([].into_iter())),
            (1, None, SetLabels::default())
        );
    }
}
