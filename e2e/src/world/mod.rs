//! A random, changing cluster: Services, EndpointSlices, Pods and ServiceProfiles as users, controllers and accidents
//! produce them.
//!
//! ```text
//!   seed ──▶ World ──mutate()──▶ Change ──▶ watch events, or writes to an API server
//!              └──objects()──▶ ApiState ──▶ the oracle
//! ```
//!
//! * In: a seed. Out: one change at a time, the objects after it, and requests whose answers depend on the objects.
//! * Always: the same seed produces the same changes. [`World::valid`] creates only objects that an API server accepts.
//! * Most objects are sane, so that answers contain endpoints; names and addresses are few, so that conflicts occur.

pub mod api;
mod dice;
mod owner;
mod pod;
mod profile;
mod profile_request;
mod request;
mod server;
mod service;
mod slice;
mod status;
#[cfg(test)]
mod tests;
mod workload;

use std::collections::{BTreeMap, VecDeque};

use anyhow::{Context, Result};
use k8s_openapi::jiff::Timestamp;
use serde_json::{Value, json};

use crate::{
    mesh::merge,
    oracle::{ApiState, Key, ObjectKind, Request},
};
use dice::Dice;

pub use profile_request::cluster_ip_requests;

/// The namespace of nearly all objects.
pub const NAMESPACE: &str = "world";
/// A second namespace with objects of the same names, which must not influence answers.
pub const ELSEWHERE: &str = "elsewhere";
/// A namespace that every cluster has. It contains only the ServiceProfiles of its clients for the world's Services.
pub const CLIENTS: &str = "default";

const KINDS: [ObjectKind; 9] = [
    ObjectKind::Node,
    ObjectKind::ReplicaSet,
    ObjectKind::Job,
    ObjectKind::Pod,
    ObjectKind::ExternalWorkload,
    ObjectKind::Server,
    ObjectKind::Service,
    ObjectKind::ServiceProfile,
    ObjectKind::EndpointSlice,
];
/// 2026-01-01T00:00:00Z.
const BEGINNING: i64 = 1_767_225_600;

pub struct World {
    dice: Dice,
    /// If set, all objects are such that an API server accepts them.
    valid: bool,
    /// If set, ServiceProfiles and slices have only what Linkerd's server reads, too.
    for_linkerd: bool,
    /// If set, many Services are joined from those of the clusters `east` and `north`.
    joins: bool,
    /// Seconds since the beginning.
    clock: i64,
    /// The last resourceVersion.
    version: u64,
    objects: BTreeMap<Key, Value>,
    state: ApiState,
    /// The remaining drafts of the last mutation.
    pending: VecDeque<Draft>,
}

/// The new state of an object, or the last state of a deleted one.
#[derive(Clone, Debug, PartialEq)]
pub enum Change {
    Applied { key: Key, object: Value },
    Deleted { key: Key, object: Value },
}

/// A change that has not been applied yet.
#[derive(Clone, Debug)]
enum Draft {
    /// Creates or updates an object. It keeps the uid and creation time of an existing object.
    Put(Value),
    Delete(Key),
}

/// A kind of mutation: its relative frequency, and a function that drafts its changes; none when no object is suitable.
struct Mutation {
    name: &'static str,
    weight: u32,
    draft: fn(&mut World) -> Vec<Draft>,
}

const fn mutation(name: &'static str, weight: u32, draft: fn(&mut World) -> Vec<Draft>) -> Mutation {
    Mutation { name, weight, draft }
}

/// The mutations that apply to objects of every kind.
const OF_ANY: [Mutation; 4] = [
    mutation("an object appears", 14, World::create),
    mutation("an object is deleted", 8, World::delete),
    mutation("an object is deleted and recreated with the same name", 5, World::recreate),
    mutation("an object is touched", 3, World::touch),
];

fn mutations() -> impl Iterator<Item = &'static Mutation> {
    let of_kinds = [
        pod::MUTATIONS,
        status::MUTATIONS,
        service::MUTATIONS,
        profile::MUTATIONS,
        slice::MUTATIONS,
        workload::MUTATIONS,
        server::MUTATIONS,
        owner::MUTATIONS,
    ];
    OF_ANY.iter().chain(of_kinds.into_iter().flatten())
}

// === impl Change ===

impl Change {
    pub fn key(&self) -> &Key {
        match self {
            Self::Applied { key, .. } | Self::Deleted { key, .. } => key,
        }
    }
}

// === impl World ===

impl World {
    /// Creates a world that also contains objects that an API server rejects.
    ///
    /// # Errors
    /// Fails when an object cannot be decoded as its kind.
    pub fn new(seed: u64) -> Result<Self> {
        Self::begin(seed, false, false)
    }

    /// As [`World::new`], with many Services that are joined from those of the clusters `east` and `north`.
    ///
    /// # Errors
    /// Fails when an object cannot be decoded as its kind.
    pub fn with_joined_services(seed: u64) -> Result<Self> {
        Ok(Self { joins: true, ..Self::new(seed)? })
    }

