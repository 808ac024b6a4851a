//! Malformed and oversized objects that any tenant may write: only those objects are affected.
//!
//! Every test ends with a change in another namespace. When it arrives, the hostile objects have been processed.

use anyhow::{Context, Result, ensure};
use e2e::discovery::Endpoints;
use kube::api::DynamicObject;
use serde_json::{Value, json};

use super::{
    QUIET, Served,
    objects::{
        address, but, container, meshed, meshed_with, node, of_pod, of_workload, opaque_server, pod, proxy, server,
        service, slice, slice_v6, target, workload,
    },
    received::{self, traits},
};
use Acceptance::{Accepted, ByVersion, Rejected};

/// What the API server does with a row of a table. Rejected rows do not reach the operator.
#[derive(Clone, Copy)]
enum Acceptance {
    Accepted,
    Rejected,
    /// Accepted by Kubernetes 1.34, rejected by 1.36.
    ByVersion,
}

impl Acceptance {
    /// Returns a text if the API server decided otherwise, or could not decide.
    fn difference(self, row: usize, created: Result<DynamicObject>) -> Option<String> {
        let refusal = created.err().map(|error| format!("{error:#}"));
        let is_refused = refusal.as_ref().is_some_and(|text| text.contains("is invalid"));
        let is_expected = match self {
            Self::Accepted => refusal.is_none(),
            Self::Rejected => is_refused,
            Self::ByVersion => refusal.is_none() || is_refused,
        };
        (!is_expected).then(|| format!("row {row}: {refusal:?}"))
    }
}

/// A Service in another namespace, with an open stream.
struct Neighbour {
    rig: Served,
    stream: Endpoints,
}

impl Neighbour {
    async fn start() -> Result<Self> {
        let rig = Served::start("neighbour").await?;
        rig.put_all([service("web"), meshed("web-1"), slice("web", "web", &[of_pod("192.0.2.1", "web-1")])]).await?;
        let stream = rig.shows("web:80", &["192.0.2.1:8080"]).await?;
        Ok(Self { rig, stream })
    }

    /// Checks that changes of every kind still reach old and new streams, and that no task of the manager has panicked.
    async fn still_served(mut self) -> Result<()> {
        let Self { rig, stream } = &mut self;
        rig.put_all([workload("vm"), opaque_server("web", json!(8080))]).await?;
        rig.set_endpoints("web", &[of_pod("192.0.2.2", "web-1"), of_workload("192.0.2.3", "vm")]).await?;
        let expected = [("192.0.2.2:8080", "opaque 4143 identity http2"), ("192.0.2.3:8080", "h2 4143 identity http2")];
        let expected = expected.map(|(at, traits)| (at, traits.to_owned()));
        received::wait_for(stream, traits, expected.clone()).await?;
        let mut fresh = rig.get("web:80").await?;
        received::wait_for(&mut fresh, traits, expected).await?;
        let (status, body) = rig.manager.get("/ready").await?;
        ensure!(status.is_success(), "/ready: {status} {body}");
        ensure!(!rig.manager.log().contains("panicked"), "{}", rig.manager.log());
        Ok(())
    }
}

