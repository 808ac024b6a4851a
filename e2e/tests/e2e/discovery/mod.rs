//! `Destination.Get` as a proxy sees it, over a real API server: each test has a namespace on the shared control plane.
//!
//! The tests write slices, Pods and nodes themselves, so each can be late, early, malformed or absent. A test checks
//! the resulting endpoints, not the messages that led to them, except where the order of messages matters.

mod bad_input;
mod budget;
mod changes;
mod crowd;
mod fairness;
mod floods;
mod metadata;
pub(crate) mod objects;
mod oracle;
mod overload;
mod process;
pub(crate) mod received;
mod requests;
mod rollout;
pub(crate) mod serving;
mod small_frames;
mod streams;
pub(crate) mod watches;
mod wire;

use std::{ops::Deref, time::Duration};

use anyhow::{Context, Result, ensure};
use e2e::{
    Manager, SharedManager, TestNamespace,
    discovery::{Discovery, Endpoints, Message},
    eventually,
    mesh::SOON,
    shared_manager,
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

/// A namespace with objects that Linkerd reads.
pub(crate) struct Objects {
    pub(crate) client: Client,
    pub(crate) namespace: TestNamespace,
}

/// A manager that serves a namespace, and a connection to it.
pub(crate) struct Served<M = SharedManager> {
    objects: Objects,
    pub(crate) manager: M,
    pub(crate) discovery: Discovery,
}

// === impl Objects ===

impl Objects {
    pub(crate) async fn create_in(client: &Client, prefix: &str) -> Result<Self> {
        Ok(Self::of(TestNamespace::create(client, prefix).await?))
    }

    pub(crate) fn of(namespace: TestNamespace) -> Self {
        Self { client: namespace.client().clone(), namespace }
    }

    pub(crate) fn name(&self) -> &str {
        self.namespace.name()
    }

    pub(crate) fn full_name(&self, service: &str) -> String {
        format!("{service}.{}.svc.cluster.local", self.name())
    }

    /// The authority that a proxy requests for `web:80`.
    pub(crate) fn path(&self, service_and_port: &str) -> String {
        let (service, port) = service_and_port.split_once(':').unwrap_or((service_and_port, "80"));
        format!("{}:{port}", self.full_name(service))
    }

    pub(crate) fn api(&self, kind: &str) -> Api<DynamicObject> {
        match kind {
            "Node" | "Namespace" => Api::all_with(self.client.clone(), &resource(kind)),
            _ => Api::namespaced_with(self.client.clone(), self.name(), &resource(kind)),
        }
    }

    pub(crate) async fn put(&self, object: Object) -> Result<()> {
        self.create(object).await.map(drop)
    }

    pub(crate) async fn create(&self, object: Object) -> Result<DynamicObject> {
        let Object { kind, value } = object.within(self.name());
        let text = value.to_string();
        let created = self.api(kind).create(&PostParams::default(), &serde_json::from_value(value)?).await;
        created.with_context(|| format!("creating {kind} {text:.300}"))
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
}

// === impl Served ===

impl Served {
    pub(crate) async fn start(prefix: &str) -> Result<Self> {
        static IDLE: OnceCell<()> = OnceCell::const_new();
        let (control_plane, manager) = shared_manager().await?;
        let served = Self::by(manager, &control_plane.client().await?, prefix).await?;
        // On an existing cluster, an earlier run may have left this node.
        let idle = IDLE.get_or_try_init(async || match served.api("Node").get_opt(NODE).await? {
            Some(_) => Ok(()),
            None => served.put(objects::node(NODE, None)).await,
        });
        idle.await?;
        Ok(served)
    }
}

impl<M: Deref<Target = Manager>> Served<M> {
    /// Creates a namespace that this manager watches.
    pub(crate) async fn by(manager: M, client: &Client, prefix: &str) -> Result<Self> {
        let objects = Objects::create_in(client, prefix).await?;
        let discovery = manager.discovery().await?;
        Ok(Self { objects, manager, discovery })
    }

    /// Opens a stream without a context token.
    pub(crate) async fn get(&self, service_and_port: &str) -> Result<Endpoints> {
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
    pub(crate) async fn shows(&self, service_and_port: &str, addresses: &[&str]) -> Result<Endpoints> {
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

impl<M> Deref for Served<M> {
    type Target = Objects;

    fn deref(&self) -> &Objects {
        &self.objects
    }
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
