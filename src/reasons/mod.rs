//! The catalogue of reasons: what each reason of a condition, a workload and an Event means, and what to do.
//!
//! In: a reason. Out: its meaning and its remedy, for `status`, the dashboard and the generated page
//! `docs/src/reference/reasons.md`. Always holds: a reason that the operator writes has an entry, and each entry is a
//! reason that the operator writes; texts are plain sentences without links, because a terminal shows them too.

mod conditions;
mod events;
#[cfg(test)]
mod tests;
mod trust;
mod workloads;

pub use conditions::CONDITIONS;
pub use events::EVENTS;
pub use trust::TRUST_CONDITIONS;
pub use workloads::WORKLOADS;

/// A condition of a LinkerdConfig or a LinkerdTrust, with all its reasons.
pub struct ConditionReasons {
    pub condition: &'static str,
    /// The question that the condition answers.
    pub question: &'static str,
    pub reasons: &'static [ReasonEntry],
}

/// The reasons for one decision about workloads, or for the Events about one kind of object.
pub struct ReasonGroup {
    pub title: &'static str,
    /// Where the reasons are found.
    pub place: &'static str,
    pub reasons: &'static [ReasonEntry],
}

/// The meaning and the remedy of a reason.
pub struct ReasonEntry {
    pub reason: &'static str,
    /// The status of the condition, or the type of the Event; empty for a workload.
    pub status: &'static str,
    pub meaning: &'static str,
    /// Empty if there is nothing to do.
    pub remedy: &'static str,
}

/// Returns an entry without a remedy.
const fn fine(reason: &'static str, status: &'static str, meaning: &'static str) -> ReasonEntry {
    entry(reason, status, meaning, "")
}

const fn entry(reason: &'static str, status: &'static str, meaning: &'static str, remedy: &'static str) -> ReasonEntry {
    ReasonEntry { reason, status, meaning, remedy }
}

/// Returns what to do about a reason of a condition; `None` if there is nothing to do, or if the reason is unknown.
pub fn remedy(condition: &str, reason: &str) -> Option<&'static str> {
    of_condition(condition, reason).map(|entry| entry.remedy).filter(|remedy| !remedy.is_empty())
}

/// Returns the first sentence of what a reason of a condition means; `None` if the reason is unknown, or if its meaning
/// depends on the status of the condition.
pub fn title(condition: &str, reason: &str) -> Option<&'static str> {
    let entry = of_condition(condition, reason).filter(|entry| !entry.status.contains(" or "))?;
    // A sentence ends before a space, so that the point of a version ends none.
    Some(entry.meaning.split_once(". ").map_or(entry.meaning, |(first, _)| first).trim_end_matches('.'))
}

fn of_condition(condition: &str, reason: &str) -> Option<&'static ReasonEntry> {
    let mut all = CONDITIONS.iter().filter(|it| it.condition == condition).flat_map(|it| it.reasons);
    all.find(|entry| entry.reason == reason)
}
