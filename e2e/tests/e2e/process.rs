//! The manager as a process: the conditions that it waits for, its readiness and logs while it waits, and its exit
//! codes.

use std::{net::TcpListener, time::Duration};

use anyhow::{Context, Result, ensure};
use e2e::{
    ManagerOptions, Process, Rig, Spawn, TestNamespace, eventually,
    executable::operator_binary,
    holds,
    manager::STOP,
    mesh::{Mesh, SOON},
    objects::kind,
};
use hyper::StatusCode;
use kube::{
    Api,
    api::{DynamicObject, PostParams},
};
use serde_json::json;

#[tokio::test]
async fn it_waits_for_the_crd_and_the_namespace_and_reports_it() -> Result<()> {
    let control_plane = Rig::bare().start().await?;
    let mut manager = ManagerOptions::default().ready(&control_plane).await?;
    let crds = ["externalworkloads.workload.linkerd.io", "linkerdconfigs.config.linkerd.io"];
    let waiting = eventually(SOON, "/ready to report the missing CRDs and namespace", async || {
        let (status, body) = manager.get("/ready").await?;
        ensure!(status == StatusCode::OK, "{status}: a missing CRD must only block its own job");
        ensure!(crds.iter().all(|crd| body.contains(crd)) && body.contains("namespace linkerd"), "{body}");
        Ok(body)
    })
    .await?;
    assert!(waiting.contains("make install"), "{waiting}");
    let not_served = async |crd: &str, count: f64| {
        manager.counts("linkerd_operator_watch_not_served", &[("resource", crd)], count).await
    };
    not_served(crds[1], 1.0).await?;

    for folder in ["crd/linkerd", "crd"] {
        control_plane.install_crds(folder).await?;
    }
    control_plane.create_namespaces(&["linkerd"]).await?;
    let client = &control_plane.client;
    let mesh = Mesh::new(client, "default");
    mesh.put_web_over_vm().await?;
    let config = DynamicObject::new("mesh", &kind("config.linkerd.io/v1alpha1", "LinkerdConfig"));
    let configs = Api::<DynamicObject>::all_with(client.clone(), &kind("config.linkerd.io/v1alpha1", "LinkerdConfig"));
    configs.create(&PostParams::default(), &config.data(json!({"spec": {}}))).await?;
    eventually(SOON, "a status of the LinkerdConfig", async || {
        let status = configs.get("mesh").await?.data["status"].take();
        ensure!(status.to_string().contains("TargetNotFound"), "{status}");
        Ok(())
    })
    .await?;
    not_served(crds[1], 0.0).await?;
    manager.is_well(SOON).await?;
    assert!(manager.is_running());

    // One line per change, not per attempt.
    let log = manager.log();
    assert_eq!(
        log.matches("the API server does not serve this kind").count(),
        5,
        "one line for each of the five CRDs: {log}"
    );
    assert_eq!(
        log.matches("cannot take part in the election").count(),
        2,
        "one line for each of the two Leases: {log}"
    );
    Ok(())
}

#[tokio::test]
async fn it_waits_for_an_unavailable_api_server_and_is_not_ready_before_the_first_lists() -> Result<()> {
    let mut control_plane = Rig::bare().start().await?;
    control_plane.stop_api_server(true).await?;
    let manager = ManagerOptions::default().start(&control_plane)?;
    let body = eventually(SOON, "/ready to report the reason", async || {
        let (status, body) = manager.get("/ready").await?;
        ensure!(
            status == StatusCode::SERVICE_UNAVAILABLE && body.contains("cannot list or watch services"),
            "{status} {body}"
        );
        Ok(body)
    })
    .await?;
    assert!(body.starts_with("not ready\n"), "{body}");
    assert_eq!(manager.get("/live").await?.0, StatusCode::OK);
    control_plane.start_api_server().await?;
    eventually(Duration::from_secs(40), "readiness", async || {
        let (status, body) = manager.get("/ready").await?;
        ensure!(status == StatusCode::OK, "{body}");
        Ok(())
    })
    .await
}

