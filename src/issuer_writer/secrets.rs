//! The Secrets of the present, the next and the previous issuer.
//!
//! In: their names. Out: their files; writes of the present and the previous one. Always holds: the present issuer is written
//! at the version that was read; what it was is in the Secret of the previous issuer before; keys are wiped from memory when
//! a decision is made, as far as they are ours.

use std::{collections::BTreeMap, time::Duration};

use futures::future::try_join3;
use k8s_openapi::{
    ByteString,
    api::core::v1 as core,
    jiff::{SignedDuration, Timestamp, Unit},
};
use kube::{
    Api, Client, ResourceExt,
    api::{DeleteParams, Patch, PatchParams, Preconditions},
};
use prometheus::IntCounterVec;
use serde_json::{Value, json};
use tokio::time::timeout;
use zeroize::Zeroizing;

use super::FIELD_MANAGER;
use crate::{
    api::{ISSUER, MANAGED_BY_ANNOTATION, NEXT_ISSUER, OPERATOR, PREVIOUS_ISSUER, REPLACED_AT_ANNOTATION},
    client,
    lease::Fence,
    text::{is_name, truncated},
    trust::issuer_change::{IssuerFile, IssuerPlace, NewIssuer, SeenIssuers},
    write::WriteError,
};

const DEADLINE: Duration = Duration::from_secs(10);
/// The keys of the certificates and of the key: those of the type kubernetes.io/tls, and those of Linkerd's chart.
const PAIRS: [(&str, &str); 2] = [("tls.crt", "tls.key"), ("crt.pem", "key.pem")];
const TLS_TYPE: &str = "kubernetes.io/tls";
const ROOT: &str = "ca.crt";
/// The annotation of a Secret that cert-manager writes (<https://cert-manager.io/docs/usage/certificate/>).
const CERTIFICATE_ANNOTATION: &str = "cert-manager.io/certificate-name";
/// The maximum length of a name of an object.
const LONGEST_NAME: usize = 253;

pub(super) struct IssuerSecrets {
    fence: Fence,
    secrets: Api<core::Secret>,
    writes: IntCounterVec,
}

/// What the Secrets have.
pub(super) struct MeshSecrets {
    issuers: SeenIssuers,
    present: SecretMeta,
    previous: Option<SecretMeta>,
}

/// A Secret without its data.
#[derive(Default)]
struct SecretMeta {
    uid: Option<String>,
    version: Option<String>,
    annotations: BTreeMap<String, String>,
    keys: Vec<String>,
    is_tls: bool,
}

// === impl MeshSecrets ===

impl MeshSecrets {
    pub(super) fn issuers(&self) -> &SeenIssuers {
        &self.issuers
    }

    /// Returns the data of the present issuer with this one, under each pair of keys that the Secret has, or the one that it
    /// should have.
    fn data(&self, new: &NewIssuer) -> Value {
        let file = match new.place {
            IssuerPlace::Next => &self.issuers.next,
            IssuerPlace::Previous => &self.issuers.previous,
        };
        let key = file.as_ref().map(|file| file.key.to_vec()).unwrap_or_default();
        let mut data = serde_json::Map::new();
        let has = |name: &str| self.present.keys.iter().any(|key| key == name);
        let is_of = |(certificates, private): &(&str, &str)| has(certificates) || has(private);
        let has_none = !PAIRS.iter().any(is_of);
        for pair @ (certificates, private) in PAIRS {
            if is_of(&pair) || has_none && self.present.is_tls == (pair == PAIRS[0]) {
                data.insert(certificates.to_owned(), json!(ByteString(new.certificates.clone().into_bytes())));
                data.insert(private.to_owned(), json!(ByteString(key.clone())));
            }
        }
        // linkerd check reads it in a Secret of this type.
        if has(ROOT) || self.present.is_tls {
            data.insert(ROOT.to_owned(), json!(ByteString(new.root.clone().into_bytes())));
        }
        Value::Object(data)
    }
}

// === impl SecretMeta ===

impl SecretMeta {
    fn of(secret: &core::Secret) -> Self {
        Self {
            uid: secret.uid(),
            version: secret.resource_version(),
            annotations: secret.annotations().clone(),
            keys: secret.data.iter().flat_map(BTreeMap::keys).cloned().collect(),
            is_tls: secret.type_.as_deref() == Some(TLS_TYPE),
        }
    }
}

/// Returns the name of the Certificate from which cert-manager writes a Secret, if it does.
fn certificate_of(secret: &core::Secret) -> Option<String> {
    let name = secret.annotations().get(CERTIFICATE_ANNOTATION)?;
    Some(if is_name(name) { truncated(name.clone(), LONGEST_NAME) } else { "NAME".to_owned() })
}

