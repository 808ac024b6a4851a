//! Secrets with the kubeconfig of another cluster, as `linkerd multicluster link` and its chart write them.

use std::{collections::BTreeMap, fmt, sync::Arc};

use k8s_openapi::{ByteString, api::core::v1 as core, apimachinery::pkg::apis::meta::v1::ObjectMeta};
use serde::{Deserialize, Deserializer};
use serde_json::Value;

use crate::{
    api::{
        CLUSTER_DOMAIN_ANNOTATION, CLUSTER_NAME_LABEL, NamespacedName, REMOTE_KUBECONFIG_TYPE, TRUST_DOMAIN_ANNOTATION,
        lean_metadata,
    },
    cluster::{Problems, Projected, index::store::Stored},
};

/// The key of the kubeconfig in the Secret's data.
const KUBECONFIG: &str = "kubeconfig";

/// A Secret, reduced to what it says about another cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RemoteKubeconfig {
    pub key: NamespacedName,
    /// `None` if the Secret is of another type, or incomplete.
    pub link: Option<Link>,
}

/// How another cluster is reached, and what its mesh is called.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Link {
    pub cluster: Arc<str>,
    pub trust_domain: Arc<str>,
    pub kubeconfig: HiddenText,
}

/// A text that is never printed.
#[derive(Clone, PartialEq, Eq)]
pub struct HiddenText(Arc<str>);

/// A Secret as the API server sends it.
#[derive(Clone, Debug, Deserialize, kube::Resource)]
#[resource(inherit = "core::Secret")]
pub struct SecretObject {
    #[serde(deserialize_with = "lean_metadata")]
    metadata: ObjectMeta,
    #[serde(rename = "type", default)]
    type_: Option<String>,
    /// In base64.
    #[serde(default)]
    data: Option<BTreeMap<String, Encoded>>,
}

/// A value of a Secret in base64; `None` if it is not a text. Decoding never fails, because the error would quote it.
#[derive(Clone)]
struct Encoded(Option<HiddenText>);

// === impl RemoteKubeconfig ===

impl Projected for RemoteKubeconfig {
    type Wire = SecretObject;

    fn project(wire: SecretObject, problems: &mut Problems) -> Self {
        let key = NamespacedName::of(&wire.metadata);
        let link = (wire.type_.as_deref() == Some(REMOTE_KUBECONFIG_TYPE)).then(|| Link::of(wire, problems)).flatten();
        Self { key, link }
    }
}

impl Stored for RemoteKubeconfig {
    type NamespaceIndex = ();
    type ClusterIndex = ();

    fn key(&self) -> NamespacedName {
        self.key.clone()
    }
}

// === impl Link ===

impl Link {
    fn of(wire: SecretObject, problems: &mut Problems) -> Option<Self> {
        let mut required = |from: Option<BTreeMap<String, String>>, what: &str, key: &str| {
            let value = from.and_then(|mut from| from.remove(key)).filter(|value| !value.is_empty());
            if value.is_none() {
                problems.add(format_args!("the {what} {key} is missing, so the cluster is not known"));
            }
            value
        };
        let annotations = wire.metadata.annotations;
        let cluster = required(wire.metadata.labels, "label", CLUSTER_NAME_LABEL);
        let trust_domain = required(annotations.clone(), "annotation", TRUST_DOMAIN_ANNOTATION);
        // No answer depends on it. Linkerd requires it, too, so that a Secret works with both or with none.
        let cluster_domain = required(annotations, "annotation", CLUSTER_DOMAIN_ANNOTATION);
        let kubeconfig = wire.data.unwrap_or_default().remove(KUBECONFIG).and_then(Encoded::decode);
        let kubeconfig = kubeconfig.filter(|text| !text.reveal().is_empty());
        if kubeconfig.is_none() {
            problems.add(format_args!("the key {KUBECONFIG} is missing or no text, so the cluster is not known"));
        }
        cluster_domain?;
        Some(Self { cluster: cluster?.into(), trust_domain: trust_domain?.into(), kubeconfig: kubeconfig? })
    }
}

