//! Reads the state of the other clusters from the metrics of a replica.
//!
//! In: Prometheus' text format, from another process. Out: a [`CheckedCluster`] for each label `cluster`. Always holds:
//! a line that cannot be read is skipped; the number of clusters is bounded. The dashboard has the same facts as typed
//! JSON, but it can be off, and replicas of another version may serve other fields; `/metrics` and its names are API.

use std::collections::BTreeMap;

const SYNCED: &str = "linkerd_operator_remote_cluster_synced";
const STALENESS: &str = "linkerd_operator_remote_cluster_staleness_seconds";
/// The maximum number of clusters that are read.
const MOST: usize = 200;

/// Another cluster, as one replica sees it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct CheckedCluster {
    pub(super) is_synced: bool,
    /// The time for which a watch of the cluster has been failing.
    pub(super) failing_seconds: f64,
}

pub(super) fn remote_clusters(metrics: &str) -> BTreeMap<String, CheckedCluster> {
    let mut clusters = BTreeMap::<String, CheckedCluster>::new();
    for line in metrics.lines() {
        let Some((name, cluster, value)) = sample(line) else { continue };
        if clusters.len() >= MOST && !clusters.contains_key(cluster) {
            continue;
        }
        let state = clusters.entry(cluster.to_owned()).or_default();
        match name {
            SYNCED => state.is_synced = value > 0.0,
            _ => state.failing_seconds = value,
        }
    }
    clusters
}

/// Splits `name{cluster="east"} 1` of the two metrics. The name of a cluster is the name of an object, so it has no
/// character that the format escapes.
fn sample(line: &str) -> Option<(&str, &str, f64)> {
    let (name, rest) = line.split_once("{cluster=\"")?;
    let (cluster, value) = rest.split_once("\"} ")?;
    let value = value.trim().parse().ok()?;
    [SYNCED, STALENESS].contains(&name).then_some((name, cluster, value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clusters_are_read_from_two_metrics_and_everything_else_is_skipped() {
        let metrics = "\
# HELP linkerd_operator_remote_cluster_synced Whether …
linkerd_operator_remote_cluster_staleness_seconds{cluster=\"east\"} 12.5
linkerd_operator_remote_cluster_synced{cluster=\"east\"} 1
linkerd_operator_remote_cluster_synced{cluster=\"west\"} 0
linkerd_operator_remote_cluster_objects{cluster=\"north\",resource=\"pods\"} 7
linkerd_operator_remote_cluster_synced{cluster=\"broken
linkerd_operator_remote_cluster_synced{cluster=\"odd\"} many
";
        let expected = [
            ("east".to_owned(), CheckedCluster { is_synced: true, failing_seconds: 12.5 }),
            ("west".to_owned(), CheckedCluster { is_synced: false, failing_seconds: 0.0 }),
        ];
        assert_eq!(remote_clusters(metrics), expected.into());
    }

    #[test]
    fn the_number_of_clusters_is_bounded() {
        let metrics: String = (0..10 * MOST).map(|at| format!("{SYNCED}{{cluster=\"c{at}\"}} 1\n")).collect();
        assert_eq!(remote_clusters(&metrics).len(), MOST);
    }
}
