//! `linkerd-operator rollout` drives the rollout of a LinkerdConfig: pause, resume, retry, promote, abort, restart.
//!
//! In: a command, the LinkerdConfig. Out: one merge patch with the rights of the user, and a line that names the
//! change. Always holds: a command that would change nothing writes nothing and says so; a dry run is validated by the
//! API server.

mod change;
mod restart;

use std::{process::ExitCode, time::Duration};

use anyhow::{Context, Result, bail};
use clap::{Args as ClapArgs, Subcommand};
use clap_complete::ArgValueCompleter;
use k8s_openapi::jiff::Timestamp;
use kube::{
    Api, Client,
    api::{Patch, PatchParams},
};
use tokio::time::{Instant, sleep};

use self::change::{ConfigChange, Steps};
use super::{
    cluster_flags::ClusterFlags,
    completion::CompletedName,
    configs,
    status::{self, StatusArgs},
    terminal::{note, write},
};
use crate::{api, cluster::kinds::linkerd_config::LinkerdConfig};

/// Returns what a command changes.
type ChangeOf = fn(&LinkerdConfig, Timestamp) -> Result<Steps>;

/// The field manager of these commands.
const FIELD_MANAGER: &str = "linkerd-operator-cli";
/// The time in which a running operator sees that an annotation was removed.
const REMOVAL_DEADLINE: Duration = Duration::from_secs(30);
const POLL_INTERVAL: Duration = Duration::from_millis(250);

#[derive(Clone, Debug, Subcommand)]
pub enum RolloutCommand {
    /// Begins no further restart; one that has begun ends
    Pause(RolloutArgs),
    /// Continues a rollout that was paused or aborted
    Resume(RolloutArgs),
    /// Retries the workloads that failed, or a configuration that was rolled back or denied
    Retry(RolloutArgs),
    /// Gives the configuration of the canary namespaces to all namespaces
    Promote(RolloutArgs),
    /// Stops all writes and restarts, by mode Suspend; the ConfigMap stays as it is
    Abort(RolloutArgs),
    /// Restarts one workload, as kubectl rollout restart does
    Restart(RestartArgs),
    /// The same as linkerd-operator status
    #[command(hide = true)]
    Status(StatusArgs),
}

#[derive(Clone, Debug, ClapArgs)]
pub struct RolloutArgs {
    /// Name of the LinkerdConfig; if absent, the one in effect for the ConfigMap linkerd-config in the namespace
    /// linkerd
    #[arg(value_name = "NAME", add = ArgValueCompleter::new(CompletedName::LinkerdConfig))]
    name: Option<String>,

    #[command(flatten)]
    how: WriteFlags,
}

#[derive(Clone, Debug, ClapArgs)]
pub struct RestartArgs {
    /// The workload, such as shop/deployment/web; the kind is a Deployment, StatefulSet or DaemonSet
    #[arg(value_name = "NAMESPACE/KIND/NAME", add = ArgValueCompleter::new(CompletedName::Workload))]
    workload: restart::WorkloadName,

    #[command(flatten)]
    how: WriteFlags,
}

#[derive(Clone, Debug, ClapArgs)]
pub(super) struct WriteFlags {
    /// Print what would change. The API server validates the change and stores nothing
    #[arg(long)]
    dry_run: bool,

    #[command(flatten)]
    cluster: ClusterFlags,
}

pub(super) async fn rollout(command: RolloutCommand) -> Result<ExitCode> {
    let (args, change): (_, ChangeOf) = match command {
        RolloutCommand::Pause(args) => (args, change::pause),
        RolloutCommand::Resume(args) => (args, change::resume),
        RolloutCommand::Retry(args) => (args, change::retry),
        RolloutCommand::Promote(args) => (args, change::promote),
        RolloutCommand::Abort(args) => (args, change::abort),
        RolloutCommand::Restart(args) => {
            let client = args.how.cluster.client()?;
            return restart::restart(&client, &args.workload, &args.how.params()).await;
        }
        RolloutCommand::Status(args) => return status::status(args).await,
    };
    let client = args.how.cluster.client()?;
    let config = configs::named(&configs::all(&client).await?, args.name.as_deref())?;
    let steps = match change(&config, Timestamp::now())? {
        Steps::None(why) => {
            note(format_args!("nothing to do for LinkerdConfig {}: {why}", config.name));
            return Ok(ExitCode::SUCCESS);
        }
        Steps::One(change) => vec![change],
        Steps::RemoveFirst(removal, change) if args.how.dry_run => vec![removal, change],
        Steps::RemoveFirst(removal, change) => {
            apply(&client, &config.name, &removal, &args.how.params()).await?;
            until_promotion_is_open(&client, &config.name).await?;
            vec![change]
        }
    };
    for change in &steps {
        apply(&client, &config.name, change, &args.how.params()).await?;
    }
    Ok(ExitCode::SUCCESS)
}

async fn apply(client: &Client, name: &str, change: &ConfigChange, params: &PatchParams) -> Result<()> {
    let configs: Api<api::LinkerdConfig> = Api::all(client.clone());
    let patched = configs.patch(name, params, &Patch::Merge(&change.patch)).await;
    let patched = patched.with_context(|| format!("cannot change LinkerdConfig {name}"))?;
    let dry_run = if params.dry_run { " (dry run)" } else { "" };
    write(&format!("linkerdconfig/{name}: {}{dry_run}\n", change.what))?;
    if let Some(tool) = change.is_desired_state.then(|| gitops_tool(&patched)).flatten() {
        note(format_args!("{tool} manages this resource and may revert the change: make it in its source too"));
    }
    Ok(())
}

/// Returns the GitOps tool that the metadata of a resource names.
fn gitops_tool(config: &api::LinkerdConfig) -> Option<&'static str> {
    let metadata = &config.metadata;
    let has = |key: &str| {
        let of = |keys: &Option<std::collections::BTreeMap<String, String>>| {
            keys.as_ref().is_some_and(|keys| keys.contains_key(key))
        };
        of(&metadata.labels) || of(&metadata.annotations)
    };
    [
        ("argocd.argoproj.io/tracking-id", "Argo CD"),
        ("argocd.argoproj.io/instance", "Argo CD"),
        ("kustomize.toolkit.fluxcd.io/name", "Flux"),
        ("helm.toolkit.fluxcd.io/name", "Flux"),
    ]
    .into_iter()
    .find(|(key, _)| has(key))
    .map(|(_, tool)| tool)
}

/// Waits until the operator has seen that the annotation of an earlier promotion is gone.
async fn until_promotion_is_open(client: &Client, name: &str) -> Result<()> {
    let configs: Api<api::LinkerdConfig> = Api::all(client.clone());
    let deadline = Instant::now() + REMOVAL_DEADLINE;
    loop {
        let config = configs.get(name).await.with_context(|| format!("cannot read LinkerdConfig {name}"))?;
        let canary = config.status.and_then(|status| status.canary);
        if canary.and_then(|canary| canary.promote_ignored) != Some(true) {
            return Ok(());
        }
        if Instant::now() > deadline {
            bail!(
                "no operator has seen within {} s that the annotation of the last promotion was removed: run \
                 linkerd-operator check, then promote again",
                REMOVAL_DEADLINE.as_secs()
            );
        }
        sleep(POLL_INTERVAL).await;
    }
}

// === impl WriteFlags ===

impl WriteFlags {
    fn params(&self) -> PatchParams {
        PatchParams { dry_run: self.dry_run, field_manager: Some(FIELD_MANAGER.to_owned()), ..PatchParams::default() }
    }
}
