//! The terminal commands, run as a user runs them, against a manager and a real API server.

use std::{net::SocketAddr, time::Duration};

use anyhow::{Context, Result, ensure};
use e2e::{
    Job, Manager, ManagerOptions, Process, Rig, Signal, Spawn, TestNamespace,
    command::Ended,
    eventually,
    executable::operator_binary,
    mesh::{Mesh, SOON},
};
use k8s_openapi::api::{core::v1::Pod, discovery::v1::EndpointSlice};
use kube::api::{Patch, PatchParams, PostParams};
use serde_json::{Value, json};
use tempfile::TempDir;

/// A Service without a selector, its manually created EndpointSlice, and the Destination API that serves it.
struct Web {
    mesh: Mesh,
    destination: SocketAddr,
    authority: String,
}

impl Web {
    /// Creates the Service on the shared control plane, in a new namespace, and waits until the manager serves it.
    async fn shared(addresses: &[&str]) -> Result<Self> {
        let (control_plane, manager) = e2e::shared_manager().await?;
        let namespace = TestNamespace::create(&control_plane.client().await?, "cli").await?;
        Self::put(&Mesh::new(namespace.client(), namespace.name()), &manager, addresses).await
    }

    async fn put(mesh: &Mesh, manager: &Manager, addresses: &[&str]) -> Result<Self> {
        mesh.put_service("web", json!({ "selector": null })).await?;
        let slice = json!({
            "metadata": {"name": "web-1", "labels": {"kubernetes.io/service-name": "web"}},
            "addressType": "IPv4", "endpoints": endpoints(addresses), "ports": [{"name": "http", "port": 8080}],
        });
        mesh.slices.create(&PostParams::default(), &serde_json::from_value::<EndpointSlice>(slice)?).await?;
        let authority = format!("web.{}.svc.cluster.local:80", mesh.namespace());
        let web = Self { mesh: mesh.clone(), destination: manager.destination_address(), authority };
        web.is_served(addresses.len()).await?;
        Ok(web)
    }

    async fn set_addresses(&self, addresses: &[&str]) -> Result<()> {
        let patch = Patch::Merge(json!({ "endpoints": endpoints(addresses) }));
        self.mesh.slices.patch("web-1", &PatchParams::default(), &patch).await?;
        Ok(())
    }

    async fn endpoints(&self, args: &[&str]) -> Result<Ended> {
        run(&[&["endpoints", "--addr", &self.destination.to_string()], args].concat()).await
    }

    async fn profile(&self, args: &[&str]) -> Result<Ended> {
        run(&[&["profile", "--addr", &self.destination.to_string()], args].concat()).await
    }

    /// Waits until the manager serves this number of endpoints, so that tests do not depend on the watch's delay.
    async fn is_served(&self, rows: usize) -> Result<()> {
        eventually(SOON, "the manager to serve the Service", async || {
            let ended = self.endpoints(&[&self.authority, "-o", "json"]).await?;
            ensure!(ended.code == Some(0), "{}", ended.stderr);
            let shown: Vec<Value> = serde_json::from_str(&ended.stdout)?;
            ensure!(shown.len() == rows, "{shown:?}");
            Ok(())
        })
        .await
    }

    fn watch(&self, directory: &TempDir, args: &[&str]) -> Result<Process> {
        self.watch_with("endpoints", directory, args)
    }

    /// Starts a command with `--watch`. Its output is the log of the process.
    fn watch_with(&self, command: &str, directory: &TempDir, args: &[&str]) -> Result<Process> {
        let binary = operator_binary()?;
        let spawn = Spawn::new(format!("{command} --watch"), binary, directory.path().join("log"))
            .args([command, "--watch", "--addr", &self.destination.to_string(), &self.authority])
            .args(args.iter().copied());
        Process::spawn(spawn)
    }
}

fn endpoints(addresses: &[&str]) -> Value {
    let endpoint = |address: &&str| json!({"addresses": [address], "conditions": {"ready": true}});
    addresses.iter().map(endpoint).collect()
}

