//! What to do about the ConfigMap of a LinkerdConfig that is in effect. Pure.
//!
//! In: the resource, the ConfigMap as it is, what its installer wrote last and what was declared over it, the mesh's trust
//! anchors. Out: a base to keep, a document to write, and what to say. Always holds: what would make the document worse is not
//! written; what is written over was understood, and its base is kept before; what others changed is told by what was declared
//! then, not by what is now; a plan that was carried out and is made again writes nothing.

use std::sync::Arc;

use super::{
    base::Base,
    drift::{HASH_ANNOTATION, Origin, origin, writer},
    overlay::{Overlay, Source},
    rollout,
    values::{Document, LONGEST, Path, Problem, Reading},
};
use crate::{
    api::{
        CREATED_BY_ANNOTATION,
        linkerd_config::{DriftAction, DriftScope, LinkerdConfigSpec, Mode},
    },
    cluster::kinds::config_map::ConfigMap,
};

#[derive(Clone, Copy)]
pub struct Input<'a> {
    pub spec: &'a LinkerdConfigSpec,
    /// `None`: there is none.
    pub live: Option<&'a ConfigMap>,
    /// What its text reads as.
    pub document: Option<&'a Reading>,
    /// `None`: this ConfigMap was never taken care of.
    pub base: Option<&'a Base>,
    /// The bundle of `linkerd-identity-trust-roots`.
    pub bundle: Option<&'a str>,
    /// The resource was never in effect before: what others wrote until then is nobody's drift.
    pub first_time: bool,
    /// Others undo what we write, again and again: not now.
    pub fought_over: bool,
    /// The injection hashes of documents that the injectors refused.
    pub failed: &'a [String],
    /// What may be gone back to, the best first: what all workloads ran with, what the injectors were last seen to use; as far as
    /// they were kept.
    pub good: &'a [Document],
}

#[derive(Debug)]
pub struct Plan {
    /// To be kept before anything is written.
    pub new_base: Option<Base>,
    /// What changed about what the installer wrote.
    pub news: Option<News>,
    pub write: Option<Write>,
    pub verdict: Verdict,
    /// The document that shall be in effect, where it is known.
    pub effective: Option<Document>,
    /// What others changed, and who.
    pub drift: Option<Drift>,
    /// Where the trust anchors of the document are from.
    pub anchors: Option<Source>,
    /// The marker of the document that is in the ConfigMap once the plan is carried out, where that is ours.
    pub marker: Option<String>,
}

#[derive(Debug)]
pub struct Write {
    pub values: String,
    /// Of what is declared: what others made of it stays theirs though it is written around.
    pub hash: String,
    /// Over what somebody else wrote.
    pub over_others: bool,
}

/// Why there is another base.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum News {
    /// The first.
    Adopted,
    Installed {
        manager: String,
    },
    /// Changes of others that are theirs to make.
    Edited {
        manager: String,
    },
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Drift {
    pub manager: String,
    /// None for a document that could not be read.
    pub paths: Vec<Path>,
    pub reverted: bool,
    /// Pods that are injected with it are other ones.
    pub shapes_pods: bool,
}

/// How things stand once the plan is carried out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    Synced,
    /// The resource cannot be followed.
    Invalid(Vec<Problem>),
    /// What would be written, or is there, is no document that Linkerd can use.
    ValidationFailed(Vec<Problem>),
    TargetNotFound,
    UnsupportedLayout,
    Immutable,
    /// It is not known what the installer wrote, and nothing is written over it blindly.
    InvalidBase(String),
    /// The injectors refused what is declared: the last document that they use is there instead.
    Restored,
    /// Changes of others stay, because the resource says so.
    Drifted,
    /// Changes of others stay for now, because they come again and again.
    RepeatedDrift,
    /// Nothing is touched, because the resource says so; these paths would change.
    Observing(Vec<Path>),
    Suspended,
    /// It could not be looked at.
    Unknown,
}

/// What the installer wrote, as far as it is known now.
struct Settled {
    base: Base,
    news: Option<News>,
    drift: Option<Drift>,
    over_others: bool,
}

// === impl Plan ===

impl Plan {
    /// Of what was not planned.
    pub fn only(verdict: Verdict) -> Self {
        Self {
            new_base: None,
            news: None,
            write: None,
            verdict,
            effective: None,
            drift: None,
            anchors: None,
            marker: None,
        }
    }
}

// === impl Write ===

impl Write {
    fn new(document: &Document, marker: &str, effective: &Document, over_others: bool) -> Self {
        Self { values: document.with_config_hash(marker).to_yaml(), hash: effective.hash().to_string(), over_others }
    }
}

