//! Clients and watches of random clusters, in process.
//!
//! * In: changes of objects, settings, requests. Out: the answers of streams, folded as a proxy folds them.
//! * Always: the watches deliver events only when a test says so. The oracle and the worlds belong to the end-to-end
//!   tests and are independent of this crate.

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    fmt::Debug,
    net::{IpAddr, SocketAddr},
    sync::Arc,
};

use bytes::Buf;
use e2e::{
    answers::profile_refusal,
    discovery::{Update, fold},
    oracle::{self, Answer, ApiState, Holders, Key, ProfileAnswer, answer, answer_profile, answer_while_open},
    world::{Change, World},
};
use futures::FutureExt;
use kube::runtime::watcher::Event;
use linkerd2_proxy_api::destination::{DestinationProfile, WeightedAddr};
use prometheus::Registry;
use prost::Message;
use serde_json::Value;
use tonic::Code;

use crate::{
    cluster::{Kind, Observer, Problems, kinds::port_ranges::PortRanges, testing::Feed},
    destination::{
        authority::{ProfileAuthority, ServiceAuthority},
        context_token::ContextToken,
        get::{request::GetRequest, updates::EndpointUpdates},
        http2::{
            stall::StreamProgress,
            stream::{BodyFrame, ResponseBody},
        },
        labels::RpcMethod,
        metrics::DiscoveryMetrics,
        multicluster::Multicluster,
        observer::DestinationObserver,
        profile::{request::ProfileRequest, updates::ProfileUpdates},
        settings::{DestinationSettings, Http2Params, TransportMode},
        stream::{ResponseStream, Updates},
        testing::settings,
        views::Views,
    },
    proto::destination::Http2ClientParams,
    resources::shares::Pool,
};

/// One method of the API, for these tests.
pub(in crate::destination) trait Method {
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
    /// The answers that the contract permits for an open stream.
    fn while_open(
        objects: &ApiState,
        settings: &oracle::Settings,
        request: &oracle::Request,
        holders: &Holders,
    ) -> Vec<Self::Answer>;
    /// Returns whether an open stream that has received `old` stays open when a new stream receives `new` after a
    /// change.
    fn stays_open(
        objects: &ApiState,
        request: &oracle::Request,
        old: &Self::Answer,
        new: &Self::Answer,
        change: &Change,
    ) -> bool;
    /// The answer of an open stream if a new stream receives `new`; `None` if `new` does not determine it.
    fn open_beside(new: Self::Answer, old: &Self::Answer) -> Option<Self::Answer>;
}

pub(in crate::destination) struct Get;
pub(in crate::destination) struct GetProfile;

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
        let token = ContextToken::parse(&request.token);
        let resolved = GetRequest { with_clusters: token.clusters, ..GetRequest::new(authority, &token.node) };
        let subscription =
            views.endpoints.subscribe(&resolved).map_err(|refusal| resolved.refused(&refusal, &request.path))?;
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

    fn while_open(
        objects: &ApiState,
        settings: &oracle::Settings,
        request: &oracle::Request,
        _: &Holders,
    ) -> Vec<Answer> {
        vec![answer_while_open(objects, settings, request)]
    }

    fn stays_open(_: &ApiState, _: &oracle::Request, old: &Answer, new: &Answer, _: &Change) -> bool {
        matches!(old, Answer::Endpoints(_)) && matches!(new, Answer::Endpoints(_)) || is_without_service(new)
    }

    fn open_beside(new: Answer, _: &Answer) -> Option<Answer> {
        Some(if is_without_service(&new) { Answer::Endpoints(BTreeMap::new()) } else { new })
    }
}

