//! Requests of `GetProfile` that the table of cases cannot have: their scheme, and very long ones.

use anyhow::{Context, Result, ensure};
use linkerd2_proxy_api::destination::{GetDestination, destination_client::DestinationClient};
use serde_json::json;
use tonic::{Code, transport::Channel};

use super::{routes, summary};
use crate::discovery::{
    Rig, Settings,
    objects::{Object, service},
};

const INVALID: Code = Code::InvalidArgument;

/// Creates a Service `web` with the ports 80 and 8989.
async fn rig(settings: Settings, prefix: &str) -> Result<Rig> {
    let rig = Rig::with(settings, prefix).await?;
    rig.put(two_ports("web")).await?;
    rig.open_service("web:80").await?.becomes("service web").await?;
    Ok(rig)
}

fn two_ports(name: &str) -> Object {
    let ports = json!([{"name": "http", "port": 80}, {"name": "admin", "port": 8989}]);
    service(name).with(json!({"spec": { "ports": ports }}))
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
        assert_eq!(summary(&message), "service web", "{scheme:?}");
    }
    Ok(())
}

#[tokio::test]
async fn requests_that_are_too_long_get_a_short_refusal_and_keep_the_connection() -> Result<()> {
    let rig = rig(Settings::Helm, "long").await?;
    let mut open = rig.open_service("web").await?;
    open.becomes("service web").await?;
    for length in [300, 3_000, 17 * 1024, 1024 * 1024] {
        let (code, text) = rig.discovery.profile_refusal(&"a".repeat(length), "").await?;
        ensure!(code == INVALID && text.len() < 2048, "{length}: {code:?} {text}");
    }
    rig.put(rig.profile("web", routes(&["more"]))).await?;
    open.becomes("service web with routes more").await
}
