//! What a phase took: of the client that measures, and of the server that is measured.
//!
//! * In: the load's thread and the server's process. Out: what each cost meanwhile, and whether the figure suffered from it.
//! * Always: the client shares its core with the API server; a figure that was taken while that core had no time left, or
//!   while the server waited for its own, says so.

use std::{
    ops::AddAssign,
    time::{Duration, Instant},
};

use anyhow::Result;
use e2e::load::{self, CoreTime, Cost};
use serde_json::{Value, json};

/// The client, API server and etcd are here.
pub(crate) const CLIENTS_CORE: usize = 0;
/// The server is here, alone.
pub(crate) const SERVERS_CORE: usize = 1;

/// Of the time, or of a core's: from here on there is none left.
const SATURATED: f64 = 0.95;
/// Of the time that the server ran: more than this it should not have waited.
const DISTURBED: f64 = 0.1;

pub(crate) struct Phase<'a> {
    loads: &'a load::Client,
    server: Option<u32>,
    began: Instant,
    client_before: Cost,
    server_before: Cost,
    core_before: CoreTime,
}

/// Of one phase, or of several together.
#[derive(Clone, Debug, Default)]
pub(crate) struct Spent {
    pub(crate) took: Duration,
    client: Cost,
    /// `None`: its process is not known.
    pub(crate) server: Option<Cost>,
    /// Of the core that the client is on.
    core: CoreTime,
}

// === impl Phase ===

impl<'a> Phase<'a> {
    pub(crate) fn begin(loads: &'a load::Client, server: Option<u32>) -> Result<Self> {
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

    /// Of the time that the phase took.
    fn share(&self, time: Duration) -> f64 {
        time.as_secs_f64() / self.took.as_secs_f64().max(f64::EPSILON)
    }

    /// Why the figure may be worse than the server is.
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
