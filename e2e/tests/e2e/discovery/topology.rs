//! The endpoints that each client receives: hostnames, internalTrafficPolicy, zone hints, and zone labels.

use anyhow::{Context, Result};
use e2e::discovery::{Message, token};
use serde_json::{Value, json};

use super::{
    QUIET, Rig, Settings, add, brings,
    objects::{address, but, hinted, meshed, node, of_pod, of_workload, pod, service, slice, workload},
    received, remove,
};

const A: &str = "192.0.2.1:8080";
const B: &str = "192.0.2.2:8080";
const C: &str = "192.0.2.3:8080";

/// Creates a node for this test. Its name includes the namespace, because nodes are cluster-scoped.
async fn client_in(rig: &Rig, zone: Option<&str>) -> Result<String> {
    let name = format!("{}-{}", rig.name(), zone.unwrap_or("nowhere"));
    rig.put(node(&name, zone)).await?;
    Ok(name)
}

fn named(endpoint: Value, hostname: &str) -> Value {
    but(endpoint, json!({ "hostname": hostname }))
}

fn local(service: super::objects::Object) -> super::objects::Object {
    service.with(json!({"spec": {"internalTrafficPolicy": "Local"}}))
}

#[tokio::test]
async fn an_instance_has_the_endpoints_with_exactly_its_hostname() -> Result<()> {
    let rig = Rig::start("instance").await?;
    let endpoints = [
        named(of_pod("192.0.2.1", "db-0"), "db-0"),
        named(of_pod("192.0.2.2", "db-1"), "db-1"),
        address("192.0.2.3"),
        of_workload("192.0.2.4", "db-3"),
        // A hostname may differ from the name of the Pod, and two endpoints may share one.
        named(of_pod("192.0.2.5", "db-4"), "not-db-4"),
        named(of_workload("192.0.2.6", "vm"), "db-1"),
        named(address("192.0.2.7"), "10-0-0-7"),
    ];
    rig.put_all([service("db").with(json!({"spec": {"clusterIP": "None"}})), workload("db-3"), workload("vm")]).await?;
    rig.put_all([meshed("db-0"), meshed("db-1"), pod("db-4"), slice("db", "db", &endpoints)]).await?;
    rig.shows("db:80", &[A, B, C, "192.0.2.4:8080", "192.0.2.5:8080", "192.0.2.6:8080", "192.0.2.7:8080"]).await?;
    for (path, shown) in [
        ("db-0.db:80", &[A] as &[&str]),
        ("db-0.db:5959", &["192.0.2.1:5959"]),
        ("db-1.db:80", &[B, "192.0.2.6:8080"]),
        ("10-0-0-7.db:80", &["192.0.2.7:8080"]),
        ("not-db-4.db:80", &["192.0.2.5:8080"]),
    ] {
        rig.begins_with(path, "", shown).await.with_context(|| path.to_owned())?;
    }
    for path in ["db-2.db:80", "db-3.db:80", "db-4.db:80", "DB-0.db:80", "db.db:80", "*.db:80"] {
        let first = rig.get(path).await?.next().await?;
        assert_eq!(first, Some(Message::NoEndpoints { exists: true }), "{path}");
    }
    // An instance stream follows its endpoint, and a changed hostname removes and adds it.
    let mut stream = rig.shows("db-0.db:80", &[A]).await?;
    rig.set_endpoints("db", &[named(of_pod("192.0.2.2", "db-1"), "db-1")]).await?;
    brings(&mut stream, &[remove(&[A])?]).await?;
    rig.set_endpoints("db", &[named(of_pod("192.0.2.2", "db-1"), "db-0")]).await?;
    brings(&mut stream, &[add(&[B])?]).await
}