/// Returns whether the Service does not exist.
fn is_without_service(answer: &Answer) -> bool {
    matches!(answer, Answer::Refused(_, text) if text.starts_with("Service "))
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
        let subscription = views.profiles.subscribe(&resolved).map_err(|refusal| refusal.status(&request.path))?;
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

    fn refused(status: &tonic::Status) -> ProfileAnswer {
        profile_refusal(status)
    }

    fn fresh(objects: &ApiState, settings: &oracle::Settings, request: &oracle::Request) -> ProfileAnswer {
        answer_profile(objects, settings, request)
    }

    fn while_open(
        objects: &ApiState,
        settings: &oracle::Settings,
        request: &oracle::Request,
        holders: &Holders,
    ) -> Vec<ProfileAnswer> {
        holders.answers_while_open(objects, settings, request)
    }

    /// A stream keeps its Service after the Service is deleted, unless a Pod has the address of the stream. A stream for an
    /// address follows from one object to another; a stream for a hostname ends when the endpoint becomes a Pod, or ceases
    /// to be one.
    fn stays_open(
        objects: &ApiState,
        request: &oracle::Request,
        old: &ProfileAnswer,
        new: &ProfileAnswer,
        change: &Change,
    ) -> bool {
        let ProfileAnswer::Profile(old) = old else { return false };
        match (new, &old.endpoint) {
            (ProfileAnswer::Profile(_), None) if new.is_of_unknown_address() => {
                matches!(change, Change::Deleted { .. }) && !oracle::is_for_address_of_pod(objects, request)
            }
            (ProfileAnswer::Profile(new), None) => {
                new.endpoint.is_none() && new.fully_qualified_name == old.fully_qualified_name
            }
            (ProfileAnswer::Profile(new), Some(_)) => new.endpoint.is_some() && is_address(&request.path),
            (ProfileAnswer::Refused(code, text), _) => *code == Code::Unknown && text.starts_with("service "),
        }
    }

    fn open_beside(new: ProfileAnswer, old: &ProfileAnswer) -> Option<ProfileAnswer> {
        let is_deleted = match &new {
            ProfileAnswer::Refused(Code::Unknown, text) => text.starts_with("service "),
            new => new.is_of_unknown_address() && is_of_service(old),
        };
        (!is_deleted).then_some(new)
    }
}

fn is_address(path: &str) -> bool {
    path.parse::<SocketAddr>().is_ok() || path.parse::<IpAddr>().is_ok()
}

/// Returns whether it is the profile of a Service's port.
fn is_of_service(answer: &ProfileAnswer) -> bool {
    matches!(answer, ProfileAnswer::Profile(profile) if profile.parent_ref.is_some())
}

/// A client: its stream, if it is open, and the messages that it has received.
pub(in crate::destination) struct Client<M: Method> {
    pub(in crate::destination) request: oracle::Request,
    pub(in crate::destination) stream: Option<ResponseStream<M::Updates>>,
    known: M::Known,
    first: bool,
}

pub(in crate::destination) struct Rig {
    pub(in crate::destination) feed: Feed,
    observer: Arc<DestinationObserver>,
    pub(in crate::destination) views: Arc<Views>,
    /// Events that the watches have not delivered yet, by kind. Events of one kind arrive in order, kinds in any order.
    pub(in crate::destination) pending: HashMap<Kind, VecDeque<Event<Value>>>,
}

/// Returns the settings of a server with the same flags as the oracle.
pub(in crate::destination) fn server_settings(of_oracle: &oracle::Settings) -> DestinationSettings {
    // Destructured, so that a setting that is added to the oracle is a compile error here.
    let oracle::Settings {
        cluster_domain,
        trust_domain,
        controller_namespace,
        default_opaque_ports,
        transport_header,
        h2_upgrade,
        ipv6,
        zone_weights,
        http2,
    } = of_oracle.clone();
    let http2 = http2.map(|params| Http2ClientParams::decode(&*params.encode_to_vec()).unwrap());
    DestinationSettings {
        controller_namespace: controller_namespace.into(),
        cluster_domain,
        identity_trust_domain: trust_domain,
        default_opaque_ports: PortRanges::parse(&default_opaque_ports, [], &mut Problems::default()),
        outbound_transport_mode: if transport_header {
            TransportMode::TransportHeader
        } else {
            TransportMode::Transparent
        },
        enable_h2_upgrade: h2_upgrade,
        enable_ipv6: ipv6,
        ext_endpoint_zone_weights: zone_weights,
        meshed_http2_client_params: Http2Params(http2),
        ..settings()
    }
}

impl<M: Method> Client<M> {
    pub(in crate::destination) fn new(request: oracle::Request) -> Self {
        Self { request, stream: None, known: M::Known::default(), first: true }
    }

