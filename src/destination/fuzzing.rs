//! Requests, frames and ServiceProfiles through the destination server, for the fuzzer.

use std::{cell::RefCell, net::Ipv4Addr, sync::Arc, time::Duration};

use bytes::Buf;
use kube::runtime::watcher::Event;
use prometheus::Registry as MetricsRegistry;
use prost::Message;
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    runtime::{Builder, Runtime},
    sync::watch,
    time::timeout,
};
use tokio_util::sync::CancellationToken;
use tonic_health::server::HealthReporter;

use super::{
    authority::{ProfileAuthority, ServiceAuthority},
    call::{Calls, Subscribed},
    context_token::ContextToken,
    frame::MAX_MESSAGE_BYTES,
    http2::{connection, frames::FrameReader, transport::Transport, wake_time::WakeTime},
    labels::RpcMethod,
    metrics::DiscoveryMetrics,
    observer::DestinationObserver,
    registry::ViewIndex,
    response::refuse,
    stream::Updates,
    testing::settings,
    views::Views,
};
use crate::{
    api::{LONGEST_LABEL, LONGEST_NAME, is_dns_label},
    cluster::{Kind, Observer, testing::Feed},
    proto::destination::{DestinationProfile, GetDestination, Update},
};

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// The most bytes of a message about the objects of [`Server::new`].
const LONGEST_MESSAGE: usize = 8 * 1024;
/// The most bytes of all headers of a refusal.
const LONGEST_REFUSAL: usize = 4 * 1024;
/// How many bytes a client receives for each byte that it sends: a request has at least some, and its answer an
/// endpoint.
const AMPLIFICATION: usize = 256;
/// The time for a connection to end after its client has sent everything.
const SOON: Duration = Duration::from_secs(20);
/// The head of a frame of HTTP/2.
const FRAME_HEAD: usize = 9;
const RST_STREAM: u8 = 3;
const INTERNAL_ERROR: [u8; 4] = [0, 0, 0, 2];

/// A server with some Services, without a listener.
struct Server {
    feed: Feed,
    views: Arc<Views>,
    calls: Arc<Calls>,
    runtime: Runtime,
}

thread_local! {
    static SERVER: RefCell<Server> = RefCell::new(Server::new());
}

/// A path and a token on two lines, or an encoded request. Each has an answer of bounded length that its client can
/// decode, or a refusal that fits into headers, and leaves nothing behind.
pub(crate) fn get_request(data: &[u8]) {
    SERVER.with_borrow(|server| {
        if let Ok(text) = std::str::from_utf8(data) {
            let (path, token) = text.split_once('\n').unwrap_or((text, ""));
            parse(path, token);
            let (path, context_token) = (path.to_owned(), token.to_owned());
            server.ask(&GetDestination { path, context_token, ..GetDestination::default() });
        }
        if let Ok(message) = GetDestination::decode(data) {
            parse(&message.path, &message.context_token);
            server.ask(&message);
        }
    });
}

/// The bytes of a client after its preface. The connection ends when its client has sent everything, no call panics,
/// and the client receives a bounded number of bytes.
pub(crate) fn http2_frames(data: &[u8]) {
    count_pongs(data);
    SERVER.with_borrow(|server| {
        let received = server.runtime.block_on(async {
            timeout(SOON, server.serve(data))
                .await
                .expect("the connection does not end")
                .expect("a loopback connection")
        });
        assert!(received.len() <= LONGEST_MESSAGE + AMPLIFICATION * data.len(), "{} bytes", received.len());
        for (kind, payload) in frames(&received) {
            assert!(kind != RST_STREAM || payload != INTERNAL_ERROR, "a call panicked");
        }
        server.assert_unused();
    });
}

/// A ServiceProfile. Its profile is one message that its client can decode, and a profile that is replaced leaves
/// nothing behind.
pub(crate) fn service_profile(data: &[u8]) {
    let Ok(Value::Object(mut profile)) = serde_json::from_slice::<Value>(data) else { return };
    profile.insert("metadata".to_owned(), json!({"name": "web.ns.svc.mycluster.local", "namespace": "ns"}));
    SERVER.with_borrow_mut(|server| {
        server.feed.apply(Kind::ServiceProfile, Event::Apply(profile.into()));
        for path in ["web.ns.svc.mycluster.local:80", "10.0.0.1:80"] {
            let request = GetDestination { path: path.to_owned(), ..GetDestination::default() };
            let messages = server.messages(RpcMethod::GetProfile, &request).expect("the Service exists");
            assert_eq!(messages.len(), 1, "{path}");
            // Some hundred bytes are not from the ServiceProfile.
            assert!(messages[0].len() <= MAX_MESSAGE_BYTES + LONGEST_MESSAGE, "{} bytes", messages[0].len());
            let profile = DestinationProfile::decode(&*messages[0]).expect("clients can decode a profile");
            assert_eq!(profile.fully_qualified_name, "web.ns.svc.mycluster.local");
        }
        let gone = json!({"metadata": {"name": "web.ns.svc.mycluster.local", "namespace": "ns"}});
        server.feed.apply(Kind::ServiceProfile, Event::Delete(gone));
        server.assert_unused();
    });
}

