//! The command line: flags, each with an environment variable, parsed into typed settings. Besides this module, only
//! [`crate::client`] and kube read the environment, to find a kubeconfig, a ServiceAccount and a proxy.

mod containers;
mod destination;
mod exit;
mod identity;
mod linkerd_destination;
mod linkerd_identity;
mod linkerd_webhooks;
mod manager;
mod parse;
#[cfg(test)]
mod testing;

use std::{
    env,
    ffi::{OsStr, OsString},
    path::{Path, PathBuf},
};

use clap::{CommandFactory, Parser, Subcommand};
use clap_complete::{
    Shell,
    env::{CompleteEnv, Shells},
};

use self::{
    containers::ContainerArgs,
    linkerd_destination::LinkerdDestinationArgs,
    linkerd_identity::LinkerdIdentityArgs,
    linkerd_webhooks::{LinkerdProxyInjectorArgs, LinkerdSpValidatorArgs},
};
pub use self::{
    destination::DestinationArgs,
    exit::{Exit, USAGE},
    identity::{IdentityArgs, IssuerScheme},
    manager::{LogFormat, ManagerArgs},
};
use crate::{
    cli::{TerminalCommand, VersionArgs},
    go::flags,
    version,
};

/// The name of the program, in scripts of shells.
const PROGRAM: &str = "linkerd-operator";
/// The variable with which the script of a shell asks for the possible next words.
const COMPLETE: &str = "LINKERD_OPERATOR_COMPLETE";

/// A companion to the control plane of the Linkerd service mesh.
#[derive(Debug, Parser)]
#[command(name = "linkerd-operator", version = version::whole(), about, max_term_width = 100)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

/// The task of the process.
#[derive(Debug)]
pub enum Task {
    Manager(Box<ManagerArgs>),
    Terminal(TerminalCommand),
    Version(VersionArgs),
}

#[derive(Clone, Debug, Subcommand)]
enum Command {
    #[command(flatten)]
    Terminal(TerminalCommand),
    /// Watches the cluster and runs the enabled jobs
    #[command(args_override_self = true)]
    Manager(Box<ManagerArgs>),
    #[command(flatten)]
    Container(ContainerCommand),
    /// Prints the version
    Version(VersionArgs),
    /// Prints a script that completes commands, flags and names of the cluster in a shell
    Completion { shell: Shell },
    /// Writes man pages into a folder
    #[command(name = "_man-pages", hide = true)]
    ManPages { folder: PathBuf },
}

/// The command lines of Linkerd's containers.
#[derive(Clone, Debug, Subcommand)]
enum ContainerCommand {
    /// Replaces Linkerd's container destination and accepts its flags
    #[command(args_override_self = true)]
    Destination(Box<ContainerArgs<LinkerdDestinationArgs>>),
    /// Replaces Linkerd's container identity and accepts its flags
    #[command(args_override_self = true)]
    Identity(Box<ContainerArgs<LinkerdIdentityArgs>>),
    /// Replaces Linkerd's container proxy-injector and accepts its flags
    #[command(args_override_self = true)]
    ProxyInjector(Box<ContainerArgs<LinkerdProxyInjectorArgs>>),
    /// Replaces Linkerd's container sp-validator and accepts its flags
    #[command(args_override_self = true)]
    SpValidator(Box<ContainerArgs<LinkerdSpValidatorArgs>>),
}

// === impl Args ===

impl Args {
    /// Parses the command line and the environment of this process. Prints help and usage errors, and the words that a
    /// shell may complete, and exits.
    pub fn from_process() -> Self {
        CompleteEnv::with_factory(Self::command).var(COMPLETE).complete();
        Self::parse_from(rewritten(env::args_os()))
    }

    /// Returns the task of the process.
    ///
    /// # Errors
    /// Returns the text to print and the exit code, if there is no task or if flags contradict each other.
    pub fn task(self) -> Result<Task, Exit> {
        match self.command {
            Command::Manager(args) => Ok(Task::Manager(Box::new(args.checked()?))),
            Command::Container(command) => Ok(Task::Manager(Box::new(command.manager()?.checked()?))),
            Command::Terminal(command) => Ok(Task::Terminal(command)),
            Command::Version(args) => Ok(Task::Version(args)),
            Command::Completion { shell } => Err(Exit::success(completion(shell))),
            Command::ManPages { folder } => Err(man_pages(&folder)),
        }
    }
}

