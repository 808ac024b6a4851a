//! The plan, case by case: D-numbers are those of the acceptance table, with an API server that fills in its defaults.

use serde_json::{Value, json};

use super::*;
use crate::{
    cluster::{service, workload},
    external_workload::report,
};

#[path = "plan_properties.rs"]
mod properties;

const NONE: &[Arc<EndpointSlice>] = &[];

/// A Service, its workloads and slices, as a cluster would hold them between two plans.
struct World {
    service: Service,
    workloads: Vec<Arc<Workload>>,
    slices: Vec<Arc<EndpointSlice>>,
    version: u64,
}

/// How many writes a plan came to.
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
    service::tests::service(&json!({
        "selector": {"app": "legacy"}, "clusterIP": "10.96.0.1", "ipFamilies": ["IPv4"],
        "ports": [{"name": "one", "port": 80, "targetPort": "http"}],
    }))
}

fn workload(name: &str, spec: &Value) -> Arc<Workload> {
    Arc::new(workload::tests::workload(name, true, &json!({"app": "legacy"}), spec))
}

/// The `number`th workload, with an address of its own and port http:80.
fn numbered(number: usize) -> Arc<Workload> {
    let ip = format!("192.0.{}.{}", 2 + number / 250, 1 + number % 250);
    workload(&format!("vm-{number:04}"), &json!({"workloadIPs": [{"ip": ip}], "ports": [{"name": "http", "port": 80}]}))
}

fn edit(workload: &Arc<Workload>, edit: impl FnOnce(&mut Workload)) -> Arc<Workload> {
    let mut workload = Workload::clone(workload);
    edit(&mut workload);
    Arc::new(workload)
}

impl World {
    fn new(service: Service, workloads: impl IntoIterator<Item = Arc<Workload>>) -> Self {
        Self { service, workloads: workloads.into_iter().collect(), slices: NONE.to_vec(), version: 0 }
    }

    fn plan(&self) -> Plan {
        plan(&Input {
            service: &self.service,
            workloads: &self.workloads,
            slices: &self.slices,
            taken: &HashSet::new(),
        })
    }

