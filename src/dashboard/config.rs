//! One LinkerdConfig: where each value is from, what drifted, each namespace with its counts, and each workload with its
//! place in the rollout.
//!
//! In: the cached objects, and the saved bases from the API server. Out: what `explain --workloads` prints as JSON.
//! Always holds: there is one computation at a time, whose result, also a failure, serves all viewers for [`FRESH`];
//! the lock of the state is held for a bounded number of workloads.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use k8s_openapi::api::apps::v1::ControllerRevision;
use kube::{Api, Client, api::ListParams};
use serde::Serialize;
use tokio::{
    sync::Mutex,
    task::yield_now,
    time::{Instant, timeout},
};

use crate::{
    api::{NamespacedName, linkerd_config::RolloutPods},
    client,
    cluster::{Cluster, kinds::linkerd_config::LinkerdConfig},
    explain::{CachedObjects, ExplainInput, output::ExplainOutput, workloads::WorkloadRow},
    linkerd_config::documents::base::Base,
    rollout,
};

/// The time for which a result is used again. A cluster may have ten thousand workloads.
const FRESH: Duration = Duration::from_secs(3);
/// The largest number of results that are kept.
const KEPT: usize = 16;
/// The deadline for the list of saved bases.
const BASES_DEADLINE: Duration = Duration::from_secs(5);
/// The number of workloads that are explained while the state is locked.
const AT_ONCE: usize = 32;
/// The largest number of workloads, and of namespaces, in an answer. Those that need attention are first.
const SHOWN: usize = 500;

/// The JSON of a LinkerdConfig, or a sentence about what failed.
type Explained = Result<Bytes, String>;

/// A LinkerdConfig, and a namespace if only its workloads are requested.
type Requested = (Arc<str>, Option<Arc<str>>);

/// Explains LinkerdConfigs, and keeps the latest results.
pub(super) struct Explainer {
    client: Client,
    operator_namespace: Arc<str>,
    kept: Mutex<BTreeMap<Requested, (Instant, Explained)>>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ConfigOutput {
    #[serde(flatten)]
    explained: ExplainOutput,
    namespaces: Vec<NamespaceRow>,
    /// The number of namespaces that are not listed.
    more_namespaces: usize,
    /// The number of workloads that are not listed.
    more_workloads: usize,
}

/// The workloads of a namespace, counted.
#[derive(Default, Serialize)]
struct NamespaceRow {
    name: String,
    pods: NamespacePods,
    /// The number of workloads with each decision.
    decisions: BTreeMap<&'static str, usize>,
    /// The attention that the worst workload needs.
    #[serde(skip)]
    attention: u8,
}

#[derive(Default, Serialize)]
struct NamespacePods {
    meshed: i64,
    current: i64,
    outdated: i64,
    uninjected: i64,
}

// === impl Explainer ===

impl Explainer {
    pub(super) fn new(client: &Client, operator_namespace: &str) -> Self {
        Self { client: client.clone(), operator_namespace: operator_namespace.into(), kept: Mutex::default() }
    }

    /// Returns the JSON of a resource, with the workloads of one namespace or of all; `None` if the resource or the
    /// namespace does not exist.
    pub(super) async fn explain(&self, cluster: &Cluster, name: &str, namespace: Option<&str>) -> Option<Explained> {
        let mut kept = self.kept.lock().await;
        kept.retain(|_, (since, _)| since.elapsed() < FRESH);
        let (config, namespace) = {
            let state = cluster.read();
            let config = state.linkerd_configs.by_name(name).cloned()?;
            let namespace = match namespace {
                Some(namespace) => Some(Arc::clone(&state.namespaces.find("", namespace)?.name)),
                None => None,
            };
            (config, namespace)
        };
        let requested = (Arc::clone(&config.name), namespace);
        if let Some((_, explained)) = kept.get(&requested) {
            return Some(explained.clone());
        }
        let explained = self.compute(cluster, &config, requested.1.as_ref()).await;
        if kept.len() < KEPT {
            kept.insert(requested, (Instant::now(), explained.clone()));
        }
        Some(explained)
    }

