//! `linkerd-operator check`, run as a user runs it, against a real API server, which forwards requests to the replica.
//!
//! The test has a dedicated control plane, because the Leases, the CRDs and the LinkerdConfigs are those of a cluster.

use std::{net::IpAddr, time::Duration};

use anyhow::{Context, Result, ensure};
use e2e::{ControlPlane, ManagerOptions, Rig, command::Ended, eventually, injector::machine_address, link::link, port};
use serde_json::{Value, json};

const NAMESPACE: &str = "linkerd-operator-system";
/// Longer than the command waits.
const DEADLINE: Duration = Duration::from_secs(90);
/// The flags that `linkerd check` passes to its extensions.
const FLAGS_OF_LINKERD: [&str; 7] = [
    "--linkerd-namespace=linkerd",
    "--namespace=app",
    "--proxy=false",
    "--verbose=false",
    "--wait=1s",
    "--as-group=[]",
    "--output=json",
];

async fn check(control_plane: &ControlPlane, args: &[&str]) -> Result<Ended> {
    let kubeconfig = control_plane.kubeconfig().display().to_string();
    Ended::operator(&[&["check", "--kubeconfig", &kubeconfig], args].concat(), DEADLINE).await
}

/// The Pod of a replica.
pub(crate) struct ReplicaPod {
    pub(crate) node: &'static str,
    pub(crate) namespace: &'static str,
    pub(crate) name: &'static str,
    pub(crate) label: (&'static str, &'static str),
    pub(crate) container: &'static str,
    pub(crate) port_name: &'static str,
    pub(crate) phase: &'static str,
}

/// A Pod of the operator's own Deployment.
const REPLICA: ReplicaPod = ReplicaPod {
    node: "none",
    namespace: NAMESPACE,
    name: "replica",
    label: ("app.kubernetes.io/name", "linkerd-operator"),
    container: "manager",
    port_name: "admin",
    phase: "Running",
};

// === impl ReplicaPod ===

impl ReplicaPod {
    /// Creates the Pod in the state that its kubelet would write.
    pub(crate) async fn create(&self, control_plane: &ControlPlane, address: IpAddr, port: u16) -> Result<()> {
        let Self { node, namespace, name, label: (label, value), container, port_name, phase } = self;
        let ports = json!([{"name": port_name, "containerPort": port}]);
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": name, "namespace": namespace, "labels": {*label: value}},
            "spec": {"nodeName": node, "serviceAccountName": "default", "containers": [
                {"name": container, "image": "linkerd-operator", "ports": ports},
            ]},
        });
        control_plane.apply(&[pod]).await?;
        let status = json!({"status": {"phase": phase, "podIP": address, "podIPs": [{"ip": address}]}}).to_string();
        let patch = ["-n", namespace, "patch", "pod", name, "--subresource=status", "--type=merge", "-p", &status];
        control_plane.kubectl(&patch).await.map(drop)
    }
}

#[tokio::test]
async fn check_names_what_is_missing_before_and_after_the_installation_and_succeeds_when_all_is_there() -> Result<()> {
    let control_plane = Rig::bare().namespace("linkerd").namespace(NAMESPACE).start().await?;

    let missing = check(&control_plane, &["--pre"]).await?;
    missing.has(&[
        "‼ Linkerd's control plane is installed\n    there is no ConfigMap linkerd-config",
        "√ can create services",
        "√ can create validatingadmissionpolicybindings",
    ])?;
    missing.has(&["‼ the CRD servers.policy.linkerd.io exists", "Status check results are √"])?;
    ensure!(missing.code == Some(0), "{}", missing.stdout);
    let values = "--from-literal=values=proxy: {}";
    control_plane.kubectl(&["-n", "linkerd", "create", "configmap", "linkerd-config", values]).await?;
    let prepared = check(&control_plane, &["--pre"]).await?;
    prepared.has(&["√ Linkerd's control plane is installed", "Status check results are √"])?;
    ensure!(prepared.code == Some(0), "{}", prepared.stdout);

    let absent = check(&control_plane, &[]).await?;
    absent.has(&["× the operator is installed", "there is no Pod of the operator"])?;
    ensure!(absent.code == Some(1), "{}", absent.stdout);

    control_plane.install_crds("crd").await?;
    control_plane.install_crds("crd/linkerd").await?;
    let (address, port) = (machine_address()?, port::free()?);
    let args = [
        &format!("--admin-addr=0.0.0.0:{port}"),
        "--enable-multicluster",
        "--operator-namespace=linkerd-operator-system",
    ];
    let _manager = ManagerOptions::new(args).start(&control_plane)?;
    REPLICA.create(&control_plane, address, port).await?;
    let works = check(&control_plane, &["--wait=60s"]).await?;
    works.has(&["√ all replicas are ready", "√ a replica holds the Lease linkerd/linkerd-operator"])?;
    works
        .has(&["√ the CRD linkerdconfigs.config.linkerd.io exists", "‼ a replica can fail without an interruption"])?;
    works
        .has(&["‼ the operator's admission policies are in force\n    there are none", "Status check results are √"])?;
    ensure!(works.code == Some(0), "{}", works.stdout);
    the_policies_are_looked_at(&control_plane).await?;
    nothing_that_may_not_be_read_has_a_tick(&control_plane).await?;

    // A link that cannot be used, and a resource that is not accepted.
    control_plane.apply(&[link("east", "cluster.local", "no kubeconfig")]).await?;
    let broken = json!({
        "apiVersion": "config.linkerd.io/v1alpha1", "kind": "LinkerdConfig", "metadata": {"name": "broken"},
        "spec": {"values": {"proxy": {"await": 1}}},
    });
    control_plane.apply(&[broken]).await?;
    ReplicaPod { name: "pending", phase: "Pending", ..REPLICA }.create(&control_plane, address, port).await?;
    let fails = eventually(DEADLINE, "the failures to be named", async || {
        let fails = check(&control_plane, &[]).await?;
        fails.has(&[
            "× LinkerdConfig broken is ready",
            "× all Pods of the operator are running",
            "linkerd-operator-system/pending is Pending",
        ])?;
        fails.has(&["‼ no replica waits for anything\n    linkerd-operator-system/replica: ", "east"])?;
        Ok(fails)
    });
    ensure!(fails.await?.code == Some(1));

    let of_linkerd = check(&control_plane, &FLAGS_OF_LINKERD).await?;
    let document = of_linkerd.document()?;
    ensure!(document.get("success") == Some(&json!(false)) && of_linkerd.code == Some(1), "{document}");
    let categories = document.get("categories").and_then(Value::as_array).context("no categories")?;
    let mut names = categories.iter().filter_map(|it| it.get("categoryName"));
    ensure!(names.any(|name| name == "linkerd-operator-linkerdconfig"), "{document}");
    Ok(())
}

