//! The server itself: health, metrics, readiness, missing CRDs or API server, and shutdown.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use e2e::{
    ControlPlane, FaultProxy, Manager, ManagerOptions, Options, TestNamespace,
    discovery::{Discovery, Endpoints, token},
    eventually,
    mesh::SOON,
    shipped::{OPERATOR_ACCOUNT, OPERATOR_NAMESPACE},
};
use hyper::StatusCode;
use tonic::{Code, transport::Channel};
use tonic_health::pb::{HealthCheckRequest, health_check_response::ServingStatus, health_client::HealthClient};

use super::{
    QUIET, Rig, Settings, create,
    objects::{Object, address, meshed, of_pod, of_workload, opaque_server, replica_set, service, slice, workload},
    received::{self, traits},
};

pub(crate) const STOP: Duration = Duration::from_secs(45);
/// Longer than the maximum backoff between two attempts to reach a CRD or the API server.
pub(crate) const BACKED_OFF: Duration = Duration::from_secs(90);
const SERVICE: &str = "io.linkerd.proxy.destination.Destination";

pub(crate) fn discovery_only(args: &[&str]) -> ManagerOptions {
    let args = ["--enable-external-workload=false", "--enable-linkerd-config=false"]
        .iter()
        .chain(args)
        .map(|arg| (*arg).to_owned());
    ManagerOptions { args: args.collect(), ..ManagerOptions::default() }
}

/// A dedicated control plane without Linkerd, and its manager, for tests that cannot share them.
pub(crate) struct Own {
    pub(crate) control_plane: ControlPlane,
    pub(crate) manager: Manager,
    pub(crate) namespace: TestNamespace,
}

impl Own {
    pub(crate) async fn start() -> Result<Self> {
        let control_plane = ControlPlane::start(Options::default()).await?;
        let namespace = TestNamespace::create(&control_plane.client().await?, "own").await?;
        let mut manager = Manager::start(&control_plane, discovery_only(&[]))?;
        manager.ready(SOON).await?;
        Ok(Self { control_plane, manager, namespace })
    }

    /// Adds Linkerd's CRDs, and starts a manager with only the permissions that the manifests grant to discovery.
    pub(crate) async fn with_granted_permissions() -> Result<Self> {
        let mut own = Self::start().await?;
        own.control_plane.install_crds("crd/linkerd").await?;
        own.control_plane.kubectl(&["create", "namespace", "linkerd"]).await?;
        own.control_plane.deploy_without_manager(&["linkerd-operator-destination"]).await?;
        let kubeconfig = own.control_plane.kubeconfig_for_service_account(OPERATOR_NAMESPACE, OPERATOR_ACCOUNT).await?;
        let options = ManagerOptions { kubeconfig: Some(kubeconfig), ..discovery_only(&[]) };
        own.manager = Manager::start(&own.control_plane, options)?;
        own.manager.ready(SOON).await?;
        Ok(own)
    }

    pub(crate) async fn put_all(&self, objects: impl IntoIterator<Item = Object>) -> Result<()> {
        for object in objects {
            create(self.namespace.client(), self.namespace.name(), object).await?;
        }
        Ok(())
    }

    async fn get(&self, service_and_port: &str) -> Result<Endpoints> {
        let (service, port) = service_and_port.split_once(':').context("a port")?;
        let path = format!("{service}.{}.svc.cluster.local:{port}", self.namespace.name());
        eventually(SOON, format_args!("{path} to be answered"), async || {
            Ok(self.manager.discovery().await?.get(&path, "").await?)
        })
        .await
    }
}

