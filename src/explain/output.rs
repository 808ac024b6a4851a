//! The output of `explain`. Pure.
//!
//! In: the objects that were read. Out: the JSON document, which is also the source of the text. Always holds: a
//! resource that is not in effect is explained as if it were; each path of the effective document counts once.

use std::{collections::BTreeSet, sync::Arc};

use serde::Serialize;
use serde_json::Value;

use super::{
    ExplainInput, WorkloadsInput,
    canary::CanaryOutput,
    workloads::{self, RolloutExplainer, WorkloadsOutput},
};
use crate::{
    api::linkerd_config::{DriftAction, Mode},
    cluster::kinds::config_map::ConfigMap,
    linkerd_config::{
        documents::overlay::{self, Overlay},
        plan::{ConfigPlan, PlanInput, plan},
        status::conditions::{mismatch_warning, suspect_base_warning, verdict_condition},
        validation::{dangers, ineffective_values},
        verdict::PlanVerdict,
    },
    text::counted,
    values::{CONFIG_HASH_ENV, Document, Path, Problem, shown, visible},
};

/// The reason if something would be written. All other reasons are those of conditions.
const OUT_OF_SYNC: &str = "OutOfSync";
/// The reason if the ConfigMap holds the declared configuration.
const SYNCED: &str = "Synced";
/// The maximum length of a value in the text.
const LONGEST: usize = 40;

/// The JSON document.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ExplainOutput {
    pub name: String,
    /// Whether the resource is from the API server and not from a manifest.
    pub applied: bool,
    pub target: String,
    pub mode: Mode,
    pub deleting: bool,
    pub in_effect: bool,
    /// The resource that is in effect instead.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub winner: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub base: Option<BaseRevision>,
    pub reason: &'static str,
    pub verdict: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub drift: Option<DriftOutput>,
    pub problems: Vec<ProblemOutput>,
    pub deprecated_fields: Vec<String>,
    /// The namespaces that get the declared configuration before all others; absent if none do.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub canary: Option<CanaryOutput>,
    /// The configuration that new Pods get once the document is written; during a canary, only new Pods outside the
    /// canary namespaces get it.
    pub new_pods: NewPods,
    /// A warning about values that the control plane does not use.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub control_plane_mismatch: Option<String>,
    /// A warning about values of the installer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub suspect_base: Option<String>,
    /// Other settings that are accepted and dangerous; the webhook warns about them, too.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
    /// The values that the resource names, and those that would change.
    pub values: Vec<ValueRow>,
    /// The number of other values in the effective document.
    pub unmanaged: usize,
    /// The other values; set with `--all`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub unmanaged_values: Vec<ValueRow>,
    /// Set with `--workloads`.
    #[serde(flatten)]
    pub workloads: Option<WorkloadsOutput>,
    /// Whether the effective document is known.
    #[serde(skip)]
    pub known: bool,
}

/// A revision of the base, which is the document that the installer wrote.
#[derive(Debug, PartialEq, Serialize)]
pub struct BaseRevision {
    pub revision: i64,
    /// Whether it is saved already; if not, it would be saved before the first write.
    pub kept: bool,
}

/// The changes that every new Pod gets at once, because no setting of the rollout delays them.
#[derive(Default, Serialize)]
pub struct NewPods {
    pub changes: Vec<PodChange>,
}

/// A value that affects injected Pods; it is absent if it is removed.
#[derive(Serialize)]
pub struct PodChange {
    #[serde(serialize_with = "as_text")]
    pub path: Path,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub value: Option<ShownValue>,
}

/// The changes of another writer.
#[derive(Serialize)]
pub struct DriftOutput {
    pub manager: String,
    pub paths: Vec<String>,
}

/// A reason why the document is not written.
#[derive(Serialize)]
pub struct ProblemOutput {
    pub path: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub value: String,
    pub reason: String,
}

/// A value in the ConfigMap and in the effective document; each is absent if that document does not have it.
#[derive(Serialize)]
pub struct ValueRow {
    #[serde(serialize_with = "as_text")]
    pub path: Path,
    pub from: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub live: Option<ShownValue>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub effective: Option<ShownValue>,
    pub changes: bool,
}

/// A value without secrets, and its short text.
#[derive(Serialize)]
#[serde(transparent)]
pub struct ShownValue {
    pub value: Value,
    #[serde(skip)]
    pub text: String,
}

// === impl ExplainOutput ===