    async fn compute(&self, cluster: &Cluster, config: &Arc<LinkerdConfig>, only: Option<&Arc<str>>) -> Explained {
        let revisions = self.revisions(&config.target).await?;
        let cached = CachedObjects::of(&cluster.read(), &config.target);
        let input = ExplainInput::new(config, cached, &revisions);
        let (mut explained, rollout) = ExplainOutput::of_values(&input, false, Some(&self.operator_namespace));
        let (mut namespaces, mut more_namespaces, mut more_workloads) = (Vec::new(), 0, 0);
        if let Some(mut rollout) = rollout {
            // In the order in which workloads are restarted.
            let names: BTreeSet<Arc<str>> = match only {
                Some(namespace) => [Arc::clone(namespace)].into(),
                None => cluster.read().namespaces.iter().map(|namespace| Arc::clone(&namespace.name)).collect(),
            };
            for namespace in names {
                let workloads: Vec<_> = rollout::workloads_in(cluster, &namespace).await.into_iter().collect();
                for some in workloads.chunks(AT_ONCE) {
                    {
                        let state = cluster.read();
                        for workload in some {
                            rollout.add(&state, workload);
                        }
                    }
                    yield_now().await;
                }
            }
            let mut output = rollout.finish();
            namespaces = NamespaceRow::all(&output.workloads);
            more_namespaces = namespaces.len().saturating_sub(SHOWN);
            namespaces.truncate(SHOWN);
            // A stable sort: workloads that wait stay in that order.
            output.workloads.sort_by_key(|row| Reverse(attention(row)));
            more_workloads = output.workloads.len().saturating_sub(SHOWN);
            output.workloads.truncate(SHOWN);
            explained.workloads = Some(output);
        }
        let json = serde_json::to_vec(&ConfigOutput { explained, namespaces, more_namespaces, more_workloads });
        json.map(Bytes::from).map_err(|error| error.to_string())
    }

    /// Lists the saved bases of a ConfigMap.
    async fn revisions(&self, target: &NamespacedName) -> Result<Vec<ControllerRevision>, String> {
        let revisions: Api<ControllerRevision> = Api::namespaced(self.client.clone(), &target.namespace);
        let params = ListParams::default().labels(&Base::selector(&target.name));
        let why = match timeout(BASES_DEADLINE, revisions.list(&params)).await {
            Ok(Ok(revisions)) => return Ok(revisions.items),
            Ok(Err(error)) => client::describe(&error),
            Err(_) => format!("no answer within {} s", BASES_DEADLINE.as_secs()),
        };
        Err(format!("cannot list ControllerRevisions in namespace {}: {why}", target.namespace))
    }
}

// === impl NamespaceRow ===

impl NamespaceRow {
    /// Returns a row for each namespace with workloads; those that need attention are first, then by name.
    fn all(workloads: &[WorkloadRow]) -> Vec<Self> {
        let mut by_name: BTreeMap<&str, Self> = BTreeMap::new();
        for workload in workloads {
            let row = by_name.entry(&workload.namespace).or_default();
            row.pods.add(&workload.pods);
            *row.decisions.entry(workload.decision.decision).or_default() += 1;
            row.attention = row.attention.max(attention(workload));
        }
        let named = by_name.into_iter().map(|(name, row)| Self { name: name.to_owned(), ..row });
        let mut rows: Vec<Self> = named.collect();
        rows.sort_by_key(|row| Reverse(row.attention));
        rows
    }
}

// === impl NamespacePods ===

impl NamespacePods {
    fn add(&mut self, pods: &RolloutPods) {
        self.meshed += pods.meshed;
        self.current += pods.current;
        self.outdated += pods.outdated;
        self.uninjected += pods.uninjected;
    }
}

/// Returns how much attention a workload needs.
fn attention(row: &WorkloadRow) -> u8 {
    match row.decision.decision {
        "Failed" => 6,
        "Updating" => 5,
        "Pending" => 4,
        "Skipped" => 3,
        "NotSelected" | "Observed" => 2,
        "UpToDate" => 1,
        _ => 0,
    }
}
