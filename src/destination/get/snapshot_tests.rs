//! Tests of the frames between snapshots, which are decoded and folded as a client does it.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::SocketAddr,
    sync::Arc,
};

use bytes::Buf;
use proptest::prelude::*;
use prost::Message;
use tokio::time::Instant;

use super::*;
use crate::proto::destination::{NoEndpoints, Update, WeightedAddr, update::Update as Content};

/// The state of a client: the weight of each address, and the labels of its set.
type Held = BTreeMap<String, (u32, BTreeMap<String, String>)>;

fn endpoint(host: u32, weight: u32, padding: usize) -> Arc<EncodedEndpoint> {
    let address = SocketAddr::from(((0x0a00_0000 + host).to_be_bytes(), 80));
    let metric_labels = BTreeMap::from([("padding".to_owned(), "x".repeat(padding))]);
    let content = WeightedAddr { addr: Some(tcp_address(address)), weight, metric_labels, ..WeightedAddr::default() };
    Arc::new(EncodedEndpoint::new(address, &content.encode_to_vec(), None))
}

fn snapshot(label: &str, endpoints: impl IntoIterator<Item = Arc<EncodedEndpoint>>) -> Arc<Snapshot> {
    let labels = BTreeMap::from([("service".to_owned(), label.to_owned())]);
    let mut endpoints: Vec<_> = endpoints.into_iter().collect();
    endpoints.sort_by_key(|endpoint| endpoint.address);
    Arc::new(Snapshot::new(labels, EndpointSet::new(&endpoints, &EndpointSet::empty()), Instant::now()))
}

fn next(before: &Arc<Snapshot>, after: Arc<Snapshot>) -> Option<Arc<Snapshot>> {
    Arc::into_inner(after).unwrap().after(before).map(Arc::new)
}

/// Returns all messages, and the length of the longest piece.
fn messages(mut frames: Frames) -> (Vec<Content>, usize) {
    let (mut bytes, mut longest, mut announced) = (Vec::new(), 0, 0);
    while let Some(piece) = frames.next() {
        longest = longest.max(piece.frames.len());
        bytes.extend_from_slice(&piece.frames);
        announced += piece.messages.add + piece.messages.remove + piece.messages.no_endpoints;
    }
    let (mut bytes, mut messages) = (&bytes[..], Vec::new());
    while bytes.has_remaining() {
        assert_eq!(bytes.get_u8(), 0, "not compressed");
        let length = bytes.get_u32() as usize;
        assert!(length <= 3 * 1024 * 1024, "a message of {length} bytes");
        messages.push(Update::decode(&bytes[..length]).unwrap().update.unwrap());
        bytes.advance(length);
    }
    assert_eq!(announced as usize, messages.len());
    (messages, longest)
}

fn fold(held: &mut Held, frames: Frames) -> usize {
    let (messages, _) = messages(frames);
    let removes = messages.iter().position(|it| matches!(it, Content::Remove(_))).unwrap_or(messages.len());
    assert!(messages[removes..].iter().all(|it| matches!(it, Content::Remove(_))), "an Add after a Remove");
    let count = messages.len();
    for message in messages {
        match message {
            Content::Add(set) => {
                assert!(!set.addrs.is_empty());
                for it in set.addrs {
                    held.insert(format!("{:?}", it.addr.unwrap()), (it.weight, set.metric_labels.clone()));
                }
            }
            Content::Remove(set) => {
                assert!(!set.addrs.is_empty());
                for address in set.addrs {
                    assert!(held.remove(&format!("{address:?}")).is_some(), "removed, but not held");
                }
            }
            Content::NoEndpoints(_) => held.clear(),
        }
    }
    count
}

fn held(snapshot: &Arc<Snapshot>) -> Held {
    let mut held = Held::new();
    fold(&mut held, Frames::first(snapshot, 80));
    held
}

#[test]
fn the_first_message_is_one_add_with_all_endpoints() {
    let (messages, _) = messages(Frames::first(&snapshot("web", [endpoint(1, 7, 0), endpoint(2, 8, 0)]), 80));
    let [Content::Add(set)] = &messages[..] else { panic!("{messages:?}") };
    assert_eq!((set.addrs.len(), set.metric_labels["service"].as_str()), (2, "web"));
}