    /// Carries a plan out as an API server would, defaults filled in.
    fn apply(&mut self, plan: Plan) -> Writes {
        let count = writes(plan.creates.len(), plan.updates.len(), plan.retires.len());
        for retired in plan.retires {
            self.slices.retain(|slice| slice.name() != retired.name());
        }
        for Update { base, slice } in plan.updates {
            assert_eq!(base.metadata.resource_version, slice.metadata.resource_version);
            self.slices.retain(|known| known.name() != slice.name());
            self.store(&slice);
        }
        for slice in plan.creates {
            assert!(self.slices.iter().all(|known| known.name() != slice.name()), "a name is used once");
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

    /// Plans and applies; planning once more must come to nothing.
    fn settle(&mut self) -> Writes {
        let count = self.apply(self.plan());
        let again = self.plan();
        assert!(again.is_empty(), "a second plan writes: {again:?}");
        count
    }

    /// What people are told when the plan has been carried out.
    fn transitions(&mut self) -> Vec<(String, report::Change)> {
        let before = self.slices.clone();
        self.apply(self.plan());
        let transitions = report::transitions(&self.service, &before, &self.slices);
        transitions.into_iter().map(|t| (t.workload.to_string(), t.change)).collect()
    }

    /// A slice that holds just these workloads, as a controller left it.
    fn hold(&mut self, name: &str, workloads: &[Arc<Workload>]) {
        let (mut families, _) = endpoint::desired(&self.service, workloads);
        let desired = families.remove(&Family::IPv4).unwrap_or_default();
        let ports = desired.values().next().map_or_else(
            || serde_json::from_value(json!([{"name": "one", "port": 80}])).unwrap(),
            |desired| desired.ports.clone(),
        );
        let endpoints = desired.into_values().map(|desired| desired.endpoint).collect();
        let draft = Draft { base: None, ports, endpoints, dirty: true };
        self.store(&draft.create(&self.service, Family::IPv4, name.to_owned()));
    }

    fn edit_slice(&mut self, name: &str, edit: impl FnOnce(&mut EndpointSlice)) {
        let slice = self.slices.iter_mut().find(|slice| slice.name() == name).unwrap();
        let mut edited = EndpointSlice::clone(slice);
        edit(&mut edited);
        *slice = Arc::new(edited);
    }

    /// How many endpoints each slice has, by name of the slice.
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

    /// In which slice each workload is, family by family.
    fn places(&self) -> BTreeMap<(String, String), String> {
        let mut places = BTreeMap::new();
        for slice in &self.slices {
            for endpoint in &slice.endpoints {
                let workload = endpoint::workload(&self.service, endpoint).unwrap().to_owned();
                let twice = places.insert((slice.address_type.clone(), workload), slice.name().to_owned());
                assert_eq!(twice, None, "a workload is in one slice");
            }
        }
        places
    }
}

fn many(range: std::ops::Range<usize>) -> Vec<Arc<Workload>> {
    range.map(numbered).collect()
}

#[test]
fn the_reference_object_of_the_specification() {
    let mut service = legacy();
    service.labels = [("team".to_owned(), "x".to_owned())].into();
    let labels = json!({"app": "legacy", "topology.kubernetes.io/zone": "a"});
    let vm1 = workload::tests::workload(
        "vm1",
        true,
        &labels,
        &json!({
        "workloadIPs": [{"ip": "192.0.2.4"}, {"ip": "2001:db8::4"}], "ports": [{"name": "http", "port": 80, "protocol": "TCP"}]}),
    );
    let world = World::new(service, [Arc::new(vm1)]);
    let plan = world.plan();
    assert_eq!(plan.creates.len(), 1);
    let slice = serde_json::to_value(&plan.creates[0]).unwrap();
    assert_eq!(slice["addressType"], "IPv4");
    assert_eq!(
        slice["metadata"]["labels"],
        json!({"team": "x", "kubernetes.io/service-name": "legacy",
        "endpointslice.kubernetes.io/managed-by": "linkerd-external-workloads-controller"})
    );
    assert_eq!(
        slice["metadata"]["ownerReferences"],
        json!([{"apiVersion": "v1", "kind": "Service", "name": "legacy",
        "uid": "service-uid", "controller": true, "blockOwnerDeletion": true}])
    );
    assert_eq!(slice["metadata"]["annotations"], Value::Null);
    assert_eq!(
        slice["endpoints"],
        json!([{"addresses": ["192.0.2.4"],
        "conditions": {"ready": true, "serving": true, "terminating": false}, "zone": "a",
        "targetRef": {"kind": "ExternalWorkload", "namespace": "ns", "name": "vm1", "uid": "uid-vm1"}}])
    );
    assert_eq!(slice["ports"], json!([{"name": "one", "port": 80, "protocol": "TCP"}]));
    assert!(slice["metadata"]["name"].as_str().unwrap().starts_with("linkerd-external-legacy-"));
}

#[test]
fn nothing_is_written_when_nothing_changed_d1() {
    assert_eq!(World::new(legacy(), many(0..3)).settle(), writes(1, 0, 0));
}

#[test]
fn an_unnamed_port_settles_d1b() {
    let mut service = legacy();
    service.ports = service::tests::service(&json!({"ports": [{"port": 80}]})).ports;
    assert_eq!(World::new(service, many(0..3)).settle(), writes(1, 0, 0));
}

#[test]
fn clean_slices_take_what_is_left_after_full_ones_d2() {
    let mut world = World::new(legacy(), many(0..250));
    world.hold("a", &many(0..62));
    world.hold("b", &many(62..123));
    assert_eq!(world.settle(), writes(1, 1, 0));
    assert_eq!(world.sorted_lengths(), [100, 89, 61]);
}

#[test]
fn a_rest_that_fits_no_clean_slice_gets_one_of_its_own_d3() {
    let mut world = World::new(legacy(), many(0..300));
    world.hold("a", &many(0..74));
    world.hold("b", &many(74..148));
    assert_eq!(world.settle(), writes(2, 0, 0));
    assert_eq!(world.sorted_lengths(), [100, 74, 74, 52]);
}

#[test]
fn slices_written_anyway_are_filled_first_d4() {
    let mut world = World::new(legacy(), many(0..115));
    world.hold("a", &many(0..80));
    world.hold("b", &many(80..100));
    for number in [0, 80] {
        world.workloads[number] = edit(&world.workloads[number], |workload| workload.ready = false);
    }
    assert_eq!(world.settle(), writes(0, 2, 0));
    assert_eq!(world.lengths(), [95, 20]);
}

#[test]
fn a_full_slice_more_is_created_and_an_empty_one_that_is_found_deleted_d5() {
    let mut world = World::new(legacy(), many(0..199));
    world.hold("a", &many(0..99));
    world.hold("b", &[]);
    assert_eq!(world.settle(), writes(1, 0, 1));
    assert_eq!(world.sorted_lengths(), [100, 99]);
}

#[test]
fn an_empty_slice_that_is_found_is_deleted_even_if_it_would_have_to_be_written() {
    let mut world = World::new(legacy(), many(0..10));
    world.hold("a", &[]);
    world.edit_slice("a", |slice| slice.metadata.labels.as_mut().unwrap().clear());
    assert_eq!(world.settle(), writes(1, 0, 1));
}

#[test]
fn the_fullest_clean_slice_that_has_room_is_filled_d6() {
    let mut world = World::new(legacy(), many(0..100));
    world.hold("a", &many(0..1));
    world.hold("b", &[]);
    assert_eq!(world.settle(), writes(0, 1, 1));
    assert_eq!(world.lengths(), [100]);
}

#[test]
fn what_comes_goes_where_others_left_d7() {
    let mut world = World::new(legacy(), many(10..155));
    world.hold("a", &many(0..100));
    world.hold("b", &many(100..150));
    assert_eq!(world.settle(), writes(0, 1, 0));
    assert_eq!(world.lengths(), [95, 50]);
}

#[test]
fn a_slice_of_a_deleted_service_of_the_same_name_is_replaced_not_recycled_d8() {
    let mut world = World::new(legacy(), many(0..2));
    world.hold("a", &many(0..2));
    world.service.uid = "another-uid".into();
    assert_eq!(world.settle(), writes(1, 0, 1));
    assert!(world.only().is_owned_by("another-uid"));
}

#[test]
fn a_service_that_is_being_deleted_gets_updates_and_deletes_but_no_new_slices_d9() {
    let mut world = World::new(legacy(), many(0..201));
    world.hold("a", &many(0..100));
    world.hold("b", &many(300..301));
    world.service.deleting = true;
    let plan = world.plan();
    assert_eq!((plan.creates.len(), plan.updates.len(), plan.retires.len()), (0, 1, 0));
    // What has no place is not said to be published.
    assert_eq!(world.transitions().len(), 100 + 1);
    let mut gone = World::new(world.service.clone(), []);
    gone.hold("a", &many(0..3));
    assert_eq!(gone.settle(), writes(0, 0, 1));
}

#[test]
fn a_headless_service_without_ports_settles_d10() {
    let service =
        service::tests::service(&json!({"selector": {"app": "legacy"}, "clusterIP": "None", "ipFamilies": ["IPv4"]}));
    let mut world = World::new(service, many(0..1));
    assert_eq!(world.settle(), writes(1, 0, 0));
    let slice = world.only();
    assert_eq!(slice.ports, []);
    assert_eq!(slice.label("service.kubernetes.io/headless"), Some(""));
    assert_eq!(slice.endpoints[0].hostname.as_deref(), Some("vm-0000"));
}

#[test]
fn the_last_workload_takes_its_slice_along_and_no_placeholder_stays_d11() {
    let mut world = World::new(legacy(), many(0..150));
    world.settle();
    world.workloads.clear();
    assert_eq!(world.settle(), writes(0, 0, 2));
    assert!(world.slices.is_empty());
}

fn dual() -> Service {
    let mut service = legacy();
    service.families = vec![Family::IPv4, Family::IPv6];
    service
}

fn two_families(name: &str, ips: &[&str]) -> Arc<Workload> {
    let ips: Vec<Value> = ips.iter().map(|ip| json!({"ip": ip})).collect();
    workload(name, &json!({"workloadIPs": ips, "ports": [{"name": "http", "port": 80}]}))
}

#[test]
fn a_workload_that_loses_a_family_leaves_that_familys_slice_only_d12() {
    let mut world = World::new(
        dual(),
        [two_families("vm1", &["192.0.2.1", "2001:db8::1"]), two_families("vm2", &["192.0.2.2", "2001:db8::2"])],
    );
    assert_eq!(world.settle(), writes(2, 0, 0));
    world.workloads[1] = two_families("vm2", &["192.0.2.2"]);
    let plan = world.plan();
    assert_eq!((plan.creates.len(), plan.updates.len(), plan.retires.len()), (0, 1, 0));
    assert_eq!(world.transitions(), [], "it is still published");
    assert_eq!(world.sorted_lengths(), [2, 1]);
}

#[test]
fn a_workload_of_two_families_is_ready_to_people_when_both_slices_say_so() {
    let mut world = World::new(dual(), [two_families("vm1", &["192.0.2.1", "2001:db8::1"])]);
    assert_eq!(world.transitions(), [("vm1".to_owned(), report::Change::Published { ready: true })]);
    let both = world.slices.clone();
    for at in [0, 1] {
        let mut half = both.clone();
        let mut flipped = EndpointSlice::clone(&half[at]);
        flipped.endpoints[0].conditions.ready = Some(false);
        half[at] = Arc::new(flipped);
        let one = &both[at..=at];
        let change = |before: &[_], after: &[_]| {
            report::transitions(&world.service, before, after).into_iter().map(|t| t.change).next()
        };
        // One family was written, the other refused: told now, and not again when the other follows.
        assert_eq!(change(&both, &half), Some(report::Change::BecameUnready));
        assert_eq!(change(&half, &both), Some(report::Change::BecameReady));
        assert_eq!(change(&both, one), None, "it is still published");
        assert_eq!(change(one, &both), None);
    }
}

#[test]
fn a_changed_address_is_one_update_in_place_d13() {
    let mut world = World::new(legacy(), [two_families("vm1", &["192.0.2.1"])]);
    world.settle();
    let name = world.only().name().to_owned();
    world.workloads = vec![two_families("vm1", &["192.0.2.9"])];
    assert_eq!(world.settle(), writes(0, 1, 0));
    assert_eq!(world.only().name(), name);
}

#[test]
fn an_endpoint_in_two_slices_is_kept_once_d14() {
    let mut world = World::new(legacy(), many(0..3));
    world.hold("a", &many(0..2));
    world.hold("b", &many(1..3));
    assert_eq!(world.settle(), writes(0, 1, 0));
    assert_eq!(world.lengths(), [2, 1]);
}

#[test]
fn a_workload_without_the_port_is_in_a_slice_without_ports_and_reported_d15() {
    let mut world =
        World::new(legacy(), [numbered(0), workload("vm-no-port", &json!({"workloadIPs": [{"ip": "192.0.2.200"}]}))]);
    let plan = world.plan();
    assert_eq!(plan.findings.len(), 1);
    let notice = plan.findings[0].notice(&world.service);
    assert_eq!(notice.reason.as_str(), "UnmatchedPort");
    assert!(notice.note.contains("has no \"http\"/TCP"), "{}", notice.note);
    assert_eq!(world.apply(plan), writes(2, 0, 0));
    assert!(world.slices.iter().any(|slice| slice.ports.is_empty() && slice.endpoints.len() == 1));
}

#[test]
fn edited_endpoints_are_restored_d17() {
    let mut world = World::new(legacy(), many(0..2));
    world.settle();
    for (expected, spoil) in [
        // One that is found empty is deleted and made anew; everything else is mended where it stands.
        (writes(1, 0, 1), (|slice| slice.endpoints.clear()) as fn(&mut EndpointSlice)),
        (writes(0, 1, 0), |slice| _ = slice.endpoints.pop()),
        (writes(0, 1, 0), |slice| slice.endpoints[0].addresses = vec!["203.0.113.1".to_owned()]),
        (writes(0, 1, 0), |slice| slice.endpoints[0].conditions.ready = Some(false)),
        (writes(0, 1, 0), |slice| slice.endpoints[0].zone = Some("elsewhere".to_owned())),
        (writes(0, 1, 0), |slice| slice.endpoints[0].node_name = Some("node".to_owned())),
        (writes(0, 1, 0), |slice| slice.endpoints[0].hints = Some(json!({"forZones": [{"name": "b"}]}))),
        (writes(0, 1, 0), |slice| slice.endpoints[0].target_ref = None),
        (writes(0, 1, 0), |slice| slice.ports.clear()),
        (writes(0, 1, 0), |slice| {
            _ = slice.metadata.labels.as_mut().unwrap().insert("theirs".to_owned(), String::new());
        }),
    ] {
        let name = world.only().name().to_owned();
        world.edit_slice(&name, spoil);
        assert_eq!(world.settle(), expected);
        assert_eq!(world.only().endpoints.len(), 2);
    }
}

#[test]
fn a_deleted_slice_is_made_anew_under_its_name_d18() {
    let mut world = World::new(legacy(), many(0..2));
    world.settle();
    let name = world.only().name().to_owned();
    world.slices.clear();
    assert_eq!(world.settle(), writes(1, 0, 0));
    assert_eq!(world.only().name(), name);
}

#[test]
fn a_changed_zone_is_one_update_d19() {
    let mut world = World::new(legacy(), many(0..2));
    world.settle();
    world.workloads[0] = edit(&world.workloads[0], |workload| {
        workload.labels = [("app", "legacy"), ("topology.kubernetes.io/zone", "")].into_iter().collect();
    });
    assert_eq!(world.settle(), writes(0, 1, 0));
    assert_eq!(world.only().endpoints[0].zone.as_deref(), Some(""), "a zone that is there and empty is passed on");
}

#[test]
fn labels_follow_the_service_both_ways_d20() {
    let mut world = World::new(legacy(), many(0..250));
    world.settle();
    world.service.labels = [("foo".to_owned(), "bar".to_owned())].into();
    assert_eq!(world.settle(), writes(0, 3, 0));
    world.service.labels.clear();
    assert_eq!(world.settle(), writes(0, 3, 0));
    assert!(world.slices.iter().all(|slice| slice.label("foo").is_none()));
}

#[test]
fn reserved_labels_of_the_service_are_not_copied() {
    let mut world = World::new(legacy(), many(0..1));
    world.settle();
    for key in [SERVICE_NAME_LABEL, MANAGED_BY_LABEL, HEADLESS_LABEL] {
        world.service.labels.insert(key.to_owned(), "theirs".to_owned());
    }
    assert_eq!(world.settle(), writes(0, 0, 0));
}

#[test]
fn names_that_others_hold_are_left_to_them_d21() {
    let mut world = World::new(legacy(), many(0..1));
    world.settle();
    // Its managed-by was edited: it is no slice of ours any more, but its name exists.
    let taken: HashSet<String> = [world.only().name().to_owned()].into();
    world.slices.clear();
    let input = Input { service: &world.service, workloads: &world.workloads, slices: NONE, taken: &taken };
    let plan = plan(&input);
    assert_eq!(plan.creates.len(), 1);
    assert!(!taken.contains(plan.creates[0].name()));
}

#[test]
fn a_terminating_slice_counts_for_nothing_but_keeps_its_name() {
    let mut world = World::new(legacy(), many(0..1));
    world.settle();
    let name = world.only().name().to_owned();
    world.edit_slice(&name, |slice| {
        slice.metadata = serde_json::from_value(
            json!({"name": slice.name(), "namespace": "ns", "deletionTimestamp": "2026-01-01T00:00:00Z", "labels": slice.metadata.labels}),
        )
        .unwrap();
    });
    let plan = world.plan();
    assert_eq!((plan.creates.len(), plan.updates.len(), plan.retires.len()), (1, 0, 0));
    assert_ne!(plan.creates[0].name(), name);
}

#[test]
fn a_bad_address_is_left_out_alone_and_reported_d22() {
    for bad in ["127.0.0.1", "bogus", "", "::1", "fe80::1"] {
        let world = World::new(dual(), [numbered(0), two_families("vm-bad", &[bad]), numbered(1)]);
        let plan = world.plan();
        assert_eq!(plan.creates.len(), 1);
        assert_eq!(plan.creates[0].endpoints.len(), 2);
        let reasons: Vec<_> = plan.findings.iter().map(|f| f.notice(&world.service).reason.as_str()).collect();
        assert_eq!(reasons, ["InvalidWorkloadIP"], "{bad}");
    }
}

#[test]
fn a_good_address_beside_a_bad_one_is_published() {
    let mut world = World::new(dual(), [two_families("vm1", &["bogus", "2001:db8::1"])]);
    world.settle();
    assert_eq!(world.only().address_type, "IPv6");
}

#[test]
fn a_name_that_is_no_host_name_is_published_without_one_d23() {
    let mut service = legacy();
    service.headless = true;
    for name in ["vm.example".to_owned(), "a".repeat(64)] {
        let mut world = World::new(service.clone(), [numbered(0), two_families(&name, &["192.0.2.200"])]);
        assert_eq!(world.plan().findings.len(), 1);
        world.settle();
        let hostnames: Vec<_> = world.only().endpoints.iter().map(|endpoint| endpoint.hostname.as_deref()).collect();
        assert_eq!(hostnames.iter().filter(|name| name.is_none()).count(), 1);
        assert!(hostnames.contains(&Some("vm-0000")));
    }
}

#[test]
fn two_addresses_of_one_family_are_one_endpoint_canonical_and_sorted_d32() {
    let mut world = World::new(dual(), [two_families("vm1", &["fd08::5678:0000:0000:9abc:def0", "2001:db8::1"])]);
    world.settle();
    assert_eq!(world.only().endpoints[0].addresses, ["2001:db8::1", "fd08::5678:0:0:9abc:def0"]);
}

#[test]
fn two_workloads_with_one_address_are_two_endpoints() {
    let mut world = World::new(legacy(), [two_families("vm1", &["192.0.2.1"]), two_families("vm2", &["192.0.2.1"])]);
    world.settle();
    assert_eq!(world.only().endpoints.len(), 2);
}

#[test]
fn a_workload_without_addresses_is_no_endpoint_and_no_fault() {
    let world = World::new(legacy(), [workload("vm1", &json!({}))]);
    let plan = world.plan();
    assert!(plan.is_empty() && plan.findings.is_empty());
}

#[test]
fn a_service_that_stops_selecting_loses_our_slices_d35() {
    for change in [(|service| service.external_name = true) as fn(&mut Service), |service| service.selector = None] {
        let mut world = World::new(legacy(), many(0..2));
        world.settle();
        change(&mut world.service);
        world.workloads.clear();
        assert_eq!(world.plan().retires.len(), 1);
        assert_eq!(world.transitions().len(), 2);
        assert!(world.plan().is_empty() && world.slices.is_empty());
    }
}

#[test]
fn kube_system_is_left_alone_d31() {
    let mut world = World::new(legacy(), many(0..2));
    world.hold("a", &many(0..1));
    world.service.key.namespace = "kube-system".into();
    assert!(world.plan().is_empty());
}

#[test]
fn a_readiness_flip_is_one_update_and_the_endpoint_stays_d36() {
    let mut world = World::new(legacy(), many(0..2));
    world.settle();
    world.workloads[1] = edit(&world.workloads[1], |workload| workload.ready = false);
    assert_eq!(world.plan().updates.len(), 1);
    assert_eq!(world.transitions(), [("vm-0001".to_owned(), report::Change::BecameUnready)]);
    let conditions = world.only().endpoints[1].conditions;
    assert_eq!((conditions.ready, conditions.serving, conditions.terminating), (Some(false), Some(false), Some(false)));
}

#[test]
fn a_recreated_workload_keeps_its_place_d37() {
    let mut world = World::new(legacy(), many(0..2));
    world.settle();
    world.workloads[0] = edit(&world.workloads[0], |workload| workload.uid = "new-uid".into());
    assert_eq!(world.settle(), writes(0, 1, 0));
    assert_eq!(world.only().endpoints[0].target_ref.as_ref().unwrap().uid.as_deref(), Some("new-uid"));
}

#[test]
fn every_endpoint_stays_in_its_slice_when_the_port_changes_d39() {
    let mut world = World::new(legacy(), many(0..250));
    world.settle();
    let before = world.places();
    world.service.ports[0].name = "two".to_owned();
    assert_eq!(world.settle(), writes(0, 3, 0));
    assert_eq!(world.places(), before);
}

#[test]
fn one_workload_that_changes_its_port_moves_alone() {
    let mut world = World::new(legacy(), many(0..10));
    world.settle();
    let before = world.places();
    world.workloads[3] = edit(&world.workloads[3], |workload| workload.ports[0].number = 8080);
    assert_eq!(world.settle(), writes(1, 1, 0));
    let moved = world.places().into_iter().filter(|(workload, slice)| before[workload] != *slice).count();
    assert_eq!(moved, 1);
}

#[test]
fn named_ports_with_five_numbers_make_five_slices() {
    let workloads = (0..300).map(|i| edit(&numbered(i), |w| w.ports[0].number = 8080 + i32::try_from(i % 5).unwrap()));
    let mut world = World::new(legacy(), workloads);
    assert_eq!(world.settle(), writes(5, 0, 0));
    assert_eq!(world.lengths(), [60; 5]);
}

#[test]
fn a_slice_whose_workloads_all_left_is_used_again() {
    let mut world = World::new(legacy(), many(0..10));
    world.settle();
    let name = world.only().name().to_owned();
    world.workloads = (20..25).map(|i| edit(&numbered(i), |w| w.ports[0].number = 8080)).collect();
    assert_eq!(world.settle(), writes(0, 1, 0));
    assert_eq!(world.only().name(), name);
}

#[test]
fn a_family_that_is_dropped_loses_its_slices_and_one_that_is_added_gets_its_own() {
    let mut world = World::new(dual(), [two_families("vm1", &["192.0.2.1", "2001:db8::1"])]);
    assert_eq!(world.settle(), writes(2, 0, 0));
    world.service.families = vec![Family::IPv4];
    assert_eq!(world.settle(), writes(0, 0, 1));
    world.service.families = vec![Family::IPv4, Family::IPv6];
    assert_eq!(world.settle(), writes(1, 0, 0));
}

#[test]
fn slices_of_types_that_we_do_not_make_are_removed() {
    let mut world = World::new(legacy(), many(0..1));
    world.hold("a", &many(0..1));
    world.edit_slice("a", |slice| slice.address_type = "FQDN".to_owned());
    assert_eq!(world.settle(), writes(1, 0, 1));
}

#[test]
fn a_slice_that_others_overfilled_is_left_as_it_is() {
    let mut world = World::new(legacy(), many(0..150));
    world.hold("a", &many(0..150));
    assert_eq!(world.settle(), writes(0, 0, 0));
}

#[test]
fn annotations_and_finalizers_survive_an_update() {
    let mut world = World::new(legacy(), many(0..1));
    world.settle();
    let name = world.only().name().to_owned();
    world.edit_slice(&name, |slice| {
        slice.metadata.annotations = Some([("note".to_owned(), "keep".to_owned())].into());
        slice.metadata.finalizers = Some(vec!["example.com/keep".to_owned()]);
    });
    world.workloads.extend(many(1..2));
    assert_eq!(world.settle(), writes(0, 1, 0));
    assert!(world.only().metadata.annotations.is_some() && world.only().metadata.finalizers.is_some());
}

#[test]
fn names_are_short_and_the_same_every_time() {
    let mut service = legacy();
    service.key.name = "a-".repeat(31).into();
    let name = slice_name(&service, Family::IPv4, 0);
    assert!(name.len() <= 63 && !name.contains("--"), "{name}");
    assert_eq!(name, slice_name(&service, Family::IPv4, 0));
    assert_ne!(name, slice_name(&service, Family::IPv4, 1));
    assert_ne!(name, slice_name(&service, Family::IPv6, 0));
    service.uid = "another".into();
    assert_ne!(name, slice_name(&service, Family::IPv4, 0));
    // Written into clusters: it may never change.
    assert_eq!(slice_name(&legacy(), Family::IPv4, 0), "linkerd-external-legacy-3b89b8ab61829eac");
}
