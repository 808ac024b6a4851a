//! Bounds the memory of responses: the bytes of one page of a list, the pages that are received at the same time, one
//! event of a watch, and the text of an error.
//!
//! In: requests to the API server. Out: their responses; the body of a page fails with [`PageTooLarge`] when it is too
//! large. Always holds: the pages that are being received have at most the size of [`RECEIVED_PAGES`] together,
//! except for a single object that is larger; a page and an error have a deadline. kube keeps a page up to three times
//! while it decodes it, and tenants decide how large objects are, so a page with a fixed number of objects has no bound.
//! A list in a stream is a watch. kube has no limit for the length of an event and of an error, and the API server of a
//! linked cluster need not be trustworthy. So linked clusters have lower limits, and the responses of all of them
//! together hold at most [`LINKED_BYTES`]. No cluster holds more of these bytes than it leaves free.

use std::{
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use http::{Method, Request, Response};
use http_body::{Body as HttpBody, Frame};
use http_body_util::BodyExt;
use kube::client::Body;
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::{Sleep, sleep},
};
use tower::{BoxError, Layer, Service};

/// The maximum size of a page with several objects.
const PAGE_BYTES: usize = 8 * 1024 * 1024;
/// The maximum size of a page with one object, and of an event. etcd permits 1.5 MiB, but JSON may escape each byte as six.
const OBJECT_BYTES: usize = 32 * 1024 * 1024;
/// The number of pages that are received at the same time.
const RECEIVED_PAGES: usize = 2;
/// The same as [`PAGE_BYTES`] and [`OBJECT_BYTES`] for a linked cluster. Two pages fit into the share that a cluster has
/// while another one holds as much as it can.
const LINKED_PAGE_BYTES: usize = 4 * 1024 * 1024;
const LINKED_OBJECT_BYTES: usize = 8 * 1024 * 1024;
/// The maximum size of what the responses of all linked clusters hold. kube's buffers may have twice this size.
const LINKED_BYTES: usize = 32 * 1024 * 1024;
/// The first bytes of a response, which do not count toward [`LINKED_BYTES`]. Nearly all events have no more, so the
/// number of watched namespaces has no limit here.
const SMALL_BYTES: usize = 32 * 1024;
/// The unit of [`ResponseLimitLayer::room`].
const UNIT: usize = 1024 * 1024;
/// The maximum size of an error.
const ERROR_BYTES: usize = 1024 * 1024;
/// The deadline of a page and of an error, from its headers to its end.
const PAGE_TIMEOUT: Duration = Duration::from_secs(60);

/// The number of bytes that the responses of all linked clusters hold.
static LINKED: AtomicUsize = AtomicUsize::new(0);

/// A page has more bytes than the maximum. The list should be repeated with fewer objects in a page.
#[derive(Debug, thiserror::Error)]
#[error("a page of the list has more than {0} bytes")]
pub(crate) struct PageTooLarge(usize);

/// Limits the responses that a client receives.
#[derive(Clone)]
pub(crate) struct ResponseLimitLayer {
    /// The maximum size of a page with several objects.
    page: usize,
    /// The maximum size of a page with one object, and of an event.
    object: usize,
    /// The maximum size of all pages that are being received.
    received: usize,
    room: Arc<Semaphore>,
    /// `None` for the local cluster.
    share: Option<LinkShare>,
}

#[derive(Clone)]
pub(crate) struct ResponseLimitService<S> {
    inner: S,
    layer: ResponseLimitLayer,
}

/// The number of bytes that the responses of one linked cluster hold, and the number for all linked clusters.
#[derive(Clone)]
struct LinkShare {
    own: Arc<AtomicUsize>,
    all: &'static AtomicUsize,
}

/// The part of a share that one response holds, until it is dropped.
struct HeldBytes {
    share: LinkShare,
    bytes: usize,
}

/// The kind of content that a request asks for.
#[derive(Clone, Copy)]
enum Content {
    /// A page of a list with at most so many objects.
    Page(u32),
    /// The events of a watch, one in each line.
    Events,
    Other,
}

