//! Addresses of both families, of whatever has them.

use anyhow::Result;
use linkerd2_proxy_api::net::{IPv6, ip_address::Ip};
use serde_json::json;

use super::{MESHED, at, ip, ipv6, machine, pods::address, routes, running};
use crate::discovery::{
    Rig, Settings,
    objects::{but, meshed, pod, service},
};

#[tokio::test]
async fn a_service_is_found_by_each_of_its_addresses() -> Result<()> {
    // What a manager says of IPv6 endpoints makes no difference to profiles.
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
            let mut open = rig.hears(&at(ip, 80), "service name-ds with routes a").await?;
            open.has_told(1).await?;
        }
        rig.hears(&at(&only, 80), "service name-ipv6").await?;
    }
    Ok(())
}

#[tokio::test]
async fn a_pod_is_found_by_each_of_its_addresses_and_told_with_the_one_asked_for() -> Result<()> {
    let rig = Rig::start("pod").await?;
    let (v4, v6) = (ip(), ipv6());
    rig.run(meshed("web-1"), &[&v4, &v6]).await?;
    for (path, asked) in [(at(&v4, 8080), &v4), (at(&v6, 8080), &v6), (format!("[::ffff:{v4}]:8080"), &v4)] {
        let open = rig.hears(&path, &format!("pod web-1 {MESHED}")).await?;
        assert_eq!(address(open.stream.last()?)?, at(asked, 8080));
    }
    // As two halves of a number.
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
        let open = rig.hears(&at(ip, 8080), "pod agent").await?;
        assert_eq!(address(open.stream.last()?)?, at(ip, 8080));
    }
    Ok(())
}

#[tokio::test]
async fn a_machine_is_found_by_each_of_its_addresses_however_they_are_written() -> Result<()> {
    let rig = Rig::start("machine").await?;
    let (v4, v6) = (ip(), ipv6());
    let written = v6.to_uppercase().replacen("::", ":0:0:0::", 1);
    rig.put(machine("vm", &[&v4, &written])).await?;
    for ip in [&v4, &v6] {
        let open = rig.hears(&at(ip, 8080), &format!("external_workload vm {MESHED}")).await?;
        assert_eq!(address(open.stream.last()?)?, at(ip, 8080));
    }
    rig.hears(&format!("[{written}]:8080"), &format!("external_workload vm {MESHED}")).await.map(drop)
}

#[tokio::test]
async fn an_address_that_a_machine_gets_later_is_told_to_who_asked_for_it() -> Result<()> {
    let rig = Rig::start("later").await?;
    let (v4, v6) = (ip(), ipv6());
    rig.put(machine("vm", &[&v4])).await?;
    let expected = format!("external_workload vm {MESHED}");
    let mut old = rig.hears(&at(&v4, 8080), &expected).await?;
    let mut new = rig.hears(&at(&v6, 8080), "nobody").await?;
    for (ips, of_old, of_new) in [
        (vec![&v4, &v6], expected.as_str(), expected.as_str()),
        (vec![&v6], "nobody", &expected),
        (vec![&v4], &expected, "nobody"),
    ] {
        let ips: Vec<_> = ips.iter().map(|ip| json!({ "ip": ip })).collect();
        rig.patch("ExternalWorkload", "vm", json!({"spec": { "workloadIPs": ips }})).await?;
        new.looks(of_new).await?;
        old.looks(of_old).await?;
    }
    old.has_told(3).await?;
    new.has_told(3).await
}
