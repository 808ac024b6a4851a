//! Attacks by clients and by tenants on the memory and the time of a destination server.
//!
//! * In: a cluster in which the attackers may write to one namespace, and the address of a destination server. Out:
//!   the objects that an attack requires, and then requests and edits until the attack is dropped.
//! * Always: an attack needs only what every Pod can do (connect to the server), or what the role `edit` allows in one
//!   namespace. An attacker that is refused or disconnected tries again.

mod clients;
mod tenants;

use std::net::SocketAddr;

use anyhow::{Context, Result};
use kube::Client;
use tokio::task::JoinSet;

use crate::load;

/// An attack. Each of them once ended a server, or stopped it for seconds, although its own limits were kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attack {
    /// Requests whose messages are never complete.
    UnfinishedRequests,
    /// Requests with a hundred fields each, from a client that acknowledges no answer.
    ManyFields,
    /// Connections on which nothing is sent.
    SilentConnections,
    /// Streams for ports that the Service does not declare.
    UndeclaredPorts,
    /// Streams for host names that no endpoint has.
    UnknownHostnames,
    /// Streams with names of nodes that do not exist, for a Service with `internalTrafficPolicy: Local`.
    UnknownNodes,
    /// Streams for each port of a Service with one large ServiceProfile, which changes. The streams are not read.
    LargeProfile,
    /// Services with thousands of ports, all of which many ExternalWorkloads match; and texts of a megabyte.
    WideServices,
    /// Objects that are as large as the API server permits, of a kind of which little is read.
    LargeObjects,
    /// A Server whose selector has a hundred thousand values, which changes, in a namespace with many Pods.
    LargeSelector,
}

/// The server, and the namespace of the attackers.
#[derive(Clone)]
pub struct Target {
    pub client: Client,
    pub namespace: String,
    pub server: SocketAddr,
}

/// A running attack. Dropping it closes its connections and ends its edits.
pub struct Running {
    tasks: JoinSet<Result<()>>,
}

// === impl Attack ===

impl Attack {
    pub const ALL: [Self; 10] = [
        Self::UnfinishedRequests,
        Self::ManyFields,
        Self::SilentConnections,
        Self::UndeclaredPorts,
        Self::UnknownHostnames,
        Self::UnknownNodes,
        Self::LargeProfile,
        Self::WideServices,
        Self::LargeObjects,
        Self::LargeSelector,
    ];

    /// Creates the objects that the attack requires. Some attacks share objects, so existing ones are kept.
    pub async fn prepare(self, client: &Client, namespace: &str) -> Result<()> {
        match self {
            Self::UnfinishedRequests
            | Self::ManyFields
            | Self::UndeclaredPorts
            | Self::UnknownHostnames
            | Self::UnknownNodes => tenants::create_large_services(client, namespace).await,
            Self::SilentConnections => Ok(()),
            Self::LargeProfile => tenants::create_large_profile(client, namespace).await,
            Self::WideServices => tenants::create_wide_services(client, namespace).await,
            Self::LargeObjects => tenants::create_large_objects(client, namespace).await,
            Self::LargeSelector => tenants::create_large_selector(client, namespace).await,
        }
        .with_context(|| format!("preparing {self:?}"))
    }

    /// Begins the attack, whose objects exist.
    ///
    /// # Errors
    /// Fails when a thread cannot be started.
    pub fn begin(self, target: Target) -> Result<Running> {
        let mut tasks = JoinSet::new();
        let hold = |request: fn(&str, u32) -> load::StreamRequest| {
            anyhow::Ok(clients::hold(load::LoadThread::start()?, target.clone(), request))
        };
        match self {
            Self::UnfinishedRequests => {
                for _ in 0..clients::FLOODERS {
                    tasks.spawn(clients::begin_requests(target.clone()));
                }
            }
            Self::ManyFields => {
                for _ in 0..clients::FLOODERS {
                    tasks.spawn(clients::request_with_many_fields(target.clone()));
                }
            }
            Self::SilentConnections => _ = tasks.spawn(clients::connect_silently(target)),
            Self::UndeclaredPorts => _ = tasks.spawn(hold(clients::undeclared_port)?),
            Self::UnknownHostnames => _ = tasks.spawn(hold(clients::unknown_hostname)?),
            Self::UnknownNodes => _ = tasks.spawn(hold(clients::unknown_node)?),
            Self::LargeProfile => {
                tasks.spawn(clients::hold_unread_profiles(load::LoadThread::start()?, target.clone()));
                tasks.spawn(tenants::change_profile(target));
            }
            Self::WideServices => _ = tasks.spawn(tenants::change_wide_services(target)),
            Self::LargeObjects => _ = tasks.spawn(tenants::change_large_objects(target)),
            Self::LargeSelector => _ = tasks.spawn(tenants::change_selector(target)),
        }
        Ok(Running { tasks })
    }
}

// === impl Running ===

impl Running {
    /// # Errors
    /// Fails when a part of the attack has ended: an attack lasts until it is dropped.
    pub fn is_running(&mut self) -> Result<()> {
        match self.tasks.try_join_next() {
            None => Ok(()),
            Some(ended) => ended?.context("the attack has ended"),
        }
    }
}