/// A body that fails when it is too large.
struct LimitedBody {
    body: Pin<Box<dyn HttpBody<Data = Bytes, Error = BoxError> + Send>>,
    limit: Limit,
    remaining: usize,
    /// `None` for a watch.
    deadline: Option<Pin<Box<Sleep>>>,
    _room: Option<OwnedSemaphorePermit>,
    /// `None` for the local cluster.
    held: Option<HeldBytes>,
}

/// The part of a response that a limit applies to, with the limit in bytes.
#[derive(Clone, Copy)]
enum Limit {
    Page(usize),
    Event(usize),
    Error(usize),
}

/// The responses of an API server, with or without a limit.
type ApiBody = http_body_util::combinators::UnsyncBoxBody<Bytes, BoxError>;

// === impl PageTooLarge ===

impl PageTooLarge {
    /// Returns whether this is the cause of an error.
    pub(crate) fn caused(error: &(dyn std::error::Error + 'static)) -> bool {
        std::iter::successors(Some(error), |error| error.source()).any(<dyn std::error::Error>::is::<Self>)
    }
}

// === impl ResponseLimitLayer ===

impl ResponseLimitLayer {
    pub(crate) fn new() -> Self {
        Self::with(None)
    }

    /// Limits the responses of a linked cluster.
    pub(crate) fn linked() -> Self {
        Self::sharing(&LINKED)
    }

    fn sharing(all: &'static AtomicUsize) -> Self {
        Self::with(Some(LinkShare { own: Arc::default(), all }))
    }

    fn with(share: Option<LinkShare>) -> Self {
        let (page, object) = match share {
            None => (PAGE_BYTES, OBJECT_BYTES),
            Some(_) => (LINKED_PAGE_BYTES, LINKED_OBJECT_BYTES),
        };
        let received = RECEIVED_PAGES * page;
        Self { page, object, received, room: Arc::new(Semaphore::new(received / UNIT)), share }
    }
}

impl<S> Layer<S> for ResponseLimitLayer {
    type Service = ResponseLimitService<S>;

    fn layer(&self, inner: S) -> Self::Service {
        ResponseLimitService { inner, layer: self.clone() }
    }
}

impl<S, B> Service<Request<Body>> for ResponseLimitService<S>
where
    S: Service<Request<Body>, Response = Response<B>>,
    S::Error: Into<BoxError>,
    S::Future: Send + 'static,
    B: HttpBody<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    type Response = Response<ApiBody>;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, BoxError>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.inner.poll_ready(cx).map_err(Into::into)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let content = Content::of(&request);
        let response = self.inner.call(request);
        let ResponseLimitLayer { page, object, received, room, share } = self.layer.clone();
        Box::pin(async move {
            let response = response.await.map_err(Into::into)?;
            let is_error = response.status().is_client_error() || response.status().is_server_error();
            let (limit, room) = match content {
                _ if is_error => (Limit::Error(ERROR_BYTES), None),
                Content::Page(objects) => {
                    let max = if objects > 1 { page } else { object };
                    let units = u32::try_from(max.min(received) / UNIT)?;
                    // Only for the body: an API server that does not respond must not delay the lists of other kinds.
                    (Limit::Page(max), Some(room.acquire_many_owned(units).await?))
                }
                Content::Events => (Limit::Event(object), None),
                Content::Other => return Ok(response.map(|body| body.map_err(Into::into).boxed_unsync())),
            };
            Ok(response.map(|body| LimitedBody::new(body, limit, room, share).boxed_unsync()))
        })
    }
}

// === impl HeldBytes ===

impl HeldBytes {
    /// Reserves this number of bytes in total. A larger earlier number stays reserved, because kube keeps the buffer of
    /// the longest event of a watch until the watch ends. Returns false if there is no room for them.
    fn hold(&mut self, bytes: usize) -> bool {
        let more = bytes.saturating_sub(SMALL_BYTES).saturating_sub(self.bytes);
        let LinkShare { own, all } = &self.share;
        let used = own.fetch_add(more, Ordering::SeqCst) + all.fetch_add(more, Ordering::SeqCst) + 2 * more;
        // This cluster leaves at least as much free as it holds.
        let fits = more == 0 || used <= LINKED_BYTES;
        if fits {
            self.bytes += more;
        } else {
            self.share.release(more);
        }
        fits
    }
}

