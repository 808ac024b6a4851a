//! Reads the values that shape an injected Pod.
//!
//! In: a values document, whose strings and numbers have the types of Linkerd's fields. Out: [`ProxyValues`]. Always
//! holds: a map that the injector requires is present; an absent field is Go's zero, and not the default of
//! the chart.

use serde_json::{Map, Value};

use crate::values::{ImageValues, ProxyValues};

// === impl ProxyValues ===

impl ProxyValues {
    /// Reads the values of a document.
    ///
    /// # Errors
    /// When a value has another type, or when a map that the injector needs is absent or null.
    pub(super) fn read(document: &Map<String, Value>) -> Result<Self, serde_json::Error> {
        let mut document = document.clone();
        // Absent and null are the same for Go, except for the parameters, whose values are of any type.
        let parameters = ["inbound", "outbound"].map(|scope| {
            let proxy = document.get_mut("proxy").and_then(Value::as_object_mut)?;
            proxy.remove(scope).filter(|it| !it.is_null()).map(|it| (scope, it))
        });
        drop_nulls(&mut document);
        if let Some(proxy) = document.get_mut("proxy").and_then(Value::as_object_mut) {
            for (scope, mut value) in parameters.into_iter().flatten() {
                drop_null_maps(&mut value);
                proxy.insert(scope.to_owned(), value);
            }
        }
        serde_json::from_value(Value::Object(document))
    }

    /// The trust domain of the mesh's identities.
    pub(super) fn trust_domain(&self) -> &str {
        if self.identity_trust_domain.is_empty() { &self.cluster_domain } else { &self.identity_trust_domain }
    }

    /// The version of an image that names none.
    pub(super) fn version_of<'a>(&'a self, image: &'a ImageValues) -> &'a str {
        if image.version.is_empty() { &self.linkerd_version } else { &image.version }
    }

    /// The pull policy of an image that names none; empty if the cluster's default applies.
    pub(super) fn pull_policy_of<'a>(&'a self, image: &'a ImageValues) -> &'a str {
        if image.pull_policy.is_empty() { &self.image_pull_policy } else { &image.pull_policy }
    }
}

fn drop_nulls(map: &mut Map<String, Value>) {
    map.retain(|_, value| !value.is_null());
    for value in map.values_mut() {
        if let Value::Object(below) = value {
            drop_nulls(below);
        }
    }
}

/// Drops the null maps of scopes and protocols.
fn drop_null_maps(scopes: &mut Value) {
    let Value::Object(scopes) = scopes else { return };
    scopes.retain(|_, protocols| !protocols.is_null());
    for protocols in scopes.values_mut().filter_map(Value::as_object_mut) {
        protocols.retain(|_, parameters| !parameters.is_null());
    }
}
