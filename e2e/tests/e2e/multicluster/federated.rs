//! Services with the endpoints of their members in several clusters.

use anyhow::Result;
use e2e::discovery::Message;
use serde_json::json;

use super::{Linked, federated};
use crate::discovery::objects::{address, service, slice};

#[tokio::test]
async fn members_in_three_clusters_come_and_go() -> Result<()> {
    let rig = Linked::start("federated").await?;
    let (east, north) = (rig.linked("east").await?, rig.linked("north").await?);
    rig.put(service("bb")).await?;
    rig.put(slice("bb", "bb", &[address("10.0.0.1")])).await?;
    east.put_backends("bb", &["10.1.0.1"]).await?;
    north.put_backends("bb", &["10.2.0.1"]).await?;
    let members = [format!("bb@{}", east.name), format!("bb@{}", north.name)];
    rig.put(federated("web", &members, "bb")).await?;
    let (local, of_east, of_north) = ("10.0.0.1:8080", "10.1.0.1:8080", "10.2.0.1:8080");
    let mut stream = rig.shows("web", &[local, of_east, of_north]).await?;
    let list = |key: &str, value: &str| json!({"metadata": {"annotations": {format!("multicluster.linkerd.io/{key}"): value}}});
    rig.patch("Service", "web", list("remote-discovery", &members[1])).await?;
    stream.shows(&[local, of_north]).await?;
    rig.patch("Service", "web", list("local-discovery", "")).await?;
    stream.shows(&[of_north]).await?;
    rig.patch("Service", "web", list("remote-discovery", &members.join(","))).await?;
    stream.shows(&[of_east, of_north]).await?;
    east.set_addresses("bb", &["10.1.0.1", "10.1.0.9"]).await?;
    stream.shows(&[of_east, "10.1.0.9:8080", of_north]).await?;
    rig.unlink(&east).await?;
    stream.shows(&[of_north]).await
}

/// Once all clusters are known, a new stream begins with the endpoints of all members at once.
#[tokio::test]
async fn the_first_message_is_the_union_of_the_members() -> Result<()> {
    let rig = Linked::start("union").await?;
    let east = rig.linked("east").await?;
    rig.put(service("bb")).await?;
    rig.put(slice("bb", "bb", &[address("10.0.0.1")])).await?;
    east.put_backends("bb", &["10.1.0.1"]).await?;
    rig.put(federated("web", &[format!("bb@{}", east.name)], "bb")).await?;
    let both = ["10.0.0.1:8080", "10.1.0.1:8080"];
    let _known = rig.shows("web", &both).await?;
    let mut stream = rig.get("web").await?;
    let first = stream.next().await?;
    assert_eq!(first, Some(Message::Add(both.map(|address| address.parse().unwrap()).to_vec())));
    Ok(())
}
