//! Tests of connections with a real HTTP/2 client.

use std::net::Ipv4Addr;

use futures::future::try_join_all;
use h2::client::SendRequest;
use tokio::net::{TcpListener, TcpStream};

use super::*;

/// Sends a number of small frames, and then ends or stays open forever.
struct Words {
    left: usize,
    ends: bool,
}

impl ResponseBody for Words {
    fn is_empty(&self) -> bool {
        false
    }

    async fn next(&mut self) -> Option<BodyFrame> {
        match self.left.checked_sub(1) {
            Some(left) => self.left = left,
            None if self.ends => return None,
            None => std::future::pending().await,
        }
        Some(BodyFrame::Data(Bytes::from_static(b"word")))
    }
}

fn limits() -> DestinationLimits {
    crate::destination::testing::settings().limits
}

/// Returns a client whose requests are answered with `words` frames each, and a future that resolves to the
/// connection's end.
async fn connection(words: usize, ends: bool) -> (SendRequest<Bytes>, impl Future<Output = ConnectionEnd>) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    let served = tokio::spawn(async move {
        let transport = Transport::accept(listener.accept().await.unwrap().0).await.unwrap();
        let limits = DestinationLimits { streams_per_connection: 10_000, ..limits() };
        let answer = |_| async move { Response::new(Words { left: words, ends }) };
        let wake_time = WakeTime::new();
        let (stop, shortage) = (CancellationToken::new(), watch::Sender::default().subscribe());
        Arc::clone(&wake_time).track(serve(transport, &wake_time, &limits, &stop, shortage, answer)).await
    });
    let socket = TcpStream::connect(address).await.unwrap();
    let (requests, connection) = h2::client::handshake(socket).await.unwrap();
    tokio::spawn(connection);
    (requests, async move { served.await.unwrap() })
}

async fn open_stream(requests: &SendRequest<Bytes>) -> Result<RecvStream, h2::Error> {
    let (response, _) = requests.clone().ready().await?.send_request(Request::new(()), true)?;
    Ok(response.await?.into_body())
}

async fn read(mut body: RecvStream, words: usize) -> Result<(), h2::Error> {
    for _ in 0..words {
        let Some(word) = body.data().await else { break };
        body.flow_control().release_capacity(word?.len())?;
    }
    Ok(())
}

#[tokio::test]
async fn more_requests_than_a_turn_accepts_are_all_answered() {
    let (requests, _served) = connection(1, true).await;
    let read = async |_| read(open_stream(&requests).await?, 2).await;
    try_join_all((0..10 * REQUESTS_PER_TURN).map(read)).await.unwrap();
}

/// With the default windows of h2 a client accepts little more than a hundred unread small frames.
#[tokio::test]
async fn small_frames_are_sent_no_faster_than_clients_accept_them() {
    let (requests, _served) = connection(3, false).await;
    let read = async |_| read(open_stream(&requests).await?, 3).await;
    try_join_all((0..1_000).map(read)).await.unwrap();
}

#[tokio::test]
async fn a_client_that_resets_all_its_streams_loses_its_connection() {
    let (requests, served) = connection(1, false).await;
    // Each stream is dropped as soon as it is open.
    while open_stream(&requests).await.is_ok() {}
    assert_eq!(served.await, ConnectionEnd::Flood);
}

#[tokio::test]
async fn the_connection_ends_when_its_client_disconnects() {
    let (requests, served) = connection(1, true).await;
    drop(open_stream(&requests).await.unwrap());
    drop(requests);
    assert_eq!(served.await, ConnectionEnd::Client);
}
