//! The answer for a Service that is joined from Services of several clusters.
//!
//! * In: the objects of each cluster. Out: the endpoints of all members, each with the labels of its own Service.
//! * Order of members: this cluster, then by the name of the cluster, then by the name of the Service.
//! * In other clusters, neither zones nor the traffic policy filter, and ExternalWorkloads and Jobs are not followed.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Service;
use linkerd2_proxy_api::destination::WeightedAddr;
use tonic::Code;

use super::{
    Answer, ApiState, FEDERATED, REMOTE_CLUSTER, REMOTE_SERVICE, Request, Settings, answer,
    authority::{self, Authority},
    candidate::{self, Candidate},
    label, render,
};

/// Another cluster that is linked.
#[derive(Clone, Debug, Default)]
pub struct Remote {
    pub objects: ApiState,
    pub trust_domain: String,
}

/// A Service with endpoints: its cluster ("" for this one) and its name.
type Member = (String, String);

/// Computes the answer to a new stream of a server that serves the Services of these clusters.
pub fn answer_joined(
    state: &ApiState,
    remotes: &BTreeMap<String, Remote>,
    settings: &Settings,
    request: &Request,
) -> Answer {
    let Ok(authority) = Authority::parse(&request.path, &settings.cluster_domain) else {
        return answer(state, settings, request);
    };
    let service = state.services.get(&(authority.namespace.clone(), authority.service.clone()));
    let members = match service.map(members) {
        None | Some(Members::Own) => return answer(state, settings, request),
        Some(Members::Unnamed) => {
            let text = format!("Remote discovery service missing remote service name {}", request.path);
            return Answer::Refused(Code::FailedPrecondition, text);
        }
        Some(Members::Remote(cluster, _)) if !remotes.contains_key(&cluster) => {
            return Answer::Refused(Code::NotFound, format!("Remote cluster not found: {cluster}"));
        }
        Some(Members::Remote(cluster, name)) => vec![(cluster, name)],
        Some(Members::Federated(members)) => members,
    };
    let node = authority::node_name(&request.token);
    let client_zone = state.zone(&node);
    let mut winners: BTreeMap<_, (Candidate<'_>, WeightedAddr)> = BTreeMap::new();
    let followed: BTreeMap<&String, ApiState> =
        remotes.iter().map(|(name, it)| (name, followed(&it.objects))).collect();
    for (cluster, name) in members {
        let (objects, node, trust_domain) = match (followed.get(&cluster), remotes.get(&cluster)) {
            _ if cluster.is_empty() => (state, Some(node.as_str()), &settings.trust_domain),
            (Some(objects), Some(remote)) => (objects, None, &remote.trust_domain),
            _ => continue,
        };
        let settings = Settings { trust_domain: trust_domain.clone(), ..settings.clone() };
        let authority = Authority { service: name, ..authority.clone() };
        let place = (authority.namespace.clone(), authority.service.clone());
        let Some(service) = objects.services.get(&place) else { continue };
        let set = label::of_set(objects, &authority);
        for candidate in candidate::selected(objects, &settings, service, &authority, node) {
            let address = candidate.address;
            let is_beaten =
                winners.get(&address).is_some_and(|(winner, _)| candidate::rank(winner) <= candidate::rank(&candidate));
            if is_beaten {
                continue;
            }
            let mut endpoint = render::endpoint(objects, &settings, &authority, client_zone, address, &candidate);
            let own = std::mem::replace(&mut endpoint.metric_labels, set.clone());
            endpoint.metric_labels.extend(own);
            winners.insert(address, (candidate, endpoint));
        }
    }
    Answer::Endpoints(winners.into_iter().map(|(address, (_, endpoint))| (address, endpoint)).collect())
}

enum Members {
    /// The Service's own slices.
    Own,
    /// In another cluster, without a name.
    Unnamed,
    Remote(String, String),
    Federated(Vec<Member>),
}

fn members(service: &Service) -> Members {
    let annotations = service.metadata.annotations.clone().unwrap_or_default();
    let labels = service.metadata.labels.clone().unwrap_or_default();
    if FEDERATED.iter().any(|key| annotations.contains_key(*key)) {
        let [remote, local] = FEDERATED.map(|key| annotations.get(key).cloned().unwrap_or_default());
        let mut members: Vec<Member> = Vec::new();
        if !local.trim().is_empty() {
            members.push((String::new(), local.trim().to_owned()));
        }
        // A name is one word; around an item may be spaces.
        let is_name = |text: &str| text.split_whitespace().eq([text]);
        members.extend(remote.split(',').filter_map(|entry| {
            let parts: Vec<&str> = entry.trim().split('@').collect();
            match parts[..] {
                [name, cluster] if is_name(name) && is_name(cluster) => Some((cluster.to_owned(), name.to_owned())),
                _ => None,
            }
        }));
        members.sort();
        members.dedup();
        return Members::Federated(members);
    }
    match (labels.get(REMOTE_CLUSTER), labels.get(REMOTE_SERVICE)) {
        (None, _) => Members::Own,
        (Some(_), None) => Members::Unnamed,
        (Some(cluster), Some(name)) => Members::Remote(cluster.clone(), name.clone()),
    }
}

/// The objects of another cluster that are followed.
fn followed(objects: &ApiState) -> ApiState {
    ApiState { workloads: BTreeMap::new(), jobs: BTreeMap::new(), nodes: BTreeMap::new(), ..objects.clone() }
}