#[tokio::test]
async fn hostile_slices_do_not_affect_other_services() -> Result<()> {
    let neighbour = Neighbour::start().await?;
    let rig = Served::start("slices").await?;
    rig.put_all([service("web"), pod("web-1"), workload("vm")]).await?;
    let odd_targets = [
        target("192.0.2.10", json!({})),
        target("192.0.2.11", json!({"kind": "Pod", "name": "web-1", "namespace": "../../etc"})),
        target(
            "192.0.2.12",
            json!({"kind": "Pod", "name": "a/b", "uid": "x", "resourceVersion": "y", "fieldPath": "z"}),
        ),
        target("192.0.2.13", json!({"kind": "Pod", "name": "ü".repeat(300)})),
        target("192.0.2.14", json!({"kind": "Secret", "name": "web-1"})),
        target("192.0.2.15", json!({"kind": "ExternalWorkload", "name": ""})),
        target("192.0.2.16", json!({"kind": "Pod", "name": "web-1", "namespace": neighbour.rig.name()})),
    ];
    let ports = |ports: Value| slice("", "web", &[address("192.0.2.20")]).with(json!({ "ports": ports }));
    let many_ports: Vec<Value> = (0..100).map(|n| json!({"name": format!("p-{n}"), "port": 9000 + n})).collect();
    let fqdn = |n: usize| {
        let endpoints =
            [address("example.com"), but(address("a.example.com"), json!({"conditions": null, "hostname": null}))];
        slice("", "web", &endpoints).with(json!({"addressType": "FQDN", "metadata": {"labels": {"n": format!("{n}")}}}))
    };
    let hostile = [
        (Accepted, slice("", "web", &odd_targets)),
        (Accepted, ports(json!(null))),
        (Accepted, ports(json!([]))),
        (Accepted, ports(json!([{"name": "http"}]))),
        (Accepted, ports(json!([{"name": "http", "port": null, "protocol": "UDP", "appProtocol": "x.io/y"}]))),
        (Accepted, ports(json!(many_ports))),
        (Accepted, ports(json!([{"name": "http", "port": 8080, "protocol": "SCTP"}]))),
        (Accepted, fqdn(0)),
        (Accepted, fqdn(1)),
        (Accepted, slice("", "web", &[])),
        (
            Accepted,
            slice(
                "",
                "web",
                &[but(address("192.0.2.21"), json!({"conditions": {}, "hints": {}, "zone": "", "hostname": null}))],
            ),
        ),
        (
            Accepted,
            slice(
                "",
                "web",
                &[but(
                    address("192.0.2.22"),
                    json!({"hints": null, "deprecatedTopology": {"topology.kubernetes.io/zone": "x"}}),
                )],
            ),
        ),
        (
            Accepted,
            slice(
                "",
                "web",
                &[
                    address("192.0.2.23"),
                    address("192.0.2.23"),
                    but(address(""), json!({"addresses": ["192.0.2.23", "192.0.2.23"]})),
                ],
            ),
        ),
        (Rejected, slice_v6("", "web", &[address("::ffff:192.0.2.24")])),
        (ByVersion, slice("", "web", &[address("::ffff:192.0.2.25")])),
        (ByVersion, slice("", "web", &[address("0192.0.2.26")])),
        (Accepted, slice("", "web", &[address("255.255.255.255")])),
        (Rejected, slice_v6("", "web", &[address("2001:db8::1%eth0")])),
        (Accepted, slice("", "", &[address("192.0.2.27")])),
        (Accepted, slice("", "no-such-service", &[address("192.0.2.28")])),
        (
            Accepted,
            slice("", "web", &[address("192.0.2.29")])
                .annotated("mirror.linkerd.io/remote-svc-fq-name", &"x".repeat(100_000))
                .annotated("mirror.linkerd.io/remote-gateway-identity", "not a name \u{0} at all \n"),
        ),
        (
            Accepted,
            slice("", "web", &[address("192.0.2.30")])
                .labelled("mirror.linkerd.io/cluster-name", "")
                .annotated("mirror.linkerd.io/remote-svc-fq-name", "...."),
        ),
    ];
    let mut unexpected = Vec::new();
    for (row, (verdict, object)) in hostile.into_iter().enumerate() {
        let named = object.with(json!({"metadata": {"name": format!("hostile-{row}")}}));
        unexpected.extend(verdict.difference(row, rig.create(named).await));
    }
    ensure!(unexpected.is_empty(), "{}", unexpected.join("\n"));
    rig.put(slice("good", "web", &[address("192.0.2.1")])).await?;
    let good = "192.0.2.1:8080".parse()?;
    let mut stream = rig.get("web:80").await?;
    stream.until("the endpoint of the good slice", |known| known.contains_key(&good)).await?;
    let foreign = stream.known.values().filter(|endpoint| endpoint.metric_labels.contains_key("pod")).count();
    ensure!(foreign == 0, "no target is a Pod of this namespace, but an endpoint has the label: {:?}", stream.known);
    for path in ["web:81", "x.web:80", "web:65535"] {
        rig.get(path).await?.next().await.with_context(|| path.to_owned())?;
    }
    for row in 0..22 {
        let _ = rig.delete("EndpointSlice", &format!("hostile-{row}")).await;
    }
    stream.shows(&["192.0.2.1:8080"]).await?;
    neighbour.still_served().await
}

