//! How the body of a request arrives, for the fuzzer.

use std::{
    convert::Infallible,
    net::{IpAddr, Ipv4Addr},
    sync::Arc,
};

use bytes::Bytes;
use futures::{FutureExt, StreamExt, future::BoxFuture, stream};
use http::{Request, Response, StatusCode};
use http_body::Frame;
use http_body_util::{BodyExt, Collected, Full, StreamBody};
use serde_json::Value;

use super::{
    connections::{Connections, OpenConnection},
    limits::Limits,
    requests::{Requests, WebhookAnswer, values},
    server::Handler,
};
use crate::memory::MemoryBudget;

const KIB: usize = 1024;
const LIMITS: Limits = Limits { body: 16 * KIB, bodies: 64 * KIB, ..Limits::DEFAULT };
/// Where the clients of the fuzzer are.
const CLIENT: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

/// Answers with the body.
struct Echo;

impl Handler for Echo {
    fn answer(self: Arc<Self>, _: String, body: Bytes) -> BoxFuture<'static, Response<Full<Bytes>>> {
        async { Response::new(Full::new(body)) }.boxed()
    }
}

/// In: the length of the frames, whether the length of the body is announced and whether the body breaks off, then the
/// body. The memory of a body suffices for its values, and is free again after the answer.
pub(crate) fn webhook_body(data: &[u8]) {
    let [frame, how, body @ ..] = data else { return };
    if let Ok(value) = serde_json::from_slice::<Value>(body) {
        assert!(count(&value) <= 1 + values(body), "{} values, counted as {}", count(&value), values(body));
    }
    let requests = Requests::new(Arc::new(Echo), LIMITS);
    let connections = Connections::new(8, MemoryBudget::UNLIMITED);
    let connection = connections.admit(CLIENT).now_or_never().flatten().expect("a place");
    let chunks: Vec<Bytes> = body.chunks(usize::from(*frame) + 1).map(Bytes::copy_from_slice).collect();
    let breaks_off = how & 2 != 0;
    let (status, answer) = if how & 1 == 0 {
        let rest = stream::iter(breaks_off.then_some(Err("broken"))).chain(stream::empty());
        let frames = stream::iter(chunks).map(|chunk| Ok::<_, &str>(Frame::data(chunk))).chain(rest);
        answered(&requests, &connection, StreamBody::new(frames))
    } else {
        answered(&requests, &connection, Full::new(Bytes::copy_from_slice(body)))
    };
    assert_eq!(requests.free_kib(), LIMITS.bodies / KIB, "memory is not free again");
    let is_whole = how & 1 != 0 || !breaks_off;
    match status {
        StatusCode::OK => assert!(is_whole && answer == body, "another body arrived"),
        StatusCode::BAD_REQUEST => assert!(!is_whole),
        StatusCode::PAYLOAD_TOO_LARGE => assert!(body.len() + values(body) * 128 > LIMITS.body),
        status => panic!("{status}"),
    }
}

fn answered<B>(requests: &Requests, connection: &OpenConnection, body: B) -> (StatusCode, Bytes)
where
    B: http_body::Body<Data = Bytes> + Unpin,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime");
    let answer = runtime.block_on(requests.answer(Request::new(body), connection));
    let WebhookAnswer { response, memory, unread: _ } = answer;
    drop(memory);
    let (head, body) = response.into_parts();
    let body: Result<_, Infallible> = body.collect().now_or_never().expect("the answer is complete");
    (head.status, body.map_or_else(|never| match never {}, Collected::to_bytes))
}

/// Returns the number of values that a decoded body has.
fn count(value: &Value) -> usize {
    1 + match value {
        Value::Array(items) => items.iter().map(count).sum(),
        Value::Object(map) => map.values().map(count).sum(),
        _ => 0,
    }
}
