//! Reads the LinkerdConfigs, and finds the one that a command is about.

use std::sync::Arc;

use anyhow::{Context, Result, bail};
use kube::{Api, Client, Error, api::ListParams};

use crate::{
    api::{self, INJECTORS_CONFIG_MAP, NamespacedName, linkerd_config::GlobalSpec},
    cluster::{Problems, Projected, State, Watched, index::active_config, kinds::linkerd_config::LinkerdConfig},
};

/// Returns a state with all LinkerdConfigs and nothing else.
///
/// # Errors
/// Fails if they cannot be listed, also without their CRD.
pub(super) async fn all(client: &Client) -> Result<State> {
    let configs = match Api::<api::LinkerdConfig>::all(client.clone()).list(&ListParams::default()).await {
        Ok(list) => list.items,
        Err(Error::Api(status)) if status.code == 404 => {
            bail!("the API server has no resource LinkerdConfig: install its CRD, crd/linkerdconfigs.yaml")
        }
        Err(error) => return Err(error).context("cannot list LinkerdConfigs"),
    };
    let mut state = State::default();
    for config in configs {
        LinkerdConfig::project(config, &mut Problems::default()).apply(&mut state);
    }
    Ok(state)
}

/// Returns the LinkerdConfig with this name; without a name, the one in effect for the ConfigMap of the injectors in the
/// namespace `linkerd`.
///
/// # Errors
/// Fails if it does not exist, or if none is in effect.
pub(super) fn named(state: &State, name: Option<&str>) -> Result<Arc<LinkerdConfig>> {
    let found = match name {
        Some(name) => {
            state.linkerd_configs.by_name(name).with_context(|| format!("LinkerdConfig {name} does not exist"))?
        }
        None => {
            let target = NamespacedName::new(GlobalSpec::default().linkerd_namespace, INJECTORS_CONFIG_MAP);
            active_config::of(&state.linkerd_configs, &target)
                .with_context(|| format!("no LinkerdConfig is in effect for {target}: pass the name of one"))?
        }
    };
    Ok(Arc::clone(found))
}
