//! The flags of the container `identity` of Linkerd's own Deployment.

use std::{num::NonZeroUsize, path::PathBuf};

use clap::Args as ClapArgs;
use k8s_openapi::jiff::SignedDuration;

use super::{
    containers::{ContainerFlags, address, invalid},
    exit::Exit,
    identity::{IssuerScheme, renew_within},
    manager::ManagerArgs,
};
use crate::{
    drop_in::DropIn,
    go::{duration, flags::go_switch},
    identity::{RenewWithin, check_names},
};

const QPS: f64 = 100.0;
const BURST: i64 = 200;
/// The burst that client-go uses if the flag is not positive.
const DEFAULT_BURST: usize = 10;
const LIFETIME: SignedDuration = SignedDuration::from_hours(24);
const CLOCK_SKEW_ALLOWANCE: SignedDuration = SignedDuration::from_secs(10);

/// The flags that only this container has.
#[derive(Clone, Debug, ClapArgs)]
#[command(mut_args = go_switch)]
pub(super) struct LinkerdIdentityArgs {
    /// Address of the Identity API
    #[arg(long, value_name = "ADDR", default_value = ":8080")]
    addr: String,

    /// Address of /metrics, /ping and /ready
    #[arg(long, value_name = "ADDR", default_value = ":9990")]
    admin_addr: String,

    /// Namespace of Linkerd's control plane
    #[arg(long, value_name = "NAME", default_value = "")]
    controller_namespace: String,

    /// Trust domain of the mesh's identities; without it, the process exits with 0
    #[arg(long, value_name = "DOMAIN", default_value = "")]
    identity_trust_domain: String,

    /// Scheme of the issuer: linkerd.io/tls has the files crt.pem and key.pem, any other one tls.crt and tls.key; without
    /// it, the process exits with 0
    #[arg(long, value_name = "SCHEME", default_value = "")]
    identity_scheme: String,

    /// How long certificates are valid; 24h if empty
    #[arg(long, value_name = "DURATION", default_value = "")]
    identity_issuance_lifetime: String,

    /// By how much the clocks of proxies may differ; 10s if empty
    #[arg(long, value_name = "DURATION", default_value = "")]
    identity_clock_skew_allowance: String,

    /// Folder with the certificate and the key of the issuer
    #[arg(long, value_name = "FOLDER", default_value = "/var/run/linkerd/identity/issuer")]
    issuer: PathBuf,

    /// Folder with the trust anchors, ca-bundle.crt; only in linkerd-operator
    #[arg(long, value_name = "FOLDER", default_value = "/var/run/linkerd/identity/trust-roots")]
    trust_roots: PathBuf,

    /// Accept a token without the audience identity.l5d.io if the API server accepts it for itself, as Linkerd does; only
    /// in linkerd-operator
    #[arg(long, default_value_t = true)]
    allow_api_audience: bool,

    /// Write Events about the certificates of ServiceAccounts; only in linkerd-operator
    #[arg(long, default_value_t = true)]
    issued_events: bool,

    /// Tell proxies to renew their certificates as if these ended so soon, 1m or more, or never with 0s; they remain valid
    /// for longer. Only in linkerd-operator
    #[arg(long, value_name = "DURATION", default_value = "0s", value_parser = renew_within)]
    renew_within: RenewWithin,

    /// Terminate TLS with a certificate of the issuer, for a pod without a Linkerd proxy; only in linkerd-operator
    #[arg(long, default_value_t = false)]
    tls: bool,

    /// No effect: the number of TokenReviews at the same time is limited, and not their rate
    #[arg(long, value_name = "NUMBER", default_value_t = QPS)]
    kube_apiclient_qps: f64,

    /// Maximum number of TokenReviews at the same time; 10 if it is not positive
    #[arg(long, value_name = "NUMBER", default_value_t = BURST)]
    kube_apiclient_burst: i64,

    /// No effect
    #[arg(long, value_name = "ADDR", default_value = "")]
    trace_collector: String,
}

// === impl LinkerdIdentityArgs ===

impl ContainerFlags for LinkerdIdentityArgs {
    const DROP_IN: DropIn = DropIn::Identity;

