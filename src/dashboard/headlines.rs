//! The banner of the page: the problems, worst first. Pure.
//!
//! In: the lines of `/ready`, the watches, the expiry of the certificate, the summaries of LinkerdConfigs, LinkerdTrusts. Out:
//! sentences, each with what to do. Always holds: there is a first sentence, also if nothing is wrong; a kind that the
//! cluster does not serve is no problem, unless it is LinkerdConfig.

use std::{cmp::Reverse, sync::Arc, time::Duration};

use k8s_openapi::jiff::Timestamp;
use serde::Serialize;

use super::overview::ConfigRow;
use crate::{
    api::linkerd_trust::{TrustCondition, TrustPhase, TrustReason},
    cluster::{Kind, WatchReport, kinds::linkerd_trust::LinkerdTrust},
    summary::Attention,
    webhook::expired_at,
};

/// A watch that fails for a shorter time is in its first attempts.
const BRIEF: Duration = Duration::from_secs(10);
/// The largest number of sentences on the page.
const SHOWN: usize = 20;
const PROCESS: &str = "Process";
const CHECK: &str = "linkerd-operator check";
const TRUST: &str = "linkerd-operator trust";

/// One sentence about what needs attention, or that nothing does.
#[derive(Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Headline {
    attention: Attention,
    /// The subject of the sentence: the process, or a LinkerdConfig. Empty if it is about neither.
    subject: String,
    reason: String,
    /// The problem, in one sentence.
    title: String,
    /// The details, which name objects.
    #[serde(skip_serializing_if = "Option::is_none")]
    sentence: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    next: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    command: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    since: Option<Timestamp>,
}

/// The state of the process.
pub(super) struct ProcessState<'a> {
    pub(super) ready: bool,
    pub(super) waiting_for: &'a [String],
    pub(super) watches: &'a [WatchReport],
    /// When the certificate of the webhooks expires; `None` without one.
    pub(super) not_after: Option<Timestamp>,
    /// Whether LinkerdConfigs are watched.
    pub(super) has_configs: bool,
}

// === impl Headline ===

impl Headline {
    /// While the process makes progress, there is nothing to do.
    fn of_process(attention: Attention, reason: &str, title: String, next: &str) -> Self {
        let needs_help = attention > Attention::Progressing;
        Self {
            attention,
            subject: PROCESS.to_owned(),
            reason: reason.to_owned(),
            title,
            sentence: None,
            next: needs_help.then(|| next.to_owned()),
            command: needs_help.then(|| CHECK.to_owned()),
            since: None,
        }
    }

    fn of_config(ConfigRow { summary, conditions, tiles: _ }: &ConfigRow) -> Self {
        let is_meant = |reason: &str, message: &str| reason == summary.reason && message == summary.sentence;
        let condition = conditions.iter().find(|it| is_meant(&it.reason, &it.message));
        Self {
            attention: summary.attention,
            subject: format!("LinkerdConfig {}", summary.name),
            reason: summary.reason.clone(),
            title: summary.title.map_or_else(|| summary.sentence.clone(), str::to_owned),
            sentence: summary.title.map(|_| summary.sentence.clone()),
            next: summary.next.clone(),
            command: summary.command.clone(),
            since: condition.map(|it| it.last_transition_time.0),
        }
    }

    /// Returns what a LinkerdTrust reports; `None` if nothing is in progress and no certificate ends soon.
    fn of_trust(LinkerdTrust { name, status, .. }: &LinkerdTrust) -> Option<Self> {
        let condition = |type_: TrustCondition, is: &str| {
            status.conditions.iter().find(|it| it.type_ == type_.as_str() && it.status == is)
        };
        let not_ready = condition(TrustCondition::Ready, "False").or(condition(TrustCondition::Accepted, "False"));
        let found = not_ready.or(condition(TrustCondition::Expiring, "True"))?;
        let waits = status.has(TrustCondition::Ready, TrustReason::RotationInProgress);
        let attention = match status.phase {
            Some(TrustPhase::Renewing) if waits => Attention::Progressing,
            _ if waits => Attention::Waiting,
            _ => Attention::Problem,
        };
        Some(Self {
            attention,
            subject: format!("LinkerdTrust {name}"),
            reason: found.reason.clone(),
            title: found.message.clone(),
            sentence: None,
            next: Some(status.next_step.clone()).filter(|next| !next.is_empty() && !waits),
            command: (attention > Attention::Progressing).then(|| TRUST.to_owned()),
            since: Some(found.last_transition_time.0),
        })
    }