#[tokio::test]
async fn a_hostname_of_one_service_is_not_valid_for_another_with_the_same_pods() -> Result<()> {
    let rig = Rig::start("hostnames").await?;
    rig.put_all([
        service("db"),
        service("db-read"),
        meshed("db-0"),
        slice("db", "db", &[named(of_pod("192.0.2.1", "db-0"), "db-0")]),
        slice("db-read", "db-read", &[of_pod("192.0.2.1", "db-0")]),
    ])
    .await?;
    rig.begins_with("db-0.db:80", "", &[A]).await?;
    rig.begins_with("db-read:80", "", &[A]).await?;
    let first = rig.get("db-0.db-read:80").await?.next().await?;
    assert_eq!(first, Some(Message::NoEndpoints { exists: true }));
    Ok(())
}

#[tokio::test]
async fn hints_apply_when_every_endpoint_has_them_and_one_matches_the_client() -> Result<()> {
    let rig = Rig::start("hints").await?;
    let (west, north) = (client_in(&rig, Some("west-1a")).await?, client_in(&rig, Some("north")).await?);
    let nowhere = client_in(&rig, None).await?;
    let (a, b, c) = (address("192.0.2.1"), of_pod("192.0.2.2", "web-1"), of_workload("192.0.2.3", "vm"));
    rig.put_all([meshed("web-1"), workload("vm")]).await?;
    let (all, only_a): (&[&str], &[&str]) = (&[A, B, C], &[A]);
    let none: [&str; 0] = [];
    // The endpoints, and those that a client in zone west-1a receives.
    let rows = [
        ([hinted(a.clone(), &["west-1a"]), hinted(b.clone(), &["west-1b"]), hinted(c.clone(), &["west-1b"])], only_a),
        (
            [hinted(a.clone(), &["west-1b", "west-1a"]), hinted(b.clone(), &["west-1a"]), hinted(c.clone(), &["x"])],
            &[A, B],
        ),
        ([hinted(a.clone(), &["x"]), hinted(b.clone(), &["west-1a"]), hinted(c.clone(), &["west-1a"])], &[B, C]),
        // If any endpoint has no hints, hints are ignored.
        ([hinted(a.clone(), &["west-1a"]), hinted(b.clone(), &["west-1b"]), c.clone()], all),
        ([hinted(a.clone(), &["west-1a"]), hinted(b.clone(), &none), hinted(c.clone(), &["west-1b"])], all),
        ([hinted(a.clone(), &["west-1b"]), hinted(b.clone(), &["west-1b"]), hinted(c.clone(), &["west-1c"])], all),
        ([a.clone(), b.clone(), c.clone()], all),
        // The zone of an endpoint and hints for nodes do not count as zone hints.
        (
            [
                hinted(but(a.clone(), json!({"zone": "west-1b"})), &["west-1a"]),
                hinted(but(b.clone(), json!({"zone": "west-1a"})), &["west-1b"]),
                hinted(but(c.clone(), json!({"zone": "west-1a"})), &["west-1b"]),
            ],
            only_a,
        ),
        (
            [
                but(a.clone(), json!({"hints": {"forNodes": [{"name": west}]}})),
                hinted(b.clone(), &["west-1a"]),
                hinted(c.clone(), &["west-1a"]),
            ],
            all,
        ),
        // Zone names are case-sensitive and must match completely.
        ([hinted(a, &["West-1a"]), hinted(b, &["WEST-1A"]), hinted(c, &["west-1"])], all),
    ];
    for (row, (endpoints, shown)) in rows.into_iter().enumerate() {
        let name = format!("row-{row}");
        rig.put_all([
            service(&name).annotated("service.kubernetes.io/topology-mode", "Auto"),
            slice(&name, &name, &endpoints),
        ])
        .await?;
        rig.begins_with(&name, "", all).await.with_context(|| name.clone())?;
        rig.begins_with(&name, &token("", &west), shown).await.with_context(|| name.clone())?;
        // Clients in another zone, on a node without a zone, and on an unknown node.
        for node in [&north, &nowhere, "no-such-node"] {
            rig.begins_with(&name, &token("", node), all).await.with_context(|| format!("{name} from {node}"))?;
        }
    }
    Ok(())
}

