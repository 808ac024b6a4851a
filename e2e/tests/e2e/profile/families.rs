//! IPv4 and IPv6 addresses of Services, Pods, hosts and ExternalWorkloads.

use anyhow::Result;
use linkerd2_proxy_api::net::{IPv6, ip_address::Ip};
use serde_json::json;

use super::{MESHED, at, ip, ipv6, pods::address, routes, running, workload_at};
use crate::discovery::{
    Rig, Settings,
    objects::{but, meshed, pod, service},
};

#[tokio::test]
async fn a_service_is_found_by_each_of_its_addresses() -> Result<()> {
    // The manager's IPv6 setting for endpoints does not affect profiles.
    for settings in [Settings::Helm, Settings::Upstream] {
        let rig = Rig::with(settings, "service").await?;
        let both = json!({"spec": {"ipFamilyPolicy": "RequireDualStack", "ipFamilies": ["IPv4", "IPv6"]}});
        let v6 = json!({"spec": {"ipFamilies": ["IPv6"]}});
        let created = rig.create(service("name-ds").with(both)).await?;
        let only = rig.put_service(service("name-ipv6").with(v6)).await?;
        rig.put(rig.profile("name-ds", routes(&["a"]))).await?;
        let ips: Vec<&str> =
            created.data["spec"]["clusterIPs"].as_array().into_iter().flatten().filter_map(|ip| ip.as_str()).collect();
        assert_eq!(ips.len(), 2, "{ips:?}");
        for ip in ips {
            let mut open = rig.opens_with(&at(ip, 80), "service name-ds with routes a").await?;
            open.has_received(1).await?;
        }
        rig.opens_with(&at(&only, 80), "service name-ipv6").await?;
    }
    Ok(())
}

#[tokio::test]
async fn a_pod_is_found_by_each_of_its_addresses_and_sent_with_the_requested_one() -> Result<()> {
    let rig = Rig::start("pod").await?;
    let (v4, v6) = (ip(), ipv6());
    rig.run(meshed("web-1"), &[&v4, &v6]).await?;
    for (path, requested) in [(at(&v4, 8080), &v4), (at(&v6, 8080), &v6), (format!("[::ffff:{v4}]:8080"), &v4)] {
        let open = rig.opens_with(&path, &format!("pod web-1 {MESHED}")).await?;
        assert_eq!(address(open.stream.last()?)?, at(requested, 8080));
    }
    // An IPv6 address is sent as two 64-bit numbers.
    let profile = rig.discovery.first_profile(&at(&v6, 8080), "").await?;
    let raw = profile.endpoint.and_then(|endpoint| endpoint.addr?.ip?.ip);
    let bits = u128::from(v6.parse::<std::net::Ipv6Addr>()?);
    let (first, last) = (u64::try_from(bits >> 64)?, u64::try_from(bits & u128::from(u64::MAX))?);
    assert_eq!(raw, Some(Ip::Ipv6(IPv6 { first, last })));
    let profile = rig.discovery.first_profile(&at(&v4, 8080), "").await?;
    let raw = profile.endpoint.and_then(|endpoint| endpoint.addr?.ip?.ip);
    assert_eq!(raw, Some(Ip::Ipv4(u32::from(v4.parse::<std::net::Ipv4Addr>()?))));
    Ok(())
}

#[tokio::test]
async fn a_host_is_found_by_each_of_its_addresses() -> Result<()> {
    let rig = Rig::start("host").await?;
    let (v4, v6) = (ip(), ipv6());
    let hosts = json!({"hostIP": v4, "hostIPs": [{"ip": v4}, {"ip": v6}]});
    let agent = pod("agent").with(json!({"spec": {"hostNetwork": true}}));
    rig.put_with_status(agent, but(running(&[&v4, &v6]), hosts)).await?;
    for ip in [&v4, &v6] {
        let open = rig.opens_with(&at(ip, 8080), "pod agent").await?;
        assert_eq!(address(open.stream.last()?)?, at(ip, 8080));
    }
    Ok(())
}

#[tokio::test]
async fn a_workload_is_found_by_each_of_its_addresses_in_any_spelling() -> Result<()> {
    let rig = Rig::start("workload").await?;
    let (v4, v6) = (ip(), ipv6());
    let written = v6.to_uppercase().replacen("::", ":0:0:0::", 1);
    rig.put(workload_at("vm", &[&v4, &written])).await?;
    for ip in [&v4, &v6] {
        let open = rig.opens_with(&at(ip, 8080), &format!("external_workload vm {MESHED}")).await?;
        assert_eq!(address(open.stream.last()?)?, at(ip, 8080));
    }
    rig.opens_with(&format!("[{written}]:8080"), &format!("external_workload vm {MESHED}")).await.map(drop)
}

#[tokio::test]
async fn open_streams_follow_the_addresses_of_a_workload() -> Result<()> {
    let rig = Rig::start("later").await?;
    let (v4, v6) = (ip(), ipv6());
    rig.put(workload_at("vm", &[&v4])).await?;
    let expected = format!("external_workload vm {MESHED}");
    let mut old = rig.opens_with(&at(&v4, 8080), &expected).await?;
    let mut new = rig.opens_with(&at(&v6, 8080), "address").await?;
    for (ips, of_old, of_new) in [
        (vec![&v4, &v6], expected.as_str(), expected.as_str()),
        (vec![&v6], "address", &expected),
        (vec![&v4], &expected, "address"),
    ] {
        let ips: Vec<_> = ips.iter().map(|ip| json!({ "ip": ip })).collect();
        rig.patch("ExternalWorkload", "vm", json!({"spec": { "workloadIPs": ips }})).await?;
        new.becomes(of_new).await?;
        old.becomes(of_old).await?;
    }
    old.has_received(3).await?;
    new.has_received(3).await
}
