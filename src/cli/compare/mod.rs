//! `linkerd-operator compare` sends the same requests to two Destination APIs, and prints where their answers differ.
//!
//! In: two servers; authorities, or all Services of the cluster. Out: a table or JSON, and an exit code. Always holds:
//! a difference is printed only if it persists after the request was repeated, because endpoints change between two
//! requests. The number of concurrent requests is bounded.

mod difference;
mod print;
mod requests;

use std::{process::ExitCode, time::Duration};

use anyhow::Result;
use clap::Args as ClapArgs;
use futures::{StreamExt, stream};
use tokio::{join, time::sleep};

use self::{
    difference::{Comparison, Verdict, of_endpoints, of_profiles},
    requests::{CompareRequest, RequestKind},
};
use super::{
    OutputFormat,
    cluster_flags::ClusterFlags,
    connect::{ConnectArgs, Connector, host_and_port},
    streams::first_answer,
    terminal::{note, write},
};
use crate::destination_client::{DestinationClient, endpoints::EndpointsState, profile::ProfileState};

/// The exit code if answers differ. Like `diff` and `kubectl diff`.
const DIFFERENT: u8 = 1;
/// The exit code if an answer is missing.
pub(super) const FAILED: u8 = 2;
/// The number of concurrent requests. Linkerd's server sends nothing for a Service without endpoints, so such a request
/// takes the whole deadline.
const AT_ONE_TIME: usize = 64;
/// How often a request is repeated before its difference is printed, and the pause before each repetition.
const REPETITIONS: usize = 2;
const PAUSE: Duration = Duration::from_secs(1);

#[derive(Clone, Debug, ClapArgs)]
pub struct CompareArgs {
    /// Authority that a proxy resolves: a name, such as web.prod.svc.cluster.local:8080, or an address, such as
    /// 10.20.2.4:8080; the default port is 80
    #[arg(value_name = "AUTHORITY|IP:PORT", required_unless_present = "all", conflicts_with = "all")]
    pub authorities: Vec<String>,

    /// Compare the answers for every port of every Service in the cluster, by name and by address
    #[arg(long)]
    pub all: bool,

    /// Address of a Destination API; given twice. If absent, a port of the operator's own Deployment and one of
    /// Linkerd's are forwarded
    #[arg(long = "addr", value_name = "HOST:PORT", value_parser = host_and_port)]
    pub addresses: Vec<String>,

    /// Output format
    #[arg(long, short, value_name = "FORMAT", default_value = "table")]
    pub output: OutputFormat,

    /// Leave out the header of the table
    #[arg(long)]
    pub no_headers: bool,

    /// Context token of the requests, such as {"ns":"prod","nodeName":"node-1"}
    #[arg(long, value_name = "TOKEN", default_value = "", hide_default_value = true)]
    pub token: String,

    /// With --all: domain of the cluster's Services
    #[arg(long, value_name = "DOMAIN", default_value = "cluster.local")]
    pub cluster_domain: String,

    /// Without --addr: namespace of the operator
    #[arg(long, value_name = "NAME", default_value = "linkerd-operator-system")]
    pub operator_namespace: String,

    /// Without --addr: namespace of Linkerd's control plane
    #[arg(long, value_name = "NAME", default_value = "linkerd")]
    pub controller_namespace: String,

    #[command(flatten)]
    pub cluster: ClusterFlags,
}

/// The two servers, and their names in the output.
struct Servers {
    names: [String; 2],
    clients: [DestinationClient; 2],
}

