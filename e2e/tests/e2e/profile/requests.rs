//! Requests: authorities, names and context tokens, and the refusals of `GetProfile`.

use anyhow::{Context, Result, ensure};
use linkerd2_proxy_api::destination::{GetDestination, destination_client::DestinationClient};
use serde_json::json;
use tonic::{Code, transport::Channel};

use super::{at, ip, ipv6, routes, summary};
use crate::discovery::{
    QUIET, Rig, Settings,
    objects::{Object, external_name, pod, service},
};

const INVALID: Code = Code::InvalidArgument;

/// Creates a Service `web` with the ports 80 and 8989.
async fn rig(settings: Settings, prefix: &str) -> Result<Rig> {
    let rig = Rig::with(settings, prefix).await?;
    rig.put(two_ports("web")).await?;
    rig.open_service("web:80").await?.becomes("service web").await?;
    Ok(rig)
}

fn two_ports(name: &str) -> Object {
    let ports = json!([{"name": "http", "port": 80}, {"name": "admin", "port": 8989}]);
    service(name).with(json!({"spec": { "ports": ports }}))
}

#[tokio::test]
async fn all_spellings_of_an_authority_are_the_same_service_and_port() -> Result<()> {
    let rig = rig(Settings::Helm, "spelling").await?;
    let host = rig.full_name("web");
    for (path, port) in [
        (host.clone(), 80),
        (format!("{host}:80"), 80),
        (format!("{host}:080"), 80),
        (format!("{host}:+80"), 80),
        (format!("{host}:+0080"), 80),
        (format!("[{host}]:80"), 80),
        (format!("{host}:8989"), 8989),
        (format!("{host}:08989"), 8989),
    ] {
        let profile = rig.discovery.first_profile(&path, "").await?;
        let resource = super::services::parent(&profile).with_context(|| path.clone())?;
        assert_eq!((resource.name.as_str(), resource.port), ("web", port), "{path}");
        assert_eq!(profile.fully_qualified_name, host, "{path}");
    }
    // An empty first label is not an instance, and stays in the name.
    let path = format!(".{host}:80");
    let profile = rig.discovery.first_profile(&path, "").await?;
    assert_eq!(profile.fully_qualified_name, format!(".{host}"));
    ensure!(profile.endpoint.is_none(), "{profile:?}");
    Ok(())
}

#[tokio::test]
async fn all_spellings_of_an_address_are_the_same_address() -> Result<()> {
    let rig = Rig::start("address").await?;
    let (v4, v6) = (ip(), ipv6());
    let upper = v6.to_uppercase();
    let long = v6.replacen("::", ":0:0::", 1);
    for (path, address) in [
        (v4.clone(), at(&v4, 80)),
        (format!("{v4}:80"), at(&v4, 80)),
        (format!("{v4}:+080"), at(&v4, 80)),
        (format!("{v4}:65535"), at(&v4, 65535)),
        (format!("{v4}:1"), at(&v4, 1)),
        (format!("[{v4}]:80"), at(&v4, 80)),
        (format!("[::ffff:{v4}]:80"), at(&v4, 80)),
        (format!("[::FFFF:{v4}]:80"), at(&v4, 80)),
        (format!("[{v6}]:80"), at(&v6, 80)),
        (format!("[{upper}]:80"), at(&v6, 80)),
        (format!("[{long}]:80"), at(&v6, 80)),
    ] {
        let profile = rig.discovery.first_profile(&path, "").await.with_context(|| path.clone())?;
        assert_eq!((summary(&profile).as_str(), super::pods::address(&profile)?), ("address", address), "{path}");
    }
    Ok(())
}

#[tokio::test]
async fn invalid_authorities_are_refused() -> Result<()> {
    let rig = rig(Settings::Helm, "authority").await?;
    let host = rig.full_name("web");
    let ports = [
        "",
        "http",
        "8_0",
        "99999999999999999999",
        "0",
        "00",
        "+0",
        "65536",
        "-1",
        "- 80",
        " 80",
        "80 ",
        "0x50",
        "1e2",
        "++80",
        "+",
        "-",
    ];
    let paths = ports.iter().flat_map(|port| [format!("{host}:{port}"), format!("192.0.2.1:{port}")]);
    let others =
        ["::1", "2001:db8::1:80", "a:b:c", "[::1]", "[::1]80", "[::1]x:80", "x[::1]:80", "[[::1]]:80", "[::1]:"];
    let others = others.map(str::to_owned).into_iter().chain([format!("{host}:80:80"), format!("[{host}:80")]);
    for path in paths.chain(others) {
        rig.is_refused(&path, INVALID, &format!("invalid authority: \"{path}\"")).await?;
    }
    Ok(())
}