// === impl HiddenText ===

impl HiddenText {
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl From<&str> for HiddenText {
    fn from(text: &str) -> Self {
        Self(text.into())
    }
}

impl fmt::Debug for HiddenText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(hidden)")
    }
}

// === impl Encoded ===

impl<'de> Deserialize<'de> for Encoded {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(Self(match Value::deserialize(deserializer)? {
            Value::String(text) => Some(HiddenText(text.into())),
            _ => None,
        }))
    }
}

impl fmt::Debug for Encoded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl Encoded {
    fn decode(self) -> Option<HiddenText> {
        let encoded = Value::String(self.0?.reveal().to_owned());
        let ByteString(bytes) = serde_json::from_value(encoded).ok()?;
        Some(HiddenText(String::from_utf8(bytes).ok()?.into()))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::cluster::watch::guarded::Guarded;

    const COMPLETE: &str = "apiVersion: v1";

    fn secret() -> Value {
        let annotations = json!({"multicluster.linkerd.io/trust-domain": "east.trust", "multicluster.linkerd.io/cluster-domain": "east.local"});
        let labels = json!({"multicluster.linkerd.io/cluster-name": "east"});
        let metadata = json!({"name": "cluster-credentials-east", "namespace": "linkerd", "labels": labels, "annotations": annotations});
        json!({"metadata": metadata, "type": "mirror.linkerd.io/remote-kubeconfig", "data": {"kubeconfig": "YXBpVmVyc2lvbjogdjE="}})
    }

    fn projected(secret: &Value) -> (RemoteKubeconfig, Problems) {
        let mut problems = Problems::default();
        let Guarded::Valid(wire) = serde_json::from_str(&secret.to_string()).unwrap() else { panic!("{secret}") };
        (RemoteKubeconfig::project(wire, &mut problems), problems)
    }

    #[test]
    fn a_complete_secret_names_a_cluster_and_its_credentials_are_never_printed() {
        let (secret, problems) = projected(&secret());
        let link = secret.link.clone().unwrap();
        assert_eq!((&*link.cluster, &*link.trust_domain), ("east", "east.trust"));
        assert_eq!((link.kubeconfig.reveal(), problems.len()), (COMPLETE, 0));
        assert!(!format!("{secret:?}").contains(COMPLETE));
    }

    #[test]
    fn a_secret_without_one_of_its_parts_names_no_cluster_and_says_what_is_missing() {
        for (part, missing) in [
            (
                "/metadata/labels/multicluster.linkerd.io~1cluster-name",
                "the label multicluster.linkerd.io/cluster-name",
            ),
            (
                "/metadata/annotations/multicluster.linkerd.io~1trust-domain",
                "the annotation multicluster.linkerd.io/trust-domain",
            ),
            (
                "/metadata/annotations/multicluster.linkerd.io~1cluster-domain",
                "the annotation multicluster.linkerd.io/cluster-domain",
            ),
            ("/data/kubeconfig", "the key kubeconfig"),
        ] {
            let mut secret = secret();
            *secret.pointer_mut(part).unwrap() = json!("");
            let (projected, problems) = projected(&secret);
            assert!(projected.link.is_none() && problems.len() == 1, "{part}: {problems}");
            assert!(problems.to_string().contains(missing), "{part}: {problems}");
        }
        for value in [json!(7), json!("not base64!"), json!("/w=="), json!(null)] {
            let mut secret = secret();
            secret["data"]["kubeconfig"] = value.clone();
            let (projected, problems) = projected(&secret);
            assert!(projected.link.is_none() && problems.to_string().contains("kubeconfig is missing or no text"));
            assert!(!problems.to_string().contains("not base64!"), "the credentials are not quoted");
        }
        let mut other = secret();
        other["type"] = json!("Opaque");
        let (projected, problems) = projected(&other);
        assert!(projected.link.is_none() && problems.is_empty(), "a Secret of another type is not ours");
    }
}
