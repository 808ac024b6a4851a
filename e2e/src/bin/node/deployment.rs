//! The operator, deployed and undeployed with the make targets of users.
//!
//! * In: a cluster, the image's name. Out: the addresses of its Services; its replicas, to be rolled and deleted.

use std::{
    collections::BTreeMap,
    net::{Ipv4Addr, SocketAddr},
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use e2e::{
    ControlPlane,
    binaries::Binaries,
    real_node,
    shipped::{in_repository, remove_makes_variables},
    wait::eventually,
};
use k8s_openapi::api::{
    apps::v1,
    core::v1::{Pod, Service},
};
use kube::{
    Api, Client, ResourceExt,
    api::{DeleteParams, ListParams, PostParams},
};
use serde_json::json;
use tokio::{process::Command, time::timeout};

pub(crate) const NAMESPACE: &str = "linkerd-operator-system";
const NAME: &str = "linkerd-operator";
const SELECTOR: &str = "app.kubernetes.io/name=linkerd-operator";
/// The kinds of the operator's objects.
const OURS: [&str; 9] = [
    "clusterroles",
    "clusterrolebindings",
    "roles",
    "rolebindings",
    "deployments",
    "services",
    "serviceaccounts",
    "poddisruptionbudgets",
    "networkpolicies",
];
const MAKE_DEADLINE: Duration = Duration::from_secs(300);
pub(crate) const ROLL_DEADLINE: Duration = Duration::from_secs(180);
const SOON: Duration = Duration::from_secs(30);

pub(crate) struct Deployment<'a> {
    control_plane: &'a ControlPlane,
    client: &'a Client,
    reference: &'a str,
}

impl<'a> Deployment<'a> {
    pub(crate) fn new(control_plane: &'a ControlPlane, client: &'a Client, reference: &'a str) -> Self {
        Self { control_plane, client, reference }
    }

    /// Deploys the operator into a cluster with the namespace and the ConfigMap of a Linkerd control plane.
    pub(crate) async fn deploy(&self) -> Result<()> {
        self.control_plane.create_namespaces(&["linkerd"]).await?;
        self.control_plane.install_linkerd().await?;
        self.make("install").await?;
        self.make("deploy").await?;
        self.rolled_out().await?;
        let pods = self.pods().await?;
        ensure!(pods.len() == 2, "{} replicas instead of 2", pods.len());
        for pod in &pods {
            let statuses = pod.status.iter().flat_map(|status| status.container_statuses.iter().flatten());
            let restarts: i32 = statuses.map(|status| status.restart_count).sum();
            ensure!(restarts == 0, "{} was restarted {restarts} times", pod.name_any());
        }
        Ok(())
    }

    /// Undeploys the operator. The objects in Linkerd's namespace must not change.
    pub(crate) async fn undeploy(&self) -> Result<()> {
        let before = self.linkerds().await?;
        self.make("undeploy").await?;
        self.make("uninstall").await?;
        for kind in OURS {
            let args =
                ["get", kind, "--all-namespaces", "-l", "app.kubernetes.io/part-of=linkerd-operator", "-o", "name"];
            let left = self.control_plane.kubectl(&args).await?;
            ensure!(left.is_empty(), "{kind} were not deleted: {left}");
        }
        let namespaces = self.control_plane.kubectl(&["get", "namespaces", "-o", "name"]).await?;
        ensure!(!namespaces.contains(NAMESPACE), "the namespace of the operator was not deleted: {namespaces}");
        let after = self.linkerds().await?;
        ensure!(
            after == before && !before.is_empty(),
            "namespace linkerd contained {before:?} and now contains {after:?}"
        );
        Ok(())
    }

    /// The objects in namespace linkerd that are not the operator's, with their versions. (Leases are excluded, because
    /// a hand-over changes them.)
    async fn linkerds(&self) -> Result<BTreeMap<String, String>> {
        let kinds = "configmaps,serviceaccounts,services";
        let lines = r#"-o=jsonpath={range .items[*]}{.kind}/{.metadata.name} {.metadata.uid}@{.metadata.resourceVersion}{"\n"}{end}"#;
        let listed = self.control_plane.kubectl(&["-n", "linkerd", "get", kinds, lines]).await?;
        let pairs = listed.lines().filter_map(|line| line.split_once(' '));
        Ok(pairs.map(|(object, version)| (object.to_owned(), version.to_owned())).collect())
    }

