//! Requests: authorities and context tokens, and the refusals of `Get`.

use anyhow::{Context, Result, ensure};
use e2e::{eventually, mesh::SOON};
use tonic::Code;

use super::{
    Rig, Settings,
    objects::{Object, address, external_name, hinted, node, service, slice},
};

const INVALID: Code = Code::InvalidArgument;
const REMOTE: &str = "multicluster.linkerd.io/remote-discovery";
const LOCAL: &str = "multicluster.linkerd.io/local-discovery";
const REMOTE_SERVICE: &str = "multicluster.linkerd.io/remote-service";

/// Waits until the path is refused like this. Before that, the Service may not be in the cache yet.
async fn refuses(rig: &Rig, path: &str, code: Code, text: &str) -> Result<()> {
    eventually(SOON, format_args!("{path:?} to be refused"), async || {
        let refusal = rig.discovery.refusal(path, "").await?;
        ensure!(refusal == (code, text.to_owned()), "expected {code:?} {text:?}, received {refusal:?}");
        Ok(())
    })
    .await
}

#[tokio::test]
async fn an_invalid_authority_is_refused_with_its_text_row_1() -> Result<()> {
    let rig = Rig::start("row-1").await?;
    rig.put(service("web")).await?;
    rig.get("web:80").await?;
    let host = format!("web.{}.svc.cluster.local", rig.name());
    for port in [
        "",
        "0",
        "00",
        "-0",
        "+0",
        "65536",
        "99999999999999999999",
        "-1",
        "- 80",
        "abc",
        "80a",
        " 80",
        "80 ",
        "8_0",
        "0x50",
        "1e2",
        "++80",
        "+",
        "-",
        "８０",
        "80:80",
        "80:",
    ] {
        let path = format!("{host}:{port}");
        refuses(&rig, &path, INVALID, &format!("Invalid authority: {path}")).await?;
    }
    let more = [
        "::1",
        "[::1]",
        "a:b:80",
        ":",
        "::",
        "[]",
        "[",
        "]:80",
        "10.0.0.1:0",
        "10.0.0.1:",
        "[::1]:",
        "[::1]:0",
        "[::1]80",
        "[::1]x:80",
        "x[::1]:80",
        "[[::1]]:80",
        "2001:db8::1",
    ];
    for path in more.map(str::to_owned).into_iter().chain([
        format!("[{host}:80"),
        format!("{host}]:80"),
        format!("[{host}]x:80"),
        format!("[{host}]"),
        format!("[{host}]:"),
    ]) {
        refuses(&rig, &path, INVALID, &format!("Invalid authority: {path}")).await?;
    }
    Ok(())
}

#[tokio::test]
async fn get_refuses_ip_addresses_row_2() -> Result<()> {
    let rig = Rig::start("row-2").await?;
    for (path, host) in [
        ("10.0.0.1", "10.0.0.1"),
        ("10.0.0.1:80", "10.0.0.1"),
        ("[10.0.0.1]:80", "10.0.0.1"),
        ("0.0.0.0:65535", "0.0.0.0"),
        ("[::1]:80", "::1"),
        ("[::]:1", "::"),
        ("[2001:DB8::1]:+080", "2001:DB8::1"),
        ("[::ffff:10.0.0.1]:80", "::ffff:10.0.0.1"),
    ] {
        refuses(&rig, path, INVALID, &format!("IP queries not supported by Get API: host={host}")).await?;
    }
    Ok(())
}

#[tokio::test]
async fn a_host_that_is_not_a_service_of_the_domain_is_refused_row_3() -> Result<()> {
    let rig = Rig::start("row-3").await?;
    rig.put(service("web")).await?;
    rig.get("web:80").await?;
    let namespace = rig.name();
    let short = ["", "svc.", "svc.cluster.", "svc.cluster.local.", "svc.cluster.com", "SVC.cluster.local"];
    let longer =
        ["svc.Cluster.local", "svc.cluster.locale", "pod.cluster.local", "svc.mycluster.local", "cluster.local"];
    let with_service = short.iter().chain(&longer).map(|suffix| format!("web.{namespace}.{suffix}"));
    let others = [
        "",
        ":80",
        "foo",
        "linkerd.io",
        "web",
        "svc.cluster.local",
        "web.svc.cluster.local",
        "cluster.local",
        ".",
        "....",
        "a.b.web.ns.svc.cluster.local",
        "10.0.0.01",
        "10.0.0",
        "10.0.0.256:80",
        "[fe80::1%eth0]:80",
        "[:::]:80",
        "web.ns.svc.cluster.local.:80",
        "wéb",
        " ",
        "\u{0}",
        "web.ns.svc.cluster.local/path",
        "http://web.ns.svc.cluster.local",
    ];
    for path in with_service.chain(others.map(str::to_owned)) {
        // A path whose text after the colon is not a port belongs to row 1, which has the same text.
        refuses(&rig, &path, INVALID, &format!("Invalid authority: {path}")).await?;
    }
    Ok(())
}

