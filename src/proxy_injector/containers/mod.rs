//! The containers and volumes of a proxy.
//!
//! In: the values of one Pod. Out: the JSON of the containers and volumes. Always holds: values that cannot work are an
//! error here, so that the API server does not have to reject the Pod.

mod debug;
mod fields;
mod init;
mod proxy;
mod proxy_env;
mod validator;

use serde_json::{Value, json};

use crate::values::{END_ENTITY_VOLUME, PODINFO_VOLUME, ProxyValues, TOKEN_VOLUME, XTABLES_VOLUME};

pub(super) use debug::debug;
pub(super) use fields::NotRenderable;
pub(super) use init::init;
pub(super) use proxy::{ProxyContext, proxy};
pub(super) use validator::validator;

/// The containers of a Pod that an injection adds.
pub(super) struct AddedContainers {
    /// `linkerd-init`, or the network validator.
    pub(super) init: Value,
    pub(super) proxy: Value,
    pub(super) debug: Option<Value>,
}

/// Returns the volumes of the proxy.
pub(super) fn volumes(values: &ProxyValues) -> Vec<Value> {
    let mut volumes = Vec::new();
    if !values.cni_enabled {
        volumes.push(json!({"name": XTABLES_VOLUME, "emptyDir": {}}));
    }
    volumes.push(json!({"name": END_ENTITY_VOLUME, "emptyDir": {"medium": "Memory"}}));
    if values.proxy.tracing.as_ref().is_some_and(|tracing| tracing.enabled) {
        let labels = json!({"path": "labels", "fieldRef": {"fieldPath": "metadata.labels"}});
        volumes.push(json!({"name": PODINFO_VOLUME, "downwardAPI": {"items": [labels]}}));
    }
    if values.identity.service_account_token_projection {
        let token = json!({"path": TOKEN_VOLUME, "expirationSeconds": 86400, "audience": "identity.l5d.io"});
        volumes.push(json!({"name": TOKEN_VOLUME, "projected": {"sources": [{"serviceAccountToken": token}]}}));
    }
    volumes
}

// === impl AddedContainers ===

impl AddedContainers {
    pub(super) fn iter(&self) -> impl Iterator<Item = &Value> {
        [&self.init, &self.proxy].into_iter().chain(&self.debug)
    }
}
