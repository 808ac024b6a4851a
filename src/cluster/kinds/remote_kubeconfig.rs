//! Secrets with the kubeconfig of another cluster, as `linkerd multicluster link` and its chart write them.

use std::{collections::BTreeMap, fmt, sync::Arc};

use k8s_openapi::{ByteString, api::core::v1 as core, apimachinery::pkg::apis::meta::v1::ObjectMeta};
use serde::{Deserialize, Deserializer};
use serde_json::Value;

use crate::{
    api::{
        CLUSTER_DOMAIN_ANNOTATION, CLUSTER_NAME_LABEL, NamespacedName, REMOTE_KUBECONFIG_TYPE, TRUST_DOMAIN_ANNOTATION,
        is_dns_name, lean_metadata,
    },
    cluster::{Problems, Projected, index::store::Stored},
    text::truncate,
};

/// The key of the kubeconfig in the Secret's data.
const KUBECONFIG: &str = "kubeconfig";
/// The maximum number of bytes that a message quotes of an annotation.
const QUOTED_BYTES: usize = 60;

/// A Secret, reduced to what it says about another cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RemoteKubeconfig {
    pub key: NamespacedName,
    pub content: LinkContent,
}

/// The link to another cluster that a Secret has, or the reason why it has none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LinkContent {
    /// The Secret is of another type.
    NoLink,
    /// The Secret has no label with the name of a cluster, so it links no cluster.
    Unlabelled,
    /// It is not known yet whether the kubeconfig can be used.
    Complete(Link),
    Incomplete {
        /// The cluster that the label names.
        cluster: Option<Arc<str>>,
        /// A sentence about the part that is missing or cannot be used, with what to write instead.
        why: Arc<str>,
    },
}

/// How another cluster is reached, and what its mesh is called.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Link {
    pub cluster: Arc<str>,
    pub trust_domain: TrustDomain,
    pub kubeconfig: HiddenText,
}

/// The domain at the end of the identities of a mesh: a DNS name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TrustDomain(Arc<str>);

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
        let (content, unusable) = LinkContent::of(wire);
        for text in unusable {
            problems.add(format_args!("{text}"));
        }
        Self { key, content }
    }
}

impl Stored for RemoteKubeconfig {
    type NamespaceIndex = ();
    type ClusterIndex = ();

    fn key(&self) -> NamespacedName {
        self.key.clone()
    }
}

// === impl LinkContent ===

impl LinkContent {
    fn of(wire: SecretObject) -> (Self, Vec<String>) {
        if wire.type_.as_deref() != Some(REMOTE_KUBECONFIG_TYPE) {
            return (Self::NoLink, Vec::new());
        }
        let Some(label) = wire.metadata.labels.unwrap_or_default().remove(CLUSTER_NAME_LABEL) else {
            return (Self::Unlabelled, vec![unlabelled()]);
        };
        let mut annotations = wire.metadata.annotations.unwrap_or_default();
        let mut problems = Vec::new();
        let mut filled = |text: Option<String>, what: &str, key: &str, content: &str| {
            let how = if text.is_some() { "empty" } else { "missing" };
            let text = text.filter(|text| !text.is_empty());
            if text.is_none() {
                problems.push(format!("the {what} {key} is {how}: write the {content} there"));
            }
            text
        };
        let cluster = filled(Some(label), "label", CLUSTER_NAME_LABEL, "name of the cluster").map(Arc::from);
        let mut annotation = |key: &str, content: &str| filled(annotations.remove(key), "annotation", key, content);
        let trust_domain = annotation(TRUST_DOMAIN_ANNOTATION, "trust domain of the cluster's mesh");
        // No answer depends on it. Linkerd requires it, too, so that a Secret works with both or with none.
        let cluster_domain = annotation(CLUSTER_DOMAIN_ANNOTATION, "domain of the cluster's Services");
        let trust_domain = trust_domain.and_then(|text| {
            let domain = TrustDomain::parse(&text);
            if domain.is_none() {
                let text = truncate(&text, QUOTED_BYTES);
                problems.push(format!(
                    "the annotation {TRUST_DOMAIN_ANNOTATION} is {text:?}, which is no DNS name: write the trust domain of \
                     the cluster's mesh there"
                ));
            }
            domain
        });
        let kubeconfig = match wire.data.unwrap_or_default().remove(KUBECONFIG).map(Encoded::decode) {
            None => Err("missing"),
            Some(None) => Err("no text"),
            Some(Some(text)) if text.reveal().is_empty() => Err("empty"),
            Some(Some(text)) => Ok(text),
        };
        let kubeconfig = kubeconfig.map_err(|what| {
            problems.push(format!("the key {KUBECONFIG} is {what}: write the kubeconfig of the cluster there"));
        });
        let content = match (cluster, trust_domain, cluster_domain, kubeconfig) {
            (Some(cluster), Some(trust_domain), Some(_), Ok(kubeconfig)) => {
                Self::Complete(Link { cluster, trust_domain, kubeconfig })
            }
            (cluster, ..) => Self::Incomplete { cluster, why: problems.join("; ").into() },
        };
        (content, problems)
    }

