//! Faults between the manager and the API server, one after the other.
//!
//! * In: the proxy for the manager's requests. Out: the number of faults by kind.
//! * Always: after a fault none of its rules is active; only the manager is affected. An expiry affects every watch that
//!   the manager has opened.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use anyhow::{Result, ensure};
use e2e::{Action, Fault, FaultProxy, Rule, discovery::WATCHED, eventually};
use tokio::time::sleep;

use crate::tally::Tally;

/// A watch in the log of the proxy.
const WATCH: &str = "watch=true";
const GONE: Action = Action::Status { code: 410, retry_after: None };
const AWAY: Duration = Duration::from_secs(3);
/// A watch that was cut is resumed after a backoff, which grows with each failure.
const MET: Duration = Duration::from_secs(60);

pub(crate) struct Faults {
    proxy: Arc<FaultProxy>,
    /// The path of each watch, with the beginning of its query.
    watches: BTreeSet<String>,
    next: usize,
    pub happened: Tally,
}

// === impl Faults ===

impl Faults {
    /// # Errors
    /// Fails when the manager does not watch the kinds of each of its jobs yet.
    pub(crate) fn new(proxy: Arc<FaultProxy>) -> Result<Self> {
        let watches: BTreeSet<String> = proxy.log().iter().filter_map(|request| watch(&request.path)).collect();
        for kind in WATCHED.iter().chain(&["linkerdconfigs", "configmaps", "namespaces", "deployments"]) {
            ensure!(
                watches.iter().any(|watch| watch.contains(&format!("/{kind}?"))),
                "the manager does not watch {kind}, only {watches:?}"
            );
        }
        Ok(Self { proxy, watches, next: 0, happened: Tally::default() })
    }

    /// The number of watches that expire together.
    pub(crate) fn watches(&self) -> usize {
        self.watches.len()
    }

    /// Injects the next fault, and waits until it is over.
    ///
    /// # Errors
    /// Fails when the fault does not affect the manager in time.
    pub(crate) async fn happen(&mut self) -> Result<()> {
        self.next += 1;
        let met = self.begin().await;
        self.clear();
        met
    }

    async fn begin(&self) -> Result<()> {
        match self.next % 3 {
            0 => {
                self.happened.count("times all connections cut");
                self.proxy.cut_all();
            }
            1 => {
                self.happened.count("times every watch expired (410)");
                let rules = self.watches.iter().map(|watch| Rule::path(watch).times(1));
                let faults: Vec<Fault> = rules.map(|rule| self.proxy.inject(rule, GONE)).collect();
                self.proxy.cut_all();
                let met = eventually(MET, "each watch to get 410", async || {
                    let hits: Vec<usize> = faults.iter().map(Fault::hits).collect();
                    ensure!(hits.iter().all(|hits| *hits > 0), "{:?}: {hits:?}", self.watches);
                    Ok(())
                });
                met.await?;
            }
            _ => {
                self.happened.count("times the API server was unreachable for 3 s");
                self.proxy.inject(Rule::any(), Action::Cut);
                self.proxy.cut_all();
                sleep(AWAY).await;
            }
        }
        Ok(())
    }

    /// Removes the rules of the current fault.
    pub(crate) fn clear(&self) {
        self.proxy.clear();
    }
}

/// The path of a watch, and its query up to the parameter that marks it as a watch: the same in each attempt.
fn watch(path: &str) -> Option<String> {
    let (start, _) = path.split_once(WATCH)?;
    Some(format!("{start}{WATCH}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attempts_of_one_watch_are_the_same_watch() {
        for version in [1, 2] {
            let path = format!("/api/v1/pods?&watch=true&timeoutSeconds=290&resourceVersion={version}");
            assert_eq!(watch(&path).as_deref(), Some("/api/v1/pods?&watch=true"));
        }
        assert_eq!(watch("/api/v1/pods?&limit=500"), None);
    }
}