#[tokio::test]
async fn names_outside_the_cluster_domain_are_refused() -> Result<()> {
    let rig = rig(Settings::Helm, "names").await?;
    let name = rig.name();
    let of_web = ["", ".svc", ".svc.cluster", ".svc.cluster.local.", ".svc.cluster.com", ".SVC.cluster.local"]
        .into_iter()
        .chain([".svc.Cluster.local", ".svc.cluster.locale", ".pod.cluster.local", ".svc.mycluster.local"])
        .map(|suffix| format!("web.{name}{suffix}"));
    let others = [
        "foo",
        "linkerd.io",
        "svc.cluster.local",
        "web.svc.cluster.local",
        "cluster.local",
        "a.b.web.ns.svc.cluster.local",
        "10.0.0.01",
        "10.0.0",
        "10.0.0.256",
        "x.x.x.x",
        "web.ns.svc.cluster.local/path",
    ];
    for host in of_web.chain(others.map(str::to_owned)) {
        let text = format!("invalid service \"{host}\"");
        rig.is_refused(&host, INVALID, &text).await?;
        rig.is_refused(&format!("{host}:80"), INVALID, &text).await?;
    }
    for (path, host) in [("", ""), (":80", ""), ("[fe80::1%eth0]:80", "fe80::1%eth0"), ("[foo]:80", "foo")] {
        rig.is_refused(path, INVALID, &format!("invalid service \"{host}\"")).await?;
    }
    Ok(())
}

#[tokio::test]
async fn a_missing_service_is_refused_with_unknown() -> Result<()> {
    let rig = rig(Settings::Helm, "missing").await?;
    let namespace = rig.name();
    for host in [
        format!("missing.{namespace}"),
        format!("WEB.{namespace}"),
        "web.elsewhere".to_owned(),
        format!(".missing.{namespace}"),
        format!(".{namespace}"),
        ".".to_owned(),
    ] {
        rig.is_refused(&format!("{host}.svc.cluster.local:80"), Code::Unknown, "").await?;
    }
    // The Service is checked before the port.
    rig.is_refused(&rig.path("missing:1"), Code::Unknown, "").await
}

#[tokio::test]
async fn an_external_name_is_refused_on_its_declared_ports() -> Result<()> {
    let rig = rig(Settings::Helm, "external").await?;
    rig.put_all([
        external_name("listing").with(json!({"spec": {"ports": [{"name": "http", "port": 80}]}})),
        external_name("portless"),
    ])
    .await?;
    let path = rig.path("listing:80");
    rig.is_refused(&path, INVALID, &format!("Invalid authority: {path}")).await?;
    let path = rig.path("listing:0080");
    rig.is_refused(&path, INVALID, &format!("Invalid authority: {path}")).await?;
    for path in ["listing:8080", "portless:80"] {
        let mut open = rig.open_service(path).await?;
        open.becomes("empty").await?;
        open.has_received(1).await?;
    }
    Ok(())
}

#[tokio::test]
async fn the_cluster_domain_is_set_by_the_flag() -> Result<()> {
    let rig = rig(Settings::Upstream, "domain").await?;
    assert_eq!(rig.full_name("web"), format!("web.{}.svc.mycluster.local", rig.name()));
    for host in [format!("web.{}.svc.cluster.local", rig.name()), "externalname.ns.svc.cluster.local".to_owned()] {
        rig.is_refused(&format!("{host}:80"), INVALID, &format!("invalid service \"{host}\"")).await?;
    }
    rig.is_refused("linkerd.io", INVALID, "invalid service \"linkerd.io\"").await
}

#[tokio::test]
async fn the_scheme_makes_no_difference() -> Result<()> {
    let rig = rig(Settings::Helm, "scheme").await?;
    let address = format!("http://{}", rig.manager.destination_address());
    let mut client = DestinationClient::new(Channel::from_shared(address)?.connect().await?);
    for scheme in ["", "k8s", "http+proxy", "\u{0}"] {
        let request = GetDestination { scheme: scheme.to_owned(), path: rig.path("web"), context_token: String::new() };
        let mut stream = client.get_profile(request).await?.into_inner();
        let message = tokio::time::timeout(e2e::mesh::SOON, stream.message()).await??.context("the stream ended")?;
        assert_eq!(summary(&message), "service web", "{scheme:?}");
    }
    Ok(())
}

