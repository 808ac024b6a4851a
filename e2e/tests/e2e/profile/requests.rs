//! What is asked: authorities, names, context tokens, and what is refused.

use anyhow::{Context, Result, ensure};
use linkerd2_proxy_api::destination::{GetDestination, destination_client::DestinationClient};
use serde_json::json;
use tonic::{Code, transport::Channel};

use super::{at, ip, ipv6, look, routes};
use crate::discovery::{
    QUIET, Rig, Settings,
    objects::{Object, external_name, pod, service},
};

const INVALID: Code = Code::InvalidArgument;

/// With a Service `web` that has the ports 80 and 8989.
async fn rig(settings: Settings, prefix: &str) -> Result<Rig> {
    let rig = Rig::with(settings, prefix).await?;
    rig.put(two_ports("web")).await?;
    rig.ask_for("web:80").await?.looks("service web").await?;
    Ok(rig)
}

fn two_ports(name: &str) -> Object {
    let ports = json!([{"name": "http", "port": 80}, {"name": "admin", "port": 8989}]);
    service(name).with(json!({"spec": { "ports": ports }}))
}

#[tokio::test]
async fn every_spelling_of_an_authority_is_the_service_and_port_that_it_means() -> Result<()> {
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
    // An empty first label is no instance; the name stays as it was asked for.
    let path = format!(".{host}:80");
    let profile = rig.discovery.first_profile(&path, "").await?;
    assert_eq!(profile.fully_qualified_name, format!(".{host}"));
    ensure!(profile.endpoint.is_none(), "{profile:?}");
    Ok(())
}

#[tokio::test]
async fn every_spelling_of_an_address_is_the_address() -> Result<()> {
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
        assert_eq!((look(&profile).as_str(), super::pods::address(&profile)?), ("nobody", address), "{path}");
    }
    Ok(())
}

#[tokio::test]
async fn what_is_no_authority_is_refused() -> Result<()> {
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
async fn what_is_no_name_of_the_domain_is_refused() -> Result<()> {
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
async fn a_service_that_is_not_there_is_unknown_and_never_not_found() -> Result<()> {
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
    // The port is looked at only then.
    rig.is_refused(&rig.path("missing:1"), Code::Unknown, "").await
}

#[tokio::test]
async fn an_external_name_is_refused_where_it_lists_the_port() -> Result<()> {
    let rig = rig(Settings::Helm, "external").await?;
    rig.put_all([
        external_name("listing").with(json!({"spec": {"ports": [{"name": "http", "port": 80}]}})),
        external_name("silent"),
    ])
    .await?;
    let path = rig.path("listing:80");
    rig.is_refused(&path, INVALID, &format!("Invalid authority: {path}")).await?;
    let path = rig.path("listing:0080");
    rig.is_refused(&path, INVALID, &format!("Invalid authority: {path}")).await?;
    for path in ["listing:8080", "silent:80"] {
        let mut asked = rig.ask_for(path).await?;
        asked.looks("nothing").await?;
        asked.has_told(1).await?;
    }
    Ok(())
}

#[tokio::test]
async fn the_domain_is_the_one_that_the_flag_names() -> Result<()> {
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
        assert_eq!(look(&message), "service web", "{scheme:?}");
    }
    Ok(())
}

#[tokio::test]
async fn the_namespace_is_found_in_every_token_that_names_it_and_no_token_is_an_error() -> Result<()> {
    let rig = rig(Settings::Helm, "token").await?;
    let client = Rig::start("client").await?;
    rig.put(rig.profile("web", routes(&["backup"]))).await?;
    client.put(rig.profile("web", routes(&["primary"]))).await?;
    let (path, namespace) = (rig.path("web"), client.name());
    // Both are known from here on.
    rig.ask_for("web").await?.looks("service web with routes backup").await?;
    rig.ask_from(namespace, "web").await?.looks("service web with routes primary").await?;
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
        assert_eq!(look(&profile), "service web with routes primary", "{token}");
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
        assert_eq!(look(&profile), "service web with routes backup", "{token}");
    }
    Ok(())
}

#[tokio::test]
async fn what_is_too_long_is_refused_shortly_and_the_connection_goes_on() -> Result<()> {
    let rig = rig(Settings::Helm, "long").await?;
    let mut open = rig.ask_for("web").await?;
    open.looks("service web").await?;
    for length in [300, 3_000, 17 * 1024, 1024 * 1024] {
        let (code, text) = rig.discovery.profile_refusal(&"a".repeat(length), "").await?;
        ensure!(code == INVALID && text.len() < 2048, "{length}: {code:?} {text}");
    }
    rig.put(rig.profile("web", routes(&["more"]))).await?;
    open.looks("service web with routes more").await
}

#[tokio::test]
async fn of_two_that_have_one_address_nobody_is_told() -> Result<()> {
    let rig = Rig::start("conflict").await?;
    let (of_pods, of_hosts, of_machines) = (ip(), ip(), ip());
    let on_host = |name: &str| {
        let port = json!({"name": "http", "containerPort": 8080, "hostPort": 7777});
        pod(name).with(json!({"spec": {"containers": [{"name": "app", "image": "app", "ports": [port]}]}}))
    };
    let host = json!({"phase": "Running", "hostIP": of_hosts, "hostIPs": [{"ip": of_hosts}]});
    for name in ["one", "two"] {
        rig.run(pod(&format!("pod-{name}")), &[&of_pods]).await?;
        rig.put_with_status(on_host(&format!("host-{name}")), host.clone()).await?;
        rig.put(super::machine(&format!("vm-{name}"), &[&of_machines])).await?;
    }
    let refused = Code::FailedPrecondition;
    let (pods, hosts, machines) = (at(&of_pods, 1), at(&of_hosts, 7777), at(&of_machines, 8080));
    rig.is_refused(&pods, refused, &format!("found 2 pods with a conflicting pod network IP {of_pods}")).await?;
    rig.is_refused(&hosts, refused, &format!("found 2 pods with a conflicting host network endpoint {hosts}")).await?;
    rig.is_refused(&machines, refused, &format!("found 2 externalworkloads with a conflicting ip {machines}")).await?;
    // Elsewhere on the host, and on another port of the machines, there is nobody to mistake for another.
    for path in [at(&of_hosts, 8080), at(&of_machines, 80)] {
        rig.ask(&path).await?.looks("nobody").await?;
    }
    // Refusals cost nothing: once one of the two has gone, the other is told of.
    rig.delete("Pod", "pod-one").await?;
    rig.delete("Pod", "host-one").await?;
    rig.delete("ExternalWorkload", "vm-one").await?;
    rig.ask(&pods).await?.looks("pod pod-two").await?;
    rig.ask(&hosts).await?.looks("pod host-two").await?;
    let mut machine = rig.ask(&machines).await?;
    machine.shows("the other", |profile| look(profile).starts_with("external_workload vm-two")).await?;
    machine.stream.is_quiet_for(QUIET).await
}