pub fn plan(input: &Input<'_>) -> Plan {
    let Input { spec, live, document, base, bundle, .. } = *input;
    if spec.mode == Mode::Suspend {
        return Plan::only(Verdict::Suspended);
    }
    let text = live.and_then(|live| live.values.as_deref());
    let known = base.map(|base| &base.document).or_else(|| Some(&document?.as_ref().ok()?.0));
    let unclear = rollout::problems(spec);
    let overlay = match Overlay::of(spec, bundle, known) {
        Ok(overlay) if unclear.is_empty() => overlay,
        Ok(_) => return Plan::only(Verdict::Invalid(unclear)),
        Err(problems) => return Plan::only(Verdict::Invalid([problems, unclear].concat())),
    };
    let Some(live) = live else { return Plan::only(Verdict::TargetNotFound) };
    let broken = match (text, document) {
        (Some(text), Some(Ok((document, marker)))) => {
            let secrets = document.private_keys();
            if secrets.is_empty() {
                return match settle(input, &overlay, live, text, document) {
                    Ok(settled) => decide(input, &overlay, live, settled, Some((document, marker.as_ref()))),
                    Err(reason) => Plan::only(Verdict::InvalidBase(reason)),
                };
            }
            // Not even a copy is made of it: who may read copies is others than who may read the ConfigMap.
            Verdict::ValidationFailed(secrets)
        }
        (_, Some(Err(error))) => Verdict::InvalidBase(error.to_string()),
        _ => Verdict::UnsupportedLayout,
    };
    match put_right(input, live, &broken) {
        Some(settled) => decide(input, &overlay, live, settled, None),
        None => Plan::only(broken),
    }
}

/// `document` is `None` where it could not be read.
fn decide(
    input: &Input<'_>,
    overlay: &Overlay,
    live: &ConfigMap,
    settled: Settled,
    document: Option<(&Document, Option<&String>)>,
) -> Plan {
    let Settled { mut base, news, drift, over_others } = settled;
    let (document, marked) = document.map_or((None, None), |(document, marker)| (Some(document), marker));
    let spec = input.spec;
    let effective = overlay.after(&base.effective, &base.document);
    base.effective = effective.clone();
    // What others changed may stay, over what is declared now.
    let mut wanted = effective.clone();
    let reported = drift.as_ref().filter(|_| spec.drift.action == DriftAction::Report);
    if let (Some(drift), Some(document)) = (reported, document) {
        graft(&mut wanted, document, &drift.paths);
    }
    let reported = reported.is_some();
    let restored = instead(input, &wanted, &base.document).cloned();
    let is_restored = restored.is_some();
    let wanted = restored.unwrap_or(wanted);
    let shapes_pods = document.is_some_and(|document| document.injection_hash() != wanted.injection_hash());
    let drift = drift.map(|drift| Drift { shapes_pods, ..drift });
    let differences = document.map(|document| document.differences(&wanted));
    let is_the_same = differences.as_ref().is_some_and(Vec::is_empty);
    let marker = match marked {
        // What others wrote says what it says.
        Some(marked) if reported && is_the_same => marked.clone(),
        _ => wanted.injection_hash().to_string(),
    };
    let is_settled = is_the_same && marked == Some(&marker);
    // Whoever takes only the marker away is undone like others.
    let is_ours = live.annotations.get(HASH_ANNOTATION) == Some(&wanted.hash().to_string());
    let over_others = over_others || is_ours && is_the_same && !is_settled;
    let is_news = input.base.is_none_or(|known| !known.eq_ignoring_version(&base));
    let plan = |verdict| Plan {
        new_base: None,
        news: None,
        write: None,
        verdict,
        effective: Some(effective.clone()),
        drift: drift.clone(),
        anchors: overlay.anchors_source(),
        marker: None,
    };
    let problems = effective.problems();
    if !problems.is_empty() {
        let is_declared = |problem: &Problem| overlay.source(&problem.path, &effective) != Source::Base;
        return plan(match problems.iter().any(is_declared) {
            true => Verdict::Invalid(problems),
            false => Verdict::ValidationFailed(problems),
        });
    }
    if spec.mode == Mode::Observe {
        return plan(if is_the_same { Verdict::Synced } else { Verdict::Observing(differences.unwrap_or_default()) });
    }
    if input.fought_over && over_others {
        return plan(Verdict::RepeatedDrift);
    }
    let new_base = is_news.then_some(base);
    let done = match (is_restored, reported) {
        (true, _) => Verdict::Restored,
        (false, true) => Verdict::Drifted,
        (false, false) => Verdict::Synced,
    };
    let kept = |write| Plan {
        new_base: new_base.clone(),
        news: news.clone(),
        write,
        marker: Some(marker.clone()),
        ..plan(done.clone())
    };
    if is_settled {
        return kept(None);
    }
    if live.immutable {
        // Where only the marker is missing, nothing is wrong with it.
        return match is_the_same {
            true => Plan { marker: marked.cloned(), ..kept(None) },
            false => plan(Verdict::Immutable),
        };
    }
    let write = Write::new(&wanted, &marker, if is_restored { &wanted } else { &effective }, over_others);
    if write.values.len() > LONGEST {
        let reason = format!("it would have {} bytes, and may have {LONGEST}", write.values.len());
        return plan(Verdict::ValidationFailed(vec![Problem { path: Path::default(), value: String::new(), reason }]));
    }
    kept(Some(write))
}

/// What is written in the place of a document that failed: one that did not, else the installer's. If nobody could use that
/// either, nothing is better than what is declared.
fn instead<'a>(input: &Input<'a>, wanted: &Document, installed: &'a Document) -> Option<&'a Document> {
    let is_refused = |document: &Document| input.failed.contains(&document.injection_hash().to_string());
    is_refused(wanted).then(|| others(input.good, installed, input.failed)).flatten()
}

