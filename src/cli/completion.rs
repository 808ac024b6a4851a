//! Completes names of the cluster in a shell.
//!
//! In: the word that is typed, the flags of the command line that select a cluster. Out: at most [`MOST`] names. Always
//! holds: the cluster is only read; after [`DEADLINE`] there is an answer, which is empty if the names could not be
//! read; no error is printed into the command line.

use std::{
    env,
    ffi::{OsStr, OsString},
    sync::mpsc,
    thread,
    time::Duration,
};

use anyhow::Result;
use clap::Parser;
use clap_complete::engine::{CompletionCandidate, ValueCompleter};
use futures::future::try_join_all;
use k8s_openapi::api::core::v1::Namespace;
use kube::{
    Api, Client,
    api::{ApiResource, DynamicObject, GroupVersionKind, ListParams},
};
use serde::de::DeserializeOwned;
use tokio::runtime::Builder;

use super::cluster_flags::ClusterFlags;
use crate::api::{self, is_dns_name, linkerd_config::RolloutKind};

const DEADLINE: Duration = Duration::from_secs(2);
/// The maximum number of names. A person types more letters rather than reads more names.
const MOST: usize = 200;
/// The maximum number of objects of a kind that are read.
const PAGE: u32 = 1000;
/// The flags that select a cluster and a user.
const CLUSTER_FLAGS: [&str; 4] = ["--kubeconfig", "--context", "--as", "--as-group"];

/// The kind of object that the value of an argument names.
#[derive(Clone, Copy, Debug)]
pub(super) enum CompletedName {
    LinkerdConfig,
    Namespace,
    /// `NAMESPACE/KIND/NAME`.
    Workload,
}

/// The part of a command line that selects a cluster.
#[derive(Parser)]
#[command(no_binary_name = true, args_override_self = true)]
struct ClusterOfLine {
    #[command(flatten)]
    cluster: ClusterFlags,
}

// === impl CompletedName ===

impl ValueCompleter for CompletedName {
    fn complete(&self, current: &OsStr) -> Vec<CompletionCandidate> {
        let (Some(current), Some(cluster)) = (current.to_str(), cluster_of(line(env::args_os()))) else {
            return Vec::new();
        };
        matching(self.within_deadline(cluster, current.to_owned()), current)
    }
}

impl CompletedName {
    /// Reads the names on another thread, because a kubeconfig can start a program that does not end in time.
    fn within_deadline(self, cluster: ClusterFlags, current: String) -> Vec<String> {
        let (sender, receiver) = mpsc::channel();
        let reader = thread::Builder::new().spawn(move || {
            let runtime = Builder::new_current_thread().enable_all().build();
            let names = runtime.map_err(Into::into).and_then(|it| it.block_on(self.read(&cluster, &current)));
            // The process may end before.
            _ = sender.send(names.unwrap_or_default());
        });
        match reader {
            Ok(_) => receiver.recv_timeout(DEADLINE).unwrap_or_default(),
            Err(_) => Vec::new(),
        }
    }

    async fn read(self, cluster: &ClusterFlags, current: &str) -> Result<Vec<String>> {
        let client = cluster.client()?;
        match (self, current.split_once('/')) {
            (Self::LinkerdConfig, _) => names(Api::<api::LinkerdConfig>::all(client)).await,
            (Self::Namespace, _) => names(Api::<Namespace>::all(client)).await,
            (Self::Workload, None) => {
                let namespaces = names(Api::<Namespace>::all(client)).await?;
                Ok(namespaces.into_iter().map(|name| format!("{name}/")).collect())
            }
            (Self::Workload, Some((namespace, _))) => workloads(&client, namespace).await,
        }
    }
}

/// Returns the workloads of a namespace that the operator can restart.
async fn workloads(client: &Client, namespace: &str) -> Result<Vec<String>> {
    let kinds = [RolloutKind::Deployment, RolloutKind::StatefulSet, RolloutKind::DaemonSet];
    let of_kind = async |kind: RolloutKind| {
        let resource = ApiResource::from_gvk(&GroupVersionKind::gvk("apps", "v1", kind.as_str()));
        let found = names(Api::<DynamicObject>::namespaced_with(client.clone(), namespace, &resource)).await?;
        let kind = kind.as_str().to_lowercase();
        anyhow::Ok(found.into_iter().map(|name| format!("{namespace}/{kind}/{name}")).collect::<Vec<_>>())
    };
    Ok(try_join_all(kinds.map(of_kind)).await?.concat())
}

