//! The target control plane, and the settings that its components share with the proxies.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::api::schema;

#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct GlobalSpec {
    /// The namespace of the control plane. Cannot be changed. The default is linkerd.
    #[schemars(schema_with = "schema::target_namespace")]
    pub linkerd_namespace: String,
    /// Deprecated: has no effect. The configured ConfigMap is linkerd-config, the only one that Linkerd reads; no other
    /// name is accepted. Accepted for compatibility with older resources, and listed in status.deprecatedFields.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::target_config_map")]
    pub config_map: Option<String>,
    /// Sets linkerdVersion: the version of the proxies, such as edge-26.8.3, unless proxy.proxyVersion is set. This
    /// does not upgrade the control plane: use its installer. If unset, the installer's version stays in effect, and an
    /// upgrade of the control plane changes the proxies too.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::version")]
    pub version: Option<String>,
    /// Deprecated: set it with Helm. Sets clusterDomain: the DNS domain of the cluster. Linkerd's default is
    /// cluster.local. This does not change the destination and policy controllers; the condition ControlPlaneMismatch
    /// reports a difference.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::domain")]
    pub cluster_domain: Option<String>,
    /// Deprecated: set it with Helm, or in values as a comma-separated string. Sets clusterNetworks: the networks of the
    /// cluster, in CIDR notation. Proxies look up only addresses in these networks. This does not change the policy
    /// controller; the condition ControlPlaneMismatch reports a difference.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::networks")]
    pub cluster_networks: Option<Vec<String>>,
    /// Sets cniEnabled: whether Linkerd's CNI plugin redirects the traffic of Pods, instead of an init container with
    /// the capability to do so. Linkerd's default is false. If true, new Pods do not start on a node without the
    /// plugin.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cni_enabled: Option<bool>,
    /// Deprecated: set it with Helm, or in values. Sets disableIPv6: whether proxies listen on IPv4 only. Linkerd's
    /// default is true. This does not change the destination and policy controllers; the condition ControlPlaneMismatch
    /// reports a difference.
    #[serde(rename = "disableIPv6", skip_serializing_if = "Option::is_none")]
    pub disable_ipv6: Option<bool>,
    /// Deprecated: has no effect. Linkerd's webhooks have had no side effects since 2019. Accepted for compatibility
    /// with resources from that time, and listed in status.deprecatedFields.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub omit_webhook_side_effects: Option<bool>,
    /// The identities of the mesh: trust domain, trust anchors and certificates.
    #[serde(skip_serializing_if = "schema::is_default")]
    pub identity_context: IdentityContextSpec,
}

#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", default)]
#[schemars(extend("x-kubernetes-validations" = schema::identity_rules()))]
pub struct IdentityContextSpec {
    /// Deprecated: set it with Helm. Sets identityTrustDomain: the domain that the identities of workloads end in.
    /// Linkerd's default is clusterDomain. This does not change the destination, identity and policy controllers: with
    /// a difference, no proxy that starts afterwards gets a certificate. The condition ControlPlaneMismatch reports it.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::domain")]
    pub trust_domain: Option<String>,
    /// The trust anchors of the mesh, in PEM. Proxies read theirs from the ConfigMap linkerd-identity-trust-roots,
    /// which this field never changes: trustAnchorsPolicy specifies how the two are compared. A private key is
    /// rejected.
    #[serde(rename = "trustAnchorsPEM", skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::certificates")]
    pub trust_anchors_pem: Option<String>,
    /// How the operator treats the live trust anchors, in the ConfigMap linkerd-identity-trust-roots. Reuse accepts
    /// them as they are and keeps identityTrustAnchorsPEM equal to them; trustAnchorsPEM is then not needed. Verify
    /// requires that they equal trustAnchorsPEM, and reports a difference. The default is Reuse.
    pub trust_anchors_policy: TrustAnchorsPolicy,
    /// Deprecated: has no effect. The identity controller reads the lifetime of certificates from its own flags: set it
    /// with Helm. Accepted for compatibility with older resources, and listed in status.deprecatedFields.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::ignored_text")]
    pub issuance_life_time: Option<String>,
    /// Deprecated: has no effect. The identity controller reads the tolerated clock skew from its own flags: set it
    /// with Helm. Accepted for compatibility with older resources, and listed in status.deprecatedFields.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::ignored_text")]
    pub clock_skew_allowance: Option<String>,
    /// Deprecated: has no effect. The identity controller reads the type of the issuer's Secret from its own flags: set
    /// it with Helm. Accepted for compatibility with older resources, and listed in status.deprecatedFields.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::ignored_text")]
    pub scheme: Option<String>,
}

#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
pub enum TrustAnchorsPolicy {
    #[default]
    Reuse,
    Verify,
}

// === impl GlobalSpec ===

impl Default for GlobalSpec {
    fn default() -> Self {
        Self {
            linkerd_namespace: "linkerd".to_owned(),
            config_map: None,
            version: None,
            cluster_domain: None,
            cluster_networks: None,
            cni_enabled: None,
            disable_ipv6: None,
            omit_webhook_side_effects: None,
            identity_context: IdentityContextSpec::default(),
        }
    }
}
