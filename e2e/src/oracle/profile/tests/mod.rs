//! Profiles for literal objects: the examples of the contract, and small edits to them.

mod authority;
mod condition;
mod endpoint;
mod instance;
mod number;
mod service;

use std::collections::BTreeMap;

use linkerd2_proxy_api::destination::{DestinationProfile, RetryBudget, WeightedAddr};
use prost_types::Duration;
use serde_json::{Value, json};
use tonic::Code;

use super::{ProfileAnswer, answer_profile, answer_profile_while_open};
use crate::{
    mesh::merge,
    oracle::{ApiState, Key, Request, Settings},
};

/// The settings of the contract's examples.
fn settings() -> Settings {
    Settings {
        cluster_domain: "mycluster.local".to_owned(),
        trust_domain: "trust.domain".to_owned(),
        controller_namespace: "linkerd".to_owned(),
        default_opaque_ports: "25,443,587,3306,5432,11211".to_owned(),
        transport_header: false,
        h2_upgrade: true,
        ipv6: true,
        zone_weights: true,
        http2: None,
    }
}

/// Objects by kind, namespace and name, for example `Pod/ns/name1-1`.
struct Cluster(BTreeMap<String, Value>);

impl Cluster {
    fn new(objects: &[Value]) -> Self {
        let mut cluster = Self(BTreeMap::new());
        objects.iter().for_each(|object| cluster.put(object.clone()));
        cluster
    }

    fn put(&mut self, object: Value) {
        let key = Key::of(&object).unwrap();
        self.0.insert(format!("{:?}/{}/{}", key.kind, key.namespace, key.name), object);
    }

    fn remove(&mut self, what: &str) {
        assert!(self.0.remove(what).is_some(), "{what} does not exist");
    }

    /// Merges a patch into an object; lists and scalars are replaced.
    fn edit(&mut self, what: &str, patch: Value) {
        merge(self.0.get_mut(what).unwrap(), patch);
    }

    fn state(&self) -> ApiState {
        let mut state = ApiState::default();
        for object in self.0.values() {
            state.put(&Key::of(object).unwrap(), object).unwrap();
        }
        state
    }

    fn get_as(&self, settings: &Settings, path: &str, token: &str) -> ProfileAnswer {
        answer_profile(&self.state(), settings, &Request { path: path.to_owned(), token: token.to_owned() })
    }

    fn get(&self, path: &str) -> ProfileAnswer {
        self.get_as(&settings(), path, "")
    }

    fn get_while_open(&self, path: &str) -> ProfileAnswer {
        let request = Request { path: path.to_owned(), token: String::new() };
        answer_profile_while_open(&self.state(), &settings(), &request)
    }

    fn profile(&self, path: &str) -> DestinationProfile {
        match self.get(path) {
            ProfileAnswer::Profile(profile) => *profile,
            refused => panic!("{path} was answered with {refused:?}"),
        }
    }

    fn endpoint(&self, path: &str) -> WeightedAddr {
        self.profile(path).endpoint.unwrap_or_else(|| panic!("{path} has no endpoint"))
    }
}

fn refused(code: Code, text: impl Into<String>) -> ProfileAnswer {
    ProfileAnswer::Refused(code, text.into())
}

fn budget() -> Option<RetryBudget> {
    Some(RetryBudget { retry_ratio: 0.2, min_retries_per_second: 10, ttl: seconds(10) })
}

fn seconds(seconds: i64) -> Option<Duration> {
    Some(Duration { seconds, nanos: 0 })
}

fn service(name: &str, spec: &Value) -> Value {
    json!({"kind": "Service", "metadata": {"name": name, "namespace": "ns"}, "spec": spec})
}

/// A running Pod in `ns` with a proxy and this address.
fn pod(name: &str, address: &str, patch: Value) -> Value {
    let mut pod = json!({"kind": "Pod",
        "metadata": {"name": name, "namespace": "ns", "creationTimestamp": "2026-01-01T00:00:00Z",
            "labels": {"linkerd.io/control-plane-ns": "linkerd"}, "annotations": {}},
        "spec": {"containers": [{"name": "app"}, {"name": "linkerd-proxy", "env": [
            {"name": "LINKERD2_PROXY_INBOUND_LISTEN_ADDR", "value": "0.0.0.0:4143"},
            {"name": "LINKERD2_PROXY_ADMIN_LISTEN_ADDR", "value": "0.0.0.0:4191"},
            {"name": "LINKERD2_PROXY_CONTROL_LISTEN_ADDR", "value": "0.0.0.0:4190"}]}]},
        "status": {"phase": "Running", "podIP": address}});
    merge(&mut pod, patch);
    pod
}

fn profile_of(service: &str, namespace: &str, spec: &Value) -> Value {
    json!({"apiVersion": "linkerd.io/v1alpha2", "kind": "ServiceProfile",
        "metadata": {"name": format!("{service}.ns.svc.mycluster.local"), "namespace": namespace}, "spec": spec})
}

fn route(name: &str, path: &str) -> Value {
    json!({"name": name, "condition": {"pathRegex": path}})
}