/// Parses a path and a token. What is kept of them is bounded.
fn parse(path: &str, token: &str) {
    let domain = "mycluster.local";
    let (of_service, of_profile) = (ServiceAuthority::parse(path, domain), ProfileAuthority::parse(path, domain));
    assert_eq!(
        (&of_service, &of_profile),
        (&ServiceAuthority::parse(path, domain), &ProfileAuthority::parse(path, domain),)
    );
    if let Ok(ServiceAuthority { service, port, instance }) = of_service {
        assert!(port > 0 && instance.as_ref().is_none_or(|it| (1..=LONGEST_LABEL + 1).contains(&it.len())));
        let same = match of_profile.expect("the path names a Service") {
            ProfileAuthority::Service { service: other, port: of_other, .. } => {
                instance.is_none() && (other, of_other) == (service, port)
            }
            ProfileAuthority::Instance { service: other, port: of_other, hostname } => {
                let instance = instance.as_deref().unwrap_or_default();
                hostname.starts_with(instance) && (other, of_other) == (service, port)
            }
            ProfileAuthority::Address(_) => false,
        };
        assert!(same, "both methods read {path:?} alike");
    }
    let token = ContextToken::parse(token);
    assert!(token.namespace.is_empty() || is_dns_label(&token.namespace), "{token:?}");
    assert!(token.node.len() <= LONGEST_NAME, "{token:?}");
}

/// Answers to PINGs are counted alike wherever reads end.
fn count_pongs(data: &[u8]) {
    let whole = FrameReader::default().pongs(data);
    for length in [1, 8, 9, 10, 64] {
        let mut reader = FrameReader::default();
        assert_eq!(data.chunks(length).map(|part| reader.pongs(part)).sum::<usize>(), whole, "parts of {length}");
    }
}

/// Returns the type and the payload of each frame. The last one may be incomplete.
fn frames(mut bytes: &[u8]) -> Vec<(u8, &[u8])> {
    let mut found = Vec::new();
    while let Some(([high, middle, low, kind, ..], rest)) = bytes.split_first_chunk::<FRAME_HEAD>() {
        let length = u32::from_be_bytes([0, *high, *middle, *low]) as usize;
        let (payload, rest) = rest.split_at(rest.len().min(length));
        found.push((*kind, payload));
        bytes = rest;
    }
    found
}

// === impl Server ===

impl Server {
    fn new() -> Self {
        let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime");
        let observer = DestinationObserver::new();
        let mut feed = Feed::new([Arc::clone(&observer) as Arc<dyn Observer>]);
        let port = json!({"name": "http", "port": 80, "targetPort": 8080});
        for (name, mut spec) in [
            ("web", json!({"clusterIP": "10.0.0.1", "clusterIPs": ["10.0.0.1"]})),
            ("db", json!({"clusterIP": "None", "clusterIPs": ["None"]})),
            ("out", json!({"type": "ExternalName", "externalName": "example.com"})),
            ("here", json!({"clusterIP": "10.0.0.2", "clusterIPs": ["10.0.0.2"], "internalTrafficPolicy": "Local"})),
        ] {
            spec["ports"] = json!([port]);
            let metadata = json!({"name": name, "namespace": "ns", "uid": name});
            feed.apply(Kind::Service, Event::Apply(json!({"metadata": metadata, "spec": spec})));
            let metadata = json!({"name": format!("{name}-1"), "namespace": "ns",
                "labels": {"kubernetes.io/service-name": name}});
            let target = |pod: &str| json!({"kind": "Pod", "name": pod, "namespace": "ns"});
            let endpoints = json!([
                {"addresses": ["10.1.0.1"], "hostname": "db-0", "nodeName": "node-1", "targetRef": target("db-0")},
                {"addresses": ["10.1.0.2"], "hostname": "db-1", "nodeName": "node-2"},
            ]);
            let ports = json!([{"name": "http", "port": 8080}]);
            let slice = json!({"metadata": metadata, "addressType": "IPv4", "ports": ports, "endpoints": endpoints});
            feed.apply(Kind::EndpointSlice, Event::Apply(slice));
        }
        let labels = json!({"app": "db", "linkerd.io/control-plane-ns": "linkerd"});
        let spec = json!({"nodeName": "node-1", "serviceAccountName": "db", "containers": [{"name": "linkerd-proxy"}]});
        let status = json!({"phase": "Running", "podIP": "10.1.0.1", "podIPs": [{"ip": "10.1.0.1"}]});
        let metadata = json!({"name": "db-0", "namespace": "ns", "uid": "p", "labels": labels});
        feed.apply(Kind::Pod, Event::Apply(json!({"metadata": metadata, "spec": spec, "status": status})));
        let node = json!({"metadata": {"name": "node-1", "labels": {"topology.kubernetes.io/zone": "a"}}});
        feed.apply(Kind::Node, Event::Apply(node));
        let metrics = DiscoveryMetrics::register(&MetricsRegistry::new()).expect("a new registry");
        let views = Views::new(feed.cluster.clone(), &observer, Arc::new(settings()), metrics, None);
        let calls = Arc::new(Calls::new(Arc::clone(&views), HealthReporter::new()));
        Self { feed, views, calls, runtime }
    }