pub(super) async fn compare(args: CompareArgs) -> Result<ExitCode> {
    let requests = match args.all {
        true => requests::of_all_services(&args.cluster, &args.cluster_domain).await?,
        false => requests::of_authorities(&args.authorities),
    };
    let servers = Servers::connect(&args).await?;
    let mut comparisons: Vec<(usize, Comparison)> = stream::iter(requests.into_iter().enumerate())
        .map(async |(at, request)| (at, servers.compare(request, &args.token).await))
        .buffer_unordered(AT_ONE_TIME)
        .collect()
        .await;
    comparisons.sort_by_key(|(at, _)| *at);
    let comparisons: Vec<Comparison> = comparisons.into_iter().map(|(_, comparison)| comparison).collect();
    let document = print::document(&comparisons, &servers.names);
    write(&args.output.print(&document, || print::table(&comparisons, args.no_headers))?)?;
    note(print::summary(&comparisons, &servers.names));
    Ok(ExitCode::from(exit_code(&comparisons)))
}

/// A missing answer counts more than a difference, because it may hide one.
fn exit_code(comparisons: &[Comparison]) -> u8 {
    let any = |wanted: fn(&Verdict) -> bool| comparisons.iter().any(|comparison| wanted(&comparison.verdict));
    if any(|verdict| matches!(verdict, Verdict::Failed(_))) {
        FAILED
    } else if any(|verdict| matches!(verdict, Verdict::Different(_))) {
        DIFFERENT
    } else {
        0
    }
}

// === impl Servers ===

impl Servers {
    async fn connect(args: &CompareArgs) -> Result<Self> {
        let connect = |addr: Option<&String>, namespace: &str, selector: &str| ConnectArgs {
            addr: addr.cloned(),
            namespace: namespace.to_owned(),
            selector: selector.to_owned(),
            cluster: args.cluster.clone(),
        };
        let (names, targets) = match args.addresses.as_slice() {
            [] => (
                ["the operator", "Linkerd"].map(str::to_owned),
                [
                    connect(None, &args.operator_namespace, "app.kubernetes.io/name=linkerd-operator"),
                    connect(None, &args.controller_namespace, "linkerd.io/control-plane-component=destination"),
                ],
            ),
            [one, other] => ([one.clone(), other.clone()], [connect(Some(one), "", ""), connect(Some(other), "", "")]),
            _ => anyhow::bail!("give --addr twice, once for each server, or not at all"),
        };
        let [one, other] = targets;
        let clients = [Connector::new(one)?.destination().await?, Connector::new(other)?.destination().await?];
        Ok(Self { names, clients })
    }

    async fn compare(&self, request: CompareRequest, token: &str) -> Comparison {
        let mut repetitions = 0;
        loop {
            let verdict = self.send(&request, token).await;
            if verdict == Verdict::Equal || repetitions == REPETITIONS {
                return Comparison { request, verdict };
            }
            repetitions += 1;
            sleep(PAUSE).await;
        }
    }

    async fn send(&self, request: &CompareRequest, token: &str) -> Verdict {
        let [one, other] = &self.clients;
        let authority = &request.authority;
        match request.method {
            RequestKind::Endpoints => {
                let (one, other) = join!(
                    first_answer::<EndpointsState>(one, authority, token),
                    first_answer::<EndpointsState>(other, authority, token)
                );
                of_endpoints(&one, &other, &self.names)
            }
            RequestKind::Profile => {
                let (one, other) = join!(
                    first_answer::<ProfileState>(one, authority, token),
                    first_answer::<ProfileState>(other, authority, token)
                );
                of_profiles(&one, &other, &self.names)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_exit_code_is_0_without_a_difference_1_with_one_and_2_if_an_answer_is_missing() {
        let of = |verdicts: &[Verdict]| {
            let comparison = |verdict: &Verdict| Comparison {
                request: CompareRequest { method: RequestKind::Profile, authority: "a:1".to_owned() },
                verdict: verdict.clone(),
            };
            exit_code(&verdicts.iter().map(comparison).collect::<Vec<_>>())
        };
        let (different, failed) = (Verdict::Different(vec!["a".to_owned()]), Verdict::Failed("b".to_owned()));
        assert_eq!(of(&[]), 0);
        assert_eq!(of(&[Verdict::Equal]), 0);
        assert_eq!(of(&[Verdict::Equal, different.clone()]), 1);
        assert_eq!(of(&[failed, different, Verdict::Equal]), 2);
    }
}
