//! An independent second implementation of the destination server's answers: the contract of `Get` and `GetProfile`, in
//! its order.
//!
//! ```text
//!   ApiState + Settings + Request ──▶ answer() ──────────▶ Refused(code, text) | Endpoints(address → WeightedAddr)
//!                               └───▶ answer_profile() ──▶ Refused(code, text) | Profile(DestinationProfile)
//! ```
//!
//! * In: every object in the API server, the settings of the server, one request. Out: the state that a stream reaches.
//! * Always: pure functions. Each answer scans all objects, without an index or a cache, and shares no code with the
//!   operator: if the two differ, one of them implements the contract incorrectly.
//! * The timing rules of the contract (which messages, in which order) are out of scope: only the final state is
//!   computed.

mod authority;
mod candidate;
mod joined;
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

pub use joined::{Remote, answer_joined};
pub use opaque::is_tcp;
pub use profile::{
    Holders, ProfileAnswer, answer_profile, answer_profile_while_open, is_for_address_of_pod, is_for_pod_of_hostname,
};
pub use state::{ApiState, Key, ObjectKind};

use authority::Authority;

/// The flags of the server that influence answers.
#[derive(Clone, Debug)]
pub struct Settings {
    pub cluster_domain: String,
    pub trust_domain: String,
    pub controller_namespace: String,
    /// Numbers and ranges, as on the command line.
    pub default_opaque_ports: String,
    /// True for `--outbound-transport-mode=transport-header`, false for `transparent`.
    pub transport_header: bool,
    pub h2_upgrade: bool,
    pub ipv6: bool,
    pub zone_weights: bool,
    /// `--meshed-http2-client-params`.
    pub http2: Option<Http2ClientParams>,
}

/// The request of a client.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Request {
    pub path: String,
    pub token: String,
}

/// The result for a client: an immediate error, or the final endpoints of a stream, with the labels of the set merged
/// in.
#[derive(Clone, Debug, PartialEq)]
pub enum Answer {
    Refused(Code, String),
    Endpoints(BTreeMap<SocketAddr, WeightedAddr>),
}

/// The annotations and labels with which the multicluster extension redirects a Service.
const FEDERATED: [&str; 2] = ["multicluster.linkerd.io/remote-discovery", "multicluster.linkerd.io/local-discovery"];
const REMOTE_CLUSTER: &str = "multicluster.linkerd.io/remote-discovery";
const REMOTE_SERVICE: &str = "multicluster.linkerd.io/remote-service";

/// Computes the answer to a new stream.
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

/// Computes the answer of an open stream. When the Service is deleted, it stays open without endpoints; `Refused` means
/// that it ended.
pub fn answer_while_open(state: &ApiState, settings: &Settings, request: &Request) -> Answer {
    match answer(state, settings, request) {
        Answer::Refused(Code::NotFound, text) if text.starts_with("Service ") => Answer::Endpoints(BTreeMap::new()),
        other => other,
    }
}

/// The refusal for a Service that is federated, in a remote cluster, or an ExternalName, if other clusters are not
/// served.
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
