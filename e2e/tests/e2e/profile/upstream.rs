//! The scenarios of Linkerd's own tests of `GetProfile`, with the settings of those tests.
//!
//! The addresses differ for each test, because all tests share one cluster.

use anyhow::{Context, Result, ensure};
use linkerd2_proxy_api::destination::{DestinationProfile, WeightedAddr, tls_identity::Strategy};
use serde_json::{Value, json};
use tonic::Code;

use super::{at, ip, ipv6, phase, pods::address, running, summary, workload_at};
use crate::discovery::{
    Rig, Settings,
    objects::{
        KEPT, Object, address as plain, but, external_name, field, meshed, of_pod, pod, proxy, server, service, slice,
    },
    received,
};

const OPAQUE_PORTS: &str = "config.linkerd.io/opaque-ports";

/// The fixtures, and their namespaces and addresses.
struct World {
    rig: Rig,
    /// The namespace `client-ns`.
    client: Rig,
    name1: String,
    name3: String,
    dual: Vec<String>,
    pods: Vec<(&'static str, String)>,
    dual_v6: String,
    host: String,
    workloads: [String; 2],
}

fn with_port(name: &str, port: u16) -> Object {
    service(name).with(json!({"spec": {"ports": [{"port": port}]}}))
}

fn route(name: &str, path: &str, retryable: bool) -> Value {
    json!({"routes": [{"name": name, "isRetryable": retryable, "condition": {"pathRegex": path}}]})
}

/// A meshed Pod with the ServiceAccount of Linkerd's fixtures, and optionally a named port.
fn fixture(name: &str, app: &str, port: Option<(u16, &str)>) -> Object {
    let ports = port.map(|(port, name)| json!([{"containerPort": port, "name": name}]));
    let containers = json!([{"name": "app", "image": "app", "ports": ports}, proxy("0.0.0.0:4143")]);
    let spec = json!({"serviceAccountName": "default", "containers": containers});
    meshed(name).labelled("app", app).with(field("spec", spec))
}

impl World {
    async fn start() -> Result<Self> {
        let rig = Rig::with(Settings::Upstream, "ns").await?;
        let client = Rig::with(Settings::Upstream, "client-ns").await?;
        let name1 = rig.put_service(with_port("name1", 8989)).await?;
        let name3 = rig.put_service(with_port("name3", 4242)).await?;
        rig.put(rig.profile("name1", route("route1", "/a/b/c", false))).await?;
        client.put(rig.profile("name1", route("route2", "/x/y/z", true))).await?;
        let families = json!({"spec": {"ipFamilyPolicy": "RequireDualStack", "ipFamilies": ["IPv4", "IPv6"]}});
        let dual = rig.create(with_port("name-ds", 8989).with(families)).await?;
        let dual = dual.data.pointer("/spec/clusterIPs").cloned().context("a Service without clusterIPs")?;
        let dual: Vec<String> = serde_json::from_value(dual)?;
        rig.put(rig.profile("name-ds", route("route1", "/a/b/c", false))).await?;
        let names =
            ["name1-1", "name2", "name1-20", "name1-21", "name3", "name5", "pod-0", "policy-test", "native", "name-ds"];
        let pods: Vec<(&str, String)> = names.into_iter().map(|name| (name, ip())).collect();
        let world =
            Self { rig, client, name1, name3, dual, pods, dual_v6: ipv6(), host: ip(), workloads: [ip(), ip()] };
        world.put_pods().await?;
        world.put_others().await?;
        Ok(world)
    }

    fn ip(&self, pod: &str) -> Result<&str> {
        let found = self.pods.iter().find(|(name, _)| *name == pod);
        found.map(|(_, ip)| ip.as_str()).with_context(|| format!("no Pod {pod}"))
    }

