//! What a destination has to answer, worked out a second time: the contract of `Get` and `GetProfile`, read from top to bottom.
//!
//! ```text
//!   ApiState + Settings + Request ──▶ answer() ──────────▶ Refused(code, text) | Endpoints(address → WeightedAddr)
//!                               └───▶ answer_profile() ──▶ Refused(code, text) | Profile(DestinationProfile)
//! ```
//!
//! * In: every object as the API server holds it, the settings of the server, one request. Out: what a stream folds to.
//! * Always: pure and without memory. It scans everything for each answer, has no index and no cache, and shares no code with
//!   the operator: where the two differ, one of them misreads the contract.
//! * What the contract says of time (which message, in which order) is not here: a stream has settled on this answer.

mod authority;
mod candidate;
mod label;
mod opaque;
mod profile;
mod render;
mod state;
#[cfg(test)]
mod tests;

use std::{collections::BTreeMap, net::SocketAddr};

use k8s_openapi::api::core::v1::Service;
use linkerd2_proxy_api::destination::{Http2ClientParams, WeightedAddr};
use tonic::Code;

pub use profile::{ProfileAnswer, answer_profile, answer_profile_while_open};
pub use state::{ApiState, Key, Kind};

use authority::Authority;

/// The flags of the server that change answers.
#[derive(Clone, Debug)]
pub struct Settings {
    pub cluster_domain: String,
    pub trust_domain: String,
    pub controller_namespace: String,
    /// As on the command line: numbers and ranges.
    pub default_opaque_ports: String,
    /// `--outbound-transport-mode=transport-header`, else `transparent`.
    pub transport_header: bool,
    pub h2_upgrade: bool,
    pub ipv6: bool,
    pub zone_weights: bool,
    /// `--meshed-http2-client-params`.
    pub http2: Option<Http2ClientParams>,
}

/// What a client sends.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Request {
    pub path: String,
    pub token: String,
}

/// What a client gets: an error at once, or a stream that settles on these endpoints, the labels of the set merged into each.
#[derive(Clone, Debug, PartialEq)]
pub enum Answer {
    Refused(Code, String),
    Endpoints(BTreeMap<SocketAddr, WeightedAddr>),
}

/// The Service's own labels and annotations that send a request elsewhere.
const FEDERATED: [&str; 2] = ["multicluster.linkerd.io/remote-discovery", "multicluster.linkerd.io/local-discovery"];
const REMOTE_CLUSTER: &str = "multicluster.linkerd.io/remote-discovery";
const REMOTE_SERVICE: &str = "multicluster.linkerd.io/remote-service";

/// The answer to a new stream.
pub fn answer(state: &ApiState, settings: &Settings, request: &Request) -> Answer {
    let authority = match Authority::parse(&request.path, &settings.cluster_domain) {
        Ok(authority) => authority,
        Err(text) => return Answer::Refused(Code::InvalidArgument, text),
    };
    let Some(service) = state.services.get(&(authority.namespace.clone(), authority.service.clone())) else {
        let text = format!("Service {}.{} not found", authority.service, authority.namespace);
        return Answer::Refused(Code::NotFound, text);
    };
    if let Some((code, text)) = elsewhere(service, &authority, &request.path) {
        return Answer::Refused(code, text);
    }
    let node = authority::node_name(&request.token);
    let winners = candidate::winners(state, settings, service, &authority, &node);
    let set = label::of_set(state, &authority);
    let client_zone = state.zone(&node);
    let rendered = winners.into_iter().map(|(address, candidate)| {
        let mut endpoint = render::endpoint(state, settings, &authority, client_zone, address, &candidate);
        let own = std::mem::replace(&mut endpoint.metric_labels, set.clone());
        endpoint.metric_labels.extend(own);
        (address, endpoint)
    });
    Answer::Endpoints(rendered.collect())
}

/// The answer of a stream that is open already. A deleted Service leaves it open and empty; `Refused` means that it has ended.
pub fn answer_while_open(state: &ApiState, settings: &Settings, request: &Request) -> Answer {
    match answer(state, settings, request) {
        Answer::Refused(Code::NotFound, text) if text.starts_with("Service ") => Answer::Endpoints(BTreeMap::new()),
        other => other,
    }
}

/// Why the Service's endpoints are not those of its own slices. No cluster is linked.
fn elsewhere(service: &Service, authority: &Authority, path: &str) -> Option<(Code, String)> {
    let annotations = service.metadata.annotations.clone().unwrap_or_default();
    let labels = service.metadata.labels.clone().unwrap_or_default();
    if FEDERATED.iter().any(|key| annotations.contains_key(*key)) {
        let text = format!("service {}/{} is not a federated service", authority.namespace, authority.service);
        return Some((Code::Unknown, text));
    }
    if let Some(cluster) = labels.get(REMOTE_CLUSTER) {
        return Some(match labels.get(REMOTE_SERVICE) {
            None => (Code::FailedPrecondition, format!("Remote discovery service missing remote service name {path}")),
            Some(_) => (Code::NotFound, format!("Remote cluster not found: {cluster}")),
        });
    }
    let external = service.spec.as_ref().is_some_and(|spec| spec.type_.as_deref() == Some("ExternalName"));
    external.then(|| (Code::InvalidArgument, format!("Invalid authority: {path}")))
}