    fn apply(self, manager: &mut ManagerArgs) -> Result<(), Exit> {
        if self.identity_trust_domain.is_empty() || self.identity_scheme.is_empty() {
            let text = "the identity service is disabled: -identity-trust-domain or -identity-scheme is empty\n";
            return Err(Exit::success(text.to_owned()));
        }
        check_names(&self.controller_namespace, &self.identity_trust_domain)
            .map_err(|reason| Exit::failure(1, format!("error: {reason}\n")))?;
        let notices = &mut manager.notices;
        for (flag, is_given) in [
            ("kube-apiclient-qps", (self.kube_apiclient_qps - QPS).abs() > f64::EPSILON),
            ("trace-collector", !self.trace_collector.is_empty()),
        ] {
            if is_given {
                notices.push(format!("-{flag} has no effect in linkerd-operator and is ignored"));
            }
        }
        let mut lifetime = |flag: &str, text: &str, default: SignedDuration| {
            if text.is_empty() {
                return default;
            }
            duration::parse(text).map(SignedDuration::from_nanos).unwrap_or_else(|| {
                notices.push(format!("-{flag}={text} is not a duration; using {default:#}"));
                default
            })
        };
        let identity = &mut manager.identity;
        let flag = "identity-issuance-lifetime";
        identity.identity_issuance_lifetime = lifetime(flag, &self.identity_issuance_lifetime, LIFETIME);
        let flag = "identity-clock-skew-allowance";
        identity.identity_clock_skew_allowance =
            lifetime(flag, &self.identity_clock_skew_allowance, CLOCK_SKEW_ALLOWANCE);
        identity.identity_addr = address("addr", &self.addr)?;
        identity.identity_issuer = self.issuer;
        identity.identity_trust_roots = self.trust_roots;
        identity.identity_scheme = match self.identity_scheme.as_str() {
            "linkerd.io/tls" => IssuerScheme::Linkerd,
            _ => IssuerScheme::Kubernetes,
        };
        let burst = usize::try_from(self.kube_apiclient_burst).unwrap_or_default();
        let burst = if burst == 0 { DEFAULT_BURST } else { burst };
        identity.identity_max_token_reviews =
            NonZeroUsize::new(burst).ok_or_else(|| invalid("kube-apiclient-burst", "0", "it must be positive"))?;
        identity.identity_allow_api_audience = self.allow_api_audience;
        identity.identity_issued_events = self.issued_events;
        identity.identity_tls = self.tls;
        identity.identity_renew_within = self.renew_within;
        // Linkerd's account has no permission for it.
        identity.identity_watch = false;

        manager.admin_addr = address("admin-addr", &self.admin_addr)?;
        manager.destination.identity_trust_domain = self.identity_trust_domain;
        manager.controller_namespace = self.controller_namespace;
        manager.enable_identity = true;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::testing::{command, manager, run};

    /// The flags of Linkerd's chart.
    const CHART: [&str; 11] = [
        "identity",
        "-log-level=info",
        "-log-format=plain",
        "-controller-namespace=linkerd",
        "-identity-trust-domain=cluster.local",
        "-identity-issuance-lifetime=24h0m0s",
        "-identity-clock-skew-allowance=20s",
        "-identity-scheme=linkerd.io/tls",
        "-enable-pprof=false",
        "-kube-apiclient-qps=100",
        "-kube-apiclient-burst=200",
    ];

    fn with(flags: &[&str]) -> Result<ManagerArgs, String> {
        command(&[&CHART[..], flags].concat())
    }

    fn exit(flags: &[&str]) -> u8 {
        run(&[&CHART[..], flags].concat()).unwrap_err().code
    }

    #[test]
    fn the_flags_of_linkerds_chart_select_the_identity_service_alone() {
        let settings = with(&[]).unwrap();
        assert!(settings.enable_identity && settings.replaces == Some(DropIn::Identity));
        assert!(!settings.enable_destination && !settings.enable_external_workload && !settings.enable_linkerd_config);
        assert!(!settings.enable_proxy_injector && !settings.enable_webhooks);
        assert_eq!((settings.identity.identity_addr.port(), settings.admin_addr.port()), (8080, 9990));
        assert!(settings.notices.is_empty(), "{:?}", settings.notices);
        let identity = settings.identity.settings(&settings.controller_namespace, "cluster.local");
        assert_eq!(identity.issuance_lifetime, SignedDuration::from_hours(24));
        assert_eq!(identity.clock_skew_allowance, SignedDuration::from_secs(20));
        assert_eq!((identity.max_token_reviews, identity.allow_api_audience), (200, true));
        assert_eq!(identity.files.names, crate::identity::IssuerFileNames::Linkerd);
        assert!(!identity.watches_objects);
        assert!(!manager(&[]).unwrap().enable_identity);
    }

    #[test]
    fn without_a_trust_domain_or_a_scheme_the_process_exits_with_0_as_linkerds() {
        assert_eq!(exit(&["-identity-scheme="]), 0);
        assert_eq!(exit(&["-identity-trust-domain", ""]), 0);
        assert_eq!(run(&["identity"]).unwrap_err().code, 0);
    }

    #[test]
    fn names_that_form_no_identity_are_fatal() {
        for flag in ["-identity-trust-domain=Cluster.Local", "-controller-namespace=a.b", "-controller-namespace="] {
            assert_eq!(exit(&[flag]), 1, "{flag}");
        }
        assert!(with(&["-identity-trust-domain=mesh"]).is_ok());
        assert_eq!(exit(&["-addr=nonsense"]), 1);
        assert_eq!(exit(&["-strict-flags", "-newer=1"]), 2);
    }

    #[test]
    fn durations_are_those_of_go() {
        let lifetime = |text: &str| {
            let settings = with(&[&format!("-identity-issuance-lifetime={text}")]).unwrap();
            (settings.identity.identity_issuance_lifetime, settings.notices.len())
        };
        assert_eq!(lifetime("10m"), (SignedDuration::from_mins(10), 0));
        assert_eq!(lifetime("-1h"), (SignedDuration::from_hours(-1), 0));
        assert_eq!(lifetime("0s"), (SignedDuration::ZERO, 0));
        assert_eq!(lifetime("1d"), (SignedDuration::from_hours(24), 1));
        assert_eq!(lifetime(""), (SignedDuration::from_hours(24), 0));
        let skew = with(&["-identity-clock-skew-allowance="]).unwrap().identity.identity_clock_skew_allowance;
        assert_eq!(skew, SignedDuration::from_secs(10));
    }

    #[test]
    fn proxies_are_told_to_renew_within_a_minute_or_more_or_at_the_end() {
        let within = |flags: &[&str]| with(flags).map(|settings| settings.identity.identity_renew_within);
        assert_eq!(within(&[]), Ok(RenewWithin::default()));
        assert_eq!(within(&["-renew-within=0s"]), Ok(RenewWithin::default()));
        assert_eq!(within(&["-renew-within=1h"]).ok(), RenewWithin::new(SignedDuration::from_hours(1)));
        for refused in ["59s", "-1h", "soon"] {
            assert!(within(&[&format!("-renew-within={refused}")]).is_err(), "{refused}");
        }
    }

    #[test]
    fn any_other_scheme_has_the_files_of_kubernetes() {
        for (scheme, expected) in [
            ("kubernetes.io/tls", IssuerScheme::Kubernetes),
            ("nonsense", IssuerScheme::Kubernetes),
            ("linkerd.io/tls", IssuerScheme::Linkerd),
        ] {
            let settings = with(&["-identity-scheme", scheme]).unwrap();
            assert_eq!(settings.identity.identity_scheme, expected, "{scheme}");
        }
    }

    #[test]
    fn a_burst_that_is_not_positive_is_that_of_client_go() {
        let reviews = |burst: &str| {
            let settings = with(&["-kube-apiclient-burst", burst]).unwrap();
            settings.identity.identity_max_token_reviews.get()
        };
        assert_eq!([reviews("0"), reviews("-5"), reviews("7")], [10, 10, 7]);
        let notices = with(&["-kube-apiclient-qps=7", "-trace-collector=x:1", "-enable-pprof"]).unwrap().notices;
        assert_eq!(notices.len(), 3, "{notices:?}");
    }
}
