//! The source of the configuration: the files of Linkerd's container, or the watched ConfigMaps.
//!
//! In: the text of the values and of the trust anchors, whenever they change. Out: the last configuration with which Pods
//! can be injected. Always holds: a refused configuration does not replace the one in use; each refusal is
//! logged once, with its reason.

use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use parking_lot::{Mutex, RwLock};
use tokio::{sync::Notify, time::sleep};
use tracing::{info, warn};

use super::{
    canary::{CanaryConfiguration, CanaryTexts},
    configuration::{Configuration, RefusedConfiguration},
};
use crate::{
    api::{
        CANARY_CONFIG_MAP, CANARY_NAMESPACES_ANNOTATION, INJECTORS_CONFIG_MAP, NamespacedName, TRUST_ROOTS,
        TRUST_ROOTS_KEY,
    },
    cluster::{Cluster, Kind, State, index::selector::Labels, kinds::config_map::ConfigMap},
    contain::{Work, contain},
    values::Document,
};

/// How often the files are read. The kubelet needs about a minute to write them.
const FILES_READ_EVERY: Duration = Duration::from_secs(1);

/// The file with the values, below the folder of Linkerd's container.
const VALUES_FILE: &str = "config/values";
const REMEDY: &str =
    "correct them with the installer (helm upgrade), or restore them as docs/src/operate/break-glass.md shows";

/// The configuration in use.
#[derive(Default)]
pub(super) struct CurrentConfiguration {
    in_use: RwLock<Option<Arc<Configuration>>>,
    latest: Mutex<Option<Latest>>,
    canary: RwLock<CanaryConfiguration>,
}

/// The texts that were read last.
struct Latest {
    /// The error is a sentence about a file or a ConfigMap that cannot be read.
    texts: Result<Texts, String>,
    /// The reason why these texts are not in use.
    problem: Option<String>,
    /// The default opaque ports of these texts, which annotations need and which other values cannot make unusable.
    opaque_ports: Arc<str>,
}

/// The texts of one revision.
#[derive(PartialEq, Eq)]
struct Texts {
    values: Arc<str>,
    trust_anchors: Arc<str>,
}

/// Follows the files of Linkerd's container below this folder, forever.
pub(super) async fn follow_files(folder: PathBuf, current: Arc<CurrentConfiguration>) {
    let origin = format!("file {}", folder.join(VALUES_FILE).display());
    loop {
        current.offer(read_files(&folder), &origin);
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
        let (texts, canary, origin) = {
            let state = cluster.read();
            let map = state.config_maps.find(&namespace, INJECTORS_CONFIG_MAP);
            let origin = map.map(|map| map.describe_values()).unwrap_or_default();
            (read_config_maps(&namespace, &state), read_canary(&namespace, &state), origin)
        };
        current.offer(texts, &origin);
        current.offer_canary(canary);
        notified.await;
    }
}

fn read_files(folder: &Path) -> Result<Texts, String> {
    let read = |path: &str| -> Result<Arc<str>, String> {
        let path = folder.join(path);
        let text = fs::read_to_string(&path).map_err(|error| match error.kind() {
            io::ErrorKind::InvalidData => format!("{} is not text in UTF-8", path.display()),
            _ => format!("could not read {}: {error}", path.display()),
        })?;
        Ok(text.into())
    };
    Ok(Texts { values: read(VALUES_FILE)?, trust_anchors: read("identity/trust-roots/ca-bundle.crt")? })
}

fn read_config_maps(namespace: &Arc<str>, state: &State) -> Result<Texts, String> {
    let read = |name: &str, key: &str, value: fn(&ConfigMap) -> &Option<Arc<str>>| {
        let map = state.config_maps.get(&NamespacedName::new(Arc::clone(namespace), name));
        let Some(map) = map else { return Err(format!("the ConfigMap {namespace}/{name} does not exist")) };
        value(map).clone().ok_or_else(|| format!("the ConfigMap {namespace}/{name} has no key {key}"))
    };
    if state.config_maps.trust_roots(namespace).is_some_and(|roots| roots.has_binary_bundle) {
        return Err(format!(
            "the ConfigMap {namespace}/{TRUST_ROOTS} has the key {TRUST_ROOTS_KEY} in binaryData: Pods of the control plane \
             do not start with it. Write the bundle into data, as PEM in UTF-8. kubectl writes any other file, such as \
             one in DER or UTF-16, into binaryData"
        ));
    }
    Ok(Texts {
        values: read(INJECTORS_CONFIG_MAP, "values", |map| &map.values)?,
        trust_anchors: read(TRUST_ROOTS, TRUST_ROOTS_KEY, |map| &map.bundle)?,
    })
}

