//! Tests with random clusters, whose events arrive late, early, twice, out of order and by relist. They compare the
//! answers of streams with the answers that the contract specifies for the objects.
//!
//! The oracle and the worlds belong to the end-to-end tests and are independent of this crate.

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    fmt::Debug,
    net::SocketAddr,
    sync::Arc,
};

use bytes::Buf;
use e2e::{
    discovery::{Update, fold},
    oracle::{
        self, Answer, ApiState, Key, ProfileAnswer, answer, answer_profile, answer_profile_while_open,
        answer_while_open,
    },
    world::{Change, World},
};
use futures::FutureExt;
use kube::runtime::watcher::Event;
use linkerd2_proxy_api::{
    destination::{DestinationProfile, WeightedAddr},
    meta::metadata,
};
use prometheus::Registry;
use prost::Message;
use rand::{RngExt, SeedableRng, rngs::StdRng, seq::IndexedRandom};
use serde_json::Value;
use tonic::Code;

use super::{
    authority::{ProfileAuthority, ServiceAuthority},
    call::RpcMethod,
    context_token::ContextToken,
    get::{request::GetRequest, updates::EndpointUpdates},
    http2::{
        connection::{BodyFrame, ResponseBody},
        stall::StreamProgress,
    },
    metrics::DiscoveryMetrics,
    observer::DestinationObserver,
    places::Places,
    profile::{request::ProfileRequest, updates::ProfileUpdates},
    settings::{DestinationSettings, TransportMode},
    stream::{ResponseStream, Updates},
    testing::settings,
    views::Views,
};
use crate::cluster::{Kind, Observer, Problems, kinds::port_ranges::PortRanges, testing::Feed};

/// One method of the API, for these tests.
trait Method {
    const RPC: RpcMethod;
    type Updates: Updates;
    /// The messages of a stream so far, folded.
    type Known: Default;
    type Answer: Clone + Debug + PartialEq;

    fn requests(world: &World) -> Vec<oracle::Request>;
    fn subscribe(views: &Arc<Views>, request: &oracle::Request) -> Result<Self::Updates, tonic::Status>;
    fn fold(known: &mut Self::Known, is_first: bool, message: &[u8]);
    fn received(known: &Self::Known) -> Self::Answer;
    fn refused(status: &tonic::Status) -> Self::Answer;
    /// The answer that the contract specifies for a new stream.
    fn fresh(objects: &ApiState, settings: &oracle::Settings, request: &oracle::Request) -> Self::Answer;
    /// The answer that the contract specifies for an open stream that has received `last`.
    fn open(
        objects: &ApiState,
        settings: &oracle::Settings,
        request: &oracle::Request,
        last: &Self::Answer,
    ) -> Self::Answer;
    /// The answer of an open stream if a new stream receives `new`; `None` if `new` does not determine it.
    fn open_beside(new: Self::Answer, old: &Self::Answer) -> Option<Self::Answer>;
}

struct Get;
struct GetProfile;

impl Method for Get {
    const RPC: RpcMethod = RpcMethod::Get;
    type Updates = EndpointUpdates;
    type Known = BTreeMap<SocketAddr, WeightedAddr>;
    type Answer = Answer;

    fn requests(world: &World) -> Vec<oracle::Request> {
        world.requests()
    }

    fn subscribe(views: &Arc<Views>, request: &oracle::Request) -> Result<EndpointUpdates, tonic::Status> {
        let authority = ServiceAuthority::parse(&request.path, &views.settings.cluster_domain)
            .map_err(|error| tonic::Status::invalid_argument(error.to_string()))?;
        let resolved = GetRequest::new(authority, &ContextToken::parse(&request.token).node);
        let subscription = views.subscribe(&resolved).map_err(|refusal| resolved.refused(&refusal, &request.path))?;
        Ok(EndpointUpdates::new(resolved, subscription))
    }

    fn fold(known: &mut Self::Known, is_first: bool, message: &[u8]) {
        fold(known, is_first, Update::decode(message).unwrap()).unwrap();
    }

    fn received(known: &Self::Known) -> Answer {
        Answer::Endpoints(known.clone())
    }

    fn refused(status: &tonic::Status) -> Answer {
        Answer::Refused(status.code(), status.message().to_owned())
    }

