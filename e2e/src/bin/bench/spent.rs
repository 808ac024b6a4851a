//! The CPU cost of a phase: of the measuring client and of the measured server.
//!
//! * In: the thread of the load and the process of the server. Out: their cost during the phase, and whether it
//!   disturbed the figure.
//! * Always: the client shares its core with the API server. A figure is flagged if that core was saturated, or if the
//!   server had to wait for its own core.

use std::{
    ops::AddAssign,
    time::{Duration, Instant},
};

use anyhow::Result;
use e2e::load::{self, CoreTime, Cost};
use serde_json::{Value, json};

/// The core of the client, the API server and etcd.
pub(crate) const CLIENTS_CORE: usize = 0;
/// The dedicated core of the server.
pub(crate) const SERVERS_CORE: usize = 1;

/// The share of the time from which a core or thread counts as saturated.
const SATURATED: f64 = 0.95;
/// The share of the server's running time that it may wait for its core.
const DISTURBED: f64 = 0.1;

pub(crate) struct Phase<'a> {
    loads: &'a load::LoadThread,
    server: Option<u32>,
    began: Instant,
    client_before: Cost,
    server_before: Cost,
    core_before: CoreTime,
}

/// The cost of one phase, or of several phases together.
#[derive(Clone, Debug, Default)]
pub(crate) struct Spent {
    pub(crate) took: Duration,
    client: Cost,
    /// `None` if the server's process is unknown.
    pub(crate) server: Option<Cost>,
    /// The time of the client's core.
    core: CoreTime,
}

// === impl Phase ===

impl<'a> Phase<'a> {
    pub(crate) fn begin(loads: &'a load::LoadThread, server: Option<u32>) -> Result<Self> {
        Ok(Self {
            loads,
            server,
            client_before: loads.cost()?,
            server_before: server.map_or(Ok(Cost::default()), Cost::of_process)?,
            core_before: CoreTime::of(CLIENTS_CORE)?,
            began: Instant::now(),
        })
    }

    pub(crate) fn end(self) -> Result<Spent> {
        let took = self.began.elapsed();
        let server = self.server.map(Cost::of_process).transpose()?.map(|cost| cost - self.server_before);
        let core = CoreTime::of(CLIENTS_CORE)? - self.core_before;
        Ok(Spent { took, client: self.loads.cost()? - self.client_before, server, core })
    }
}

// === impl Spent ===

impl Spent {
    pub(crate) fn text(&self) -> String {
        let share = |cost: &Cost| format!("{:.2} s ({:.0} %)", cost.ran.as_secs_f64(), self.share(cost.ran) * 100.0);
        let server = self.server.as_ref().map_or("?".to_owned(), share);
        let core = self.core.busy_share() * 100.0;
        let mut text = format!("client {}, server {server}, client's core {core:.0} % busy", share(&self.client));
        for flag in self.flags() {
            text.push_str("; ");
            text.push_str(&flag);
        }
        text
    }

    /// A time as a share of the phase's duration.
    fn share(&self, time: Duration) -> f64 {
        time.as_secs_f64() / self.took.as_secs_f64().max(f64::EPSILON)
    }

    /// The reasons why the figure may be worse than the server.
    fn flags(&self) -> Vec<String> {
        let mut flags = Vec::new();
        if self.core.busy_share() >= SATURATED || self.share(self.client.ran + self.client.waited) >= SATURATED {
            flags.push("THE CLIENT'S CORE WAS SATURATED".to_owned());
        }
        if let Some(server) = &self.server
            && server.waited > server.ran.mul_f64(DISTURBED)
        {
            flags.push(format!("THE SERVER WAITED {:.2} s FOR ITS CORE", server.waited.as_secs_f64()));
        }
        flags
    }

    pub(crate) fn json(&self) -> Value {
        let cost =
            |cost: &Cost| json!({"ran_seconds": cost.ran.as_secs_f64(), "waited_seconds": cost.waited.as_secs_f64()});
        json!({
            "seconds": self.took.as_secs_f64(),
            "client": cost(&self.client),
            "server": self.server.as_ref().map(cost),
            "clients_core_busy": self.core.busy_share(),
            "flags": self.flags(),
        })
    }
}

impl AddAssign for Spent {
    fn add_assign(&mut self, other: Self) {
        self.took += other.took;
        self.client += other.client;
        self.core += other.core;
        if let Some(server) = other.server {
            *self.server.get_or_insert_default() += server;
        }
    }
}
