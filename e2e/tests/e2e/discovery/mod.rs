//! `Destination.Get` as a proxy sees it, over a real API server: each test has a namespace on the shared control plane.
//!
//! The tests write slices, Pods and nodes themselves, so each can be late, early, malformed or absent. A test checks
//! the resulting endpoints, not the messages that led to them, except where the order of messages matters.

mod bad_input;
mod budget;
mod changes;
mod crowd;
mod endpoints;
mod fairness;
mod families;
mod floods;
mod metadata;
pub(crate) mod objects;
mod oracle;
mod overload;
mod owners;
mod ports;
mod process;
pub(crate) mod received;
mod requests;
mod rollout;
mod servers;
pub(crate) mod serving;
mod small_frames;
mod streams;
mod topology;
mod watches;
mod wire;

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use e2e::{
    ControlPlane, Manager, SharedManager, TestNamespace,
    discovery::{Discovery, Endpoints, Message},
    eventually,
    mesh::SOON,
    shared_manager, shared_manager_in,
};
use kube::{
    Api, Client,
    api::{DeleteParams, DynamicObject, Patch, PatchParams, PostParams},
};
use objects::{NODE, Object, resource};
use serde_json::{Value, json};
use tokio::sync::OnceCell;

/// How long a test waits for unexpected messages.
pub(crate) const QUIET: Duration = Duration::from_millis(700);

/// The manager's flags.
#[derive(Clone, Copy)]
pub(crate) enum Settings {
    /// Only the flags of the harness: the settings that Linkerd's charts install.
    Helm,
    /// The settings of the unit tests of Linkerd's destination.
    Upstream,
    /// The opposite of each Helm setting.
    Contrary,
}

/// A namespace, and a connection to a manager that watches it.
pub(crate) struct Rig {
    pub(crate) client: Client,
    pub(crate) namespace: TestNamespace,
    pub(crate) manager: SharedManager,
    pub(crate) discovery: Discovery,
    pub(crate) domain: &'static str,
}

impl Settings {
    fn args(self) -> &'static [&'static str] {
        match self {
            Self::Helm => &[],
            Self::Upstream => &[
                "--cluster-domain=mycluster.local",
                "--identity-trust-domain=trust.domain",
                "--outbound-transport-mode=transparent",
                "--enable-ipv6=true",
                "--default-opaque-ports=25,443,587,3306,5432,11211",
                r#"--meshed-http2-client-params={"keep_alive":{"interval":{"seconds":20},"timeout":{"seconds":10}}}"#,
            ],
            Self::Contrary => &[
                "--strict-upstream-parity",
                "--enable-h2-upgrade=false",
                "--ext-endpoint-zone-weights=true",
                "--default-opaque-ports=",
                "--meshed-http2-client-params=",
            ],
        }
    }

    pub(crate) fn domain(self) -> &'static str {
        if matches!(self, Self::Upstream) { "mycluster.local" } else { "cluster.local" }
    }

    /// The only manager with these flags, started on first use. Only the shared manager writes slices.
    pub(crate) async fn manager(self) -> Result<(&'static ControlPlane, SharedManager)> {
        static UPSTREAM: OnceCell<Manager> = OnceCell::const_new();
        static CONTRARY: OnceCell<Manager> = OnceCell::const_new();
        let (control_plane, shared) = shared_manager().await?;
        let own = match self {
            Self::Helm => return Ok((control_plane, shared)),
            Self::Upstream => &UPSTREAM,
            Self::Contrary => &CONTRARY,
        };
        let no_writes = ["--enable-external-workload=false", "--enable-linkerd-config=false"];
        shared_manager_in(own, &[&no_writes, self.args()].concat()).await
    }
}

impl Rig {
    pub(crate) async fn start(prefix: &str) -> Result<Self> {
        Self::with(Settings::Helm, prefix).await
    }

    pub(crate) async fn with(settings: Settings, prefix: &str) -> Result<Self> {
        static IDLE: OnceCell<()> = OnceCell::const_new();
        let (control_plane, manager) = settings.manager().await?;
        let client = control_plane.client().await?;
        let namespace = TestNamespace::create(&client, prefix).await?;
        let discovery = manager.discovery().await?;
        let rig = Self { client, namespace, manager, discovery, domain: settings.domain() };
        // On an existing cluster, an earlier run may have left this node.
        let idle = IDLE.get_or_try_init(async || match rig.api("Node").get_opt(NODE).await? {
            Some(_) => Ok(()),
            None => rig.put(objects::node(NODE, None)).await,
        });
        idle.await?;
        Ok(rig)
    }

    pub(crate) fn name(&self) -> &str {
        self.namespace.name()
    }

    /// The authority that a proxy requests for `web:80`.
    pub(crate) fn path(&self, service_and_port: &str) -> String {
        let (service, port) = service_and_port.split_once(':').unwrap_or((service_and_port, "80"));
        format!("{service}.{}.svc.{}:{port}", self.name(), self.domain)
    }

