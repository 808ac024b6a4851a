//! One LinkerdConfig: where each value is from, what drifted, and each workload with its place in the rollout.
//!
//! * In: the cached objects, and the saved bases from the API server. Out: what `explain --workloads` prints as JSON.
//! * Always: one computation at a time, whose result serves all viewers for [`FRESH`]; the lock of the state is held for
//!   a bounded number of workloads.

use std::{cmp::Reverse, sync::Arc, time::Duration};

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
    client,
    cluster::Cluster,
    explain::{ExplainInput, output::ExplainOutput, workloads::WorkloadRow},
    linkerd_config::{base::Base, rollout},
};

/// How long a result is used again. A cluster may have ten thousand workloads.
const FRESH: Duration = Duration::from_secs(3);
/// The deadline for the list of saved bases.
const BASES_DEADLINE: Duration = Duration::from_secs(5);
/// The number of workloads that are explained while the state is locked.
const AT_ONCE: usize = 32;
/// The largest number of workloads on the page. Those that need attention are first.
const SHOWN: usize = 500;

/// Explains LinkerdConfigs, and keeps the last result.
pub(super) struct Explainer {
    client: Client,
    operator_namespace: Arc<str>,
    last: Mutex<Option<Explained>>,
}

struct Explained {
    name: String,
    at: Instant,
    json: Bytes,
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
        Self { client: client.clone(), operator_namespace: operator_namespace.into(), last: Mutex::default() }
    }

    /// Returns the JSON of a resource; `None` if it does not exist.
    ///
    /// # Errors
    /// Returns a sentence if the saved bases cannot be listed.
    pub(super) async fn explain(&self, cluster: &Cluster, name: &str) -> Result<Option<Bytes>, String> {
        let mut last = self.last.lock().await;
        if let Some(known) = last.as_ref().filter(|known| known.name == name && known.at.elapsed() < FRESH) {
            return Ok(Some(known.json.clone()));
        }
        let Some(config) = cluster.read().linkerd_configs.by_name(name).cloned() else { return Ok(None) };
        let target = &config.target;
        let revisions: Api<ControllerRevision> = Api::namespaced(self.client.clone(), &target.namespace);
        let params = ListParams::default().labels(&Base::selector(&target.name));
        let failed = |why: String| format!("cannot list ControllerRevisions in namespace {}: {why}", target.namespace);
        let revisions = match timeout(BASES_DEADLINE, revisions.list(&params)).await {
            Ok(Ok(revisions)) => revisions.items,
            Ok(Err(error)) => return Err(failed(client::describe(&error))),
            Err(_) => return Err(failed(format!("no answer within {} s", BASES_DEADLINE.as_secs()))),
        };
        let input = ExplainInput::new(&config, &cluster.read(), &revisions);
        let (mut explained, rollout) = ExplainOutput::of_values(&input, false, Some(&self.operator_namespace));
        let mut more_workloads = 0;
        if let Some(mut rollout) = rollout {
            let namespaces: Vec<Arc<str>> =
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
            // A stable sort: workloads that wait stay in the order in which they are restarted.
            output.workloads.sort_by_key(|row| Reverse(attention(row)));
            more_workloads = output.workloads.len().saturating_sub(SHOWN);
            output.workloads.truncate(SHOWN);
            explained.workloads = Some(output);
        }
        let json =
            serde_json::to_vec(&ConfigOutput { explained, more_workloads }).map_err(|error| error.to_string())?;
        let json = Bytes::from(json);
        *last = Some(Explained { name: name.to_owned(), at: Instant::now(), json: json.clone() });
        Ok(Some(json))
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
