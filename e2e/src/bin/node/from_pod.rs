//! The CLI in a Pod of the operator's image: it must resolve the Service's name, although the image contains no
//! resolver configuration and no NSS modules.

use std::{net::Ipv4Addr, time::Instant};

use anyhow::{Result, ensure};
use e2e::{ControlPlane, eventually, mesh::SOON, real_node};
use k8s_openapi::api::core::v1::Pod;
use kube::{Api, Client, api::PostParams};
use serde_json::{Value, json};

use crate::{dns::NameServer, jobs};

const NAMESPACE: &str = "client";
const SERVICE: &str = "linkerd-operator.linkerd-operator-system.svc.cluster.local";
/// A name that no name server has.
const ALIAS: &str = "destination.example";
/// The short name, which is completed by the search list.
const SHORT: &str = "linkerd-operator.linkerd-operator-system.svc";

pub(crate) async fn resolves(
    control_plane: &ControlPlane,
    client: &Client,
    reference: &str,
    service: Ipv4Addr,
) -> Result<()> {
    control_plane.kubectl(&["create", "namespace", NAMESPACE]).await?;
    let pods = Api::namespaced(client.clone(), NAMESPACE);
    let cli = PodCli { control_plane, pods, reference };

    let server = NameServer::start(real_node::HOST, SERVICE, service).await?;
    let begun = Instant::now();
    let aliases = json!({"dnsPolicy": "None", "dnsConfig": {"nameservers": [real_node::HOST]},
        "hostAliases": [{"ip": service, "hostnames": [ALIAS]}]});
    cli.prints_endpoints("by-hosts", ALIAS, aliases).await?;
    crate::step("endpoints, in a pod: the Service is found through /etc/hosts", begun);

    let begun = Instant::now();
    let answered = server.answered();
    let by_dns = json!({"dnsPolicy": "None", "dnsConfig": {"nameservers": [real_node::HOST],
        "searches": [format!("{NAMESPACE}.svc.cluster.local"), "svc.cluster.local", "cluster.local"],
        "options": [{"name": "ndots", "value": "5"}]}});
    cli.prints_endpoints("by-dns", SHORT, by_dns).await?;
    ensure!(server.answered() > answered, "the name server received no query");
    crate::step("endpoints, in a pod: the Service is found through DNS and the search list", begun);
    Ok(())
}

struct PodCli<'a> {
    control_plane: &'a ControlPlane,
    pods: Api<Pod>,
    reference: &'a str,
}

impl PodCli<'_> {
    /// Runs the command in a Pod with this spec, and checks that it prints all endpoints.
    async fn prints_endpoints(&self, name: &str, host: &str, spec: Value) -> Result<()> {
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
        let log = self.control_plane.kubectl(&["-n", NAMESPACE, "logs", name]).await?;
        let complete = ["192.0.2.11", "192.0.2.12"].iter().all(|address| log.contains(address));
        ensure!(phase == "Succeeded" && complete, "pod {name} {phase}; its log:\n{log}");
        Ok(())
    }
}
