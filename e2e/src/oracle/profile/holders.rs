//! The Services that have had a cluster IP.
//!
//! * In: each state of a cluster. Out: the possible answers of a stream for an address, while it stays open.
//! * Always: a stream for the address of a deleted Service may keep the answer for the Service's name, as long as no
//!   other object has the address. Which of several former Services it has, depends on what the server observed.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, SocketAddr},
};

use super::{ProfileAnswer, answer_profile_while_open, authority};
use crate::oracle::{ApiState, Request, Settings};

/// The names of the Services that have had an address, with their namespaces.
#[derive(Clone, Debug, Default)]
pub struct Holders(BTreeMap<IpAddr, BTreeSet<(String, String)>>);

// === impl Holders ===

impl Holders {
    /// Adds the Services of a state.
    pub fn observe(&mut self, state: &ApiState) {
        for (name, service) in &state.services {
            let spec = service.spec.iter();
            let addresses = spec.flat_map(|spec| spec.cluster_ips.iter().flatten().chain(&spec.cluster_ip));
            for address in addresses.filter_map(|address| authority::ip(address)) {
                self.0.entry(address).or_default().insert(name.clone());
            }
        }
    }

    /// Computes the possible answers of an open stream.
    pub fn answers_while_open(&self, state: &ApiState, settings: &Settings, request: &Request) -> Vec<ProfileAnswer> {
        let mut answers = vec![answer_profile_while_open(state, settings, request)];
        if answers.first().is_some_and(ProfileAnswer::is_of_unknown_address)
            && let Ok(address) = request.path.parse::<SocketAddr>()
        {
            let holders = self.0.get(&address.ip().to_canonical()).into_iter().flatten();
            let deleted = holders.filter(|name| !state.services.contains_key(*name));
            let named = deleted.map(|(namespace, name)| Request {
                path: format!("{name}.{namespace}.svc.{}:{}", settings.cluster_domain, address.port()),
                token: request.token.clone(),
            });
            answers.extend(named.map(|request| answer_profile_while_open(state, settings, &request)));
        }
        answers
    }
}
