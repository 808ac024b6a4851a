//! The deletion of a LinkerdConfig with our finalizer.

use std::sync::Arc;

use kube::runtime::controller::Action;
use tracing::{info, warn};

use super::LinkerdConfigReconciler;
use crate::{cluster::kinds::linkerd_config::LinkerdConfig, write::WriteError};

impl LinkerdConfigReconciler {
    /// Restores the base and removes our finalizer. The ConfigMap is not changed if another resource is active for it.
    /// A restore that the API server rejects as forbidden or invalid does not block the deletion.
    pub(super) async fn finalize(&self, config: &LinkerdConfig, is_taken_over: bool) -> Result<Action, WriteError> {
        if !config.finalized {
            return Ok(Action::await_change());
        }
        if !is_taken_over {
            match self.restore_base(&config.target.name).await {
                Ok(true) => info!(config_map = %config.target, "restored the installer's document"),
                Ok(false) => {}
                Err(error @ WriteError::Refused(_)) if matches!(error.label(), "forbidden" | "invalid") => {
                    warn!(config_map = %config.target, %error, "could not restore the installer's document; the LinkerdConfig is deleted anyway");
                }
                Err(error) => return Err(error),
            }
        }
        self.writer.set_finalizer(&config.name, false).await?;
        Ok(Action::await_change())
    }

    async fn restore_base(&self, config_map: &Arc<str>) -> Result<bool, WriteError> {
        match self.writer.newest_base(config_map).await? {
            Ok(Some(base)) => self.writer.restore_base(config_map, &base).await,
            Ok(None) => Ok(false),
            Err(error) => {
                warn!(%config_map, %error, "could not restore the installer's document; the LinkerdConfig is deleted anyway");
                Ok(false)
            }
        }
    }
}
