//! Services with the endpoints of a Service in another cluster.

use anyhow::Result;
use linkerd2_proxy_api::destination::WeightedAddr;

use super::{Linked, remote_discovery};
use crate::discovery::{
    objects::service,
    received::{identity, labels, pairs, traits, wait_for},
};

#[tokio::test]
async fn a_service_has_the_endpoints_of_the_service_in_the_other_cluster_and_follows_them() -> Result<()> {
    let rig = Linked::start("remote").await?;
    let east = rig.linked("east").await?;
    // In this cluster, a Service of the same name has other endpoints.
    rig.put(service("bb")).await?;
    east.put_backends("bb", &["10.1.0.1", "10.1.0.2"]).await?;
    rig.put(remote_discovery("web", &east, "bb")).await?;
    let mut stream = rig.shows("web", &["10.1.0.1:8080", "10.1.0.2:8080"]).await?;
    let name = format!("web.{}.serviceaccount.identity.linkerd.other.trust", rig.namespace.name());
    let expected = ["10.1.0.1:8080", "10.1.0.2:8080"].map(|address| (address, format!("dns {name} sni {name}")));
    wait_for(&mut stream, identity, expected).await?;
    wait_for(
        &mut stream,
        traits,
        [
            ("10.1.0.1:8080", "h2 4143 identity http2".to_owned()),
            ("10.1.0.2:8080", "h2 4143 identity http2".to_owned()),
        ],
    )
    .await?;
    let of_set = |endpoint: &WeightedAddr| ["service", "namespace"].map(|key| endpoint.metric_labels.get(key).cloned());
    let expected = [Some("bb".to_owned()), Some(rig.namespace.name().to_owned())];
    assert!(stream.known.values().all(|endpoint| of_set(endpoint) == expected), "{:?}", stream.known);
    let of = |pod: &str| {
        pairs(&[
            ("pod", pod),
            ("serviceaccount", "web"),
            ("control_plane_ns", "linkerd"),
            ("zone", ""),
            ("zone_locality", "unknown"),
        ])
    };
    wait_for(&mut stream, labels, [("10.1.0.1:8080", of("bb-0")), ("10.1.0.2:8080", of("bb-1"))]).await?;
    east.set_addresses("bb", &["10.1.0.3"]).await?;
    stream.shows(&["10.1.0.3:8080"]).await
}

/// The proxy record shows which parts of the other cluster were requested.
#[tokio::test]
async fn only_namespaces_with_open_streams_are_watched() -> Result<()> {
    let rig = Linked::start("asked").await?;
    let east = rig.linked("east").await?;
    east.put_backends("bb", &["10.1.0.1"]).await?;
    rig.put(remote_discovery("web", &east, "bb")).await?;
    rig.measures("linkerd_operator_remote_cluster_namespaces", &east, |value| value == Some(0.0)).await?;
    assert_eq!(east.proxy.log(), []);
    let _stream = rig.shows("web", &["10.1.0.1:8080"]).await?;
    rig.measures("linkerd_operator_remote_cluster_namespaces", &east, |value| value == Some(1.0)).await?;
    let within = format!("/namespaces/{}/", rig.namespace.name());
    let requests = east.proxy.log();
    assert!(!requests.is_empty() && requests.iter().all(|it| it.path.contains(&within)), "{requests:?}");
    for resource in ["pods", "services"] {
        let labels = [("cluster", east.name.as_str()), ("resource", resource)];
        let objects = rig.manager.metric("linkerd_operator_remote_cluster_objects", &labels).await;
        assert_eq!(objects, Some(1.0), "{resource}");
    }
    Ok(())
}
