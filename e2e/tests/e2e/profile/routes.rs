//! Profiles that the table of cases cannot have: of an older version, very large ones, and ones that are too large.

use anyhow::Result;
use serde_json::{Value, json};

use super::routes;
use crate::discovery::{Served, objects::service};

#[tokio::test]
async fn a_profile_in_the_older_api_version_counts() -> Result<()> {
    let rig = Served::start("older").await?;
    let mut older = rig.profile("web", routes(&["a", "b"]));
    older.value["apiVersion"] = json!("linkerd.io/v1alpha1");
    let kind = kube::api::GroupVersionKind::gvk("linkerd.io", "v1alpha1", "ServiceProfile");
    let kind = kube::api::ApiResource::from_gvk(&kind);
    let api: kube::Api<kube::api::DynamicObject> = kube::Api::namespaced_with(rig.client.clone(), rig.name(), &kind);
    api.create(&kube::api::PostParams::default(), &serde_json::from_value(older.value)?).await?;
    rig.put(service("web")).await?;
    rig.opens_with(&rig.path("web"), "service web with routes a b").await.map(drop)
}

#[tokio::test]
async fn a_profile_with_thousands_of_routes_is_one_message() -> Result<()> {
    let rig = Served::start("thousands").await?;
    let names: Vec<String> = (0..4000).map(|number| format!("route-{number:05}-{}", "x".repeat(40))).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    rig.put_all([service("web"), rig.profile("web", routes(&names))]).await?;
    let mut open = rig.open_service("web").await?;
    open.shows("all routes", |profile| profile.routes.len() == names.len()).await?;
    let seen = open.stream.last()?.routes.iter().filter_map(|route| route.metrics_labels.get("route"));
    assert!(seen.eq(&names));
    rig.patch("ServiceProfile", &rig.full_name("web"), json!({"spec": routes(&names[..3999])})).await?;
    open.shows("one route less", |profile| profile.routes.len() == names.len() - 1).await?;
    rig.delete("ServiceProfile", &rig.full_name("web")).await?;
    open.becomes("service web").await?;
    open.is_quiet().await
}

#[tokio::test]
async fn a_profile_that_exceeds_the_limits_of_clients_counts_as_absent() -> Result<()> {
    let rig = Served::start("take").await?;
    let client = Served::start("client").await?;
    let nested = |depth: usize| -> Value {
        let condition = (1..depth).fold(json!({"method": "GET"}), |inner, _| json!({ "all": [inner] }));
        json!({"routes": [{"name": "r", "condition": condition}]})
    };
    rig.put_all([service("web"), rig.profile("web", nested(10))]).await?;
    let mut open = rig.open_service_from(client.name(), "web").await?;
    open.becomes("service web with routes r").await?;
    // A proxy decodes at most a hundred nested messages and at most 4 MiB per message.
    client.put(rig.profile("web", nested(60))).await?;
    client.profiles_catch_up().await?;
    open.is_quiet().await?;
    let name = rig.full_name("web");
    let overrides = vec![json!({}); 400_000];
    rig.patch("ServiceProfile", &name, json!({"spec": {"routes": [], "dstOverrides": overrides}})).await?;
    open.becomes("service web").await?;
    rig.patch("ServiceProfile", &name, json!({"spec": {"dstOverrides": [{}], "routes": routes(&["a"])["routes"]}}))
        .await?;
    open.becomes("service web with routes a").await?;
    client.patch("ServiceProfile", &name, json!({"spec": routes(&["b"])})).await?;
    open.becomes("service web with routes b").await
}
