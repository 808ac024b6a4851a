//! The endpoints and the profile that a proxy receives for an authority, as server-sent events.
//!
//! In: an authority, a context token. Out: the differences that the messages of `Get` and `GetProfile` make. Always
//! holds: they come from the process's own Destination API, over a socket, as for a proxy; a viewer that does not read
//! holds its streams back. The response ends when one of the streams ends, so that the browser connects again, and the
//! first differences of a response are the whole state. A stream that is refused for good does not end the other one.

use std::net::SocketAddr;

use bytes::Bytes;
use futures::{
    Stream, StreamExt,
    future::{pending, ready},
    stream::{self, BoxStream},
};
use serde::Serialize;
use serde_json::json;
use tonic::Streaming;

use crate::destination_client::{
    AuthorityState, DestinationClient, DestinationError, destination_request,
    endpoints::{ChangedEndpoint, EndpointRow, EndpointsChange, EndpointsState, NoEndpoints, with_clusters},
    profile::{ProfileChange, ProfileState},
};

/// The largest number of new or changed endpoints that one event lists. The page shows as many.
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
    /// The stream was refused, and would be refused again.
    Refused,
    End,
}

/// Returns the events of both streams, until one of them ends.
///
/// # Errors
/// Fails if the Destination API cannot be reached.
pub(super) async fn events(
    destination: SocketAddr,
    authority: String,
    token: String,
) -> anyhow::Result<impl Stream<Item = Bytes> + Send> {
    let client = DestinationClient::connect(&destination.to_string()).await?;
    let endpoints = of_stream::<EndpointsState>(client.clone(), authority.clone(), with_clusters(&token));
    let profile = of_stream::<ProfileState>(client, authority, token);
    let until_end = |events: BoxStream<'static, Bytes>| events.map(Some).chain(stream::iter([None]));
    let both = stream::select(until_end(endpoints), until_end(profile));
    Ok(both.take_while(|event| ready(event.is_some())).filter_map(ready))
}

fn of_stream<T: Live + 'static>(
    client: DestinationClient,
    authority: String,
    token: String,
) -> BoxStream<'static, Bytes> {
    stream::unfold(Progress::<T>::Begin(client), move |progress| {
        let request = destination_request(&authority, &token);
        async move {
            let (mut messages, mut state) = match progress {
                Progress::Begin(client) => match T::open(&client, request).await {
                    Ok(messages) => (messages, T::default()),
                    Err(status) => return Some(refused::<T>(&status.into())),
                },
                Progress::Open(messages, state) => (messages, state),
                Progress::Refused => pending().await,
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
                    Err(status) => return Some(refused::<T>(&status.into())),
                }
            }
        }
    })
    .boxed()
}

/// Returns the event that a stream was refused or failed, and what follows it.
fn refused<T: Live>(error: &DestinationError) -> (Bytes, Progress<T>) {
    let is_temporary = error.is_temporary();
    let data = json!({"of": T::EVENT, "temporary": is_temporary, "message": error.code_and_message()});
    (event("refused", &data.to_string()), if is_temporary { Progress::End } else { Progress::Refused })
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