#[tokio::test]
async fn a_missing_service_is_not_found_row_4() -> Result<()> {
    let rig = Rig::start("row-4").await?;
    rig.put(service("web")).await?;
    rig.get("web:80").await?;
    let namespace = rig.name();
    for (name, found) in [
        ("missing", format!("missing.{namespace}")),
        ("WEB", format!("WEB.{namespace}")),
        ("web-0.missing", format!("missing.{namespace}")),
        (".missing", format!("missing.{namespace}")),
        ("", format!(".{namespace}")),
    ] {
        let path = format!("{name}.{namespace}.svc.cluster.local:80");
        refuses(&rig, &path, Code::NotFound, &format!("Service {found} not found")).await?;
    }
    refuses(&rig, "web.elsewhere.svc.cluster.local", Code::NotFound, "Service web.elsewhere not found").await?;
    refuses(&rig, "..svc.cluster.local", Code::NotFound, "Service . not found").await
}

#[tokio::test]
async fn services_of_unknown_clusters_are_refused_rows_6_to_8_and_10() -> Result<()> {
    let rig = Rig::start("rows").await?;
    let both = |object: Object| object.labelled(REMOTE, "east").labelled(REMOTE_SERVICE, "web");
    rig.put_all([
        service("federated").annotated(REMOTE, "web@east"),
        service("empty").annotated(REMOTE, ""),
        service("local").annotated(LOCAL, "web"),
        external_name("federated-first").annotated(LOCAL, "web").labelled(REMOTE, "east"),
        service("nameless").labelled(REMOTE, "east"),
        both(service("remote")),
        both(external_name("remote-first")),
        external_name("external"),
        // Neither the remote Service name alone nor a local-discovery label, which must be an annotation, makes a
        // Service remote.
        service("plain").labelled(REMOTE_SERVICE, "web").labelled(LOCAL, "web"),
    ])
    .await?;
    rig.get("plain:80").await?;
    let namespace = rig.name();
    for service in ["federated", "empty", "local", "federated-first"] {
        let text = format!("service {namespace}/{service} is not a federated service");
        refuses(&rig, &rig.path(service), Code::Unknown, &text).await?;
    }
    let path = rig.path("nameless");
    let text = format!("Remote discovery service missing remote service name {path}");
    refuses(&rig, &path, Code::FailedPrecondition, &text).await?;
    for service in ["remote", "remote-first"] {
        refuses(&rig, &rig.path(service), Code::NotFound, "Remote cluster not found: east").await?;
    }
    for path in [rig.path("external:80"), rig.path("external:0080"), rig.path("pod-0.external:1")] {
        refuses(&rig, &path, INVALID, &format!("Invalid authority: {path}")).await?;
    }
    Ok(())
}

#[tokio::test]
async fn all_spellings_of_an_authority_are_the_same_service() -> Result<()> {
    let rig = Rig::start("spelling").await?;
    rig.put_all([service("web"), slice("web", "web", &[address("192.0.2.1")])]).await?;
    rig.shows("web:80", &["192.0.2.1:8080"]).await?;
    let host = format!("web.{}.svc.cluster.local", rig.name());
    for (path, expected) in [
        (host.clone(), "192.0.2.1:8080"),
        (format!("{host}:80"), "192.0.2.1:8080"),
        (format!("{host}:+80"), "192.0.2.1:8080"),
        (format!("{host}:0080"), "192.0.2.1:8080"),
        (format!("[{host}]:80"), "192.0.2.1:8080"),
        (format!(".{host}:80"), "192.0.2.1:8080"),
        (format!("{host}:1"), "192.0.2.1:1"),
        (format!("{host}:65535"), "192.0.2.1:65535"),
    ] {
        let mut endpoints = rig.discovery.get(&path, "").await.with_context(|| path.clone())?;
        endpoints.shows(&[expected]).await.with_context(|| path.clone())?;
    }
    Ok(())
}

#[tokio::test]
async fn the_cluster_domain_is_set_by_the_flag() -> Result<()> {
    let rig = Rig::with(Settings::Upstream, "domain").await?;
    rig.put_all([service("web"), external_name("external"), slice("web", "web", &[address("192.0.2.1")])]).await?;
    rig.shows("web:80", &["192.0.2.1:8080"]).await?;
    for path in [format!("web.{}.svc.cluster.local:80", rig.name()), "linkerd.io".to_owned(), rig.path("external")] {
        refuses(&rig, &path, INVALID, &format!("Invalid authority: {path}")).await?;
    }
    Ok(())
}