/// Makes calls of a method, and waits until each is counted with its status code.
pub(crate) async fn counts_calls(
    manager: &Manager,
    method: &str,
    codes: &[&str],
    calls: impl AsyncFnOnce() -> Result<()>,
) -> Result<()> {
    let of_method = [("grpc_type", "server_stream"), ("grpc_service", SERVICE), ("grpc_method", method)];
    let uncoded = ["started_total", "msg_received_total", "msg_sent_total", "handling_seconds_count"];
    let counters = uncoded.map(|name| (name, None)).into_iter();
    let counters: Vec<_> =
        counters.chain(codes.iter().map(|code| ("handled_total", Some(("grpc_code", *code))))).collect();
    let count = async |name: &str, code: Option<(&str, &str)>| {
        let labels: Vec<_> = of_method.into_iter().chain(code).collect();
        manager.metric(&format!("grpc_server_{name}"), &labels).await.unwrap_or_default()
    };
    let mut before = Vec::new();
    for (name, code) in &counters {
        before.push(count(name, *code).await);
    }
    calls().await?;
    for ((name, code), before) in counters.into_iter().zip(before) {
        eventually(SOON, format_args!("{name} {code:?} to grow"), async || {
            let now = count(name, code).await;
            ensure!(now > before, "it was {before} and is {now}");
            Ok(())
        })
        .await?;
    }
    for bound in ["0.1", "1", "300", "3600", "+Inf"] {
        let labels = [&of_method[..], &[("le", bound)]].concat();
        let bucket = manager.metric("grpc_server_handling_seconds_bucket", &labels).await;
        ensure!(bucket.is_some(), "no bucket {bound}");
    }
    Ok(())
}

#[tokio::test]
async fn the_grpc_health_service_reports_serving() -> Result<()> {
    let rig = Rig::start("health").await?;
    let address = rig.manager.destination_address();
    let mut health = HealthClient::new(Channel::from_shared(format!("http://{address}"))?.connect().await?);
    for service in ["", SERVICE] {
        let request = HealthCheckRequest { service: service.to_owned() };
        let response = health.check(request).await.with_context(|| format!("health of {service:?}"))?;
        assert_eq!(response.into_inner().status(), ServingStatus::Serving, "{service:?}");
    }
    let unknown = health.check(HealthCheckRequest { service: "other".to_owned() }).await;
    assert_eq!(unknown.map(drop).map_err(|status| status.code()), Err(Code::NotFound));
    Ok(())
}

#[tokio::test]
async fn the_series_of_a_service_exist_as_long_as_its_streams() -> Result<()> {
    let rig = Rig::start("series").await?;
    let of_web = [("cluster", "local"), ("namespace", rig.name()), ("service", "web"), ("port", "80")];
    let mesh = [service("web"), meshed("web-1"), meshed("web-2"), service("empty")];
    let endpoints = |service: &str| {
        let named = super::objects::but(of_pod("192.0.2.2", "web-2"), serde_json::json!({"hostname": "web-2"}));
        slice(service, service, &[of_pod("192.0.2.1", "web-1"), named])
    };
    rig.put_all(mesh.into_iter().chain([endpoints("web")])).await?;
    let shown = ["192.0.2.1:8080", "192.0.2.2:8080"];
    let (first, second) = (rig.shows("web:80", &shown).await?, rig.shows("web:80", &shown).await?);
    let instance = rig.shows("web-2.web:80", &shown[1..]).await?;
    let empty = rig.get("empty:80").await?;
    // Clients can make these up.
    let invented =
        (rig.shows("web:9999", &["192.0.2.1:9999", "192.0.2.2:9999"]).await?, rig.get("unknown.web:80").await?);
    let gauge = async |name: &str, labels: &[(&str, &str)], expected: Option<f64>| {
        eventually(SOON, format_args!("{name}{labels:?} to be {expected:?}"), async || {
            let seen = rig.manager.metric(name, labels).await;
            ensure!(seen == expected, "{seen:?}");
            Ok(())
        })
        .await
    };
    let of_all = [&of_web[..], &[("hostname", "")]].concat();
    let of_one = [&of_web[..], &[("hostname", "web-2")]].concat();
    let of_empty =
        [("cluster", "local"), ("namespace", rig.name()), ("service", "empty"), ("port", "80"), ("hostname", "")];
    for (labels, subscribers, pods, exists) in
        [(&of_all[..], 2.0, 2.0, 1.0), (&of_one, 1.0, 1.0, 1.0), (&of_empty, 1.0, 0.0, 1.0)]
    {
        gauge("endpoints_subscribers", labels, Some(subscribers)).await?;
        gauge("endpoints_pods", labels, Some(pods)).await?;
        gauge("endpoints_exists", labels, Some(exists)).await?;
        ensure!(rig.manager.metric("endpoints_updates", labels).await.is_some(), "no endpoints_updates{labels:?}");
    }
    for labels in [("port", "9999"), ("hostname", "unknown")] {
        gauge("endpoints_subscribers", &[("namespace", rig.name()), labels], None).await?;
    }
    // The Service exists and is empty. After its deletion it does not exist.
    rig.delete("Service", "empty").await?;
    gauge("endpoints_exists", &of_empty, Some(0.0)).await?;
    let before = rig.manager.metric("endpoints_updates", &of_all).await.unwrap_or_default();
    rig.set_endpoints("web", &[of_pod("192.0.2.1", "web-1")]).await?;
    gauge("endpoints_pods", &of_all, Some(1.0)).await?;
    ensure!(
        rig.manager.metric("endpoints_updates", &of_all).await.is_some_and(|now| now > before),
        "no update counted"
    );
    drop(first);
    gauge("endpoints_subscribers", &of_all, Some(1.0)).await?;
    drop((second, instance, empty, invented));
    for name in ["endpoints_subscribers", "endpoints_pods", "endpoints_exists", "endpoints_updates"] {
        gauge(name, &[("namespace", rig.name())], None).await?;
    }
    Ok(())
}

