//! The table of cases: objects and flags, a request, and the answer that the contract requires.
//!
//! ```text
//!   cases/base.yaml ─┐
//!   cases/get/*.yaml, cases/profile/*.yaml ──▶ Row (one per value of `each`) ──▶ Case: objects, flags, request ──▶ answer
//! ```
//!
//! * In: the files in `e2e/cases`; `e2e/cases/README.md` describes their format.
//! * Out: each [`Case`], with complete objects and the complete expected answer, for a server that is to be tested.
//! * Always: an expected answer comes from the files only. A field that the format does not have is an error.

mod endpoint;
mod file;
mod flag;
mod object;
mod patch;
mod profile;
#[cfg(test)]
mod tests;
mod write;

use std::{collections::BTreeMap, path::Path};

use anyhow::{Context, Result};
use serde_json::Value;

use crate::{
    answers::{difference, first_answer, first_profile_answer, profile_difference},
    discovery::Discovery,
    oracle::{Answer, ApiState, Key, ProfileAnswer, Remote, Request, Settings, answer, answer_joined, answer_profile},
    query::Method,
};
use file::{Base, Row};

pub use write::write;

/// The prefix of names that belong to one case: namespaces and nodes.
const OWN_NAME: &str = "case-";

/// A request about a cluster, and its answer.
#[derive(Clone, Debug)]
pub struct Case {
    /// The file, the row, and the value of `each`: unique in the table.
    pub name: String,
    /// The flags of the server, sorted, as `--name=value`.
    pub flags: Vec<String>,
    /// The same flags, for the oracle.
    pub settings: Settings,
    /// The objects of the cluster.
    pub objects: Vec<(Key, Value)>,
    /// The objects of each other cluster that is linked, by the name of the cluster. Without one, multicluster is off.
    pub clusters: BTreeMap<String, Vec<(Key, Value)>>,
    pub request: Request,
    pub expected: Expected,
    /// The row of `docs/internals/src/differences.md` that describes a different answer of Linkerd's server.
    pub linkerd: Option<u32>,
    /// The reason why the objects cannot be written to an API server.
    pub in_process_only: Option<String>,
}

/// The answer to one of the two methods.
#[derive(Clone, Debug, PartialEq)]
pub enum Expected {
    /// Without endpoints: the message `NoEndpoints`.
    Get(Answer),
    Profile(ProfileAnswer),
}

/// All cases, each about a cluster of its own.
///
/// # Errors
/// Fails when a file cannot be read, or does not have the format.
pub fn cases() -> Result<Vec<Case>> {
    rows()?.iter().map(|row| row.case(None)).collect()
}

/// All cases, such that one cluster can have the objects of all of them: namespaces, nodes and addresses are distinct,
/// except between cases with the same objects.
///
/// # Errors
/// Fails as [`cases`] does.
pub fn cases_side_by_side() -> Result<Vec<Case>> {
    let mut numbers = BTreeMap::new();
    let numbered = |row: &Row| {
        let next = numbers.len();
        let number = *numbers.entry(row.objects_as_text()).or_insert(next);
        row.case(Some(number))
    };
    rows()?.iter().map(numbered).collect()
}

/// The trust domain of another cluster.
pub fn trust_domain(cluster: &str) -> String {
    format!("{cluster}.trust")
}

fn state(objects: &[(Key, Value)]) -> Result<ApiState> {
    let mut state = ApiState::default();
    for (key, object) in objects {
        state.put(key, object)?;
    }
    Ok(state)
}

fn rows() -> Result<Vec<Row>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("cases");
    let base = Base::read(&folder.join("base.yaml"))?;
    let mut rows = Vec::new();
    for (method, below) in [(Method::Get, "get"), (Method::GetProfile, "profile")] {
        let folder = folder.join(below);
        let listed = std::fs::read_dir(&folder).with_context(|| format!("listing {}", folder.display()))?;
        let mut files = listed.map(|entry| Ok(entry?.path())).collect::<Result<Vec<_>>>()?;
        files.sort();
        for file in files {
            rows.extend(file::read(&base, method, &file).with_context(|| format!("reading {}", file.display()))?);
        }
    }
    Ok(rows)
}

// === impl Case ===

impl Case {
    /// The objects as an API server holds them.
    ///
    /// # Errors
    /// Fails when an object cannot be decoded as its kind.
    pub fn state(&self) -> Result<ApiState> {
        state(&self.objects)
    }

    /// The answer of a server: the first message of a new stream, or the refusal.
    ///
    /// # Errors
    /// Fails when the stream ends without a message.
    pub async fn answer_of(&self, server: &Discovery) -> Result<Expected> {
        Ok(match self.expected {
            Expected::Get(_) => Expected::Get(first_answer(server, &self.request).await?),
            Expected::Profile(_) => Expected::Profile(first_profile_answer(server, &self.request).await?),
        })
    }

    /// The answer of the oracle.
    ///
    /// # Errors
    /// Fails when an object cannot be decoded as its kind.
    pub fn oracle(&self) -> Result<Expected> {
        let state = self.state()?;
        let mut remotes = BTreeMap::new();
        for (name, objects) in &self.clusters {
            let remote = Remote { objects: self::state(objects)?, trust_domain: trust_domain(name) };
            remotes.insert(name.clone(), remote);
        }
        Ok(match self.expected {
            Expected::Get(_) if self.clusters.is_empty() => {
                Expected::Get(answer(&state, &self.settings, &self.request))
            }
            Expected::Get(_) => Expected::Get(answer_joined(&state, &remotes, &self.settings, &self.request)),
            Expected::Profile(_) => Expected::Profile(answer_profile(&state, &self.settings, &self.request)),
        })
    }
}

// === impl Expected ===

impl Expected {
    /// Describes how an answer differs; `None` if it is equal.
    pub fn difference(&self, seen: &Self) -> Option<String> {
        (self != seen).then(|| match (self, seen) {
            (Self::Get(expected), Self::Get(seen)) => difference(expected, Some(seen)),
            (Self::Profile(expected), Self::Profile(seen)) => profile_difference(expected, Some(seen)),
            (expected, seen) => format!("expected {expected:?}, saw {seen:?}"),
        })
    }
}