    /// Creates a world that contains only objects that an API server accepts.
    ///
    /// # Errors
    /// Fails when an object cannot be decoded as its kind.
    pub fn valid(seed: u64) -> Result<Self> {
        Self::begin(seed, true, false)
    }

    /// Creates a world for a comparison with Linkerd's server: it contains only objects that an API server accepts,
    /// without ServiceProfiles and ports that Linkerd's server does not read (rows 10 and 12 of
    /// `docs/internals/src/differences.md`).
    ///
    /// # Errors
    /// Fails when an object cannot be decoded as its kind.
    pub fn for_linkerd(seed: u64) -> Result<Self> {
        Self::begin(seed, true, true)
    }

    fn begin(seed: u64, valid: bool, for_linkerd: bool) -> Result<Self> {
        let mut world = Self {
            dice: Dice::new(seed),
            valid,
            for_linkerd,
            joins: false,
            clock: 0,
            version: 0,
            objects: BTreeMap::new(),
            state: ApiState::default(),
            pending: VecDeque::new(),
        };
        for kind in KINDS {
            for name in pool(kind) {
                // Some names stay free, so that objects can be created later.
                if kind != ObjectKind::Service && world.dice.chance(30) {
                    continue;
                }
                let object = world.fresh(kind, NAMESPACE, &name);
                world.make(Draft::Put(object))?;
            }
        }
        for (kind, name) in [
            (ObjectKind::Service, "web"),
            (ObjectKind::Pod, "pod-00"),
            (ObjectKind::Server, "server-0"),
            (ObjectKind::EndpointSlice, "slice-0"),
        ] {
            let object = world.fresh(kind, ELSEWHERE, name);
            world.make(Draft::Put(object))?;
        }
        for namespace in [ELSEWHERE, CLIENTS] {
            let object = world.fresh(ObjectKind::ServiceProfile, namespace, &profile::name("web", NAMESPACE));
            world.make(Draft::Put(object))?;
        }
        Ok(world)
    }

    /// Changes one object.
    ///
    /// # Errors
    /// Fails when an object cannot be decoded as its kind.
    pub fn mutate(&mut self) -> Result<Change> {
        self.mutate_by_name().map(|(_, change)| change)
    }

    fn mutate_by_name(&mut self) -> Result<(&'static str, Change)> {
        let mut name = "the rest of the last mutation";
        loop {
            if let Some(draft) = self.pending.pop_front() {
                return Ok((name, self.make(draft)?));
            }
            let total: u32 = mutations().map(|mutation| mutation.weight).sum();
            let mut left = self.dice.below(total as usize) as u32;
            let chosen = mutations().find(|mutation| {
                let here = left < mutation.weight;
                left = left.saturating_sub(mutation.weight);
                here
            });
            let chosen = chosen.context("no mutation has this number")?;
            name = chosen.name;
            self.pending = (chosen.draft)(self).into();
        }
    }

    /// The current objects.
    pub fn objects(&self) -> &ApiState {
        &self.state
    }

    /// The current objects as JSON, as a list or a watch returns them.
    pub fn json(&self) -> &BTreeMap<Key, Value> {
        &self.objects
    }

    /// All interesting requests of `Get`, for the cluster domain `cluster.local`.
    pub fn requests(&self) -> Vec<Request> {
        request::all()
    }

    /// All interesting requests of `GetProfile`. In a [valid](Self::valid) world the API server assigns the cluster
    /// IPs; use [`cluster_ip_requests`] for those.
    pub fn profile_requests(&self) -> Vec<Request> {
        profile_request::all()
    }

    fn make(&mut self, draft: Draft) -> Result<Change> {
        self.version += 1;
        self.clock += i64::from(self.dice.chance(50));
        let mut object = match draft {
            Draft::Put(object) => object,
            Draft::Delete(key) => {
                let object =
                    self.objects.remove(&key).with_context(|| format!("cannot delete {key:?}: it does not exist"))?;
                self.state.remove(&key);
                return Ok(Change::Deleted { key, object });
            }
        };
        let key = Key::of(&object)?;
        match key.kind {
            ObjectKind::ServiceProfile if self.for_linkerd => profile::keep_what_linkerd_decodes(&mut object),
            ObjectKind::EndpointSlice if self.for_linkerd => slice::keep_numbered_ports(&mut object),
            _ => {}
        }
        let before = self.objects.get(&key).and_then(|before| before.get("metadata"));
        let kept = |field: &str| before.and_then(|before| before.get(field)).cloned();
        let uid = kept("uid").unwrap_or_else(|| json!(format!("00000000-0000-4000-8000-{:012x}", self.version)));
        let created = kept("creationTimestamp").unwrap_or_else(|| json!(self.now()));
        let metadata = json!({"uid": uid, "creationTimestamp": created, "resourceVersion": self.version.to_string()});
        merge(&mut object, json!({ "metadata": metadata }));
        self.state.put(&key, &object)?;
        self.objects.insert(key.clone(), object.clone());
        Ok(Change::Applied { key, object })
    }

