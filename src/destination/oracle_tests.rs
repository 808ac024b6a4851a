//! Tests with random clusters, whose events arrive late, early, twice, out of order and by relist. They compare the
//! answers of streams with the answers that the contract specifies for the objects, for random flags.

use e2e::{
    oracle::{self, Holders},
    world::World,
};
use kube::runtime::watcher::Event;
use linkerd2_proxy_api::destination::{Http2ClientParams, http2_client_params::KeepAlive};
use rand::{RngExt, SeedableRng, rngs::StdRng, seq::IndexedRandom};

use super::testing::rig::{Client, Get, GetProfile, Method, Rig, kind, server_settings};
use crate::cluster::Kind;

/// The number of events of a history in which each event is published at once.
const SINGLE_EVENTS: usize = 150;
/// The number of histories whose seeds are new in each run.
const FRESH: u64 = 5;

/// The seeds of the histories: always the same ones, and some new ones. `ORACLE_SEED=7 cargo test --lib oracle` selects
/// a seed; `ORACLE_RUNS=1000` sets the number of consecutive seeds. A failure names the seed.
pub(super) fn seeds() -> Vec<u64> {
    let read = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let (first, runs) = (read("ORACLE_SEED"), read("ORACLE_RUNS"));
    let start = first.unwrap_or(0);
    let always = start..start + runs.unwrap_or(if first.is_some() { 1 } else { 30 });
    let fresh = if first.is_some() || runs.is_some() { 0 } else { FRESH };
    let seeds: Vec<u64> = always.chain((0..fresh).map(|_| rand::random_range(1_000..1_000_000_000))).collect();
    println!("seeds: {seeds:?}");
    seeds
}

/// Returns flags: those of Linkerd's chart for the first seed, random ones for the others.
pub(super) fn flags(seed: u64, dice: &mut StdRng) -> oracle::Settings {
    let seconds = |seconds| Some(prost_types::Duration { seconds, nanos: 0 });
    let keep_alive = KeepAlive { interval: seconds(10), timeout: seconds(3), while_idle: true };
    let http2 = Http2ClientParams { keep_alive: Some(keep_alive), ..Http2ClientParams::default() };
    let chart = oracle::Settings {
        cluster_domain: "cluster.local".to_owned(),
        trust_domain: "cluster.local".to_owned(),
        controller_namespace: "linkerd".to_owned(),
        default_opaque_ports: "25,587,3306,4444,5432,6379,9300,11211".to_owned(),
        transport_header: true,
        h2_upgrade: true,
        ipv6: false,
        zone_weights: false,
        http2: Some(http2),
    };
    if seed == 0 {
        return chart;
    }
    let mut one_of = |texts: [&str; 3]| texts.choose(dice).map_or("", |text| text).to_owned();
    oracle::Settings {
        trust_domain: one_of(["cluster.local", "mesh.example", "trust.domain"]),
        default_opaque_ports: one_of([&chart.default_opaque_ports, "", "25,8000-9000"]),
        transport_header: dice.random(),
        h2_upgrade: dice.random(),
        ipv6: dice.random(),
        zone_weights: dice.random(),
        http2: chart.http2.filter(|_| dice.random()),
        ..chart
    }
}

#[tokio::test]
async fn for_any_order_of_events_old_and_new_endpoint_streams_match_the_contract() {
    history::<Get>();
}

#[tokio::test]
async fn for_any_order_of_events_old_and_new_profile_streams_match_the_contract() {
    history::<GetProfile>();
}

