//! What is told of a LinkerdConfig. Pure.
//!
//! * In: what was read. Out: the report, which is also the JSON document.
//! * Always: one that is not in effect is told of as if it were; each path of the effective document counts once.

use std::collections::BTreeSet;

use serde::Serialize;
use serde_json::Value;

use super::{read::Found, workloads::Told};
use crate::{
    api::linkerd_config::{DriftAction, LinkerdConfigStatus, Mode},
    linkerd_config::{
        overlay::{self, Overlay},
        plan::{Input, Plan, Verdict, plan},
        status::{failed, judged},
        values::{Document, MARKER, Path, Problem, shown, visible},
    },
};

/// The reason where something would be written. All others are those of conditions.
const OUT_OF_SYNC: &str = "OutOfSync";
/// Of a value's text.
const LONGEST: usize = 40;

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Report {
    pub(super) name: String,
    /// It is what the API server has; else a manifest.
    pub(super) applied: bool,
    pub(super) target: String,
    pub(super) mode: Mode,
    pub(super) deleting: bool,
    pub(super) in_effect: bool,
    /// Who is instead.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) winner: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) base: Option<Kept>,
    pub(super) reason: &'static str,
    pub(super) verdict: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) drift: Option<Drifted>,
    pub(super) problems: Vec<Wrong>,
    pub(super) deprecated_fields: Vec<String>,
    /// What the resource names, and what would change.
    pub(super) values: Vec<Row>,
    /// How many others there are in the effective document.
    pub(super) unmanaged: usize,
    /// Those, where they were asked for.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) unmanaged_values: Vec<Row>,
    /// Where they were asked for.
    #[serde(flatten)]
    pub(super) workloads: Option<Told>,
    /// Whether the effective document is known.
    #[serde(skip)]
    pub(super) known: bool,
}

/// A revision of what the installer wrote.
#[derive(Debug, PartialEq, Serialize)]
pub(super) struct Kept {
    pub(super) revision: i64,
    /// Or to be kept before anything is written.
    pub(super) kept: bool,
}

#[derive(Serialize)]
pub(super) struct Drifted {
    pub(super) manager: String,
    pub(super) paths: Vec<String>,
}

#[derive(Serialize)]
pub(super) struct Wrong {
    pub(super) path: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(super) value: String,
    pub(super) reason: String,
}

/// A value in the ConfigMap and in the effective document; absent where it is not there.
#[derive(Serialize)]
pub(super) struct Row {
    #[serde(serialize_with = "as_text")]
    pub(super) path: Path,
    pub(super) from: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) live: Option<Seen>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) effective: Option<Seen>,
    pub(super) changes: bool,
}

/// A value as people may see it: the whole of it, and a short text.
#[derive(Serialize)]
#[serde(transparent)]
pub(super) struct Seen {
    pub(super) value: Value,
    #[serde(skip)]
    pub(super) text: String,
}

// === impl Report ===

impl Report {
    pub(super) fn of(found: &Found, all: bool) -> Self {
        let Found { config, winner, applied, live, base, bundle, good, .. } = found;
        let document = live.as_ref().and_then(|live| live.values.as_deref()).map(Document::read);
        let kept = base.as_ref().ok().and_then(Option::as_ref);
        let plan = match base {
            Ok(base) => plan(&Input {
                spec: &config.spec,
                live: live.as_ref(),
                document: document.as_ref(),
                base: base.as_ref(),
                bundle: bundle.as_deref(),
                first_time: config.status.revisions.is_none(),
                fought_over: is_fought_over(&config.status),
                failed: failed(config, &config.status),
                good,
            }),
            Err(unreadable) => Plan::only(Verdict::InvalidBase(unreadable.clone())),
        };
        let values = Values::of(found, &plan);
        let changes = values.named.iter().filter(|row| row.changes).count();
        let judged = judged(&config.target, &plan.verdict, plan.drift.as_ref());
        let problems = match &plan.verdict {
            Verdict::Invalid(problems) | Verdict::ValidationFailed(problems) => problems.as_slice(),
            _ => &[],
        };
        let in_effect = winner.as_ref().is_some_and(|winner| winner.name == config.name);
        let revision = |plan: &Plan| {
            let new = plan.new_base.as_ref().map(|base| Kept { revision: base.revision, kept: false });
            new.or_else(|| kept.map(|base| Kept { revision: base.revision, kept: true }))
        };
        Self {
            name: config.name.to_string(),
            applied: *applied,
            target: config.target.to_string(),
            mode: config.spec.mode,
            deleting: config.deleting,
            in_effect,
            winner: winner.as_ref().filter(|_| !in_effect).map(|winner| winner.name.to_string()),
            base: revision(&plan),
            reason: if plan.write.is_some() { OUT_OF_SYNC } else { judged.reason },
            verdict: match &plan.verdict {
                Verdict::Synced if plan.write.is_some() => would_change(changes, &plan),
                _ if !problems.is_empty() => {
                    format!("nothing would be written: {}", counted(problems.len(), "problem"))
                }
                _ => judged.message,
            },
            drift: plan.drift.as_ref().map(|drift| Drifted {
                manager: drift.manager.clone(),
                paths: drift.paths.iter().map(ToString::to_string).collect(),
            }),
            problems: problems.iter().map(Wrong::of).collect(),
            deprecated_fields: overlay::deprecated(&config.spec),
            values: values.named,
            unmanaged: values.others.len(),
            unmanaged_values: if all { values.others } else { Vec::new() },
            workloads: Told::of(found, document.as_ref(), &plan),
            known: plan.effective.is_some(),
        }
    }

