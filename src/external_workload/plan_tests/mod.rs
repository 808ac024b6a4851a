//! Tests of the plan. D-numbers refer to the acceptance table. This module has the [`World`] that the tests share.

use serde_json::{Value, json};

use super::*;
use crate::{cluster::testing, external_workload::transitions};

mod content;
mod hostile;
mod placement;
mod properties;
mod topology;

const NONE: &[Arc<EndpointSlice>] = &[];

/// A Service, its workloads and its slices, as in a cluster between two plans.
struct World {
    service: Service,
    workloads: Vec<Arc<ExternalWorkload>>,
    slices: Vec<Arc<EndpointSlice>>,
    version: u64,
}

/// The number of writes of a plan.
#[derive(Debug, PartialEq, Eq)]
struct Writes {
    creates: usize,
    updates: usize,
    retires: usize,
}

fn writes(creates: usize, updates: usize, retires: usize) -> Writes {
    Writes { creates, updates, retires }
}

fn legacy() -> Service {
    testing::service(&json!({
        "selector": {"app": "legacy"}, "clusterIP": "10.96.0.1", "ipFamilies": ["IPv4"],
        "ports": [{"name": "one", "port": 80, "targetPort": "http"}],
    }))
}

fn workload(name: &str, spec: &Value) -> Arc<ExternalWorkload> {
    Arc::new(testing::external_workload(name, true, &json!({"app": "legacy"}), spec))
}

/// The `number`th workload, with a unique address and port http:80.
fn numbered(number: usize) -> Arc<ExternalWorkload> {
    let ip = format!("192.0.{}.{}", 2 + number / 250, 1 + number % 250);
    workload(&format!("vm-{number:04}"), &json!({"workloadIPs": [{"ip": ip}], "ports": [{"name": "http", "port": 80}]}))
}

fn edit(workload: &Arc<ExternalWorkload>, edit: impl FnOnce(&mut ExternalWorkload)) -> Arc<ExternalWorkload> {
    let mut workload = ExternalWorkload::clone(workload);
    edit(&mut workload);
    Arc::new(workload)
}

impl World {
    fn new(service: Service, workloads: impl IntoIterator<Item = Arc<ExternalWorkload>>) -> Self {
        Self { service, workloads: workloads.into_iter().collect(), slices: NONE.to_vec(), version: 0 }
    }

    fn plan(&self) -> SlicePlan {
        plan(&SlicePlanInput {
            service: &self.service,
            workloads: &self.workloads,
            slices: &self.slices,
            taken: &HashSet::new(),
        })
    }

    /// Applies a plan as an API server would: through JSON, and with uid and resourceVersion set.
    fn apply(&mut self, plan: SlicePlan) -> Writes {
        let count = writes(plan.creates.len(), plan.updates.len(), plan.retires.len());
        for retired in plan.retires {
            self.slices.retain(|slice| slice.name() != retired.name());
        }
        for SliceUpdate { base, slice } in plan.updates {
            assert_eq!(base.metadata.resource_version, slice.metadata.resource_version);
            self.slices.retain(|known| known.name() != slice.name());
            self.store(&slice);
        }
        for slice in plan.creates {
            assert!(self.slices.iter().all(|known| known.name() != slice.name()), "two slices have the same name");
            self.store(&slice);
        }
        count
    }

    fn store(&mut self, slice: &EndpointSlice) {
        self.version += 1;
        // Through JSON, as over the wire.
        let mut slice: EndpointSlice = serde_json::from_value(serde_json::to_value(slice).unwrap()).unwrap();
        slice.metadata.uid.get_or_insert_with(|| format!("uid-{}", self.version));
        slice.metadata.resource_version = Some(self.version.to_string());
        self.slices.push(Arc::new(slice));
    }

    /// Plans and applies, and asserts that a second plan is empty.
    fn settle(&mut self) -> Writes {
        let count = self.apply(self.plan());
        let again = self.plan();
        assert!(again.is_empty(), "the second plan is not empty: {again:?}");
        count
    }

    /// Plans and applies. Returns the transitions for which Events are emitted.
    fn transitions(&mut self) -> Vec<(String, transitions::TransitionKind)> {
        let before = self.slices.clone();
        self.apply(self.plan());
        let transitions = transitions::transitions(&self.service, &before, &self.slices);
        transitions.into_iter().map(|t| (t.workload.to_string(), t.kind)).collect()
    }

    /// Stores a slice with exactly these workloads, as a controller would have written it.
    fn hold(&mut self, name: &str, workloads: &[Arc<ExternalWorkload>]) {
        let (mut families, _) = endpoint::desired(&self.service, workloads);
        let desired = families.remove(&Family::IPv4).unwrap_or_default();
        let ports = desired.values().next().map_or_else(
            || serde_json::from_value::<Vec<_>>(json!([{"name": "one", "port": 80}])).unwrap().into_iter().collect(),
            |desired| desired.ports.clone(),
        );
        let endpoints = desired.into_values().map(|desired| desired.endpoint).collect();
        let draft = SliceDraft { base: None, ports, endpoints, dirty: true };
        self.store(&draft.create(&self.service, Family::IPv4, name.to_owned()));
    }

    fn edit_slice(&mut self, name: &str, edit: impl FnOnce(&mut EndpointSlice)) {
        let slice = self.slices.iter_mut().find(|slice| slice.name() == name).unwrap();
        let mut edited = EndpointSlice::clone(slice);
        edit(&mut edited);
        *slice = Arc::new(edited);
    }

    /// The number of endpoints of each slice, sorted by slice name.
    fn lengths(&self) -> Vec<usize> {
        let mut slices: Vec<_> = self.slices.iter().map(|slice| (slice.name(), slice.endpoints.len())).collect();
        slices.sort();
        slices.into_iter().map(|(_, length)| length).collect()
    }

    fn sorted_lengths(&self) -> Vec<usize> {
        let mut lengths = self.lengths();
        lengths.sort_by(|a, b| b.cmp(a));
        lengths
    }

    fn only(&self) -> &EndpointSlice {
        assert_eq!(self.slices.len(), 1, "{:?}", self.slices);
        &self.slices[0]
    }

    /// The slice of each workload, by address type and workload name.
    fn places(&self) -> BTreeMap<(String, String), String> {
        let mut places = BTreeMap::new();
        for slice in &self.slices {
            for endpoint in &slice.endpoints {
                let workload = endpoint::workload(&self.service, endpoint).unwrap().to_owned();
                let twice = places.insert((slice.address_type.clone(), workload), slice.name().to_owned());
                assert_eq!(twice, None, "a workload is in two slices of one family");
            }
        }
        places
    }
}

fn many(range: std::ops::Range<usize>) -> Vec<Arc<ExternalWorkload>> {
    range.map(numbered).collect()
}

fn dual() -> Service {
    let mut service = legacy();
    service.families = vec![Family::IPv4, Family::IPv6];
    service
}

fn two_families(name: &str, ips: &[&str]) -> Arc<ExternalWorkload> {
    let ips: Vec<Value> = ips.iter().map(|ip| json!({"ip": ip})).collect();
    workload(name, &json!({"workloadIPs": ips, "ports": [{"name": "http", "port": 80}]}))
}
