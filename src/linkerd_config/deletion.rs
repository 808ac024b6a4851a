//! Letting a LinkerdConfig go whose deletion waits for us.

use std::sync::Arc;

use kube::runtime::controller::Action;
use tracing::{info, warn};

use super::Context;
use crate::{cluster::kinds::linkerd_config::LinkerdConfig, write::WriteError};

impl Context {
    /// Lets a resource go whose deletion waits for us. Where another takes its place the ConfigMap is that one's. What cannot be
    /// restored, because nobody may write it, must not keep the resource for ever.
    pub(super) async fn release(&self, config: &LinkerdConfig, is_taken_over: bool) -> Result<Action, WriteError> {
        if !config.finalized {
            return Ok(Action::await_change());
        }
        let target = &config.target.name;
        if !is_taken_over {
            match self.restore(target).await {
                Ok(true) => info!(config_map = %config.target, "put back what its installer wrote"),
                Ok(false) => {}
                Err(error @ WriteError::Refused(_)) if matches!(error.label(), "forbidden" | "invalid") => {
                    warn!(config_map = %config.target, %error, "what its installer wrote cannot be put back: letting the LinkerdConfig go");
                }
                Err(error) => return Err(error),
            }
        }
        self.writer.finalize(&config.name, false).await?;
        Ok(Action::await_change())
    }

    async fn restore(&self, config_map: &Arc<str>) -> Result<bool, WriteError> {
        match self.writer.base(config_map).await? {
            Ok(Some(base)) => self.writer.restore(config_map, &base).await,
            Ok(None) => Ok(false),
            Err(error) => {
                warn!(%config_map, %error, "what its installer wrote cannot be put back");
                Ok(false)
            }
        }
    }
}
