//! The configurations of the programs on a node.
//!
//! * In: paths and names. Out: texts. Always: they require neither the host's network nor a registry, and no other
//!   program's cgroup.

use std::{net::Ipv4Addr, path::Path};

use serde_json::{Value, json};

pub(super) const PODS: &str = "10.244.0.0/24";
pub(super) const CONTAINERD: &str = "/run/containerd/containerd.sock";
const BRIDGE: &str = "cni0";

pub(super) fn containerd(cni_configuration: &Path, cni_plugins: &Path, pause: &str) -> String {
    let (configuration, plugins) = (cni_configuration.display(), cni_plugins.display());
    // The plugin `opt` would create a directory in /opt. Without CAP_SYS_RESOURCE a container's oom_score_adj cannot be
    // lowered.
    format!(
        r#"version = 2
disabled_plugins = ["io.containerd.internal.v1.opt"]

[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{pause}"
  disable_apparmor = true
  restrict_oom_score_adj = true

  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "{plugins}"
    conf_dir = "{configuration}"

  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"

    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
      SystemdCgroup = false
"#
    )
}

/// A bridge, with addresses from one range. No masquerading, because the host has a route to the Pods.
pub(super) fn cni() -> Value {
    json!({
        "cniVersion": "0.4.0",
        "name": "pods",
        "plugins": [{
            "type": "bridge", "bridge": BRIDGE, "isGateway": true, "ipMasq": false, "hairpinMode": true,
            "ipam": {
                "type": "host-local", "dataDir": "/run/cni/ipam",
                "ranges": [[{"subnet": PODS}]], "routes": [{"dst": "0.0.0.0/0"}],
            },
        }],
    })
}

pub(super) fn kubelet(cgroup: &str, client_ca: &Path) -> Value {
    json!({
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "authentication": {
            "anonymous": {"enabled": false},
            "webhook": {"enabled": true},
            "x509": {"clientCAFile": client_ca},
        },
        "authorization": {"mode": "Webhook"},
        "containerRuntimeEndpoint": format!("unix://{CONTAINERD}"),
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": format!("/{cgroup}"),
        "failCgroupV1": false,
        "failSwapOn": false,
        "makeIPTablesUtilChains": false,
        // A full disk of the host must not affect the tests.
        "evictionHard": {"memory.available": "0%", "nodefs.available": "0%", "nodefs.inodesFree": "0%",
            "imagefs.available": "0%", "imagefs.inodesFree": "0%"},
        "localStorageCapacityIsolation": false,
        "resolvConf": "",
        "podLogsDir": "/var/log/pods",
        "volumePluginDir": "/var/lib/kubelet/volume-plugins",
        "shutdownGracePeriod": "0s",
    })
}

pub(super) fn kube_proxy(kubeconfig: &Path, name: &str) -> Value {
    json!({
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "mode": "nftables",
        "hostnameOverride": name,
        "clientConnection": {"kubeconfig": kubeconfig},
        "detectLocalMode": "BridgeInterface",
        "detectLocal": {"bridgeInterface": BRIDGE},
        // Conntrack limits would apply to the whole host.
        "conntrack": {"maxPerCore": 0, "min": 0, "tcpCloseWaitTimeout": "0s", "tcpEstablishedTimeout": "0s"},
    })
}

/// The kubeconfig refers to the CA by path, which is valid in the node, too: the node sees the host's files.
pub(super) fn kubelet_args(directory: &Path, kubeconfig: &Path, name: &str, address: Ipv4Addr) -> Vec<String> {
    vec![
        format!("--config={}", directory.join("kubelet.json").display()),
        format!("--kubeconfig={}", kubeconfig.display()),
        format!("--hostname-override={name}"),
        format!("--node-ip={address}"),
        "--root-dir=/var/lib/kubelet".into(),
        "--cert-dir=/var/lib/kubelet/pki".into(),
    ]
}
