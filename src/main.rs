//! Arguments, logging, the crypto provider; then [`linkerd_operator::manager`], or a command of [`linkerd_operator::cli`].

use std::{io, process::ExitCode};

use linkerd_operator::{
    args::{Args, LogFormat, ManagerArgs, Task, USAGE},
    cli, client, manager,
};
use tokio::runtime::Builder;
use tracing_subscriber::{EnvFilter, filter::ParseError};

fn main() -> ExitCode {
    let task = match Args::from_process().task() {
        Ok(task) => task,
        Err(exit) => {
            match exit.is_error {
                true => eprint!("{}", exit.text),
                false => print!("{}", exit.text),
            }
            return ExitCode::from(exit.code);
        }
    };
    // Two providers in one tree make rustls panic unless one is chosen; only the first call can fail.
    let _ = rustls::crypto::ring::default_provider().install_default();
    match task {
        Task::Manager(args) => manager(*args),
        Task::Endpoints(args) => terminal(cli::endpoints(*args)),
        Task::Profile(args) => terminal(cli::profile(*args)),
        Task::Explain(args) => terminal(cli::explain(*args)),
    }
}

fn manager(args: ManagerArgs) -> ExitCode {
    if let Err(error) = log(&args.log_level, args.log_format) {
        eprintln!("error: --log-level {:?}: {error}", args.log_level);
        return ExitCode::from(USAGE);
    }
    let ended = run(&mut Builder::new_multi_thread(), async {
        match manager::run(args).await {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                tracing::error!("{}", client::describe(&*error));
                ExitCode::FAILURE
            }
        }
    });
    ended.unwrap_or_else(|error| {
        tracing::error!(%error, "cannot start the runtime");
        ExitCode::FAILURE
    })
}

/// A command whose output is for people: it says the rest itself.
fn terminal(command: impl Future<Output = ExitCode>) -> ExitCode {
    let ended = log("warn", LogFormat::Plain).map_err(anyhow::Error::from);
    let ended = ended.and_then(|()| Ok(run(&mut Builder::new_current_thread(), command)?));
    ended.unwrap_or_else(|error| {
        eprintln!("error: {error}");
        ExitCode::FAILURE
    })
}

fn run(runtime: &mut Builder, task: impl Future<Output = ExitCode>) -> io::Result<ExitCode> {
    Ok(runtime.enable_all().build()?.block_on(task))
}

fn log(level: &str, format: LogFormat) -> Result<(), ParseError> {
    // kube logs each denied list and watch at warn and each answer of 5xx at error, every time; `/ready` and our own line per
    // change say it once.
    let filter = EnvFilter::try_new(format!("kube_runtime=error,kube_client::client::builder=off,{level}"))?;
    let subscriber = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    match format {
        LogFormat::Plain => subscriber.with_ansi(false).init(),
        LogFormat::Json => subscriber.json().flatten_event(true).init(),
    }
    Ok(())
}
