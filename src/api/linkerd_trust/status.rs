//! The status of a LinkerdTrust.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use strum::{EnumIter, IntoStaticStr};

use crate::api::schema;

/// What the operator observed last.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", default)]
#[schemars(transform = schema::tidy)]
pub struct LinkerdTrustStatus {
    /// The metadata.generation that the status is about.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// The conditions of the resource. Accepted: whether the resource is valid and the one in effect for its control
    /// plane. BundleSynced: whether the bundle has exactly the declared trust anchors. TrustSpread: whether each proxy
    /// trusts that of the issuer, or accepts its certificates over a bridge. LeavesRenewed: whether the certificate of each proxy reaches one of them. Ready: whether the
    /// phase is Steady or Complete, and nothing is broken. Expiring: present while a certificate ends soon.
    /// ReadyToSwitch: present while the next issuer is awaited; whether all proxies accept the
    /// certificates of the next issuer. IssuerSynced: whether the issuer is the next one.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::conditions")]
    pub conditions: Vec<Condition>,
    /// The phase of the rotation. Adding: the bundle lacks a declared trust anchor. Spreading: some proxies trust no
    /// declared trust anchor, and would refuse its certificates. AwaitingIssuer: every proxy trusts one, or
    /// will accept its certificates over a declared bridge, and the issuer does not belong to one yet. Renewing: proxies still present certificates that reach none. Retiring: the bundle
    /// has further trust anchors, which no certificate needs. Complete: the bundle has exactly the declared ones, and
    /// some proxies still have others. Steady: the bundle and all proxies have exactly the declared ones. Unknown: the bundle, or the certificate of every
    /// proxy, was not observed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub phase: Option<TrustPhase>,
    /// What to do next, in a sentence.
    #[serde(skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 2048))]
    pub next_step: String,
    /// The commands of the next step, at most 5.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 5))]
    pub commands: Vec<String>,
    /// What is broken or ends soon, the worst first, at most 10.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 10))]
    pub problems: Vec<String>,
    /// The day on which the first trust anchor of the bundle, or of the declared ones, ends.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expires: Option<String>,
    /// The trust anchors: those of the bundle, and then the others, the ones that most proxies trust first, at most 20.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 20))]
    pub anchors: Vec<TrustRootStatus>,
    /// The SHA-256 of the text of the bundle that the status is about.
    #[serde(rename = "trustRootsSHA256", skip_serializing_if = "Option::is_none")]
    pub trust_roots_sha256: Option<String>,
    /// If spec.anchors is set: the SHA-256 of each certificate that is enough for a proxy, of the bundle and the spec, at most
    /// 20. A proxy that trusts one accepts the certificates that the issuer signs, or that an issuer of a declared trust
    /// anchor will sign, with the declared bridges. Empty if that is not known, or if proxies present certificates that new
    /// Pods refuse: then no workload is restarted for its trust anchors.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 20))]
    pub sufficient_anchors: Vec<String>,
    /// When the bundle was written, as its managed fields say.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::time")]
    pub trust_roots_written: Option<Time>,
    /// If spec.anchors is set: the SHA-256 of further certificates, each of which a proxy must trust, at most 20: declared trust
    /// anchors of the bundle that the certificates of the issuer do not reach, without a declared bridge. Proxies of other
    /// clusters, or the next issuer, may need them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 20))]
    pub required_anchors: Vec<String>,
    /// With spec.distrust, once proxies can lose these without harm: the SHA-256 of each trust anchor of proxies with the key of a
    /// distrusted one, at most 20. A LinkerdConfig restarts the workloads whose proxies trust one.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 20))]
    pub distrusted_anchors: Vec<String>,
    /// While the condition ReadyToSwitch is True: the minute in which the operator found that last.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::time")]
    pub ready_to_switch_at: Option<Time>,
    /// The issuer of the newest certificate that a proxy presented.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub issuer: Option<TrustIssuerStatus>,
    /// The proxies, counted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub proxies: Option<TrustProxiesStatus>,
    /// The workloads whose proxies lack a trust anchor of the bundle, the most urgent first, at most 20.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 20))]
    pub behind: Vec<TrustWorkloadStatus>,
    /// The number of all such workloads.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub workloads_behind: Option<i64>,
}

/// The phase of a rotation.
#[derive(Clone, Copy, Debug, Deserialize, EnumIter, Eq, IntoStaticStr, JsonSchema, PartialEq, Serialize)]
#[strum(const_into_str)]
pub enum TrustPhase {
    Unknown,
    Adding,
    Spreading,
    AwaitingIssuer,
    Renewing,
    Retiring,
    Complete,
    Steady,
}

/// A trust anchor.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct TrustRootStatus {
    /// The common name of the certificate.
    pub name: String,
    /// The SHA-256 of the certificate in DER.
    pub sha256: String,
    /// The end of the certificate.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::time")]
    pub expires: Option<Time>,
    /// Whether it is one of the declared trust anchors.
    pub desired: bool,
    /// Whether the bundle has it.
    pub in_bundle: bool,
    /// The number of proxies that trust it.
    pub trusted_by: i64,
    /// The number of proxies whose certificates reach it.
    pub presented_by: i64,
}

/// An issuer.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct TrustIssuerStatus {
    /// The common name of the certificate.
    pub name: String,
    /// The end of the certificate.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::time")]
    pub expires: Option<Time>,
    /// While the bundle has trust anchors that are not declared: since when this operator has seen each replica of the
    /// identity service sign only certificates that reach a declared one.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::time")]
    pub signing_since: Option<Time>,
}

/// The proxies, counted.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct TrustProxiesStatus {
    /// The proxies that trust a declared trust anchor, of all proxies that show theirs, as text.
    pub summary: String,
    /// The number of proxies.
    pub total: i64,
    /// The proxies that trust all trust anchors of the bundle.
    pub current: i64,
    /// The proxies that lack a trust anchor of the bundle.
    pub behind: i64,
    /// The proxies that refuse new certificates of others.
    pub refusing: i64,
    /// The proxies that trust no root of the mesh, such as those that a tenant wrote by hand. They delay no step.
    pub cut_off: i64,
    /// The proxies that lack the trust anchor of the issuer, or of the next one, as spec.accept permits. They delay no step.
    pub accepted: i64,
    /// The proxies that trust a distrusted trust anchor, so that the owner of its key can deceive them.
    pub exposed: i64,
    /// The proxies that read the bundle when they start, such as those of the control plane, and do not show it.
    pub from_config_map: i64,
    /// The workloads of the control plane that read the bundle before it was written last.
    pub before_bundle: i64,
    /// The running proxies whose certificate was not observed yet, or cannot be.
    pub unobserved: i64,
}

/// A workload whose proxies are behind.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct TrustWorkloadStatus {
    /// The namespace of the workload.
    pub namespace: String,
    /// The kind of the workload.
    pub kind: String,
    /// The name of the workload.
    pub name: String,
    /// The number of its Pods that are behind.
    pub pods: i64,
    /// Refuses: these proxies refuse new certificates of others. Holds: they would refuse the certificates of the next
    /// issuer, which waits for them. Exposed: they trust an anchor of spec.distrust. CutOff: they trust no root of the mesh, and delay nothing. Behind: they accept all
    /// certificates. Accepted: spec.accept permits that they refuse certificates.
    pub state: String,
    /// How its proxies get the bundle.
    pub what_to_do: String,
}

// === impl TrustPhase ===

impl TrustPhase {
    /// Returns the name in the API.
    pub const fn as_str(self) -> &'static str {
        self.into_str()
    }
}
