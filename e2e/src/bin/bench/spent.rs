//! What a phase took: of the client that measures, and of the server that is measured.
//!
//! * In: the load's thread and the server's process. Out: what each cost meanwhile, and whether the figure suffered from it.
//! * Always: the client shares its core with the API server; a figure that was taken while that core had no time left, or
//!   while the server waited for its own, says so.

use std::time::{Duration, Instant};

use anyhow::Result;
use e2e::load::{self, CoreTime, Cost};
use serde_json::{Value, json};

/// The client, API server and etcd are here.
pub(crate) const CLIENTS_CORE: usize = 0;
/// The server is here, alone.
pub(crate) const SERVERS_CORE: usize = 1;

/// Of a core: from here on it has no time left.
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

#[derive(Clone, Debug)]
pub(crate) struct Spent {
    pub(crate) took: Duration,
    client: Cost,
    /// `None`: its process is not known.
    pub(crate) server: Option<Cost>,
    /// Of the core that the client is on.
    core: f64,
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
        let core = CoreTime::of(CLIENTS_CORE)?.busy_since(self.core_before);
        Ok(Spent { took, client: self.loads.cost()? - self.client_before, server, core })
    }
}

// === impl Spent ===

impl Spent {
    pub(crate) fn text(&self) -> String {
        let seconds = |cost: &Cost| cost.ran.as_secs_f64();
        let server = self.server.as_ref().map_or("?".to_owned(), |server| format!("{:.2} s", seconds(server)));
        let client = seconds(&self.client);
        let mut text = format!("client {client:.2} s, server {server}, client's core {:.0} % busy", self.core * 100.0);
        for flag in self.flags() {
            text.push_str("; ");
            text.push_str(&flag);
        }
        text
    }

    /// Why the figure may be worse than the server is.
    fn flags(&self) -> Vec<String> {
        let mut flags = Vec::new();
        if self.core >= SATURATED {
            flags.push("THE CLIENT'S CORE WAS SATURATED".to_owned());
        }
        if let Some(server) = &self.server {
            if self.client.ran > server.ran {
                flags.push("THE CLIENT COST MORE THAN THE SERVER".to_owned());
            }
            if server.waited > server.ran.mul_f64(DISTURBED) {
                flags.push(format!("THE SERVER WAITED {:.2} s FOR ITS CORE", server.waited.as_secs_f64()));
            }
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
            "clients_core_busy": self.core,
            "flags": self.flags(),
        })
    }
}