async fn names<K>(objects: Api<K>) -> Result<Vec<String>>
where
    K: Clone + std::fmt::Debug + DeserializeOwned,
{
    let found = objects.list_metadata(&ListParams::default().limit(PAGE)).await?;
    Ok(found.items.into_iter().filter_map(|object| object.metadata.name).collect())
}

/// Returns the names that begin with the typed text, in order. Whatever a server answers, a shell gets only names.
fn matching(mut names: Vec<String>, current: &str) -> Vec<CompletionCandidate> {
    names.retain(|name| name.starts_with(current) && name.split_terminator('/').all(is_dns_name));
    names.sort_unstable();
    names.truncate(MOST);
    names.into_iter().map(CompletionCandidate::new).collect()
}

/// Returns the command line that is completed: what follows `--`.
fn line(arguments: impl Iterator<Item = OsString>) -> impl Iterator<Item = OsString> {
    arguments.skip_while(|argument| argument != "--").skip(1)
}

/// Returns the cluster that a command line selects; `None` if the value of a flag is missing.
fn cluster_of(mut words: impl Iterator<Item = OsString>) -> Option<ClusterFlags> {
    let mut flags = Vec::new();
    while let Some(word) = words.next() {
        let text = word.to_string_lossy();
        let (flag, value) = text.split_once('=').map_or((&*text, None), |(flag, value)| (flag, Some(value)));
        if !CLUSTER_FLAGS.contains(&flag) {
            continue;
        }
        // bash makes three words of `--context=east`.
        let value = match value {
            Some(value) => value.into(),
            None => words.next().filter(|word| word != "=").or_else(|| words.next())?,
        };
        flags.extend([flag.into(), value]);
    }
    ClusterOfLine::try_parse_from(flags).ok().map(|line| line.cluster)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn completed(names: &[&str], current: &str) -> Vec<String> {
        let names = names.iter().map(|&name| name.to_owned()).collect();
        let found = matching(names, current);
        found.iter().map(|candidate| candidate.get_value().to_string_lossy().into_owned()).collect()
    }

    #[test]
    fn names_begin_with_what_is_typed_and_are_in_order() {
        assert_eq!(completed(&["shop", "ads", "shelf", "web"], "sh"), ["shelf", "shop"]);
        assert_eq!(completed(&["shop/deployment/web", "shop/daemonset/agent"], "shop/de"), ["shop/deployment/web"]);
        assert_eq!(completed(&["shop/", "ads/"], ""), ["ads/", "shop/"]);
        assert_eq!(completed(&["mesh"], "other"), [""; 0]);
    }

    #[test]
    fn at_most_200_names_are_offered_and_nothing_that_is_no_name() {
        let many: Vec<_> = (0..999).map(|at| format!("ns-{at:03}")).collect();
        let many: Vec<_> = many.iter().map(String::as_str).collect();
        let found = completed(&many, "ns-");
        assert_eq!((found.len(), found[199].as_str()), (200, "ns-199"));
        assert_eq!(completed(&["a b", "$(reboot)", "x\u{1b}[2J", "a\nb", "good"], ""), ["good"]);
    }

    #[test]
    fn the_cluster_is_that_of_the_command_line() {
        let of = |words: &[&str]| {
            let all = ["linkerd-operator", "--"].iter().chain(words).map(OsString::from).collect::<Vec<_>>();
            cluster_of(line(all.into_iter())).map(|it| (it.context, it.impersonate, it.impersonate_groups))
        };
        let east = Some("east".to_owned());
        let words =
            ["linkerd-operator", "status", "--watch", "--context", "east", "--as=alice", "--as-group", "dev", ""];
        assert_eq!(of(&words), Some((east.clone(), Some("alice".to_owned()), vec!["dev".to_owned()])));
        assert_eq!(of(&["linkerd-operator", "status", "--context", "=", "east", "m"]).unwrap().0, east);
        assert_eq!(of(&["linkerd-operator", "status", "--context", "west", "--context=east"]).unwrap().0, east);
        assert_eq!(of(&["linkerd-operator", "status", ""]), Some((None, None, Vec::new())));
        assert_eq!(of(&["linkerd-operator", "status", "--context"]), None);
    }
}