#[test]
fn the_message_for_no_endpoints_follows_the_protocol() {
    let (messages, _) = messages(Frames::no_endpoints());
    assert_eq!(messages, [Content::NoEndpoints(NoEndpoints { exists: true })]);
}

#[test]
fn an_equal_set_is_no_new_snapshot() {
    let before = snapshot("web", [endpoint(1, 7, 0)]);
    assert!(next(&before, snapshot("web", [endpoint(1, 7, 0)])).is_none());
    assert!(next(&before, snapshot("web", [endpoint(1, 8, 0)])).is_some());
    assert!(next(&before, snapshot("other", [endpoint(1, 7, 0)])).is_some());
}

#[test]
fn a_change_is_one_shared_message_with_the_changed_endpoints() {
    let before = snapshot("web", (0..1000).map(|host| endpoint(host, 7, 100)));
    let changed = (0..1000).map(|host| endpoint(host, if host == 500 { 8 } else { 7 }, 100));
    let after = next(&before, snapshot("web", changed)).unwrap();
    let frames = Frames::between(&before, &after, 80);
    assert!(frames.is_shared());
    let (messages, _) = messages(frames);
    let [Content::Add(set)] = &messages[..] else { panic!("{messages:?}") };
    assert_eq!((set.addrs.len(), set.addrs[0].weight), (1, 8));
}

#[test]
fn a_large_set_is_sent_in_pieces_and_a_huge_set_in_several_messages() {
    for (endpoints, expected) in [(1_000, 1), (12_000, 2)] {
        let all = snapshot("web", (0..endpoints).map(|host| endpoint(host, 7, 380)));
        let frames = Frames::first(&all, 80);
        assert!(!frames.is_shared());
        let (messages, longest) = messages(frames);
        assert_eq!(messages.len(), expected);
        assert!(longest <= 16 * 1024, "a piece of {longest} bytes");
        assert_eq!(held(&all).len(), endpoints as usize);
    }
}

#[test]
fn many_removals_are_sent_in_pieces_too() {
    let before = snapshot("web", (0..12_000).map(|host| endpoint(host, 7, 0)));
    let after = next(&before, snapshot("web", [endpoint(0, 7, 0)])).unwrap();
    let (messages, longest) = messages(Frames::between(&before, &after, 80));
    let [Content::Remove(set)] = &messages[..] else { panic!("{} messages", messages.len()) };
    assert_eq!(set.addrs.len(), 11_999);
    assert!(longest <= 16 * 1024, "a piece of {longest} bytes");
}

/// Weights of endpoints by host. The weight distinguishes two endpoints with one address.
fn endpoints() -> impl Strategy<Value = BTreeMap<u32, u32>> {
    prop::collection::btree_map(0..8u32, 0..3u32, 0..8)
}

proptest! {
    #[test]
    fn the_frames_between_any_two_snapshots_lead_from_one_to_the_other(
        states in prop::collection::vec((0..2u8, endpoints(), any::<bool>()), 2..6), padding in prop::sample::select(vec![0, 30_000]),
    ) {
        let made = |(label, endpoints, _): &(u8, BTreeMap<u32, u32>, bool)| {
            snapshot(&label.to_string(), endpoints.iter().map(|(host, weight)| endpoint(*host, *weight, padding)))
        };
        let mut latest = made(&states[0]);
        let (mut client, mut sent) = (held(&latest), Arc::clone(&latest));
        for state in &states[1..] {
            match next(&latest, made(state)) {
                Some(after) => latest = after,
                None => prop_assert_eq!(held(&latest), held(&made(state))),
            }
            // A slow client skips states in between.
            let (.., reads) = state;
            if *reads {
                let count = fold(&mut client, Frames::between(&sent, &latest, 80));
                let old: BTreeSet<_> = held(&sent).into_iter().collect();
                let new: BTreeSet<_> = held(&latest).into_iter().collect();
                prop_assert_eq!(count == 0, old == new, "a message is sent if and only if the snapshots differ");
                sent = Arc::clone(&latest);
                prop_assert_eq!(&client, &held(&latest));
            }
        }
    }
}

#[test]
fn new_labels_of_a_set_without_endpoints_are_not_sent() {
    assert!(next(&snapshot("a", []), snapshot("b", [])).is_none());
    assert!(next(&snapshot("a", [endpoint(1, 1, 0)]), snapshot("b", [endpoint(1, 1, 0)])).is_some());
}
