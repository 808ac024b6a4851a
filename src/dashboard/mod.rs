//! The dashboard: a read-only page about what this process sees and does, which the admin server serves.
//!
//! | path                                   | answer |
//! |----------------------------------------|--------|
//! | `/dashboard/`                          | the page; its style and its scripts are files beside it |
//! | `/dashboard/overview.json`             | what is wrong, LinkerdConfigs, Events, the state of the process |
//! | `/dashboard/config.json?name=&namespace=` | one LinkerdConfig as `explain --workloads` prints it |
//! | `/dashboard/stream?authority=&token=`  | the endpoints and the profile that a proxy receives, as server-sent events |
//!
//! In: handles of the parts of the process. Out: responses. Always holds: nothing is written; no secret is shown; by
//! default only a port-forward is served ([`access`](DashboardAccess)); the page loads nothing from elsewhere; the
//! number of streams has a limit.

mod access;
mod config;
mod external_workloads;
mod headlines;
mod live;
mod overview;
#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;
mod tiles;

use std::{
    convert::Infallible,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    sync::Arc,
};

use bytes::Bytes;
use futures::{StreamExt, stream};
use http::{HeaderValue, Request, Response, StatusCode, header};
use http_body::Frame;
use http_body_util::{BodyExt, Full, StreamBody, combinators::UnsyncBoxBody};
use kube::Client;
use tokio::sync::Semaphore;

use self::{access::RequestOrigin, config::Explainer, external_workloads::ExternalWorkloadCounter, overview::Overview};
pub use self::{
    access::{DashboardAccess, is_port_forward},
    overview::ElectedLease,
};
use crate::{
    api::NamespacedName, client, cluster::Cluster, destination::Multicluster, events::RecentEvents,
    identity::FollowedIssuer, webhook::ServingCertificate,
};

/// The path of the page.
pub const PATH: &str = "/dashboard/";

const PAGE: &str = include_str!("page/index.html");
const STYLE: &str = include_str!("page/dashboard.css");
/// The scripts, each with its name.
const SCRIPTS: [(&str, &str); 4] = [
    ("dashboard.js", include_str!("page/dashboard.js")),
    ("discovery.js", include_str!("page/discovery.js")),
    ("elements.js", include_str!("page/elements.js")),
    ("namespaces.js", include_str!("page/namespaces.js")),
];

/// The number of viewers of an authority at a time.
const STREAMS: usize = 8;
/// The largest length of an authority or a token, as in the Destination API's own requests.
const LONGEST: usize = 1024;

/// The body of a response of the admin server.
pub type AdminBody = UnsyncBoxBody<Bytes, Infallible>;

/// The parts of the process that the dashboard shows.
pub struct DashboardParts {
    pub access: DashboardAccess,
    /// The domain of the names of Services.
    pub cluster_domain: String,
    pub identity: String,
    /// The Pod that this process is in, if its host has the name of a Pod.
    pub pod: Option<NamespacedName>,
    /// `None` if no job writes Events.
    pub events: Option<RecentEvents>,
    pub cluster: Option<Cluster>,
    pub multicluster: Option<Arc<Multicluster>>,
    pub leases: Vec<ElectedLease>,
    /// The certificate of the webhooks.
    pub certificate: Option<Arc<ServingCertificate>>,
    /// The issuer of the identity service.
    pub issuer: Option<Arc<FollowedIssuer>>,
    /// The address of this process's Destination API.
    pub destination: Option<SocketAddr>,
}

pub struct Dashboard {
    parts: DashboardParts,
    /// `None` if LinkerdConfigs are disabled.
    explainer: Option<Explainer>,
    external_workloads: ExternalWorkloadCounter,
    streams: Arc<Semaphore>,
}

// === impl Dashboard ===

impl Dashboard {
    /// The namespace is the operator's; `None` if LinkerdConfigs are disabled.
    pub fn new(parts: DashboardParts, client: &Client, operator_namespace: Option<&str>) -> Self {
        let explainer = operator_namespace.map(|namespace| Explainer::new(client, namespace));
        let external_workloads = ExternalWorkloadCounter::default();
        Self { parts, explainer, external_workloads, streams: Arc::new(Semaphore::new(STREAMS)) }
    }

    /// Answers a request for a path that it [`serves`]. `local` is the address that the client connected to; `readiness` is
    /// what `/ready` says.
    pub async fn answer<B>(
        &self,
        request: &Request<B>,
        local: IpAddr,
        readiness: impl FnOnce() -> (bool, Vec<String>),
    ) -> Response<AdminBody> {
        let text = |name: &str| request.headers().get(name).and_then(|value| value.to_str().ok());
        let path = request.uri().path();
        let origin = RequestOrigin {
            host: text("host"),
            site: text("sec-fetch-site"),
            mode: text("sec-fetch-mode"),
            destination: text("sec-fetch-dest"),
        };
        let is_page = path.trim_end_matches('/') == PATH.trim_end_matches('/');
        if let Some(why) = access::refusal(self.parts.access, local, origin, is_page, &self.parts.cluster_domain) {
            return sealed(StatusCode::FORBIDDEN, TEXT, why);
        }
        match path.strip_prefix(PATH) {
            Some("") => sealed(StatusCode::OK, "text/html; charset=utf-8", PAGE),
            Some("dashboard.css") => sealed(StatusCode::OK, "text/css; charset=utf-8", STYLE),
            Some("overview.json") => self.overview(readiness).await,
            Some("config.json") => self.config(&parameter(request, "name"), &parameter(request, "namespace")).await,
            Some("stream") => self.stream(parameter(request, "authority"), parameter(request, "token")).await,
            Some(other) => match SCRIPTS.iter().find(|(name, _)| *name == other) {
                Some((_, script)) => sealed(StatusCode::OK, "text/javascript; charset=utf-8", *script),
                None => sealed(StatusCode::NOT_FOUND, TEXT, "try /dashboard/\n"),
            },
            // The page's links are relative to its folder.
            None => {
                let mut response = sealed(StatusCode::PERMANENT_REDIRECT, TEXT, "");
                response.headers_mut().insert(header::LOCATION, HeaderValue::from_static(PATH));
                response
            }
        }
    }

