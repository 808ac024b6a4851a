//! The `LinkerdTrust` resource: the trust anchors that a mesh should have, and how far it is.
//!
//! * The resource declares the end, and not the way: the phase is computed from what the cluster shows.
//! * The schema and its documentation in `crd/linkerdtrusts.yaml` are generated from these types.
//! * Decoding is lenient. The code that uses a value validates it.

mod conditions;
mod status;

use kube::{CustomResource, core::Rule};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use conditions::{TrustCondition, TrustReason};
pub use status::{
    LinkerdTrustStatus, TrustIssuerStatus, TrustPhase, TrustProxiesStatus, TrustRootStatus, TrustWorkloadStatus,
};

use super::schema;

/// The trust anchors that the mesh should have.
#[derive(Clone, CustomResource, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
#[kube(
    group = "config.linkerd.io",
    version = "v1alpha1",
    kind = "LinkerdTrust",
    plural = "linkerdtrusts",
    shortname = "ltrust",
    category = "linkerd",
    status = "LinkerdTrustStatus",
    derive = "PartialEq",
    doc = "LinkerdTrust declares the trust anchors (roots) that a Linkerd mesh should have. The operator compares them with the bundle, with the trust anchors of each proxy, and with the certificates that proxies present, and reports the phase of the rotation, the next step, and what is broken or ends soon. With mode Observe it writes only the status; with mode Enforce it also makes the bundle equal to the declared trust anchors, and can write the issuer."
)]
#[kube(
    printcolumn = r#"{"name": "Phase", "type": "string", "jsonPath": ".status.phase", "description": "The phase of the rotation; Steady without one"}"#,
    printcolumn = r#"{"name": "Ready", "type": "string", "jsonPath": ".status.conditions[?(@.type==\"Ready\")].status", "description": "Whether the mesh has the declared trust anchors, and proxies accept each other"}"#,
    printcolumn = r#"{"name": "Reason", "type": "string", "jsonPath": ".status.conditions[?(@.type==\"Ready\")].reason", "description": "The reason of Ready"}"#,
    printcolumn = r#"{"name": "Expires", "type": "string", "jsonPath": ".status.expires", "description": "The day on which the first trust anchor of the bundle, or of the declared ones, ends"}"#,
    printcolumn = r#"{"name": "Proxies", "type": "string", "jsonPath": ".status.proxies.summary", "description": "The proxies that trust a declared trust anchor, of all proxies that show theirs"}"#,
    printcolumn = r#"{"name": "Next", "type": "string", "jsonPath": ".status.nextStep", "priority": 1, "description": "The next step"}"#,
    printcolumn = r#"{"name": "Mode", "type": "string", "jsonPath": ".spec.mode", "priority": 1, "description": "Whether the operator writes the bundle (Enforce) or not (Observe)"}"#,
    printcolumn = r#"{"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp", "description": "The age of the resource"}"#
)]
#[serde(rename_all = "camelCase", default)]
#[schemars(transform = schema::tidy, extend("x-kubernetes-validations" = spec_rules()))]
pub struct LinkerdTrustSpec {
    /// The namespace of Linkerd's control plane. Only the operator of that control plane reads the resource; of several
    /// resources, the oldest is in effect. The default is linkerd.
    #[schemars(schema_with = "schema::namespace")]
    pub control_plane_namespace: String,
    /// The trust anchors that the mesh should have in the end. If unset, those of the bundle in ConfigMap
    /// linkerd-identity-trust-roots: then the operator only watches them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub anchors: Option<PublicCertificates>,
    /// Bridges: certificates with the name and the key of a declared trust anchor, which another one has signed; and the
    /// trust anchors that signed them. Declare the bridges that you write after the issuer into the Secret
    /// linkerd-identity-issuer: then workloads whose proxies trust only the signer are not restarted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bridge: Option<PublicCertificates>,
    /// What the operator does when the bundle is not as declared. Observe only reports it, and is the default. Enforce adds
    /// each declared trust anchor to the bundle, also when another writer has removed it, and removes the others when no
    /// certificate needs them. In both modes, spec.restarts has an effect.
    pub mode: TrustMode,
    /// Which workloads a LinkerdConfig restarts for their trust anchors, if spec.anchors is set and the LinkerdConfig has
    /// the trigger TrustRoots. WhenNeeded restarts only those that trust none of status.sufficientAnchors, or lack
    /// one of status.requiredAnchors, and is the default.
    /// Always restarts all that do not have exactly the trust anchors of the bundle: once an old one has left the bundle, none
    /// keeps it.
    pub restarts: TrustRestarts,
    /// The issuer of the mesh.
    pub issuer: IssuerManagement,
    /// The workloads for which a rotation does not wait, at most 100: those that may refuse certificates for a while, and
    /// those that the operator does not see, such as a Link, an ExternalWorkload, or a Service for other clusters, once you
    /// know that their proxies are ready. It needs spec.anchors.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 100))]
    pub accept: Vec<AcceptedWorkload>,
    /// The trust anchors that no proxy may trust any longer, because their key was stolen. It needs spec.anchors.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub distrust: Option<DistrustedAnchors>,
}