#[tokio::test]
async fn the_admin_server_answers_probes_and_refuses_the_rest() -> Result<()> {
    let control_plane = Rig::bare().start().await?;
    let manager = ManagerOptions::default().ready(&control_plane).await?;
    assert_eq!(manager.get("/ping").await?, (StatusCode::OK, "pong\n".to_owned()));
    assert_eq!(manager.get("/live").await?.0, StatusCode::OK);
    assert_eq!(manager.get("/nothing").await?.0, StatusCode::NOT_FOUND);
    let metrics = manager.get("/metrics").await?.1;
    for name in [
        "workqueue_depth{name=\"endpoints_controller_workqueue\"}",
        "workqueue_adds_total",
        "workqueue_queue_duration_seconds_bucket",
        "workqueue_work_duration_seconds_bucket",
        "workqueue_unfinished_work_seconds",
        "workqueue_longest_running_processor_seconds",
        "workqueue_retries_total",
        "workqueue_drops_total",
        "externalworkload_cache_size{cluster=\"local\"} 0",
        "externalworkload_informer_lag_seconds_bucket",
        "linkerd_operator_endpointslice_writes_total{result=\"ok\",verb=\"create\"} 0",
        "linkerd_operator_external_workload_endpoints{ready=\"true\"} 0",
        "linkerd_operator_events_sent_total{reason=\"Published\"} 0",
        "linkerd_operator_events_dropped_total{cause=\"denied\"} 0",
        "linkerd_operator_leader{lease=\"linkerd-destination-endpoint-write\"}",
        "process_resident_memory_bytes",
    ] {
        assert!(metrics.lines().any(|line| line.starts_with(name)), "no {name} in\n{metrics}");
    }
    Ok(())
}

#[tokio::test]
async fn on_sigterm_it_releases_its_leases_and_exits_with_0() -> Result<()> {
    let control_plane = Rig::bare().namespace("linkerd").start().await?;
    let mut manager = ManagerOptions::default().start(&control_plane)?;
    // Each job has a separate Lease. The last one is in the operator's namespace, where earlier versions hold it.
    let leases = [
        ("linkerd", "linkerd-destination-endpoint-write"),
        ("linkerd", "linkerd-operator"),
        ("default", "linkerd-operator"),
    ];
    eventually(SOON, "leadership of both jobs", async || {
        for (_, lease) in leases {
            ensure!(manager.is_leading(lease).await, "the manager does not hold {lease}");
        }
        Ok(())
    })
    .await?;
    let status = manager.terminate(STOP).await?;
    assert!(status.success(), "{status}");
    for (namespace, lease) in leases {
        let holder = "-o=jsonpath={.spec.holderIdentity}";
        let holder = control_plane.kubectl(&["-n", namespace, "get", "lease", lease, holder]).await?;
        assert_eq!(holder, "", "{namespace}/{lease}");
    }
    Ok(())
}

#[tokio::test]
async fn a_disabled_job_watches_no_kind_and_takes_no_lease() -> Result<()> {
    let control_plane = Rig::bare().namespace("linkerd").start().await?;
    let off = ["--enable-external-workload=false", "--enable-linkerd-config=false", "--enable-destination=false"];
    let manager = ManagerOptions::new(off).ready(&control_plane).await?;
    manager.has_no_problem().await?;
    // No kind is watched.
    manager.counts("linkerd_operator_watch_events_total", &[], None).await?;
    holds(Duration::from_secs(2), "no Lease", async || {
        let leases = control_plane.kubectl(&["-n", "linkerd", "get", "leases", "-o=name"]).await?;
        ensure!(leases.is_empty(), "{leases}");
        Ok(())
    })
    .await
}

#[tokio::test]
async fn bad_flags_an_unreadable_kubeconfig_and_a_taken_port_end_it_with_an_error() -> Result<()> {
    let control_plane = Rig::bare().start().await?;
    let refused = async |options: ManagerOptions, code: i32, sentence: &str| -> Result<()> {
        let mut manager = options.start(&control_plane)?;
        let status = manager.wait(SOON).await?;
        let log = manager.log();
        ensure!(status.code() == Some(code), "{status}: {log}");
        ensure!(log.contains(sentence), "{log}");
        Ok(())
    };
    refused(ManagerOptions::new(["--no-such-flag"]), 2, "--no-such-flag").await?;
    refused(ManagerOptions::new(["--leader-election-renew-deadline=40s"]), 64, "two replicas could write").await?;
    refused(ManagerOptions::new(["--log-level=linkerd_operator=loud"]), 2, "--log-level").await?;
    refused(
        ManagerOptions::new(["--kubeconfig=/nowhere/kubeconfig"]),
        1,
        "cannot read the kubeconfig /nowhere/kubeconfig",
    )
    .await?;
    let taken = TcpListener::bind("127.0.0.1:0")?;
    let address = taken.local_addr()?;
    refused(ManagerOptions::new([&format!("--admin-addr={address}")]), 1, "choose another --admin-addr").await
}

#[tokio::test]
async fn outside_a_pod_it_does_not_guess_the_operators_namespace() -> Result<()> {
    let control_plane = Rig::bare().start().await?;
    let log = control_plane.directory().join("without-namespace.log");
    let kubeconfig = format!("--kubeconfig={}", control_plane.kubeconfig().display());
    let binary = operator_binary()?;
    let args = ["manager".to_owned(), kubeconfig, "--admin-addr=127.0.0.1:0".to_owned()];
    let mut manager = Process::spawn(Spawn::new("manager", binary, log).args(args))?;
    let status = manager.wait(SOON).await?;
    let log = manager.log();
    ensure!(status.code() == Some(1), "{status}: {log}");
    ensure!(log.contains("set --operator-namespace, for example to linkerd-operator-system"), "{log}");
    let leases = control_plane.kubectl(&["get", "leases", "--all-namespaces", "-o=name"]).await?;
    ensure!(!leases.contains("linkerd-operator"), "{leases}");
    Ok(())
}

