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
    limits::Limits,
    review_memory::{HeldMemory, ReviewMemory},
    server::Handler,
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
    /// The rest of a body that is too long, which has not been read. The answer is the last one of its connection.
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
#[path = "requests_tests.rs"]
mod tests;