pub(crate) async fn run(args: &[&str]) -> Result<Ended> {
    Ended::operator(args, Duration::from_secs(30)).await
}

/// Waits for a line that contains all of these words, and returns it.
async fn prints(process: &Process, words: &[&str]) -> Result<String> {
    eventually(SOON, format_args!("a line with {words:?}"), async || {
        let log = process.log();
        let line = log.lines().find(|line| words.iter().all(|word| line.contains(word)));
        line.map(str::to_owned).with_context(|| log.clone())
    })
    .await
}

#[tokio::test]
async fn endpoints_are_printed_as_linkerds_command_prints_them() -> Result<()> {
    let web = Web::shared(&["192.0.2.11", "192.0.2.12"]).await?;
    let namespace = web.mesh.namespace();
    let width = namespace.len().max("NAMESPACE".len());
    let expected = format!(
        "{:width$}   IP           PORT   POD   SERVICE\n\
         {namespace:width$}   192.0.2.11   8080         web.{namespace}\n\
         {namespace:width$}   192.0.2.12   8080         web.{namespace}\n",
        "NAMESPACE"
    );
    let table = web.endpoints(&[&web.authority]).await?;
    assert_eq!((table.code, table.stdout, table.stderr), (Some(0), expected, String::new()));

    let array = web.endpoints(&[&web.authority, "--output", "json"]).await?;
    assert_eq!((array.code, array.stderr), (Some(0), String::new()));
    let shown: Value = serde_json::from_str(&array.stdout)?;
    let expected = |ip: &str| {
        json!({"namespace": namespace, "ip": ip, "port": 8080, "pod": "", "service": format!("web.{namespace}"),
            "weight": 10_000, "labels": {"zone_locality": "unknown"}})
    };
    assert_eq!(shown, json!([expected("192.0.2.11"), expected("192.0.2.12")]));

    let yaml = web.endpoints(&[&web.authority, "-o", "yaml"]).await?;
    assert_eq!(serde_yaml::from_str::<Value>(&yaml.stdout)?, shown);
    let wide = web.endpoints(&[&web.authority, "-o", "wide", "--no-headers"]).await?;
    let words: Vec<Vec<&str>> = wide.stdout.lines().map(|line| line.split_whitespace().collect()).collect();
    let row = |ip: &'static str| vec![namespace, ip, "8080", shown[0]["service"].as_str().unwrap(), "10000"];
    assert_eq!(words, [row("192.0.2.11"), row("192.0.2.12")]);
    Ok(())
}

#[tokio::test]
async fn an_invalid_authority_is_an_error_and_the_other_endpoints_are_printed() -> Result<()> {
    let web = Web::shared(&["192.0.2.11"]).await?;
    let refused = web.endpoints(&["foo"]).await?;
    let sentence = "Destination API error: Invalid authority: foo; write NAME.NAMESPACE.svc.cluster.local:PORT\n";
    assert_eq!((refused.code, refused.stdout.as_str(), refused.stderr.as_str()), (Some(1), "", sentence));

    let mixed = web.endpoints(&["foo", &web.authority]).await?;
    assert_eq!((mixed.code, mixed.stderr.as_str()), (Some(1), sentence));
    assert!(mixed.stdout.contains("192.0.2.11"), "{}", mixed.stdout);

    let watched = web.endpoints(&["foo", "--watch"]).await?;
    assert_eq!((watched.code, watched.stderr.as_str()), (Some(1), sentence));
    Ok(())
}

#[tokio::test]
async fn a_service_without_endpoints_is_not_an_error() -> Result<()> {
    let web = Web::shared(&[]).await?;
    let table = web.endpoints(&[&web.authority]).await?;
    assert_eq!((table.code, table.stdout.as_str()), (Some(0), ""));
    assert_eq!(table.stderr, format!("No endpoints found for {}: the Service has none.\n", web.authority));
    assert_eq!(web.endpoints(&[&web.authority, "-o=json"]).await?.stdout, "[]\n");
    Ok(())
}