#[tokio::test]
async fn the_namespace_is_read_from_every_token_that_names_it_and_no_token_is_refused() -> Result<()> {
    let rig = rig(Settings::Helm, "token").await?;
    let client = Rig::start("client").await?;
    rig.put(rig.profile("web", routes(&["backup"]))).await?;
    client.put(rig.profile("web", routes(&["primary"]))).await?;
    let (path, namespace) = (rig.path("web"), client.name());
    // Both profiles are in the cache from here on.
    rig.open_service("web").await?.becomes("service web with routes backup").await?;
    rig.open_service_from(namespace, "web").await?.becomes("service web with routes primary").await?;
    for token in [
        r#"{"ns":"HERE"}"#,
        r#"{"ns":"HERE", "nodeName":"node-1", "pod":"web-1"}"#,
        "{\"ns\":\"HERE\", \"nodeName\":\"node-1\"}\n",
        " \t\r\n{ \"ns\" : \"HERE\" } \n\n",
        r#"{"ns":"HERE","more":{"deep":[1,null,true]}}"#,
        r#"{"nodeName":null,"ns":"HERE"}"#,
        "ns:HERE",
    ] {
        let token = token.replace("HERE", namespace);
        let profile = rig.discovery.first_profile(&path, &token).await.with_context(|| token.clone())?;
        assert_eq!(summary(&profile), "service web with routes primary", "{token}");
    }
    for token in [
        "",
        "\n",
        "null",
        "{}",
        "[]",
        "1",
        "\"HERE\"",
        "123fa-test",
        "HERE",
        "NS:HERE",
        "ns:a:HERE",
        "ns:HERE:b",
        "ns:",
        "ns:HERE ",
        "ns: HERE",
        r#"{"ns":null}"#,
        r#"{"ns":""}"#,
        r#"{"ns":7}"#,
        r#"["HERE"]"#,
        r#"{"ns":"HERE""#,
        r#"{"ns":"HERE",}"#,
        r#"{"namespace":"HERE"}"#,
        r#"{"nodeName":"HERE"}"#,
        "{",
        "\u{0}",
    ] {
        let token = token.replace("HERE", namespace);
        let profile = rig.discovery.first_profile(&path, &token).await.with_context(|| token.clone())?;
        assert_eq!(summary(&profile), "service web with routes backup", "{token}");
    }
    Ok(())
}

#[tokio::test]
async fn requests_that_are_too_long_get_a_short_refusal_and_keep_the_connection() -> Result<()> {
    let rig = rig(Settings::Helm, "long").await?;
    let mut open = rig.open_service("web").await?;
    open.becomes("service web").await?;
    for length in [300, 3_000, 17 * 1024, 1024 * 1024] {
        let (code, text) = rig.discovery.profile_refusal(&"a".repeat(length), "").await?;
        ensure!(code == INVALID && text.len() < 2048, "{length}: {code:?} {text}");
    }
    rig.put(rig.profile("web", routes(&["more"]))).await?;
    open.becomes("service web with routes more").await
}

#[tokio::test]
async fn two_objects_with_one_address_are_refused() -> Result<()> {
    let rig = Rig::start("conflict").await?;
    let (of_pods, of_hosts, of_workloads) = (ip(), ip(), ip());
    let on_host = |name: &str| {
        let port = json!({"name": "http", "containerPort": 8080, "hostPort": 7777});
        pod(name).with(json!({"spec": {"containers": [{"name": "app", "image": "app", "ports": [port]}]}}))
    };
    let host = json!({"phase": "Running", "hostIP": of_hosts, "hostIPs": [{"ip": of_hosts}]});
    for name in ["one", "two"] {
        rig.run(pod(&format!("pod-{name}")), &[&of_pods]).await?;
        rig.put_with_status(on_host(&format!("host-{name}")), host.clone()).await?;
        rig.put(super::workload_at(&format!("vm-{name}"), &[&of_workloads])).await?;
    }
    let refused = Code::FailedPrecondition;
    let (pods, hosts, workloads) = (at(&of_pods, 1), at(&of_hosts, 7777), at(&of_workloads, 8080));
    rig.is_refused(&pods, refused, &format!("found 2 pods with a conflicting pod network IP {of_pods}")).await?;
    rig.is_refused(&hosts, refused, &format!("found 2 pods with a conflicting host network endpoint {hosts}")).await?;
    rig.is_refused(&workloads, refused, &format!("found 2 externalworkloads with a conflicting ip {workloads}"))
        .await?;
    // Other ports of the host and of the ExternalWorkloads have no conflict.
    for path in [at(&of_hosts, 8080), at(&of_workloads, 80)] {
        rig.open(&path).await?.becomes("address").await?;
    }
    // Once one of the two is deleted, the other is served.
    rig.delete("Pod", "pod-one").await?;
    rig.delete("Pod", "host-one").await?;
    rig.delete("ExternalWorkload", "vm-one").await?;
    rig.open(&pods).await?.becomes("pod pod-two").await?;
    rig.open(&hosts).await?.becomes("pod host-two").await?;
    let mut workload = rig.open(&workloads).await?;
    workload.shows("the other workload", |profile| summary(profile).starts_with("external_workload vm-two")).await?;
    workload.stream.is_quiet_for(QUIET).await
}
