//! Arguments, logging, the crypto provider; then [`linkerd_operator::manager`].

use std::process::ExitCode;

use clap::Parser;
use linkerd_operator::{
    args::{Args, LogFormat, ManagerArgs},
    client, manager,
};
use tracing_subscriber::EnvFilter;

/// Bad usage, as in sysexits.h.
const USAGE: u8 = 64;

fn main() -> ExitCode {
    let args = match Args::parse().settings() {
        Ok(args) => args,
        Err(error) => {
            eprintln!("error: {error}");
            return ExitCode::from(USAGE);
        }
    };
    if let Err(error) = log(&args) {
        eprintln!("error: --log-level {:?}: {error}", args.log_level);
        return ExitCode::from(USAGE);
    }
    // Two providers in one tree make rustls panic unless one is chosen; only the first call can fail.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            tracing::error!(%error, "cannot start the runtime");
            return ExitCode::FAILURE;
        }
    };
    match runtime.block_on(manager::run(args)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!("{}", client::describe(&*error));
            ExitCode::FAILURE
        }
    }
}

fn log(args: &ManagerArgs) -> Result<(), tracing_subscriber::filter::ParseError> {
    // kube logs each denied list and watch at warn and each answer of 5xx at error, every time; `/ready` and our own line per
    // change say it once.
    let filter = EnvFilter::try_new(format!("kube_runtime=error,kube_client::client::builder=off,{}", args.log_level))?;
    let subscriber = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    match args.log_format {
        LogFormat::Plain => subscriber.with_ansi(false).init(),
        LogFormat::Json => subscriber.json().flatten_event(true).init(),
    }
    Ok(())
}
