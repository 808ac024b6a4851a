//! The endpoints of a Service: its type, the conditions, addresses and targets in its slices, and the endpoint that
//! wins when two objects claim one address.

use anyhow::{Result, ensure};
use e2e::{discovery::Message, eventually, mesh::SOON};
use serde_json::{Value, json};

use super::{
    QUIET, Rig, Settings, add,
    objects::{Object, address, but, external_name, meshed, of_pod, of_workload, pod, service, slice, workload},
    received, remove,
};

const EMPTY: Message = Message::NoEndpoints { exists: true };

#[tokio::test]
async fn a_service_without_endpoints_is_first_reported_as_empty_and_later_emptied_by_remove() -> Result<()> {
    let rig = Rig::start("empty").await?;
    rig.put(service("web")).await?;
    let mut first = rig.get("web:80").await?;
    assert_eq!(first.next().await?, Some(EMPTY));
    rig.put(slice("web", "web", &[address("192.0.2.1")])).await?;
    assert_eq!(first.next().await?, Some(add(&["192.0.2.1:8080"])?));
    rig.set_endpoints("web", &[]).await?;
    assert_eq!(first.next().await?, Some(remove(&["192.0.2.1:8080"])?));
    // An existing but empty slice makes no difference.
    let mut second = rig.get("web:80").await?;
    assert_eq!(second.next().await?, Some(EMPTY));
    first.is_quiet_for(QUIET).await
}

#[tokio::test]
async fn with_strict_parity_no_message_is_sent_before_the_first_endpoint() -> Result<()> {
    let rig = Rig::with(Settings::Contrary, "strict").await?;
    rig.put(service("web")).await?;
    let mut endpoints = rig.get("web:80").await?;
    endpoints.is_quiet_for(QUIET).await?;
    rig.put(slice("web", "web", &[address("192.0.2.1")])).await?;
    assert_eq!(endpoints.next().await?, Some(add(&["192.0.2.1:8080"])?));
    rig.delete("EndpointSlice", "web").await?;
    assert_eq!(endpoints.next().await?, Some(remove(&["192.0.2.1:8080"])?));
    endpoints.is_quiet_for(QUIET).await?;
    rig.get("web:80").await?.is_quiet_for(QUIET).await
}

#[tokio::test]
async fn an_endpoint_of_any_kind_that_becomes_unready_is_removed_until_it_is_ready() -> Result<()> {
    let rig = Rig::start("ready").await?;
    rig.put_all([pod("web-1"), workload("vm")]).await?;
    let with = |endpoint: Value, conditions: Value| but(endpoint, json!({ "conditions": conditions }));
    rig.put_all([
        service("flip"),
        slice("flip", "flip", &[address("192.0.2.1"), of_pod("192.0.2.8", "web-1"), of_workload("192.0.2.9", "vm")]),
    ])
    .await?;
    let all = ["192.0.2.1:8080", "192.0.2.8:8080", "192.0.2.9:8080"];
    let mut flip = rig.shows("flip:80", &all).await?;
    let unready = |endpoint: Value| with(endpoint, json!({"ready": false}));
    let two = [address("192.0.2.1"), unready(of_pod("192.0.2.8", "web-1")), unready(of_workload("192.0.2.9", "vm"))];
    rig.set_endpoints("flip", &two).await?;
    assert_eq!(flip.next().await?, Some(remove(&all[1..])?));
    let back = [address("192.0.2.1"), of_pod("192.0.2.8", "web-1"), of_workload("192.0.2.9", "vm")];
    rig.set_endpoints("flip", &back).await?;
    assert_eq!(flip.next().await?, Some(add(&all[1..])?));
    flip.is_quiet_for(QUIET).await
}

#[tokio::test]
async fn one_of_several_addresses_of_an_endpoint_is_removed() -> Result<()> {
    let rig = Rig::start("addresses").await?;
    rig.put_all([service("web"), meshed("web-1"), workload("vm")]).await?;
    let many = |endpoint: Value, addresses: [&str; 2]| but(endpoint, json!({ "addresses": addresses }));
    let endpoints = [
        many(address(""), ["192.0.2.1", "192.0.2.2"]),
        many(of_pod("", "web-1"), ["192.0.2.3", "192.0.2.4"]),
        many(of_workload("", "vm"), ["192.0.2.5", "192.0.2.6"]),
    ];
    rig.put(slice("web", "web", &endpoints)).await?;
    let all = [1, 2, 3, 4, 5, 6].map(|host| format!("192.0.2.{host}:8080"));
    let mut stream = rig.shows("web:80", &all.each_ref().map(String::as_str)).await?;
    rig.set_endpoints("web", &[endpoints[0].clone(), of_pod("192.0.2.4", "web-1"), endpoints[2].clone()]).await?;
    assert_eq!(stream.next().await?, Some(remove(&["192.0.2.3:8080"])?));
    Ok(())
}

#[tokio::test]
async fn when_objects_claim_one_address_the_pod_wins_before_the_workload() -> Result<()> {
    let rig = Rig::start("claims").await?;
    rig.put_all([service("web"), meshed("web-1"), workload("vm")]).await?;
    let pod_name = |endpoint: &linkerd2_proxy_api::destination::WeightedAddr| {
        let label = |key: &str| endpoint.metric_labels.get(key).cloned();
        label("pod").or_else(|| label("external_workload")).unwrap_or_default()
    };
    rig.put(slice("a", "web", &[address("192.0.2.1")])).await?;
    let mut stream = rig.get("web:80").await?;
    received::wait_for_only(&mut stream, pod_name, String::new()).await?;
    rig.put(slice("b", "web", &[of_workload("192.0.2.1", "vm")])).await?;
    received::wait_for_only(&mut stream, pod_name, "vm".into()).await?;
    rig.put(slice("c", "web", &[of_pod("192.0.2.1", "web-1")])).await?;
    received::wait_for_only(&mut stream, pod_name, "web-1".into()).await?;
    // The address stays while any object claims it, and passes to the next claimant.
    rig.delete("EndpointSlice", "c").await?;
    received::wait_for_only(&mut stream, pod_name, "vm".into()).await?;
    rig.delete("EndpointSlice", "b").await?;
    received::wait_for_only(&mut stream, pod_name, String::new()).await?;
    assert!(!stream.messages.iter().any(|message| matches!(message, Message::Remove(_))), "{:?}", stream.messages);
    rig.delete("EndpointSlice", "a").await?;
    stream.shows(&[]).await
}

