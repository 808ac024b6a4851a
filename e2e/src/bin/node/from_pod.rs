//! The terminal command in a pod of the operator's image: it has to find the Service by its name, and the image holds neither a
//! resolver's configuration nor its modules.

use std::{net::Ipv4Addr, time::Instant};

use anyhow::{Result, ensure};
use e2e::{ControlPlane, eventually, mesh::SOON, real_node};
use k8s_openapi::api::core::v1::Pod;
use kube::{Api, Client, api::PostParams};
use serde_json::{Value, json};

use crate::{dns::NameServer, jobs};

const NAMESPACE: &str = "client";
const SERVICE: &str = "linkerd-operator.linkerd-operator-system.svc.cluster.local";
/// A name that no name server knows.
const ALIAS: &str = "destination.example";
/// As pods write it: the rest comes from their search list.
const SHORT: &str = "linkerd-operator.linkerd-operator-system.svc";

pub(crate) async fn resolves(
    control_plane: &ControlPlane,
    client: &Client,
    reference: &str,
    service: Ipv4Addr,
) -> Result<()> {
    control_plane.kubectl(&["create", "namespace", NAMESPACE]).await?;
    let pods = Api::namespaced(client.clone(), NAMESPACE);
    let asks = Asks { control_plane, pods, reference };

    let server = NameServer::start(real_node::HOST, SERVICE, service).await?;
    let begun = Instant::now();
    let aliases = json!({"dnsPolicy": "None", "dnsConfig": {"nameservers": [real_node::HOST]},
        "hostAliases": [{"ip": service, "hostnames": [ALIAS]}]});
    asks.told("by-hosts", ALIAS, aliases).await?;
    crate::step("endpoints, in a pod: the Service is found through /etc/hosts", begun);

    let begun = Instant::now();
    let answered = server.answered();
    let by_dns = json!({"dnsPolicy": "None", "dnsConfig": {"nameservers": [real_node::HOST],
        "searches": [format!("{NAMESPACE}.svc.cluster.local"), "svc.cluster.local", "cluster.local"],
        "options": [{"name": "ndots", "value": "5"}]}});
    asks.told("by-dns", SHORT, by_dns).await?;
    ensure!(server.answered() > answered, "nobody asked the name server");
    crate::step("endpoints, in a pod: the Service is found through DNS and the search list", begun);
    Ok(())
}

struct Asks<'a> {
    control_plane: &'a ControlPlane,
    pods: Api<Pod>,
    reference: &'a str,
}

impl Asks<'_> {
    /// Runs the command in a pod with this spec; it prints the endpoints that there are.
    async fn told(&self, name: &str, host: &str, spec: Value) -> Result<()> {
        let authority = format!("legacy.{}.svc.cluster.local:80", jobs::NAMESPACE);
        let address = format!("{host}:8086");
        let mut pod = json!({
            "metadata": {"name": name},
            "spec": {"restartPolicy": "Never", "automountServiceAccountToken": false, "enableServiceLinks": false,
                "containers": [{"name": "endpoints", "image": self.reference, "imagePullPolicy": "Never",
                    "args": ["endpoints", "--addr", address, authority],
                    "securityContext": {"runAsNonRoot": true, "readOnlyRootFilesystem": true}}]},
        });
        e2e::mesh::merge(&mut pod, json!({ "spec": spec }));
        self.pods.create(&PostParams::default(), &serde_json::from_value(pod)?).await?;
        let phase = eventually(SOON, format_args!("pod {name} to end"), async || {
            let status = self.pods.get(name).await?.status.unwrap_or_default();
            let phase = status.phase.clone().unwrap_or_default();
            ensure!(["Succeeded", "Failed"].contains(&phase.as_str()), "{status:?}");
            Ok(phase)
        })
        .await?;
        let said = self.control_plane.kubectl(&["-n", NAMESPACE, "logs", name]).await?;
        let complete = ["192.0.2.11", "192.0.2.12"].iter().all(|address| said.contains(address));
        ensure!(phase == "Succeeded" && complete, "pod {name} {phase}, and said:\n{said}");
        Ok(())
    }
}