    pub(crate) fn api(&self, kind: &str) -> Api<DynamicObject> {
        api(&self.client, self.name(), kind)
    }

    pub(crate) async fn put(&self, object: Object) -> Result<()> {
        self.create(object).await.map(drop)
    }

    pub(crate) async fn create(&self, object: Object) -> Result<DynamicObject> {
        create(&self.client, self.name(), object).await
    }

    pub(crate) async fn put_all(&self, objects: impl IntoIterator<Item = Object>) -> Result<()> {
        for object in objects {
            self.put(object).await?;
        }
        Ok(())
    }

    pub(crate) async fn patch(&self, kind: &str, name: &str, patch: Value) -> Result<()> {
        let patched = self.api(kind).patch(name, &PatchParams::default(), &Patch::Merge(&patch)).await;
        patched.map(drop).with_context(|| format!("patching {kind} {name} with {patch}"))
    }

    /// Replaces the endpoints of a slice.
    pub(crate) async fn set_endpoints(&self, slice: &str, endpoints: &[Value]) -> Result<()> {
        let mut endpoints = endpoints.to_vec();
        endpoints.iter_mut().for_each(|endpoint| objects::within(endpoint, self.name()));
        self.patch("EndpointSlice", slice, json!({ "endpoints": endpoints })).await
    }

    /// Deletes an object immediately; a Pod is deleted as if the kubelet had confirmed its termination.
    pub(crate) async fn delete(&self, kind: &str, name: &str) -> Result<()> {
        let deleted = self.api(kind).delete(name, &DeleteParams::default().grace_period(0)).await;
        deleted.map(drop).with_context(|| format!("deleting {kind} {name}"))
    }

    /// Opens a stream without a context token.
    async fn get(&self, service_and_port: &str) -> Result<Endpoints> {
        self.get_with(service_and_port, "").await
    }

    /// Opens a stream for a client on this node.
    async fn get_from(&self, service_and_port: &str, node: &str) -> Result<Endpoints> {
        self.get_with(service_and_port, &e2e::discovery::token(self.name(), node)).await
    }

    /// Opens a stream as soon as the Service is served.
    async fn get_with(&self, service_and_port: &str, token: &str) -> Result<Endpoints> {
        let path = self.path(service_and_port);
        eventually(SOON, format_args!("{path} to be answered"), async || Ok(self.discovery.get(&path, token).await?))
            .await
    }

    /// Returns a stream that has received exactly these endpoints, so their slices have been processed completely.
    async fn shows(&self, service_and_port: &str, addresses: &[&str]) -> Result<Endpoints> {
        let mut endpoints = self.get(service_and_port).await?;
        endpoints.shows(addresses).await.with_context(|| self.path(service_and_port))?;
        Ok(endpoints)
    }

    /// Waits until a new stream begins with an `Add` of exactly these endpoints.
    async fn begins_with(&self, service_and_port: &str, token: &str, addresses: &[&str]) -> Result<()> {
        let expected = add(addresses)?;
        eventually(SOON, format_args!("{service_and_port} to begin with {expected:?}"), async || {
            let first = self.get_with(service_and_port, token).await?.next().await?;
            ensure!(first.as_ref() == Some(&expected), "it begins with {first:?}");
            Ok(())
        })
        .await
    }
}

fn api(client: &Client, namespace: &str, kind: &str) -> Api<DynamicObject> {
    match kind {
        "Node" => Api::all_with(client.clone(), &resource(kind)),
        _ => Api::namespaced_with(client.clone(), namespace, &resource(kind)),
    }
}

pub(crate) async fn create(client: &Client, namespace: &str, object: Object) -> Result<DynamicObject> {
    let Object { kind, value } = object.within(namespace);
    let text = value.to_string();
    let created = api(client, namespace, kind).create(&PostParams::default(), &serde_json::from_value(value)?).await;
    created.with_context(|| format!("creating {kind} {text:.300}"))
}

fn add(addresses: &[&str]) -> Result<Message> {
    Ok(Message::Add(sorted(addresses)?))
}

fn remove(addresses: &[&str]) -> Result<Message> {
    Ok(Message::Remove(sorted(addresses)?))
}

fn sorted(addresses: &[&str]) -> Result<Vec<std::net::SocketAddr>> {
    let mut addresses = addresses.iter().map(|text| text.parse()).collect::<Result<Vec<_>, _>>()?;
    addresses.sort();
    Ok(addresses)
}

/// Fails unless the next messages are exactly these. This also detects an unexpected earlier message.
async fn brings(endpoints: &mut Endpoints, messages: &[Message]) -> Result<()> {
    for expected in messages {
        let next = endpoints.next().await.with_context(|| format!("waiting for {expected:?}"))?;
        ensure!(next.as_ref() == Some(expected), "expected {expected:?}, received {next:?}");
    }
    Ok(())
}
