//! What a proxy is told about an authority, as it changes: server-sent events.
//!
//! * In: an authority, a context token. Out: the differences that the messages of `Get` and `GetProfile` make.
//! * Always: the process asks its own Destination API over a socket, as a proxy does; a viewer that does not read holds
//!   its streams back. An end of the response makes the browser connect again, and the first differences of a response
//!   are the whole state.

use std::net::SocketAddr;

use bytes::Bytes;
use futures::{Stream, StreamExt, stream};
use serde::Serialize;
use serde_json::json;
use tonic::Streaming;

use crate::destination_client::{
    AuthorityState, DestinationClient, DestinationError, destination_request,
    endpoints::{ChangedEndpoint, EndpointRow, EndpointsChange, EndpointsState, NoEndpoints, with_clusters},
    profile::{ProfileChange, ProfileState},
};

/// The largest number of endpoints that one event lists. The page shows as many.
const SHOWN: usize = 1_000;

/// A kind of stream, and its events.
trait Live: AuthorityState {
    const EVENT: &str;

    fn data(&self, difference: Self::Difference) -> String;
}

/// One event, and the number of all endpoints after it.
#[derive(Serialize)]
struct EndpointsEvent {
    total: usize,
    added: Vec<EndpointRow>,
    changed: Vec<ChangedEndpoint>,
    removed: Vec<SocketAddr>,
    #[serde(skip_serializing_if = "Option::is_none")]
    none: Option<NoEndpoints>,
}

/// The progress of one stream.
enum Progress<T: AuthorityState> {
    Begin(DestinationClient),
    Open(Streaming<T::Message>, T),
    End,
}

/// Returns the events of both streams.
pub(super) async fn events(
    destination: SocketAddr,
    authority: String,
    token: String,
) -> anyhow::Result<impl Stream<Item = Bytes> + Send> {
    let client = DestinationClient::connect(&destination.to_string()).await?;
    let endpoints = of_stream::<EndpointsState>(client.clone(), authority.clone(), with_clusters(&token));
    Ok(stream::select(endpoints, of_stream::<ProfileState>(client, authority, token)))
}

fn of_stream<T: Live + 'static>(
    client: DestinationClient,
    authority: String,
    token: String,
) -> impl Stream<Item = Bytes> + Send {
    stream::unfold(Progress::<T>::Begin(client), move |progress| {
        let request = destination_request(&authority, &token);
        async move {
            let (mut messages, mut state) = match progress {
                Progress::Begin(client) => match T::open(&client, request).await {
                    Ok(messages) => (messages, T::default()),
                    Err(status) => return Some((refused(T::EVENT, &status.into()), Progress::End)),
                },
                Progress::Open(messages, state) => (messages, state),
                Progress::End => return None,
            };
            loop {
                match messages.message().await {
                    Ok(Some(message)) => {
                        let Some(difference) = state.apply(message) else { continue };
                        let event = event(T::EVENT, &state.data(difference));
                        return Some((event, Progress::Open(messages, state)));
                    }
                    Ok(None) => return None,
                    Err(status) => return Some((refused(T::EVENT, &status.into()), Progress::End)),
                }
            }
        }
    })
    .boxed()
}

/// Returns the event that a stream was refused or failed.
fn refused(of: &str, error: &DestinationError) -> Bytes {
    let data = json!({"of": of, "temporary": error.is_temporary(), "message": error.code_and_message()});
    event("refused", &data.to_string())
}

/// Returns an event as bytes. JSON has no line feeds, so the data is one line.
fn event(name: &str, data: &str) -> Bytes {
    format!("event: {name}\ndata: {data}\n\n").into()
}

fn json(value: &impl Serialize) -> String {
    serde_json::to_string(value).unwrap_or_default()
}

impl Live for EndpointsState {
    const EVENT: &str = "endpoints";

    fn data(&self, difference: EndpointsChange) -> String {
        let EndpointsChange { mut added, mut changed, removed, no_endpoints } = difference;
        added.truncate(SHOWN);
        changed.truncate(SHOWN);
        let removed = removed.iter().map(|row| SocketAddr::new(row.ip, row.port)).collect();
        json(&EndpointsEvent { total: self.known().count(), added, changed, removed, none: no_endpoints })
    }
}

impl Live for ProfileState {
    const EVENT: &str = "profile";

    fn data(&self, difference: ProfileChange) -> String {
        json(&difference)
    }
}