fn history<M: Method>() {
    for seed in seeds() {
        let mut dice = StdRng::seed_from_u64(seed);
        let flags = flags(seed, &mut dice);
        let mut world = World::new(seed).unwrap();
        let mut rig = Rig::new(server_settings(&flags));
        let mut holders = Holders::default();
        holders.observe(world.objects());
        for (key, object) in world.json() {
            rig.pending.entry(kind(key)).or_default().push_back(Event::Apply(object.clone()));
        }
        let mut clients: Vec<Client<M>> = M::requests(&world).into_iter().map(Client::new).collect();
        for round in 0..8 {
            for _ in 0..dice.random_range(1..60) {
                match dice.random_range(0..20) {
                    0..8 => {
                        rig.enqueue(world.mutate().unwrap());
                        holders.observe(world.objects());
                    }
                    8..16 => {
                        let kind = *Kind::ALL.choose(&mut dice).unwrap();
                        rig.deliver(kind, dice.random_ratio(1, 10));
                    }
                    16 => rig.relist(*Kind::ALL.choose(&mut dice).unwrap(), &world),
                    17 => rig.publish(),
                    _ => {
                        let client = clients.choose_mut(&mut dice).unwrap();
                        if client.stream.is_none() {
                            _ = client.open(&rig.views);
                        }
                        client.read(dice.random_range(0..3));
                    }
                }
            }
            // For any partial state, new streams receive the same as open streams.
            rig.publish();
            for client in &mut clients {
                if client.stream.is_none() {
                    continue;
                }
                let old = client.settle(&rig.views);
                let new = Client::<M>::new(client.request.clone()).settle(&rig.views);
                if client.stream.is_some()
                    && let Some(expected) = M::open_beside(new, &old)
                {
                    let request = &client.request;
                    assert_eq!(old, expected, "seed {seed}, round {round}, an old and a new stream of {request:?}");
                }
            }
            // When all watches have delivered all events, streams match the objects.
            while rig.pending.values().any(|events| !events.is_empty()) {
                rig.deliver(*Kind::ALL.choose(&mut dice).unwrap(), false);
            }
            rig.publish();
            for client in &mut clients {
                let was_open = client.stream.is_some();
                let last = client.settle(&rig.views);
                let request = &client.request;
                let expected = M::fresh(world.objects(), &flags, request);
                let permitted = match was_open && client.stream.is_some() {
                    true => M::while_open(world.objects(), &flags, request, &holders),
                    false => vec![expected.clone()],
                };
                let context = || format!("seed {seed}, round {round}, {request:?}, {flags:?}");
                assert!(permitted.contains(&last), "{}: {last:?}, expected {permitted:?}", context());
                let fresh = Client::<M>::new(request.clone()).settle(&rig.views);
                assert_eq!(fresh, expected, "{}", context());
            }
        }
        drop(clients);
        assert_eq!(rig.views.endpoints.registry.index().count(), 0, "a view is removed with its last stream");
        assert!(rig.views.profiles.registry.index().is_empty(), "a view is removed with its last stream");
    }
}

#[tokio::test]
async fn an_endpoint_stream_ends_only_if_its_request_is_refused() {
    single_events::<Get>();
}

#[tokio::test]
async fn a_profile_stream_ends_only_if_its_request_has_an_answer_of_another_kind() {
    single_events::<GetProfile>();
}

/// Publishes each event at once. An ended stream must have been unable to stay open.
fn single_events<M: Method>() {
    for seed in seeds() {
        let mut dice = StdRng::seed_from_u64(seed);
        let flags = flags(seed, &mut dice);
        let mut world = World::new(seed).unwrap();
        let mut rig = Rig::new(server_settings(&flags));
        for (key, object) in world.json() {
            rig.feed.apply(kind(key), Event::Apply(object.clone()));
        }
        rig.publish();
        let mut clients: Vec<Client<M>> = M::requests(&world).into_iter().map(Client::new).collect();
        for event in 0..SINGLE_EVENTS {
            let known: Vec<M::Answer> = clients.iter_mut().map(|client| client.settle(&rig.views)).collect();
            let change = world.mutate().unwrap();
            rig.enqueue(change.clone());
            rig.deliver(kind(change.key()), false);
            rig.publish();
            for (client, old) in clients.iter_mut().zip(known) {
                let was_open = client.stream.is_some();
                client.read(usize::MAX);
                if was_open && client.stream.is_none() {
                    let new = client.settle(&rig.views);
                    let request = &client.request;
                    assert!(
                        !M::stays_open(world.objects(), request, &old, &new, &change),
                        "seed {seed}, event {event}: the stream of {request:?} ended after {change:?}: {old:?}, {new:?}"
                    );
                }
            }
        }
    }
}

trait ChooseMut<T> {
    fn choose_mut(&mut self, dice: &mut StdRng) -> Option<&mut T>;
}

impl<T> ChooseMut<T> for Vec<T> {
    fn choose_mut(&mut self, dice: &mut StdRng) -> Option<&mut T> {
        let at = dice.random_range(0..self.len());
        self.get_mut(at)
    }
}
