//! The flags of the identity service.

use std::{net::SocketAddr, num::NonZeroUsize, path::PathBuf};

use clap::{Args as ClapArgs, ValueEnum};
use k8s_openapi::jiff::SignedDuration;

use super::parse::{duration, positive_duration};
use crate::identity::{IdentitySettings, IssuerFileNames, IssuerFiles, RenewWithin, SHORTEST_RENEW_WITHIN};

/// The flags of the identity service. The defaults are those of Linkerd's charts.
#[derive(Clone, Debug, ClapArgs)]
#[command(next_help_heading = "Identity")]
pub struct IdentityArgs {
    /// Address of the Identity API, in plain HTTP/2 unless --identity-tls is set or the pod has a Linkerd proxy
    #[arg(long, env = "LINKERD_OPERATOR_IDENTITY_ADDR", value_name = "IP:PORT", default_value = "127.0.0.1:8080")]
    pub identity_addr: SocketAddr,

    /// Folder with the certificate and the key of the issuer
    #[arg(
        long,
        env = "LINKERD_OPERATOR_IDENTITY_ISSUER",
        value_name = "FOLDER",
        default_value = "/var/run/linkerd/identity/issuer"
    )]
    pub identity_issuer: PathBuf,

    /// Names of the files of the issuer: those of the scheme linkerd.io/tls, crt.pem and key.pem, or those of
    /// kubernetes.io/tls, tls.crt and tls.key
    #[arg(long, env = "LINKERD_OPERATOR_IDENTITY_SCHEME", value_name = "SCHEME", default_value = "linkerd.io/tls")]
    pub identity_scheme: IssuerScheme,

    /// Folder with the trust anchors, ca-bundle.crt
    #[arg(
        long,
        env = "LINKERD_OPERATOR_IDENTITY_TRUST_ROOTS",
        value_name = "FOLDER",
        default_value = "/var/run/linkerd/identity/trust-roots"
    )]
    pub identity_trust_roots: PathBuf,

    /// Watch the Secret linkerd-identity-issuer and the ConfigMap linkerd-identity-trust-roots, in place of these folders; and
    /// LinkerdTrusts, to hold an issuer that not all proxies accept yet
    #[arg(long, env = "LINKERD_OPERATOR_IDENTITY_WATCH", default_value_t = false)]
    pub identity_watch: bool,

    /// How long certificates are valid
    #[arg(
        long,
        env = "LINKERD_OPERATOR_IDENTITY_ISSUANCE_LIFETIME",
        value_name = "DURATION",
        default_value = "24h",
        value_parser = signed_duration
    )]
    pub identity_issuance_lifetime: SignedDuration,

    /// By how much the clocks of proxies may differ; certificates are valid for so much longer at both ends
    #[arg(
        long,
        env = "LINKERD_OPERATOR_IDENTITY_CLOCK_SKEW_ALLOWANCE",
        value_name = "DURATION",
        default_value = "20s",
        value_parser = signed_duration
    )]
    pub identity_clock_skew_allowance: SignedDuration,

    /// Tell proxies to renew their certificates as if these ended so soon, 1m or more, or never with 0s. They remain valid
    /// for longer
    #[arg(
        long,
        env = "LINKERD_OPERATOR_IDENTITY_RENEW_WITHIN",
        value_name = "DURATION",
        default_value = "0s",
        value_parser = renew_within
    )]
    pub identity_renew_within: RenewWithin,

    /// Terminate TLS with a certificate of the issuer, for a pod without a Linkerd proxy. No client certificate is
    /// requested, so that a proxy whose certificate has expired can renew it
    #[arg(long, env = "LINKERD_OPERATOR_IDENTITY_TLS", default_value_t = false)]
    pub identity_tls: bool,

    /// Maximum number of TokenReviews at the same time; further calls wait for up to 8 s
    #[arg(long, env = "LINKERD_OPERATOR_IDENTITY_MAX_TOKEN_REVIEWS", value_name = "N", default_value = "200")]
    pub identity_max_token_reviews: NonZeroUsize,

    /// Accept a token without the audience identity.l5d.io if the API server accepts it for itself, as Linkerd does
    #[arg(long, env = "LINKERD_OPERATOR_IDENTITY_ALLOW_API_AUDIENCE", default_value_t = false)]
    pub identity_allow_api_audience: bool,

    /// Write Events about the certificates of ServiceAccounts
    #[arg(long, env = "LINKERD_OPERATOR_IDENTITY_ISSUED_EVENTS", default_value_t = true)]
    pub identity_issued_events: bool,
}

/// The scheme of an issuer, which names its files.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum IssuerScheme {
    #[value(name = "linkerd.io/tls")]
    Linkerd,
    #[value(name = "kubernetes.io/tls")]
    Kubernetes,
}

// === impl IdentityArgs ===

impl IdentityArgs {
    pub fn settings(&self, controller_namespace: &str, trust_domain: &str) -> IdentitySettings {
        IdentitySettings {
            controller_namespace: controller_namespace.to_owned(),
            trust_domain: trust_domain.to_owned(),
            files: IssuerFiles {
                issuer: self.identity_issuer.clone(),
                trust_roots: self.identity_trust_roots.clone(),
                names: match self.identity_scheme {
                    IssuerScheme::Linkerd => IssuerFileNames::Linkerd,
                    IssuerScheme::Kubernetes => IssuerFileNames::Kubernetes,
                },
            },
            watches_objects: self.identity_watch,
            issuance_lifetime: self.identity_issuance_lifetime,
            clock_skew_allowance: self.identity_clock_skew_allowance,
            renew_within: self.identity_renew_within,
            max_token_reviews: self.identity_max_token_reviews.get(),
            allow_api_audience: self.identity_allow_api_audience,
            issued_events: self.identity_issued_events,
            tls: self.identity_tls,
        }
    }
}

pub(super) fn renew_within(text: &str) -> Result<RenewWithin, String> {
    let within = SignedDuration::try_from(duration(text)?).map_err(|error| error.to_string())?;
    RenewWithin::new(within).ok_or_else(|| format!("it must be 0s or at least {SHORTEST_RENEW_WITHIN:#}"))
}

fn signed_duration(text: &str) -> Result<SignedDuration, String> {
    SignedDuration::try_from(positive_duration(text)?).map_err(|error| error.to_string())
}
