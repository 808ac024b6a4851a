//! The dashboard of a manager with a real API server, read as a browser reads it. `make e2e-dashboard` opens it in
//! Chromium.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use e2e::{
    ManagerOptions, Process, Spawn,
    command::Ended,
    dashboard::{DashboardWorld, Followed, status_for_host},
    eventually,
    executable::operator_binary,
    mesh::SOON,
    plain_http,
};
use hyper::{Method, StatusCode};
use k8s_openapi::{api::core::v1::Pod, jiff::Timestamp};
use kube::{
    Api,
    api::{Patch, PatchParams},
};
use serde_json::{Value, json};

fn dashboard_command(world: &DashboardWorld, args: &[&str]) -> Result<Process> {
    let log = world.control_plane.directory().join("dashboard.log");
    let kubeconfig = world.control_plane.kubeconfig().display().to_string();
    let common = ["dashboard", "--port=0", "--namespace=default", "--kubeconfig", &kubeconfig];
    Process::spawn(Spawn::new("dashboard", operator_binary()?, log).args([&common, args].concat()))
}

#[tokio::test]
async fn the_dashboard_shows_watches_leases_certificates_values_and_the_rollout() -> Result<()> {
    let world = DashboardWorld::start().await?;
    let overview = eventually(SOON, "this process to lead and to have a certificate", async || {
        let overview = world.json("overview.json").await?;
        let leases = overview["leases"].as_array().context("no leases")?;
        ensure!(leases.iter().all(|lease| lease["leads"] == true), "{leases:?}");
        ensure!(overview["certificates"][0]["notAfter"].is_string(), "{}", overview["certificates"]);
        Ok(overview)
    })
    .await?;
    let mut leases: Vec<_> =
        overview["leases"].as_array().into_iter().flatten().map(|it| (&it["namespace"], &it["name"])).collect();
    leases.sort_by_key(|(namespace, name)| format!("{namespace}{name}"));
    let expected = [
        ("default", "linkerd-operator"),
        ("default", "linkerd-operator-webhook-certificate"),
        ("linkerd", "linkerd-destination-endpoint-write"),
        ("linkerd", "linkerd-operator"),
    ];
    let expected: Vec<_> = expected.iter().map(|(namespace, name)| (json!(namespace), json!(name))).collect();
    assert_eq!(leases, expected.iter().map(|(namespace, name)| (namespace, name)).collect::<Vec<_>>());
    assert!(overview["leases"].as_array().into_iter().flatten().all(|it| it["holder"] == DashboardWorld::IDENTITY));
    let expires: Timestamp = overview["certificates"][0]["notAfter"].as_str().unwrap_or_default().parse()?;
    assert!(expires > Timestamp::now());
    let watches = overview["watches"].as_array().context("no watches")?;
    let pods = watches.iter().find(|row| row["resource"] == "pods").context("no Pods")?;
    assert_eq!((&pods["state"], &pods["objects"]), (&json!("current"), &json!(2)));
    // Linkerd's own CRDs are not installed here.
    let absent: Vec<_> = watches.iter().filter(|row| row["state"] != "current").map(|row| &row["resource"]).collect();
    assert!(watches.iter().all(|row| row["state"] == "current" || row["state"] == "not served"), "{watches:?}");
    assert!(absent.contains(&&json!("servers.policy.linkerd.io")), "{absent:?}");

    let config = world.shows_rollout().await?;
    let values = config["values"].as_array().context("no values")?;
    let level = values.iter().find(|row| row["path"] == "proxy.logLevel").context("no log level")?;
    assert_eq!((&level["from"], &level["effective"]), (&json!("spec"), &json!("debug")));
    let workloads: Vec<_> = config["workloads"]
        .as_array()
        .into_iter()
        .flatten()
        .map(|row| (row["name"].as_str().unwrap_or_default(), row["decision"].as_str().unwrap_or_default()))
        .collect();
    assert_eq!(workloads, [("web", "Pending"), ("db", "NotSelected")]);
    let pods = json!({"meshed": 2, "current": 0, "outdated": 2, "uninjected": 0});
    let decisions = json!({"NotSelected": 1, "Pending": 1});
    assert_eq!(config["namespaces"], json!([{"name": "shop", "pods": pods, "decisions": decisions}]));

    let overview = world.json("overview.json").await?;
    let headline = &overview["headlines"][0];
    // There is no injector here.
    assert_eq!(
        (&headline["attention"], &headline["reason"]),
        (&json!("problem"), &json!("NoReadyReplicas")),
        "{headline}"
    );
    let events: Vec<_> =
        overview["events"].as_array().into_iter().flatten().map(|it| (&it["reason"], &it["object"])).collect();
    assert!(events.contains(&(&json!("ConfigMapUpdated"), &json!("LinkerdConfig mesh"))), "{events:?}");
    Ok(())
}

