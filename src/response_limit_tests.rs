//! Tests of the limit with an API server that answers with bodies of any size.

use std::{convert::Infallible, error::Error};

use futures::{FutureExt, StreamExt};
use http_body_util::Full;

use super::*;

/// A client of an API server that answers each request with this number of bytes.
fn client(bytes: usize) -> impl AsyncFn(&str) -> Result<Response<ApiBody>, BoxError> {
    let answer = tower::service_fn(move |_: Request<Body>| async move {
        Ok::<_, Infallible>(Response::new(Full::new(Bytes::from(vec![0; bytes]))))
    });
    let client = ResponseLimitLayer::new().layer(answer);
    async move |path| client.clone().call(Request::get(path).body(Body::empty()).unwrap()).await
}

/// A client of a linked cluster whose responses never end after these pieces.
fn linked(all: &'static AtomicUsize, pieces: Vec<Bytes>) -> impl AsyncFn(&str) -> ApiBody {
    let answer = tower::service_fn(move |_: Request<Body>| {
        let frames = futures::stream::iter(pieces.clone()).map(|piece| Ok::<_, Infallible>(Frame::data(piece)));
        let body = http_body_util::StreamBody::new(frames.chain(futures::stream::pending()));
        async move { Ok::<_, Infallible>(Response::new(body)) }
    });
    let client = ResponseLimitLayer::sharing(all).layer(answer);
    async move |path| {
        let request = Request::get(path).body(Body::empty()).unwrap();
        client.clone().call(request).await.unwrap().into_body()
    }
}

/// This number of MiB without the end of an event.
fn unfinished(mib: usize) -> Vec<Bytes> {
    vec![Bytes::from(vec![b'x'; 1024 * 1024]); mib]
}

/// Receives what has come of a response. Returns its MiB, and the error that ended it.
fn receive(body: &mut ApiBody) -> (usize, Option<String>) {
    let mut bytes = 0;
    while let Some(frame) = body.frame().now_or_never().flatten() {
        match frame {
            Ok(frame) => bytes += frame.data_ref().map_or(0, Bytes::len),
            Err(error) => return (bytes / (1024 * 1024), Some(error.to_string())),
        }
    }
    (bytes / (1024 * 1024), None)
}

async fn read(response: Response<ApiBody>) -> Result<usize, BoxError> {
    Ok(response.into_body().collect().await?.to_bytes().len())
}

#[tokio::test]
async fn a_page_that_is_too_large_fails_with_an_error_that_is_recognized() {
    let client = client(PAGE_BYTES + 1);
    let error = read(client("/pods?limit=250").await.unwrap()).await.unwrap_err();
    let error: kube::Error = kube::Error::Service(error);
    assert!(PageTooLarge::caused(&error), "{error}");
    assert!(!PageTooLarge::caused(&kube::Error::Service("other".into())));
    assert_eq!(read(client("/pods").await.unwrap()).await.unwrap(), PAGE_BYTES + 1, "it is no page");
}

#[tokio::test]
async fn a_watch_has_no_end_and_each_of_its_events_has_a_limit() {
    let watched = async |event: usize| {
        let answer = tower::service_fn(move |_: Request<Body>| async move {
            let line = Bytes::from([vec![b'x'; event - 1], vec![b'\n']].concat());
            let frames = futures::stream::iter((0..4).map(move |_| Ok::<_, Infallible>(Frame::data(line.clone()))));
            Ok::<_, Infallible>(Response::new(http_body_util::StreamBody::new(frames)))
        });
        let request = Request::get("/pods?watch=true&limit=500").body(Body::empty()).unwrap();
        read(ResponseLimitLayer::new().layer(answer).call(request).await.unwrap()).await
    };
    assert_eq!(watched(OBJECT_BYTES / 2).await.unwrap(), 2 * OBJECT_BYTES);
    let endless = client(OBJECT_BYTES + 1);
    let error = read(endless("/pods?watch=true").await.unwrap()).await.unwrap_err();
    assert_eq!(error.to_string(), "an event of the watch has more than 33554432 bytes");
}

#[tokio::test]
async fn an_error_has_a_limit_whatever_was_requested() {
    let answer = tower::service_fn(|_: Request<Body>| async {
        let body = Full::new(Bytes::from(vec![0; ERROR_BYTES + 1]));
        Ok::<_, Infallible>(Response::builder().status(403).body(body).unwrap())
    });
    let mut client = ResponseLimitLayer::new().layer(answer);
    for path in ["/pods/web", "/pods?limit=1", "/pods?watch=true"] {
        let response = client.call(Request::get(path).body(Body::empty()).unwrap()).await.unwrap();
        let error = read(response).await.unwrap_err();
        assert_eq!(error.to_string(), "the error has more than 1048576 bytes", "{path}");
    }
}