/// The fields that need others.
fn spec_rules() -> Vec<Rule> {
    let is_set = [
        ("accept", "has(self.accept) && self.accept.size() > 0"),
        ("bridge", "has(self.bridge)"),
        ("distrust", "has(self.distrust)"),
        ("issuer", "self.issuer.manage != 'None'"),
    ];
    let needs_anchors = is_set.map(|(field, is_set)| {
        let rule = Rule::new(format!("!({is_set}) || has(self.anchors)"));
        rule.message("needs the trust anchors of the mesh: set spec.anchors.pem").field_path(format!(".{field}"))
    });
    let needs_writer = [
        Rule::new("self.issuer.manage == 'None' || self.mode == 'Enforce'")
            .message("needs spec.mode Enforce")
            .field_path(".issuer"),
        Rule::new("!has(self.distrust) || self.distrust.connections != 'Cut' || self.issuer.manage == 'Secret'")
            .message("needs spec.mode Enforce and spec.issuer.manage Secret if connections is Cut")
            .field_path(".distrust"),
    ];
    needs_anchors.into_iter().chain(needs_writer).collect()
}

/// The trust anchors that no proxy may trust any longer.
#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
#[schemars(transform = schema::tidy)]
pub struct DistrustedAnchors {
    /// Their certificates in PEM, at most 20. Each trust anchor with the key of one of them is meant. Once none is in the bundle,
    /// a LinkerdConfig restarts the workloads whose proxies trust one. These restarts, and those before the next issuer, obey
    /// neither rollout.window nor rollout.interval, and a quarter of all workloads may restart at the same time, also of one
    /// namespace.
    #[schemars(schema_with = "schema::certificates")]
    pub pem: String,
    /// Whether proxies stay connected meanwhile. Keep does the rotation in its order, and is the default: with a bridge each
    /// workload restarts once, and otherwise twice. Cut writes the next issuer as soon as it is there, and removes the trust
    /// anchors from the bundle once the identity service signs with it; each workload restarts once. Until all have, the
    /// proxies before and after their restart refuse each other. It needs mode Enforce and issuer.manage Secret.
    #[serde(default)]
    pub connections: DistrustConnections,
}

/// Whether proxies stay connected while they lose trust anchors.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
pub enum DistrustConnections {
    #[default]
    Keep,
    Cut,
}

