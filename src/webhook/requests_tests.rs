//! Bodies of requests: their memory, their deadlines, and what reaches the handler.

use std::{convert::Infallible, time::Duration};

use futures::{StreamExt, stream};
use http_body::Frame;
use http_body_util::StreamBody;

use super::*;
use crate::{
    memory::MemoryBudget,
    webhook::{connections::Connections, testing::Script},
};

const KIB: usize = 1024;
const LIMITS: Limits = Limits { body: 4 * KIB, bodies: 8 * KIB, ..Limits::DEFAULT };

fn requests() -> (Arc<Requests>, Arc<Script>) {
    let script = Arc::new(Script::default());
    (Arc::new(Requests::new(Arc::clone(&script) as Arc<dyn Handler>, LIMITS)), script)
}

/// A connection of a client with this number.
async fn connection(connections: &Arc<Connections>, client: u8) -> OpenConnection {
    connections.admit([10, 0, 0, client].into()).await.unwrap()
}

fn connections() -> Arc<Connections> {
    Connections::new(8, MemoryBudget::UNLIMITED)
}

async fn answer<B>(requests: &Requests, path: &str, body: B) -> (StatusCode, String)
where
    B: Body<Data = Bytes, Error = Infallible> + Unpin,
{
    let request = Request::builder().uri(path).body(body).unwrap();
    let WebhookAnswer { response, .. } = requests.answer(request, &connection(&connections(), 1).await).await;
    let (head, body) = response.into_parts();
    (head.status, String::from_utf8(body.collect().await.unwrap().to_bytes().into()).unwrap())
}

fn full(length: usize) -> Full<Bytes> {
    Full::new(vec![b'x'; length].into())
}

/// A body of unknown length.
fn chunked(chunks: usize, length: usize) -> impl Body<Data = Bytes, Error = Infallible> + Unpin {
    let chunk = Bytes::from(vec![b'x'; length]);
    StreamBody::new(stream::iter((0..chunks).map(move |_| Ok(Frame::data(chunk.clone())))))
}

#[tokio::test(start_paused = true)]
async fn a_body_of_the_limit_is_accepted_and_one_more_byte_is_not() {
    let (requests, script) = requests();
    let too_long = (StatusCode::PAYLOAD_TOO_LARGE, "limit reached while reading: 4096".to_owned());
    assert_eq!(answer(&requests, "/a", full(4096)).await, (StatusCode::OK, "/a 4096".to_owned()));
    assert_eq!(answer(&requests, "/a", chunked(64, 64)).await, (StatusCode::OK, "/a 4096".to_owned()));
    assert_eq!(answer(&requests, "/a", full(4097)).await, too_long);
    assert_eq!(answer(&requests, "/a", chunked(4097, 1)).await, too_long);
    assert_eq!(script.calls(), 2);
    assert_eq!(requests.memory.free_kib(), 8);
}

#[tokio::test(start_paused = true)]
async fn a_body_that_is_too_long_is_answered_before_its_end() {
    let ((requests, script), begun) = (requests(), Instant::now());
    let first = stream::once(async { Ok::<_, Infallible>(Frame::data(Bytes::from(vec![b'x'; 4097]))) });
    let body = StreamBody::new(Box::pin(first.chain(stream::pending())));
    let WebhookAnswer { response, unread, memory } =
        requests.answer(Request::new(body), &connection(&connections(), 1).await).await;
    assert_eq!((response.status(), begun.elapsed()), (StatusCode::PAYLOAD_TOO_LARGE, Duration::ZERO));
    assert_eq!(response.headers()["connection"], "close");
    drop(memory);
    assert_eq!((script.calls(), requests.memory.free_kib()), (0, 8));
    requests.discard(unread.unwrap()).await;
    assert_eq!(begun.elapsed(), Duration::from_secs(10));
}

