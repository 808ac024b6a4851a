//! The proxy of a Pod: its ports, and the configuration it was injected with.
//!
//! In: the container of the proxy and the annotations of the Pod. Out: [`ProxyPorts`] for discovery, [`Injected`] for
//! rollouts. To save memory, only five of the dozens of environment variables are read, and equal [`Injected`] are
//! shared by Pods.

use std::{
    borrow::Cow,
    collections::{BTreeMap, HashMap, hash_map::Entry},
    fmt,
    net::SocketAddr,
    sync::Arc,
};

use serde::{
    Deserialize, Deserializer,
    de::{SeqAccess, Visitor},
};

use super::sidecar::{NativeSidecarOverrides, NetworkSetup};
use crate::{
    api::{CONFIG_HASH_ENV, PINNING_ANNOTATIONS, PROXY_VERSION_ANNOTATION, TRUST_ANCHORS_ENV},
    text::truncate,
    x509::anchor_set::AnchorSet,
};

/// The maximum length in bytes of a value from a Pod that is stored: the maximum length of an image's tag. Hashes are
/// shorter, and anyone who can change a Pod can write a longer text.
const LONGEST_VALUE: usize = 128;

/// The ports at which the proxy of a meshed Pod listens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProxyPorts {
    /// 1 to 65534: proxies ignore any other.
    pub inbound: u16,
    pub admin: u16,
    pub control: u16,
}

/// The parts of a proxy's injected configuration that can be out of date.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Injected {
    /// The hash of the configuration; `None` if the proxy was injected without a LinkerdConfig.
    pub marker: Option<Box<str>>,
    pub proxy_version: Option<Box<str>>,
    /// `None` if the Pod does not show them, as where the proxy gets them from a ConfigMap when it starts. They are
    /// immutable in a Pod, unlike Linkerd's annotation with their hash.
    pub trust_anchors: Option<Arc<AnchorSet>>,
    /// Whether an annotation of the Pod or its namespace selects the proxy.
    pub pinned: bool,
    /// Whether the proxy is a native sidecar.
    pub native_sidecar: bool,
    /// The annotations of the Pod, which include those that it inherited.
    pub native_sidecar_overrides: NativeSidecarOverrides,
    pub network: NetworkSetup,
}

/// All [`Injected`], with the number of Pods that have each: thousands of Pods share a few.
#[derive(Default)]
pub(in crate::cluster) struct AllInjected(HashMap<Arc<Injected>, usize>);

/// The variables of a container that are read.
#[derive(Clone, Debug, Default)]
pub(in crate::cluster) struct Environment {
    kept: Vec<(Variable, String)>,
    trust_anchors: Option<Arc<AnchorSet>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Variable {
    Inbound,
    Admin,
    Control,
    Marker,
}

// === impl ProxyPorts ===

impl ProxyPorts {
    /// Returns `None` unless all three are literal socket addresses.
    pub(in crate::cluster) fn of(environment: &Environment) -> Option<Self> {
        let port = |variable| environment.get(variable)?.parse::<SocketAddr>().ok().map(|address| address.port());
        Some(Self {
            inbound: port(Variable::Inbound).filter(|inbound| (1..=65534).contains(inbound))?,
            admin: port(Variable::Admin)?,
            control: port(Variable::Control)?,
        })
    }
}

// === impl Injected ===

impl Injected {
    /// Reads the environment and image of the proxy's container, and the Pod's annotations. `native_sidecar` is whether
    /// that container is an init container.
    pub(in crate::cluster) fn of(
        environment: &Environment,
        image: Option<&str>,
        annotations: Option<&BTreeMap<String, String>>,
        native_sidecar: bool,
        network: NetworkSetup,
    ) -> Self {
        let annotation = |key| annotations.and_then(|all| all.get(key)).map(String::as_str);
        let kept = |text: &str| Box::from(truncate(text, LONGEST_VALUE));
        let version = annotation(PROXY_VERSION_ANNOTATION).filter(|version| !version.is_empty());
        Self {
            marker: environment.get(Variable::Marker).map(kept),
            proxy_version: version.or_else(|| tag(image?)).map(kept),
            trust_anchors: environment.trust_anchors.clone(),
            pinned: PINNING_ANNOTATIONS.into_iter().any(|key| annotation(key).is_some()),
            native_sidecar,
            native_sidecar_overrides: NativeSidecarOverrides::of(annotation),
            network,
        }
    }
}

/// Returns the tag of an image, or `None` if it has a digest.
fn tag(image: &str) -> Option<&str> {
    // A colon before the last slash separates the port of the registry.
    let name = image.rsplit('/').next()?;
    let (_, tag) = name.split_once(':').filter(|_| !name.contains('@'))?;
    Some(tag).filter(|tag| !tag.is_empty())
}

// === impl AllInjected ===

impl AllInjected {
    /// Returns the shared value that equals the given one, and counts one more Pod.
    pub(in crate::cluster) fn share(&mut self, injected: Arc<Injected>) -> Arc<Injected> {
        match self.0.entry(injected) {
            Entry::Occupied(mut known) => {
                *known.get_mut() += 1;
                Arc::clone(known.key())
            }
            Entry::Vacant(new) => {
                let injected = Arc::clone(new.key());
                new.insert(1);
                injected
            }
        }
    }

