//! Endpoints requested by hostname.

use super::*;

const PATH: &str = "pod-0.db.ns.svc.mycluster.local:8989";

fn slice(name: &str, endpoints: &[Value]) -> Value {
    json!({"kind": "EndpointSlice", "addressType": "IPv4", "endpoints": endpoints,
        "metadata": {"name": name, "namespace": "ns", "labels": {"kubernetes.io/service-name": "db"}}})
}

fn endpoint(host_name: &str, address: &str, target: &Value) -> Value {
    json!({"hostname": host_name, "addresses": [address], "targetRef": target})
}

fn of_pod(name: &str) -> Value {
    json!({"kind": "Pod", "namespace": "ns", "name": name})
}

/// The name of the endpoint's target and its address, as `pod-0 10.0.0.1:8989`; or the refusal.
fn summary(cluster: &Cluster) -> String {
    match cluster.get(PATH) {
        ProfileAnswer::Refused(code, text) => format!("{code:?} {text}"),
        ProfileAnswer::Profile(profile) => {
            assert_eq!((profile.fully_qualified_name.as_str(), profile.parent_ref), ("", None));
            let endpoint = profile.endpoint.unwrap();
            let labels = &endpoint.metric_labels;
            let name = labels.get("pod").or(labels.get("external_workload")).map_or("unknown", String::as_str);
            let address = endpoint.addr.unwrap();
            let ip: std::net::IpAddr = address.ip.unwrap().try_into().unwrap();
            format!("{name} {ip}:{}", address.port)
        }
    }
}

const NOT_FOUND: &str = "NotFound no pod found in EndpointSlices of Service ns/db for hostname pod-0";

#[test]
fn the_pod_with_a_hostname_is_sent_with_its_own_address() {
    let mut cluster = Cluster::new(&[
        slice(
            "db-1",
            &[
                json!({"addresses": ["172.17.13.14"]}),
                json!({"hostname": "pod-0", "addresses": ["10.0.0.7"], "conditions": {"ready": false}, "targetRef": of_pod("pod-0")}),
            ],
        ),
        pod("pod-0", "172.17.13.15", json!({"status": {"podIPs": [{"ip": "10.0.0.1"}, {"ip": "172.17.13.15"}]}})),
    ]);
    // The Service object and its ports are not required.
    assert_eq!(summary(&cluster), "pod-0 10.0.0.1:8989");
    assert_eq!(cluster.get_while_open(PATH), cluster.get(PATH));
    cluster.edit("Pod/ns/pod-0", json!({"status": {"podIPs": null}}));
    assert_eq!(summary(&cluster), "pod-0 172.17.13.15:8989");
    cluster.edit("Pod/ns/pod-0", json!({"status": {"podIP": null}}));
    assert_eq!(summary(&cluster), "pod-0 10.0.0.7:8989");
    cluster.edit("Pod/ns/pod-0", json!({"metadata": {"deletionTimestamp": "2026-01-02T00:00:00Z"}}));
    assert_eq!(summary(&cluster), "pod-0 10.0.0.7:8989");
    cluster.edit("Pod/ns/pod-0", json!({"status": {"phase": "Pending"}}));
    assert_eq!(summary(&cluster), "unknown 10.0.0.7:8989");
    cluster.remove("Pod/ns/pod-0");
    assert_eq!(summary(&cluster), "Unknown pod \"pod-0\" not found");
    cluster.remove("EndpointSlice/ns/db-1");
    assert_eq!(summary(&cluster), NOT_FOUND);
}

#[test]
fn the_first_endpoint_with_the_hostname_and_a_target_in_the_namespace_counts() {
    let mut cluster = Cluster::new(&[
        slice("db-2", &[endpoint("pod-0", "10.0.0.2", &of_pod("b"))]),
        slice(
            "db-1",
            &[
                endpoint("pod-00", "10.0.0.9", &of_pod("missing")),
                endpoint("pod-0", "10.0.0.9", &json!({"kind": "Pod", "namespace": "other", "name": "a"})),
                endpoint("pod-0", "10.0.0.1", &json!({"kind": "Pod", "name": "a"})),
            ],
        ),
        pod("a", "10.0.0.1", json!({})),
        pod("b", "10.0.0.2", json!({})),
    ]);
    assert_eq!(summary(&cluster), "a 10.0.0.1:8989");
    cluster.edit("EndpointSlice/ns/db-1", json!({"metadata": {"labels": {"kubernetes.io/service-name": "web"}}}));
    assert_eq!(summary(&cluster), "b 10.0.0.2:8989");
    cluster.put(slice(
        "db-1",
        &[endpoint("pod-0", "10.0.0.9", &json!({"kind": "Pod", "namespace": "other", "name": "a"}))],
    ));
    cluster.remove("EndpointSlice/ns/db-2");
    assert_eq!(summary(&cluster), NOT_FOUND);
}

#[test]
fn an_endpoint_without_a_pod_is_looked_up_by_its_address() {
    let mut cluster = Cluster::new(&[
        slice("db-1", &[json!({"hostname": "pod-0", "addresses": ["odd", "10.0.0.1", "10.0.0.2"]})]),
        pod("a", "10.0.0.1", json!({})),
    ]);
    assert_eq!(summary(&cluster), "a 10.0.0.1:8989");
    for target in
        [json!({"kind": "ExternalWorkload", "name": "vm"}), json!({"kind": "Node", "name": "a"}), json!({"name": "a"})]
    {
        cluster.put(slice("db-1", &[endpoint("pod-0", "10.0.0.3", &target)]));
        assert_eq!(summary(&cluster), "unknown 10.0.0.3:8989");
    }
    cluster.put(slice("db-1", &[endpoint("pod-0", "10.0.0.1", &Value::Null)]));
    cluster.put(pod("b", "10.0.0.1", json!({})));
    assert_eq!(summary(&cluster), "FailedPrecondition found 2 pods with a conflicting pod network IP 10.0.0.1");
    cluster.put(slice("db-1", &[json!({"hostname": "pod-0", "addresses": ["host.example"]})]));
    assert_eq!(summary(&cluster), NOT_FOUND);
}

#[test]
fn another_pod_with_the_name_of_the_endpoints_pod_is_not_sent() {
    let target = json!({"kind": "Pod", "namespace": "ns", "name": "pod-0", "uid": "1"});
    let own = |uid: &str| json!({"metadata": { "uid": uid }});
    let mut cluster =
        Cluster::new(&[slice("db-1", &[endpoint("pod-0", "10.0.0.7", &target)]), pod("pod-0", "10.0.0.1", own("1"))]);
    assert_eq!(summary(&cluster), "pod-0 10.0.0.1:8989");
    cluster.edit("Pod/ns/pod-0", own("2"));
    assert_eq!(summary(&cluster), "Unknown pod \"pod-0\" not found");
}