impl ExplainOutput {
    /// Returns the output with all values, and with the workloads if the input has them.
    pub fn new(input: &ExplainInput, all: bool) -> Self {
        let operator_namespace = input.workloads.as_ref().map(|it| Arc::clone(&it.operator_namespace));
        let (mut output, explainer) = Self::of_values(input, all, operator_namespace.as_ref());
        output.workloads =
            explainer.zip(input.workloads.as_ref()).map(|(mut explainer, WorkloadsInput { state, .. })| {
                for workload in workloads::all(state) {
                    explainer.add(state, &workload);
                }
                explainer.finish()
            });
        output
    }

    /// Returns the output without workloads, and, if the operator's namespace is given, the explainer of the workloads.
    pub fn of_values(
        input: &ExplainInput,
        all: bool,
        operator_namespace: Option<&Arc<str>>,
    ) -> (Self, Option<RolloutExplainer>) {
        let ExplainInput { config, winner, applied, live, base, bundle, predecessor, .. } = input;
        let document = live.as_ref().and_then(|live| live.values.as_deref()).map(Document::read);
        let kept = base.as_ref().ok().and_then(Option::as_ref);
        let of_status = PlanInput::of(config, &config.status);
        let planned = |holds_back: bool| match base {
            Ok(base) => plan(&PlanInput {
                live: live.as_deref(),
                document: document.as_ref(),
                base: base.as_ref(),
                bundle: bundle.as_deref(),
                predecessor: predecessor.as_ref(),
                holds_back,
                ..of_status
            }),
            Err(unreadable) => ConfigPlan::only(PlanVerdict::InvalidBase(unreadable.clone())),
        };
        // The values are those of the declared document, which all namespaces get in the end.
        let declared = planned(false);
        let held = of_status.holds_back.then(|| planned(true)).filter(|plan| plan.canary.is_some());
        let canary = held.as_ref().and_then(|plan| CanaryOutput::new(config, plan));
        let plan = held.as_ref().unwrap_or(&declared);
        let values = ValueRows::new(input, &declared);
        let changes = values.named.iter().filter(|row| row.changes).count();
        let condition = verdict_condition(&config.target, &plan.verdict, plan.drift.as_ref());
        let problems = match &plan.verdict {
            PlanVerdict::Invalid(problems) | PlanVerdict::ValidationFailed(problems) => problems.as_slice(),
            _ => &[],
        };
        let in_effect = input.is_in_effect();
        let revision = |plan: &ConfigPlan| {
            let new = plan.new_base.as_ref().map(|base| BaseRevision { revision: base.revision, kept: false });
            new.or_else(|| kept.map(|base| BaseRevision { revision: base.revision, kept: true }))
        };
        let explainer =
            operator_namespace.map(|namespace| RolloutExplainer::new(input, namespace, document.as_ref(), plan));
        let output = Self {
            name: config.name.to_string(),
            applied: *applied,
            target: config.target.to_string(),
            mode: config.spec.mode,
            deleting: config.deleting,
            in_effect,
            winner: winner.as_ref().filter(|_| !in_effect).map(|winner| winner.name.to_string()),
            base: revision(plan),
            reason: if plan.write.is_some() && plan.verdict != PlanVerdict::Canary {
                OUT_OF_SYNC
            } else {
                condition.reason.as_str()
            },
            verdict: match &plan.verdict {
                PlanVerdict::Synced if plan.write.is_some() => would_change(changes, plan),
                PlanVerdict::Canary => format!("{} for all namespaces once promoted", would_change(changes, &declared)),
                _ if !problems.is_empty() => {
                    format!("nothing would be written: {}", counted(problems.len(), "problem"))
                }
                _ => condition.message,
            },
            drift: plan.drift.as_ref().map(|drift| DriftOutput {
                manager: drift.manager.clone(),
                paths: drift.paths.iter().map(ToString::to_string).collect(),
            }),
            problems: problems.iter().map(ProblemOutput::new).collect(),
            deprecated_fields: overlay::ineffective(&config.spec),
            canary,
            new_pods: NewPods::new(live.as_deref(), plan),
            control_plane_mismatch: mismatch_warning(&declared.control_plane_mismatch),
            suspect_base: suspect_base_warning(&plan.base_problems),
            warnings: warnings(input, plan),
            values: values.named,
            unmanaged: values.others.len(),
            unmanaged_values: if all { values.others } else { Vec::new() },
            workloads: None,
            known: plan.effective.is_some(),
        };
        (output, explainer)
    }

    /// Returns whether the resource is in effect, or would be, and has no problems.
    pub fn is_accepted(&self) -> bool {
        self.in_effect && self.known && self.problems.is_empty()
    }

