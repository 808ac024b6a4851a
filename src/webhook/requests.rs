//! Reads the body of a request, and calls the handler.
//!
//! In: a request. Out: an answer with its memory, always. Always holds: all bodies, what the handler decodes from them and
//! all answers fit into [`Limits::bodies`]; a client that sends slowly or takes no answers does not keep that memory from
//! others; reading and handling have deadlines; the handler gets a complete body that is not empty; a body that is too
//! long is answered before it is read; a panic of the handler is an answer.

use std::{
    error::Error,
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
};

use http::{Request, Response, StatusCode, header};
use http_body::Body;
use http_body_util::{BodyExt, Full};
use hyper::body::Bytes;
use tokio::time::{Instant, timeout, timeout_at};
use tracing::{debug, error};

use super::{
    connections::{OpenConnection, RECHECK},
    review_memory::{HeldMemory, ReviewMemory},
    server::{Handler, Limits},
};
use crate::contain::{Work, contain_future};

/// The memory of a decoded JSON value: a container in the form `{},` takes twice as much, and counts as two.
const VALUE_BYTES: usize = 128;

/// Answers the requests of all connections.
pub(super) struct Requests {
    handler: Arc<dyn Handler>,
    memory: ReviewMemory,
    /// The length of the longest answer so far. How long the next one is shows only when it takes its memory already.
    longest_answer: AtomicUsize,
    limits: Limits,
}

/// An answer, and its memory, which is to be held until the client has taken the answer.
pub(super) struct WebhookAnswer<B> {
    pub(super) response: Response<Full<Bytes>>,
    pub(super) memory: HeldMemory,
    /// A body that is too long, of which the rest has not been read. The answer is the last one of its connection.
    pub(super) unread: Option<B>,
}

/// The reason why a request has no usable body.
enum BodyError {
    TooLong,
    /// The body decoded would take more than all memory of bodies.
    TooManyValues,
    Late,
    /// The bodies of other requests take all memory.
    NoMemory,
    Broken(Box<dyn Error + Send + Sync>),
}

// === impl Requests ===

impl Requests {
    pub(super) fn new(handler: Arc<dyn Handler>, limits: Limits) -> Self {
        Self { handler, memory: ReviewMemory::new(limits.bodies), longest_answer: AtomicUsize::new(0), limits }
    }

    /// Answers one request.
    pub(super) async fn answer<B>(&self, request: Request<B>, connection: &OpenConnection) -> WebhookAnswer<B>
    where
        B: Body<Data = Bytes> + Unpin,
        B::Error: Into<Box<dyn Error + Send + Sync>>,
    {
        let path = request.uri().path().to_owned();
        // The headers are dropped here, because the body can take a long time.
        let mut memory = self.memory.of_request(connection.client());
        let mut body = request.into_body();
        let read = self.read(&mut body, &mut memory, connection).await;
        let unread = matches!(read, Err(BodyError::TooLong)).then_some(body);
        let response = match read {
            Ok(body) if body.is_empty() => {
                debug!(path, "a webhook request has no body");
                Response::default()
            }
            Ok(body) => self.handle(path, body).await,
            Err(BodyError::TooLong) => {
                let limit = format!("limit reached while reading: {}", self.limits.body);
                closing(text(StatusCode::PAYLOAD_TOO_LARGE, limit))
            }
            Err(BodyError::TooManyValues) => {
                debug!(path, "the body of a webhook request has too many values");
                text(StatusCode::PAYLOAD_TOO_LARGE, "the object has too many values")
            }
            Err(BodyError::Late) => {
                debug!(path, "the body of a webhook request did not arrive in time");
                closing(text(StatusCode::REQUEST_TIMEOUT, "the body did not arrive in time"))
            }
            Err(BodyError::NoMemory) => {
                debug!(path, "a webhook request was rejected, because other bodies take all memory");
                text(StatusCode::SERVICE_UNAVAILABLE, "too many requests are being read, retry later")
            }
            Err(BodyError::Broken(error)) => {
                debug!(path, error, "the body of a webhook request is incomplete");
                text(StatusCode::BAD_REQUEST, "the body is incomplete")
            }
        };
        let length = usize::try_from(response.body().size_hint().lower()).unwrap_or(usize::MAX);
        self.longest_answer.fetch_max(length, Relaxed);
        memory.settle(length);
        WebhookAnswer { response, memory, unread }
    }

    #[cfg(any(test, fuzzing))]
    pub(super) fn free_kib(&self) -> usize {
        self.memory.free_kib()
    }

    async fn handle(&self, path: String, body: Bytes) -> Response<Full<Bytes>> {
        let handler = Arc::clone(&self.handler);
        let log_path = path.clone();
        let answer = contain_future(Work::Reviewing, async move { handler.answer(path, body).await });
        match timeout(self.limits.handler, answer).await {
            Ok(Ok(response)) => response,
            Ok(Err(panicked)) => {
                error!(path = log_path, %panicked, "a webhook request could not be answered");
                text(StatusCode::INTERNAL_SERVER_ERROR, "the handler panicked")
            }
            Err(_) => {
                error!(path = log_path, "the webhook handler did not answer in time");
                text(StatusCode::SERVICE_UNAVAILABLE, "the handler did not answer in time")
            }
        }
    }

