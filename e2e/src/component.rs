//! Builds the command lines of the control plane's components.
//!
//! * In: a [`Layout`]: the directory, the ports and the files of one control plane.
//! * Out: the processes to spawn. Always: every component writes only into the directory and listens on loopback,
//!   except the API server, which listens on the configured address.

use std::{
    net::{Ipv4Addr, SocketAddr},
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::Result;
use serde_json::json;

use crate::{binaries::Binaries, certificate, control_plane::Options, kubeconfig, port, process::Spawn};

/// The addresses of Services.
pub(crate) const SERVICES_V4: &str = "10.96.0.0/16";
const SERVICES_V6: &str = "fd00:10:96::/112";
const ISSUER: &str = "https://kubernetes.default.svc";
/// kwok's stages, which describe the life cycle of Nodes and Pods.
const STAGES: [&str; 5] = [
    include_str!("../kwok/node-initialize.yaml"),
    include_str!("../kwok/node-heartbeat-with-lease.yaml"),
    include_str!("../kwok/pod-ready.yaml"),
    include_str!("../kwok/pod-complete.yaml"),
    include_str!("../kwok/pod-delete.yaml"),
];
const STAGE_FILE: &str = "kwok-stages.yaml";

pub(crate) struct Layout {
    directory: PathBuf,
    binaries: Binaries,
    pub(crate) etcd_port: u16,
    etcd_peer_port: u16,
    pub(crate) api_port: u16,
    /// `None` for loopback. Set when there are nodes, because the API server connects to their kubelets.
    address: Option<Ipv4Addr>,
    extra_api_server_args: Vec<String>,
    pub(crate) ca_pem: String,
    pub(crate) kubeconfig: PathBuf,
}

impl Layout {
    /// Chooses ports and writes every file the components read.
    pub(crate) fn prepare(directory: &Path, binaries: Binaries, options: &Options, admin_token: &str) -> Result<Self> {
        let address = options.address.map(|address| address.to_string());
        let certificate = certificate::for_api_server(address.as_deref())?;
        let write = |name: &str, text: &str| std::fs::write(directory.join(name), text);
        if options.address.is_some() {
            let client = certificate::for_client("kube-apiserver-kubelet-client", "system:masters")?;
            write("kubelet-client-ca.crt", &client.ca_pem)?;
            write("kubelet-client.crt", &client.certificate_pem)?;
            write("kubelet-client.key", &client.key_pem)?;
        }
        write("ca.crt", &certificate.ca_pem)?;
        write("server.crt", &certificate.certificate_pem)?;
        write("server.key", &certificate.key_pem)?;
        let (private, public) = certificate::signing_keys_pem()?;
        write("service-account.key", &private)?;
        write("service-account.pub", &public)?;
        let mut tokens = format!("{admin_token},admin,admin,system:masters\n");
        for user in &options.users {
            tokens += &format!("{},{},{},\"{}\"\n", user.token(), user.name, user.name, user.groups.join(","));
        }
        write("tokens.csv", &tokens)?;
        write(STAGE_FILE, &STAGES.join("---\n"))?;
        let layout = Self {
            directory: directory.to_owned(),
            binaries,
            etcd_port: port::free()?,
            etcd_peer_port: port::free()?,
            api_port: port::free()?,
            address: options.address,
            extra_api_server_args: options.extra_api_server_args.clone(),
            ca_pem: certificate.ca_pem,
            kubeconfig: directory.join("kubeconfig"),
        };
        kubeconfig::write(&layout.kubeconfig, &layout.server_url(), &layout.ca_pem, "admin", admin_token)?;
        Ok(layout)
    }

    pub(crate) fn server_url(&self) -> String {
        format!("https://{}:{}", self.api_address(), self.api_port)
    }

    fn api_address(&self) -> Ipv4Addr {
        self.address.unwrap_or(Ipv4Addr::LOCALHOST)
    }

    pub(crate) fn etcd_address(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.etcd_port).into()
    }

    pub(crate) fn etcd(&self) -> Result<Spawn> {
        let client = format!("http://127.0.0.1:{}", self.etcd_port);
        let peer = format!("http://127.0.0.1:{}", self.etcd_peer_port);
        let mut spawn = self.spawn("etcd")?.args([
            format!("--data-dir={}", self.file("etcd")),
            format!("--listen-client-urls={client}"),
            format!("--advertise-client-urls={client}"),
            format!("--listen-peer-urls={peer}"),
            format!("--initial-advertise-peer-urls={peer}"),
            format!("--initial-cluster=default={peer}"),
            "--unsafe-no-fsync".into(),
            // The largest cluster of the benchmarks exceeds the default of 2 GiB.
            format!("--quota-backend-bytes={}", 8_u64 << 30),
            "--log-level=warn".into(),
        ]);
        // The first component to start also owns the directory: it is removed when this process dies.
        spawn.remove = Some(self.directory.clone());
        Ok(spawn)
    }

    pub(crate) fn api_server(&self) -> Result<Spawn> {
        let spawn = self.spawn("kube-apiserver")?.args([
            format!("--etcd-servers=http://127.0.0.1:{}", self.etcd_port),
            format!("--bind-address={}", self.api_address()),
            format!("--advertise-address={}", self.api_address()),
            format!("--secure-port={}", self.api_port),
            format!("--cert-dir={}", self.file("certificates")),
            format!("--tls-cert-file={}", self.file("server.crt")),
            format!("--tls-private-key-file={}", self.file("server.key")),
            format!("--token-auth-file={}", self.file("tokens.csv")),
            format!("--service-cluster-ip-range={SERVICES_V4},{SERVICES_V6}"),
            format!("--service-account-issuer={ISSUER}"),
            format!("--api-audiences={ISSUER}"),
            format!("--service-account-key-file={}", self.file("service-account.pub")),
            format!("--service-account-signing-key-file={}", self.file("service-account.key")),
            // The names of the nodes are not in DNS.
            "--kubelet-preferred-address-types=InternalIP".into(),
            // Webhooks are behind Services and there is no kube-proxy, so the API server must resolve the endpoints
            // itself.
            "--enable-aggregator-routing=true".into(),
            // Otherwise an open watch delays a graceful shutdown by a minute.
            "--shutdown-watch-termination-grace-period=1s".into(),
            "--allow-privileged=true".into(),
            "--profiling=false".into(),
        ]);
        let spawn = spawn.args(if self.address.is_some() {
            vec![
                "--authorization-mode=Node,RBAC".to_owned(),
                format!("--kubelet-client-certificate={}", self.file("kubelet-client.crt")),
                format!("--kubelet-client-key={}", self.file("kubelet-client.key")),
            ]
        } else {
            // Pods are created before the ServiceAccounts of their namespace, or without them.
            vec!["--authorization-mode=RBAC".into(), "--disable-admission-plugins=ServiceAccount".into()]
        });
        Ok(spawn.args(self.extra_api_server_args.clone()))
    }

    pub(crate) fn controller_manager(&self) -> Result<Spawn> {
        Ok(self.spawn("kube-controller-manager")?.args([
            format!("--kubeconfig={}", self.kubeconfig.display()),
            "--leader-elect=false".into(),
            "--secure-port=0".into(),
            "--use-service-account-credentials=false".into(),
            "--allocate-node-cidrs=false".into(),
            "--kube-api-qps=300".into(),
            "--kube-api-burst=600".into(),
            format!("--service-account-private-key-file={}", self.file("service-account.key")),
            format!("--root-ca-file={}", self.file("ca.crt")),
        ]))
    }

    pub(crate) fn scheduler(&self) -> Result<Spawn> {
        Ok(self.spawn("kube-scheduler")?.args([
            format!("--kubeconfig={}", self.kubeconfig.display()),
            "--leader-elect=false".into(),
            "--secure-port=0".into(),
            "--kube-api-qps=300".into(),
            "--kube-api-burst=600".into(),
        ]))
    }

    /// A second kube-scheduler, used only for client-go's leader election on the given Lease.
    pub(crate) fn elector(&self, namespace: &str, lease: &str) -> Result<Spawn> {
        let mut spawn = self.scheduler()?.args([
            "--leader-elect=true".into(),
            format!("--leader-elect-resource-namespace={namespace}"),
            format!("--leader-elect-resource-name={lease}"),
            "--leader-elect-lease-duration=6s".into(),
            "--leader-elect-renew-deadline=3s".into(),
            "--leader-elect-retry-period=1s".into(),
        ]);
        spawn.name = "elector".into();
        spawn.log = self.directory.join("elector.log");
        Ok(spawn)
    }

    pub(crate) fn kwok(&self) -> Result<Spawn> {
        let mut spawn = self.spawn("kwok")?.args([
            format!("--kubeconfig={}", self.kubeconfig.display()),
            "--manage-nodes-with-annotation-selector=kwok.x-k8s.io/node=fake".into(),
            "--node-lease-duration-seconds=40".into(),
            "--cidr=10.244.0.0/24".into(),
            format!("--config={}", self.file(STAGE_FILE)),
        ]);
        // kwok reads a configuration from the home directory if it exists.
        spawn.env.push(("HOME".into(), self.directory.display().to_string()));
        Ok(spawn)
    }

    /// A kwok that acts as the kubelet of one node: port-forwards of `port` to any of its Pods are connected to
    /// `target`.
    pub(crate) fn kubelet(&self, node: &str, port: u16, target: SocketAddr) -> Result<Spawn> {
        let forward = json!({
            "apiVersion": "kwok.x-k8s.io/v1alpha1", "kind": "ClusterPortForward", "metadata": {"name": node},
            "spec": {"forwards": [{"ports": [port], "target": {"address": target.ip(), "port": target.port()}}]},
        });
        let config = self.file(&format!("kubelet-{node}.yaml"));
        std::fs::write(&config, forward.to_string())?;
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port::free()?));
        let mut spawn = self.spawn("kwok")?.args([
            format!("--kubeconfig={}", self.kubeconfig.display()),
            format!("--manage-single-node={node}"),
            format!("--node-name={node}"),
            // Without a Lease, the node is not ready after 40 s, and neither are its Pods, from then on.
            "--node-lease-duration-seconds=40".into(),
            format!("--node-ip={}", address.ip()),
            format!("--node-port={}", address.port()),
            format!("--server-address={address}"),
            format!("--tls-cert-file={}", self.file("server.crt")),
            format!("--tls-private-key-file={}", self.file("server.key")),
            format!("--config={config}"),
            format!("--config={}", self.file(STAGE_FILE)),
        ]);
        spawn.name = format!("kubelet {node}");
        spawn.log = self.directory.join(format!("kubelet-{node}.log"));
        spawn.env.push(("HOME".into(), self.directory.display().to_string()));
        Ok(spawn)
    }

    pub(crate) fn kubectl(&self) -> Result<PathBuf> {
        self.binaries.tool("kubectl")
    }

    fn spawn(&self, tool: &str) -> Result<Spawn> {
        let log = self.directory.join(format!("{tool}.log"));
        let mut spawn = Spawn::new(tool, self.binaries.tool(tool)?, log);
        // The components hold no data worth saving, and a graceful shutdown takes seconds.
        spawn.grace = Duration::ZERO;
        Ok(spawn)
    }

    fn file(&self, name: &str) -> String {
        self.directory.join(name).display().to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::NEVER_READY;

    #[test]
    fn the_stages_are_those_of_the_kwok_that_is_built() {
        let module = include_str!("../controlplane/go.mod");
        let version = module.lines().find_map(|line| line.trim().strip_prefix("sigs.k8s.io/kwok v")).unwrap();
        let version = version.split_whitespace().next().unwrap();
        for stage in STAGES {
            let origin = stage.lines().next().unwrap();
            assert!(origin.ends_with(&format!(" of sigs.k8s.io/kwok v{version}.")), "{origin}");
        }
    }

    #[test]
    fn one_stage_leaves_out_the_images_that_are_never_ready() {
        let excepting = STAGES.iter().filter(|stage| stage.contains(&format!("endswith(\":{NEVER_READY}\")"))).count();
        assert_eq!(excepting, 1);
    }
}