    async fn overview(&self, readiness: impl FnOnce() -> (bool, Vec<String>)) -> Response<AdminBody> {
        let external_workloads = match &self.parts.cluster {
            Some(cluster) => self.external_workloads.count(cluster).await,
            None => None,
        };
        let (ready, waiting_for) = readiness();
        match serde_json::to_vec(&Overview::new(&self.parts, ready, waiting_for, external_workloads)) {
            Ok(json) => sealed(StatusCode::OK, JSON, json),
            Err(error) => sealed(StatusCode::INTERNAL_SERVER_ERROR, TEXT, format!("{error}\n")),
        }
    }

    /// Answers for one namespace, or for all if it is empty.
    async fn config(&self, name: &str, namespace: &str) -> Response<AdminBody> {
        let (Some(cluster), Some(explainer)) = (&self.parts.cluster, &self.explainer) else {
            return sealed(StatusCode::NOT_FOUND, TEXT, "LinkerdConfigs are disabled: --enable-linkerd-config=false\n");
        };
        let namespace = Some(namespace).filter(|namespace| !namespace.is_empty());
        match explainer.explain(cluster, name, namespace).await {
            Some(Ok(json)) => sealed(StatusCode::OK, JSON, json),
            None => sealed(StatusCode::NOT_FOUND, TEXT, "the LinkerdConfig or the namespace does not exist\n"),
            Some(Err(why)) => sealed(StatusCode::BAD_GATEWAY, TEXT, format!("{why}\n")),
        }
    }

    async fn stream(&self, authority: String, token: String) -> Response<AdminBody> {
        let Some(destination) = self.parts.destination else {
            return sealed(StatusCode::NOT_FOUND, TEXT, "discovery is disabled: --enable-destination=false\n");
        };
        if authority.is_empty() || authority.len() > LONGEST || token.len() > LONGEST {
            let text = format!("the parameter authority is missing, or a parameter has more than {LONGEST} bytes\n");
            return sealed(StatusCode::BAD_REQUEST, TEXT, text);
        }
        let Ok(permit) = Arc::clone(&self.streams).try_acquire_owned() else {
            let text = format!("{STREAMS} viewers follow authorities already, close one\n");
            return sealed(StatusCode::SERVICE_UNAVAILABLE, TEXT, text);
        };
        match live::events(destination, authority, token).await {
            Ok(events) => {
                let begin = stream::once(async { Bytes::from_static(b": connected\n\n") });
                let events = begin.chain(events).map(move |event| {
                    let _held = &permit;
                    Ok(Frame::data(event))
                });
                respond(StatusCode::OK, "text/event-stream", StreamBody::new(events).boxed_unsync())
            }
            Err(error) => sealed(StatusCode::BAD_GATEWAY, TEXT, format!("{}\n", client::describe(&*error))),
        }
    }
}

const TEXT: &str = "text/plain; charset=utf-8";
const JSON: &str = "application/json";

/// Whether a path is one of the dashboard's: below [`PATH`], or without its last slash, as people type it.
pub fn serves(path: &str) -> bool {
    path.starts_with(PATH) || path == PATH.trim_end_matches('/')
}

/// Returns a parameter of the query; empty if it is absent.
fn parameter<B>(request: &Request<B>, name: &str) -> String {
    let query = request.uri().query().unwrap_or_default();
    let found = form_urlencoded::parse(query.as_bytes()).find(|(key, _)| key == name);
    found.map(|(_, value)| value.into_owned()).unwrap_or_default()
}

fn sealed(status: StatusCode, content_type: &'static str, body: impl Into<Bytes>) -> Response<AdminBody> {
    respond(status, content_type, Full::new(body.into()).boxed_unsync())
}

/// Returns a response that a browser keeps to itself: no other site may embed or read it, and it runs only the page's
/// own script.
fn respond(status: StatusCode, content_type: &'static str, body: AdminBody) -> Response<AdminBody> {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    let policy = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; \
                  base-uri 'none'; form-action 'none'; frame-ancestors 'none'";
    for (name, value) in [
        (header::CONTENT_TYPE, content_type),
        (header::CONTENT_SECURITY_POLICY, policy),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
        (header::CACHE_CONTROL, "no-store"),
    ] {
        response.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    let isolation = http::HeaderName::from_static("cross-origin-resource-policy");
    response.headers_mut().insert(isolation, HeaderValue::from_static("same-origin"));
    response
}

/// Returns an address at which this process reaches its own listener.
pub fn own_address(listener: SocketAddr) -> SocketAddr {
    match listener.ip().is_unspecified() {
        true => SocketAddr::new(Ipv4Addr::LOCALHOST.into(), listener.port()),
        false => listener,
    }
}
