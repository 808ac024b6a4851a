//! Faults between the manager and the API server, one after the other.
//!
//! * In: the proxy for the manager's watches. Out: the number of faults by kind.
//! * Always: after a fault none of its rules is active; only the manager is affected.

use std::{sync::Arc, time::Duration};

use anyhow::{Result, ensure};
use e2e::{Action, Fault, FaultProxy, Rule, eventually};
use tokio::time::sleep;

use crate::tally::Tally;

const KINDS: [&str; 8] =
    ["pods", "services", "endpointslices", "nodes", "externalworkloads", "servers", "replicasets", "jobs"];
const GONE: Action = Action::Status { code: 410, retry_after: None };
const AWAY: Duration = Duration::from_secs(3);
/// A watch that was cut is resumed after a backoff, which grows with each failure.
const MET: Duration = Duration::from_secs(60);

pub(crate) struct Faults {
    proxy: Arc<FaultProxy>,
    next: usize,
    pub happened: Tally,
}

// === impl Faults ===

impl Faults {
    pub(crate) fn new(proxy: Arc<FaultProxy>) -> Self {
        Self { proxy, next: 0, happened: Tally::default() }
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
                let watches = KINDS.iter().map(|kind| Rule::path(&format!("/{kind}?&watch=true")).times(1));
                let faults: Vec<Fault> = watches.map(|rule| self.proxy.inject(rule, GONE)).collect();
                self.proxy.cut_all();
                let met = eventually(MET, "each watch to get 410", async || {
                    let hits: Vec<usize> = faults.iter().map(Fault::hits).collect();
                    ensure!(hits.iter().all(|hits| *hits > 0), "{KINDS:?}: {hits:?}");
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
