//! The Secret of the issuer and the ConfigMap of the trust anchors, in place of their mounted files.
//!
//! In: a watch of each object. Out: the same contents as those of the files, and a stamp that changes with them. Always
//! holds: certificate and key are of one version of the Secret, so they are one pair; a watch that fails leaves the
//! values that it read last, and is reported once for each reason; an object that was deleted has no values.
//!
//! The values are overwritten when they are replaced, as the ones that are read from files are after each load. They are
//! kept until then, because a refused issuer is loaded again without a change of its Secret. Buffers of the HTTP client
//! through which the Secret arrives are freed without being overwritten.

use std::{collections::BTreeMap, future::Future, sync::Arc};

use k8s_openapi::{
    ByteString,
    api::core::v1::{ConfigMap, Secret},
};
use kube::{
    Api, Client,
    runtime::watcher::Error::{self, InitialListFailed, WatchStartFailed},
};
use parking_lot::RwLock;
use tracing::warn;
use zeroize::Zeroizing;

use super::files::{BUNDLE, FileStamp, IssuerFileContents, IssuerFileNames};
use crate::{
    api::NamespacedName,
    client::{describe, watch_one},
};

/// The names of Linkerd's chart.
const SECRET: &str = "linkerd-identity-issuer";
const CONFIG_MAP: &str = "linkerd-identity-trust-roots";

/// Both objects, as their watches see them.
#[derive(Clone)]
pub(in crate::identity) struct IssuerObjects {
    issuer: WatchedObject,
    trust_roots: WatchedObject,
    names: IssuerFileNames,
}

/// The values of an object by their keys. They are overwritten when they are dropped.
type ObjectValues = BTreeMap<String, Zeroizing<Vec<u8>>>;

#[derive(Clone)]
struct WatchedObject {
    /// Its kind, namespace and name.
    name: Arc<str>,
    seen: Arc<RwLock<SeenObject>>,
}

struct SeenObject {
    /// The values, or the reason why the object has none.
    values: Result<ObjectValues, String>,
    /// Why the object cannot be watched.
    problem: Option<String>,
    /// The number of changes of the above.
    version: i128,
}

// === impl IssuerObjects ===

impl IssuerObjects {
    pub(in crate::identity) fn new(namespace: &str, names: IssuerFileNames) -> Self {
        let object = |kind: &str, name: &str| WatchedObject::new(kind, &NamespacedName::new(namespace, name));
        Self { issuer: object("Secret", SECRET), trust_roots: object("ConfigMap", CONFIG_MAP), names }
    }

    /// Returns the task that watches both, forever.
    pub(in crate::identity) fn watch(&self, client: &Client, namespace: &str) -> impl Future<Output = ()> + use<> {
        let Self { issuer, trust_roots, .. } = self.clone();
        let secrets = Api::<Secret>::namespaced(client.clone(), namespace);
        let config_maps = Api::<ConfigMap>::namespaced(client.clone(), namespace);
        async move {
            let issuer = watch_one(secrets, SECRET, |seen| issuer.see(seen.map(|found| found.map(of_secret))));
            let trust_roots =
                watch_one(config_maps, CONFIG_MAP, |seen| trust_roots.see(seen.map(|found| found.map(of_config_map))));
            _ = tokio::join!(issuer, trust_roots);
        }
    }

    pub(super) fn read(&self) -> Result<IssuerFileContents, String> {
        let (certificate, key) = self.names.pair();
        let issuer = self.issuer.seen.read();
        Ok(IssuerFileContents {
            certificates: self.issuer.value(&issuer, certificate)?.to_vec(),
            key: self.issuer.value(&issuer, key)?,
            trust_roots: self.trust_roots.value(&self.trust_roots.seen.read(), BUNDLE)?.to_vec(),
        })
    }

    pub(super) fn stamp(&self) -> FileStamp {
        FileStamp::of_versions([&self.issuer, &self.trust_roots].map(|object| object.seen.read().version))
    }

    /// Returns why changes may be unknown.
    pub(super) fn problem(&self) -> Option<String> {
        [&self.issuer, &self.trust_roots].into_iter().find_map(|object| object.seen.read().problem.clone())
    }
}

// === impl WatchedObject ===

impl WatchedObject {
    fn new(kind: &str, key: &NamespacedName) -> Self {
        let name = format!("{kind} {key}");
        let values = Err(format!("{name} was not read yet"));
        Self { name: name.into(), seen: Arc::new(RwLock::new(SeenObject { values, problem: None, version: 0 })) }
    }

    fn see(&self, found: Result<Option<ObjectValues>, Error>) {
        let mut seen = self.seen.write();
        match found {
            Ok(found) => {
                seen.problem = None;
                seen.values = found.ok_or_else(|| format!("{} does not exist", self.name));
            }
            Err(error) => {
                let problem = self.problem(&error);
                if seen.problem.as_ref() == Some(&problem) {
                    return;
                }
                match &mut seen.values {
                    Ok(_) => warn!("{problem}; retrying"),
                    // The reader of the values reports it.
                    Err(why) => why.clone_from(&problem),
                }
                seen.problem = Some(problem);
            }
        }
        seen.version += 1;
    }

