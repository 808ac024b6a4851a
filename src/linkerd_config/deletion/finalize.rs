//! The deletion of a LinkerdConfig with our finalizer, by the leader. Without the control plane's namespace no replica
//! leads; then [`release`](super::release) removes the finalizer.
//!
//! Always holds: the finalizer is removed after a restore, after a rejection that a retry does not change, and after
//! [`MAX_RETRIES`] of other failures. So a deletion never waits without limit. The restore is skipped only if the
//! resource does not request it, or if another resource takes over and enforces: a resource that does not enforce never
//! writes the ConfigMap.

use std::time::Duration;

use tracing::{info, warn};

use crate::{
    api::linkerd_config::{DeletionPolicy, Mode},
    cluster::kinds::linkerd_config::LinkerdConfig,
    controller::NextReconcile,
    events::Reason,
    linkerd_config::{
        LinkerdConfigReconciler, dereference::ReconcileInput, documents::base::Base, events::restore_event,
        writer::RestoreOutcome,
    },
    write::WriteError,
};

/// How long this process retries a restore that fails.
const MAX_RETRIES: Duration = Duration::from_secs(300);

impl LinkerdConfigReconciler {
    /// Restores the base and removes our finalizer. The ConfigMap is not changed if another resource takes over and
    /// enforces, or if the deleted resource had a mode other than Enforce or the policy Retain.
    pub(in crate::linkerd_config) async fn finalize(
        &self,
        input: &ReconcileInput,
    ) -> Result<NextReconcile, WriteError> {
        let ReconcileInput { config, active, canary_map, .. } = input;
        match self.take_back_canary(config, canary_map.as_deref()).await {
            // The garbage collector deletes the canary's ConfigMap together with the resource.
            Err(error) if lets_go(&error, || self.cache.restore_failing_for(&config.name)) => {
                warn!(linkerd_config = %config.name, %error, "could not delete the configuration of the canary namespaces");
            }
            result => result?,
        }
        if !config.finalized {
            return Ok(NextReconcile::OnChange);
        }
        let restores = config.spec.mode == Mode::Enforce && config.spec.deletion_policy == DeletionPolicy::RestoreBase;
        let outcome = match active.as_ref().filter(|active| active.enforces()) {
            _ if !restores => None,
            Some(successor) => Some((Reason::BaseNotRestored, taken_over_note(config, successor))),
            None => self.restore_or_give_up(config).await?,
        };
        if let Some((reason, note)) = outcome {
            match reason {
                Reason::BaseRestored => info!(config_map = %config.target, "{note}"),
                _ => warn!(config_map = %config.target, "{note}; the LinkerdConfig is deleted anyway"),
            }
            self.events.publish(restore_event(config, reason, note));
        }
        self.writer.set_finalizer(&config.name, false).await?;
        Ok(NextReconcile::OnChange)
    }

    /// Restores the base, unless it failed for good. Returns the reason and the note of the Event; `None` if the
    /// ConfigMap has nothing to restore.
    async fn restore_or_give_up(&self, config: &LinkerdConfig) -> Result<Option<(Reason, String)>, WriteError> {
        match self.restore_base(config).await {
            Err(error) if lets_go(&error, || self.cache.restore_failing_for(&config.name)) => {
                let saved = config.status.revisions.as_ref().and_then(|revisions| revisions.base);
                let saved = saved.map(|revision| Base::name_at(&config.target.name, revision));
                let note = format!(
                    "Could not restore the installer's document in ConfigMap {}: {error}; ControllerRevision {} has it",
                    config.target,
                    saved.unwrap_or_default()
                );
                Ok(Some((Reason::BaseNotRestored, note)))
            }
            result => result,
        }
    }

    /// Restores the base. Returns the reason and the note of the Event; `None` if the ConfigMap has nothing to restore.
    async fn restore_base(&self, config: &LinkerdConfig) -> Result<Option<(Reason, String)>, WriteError> {
        let (target, config_map) = (&config.target, &config.target.name);
        let base = match self.writer.newest_base(config_map).await? {
            Ok(base) => base,
            Err(error) => {
                let note = format!("Could not restore the installer's document in ConfigMap {target}: {error}");
                return Ok(Some((Reason::BaseNotRestored, note)));
            }
        };
        let saved = base.as_ref().map(|base| Base::name_at(config_map, base.revision)).unwrap_or_default();
        Ok(match self.writer.restore_base(config_map, base.as_ref()).await? {
            RestoreOutcome::Nothing => None,
            RestoreOutcome::Restored => {
                Some((Reason::BaseRestored, format!("ConfigMap {target} has the installer's document again: {saved}")))
            }
            RestoreOutcome::Kept { manager } => {
                let note = format!(
                    "{manager} changed the document in ConfigMap {target} after the operator's last write, so it stays; \
                     ControllerRevision {saved} has the installer's document from before"
                );
                Some((Reason::BaseNotRestored, note))
            }
            RestoreOutcome::NoBase => {
                let note =
                    format!("Could not restore the installer's document in ConfigMap {target}: no base is saved");
                Some((Reason::BaseNotRestored, note))
            }
        })
    }
}

fn taken_over_note(config: &LinkerdConfig, successor: &LinkerdConfig) -> String {
    format!(
        "LinkerdConfig {} takes over ConfigMap {}, so the installer's document was not restored",
        successor.name, config.target
    )
}

/// Whether a failed restore no longer blocks the deletion. `failing_for` is how long restores of the resource have been
/// failing.
fn lets_go(error: &WriteError, failing_for: impl FnOnce() -> Duration) -> bool {
    match error {
        WriteError::NotLeading => false,
        WriteError::Refused(status) if is_permanent(status.code) => true,
        WriteError::Refused(_) | WriteError::TimedOut | WriteError::Transport(_) => failing_for() >= MAX_RETRIES,
    }
}

/// Whether the same request would be rejected again. An expired token, a timeout, a conflict and a rate limit pass.
fn is_permanent(code: u16) -> bool {
    (400..500).contains(&code) && ![401, 408, 409, 429].contains(&code)
}

#[cfg(test)]
mod tests {
    use kube::core::Status;

    use super::*;

    fn is_let_go(error: &WriteError, minutes: u64) -> bool {
        lets_go(error, || Duration::from_secs(60 * minutes))
    }

    #[test]
    fn a_deletion_waits_for_a_restore_that_may_succeed_and_for_no_longer_than_five_minutes() {
        let refused = |code| WriteError::Refused(Box::new(Status { code, ..Status::default() }));
        for code in [400, 403, 404, 413, 415, 422] {
            assert!(is_let_go(&refused(code), 0), "{code}");
        }
        for code in [401, 408, 409, 429, 500, 503, 504] {
            assert!(!is_let_go(&refused(code), 4), "{code}");
            assert!(is_let_go(&refused(code), 5), "{code}");
        }
        assert!(!is_let_go(&WriteError::TimedOut, 4) && is_let_go(&WriteError::TimedOut, 5));
        assert!(!is_let_go(&WriteError::NotLeading, 60), "another replica decides");
    }
}