#[tokio::test]
async fn a_watch_prints_every_change_until_it_is_interrupted() -> Result<()> {
    let web = Web::shared(&["192.0.2.11"]).await?;
    let directory = tempfile::tempdir()?;
    let mut watch = web.watch(&directory, &[])?;
    prints(&watch, &["added", "192.0.2.11"]).await?;
    web.set_addresses(&["192.0.2.12"]).await?;
    prints(&watch, &["removed", "192.0.2.11"]).await?;
    let line = prints(&watch, &["added", "192.0.2.12"]).await?;
    let written = line.split_whitespace().next().and_then(|time| time.strip_suffix('Z')).unwrap_or_default();
    ensure!(written.len() == "2026-11-21T10:00:00.000".len(), "a line must begin with the time: {line}");
    web.set_addresses(&[]).await?;
    prints(&watch, &["removed", "192.0.2.12"]).await?;
    let log = watch.log();
    assert!(log.starts_with("TIME "), "{log}");
    // A header and four changes.
    assert_eq!(log.lines().count(), 5, "{log}");
    watch.signal(Signal::INT)?;
    assert_eq!(watch.wait(SOON).await?.code(), Some(0));
    Ok(())
}

#[tokio::test]
async fn a_watch_of_several_authorities_goes_on_without_those_that_the_server_refuses() -> Result<()> {
    let web = Web::shared(&["192.0.2.11"]).await?;
    let directory = tempfile::tempdir()?;
    let mut watch = web.watch(&directory, &["foo"])?;
    prints(&watch, &["foo: Destination API error: ", "; not watched"]).await?;
    prints(&watch, &["added", "192.0.2.11"]).await?;
    web.set_addresses(&["192.0.2.12"]).await?;
    prints(&watch, &["added", "192.0.2.12"]).await?;
    watch.signal(Signal::INT)?;
    assert_eq!(watch.wait(SOON).await?.code(), Some(0));
    let refused = run(&["endpoints", "--watch", "--addr", &web.destination.to_string(), "foo", "bar"]).await?;
    assert_eq!(refused.code, Some(1));
    assert!(refused.stderr.ends_with("the server refused every authority\n"), "{}", refused.stderr);
    Ok(())
}

#[tokio::test]
async fn a_profile_is_printed_with_the_field_names_of_linkerds_command() -> Result<()> {
    let web = Web::shared(&[]).await?;
    let by_address = web.profile(&["192.0.2.200:3306"]).await?;
    // 192.0.2.200 is 3221226184.
    let expected = json!({
        "opaque_protocol": true,
        "retry_budget": {"retry_ratio": 0.2, "min_retries_per_second": 10, "ttl": {"seconds": 10}},
        "endpoint": {"addr": {"ip": {"Ip": {"Ipv4": 3_221_226_184_u32}}, "port": 3306}, "weight": 10_000},
    });
    assert_eq!((by_address.code, by_address.stderr.as_str()), (Some(0), ""));
    assert_eq!(serde_json::from_str::<Value>(&by_address.stdout)?, expected);

    let by_name = web.profile(&[&web.authority]).await?;
    assert_eq!((by_name.code, by_name.stderr.as_str()), (Some(0), ""));
    let shown: Value = serde_json::from_str(&by_name.stdout)?;
    let namespace = web.mesh.namespace();
    assert_eq!(shown["fully_qualified_name"], format!("web.{namespace}.svc.cluster.local"));
    let parent = json!({"group": "core", "kind": "Service", "name": "web", "namespace": namespace, "port": 80});
    assert_eq!(shown["parent_ref"], json!({"Kind": {"Resource": parent}}));

    let by_unknown_port = web.profile(&[&web.authority.replace(":80", ":81")]).await?;
    assert_eq!((by_unknown_port.code, by_unknown_port.stdout.as_str()), (Some(0), "{}\n"));
    Ok(())
}

#[tokio::test]
async fn a_rejected_profile_request_is_an_error() -> Result<()> {
    let web = Web::shared(&[]).await?;
    for args in [&["foo"][..], &["foo", "--watch"]] {
        let refused = web.profile(args).await?;
        assert_eq!((refused.code, refused.stdout.as_str()), (Some(1), ""));
        assert!(refused.stderr.starts_with("Destination API error: invalid service \"foo\""), "{}", refused.stderr);
    }
    Ok(())
}

