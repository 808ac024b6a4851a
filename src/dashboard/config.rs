//! One LinkerdConfig: where each value is from, what drifted, and each workload with its place in the rollout.
//!
//! * In: the cached objects, and the saved bases from the API server. Out: what `explain --workloads` prints as JSON.
//! * Always: one computation at a time, whose result, also a failure, serves all viewers for [`FRESH`]; the lock of the
//!   state is held for a bounded number of workloads.

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
    api::NamespacedName,
    client,
    cluster::{Cluster, kinds::linkerd_config::LinkerdConfig},
    explain::{CachedObjects, ExplainInput, output::ExplainOutput, workloads::WorkloadRow},
    linkerd_config::{base::Base, rollout},
};

/// For how long a result is used again. A cluster may have ten thousand workloads.
const FRESH: Duration = Duration::from_secs(3);
/// The largest number of results that are kept.
const KEPT: usize = 16;
/// The deadline for the list of saved bases.
const BASES_DEADLINE: Duration = Duration::from_secs(5);
/// The number of workloads that are explained while the state is locked.
const AT_ONCE: usize = 32;
/// The largest number of workloads on the page. Those that need attention are first.
const SHOWN: usize = 500;

/// The JSON of a LinkerdConfig, or a sentence about what failed.
type Explained = Result<Bytes, String>;

/// Explains LinkerdConfigs, and keeps the latest results.
pub(super) struct Explainer {
    client: Client,
    operator_namespace: Arc<str>,
    kept: Mutex<BTreeMap<Arc<str>, (Instant, Explained)>>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ConfigOutput {
    #[serde(flatten)]
    explained: ExplainOutput,
    /// The number of workloads that are not listed.
    more_workloads: usize,
}

// === impl Explainer ===

impl Explainer {
    pub(super) fn new(client: &Client, operator_namespace: &str) -> Self {
        Self { client: client.clone(), operator_namespace: operator_namespace.into(), kept: Mutex::default() }
    }

    /// Returns the JSON of a resource; `None` if it does not exist.
    pub(super) async fn explain(&self, cluster: &Cluster, name: &str) -> Option<Explained> {
        let mut kept = self.kept.lock().await;
        kept.retain(|_, (since, _)| since.elapsed() < FRESH);
        if let Some((_, explained)) = kept.get(name) {
            return Some(explained.clone());
        }
        let config = cluster.read().linkerd_configs.by_name(name).cloned()?;
        let explained = self.compute(cluster, &config).await;
        if kept.len() < KEPT {
            kept.insert(Arc::clone(&config.name), (Instant::now(), explained.clone()));
        }
        Some(explained)
    }

    async fn compute(&self, cluster: &Cluster, config: &Arc<LinkerdConfig>) -> Explained {
        let revisions = self.revisions(&config.target).await?;
        let cached = CachedObjects::of(&cluster.read(), &config.target);
        let input = ExplainInput::new(config, cached, &revisions);
        let (mut explained, rollout) = ExplainOutput::of_values(&input, false, Some(&self.operator_namespace));
        let mut more_workloads = 0;
        if let Some(mut rollout) = rollout {
            // In the order in which workloads are restarted.
            let namespaces: BTreeSet<Arc<str>> =
                cluster.read().namespaces.iter().map(|namespace| Arc::clone(&namespace.name)).collect();
            for namespace in namespaces {
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
            // A stable sort: workloads that wait stay in that order.
            output.workloads.sort_by_key(|row| Reverse(attention(row)));
            more_workloads = output.workloads.len().saturating_sub(SHOWN);
            output.workloads.truncate(SHOWN);
            explained.workloads = Some(output);
        }
        let json = serde_json::to_vec(&ConfigOutput { explained, more_workloads });
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