    async fn put_pods(&self) -> Result<()> {
        let rig = &self.rig;
        rig.run(fixture("name1-1", "name1", None), &[self.ip("name1-1")?]).await?;
        let shared = self.ip("name2")?;
        rig.run(pod("name2"), &[shared]).await?;
        for (name, last) in [("name2-2", "Succeeded"), ("name2-3", "Failed")] {
            rig.run(pod(name), &[shared]).await?;
            rig.set_status("Pod", name, phase(last)).await?;
        }
        rig.run(pod("name2-4").with(json!({"metadata": {"finalizers": [KEPT]}})), &[shared]).await?;
        rig.terminate("name2-4").await?;
        let admin_port = json!({"ports": [{"name": "linkerd-admin", "containerPort": 4191}]});
        let admin = but(proxy("0.0.0.0:4143"), admin_port);
        let app = json!({"name": "app", "image": "app"});
        let sidecar = json!({"spec": {"containers": [app, admin]}});
        let native =
            json!({"spec": {"initContainers": [but(admin, json!({"restartPolicy": "Always"}))], "containers": [app]}});
        for (name, containers) in [("name1-20", sidecar), ("name1-21", native)] {
            rig.put_with_status(meshed(name).with(containers), running(&[self.ip(name)?])).await?;
            rig.set_status("Pod", name, phase("Pending")).await?;
        }
        rig.run(fixture("name3", "name3", None).annotated(OPAQUE_PORTS, "4242"), &[self.ip("name3")?]).await?;
        let skipping = fixture("name5", "name5", None).annotated("config.linkerd.io/skip-inbound-ports", "24224");
        rig.run(skipping, &[self.ip("name5")?]).await?;
        rig.run(fixture("pod-0", "statefulset", None), &[self.ip("pod-0")?]).await?;
        rig.run(fixture("policy-test", "policy-test", Some((80, "http"))), &[self.ip("policy-test")?]).await?;
        let always = |container: Value| but(container, json!({"restartPolicy": "Always"}));
        let inits = json!([
            always(proxy("0.0.0.0:4143")),
            always(json!({"name": "native", "image": "app", "ports": [{"containerPort": 80, "name": "http"}]}))
        ]);
        let native = meshed("native").labelled("app", "native").with(json!({"spec": {"initContainers": inits,
            "containers": [{"name": "app", "image": "app"}]}}));
        rig.run(native, &[self.ip("native")?]).await?;
        rig.run(fixture("name-ds", "name-ds", None), &[self.ip("name-ds")?, &self.dual_v6]).await?;
        let mapping = pod("hostport-mapping").labelled("app", "hostport-mapping").with(self.mapped());
        rig.put_with_status(mapping, self.on_host()).await
    }

    fn mapped(&self) -> Value {
        let port = json!({"containerPort": 80, "hostPort": 7777, "name": "nginx-7777"});
        json!({"spec": {"containers": [{"name": "nginx", "image": "nginx", "ports": [port]}]}})
    }

    fn on_host(&self) -> Value {
        json!({"phase": "Running", "hostIP": self.host, "hostIPs": [{"ip": self.host}]})
    }

    async fn put_others(&self) -> Result<()> {
        let rig = &self.rig;
        let of_statefulset = [plain(&ip()), but(of_pod(self.ip("pod-0")?, "pod-0"), json!({"hostname": "pod-0"}))];
        let ports = json!([{"port": 8989}, {"port": 4242}, {"name": "linkerd-proxy", "port": 4143}]);
        let tls = json!({"identity": "spiffe://some-domain/cool", "serverName": "server.local"});
        let cool = workload_at("my-cool-workload", &[&self.workloads[0]])
            .with(json!({"spec": {"ports": ports, "meshTLS": tls}}))
            .annotated(OPAQUE_PORTS, "4242");
        let ports = json!([{"port": 80}, {"name": "linkerd-proxy", "port": 4143}]);
        let tested = workload_at("policy-test-workload", &[&self.workloads[1]])
            .labelled("app", "external-workload-policy-test")
            .with(json!({"spec": { "ports": ports }}));
        let selects = |kind: &str, app: &str, port: Value| {
            let selector = json!({"matchLabels": {"app": app}});
            but(json!({"port": port, "proxyProtocol": "opaque"}), field(kind, selector))
        };
        rig.put_all([
            with_port("name4", 4242).annotated(OPAQUE_PORTS, "4242"),
            with_port("statefulset-svc", 8989),
            slice("statefulset-svc", "statefulset-svc", &of_statefulset),
            external_name("externalname"),
            cool,
            tested,
            server("policy-test", selects("podSelector", "policy-test", json!(80))),
            server("native", selects("podSelector", "native", json!("http"))),
            server("workloads", selects("externalWorkloadSelector", "external-workload-policy-test", json!(80))),
        ])
        .await?;
        for kind in ["Pod", "Service", "ServiceProfile", "ExternalWorkload", "Server"] {
            rig.catches_up(kind).await?;
        }
        Ok(())
    }