    /// Serves discovery, which listens on loopback in the manifests, through a NodePort Service, and returns the address of
    /// the Service for clients on the host.
    pub(crate) async fn outside(&self) -> Result<SocketAddr> {
        let (deployment, address) = (format!("deployment/{NAME}"), "LINKERD_OPERATOR_DESTINATION_ADDR=[::]:8086");
        self.control_plane.kubectl(&["-n", NAMESPACE, "set", "env", &deployment, address]).await?;
        self.rolled_out().await?;
        let service = json!({
            "metadata": {"name": NAME, "labels": {"app.kubernetes.io/part-of": NAME}},
            "spec": {"type": "NodePort", "selector": {"app.kubernetes.io/name": NAME},
                "ports": [{"name": "grpc", "port": 8086}]},
        });
        let made = self.services().create(&PostParams::default(), &serde_json::from_value(service)?).await?;
        let ports = made.spec.and_then(|spec| spec.ports).unwrap_or_default();
        let port = ports.first().and_then(|port| port.node_port).context("the Service has no nodePort")?;
        let address = SocketAddr::from((real_node::ADDRESS, u16::try_from(port)?));
        eventually(SOON, "the NodePort to answer", async || {
            e2e::discovery::Discovery::connect(address).await.map(drop)
        })
        .await?;
        Ok(address)
    }

    /// The cluster IP of the Service that [`Self::outside`] creates.
    pub(crate) async fn cluster_address(&self) -> Result<Ipv4Addr> {
        let service = self.services().get(NAME).await?;
        let address = service.spec.and_then(|spec| spec.cluster_ip).context("the Service has no address")?;
        Ok(address.parse()?)
    }

    pub(crate) async fn pods(&self) -> Result<Vec<Pod>> {
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), NAMESPACE);
        let mut pods = pods.list(&ListParams::default().labels(SELECTOR)).await?.items;
        pods.retain(|pod| pod.metadata.deletion_timestamp.is_none());
        Ok(pods)
    }

    /// Restarts the Deployment as users do: each new replica becomes ready before an old one is removed.
    pub(crate) async fn roll(&self) -> Result<()> {
        self.control_plane.kubectl(&["-n", NAMESPACE, "rollout", "restart", "deployment", NAME]).await?;
        self.rolled_out().await
    }

    /// Deletes the replica that holds this Lease, and waits for another to be available.
    pub(crate) async fn delete_holder(&self, lease_namespace: &str, lease: &str) -> Result<String> {
        let identity = ["-n", lease_namespace, "get", "lease", lease, "-o=jsonpath={.spec.holderIdentity}"];
        // Between two holders the Lease has no holder.
        let holder = eventually(SOON, "a replica to hold the Lease", async || {
            let holder = self.control_plane.kubectl(&identity).await?;
            ensure!(!holder.is_empty(), "the Lease has no holder");
            Ok(holder)
        })
        .await?;
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), NAMESPACE);
        pods.delete(&holder, &DeleteParams::default())
            .await
            .with_context(|| format!("deleting the leader {holder:?}"))?;
        eventually(SOON, "the replica to be deleted", async || {
            ensure!(pods.get_opt(&holder).await?.is_none(), "{holder} still exists");
            Ok(())
        })
        .await?;
        self.rolled_out().await?;
        Ok(holder)
    }

    /// Waits until exactly the wanted replicas exist and are available.
    pub(crate) async fn rolled_out(&self) -> Result<()> {
        let deployments: Api<v1::Deployment> = Api::namespaced(self.client.clone(), NAMESPACE);
        eventually(ROLL_DEADLINE, "the Deployment to be rolled out", async || {
            let deployment = deployments.get(NAME).await?;
            let status = deployment.status.unwrap_or_default();
            let wanted = deployment.spec.and_then(|spec| spec.replicas);
            let done = status.observed_generation == deployment.metadata.generation
                && [status.replicas, status.updated_replicas, status.available_replicas].iter().all(|n| *n == wanted);
            ensure!(done, "its status is {status:?}");
            Ok(())
        })
        .await
    }

    /// Checks in the logs of the present replicas that the shipped roles allow all requests of the operator.
    pub(crate) async fn was_never_forbidden(&self) -> Result<()> {
        let logs =
            self.control_plane.kubectl(&["-n", NAMESPACE, "logs", "-l", SELECTOR, "--tail=-1", "--prefix"]).await?;
        let refused: Vec<&str> = logs.lines().filter(|line| line.contains("forbidden")).collect();
        ensure!(refused.is_empty(), "the API server denied requests:\n{}", refused.join("\n"));
        Ok(())
    }

    async fn make(&self, target: &str) -> Result<()> {
        let kubectl: PathBuf = Binaries::find_or_build()?.tool("kubectl")?;
        let repository = in_repository("");
        let mut make = Command::new("make");
        make.current_dir(Path::new(&repository))
            .args([target, &format!("IMAGE={}", self.reference), &format!("KUBECTL={}", kubectl.display())])
            .env("KUBECONFIG", self.control_plane.kubeconfig())
            // Prevents a discovery cache in the home directory.
            .env("KUBECACHEDIR", "/dev/null/none")
            .stdin(Stdio::null())
            .kill_on_drop(true);
        remove_makes_variables(&mut make);
        let output = timeout(MAKE_DEADLINE, make.output()).await.with_context(|| format!("make {target} hangs"))??;
        let (text, error) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        ensure!(output.status.success(), "make {target}:\n{text}{error}");
        Ok(())
    }

    fn services(&self) -> Api<Service> {
        Api::namespaced(self.client.clone(), NAMESPACE)
    }
}
