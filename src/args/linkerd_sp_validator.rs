//! The command line of the container `sp-validator` of Linkerd's own Deployment, so that the operator's image can replace
//! it.
//!
//! * In: the arguments after the subcommand `sp-validator`, the container's environment. Out: the settings of a manager
//!   with the job of that container, and messages to log once.
//! * Always: flags, defaults and exit codes are those of Linkerd's `sp-validator` (edge-26.8), as for `destination`.

use std::path::PathBuf;

use clap::Args as ClapArgs;

use super::{
    Exit, ManagerArgs,
    go_flags::{SharedFlags, address, go_switch},
};

/// The subcommand.
pub(super) const COMMAND: &str = "sp-validator";

/// The flags of Linkerd's container. Values for which that container exits with 1 are strings here, because clap exits
/// with 2.
#[derive(Clone, Debug, ClapArgs)]
#[command(mut_args = go_switch)]
pub(super) struct LinkerdSpValidatorArgs {
    /// Address of the admission webhook
    #[arg(long, value_name = "ADDR", default_value = ":8443")]
    addr: String,

    /// Address of /metrics, /ping and /ready
    #[arg(long, value_name = "ADDR", default_value = ":9997")]
    metrics_addr: String,

    /// Folder with tls/tls.crt and tls/tls.key; only in linkerd-operator
    #[arg(long, value_name = "FOLDER", default_value = "/var/run/linkerd")]
    folder: PathBuf,

    #[command(flatten)]
    shared: SharedFlags,
}

// === impl LinkerdSpValidatorArgs ===

impl LinkerdSpValidatorArgs {
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
        self.shared.apply(COMMAND, &mut manager, environment)?;
        manager.webhook_addr = address("addr", &self.addr)?;
        manager.admin_addr = address("metrics-addr", &self.metrics_addr)?;
        manager.webhook_folder = self.folder;
        manager.replaces_sp_validator = true;
        Ok(manager)
    }
}

#[cfg(test)]
mod tests {
    use crate::args::testing::{command, manager, run};

    #[test]
    fn the_flags_of_linkerds_chart_select_the_validator_alone() {
        let args = ["sp-validator", "-log-level=info", "-log-format=plain", "-enable-pprof=false"];
        let settings = command(&args).unwrap();
        assert!(settings.replaces_sp_validator && !settings.enable_webhooks && !settings.enable_proxy_injector);
        assert!(!settings.enable_destination && !settings.enable_external_workload && !settings.enable_linkerd_config);
        assert_eq!((settings.webhook_addr.port(), settings.admin_addr.port()), (8443, 9997));
        assert_eq!(settings.webhook_folder.to_str(), Some("/var/run/linkerd"));
        assert!(settings.notices.is_empty(), "{:?}", settings.notices);
        assert!(!manager(&[]).unwrap().replaces_sp_validator);
    }

    #[test]
    fn values_are_checked_as_in_go() {
        let settings = command(&["sp-validator", "-addr", "127.0.0.1:1", "-metrics-addr=:2", "-newer", "x"]).unwrap();
        assert_eq!((settings.webhook_addr.to_string(), settings.admin_addr.port()), ("127.0.0.1:1".to_owned(), 2));
        assert_eq!(settings.notices.len(), 1, "{:?}", settings.notices);
        assert_eq!(run(&["sp-validator", "-addr=nonsense"]).unwrap_err().code, 1);
        assert_eq!(run(&["sp-validator", "-log-level=loud"]).unwrap_err().code, 1);
        assert_eq!(run(&["sp-validator", "-version"]).unwrap_err().code, 0);
    }
}
