//! Profiles that the table of cases cannot have: of an older version, and very large ones.

use anyhow::Result;
use serde_json::json;

use super::routes;
use crate::discovery::{Rig, objects::service};

#[tokio::test]
async fn a_profile_in_the_older_api_version_counts() -> Result<()> {
    let rig = Rig::start("older").await?;
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
    let rig = Rig::start("thousands").await?;
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
