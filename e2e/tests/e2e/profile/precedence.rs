//! Precedence of ServiceProfiles: that in the client's namespace, then that in the Service's, then the default.

use anyhow::Result;
use serde_json::json;

use super::{at, routes};
use crate::discovery::{Rig, objects::service};

const DEFAULT: &str = "service web";
const PRIMARY: &str = "service web with routes primary";
const BACKUP: &str = "service web with routes backup";

/// Creates two namespaces: that of the Service `web`, and that of a client.
async fn rigs() -> Result<(Rig, Rig)> {
    let (rig, client) = (Rig::start("service").await?, Rig::start("client").await?);
    rig.put(service("web")).await?;
    Ok((rig, client))
}

#[tokio::test]
async fn an_open_stream_follows_the_backup_only_while_it_is_effective() -> Result<()> {
    let (rig, client) = rigs().await?;
    let name = rig.full_name("web");
    let profile = |routes_of: &str| rig.profile("web", routes(&[routes_of]));
    let mut open = rig.open_service_from(client.name(), "web").await?;
    open.becomes(DEFAULT).await?;
    rig.put(profile("backup")).await?;
    open.becomes(BACKUP).await?;
    rig.patch("ServiceProfile", &name, json!({"spec": routes(&["edited"])})).await?;
    open.becomes("service web with routes edited").await?;
    client.put(profile("primary")).await?;
    open.becomes(PRIMARY).await?;
    // Changes of the overridden profile cause no message.
    rig.patch("ServiceProfile", &name, json!({"spec": routes(&["behind"])})).await?;
    rig.delete("ServiceProfile", &name).await?;
    rig.put(profile("backup")).await?;
    open.is_quiet().await?;
    client.patch("ServiceProfile", &name, json!({"spec": routes(&["edited"])})).await?;
    open.becomes("service web with routes edited").await?;
    client.delete("ServiceProfile", &name).await?;
    open.becomes(BACKUP).await?;
    client.put(profile("primary")).await?;
    open.becomes(PRIMARY).await?;
    rig.delete("ServiceProfile", &name).await?;
    open.is_quiet().await?;
    client.delete("ServiceProfile", &name).await?;
    open.becomes(DEFAULT).await?;
    open.has_received(8).await
}

#[tokio::test]
async fn without_a_token_the_profile_of_the_services_namespace_is_used() -> Result<()> {
    let (rig, client) = rigs().await?;
    let name = rig.full_name("web");
    let mut open = rig.open_service("web").await?;
    open.becomes(DEFAULT).await?;
    client.put(rig.profile("web", routes(&["primary"]))).await?;
    rig.catches_up("ServiceProfile").await?;
    open.is_quiet().await?;
    rig.put(rig.profile("web", routes(&["backup"]))).await?;
    open.becomes(BACKUP).await?;
    rig.patch("ServiceProfile", &name, json!({"spec": routes(&["edited"])})).await?;
    open.becomes("service web with routes edited").await?;
    rig.delete("ServiceProfile", &name).await?;
    open.becomes(DEFAULT).await?;
    open.has_received(4).await
}

#[tokio::test]
async fn a_client_in_the_services_namespace_receives_each_change_once() -> Result<()> {
    let (rig, _) = rigs().await?;
    let name = rig.full_name("web");
    let mut open = rig.open_service_from(rig.name(), "web").await?;
    open.becomes(DEFAULT).await?;
    rig.put(rig.profile("web", routes(&["one"]))).await?;
    open.becomes("service web with routes one").await?;
    rig.patch("ServiceProfile", &name, json!({"spec": routes(&["two", "three"])})).await?;
    open.becomes("service web with routes two three").await?;
    rig.delete("ServiceProfile", &name).await?;
    open.becomes(DEFAULT).await?;
    open.has_received(4).await
}

#[tokio::test]
async fn clients_in_two_namespaces_have_separate_profiles() -> Result<()> {
    let (rig, one) = rigs().await?;
    let two = Rig::start("two").await?;
    one.put(rig.profile("web", routes(&["one"]))).await?;
    two.put(rig.profile("web", routes(&["two"]))).await?;
    let mut of_one = rig.open_service_from(one.name(), "web").await?;
    let mut of_two = rig.open_service_from(two.name(), "web").await?;
    of_one.becomes("service web with routes one").await?;
    of_two.becomes("service web with routes two").await?;
    one.delete("ServiceProfile", &rig.full_name("web")).await?;
    of_one.becomes(DEFAULT).await?;
    of_two.is_quiet().await
}

#[tokio::test]
async fn the_profile_of_a_service_applies_to_all_ports_and_clients() -> Result<()> {
    let (rig, client) = rigs().await?;
    let ports = json!({"spec": {"ports": [{"name": "a", "port": 80}, {"name": "b", "port": 81}]}});
    let ip = rig.put_service(service("two").with(ports)).await?;
    let mut all = Vec::new();
    for path in [rig.path("two:80"), rig.path("two:81"), at(&ip, 80), at(&ip, 81)] {
        for namespace in ["", rig.name(), client.name()] {
            let mut open = rig.open_with(&path, &e2e::discovery::token(namespace, "node")).await?;
            open.becomes("service two").await?;
            all.push(open);
        }
    }
    rig.put(rig.profile("two", routes(&["a"]))).await?;
    for open in &mut all {
        open.becomes("service two with routes a").await?;
    }
    rig.delete("ServiceProfile", &rig.full_name("two")).await?;
    for open in &mut all {
        open.becomes("service two").await?;
        open.has_received(3).await?;
    }
    Ok(())
}
