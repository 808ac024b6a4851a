//! Bounds the memory of lists: the bytes of one page, and the pages that are received at the same time.
//!
//! In: requests to the API server. Out: their responses; the body of a page fails with [`PageTooLarge`] when it is too
//! large. Always holds: the pages that are being received have at most [`RECEIVED_BYTES`] together, except for a single
//! object that is larger; a page has a deadline. kube keeps a page up to three times while it decodes it, and tenants
//! decide how large objects are, so a page with a fixed number of objects has no bound. A list in a stream is decoded
//! object by object, and needs no limit here.

use std::{
    pin::Pin,
    sync::Arc,
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
/// The maximum size of a page with one object. etcd permits 1.5 MiB, but JSON may escape each byte as six.
const OBJECT_BYTES: usize = 32 * 1024 * 1024;
/// The maximum size of all pages that are being received.
const RECEIVED_BYTES: usize = 2 * PAGE_BYTES;
/// The unit of [`ListLimitLayer::room`].
const UNIT: usize = 1024 * 1024;
/// The deadline of a page, from its headers to its end.
const PAGE_TIMEOUT: Duration = Duration::from_secs(60);

/// A page has more bytes than the maximum. The list should be repeated with fewer objects in a page.
#[derive(Debug, thiserror::Error)]
#[error("a page of the list has more than {0} bytes")]
pub(crate) struct PageTooLarge(usize);

/// Limits the lists of a client.
#[derive(Clone)]
pub(crate) struct ListLimitLayer {
    room: Arc<Semaphore>,
}

#[derive(Clone)]
pub(crate) struct ListLimitService<S> {
    inner: S,
    room: Arc<Semaphore>,
}

/// The body of a page.
struct Page {
    body: Pin<Box<dyn HttpBody<Data = Bytes, Error = BoxError> + Send>>,
    remaining: usize,
    max: usize,
    deadline: Pin<Box<Sleep>>,
    _room: OwnedSemaphorePermit,
}

/// The responses of an API server, with or without a limit.
type LimitedBody = http_body_util::combinators::UnsyncBoxBody<Bytes, BoxError>;

// === impl PageTooLarge ===

impl PageTooLarge {
    /// Returns whether this is the cause of an error.
    pub(crate) fn caused(error: &(dyn std::error::Error + 'static)) -> bool {
        std::iter::successors(Some(error), |error| error.source()).any(<dyn std::error::Error>::is::<Self>)
    }
}

// === impl ListLimitLayer ===

impl ListLimitLayer {
    pub(crate) fn new() -> Self {
        Self { room: Arc::new(Semaphore::new(RECEIVED_BYTES / UNIT)) }
    }
}

impl<S> Layer<S> for ListLimitLayer {
    type Service = ListLimitService<S>;

    fn layer(&self, inner: S) -> Self::Service {
        ListLimitService { inner, room: Arc::clone(&self.room) }
    }
}

impl<S, B> Service<Request<Body>> for ListLimitService<S>
where
    S: Service<Request<Body>, Response = Response<B>>,
    S::Error: Into<BoxError>,
    S::Future: Send + 'static,
    B: HttpBody<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    type Response = Response<LimitedBody>;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, BoxError>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.inner.poll_ready(cx).map_err(Into::into)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let objects = objects_of_a_page(&request);
        let response = self.inner.call(request);
        let room = Arc::clone(&self.room);
        Box::pin(async move {
            let response = response.await.map_err(Into::into)?;
            let Some(objects) = objects else {
                return Ok(response.map(|body| body.map_err(Into::into).boxed_unsync()));
            };
            let max = if objects > 1 { PAGE_BYTES } else { OBJECT_BYTES };
            let units = u32::try_from(max.min(RECEIVED_BYTES) / UNIT)?;
            // Only for the body: an API server that does not respond must not delay the lists of other kinds.
            let room = room.acquire_many_owned(units).await?;
            Ok(response.map(|body| {
                let body = Box::pin(body.map_err(Into::into));
                Page { body, remaining: max, max, deadline: Box::pin(sleep(PAGE_TIMEOUT)), _room: room }.boxed_unsync()
            }))
        })
    }
}

/// Returns the maximum number of objects that the request lists; `None` if it is not a page of a list.
fn objects_of_a_page(request: &Request<Body>) -> Option<u32> {
    let query = request.uri().query()?;
    let mut parameters = query.split('&').filter_map(|parameter| parameter.split_once('='));
    let objects = parameters.find_map(|(name, value)| (name == "limit").then(|| value.parse().ok()))?;
    objects.filter(|_| request.method() == Method::GET)
}

// === impl Page ===

impl HttpBody for Page {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        if self.deadline.as_mut().poll(cx).is_ready() {
            let seconds = PAGE_TIMEOUT.as_secs();
            return Poll::Ready(Some(Err(format!("the page was not complete within {seconds} s").into())));
        }
        let frame = std::task::ready!(self.body.as_mut().poll_frame(cx));
        if let Some(Ok(frame)) = &frame
            && let Some(data) = frame.data_ref()
        {
            match self.remaining.checked_sub(data.len()) {
                Some(remaining) => self.remaining = remaining,
                None => return Poll::Ready(Some(Err(PageTooLarge(self.max).into()))),
            }
        }
        Poll::Ready(frame)
    }
}

#[cfg(test)]
#[path = "list_limit_tests.rs"]
mod tests;