/// The best of what may be gone back to, that is none of these.
pub(super) fn others<'a>(good: &'a [Document], installed: &'a Document, failed: &[String]) -> Option<&'a Document> {
    let is_usable = |document: &&Document| {
        !failed.contains(&document.injection_hash().to_string()) && document.problems().is_empty()
    };
    good.iter().chain([installed]).find(is_usable)
}

/// What the installer wrote last, and what others made of what we wrote.
fn settle(
    input: &Input<'_>,
    overlay: &Overlay,
    live: &ConfigMap,
    text: &str,
    document: &Document,
) -> Result<Settled, String> {
    let created_by = live.annotations.get(CREATED_BY_ANNOTATION).cloned();
    let as_it_is = |revision, news| {
        let base = Base {
            revision,
            text: text.into(),
            effective: document.clone(),
            document: document.clone(),
            created_by: created_by.clone(),
            uid: Arc::clone(&live.uid),
        };
        Settled { base, news: Some(news), drift: None, over_others: false }
    };
    let Some(base) = input.base else {
        if live.annotations.get(HASH_ANNOTATION) == Some(&document.hash().to_string()) {
            return Err(format!(
                "what its installer wrote is lost with its ControllerRevisions, and what is there is ours; remove the annotation \
                 {HASH_ANNOTATION} from the ConfigMap to take it as it is, or install Linkerd again"
            ));
        }
        return Ok(as_it_is(1, News::Adopted));
    };
    let next = base.revision + 1;
    let unchanged = |over_others, drift| Settled {
        base: Base { revision: next, created_by: created_by.clone(), uid: Arc::clone(&live.uid), ..base.clone() },
        news: None,
        drift,
        over_others,
    };
    Ok(match origin(live, document, base, &input.spec.drift) {
        Origin::Ours => unchanged(false, None),
        Origin::Rewritten { .. } => unchanged(true, None),
        Origin::Installer { manager } => Settled { over_others: true, ..as_it_is(next, News::Installed { manager }) },
        Origin::Foreign { manager } => {
            // What we wrote last may be the document that we went back to.
            let written = live.annotations.get(HASH_ANNOTATION);
            let good = input.good.iter().find(|good| written == Some(&good.hash().to_string()));
            let changed = good.unwrap_or(&base.effective).differences(document);
            let declared = base.document.differences(&base.effective);
            let is_declared = |path: &Path| {
                let touches = |it: &Path| it.starts_with(path) || path.starts_with(it);
                overlay.source(path, &base.effective) != Source::Base || declared.iter().any(touches)
            };
            let (protected, theirs): (Vec<Path>, Vec<Path>) = match input.spec.drift.scope {
                _ if input.first_time => (Vec::new(), changed),
                DriftScope::Document => (changed, Vec::new()),
                DriftScope::Declared => changed.into_iter().partition(is_declared),
            };
            let mut edited = base.document.clone();
            graft(&mut edited, document, &theirs);
            // What nobody can use is nobody's to declare.
            let (edited, protected) = match overlay.over(&edited).problems().is_empty() || theirs.is_empty() {
                true => (edited, protected),
                false => (base.document.clone(), [protected, theirs].concat()),
            };
            let drift = (!protected.is_empty()).then(|| Drift {
                manager: manager.clone(),
                paths: protected,
                reverted: false,
                shapes_pods: false,
            });
            let mut settled = unchanged(drift.is_some(), drift);
            if edited != base.document {
                settled.base.text = edited.to_yaml().into();
                settled.base.document = edited;
                settled.news = Some(News::Edited { manager });
            }
            settled
        }
    })
}

/// A document that nobody can read, or that is gone, stops all creation of Pods, and one with a private key hands it to
/// everybody. It is put right where it is known what it was, and who broke it is not who may say what it is.
fn put_right(input: &Input<'_>, live: &ConfigMap, broken: &Verdict) -> Option<Settled> {
    let manager = writer(live);
    let drift = &input.spec.drift;
    let is_theirs = drift.trusted_managers.contains(&manager) || drift.action == DriftAction::Report;
    let base = input.base.filter(|base| !is_theirs && base.uid == live.uid)?;
    let paths = match broken {
        Verdict::ValidationFailed(secrets) => secrets.iter().map(|secret| secret.path.clone()).collect(),
        _ => Vec::new(),
    };
    let drift = Some(Drift { manager, paths, reverted: false, shapes_pods: false });
    Some(Settled { base: base.clone(), news: None, drift, over_others: true })
}

/// Makes these paths what they are in another document.
fn graft(into: &mut Document, from: &Document, paths: &[Path]) {
    for path in paths {
        match from.get(path) {
            Some(value) => into.set(path, value.clone()),
            None => drop(into.remove(path)),
        }
    }
}

#[cfg(test)]
#[path = "plan_injector_tests.rs"]
mod injector_tests;
#[cfg(test)]
#[path = "plan_tests.rs"]
mod tests;