#[tokio::test]
async fn the_node_is_read_from_every_token_that_names_it_and_no_token_is_refused() -> Result<()> {
    let rig = Rig::start("token").await?;
    let (here, there) = (format!("{}-here", rig.name()), format!("{}-there", rig.name()));
    let endpoints = [hinted(address("192.0.2.1"), &["here"]), hinted(address("192.0.2.2"), &["there"])];
    rig.put_all([
        node(&here, Some("here")),
        node(&there, Some("there")),
        service("web"),
        slice("web", "web", &endpoints),
    ])
    .await?;
    let (near, all) = (["192.0.2.1:8080"].as_slice(), ["192.0.2.1:8080", "192.0.2.2:8080"].as_slice());
    // The nodes are in the cache from here on, so the first message of a stream is final.
    rig.begins_with("web", &e2e::discovery::token("", &here), near).await?;
    rig.begins_with("web", &e2e::discovery::token("", &there), &["192.0.2.2:8080"]).await?;
    let long = format!(r#"{{"nodeName":"{here}","pod":"{}"}}"#, "p".repeat(2000));
    let too_long = format!(r#"{{"nodeName":"{here}","pod":"{}"}}"#, "p".repeat(5000));
    let deep = format!(r#"{{"nodeName":"{here}","x":{}{}}}"#, "[".repeat(1500), "]".repeat(1500));
    let with_node = [
        r#"{"ns":"ns", "nodeName":"HERE", "pod":"web-1"}"#,
        "{\"ns\":\"ns\", \"nodeName\":\"HERE\", \"pod\":\"web-1\"}\n",
        " \t\r\n{ \"nodeName\" : \"HERE\" } \n\n",
        r#"{"nodename":"HERE"}"#,
        r#"{"NODENAME":"HERE","NS":"ns"}"#,
        r#"{"nodeName":"HERE","more":{"deep":[1,null,true,{"a":1.5e3}]}}"#,
        r#"{"nodeName":"THERE","nodeName":"HERE"}"#,
        r#"{"nodeName":"THERE","NodeName":"HERE"}"#,
        r#"{"ns":1,"nodeName":"HERE","pod":{}}"#,
        r#"{"nodeName":"HERE","ns":["a"]}"#,
        r#"{"ns":null,"nodeName":"HERE"}"#,
        r#"{"node\u004eame":"HERE"}"#,
        &long,
    ];
    for token in with_node {
        let token = token.replace("THERE", &there).replace("HERE", &here);
        rig.begins_with("web", &token, near).await.with_context(|| format!("the token {token:.200}"))?;
    }
    let without_node = [
        "",
        "\n",
        "null",
        "{}",
        "[]",
        "1",
        "\"HERE\"",
        "123fa-test",
        "ns:ns-2",
        "ns:",
        "ns:a:b",
        "nodeName:HERE",
        r#"{"nodeName":null}"#,
        r#"{"nodeName":""}"#,
        r#"{"nodeName":7}"#,
        r#"{"nodeName":["HERE"]}"#,
        r#"["HERE"]"#,
        r#"{"nodeName":"HERE"} x"#,
        r#"{"nodeName":"HERE"}{}"#,
        r#"{"nodeName":"HERE""#,
        r#"{"nodeName":"HERE",}"#,
        r#"{nodeName:"HERE"}"#,
        r#"{'nodeName':'HERE'}"#,
        r#"{"node_name":"HERE"}"#,
        r#"{"nodeName":"HERE "}"#,
        "\u{0}",
        "{",
        &too_long,
    ];
    for token in without_node {
        let token = token.replace("HERE", &here);
        rig.begins_with("web", &token, all).await.with_context(|| format!("the token {token:.200}"))?;
    }
    // Deep nesting may or may not be parsed, but the request is answered.
    rig.discovery.get(&rig.path("web"), &deep).await?.next().await?;
    Ok(())
}

#[tokio::test]
async fn requests_that_are_too_long_get_a_short_refusal_and_keep_the_connection() -> Result<()> {
    let rig = Rig::start("long").await?;
    rig.put_all([service("web"), slice("web", "web", &[address("192.0.2.1")])]).await?;
    let mut endpoints = rig.shows("web:80", &["192.0.2.1:8080"]).await?;
    for length in [300, 3_000, 15_000] {
        let (code, text) = rig.discovery.refusal(&"a".repeat(length), "").await?;
        ensure!(code == INVALID && text.starts_with("Invalid authority: aaaa") && text.len() < 2048, "{code:?} {text}");
        let path = format!("{}.{}.svc.cluster.local", "b".repeat(length), rig.name());
        let (code, text) = rig.discovery.refusal(&path, "").await?;
        ensure!(code == Code::NotFound && text.starts_with("Service bbbb") && text.len() < 2048, "{code:?} {text}");
        // The text is not truncated within a character.
        let (code, text) = rig.discovery.refusal(&"ß".repeat(length / 2), "").await?;
        ensure!(code == INVALID && text.starts_with("Invalid authority: ßßßß") && text.len() < 2048, "{code:?} {text}");
    }
    for length in [17 * 1024, 1024 * 1024, 3 * 1024 * 1024] {
        for (path, token) in [("a".repeat(length), String::new()), (rig.path("web"), "t".repeat(length))] {
            let (code, text) = rig.discovery.refusal(&path, &token).await?;
            ensure!(code == INVALID && text.len() < 2048, "{length} bytes: {code:?} {text}");
        }
    }
    rig.set_endpoints("web", &[address("192.0.2.2")]).await?;
    endpoints.shows(&["192.0.2.2:8080"]).await
}