#[tokio::test]
async fn changed_hints_are_followed_without_intermediate_endpoints() -> Result<()> {
    let rig = Rig::start("change").await?;
    let client = client_in(&rig, Some("here")).await?;
    let (here, there) = (hinted(address("192.0.2.1"), &["here"]), hinted(address("192.0.2.2"), &["there"]));
    rig.put_all([service("web"), slice("web", "web", &[here.clone(), there.clone()])]).await?;
    rig.begins_with("web", &token("", &client), &[A]).await?;
    let mut stream = rig.get_from("web", &client).await?;
    brings(&mut stream, &[add(&[A])?]).await?;
    // A change of an endpoint that the client does not have causes no message.
    rig.set_endpoints("web", std::slice::from_ref(&here)).await?;
    rig.set_endpoints("web", &[here.clone(), there.clone()]).await?;
    // An endpoint without hints in any slice disables the hints; its deletion restores them.
    rig.put(slice("plain", "web", &[address("192.0.2.3")])).await?;
    brings(&mut stream, &[add(&[B, C])?]).await?;
    rig.delete("EndpointSlice", "plain").await?;
    brings(&mut stream, &[remove(&[B, C])?]).await?;
    // The hints of the zone move to another endpoint.
    let (moved, away) = (hinted(address("192.0.2.2"), &["here"]), hinted(address("192.0.2.1"), &["there"]));
    rig.set_endpoints("web", &[moved, away]).await?;
    stream.shows(&[B]).await?;
    assert_eq!(
        stream.messages.last(),
        Some(&remove(&[A])?),
        "the new endpoint must be added before the old one is removed"
    );
    // Without an endpoint for the zone, the client receives those of other zones.
    rig.set_endpoints("web", &[hinted(address("192.0.2.1"), &["there"])]).await?;
    stream.shows(&[A]).await?;
    rig.set_endpoints("web", &[]).await?;
    brings(&mut stream, &[remove(&[A])?]).await?;
    stream.is_quiet_for(QUIET).await
}

#[tokio::test]
async fn the_zone_of_the_clients_node_may_be_set_late_and_change() -> Result<()> {
    let rig = Rig::start("node").await?;
    let client = format!("{}-client", rig.name());
    let endpoints = [
        hinted(but(of_pod("192.0.2.1", "web-1"), json!({"zone": "one"})), &["one"]),
        hinted(but(of_pod("192.0.2.2", "web-2"), json!({"zone": "two"})), &["two"]),
    ];
    rig.put_all([service("web"), meshed("web-1"), meshed("web-2"), slice("web", "web", &endpoints)]).await?;
    let locality =
        |endpoint: &linkerd2_proxy_api::destination::WeightedAddr| endpoint.metric_labels["zone_locality"].clone();
    let mut stream = rig.get_from("web", &client).await?;
    let unknown = [(A, "unknown".to_owned()), (B, "unknown".to_owned())];
    received::wait_for(&mut stream, locality, unknown.clone()).await?;
    rig.put(node(&client, Some("one"))).await?;
    received::wait_for(&mut stream, locality, [(A, "local".to_owned())]).await?;
    let zone = |zone: Option<&str>| json!({"metadata": {"labels": {"topology.kubernetes.io/zone": zone}}});
    rig.patch("Node", &client, zone(Some("two"))).await?;
    received::wait_for(&mut stream, locality, [(B, "local".to_owned())]).await?;
    rig.patch("Node", &client, zone(Some("three"))).await?;
    received::wait_for(&mut stream, locality, [(A, "remote".to_owned()), (B, "remote".to_owned())]).await?;
    rig.patch("Node", &client, zone(None)).await?;
    received::wait_for(&mut stream, locality, unknown.clone()).await?;
    rig.patch("Node", &client, zone(Some("one"))).await?;
    received::wait_for(&mut stream, locality, [(A, "local".to_owned())]).await?;
    rig.delete("Node", &client).await?;
    received::wait_for(&mut stream, locality, unknown).await
}

