//! Invalid ServiceProfiles: they count as absent and do not affect others.

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use super::routes;
use crate::discovery::{
    Rig,
    objects::{but, field, service},
};

const DEFAULT: &str = "service web";

fn route(condition: Value) -> Value {
    json!({"routes": [but(json!({"name": "r"}), field("condition", condition))]})
}

fn class(condition: Value) -> Value {
    let classes = json!([field("condition", condition)]);
    json!({"routes": [{"name": "r", "condition": {"method": "GET"}, "responseClasses": classes}]})
}

/// Invalid specs, one for each part. The table of cases has all of them.
fn invalid_specs() -> Vec<Value> {
    let budget = |ttl: &str, retries: i32| json!({"retryBudget": {"retryRatio": 0.5, "minRetriesPerSecond": retries, "ttl": ttl}});
    vec![
        route(json!({})),
        route(json!({"all": [{"pathRegex": 5}]})),
        class(json!({})),
        class(json!({"status": {"min": 201, "max": 200}})),
        budget("foo", 10),
        budget("10s", -5),
    ]
}

#[tokio::test]
async fn an_invalid_profile_counts_as_absent_for_new_and_open_streams() -> Result<()> {
    let rig = Rig::start("invalid").await?;
    rig.put(service("web")).await?;
    let name = rig.full_name("web");
    rig.put(rig.profile("web", routes(&["valid"]))).await?;
    let mut open = rig.opens_with(&rig.path("web"), "service web with routes valid").await?;
    for spec in invalid_specs() {
        let messages = open.stream.messages.len();
        rig.delete("ServiceProfile", &name).await?;
        rig.put(rig.profile("web", spec.clone())).await.with_context(|| spec.to_string())?;
        open.becomes(DEFAULT).await.with_context(|| spec.to_string())?;
        // Once the ServiceProfile has been processed, a new stream receives the same.
        rig.catches_up("ServiceProfile").await?;
        open.matches_new_stream().await.with_context(|| spec.to_string())?;
        rig.delete("ServiceProfile", &name).await?;
        rig.put(rig.profile("web", routes(&["valid"]))).await?;
        open.becomes("service web with routes valid").await.with_context(|| format!("after {spec}"))?;
        ensure!(open.stream.messages.len() == messages + 2, "{spec}: {:?}", open.stream.messages);
    }
    Ok(())
}

#[tokio::test]
async fn a_profile_that_becomes_invalid_is_replaced_by_the_next() -> Result<()> {
    let (rig, client) = (Rig::start("service").await?, Rig::start("client").await?);
    rig.put(service("web")).await?;
    let name = rig.full_name("web");
    let (valid, invalid) = (|name: &str| json!({"spec": routes(&[name])}), json!({"spec": route(json!({}))}));
    client.put(rig.profile("web", routes(&["primary"]))).await?;
    rig.put(rig.profile("web", routes(&["backup"]))).await?;
    // Otherwise the first message may be older than the profiles.
    rig.catches_up("ServiceProfile").await?;
    let mut open = rig.open_service_from(client.name(), "web").await?;
    open.becomes("service web with routes primary").await?;
    client.patch("ServiceProfile", &name, invalid.clone()).await?;
    open.becomes("service web with routes backup").await?;
    rig.patch("ServiceProfile", &name, invalid.clone()).await?;
    open.becomes(DEFAULT).await?;
    // From one invalid spec to another.
    rig.patch("ServiceProfile", &name, json!({"spec": class(json!({}))})).await?;
    open.is_quiet().await?;
    client.patch("ServiceProfile", &name, valid("primary")).await?;
    open.becomes("service web with routes primary").await?;
    rig.patch("ServiceProfile", &name, valid("backup")).await?;
    open.is_quiet().await?;
    client.patch("ServiceProfile", &name, invalid).await?;
    open.becomes("service web with routes backup").await?;
    client.delete("ServiceProfile", &name).await?;
    open.is_quiet().await?;
    open.has_received(5).await
}

#[tokio::test]
async fn a_profile_that_was_never_valid_does_not_delay_the_first_message() -> Result<()> {
    let (rig, client) = (Rig::start("service").await?, Rig::start("client").await?);
    rig.put_all([service("web"), rig.profile("web", routes(&["backup"]))]).await?;
    client.put(rig.profile("web", class(json!({"status": {"min": 201, "max": 200}})))).await?;
    client.catches_up("ServiceProfile").await?;
    let mut open = rig.open_service_from(client.name(), "web").await?;
    open.becomes("service web with routes backup").await?;
    open.has_received(1).await?;
    client.delete("ServiceProfile", &rig.full_name("web")).await?;
    open.is_quiet().await
}

#[tokio::test]
async fn an_undecodable_profile_does_not_affect_others() -> Result<()> {
    let rig = Rig::start("harm").await?;
    rig.put_all([service("web"), service("other"), rig.profile("other", routes(&["a"]))]).await?;
    let mut other = rig.opens_with(&rig.path("other"), "service other with routes a").await?;
    rig.put(rig.profile("web", route(json!({"all": [{"pathRegex": {"deep": [5]}}]})))).await?;
    // Linkerd's CRD allows these two fields in a form that no component reads.
    for (name, spec) in [
        ("ports", json!({"opaquePorts": ["80"], "routes": [{"name": "a", "condition": {"method": "GET"}}]})),
        ("not", json!({"routes": [{"name": "a", "condition": {"method": "GET", "not": [{"pathRegex": "/x"}]}}]})),
    ] {
        rig.put_all([service(name), rig.profile(name, spec)]).await?;
    }
    rig.patch("ServiceProfile", &rig.full_name("other"), json!({"spec": routes(&["b"])})).await?;
    other.becomes("service other with routes b").await?;
    rig.opens_with(&rig.path("ports"), "service ports with routes a").await?;
    rig.open_service("not").await?.stream.next().await?;
    rig.opens_with(&rig.path("web"), DEFAULT).await?;
    rig.patch("ServiceProfile", &rig.full_name("web"), json!({"spec": routes(&["fixed"])})).await?;
    rig.opens_with(&rig.path("web"), "service web with routes fixed").await.map(drop)
}

#[tokio::test]
async fn a_profile_that_exceeds_the_limits_of_clients_counts_as_absent() -> Result<()> {
    let rig = Rig::start("take").await?;
    let client = Rig::start("client").await?;
    let nested = |depth| route((1..depth).fold(json!({"method": "GET"}), |inner, _: usize| json!({ "all": [inner] })));
    rig.put_all([service("web"), rig.profile("web", nested(10))]).await?;
    let mut open = rig.open_service_from(client.name(), "web").await?;
    open.becomes("service web with routes r").await?;
    // A proxy decodes at most a hundred nested messages and at most 4 MiB per message.
    client.put(rig.profile("web", nested(60))).await?;
    client.catches_up("ServiceProfile").await?;
    open.is_quiet().await?;
    let name = rig.full_name("web");
    let overrides = vec![json!({}); 400_000];
    rig.patch("ServiceProfile", &name, json!({"spec": {"routes": [], "dstOverrides": overrides}})).await?;
    open.becomes(DEFAULT).await?;
    rig.patch("ServiceProfile", &name, json!({"spec": {"dstOverrides": [{}], "routes": routes(&["a"])["routes"]}}))
        .await?;
    open.becomes("service web with routes a").await?;
    client.patch("ServiceProfile", &name, json!({"spec": routes(&["b"])})).await?;
    open.becomes("service web with routes b").await
}