/// Returns the issuer in a Secret. A part that it lacks is empty.
///
/// # Errors
/// When it has two: which one the identity service reads depends on its flags.
fn issuer_file(name: &str, secret: &mut core::Secret) -> Result<IssuerFile, String> {
    let data = secret.data.get_or_insert_default();
    let mut take = |key: &str| data.remove(key).map(|ByteString(bytes)| bytes).unwrap_or_default();
    let [tls, chart] = PAIRS.map(|(certificates, key)| (take(certificates), Zeroizing::new(take(key))));
    let is_empty = |(certificates, key): &(Vec<u8>, Zeroizing<Vec<u8>>)| certificates.is_empty() && key.is_empty();
    if !is_empty(&tls) && !is_empty(&chart) && tls != chart {
        return Err(format!(
            "Secret {name} has two issuers: in tls.crt and tls.key, and in crt.pem and key.pem. Remove the ones that are not \
             used"
        ));
    }
    let (certificates, key) = if is_empty(&tls) { chart } else { tls };
    Ok(IssuerFile { certificates, key })
}

// === impl IssuerSecrets ===

impl IssuerSecrets {
    pub(super) fn new(client: &Client, namespace: &str, fence: Fence, writes: IntCounterVec) -> Self {
        Self { fence, secrets: Api::namespaced(client.clone(), namespace), writes }
    }

    /// # Errors
    /// When a Secret cannot be read, or the mesh has no issuer. The text is for people.
    pub(super) async fn read(&self) -> Result<MeshSecrets, String> {
        let read = async |name: &'static str| {
            let found = timeout(DEADLINE, self.secrets.get_opt(name)).await;
            let found = found.map_err(|_| format!("Secret {name}: no answer within {} s", DEADLINE.as_secs()))?;
            found.map_err(|error| format!("Secret {name} cannot be read: {}", client::describe(&error)))
        };
        let (present, next, previous) = try_join3(read(ISSUER), read(NEXT_ISSUER), read(PREVIOUS_ISSUER)).await?;
        let Some(mut present) = present else { return Err(format!("Secret {ISSUER} does not exist")) };
        let meta = SecretMeta::of(&present);
        Ok(MeshSecrets {
            present: meta,
            previous: previous.as_ref().map(SecretMeta::of),
            issuers: SeenIssuers {
                present_certificate: certificate_of(&present),
                next_certificate: next.as_ref().and_then(certificate_of),
                present: issuer_file(ISSUER, &mut present)?,
                next: next.map(|mut next| issuer_file(NEXT_ISSUER, &mut next)).transpose()?,
                previous: previous.map(|mut previous| issuer_file(PREVIOUS_ISSUER, &mut previous)).transpose()?,
            },
        })
    }

    /// Replaces the present issuer, which was read at this version.
    ///
    /// # Errors
    /// When the request failed. It is sent again by the next reconcile.
    pub(super) async fn write(&self, new: &NewIssuer, secrets: &MeshSecrets) -> Result<(), WriteError> {
        let patch = json!({
            "metadata": {"resourceVersion": secrets.present.version, "uid": secrets.present.uid},
            "data": secrets.data(new),
        });
        let params = PatchParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PatchParams::default() };
        self.counted(self.fence.send(self.secrets.patch(ISSUER, &params, &Patch::Merge(&patch))).await)
    }

    /// Saves the present issuer as the previous one.
    ///
    /// # Errors
    /// When the request failed.
    pub(super) async fn save_present(&self, secrets: &MeshSecrets) -> Result<(), WriteError> {
        let present = &secrets.issuers.present;
        let now = Timestamp::now();
        let now = now.round(Unit::Second).unwrap_or(now).to_string();
        let [(certificates, key), _] = PAIRS;
        let patch = json!({
            "apiVersion": "v1", "kind": "Secret",
            "metadata": {
                "name": PREVIOUS_ISSUER,
                "annotations": {MANAGED_BY_ANNOTATION: OPERATOR, REPLACED_AT_ANNOTATION: now},
            },
            "data": {
                certificates: ByteString(present.certificates.clone()),
                key: ByteString(present.key.to_vec()),
            },
        });
        let params = PatchParams::apply(FIELD_MANAGER).force();
        self.counted(self.fence.send(self.secrets.patch(PREVIOUS_ISSUER, &params, &Patch::Apply(&patch))).await)
    }

    /// Deletes the previous issuer, once no certificate of it can be valid any more. Its key is then of no use.
    ///
    /// # Errors
    /// When the request failed.
    pub(super) async fn delete_previous(
        &self,
        secrets: &MeshSecrets,
        lifetime: SignedDuration,
        now: Timestamp,
    ) -> Result<(), WriteError> {
        let Some(previous) = &secrets.previous else { return Ok(()) };
        // One without the annotation belongs to another writer.
        let replaced = previous.annotations.get(REPLACED_AT_ANNOTATION).and_then(|time| time.parse::<Timestamp>().ok());
        if replaced.is_none_or(|replaced| now.duration_since(replaced) <= lifetime) {
            return Ok(());
        }
        let preconditions = Preconditions { uid: previous.uid.clone(), resource_version: previous.version.clone() };
        let params = DeleteParams::default().preconditions(preconditions);
        match self.fence.send(self.secrets.delete(PREVIOUS_ISSUER, &params)).await {
            Err(WriteError::Refused(status)) if status.is_not_found() => Ok(()),
            result => self.counted(result),
        }
    }

    fn counted<T>(&self, result: Result<T, WriteError>) -> Result<(), WriteError> {
        if let Some(label) = WriteError::result(&result) {
            self.writes.with_label_values(&[label]).inc();
        }
        result.map(drop)
    }
}