/// Cargo compiles the settings in, if it reads its configuration.
#[tokio::test]
async fn its_allocator_has_two_arenas_and_returns_memory_after_a_second() -> Result<()> {
    let binary = operator_binary()?;
    let mut command = tokio::process::Command::new(binary);
    // jemalloc prints its settings when the process ends.
    let output = command.arg("--version").env("_RJEM_MALLOC_CONF", "stats_print:true").kill_on_drop(true).output();
    let output = tokio::time::timeout(SOON, output).await.context("the process to end")??;
    let settings = String::from_utf8_lossy(&output.stderr);
    for setting in
        ["narenas: 2\n", "dirty_decay_ms: 1000 ", "muzzy_decay_ms: 0 ", "retain: false\n", "background_thread: true "]
    {
        ensure!(settings.contains(&format!("opt.{setting}")), "{setting}: {settings}");
    }
    Ok(())
}

#[tokio::test]
async fn logs_in_json_have_stable_fields() -> Result<()> {
    let control_plane = Rig::bare().start().await?;
    let mut manager = ManagerOptions::new(["--log-format=json"]).ready(&control_plane).await?;
    manager.terminate(STOP).await?;
    let log = manager.log();
    for line in log.lines() {
        let line: serde_json::Value = serde_json::from_str(line).with_context(|| line.to_owned())?;
        ensure!(line["level"].is_string() && line["message"].is_string() && line["timestamp"].is_string(), "{line}");
    }
    ensure!(log.contains(r#""resource":"services""#), "{log}");
    Ok(())
}

#[tokio::test]
async fn undecodable_objects_do_not_affect_others_d33() -> Result<()> {
    let control_plane = Rig::linkerd().start().await?;
    let client = &control_plane.client;
    // A schema that accepts any object, as in an older or broken installation.
    let any = json!({"spec": {"versions": [
        {"name": "v1alpha1", "served": false, "storage": false, "schema": {"openAPIV3Schema": {"type": "object"}}},
        {"name": "v1beta1", "served": true, "storage": true, "subresources": {"status": {}},
         "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}}}]}});
    let crd = "externalworkloads.workload.linkerd.io";
    control_plane.kubectl(&["patch", "crd", crd, "--type=merge", "-p", &any.to_string()]).await?;
    let namespace = TestNamespace::create(client, "d33").await?;
    let mesh = Mesh::new(client, namespace.name());
    mesh.put_service("web", json!({})).await?;
    let put_object = async |name: &str, object: serde_json::Value| {
        eventually(SOON, "the new schema to be in force", async || {
            mesh.put_workload_with(name, "web", object.clone()).await
        })
        .await
    };
    put_object("bad-list", json!({"spec": {"workloadIPs": "none"}})).await?;
    put_object("bad-ports", json!({"spec": {"ports": {"http": 80}, "workloadIPs": [{"ip": "192.0.2.9"}]}})).await?;
    put_object("bad-spec", json!({"spec": 7})).await?;
    put_object(
        "odd-but-readable",
        json!({"spec": {"workloadIPs": [{"ip": "192.0.2.8"}], "meshTLS": null}, "status": {}}),
    )
    .await?;
    let manager = ManagerOptions::default().start(&control_plane)?;
    mesh.put_workload("good", "web", &["192.0.2.4"]).await?;
    // The bad objects arrive in the first list, and later through the watch.
    mesh.shows("web", &[("good", true), ("odd-but-readable", false)]).await?;
    put_object("bad-later", json!({"spec": {"workloadIPs": {}}})).await?;
    mesh.put_workload("good-later", "web", &["192.0.2.5"]).await?;
    mesh.shows("web", &[("good", true), ("good-later", true), ("odd-but-readable", false)]).await?;
    // An object that becomes unreadable keeps its last readable state until it is deleted.
    mesh.patch_workload("good", json!({"spec": {"ports": "none"}})).await?;
    mesh.delete_workload("odd-but-readable").await?;
    mesh.shows("web", &[("good", true), ("good-later", true)]).await?;
    mesh.delete_workload("good").await?;
    mesh.shows("web", &[("good-later", true)]).await?;
    let labels = [("resource", "externalworkloads.workload.linkerd.io")];
    let counted = manager.metric("linkerd_operator_undecodable_objects_total", &labels).await.unwrap_or_default();
    ensure!(counted >= 5.0, "only {counted} undecodable objects are counted");
    ensure!(manager.log().contains("object="), "the log must name the objects");
    Ok(())
}