    /// Returns whether the open stream has sent no message.
    pub(in crate::destination) fn is_silent(&self) -> bool {
        self.stream.is_some() && self.first
    }

    /// Opens the stream, as a proxy does after its last stream ended.
    pub(in crate::destination) fn open(&mut self, views: &Arc<Views>) -> Result<(), M::Answer> {
        let updates = M::subscribe(views, &self.request).map_err(|status| M::refused(&status))?;
        let permit = Pool::new(1).share().try_take(1).ok().unwrap();
        let call = views.metrics.observe(M::RPC);
        self.stream = Some(ResponseStream::new(updates, Arc::<StreamProgress>::default(), call, permit));
        (self.known, self.first) = (M::Known::default(), true);
        Ok(())
    }

    /// Reads at most `pieces` of the available pieces.
    pub(in crate::destination) fn read(&mut self, pieces: usize) {
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
    pub(in crate::destination) fn settle(&mut self, views: &Arc<Views>) -> M::Answer {
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
    pub(in crate::destination) fn new(settings: DestinationSettings) -> Self {
        Self::with(settings, false)
    }

    /// A server that serves the Services of other clusters, of which none is linked yet.
    pub(in crate::destination) fn with_clusters(settings: DestinationSettings) -> Self {
        Self::with(settings, true)
    }

    fn with(settings: DestinationSettings, has_clusters: bool) -> Self {
        let (observer, settings) = (DestinationObserver::new(), Arc::new(settings));
        let feed = Feed::new([Arc::clone(&observer) as Arc<dyn Observer>]);
        let metrics = DiscoveryMetrics::register(&Registry::new()).unwrap();
        let clusters = || Multicluster::new(Arc::clone(&observer), Arc::clone(&settings), &Registry::new()).unwrap();
        let multicluster = has_clusters.then(clusters);
        let views = Views::new(feed.cluster.clone(), &observer, settings, metrics, multicluster);
        Self { feed, observer, views, pending: HashMap::new() }
    }

    pub(in crate::destination) fn observer(&self) -> &Arc<DestinationObserver> {
        &self.observer
    }

    pub(in crate::destination) fn enqueue(&mut self, change: Change) {
        let (key, event) = match change {
            Change::Applied { key, object } => (key, Event::Apply(object)),
            Change::Deleted { key, object } => (key, Event::Delete(object)),
        };
        self.pending.entry(kind(&key)).or_default().push_back(event);
    }

    /// Delivers the next event of a watch, or delivers it twice.
    pub(in crate::destination) fn deliver(&mut self, kind: Kind, twice: bool) {
        let Some(event) = self.pending.get_mut(&kind).and_then(VecDeque::pop_front) else { return };
        if twice {
            self.feed.apply(kind, event.clone());
        }
        self.feed.apply(kind, event);
    }

    /// Relists a kind: pending events are dropped, and their effect is visible only in the list.
    pub(in crate::destination) fn relist(&mut self, kind_of: Kind, world: &World) {
        self.pending.remove(&kind_of);
        self.feed.apply(kind_of, Event::Init);
        for (_, object) in world.json().iter().filter(|(key, _)| kind(key) == kind_of) {
            self.feed.apply(kind_of, Event::InitApply(object.clone()));
        }
        self.feed.apply(kind_of, Event::InitDone);
    }

    pub(in crate::destination) fn publish(&self) {
        while let Some(batch) = tokio::task::unconstrained(self.observer.dirty.next()).now_or_never() {
            self.views.publisher().publish(batch.into());
        }
    }
}

pub(in crate::destination) fn kind(key: &Key) -> Kind {
    match key.kind {
        oracle::ObjectKind::Service => Kind::Service,
        oracle::ObjectKind::EndpointSlice => Kind::EndpointSlice,
        oracle::ObjectKind::Pod => Kind::Pod,
        oracle::ObjectKind::ExternalWorkload => Kind::ExternalWorkload,
        oracle::ObjectKind::Server => Kind::Server,
        oracle::ObjectKind::ServiceProfile => Kind::ServiceProfile,
        oracle::ObjectKind::Node => Kind::Node,
        oracle::ObjectKind::ReplicaSet => Kind::ReplicaSet,
        oracle::ObjectKind::Job => Kind::Job,
    }
}
