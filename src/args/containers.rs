//! The command lines of the containers of Linkerd that this program replaces: the flags that all of them have.
//!
//! * In: the arguments after the subcommand, the container's environment. Out: the settings of a manager with the jobs
//!   of that container, and messages to log once.
//! * Always: flags, defaults and exit codes are those of Linkerd's container (edge-26.8). A flag without effect is
//!   validated and named in the log; so is an unknown one, because a newer chart may have it. The operator's own
//!   settings come from `LINKERD_OPERATOR_…`, as for every subcommand.

use std::net::SocketAddr;

use clap::{Args as ClapArgs, Command, ValueEnum};

use super::{
    exit::Exit,
    manager::{LogFormat, ManagerArgs},
};
use crate::{
    drop_in::DropIn,
    go::flags::{UNKNOWN_FLAG, go_switch, parse_address},
};

/// The variable of the environment with the version of the container.
const VERSION_VARIABLE: &str = "LINKERD_CONTAINER_VERSION_OVERRIDE";

/// The flags of one container. Values for which that container exits with 1 are strings, because clap exits with 2.
pub(super) trait ContainerFlags: ClapArgs {
    const DROP_IN: DropIn;

    /// Applies the flags to the settings of a manager without jobs, and enables the jobs of the container.
    ///
    /// # Errors
    /// Returns the text to print and the exit code of Linkerd's container, if there is nothing to run.
    fn apply(self, manager: &mut ManagerArgs) -> Result<(), Exit>;
}

/// The command line of a container.
#[derive(Clone, Debug, ClapArgs)]
pub(super) struct ContainerArgs<F: ContainerFlags> {
    #[command(flatten)]
    own: F,

    #[command(flatten)]
    shared: SharedFlags,
}

/// The flags that several of Linkerd's containers have, and the operator's own flags for them. Values for which a
/// container exits with 1 are strings here, because clap exits with 2.
#[derive(Clone, Debug, ClapArgs)]
#[command(mut_args = go_switch)]
struct SharedFlags {
    /// The kubeconfig; if empty, $KUBECONFIG, ~/.kube/config, or the ServiceAccount of the pod
    #[arg(long, value_name = "FILE", default_value = "")]
    kubeconfig: String,

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

/// The error of a flag whose value is invalid.
pub(super) fn invalid(flag: &str, value: &str, reason: &str) -> Exit {
    Exit::failure(1, format!("error: invalid value {value:?} for flag -{flag}: {reason}\n"))
}

/// Returns the address of a flag.
pub(super) fn address(flag: &str, text: &str) -> Result<SocketAddr, Exit> {
    parse_address(text).map_err(|reason| invalid(flag, text, reason))
}

/// Returns the operator's log level for a level of logrus.
fn level(text: &str) -> Result<&'static str, &'static str> {
    match text.to_ascii_lowercase().as_str() {
        "panic" | "fatal" | "error" => Ok("error"),
        "warn" | "warning" => Ok("warn"),
        "info" => Ok("info"),
        "debug" => Ok("debug"),
        "trace" => Ok("trace"),
        _ => Err("it must be panic, fatal, error, warn, info, debug or trace"),
    }
}

// === impl ContainerArgs ===

impl<F: ContainerFlags> ContainerArgs<F> {
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
        if let Some(flag) = self.shared.unknown.first().filter(|_| self.shared.strict_flags) {
            let usage = Self::augment_args(Command::new(F::DROP_IN.container())).render_usage();
            return Err(Exit::failure(2, format!("error: unexpected argument '-{flag}' found\n\n{usage}\n")));
        }
        manager.replaces = Some(F::DROP_IN);
        if let Some(version) = environment(VERSION_VARIABLE).filter(|text| !text.is_empty()) {
            manager.version = version;
        }
        if self.shared.version {
            return Err(Exit::success(manager.version + "\n"));
        }
        self.shared.apply(&mut manager)?;
        self.own.apply(&mut manager)?;
        Ok(manager)
    }
}

// === impl SharedFlags ===

impl SharedFlags {
    /// Applies the flags, and disables all jobs: a container has only its own, whatever the environment enables.
    fn apply(self, manager: &mut ManagerArgs) -> Result<(), Exit> {
        let unknown = self.unknown.iter().map(|flag| format!("-{flag} is unknown to linkerd-operator and is ignored"));
        manager.notices = unknown.collect();
        if self.enable_pprof {
            manager.notices.push("-enable-pprof has no effect in linkerd-operator and is ignored".to_owned());
        }
        manager.log_level =
            level(&self.log_level).map_err(|reason| invalid("log-level", &self.log_level, reason))?.to_owned();
        manager.log_format = <LogFormat as ValueEnum>::from_str(&self.log_format, false)
            .map_err(|_| invalid("log-format", &self.log_format, "it must be plain or json"))?;
        manager.kubeconfig = (!self.kubeconfig.is_empty()).then(|| self.kubeconfig.into());
        manager.enable_destination = false;
        manager.enable_external_workload = false;
        manager.enable_identity = false;
        manager.enable_issuer_writer = false;
        manager.enable_linkerd_config = false;
        manager.enable_proxy_injector = false;
        manager.enable_webhooks = false;
        // The container's certificate is in its files.
        manager.webhook_certificate_secret = None;
        Ok(())
    }
}
