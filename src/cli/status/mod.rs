//! `linkerd-operator status` prints the state of each LinkerdConfig on one screen, with what to do next.
//!
//! In: the LinkerdConfigs and the operator's Lease, which it only reads. Out: text, or the document of the dashboard.
//! Always holds: what needs attention is first; with `--watch`, a failed read is printed and retried.

mod print;

use std::{
    io::{IsTerminal, stdout},
    process::ExitCode,
    time::Duration,
};

use anyhow::Result;
use clap::Args as ClapArgs;
use clap_complete::ArgValueCompleter;
use k8s_openapi::{api::coordination::v1::Lease, jiff::Timestamp};
use kube::{Api, Client};
use serde::Serialize;
use tokio::time::sleep;

use super::{
    OutputFormat,
    cluster_flags::ClusterFlags,
    completion::CompletedName,
    configs,
    terminal::{note, until_interrupted, write},
};
use crate::{
    client,
    cluster::{index::active_config, kinds::linkerd_config::LinkerdConfig},
    linkerd_config,
    summary::ConfigSummary,
};

const INTERVAL: Duration = Duration::from_secs(2);
/// Moves the cursor to the first line and deletes what is below.
const CLEAR: &str = "\x1b[H\x1b[2J";

#[derive(Clone, Debug, ClapArgs)]
pub struct StatusArgs {
    /// Name of the LinkerdConfig; if absent, all
    #[arg(value_name = "NAME", add = ArgValueCompleter::new(CompletedName::LinkerdConfig))]
    pub name: Option<String>,

    /// Print the status again when it changes, until Ctrl-C
    #[arg(long, short)]
    pub watch: bool,

    /// Output format
    #[arg(long, short, value_name = "FORMAT", default_value = "table")]
    pub output: OutputFormat,

    #[command(flatten)]
    pub cluster: ClusterFlags,
}

/// The state of the LinkerdConfigs.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct StatusDocument {
    linkerd_configs: Vec<ConfigSummary>,
    /// The holder of the operator's Lease, or why it is not known.
    leader: String,
    /// Whether a replica leads; absent if it is not known. If none does, nothing here is current.
    #[serde(skip_serializing_if = "Option::is_none")]
    has_leader: Option<bool>,
}

pub(super) async fn status(args: StatusArgs) -> Result<ExitCode> {
    let client = args.cluster.client()?;
    if !args.watch {
        let document = read(&client, args.name.as_deref()).await?;
        write(&args.output.print(&document, || print::text(&document))?)?;
        return Ok(ExitCode::SUCCESS);
    }
    let clears = stdout().is_terminal() && args.output.document().is_none();
    until_interrupted(async {
        let mut printed = String::new();
        loop {
            match read(&client, args.name.as_deref()).await {
                Ok(document) => {
                    let text = match args.output.document() {
                        None => print::text(&document),
                        Some(format) => format.next(&document)?,
                    };
                    if text != printed {
                        if clears {
                            print!("{CLEAR}");
                        }
                        write(&text)?;
                        printed = text;
                    }
                }
                Err(error) => note(format_args!("error: {}; retrying", client::describe(&*error))),
            }
            sleep(INTERVAL).await;
        }
    })
    .await
}

async fn read(client: &Client, name: Option<&str>) -> Result<StatusDocument> {
    let state = configs::all(client).await?;
    let mut found: Vec<_> = match name {
        Some(name) => vec![configs::named(&state, Some(name))?],
        None => state.linkerd_configs.iter().cloned().collect(),
    };
    found.sort_unstable_by(|one, other| one.name.cmp(&other.name));
    let now = Timestamp::now();
    let summary = |config: &LinkerdConfig| {
        let in_effect = active_config::is_active(&state.linkerd_configs, &config.target, &config.name);
        ConfigSummary::new(config, in_effect, now)
    };
    let mut linkerd_configs: Vec<_> = found.iter().map(|config| summary(config)).collect();
    linkerd_configs.sort_by_key(|it| (!it.in_effect, std::cmp::Reverse(it.attention)));
    let namespace = found.first().map_or("linkerd", |config| &*config.target.namespace);
    let (leader, has_leader) = leader(client, namespace, now).await;
    Ok(StatusDocument { linkerd_configs, leader, has_leader })
}

/// Returns the replica that holds the operator's Lease, in words, and whether one does.
async fn leader(client: &Client, namespace: &str, now: Timestamp) -> (String, Option<bool>) {
    let leases: Api<Lease> = Api::namespaced(client.clone(), namespace);
    match leases.get_opt(linkerd_config::LEASE).await {
        Err(error) => (format!("unknown: {}", client::describe(&error)), None),
        Ok(lease) => match print::leader(lease.and_then(|lease| lease.spec), now) {
            Ok(holder) => (holder, Some(true)),
            Err(why) => (why, Some(false)),
        },
    }
}