/// A workload for which a rotation does not wait.
#[derive(Clone, Debug, Deserialize, Eq, JsonSchema, Ord, PartialEq, PartialOrd, Serialize)]
#[serde(rename_all = "camelCase")]
#[schemars(transform = schema::tidy)]
pub struct AcceptedWorkload {
    /// The kind, such as Deployment or Job; Pod for a Pod without an owner.
    #[schemars(schema_with = "schema::kind")]
    pub kind: String,
    /// The namespace of the workload; absent for a kind without one.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(schema_with = "schema::namespace")]
    pub namespace: String,
    /// The name of the workload.
    #[schemars(schema_with = "schema::object_name")]
    pub name: String,
    /// What does not wait for the workload. Issuer: the issuer of the trust anchor is written, although proxies of the workload
    /// may not trust it. Removal: the trust anchor leaves the bundle, although certificates of a workload that the operator does
    /// not see may need it.
    pub step: AcceptedStep,
    /// The SHA-256 of the trust anchor, as in status.anchors. The entry has no effect for another one.
    #[schemars(schema_with = "schema::sha256")]
    pub anchor: String,
}

/// A step of a rotation that does not wait for a workload.
#[derive(Clone, Copy, Debug, Deserialize, Eq, JsonSchema, Ord, PartialEq, PartialOrd, Serialize)]
pub enum AcceptedStep {
    Issuer,
    Removal,
}

/// The issuer of the mesh.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", default)]
#[schemars(transform = schema::tidy)]
pub struct IssuerManagement {
    /// Where the next issuer comes from. None leaves the Secret linkerd-identity-issuer as it is, and is the default. Secret
    /// writes the issuer of the Secret linkerd-identity-issuer-next into it, with the declared bridges, once all proxies
    /// accept its certificates. It needs spec.anchors, mode Enforce, and the Deployment linkerd-operator-issuer.
    pub manage: IssuerOrigin,
}

/// Where the next issuer comes from.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
pub enum IssuerOrigin {
    #[default]
    None,
    Secret,
}

/// What the operator does when the bundle is not as declared.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
pub enum TrustMode {
    #[default]
    Observe,
    Enforce,
}

/// Which workloads are restarted for their trust anchors.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
pub enum TrustRestarts {
    #[default]
    WhenNeeded,
    Always,
}

/// Certificates.
#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PublicCertificates {
    /// The certificates in PEM, at most 20. They are public; the resource is rejected if it has a private key.
    #[schemars(schema_with = "schema::certificates")]
    pub pem: String,
}

// === impl LinkerdTrustSpec ===

impl Default for LinkerdTrustSpec {
    fn default() -> Self {
        Self {
            control_plane_namespace: "linkerd".to_owned(),
            anchors: None,
            bridge: None,
            mode: TrustMode::Observe,
            restarts: TrustRestarts::WhenNeeded,
            issuer: IssuerManagement::default(),
            accept: Vec::new(),
            distrust: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeSet, fs};

    use kube::CustomResourceExt;
    use serde_json::Value;

    use super::*;
    use crate::{api::schema::testing::document_fields, testing::repository, values::manifest};

    const HEADER: &str = "# Generated from src/api/linkerd_trust: UPDATE_CRD=1 cargo test --lib api::linkerd_trust\n";

    #[test]
    fn the_crd_is_the_one_that_the_types_generate() {
        let path = repository().join("crd/linkerdtrusts.yaml");
        let generated = format!("{HEADER}{}", serde_yaml::to_string(&LinkerdTrust::crd()).unwrap());
        if std::env::var_os("UPDATE_CRD").is_some() {
            fs::write(&path, &generated).unwrap();
        }
        let stored = fs::read_to_string(path).unwrap_or_default();
        assert!(
            stored == generated,
            "generate crd/linkerdtrusts.yaml: UPDATE_CRD=1 cargo test --lib api::linkerd_trust"
        );
        let read_by_kubectl = manifest(&stored).unwrap();
        assert!(serde_json::to_value(LinkerdTrust::crd()).unwrap() == Value::Object(read_by_kubectl));
    }

    #[test]
    fn every_field_is_documented() {
        let definition = serde_json::to_value(LinkerdTrust::crd()).unwrap();
        let properties = &definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"];
        let mut found = BTreeSet::new();
        for part in ["spec", "status"] {
            document_fields(&properties[part], part, &mut found);
        }
        assert!(found.contains("spec.anchors.pem") && found.contains("status.phase"), "{found:?}");
    }
}
