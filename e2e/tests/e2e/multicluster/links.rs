//! The Secrets of links: they appear, change and vanish while streams are open.

use anyhow::{Context, Result, ensure};
use e2e::{
    FaultProxy,
    discovery::Message,
    eventually, kubeconfig,
    link::{link, link_name},
    mesh::SOON,
    shared_other,
};
use kube::api::DeleteParams;
use serde_json::json;
use tonic::Code;

use super::{Linked, federated, remote_discovery};
use crate::discovery::received::{identity, wait_for};

#[tokio::test]
async fn a_cluster_may_be_linked_after_its_streams_were_opened_and_unlinked() -> Result<()> {
    let rig = Linked::start("late").await?;
    let east = rig.other("east").await?;
    east.put_backends("bb", &["10.1.0.1"]).await?;
    rig.put(remote_discovery("remote", &east, "bb")).await?;
    rig.put(federated("joined", &[format!("bb@{}", east.name)], "")).await?;
    let mut joined = rig.shows("joined", &[]).await?;
    let not_found = (Code::NotFound, format!("Remote cluster not found: {}", east.name));
    assert_eq!(rig.discovery.refusal(&rig.path("remote"), "").await?, not_found);
    rig.link(&east, &kubeconfig::embedded(east.proxy.kubeconfig())?).await?;
    joined.shows(&["10.1.0.1:8080"]).await?;
    let mut remote = rig.shows("remote", &["10.1.0.1:8080"]).await?;
    rig.unlink(&east).await?;
    joined.shows(&[]).await?;
    assert_eq!(remote.next().await?, None, "the stream ends with OK");
    assert_eq!(rig.discovery.refusal(&rig.path("remote"), "").await?, not_found);
    eventually(SOON, "the connections to the cluster to be closed", async || {
        let open = east.proxy.open_connections();
        ensure!(open == 0, "{open} are open");
        Ok(())
    })
    .await
}

/// The old credentials stop working when they are replaced, as after a rotation.
#[tokio::test]
async fn new_credentials_are_used_at_once_and_the_endpoints_stay() -> Result<()> {
    let (rig, east, mut stream) = Linked::start_with_web("rotated").await?;
    let renewed = FaultProxy::start(shared_other("east").await?).await?;
    rig.link(&east, &kubeconfig::embedded(renewed.kubeconfig())?).await?;
    eventually(SOON, "all watches to use the new credentials", async || {
        let (old, new) = (east.proxy.open_connections(), renewed.open_connections());
        ensure!(old == 0 && new > 0, "{old} connections with the old credentials, {new} with the new ones");
        Ok(())
    })
    .await?;
    east.set_addresses("bb", &["10.1.0.1", "10.1.0.2"]).await?;
    stream.shows(&["10.1.0.1:8080", "10.1.0.2:8080"]).await
}

#[tokio::test]
async fn another_trust_domain_of_a_link_changes_the_identities() -> Result<()> {
    let (rig, east, mut stream) = Linked::start_with_web("renamed").await?;
    let renamed = link(&east.name, "renamed.trust", &kubeconfig::embedded(east.proxy.kubeconfig())?);
    rig.put_secret(&east.name, renamed).await?;
    let name = format!("web.{}.serviceaccount.identity.linkerd.renamed.trust", rig.namespace.name());
    wait_for(&mut stream, identity, [("10.1.0.1:8080", format!("dns {name} sni {name}"))]).await?;
    let removed = stream.messages.iter().any(|message| matches!(message, Message::Remove(_)));
    assert!(!removed, "the endpoint was away for a moment: {:?}", stream.messages);
    Ok(())
}

#[tokio::test]
async fn a_broken_edit_of_a_secret_keeps_the_link_until_the_secret_is_deleted() -> Result<()> {
    let (rig, east, mut stream) = Linked::start_with_web("edited").await?;
    let usable = kubeconfig::embedded(east.proxy.kubeconfig())?;
    let secret = link_name(&east.name);
    let kept = format!(
        "cluster {}: Secret linkerd/{secret} has no usable link, so its last usable one stays in use",
        east.name
    );
    for (number, (kubeconfig, trust_domain, why)) in [
        ("", "other.trust", "the key kubeconfig is empty"),
        ("{{{", "other.trust", "the key kubeconfig cannot be used: it is not a kubeconfig"),
        (&usable, "bad domain!", "trust-domain is \"bad domain!\", which is no DNS name"),
    ]
    .into_iter()
    .enumerate()
    {
        rig.put_secret(&east.name, link(&east.name, trust_domain, kubeconfig)).await?;
        let body = rig.says(why).await?;
        ensure!(body.contains(&kept), "no {kept} in {body}");
        let address = format!("10.1.0.{}", number + 2);
        east.set_addresses("bb", &[&address]).await?;
        stream.shows(&[&format!("{address}:8080")]).await.context("the watches of the last link go on")?;
    }
    // Another Secret that can be used precedes it.
    let mut other = link(&east.name, "other.trust", &usable);
    other["metadata"]["name"] = json!(format!("{secret}-other"));
    rig.put_secret(&format!("{}-other", east.name), other).await?;
    rig.says(&format!("Secret linkerd/{secret} has no usable link, so that of Secret linkerd/{secret}-other is used"))
        .await?;
    rig.secrets().delete(&format!("{secret}-other"), &DeleteParams::default()).await?;
    rig.says(&kept).await?;
    rig.unlink(&east).await?;
    while let Some(message) = stream.next().await? {
        ensure!(!matches!(message, Message::Remove(_)), "an endpoint was removed before the stream ended: {message:?}");
    }
    let not_found = (Code::NotFound, format!("Remote cluster not found: {}", east.name));
    assert_eq!(rig.discovery.refusal(&rig.path("web"), "").await?, not_found);
    Ok(())
}

/// Otherwise a user who can write Secrets in the control plane's namespace could run programs in the operator's container.
#[tokio::test]
async fn a_kubeconfig_that_runs_a_program_is_refused_and_nothing_of_it_is_printed() -> Result<()> {
    let rig = Linked::start("refused").await?;
    let east = rig.other("east").await?;
    let mut config: serde_json::Value = serde_json::from_str(&kubeconfig::embedded(east.proxy.kubeconfig())?)?;
    config["users"][0]["user"] =
        json!({"exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": "top-secret-program"}});
    rig.link(&east, &config.to_string()).await?;
    rig.says(&format!(
        "cluster {}: Secret linkerd/{} has no usable link: the key kubeconfig cannot be used: the field exec is refused",
        east.name,
        link_name(&east.name)
    ))
    .await?;
    assert!(!rig.manager.log().contains("top-secret-program"));
    // It is used as soon as it is mended.
    east.put_backends("bb", &["10.1.0.1"]).await?;
    rig.put(remote_discovery("web", &east, "bb")).await?;
    rig.link(&east, &kubeconfig::embedded(east.proxy.kubeconfig())?).await?;
    rig.shows("web", &["10.1.0.1:8080"]).await?;
    let log = rig.manager.log();
    assert!(!log.contains("admin-token"), "a credential is in the log");
    Ok(())
}
