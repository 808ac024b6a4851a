//! The responses of the dashboard to a browser.

use std::{net::Ipv4Addr, sync::Arc, sync::atomic::Ordering};

use http_body_util::BodyExt;
use kube::runtime::watcher::Event;
use serde_json::{Value, json};

use super::{
    testing::{counted, dashboard},
    *,
};
use crate::{
    cluster::{Kind, Observer, testing::Feed},
    explain::testing::INSTALLED,
    linkerd_config::LinkerdConfigObserver,
    rollout::RolloutObserver,
    values::Document,
};

const LOOPBACK: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

/// Returns the response to a request that a port-forward delivers, and its body.
async fn get(dashboard: &Dashboard, path: &str) -> (Response<()>, String) {
    let request = Request::builder().uri(path).header(header::HOST, "localhost:50751").body(()).unwrap();
    let response = dashboard.answer(&request, LOOPBACK, || (true, Vec::new())).await;
    let (parts, body) = response.into_parts();
    let body = body.collect().await.unwrap().to_bytes();
    (Response::from_parts(parts, ()), String::from_utf8(body.to_vec()).unwrap())
}

async fn json_of(dashboard: &Dashboard, path: &str) -> Value {
    let (response, body) = get(dashboard, path).await;
    assert_eq!(response.status(), StatusCode::OK, "{body}");
    serde_json::from_str(&body).unwrap()
}

fn feed() -> Feed {
    let configs = LinkerdConfigObserver::new("linkerd", &prometheus::Registry::new()).unwrap();
    let observers = [configs as Arc<dyn Observer>, RolloutObserver::new() as Arc<dyn Observer>];
    Feed::new(observers)
}

fn config(name: &str, spec: &Value) -> Event<Value> {
    Event::Apply(json!({
        "apiVersion": "config.linkerd.io/v1alpha1", "kind": "LinkerdConfig",
        "metadata": {"name": name, "uid": name, "resourceVersion": "1", "generation": 1}, "spec": spec,
    }))
}

fn installed(feed: &mut Feed, values: &str) {
    let metadata = json!({"name": "linkerd-config", "namespace": "linkerd", "resourceVersion": "1"});
    feed.apply(Kind::ConfigMap, Event::Apply(json!({"metadata": metadata, "data": {"values": values}})));
}

#[tokio::test]
async fn a_client_that_is_no_port_forward_receives_nothing() {
    let dashboard = dashboard(None, DashboardAccess::PortForward);
    for path in ["/dashboard/", "/dashboard/overview.json", "/dashboard/dashboard.js", "/dashboard/stream?authority=a"]
    {
        let request = Request::builder().uri(path).header(header::HOST, "localhost").body(()).unwrap();
        let response = dashboard.answer(&request, IpAddr::from([10, 42, 0, 7]), || (true, Vec::new())).await;
        assert_eq!(response.status(), StatusCode::FORBIDDEN, "{path}");
    }
}

#[tokio::test]
async fn the_page_runs_only_its_own_script_and_loads_nothing_from_elsewhere() {
    let dashboard = dashboard(None, DashboardAccess::PortForward);
    let (redirect, _) = get(&dashboard, "/dashboard").await;
    assert_eq!(redirect.headers()[header::LOCATION], "/dashboard/");
    let scripts = SCRIPTS.map(|(name, _)| format!("/dashboard/{name}"));
    for path in ["/dashboard/", "/dashboard/dashboard.css"].into_iter().chain(scripts.iter().map(String::as_str)) {
        let (response, body) = get(&dashboard, path).await;
        let policy = response.headers()[header::CONTENT_SECURITY_POLICY].to_str().unwrap();
        assert!(policy.contains("default-src 'none'") && !policy.contains("unsafe"), "{policy}");
        assert_eq!(response.headers()[header::X_CONTENT_TYPE_OPTIONS], "nosniff");
        for outside in ["http://", "https://", "innerHTML", "insertAdjacentHTML", "style=", "<script>"] {
            assert!(!body.contains(outside), "{path} has {outside}");
        }
    }
    assert_eq!(get(&dashboard, "/dashboard/other").await.0.status(), StatusCode::NOT_FOUND);
}

