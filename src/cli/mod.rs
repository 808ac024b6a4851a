//! The terminal commands. They print the endpoints and profiles that the Destination API sends to a proxy, the
//! differences between two servers, the changes that a LinkerdConfig would make, its status, whether the installation
//! works, what proxies trust, and what to do about an alert. `rollout` drives a rollout, and `dashboard` forwards a port to the dashboard.
//!
//! In: arguments. Out: the result on standard output, everything else on standard error, an exit code. Always holds: a
//! command runs on one thread, and ends with a result or an error in bounded time, except with `--watch` and for
//! `dashboard`, which run until Ctrl-C. A refused authority is printed as `Destination API error: <message>`, with exit
//! code 1.

mod authority_form;
mod check;
mod cluster_flags;
mod compare;
mod completion;
mod configs;
mod connect;
mod dashboard;
mod explain;
mod format;
mod linked_clusters;
mod no_endpoints;
mod output;
mod rollout;
mod runbook;
mod status;
mod streams;
mod terminal;
mod trust;
mod version;

use std::{io, process::ExitCode};

use anyhow::{Result, bail};
use clap::{Args as ClapArgs, Subcommand};
use futures::future::join_all;
use k8s_openapi::jiff::Timestamp;

use crate::{
    client,
    destination_client::{
        DestinationError,
        endpoints::{EndpointsState, with_clusters},
        profile::ProfileState,
    },
};
use authority_form::without_repetitions;
pub use check::CheckArgs;
pub use compare::CompareArgs;
pub use connect::ConnectArgs;
use connect::Connector;
pub use dashboard::DashboardArgs;
pub use explain::ExplainArgs;
pub use format::{DocumentFormat, OutputFormat};
use output::{ChangeDocument, ChangeTable, TableStyle};
pub use rollout::RolloutCommand;
pub use runbook::RunbookArgs;
pub use status::StatusArgs;
use streams::{FIRST_ANSWER, FirstAnswer};
use terminal::{note, until_interrupted, write};
pub use trust::TrustArgs;
pub use version::VersionArgs;

/// The exit code of a command that failed.
const FAILURE: u8 = 1;

/// A command that prints and exits.
#[derive(Clone, Debug, Subcommand)]
pub enum TerminalCommand {
    /// Prints whether the configuration is in effect, the rollout, and what to do next
    #[command(args_override_self = true)]
    Status(Box<StatusArgs>),
    /// Prints what a LinkerdConfig would change, and the source of each value
    #[command(args_override_self = true)]
    Explain(Box<ExplainArgs>),
    /// Pauses, resumes, retries, promotes or aborts a rollout, or restarts one workload
    #[command(subcommand)]
    Rollout(Box<RolloutCommand>),
    /// Verifies the installation; `linkerd check` includes it
    #[command(args_override_self = true)]
    Check(Box<CheckArgs>),
    /// Prints who trusts which root, and the next step of a rotation
    #[command(args_override_self = true)]
    Trust(Box<TrustArgs>),
    /// Opens the dashboard, a read-only page, through a port-forward
    #[command(args_override_self = true)]
    Dashboard(Box<DashboardArgs>),
    /// Prints what to do about an alert, or lists the alerts
    Runbook(RunbookArgs),
    /// Prints the endpoints that a proxy receives
    #[command(visible_alias = "ep", args_override_self = true)]
    Endpoints(Box<EndpointsArgs>),
    /// Prints the profile that a proxy receives
    #[command(args_override_self = true)]
    Profile(Box<ProfileArgs>),
    /// Compares the answers of two Destination servers
    ///
    /// Compares the endpoints and profiles that two servers send, such as the operator and Linkerd before a replacement;
    /// exits with 0 if they are equal, with 1 if they differ, and with 2 if an answer is missing
    #[command(args_override_self = true)]
    Compare(Box<CompareArgs>),
    /// Describes this extension to Linkerd's command line
    #[command(name = "_extension-metadata", hide = true)]
    ExtensionMetadata,
}