#[tokio::test]
async fn the_dashboard_and_the_command_status_have_the_same_document() -> Result<()> {
    let world = DashboardWorld::start().await?;
    world.shows_rollout().await?;
    let kubeconfig = format!("--kubeconfig={}", world.control_plane.kubeconfig().display());
    eventually(SOON, "the same document from both", async || {
        let ended = Ended::operator(&["status", "mesh", "--output=json", &kubeconfig], SOON).await?;
        ensure!(ended.code == Some(0), "{}", ended.stderr);
        let printed = ended.document()?;
        let printed = printed["linkerdConfigs"][0].as_object().context("no LinkerdConfig")?;
        let overview = world.json("overview.json").await?;
        let shown = &overview["linkerdConfigs"][0];
        ensure!(printed.contains_key("sentence") && printed.contains_key("rollout"), "{printed:?}");
        for (field, value) in printed {
            ensure!(&shown[field] == value, "{field}: status has {value}, the dashboard {}", shown[field]);
        }
        let headline = &overview["headlines"][0];
        for field in ["attention", "reason", "title", "sentence", "next", "command"] {
            ensure!(headline[field] == shown[field], "{field}: {headline}");
        }
        Ok(())
    })
    .await
}

/// `linkerd-operator dashboard` opens the page of any replica.
#[tokio::test]
async fn a_replica_that_does_not_lead_shows_who_holds_each_lease() -> Result<()> {
    let world = DashboardWorld::start().await?;
    let follower = ManagerOptions::default().identity("operator-2").ready(&world.control_plane).await?;
    eventually(SOON, "the holders on the page of the other replica", async || {
        let (status, body) = follower.get("/dashboard/overview.json").await?;
        ensure!(status == StatusCode::OK, "{status}: {body}");
        let overview: Value = serde_json::from_str(&body)?;
        let leases = overview["leases"].as_array().context("no leases")?;
        let shown: Vec<_> =
            leases.iter().map(|it| (&it["namespace"], &it["name"], &it["holder"], &it["leads"])).collect();
        ensure!(shown.len() == 3, "{shown:?}");
        let by_other = |(.., holder, leads): &(&Value, &Value, &Value, &Value)| {
            **holder == DashboardWorld::IDENTITY && **leads == false
        };
        ensure!(shown.iter().all(by_other), "{shown:?}");
        Ok(())
    })
    .await
}

#[tokio::test]
async fn an_authority_is_followed_live_and_a_wrong_one_is_refused() -> Result<()> {
    let world = DashboardWorld::start().await?;
    let admin = world.manager.admin_address();
    let mut followed = Followed::connect(admin, DashboardWorld::AUTHORITY).await?;
    let whole = followed.next("endpoints").await?;
    assert_eq!((&whole["total"], &whole["added"][0]["ip"]), (&json!(2), &json!("192.0.2.11")), "{whole}");
    world.set_addresses(&["192.0.2.12"]).await?;
    let change = followed.next("endpoints").await?;
    assert_eq!((&change["total"], &change["removed"]), (&json!(1), &json!(["192.0.2.11:8080"])), "{change}");

    let mut profile = Followed::connect(admin, DashboardWorld::AUTHORITY).await?;
    let sent = profile.next("profile").await?;
    assert_eq!(sent["profile"]["fully_qualified_name"], "web.shop.svc.cluster.local");

    let refused = Followed::connect(admin, "nonsense").await?.next("refused").await?;
    let message = refused["message"].as_str().unwrap_or_default();
    assert!(refused["temporary"] == false && message.starts_with("InvalidArgument: "), "{refused}");
    Ok(())
}

