//! The command line of the container `proxy-injector` of Linkerd's own Deployment, so that the operator's image can
//! replace it.
//!
//! * In: the arguments after the subcommand `proxy-injector`, the container's environment. Out: the settings of a manager
//!   with the job of that container, and messages to log once.
//! * Always: flags, defaults and exit codes are those of Linkerd's `proxy-injector` (edge-26.8), as for `destination`.

use std::path::PathBuf;

use clap::{Args as ClapArgs, ValueEnum};

use super::{
    Exit, LogFormat, ManagerArgs,
    go_flags::{UNKNOWN_FLAG, address, go_switch, level},
};
use crate::version;

/// The subcommand.
pub(super) const COMMAND: &str = "proxy-injector";
/// The version of a container whose environment names none.
const VERSION_VARIABLE: &str = "LINKERD_CONTAINER_VERSION_OVERRIDE";

/// The flags of Linkerd's container. Values for which that container exits with 1 are strings here, because clap exits
/// with 2.
#[derive(Clone, Debug, ClapArgs)]
#[command(mut_args = go_switch)]
pub(super) struct LinkerdProxyInjectorArgs {
    /// Address of the admission webhook
    #[arg(long, value_name = "ADDR", default_value = ":8443")]
    addr: String,

    /// Address of /metrics, /ping and /ready
    #[arg(long, value_name = "ADDR", default_value = ":9995")]
    metrics_addr: String,

    /// The kubeconfig; if empty, $KUBECONFIG, ~/.kube/config, or the ServiceAccount of the pod
    #[arg(long, value_name = "FILE", default_value = "")]
    kubeconfig: String,

    /// Namespace of Linkerd's control plane
    #[arg(long, value_name = "NAME", default_value = "linkerd")]
    linkerd_namespace: String,

    /// Folder with tls/tls.crt, tls/tls.key, config/values and identity/trust-roots/ca-bundle.crt; only in
    /// linkerd-operator
    #[arg(long, value_name = "FOLDER", default_value = "/var/run/linkerd")]
    folder: PathBuf,

    /// No effect
    #[arg(long, default_value_t = false)]
    enable_pprof: bool,

    /// Log level: panic, fatal, error, warn, info, debug or trace
    #[arg(long, value_name = "LEVEL", default_value = "info")]
    log_level: String,

    /// Log format: plain or json
    #[arg(long, value_name = "FORMAT", default_value = "plain")]
    log_format: String,

    /// Exit with 2 if a flag is unknown, as Linkerd's container does; otherwise it is named in the log and ignored
    #[arg(long, default_value_t = false)]
    strict_flags: bool,

    /// Print the version and exit
    #[arg(long, default_value_t = false)]
    version: bool,

    /// The names of unknown flags.
    #[arg(long = UNKNOWN_FLAG, hide = true)]
    unknown: Vec<String>,

    /// Ignored: in Go, the first argument that is not a flag ends the flags.
    #[arg(hide = true, trailing_var_arg = true)]
    ignored: Vec<String>,
}

// === impl LinkerdProxyInjectorArgs ===

impl LinkerdProxyInjectorArgs {
    /// Returns the settings of the manager. `manager` has the operator's own settings from the environment, and no
    /// flags.
    ///
    /// # Errors
    /// Returns the text to print and the exit code of Linkerd's container, if there is nothing to run.
    pub(super) fn manager(
        self,
        mut manager: ManagerArgs,
        environment: impl Fn(&str) -> Option<String>,
    ) -> Result<ManagerArgs, Exit> {
        if let Some(flag) = self.unknown.first().filter(|_| self.strict_flags) {
            let usage = Self::augment_args(clap::Command::new(COMMAND)).render_usage();
            return Err(Exit::failure(2, format!("error: unexpected argument '-{flag}' found\n\n{usage}\n")));
        }
        let version = environment(VERSION_VARIABLE).filter(|text| !text.is_empty());
        let version = version.unwrap_or_else(|| version::whole().to_owned());
        if self.version {
            return Err(Exit::success(version + "\n"));
        }
        let invalid = |flag: &str, value: &str, reason: &str| {
            Exit::failure(1, format!("error: invalid value {value:?} for flag -{flag}: {reason}\n"))
        };
        let unknown = self.unknown.iter().map(|flag| format!("-{flag} is unknown to linkerd-operator and is ignored"));
        manager.notices = unknown.collect();
        if self.enable_pprof {
            manager.notices.push("-enable-pprof has no effect in linkerd-operator and is ignored".to_owned());
        }
        manager.webhook_addr = address(&self.addr).map_err(|reason| invalid("addr", &self.addr, reason))?;
        manager.admin_addr =
            address(&self.metrics_addr).map_err(|reason| invalid("metrics-addr", &self.metrics_addr, reason))?;
        manager.kubeconfig = (!self.kubeconfig.is_empty()).then(|| self.kubeconfig.into());
        manager.controller_namespace = self.linkerd_namespace;
        manager.log_level =
            level(&self.log_level).map_err(|reason| invalid("log-level", &self.log_level, reason))?.to_owned();
        manager.log_format = <LogFormat as ValueEnum>::from_str(&self.log_format, false)
            .map_err(|_| invalid("log-format", &self.log_format, "it must be plain or json"))?;
        manager.webhook_folder = self.folder;
        manager.enable_proxy_injector = true;
        manager.replaced_injector = Some(version);
        manager.enable_destination = false;
        manager.enable_external_workload = false;
        manager.enable_linkerd_config = false;
        Ok(manager)
    }
}

#[cfg(test)]
mod tests {
    use crate::args::testing::manager;

    #[test]
    fn the_flags_of_linkerds_chart_select_the_injector_alone() {
        let args = [
            "proxy-injector",
            "-log-level=info",
            "-log-format",
            "plain",
            "-linkerd-namespace=mesh",
            "-enable-pprof=false",
        ];
        let settings = manager(&args).unwrap();
        assert!(settings.enable_proxy_injector && settings.replaced_injector.is_some());
        assert!(!settings.enable_destination && !settings.enable_external_workload && !settings.enable_linkerd_config);
        assert_eq!((settings.webhook_addr.port(), settings.admin_addr.port()), (8443, 9995));
        assert_eq!(settings.controller_namespace, "mesh");
        assert_eq!(settings.webhook_folder.to_str(), Some("/var/run/linkerd"));
        assert!(settings.notices.is_empty(), "{:?}", settings.notices);
    }

    #[test]
    fn an_unknown_flag_is_ignored_with_a_notice_and_strictly_refused() {
        let settings = manager(&["proxy-injector", "-newer", "value", "-enable-pprof"]).unwrap();
        assert_eq!(settings.notices.len(), 2, "{:?}", settings.notices);
        assert!(manager(&["proxy-injector", "-newer=value", "-strict-flags"]).is_err());
        assert!(manager(&["proxy-injector", "-addr=nonsense"]).is_err());
        assert!(manager(&["proxy-injector", "-log-level=loud"]).is_err());
    }
}