#[derive(Clone, Debug, ClapArgs)]
pub struct EndpointsArgs {
    /// Authority that a proxy resolves, such as web.prod.svc.cluster.local:8080; the default port is 80
    #[arg(required = true, value_name = "AUTHORITY")]
    pub authorities: Vec<String>,

    /// Keep running and print every change when it arrives: lines with the time, or one document per change
    #[arg(long, short)]
    pub watch: bool,

    /// Output format
    #[arg(long, short, value_name = "FORMAT", default_value = "table")]
    pub output: OutputFormat,

    /// Leave out the headers of the tables
    #[arg(long)]
    pub no_headers: bool,

    /// Context token of the request, such as {"nodeName":"node-1"}: endpoints may depend on the client's node
    #[arg(long, value_name = "TOKEN", default_value = "", hide_default_value = true)]
    pub token: String,

    #[command(flatten)]
    pub connect: ConnectArgs,
}

#[derive(Clone, Debug, ClapArgs)]
pub struct ProfileArgs {
    /// Authority that a proxy resolves: a name, such as web.prod.svc.cluster.local:8080, or an address of a Service, a
    /// Pod or another host, such as 10.20.2.4:8080; the default port is 80
    #[arg(value_name = "AUTHORITY|IP:PORT")]
    pub authority: String,

    /// Keep running and print every change when it arrives, with the time: one document per change
    #[arg(long, short)]
    pub watch: bool,

    /// Output format
    #[arg(long, short, value_name = "FORMAT", default_value = "json")]
    pub output: DocumentFormat,

    /// Context token of the request, such as {"ns":"prod"}: a ServiceProfile in the client's namespace takes precedence
    #[arg(long, value_name = "TOKEN", default_value = "", hide_default_value = true)]
    pub token: String,

    #[command(flatten)]
    pub connect: ConnectArgs,
}

/// Runs a command. Prints its output and its errors.
pub async fn run(command: TerminalCommand) -> ExitCode {
    let mut failure = FAILURE;
    let result = match command {
        TerminalCommand::Status(args) => status::status(*args).await,
        TerminalCommand::Explain(args) => {
            failure = if args.exit_code { explain::FAILED } else { FAILURE };
            explain::explain(*args).await
        }
        TerminalCommand::Rollout(command) => rollout::rollout(*command).await,
        TerminalCommand::Check(args) => check::check(*args).await,
        TerminalCommand::Trust(args) => trust::trust(*args).await,
        TerminalCommand::Dashboard(args) => dashboard::dashboard(*args).await,
        TerminalCommand::Runbook(args) => runbook::runbook(&args),
        TerminalCommand::Endpoints(args) if args.watch => watch_endpoints(*args).await,
        TerminalCommand::Endpoints(args) => print_endpoints(*args).await,
        TerminalCommand::Profile(args) if args.watch => watch_profile(*args).await,
        TerminalCommand::Profile(args) => print_profile(*args).await,
        TerminalCommand::Compare(args) => {
            failure = compare::FAILED;
            compare::compare(*args).await
        }
        TerminalCommand::ExtensionMetadata => check::extension_metadata(),
    };
    exit_with(failure, result)
}

/// Runs `linkerd-operator version`.
pub async fn version(args: VersionArgs) -> ExitCode {
    exit_with(FAILURE, version::version(args))
}