// === impl ContainerCommand ===

impl ContainerCommand {
    /// Returns the settings of a manager with the jobs of the container.
    fn manager(self) -> Result<ManagerArgs, Exit> {
        let ours = ManagerArgs::try_parse_from([PROGRAM])?;
        let environment = |name: &str| env::var(name).ok();
        match self {
            Self::Destination(args) => args.manager(ours, environment),
            Self::Identity(args) => args.manager(ours, environment),
            Self::ProxyInjector(args) => args.manager(ours, environment),
            Self::SpValidator(args) => args.manager(ours, environment),
        }
    }
}

fn completion(shell: Shell) -> String {
    let mut script = Vec::new();
    if let Some(shell) = Shells::builtins().completer(&shell.to_string()) {
        // Writing into memory cannot fail.
        _ = shell.write_registration(COMPLETE, PROGRAM, PROGRAM, PROGRAM, &mut script);
    }
    String::from_utf8_lossy(&script).into_owned()
}

/// Writes a page for each visible subcommand into a folder that exists.
fn man_pages(folder: &Path) -> Exit {
    match clap_mangen::generate_to(Args::command(), folder) {
        Ok(()) => Exit::success(String::new()),
        Err(error) => Exit::failure(1, format!("error: cannot write man pages into {}: {error}\n", folder.display())),
    }
}

/// Rewrites the flags of Linkerd's containers, and prints help if there is no argument, as kubectl does.
fn rewritten(arguments: impl IntoIterator<Item = OsString>) -> Vec<OsString> {
    let containers = ContainerCommand::augment_subcommands(clap::Command::new(PROGRAM));
    let mut arguments = flags::with_double_dashes(arguments, &containers);
    if let Some(program) = arguments.first_mut() {
        // As a plugin of kubectl, its file has this name, and its user writes another one.
        if Path::new(program).file_name() == Some(OsStr::new("kubectl-linkerd_operator")) {
            *program = "kubectl linkerd-operator".into();
        }
    }
    if arguments.len() < 2 {
        arguments.push("--help".into());
    }
    arguments
}

#[cfg(test)]
mod tests {
    use super::{
        testing::{command, manager, run, task},
        *,
    };
    use crate::{
        cli::{DocumentFormat, EndpointsArgs, OutputFormat},
        drop_in::{DROP_INS, DropIn},
    };

    fn endpoints(args: &[&str]) -> Result<EndpointsArgs, String> {
        match task(&[&["endpoints"], args].concat())? {
            Task::Terminal(TerminalCommand::Endpoints(args)) => Ok(*args),
            other => panic!("{args:?} were parsed as {other:?}"),
        }
    }

    #[test]
    fn the_command_line_is_well_formed() {
        Args::command().debug_assert();
    }

    #[test]
    fn each_container_that_can_be_replaced_has_a_subcommand_with_its_name() {
        let containers = ContainerCommand::augment_subcommands(clap::Command::new(PROGRAM));
        let names: Vec<_> = containers.get_subcommands().map(clap::Command::get_name).collect();
        assert_eq!(names, DROP_INS.map(DropIn::container));
        // Without these flags, Linkerd's identity service is disabled.
        let flags =
            ["-identity-trust-domain=cluster.local", "-identity-scheme=linkerd.io/tls", "-controller-namespace=a"];
        for drop_in in DROP_INS {
            let flags = if drop_in == DropIn::Identity { &flags[..] } else { &[] };
            assert_eq!(command(&[&[drop_in.container()], flags].concat()).unwrap().replaces, Some(drop_in));
        }
    }

    #[test]
    fn without_arguments_help_is_printed_and_the_exit_code_is_0() {
        let Err(help) = run(&[]) else { panic!("a task was started") };
        assert_eq!((help.code, help.is_error), (0, false));
        assert!(help.text.contains("Usage: linkerd-operator"), "{}", help.text);
        assert!(help.text.contains("explain"), "{}", help.text);
    }

