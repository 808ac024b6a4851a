//! The metrics of the server, and a dedicated control plane for tests of the process.

use std::{ops::Deref, time::Duration};

use anyhow::{Result, ensure};
use e2e::{FaultProxy, Job, Manager, ManagerOptions, Rig, discovery::Endpoints, eventually, mesh::SOON};
use serde_json::json;

use super::{
    Objects, Served,
    objects::{address, meshed, of_pod, service, service_profile, slice},
};

/// Longer than the maximum backoff between two attempts to reach a CRD or the API server.
pub(crate) const BACKED_OFF: Duration = Duration::from_secs(90);
const SERVICE: &str = "io.linkerd.proxy.destination.Destination";

/// The options of a manager that reaches the API server through a fault proxy.
pub(crate) fn discovery_through(proxy: &FaultProxy) -> ManagerOptions {
    ManagerOptions::only(Job::Destination).through(proxy)
}

/// A dedicated control plane without Linkerd, and its manager, for tests that cannot share them.
pub(crate) struct Own {
    pub(crate) control_plane: Rig,
    pub(crate) manager: Manager,
    objects: Objects,
}

impl Own {
    pub(crate) async fn start() -> Result<Self> {
        let control_plane = Rig::bare().start().await?;
        let objects = Objects::create_in(&control_plane.client, "own").await?;
        let manager = ManagerOptions::only(Job::Destination).ready(&control_plane).await?;
        Ok(Self { control_plane, manager, objects })
    }

    /// Adds Linkerd's CRDs, and starts a manager with only the permissions that the manifests grant to discovery.
    pub(crate) async fn with_granted_permissions() -> Result<Self> {
        let mut own = Self::start().await?;
        own.control_plane.install_crds("crd/linkerd").await?;
        own.control_plane.create_namespaces(&["linkerd"]).await?;
        own.control_plane.deploy_without_manager(&["linkerd-operator-destination"]).await?;
        let kubeconfig = own.control_plane.operator_kubeconfig().await?;
        own.manager = ManagerOptions::only(Job::Destination).kubeconfig(kubeconfig).ready(&own.control_plane).await?;
        Ok(own)
    }

    /// Opens a stream as soon as the Service is served.
    pub(crate) async fn get(&self, service_and_port: &str) -> Result<Endpoints> {
        let path = self.path(service_and_port);
        eventually(SOON, format_args!("{path} to be answered"), async || {
            Ok(self.manager.discovery().await?.get(&path, "").await?)
        })
        .await
    }
}

impl Deref for Own {
    type Target = Objects;

    fn deref(&self) -> &Objects {
        &self.objects
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
async fn the_series_of_a_service_exist_as_long_as_its_streams() -> Result<()> {
    let rig = Served::start("series").await?;
    let of_web = [("cluster", "local"), ("namespace", rig.name()), ("service", "web"), ("port", "80")];
    let mesh = [service("web"), meshed("web-1"), meshed("web-2"), service("empty")];
    let endpoints = |service: &str| {
        let named = super::objects::but(of_pod("192.0.2.2", "web-2"), json!({"hostname": "web-2"}));
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
    let of_all = [&of_web[..], &[("hostname", "")]].concat();
    let of_one = [&of_web[..], &[("hostname", "web-2")]].concat();
    let of_empty =
        [("cluster", "local"), ("namespace", rig.name()), ("service", "empty"), ("port", "80"), ("hostname", "")];
    for (labels, subscribers, pods, exists) in
        [(&of_all[..], 2.0, 2.0, 1.0), (&of_one, 1.0, 1.0, 1.0), (&of_empty, 1.0, 0.0, 1.0)]
    {
        rig.manager.counts("endpoints_subscribers", labels, Some(subscribers)).await?;
        rig.manager.counts("endpoints_pods", labels, Some(pods)).await?;
        rig.manager.counts("endpoints_exists", labels, Some(exists)).await?;
        ensure!(rig.manager.metric("endpoints_updates", labels).await.is_some(), "no endpoints_updates{labels:?}");
    }
    for labels in [("port", "9999"), ("hostname", "unknown")] {
        rig.manager.counts("endpoints_subscribers", &[("namespace", rig.name()), labels], None).await?;
    }
    // The Service exists and is empty. After its deletion it does not exist.
    rig.delete("Service", "empty").await?;
    rig.manager.counts("endpoints_exists", &of_empty, Some(0.0)).await?;
    let before = rig.manager.metric("endpoints_updates", &of_all).await.unwrap_or_default();
    rig.set_endpoints("web", &[of_pod("192.0.2.1", "web-1")]).await?;
    rig.manager.counts("endpoints_pods", &of_all, Some(1.0)).await?;
    ensure!(
        rig.manager.metric("endpoints_updates", &of_all).await.is_some_and(|now| now > before),
        "no update counted"
    );
    drop(first);
    rig.manager.counts("endpoints_subscribers", &of_all, Some(1.0)).await?;
    drop((second, instance, empty, invented));
    for name in ["endpoints_subscribers", "endpoints_pods", "endpoints_exists", "endpoints_updates"] {
        rig.manager.counts(name, &[("namespace", rig.name())], None).await?;
    }
    Ok(())
}

#[tokio::test]
async fn calls_are_counted_by_status_code() -> Result<()> {
    let rig = Served::start("calls").await?;
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
    let rig = Served::start("always").await?;
    let profile = service_profile(&format!("web.{}.svc.cluster.local", rig.name()), json!({"routes": []}));
    rig.put_all([service("web"), meshed("web-1"), profile, slice("web", "web", &[of_pod("192.0.2.1", "web-1")])])
        .await?;
    let _stream = rig.shows("web:80", &["192.0.2.1:8080"]).await?;
    // Only updates are counted in the lag, not creations.
    rig.set_endpoints("web", &[of_pod("192.0.2.2", "web-1")]).await?;
    for kind in ["endpointslices", "services", "servers", "pods", "externalworkload", "serviceprofiles"] {
        for bound in ["0.5", "1", "2.5", "5", "10", "25", "50", "100", "250", "1000", "+Inf"] {
            let name = format!("{kind}_informer_lag_seconds_bucket");
            ensure!(rig.manager.metric(&name, &[("le", bound)]).await.is_some(), "no {name} up to {bound}");
        }
    }
    rig.manager.measures("endpointslices_informer_lag_seconds_count", &[], |count| count > Some(0.0)).await?;
    for kind in ["endpointslices", "pod", "service", "serviceprofile", "node"] {
        let name = format!("{kind}_cache_size");
        rig.manager.measures(&name, &[("cluster", "local")], |size| size > Some(0.0)).await?;
    }
    for kind in ["server", "externalworkload", "replicaset", "job"] {
        let name = format!("{kind}_cache_size");
        ensure!(rig.manager.metric(&name, &[("cluster", "local")]).await.is_some(), "no {name}");
    }
    // The operator has no such queues, so they never overflow, but dashboards expect the series.
    let samples = rig.manager.metrics().await?;
    for queue in ["endpoint_updates", "profile_updates", "endpoint_profile_updates"] {
        let name = format!("{queue}_queue_overflow");
        let series: Vec<_> = samples.iter().filter(|sample| sample.name == name).collect();
        ensure!(series.len() == 1 && series.iter().all(|sample| sample.value == 0.0), "{name}: {series:?}");
    }
    Ok(())
}