#[tokio::test]
async fn the_overview_names_the_linkerd_config_in_effect() {
    let mut feed = feed();
    feed.apply(Kind::LinkerdConfig, config("mesh", &json!({"priority": 1})));
    feed.apply(Kind::LinkerdConfig, config("other", &json!({"mode": "Observe"})));
    let overview =
        json_of(&dashboard(Some(&feed.cluster), DashboardAccess::PortForward), "/dashboard/overview.json").await;
    assert_eq!((&overview["identity"], &overview["ready"]), (&json!("operator-1"), &json!(true)));
    let configs = overview["linkerdConfigs"].as_array().unwrap();
    let rows: Vec<_> = configs.iter().map(|row| (&row["name"], &row["mode"], &row["inEffect"])).collect();
    let (mesh, other) = (json!("mesh"), json!("other"));
    assert_eq!(rows, [(&mesh, &json!("Enforce"), &json!(true)), (&other, &json!("Observe"), &json!(false))]);
    // It has no status yet.
    assert_eq!((&configs[0]["attention"], &configs[0]["conditions"]), (&json!("progressing"), &json!([])));
    let headline = &overview["headlines"][0];
    assert_eq!((&headline["attention"], &headline["subject"]), (&json!("progressing"), &json!("LinkerdConfig mesh")));
}

#[tokio::test]
async fn the_worst_linkerd_config_in_effect_is_first_and_its_problem_is_the_headline() {
    let mut feed = feed();
    let status = |reason: &str| {
        let time = "2026-11-27T11:00:00Z";
        let stalled = json!({"type": "Stalled", "status": "True", "reason": reason, "message": "1 workload failed", "lastTransitionTime": time});
        json!({"observedGeneration": 1, "conditions": [stalled]})
    };
    for (name, target, status) in
        [("a", "one", json!({"observedGeneration": 1})), ("b", "two", status("RolloutHalted"))]
    {
        feed.apply(
            Kind::LinkerdConfig,
            Event::Apply(json!({
                "apiVersion": "config.linkerd.io/v1alpha1", "kind": "LinkerdConfig",
                "metadata": {"name": name, "uid": name, "resourceVersion": "1", "generation": 1},
                "spec": {"global": {"configMap": target}}, "status": status,
            })),
        );
    }
    let overview =
        json_of(&dashboard(Some(&feed.cluster), DashboardAccess::PortForward), "/dashboard/overview.json").await;
    let names: Vec<_> = overview["linkerdConfigs"].as_array().unwrap().iter().map(|it| &it["name"]).collect();
    assert_eq!(names, ["b", "a"]);
    let headline = &overview["headlines"][0];
    assert_eq!((&headline["attention"], &headline["reason"]), (&json!("problem"), &json!("RolloutHalted")));
    assert_eq!(headline["command"], "linkerd-operator rollout retry b");
}

#[tokio::test]
async fn the_running_pods_of_the_same_workload_are_the_replicas() {
    let mut feed = feed();
    let owner =
        json!([{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "operator-5f", "uid": "r", "controller": true}]);
    for (name, phase, owner) in [
        ("operator-1", "Running", &owner),
        ("operator-2", "Running", &owner),
        ("operator-3", "Pending", &owner),
        ("other", "Running", &json!([])),
    ] {
        let metadata = json!({"name": name, "namespace": "operator", "ownerReferences": owner});
        feed.apply(Kind::Pod, Event::Apply(json!({"metadata": metadata, "status": {"phase": phase}})));
    }
    let dashboard = dashboard(Some(&feed.cluster), DashboardAccess::PortForward);
    assert_eq!(json_of(&dashboard, "/dashboard/overview.json").await["replicas"], 2);
}