/// Prints the current endpoints of all authorities.
async fn print_endpoints(args: EndpointsArgs) -> Result<ExitCode> {
    let (authorities, token) = (without_repetitions(args.authorities), with_clusters(&args.token));
    let connector = Connector::new(args.connect)?;
    let destination = connector.destination().await?;
    let requests =
        authorities.iter().map(|authority| streams::first_answer::<EndpointsState>(&destination, authority, &token));
    let linked = async {
        match connector.pod_port() {
            Some(pod_port) => linked_clusters::problems(pod_port, &authorities).await,
            None => Vec::new(),
        }
    };
    let (answers, problems) = tokio::join!(join_all(requests), linked);
    let mut code = ExitCode::SUCCESS;
    let (mut found, mut answered) = (Vec::new(), false);
    for (authority, answer) in authorities.iter().zip(&answers) {
        match answer {
            FirstAnswer::Refused(refused) => {
                code = ExitCode::FAILURE;
                note(refused);
                continue;
            }
            FirstAnswer::State(endpoints) => {
                let before = found.len();
                found.extend(endpoints.known());
                if found.len() == before {
                    let exists = endpoints.none().is_none_or(|none| none.exists);
                    let why = match connector.client().filter(|_| exists) {
                        Some(client) => no_endpoints::reason(client, authority).await,
                        None => None,
                    };
                    note(match (exists, why) {
                        (false, _) => format!("No endpoints found for {authority}: the Service does not exist."),
                        (true, None) => format!("No endpoints found for {authority}: the Service has none."),
                        (true, Some(why)) => {
                            format!("No endpoints found for {authority}: the Service has none: {why}.")
                        }
                    });
                } else if let Some(client) = connector.client()
                    && let Some(why) = no_endpoints::other_protocol(client, authority).await
                {
                    note(format_args!("{authority}: {why}."));
                }
            }
            FirstAnswer::Silence => {
                let seconds = FIRST_ANSWER.as_secs();
                let hint = match connector.pod_port() {
                    Some(_) => "",
                    None => " If they are in another cluster, /ready of the server says what is wrong.",
                };
                note(format_args!(
                    "No endpoints found for {authority}: the server sent none within {seconds} s.{hint}"
                ));
            }
        }
        answered = true;
    }
    for problem in problems {
        note(problem);
    }
    if answered {
        let found = output::sorted(found);
        let style = TableStyle { wide: args.output == OutputFormat::Wide, no_headers: args.no_headers };
        write(&args.output.print(&found, || output::table(&found, style))?)?;
    }
    Ok(code)
}

/// Prints the changes of all endpoints until Ctrl-C.
async fn watch_endpoints(args: EndpointsArgs) -> Result<ExitCode> {
    let (authorities, token) = (without_repetitions(args.authorities), with_clusters(&args.token));
    let connector = Connector::new(args.connect)?;
    let mut changes = ChangeTable::new(args.no_headers);
    until_interrupted(streams::watch::<EndpointsState>(&connector, &authorities, &token, |authority, change| {
        let now = Timestamp::now();
        write(&match args.output.document() {
            None => changes.lines(now, authority, change),
            Some(format) => format.next(&ChangeDocument::new(now, authority, change))?,
        })
    }))
    .await
}

/// Prints the current profile.
async fn print_profile(args: ProfileArgs) -> Result<ExitCode> {
    let destination = Connector::new(args.connect)?.destination().await?;
    match streams::first_answer::<ProfileState>(&destination, &args.authority, &args.token).await {
        FirstAnswer::State(profile) => write(&args.output.print(&profile.known())?)?,
        FirstAnswer::Silence => bail!(
            "received no profile of {} within {} s; \
             Linkerd's destination sends none if a ServiceProfile is invalid",
            args.authority,
            FIRST_ANSWER.as_secs()
        ),
        FirstAnswer::Refused(refused) => return Err(refused.into()),
    }
    Ok(ExitCode::SUCCESS)
}

/// Prints the changes of the profile until Ctrl-C.
async fn watch_profile(args: ProfileArgs) -> Result<ExitCode> {
    let connector = Connector::new(args.connect)?;
    until_interrupted(streams::watch::<ProfileState>(
        &connector,
        &[args.authority],
        &args.token,
        |authority, profile| write(&args.output.next(&ChangeDocument::new(Timestamp::now(), authority, profile))?),
    ))
    .await
}

/// Prints an error, which ends the command with this code.
fn exit_with(failure: u8, result: Result<ExitCode>) -> ExitCode {
    let error = match result {
        Ok(code) => return code,
        Err(error) => error,
    };
    // The reader of the pipe has exited, as `head` does. This is not an error.
    if error.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe) {
        return ExitCode::SUCCESS;
    }
    match error.downcast_ref::<DestinationError>() {
        Some(refused) => note(refused),
        None => note(format_args!("error: {}", client::describe(&*error))),
    }
    ExitCode::from(failure)
}