    fn fresh(objects: &ApiState, settings: &oracle::Settings, request: &oracle::Request) -> Answer {
        answer(objects, settings, request)
    }

    fn open(objects: &ApiState, settings: &oracle::Settings, request: &oracle::Request, _: &Answer) -> Answer {
        answer_while_open(objects, settings, request)
    }

    fn open_beside(new: Answer, _: &Answer) -> Option<Answer> {
        let is_deleted = matches!(&new, Answer::Refused(_, text) if text.starts_with("Service "));
        Some(if is_deleted { Answer::Endpoints(BTreeMap::new()) } else { new })
    }
}

impl Method for GetProfile {
    const RPC: RpcMethod = RpcMethod::GetProfile;
    type Updates = ProfileUpdates;
    type Known = DestinationProfile;
    type Answer = ProfileAnswer;

    fn requests(world: &World) -> Vec<oracle::Request> {
        world.profile_requests()
    }

    fn subscribe(views: &Arc<Views>, request: &oracle::Request) -> Result<ProfileUpdates, tonic::Status> {
        let authority = ProfileAuthority::parse(&request.path, &views.settings.cluster_domain)
            .map_err(|error| tonic::Status::invalid_argument(error.to_string()))?;
        let resolved = ProfileRequest::new(authority, &ContextToken::parse(&request.token).namespace);
        let subscription = views.subscribe_to_profile(&resolved).map_err(|refusal| refusal.status(&request.path))?;
        Ok(ProfileUpdates::new(subscription))
    }

    fn fold(known: &mut DestinationProfile, is_first: bool, message: &[u8]) {
        let profile = DestinationProfile::decode(message).unwrap();
        assert!(is_first || profile != *known, "a message without a change: {profile:?}");
        *known = profile;
    }

    fn received(known: &DestinationProfile) -> ProfileAnswer {
        ProfileAnswer::Profile(Box::new(known.clone()))
    }

    /// Drops the details of an invalid path, because they differ between parsers.
    fn refused(status: &tonic::Status) -> ProfileAnswer {
        let reasons = ["invalid authority", "invalid service"].into_iter();
        let reason = reasons.into_iter().find(|reason| status.message().starts_with(reason));
        ProfileAnswer::Refused(status.code(), reason.unwrap_or(status.message()).to_owned())
    }

    fn fresh(objects: &ApiState, settings: &oracle::Settings, request: &oracle::Request) -> ProfileAnswer {
        answer_profile(objects, settings, request)
    }

    /// A stream of a deleted Service by address has the same answer as by name, unless another object has the address.
    fn open(
        objects: &ApiState,
        settings: &oracle::Settings,
        request: &oracle::Request,
        last: &ProfileAnswer,
    ) -> ProfileAnswer {
        let new = answer_profile_while_open(objects, settings, request);
        match (name(last), &new) {
            (Some((name, port)), ProfileAnswer::Profile(profile)) if is_unknown(profile) => {
                let (path, token) = (format!("{name}:{port}"), request.token.clone());
                let named = oracle::Request { path, token };
                let is_deleted =
                    matches!(answer_profile(objects, settings, &named), ProfileAnswer::Refused(Code::Unknown, _));
                if is_deleted { answer_profile_while_open(objects, settings, &named) } else { new }
            }
            _ => new,
        }
    }

    fn open_beside(new: ProfileAnswer, old: &ProfileAnswer) -> Option<ProfileAnswer> {
        let is_deleted = match &new {
            ProfileAnswer::Refused(Code::Unknown, text) => text.starts_with("service "),
            ProfileAnswer::Profile(profile) => is_unknown(profile) && name(old).is_some(),
            ProfileAnswer::Refused(..) => false,
        };
        (!is_deleted).then_some(new)
    }
}

/// The name and port of the Service in an answer.
fn name(answer: &ProfileAnswer) -> Option<(&str, u32)> {
    let ProfileAnswer::Profile(profile) = answer else { return None };
    let metadata::Kind::Resource(resource) = profile.parent_ref.as_ref()?.kind.as_ref()? else { return None };
    Some((&profile.fully_qualified_name, resource.port))
}