#[tokio::test]
async fn a_request_to_a_silent_server_times_out() -> Result<()> {
    // The kernel establishes connections, but they are never accepted.
    let silent = std::net::TcpListener::bind("127.0.0.1:0")?;
    let ended = run(&["profile", "10.0.0.1:80", "--addr", &silent.local_addr()?.to_string()]).await?;
    assert_eq!((ended.code, ended.stdout.as_str()), (Some(1), ""));
    let sentence = "error: received no profile of 10.0.0.1:80 within 5 s";
    assert!(ended.stderr.starts_with(sentence), "{}", ended.stderr);
    Ok(())
}

#[tokio::test]
async fn a_watch_of_a_profile_prints_one_document_for_each_change() -> Result<()> {
    let web = Web::shared(&[]).await?;
    let directory = tempfile::tempdir()?;
    let mut watch = web.watch_with("profile", &directory, &[])?;
    prints(&watch, &["\"profile\":", "fully_qualified_name"]).await?;
    let annotations = json!({"config.linkerd.io/opaque-ports": "80"});
    web.mesh.patch_service("web", json!({"metadata": {"annotations": annotations}})).await?;
    prints(&watch, &["\"opaque_protocol\":true"]).await?;
    let documents: Vec<Value> =
        watch.log().lines().map(serde_json::from_str).collect::<Result<_, _>>().with_context(|| watch.log())?;
    assert_eq!(documents.len(), 2, "{documents:?}");
    for document in &documents {
        assert_eq!(document["authority"], *web.authority);
        assert!(document["time"].is_string(), "{document}");
    }
    watch.signal(Signal::INT)?;
    assert_eq!(watch.wait(SOON).await?.code(), Some(0));
    Ok(())
}

/// Two managers with different opaque ports, one Service with and one without endpoints.
#[tokio::test]
async fn two_servers_are_compared_and_the_exit_code_says_whether_they_differ() -> Result<()> {
    let web = Web::shared(&["192.0.2.11"]).await?;
    let (control_plane, manager) = e2e::shared_manager().await?;
    let mesh = &web.mesh;
    let namespace = mesh.namespace();
    mesh.put_service("empty", json!({ "selector": null })).await?;
    let start = async |args: &[&str]| {
        ManagerOptions::only(Job::Destination).args(args.iter().copied()).ready(control_plane).await
    };
    let compare = async |other: &Manager, args: &[&str]| {
        let servers = [&*manager, other].map(|server| format!("--addr={}", server.destination_address()));
        run(&[&["compare", &servers[0], &servers[1]], args].concat()).await
    };
    let names = ["web", "empty", "unknown"].map(|name| format!("{name}.{namespace}.svc.cluster.local:80"));
    let authorities: Vec<&str> = names.iter().map(String::as_str).chain(["192.0.2.11:80"]).collect();

    let same = start(&[]).await?;
    let equal = compare(&same, &authorities).await?;
    assert_eq!((equal.code, equal.stdout.as_str()), (Some(0), ""), "{}", equal.stderr);
    assert!(equal.stderr.ends_with(": 7 requests, 0 with different answers.\n"), "{}", equal.stderr);

    let opaque = start(&["--default-opaque-ports=80,8080"]).await?;
    let different = compare(&opaque, &authorities).await?;
    assert_eq!(different.code, Some(1), "{}", different.stderr);
    let rows: Vec<Vec<&str>> = different.stdout.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(rows[0], ["REQUEST", "AUTHORITY", "DIFFERENCE"]);
    let differs = |request: &str, authority: &str| rows.iter().any(|row| row[0] == request && row[1] == authority);
    assert!(differs("profile", &names[0]) && differs("profile", "192.0.2.11:80"), "{}", different.stdout);
    assert!(!differs("endpoints", &names[2]) && !differs("profile", &names[2]), "{}", different.stdout);

    let document = compare(&opaque, &[&authorities[..], &["-o", "json"]].concat()).await?;
    let document: Value = serde_json::from_str(&document.stdout)?;
    assert_eq!(document["compared"], 7);
    assert_eq!(document["servers"][0], manager.destination_address().to_string());

    let kubeconfig = format!("--kubeconfig={}", control_plane.kubeconfig().display());
    let all = compare(&opaque, &["--all", &kubeconfig]).await?;
    assert_eq!(all.code, Some(1), "{}", all.stderr);
    assert!(all.stdout.contains(&names[0]), "{}", all.stdout);
    Ok(())
}