    /// Calls both methods.
    fn ask(&self, request: &GetDestination) {
        if let Some(messages) = self.messages(RpcMethod::Get, request) {
            for message in messages {
                Update::decode(&*message).expect("clients can decode an update");
            }
        }
        if let Some(messages) = self.messages(RpcMethod::GetProfile, request) {
            for message in messages {
                DestinationProfile::decode(&*message).expect("clients can decode a profile");
            }
        }
        self.assert_unused();
    }

    /// Returns the messages of a new stream; `None` if it is refused.
    fn messages(&self, method: RpcMethod, request: &GetDestination) -> Option<Vec<Vec<u8>>> {
        match self.calls.subscribe(method, request) {
            Ok(Subscribed::Get(updates)) => Some(first_messages(updates)),
            Ok(Subscribed::GetProfile(updates)) => Some(first_messages(updates)),
            Err(status) => {
                let response = refuse(&status);
                let headers = response.headers().iter().map(|(name, value)| name.as_str().len() + value.len());
                assert!(headers.sum::<usize>() <= LONGEST_REFUSAL, "{status}");
                None
            }
        }
    }

    /// Serves a client that sends these bytes. Returns what it receives.
    async fn serve(&self, data: &[u8]) -> std::io::Result<Vec<u8>> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let address = listener.local_addr()?;
        let (client, accepted) = tokio::try_join!(TcpStream::connect(address), listener.accept())?;
        let server = async {
            let transport = Transport::accept(accepted.0).await?;
            let shares = Arc::new(self.calls.shares());
            let answer = |request| {
                let (calls, shares) = (Arc::clone(&self.calls), Arc::clone(&shares));
                async move { calls.answer(request, &shares).await }
            };
            let (wake_time, stop) = (WakeTime::new(), CancellationToken::new());
            let shortage = watch::Sender::default().subscribe();
            let limits = &self.views.settings.limits;
            let served = connection::serve(transport, &wake_time, limits, &stop, shortage, answer);
            Arc::clone(&wake_time).track(served).await;
            Ok(())
        };
        let (mut reader, mut writer) = client.into_split();
        let send = async {
            // The server may close the connection before it has read everything.
            if writer.write_all(PREFACE).await.is_ok() && writer.write_all(data).await.is_ok() {
                _ = writer.shutdown().await;
            }
            Ok(())
        };
        let receive = async {
            let mut received = Vec::new();
            _ = reader.read_to_end(&mut received).await;
            Ok(received)
        };
        tokio::try_join!(server, send, receive).map(|((), (), received)| received)
    }

    /// All streams have ended, so there is no view.
    fn assert_unused(&self) {
        assert!(self.views.endpoints.registry.index().views().next().is_none(), "a view of endpoints is left");
        assert!(self.views.profiles.registry.index().is_empty(), "a view of a profile is left");
    }
}

/// Returns the messages that a new stream sends at once.
fn first_messages(mut updates: impl Updates) -> Vec<Vec<u8>> {
    updates.refresh();
    let mut bytes = Vec::new();
    while let Some(outgoing) = updates.next() {
        bytes.extend_from_slice(&outgoing.frames);
    }
    let (mut bytes, mut messages) = (&bytes[..], Vec::new());
    while bytes.has_remaining() {
        assert_eq!(bytes.get_u8(), 0, "a compressed message");
        let length = bytes.get_u32() as usize;
        messages.push(bytes[..length].to_vec());
        bytes.advance(length);
    }
    messages
}
