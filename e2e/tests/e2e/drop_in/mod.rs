//! The operator in place of the `destination` container of Linkerd's Deployment: its arguments, ServiceAccount and
//! Lease.

use std::{
    path::{Path, PathBuf},
    process::ExitStatus,
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use e2e::{
    Manager, ManagerOptions, Rig, Signal, eventually, holds,
    linkerd_controller::CHART_FLAGS,
    mesh::{Mesh, SOON},
};
use hyper::StatusCode;
use serde_json::{Value, json};

const LEASE: &str = "linkerd-destination-endpoint-write";
const ACCOUNT: &str = "linkerd-destination";
/// The host name that Kubernetes sets for all replicas of a Deployment with `spec.hostname`.
const HOSTNAME: &str = "linkerd-destination";
/// Maximum time until a new token is used; kube reads the token file once a minute.
const REREAD: Duration = Duration::from_secs(100);

/// A rig with the ServiceAccount of Linkerd's destination.
struct Installed {
    control_plane: Rig,
    mesh: Mesh,
}

impl Installed {
    async fn start() -> Result<Self> {
        let control_plane = Rig::linkerd().start().await?;
        let granted = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/e2e/drop_in/rbac.yaml").display().to_string();
        control_plane.kubectl(&["apply", "-f", &granted]).await?;
        let mesh = Mesh::new(&control_plane.client, "default");
        Ok(Self { control_plane, mesh })
    }

    async fn unready(&self, more: &[&str]) -> Result<Manager> {
        let account = self.control_plane.kubeconfig_for_service_account("linkerd", ACCOUNT).await?;
        self.start_with(account, more)
    }

    fn start_with(&self, account: PathBuf, more: &[&str]) -> Result<Manager> {
        self.start_in(account, more, &[])
    }

    fn start_in(&self, account: PathBuf, more: &[&str], environment: &[(&str, &str)]) -> Result<Manager> {
        let hostname = [("HOSTNAME", HOSTNAME)];
        let env = hostname.iter().chain(environment).map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        let options = ManagerOptions {
            env: env.collect(),
            as_linkerd_destination: true,
            ..ManagerOptions::new(CHART_FLAGS.iter().chain(more).copied()).kubeconfig(account)
        };
        options.start(&self.control_plane)
    }

    async fn drop_in(&self) -> Result<Manager> {
        let mut manager = self.unready(&[]).await?;
        manager.ready(SOON).await?;
        Ok(manager)
    }

    async fn holder(&self) -> Result<String> {
        let holder = "-o=jsonpath={.spec.holderIdentity}";
        self.control_plane.kubectl(&["-n=linkerd", "get", "lease", LEASE, holder]).await
    }

    fn path(&self) -> String {
        format!("web.{}.svc.cluster.local:80", self.mesh.namespace())
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn it_does_both_jobs_of_linkerds_container_with_its_permissions() -> Result<()> {
    let installed = Installed::start().await?;
    let mut manager = installed.drop_in().await?;
    installed.mesh.put_web_over_vm().await?;
    installed.mesh.shows("web", &[("vm", true)]).await?;
    // The stream stays open, because some series are deleted with the last stream.
    let mut stream = manager.discovery().await?.get(&installed.path(), "").await?;
    stream.shows(&["192.0.2.4:80"]).await?;
    assert!(manager.is_leading(LEASE).await && !installed.holder().await?.is_empty());
    for (path, text) in [("/ping", "pong\n"), ("/ready", "ready\n"), ("/live", "")] {
        let (status, body) = manager.get(path).await?;
        assert!(status == StatusCode::OK && body.starts_with(text), "{path}: {status} {body}");
    }
    for name in ["endpoints_subscribers", "grpc_server_started_total", "services_informer_lag_seconds_count"] {
        assert!(manager.metric(name, &[]).await.is_some(), "Linkerd's dashboards use {name}");
    }
    // Only Events are denied, because Linkerd's container does not write any; the operator logs this once.
    let denied = eventually(SOON, "an Event to be denied", async || {
        let mut samples = manager.metrics().await?;
        samples.retain(|it| it.name == "http_client_requests_total" && it.has(&[("code", "403")]) && it.value > 0.0);
        ensure!(!samples.is_empty(), "no request was denied");
        Ok(samples)
    })
    .await?;
    assert!(denied.iter().all(|sample| sample.has(&[("method", "post")])), "other requests are denied too: {denied:?}");
    let counted =
        manager.metrics().await?.into_iter().filter(|it| it.name == "linkerd_operator_forbidden_requests_total");
    for sample in counted {
        assert!(sample.has(&[("resource", "events.events.k8s.io")]), "{sample:?}");
    }
    assert!(manager.log().matches("Events are denied").count() <= 1, "{}", manager.log());
    assert!(manager.terminate(SOON).await?.success());
    assert_eq!(installed.holder().await?, "", "the Lease must be released");
    Ok(())
}

/// A kube-scheduler stands in for Linkerd's replica: both elect with client-go.
#[tokio::test(flavor = "multi_thread")]
async fn while_a_linkerd_replica_holds_the_lease_it_serves_but_does_not_write() -> Result<()> {
    let installed = Installed::start().await?;
    let mut theirs = installed.control_plane.start_elector("linkerd", LEASE)?;
    eventually(SOON, "Linkerd's replica to hold the Lease", async || {
        ensure!(!installed.holder().await?.is_empty(), "the Lease has no holder");
        Ok(())
    })
    .await?;
    let manager = installed.drop_in().await?;
    installed.mesh.put_service("web", json!({})).await?;
    installed.mesh.put_workload("vm", "web", &["192.0.2.4"]).await?;
    let slice = json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
        "metadata": {"name": "by-hand", "labels": {"kubernetes.io/service-name": "web"}},
        "ports": [{"name": "http", "port": 8080}], "endpoints": [{"addresses": ["192.0.2.77"]}],
    });
    installed.mesh.slices.create(&kube::api::PostParams::default(), &serde_json::from_value(slice)?).await?;
    let path = installed.path();
    let mut stream =
        eventually(SOON, "the Service to be served", async || Ok(manager.discovery().await?.get(&path, "").await?))
            .await?;
    stream.shows(&["192.0.2.77:8080"]).await?;
    holds(Duration::from_secs(4), "the manager to write no slice", async || {
        let ours = installed.mesh.our_slices("web").await?;
        ensure!(ours.is_empty() && !manager.is_leading(LEASE).await, "{ours:?}");
        Ok(())
    })
    .await?;

    theirs.signal(Signal::TERM)?;
    theirs.wait(SOON).await?;
    installed.mesh.shows("web", &[("vm", true)]).await?;
    assert!(manager.is_leading(LEASE).await && !installed.holder().await?.is_empty());
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn of_two_replicas_with_one_host_name_exactly_one_leads() -> Result<()> {
    let installed = Installed::start().await?;
    let replicas = [installed.drop_in().await?, installed.drop_in().await?];
    let one_leads = async || {
        let leading = [replicas[0].is_leading(LEASE).await, replicas[1].is_leading(LEASE).await];
        ensure!(leading[0] != leading[1], "leading: {leading:?}");
        Ok(())
    };
    eventually(SOON, "a replica to lead", one_leads).await?;
    holds(Duration::from_secs(5), "exactly one replica to lead", one_leads).await
}

/// Tokens of Pods are valid for 3607 seconds, and the kubelet writes a new token into the same file before that. This
/// test recreates the ServiceAccount, which invalidates the old token immediately.
#[tokio::test(flavor = "multi_thread")]
async fn a_token_that_is_replaced_in_its_file_is_read_again() -> Result<()> {
    let installed = Installed::start().await?;
    let control_plane = &installed.control_plane;
    let (file, first) =
        (control_plane.directory().join("token"), control_plane.service_account_token("linkerd", ACCOUNT).await?);
    tokio::fs::write(&file, &first).await?;
    let mut kubeconfig: Value = serde_json::from_slice(&tokio::fs::read(control_plane.kubeconfig()).await?)?;
    let user = kubeconfig.pointer_mut("/users/0/user").context("a kubeconfig without a user")?;
    *user = json!({ "tokenFile": file });
    let path = control_plane.directory().join("kubeconfig-token-file");
    tokio::fs::write(&path, kubeconfig.to_string()).await?;
    let mut manager = installed.start_with(path, &[])?;
    manager.ready(SOON).await?;
    installed.mesh.put_web_over_vm().await?;

    control_plane.kubectl(&["-n=linkerd", "delete", "serviceaccount", ACCOUNT]).await?;
    control_plane.kubectl(&["-n=linkerd", "create", "serviceaccount", ACCOUNT]).await?;
    tokio::fs::write(&file, control_plane.service_account_token("linkerd", ACCOUNT).await?).await?;
    // The API server caches successful authentications for some seconds.
    eventually(SOON, "the old token to be refused", async || {
        let answer = control_plane.kubectl(&["--token", &first, "get", "--raw", "/version"]).await;
        ensure!(answer.is_err(), "{answer:?}");
        Ok(())
    })
    .await?;
    installed.mesh.set_ready("vm", false).await?;
    eventually(REREAD, "a write with the new token", async || {
        let readiness = installed.mesh.readiness("web").await?;
        ensure!(readiness.get("vm") == Some(&false), "{readiness:?}");
        Ok(())
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn if_other_clusters_are_not_served_it_does_not_become_ready_while_services_of_them_exist_unless_it_is_told_so()
-> Result<()> {
    const UNSUPPORTED: &str = "linkerd_operator_unsupported_services";
    let installed = Installed::start().await?;
    installed.mesh.put_service("web", json!({})).await?;
    installed.mesh.put_service("east", json!({})).await?;
    installed.mesh.put_service("both", json!({})).await?;
    let remote = json!({"metadata": {"labels": {"multicluster.linkerd.io/remote-discovery": "east"}}});
    installed.mesh.patch_service("east", remote).await?;
    let federated = json!({"metadata": {"annotations": {"multicluster.linkerd.io/remote-discovery": "both@east"}}});
    installed.mesh.patch_service("both", federated).await?;
    let account = || installed.control_plane.kubeconfig_for_service_account("linkerd", ACCOUNT);
    let mut cautious =
        installed.start_in(account().await?, &[], &[("LINKERD_OPERATOR_ENABLE_MULTICLUSTER", "false")])?;
    eventually(SOON, "/ready to name the reason", async || {
        let (status, body) = cautious.get("/ready").await?;
        let is_named = body.contains("Services that are joined from other clusters exist");
        ensure!(status == StatusCode::SERVICE_UNAVAILABLE && is_named, "{status} {body}");
        Ok(())
    })
    .await?;
    let allowed =
        [("LINKERD_OPERATOR_ENABLE_MULTICLUSTER", "false"), ("LINKERD_OPERATOR_ALLOW_UNSUPPORTED_SERVICES", "true")];
    let mut manager = installed.start_in(account().await?, &[], &allowed)?;
    manager.ready(SOON).await?;
    let lines = || manager.log().matches("Services that are joined from other clusters exist").count();
    eventually(SOON, "the log line", async || {
        ensure!(lines() == 1, "{}", manager.log());
        Ok(())
    })
    .await?;
    for kind in ["remote_discovery", "federated"] {
        assert_eq!(manager.metric(UNSUPPORTED, &[("kind", kind)]).await, Some(1.0), "{kind}");
    }
    for service in ["east", "both"] {
        let unset = json!({"metadata": {"labels": {"multicluster.linkerd.io/remote-discovery": null}, "annotations": {"multicluster.linkerd.io/remote-discovery": null}}});
        installed.mesh.patch_service(service, unset).await?;
    }
    manager.counts(UNSUPPORTED, &[], 0.0).await?;
    assert_eq!(lines(), 1);
    cautious.ready(SOON).await?;
    // A later Service is reported, and takes discovery from no proxy.
    let federated = json!({"metadata": {"annotations": {"multicluster.linkerd.io/remote-discovery": "both@east"}}});
    installed.mesh.patch_service("both", federated).await?;
    eventually(SOON, "/ready to name the later Service and to succeed", async || {
        let (status, body) = cautious.get("/ready").await?;
        let is_named = body.contains("Services that are joined from other clusters exist");
        ensure!(status == StatusCode::OK && is_named, "{status} {body}");
        Ok(())
    })
    .await
}

#[tokio::test]
async fn it_exits_with_the_codes_of_linkerds_container() -> Result<()> {
    let installed = Installed::start().await?;
    let ended = async |flags: &[&str]| -> Result<(ExitStatus, String)> {
        let mut manager = installed.unready(flags).await?;
        Ok((manager.wait(SOON).await?, manager.log()))
    };
    let (status, log) = ended(&["-strict-flags", "-no-such-flag=1"]).await?;
    assert!(status.code() == Some(2) && log.contains("-no-such-flag") && log.contains("Usage: "), "{log}");
    let (status, log) = ended(&["-version"]).await?;
    assert!(status.success() && log.starts_with(env!("CARGO_PKG_VERSION")), "{status} {log}");
    let (status, log) = ended(&["-enable-endpoint-slices=false"]).await?;
    assert!(status.code() == Some(1) && log.contains("EndpointSlices"), "{status} {log}");
    Ok(())
}

#[tokio::test]
async fn it_runs_with_a_flag_of_a_newer_chart_and_names_it_in_the_log() -> Result<()> {
    let installed = Installed::start().await?;
    let mut manager = installed.unready(&["-no-such-flag=1"]).await?;
    manager.ready(SOON).await?;
    assert!(manager.log().contains("-no-such-flag is unknown to linkerd-operator and is ignored"), "{}", manager.log());
    Ok(())
}