#[tokio::test]
async fn a_service_with_local_policy_has_only_the_pods_on_the_clients_node() -> Result<()> {
    let rig = Rig::start("local").await?;
    let (here, there) = (client_in(&rig, Some("here")).await?, client_in(&rig, Some("there")).await?);
    let on = |name: &str, node: &str| meshed(name).with(json!({"spec": {"nodeName": node}}));
    // Hints and the nodeName in the slice do not matter.
    let endpoints = [
        hinted(but(of_pod("192.0.2.1", "here-1"), json!({"nodeName": there, "zone": "there"})), &["there"]),
        hinted(but(of_pod("192.0.2.2", "there-1"), json!({"nodeName": here, "zone": "here"})), &["here"]),
        hinted(but(address("192.0.2.3"), json!({ "nodeName": here })), &["here"]),
        hinted(but(of_workload("192.0.2.4", "vm"), json!({ "nodeName": here })), &["here"]),
    ];
    rig.put_all([local(service("web")), on("here-1", &here), on("there-1", &there), workload("vm")]).await?;
    rig.put(slice("web", "web", &endpoints)).await?;
    rig.begins_with("web", &token("", &here), &[A]).await?;
    rig.begins_with("web", &token("", &there), &[B]).await?;
    for context in [String::new(), token("", "no-such-node"), "ns:x".to_owned()] {
        let first = rig.get_with("web", &context).await?.next().await?;
        assert_eq!(first, Some(Message::NoEndpoints { exists: true }), "{context:?}");
    }
    // A Local policy has no fallback, and changes of endpoints on other nodes cause no message.
    let mut stream = rig.get_from("web", &here).await?;
    brings(&mut stream, &[add(&[A])?]).await?;
    rig.set_endpoints("web", &[endpoints[0].clone(), endpoints[3].clone()]).await?;
    stream.is_quiet_for(QUIET).await?;
    rig.set_endpoints("web", &endpoints[1..]).await?;
    brings(&mut stream, &[remove(&[A])?]).await?;
    rig.set_endpoints("web", &endpoints).await?;
    brings(&mut stream, &[add(&[A])?]).await?;
    stream.is_quiet_for(QUIET).await
}

#[tokio::test]
async fn a_changed_traffic_policy_sends_only_the_difference() -> Result<()> {
    let rig = Rig::start("flip").await?;
    let here = client_in(&rig, Some("here")).await?;
    let on_here = meshed("here-1").with(json!({"spec": {"nodeName": here}}));
    let endpoints = [of_pod("192.0.2.1", "here-1"), of_pod("192.0.2.2", "else-1"), address("192.0.2.3")];
    rig.put_all([local(service("web")), on_here, meshed("else-1"), slice("web", "web", &endpoints)]).await?;
    rig.begins_with("web", &token("", &here), &[A]).await?;
    let (mut inside, mut anywhere) = (rig.get_from("web", &here).await?, rig.get("web").await?);
    brings(&mut inside, &[add(&[A])?]).await?;
    brings(&mut anywhere, &[Message::NoEndpoints { exists: true }]).await?;
    let policy = |policy: &str| json!({"spec": {"internalTrafficPolicy": policy}});
    for _ in 0..2 {
        rig.patch("Service", "web", policy("Cluster")).await?;
        brings(&mut inside, &[add(&[B, C])?]).await?;
        brings(&mut anywhere, &[add(&[A, B, C])?]).await?;
        rig.patch("Service", "web", policy("Local")).await?;
        brings(&mut inside, &[remove(&[B, C])?]).await?;
        brings(&mut anywhere, &[remove(&[A, B, C])?]).await?;
    }
    // The policy still applies after a removal and a change of externalTrafficPolicy.
    rig.set_endpoints("web", &endpoints[..2]).await?;
    rig.patch("Service", "web", json!({"spec": {"type": "NodePort", "externalTrafficPolicy": "Cluster"}})).await?;
    inside.is_quiet_for(QUIET).await
}

