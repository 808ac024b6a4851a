//! Which ServiceProfile counts: that of the client's namespace, then that of the Service's, then the default.

use anyhow::Result;
use serde_json::json;

use super::{at, routes};
use crate::discovery::{
    Rig, create,
    objects::{service, service_profile},
};

const DEFAULT: &str = "service web";
const PRIMARY: &str = "service web with routes primary";
const BACKUP: &str = "service web with routes backup";

/// Each with a namespace of its own: that of the Service `web`, and that of a client.
async fn rigs() -> Result<(Rig, Rig)> {
    let (rig, client) = (Rig::start("service").await?, Rig::start("client").await?);
    rig.put(service("web")).await?;
    Ok((rig, client))
}

#[tokio::test]
async fn the_first_and_only_message_is_of_the_profile_that_counts() -> Result<()> {
    for (primary, backup, with_token, without) in [
        (true, true, PRIMARY, BACKUP),
        (true, false, PRIMARY, DEFAULT),
        (false, true, BACKUP, BACKUP),
        (false, false, DEFAULT, DEFAULT),
    ] {
        let (rig, client) = rigs().await?;
        if primary {
            client.put(rig.profile("web", routes(&["primary"]))).await?;
        }
        if backup {
            rig.put(rig.profile("web", routes(&["backup"]))).await?;
        }
        rig.seen("ServiceProfile").await?;
        rig.seen("Service").await?;
        let bystander = Rig::start("bystander").await?;
        for (namespace, expected) in
            [("", without), (client.name(), with_token), (rig.name(), without), (bystander.name(), without)]
        {
            let mut asked = rig.ask_from(namespace, "web").await?;
            asked.looks(expected).await?;
            asked.has_told(1).await?;
        }
    }
    Ok(())
}

#[tokio::test]
async fn an_open_stream_follows_both_and_hears_of_the_backup_only_while_it_counts() -> Result<()> {
    let (rig, client) = rigs().await?;
    let name = rig.full_name("web");
    let profile = |routes_of: &str| rig.profile("web", routes(&[routes_of]));
    let mut open = rig.ask_from(client.name(), "web").await?;
    open.looks(DEFAULT).await?;
    rig.put(profile("backup")).await?;
    open.looks(BACKUP).await?;
    rig.patch("ServiceProfile", &name, json!({"spec": routes(&["edited"])})).await?;
    open.looks("service web with routes edited").await?;
    client.put(profile("primary")).await?;
    open.looks(PRIMARY).await?;
    // Behind it, the other one may do what it likes.
    rig.patch("ServiceProfile", &name, json!({"spec": routes(&["behind"])})).await?;
    rig.delete("ServiceProfile", &name).await?;
    rig.put(profile("backup")).await?;
    open.is_quiet().await?;
    client.patch("ServiceProfile", &name, json!({"spec": routes(&["edited"])})).await?;
    open.looks("service web with routes edited").await?;
    client.delete("ServiceProfile", &name).await?;
    open.looks(BACKUP).await?;
    client.put(profile("primary")).await?;
    open.looks(PRIMARY).await?;
    rig.delete("ServiceProfile", &name).await?;
    open.is_quiet().await?;
    client.delete("ServiceProfile", &name).await?;
    open.looks(DEFAULT).await?;
    open.has_told(8).await
}

#[tokio::test]
async fn without_a_token_the_profile_is_the_services_own() -> Result<()> {
    let (rig, client) = rigs().await?;
    let name = rig.full_name("web");
    let mut open = rig.ask_for("web").await?;
    open.looks(DEFAULT).await?;
    client.put(rig.profile("web", routes(&["primary"]))).await?;
    rig.seen("ServiceProfile").await?;
    open.is_quiet().await?;
    rig.put(rig.profile("web", routes(&["backup"]))).await?;
    open.looks(BACKUP).await?;
    rig.patch("ServiceProfile", &name, json!({"spec": routes(&["edited"])})).await?;
    open.looks("service web with routes edited").await?;
    rig.delete("ServiceProfile", &name).await?;
    open.looks(DEFAULT).await?;
    open.has_told(4).await
}

#[tokio::test]
async fn a_client_in_the_services_namespace_hears_everything_once() -> Result<()> {
    let (rig, _) = rigs().await?;
    let name = rig.full_name("web");
    let mut open = rig.ask_from(rig.name(), "web").await?;
    open.looks(DEFAULT).await?;
    rig.put(rig.profile("web", routes(&["one"]))).await?;
    open.looks("service web with routes one").await?;
    rig.patch("ServiceProfile", &name, json!({"spec": routes(&["two", "three"])})).await?;
    open.looks("service web with routes two three").await?;
    rig.delete("ServiceProfile", &name).await?;
    open.looks(DEFAULT).await?;
    open.has_told(4).await
}

#[tokio::test]
async fn two_clients_of_one_service_each_have_their_own() -> Result<()> {
    let (rig, one) = rigs().await?;
    let two = Rig::start("two").await?;
    one.put(rig.profile("web", routes(&["one"]))).await?;
    two.put(rig.profile("web", routes(&["two"]))).await?;
    let mut of_one = rig.ask_from(one.name(), "web").await?;
    let mut of_two = rig.ask_from(two.name(), "web").await?;
    of_one.looks("service web with routes one").await?;
    of_two.looks("service web with routes two").await?;
    one.delete("ServiceProfile", &rig.full_name("web")).await?;
    of_one.looks(DEFAULT).await?;
    of_two.is_quiet().await
}

#[tokio::test]
async fn nobody_elses_profile_counts() -> Result<()> {
    let (rig, client) = rigs().await?;
    create(&rig.client, "linkerd", rig.profile("web", routes(&["of-linkerd"]))).await?;
    rig.put_all([
        // The name is that of the Service, in full.
        service_profile("web", routes(&["short"])),
        service_profile(&format!("web.{}", rig.name()), routes(&["shorter"])),
        service_profile(&format!("web.{}.svc", rig.name()), routes(&["short"])),
        service_profile(&format!("web.{}.svc.other.domain", rig.name()), routes(&["other"])),
        rig.profile("other", routes(&["other"])),
    ])
    .await?;
    rig.seen("ServiceProfile").await?;
    rig.hears(&rig.path("web"), DEFAULT).await?;
    rig.ask_from(client.name(), "web").await?.looks(DEFAULT).await?;
    rig.ask_from("linkerd", "web").await?.looks("service web with routes of-linkerd").await
}

#[tokio::test]
async fn the_profile_of_a_service_is_that_of_all_its_ports_and_clients() -> Result<()> {
    let (rig, client) = rigs().await?;
    let ports = json!({"spec": {"ports": [{"name": "a", "port": 80}, {"name": "b", "port": 81}]}});
    let ip = rig.put_service(service("two").with(ports)).await?;
    let mut all = Vec::new();
    for path in [rig.path("two:80"), rig.path("two:81"), at(&ip, 80), at(&ip, 81)] {
        for namespace in ["", rig.name(), client.name()] {
            let mut asked = rig.ask_with(&path, &e2e::discovery::token(namespace, "node")).await?;
            asked.looks("service two").await?;
            all.push(asked);
        }
    }
    rig.put(rig.profile("two", routes(&["a"]))).await?;
    for asked in &mut all {
        asked.looks("service two with routes a").await?;
    }
    rig.delete("ServiceProfile", &rig.full_name("two")).await?;
    for asked in &mut all {
        asked.looks("service two").await?;
        asked.has_told(3).await?;
    }
    Ok(())
}
