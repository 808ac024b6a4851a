//! `linkerd-operator dashboard` forwards a local port to the dashboard of the operator's Pod, and opens it in a browser.
//!
//! In: a namespace and a selector. Out: the address on standard output; connections, until Ctrl-C. Always holds: it
//! listens on 127.0.0.1 only; each connection has a port-forward of its own, so that a Pod that is replaced costs only
//! the connections to it; the number of connections has a limit.

use std::{
    convert::Infallible,
    io::{IsTerminal, stdout},
    mem,
    net::Ipv4Addr,
    process::ExitCode,
    sync::Arc,
    time::Duration,
};

use anyhow::{Context, Result};
use clap::Args as ClapArgs;
use clap_complete::ArgValueCompleter;
use parking_lot::Mutex;
use tokio::{
    io::copy_bidirectional,
    net::{TcpListener, TcpStream},
    sync::Semaphore,
    task::JoinSet,
    time::{sleep, timeout},
};

use super::{
    cluster_flags::ClusterFlags,
    completion::CompletedName,
    connect::{ForwardedPort, PodPort, long_lived_pods},
    terminal::{note, until_interrupted, write},
};
use crate::{client, dashboard, destination_client::FAILURE_DEADLINE};

/// The number of connections at a time. A browser opens six to one host.
const CONNECTIONS: usize = 32;

#[derive(Clone, Debug, ClapArgs)]
pub struct DashboardArgs {
    /// Local port of the dashboard; 0 chooses a free one
    #[arg(long, short, value_name = "PORT", default_value_t = 50751)]
    pub port: u16,

    /// Do not open a browser. None is opened either if standard output is not a terminal
    #[arg(long)]
    pub no_browser: bool,

    /// Namespace of the operator's Pod
    #[arg(long, short, value_name = "NAME", default_value = "linkerd-operator-system", add = ArgValueCompleter::new(CompletedName::Namespace))]
    pub namespace: String,

    /// Labels of the operator's Pod; of several Pods, the first ready one by name is used
    #[arg(long, value_name = "SELECTOR", default_value = "app.kubernetes.io/name=linkerd-operator")]
    pub selector: String,

    /// Port of the Pod's admin server
    #[arg(long, value_name = "PORT", default_value_t = 9996)]
    pub admin_port: u16,

    #[command(flatten)]
    pub cluster: ClusterFlags,
}

/// Where connections are forwarded to.
struct DashboardTarget {
    pod: PodPort,
    places: Arc<Semaphore>,
    /// Why the last connection failed, if it did.
    failure: Mutex<Option<String>>,
}

pub(super) async fn dashboard(args: DashboardArgs) -> Result<ExitCode> {
    let DashboardArgs { port, no_browser, namespace, selector, admin_port, cluster } = args;
    let pods = long_lived_pods(&cluster, &namespace)?;
    let hint = "set --namespace and --selector";
    let pod = PodPort { pods, namespace, selector, port: admin_port, hint };
    // Before the address is printed, so that a missing Pod or permission ends the command.
    drop(pod.forward().await?);
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).await;
    let listener = listener.with_context(|| format!("cannot listen on 127.0.0.1:{port}: choose another --port"))?;
    let url = format!("http://localhost:{}{}", listener.local_addr()?.port(), dashboard::PATH);
    write(&format!("{url}\n"))?;
    if stdout().is_terminal() {
        if !no_browser && let Err(error) = open::that_detached(&url) {
            note(format_args!("no browser was opened ({error}): open the address above"));
        }
        note(format_args!("press Ctrl-C to end"));
    }
    let target = DashboardTarget { pod, places: Arc::new(Semaphore::new(CONNECTIONS)), failure: Mutex::default() };
    until_interrupted(serve(listener, Arc::new(target))).await
}

async fn serve(listener: TcpListener, target: Arc<DashboardTarget>) -> Result<Infallible> {
    let mut connections = JoinSet::new();
    loop {
        while connections.try_join_next().is_some() {}
        let place = Arc::clone(&target.places).acquire_owned().await.context("the limit of connections is gone")?;
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                note(format_args!("could not accept a connection: {error}; retrying"));
                sleep(Duration::from_millis(200)).await;
                continue;
            }
        };
        let target = Arc::clone(&target);
        connections.spawn(async move {
            let _place = place;
            let failure = target.serve(stream).await.err().map(|error| client::describe(&*error));
            // The page tries again every two seconds, so a reason is printed once.
            let before = mem::replace(&mut *target.failure.lock(), failure.clone());
            if let Some(reason) = failure.as_ref().filter(|_| before != failure) {
                note(format_args!("{reason}"));
            }
        });
    }
}

// === impl DashboardTarget ===

impl DashboardTarget {
    async fn serve(&self, mut client: TcpStream) -> Result<()> {
        let ForwardedPort { mut stream, failure, peer } = self.pod.forward().await?;
        // Browsers and Pods end connections at any time.
        _ = copy_bidirectional(&mut client, &mut stream).await;
        let Some(failure) = failure else { return Ok(()) };
        if let Ok(Some(reason)) = timeout(FAILURE_DEADLINE, failure).await {
            anyhow::bail!("the connection to {peer} failed: {}; does the operator listen there?", reason.trim());
        }
        Ok(())
    }
}