#[tokio::test(start_paused = true)]
async fn what_is_decoded_from_a_body_counts_as_its_memory() {
    let (requests, script) = requests();
    let body = |text: String| Full::new(Bytes::from(text));
    let waiting = tokio::spawn({
        let requests = Arc::clone(&requests);
        // 62 bytes and 32 values: five KiB of memory.
        async move { answer(&requests, "/wait", body("[[".repeat(15) + &"]]".repeat(15) + ",,")).await }
    });
    script.begun().await;
    assert_eq!(requests.memory.free_kib(), 3);
    script.release();
    assert_eq!(waiting.await.unwrap().0, StatusCode::OK);
    let refused = answer(&requests, "/a", body("{},".repeat(40))).await;
    assert_eq!(refused, (StatusCode::PAYLOAD_TOO_LARGE, "the object has too many values".to_owned()));
    assert_eq!(answer(&requests, "/a", body(format!("\"{}\"", "{},".repeat(40)))).await.0, StatusCode::OK);
    assert_eq!(requests.memory.free_kib(), 8);
}

#[test]
fn values_are_counted_outside_of_strings() {
    let count = |text: &str| values(text.as_bytes());
    assert_eq!((count(""), count("1"), count("[1,2]"), count(r#"{"a":[{},{}]}"#)), (0, 0, 2, 5));
    assert_eq!((count(r#"["a,b","\"{[,"]"#), count(r#"["\\",1]"#)), (2, 2));
}

#[tokio::test(start_paused = true)]
async fn an_empty_body_has_an_empty_answer_without_the_handler() {
    let (requests, script) = requests();
    assert_eq!(answer(&requests, "/a", full(0)).await, (StatusCode::OK, String::new()));
    assert_eq!(answer(&requests, "/a", chunked(0, 0)).await, (StatusCode::OK, String::new()));
    assert_eq!(script.calls(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_body_waits_for_memory_until_a_deadline() {
    let (requests, _) = requests();
    let (begun, mut others) = (Instant::now(), requests.memory.of_request([10, 0, 0, 9].into()));
    others.grow(8 * KIB, || {}).await.unwrap();
    assert_eq!(answer(&requests, "/a", full(1)).await.0, StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(begun.elapsed(), Duration::from_secs(10));
    let released = async { drop(others) };
    assert_eq!(tokio::join!(answer(&requests, "/a", full(1)), released).0.0, StatusCode::OK);
}

#[tokio::test(start_paused = true)]
async fn bodies_that_are_not_sent_take_no_memory_from_others() {
    let (requests, _) = requests();
    for _ in 0..3 {
        let requests = Arc::clone(&requests);
        tokio::spawn(async move {
            let silent: StreamBody<_> = StreamBody::new(stream::pending::<Result<Frame<Bytes>, Infallible>>());
            answer(&requests, "/a", silent).await
        });
    }
    tokio::task::yield_now().await;
    let begun = Instant::now();
    assert_eq!(answer(&requests, "/a", full(4096)).await.0, StatusCode::OK);
    assert!(begun.elapsed().is_zero());
}

/// Sends bodies of 4 KiB that never end, and returns how long another client waits for its answer.
async fn wait_behind_slow_bodies(clients: [u8; 2], free_kib: usize) -> Duration {
    let ((requests, _), connections) = (requests(), connections());
    for client in clients {
        let (requests, connection) = (Arc::clone(&requests), connection(&connections, client).await);
        tokio::spawn(async move {
            let first = stream::once(async { Ok::<_, Infallible>(Frame::data(Bytes::from(vec![b'x'; 4 * KIB]))) });
            let slow = StreamBody::new(Box::pin(first.chain(stream::pending())));
            tokio::select! {
                _ = requests.answer(Request::new(slow), &connection) => {}
                () = connection.closed() => {}
            }
        });
    }
    tokio::task::yield_now().await;
    assert_eq!(requests.memory.free_kib(), free_kib);
    let (begun, own) = (Instant::now(), connection(&connections, 3).await);
    let request = Request::builder().uri("/a").body(full(1)).unwrap();
    assert_eq!(requests.answer(request, &own).await.response.status(), StatusCode::OK);
    begun.elapsed()
}

#[tokio::test(start_paused = true)]
async fn slow_bodies_of_one_client_do_not_keep_the_memory_from_another_one() {
    assert_eq!(wait_behind_slow_bodies([1, 1], 4).await, Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn slow_bodies_of_several_clients_are_closed_for_another_one() {
    let waited = wait_behind_slow_bodies([1, 2], 0).await;
    assert!(waited <= Duration::from_millis(5200), "{waited:?}");
}

#[tokio::test(start_paused = true)]
async fn an_answer_has_memory_until_it_is_taken_and_the_next_request_waits_for_as_much() {
    let ((requests, script), connections) = (requests(), connections());
    let ask = async |path: &str, client| {
        let request = Request::builder().uri(path).body(full(1)).unwrap();
        requests.answer(request, &connection(&connections, client).await).await
    };
    let untaken = ask("/long", 1).await;
    assert_eq!(requests.memory.free_kib(), 4);
    // The client's share has two more.
    assert_eq!(ask("/long", 1).await.response.status(), StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!((script.calls(), requests.memory.free_kib()), (1, 4));
    let other = ask("/a", 2).await;
    assert_eq!((other.response.status(), requests.memory.free_kib()), (StatusCode::OK, 3));
    drop(untaken);
    assert_eq!(ask("/long", 1).await.response.status(), StatusCode::OK);
    drop(other);
    assert_eq!(requests.memory.free_kib(), 8);
}

/// The last one needs more than the share of a client, and with an answer more than there is.
#[tokio::test(start_paused = true)]
async fn a_request_that_needs_all_memory_is_answered() {
    let (requests, _) = requests();
    for length in [4 * KIB, 4 * KIB] {
        assert_eq!(answer(&requests, "/long", full(length)).await.0, StatusCode::OK);
    }
    let body = format!("[{}]", ",".repeat(60));
    assert_eq!(answer(&requests, "/a", Full::new(body.into())).await.0, StatusCode::OK);
}

#[tokio::test(start_paused = true)]
async fn a_body_without_end_returns_its_memory_and_ends_the_connection() {
    let (requests, _) = requests();
    let endless: StreamBody<_> = StreamBody::new(stream::pending::<Result<Frame<Bytes>, Infallible>>());
    let WebhookAnswer { response, .. } =
        requests.answer(Request::new(endless), &connection(&connections(), 1).await).await;
    assert_eq!(response.status(), StatusCode::REQUEST_TIMEOUT);
    assert_eq!(response.headers()["connection"], "close");
    assert_eq!(requests.memory.free_kib(), 8);
}

#[tokio::test(start_paused = true)]
async fn a_body_in_the_handler_keeps_only_the_memory_that_it_needs() {
    let (requests, script) = requests();
    let waiting = tokio::spawn({
        let requests = Arc::clone(&requests);
        async move { answer(&requests, "/wait", chunked(1, 1025)).await }
    });
    script.begun().await;
    assert_eq!(requests.memory.free_kib(), 6);
    script.release();
    assert_eq!(waiting.await.unwrap().1, "/wait 1025");
}

#[tokio::test(start_paused = true)]
async fn a_handler_that_is_too_slow_or_panics_is_an_error() {
    let (requests, _) = requests();
    let begun = Instant::now();
    assert_eq!(answer(&requests, "/wait", full(1)).await.0, StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(begun.elapsed(), Duration::from_secs(10));
    assert_eq!(answer(&requests, "/panic", full(1)).await.0, StatusCode::INTERNAL_SERVER_ERROR);
    assert_eq!(answer(&requests, "/a", full(1)).await.0, StatusCode::OK);
}