#[tokio::test]
async fn a_stream_that_ends_ends_the_response_so_that_the_page_connects_again() -> Result<()> {
    let world = DashboardWorld::start().await?;
    let pods: Api<Pod> = Api::namespaced(world.control_plane.client().await?, "shop");
    let give_address = async |pod: &str| {
        let status = json!({"status": {"phase": "Running", "podIP": "10.9.8.7", "podIPs": [{"ip": "10.9.8.7"}]}});
        pods.patch_status(pod, &PatchParams::default(), &Patch::Merge(status)).await
    };
    give_address("web-1").await?;
    let admin = world.manager.admin_address();
    let mut followed = eventually(SOON, "a profile of the Pod", async || {
        let mut followed = Followed::connect(admin, "10.9.8.7:8080").await?;
        let refused = followed.next("refused").await?;
        ensure!(refused["of"] == "endpoints" && refused["temporary"] == false, "{refused}");
        let mut followed = Followed::connect(admin, "10.9.8.7:8080").await?;
        let profile = followed.next("profile").await?.to_string();
        ensure!(profile.contains("web-1"), "{profile}");
        Ok(followed)
    })
    .await?;
    // Now two Pods have the address, so the server ends the stream.
    give_address("db-1").await?;
    followed.ends().await
}

#[tokio::test]
async fn a_viewer_over_the_limit_is_refused_until_another_one_leaves() -> Result<()> {
    let world = DashboardWorld::start().await?;
    let admin = world.manager.admin_address();
    let path = format!("/dashboard/stream?authority={}", DashboardWorld::AUTHORITY);
    let mut viewers = Vec::new();
    for _ in 0..8 {
        let mut viewer = Followed::connect(admin, DashboardWorld::AUTHORITY).await?;
        viewer.next("endpoints").await?;
        viewers.push(viewer);
    }
    let (status, body) = plain_http::request(admin, Method::GET, &path, "", SOON).await?;
    assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE, "{body:?}");
    viewers.pop();
    eventually(SOON, "the place of the viewer that left", async || {
        Followed::connect(admin, DashboardWorld::AUTHORITY).await?.next("endpoints").await
    })
    .await?;
    Ok(())
}

#[tokio::test]
async fn a_site_with_a_name_of_its_own_for_the_loopback_address_is_refused() -> Result<()> {
    let world = DashboardWorld::start().await?;
    let admin = world.manager.admin_address();
    assert_eq!(status_for_host(admin, "localhost:50751").await?, StatusCode::OK);
    assert_eq!(status_for_host(admin, "rebound.example").await?, StatusCode::FORBIDDEN);
    Ok(())
}

#[tokio::test]
async fn the_command_forwards_a_local_port_to_the_operators_pod_and_says_why_it_cannot() -> Result<()> {
    let mut world = DashboardWorld::start().await?;
    let kubeconfig = format!("--kubeconfig={}", world.control_plane.kubeconfig().display());
    let ended = Ended::operator(&["dashboard", "--namespace=default", &kubeconfig], SOON).await?;
    assert!(ended.code != Some(0) && ended.stderr.contains("no pod has these labels"), "{}", ended.stderr);

    // The stand-in for the kubelet forwards the Pod's port to the manager.
    world.control_plane.add_node_without_kubelet("node").await?;
    let _kubelet = world.control_plane.start_kubelet("node", 9996, world.manager.admin_address())?;
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": "operator", "namespace": "default", "labels": {"app.kubernetes.io/name": "linkerd-operator"}},
        "spec": {"nodeName": "node", "containers": [{"name": "operator", "image": "operator"}]},
    });
    world.control_plane.apply(&[pod]).await?;
    let (command, overview) = eventually(SOON, "the dashboard through a port-forward", async || {
        let command = dashboard_command(&world, &[])?;
        let url = eventually(Duration::from_secs(5), "the address", async || {
            let log = command.log();
            log.lines().find(|line| line.starts_with("http://localhost:")).map(str::to_owned).context(log)
        })
        .await?;
        let port: u16 = url.trim_start_matches("http://localhost:").trim_end_matches("/dashboard/").parse()?;
        let address = ([127, 0, 0, 1], port).into();
        let (_, body) = plain_http::request(address, Method::GET, "/dashboard/overview.json", "", SOON).await?;
        Ok(((command, address), serde_json::from_slice::<Value>(&body)?))
    })
    .await?;
    assert_eq!(overview["identity"], DashboardWorld::IDENTITY);

    world.manager.kill().await?;
    let (command, address) = command;
    let after = plain_http::request(address, Method::GET, "/dashboard/", "", SOON).await;
    assert!(after.is_err(), "{after:?}");
    eventually(SOON, "the reason", async || {
        let log = command.log();
        ensure!(log.contains("port 9996 of pod default/operator failed"), "{log}");
        Ok(())
    })
    .await
}
