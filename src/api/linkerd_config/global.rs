//! Which control plane, and the part of its configuration that its own components share with the proxies.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::schema;

#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct GlobalSpec {
    /// The namespace of the control plane. Cannot be changed. The default is linkerd.
    #[schemars(schema_with = "schema::target_namespace")]
    pub linkerd_namespace: String,
    /// The ConfigMap with the control plane's configuration, in its key `values`. Cannot be changed. The default is
    /// linkerd-config, the only name that Linkerd's own installers give it.
    #[schemars(schema_with = "schema::target_config_map")]
    pub config_map: String,
    /// Sets linkerdVersion: the version of proxies where proxy.proxyVersion is not set, such as edge-26.8.3. The
    /// control plane itself is not upgraded by it: use its installer. Unset, the installer's version stays in effect,
    /// and an upgrade of the control plane changes the proxies too.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::version")]
    pub version: Option<String>,
    /// Sets clusterDomain, the DNS domain of the cluster; Linkerd's default is cluster.local. The destination and
    /// policy controllers do not follow without Helm: set it there as well, or proxies and controllers disagree.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::domain")]
    pub cluster_domain: Option<String>,
    /// Sets clusterNetworks, the networks of the cluster's Pods and Services in CIDR notation: proxies ask the control
    /// plane about addresses in them and take any other address as it is. Linkerd's default is 10.0.0.0/8,
    /// 100.64.0.0/10, 172.16.0.0/12, 192.168.0.0/16 and fd00::/8. The policy controller does not follow without Helm:
    /// set it there as well.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::networks")]
    pub cluster_networks: Option<Vec<String>>,
    /// Sets cniEnabled: whether Linkerd's CNI plugin redirects the traffic of Pods, in place of an init container with
    /// the capability to do so. Linkerd's default is false. True without the plugin on every node keeps new Pods from
    /// starting.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cni_enabled: Option<bool>,
    /// Sets disableIPv6: whether proxies listen on IPv4 only. Linkerd's default is true. The destination and policy
    /// controllers do not follow without Helm: set it there as well.
    #[serde(rename = "disableIPv6", skip_serializing_if = "Option::is_none")]
    pub disable_ipv6: Option<bool>,
    /// Deprecated: does nothing. Linkerd's webhooks have had no side effects since 2019. Accepted so that resources of
    /// that time are, and named in status.deprecatedFields.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub omit_webhook_side_effects: Option<bool>,
    /// How the mesh knows who is who.
    #[serde(skip_serializing_if = "schema::is_default")]
    pub identity_context: IdentityContextSpec,
}

#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", default)]
#[schemars(extend("x-kubernetes-validations" = schema::identity_rules()))]
pub struct IdentityContextSpec {
    /// Sets identityTrustDomain, the domain that identities of workloads end in. Linkerd's default is clusterDomain.
    /// The destination, identity and policy controllers do not follow without Helm: set it there as well, or no proxy
    /// that starts afterwards gets a certificate.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::domain")]
    pub trust_domain: Option<String>,
    /// The certificates that the mesh trusts, in PEM. Proxies get theirs from the ConfigMap
    /// linkerd-identity-trust-roots, which this never changes: see trustAnchorsPolicy for what it is compared with.
    /// Certificates only: a private key is refused.
    #[serde(rename = "trustAnchorsPEM", skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::certificates")]
    pub trust_anchors_pem: Option<String>,
    /// What the live trust anchors, in the ConfigMap linkerd-identity-trust-roots, mean. Reuse takes them as they are
    /// and keeps identityTrustAnchorsPEM equal to them; trustAnchorsPEM is then not needed. Verify demands that they
    /// are those of trustAnchorsPEM, and reports it otherwise. The default is Reuse.
    pub trust_anchors_policy: TrustAnchorsPolicy,
    /// Sets identity.issuer.issuanceLifetime: how long the certificate of a proxy is valid, as a Go duration such as
    /// 24h0m0s, which is Linkerd's default. The identity controller does not follow without Helm.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::duration")]
    pub issuance_life_time: Option<String>,
    /// Sets identity.issuer.clockSkewAllowance: how far clocks may differ when a certificate is judged, as a Go
    /// duration. Linkerd's default is 20s. The identity controller does not follow without Helm.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::duration")]
    pub clock_skew_allowance: Option<String>,
    /// Sets identity.issuer.scheme: the kind of Secret that the issuer's certificate is in, linkerd.io/tls (Linkerd's
    /// default) or kubernetes.io/tls. The identity controller does not follow without Helm.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::issuer_scheme")]
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
            config_map: "linkerd-config".to_owned(),
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
