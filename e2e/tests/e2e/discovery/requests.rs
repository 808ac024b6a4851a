//! Requests that are too long. The table of cases has the others.

use anyhow::{Result, ensure};
use tonic::Code;

use super::{
    Served,
    objects::{address, service, slice},
};

const INVALID: Code = Code::InvalidArgument;

#[tokio::test]
async fn requests_that_are_too_long_get_a_short_refusal_and_keep_the_connection() -> Result<()> {
    let rig = Served::start("long").await?;
    rig.put_all([service("web"), slice("web", "web", &[address("192.0.2.1")])]).await?;
    let mut endpoints = rig.shows("web:80", &["192.0.2.1:8080"]).await?;
    for length in [300, 3_000, 15_000] {
        let (code, text) = rig.discovery.refusal(&"a".repeat(length), "").await?;
        ensure!(code == INVALID && text.starts_with("Invalid authority: aaaa") && text.len() < 2048, "{code:?} {text}");
        let path = format!("{}.{}.svc.cluster.local", "b".repeat(length), rig.name());
        let (code, text) = rig.discovery.refusal(&path, "").await?;
        ensure!(code == Code::NotFound && text.starts_with("Service bbbb") && text.len() < 2048, "{code:?} {text}");
        let (code, text) = rig.discovery.profile_refusal(&"a".repeat(length), "").await?;
        ensure!(code == INVALID && text.len() < 2048, "{code:?} {text}");
        // The text is not truncated within a character.
        let (code, text) = rig.discovery.refusal(&"ß".repeat(length / 2), "").await?;
        ensure!(code == INVALID && text.starts_with("Invalid authority: ßßßß") && text.len() < 2048, "{code:?} {text}");
    }
    for length in [17 * 1024, 1024 * 1024, 3 * 1024 * 1024] {
        for (path, token) in [("a".repeat(length), String::new()), (rig.path("web"), "t".repeat(length))] {
            let of_get = rig.discovery.refusal(&path, &token).await?;
            for (code, text) in [of_get, rig.discovery.profile_refusal(&path, &token).await?] {
                ensure!(code == INVALID && text.len() < 2048, "{length} bytes: {code:?} {text}");
            }
        }
    }
    rig.set_endpoints("web", &[address("192.0.2.2")]).await?;
    endpoints.shows(&["192.0.2.2:8080"]).await
}
