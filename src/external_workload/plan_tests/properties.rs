//! Properties of the plan after any sequence of changes to a [`World`]. The expected endpoints come from a [`Model`] of
//! the changes, which shares no code with the plan.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;

/// One random change of a Service, its workloads or its slices.
#[derive(Clone, Debug)]
enum Step {
    Put {
        number: usize,
        ready: bool,
        port: i32,
        families: u8,
    },
    Remove {
        number: usize,
    },
    /// Adds many workloads, so that slices overflow.
    Fill {
        from: usize,
        count: usize,
        port: i32,
    },
    Clear {
        from: usize,
        count: usize,
    },
    Families(u8),
    Rename(bool),
    Label(bool),
    /// Sets or removes `trafficDistribution` and `publishNotReadyAddresses`.
    Traffic {
        near: bool,
        unready: bool,
    },
    Vandalise {
        at: usize,
    },
    DeleteSlice {
        at: usize,
    },
    Recreate(u8),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => (0..160usize, any::<bool>(), 80..83i32, 1..4u8)
            .prop_map(|(number, ready, port, families)| Step::Put { number, ready, port, families }),
        4 => (0..160usize).prop_map(|number| Step::Remove { number }),
        2 => (0..400usize, 20..230usize, 80..82i32).prop_map(|(from, count, port)| Step::Fill { from, count, port }),
        1 => (0..400usize, 20..230usize).prop_map(|(from, count)| Step::Clear { from, count }),
        1 => (1..4u8).prop_map(Step::Families),
        1 => any::<bool>().prop_map(Step::Rename),
        1 => any::<bool>().prop_map(Step::Label),
        1 => (any::<bool>(), any::<bool>()).prop_map(|(near, unready)| Step::Traffic { near, unready }),
        1 => (0..8usize).prop_map(|at| Step::Vandalise { at }),
        1 => (0..8usize).prop_map(|at| Step::DeleteSlice { at }),
        1 => (0..3u8).prop_map(Step::Recreate),
    ]
}

fn families(bits: u8) -> Vec<Family> {
    [Family::IPv4, Family::IPv6].into_iter().enumerate().filter(|(i, _)| bits & (1 << i) != 0).map(|(_, f)| f).collect()
}

impl World {
    fn take(&mut self, step: &Step) {
        match step {
            Step::Put { number, ready, port, families: bits } => {
                let ips: Vec<Value> = families(*bits)
                    .into_iter()
                    .map(|family| match family {
                        Family::IPv4 => json!({"ip": format!("10.0.{}.{}", number / 250, 1 + number % 250)}),
                        Family::IPv6 => json!({"ip": format!("fd00::1:{number:x}")}),
                    })
                    .collect();
                let spec = json!({"workloadIPs": ips, "ports": [{"name": "http", "port": port}]});
                let put = edit(&workload(&format!("vm-{number}"), &spec), |workload| {
                    workload.ready = *ready;
                    if number % 2 == 0 {
                        workload.labels =
                            [("app", "legacy"), ("topology.kubernetes.io/zone", "z")].into_iter().collect();
                    }
                });
                self.workloads.retain(|workload| workload.key != put.key);
                self.workloads.push(put);
            }
            Step::Fill { from, count, port } => {
                for number in *from..from + count {
                    self.take(&Step::Put { number, ready: true, port: *port, families: 3 });
                }
            }
            Step::Clear { from, count } => {
                for number in *from..from + count {
                    self.take(&Step::Remove { number });
                }
            }
            Step::Remove { number } => self.workloads.retain(|workload| *workload.key.name != *format!("vm-{number}")),
            Step::Families(bits) => self.service.families = families(*bits),
            Step::Rename(other) => self.service.all_ports[0].name = if *other { "two" } else { "one" }.to_owned(),
            Step::Label(on) => {
                self.service.labels = on.then(|| ("foo".to_owned(), "bar".to_owned())).into_iter().collect();
            }
            Step::Traffic { near, unready } => {
                self.service.hints = if *near { HintPolicy::OwnZone } else { HintPolicy::None };
                self.service.publish_not_ready = *unready;
            }
            Step::Vandalise { at } => {
                if let Some(name) = self.slices.get(*at).map(|slice| slice.name().to_owned()) {
                    self.edit_slice(&name, |slice| _ = slice.endpoints.pop());
                }
            }
            Step::DeleteSlice { at } => {
                if *at < self.slices.len() {
                    self.slices.remove(*at);
                }
            }
            Step::Recreate(generation) => self.service.uid = format!("uid-{generation}").into(),
        }
    }
}

/// The objects that the steps have put into the cluster.
struct Model {
    /// The readiness, the port and the families of each workload, by number.
    workloads: BTreeMap<usize, (bool, i32, u8)>,
    families: u8,
    port_name: &'static str,
    near: bool,
    unready: bool,
}