#[tokio::test]
async fn calls_are_counted_by_status_code() -> Result<()> {
    let rig = Rig::start("calls").await?;
    rig.put_all([service("web"), slice("web", "web", &[address("192.0.2.1")])]).await?;
    counts_calls(&rig.manager, "Get", &["OK", "InvalidArgument", "NotFound"], async || {
        rig.discovery.refusal("linkerd.io", "").await?;
        rig.discovery.refusal(&rig.path("missing"), "").await?;
        drop(rig.shows("web:80", &["192.0.2.1:8080"]).await?);
        Ok(())
    })
    .await
}

#[tokio::test]
async fn series_that_always_exist_are_exported() -> Result<()> {
    let rig = Rig::start("always").await?;
    rig.put_all([service("web"), meshed("web-1"), slice("web", "web", &[of_pod("192.0.2.1", "web-1")])]).await?;
    let _stream = rig.shows("web:80", &["192.0.2.1:8080"]).await?;
    // Only updates are counted in the lag, not creations.
    rig.set_endpoints("web", &[of_pod("192.0.2.2", "web-1")]).await?;
    for kind in ["endpointslices", "services", "servers", "pods", "externalworkload"] {
        for bound in ["0.5", "1", "2.5", "5", "10", "25", "50", "100", "250", "1000", "+Inf"] {
            let name = format!("{kind}_informer_lag_seconds_bucket");
            ensure!(rig.manager.metric(&name, &[("le", bound)]).await.is_some(), "no {name} up to {bound}");
        }
    }
    eventually(SOON, "the lag of the slice", async || {
        let count = rig.manager.metric("endpointslices_informer_lag_seconds_count", &[]).await;
        ensure!(count.is_some_and(|count| count > 0.0), "{count:?}");
        Ok(())
    })
    .await?;
    for kind in ["endpointslices", "pod", "service", "server", "externalworkload", "node", "replicaset", "job"] {
        let name = format!("{kind}_cache_size");
        let size = rig.manager.metric(&name, &[("cluster", "local")]).await;
        ensure!(size.is_some(), "no {name}");
        let filled = !["pod", "service", "endpointslices", "node"].contains(&kind) || size > Some(0.0);
        ensure!(filled, "{name} is {size:?}");
    }
    // The operator has no such queue, so it never overflows, but dashboards expect the series.
    let samples = rig.manager.metrics().await?;
    let overflow: Vec<_> = samples.iter().filter(|sample| sample.name == "endpoint_updates_queue_overflow").collect();
    ensure!(overflow.len() == 1 && overflow.iter().all(|sample| sample.value == 0.0), "{overflow:?}");
    Ok(())
}