    /// Returns the whole body. Its memory is that of the body decoded and of the answer.
    async fn read<B>(
        &self,
        body: &mut B,
        memory: &mut HeldMemory,
        connection: &OpenConnection,
    ) -> Result<Bytes, BodyError>
    where
        B: Body<Data = Bytes> + Unpin,
        B::Error: Into<Box<dyn Error + Send + Sync>>,
    {
        let declared = body.size_hint().exact().map(|length| usize::try_from(length).unwrap_or(usize::MAX));
        if body.is_end_stream() || declared == Some(0) {
            return Ok(Bytes::new());
        }
        let expected = declared.unwrap_or(self.limits.body);
        if expected > self.limits.body {
            return Err(BodyError::TooLong);
        }
        self.collect(body, expected, memory, connection).await
    }

    /// Copies the body into one buffer. Frames are not kept, because a frame of one byte takes much more memory than that.
    /// The buffer and its share of the memory grow with the bytes that were received, not with the announced length, so
    /// that silent clients take nothing from others.
    async fn collect<B>(
        &self,
        body: &mut B,
        expected: usize,
        memory: &mut HeldMemory,
        connection: &OpenConnection,
    ) -> Result<Bytes, BodyError>
    where
        B: Body<Data = Bytes> + Unpin,
        B::Error: Into<Box<dyn Error + Send + Sync>>,
    {
        let deadline = Instant::now() + self.limits.body_time;
        let mut bytes = Vec::new();
        connection.reads_body(0);
        while let Some(frame) = timeout_at(deadline, body.frame()).await.map_err(|_| BodyError::Late)? {
            let frame = frame.map_err(|error| BodyError::Broken(error.into()))?;
            let Ok(data) = frame.into_data() else { continue };
            let length = bytes.len() + data.len();
            if length > self.limits.body {
                return Err(BodyError::TooLong);
            }
            if length > bytes.capacity() {
                let capacity = (2 * bytes.capacity()).min(expected).max(length);
                let grown = timeout_at(deadline, self.grow(memory, capacity, connection, || {}));
                grown.await.map_err(|_| BodyError::NoMemory)??;
                connection.reads_body(capacity);
                bytes.reserve_exact(capacity - bytes.len());
            }
            bytes.extend_from_slice(&data);
        }
        connection.queue();
        bytes.shrink_to_fit();
        let needed = bytes.len() + values(&bytes) * VALUE_BYTES;
        if needed > self.limits.bodies {
            return Err(BodyError::TooManyValues);
        }
        let needed = (needed + self.longest_answer.load(Relaxed)).min(self.limits.bodies);
        let grown = timeout_at(deadline, self.grow(memory, needed, connection, || connection.begin()));
        grown.await.map_err(|_| BodyError::NoMemory)??;
        memory.settle(needed);
        Ok(bytes.into())
    }

    /// Waits for memory for so many bytes in total; `has_share` is called when only other clients are waited for. Meanwhile,
    /// connections are closed whose clients are late.
    async fn grow(
        &self,
        memory: &mut HeldMemory,
        bytes: usize,
        connection: &OpenConnection,
        has_share: impl FnOnce(),
    ) -> Result<(), BodyError> {
        let mut grown = pin!(memory.grow(bytes, has_share));
        loop {
            match timeout(RECHECK, &mut grown).await {
                Ok(grown) => return grown.map_err(|_| BodyError::NoMemory),
                Err(_) => connection.close_a_slow_one(),
            }
        }
    }

    /// Reads more of a body that has been answered. Many HTTP/1 clients read the answer only after they have sent the
    /// body, and do not receive it if the connection is closed before.
    pub(super) async fn discard<B: Body<Data = Bytes> + Unpin>(&self, mut body: B) {
        let read = async {
            let mut length = 0;
            while length <= self.limits.body
                && let Some(Ok(frame)) = body.frame().await
            {
                length += frame.data_ref().map_or(0, Bytes::len);
            }
        };
        // The connection ends in either case.
        let _ = timeout(self.limits.body_time, read).await;
    }
}

/// Tells the client to open another connection for its next request.
pub(super) fn closing(mut response: Response<Full<Bytes>>) -> Response<Full<Bytes>> {
    response.headers_mut().insert(header::CONNECTION, header::HeaderValue::from_static("close"));
    response
}

/// Counts the commas and the lists and maps of a JSON text, which are about as many as its values.
pub(super) fn values(json: &[u8]) -> usize {
    let (mut count, mut in_string, mut escaped) = (0, false, false);
    for byte in json {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = in_string,
            b'"' => in_string = !in_string,
            b',' | b'[' | b'{' if !in_string => count += 1,
            _ => {}
        }
    }
    count
}

fn text(status: StatusCode, body: impl Into<Bytes>) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(body.into()));
    *response.status_mut() = status;
    let plain = header::HeaderValue::from_static("text/plain; charset=utf-8");
    response.headers_mut().insert(header::CONTENT_TYPE, plain);
    response
}

#[cfg(test)]
mod tests {
    use std::{convert::Infallible, time::Duration};

    use super::*;
    use crate::{
        memory::MemoryBudget,
        webhook::{connections::Connections, testing::Script},
    };
    use futures::{StreamExt, stream};
    use http_body::Frame;
    use http_body_util::StreamBody;

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
}
