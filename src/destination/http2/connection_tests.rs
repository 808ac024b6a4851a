//! Tests of connections with a real HTTP/2 client.

use std::{
    net::{Ipv4Addr, SocketAddr},
    sync::atomic::{AtomicUsize, Ordering},
};

use futures::future::try_join_all;
use h2::client::SendRequest;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};

use super::*;
use crate::{
    contain::{self, Work},
    destination::http2::stream::BodyFrame,
};

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

/// Sends a small frame for each change, and counts how often it is polled.
struct Changes {
    changes: watch::Receiver<u32>,
    polls: Arc<AtomicUsize>,
}

impl ResponseBody for Changes {
    fn is_empty(&self) -> bool {
        false
    }

    async fn next(&mut self) -> Option<BodyFrame> {
        let mut changed = pin!(self.changes.changed());
        poll_fn(|cx| {
            self.polls.fetch_add(1, Ordering::Relaxed);
            changed.as_mut().poll(cx)
        })
        .await
        .ok()?;
        Some(BodyFrame::Data(Bytes::from_static(b"change")))
    }
}

fn limits() -> DestinationLimits {
    crate::destination::testing::settings().limits
}

/// Returns a client whose requests are answered with `words` frames each, and a future that resolves to the
/// connection's end.
async fn connection(words: usize, ends: bool) -> (SendRequest<Bytes>, impl Future<Output = ConnectionEnd>) {
    answered_with(move || Words { left: words, ends }).await
}

/// Returns a client whose requests are answered with these bodies, and a future that resolves to the connection's end.
async fn answered_with<B: ResponseBody + 'static>(
    body: impl Fn() -> B + Send + Sync + 'static,
) -> (SendRequest<Bytes>, impl Future<Output = ConnectionEnd>) {
    let (address, served) = serve_one(body).await;
    let socket = TcpStream::connect(address).await.unwrap();
    let (requests, connection) = h2::client::handshake(socket).await.unwrap();
    tokio::spawn(connection);
    (requests, served)
}

/// Returns the address of a server of one connection, whose requests are answered with these bodies, and a future that
/// resolves to the connection's end.
async fn serve_one<B: ResponseBody + 'static>(
    body: impl Fn() -> B + Send + Sync + 'static,
) -> (SocketAddr, impl Future<Output = ConnectionEnd>) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    let served = tokio::spawn(async move {
        let transport = Transport::accept(listener.accept().await.unwrap().0).await.unwrap();
        let limits = DestinationLimits { streams_per_connection: 10_000, ..limits() };
        let answer = |_| std::future::ready(Response::new(body()));
        let wake_time = WakeTime::new();
        let (stop, shortage) = (CancellationToken::new(), watch::Sender::default().subscribe());
        Arc::clone(&wake_time).track(serve(transport, &wake_time, &limits, &stop, shortage, answer)).await
    });
    (address, async move { served.await.unwrap() })
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

/// A stream that is polled again for nothing costs time, and after two of them no other stream has its turn before the
/// next write.
#[tokio::test]
async fn a_stream_is_polled_once_to_send_a_frame_and_once_to_wait_for_the_next() {
    const STREAMS: usize = 10;
    let (change, polls) = (watch::Sender::new(0), Arc::<AtomicUsize>::default());
    let (changes, counted) = (change.subscribe(), Arc::clone(&polls));
    let body = move || Changes { changes: changes.clone(), polls: Arc::clone(&counted) };
    let (requests, _served) = answered_with(body).await;
    let mut streams = try_join_all((0..STREAMS).map(async |_| open_stream(&requests).await)).await.unwrap();
    for number in 1..=3 {
        let before = polls.load(Ordering::Relaxed);
        change.send_replace(number);
        for stream in &mut streams {
            assert_eq!(stream.data().await.unwrap().unwrap(), "change");
        }
        assert_eq!(polls.load(Ordering::Relaxed) - before, 2 * STREAMS, "change {number}");
    }
}

/// Sends one small frame, and then panics.
struct Broken(bool);

impl ResponseBody for Broken {
    fn is_empty(&self) -> bool {
        false
    }

    async fn next(&mut self) -> Option<BodyFrame> {
        assert!(!std::mem::replace(&mut self.0, true), "out of ink");
        Some(BodyFrame::Data(Bytes::from_static(b"word")))
    }
}

#[tokio::test]
async fn a_stream_that_panics_is_reset_and_the_connection_goes_on() {
    let (requests, _served) = answered_with(|| Broken(false)).await;
    // More than a client may reset.
    for _ in 0..2_000 {
        // The reset may overtake the frame.
        let streamed = async { read(open_stream(&requests).await?, 2).await };
        assert_eq!(streamed.await.unwrap_err().reason(), Some(Reason::INTERNAL_ERROR));
    }
}

#[tokio::test]
async fn a_call_that_panics_is_reset_and_the_connection_goes_on() {
    // The tasks of a test share its thread.
    let (requests, _served) = connection(1, true).await;
    contain::testing::panic_in_next(Work::Answering);
    let error = open_stream(&requests).await.err().unwrap();
    assert_eq!(error.reason(), Some(Reason::INTERNAL_ERROR));
    read(open_stream(&requests).await.unwrap(), 2).await.unwrap();
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
async fn a_client_that_answers_pings_that_were_not_sent_loses_its_connection() {
    const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    const SETTINGS: [u8; 9] = [0, 0, 0, 4, 0, 0, 0, 0, 0];
    // A PING and its answer.
    const PING: [u8; 17] = [0, 0, 8, 6, 0, 0, 0, 0, 0, 7, 7, 7, 7, 7, 7, 7, 7];
    const PONG: [u8; 17] = [0, 0, 8, 6, 1, 0, 0, 0, 0, 7, 7, 7, 7, 7, 7, 7, 7];
    // The last stream is none, and the code is ENHANCE_YOUR_CALM.
    const GOAWAY: [u8; 17] = [0, 0, 8, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 11];
    let (address, served) = serve_one(|| Words { left: 1, ends: true }).await;
    let mut client = TcpStream::connect(address).await.unwrap();
    client.write_all(&[PREFACE, &SETTINGS, &PONG.repeat(100), &PING].concat()).await.unwrap();
    let mut read = Vec::new();
    while !read.ends_with(&PONG) {
        assert!(client.read_buf(&mut read).await.unwrap() > 0, "{read:?}");
    }
    client.write_all(&PONG).await.unwrap();
    assert_eq!(served.await, ConnectionEnd::Flood);
    client.read_to_end(&mut read).await.unwrap();
    assert!(read.ends_with(&GOAWAY), "{read:?}");
}

#[tokio::test]
async fn the_connection_ends_when_its_client_disconnects() {
    let (requests, served) = connection(1, true).await;
    drop(open_stream(&requests).await.unwrap());
    drop(requests);
    assert_eq!(served.await, ConnectionEnd::Client);
}
