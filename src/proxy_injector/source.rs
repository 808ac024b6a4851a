//! Where the configuration comes from: the files of Linkerd's container, or the watched ConfigMaps.
//!
//! In: the text of the values and of the trust anchors, whenever they change. Out: the last configuration with which Pods
//! can be injected. Always holds: a refused configuration does not replace the one in use; each refusal is
//! logged once, with its reason.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use parking_lot::{Mutex, RwLock};
use tokio::{sync::Notify, time::sleep};
use tracing::{info, warn};

use super::{
    canary::{CanaryConfiguration, CanaryTexts},
    configuration::Configuration,
};
use crate::{
    api::{CANARY_CONFIG_MAP, CANARY_NAMESPACES_ANNOTATION, INJECTORS_CONFIG_MAP, NamespacedName, TRUST_ROOTS},
    cluster::{Cluster, Kind, State, index::selector::Labels, kinds::config_map::ConfigMap},
    contain::{Work, contain},
};

/// How often the files are read. The kubelet needs about a minute to write them.
const FILES_READ_EVERY: Duration = Duration::from_secs(1);

/// The configuration in use.
#[derive(Default)]
pub(super) struct CurrentConfiguration {
    in_use: RwLock<Option<Arc<Configuration>>>,
    latest: Mutex<Option<Latest>>,
    canary: RwLock<CanaryConfiguration>,
}

/// The last texts.
struct Latest {
    /// The error is a sentence about a file or a ConfigMap that cannot be read.
    texts: Result<Texts, String>,
    /// The reason why these texts are not in use.
    problem: Option<String>,
}

/// The texts of one revision.
#[derive(PartialEq, Eq)]
struct Texts {
    values: Arc<str>,
    trust_anchors: Arc<str>,
}

/// Follows the files of Linkerd's container below this folder, forever.
pub(super) async fn follow_files(folder: PathBuf, current: Arc<CurrentConfiguration>) {
    loop {
        current.offer(read_files(&folder));
        sleep(FILES_READ_EVERY).await;
    }
}

/// Follows the ConfigMaps of this namespace, forever. `changed` is notified when one of them changes.
pub(super) async fn follow_config_maps(
    namespace: Arc<str>,
    cluster: Cluster,
    changed: Arc<Notify>,
    current: Arc<CurrentConfiguration>,
) {
    cluster.known(&[Kind::ConfigMap]).await;
    loop {
        let notified = changed.notified();
        let (texts, canary) = {
            let state = cluster.read();
            (read_config_maps(&namespace, &state), read_canary(&namespace, &state))
        };
        current.offer(texts);
        current.offer_canary(canary);
        notified.await;
    }
}

fn read_files(folder: &Path) -> Result<Texts, String> {
    let read = |path: &str| -> Result<Arc<str>, String> {
        let path = folder.join(path);
        let text = fs::read_to_string(&path).map_err(|error| format!("could not read {}: {error}", path.display()))?;
        Ok(text.into())
    };
    Ok(Texts { values: read("config/values")?, trust_anchors: read("identity/trust-roots/ca-bundle.crt")? })
}

fn read_config_maps(namespace: &Arc<str>, state: &State) -> Result<Texts, String> {
    let read = |name: &str, key: &str, value: fn(&ConfigMap) -> &Option<Arc<str>>| {
        let map = state.config_maps.get(&NamespacedName::new(Arc::clone(namespace), name));
        let Some(map) = map else { return Err(format!("the ConfigMap {namespace}/{name} does not exist")) };
        value(map).clone().ok_or_else(|| format!("the ConfigMap {namespace}/{name} has no key {key}"))
    };
    Ok(Texts {
        values: read(INJECTORS_CONFIG_MAP, "values", |map| &map.values)?,
        trust_anchors: read(TRUST_ROOTS, "ca-bundle.crt", |map| &map.bundle)?,
    })
}

/// Returns the texts of the canary, unless the ConfigMap belongs to another writer.
fn read_canary(namespace: &Arc<str>, state: &State) -> Option<CanaryTexts> {
    let map = state.config_maps.find(namespace, CANARY_CONFIG_MAP).filter(|map| map.is_operators())?;
    Some(CanaryTexts {
        values: map.values.clone().unwrap_or_default(),
        trust_anchors: state.config_maps.trust_roots(namespace)?.bundle.clone()?,
        namespaces: map.annotations.get(CANARY_NAMESPACES_ANNOTATION)?.as_str().into(),
    })
}