impl Drop for HeldBytes {
    fn drop(&mut self) {
        self.share.release(self.bytes);
    }
}

// === impl LinkShare ===

impl LinkShare {
    fn release(&self, bytes: usize) {
        self.own.fetch_sub(bytes, Ordering::SeqCst);
        self.all.fetch_sub(bytes, Ordering::SeqCst);
    }
}

// === impl Content ===

impl Content {
    fn of(request: &Request<Body>) -> Self {
        let query = request.uri().query().filter(|_| request.method() == Method::GET).unwrap_or_default();
        let parameter = |wanted: &str| {
            let mut parameters = query.split('&').filter_map(|parameter| parameter.split_once('='));
            parameters.find_map(|(name, value)| (name == wanted).then_some(value))
        };
        if parameter("watch") == Some("true") {
            return Self::Events;
        }
        parameter("limit").and_then(|objects| objects.parse().ok()).map_or(Self::Other, Self::Page)
    }
}

// === impl LimitedBody ===

impl LimitedBody {
    fn new<B>(body: B, limit: Limit, room: Option<OwnedSemaphorePermit>, share: Option<LinkShare>) -> Self
    where
        B: HttpBody<Data = Bytes> + Send + 'static,
        B::Error: Into<BoxError>,
    {
        let deadline = match limit {
            Limit::Event(_) => None,
            Limit::Page(_) | Limit::Error(_) => Some(Box::pin(sleep(PAGE_TIMEOUT))),
        };
        Self {
            body: Box::pin(body.map_err(Into::into)),
            limit,
            remaining: limit.bytes(),
            deadline,
            _room: room,
            held: share.map(|share| HeldBytes { share, bytes: 0 }),
        }
    }

    /// Counts the bytes of a frame. Fails if there are too many.
    fn count(&mut self, data: &[u8]) -> Result<(), BoxError> {
        let counted = match self.limit {
            // The bytes before the last line are decoded and released when the frame has been read.
            Limit::Event(max) => memchr::memrchr(b'\n', data).map(|end| (max, data.len() - end - 1)),
            Limit::Page(_) | Limit::Error(_) => None,
        };
        let (remaining, length) = counted.unwrap_or((self.remaining, data.len()));
        let left = remaining.checked_sub(length);
        self.remaining = left.unwrap_or_default();
        if left.is_none() {
            return Err(self.limit.exceeded());
        }
        let unfinished = self.limit.bytes() - self.remaining;
        match self.held.as_mut().is_none_or(|held| held.hold(unfinished)) {
            true => Ok(()),
            false => Err(self.limit.without_room()),
        }
    }
}

impl HttpBody for LimitedBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        if self.deadline.as_mut().is_some_and(|deadline| deadline.as_mut().poll(cx).is_ready()) {
            return Poll::Ready(Some(Err(self.limit.late())));
        }
        let frame = std::task::ready!(self.body.as_mut().poll_frame(cx));
        if let Some(Ok(frame)) = &frame
            && let Some(data) = frame.data_ref()
            && let Err(error) = self.count(data)
        {
            return Poll::Ready(Some(Err(error)));
        }
        Poll::Ready(frame)
    }
}

// === impl Limit ===

impl Limit {
    fn bytes(self) -> usize {
        match self {
            Self::Page(bytes) | Self::Event(bytes) | Self::Error(bytes) => bytes,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Page(_) => "the page",
            Self::Event(_) => "an event of the watch",
            Self::Error(_) => "the error",
        }
    }

    fn late(self) -> BoxError {
        format!("{} was not complete within {} s", self.name(), PAGE_TIMEOUT.as_secs()).into()
    }

    fn without_room(self) -> BoxError {
        let name = self.name();
        format!(
            "{name} does not fit into the {LINKED_BYTES} bytes for linked clusters, of which one takes no more than it leaves free"
        )
        .into()
    }

    fn exceeded(self) -> BoxError {
        match self {
            Self::Page(bytes) => PageTooLarge(bytes).into(),
            Self::Event(bytes) | Self::Error(bytes) => format!("{} has more than {bytes} bytes", self.name()).into(),
        }
    }
}

#[cfg(test)]
#[path = "response_limit_tests.rs"]
mod tests;