#[tokio::test]
async fn a_comparison_without_an_answer_exits_with_2() -> Result<()> {
    let web = Web::shared(&["192.0.2.11"]).await?;
    let served = format!("--addr={}", web.destination);
    let one = run(&["compare", &served, &web.authority]).await?;
    assert_eq!((one.code, one.stdout.as_str()), (Some(2), ""));
    assert!(one.stderr.contains("give --addr twice"), "{}", one.stderr);

    let free = format!("--addr={}", std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?);
    let closed = run(&["compare", &served, &free, &web.authority]).await?;
    assert_eq!((closed.code, closed.stdout.as_str()), (Some(2), ""));
    assert!(closed.stderr.contains("cannot connect to"), "{}", closed.stderr);
    Ok(())
}

#[tokio::test]
async fn without_a_server_the_error_names_what_the_command_looked_for() -> Result<()> {
    let control_plane = e2e::shared().await?;
    let kubeconfig = control_plane.kubeconfig().to_string_lossy();
    let ended =
        run(&["endpoints", "a.b.svc.cluster.local", "--kubeconfig", &kubeconfig, "--namespace=nowhere"]).await?;
    assert_eq!((ended.code, ended.stdout.as_str()), (Some(1), ""));
    for part in ["linkerd.io/control-plane-component=destination", "namespace nowhere", "--addr"] {
        assert!(ended.stderr.contains(part), "no {part} in: {}", ended.stderr);
    }

    let free = std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?;
    let ended = run(&["endpoints", "a.b.svc.cluster.local", "--addr", &free.to_string()]).await?;
    assert_eq!(ended.code, Some(1));
    assert!(ended.stderr.starts_with(&format!("error: cannot connect to {free}")), "{}", ended.stderr);
    Ok(())
}