    /// Returns the cluster that the label names.
    pub fn cluster(&self) -> Option<&Arc<str>> {
        match self {
            Self::NoLink | Self::Unlabelled => None,
            Self::Complete(link) => Some(&link.cluster),
            Self::Incomplete { cluster, .. } => cluster.as_ref(),
        }
    }
}

/// Returns the message about [`LinkContent::Unlabelled`].
pub fn unlabelled() -> String {
    format!("the label {CLUSTER_NAME_LABEL} is missing: write the name of the cluster there, or delete the Secret")
}

// === impl TrustDomain ===

impl TrustDomain {
    /// Returns `None` if proxies could not read an identity that ends with the text.
    pub fn parse(text: &str) -> Option<Self> {
        is_dns_name(text).then(|| Self(text.into()))
    }

    pub fn as_str(&self) -> &str {
        &self.0
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
        let LinkContent::Complete(link) = &secret.content else { panic!("{secret:?}") };
        assert_eq!((&*link.cluster, link.trust_domain.as_str()), ("east", "east.trust"));
        assert_eq!((link.kubeconfig.reveal(), problems.len()), (COMPLETE, 0));
        assert!(!format!("{secret:?}").contains(COMPLETE));
    }

    #[test]
    fn a_secret_without_one_of_its_parts_says_what_is_missing_and_is_still_that_of_its_cluster() {
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
            let LinkContent::Incomplete { cluster, why } = projected.content else { panic!("{part}: {projected:?}") };
            assert_eq!(cluster.is_none(), part.contains("cluster-name"), "{part}");
            assert_eq!(problems.to_string(), *why);
            assert!(
                problems.len() == 1 && why.starts_with(&format!("{missing} is empty: write the ")),
                "{part}: {why}"
            );
        }
        for value in [json!(7), json!("not base64!"), json!("/w=="), json!(null)] {
            let mut secret = secret();
            secret["data"]["kubeconfig"] = value.clone();
            let (projected, problems) = projected(&secret);
            let expected = "the key kubeconfig is no text: write the kubeconfig of the cluster there";
            assert_eq!(problems.to_string(), expected, "the credentials are not quoted");
            assert_eq!(projected.content.cluster().map(|it| &**it), Some("east"));
        }
        let mut nothing = secret();
        (nothing["metadata"]["annotations"], nothing["data"]) = (json!({}), json!({}));
        let (projected, problems) = projected(&nothing);
        assert_eq!((projected.content.cluster().map(|it| &**it), problems.len()), (Some("east"), 3), "{problems}");
    }

    #[test]
    fn a_secret_without_the_label_or_of_another_type_is_no_link() {
        let mut unlabelled = secret();
        unlabelled["metadata"]["labels"] = json!({});
        let (projected_unlabelled, problems) = projected(&unlabelled);
        assert_eq!((projected_unlabelled.content, problems.len()), (LinkContent::Unlabelled, 1));
        let mut other = secret();
        other["type"] = json!("Opaque");
        let (projected, problems) = projected(&other);
        assert!(
            projected.content == LinkContent::NoLink && problems.is_empty(),
            "a Secret of another type is not ours"
        );
    }

    #[test]
    fn a_trust_domain_is_a_name_that_proxies_can_read() {
        for (text, is_valid) in [
            ("cluster.local", true),
            ("east", true),
            ("bad domain!", false),
            ("east.trust.", false),
            ("spiffe://east", false),
            ("east.trust\n", false),
            (&"a".repeat(300), false),
        ] {
            let mut secret = secret();
            secret["metadata"]["annotations"]["multicluster.linkerd.io/trust-domain"] = json!(text);
            let (projected, problems) = projected(&secret);
            assert_eq!(matches!(projected.content, LinkContent::Complete(_)), is_valid, "{text}");
            assert_eq!(problems.is_empty(), is_valid, "{text}");
        }
    }
}
