//! One endpoint that changes repeatedly, and the latency of these changes at clients.
//!
//! * In: a Service and the kind of change. Out: writes, each with a unique port, by which a client's message is matched
//!   to the change; their [latency](super::moments).

use anyhow::Result;
use e2e::load::{Load, What};
use futures::{StreamExt, TryStreamExt, stream};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::{
    Api, Client,
    api::{PostParams, WatchEvent, WatchParams},
};
use serde_json::json;

use super::{
    cluster::{NAMESPACE, SERVICES, changing_endpoint},
    moments::{Lateness, Moments, received},
};

/// The port of the first change; later changes count up.
const FIRST_PORT: u16 = 10_000;
const AT_REST: u16 = 8_080;

/// The kind of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ChangeKind {
    /// The endpoint moves to another port: an Add and a Remove.
    Move,
    /// The endpoint becomes ready or unready: either an Add or a Remove.
    Flip,
}

/// The state of the endpoint, and the summary of the message for clients.
type Summary = (What, u16);

pub(super) struct Changing {
    slices: Api<EndpointSlice>,
    service: &'static str,
    kind: ChangeKind,
    moments: Moments<Summary>,
}

impl Changing {
    /// Brings the endpoint into a state in which the first change is like the others. Call it before clients connect.
    pub(super) async fn prepare(client: &Client, service: &'static str, kind: ChangeKind) -> Result<Self> {
        let slices = Api::namespaced(client.clone(), NAMESPACE);
        write(&slices, service, if kind == ChangeKind::Flip { What::Remove } else { What::Add }, AT_REST).await?;
        let of_slice = WatchParams::default().fields(&format!("metadata.name={}", name(service)));
        Ok(Self { moments: Moments::watch(&slices, of_slice, summary).await?, slices, service, kind })
    }

    /// The message that clients receive for a change.
    fn summary(&self, number: u16) -> Summary {
        match self.kind {
            ChangeKind::Move => (What::Add, FIRST_PORT + number),
            ChangeKind::Flip if number.is_multiple_of(2) => (What::Add, FIRST_PORT + number / 2),
            ChangeKind::Flip => (What::Remove, FIRST_PORT + number / 2),
        }
    }

    /// Makes a change; changes are numbered from 0.
    pub(super) async fn change(&self, number: u16) -> Result<()> {
        let (what, port) = self.summary(number);
        self.moments.write((what, port));
        write(&self.slices, self.service, what, port).await
    }

    /// Makes a change, and waits until this number of streams has received it.
    pub(super) async fn change_and_wait(&self, number: u16, load: &Load, streams: u64) -> Result<()> {
        self.change(number).await?;
        let (what, port) = self.summary(number);
        received(format_args!("change {number}"), streams, || load.arrivals().received(what, port)).await
    }

    /// # Errors
    /// Fails when a client received a change that the watch did not show.
    pub(super) fn lateness(&self, load: &Load) -> Result<Lateness> {
        let mut late = Lateness::default();
        for change in &load.arrivals().changes {
            // The Remove of a move is skipped: the measurement waits for its Add.
            self.moments.add_arrival(&mut late, &(change.what, change.port), change.at, change.streams)?;
        }
        Ok(late)
    }
}

/// The state that an event shows.
fn summary(event: WatchEvent<EndpointSlice>) -> Option<Summary> {
    let WatchEvent::Modified(slice) = event else { return None };
    let port = slice.ports.iter().flatten().find_map(|port| u16::try_from(port.port?).ok())?;
    let ready = slice.endpoints.iter().any(|it| it.conditions.as_ref().is_some_and(|it| it.ready == Some(true)));
    Some((if ready { What::Add } else { What::Remove }, port))
}

async fn write(slices: &Api<EndpointSlice>, service: &str, what: What, port: u16) -> Result<()> {
    // A replace: a patch costs the API server half as much again, and it shares the clients' core.
    let slice = json!({
        "metadata": {"name": name(service), "labels": {"kubernetes.io/service-name": service}},
        "addressType": "IPv4",
        "ports": [{"name": "http", "port": port}],
        "endpoints": [changing_endpoint(service, what == What::Add)],
    });
    slices.replace(&name(service), &PostParams::default(), &serde_json::from_value(slice)?).await?;
    Ok(())
}

/// Moves the endpoint of each of the usual Services to another port.
pub(super) async fn move_all(client: &Client, port: u16) -> Result<()> {
    let slices: Api<EndpointSlice> = Api::namespaced(client.clone(), NAMESPACE);
    let slices = &slices;
    stream::iter(0..SERVICES)
        .map(|number| async move { write(slices, &format!("web-{number}"), What::Add, port).await })
        .buffer_unordered(16)
        .try_collect()
        .await
}

fn name(service: &str) -> String {
    format!("{service}-changing")
}