#[tokio::test]
async fn a_page_of_one_object_may_be_larger_than_other_pages() {
    let client = client(2 * PAGE_BYTES);
    assert_eq!(read(client("/pods?limit=1&resourceVersion=0").await.unwrap()).await.unwrap(), 2 * PAGE_BYTES);
    assert!(read(client("/pods?limit=2").await.unwrap()).await.is_err());
}

#[tokio::test]
async fn two_pages_are_received_at_the_same_time_and_a_third_waits() {
    let client = client(10);
    let first = client("/pods?limit=250").await.unwrap();
    let _second = client("/nodes?limit=250").await.unwrap();
    let mut third = Box::pin(client("/jobs?limit=250"));
    assert!(third.as_mut().now_or_never().is_none());
    assert!(client("/pods?watch=true").now_or_never().is_some(), "a watch does not wait");
    assert!(client("/pods/web").now_or_never().is_some(), "a get does not wait");
    drop(first);
    third.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_page_that_never_ends_fails_and_frees_its_room() {
    let endless = tower::service_fn(|_: Request<Body>| async {
        let frames = futures::stream::pending::<Result<Frame<Bytes>, Box<dyn Error + Send + Sync>>>();
        Ok::<_, Infallible>(Response::new(http_body_util::StreamBody::new(frames)))
    });
    let mut client = ResponseLimitLayer::new().layer(endless);
    for _ in 0..3 {
        let request = Request::get("/pods?limit=250").body(Body::empty()).unwrap();
        let error = read(client.call(request).await.unwrap()).await.unwrap_err();
        assert_eq!(error.to_string(), "the page was not complete within 60 s");
    }
}

const WATCH: &str = "/pods?watch=true";

#[tokio::test]
async fn events_without_end_of_a_linked_cluster_take_half_of_the_memory_for_all_and_others_go_on() {
    static ALL: AtomicUsize = AtomicUsize::new(0);
    let (hostile, other) = (linked(&ALL, unfinished(7)), linked(&ALL, unfinished(7)));
    let (mut watches, mut received) = (Vec::new(), Vec::new());
    for _ in 0..10 {
        let mut watch = hostile(WATCH).await;
        received.push(receive(&mut watch));
        watches.push(watch);
    }
    let full = "an event of the watch does not fit into the 33554432 bytes for linked clusters, of which one takes no more than it leaves free";
    let refused = |mib| (mib, Some(full.to_owned()));
    assert_eq!(received[..3], [(7, None), (7, None), refused(2)]);
    assert!(received[3..].iter().all(|watch| *watch == refused(0)), "{received:?}");
    let mut watch_of_another = other(WATCH).await;
    assert_eq!(receive(&mut watch_of_another), (7, None));
    drop(watch_of_another);
    drop(watches.remove(0));
    assert_eq!(receive(&mut hostile(WATCH).await), (7, None), "what was dropped is free again");
    watches.clear();
    assert_eq!(ALL.load(Ordering::SeqCst), 0);
}

#[tokio::test]
async fn a_watch_of_a_linked_cluster_holds_the_longest_of_its_events_until_it_ends() {
    static ALL: AtomicUsize = AtomicUsize::new(0);
    let end = Bytes::from_static(b"\n");
    let events = [unfinished(4), vec![end.clone()], unfinished(2), vec![end]].concat();
    let mut watch = linked(&ALL, events)(WATCH).await;
    assert_eq!(receive(&mut watch), (6, None));
    assert_eq!(ALL.load(Ordering::SeqCst), 4 * 1024 * 1024 - 32 * 1024);
    drop(watch);
    assert_eq!(ALL.load(Ordering::SeqCst), 0);
}

#[tokio::test]
async fn a_thousand_watches_of_a_linked_cluster_have_room_for_small_events() {
    static ALL: AtomicUsize = AtomicUsize::new(0);
    let client = linked(&ALL, vec![Bytes::from(vec![b'x'; 32 * 1024])]);
    let mut watches = Vec::new();
    for _ in 0..1000 {
        let mut watch = client(WATCH).await;
        assert_eq!(receive(&mut watch).1, None);
        watches.push(watch);
    }
}

#[tokio::test]
async fn one_event_and_one_page_of_a_linked_cluster_have_lower_limits() {
    static ALL: AtomicUsize = AtomicUsize::new(0);
    let client = linked(&ALL, unfinished(9));
    let event = "an event of the watch has more than 8388608 bytes";
    assert_eq!(receive(&mut client(WATCH).await), (8, Some(event.to_owned())));
    let page = "a page of the list has more than 4194304 bytes";
    assert_eq!(receive(&mut client("/pods?limit=250").await), (4, Some(page.to_owned())));
}