fn is_unknown(profile: &DestinationProfile) -> bool {
    profile.endpoint.as_ref().is_some_and(|endpoint| endpoint.metric_labels.is_empty())
}

/// A client: its stream, if it is open, and the messages that it has received.
struct Client<M: Method> {
    request: oracle::Request,
    stream: Option<ResponseStream<M::Updates>>,
    known: M::Known,
    first: bool,
}

struct Rig {
    feed: Feed,
    observer: Arc<DestinationObserver>,
    views: Arc<Views>,
    /// Events that the watches have not delivered yet, by kind. Events of one kind arrive in order, kinds in any order.
    pending: HashMap<Kind, VecDeque<Event<Value>>>,
}

fn same_settings() -> (DestinationSettings, oracle::Settings) {
    let ours = DestinationSettings {
        cluster_domain: "cluster.local".to_owned(),
        default_opaque_ports: PortRanges::parse("25", [], &mut Problems::default()),
        outbound_transport_mode: TransportMode::TransportHeader,
        ext_endpoint_zone_weights: true,
        ..settings()
    };
    let theirs = oracle::Settings {
        cluster_domain: ours.cluster_domain.clone(),
        trust_domain: ours.identity_trust_domain.clone(),
        controller_namespace: ours.controller_namespace.to_string(),
        default_opaque_ports: "25".to_owned(),
        transport_header: true,
        h2_upgrade: ours.enable_h2_upgrade,
        ipv6: ours.enable_ipv6,
        zone_weights: true,
        http2: None,
    };
    (ours, theirs)
}

impl<M: Method> Client<M> {
    fn new(request: oracle::Request) -> Self {
        Self { request, stream: None, known: M::Known::default(), first: true }
    }

    /// Opens the stream, as a proxy does after its last stream ended.
    fn open(&mut self, views: &Arc<Views>) -> Result<(), M::Answer> {
        let updates = M::subscribe(views, &self.request).map_err(|status| M::refused(&status))?;
        let place = Places::new(1).share().take().ok().unwrap();
        let call = views.metrics.observe(M::RPC);
        self.stream = Some(ResponseStream::new(updates, Arc::<StreamProgress>::default(), call, place));
        (self.known, self.first) = (M::Known::default(), true);
        Ok(())
    }

    /// Reads at most `pieces` of the available pieces.
    fn read(&mut self, pieces: usize) {
        let mut frames = Vec::new();
        for _ in 0..pieces {
            let Some(stream) = &mut self.stream else { break };
            // Without tokio's budget, because with it a ready stream may return pending.
            match tokio::task::unconstrained(stream.next()).now_or_never() {
                None => break,
                Some(Some(BodyFrame::Data(data))) => frames.extend_from_slice(&data),
                Some(Some(BodyFrame::Trailers(_)) | None) => self.stream = None,
            }
        }
        let mut frames = &frames[..];
        while frames.has_remaining() {
            assert_eq!(frames.get_u8(), 0, "not compressed");
            let length = frames.get_u32() as usize;
            M::fold(&mut self.known, self.first, &frames[..length]);
            frames.advance(length);
            self.first = false;
        }
    }

    /// Reads everything, and reopens a stream that has ended. Returns the answer of all messages.
    fn settle(&mut self, views: &Arc<Views>) -> M::Answer {
        self.read(usize::MAX);
        if self.stream.is_none() {
            if let Err(refused) = self.open(views) {
                return refused;
            }
            self.read(usize::MAX);
        }
        M::received(&self.known)
    }
}

impl Rig {
    fn new() -> Self {
        let observer = DestinationObserver::new();
        let feed = Feed::new([Arc::clone(&observer) as Arc<dyn Observer>]);
        let metrics = DiscoveryMetrics::register(&Registry::new()).unwrap();
        let views = Views::new(feed.cluster.clone(), same_settings().0, metrics);
        Self { feed, observer, views, pending: HashMap::new() }
    }

    fn enqueue(&mut self, change: Change) {
        let (key, event) = match change {
            Change::Applied { key, object } => (key, Event::Apply(object)),
            Change::Deleted { key, object } => (key, Event::Delete(object)),
        };
        self.pending.entry(kind(&key)).or_default().push_back(event);
    }