/// Returns the default opaque ports of values that may be unusable otherwise.
fn opaque_ports_of(values: &str) -> String {
    let document = Document::parse(values).unwrap_or_default();
    let ports = document.get(&["proxy", "opaquePorts"].into_iter().collect());
    ports.and_then(|ports| ports.as_str()).unwrap_or_default().to_owned()
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

    /// Whether reviews can be answered: with a configuration, or with the reason why the first one is refused. Without
    /// this answer, a `failurePolicy` of `Ignore` would let Pods be created without a proxy. A missing file or ConfigMap
    /// is no reason to deny Pods.
    pub(super) fn can_answer(&self) -> bool {
        self.get().is_some() || self.latest.lock().as_ref().is_some_and(|latest| latest.texts.is_ok())
    }

    /// Returns the default opaque ports while no configuration is in use.
    pub(super) fn opaque_ports(&self) -> Arc<str> {
        self.latest.lock().as_ref().map(|latest| Arc::clone(&latest.opaque_ports)).unwrap_or_default()
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

    /// Uses these texts, if Pods can be injected with them. `origin` names where the values are from, for people.
    fn offer(&self, texts: Result<Texts, String>, origin: &str) {
        let mut latest = self.latest.lock();
        if latest.as_ref().is_some_and(|latest| latest.texts == texts) {
            return;
        }
        let read = texts.as_ref().map_err(String::clone).and_then(|texts| {
            let read = || {
                let read = Configuration::read(&texts.values, &texts.trust_anchors);
                read.map_err(|reason| match reason {
                    // It names its ConfigMap.
                    RefusedConfiguration::TrustAnchors(_) => reason.to_string(),
                    reason => format!("{reason}; the values are in {origin}: {REMEDY}"),
                })
            };
            let read = contain(Work::Configuring, read).unwrap_or_else(|panicked| Err(panicked.to_string()));
            read.map_err(|reason| format!("the configuration of the proxy injector is refused: {reason}"))
        });
        let problem = match read {
            Ok(configuration) => {
                info!(hash = configuration.injection_hash, "the proxy injector uses a new configuration");
                for ineffective in &configuration.ineffective {
                    warn!(%ineffective, "a value of the proxy injector's configuration has no effect");
                }
                for doubtful in &configuration.doubtful {
                    warn!(%doubtful, "proxies may not start with a value of the proxy injector's configuration");
                }
                *self.in_use.write() = Some(Arc::new(configuration));
                None
            }
            Err(problem) => {
                warn!(problem, "the proxy injector keeps its last configuration, if it had any");
                Some(problem)
            }
        };
        let opaque_ports = match (&problem, &texts) {
            (Some(_), Ok(texts)) => opaque_ports_of(&texts.values).into(),
            _ => Arc::default(),
        };
        *latest = Some(Latest { texts, problem, opaque_ports });
    }
}

#[cfg(test)]
impl CurrentConfiguration {
    pub(super) fn offer_texts(&self, values: &str, trust_anchors: &str) {
        self.offer(Ok(Texts { values: values.into(), trust_anchors: trust_anchors.into() }), "a test");
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::{
        cluster::{Problems, Projected, Watched},
        contain,
        values::testing::TRUST_ANCHORS,
    };

    const MAP: &str = "key values of ConfigMap linkerd/linkerd-config (last written by helm)";
    const INSTALLED: &str = include_str!("../values/testdata/installed.yaml");

    fn texts(values: &str, trust_anchors: &str) -> Result<Texts, String> {
        Ok(Texts { values: values.into(), trust_anchors: trust_anchors.into() })
    }

    #[test]
    fn a_refused_configuration_keeps_the_last_one_in_use_and_says_why() {
        let current = CurrentConfiguration::default();
        assert!(current.get().is_none() && current.problem().unwrap().contains("not read yet"));
        current.offer(texts(INSTALLED, TRUST_ANCHORS), MAP);
        let first = current.get().unwrap();
        assert_eq!(current.problem(), None);
        let without_mode = INSTALLED.replace("iptablesMode: nft", "iptablesMode: other");
        let with_key = format!("{TRUST_ANCHORS}-----BEGIN EC PRIVATE KEY-----\nSECRET\n-----END EC PRIVATE KEY-----\n");
        let garbage = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n".to_owned();
        for (bad, why) in [
            (texts("[", TRUST_ANCHORS), "the values cannot be read"),
            (
                texts("{clusterDomain: a, proxy: {}}", TRUST_ANCHORS),
                "lack a field that the injector requires: missing field",
            ),
            (texts(&without_mode, TRUST_ANCHORS), "proxyInit.iptablesMode (\"other\"): must be one of nft, legacy"),
            (texts(INSTALLED, " "), "it has no certificate"),
            (
                texts(INSTALLED, &format!("\u{feff}{TRUST_ANCHORS}")),
                "no proxy can use the bundle of trust anchors, key ca-bundle.crt of the ConfigMap \
                 linkerd-identity-trust-roots: it has a byte order mark",
            ),
            (texts(INSTALLED, &garbage), "certificate 1 of 1 is not a valid X.509 certificate"),
            (texts(INSTALLED, TRUST_ANCHORS.trim_end_matches("-\n")), "a section has no end"),
            (texts(INSTALLED, &with_key), "it has a private key"),
            (Err("could not read x".to_owned()), "could not read x"),
        ] {
            current.offer(bad, MAP);
            let problem = current.problem().unwrap();
            assert!(problem.contains(why) && !problem.contains("SECRET"), "{problem}");
            assert!(Arc::ptr_eq(&current.get().unwrap(), &first));
        }
        for bad in ["[", "- a", "a: 1\na: 2", &without_mode] {
            current.offer(texts(bad, TRUST_ANCHORS), MAP);
            let problem = current.problem().unwrap();
            let end = format!("; the values are in {MAP}: {REMEDY}");
            assert!(problem.ends_with(&end), "{problem}");
        }
        contain::testing::panic_in_next(Work::Configuring);
        current.offer(texts(INSTALLED, &TRUST_ANCHORS.repeat(2)), MAP);
        assert!(current.problem().unwrap().contains("refused: it panicked"), "{:?}", current.problem());
        assert!(Arc::ptr_eq(&current.get().unwrap(), &first));
        current.offer(texts(INSTALLED, &TRUST_ANCHORS.repeat(3)), MAP);
        assert_eq!(current.problem(), None);
        assert_ne!(current.get().unwrap().trust_anchors_hash, first.trust_anchors_hash);
    }

    #[test]
    fn a_bundle_in_binary_data_or_a_file_that_is_not_text_is_refused_with_what_to_do() {
        let mut state = State::default();
        let mut put = |name: &str, data: serde_json::Value| {
            let mut object = json!({"metadata": {"name": name, "namespace": "linkerd"}});
            object.as_object_mut().unwrap().extend(data.as_object().unwrap().clone());
            let map = ConfigMap::project(serde_json::from_value(object).unwrap(), &mut Problems::default());
            map.apply(&mut state);
            read_config_maps(&"linkerd".into(), &state).err()
        };
        put(INJECTORS_CONFIG_MAP, json!({"data": {"values": INSTALLED}}));
        let refused = put(TRUST_ROOTS, json!({"binaryData": {TRUST_ROOTS_KEY: "MIIB"}})).unwrap();
        assert!(refused.starts_with(
            "the ConfigMap linkerd/linkerd-identity-trust-roots has the key ca-bundle.crt in binaryData: Pods of the \
             control plane do not start with it. Write the bundle into data"
        ));
        let refused = put(TRUST_ROOTS, json!({"binaryData": {"other": "MIIB"}})).unwrap();
        assert_eq!(refused, "the ConfigMap linkerd/linkerd-identity-trust-roots has no key ca-bundle.crt");
        let usable = json!({"data": {TRUST_ROOTS_KEY: TRUST_ANCHORS}, "binaryData": {"other": "MIIB"}});
        assert_eq!(put(TRUST_ROOTS, usable), None);

        let folder = tempfile::tempdir().unwrap();
        for path in ["config", "identity/trust-roots"] {
            fs::create_dir_all(folder.path().join(path)).unwrap();
        }
        fs::write(folder.path().join("config/values"), INSTALLED).unwrap();
        let bundle = folder.path().join("identity/trust-roots/ca-bundle.crt");
        fs::write(&bundle, [0x30, 0x82, 0x01, 0xb7]).unwrap();
        let refused = read_files(folder.path()).err().unwrap();
        assert_eq!(refused, format!("{} is not text in UTF-8", bundle.display()));
        fs::write(&bundle, TRUST_ANCHORS).unwrap();
        assert!(read_files(folder.path()).is_ok());
    }

    #[test]
    fn a_process_whose_first_configuration_is_refused_answers_and_one_without_a_configuration_does_not() {
        let current = CurrentConfiguration::default();
        assert!(!current.can_answer());
        current.offer(Err("the ConfigMap does not exist".to_owned()), MAP);
        assert!(!current.can_answer());
        let bad = INSTALLED.replace("iptablesMode: nft", "iptablesMode: other");
        current.offer(texts(&bad, TRUST_ANCHORS), MAP);
        assert!(current.can_answer() && current.get().is_none());
        assert_eq!(&*current.opaque_ports(), "25,587,3306,4444,5432,6379,9300,11211");
        // A list is no text, so no port is known.
        current.offer(texts("proxy: {opaquePorts: [25]}", TRUST_ANCHORS), MAP);
        assert!(current.can_answer() && current.opaque_ports().is_empty());
    }
}