#[tokio::test]
async fn nearly_empty_and_oversized_objects_are_served() -> Result<()> {
    let neighbour = Neighbour::start().await?;
    let rig = Served::start("objects").await?;
    let containers: Vec<Value> =
        (0..50).map(|n| container(&format!("c-{n}"), 1000 + n)).chain([proxy("0.0.0.0:4143")]).collect();
    let env: Vec<Value> =
        (0..2000).map(|n| json!({"name": format!("LINKERD2_PROXY_{n}"), "value": "x".repeat(100)})).collect();
    let mut wordy = proxy("0.0.0.0:4143");
    if let Some(own) = wordy["env"].as_array_mut() {
        own.splice(0..0, env);
    }
    let labels: Value =
        (0..300).map(|n| (format!("label-{n}"), json!("x".repeat(60)))).collect::<serde_json::Map<_, _>>().into();
    let bare =
        pod("bare").with(json!({"spec": {"serviceAccountName": null, "containers": [{"name": "c", "image": "c"}]}}));
    rig.put_all([
        bare,
        meshed("many").with(json!({"spec": {"containers": containers}, "metadata": { "labels": labels }})),
        meshed_with("wordy", wordy),
        meshed("noted").annotated("note", &"x".repeat(200_000)),
        workload("no-ports")
            .with(json!({"spec": {"ports": null, "workloadIPs": null}, "metadata": { "labels": labels }})),
        workload("twice").with(
            json!({"spec": {"ports": [{"name": "linkerd-proxy", "port": 1}, {"name": "linkerd-proxy", "port": 2},
            {"port": 3}, {"name": "", "port": 4}], "workloadIPs": [{"ip": "bogus"}, {}]}}),
        ),
        workload("sni").with(json!({"spec": {"meshTLS": {"identity": "not a uri \n", "serverName": "not a name \n"}}})),
        node(&format!("{}-odd", rig.name()), Some("")),
        service("web"),
        service("none").with(json!({"spec": {"clusterIP": "None", "ports": null}})),
        slice(
            "web",
            "web",
            &[
                of_pod("192.0.2.1", "bare"),
                of_pod("192.0.2.2", "many"),
                of_pod("192.0.2.3", "wordy"),
                of_pod("192.0.2.4", "noted"),
                of_workload("192.0.2.5", "no-ports"),
                of_workload("192.0.2.6", "sni"),
                of_workload("192.0.2.7", "twice"),
            ],
        ),
    ])
    .await?;
    let meshed = "h2 4143 identity http2";
    let mut stream = rig.get_from("web", &format!("{}-odd", rig.name())).await?;
    // Two ports are named `linkerd-proxy`; the destination may use either.
    let normalized = |endpoint: &_| received::traits(endpoint).replace("h2 2 ", "h2 1 ");
    let expected = ["", meshed, meshed, meshed, meshed, meshed, "h2 1 identity http2"];
    let at: Vec<String> = (1..=7).map(|host| format!("192.0.2.{host}:8080")).collect();
    received::wait_for(&mut stream, normalized, at.iter().map(String::as_str).zip(expected.map(str::to_owned))).await?;
    rig.get("none:1").await?.next().await?;
    neighbour.still_served().await
}

