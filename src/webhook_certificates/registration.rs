//! The webhook configurations whose `caBundle` this process writes.
//!
//! In: configurations with our label. Out: their webhooks that call our Service, and patches of the `caBundle` of these.
//! Always holds: no other webhook and no other field is patched; a patch applies only to the version that was read, so
//! that a webhook that was moved meanwhile does not get another one's bundle; it never creates an object.

use std::fmt;

use json_patch::{Patch, PatchOperation};
use k8s_openapi::{
    api::admissionregistration::v1::{
        MutatingWebhookConfiguration, ValidatingWebhookConfiguration, WebhookClientConfig,
    },
    apimachinery::pkg::apis::meta::v1::ManagedFieldsEntry,
};
use kube::api::ObjectMeta;
use serde_json::{Value, json};

use super::x509::TrustCertificate;
use crate::api::{FIELD_MANAGER, NamespacedName};

/// The maximum number of certificates of a `caBundle` that are read.
const READ: usize = 20;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RegistrationKind {
    Mutating,
    Validating,
}

/// A webhook configuration that calls our Service.
#[derive(Clone, Debug)]
pub(super) struct Registration {
    pub(super) kind: RegistrationKind,
    pub(super) name: String,
    version: String,
    pub(super) webhooks: Vec<RegisteredWebhook>,
    /// The field manager other than this operator that wrote a `caBundle` last.
    other_writer: Option<String>,
}

#[derive(Clone, Debug)]
pub(super) struct RegisteredWebhook {
    /// The position in the configuration.
    index: usize,
    bundle: Vec<u8>,
    pub(super) trusted: Vec<TrustCertificate>,
}

/// The new `caBundle` of some webhooks of a configuration.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct BundlePatch {
    pub(super) kind: RegistrationKind,
    pub(super) name: String,
    pub(super) patch: Patch,
    /// The field manager of the bundle that is replaced, if it is not this operator's.
    pub(super) other_writer: Option<String>,
}

// === impl Registration ===

impl Registration {
    /// `None` if no webhook of the configuration calls the Service.
    pub(super) fn of_mutating(configuration: MutatingWebhookConfiguration, service: &NamespacedName) -> Option<Self> {
        let clients = configuration.webhooks.unwrap_or_default().into_iter().map(|it| it.client_config);
        Self::new(RegistrationKind::Mutating, configuration.metadata, clients, service)
    }

    /// The same for a validating configuration.
    pub(super) fn of_validating(
        configuration: ValidatingWebhookConfiguration,
        service: &NamespacedName,
    ) -> Option<Self> {
        let clients = configuration.webhooks.unwrap_or_default().into_iter().map(|it| it.client_config);
        Self::new(RegistrationKind::Validating, configuration.metadata, clients, service)
    }

    fn new(
        kind: RegistrationKind,
        metadata: ObjectMeta,
        clients: impl Iterator<Item = WebhookClientConfig>,
        service: &NamespacedName,
    ) -> Option<Self> {
        let mut webhooks = Vec::new();
        for (index, client) in clients.enumerate() {
            let calls = |called: &k8s_openapi::api::admissionregistration::v1::ServiceReference| {
                called.name == *service.name && called.namespace == *service.namespace
            };
            if client.service.as_ref().is_some_and(calls) {
                let bundle = client.ca_bundle.map(|bundle| bundle.0).unwrap_or_default();
                let trusted = TrustCertificate::list(&bundle, READ);
                webhooks.push(RegisteredWebhook { index, bundle, trusted });
            }
        }
        let other_writer = other_writer(metadata.managed_fields.unwrap_or_default());
        let (name, version) = metadata.name.zip(metadata.resource_version)?;
        (!webhooks.is_empty()).then_some(Self { kind, name, version, webhooks, other_writer })
    }

    /// Returns the patch that gives each webhook its bundle; `None` if all have theirs.
    pub(super) fn patch(&self, wanted: impl Fn(&RegisteredWebhook) -> String) -> Option<BundlePatch> {
        let different = self.webhooks.iter().filter_map(|webhook| {
            let wanted = wanted(webhook);
            (wanted.as_bytes() != webhook.bundle).then_some((webhook.index, wanted))
        });
        let mut operations = vec![json!({"op": "replace", "path": "/metadata/resourceVersion", "value": self.version})];
        operations.extend(different.map(|(index, bundle)| {
            let bundle = k8s_openapi::ByteString(bundle.into_bytes());
            json!({"op": "add", "path": format!("/webhooks/{index}/clientConfig/caBundle"), "value": bundle})
        }));
        let operations: Vec<PatchOperation> = serde_json::from_value(operations.into()).unwrap_or_default();
        let (name, other_writer) = (self.name.clone(), self.other_writer.clone());
        let patch = BundlePatch { kind: self.kind, name, patch: Patch(operations), other_writer };
        (patch.patch.len() > 1).then_some(patch)
    }
}

impl fmt::Display for BundlePatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}WebhookConfiguration {}", self.kind, self.name)
    }
}

/// Returns the manager of the newest entry with a `caBundle` that is not the operator's.
fn other_writer(managed_fields: Vec<ManagedFieldsEntry>) -> Option<String> {
    fn has_bundle(fields: &Value) -> bool {
        let fields = fields.as_object().into_iter().flatten();
        fields.into_iter().any(|(key, inner)| key == "f:caBundle" || has_bundle(inner))
    }
    let others = managed_fields.into_iter().filter(|entry| {
        entry.manager.as_deref() != Some(FIELD_MANAGER)
            && entry.fields_v1.as_ref().is_some_and(|fields| has_bundle(&fields.0))
    });
    others.max_by_key(|entry| entry.time.as_ref().map(|time| time.0))?.manager
}

