//! The flags that select a cluster and a user, as kubectl has them.

use std::path::PathBuf;

use anyhow::Result;
use clap::{
    Args as ClapArgs,
    builder::{OsStringValueParser, TypedValueParser},
};
use kube::{Client, Config};
use prometheus::Registry;

use crate::client;

#[derive(Clone, Debug, Default, ClapArgs)]
#[command(next_help_heading = "Cluster")]
pub struct ClusterFlags {
    /// Path of the kubeconfig; if unset, $KUBECONFIG, ~/.kube/config, or the ServiceAccount of the pod, in this order
    // An empty path is as an unset one.
    #[arg(long, env = "LINKERD_OPERATOR_KUBECONFIG", value_name = "FILE", value_parser = OsStringValueParser::new().map(PathBuf::from))]
    pub kubeconfig: Option<PathBuf>,

    /// Context of the kubeconfig; if unset, the current one
    #[arg(long, value_name = "NAME")]
    pub context: Option<String>,

    /// User to impersonate
    #[arg(long = "as", value_name = "USER")]
    pub impersonate: Option<String>,

    /// Group to impersonate; can be repeated
    #[arg(long = "as-group", value_name = "GROUP")]
    pub impersonate_groups: Vec<String>,
}

// === impl ClusterFlags ===

impl ClusterFlags {
    /// # Errors
    /// Fails without a usable kubeconfig, or if it does not have the context.
    pub(super) fn config(&self) -> Result<Config> {
        let config = client::config_of(self.kubeconfig.as_deref(), self.context.as_deref())?;
        client::impersonating(config, self.impersonate.as_deref(), &groups(&self.impersonate_groups))
    }

    /// # Errors
    /// As [`Self::config`], or if the configuration's certificates cannot be used.
    pub(super) fn client(&self) -> Result<Client> {
        client::client(self.config()?, &Registry::new())
    }
}

/// Returns the groups to impersonate. `linkerd check` passes its own flag as Go prints a list: `[]`, or `[one,two]`.
fn groups(flags: &[String]) -> Vec<String> {
    let lists = flags.iter().map(|flag| {
        let list = flag.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
        list.map_or_else(|| vec![flag.as_str()], |list| list.split(',').collect())
    });
    lists.flatten().filter(|group| !group.is_empty()).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        flags: ClusterFlags,
    }

    #[test]
    fn an_empty_path_of_the_kubeconfig_is_accepted() {
        let cli = Cli::try_parse_from(["operator", "--kubeconfig", ""]).unwrap();
        assert_eq!(cli.flags.kubeconfig, Some(PathBuf::new()));
    }

    #[test]
    fn groups_are_repeated_flags_or_a_list_as_go_prints_it() {
        let read = |flags: &[&str]| groups(&flags.iter().map(|&flag| flag.to_owned()).collect::<Vec<_>>());
        assert_eq!(read(&["system:masters", "dev"]), ["system:masters", "dev"]);
        assert_eq!(read(&["[]"]), Vec::<String>::new());
        assert_eq!(read(&["[one,two]", "three"]), ["one", "two", "three"]);
    }
}