async fn the_policies_are_looked_at(control_plane: &ControlPlane) -> Result<()> {
    let mut policies = control_plane.shipped("config/default").await?;
    policies.retain(|it| it.get("kind").and_then(Value::as_str).is_some_and(|kind| kind.starts_with("Validating")));
    control_plane.apply(&policies).await?;
    let limited = check(control_plane, &[]).await?;
    limited.has(&["√ the operator's admission policies are in force"])?;
    let binding = ["delete", "validatingadmissionpolicybinding", "linkerd-operator-pods"];
    control_plane.kubectl(&binding).await?;
    let incomplete = check(control_plane, &[]).await?;
    incomplete.has(&[
        "× the operator's admission policies are in force\n    ValidatingAdmissionPolicyBinding linkerd-operator-pods of policy linkerd-operator-pods does not exist",
    ])?;
    ensure!(incomplete.code == Some(1), "{}", incomplete.stdout);
    control_plane.apply(&policies).await
}

/// A user who may read the version of the API server, and nothing else.
async fn nothing_that_may_not_be_read_has_a_tick(control_plane: &ControlPlane) -> Result<()> {
    let denied = check(control_plane, &["--as=alice"]).await?;
    let ticks: Vec<_> = denied.stdout.lines().filter(|line| line.contains('√')).collect();
    ensure!(ticks == ["√ can query the API server"], "{}", denied.stdout);
    ensure!(!denied.stdout.contains('×') && denied.code == Some(1), "{}", denied.stdout);
    for resource in ["pods", "leases", "linkerdconfigs", "customresourcedefinitions", "validatingadmissionpolicies"] {
        denied.has(&[&format!("resource \"{resource}\"")])?;
    }
    denied.has(&["    not looked at: pods is forbidden: User \"alice\" cannot list resource", "results are ‼\n"])
}

/// As with a NetworkPolicy that does not admit the API server: the port listens on loopback only.
#[tokio::test]
async fn check_reads_a_replica_through_a_port_forward() -> Result<()> {
    const PORT: u16 = 9996;
    let control_plane = Rig::linkerd().crds("crd").namespace(NAMESPACE).start().await?;
    let manager = ManagerOptions::default().start(&control_plane)?;
    control_plane.add_node_without_kubelet("node").await?;
    let _kubelet = control_plane.start_kubelet("node", PORT, manager.admin_address())?;
    // No host has an address of this network.
    ReplicaPod { node: "node", ..REPLICA }.create(&control_plane, "192.0.2.1".parse()?, PORT).await?;
    let works = check(&control_plane, &["--wait=60s"]).await?;
    works.has(&["√ all replicas are ready", "Status check results are √"])?;
    ensure!(works.code == Some(0), "{}", works.stdout);
    Ok(())
}

#[tokio::test]
async fn the_binary_describes_itself_to_linkerds_command_line() -> Result<()> {
    let described = Ended::operator(&["_extension-metadata"], DEADLINE).await?;
    let document = described.document()?;
    ensure!(document == json!({"name": "linkerd-operator", "checks": "always"}), "{document}");
    Ok(())
}

#[tokio::test]
async fn without_an_api_server_check_fails_with_the_reason() -> Result<()> {
    let failed = Ended::operator(&["check", "--kubeconfig", "/does/not/exist"], DEADLINE).await?;
    failed.has(&["× can create a client of the API server\n    cannot read the kubeconfig /does/not/exist"])?;
    ensure!(failed.code == Some(1), "{}", failed.stdout);
    Ok(())
}