    /// Returns the first message of a stream, and checks that no other follows.
    async fn only(&self, path: &str, token: &str) -> Result<DestinationProfile> {
        let mut open = self.rig.open_with(path, token).await?;
        open.stream.next().await?;
        open.has_received(1).await?;
        Ok(open.stream.last()?.clone())
    }

    async fn endpoint(&self, path: &str) -> Result<(DestinationProfile, WeightedAddr)> {
        let profile = self.only(path, "").await?;
        assert_eq!(profile.retry_budget, super::default_budget(), "{path}");
        let endpoint = profile.endpoint.clone().with_context(|| format!("{path}: {profile:?}"))?;
        Ok((profile, endpoint))
    }
}

fn transport(endpoint: &WeightedAddr) -> Option<u32> {
    endpoint.protocol_hint.as_ref()?.opaque_transport.as_ref().map(|transport| transport.inbound_port)
}

#[tokio::test]
async fn services_match_the_tests_of_linkerd() -> Result<()> {
    let world = World::start().await?;
    let rig = &world.rig;
    for (path, code) in
        [("linkerd.io", Code::InvalidArgument), ("externalname.ns.svc.cluster.local", Code::InvalidArgument)]
    {
        rig.is_refused(path, code, "").await?;
    }
    let (name1, full) = (rig.path("name1:8989"), rig.full_name("name1"));
    for token in ["ns:other", r#"{"ns":"other"}"#, "", "123fa-test"] {
        let profile = world.only(&name1, token).await?;
        assert_eq!(
            (summary(&profile).as_str(), &profile.fully_qualified_name),
            ("service name1 with routes route1", &full)
        );
        ensure!(profile.routes.iter().all(|route| !route.is_retryable), "{profile:?}");
    }
    for token in [format!(r#"{{"ns":"{}"}}"#, world.client.name()), format!("ns:{}", world.client.name())] {
        let profile = world.only(&name1, &token).await?;
        assert_eq!(summary(&profile), "service name1 with routes route2");
        ensure!(profile.routes.iter().all(|route| route.is_retryable), "{profile:?}");
    }
    let profile = world.only(&at(&world.name1, 8989), "").await?;
    assert_eq!((summary(&profile).as_str(), profile.fully_qualified_name), ("service name1 with routes route1", full));
    for ip in &world.dual {
        let profile = world.only(&at(ip, 8989), "").await?;
        assert_eq!(summary(&profile), "service name-ds with routes route1");
    }
    // The annotation of a Pod does not apply to its Service.
    assert_eq!(summary(&world.only(&at(&world.name3, 4242), "").await?), "service name3");
    assert_eq!(summary(&world.only(&rig.path("name4:4242"), "").await?), "opaque service name4");
    assert_eq!(summary(&world.only(&rig.path("externalname"), "").await?), "empty");
    Ok(())
}

#[tokio::test]
async fn pods_match_the_tests_of_linkerd() -> Result<()> {
    let world = World::start().await?;
    let rig = &world.rig;
    let instance = rig.path("pod-0.statefulset-svc:8989");
    for (path, at, pod) in [
        (instance, at(world.ip("pod-0")?, 8989), "pod-0"),
        (at(world.ip("name1-1")?, 8989), at(world.ip("name1-1")?, 8989), "name1-1"),
        (at(&world.dual_v6, 8989), at(&world.dual_v6, 8989), "name-ds"),
    ] {
        let (profile, endpoint) = world.endpoint(&path).await?;
        assert_eq!((summary(&profile), address(&profile)?), (format!("pod {pod} with h2 identity http2"), at));
        assert_eq!(endpoint.metric_labels.get("namespace").map(String::as_str), Some(rig.name()));
        // The same settings apply to `Get`.
        let keep_alive = endpoint.http2.as_ref().and_then(|params| params.keep_alive).context("no keep-alive")?;
        let seconds = [keep_alive.interval, keep_alive.timeout].map(|time| time.map(|time| time.seconds));
        assert_eq!(seconds, [Some(20), Some(10)]);
    }
    let (_, endpoint) = world.endpoint(&at(world.ip("name1-1")?, 8989)).await?;
    let name = format!("default.{}.serviceaccount.identity.linkerd.trust.domain", rig.name());
    assert_eq!(received::identity(&endpoint), format!("dns {name} sni {name}"));
    for (path, expected) in [
        (at(&ip(), 1234), "address"),
        (at(world.ip("name2")?, 3306), "opaque pod name2"),
        (at(world.ip("name2")?, 8989), "pod name2"),
        (at(world.ip("name3")?, 4242), "opaque pod name3 with opaque 4143 identity http2"),
        (at(world.ip("name5")?, 24224), "pod name5"),
        (at(world.ip("policy-test")?, 80), "opaque pod policy-test with opaque 4143 identity http2"),
        (at(world.ip("native")?, 80), "opaque pod native with opaque 4143 identity http2"),
        (at(&world.host, 3306), "opaque address"),
        (at(&world.host, 80), "address"),
    ] {
        let (profile, _) = world.endpoint(&path).await?;
        assert_eq!((summary(&profile).as_str(), address(&profile)?), (expected, path));
    }
    for name in ["name1-20", "name1-21"] {
        let mut open = rig.opens_with(&at(world.ip(name)?, 4191), "address").await?;
        open.has_received(1).await?;
        rig.set_status("Pod", name, phase("Running")).await?;
        open.becomes(&format!("pod {name} with h2 identity http2")).await?;
        open.has_received(2).await?;
    }
    Ok(())
}

#[tokio::test]
async fn workloads_and_hosts_match_the_tests_of_linkerd() -> Result<()> {
    let world = World::start().await?;
    let rig = &world.rig;
    let [cool, tested] = &world.workloads;
    let (profile, endpoint) = world.endpoint(&at(cool, 8989)).await?;
    assert_eq!(summary(&profile), "external_workload my-cool-workload with h2 identity http2");
    assert_eq!(
        (transport(&endpoint), endpoint.metric_labels.get("namespace").map(String::as_str)),
        (None, Some(rig.name()))
    );
    let identity = endpoint.tls_identity.as_ref().and_then(|identity| identity.strategy.as_ref());
    ensure!(matches!(identity, Some(Strategy::UriLikeIdentity(uri)) if uri.uri == "spiffe://some-domain/cool"));
    for (path, name) in [(at(cool, 4242), "my-cool-workload"), (at(tested, 80), "policy-test-workload")] {
        let (profile, endpoint) = world.endpoint(&path).await?;
        let expected = format!("opaque external_workload {name} with opaque 4143 identity http2");
        assert_eq!((summary(&profile), transport(&endpoint)), (expected, Some(4143)));
    }
    let mut open = rig.opens_with(&at(&world.host, 7777), "pod hostport-mapping").await?;
    rig.delete("Pod", "hostport-mapping").await?;
    open.becomes("address").await?;
    let second = pod("hostport-mapping-2").labelled("app", "hostport-mapping-2").with(world.mapped());
    rig.put_with_status(second, world.on_host()).await?;
    open.becomes("pod hostport-mapping-2").await?;
    let selector = json!({"matchLabels": {"app": "hostport-mapping-2"}});
    rig.put(server("nginx", json!({"podSelector": selector, "port": "nginx-7777", "proxyProtocol": "opaque"}))).await?;
    open.becomes("opaque pod hostport-mapping-2").await?;
    open.has_received(4).await
}