    /// Delivers the next event of a watch, or delivers it twice.
    fn deliver(&mut self, kind: Kind, twice: bool) {
        let Some(event) = self.pending.get_mut(&kind).and_then(VecDeque::pop_front) else { return };
        if twice {
            self.feed.apply(kind, event.clone());
        }
        self.feed.apply(kind, event);
    }

    /// Relists a kind: pending events are dropped, and their effect is visible only in the list.
    fn relist(&mut self, kind_of: Kind, world: &World) {
        self.pending.remove(&kind_of);
        self.feed.apply(kind_of, Event::Init);
        for (_, object) in world.json().iter().filter(|(key, _)| kind(key) == kind_of) {
            self.feed.apply(kind_of, Event::InitApply(object.clone()));
        }
        self.feed.apply(kind_of, Event::InitDone);
    }

    async fn publish(&self) {
        while let Some(batch) = tokio::task::unconstrained(self.observer.dirty.next()).now_or_never() {
            self.views.publish_batch(batch.into()).await;
        }
    }
}

fn kind(key: &Key) -> Kind {
    match key.kind {
        oracle::Kind::Service => Kind::Service,
        oracle::Kind::EndpointSlice => Kind::EndpointSlice,
        oracle::Kind::Pod => Kind::Pod,
        oracle::Kind::ExternalWorkload => Kind::ExternalWorkload,
        oracle::Kind::Server => Kind::Server,
        oracle::Kind::ServiceProfile => Kind::ServiceProfile,
        oracle::Kind::Node => Kind::Node,
        oracle::Kind::ReplicaSet => Kind::ReplicaSet,
        oracle::Kind::Job => Kind::Job,
    }
}

/// The seeds of the histories. `ORACLE_SEED=7 cargo test --lib oracle` selects a seed; `ORACLE_RUNS=1000` sets the
/// number of consecutive seeds.
fn seeds() -> std::ops::Range<u64> {
    let read = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let first = read("ORACLE_SEED").unwrap_or(0);
    first..first + read("ORACLE_RUNS").unwrap_or(if first > 0 { 1 } else { 30 })
}

#[tokio::test]
async fn for_any_order_of_events_old_and_new_endpoint_streams_match_the_contract() {
    history::<Get>().await;
}

#[tokio::test]
async fn for_any_order_of_events_old_and_new_profile_streams_match_the_contract() {
    history::<GetProfile>().await;
}

async fn history<M: Method>() {
    let theirs = same_settings().1;
    for seed in seeds() {
        let mut dice = StdRng::seed_from_u64(seed);
        let mut world = World::new(seed).unwrap();
        let mut rig = Rig::new();
        for (key, object) in world.json() {
            rig.pending.entry(kind(key)).or_default().push_back(Event::Apply(object.clone()));
        }
        let mut clients: Vec<Client<M>> = M::requests(&world).into_iter().map(Client::new).collect();
        for round in 0..8 {
            for _ in 0..dice.random_range(1..60) {
                match dice.random_range(0..20) {
                    0..8 => rig.enqueue(world.mutate().unwrap()),
                    8..16 => {
                        let kind = *Kind::ALL.choose(&mut dice).unwrap();
                        rig.deliver(kind, dice.random_ratio(1, 10));
                    }
                    16 => rig.relist(*Kind::ALL.choose(&mut dice).unwrap(), &world),
                    17 => rig.publish().await,
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
            rig.publish().await;
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
            rig.publish().await;
            for client in &mut clients {
                let was_open = client.stream.is_some();
                let last = client.settle(&rig.views);
                let request = &client.request;
                let expected = match was_open && client.stream.is_some() {
                    true => M::open(world.objects(), &theirs, request, &last),
                    false => M::fresh(world.objects(), &theirs, request),
                };
                assert_eq!(last, expected, "seed {seed}, round {round}, {request:?}");
                let fresh = Client::<M>::new(request.clone()).settle(&rig.views);
                assert_eq!(
                    fresh,
                    M::fresh(world.objects(), &theirs, request),
                    "seed {seed}, round {round}, {request:?}"
                );
            }
        }
        drop(clients);
        assert_eq!(rig.views.endpoints.index().count(), 0, "a view is removed with its last stream");
        assert!(rig.views.profiles.index().is_empty(), "a view is removed with its last stream");
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