    /// The headline of a page on which nothing needs attention.
    fn all_is_well(process: &ProcessState<'_>, configs: &[ConfigRow]) -> Self {
        let quiet = |title: &str| Self {
            attention: Attention::Done,
            subject: String::new(),
            reason: String::new(),
            title: title.to_owned(),
            sentence: None,
            next: None,
            command: None,
            since: None,
        };
        match configs.iter().find(|row| row.summary.in_effect) {
            Some(row) => Self::of_config(row),
            None if process.has_configs => {
                quiet("no LinkerdConfig is in effect, so nothing is configured or rolled out")
            }
            None => quiet("this replica is ready"),
        }
    }
}

/// Returns what needs attention, worst first; at least one sentence.
pub(super) fn headlines(
    process: &ProcessState<'_>,
    configs: &[ConfigRow],
    trusts: &[Arc<LinkerdTrust>],
    now: Timestamp,
) -> Vec<Headline> {
    let mut all = Vec::new();
    // A replica that is not ready may show an old state of all else.
    let not_ready = of_process(process);
    let (first, last) = if process.ready { (Vec::new(), not_ready) } else { (not_ready, Vec::new()) };
    all.extend(first);
    all.extend(certificate(process, now));
    all.extend(configs.iter().filter(|row| row.summary.attention > Attention::Done).map(Headline::of_config));
    all.extend(trusts.iter().filter_map(|trust| Headline::of_trust(trust)));
    all.extend(last);
    all.sort_by_key(|headline| Reverse(headline.attention));
    all.truncate(SHOWN);
    if all.is_empty() {
        all.push(Headline::all_is_well(process, configs));
    }
    all
}

/// Returns the problems that `/ready` names, except the problem of the certificate.
fn of_process(process: &ProcessState<'_>) -> Vec<Headline> {
    let expired = process.not_after.map(expired_at);
    let mut found = Vec::new();
    for text in process.waiting_for {
        if expired.as_ref().is_some_and(|expired| text.starts_with(expired)) {
            continue;
        }
        let watch = process.watches.iter().find(|watch| watch.problem.as_ref() == Some(text));
        let (attention, reason) = match watch {
            Some(watch) if watch.is_not_served && watch.kind == Kind::LinkerdConfig => {
                (Attention::Waiting, "NotServed")
            }
            Some(watch) if watch.is_not_served => continue,
            Some(watch) if watch.failing_for.is_none_or(|time| time < BRIEF) => (Attention::Progressing, "WatchBegins"),
            Some(_) => (Attention::Problem, "WatchFails"),
            None if process.ready => (Attention::Problem, "Degraded"),
            None => (Attention::Problem, "NotReady"),
        };
        let first = !process.ready && found.is_empty();
        let title = if first { format!("this replica is not ready: {text}") } else { text.clone() };
        let next = "Run linkerd-operator check, which looks at permissions, Leases, webhooks and certificates.";
        found.push(Headline::of_process(attention, reason, title, next));
    }
    if !process.ready && found.is_empty() {
        let title = "this replica is not ready: it stops".to_owned();
        found.push(Headline::of_process(Attention::Progressing, "NotReady", title, ""));
    }
    found
}

fn certificate(process: &ProcessState<'_>, now: Timestamp) -> Option<Headline> {
    let title = expired_at(process.not_after.filter(|end| *end <= now)?);
    let source = process.waiting_for.iter().find_map(|text| text.strip_prefix(&title)?.strip_prefix(": "));
    let sentence = source.map(|source| format!("it is from {source}"));
    let next = "Renew it: API servers reject the certificate, so calls of the webhooks fail.";
    Some(Headline { sentence, ..Headline::of_process(Attention::Problem, "CertificateExpired", title, next) })
}

#[cfg(test)]
#[path = "headlines_tests.rs"]
mod tests;