#[cfg(test)]
mod tests {
    use std::slice::from_ref;

    use super::*;
    use crate::webhook_certificates::{testing::authority, x509::bundle};

    fn service() -> NamespacedName {
        NamespacedName::new("linkerd-operator-system", "linkerd-operator-webhook")
    }

    fn webhook(name: &str, namespace: &str, service: &str, pem: &str) -> Value {
        json!({
            "name": name, "sideEffects": "None", "admissionReviewVersions": ["v1"],
            "clientConfig": {
                "service": {"name": service, "namespace": namespace, "path": "/x"},
                "caBundle": k8s_openapi::ByteString(pem.as_bytes().to_vec()),
            },
        })
    }

    fn configuration(webhooks: &[Value]) -> MutatingWebhookConfiguration {
        serde_json::from_value(json!({"metadata": {"name": "ours", "resourceVersion": "7"}, "webhooks": webhooks}))
            .unwrap()
    }

    #[test]
    fn only_webhooks_that_call_our_service_are_patched_and_only_their_bundle() {
        let (old, new) = (authority("2026-01-01T00:00:00Z").certificate, authority("2026-02-01T00:00:00Z").certificate);
        let (namespace, name) = ("linkerd-operator-system", "linkerd-operator-webhook");
        let url = json!({"name": "url", "sideEffects": "None", "admissionReviewVersions": ["v1"],
            "clientConfig": {"url": "https://linkerd-operator-webhook.linkerd-operator-system.svc/"}});
        let configuration = configuration(&[
            url,
            webhook("other-namespace", "linkerd", name, ""),
            webhook("ours", namespace, name, &bundle(from_ref(&old))),
            webhook("other-service", namespace, "cert-manager-webhook", ""),
            webhook("current", namespace, name, &bundle(from_ref(&new))),
        ]);
        let whole = serde_json::to_value(&configuration).unwrap();
        let registration = Registration::of_mutating(configuration, &service()).unwrap();
        assert_eq!(registration.webhooks.iter().map(|it| it.index).collect::<Vec<_>>(), [2, 4]);
        assert_eq!(registration.webhooks[0].trusted, [old]);
        let patch = registration.patch(|_| bundle(from_ref(&new))).unwrap();
        assert_eq!(patch.to_string(), "MutatingWebhookConfiguration ours");
        let mut patched = whole.clone();
        json_patch::patch(&mut patched, &patch.patch).unwrap();
        let mut expected = whole;
        expected["webhooks"][2]["clientConfig"]["caBundle"] =
            expected["webhooks"][4]["clientConfig"]["caBundle"].clone();
        assert_eq!(patched, expected);
        // The API server compares the version, and answers 409 if it is another one.
        assert_eq!(json!(patch.patch)[0], json!({"op": "replace", "path": "/metadata/resourceVersion", "value": "7"}));
        assert!(registration.patch(|webhook| String::from_utf8(webhook.bundle.clone()).unwrap()).is_none());
    }

    #[test]
    fn a_configuration_of_another_service_or_without_webhooks_is_left_alone() {
        let others = [
            configuration(&[]),
            configuration(&[webhook("other", "linkerd", "linkerd-proxy-injector", "")]),
            MutatingWebhookConfiguration::default(),
        ];
        for other in others {
            assert!(Registration::of_mutating(other, &service()).is_none());
        }
    }

    #[test]
    fn a_bundle_that_cannot_be_read_is_replaced() {
        let new = authority("2026-02-01T00:00:00Z").certificate;
        let garbage = configuration(&[webhook("a", "linkerd-operator-system", "linkerd-operator-webhook", "garbage")]);
        let registration = Registration::of_mutating(garbage, &service()).unwrap();
        assert_eq!(registration.webhooks[0].trusted, []);
        assert!(registration.patch(|_| bundle(from_ref(&new))).is_some());
    }

    #[test]
    fn the_other_client_that_wrote_a_bundle_last_is_named() {
        let fields = |name: &str| json!({"f:webhooks": {"k:{\"name\":\"a\"}": {"f:clientConfig": {name: {}}}}});
        let entry = |manager: &str, time: &str, fields: Value| {
            json!({"manager": manager, "operation": "Update", "apiVersion": "admissionregistration.k8s.io/v1",
                "time": time, "fieldsType": "FieldsV1", "fieldsV1": fields})
        };
        let writer = |entries: &[Value]| other_writer(serde_json::from_value(json!(entries)).unwrap());
        let ours = entry("linkerd-config-operator", "2026-01-04T00:00:00Z", fields("f:caBundle"));
        let injector = entry("cert-manager-cainjector", "2026-01-02T00:00:00Z", fields("f:caBundle"));
        let old = entry("kubectl-edit", "2026-01-01T00:00:00Z", fields("f:caBundle"));
        let helm = entry("helm", "2026-01-03T00:00:00Z", fields("f:service"));
        assert_eq!(writer(&[ours.clone(), injector, old, helm]).as_deref(), Some("cert-manager-cainjector"));
        assert_eq!((writer(&[ours]), writer(&[])), (None, None));
    }
}