    /// Whether the resource is in effect, or would be, and can be followed.
    pub(super) fn is_accepted(&self) -> bool {
        self.in_effect && self.known && self.problems.is_empty()
    }
}

// === impl Wrong ===

impl Wrong {
    fn of(problem: &Problem) -> Self {
        Self { path: problem.path.to_string(), value: problem.value.clone(), reason: problem.reason.clone() }
    }
}

#[derive(Default)]
struct Values {
    /// That the resource names, or that would change.
    named: Vec<Row>,
    others: Vec<Row>,
}

// === impl Values ===

impl Values {
    fn of(found: &Found, plan: &Plan) -> Self {
        let overlay = Overlay::of(&found.config.spec, found.bundle.as_deref(), None);
        let (Ok(overlay), Some(effective)) = (overlay, &plan.effective) else { return Self::default() };
        // A document that cannot be read is put right as a whole.
        let text = found.live.as_ref().and_then(|live| live.values.as_deref()).unwrap_or_default();
        let (live, _) = Document::parse(text).unwrap_or_default().unmarked();
        let named: BTreeSet<Path> = overlay.paths().collect();
        let changed: BTreeSet<Path> = live.differences(effective).into_iter().collect();
        let row = |path: &Path, changes: bool| {
            let seen = |document: &Document| {
                let value = document.get(path)?;
                Some(Seen { value: visible(path, value), text: shown(path, value, LONGEST) })
            };
            let from = overlay.source(path, effective).as_str();
            Row { path: path.clone(), from, live: seen(&live), effective: seen(effective), changes }
        };
        // A path that is named may be that of a map, and what changes below it then has a row of its own.
        let stays = |path: &Path| reported(found, plan).any(|it| it.starts_with(path) || path.starts_with(it));
        let is_changed = |path: &Path| live.get(path) != effective.get(path) && !stays(path);
        let others = effective.leaves().map(|(path, _)| path);
        let others = others.filter(|path| !changed.contains(path) && !named.iter().any(|it| path.starts_with(it)));
        Self {
            named: named.union(&changed).map(|path| row(path, is_changed(path))).collect(),
            others: others.map(|path| row(&path, false)).collect(),
        }
    }
}

/// What others changed and may keep, because the resource says so.
fn reported<'a>(found: &Found, plan: &'a Plan) -> impl Iterator<Item = &'a Path> {
    let reports = found.config.spec.drift.action == DriftAction::Report;
    plan.drift.iter().filter(move |_| reports).flat_map(|drift| &drift.paths)
}

/// Only who fights remembers the fight, and says so in the status.
fn is_fought_over(status: &LinkerdConfigStatus) -> bool {
    status.conditions.iter().any(|condition| condition.type_ == "Stalled" && condition.reason == "RepeatedDrift")
}

fn would_change(changes: usize, plan: &Plan) -> String {
    if changes == 0 {
        return format!("only the marker {MARKER} would be written");
    }
    let revert = if plan.drift.is_some() { ", what others changed among them" } else { "" };
    format!("{} would change{revert}", counted(changes, "value"))
}

pub(super) fn counted(count: usize, what: &str) -> String {
    if count == 1 { format!("1 {what}") } else { format!("{count} {what}s") }
}

fn as_text<S: serde::Serializer>(path: &Path, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(path)
}

#[cfg(test)]
#[path = "report_tests.rs"]
pub(super) mod tests;
