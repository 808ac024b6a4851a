//! Reviews LinkerdConfigs for the API server.
//!
//! In: the review of a LinkerdConfig; the cached ConfigMaps, the saved base. Out: a decision. Always holds: without the
//! cluster, only the resource itself is judged; the base is read with a deadline, once per review.

use std::{sync::Arc, time::Duration};

use futures::{FutureExt, future::BoxFuture};
use k8s_openapi::{api::apps::v1::ControllerRevision, jiff::Timestamp};
use kube::{Api, Client, api::ListParams};
use serde_json::value::RawValue;
use tokio::time::timeout;
use tracing::debug;

use super::{InstalledLinkerd, SpecReview, review};
use crate::{
    api::{self, LINKERD_CONFIG_KIND, linkerd_config::annotations::CONFIG_HASH_ANNOTATION},
    cluster::{
        Cluster, Problems, Projected,
        index::active_config,
        kinds::{config_map::ConfigMap, linkerd_config::LinkerdConfig},
    },
    linkerd_config::{
        documents::base::Base,
        status::{conflict_message, foreign_namespace_message},
    },
    values::Document,
    webhook::{ValidationRequest, ValidationVerdict, Validator},
};

/// Shorter than the timeout of the webhook.
const DEADLINE: Duration = Duration::from_secs(2);

/// The part of the validating webhook that reviews LinkerdConfigs.
pub struct LinkerdConfigValidator {
    /// `None` if the process watches nothing.
    cluster: Option<Cluster>,
    revisions: Api<ControllerRevision>,
    /// The namespace of the control plane.
    namespace: Arc<str>,
}

/// The cached objects of one review.
#[derive(Default)]
struct ReviewObjects {
    live: Option<Arc<ConfigMap>>,
    bundle: Option<Arc<str>>,
    /// Why the resource would not be in effect.
    inactive: Option<String>,
}

// === impl LinkerdConfigValidator ===

impl LinkerdConfigValidator {
    pub fn new(client: &Client, cluster: Option<Cluster>, namespace: &str) -> Self {
        Self { cluster, revisions: Api::namespaced(client.clone(), namespace), namespace: namespace.into() }
    }

    async fn review(&self, object: api::LinkerdConfig, before: Option<api::LinkerdConfig>) -> ValidationVerdict {
        let config = Arc::new(LinkerdConfig::project(object, &mut Problems::default()));
        let ReviewObjects { live, bundle, inactive } = self.objects(&config);
        let document = match &live {
            Some(live) => self.installed(live).await,
            None => None,
        };
        let installed = InstalledLinkerd { document: document.as_ref(), bundle: bundle.as_deref() };
        let before = before.map(|before| before.spec);
        let SpecReview { denied, mut warnings } = review(&config.spec, before.as_ref(), installed, Timestamp::now());
        if before.as_ref() != Some(&config.spec) {
            warnings.splice(0..0, inactive);
        }
        ValidationVerdict { denied, warnings }
    }

    fn objects(&self, config: &Arc<LinkerdConfig>) -> ReviewObjects {
        if *config.target.namespace != *self.namespace {
            let inactive = Some(foreign_namespace_message(config, &self.namespace));
            return ReviewObjects { inactive, ..ReviewObjects::default() };
        }
        let Some(cluster) = &self.cluster else { return ReviewObjects::default() };
        let state = cluster.read();
        let others = state.linkerd_configs.targeting(&config.target).filter(|other| other.name != config.name);
        let active = active_config::first(others.chain([config])).filter(|active| active.name != config.name);
        let roots = state.config_maps.trust_roots(&self.namespace);
        ReviewObjects {
            live: state.config_maps.get(&config.target).cloned(),
            bundle: roots.and_then(|roots| roots.bundle.clone()),
            inactive: active.map(|active| conflict_message(config, active)),
        }
    }

    /// Returns the document of the installer: that of the ConfigMap, or the saved one if the operator has changed it.
    async fn installed(&self, live: &ConfigMap) -> Option<Document> {
        if !live.annotations.contains_key(CONFIG_HASH_ANNOTATION) {
            return Document::read(live.values.as_deref()?).ok().map(|(document, _)| document);
        }
        let selector = ListParams::default().labels(&Base::selector(&live.key.name));
        match timeout(DEADLINE, self.revisions.list(&selector)).await {
            Ok(Ok(revisions)) => {
                let base = Base::newest(&revisions.items).ok().flatten();
                base.filter(|base| base.uid == live.uid).map(|base| base.document)
            }
            Ok(Err(error)) => {
                debug!(%error, "could not read the base for the review of a LinkerdConfig");
                None
            }
            Err(_) => {
                debug!("the base for the review of a LinkerdConfig was not read in time");
                None
            }
        }
    }
}

impl Validator for LinkerdConfigValidator {
    fn kind(&self) -> (&'static str, &'static str) {
        ("config.linkerd.io", LINKERD_CONFIG_KIND)
    }

    fn validate<'a>(&'a self, request: &'a ValidationRequest<'a>) -> BoxFuture<'a, ValidationVerdict> {
        async move {
            let read = |object: &RawValue| serde_json::from_str::<api::LinkerdConfig>(object.get()).ok();
            // The schema of the API server has read the object already.
            match request.object.and_then(read) {
                Some(object) => self.review(object, request.old_object.and_then(read)).await,
                None => ValidationVerdict::default(),
            }
        }
        .boxed()
    }
}