    #[test]
    fn a_plugin_of_kubectl_is_named_as_its_user_writes_it() {
        let usage = |program: &str| {
            let line = [program, "status", "--help"].map(OsString::from);
            Args::try_parse_from(rewritten(line)).unwrap_err().to_string()
        };
        let help = usage("/home/user/.local/bin/kubectl-linkerd_operator");
        assert!(help.contains("Usage: kubectl linkerd-operator status"), "{help}");
        assert!(usage("/usr/bin/linkerd-operator").contains("Usage: linkerd-operator status"));
    }

    #[test]
    fn completion_prints_a_script_for_each_shell_which_asks_this_program() {
        for shell in ["bash", "zsh", "fish", "powershell", "elvish"] {
            let Err(script) = run(&["completion", shell]) else { panic!("a task was started") };
            assert_eq!((script.code, script.is_error), (0, false));
            assert!(script.text.contains("LINKERD_OPERATOR_COMPLETE"), "{}", script.text);
            assert!(script.text.contains("linkerd-operator") && script.text.contains(shell), "{}", script.text);
        }
        assert_eq!(run(&["completion", "csh"]).unwrap_err().code, 2);
    }

    #[test]
    fn visible_subcommands_flags_and_their_values_are_completed() {
        let completed = |line: &[&str]| -> Vec<String> {
            let line = ["linkerd-operator"].iter().chain(line).map(OsString::from).collect::<Vec<_>>();
            let last = line.len() - 1;
            let found = clap_complete::engine::complete(&mut Args::command(), line, last, None).unwrap();
            found.iter().map(|candidate| candidate.get_value().to_string_lossy().into_owned()).collect()
        };
        let commands = completed(&[""]);
        for command in ["status", "explain", "rollout", "check", "manager", "destination"] {
            assert!(commands.iter().any(|it| it == command), "{command}: {commands:?}");
        }
        assert!(!commands.iter().any(|it| it.starts_with('_')), "{commands:?}");
        assert_eq!(completed(&["exp"]), ["explain"]);
        assert_eq!(completed(&["check", "--linkerd-n"]), ["--linkerd-namespace"]);
        assert_eq!(completed(&["status", "-o", "y"]), ["yaml"]);
        assert_eq!(completed(&["rollout", "re"]), ["resume", "retry", "restart"]);
    }

    #[test]
    fn flags_without_a_command_and_before_it_are_rejected_and_not_ignored() {
        for bad in [&["--admin-addr", "127.0.0.1:1"][..], &["--admin-addr=127.0.0.1:1", "manager"]] {
            assert!(task(bad).is_err(), "{bad:?}");
        }
        assert_eq!(manager(&["--admin-addr", "127.0.0.1:2"]).unwrap().admin_addr.port(), 2);
    }

    #[test]
    fn the_help_of_all_commands_fits_on_a_screen() {
        let Err(help) = run(&[]) else { panic!("a task was started") };
        assert!(help.text.lines().count() <= 30, "{}", help.text);
    }

    #[test]
    fn the_last_value_of_a_repeated_flag_counts() {
        let args = manager(&["--admin-addr=127.0.0.1:1", "--admin-addr=127.0.0.1:2"]).unwrap();
        assert_eq!(args.admin_addr.port(), 2);
    }

    #[test]
    fn endpoints_connects_to_linkerds_destination_by_default() {
        let args = endpoints(&["web.prod.svc.cluster.local:80"]).unwrap();
        assert_eq!(args.authorities, ["web.prod.svc.cluster.local:80"]);
        assert_eq!((args.watch, args.output, args.token.as_str()), (false, OutputFormat::Table, ""));
        assert_eq!((args.connect.addr, args.connect.namespace.as_str()), (None, "linkerd"));
        assert_eq!(args.connect.selector, "linkerd.io/control-plane-component=destination");
    }

    #[test]
    fn endpoints_accepts_several_authorities_and_flags_anywhere() {
        let args =
            endpoints(&["a:1", "--watch", "-o", "json", "b:2", "--token", "{}", "--addr=localhost:8086"]).unwrap();
        assert_eq!(args.authorities, ["a:1", "b:2"]);
        assert_eq!((args.watch, args.output, args.token.as_str()), (true, OutputFormat::Json, "{}"));
        assert_eq!(args.connect.addr.as_deref(), Some("localhost:8086"));
    }