#[tokio::test]
async fn an_invalid_server_is_ignored() -> Result<()> {
    let neighbour = Neighbour::start().await?;
    let rig = Served::start("servers").await?;
    rig.put_all([service("web"), meshed("web-1"), slice("web", "web", &[of_pod("192.0.2.1", "web-1")])]).await?;
    let mut stream = rig.shows("web:80", &["192.0.2.1:8080"]).await?;
    let opaque = |selector: Value| json!({"podSelector": selector, "port": 8080, "proxyProtocol": "opaque"});
    let web = json!({"matchLabels": {"app": "web"}});
    let with_port = |port: Value| json!({"podSelector": web, "port": port, "proxyProtocol": "opaque"});
    let specs = [
        (Accepted, opaque(json!({"matchLabels": {"app": 7}}))),
        (Accepted, opaque(json!({"matchLabels": {"app": {"in": ["web"]}}}))),
        (Accepted, opaque(json!({"matchLabels": {"app": null, "": ""}}))),
        (Accepted, opaque(json!({"matchLabels": {"not a key!": "web"}}))),
        (Accepted, opaque(json!({"matchLabels": {"app": "not a value!"}}))),
        (Accepted, opaque(json!({"matchExpressions": [{"key": "app", "operator": "In"}]}))),
        (Accepted, opaque(json!({"matchExpressions": [{"key": "app", "operator": "NotIn", "values": []}]}))),
        (Accepted, opaque(json!({"matchExpressions": [{"key": "app", "operator": "DoesNotExist", "values": ["x"]}]}))),
        (Accepted, opaque(json!({"matchExpressions": [{"key": "", "operator": "Exists"}]}))),
        (Accepted, with_port(json!(0))),
        (Accepted, with_port(json!(-1))),
        (Accepted, with_port(json!(65536 + 8080))),
        (Accepted, with_port(json!(9_000_000_000_u64))),
        (Accepted, with_port(json!(""))),
        (Accepted, with_port(json!("x".repeat(10_000)))),
        (Accepted, json!({"podSelector": {}, "port": 8080, "proxyProtocol": ""})),
    ];
    let mut unexpected = Vec::new();
    for (row, (verdict, spec)) in specs.into_iter().enumerate() {
        unexpected.extend(verdict.difference(row, rig.create(server(&format!("row-{row}"), spec)).await));
    }
    ensure!(unexpected.is_empty(), "{}", unexpected.join("\n"));
    neighbour.still_served().await?;
    stream.is_quiet_for(QUIET).await?;
    // A valid Server among them takes effect.
    rig.put(opaque_server("good", json!(8080))).await?;
    received::wait_for_only(&mut stream, traits, "opaque 4143 identity http2".to_owned()).await
}

#[tokio::test]
async fn a_thousand_endpoints_in_a_slice_are_one_add_and_changes_are_small() -> Result<()> {
    let neighbour = Neighbour::start().await?;
    let rig = Served::start("thousand").await?;
    let all: Vec<String> = (0..1000).map(|n| format!("198.18.{}.{}", n / 250, n % 250 + 1)).collect();
    let mut endpoints: Vec<Value> = all.iter().map(|ip| address(ip)).collect();
    rig.put_all([service("web"), slice("web", "web", &endpoints)]).await?;
    let at: Vec<String> = all.iter().map(|ip| format!("{ip}:8080")).collect();
    let at: Vec<&str> = at.iter().map(String::as_str).collect();
    let mut stream = rig.shows("web:80", &at).await?;
    rig.begins_with("web:80", "", &at).await?;
    // One endpoint is replaced.
    endpoints[500] = address("198.18.200.1");
    rig.set_endpoints("web", &endpoints).await?;
    super::brings(&mut stream, &[super::add(&["198.18.200.1:8080"])?, super::remove(&[at[500]])?]).await?;
    // Ten endpoints with a hundred addresses each, all of one workload.
    rig.put(workload("vm")).await?;
    let hundreds: Vec<Value> = (0..10)
        .map(|n| {
            let addresses: Vec<String> = (0..100).map(|host| format!("198.19.{n}.{}", host + 1)).collect();
            but(of_workload("", "vm"), json!({ "addresses": addresses }))
        })
        .collect();
    rig.set_endpoints("web", &hundreds).await?;
    stream
        .until("the addresses of the workload", |known| {
            known.len() == 1000 && !known.keys().any(|at| at.ip().to_string().starts_with("198.18."))
        })
        .await?;
    rig.delete("EndpointSlice", "web").await?;
    stream.shows(&[]).await?;
    neighbour.still_served().await
}