#[tokio::test]
async fn on_sigterm_streams_end_with_ok_and_then_the_process_exits() -> Result<()> {
    let rig = Rig::start("term").await?;
    rig.put_all([service("web"), slice("web", "web", &[address("192.0.2.1")]), service("empty")]).await?;
    let (control_plane, _) = Settings::Helm.manager().await?;
    let mut manager = Manager::start(control_plane, discovery_only(&[]))?;
    manager.ready(SOON).await?;
    let mut streams = Vec::new();
    // On several connections, some of them without further messages.
    for service in ["web", "web", "empty"] {
        let discovery = manager.discovery().await?;
        for _ in 0..5 {
            let mut stream = discovery.get(&rig.path(service), "").await?;
            stream.next().await?;
            streams.push(stream);
        }
    }
    let ends = async {
        for stream in &mut streams {
            assert_eq!(stream.next().await?, None, "the stream must end with OK");
        }
        anyhow::Ok(())
    };
    let (ended, status) = tokio::join!(ends, manager.terminate(STOP));
    ended?;
    ensure!(status?.success());
    Ok(())
}

#[tokio::test]
async fn without_linkerds_crds_it_serves_the_other_kinds_and_adds_them_later() -> Result<()> {
    let own = Own::start().await?;
    let endpoints = [of_pod("192.0.2.1", "web-1"), of_workload("192.0.2.2", "vm"), address("192.0.2.3")];
    own.put_all([service("web"), meshed("web-1"), slice("web", "web", &endpoints)]).await?;
    let mut stream = own.get("web:80").await?;
    let expected = |pod: &str| [("192.0.2.1:8080", pod.to_owned()), ("192.0.2.3:8080", String::new())];
    received::wait_for(&mut stream, traits, expected("h2 4143 identity http2")).await?;
    let (status, body) = own.manager.get("/ready").await?;
    ensure!(status == StatusCode::OK, "{status} {body}");
    own.control_plane.install_crds("crd/linkerd").await?;
    own.put_all([workload("vm"), opaque_server("web", serde_json::json!(8080))]).await?;
    // The new kinds are discovered with backoff, and reach the stream that was open before.
    eventually(BACKED_OFF, "the ExternalWorkload and the Server to take effect", async || {
        let expected = [
            ("192.0.2.1:8080", "opaque 4143 identity http2".to_owned()),
            ("192.0.2.2:8080", "h2 4143 identity http2".to_owned()),
            ("192.0.2.3:8080", String::new()),
        ];
        received::wait_for(&mut stream, traits, expected).await
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn streams_cause_no_api_requests() -> Result<()> {
    let (control_plane, _) = Settings::Helm.manager().await?;
    let rig = Rig::start("cost").await?;
    let here = format!("{}-here", rig.name());
    rig.put_all([
        super::objects::node(&here, Some("here")),
        service("web"),
        meshed("web-1").owned_by("apps/v1", "ReplicaSet", "missing"),
        slice("web", "web", &[of_pod("192.0.2.1", "web-1"), of_workload("192.0.2.2", "missing")]),
    ])
    .await?;
    let proxy = FaultProxy::start(control_plane).await?;
    let options = ManagerOptions { kubeconfig: Some(proxy.kubeconfig().to_owned()), ..discovery_only(&[]) };
    let mut manager = Manager::start(control_plane, options)?;
    manager.ready(SOON).await?;
    let reads = || proxy.log().iter().filter(|request| !request.path.contains("watch=true")).count();
    // One list per kind; missing owners and targets are not requested.
    let before = reads();
    ensure!(before <= 12, "{before} requests besides watches: {:?}", proxy.log());
    let discovery = manager.discovery().await?;
    let mut streams = Vec::new();
    for number in 0..200 {
        let port = 80 + number % 5;
        let node = if number % 2 == 0 { here.as_str() } else { "no-such-node" };
        let mut stream = discovery.get(&rig.path(&format!("web:{port}")), &token("", node)).await?;
        stream.next().await?;
        streams.push(stream);
        discovery.refusal(&rig.path("missing"), "").await?;
    }
    ensure!(reads() == before, "{} requests were sent for 200 streams", reads() - before);
    Ok(())
}

#[tokio::test]
async fn the_granted_permissions_are_sufficient_for_discovery() -> Result<()> {
    let own = Own::with_granted_permissions().await?;
    let (status, body) = own.manager.get("/ready").await?;
    assert_eq!((status, body.as_str()), (StatusCode::OK, "ready\n"));
    own.put_all([
        service("web"),
        replica_set("web-5d4c").owned_by("apps/v1", "Deployment", "web"),
        meshed("web-1").owned_by("apps/v1", "ReplicaSet", "web-5d4c"),
        workload("vm"),
        opaque_server("web", serde_json::json!(8080)),
        slice("web", "web", &[of_pod("192.0.2.1", "web-1"), of_workload("192.0.2.2", "vm")]),
    ])
    .await?;
    let mut stream = own.get("web:80").await?;
    let traits_and_owner = |endpoint: &_| (traits(endpoint), received::labels(endpoint).remove("deployment"));
    let expected = [
        ("192.0.2.1:8080", ("opaque 4143 identity http2".to_owned(), Some("web".to_owned()))),
        ("192.0.2.2:8080", ("h2 4143 identity http2".to_owned(), None)),
    ];
    received::wait_for(&mut stream, traits_and_owner, expected).await?;
    ensure!(!own.manager.log().contains("forbidden"), "{}", own.manager.log());
    Ok(())
}

#[tokio::test]
async fn before_the_first_lists_it_never_reports_a_service_as_missing_or_empty() -> Result<()> {
    let mut control_plane = ControlPlane::start(Options::default()).await?;
    control_plane.stop_api_server(true).await?;
    let manager = Manager::start(&control_plane, discovery_only(&[]))?;
    eventually(SOON, "/ready to fail", async || {
        let (status, body) = manager.get("/ready").await?;
        ensure!(status == StatusCode::SERVICE_UNAVAILABLE, "{status} {body}");
        Ok(())
    })
    .await?;
    // No connection, no response or UNAVAILABLE is allowed, but never NOT_FOUND or an empty set.
    if let Ok(discovery) = Discovery::connect(manager.destination_address()).await {
        let answer = tokio::time::timeout(QUIET, discovery.get("kubernetes.default.svc.cluster.local:443", "")).await;
        match answer {
            Err(_) => {}
            Ok(Err(status)) => ensure!(status.code() == Code::Unavailable, "{status:?}"),
            Ok(Ok(mut stream)) => stream.is_quiet_for(QUIET).await?,
        }
    }
    control_plane.start_api_server().await?;
    eventually(BACKED_OFF, "an answer", async || {
        let discovery = manager.discovery().await?;
        discovery.get("kubernetes.default.svc.cluster.local:443", "").await?;
        Ok(())
    })
    .await
}

#[tokio::test]
async fn without_the_api_server_old_streams_stay_and_new_ones_are_served_from_the_cache() -> Result<()> {
    let mut own = Own::start().await?;
    own.put_all([service("web"), meshed("web-1"), slice("web", "web", &[of_pod("192.0.2.1", "web-1")])]).await?;
    let mut old = own.get("web:80").await?;
    // The stream may have been opened after the Service but before its slice.
    old.shows(&["192.0.2.1:8080"]).await?;
    let before = old.messages.len();
    own.control_plane.stop_api_server(true).await?;
    let mut new = own.get("web:80").await?;
    new.shows(&["192.0.2.1:8080"]).await?;
    old.is_quiet_for(QUIET).await?;
    own.control_plane.start_api_server().await?;
    // A relist of unchanged objects causes no message; a new endpoint arrives.
    own.put_all([slice("more", "web", &[address("192.0.2.2")])]).await?;
    eventually(BACKED_OFF, "the new endpoint", async || old.shows(&["192.0.2.1:8080", "192.0.2.2:8080"]).await).await?;
    ensure!(old.messages.len() == before + 1, "{:?}", old.messages);
    Ok(())
}