    #[test]
    fn endpoints_without_an_authority_or_with_a_bad_flag_is_rejected() {
        for bad in [&[][..], &["a", "-o", "xml"], &["a", "--addr", "localhost"], &["a", "--admin-addr=127.0.0.1:1"]] {
            assert!(endpoints(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn profile_accepts_exactly_one_authority() {
        let profile = |args: &[&str]| match task(&[&["profile"], args].concat())? {
            Task::Terminal(TerminalCommand::Profile(args)) => Ok(*args),
            other => Err(format!("{other:?}")),
        };
        let args = profile(&["10.0.0.1:80", "-w", "--token", "{}", "--addr=localhost:8086"]).unwrap();
        assert_eq!((args.authority.as_str(), args.watch, args.token.as_str()), ("10.0.0.1:80", true, "{}"));
        assert_eq!(args.connect.addr.as_deref(), Some("localhost:8086"));
        assert_eq!(profile(&["a", "-o", "yaml"]).unwrap().output, DocumentFormat::Yaml);
        for bad in [&[][..], &["a", "b"], &["a", "-o", "table"]] {
            assert!(profile(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn compare_accepts_two_addresses_and_authorities_or_all() {
        let compare = |args: &[&str]| match task(&[&["compare"], args].concat())? {
            Task::Terminal(TerminalCommand::Compare(args)) => Ok(*args),
            other => Err(format!("{other:?}")),
        };
        let args = compare(&["--addr=a:1", "--addr", "b:2", "web.prod:80", "10.0.0.1:80"]).unwrap();
        assert_eq!((args.addresses, args.all), (vec!["a:1".to_owned(), "b:2".to_owned()], false));
        assert_eq!(args.authorities, ["web.prod:80", "10.0.0.1:80"]);
        let args = compare(&["--all", "-o", "json"]).unwrap();
        assert_eq!((args.all, args.output), (true, OutputFormat::Json));
        for bad in [&[][..], &["--all", "a"], &["a", "--addr", "localhost"]] {
            assert!(compare(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn runbook_accepts_the_name_of_an_alert_in_any_case_or_none() {
        let runbook = |args: &[&str]| match task(&[&["runbook"], args].concat())? {
            Task::Terminal(TerminalCommand::Runbook(args)) => Ok(args.name),
            other => Err(format!("{other:?}")),
        };
        assert_eq!(runbook(&[]), Ok(None));
        for name in ["LinkerdConfigDenied", "linkerdconfigdenied"] {
            assert_eq!(runbook(&[name]).map(|it| it.map(|it| it.to_lowercase())), Ok(Some(name.to_lowercase())));
        }
        let error = runbook(&["LinkerdConfigDenyed"]).unwrap_err();
        assert!(error.contains("'LinkerdConfigDenied'"), "{error}");
        assert!(runbook(&["LinkerdConfigDenied", "LinkerdConfigStalled"]).is_err());
    }

    #[test]
    fn explain_accepts_a_name_or_a_file_or_neither() {
        let explain = |args: &[&str]| match task(&[&["explain"], args].concat())? {
            Task::Terminal(TerminalCommand::Explain(args)) => Ok(*args),
            other => Err(format!("{other:?}")),
        };
        let args = explain(&[]).unwrap();
        assert_eq!((args.name, args.file, args.all, args.output), (None, None, false, OutputFormat::Table));
        let args = explain(&["mesh", "--all", "-o", "json", "--kubeconfig=k"]).unwrap();
        assert_eq!((args.name.as_deref(), args.all, args.output), (Some("mesh"), true, OutputFormat::Json));
        assert!(args.cluster.kubeconfig.is_some());
        assert_eq!(explain(&["-f", "-"]).unwrap().file.as_deref(), Some(std::path::Path::new("-")));
        for bad in [&["a", "b"][..], &["a", "-f", "b"], &["-o", "xml"], &["--addr=localhost:1"]] {
            assert!(explain(bad).is_err(), "{bad:?}");
        }
    }
}