    /// Returns whether the ConfigMap differs from the declared configuration, even if nothing would be written.
    pub fn is_different(&self) -> bool {
        self.reason != SYNCED
    }
}

// === impl NewPods ===

impl NewPods {
    fn new(live: Option<&ConfigMap>, plan: &ConfigPlan) -> Self {
        let Some(write) = &plan.write else { return Self::default() };
        let parsed = |text: &str| Document::parse(text).unwrap_or_default();
        let live = parsed(live.and_then(|live| live.values.as_deref()).unwrap_or_default());
        Self { changes: PodChange::between(&live, &parsed(&write.values)) }
    }
}

// === impl PodChange ===

impl PodChange {
    /// Returns the values that affect injected Pods and that differ between two documents.
    pub fn between(before: &Document, after: &Document) -> Vec<Self> {
        let [before, after] =
            [before, after].map(|document| document.clone().split_injection_hash().0.injection_subset());
        let paths = before.differences(&after).into_iter();
        paths.map(|path| Self { value: after.get(&path).map(|value| ShownValue::new(&path, value)), path }).collect()
    }
}

// === impl ShownValue ===

impl ShownValue {
    fn new(path: &Path, value: &Value) -> Self {
        Self { value: visible(path, value), text: shown(path, value, LONGEST) }
    }
}

// === impl ProblemOutput ===

impl ProblemOutput {
    fn new(problem: &Problem) -> Self {
        Self { path: problem.path.to_string(), value: problem.value.clone(), reason: problem.reason.clone() }
    }
}

#[derive(Default)]
struct ValueRows {
    /// The values that the resource names, or that would change.
    named: Vec<ValueRow>,
    others: Vec<ValueRow>,
}

// === impl ValueRows ===

impl ValueRows {
    fn new(input: &ExplainInput, plan: &ConfigPlan) -> Self {
        let overlay = Overlay::new(&input.config.spec, input.bundle.as_deref(), None);
        let (Ok(overlay), Some(effective)) = (overlay, &plan.effective) else { return Self::default() };
        // A document that cannot be read is replaced as a whole.
        let text = input.live.as_ref().and_then(|live| live.values.as_deref()).unwrap_or_default();
        let (live, _) = Document::parse(text).unwrap_or_default().split_injection_hash();
        let named: BTreeSet<Path> = overlay.paths().collect();
        let changed: BTreeSet<Path> = live.differences(effective).into_iter().collect();
        let row = |path: &Path, changes: bool| {
            let seen = |document: &Document| Some(ShownValue::new(path, document.get(path)?));
            let from = overlay.source(path, effective).into_str();
            ValueRow { path: path.clone(), from, live: seen(&live), effective: seen(effective), changes }
        };
        // A named path may be a map. Changes below it have separate rows.
        let stays = |path: &Path| reported(input, plan).any(|it| it.starts_with(path) || path.starts_with(it));
        let is_changed = |path: &Path| live.get(path) != effective.get(path) && !stays(path);
        let others = effective.leaves().map(|(path, _)| path);
        let others = others.filter(|path| !changed.contains(path) && !named.iter().any(|it| path.starts_with(it)));
        Self {
            named: named.union(&changed).map(|path| row(path, is_changed(path))).collect(),
            others: others.map(|path| row(&path, false)).collect(),
        }
    }
}

/// Returns the paths of drift that stays, because `spec.drift.action` is `Report`.
fn reported<'a>(input: &ExplainInput, plan: &'a ConfigPlan) -> impl Iterator<Item = &'a Path> {
    let reports = input.config.spec.drift.action == DriftAction::Report;
    plan.drift.iter().filter(move |_| reports).flat_map(|drift| &drift.paths)
}

fn warnings(input: &ExplainInput, plan: &ConfigPlan) -> Vec<String> {
    let skew = plan.skew.iter().map(|skew| skew.message.clone());
    let spec = &input.config.spec;
    let ineffective = ineffective_values(spec, input.bundle.as_deref());
    let skew = skew.chain(ineffective);
    skew.chain(dangers(spec, input.bundle.as_deref(), input.now)).chain(overlay::superseded_warning(spec)).collect()
}

fn would_change(changes: usize, plan: &ConfigPlan) -> String {
    if changes == 0 {
        return format!("only the variable {CONFIG_HASH_ENV} would be written");
    }
    let revert = if plan.drift.is_some() { ", including changes by other field managers" } else { "" };
    format!("{} would change{revert}", counted(changes, "value"))
}

fn as_text<S: serde::Serializer>(path: &Path, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(path)
}

#[cfg(test)]
#[path = "output_tests.rs"]
mod tests;