#[tokio::test]
async fn a_hundred_linkerd_configs_are_listed_and_the_rest_is_counted() {
    let mut feed = feed();
    for number in 0..103 {
        feed.apply(Kind::LinkerdConfig, config(&format!("c{number:03}"), &json!({})));
    }
    let overview =
        json_of(&dashboard(Some(&feed.cluster), DashboardAccess::PortForward), "/dashboard/overview.json").await;
    assert_eq!(overview["linkerdConfigs"].as_array().unwrap().len(), 100);
    assert_eq!(overview["moreLinkerdConfigs"], 3);
}

#[tokio::test]
async fn a_linkerd_config_is_explained_with_the_source_of_its_values_and_without_secrets() {
    let mut feed = feed();
    installed(&mut feed, INSTALLED);
    let env = json!([{"name": "TOKEN", "value": "TOP-SECRET"}]);
    feed.apply(Kind::LinkerdConfig, config("mesh", &json!({"proxy": {"logLevel": "debug", "additionalEnv": env}})));
    let dashboard = dashboard(Some(&feed.cluster), DashboardAccess::PortForward);
    let explained = json_of(&dashboard, "/dashboard/config.json?name=mesh").await;
    assert_eq!(explained["name"], "mesh");
    let values = explained["values"].as_array().unwrap();
    let level = values.iter().find(|row| row["path"] == "proxy.logLevel").unwrap();
    assert_eq!(
        (&level["from"], &level["effective"], &level["changes"]),
        (&json!("spec"), &json!("debug"), &json!(true))
    );
    assert!(!explained.to_string().contains("TOP-SECRET"), "{explained}");
    assert_eq!(get(&dashboard, "/dashboard/config.json?name=none").await.0.status(), StatusCode::NOT_FOUND);
}

/// Adds a workload whose Pod has the installed configuration.
fn workload(feed: &mut Feed, namespace: &str, name: &str, has_opted_in: bool) {
    let labels = if has_opted_in { json!({"config.linkerd.io/reconcile": "auto"}) } else { json!({}) };
    let inject = json!({"linkerd.io/inject": "enabled"});
    let deployment = json!({
        "metadata": {"name": name, "namespace": namespace, "uid": name, "resourceVersion": "1", "generation": 1,
            "labels": labels},
        "spec": {"replicas": 1, "template": {"metadata": {"annotations": inject}}},
        "status": {"observedGeneration": 1, "replicas": 1, "updatedReplicas": 1, "availableReplicas": 1},
    });
    let owner = json!([{"apiVersion": "apps/v1", "kind": "Deployment", "name": name, "uid": name}]);
    let marker = Document::parse(INSTALLED).unwrap().injection_hash().to_string();
    let env = json!([{"name": "LINKERD_CONFIG_HASH", "value": marker}]);
    let pod = json!({
        "metadata": {"name": format!("{name}-1"), "namespace": namespace, "creationTimestamp": "2026-11-21T10:00:00Z",
            "ownerReferences": owner, "labels": {"linkerd.io/control-plane-ns": "linkerd"}, "annotations": inject},
        "spec": {"containers": [{"name": "linkerd-proxy", "image": "proxy:1", "env": env}]},
        "status": {"phase": "Running"},
    });
    feed.apply(Kind::Namespace, Event::Apply(json!({"metadata": {"name": namespace}})));
    feed.apply(Kind::Deployment, Event::Apply(deployment));
    feed.apply(Kind::Pod, Event::Apply(pod));
}

/// A cluster with a LinkerdConfig that changes the configuration of all proxies.
fn feed_with_change() -> Feed {
    let mut feed = feed();
    installed(&mut feed, INSTALLED);
    feed.apply(Kind::LinkerdConfig, config("mesh", &json!({"proxy": {"logLevel": "debug"}})));
    feed
}