// === impl CurrentConfiguration ===

impl CurrentConfiguration {
    pub(super) fn get(&self) -> Option<Arc<Configuration>> {
        self.in_use.read().clone()
    }

    /// Returns the configuration for Pods in a namespace with these labels.
    pub(super) fn of_labels(&self, labels: &Labels) -> Option<Arc<Configuration>> {
        self.canary.read().of_labels(labels).or_else(|| self.get())
    }

    /// Returns why the latest configuration, or that of the canary, is not in use.
    pub(super) fn problem(&self) -> Option<String> {
        match &*self.latest.lock() {
            None => Some("the configuration of the proxy injector was not read yet".to_owned()),
            Some(latest) => latest.problem.clone().or_else(|| self.canary.read().problem()),
        }
    }

    /// Uses these texts of a canary, if Pods can be injected with them.
    fn offer_canary(&self, texts: Option<CanaryTexts>) {
        if !self.canary.read().has(texts.as_ref()) {
            let canary = CanaryConfiguration::new(texts);
            *self.canary.write() = canary;
        }
    }

    /// Uses these texts, if Pods can be injected with them.
    fn offer(&self, texts: Result<Texts, String>) {
        let mut latest = self.latest.lock();
        if latest.as_ref().is_some_and(|latest| latest.texts == texts) {
            return;
        }
        let read = texts.as_ref().map_err(String::clone).and_then(|texts| {
            let read = || Configuration::read(&texts.values, &texts.trust_anchors).map_err(|reason| reason.to_string());
            let read = contain(Work::Configuring, read).unwrap_or_else(|panicked| Err(panicked.to_string()));
            read.map_err(|reason| format!("the configuration of the proxy injector is refused: {reason}"))
        });
        let problem = match read {
            Ok(configuration) => {
                info!(hash = configuration.injection_hash, "the proxy injector uses a new configuration");
                *self.in_use.write() = Some(Arc::new(configuration));
                None
            }
            Err(problem) => {
                warn!(problem, "the proxy injector keeps its last configuration, if it had any");
                Some(problem)
            }
        };
        *latest = Some(Latest { texts, problem });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contain;

    const INSTALLED: &str = include_str!("../values/testdata/installed.yaml");

    fn texts(values: &str, trust_anchors: &str) -> Result<Texts, String> {
        Ok(Texts { values: values.into(), trust_anchors: trust_anchors.into() })
    }

    #[test]
    fn a_refused_configuration_keeps_the_last_one_in_use_and_says_why() {
        let current = CurrentConfiguration::default();
        assert!(current.get().is_none() && current.problem().unwrap().contains("not read yet"));
        current.offer(texts(INSTALLED, "anchors"));
        let first = current.get().unwrap();
        assert_eq!(current.problem(), None);
        let without_mode = INSTALLED.replace("iptablesMode: nft", "iptablesMode: other");
        for (bad, why) in [
            (texts("[", "anchors"), "the values cannot be read"),
            (texts("proxy: {}", "anchors"), "lack a field that the injector requires: missing field"),
            (texts(INSTALLED, " "), "the bundle of trust anchors is missing"),
            (texts(&without_mode, "anchors"), "proxyInit.iptablesMode is \"other\": it must be nft or legacy"),
            (Err("could not read x".to_owned()), "could not read x"),
        ] {
            current.offer(bad);
            assert!(current.problem().unwrap().contains(why), "{:?}", current.problem());
            assert!(Arc::ptr_eq(&current.get().unwrap(), &first));
        }
        contain::testing::panic_in_next(Work::Configuring);
        current.offer(texts(INSTALLED, "others"));
        assert!(current.problem().unwrap().contains("refused: it panicked"), "{:?}", current.problem());
        assert!(Arc::ptr_eq(&current.get().unwrap(), &first));
        current.offer(texts(INSTALLED, "more"));
        assert_eq!(current.problem(), None);
        assert_ne!(current.get().unwrap().trust_anchors_hash, first.trust_anchors_hash);
    }
}
