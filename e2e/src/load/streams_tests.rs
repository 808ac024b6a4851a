//! Tests of the client side of HTTP/2, frame by frame.

use std::net::Ipv4Addr;

use super::*;

fn frames(out: &mut BytesMut) -> Vec<(u8, u8, u32)> {
    std::iter::from_fn(|| Frame::take(out).unwrap()).map(|frame| (frame.kind, frame.flags, frame.stream)).collect()
}

fn opened(count: usize) -> (Streams, Instant) {
    opened_by(Method::Get, count)
}

fn opened_by(method: Method, count: usize) -> (Streams, Instant) {
    let request = StreamRequest { method, path: "web.default.svc.cluster.local:80".to_owned(), token: String::new() };
    let mut streams = Streams::new(&vec![request; count]);
    let (now, mut out) = (Instant::now(), BytesMut::new());
    streams.send_requests(now, &mut out);
    assert_eq!(frames(&mut out).len(), 2 * streams.streams.len());
    (streams, now)
}

fn read(streams: &mut Streams, frame: &Frame, now: Instant) -> Vec<(u8, u8, u32)> {
    let (mut unread, mut out) = (BytesMut::new(), BytesMut::new());
    frame.put(&mut unread);
    streams.read(&mut unread, now, &mut out).unwrap();
    assert!(unread.is_empty());
    frames(&mut out)
}

/// A Remove of 10.0.0.1 with this port, below 128.
fn remove(port: u8) -> Bytes {
    grpc_message(&[0x12, 11, 0x0a, 9, 0x0a, 5, 0x0d, 1, 0, 0, 10, 0x10, port])
}

#[test]
fn the_first_message_is_timed_and_later_ones_are_counted_by_content() {
    let (mut streams, began) = opened(2);
    let later = began + Duration::from_millis(7);
    for number in [1, 3, 1, 3] {
        read(&mut streams, &Frame::new(DATA, 0, number, remove(80)), later);
    }
    assert_eq!(streams.arrivals.first, [Duration::from_millis(7); 2]);
    assert_eq!((streams.arrivals.counts.messages, streams.arrivals.counts.bytes), (4, 4 * 18));
    assert_eq!(streams.arrivals.changes.len(), 1);
    let mut all = Arrivals::default();
    all.absorb(&mut streams.arrivals);
    assert_eq!((all.received(What::Remove, 80), all.received(What::Add, 80)), (2, 0));
    assert_eq!(streams.due(), None);
}

#[test]
fn each_stream_is_requested_by_its_method() {
    let request = |method| StreamRequest { method, path: "10.0.0.1:80".to_owned(), token: String::new() };
    let (mut streams, mut out) = (Streams::new(&[request(Method::GetProfile), request(Method::Get)]), BytesMut::new());
    streams.send_requests(Instant::now(), &mut out);
    let frames = std::iter::from_fn(|| Frame::take(&mut out).unwrap());
    let headers: Vec<Bytes> = frames.filter(|frame| frame.kind == HEADERS).map(|frame| frame.payload).collect();
    assert_eq!(headers, [grpc_request(GET_PROFILE), grpc_request(GET)]);
}

#[test]
fn a_later_profile_is_counted_by_content() {
    let (mut streams, began) = opened_by(Method::GetProfile, 1);
    // Opaque; 10.0.0.1:80.
    let profile = grpc_message(&[0x20, 1, 0x32, 11, 0x0a, 9, 0x0a, 5, 0x0d, 1, 0, 0, 10, 0x10, 80]);
    for _ in 0..2 {
        read(&mut streams, &Frame::new(DATA, 0, 1, profile.clone()), began);
    }
    let changes: Vec<_> = streams.arrivals.changes.iter().map(|it| (it.what, it.port, it.streams)).collect();
    let endpoint = Some(Ipv4Addr::new(10, 0, 0, 1));
    assert_eq!(changes, [(What::Profile { opaque: true, endpoint }, 80, 1)]);
    assert_eq!(streams.arrivals.first.len(), 1);
}

#[test]
fn windows_are_replenished_when_half_is_used() {
    let (mut streams, now) = opened(40);
    let mut given = Vec::new();
    for number in (0..40).map(|place| place * 2 + 1) {
        for _ in 0..2 {
            given.extend(read(&mut streams, &Frame::new(DATA, 0, number, vec![0; 16_384]), now));
        }
    }
    let of_the_connection = given.iter().filter(|(_, _, stream)| *stream == 0).count();
    assert_eq!((given.len() - of_the_connection, of_the_connection), (40, 2));
    assert!(given.iter().all(|(kind, _, _)| *kind == WINDOW_UPDATE));
}

#[test]
fn a_refused_or_late_stream_is_requested_again() {
    let (mut streams, began) = opened(2);
    read(&mut streams, &Frame::new(HEADERS, END_HEADERS | END_STREAM, 1, Bytes::new()), began);
    assert_eq!((streams.arrivals.counts.refused, streams.arrivals.counts.timed_out), (1, 0));
    let due = streams.due().unwrap() - began;
    assert!((FIRST_BACK_OFF..=FIRST_BACK_OFF.mul_f64(1.1)).contains(&due), "{due:?}");
    let mut out = BytesMut::new();
    streams.tick(began + FIRST_MESSAGE, &mut out);
    let requested = |number| [(HEADERS, END_HEADERS, number), (DATA, END_STREAM, number)];
    assert_eq!(frames(&mut out), [&[(RST_STREAM, 0, 3)], &requested(5)[..]].concat());
    assert_eq!((streams.arrivals.counts.refused, streams.arrivals.counts.timed_out), (1, 1));
    streams.tick(began + FIRST_MESSAGE * 2, &mut out);
    assert_eq!(frames(&mut out), [&[(RST_STREAM, 0, 5)], &requested(7)[..]].concat());
}

#[test]
fn requests_wait_for_the_servers_window() {
    let (mut streams, now) = opened(2_000);
    let open = streams.streams.len();
    assert!(open > 1_000 && open < 2_000, "{open}");
    assert_eq!(read(&mut streams, &Frame::window_update(0, 1 << 20), now).len(), 2 * (2_000 - open));
}

#[test]
fn the_ends_of_streams_are_counted_by_reason() {
    let (mut streams, now) = opened(3);
    for number in [1, 3, 5] {
        read(&mut streams, &Frame::new(DATA, 0, number, remove(80)), now);
    }
    assert_eq!(read(&mut streams, &Frame::new(PING, 0, 0, vec![1; 8]), now), [(PING, ACK, 0)]);
    read(&mut streams, &Frame::reset(1, 8), now);
    read(&mut streams, &Frame::new(HEADERS, END_HEADERS | END_STREAM, 3, Bytes::new()), now);
    read(&mut streams, &Frame::new(GOAWAY, 0, 0, vec![0, 0, 0, 0, 0, 0, 0, 11]), now);
    streams.close("closed");
    let ended: Vec<&str> = streams.arrivals.ended.keys().map(String::as_str).collect();
    assert_eq!(ended, ["RST_STREAM with code 8", "a status", "closed, after GOAWAY with code 11"]);
}