#[tokio::test]
async fn viewers_share_one_computation_and_workloads_that_need_attention_are_first() {
    let mut feed = feed_with_change();
    for number in 0..520 {
        workload(&mut feed, "app", &format!("w{number:03}"), number == 519);
    }
    let (dashboard, requests) = counted(Some(&feed.cluster), DashboardAccess::PortForward);
    let explained = json_of(&dashboard, "/dashboard/config.json?name=mesh").await;
    let workloads = explained["workloads"].as_array().unwrap();
    assert_eq!((workloads.len(), &explained["moreWorkloads"]), (500, &json!(20)));
    assert_eq!((&workloads[0]["name"], &workloads[0]["decision"]), (&json!("w519"), &json!("Pending")));
    assert_eq!(workloads[1]["decision"], "NotSelected");
    assert_eq!(json_of(&dashboard, "/dashboard/config.json?name=mesh").await, explained);
    assert_eq!(requests.load(Ordering::Relaxed), 1, "the second viewer receives the result of the first");
}

#[tokio::test]
async fn namespaces_have_counts_and_the_workloads_of_one_are_listed_alone() {
    let mut feed = feed_with_change();
    for number in 0..501 {
        workload(&mut feed, "large", &format!("w{number:03}"), false);
    }
    workload(&mut feed, "quiet", "web", false);
    workload(&mut feed, "urgent", "api", true);
    workload(&mut feed, "urgent", "web", false);
    let dashboard = dashboard(Some(&feed.cluster), DashboardAccess::PortForward);
    let explained = json_of(&dashboard, "/dashboard/config.json?name=mesh").await;
    let pods = |meshed: usize| json!({"meshed": meshed, "current": 0, "outdated": meshed, "uninjected": 0});
    let expected = json!([
        {"name": "urgent", "pods": pods(2), "decisions": {"NotSelected": 1, "Pending": 1}},
        {"name": "large", "pods": pods(501), "decisions": {"NotSelected": 501}},
        {"name": "quiet", "pods": pods(1), "decisions": {"NotSelected": 1}},
    ]);
    assert_eq!((&explained["namespaces"], &explained["moreNamespaces"]), (&expected, &json!(0)));
    assert!(
        explained["workloads"].as_array().unwrap().iter().all(|row| row["namespace"] != "quiet"),
        "after the 500th"
    );
    let alone = json_of(&dashboard, "/dashboard/config.json?name=mesh&namespace=quiet").await;
    let rows: Vec<_> =
        alone["workloads"].as_array().unwrap().iter().map(|it| (&it["namespace"], &it["name"])).collect();
    assert_eq!(rows, [(&json!("quiet"), &json!("web"))]);
    let (response, _) = get(&dashboard, "/dashboard/config.json?name=mesh&namespace=none").await;
    assert_eq!(response.status(), StatusCode::NOT_FOUND);
}

#[tokio::test]
async fn workloads_that_wait_are_in_the_order_of_their_restarts() {
    let mut feed = feed_with_change();
    for namespace in ["n4", "n2", "n6", "n1", "n5", "n3"] {
        workload(&mut feed, namespace, "web", true);
        workload(&mut feed, namespace, "api", true);
    }
    let dashboard = dashboard(Some(&feed.cluster), DashboardAccess::PortForward);
    let explained = json_of(&dashboard, "/dashboard/config.json?name=mesh").await;
    let rows = explained["workloads"].as_array().unwrap().iter();
    let rows: Vec<_> = rows.map(|row| format!("{}/{}", row["namespace"], row["name"]).replace('"', "")).collect();
    let expected = (1..=6).flat_map(|number| [format!("n{number}/api"), format!("n{number}/web")]);
    assert_eq!(rows, expected.collect::<Vec<_>>());
}

#[tokio::test]
async fn a_part_that_is_disabled_says_so() {
    let dashboard = dashboard(None, DashboardAccess::PortForward);
    for (path, flag) in [
        ("/dashboard/config.json?name=mesh", "--enable-linkerd-config=false"),
        ("/dashboard/stream?authority=web.app:80", "--enable-destination=false"),
    ] {
        let (response, body) = get(&dashboard, path).await;
        assert_eq!(response.status(), StatusCode::NOT_FOUND);
        assert!(body.contains(flag), "{body}");
    }
}
