//! `linkerd-operator trust` prints what the proxies of a mesh trust, and the next step of a rotation of its roots.
//!
//! In: a cluster, which is only read; the operator need not be installed. Out: a [`TrustReport`], and exit code 1 if
//! connections are refused or will be, 2 for a warning, such as a certificate that ends soon. The LinkerdTrust of
//! the mesh declares the roots, if there is one. `new`, `issuer` and `bridge` write files on this machine, and read no
//! cluster. Always holds: no private key is printed, and the key in the Secret is skipped.

mod authority;
mod cert_manager;
mod links;
mod obstacles;
mod plan;
mod print;
mod probe;
mod read;

use std::process::ExitCode;

use anyhow::Result;
use clap::{Args as ClapArgs, Subcommand};
use clap_complete::ArgValueCompleter;

use self::{
    authority::{BridgeArgs, IssuerArgs, NewRootArgs},
    plan::PlanArgs,
    probe::ProbeArgs,
};
use super::{OutputFormat, cluster_flags::ClusterFlags, completion::CompletedName, terminal::write};
use crate::trust::{TrustReport, problems::TrustVerdict};

/// The exit code for a warning.
const WARNING: u8 = 2;

#[derive(Clone, Debug, ClapArgs)]
#[command(args_conflicts_with_subcommands = true)]
pub struct TrustArgs {
    #[command(subcommand)]
    pub command: Option<TrustCommand>,

    /// Namespace of Linkerd's control plane
    #[arg(long, short, value_name = "NAME", default_value = "linkerd", add = ArgValueCompleter::new(CompletedName::Namespace))]
    pub namespace: String,

    /// Output format
    #[arg(long, short, value_name = "FORMAT", default_value = "table")]
    pub output: OutputFormat,

    #[command(flatten)]
    pub cluster: ClusterFlags,
}

#[derive(Clone, Debug, Subcommand)]
pub enum TrustCommand {
    /// Makes a root, its issuer, and a bridge from the old root
    New(NewRootArgs),
    /// Makes an issuer under a root
    Issuer(IssuerArgs),
    /// Signs a new root with the key of the old one, so that no proxy has to restart
    Bridge(BridgeArgs),
    /// Prints the steps to the trust anchors of a LinkerdTrust in a file, and the restarts that they need
    Plan(PlanArgs),
    /// Prints the certificate that a proxy presents, the roots that verify it, and whether the proxy accepts an issuer
    Probe(Box<ProbeArgs>),
}

pub(super) async fn trust(args: TrustArgs) -> Result<ExitCode> {
    match args.command {
        Some(TrustCommand::New(new)) => authority::new_root(&new),
        Some(TrustCommand::Issuer(issuer)) => authority::new_issuer(&issuer),
        Some(TrustCommand::Bridge(bridge)) => authority::write_bridge(&bridge),
        Some(TrustCommand::Plan(args)) => plan::plan(&args).await,
        Some(TrustCommand::Probe(args)) => probe::probe(&args).await,
        None => {
            let client = args.cluster.client()?;
            let declared = read::declared(&client, &args.namespace).await;
            let mut seen = read::read(&client, &args.namespace, declared.as_ref()).await?;
            let mut report = TrustReport::new(&seen);
            let deleted =
                std::mem::replace(&mut seen.proxies.obstacles, obstacles::obstacles(&client, &report.behind).await);
            seen.proxies.obstacles.extend(deleted);
            if !seen.proxies.obstacles.is_empty() {
                report = TrustReport::new(&seen);
            }
            let wide = args.output == OutputFormat::Wide;
            let text = || print::text(&report, seen.now, wide) + &print::observed(declared.as_ref());
            write(&args.output.print(&report, text)?)?;
            Ok(match report.verdict {
                TrustVerdict::Good => ExitCode::SUCCESS,
                TrustVerdict::Warning => ExitCode::from(WARNING),
                TrustVerdict::Broken => ExitCode::FAILURE,
            })
        }
    }
}
