//! IPv4 and IPv6: each Pod is served in one family, chosen after all other filters, for any order of events.

use anyhow::Result;
use e2e::discovery::Message;
use linkerd2_proxy_api::net::{IPv6, ip_address::Ip};
use serde_json::json;

use super::{
    QUIET, Rig, Settings, add, brings,
    objects::{Object, meshed, of_pod, service, slice, slice_v6},
    remove,
};

const V4: &str = "172.17.0.19:8080";
const V6: &str = "[2001:db8::94]:8080";

fn v4() -> Object {
    slice("v4", "web", &[of_pod("172.17.0.19", "web-1")])
}

fn v6() -> Object {
    slice_v6("v6", "web", &[of_pod("2001:db8::94", "web-1")])
}

#[tokio::test]
async fn a_dual_stack_pod_is_served_at_its_ipv6_address_while_it_has_one() -> Result<()> {
    let rig = Rig::with(Settings::Upstream, "sequence").await?;
    rig.put_all([service("web"), meshed("web-1"), v4(), v6()]).await?;
    rig.begins_with("web:80", "", &[V6]).await?;
    let mut stream = rig.shows("web:80", &[V6]).await?;
    let raw = stream.only()?.addr.as_ref().and_then(|address| address.ip.as_ref()).and_then(|ip| ip.ip);
    assert_eq!(raw, Some(Ip::Ipv6(IPv6 { first: 0x2001_0db8_0000_0000, last: 0x94 })));
    rig.delete("EndpointSlice", "v6").await?;
    brings(&mut stream, &[add(&[V4])?, remove(&[V6])?]).await?;
    rig.put(v6()).await?;
    brings(&mut stream, &[add(&[V6])?, remove(&[V4])?]).await?;
    rig.put(slice("v4-too", "web", &[of_pod("172.17.0.20", "web-1")])).await?;
    stream.is_quiet_for(QUIET).await?;
    rig.delete("EndpointSlice", "v4-too").await?;
    rig.delete("EndpointSlice", "v4").await?;
    stream.is_quiet_for(QUIET).await?;
    // The family is that of the slice; the families of the Service do not matter.
    rig.delete("EndpointSlice", "v6").await?;
    brings(&mut stream, &[remove(&[V6])?]).await
}

#[tokio::test]
async fn the_order_of_the_families_does_not_matter() -> Result<()> {
    let rig = Rig::with(Settings::Upstream, "order").await?;
    for (name, first, second) in [("v4-first", v4(), v6()), ("v6-first", v6(), v4())] {
        let of = |object: Object| {
            let own = format!("{name}-{}", object.value["metadata"]["name"].as_str().unwrap_or_default());
            object.labelled("kubernetes.io/service-name", name).with(json!({"metadata": {"name": own}}))
        };
        rig.put_all([service(name), of(first), of(second)]).await?;
        let mut early = rig.get(name).await?;
        assert_eq!(early.next().await?, Some(Message::NoEndpoints { exists: true }));
        for _ in 0..3 {
            rig.put(meshed("web-1")).await?;
            early.shows(&[V6]).await?;
            rig.begins_with(name, "", &[V6]).await?;
            rig.delete("Pod", "web-1").await?;
            early.shows(&[]).await?;
        }
    }
    Ok(())
}

#[tokio::test]
async fn with_ipv6_disabled_a_service_with_only_ipv6_endpoints_is_empty() -> Result<()> {
    let rig = Rig::start("off").await?;
    rig.put_all([service("web"), meshed("web-1"), v6()]).await?;
    let mut stream = rig.get("web:80").await?;
    assert_eq!(stream.next().await?, Some(Message::NoEndpoints { exists: true }));
    rig.put(v4()).await?;
    brings(&mut stream, &[add(&[V4])?]).await?;
    rig.delete("EndpointSlice", "v6").await?;
    stream.is_quiet_for(QUIET).await
}