impl Model {
    fn take(&mut self, step: &Step) {
        match step {
            Step::Put { number, ready, port, families } => {
                self.workloads.insert(*number, (*ready, *port, *families));
            }
            Step::Fill { from, count, port } => {
                self.workloads.extend((*from..from + count).map(|number| (number, (true, *port, 3))));
            }
            Step::Clear { from, count } => self.workloads.retain(|number, _| !(*from..from + count).contains(number)),
            Step::Remove { number } => _ = self.workloads.remove(number),
            Step::Families(families) => self.families = *families,
            Step::Rename(other) => self.port_name = if *other { "two" } else { "one" },
            Step::Traffic { near, unready } => (self.near, self.unready) = (*near, *unready),
            Step::Label(_) | Step::Vandalise { .. } | Step::DeleteSlice { .. } | Step::Recreate(_) => {}
        }
    }

    /// The endpoint that each workload must have, with the ports of its slice, by address type and workload name.
    fn desired(&self) -> BTreeMap<(String, String), (Value, Value)> {
        let mut desired = BTreeMap::new();
        for (number, (ready, port, families)) in &self.workloads {
            let name = format!("vm-{number}");
            let v4 = format!("10.0.{}.{}", number / 250, 1 + number % 250);
            for (bit, family, ip) in [(1, "IPv4", v4), (2, "IPv6", format!("fd00::1:{number:x}"))] {
                if families & self.families & bit != 0 {
                    let uid = format!("uid-{name}");
                    let receives = *ready || self.unready;
                    let mut endpoint = json!({
                        "addresses": [ip],
                        "conditions": {"ready": receives, "serving": ready, "terminating": false},
                        "targetRef": {"kind": "ExternalWorkload", "namespace": "ns", "name": name, "uid": uid},
                    });
                    if number % 2 == 0 {
                        endpoint["zone"] = json!("z");
                        if self.near && receives {
                            endpoint["hints"] = json!({"forZones": [{"name": "z"}]});
                        }
                    }
                    let ports = json!([{"name": self.port_name, "port": port, "protocol": "TCP"}]);
                    desired.insert((family.to_owned(), name.clone()), (endpoint, ports));
                }
            }
        }
        desired
    }
}

impl Default for Model {
    fn default() -> Self {
        Self { workloads: BTreeMap::new(), families: 3, port_name: "one", near: false, unready: false }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// Every desired endpoint is in exactly one slice, no other endpoint is in a slice, and a second plan is empty.
    #[test]
    fn after_any_history_every_desired_endpoint_is_in_exactly_one_slice(history in prop::collection::vec(prop::collection::vec(step(), 1..60), 1..6)) {
        let (mut world, mut model) = (World::new(dual(), []), Model::default());
        for steps in history {
            for step in &steps {
                world.take(step);
                model.take(step);
            }
            world.settle();
            let mut written = BTreeMap::new();
            for slice in &world.slices {
                prop_assert!(slice.endpoints.len() <= MAX_ENDPOINTS && !slice.endpoints.is_empty());
                let slice = serde_json::to_value(&**slice).unwrap();
                for endpoint in slice["endpoints"].as_array().unwrap() {
                    let text = |value: &Value| value.as_str().unwrap().to_owned();
                    let key = (text(&slice["addressType"]), text(&endpoint["targetRef"]["name"]));
                    let twice = written.insert(key, (endpoint.clone(), slice["ports"].clone()));
                    prop_assert!(twice.is_none(), "{twice:?} is in two slices");
                }
            }
            prop_assert_eq!(written, model.desired());
        }
    }

    /// An endpoint leaves its slice only if it needs other ports than most endpoints of the slice.
    #[test]
    fn no_endpoint_moves_without_need(first in prop::collection::vec(step(), 1..60), then in prop::collection::vec(step(), 1..20)) {
        let mut world = World::new(dual(), []);
        for step in &first { world.take(step); }
        world.settle();
        let (before, uid) = (world.slices.clone(), world.service.uid.clone());
        // Steps that edit or delete slices are excluded: the endpoints that they remove cannot stay in their slice.
        for step in then.iter().filter(|step| !matches!(step, Step::Vandalise { .. } | Step::DeleteSlice { .. })) { world.take(step); }
        world.settle();
        prop_assume!(world.service.uid == uid);
        let (after, desired) = (world.places(), endpoint::desired(&world.service, &world.workloads).0);
        for slice in before {
            let Some(desired) = desired.get(&slice.family().unwrap()) else { continue };
            let mut votes: BTreeMap<&Ports, usize> = BTreeMap::new();
            let mut stayed = 0;
            for workload in slice.endpoints.iter().filter_map(|e| endpoint::workload(&world.service, e)) {
                let Some(desired) = desired.get(workload) else { continue };
                *votes.entry(&desired.ports).or_default() += 1;
                let place = after.get(&(slice.address_type.clone(), workload.to_owned()));
                stayed += usize::from(place.map(String::as_str) == Some(slice.name()));
            }
            let most = votes.values().max().copied().unwrap_or_default();
            prop_assert!(stayed >= most, "{stayed} of at least {most} stayed in {}", slice.name());
        }
    }
}