#[tokio::test]
async fn the_context_and_the_user_are_chosen_by_flags_as_for_kubectl() -> Result<()> {
    let control_plane = e2e::shared().await?;
    let kubeconfig = control_plane.kubeconfig().to_string_lossy();
    for command in [&["explain"][..], &["compare", "--all"], &["profile", "a.b:80"], &["endpoints", "a.b:80"]] {
        let flags = |more: &[&'static str]| [command, &["--kubeconfig", &kubeconfig], more].concat();
        let ended = run(&flags(&["--context", "another"])).await?;
        assert_eq!(ended.code, Some(if command[0] == "compare" { 2 } else { 1 }));
        assert!(ended.stderr.contains("another"), "{}", ended.stderr);
        let ended = run(&flags(&["--context", "e2e", "--as", "alice", "--as-group", "dev"])).await?;
        assert!(ended.stderr.contains(r#"User "alice" cannot list"#), "{}", ended.stderr);
    }
    Ok(())
}

#[tokio::test]
async fn the_version_is_printed_in_each_format() -> Result<()> {
    let version = env!("CARGO_PKG_VERSION");
    let text = run(&["version"]).await?;
    assert!(text.stdout.starts_with(&format!("linkerd-operator {version} (commit ")), "{}", text.stdout);
    let document: Value = serde_json::from_str(&run(&["version", "-o", "json"]).await?.stdout)?;
    assert_eq!(document["version"], version);
    assert!(document["commit"].is_string() && document["buildDate"].is_string(), "{document}");
    let yaml = run(&["version", "-o", "yaml"]).await?;
    assert_eq!(serde_yaml::from_str::<Value>(&yaml.stdout)?, document);
    Ok(())
}

#[tokio::test]
async fn man_pages_are_written_for_visible_subcommands() -> Result<()> {
    let directory = TempDir::new()?;
    let ended = run(&["_man-pages", &directory.path().to_string_lossy()]).await?;
    assert_eq!((ended.code, ended.stderr.as_str()), (Some(0), ""));
    let page = std::fs::read_to_string(directory.path().join("linkerd-operator-explain.1"))?;
    assert!(page.contains(".SH SYNOPSIS") && page.contains("exit\\-code"), "{page}");
    assert!(!directory.path().join("linkerd-operator-_man-pages.1").exists());
    Ok(())
}

#[tokio::test]
async fn without_an_address_the_port_of_a_ready_pod_is_forwarded() -> Result<()> {
    let control_plane = Rig::bare().start().await?;
    let namespace = TestNamespace::create(&control_plane.client, "cli").await?;
    let mut manager = manager(&control_plane, None).await?;
    let web = Web::put(&Mesh::new(&control_plane.client, namespace.name()), &manager, &["192.0.2.11"]).await?;

    // The stand-in for the kubelet forwards the Pod's port to the manager.
    control_plane.add_node_without_kubelet("node").await?;
    let kubelet = control_plane.start_kubelet("node", 8086, manager.destination_address())?;
    let pod = json!({
        "metadata": {"name": "destination", "labels": {"linkerd.io/control-plane-component": "destination"}},
        "spec": {"nodeName": "node", "containers": [{"name": "destination", "image": "destination"}]},
    });
    namespace.api::<Pod>().create(&PostParams::default(), &serde_json::from_value(pod)?).await?;
    let kubeconfig = control_plane.kubeconfig().to_string_lossy();
    let request = async |authority: &str| {
        run(&["endpoints", authority, "--kubeconfig", &kubeconfig, "--namespace", namespace.name()]).await
    };
    let table = eventually(SOON, "a response", async || {
        let ended = request(&web.authority).await?;
        ensure!(ended.code == Some(0), "{}\n{}", ended.stderr, kubelet.log_tail(20));
        Ok(ended.stdout)
    })
    .await?;
    assert!(table.contains("192.0.2.11"), "{table}");
    let refused = "Destination API error: Invalid authority: foo; write NAME.NAMESPACE.svc.cluster.local:PORT\n";
    assert_eq!(request("foo").await?.stderr, refused);

    manager.kill().await?;
    let ended = request(&web.authority).await?;
    let sentence = format!("the connection to port 8086 of pod {}/destination failed", namespace.name());
    ensure!(ended.code == Some(1) && ended.stderr.contains(&sentence), "{}", ended.stderr);
    Ok(())
}

#[tokio::test]
async fn a_watch_reconnects_when_the_server_is_restarted() -> Result<()> {
    let control_plane = Rig::bare().start().await?;
    let namespace = TestNamespace::create(&control_plane.client, "cli").await?;
    let mut first = manager(&control_plane, None).await?;
    let web = Web::put(&Mesh::new(&control_plane.client, namespace.name()), &first, &["192.0.2.11"]).await?;
    let directory = tempfile::tempdir()?;
    let mut watch = web.watch(&directory, &[])?;
    prints(&watch, &["added", "192.0.2.11"]).await?;

    first.terminate(SOON).await?;
    prints(&watch, &["the server ended the stream", "retrying"]).await?;
    web.set_addresses(&["192.0.2.12"]).await?;
    let _second = manager(&control_plane, Some(web.destination)).await?;
    prints(&watch, &["added", "192.0.2.12"]).await?;
    prints(&watch, &["removed", "192.0.2.11"]).await?;
    let log = watch.log();
    assert_eq!(log.matches(" added ").count(), 2, "an unchanged endpoint must not be printed again: {log}");
    assert!(watch.is_running());
    Ok(())
}

/// Starts a manager with its Destination API at this address, and waits until it is ready.
async fn manager(rig: &Rig, destination: Option<SocketAddr>) -> Result<Manager> {
    ManagerOptions::new(destination.map(|address| format!("--destination-addr={address}"))).ready(rig).await
}
