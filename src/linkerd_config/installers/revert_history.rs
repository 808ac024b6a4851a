//! The overwrites of Linkerd's ConfigMap: of writers that undo the operator's write, and of installers.
//!
//! Always holds: the size is bounded; a document that an installer writes for the first time is an installation, which
//! slows the operator down but is no contest.

use std::{collections::VecDeque, time::Duration};

use crate::{retry::Overwrites, text::sha256};

/// The number of documents of installers that are remembered.
const MAX_INSTALLED: usize = 10;

/// The overwrites of one ConfigMap.
#[derive(Default)]
pub(in crate::linkerd_config) struct RevertHistory {
    /// The overwrites of writers that had undone our write.
    reverts: Overwrites,
    /// The overwrites of documents that an installer wrote for the first time.
    installations: Overwrites,
    /// The SHA-256 of the last documents that installers wrote.
    installed: VecDeque<String>,
}

// === impl RevertHistory ===

impl RevertHistory {
    /// Notes that we overwrote another writer. `installed` is the document of an installer that differs from the base.
    pub(in crate::linkerd_config) fn note(&mut self, installed: Option<&str>) {
        let hash = installed.map(sha256);
        match hash.filter(|hash| !self.installed.contains(hash)) {
            Some(hash) => {
                self.installed.push_back(hash);
                if self.installed.len() > MAX_INSTALLED {
                    self.installed.pop_front();
                }
                self.installations.note();
            }
            None => self.reverts.note(),
        }
    }

    /// Returns the remaining suspension of overwrites.
    pub(in crate::linkerd_config) fn backoff(&mut self) -> Option<Duration> {
        self.reverts.backoff().max(self.installations.backoff())
    }

    /// Returns how long the ConfigMap still counts as contested: see [`Overwrites::contested_for`].
    pub(in crate::linkerd_config) fn contested_for(&mut self) -> Option<Duration> {
        self.reverts.contested_for()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn new_documents_of_installers_are_no_contest_and_two_that_alternate_are() {
        let mut history = RevertHistory::default();
        for number in 0..20 {
            history.note(Some(&number.to_string()));
        }
        assert_eq!(history.contested_for(), None);
        assert!(history.backoff().is_some(), "an installer in a loop is slowed down");
        let mut history = RevertHistory::default();
        for number in 0..8 {
            assert_eq!(history.contested_for(), None);
            history.note(Some(if number % 2 == 0 { "a" } else { "b" }));
        }
        assert_eq!(history.contested_for(), Some(Duration::from_secs(600)));
    }

    #[tokio::test(start_paused = true)]
    async fn the_number_of_remembered_documents_is_bounded() {
        let mut history = RevertHistory::default();
        for number in 0..1000 {
            history.note(Some(&number.to_string()));
        }
        assert_eq!(history.installed.len(), 10);
    }
}