    /// Counts one Pod less.
    pub(in crate::cluster) fn release(&mut self, injected: &Injected) {
        let Some(count) = self.0.get_mut(injected) else { return };
        *count -= 1;
        if *count == 0 {
            self.0.remove(injected);
        }
    }

    #[cfg(test)]
    pub(in crate::cluster) fn len(&self) -> usize {
        self.0.len()
    }
}

// === impl Environment ===

impl Environment {
    /// The first value, if the variable occurs several times.
    fn get(&self, variable: Variable) -> Option<&str> {
        let (_, value) = self.kept.iter().find(|(name, _)| *name == variable)?;
        Some(value)
    }
}

/// Keeps the variables that are read: the environment is the largest part of a meshed Pod.
impl<'de> Deserialize<'de> for Environment {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        struct Object<'a> {
            #[serde(borrow)]
            name: Cow<'a, str>,
            #[serde(borrow, default)]
            value: Option<Cow<'a, str>>,
        }
        struct Variables;
        impl<'de> Visitor<'de> for Variables {
            type Value = Environment;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("environment variables")
            }

            fn visit_unit<E>(self) -> Result<Self::Value, E> {
                Ok(Environment::default())
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut variables: A) -> Result<Self::Value, A::Error> {
                let (mut kept, mut trust_anchors) = (Vec::new(), None);
                while let Some(Object { name, value }) = variables.next_element()? {
                    let variable = match &*name {
                        "LINKERD2_PROXY_INBOUND_LISTEN_ADDR" => Variable::Inbound,
                        "LINKERD2_PROXY_ADMIN_LISTEN_ADDR" => Variable::Admin,
                        "LINKERD2_PROXY_CONTROL_LISTEN_ADDR" => Variable::Control,
                        CONFIG_HASH_ENV => Variable::Marker,
                        TRUST_ANCHORS_ENV => {
                            // The kubelet uses the last one, and replaces references in it. Without a value, it is one.
                            let literal = value.filter(|value| !value.contains("$("));
                            trust_anchors = literal.map(|bundle| Arc::new(AnchorSet::of(&bundle)));
                            continue;
                        }
                        _ => continue,
                    };
                    kept.push((variable, value.unwrap_or_default().into_owned()));
                }
                Ok(Environment { kept, trust_anchors })
            }
        }
        deserializer.deserialize_any(Variables)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_port_of_a_registry_is_not_a_tag_and_neither_is_a_digest() {
        for (image, expected) in [
            ("cr.l5d.io/linkerd/proxy:edge-26.8.3", Some("edge-26.8.3")),
            ("localhost:5000/linkerd/proxy:v1", Some("v1")),
            ("localhost:5000/linkerd/proxy", None),
            ("proxy", None),
            ("proxy:", None),
            ("", None),
            ("cr.l5d.io/linkerd/proxy@sha256:0123", None),
            ("cr.l5d.io/linkerd/proxy:edge-26.8.3@sha256:0123", None),
        ] {
            assert_eq!(tag(image), expected, "{image:?}");
        }
    }

    #[test]
    fn equal_values_are_shared_until_the_last_pod_releases_them() {
        let injected = |marker: &str| {
            let injected = Injected::of(&Environment::default(), None, None, true, NetworkSetup::Unknown);
            Arc::new(Injected { marker: Some(marker.into()), ..injected })
        };
        let mut all = AllInjected::default();
        let (a, b, other) = (all.share(injected("a")), all.share(injected("a")), all.share(injected("b")));
        assert!(Arc::ptr_eq(&a, &b) && !Arc::ptr_eq(&a, &other));
        all.release(&a);
        assert!(Arc::ptr_eq(&b, &all.share(injected("a"))));
        for released in [&b, &a, &other] {
            all.release(released);
        }
        assert_eq!(all.len(), 0);
    }
}