#[tokio::test]
async fn locality_is_set_for_pods_and_workloads_when_both_zones_are_known() -> Result<()> {
    let rig = Rig::start("locality").await?;
    let client = client_in(&rig, Some("one")).await?;
    let zoned = |endpoint: Value, zone: &str| but(endpoint, json!({ "zone": zone }));
    let endpoints = [
        zoned(of_pod("192.0.2.1", "web-1"), "one"),
        zoned(of_workload("192.0.2.2", "vm"), "two"),
        of_pod("192.0.2.3", "web-1"),
        zoned(address("192.0.2.4"), "one"),
        zoned(of_pod("192.0.2.5", "web-1"), "One"),
    ];
    rig.put_all([service("web"), meshed("web-1"), workload("vm"), slice("web", "web", &endpoints)]).await?;
    let zone_and_weight = |endpoint: &linkerd2_proxy_api::destination::WeightedAddr| {
        let label = |key: &str| endpoint.metric_labels.get(key).cloned();
        (label("zone"), label("zone_locality").unwrap_or_default(), endpoint.weight)
    };
    let expect = |localities: [&str; 5]| {
        let zones = [Some("one"), Some("two"), Some(""), None, Some("One")];
        [1, 2, 3, 4, 5].map(|host| {
            let at = host - 1;
            (format!("192.0.2.{host}:8080"), (zones[at].map(str::to_owned), localities[at].to_owned(), 10_000))
        })
    };
    for (node, localities) in [
        (client.as_str(), ["local", "remote", "unknown", "unknown", "remote"]),
        ("no-such-node", ["unknown"; 5]),
        ("", ["unknown"; 5]),
    ] {
        let mut stream = rig.get_from("web", node).await?;
        let expected = expect(localities);
        let expected = expected.iter().map(|(at, values)| (at.as_str(), values.clone()));
        received::wait_for(&mut stream, zone_and_weight, expected).await.with_context(|| format!("from {node:?}"))?;
    }
    Ok(())
}

#[tokio::test]
async fn weights_favor_the_clients_zone_when_the_flag_is_set() -> Result<()> {
    for (settings, favored) in [(Settings::Helm, 10_000), (Settings::Contrary, 100_000)] {
        let rig = Rig::with(settings, "weights").await?;
        let client = client_in(&rig, Some("west-1a")).await?;
        let zoned = |endpoint: Value, zone: &str| but(endpoint, json!({ "zone": zone }));
        let endpoints = [
            zoned(of_pod("192.0.2.1", "web-1"), "west-1a"),
            zoned(of_pod("192.0.2.2", "web-1"), "west-1b"),
            zoned(of_workload("192.0.2.3", "vm"), "west-1a"),
            zoned(address("192.0.2.4"), "west-1a"),
            of_pod("192.0.2.5", "web-1"),
        ];
        rig.put_all([service("web"), meshed("web-1"), workload("vm"), slice("web", "web", &endpoints)]).await?;
        let mut stream = rig.get_from("web", &client).await?;
        let expected = [favored, 10_000, favored, 10_000, 10_000];
        let at = [A, B, C, "192.0.2.4:8080", "192.0.2.5:8080"];
        received::wait_for(&mut stream, |endpoint| endpoint.weight, at.into_iter().zip(expected)).await?;
        let mut elsewhere = rig.get("web").await?;
        received::wait_for(&mut elsewhere, |endpoint| endpoint.weight, at.into_iter().zip([10_000; 5])).await?;
    }
    Ok(())
}