    fn now(&self) -> String {
        Timestamp::from_second(BEGINNING + self.clock).unwrap_or_default().to_string()
    }

    /// A new object with this kind and name.
    fn fresh(&mut self, kind: ObjectKind, namespace: &str, name: &str) -> Value {
        match kind {
            ObjectKind::Service => service::fresh(self, namespace, name),
            ObjectKind::EndpointSlice => slice::fresh(self, namespace, name),
            ObjectKind::Pod => pod::fresh(self, namespace, name),
            ObjectKind::ExternalWorkload => workload::fresh(self, namespace, name),
            ObjectKind::Server => server::fresh(self, namespace, name),
            ObjectKind::Node => owner::node(self, name),
            ObjectKind::ReplicaSet => owner::replica_set(self, namespace, name),
            ObjectKind::Job => owner::job(self, namespace, name),
            ObjectKind::ServiceProfile => profile::fresh(self, namespace, name),
        }
    }

    /// A random existing object of the kind, outside of the namespace `elsewhere`.
    fn any(&mut self, kind: ObjectKind) -> Option<Value> {
        let here = self.objects.iter().filter(|(key, _)| key.kind == kind && key.namespace != ELSEWHERE);
        let here: Vec<&Value> = here.map(|(_, object)| object).collect();
        self.dice.pick(&here).map(|object| (*object).clone())
    }

    fn any_key(&mut self) -> Option<Key> {
        let keys: Vec<&Key> = self.objects.keys().collect();
        self.dice.pick(&keys).map(|key| (*key).clone())
    }

    fn create(&mut self) -> Vec<Draft> {
        let namespace = if self.dice.chance(5) { ELSEWHERE } else { NAMESPACE };
        let of_profiles = self.dice.one_of(profile::NAMESPACES);
        let keys = KINDS.into_iter().flat_map(|kind| {
            let namespace = match kind {
                ObjectKind::Node => "",
                ObjectKind::ServiceProfile => of_profiles,
                _ => namespace,
            };
            pool(kind).into_iter().map(move |name| Key { kind, namespace: namespace.to_owned(), name })
        });
        let missing: Vec<Key> = keys.filter(|key| !self.objects.contains_key(key)).collect();
        let Some(key) = self.dice.pick(&missing) else { return Vec::new() };
        vec![Draft::Put(self.fresh(key.kind, &key.namespace, &key.name))]
    }

    fn delete(&mut self) -> Vec<Draft> {
        self.any_key().map(Draft::Delete).into_iter().collect()
    }

    fn recreate(&mut self) -> Vec<Draft> {
        let Some(key) = self.any_key() else { return Vec::new() };
        let object = self.fresh(key.kind, &key.namespace, &key.name);
        vec![Draft::Delete(key), Draft::Put(object)]
    }

    /// A change that must not affect any answer.
    fn touch(&mut self) -> Vec<Draft> {
        let Some(key) = self.any_key() else { return Vec::new() };
        let Some(mut object) = self.objects.get(&key).cloned() else { return Vec::new() };
        let note = json!({"metadata": {"annotations": {"example.com/note": format!("{}", self.version)}}});
        merge(&mut object, note);
        vec![Draft::Put(object)]
    }
}

/// The possible names of objects of a kind.
fn pool(kind: ObjectKind) -> Vec<String> {
    let numbered = |prefix: &str, count: usize| (0..count).map(|number| format!("{prefix}-{number}")).collect();
    match kind {
        ObjectKind::Service => service::NAMES.map(str::to_owned).to_vec(),
        ObjectKind::EndpointSlice => numbered("slice", 9),
        ObjectKind::Pod => (0..pod::COUNT).map(pod::name).collect(),
        ObjectKind::ExternalWorkload => numbered("vm", workload::COUNT),
        ObjectKind::Server => numbered("server", 4),
        ObjectKind::Node => owner::NODES.map(str::to_owned).to_vec(),
        ObjectKind::ReplicaSet => numbered("set", 2),
        ObjectKind::Job => numbered("job", 2),
        ObjectKind::ServiceProfile => service::NAMES.map(|service| profile::name(service, NAMESPACE)).to_vec(),
    }
}

/// The change that applies a merge patch to an object.
fn patched(object: Option<Value>, patch: Value) -> Vec<Draft> {
    let Some(mut object) = object else { return Vec::new() };
    merge(&mut object, patch);
    vec![Draft::Put(object)]
}

/// The change that replaces one field of an object's metadata.
fn with_metadata(object: Option<Value>, field: &str, value: Value) -> Vec<Draft> {
    let Some(mut object) = object else { return Vec::new() };
    if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
        metadata.insert(field.to_owned(), value);
    }
    vec![Draft::Put(object)]
}
