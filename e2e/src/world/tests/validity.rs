//! Objects of a valid world are accepted by an API server, as far as profiles depend on them.

use super::*;
use crate::oracle::{ProfileAnswer, answer_profile};

#[test]
fn the_pods_of_a_valid_world_have_a_status_as_kubelets_report_it() {
    let mut odd = 0;
    for (seed, valid) in [(5, true), (6, true), (5, false)] {
        let mut world = if valid { World::valid(seed) } else { World::new(seed) }.unwrap();
        for _ in 0..1500 {
            world.mutate().unwrap();
            for (key, pod) in world.json().iter().filter(|(key, _)| key.kind == ObjectKind::Pod) {
                let fault = fault(pod);
                assert!(fault.is_none() || !valid, "{key:?}: {fault:?}: {pod}");
                odd += usize::from(fault.is_some());
            }
        }
    }
    assert!(odd > 0, "a world that need not be valid has no invalid Pod");
}

fn fault(pod: &Value) -> Option<String> {
    let status = &pod["status"];
    if !status["phase"].is_string() {
        return Some("no phase".to_owned());
    }
    for field in ["podIP", "hostIP"] {
        let listed = status[format!("{field}s")].as_array().cloned().unwrap_or_default();
        let families: Vec<bool> =
            listed.iter().map(|one| one["ip"].as_str().unwrap().parse::<IpAddr>().unwrap().is_ipv4()).collect();
        if listed.first().map(|first| &first["ip"]) != status.get(field) {
            return Some(format!("{field} is not the first item of its list"));
        }
        if families.len() > 2 || families == [true, true] || families == [false, false] {
            return Some(format!("{field} has two addresses of one family"));
        }
    }
    let on_host = pod["spec"]["hostNetwork"] == json!(true);
    let ports = ["initContainers", "containers"].into_iter().flat_map(|field| pod["spec"][field].as_array().unwrap());
    let mut ports = ports.flat_map(|container| container["ports"].as_array().cloned().unwrap_or_default());
    if on_host && ports.any(|port| port["hostPort"] != port["containerPort"]) {
        return Some("a container port without an equal host port".to_owned());
    }
    None
}

#[test]
fn a_valid_world_has_valid_profiles_and_no_cluster_ips() {
    let mut found = 0;
    for seed in 0..3 {
        let mut world = World::valid(seed).unwrap();
        for step in 0..1500 {
            world.mutate().unwrap();
            if step % 10 != 0 {
                continue;
            }
            for service in world.objects().services.values().filter_map(|service| service.spec.as_ref()) {
                assert!(service.cluster_ips.is_none());
                assert!(service.cluster_ip.as_ref().is_none_or(|address| address == "None"));
            }
            assert_eq!(cluster_ip_requests(world.objects()), []);
            for (namespace, name) in world.objects().profiles.keys() {
                let request = Request { path: format!("{name}:80"), token: format!("ns:{namespace}") };
                if let ProfileAnswer::Profile(profile) = answer_profile(world.objects(), &settings(true), &request) {
                    let Some(reference) = profile.profile_ref else { continue };
                    assert!(format!("{reference:?}").contains(&format!("namespace: {namespace:?}")), "{reference:?}");
                    found += 1;
                }
            }
            for (key, profile) in world.json().iter().filter(|(key, _)| key.kind == ObjectKind::ServiceProfile) {
                for route in profile["spec"]["routes"].as_array().into_iter().flatten() {
                    let not = &route["condition"]["not"];
                    assert!(
                        not.is_null() || not.as_array().is_some_and(|not| not.iter().all(Value::is_object)),
                        "{key:?}"
                    );
                    assert!(route["name"].is_string(), "{key:?}");
                }
            }
        }
    }
    assert!(found > 100, "{found}");
}

#[test]
fn requests_use_the_current_cluster_ips() {
    let worlds: Vec<World> = (0..5).map(|seed| World::new(seed).unwrap()).collect();
    let requests = worlds.iter().flat_map(|world| cluster_ip_requests(world.objects()));
    let paths: BTreeSet<String> = requests.map(|request| request.path).collect();
    assert!(paths.contains("10.96.0.1:80") || paths.contains("10.96.0.2:80"), "{paths:?}");
    assert!(paths.iter().any(|path| path.starts_with("[fd00:10:96::")), "{paths:?}");
}