#[tokio::test]
async fn of_two_pods_with_one_address_the_one_that_is_not_terminating_wins() -> Result<()> {
    let rig = Rig::start("pods").await?;
    let kept = |object: Object| object.with(json!({"metadata": {"finalizers": [super::objects::KEPT]}}));
    rig.put_all([service("web"), kept(meshed("web-a")), meshed("web-b")]).await?;
    rig.put(slice("web", "web", &[of_pod("192.0.2.1", "web-a"), of_pod("192.0.2.1", "web-b")])).await?;
    let name = |endpoint: &linkerd2_proxy_api::destination::WeightedAddr| endpoint.metric_labels["pod"].clone();
    rig.delete("Pod", "web-a").await?;
    let mut stream = rig.get("web:80").await?;
    received::wait_for_only(&mut stream, name, "web-b".into()).await?;
    // A terminating Pod that is the only claimant keeps the address.
    rig.delete("Pod", "web-b").await?;
    received::wait_for_only(&mut stream, name, "web-a".into()).await?;
    rig.patch("Pod", "web-a", json!({"metadata": {"finalizers": null}})).await?;
    stream.shows(&[]).await
}

#[tokio::test]
async fn of_two_running_pods_with_one_address_the_newest_wins_then_the_first_by_name() -> Result<()> {
    let rig = Rig::start("newest").await?;
    rig.put(service("web")).await?;
    let name = |endpoint: &linkerd2_proxy_api::destination::WeightedAddr| endpoint.metric_labels["pod"].clone();
    let created = async |name: &str| anyhow::Ok(rig.create(meshed(name)).await?.metadata.creation_timestamp);
    let old = created("web-a").await?;
    // Creation timestamps have a resolution of one second.
    eventually(SOON, "a Pod created in a later second", async || {
        let new = created("web-b").await?;
        if new == old {
            rig.delete("Pod", "web-b").await?;
        }
        ensure!(new != old, "it was created in the same second");
        Ok(())
    })
    .await?;
    rig.put(slice("web", "web", &[of_pod("192.0.2.1", "web-a"), of_pod("192.0.2.1", "web-b")])).await?;
    let mut stream = rig.get("web:80").await?;
    received::wait_for_only(&mut stream, name, "web-b".into()).await?;
    eventually(SOON, "two Pods created in one second", async || {
        let (one, two) = (created("web-d").await?, created("web-c").await?);
        if one != two {
            rig.delete("Pod", "web-c").await?;
            rig.delete("Pod", "web-d").await?;
        }
        ensure!(one == two, "{one:?} and {two:?}");
        Ok(())
    })
    .await?;
    rig.set_endpoints("web", &[of_pod("192.0.2.1", "web-d"), of_pod("192.0.2.1", "web-c")]).await?;
    received::wait_for_only(&mut stream, name, "web-c".into()).await
}

#[tokio::test]
async fn a_service_that_becomes_external_ends_its_streams() -> Result<()> {
    let rig = Rig::start("becomes").await?;
    let changes = [
        (
            "external",
            json!({"spec": {"type": "ExternalName", "externalName": "example.com", "clusterIP": null, "clusterIPs": null,
            "ipFamilies": null, "ipFamilyPolicy": null}}),
        ),
        ("federated", json!({"metadata": {"annotations": {"multicluster.linkerd.io/remote-discovery": "web@east"}}})),
        ("remote", json!({"metadata": {"labels": {"multicluster.linkerd.io/remote-discovery": "east"}}})),
    ];
    for (name, change) in changes {
        rig.put_all([service(name), slice(name, name, &[address("192.0.2.1")])]).await?;
        let mut stream = rig.shows(name, &["192.0.2.1:8080"]).await?;
        let mut other_port = rig.shows(&format!("{name}:81"), &["192.0.2.1:81"]).await?;
        rig.patch("Service", name, change).await?;
        for stream in [&mut stream, &mut other_port] {
            while let Some(message) = stream.next().await? {
                assert!(matches!(message, Message::Remove(_)), "{name}: {message:?}");
            }
        }
        assert!(rig.discovery.refusal(&rig.path(name), "").await.is_ok(), "a new Get for {name} was not refused");
    }
    // Changes between the types that have slices do not end the stream.
    rig.put_all([service("web"), slice("web", "web", &[address("192.0.2.1")])]).await?;
    let mut stream = rig.shows("web:80", &["192.0.2.1:8080"]).await?;
    for kind in ["NodePort", "LoadBalancer", "ClusterIP"] {
        rig.patch("Service", "web", json!({"spec": {"type": kind}})).await?;
    }
    stream.is_quiet_for(QUIET).await?;
    rig.put(external_name("was-external")).await?;
    rig.patch(
        "Service",
        "was-external",
        json!({"spec": {"type": "ClusterIP", "externalName": null, "ports": [{"port": 80}]}}),
    )
    .await?;
    assert_eq!(rig.get("was-external:80").await?.next().await?, Some(EMPTY));
    Ok(())
}