    /// Returns why the object cannot be watched, and what to do if that is forbidden.
    fn problem(&self, error: &Error) -> String {
        let problem = format!("{} cannot be watched: {}", self.name, describe(error));
        match error {
            InitialListFailed(kube::Error::Api(status)) | WatchStartFailed(kube::Error::Api(status))
                if status.code == 403 =>
            {
                format!(
                    "{problem}: permit it with the component config/components/identity/watch or jobs.identity.watch"
                )
            }
            _ => problem,
        }
    }

    fn value(&self, seen: &SeenObject, key: &str) -> Result<Zeroizing<Vec<u8>>, String> {
        let values = seen.values.as_ref().map_err(Clone::clone)?;
        values.get(key).cloned().ok_or_else(|| format!("{} has no {key}", self.name))
    }
}

/// Takes the values without a copy.
fn of_secret(mut secret: Secret) -> ObjectValues {
    let values = secret.data.take().unwrap_or_default().into_iter();
    values.map(|(key, ByteString(value))| (key, Zeroizing::new(value))).collect()
}

fn of_config_map(map: ConfigMap) -> ObjectValues {
    map.data.unwrap_or_default().into_iter().map(|(key, value)| (key, Zeroizing::new(value.into_bytes()))).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::testing::LoggedLines;

    fn denied() -> Error {
        let status = json!({"status": "Failure", "message": "secrets is forbidden", "code": 403});
        InitialListFailed(kube::Error::Api(serde_json::from_value(status).unwrap()))
    }

    fn secret(version: &str) -> ObjectValues {
        let base64 = |text: &str| ByteString(format!("{text} {version}").into_bytes());
        let data = json!({"crt.pem": base64("certificate"), "key.pem": base64("key")});
        of_secret(serde_json::from_value(json!({"data": data})).unwrap())
    }

    fn config_map() -> ObjectValues {
        of_config_map(serde_json::from_value(json!({"data": {"ca-bundle.crt": "roots"}})).unwrap())
    }

    fn refusal(objects: &IssuerObjects) -> String {
        objects.read().map(drop).unwrap_err()
    }

    #[test]
    fn the_values_of_both_objects_are_read_as_one_pair_and_a_change_changes_the_stamp() {
        let objects = IssuerObjects::new("linkerd", IssuerFileNames::Linkerd);
        assert_eq!(refusal(&objects), "Secret linkerd/linkerd-identity-issuer was not read yet");
        objects.issuer.see(Ok(Some(secret("one"))));
        assert_eq!(refusal(&objects), "ConfigMap linkerd/linkerd-identity-trust-roots was not read yet");
        objects.trust_roots.see(Ok(Some(config_map())));
        let (stamp, first) = (objects.stamp(), objects.read().unwrap());
        assert_eq!(
            (&*first.certificates, &**first.key, &*first.trust_roots),
            (&b"certificate one"[..], &b"key one"[..], &b"roots"[..])
        );
        assert_eq!(objects.stamp(), stamp);
        objects.issuer.see(Ok(Some(secret("two"))));
        assert_ne!(objects.stamp(), stamp);
        let second = objects.read().unwrap();
        assert_eq!((&*second.certificates, &**second.key), (&b"certificate two"[..], &b"key two"[..]));
    }

    #[test]
    fn an_object_that_was_deleted_or_lacks_a_key_has_no_values() {
        let objects = IssuerObjects::new("linkerd", IssuerFileNames::Kubernetes);
        objects.trust_roots.see(Ok(Some(config_map())));
        objects.issuer.see(Ok(Some(secret("one"))));
        assert_eq!(refusal(&objects), "Secret linkerd/linkerd-identity-issuer has no tls.crt");
        let stamp = objects.stamp();
        objects.issuer.see(Ok(None));
        assert_ne!(objects.stamp(), stamp);
        assert_eq!(refusal(&objects), "Secret linkerd/linkerd-identity-issuer does not exist");
    }

    #[test]
    fn a_watch_that_is_denied_leaves_the_values_and_is_reported_once_with_what_permits_it() {
        let (log, objects) = (LoggedLines::record(), IssuerObjects::new("linkerd", IssuerFileNames::Linkerd));
        objects.issuer.see(Err(denied()));
        let problem = objects.problem().unwrap();
        assert!(problem.starts_with("Secret linkerd/linkerd-identity-issuer cannot be watched: "), "{problem}");
        assert!(problem.contains("secrets is forbidden: permit it with the component"), "{problem}");
        assert_eq!(refusal(&objects), problem);
        objects.trust_roots.see(Ok(Some(config_map())));
        objects.issuer.see(Ok(Some(secret("one"))));
        assert_eq!(objects.problem(), None);
        for _ in 0..3 {
            objects.issuer.see(Err(denied()));
        }
        assert_eq!(objects.problem(), Some(problem));
        assert!(objects.read().is_ok());
        assert_eq!(log.with("cannot be watched").len(), 1);
    }
}
