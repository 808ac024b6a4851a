//! Parses the arguments, sets up logging and the crypto provider, then runs [`linkerd_operator::manager`] or a command
//! of [`linkerd_operator::cli`].

use std::{
    io::{self, Write},
    process::ExitCode,
};

use linkerd_operator::{
    args::{Args, LogFormat, ManagerArgs, Task, USAGE},
    cli, client, manager,
    text::log_lines::LogLines,
};
use tokio::runtime::Builder;
use tracing_subscriber::{EnvFilter, filter::ParseError};

/// The threads that plan EndpointSlices and resolve host names. A plan or a name waits until one is free. They are few,
/// because the allocator keeps memory for each thread.
const BLOCKING_THREADS: usize = 8;

fn main() -> ExitCode {
    // rustls panics if several crypto providers are compiled in and none is installed. Only a second call could fail.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let task = match Args::from_process().task() {
        Ok(task) => task,
        Err(exit) => {
            // A reader that has exited, as `head` does, is no error. `print!` would panic.
            let _ = match exit.is_error {
                true => io::stderr().write_all(exit.text.as_bytes()),
                false => io::stdout().write_all(exit.text.as_bytes()),
            };
            return ExitCode::from(exit.code);
        }
    };
    match task {
        Task::Manager(args) => manager(*args),
        Task::Terminal(command) => terminal(cli::run(command)),
        Task::Version(args) => terminal(cli::version(args)),
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

/// Runs a terminal command, which prints its own output and errors.
fn terminal(command: impl Future<Output = ExitCode>) -> ExitCode {
    let ended = log("warn", LogFormat::Plain).map_err(anyhow::Error::from);
    let ended = ended.and_then(|()| Ok(run(&mut Builder::new_current_thread(), command)?));
    ended.unwrap_or_else(|error| {
        eprintln!("error: {error}");
        ExitCode::FAILURE
    })
}

fn run(runtime: &mut Builder, task: impl Future<Output = ExitCode>) -> io::Result<ExitCode> {
    Ok(runtime.enable_all().max_blocking_threads(BLOCKING_THREADS).build()?.block_on(task))
}

fn log(level: &str, format: LogFormat) -> Result<(), ParseError> {
    // kube logs every denied list or watch at warn, and every 5xx response at error. `/ready` and the operator's own
    // log line for each change report them once. It logs each connection at warn whose kubeconfig has
    // insecure-skip-tls-verify. It logs each answer at warn that it cannot decode, with the tokens and Secrets in it.
    let kube = "kube_runtime=error,kube_client::client=error,kube_client::client::builder=off";
    // h2 logs single frames of clients at warn. The library would read a space as a part of the name of a module.
    let directives: Vec<&str> = [kube, "h2=error"].into_iter().chain(level.split(',').map(str::trim)).collect();
    let filter = EnvFilter::try_new(directives.join(","))?;
    let subscriber = tracing_subscriber::fmt().with_env_filter(filter).with_writer(|| LogLines);
    match format {
        LogFormat::Plain => subscriber.with_ansi(false).init(),
        LogFormat::Json => subscriber.json().flatten_event(true).init(),
    }
    Ok(())
}
