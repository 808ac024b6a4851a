//! Accidents between the manager and the API server, one after the other.
//!
//! * In: the proxy that the manager's watches go through. Out: what happened, counted.
//! * Always: when a fault has passed, no rule of it is in force; only the manager meets it.

use std::{sync::Arc, time::Duration};

use anyhow::{Result, ensure};
use e2e::{Action, Fault, FaultProxy, Rule, eventually};
use tokio::time::sleep;

use crate::tally::Tally;

const KINDS: [&str; 8] =
    ["pods", "services", "endpointslices", "nodes", "externalworkloads", "servers", "replicasets", "jobs"];
const GONE: Action = Action::Status { code: 410, retry_after: None };
const AWAY: Duration = Duration::from_secs(3);
/// A watch that was cut comes back after a pause, longer after each failure.
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

    /// Lets the next one happen, and waits until it has passed.
    ///
    /// # Errors
    /// When the manager does not meet it.
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
                self.happened.count("times every watch's history gone (410)");
                let watches = KINDS.iter().map(|kind| Rule::path(&format!("/{kind}?&watch=true")).times(1));
                let faults: Vec<Fault> = watches.map(|rule| self.proxy.inject(rule, GONE)).collect();
                self.proxy.cut_all();
                let met = eventually(MET, "each watch to find its history gone", async || {
                    let hits: Vec<usize> = faults.iter().map(Fault::hits).collect();
                    ensure!(hits.iter().all(|hits| *hits > 0), "{KINDS:?}: {hits:?}");
                    Ok(())
                });
                met.await?;
            }
            _ => {
                self.happened.count("times the API server away for 3 s");
                self.proxy.inject(Rule::any(), Action::Cut);
                self.proxy.cut_all();
                sleep(AWAY).await;
            }
        }
        Ok(())
    }

    /// Ends the one that is under way.
    pub(crate) fn clear(&self) {
        self.proxy.clear();
    }
}
