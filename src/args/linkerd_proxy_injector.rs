//! The command line of the container `proxy-injector` of Linkerd's own Deployment, so that the operator's image can
//! replace it.
//!
//! * In: the arguments after the subcommand `proxy-injector`, the container's environment. Out: the settings of a manager
//!   with the job of that container, and messages to log once.
//! * Always: flags, defaults and exit codes are those of Linkerd's `proxy-injector` (edge-26.8), as for `destination`.

use std::path::PathBuf;

use clap::Args as ClapArgs;

use super::{
    Exit, ManagerArgs,
    go_flags::{SharedFlags, address, go_switch},
};

/// The subcommand.
pub(super) const COMMAND: &str = "proxy-injector";

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

    /// Namespace of Linkerd's control plane
    #[arg(long, value_name = "NAME", default_value = "linkerd")]
    linkerd_namespace: String,

    /// Folder with tls/tls.crt, tls/tls.key, config/values and identity/trust-roots/ca-bundle.crt; only in
    /// linkerd-operator
    #[arg(long, value_name = "FOLDER", default_value = "/var/run/linkerd")]
    folder: PathBuf,

    #[command(flatten)]
    shared: SharedFlags,
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
        let version = self.shared.apply(COMMAND, &mut manager, environment)?;
        manager.webhook_addr = address("addr", &self.addr)?;
        manager.admin_addr = address("metrics-addr", &self.metrics_addr)?;
        manager.controller_namespace = self.linkerd_namespace;
        manager.webhook_folder = self.folder;
        manager.enable_proxy_injector = true;
        manager.replaced_injector = Some(version);
        manager.enable_webhooks = false;
        Ok(manager)
    }
}

#[cfg(test)]
mod tests {
    use crate::args::testing::command;

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
        let settings = command(&args).unwrap();
        assert!(settings.enable_proxy_injector && settings.replaced_injector.is_some());
        assert!(!settings.enable_destination && !settings.enable_external_workload && !settings.enable_linkerd_config);
        assert_eq!((settings.webhook_addr.port(), settings.admin_addr.port()), (8443, 9995));
        assert_eq!(settings.controller_namespace, "mesh");
        assert_eq!(settings.webhook_folder.to_str(), Some("/var/run/linkerd"));
        assert!(settings.notices.is_empty(), "{:?}", settings.notices);
    }

    #[test]
    fn an_unknown_flag_is_ignored_with_a_notice_and_strictly_refused() {
        let settings = command(&["proxy-injector", "-newer", "value", "-enable-pprof"]).unwrap();
        assert_eq!(settings.notices.len(), 2, "{:?}", settings.notices);
        assert!(command(&["proxy-injector", "-newer=value", "-strict-flags"]).is_err());
        assert!(command(&["proxy-injector", "-addr=nonsense"]).is_err());
        assert!(command(&["proxy-injector", "-log-level=loud"]).is_err());
    }
}
