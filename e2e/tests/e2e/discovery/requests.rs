//! Requests of `Get` that are too long. The table of cases has the others.

use anyhow::{Result, ensure};
use tonic::Code;

use super::{
    Rig,
    objects::{address, hinted, node, service, slice},
};

const INVALID: Code = Code::InvalidArgument;

#[tokio::test]
async fn a_long_token_is_read_up_to_a_limit_and_is_no_error_beyond_it() -> Result<()> {
    let rig = Rig::start("token").await?;
    let (here, there) = (format!("{}-here", rig.name()), format!("{}-there", rig.name()));
    let endpoints = [hinted(address("192.0.2.1"), &["here"]), hinted(address("192.0.2.2"), &["there"])];
    rig.put_all([
        node(&here, Some("here")),
        node(&there, Some("there")),
        service("web"),
        slice("web", "web", &endpoints),
    ])
    .await?;
    let long = |length| format!(r#"{{"nodeName":"{here}","pod":"{}"}}"#, "p".repeat(length));
    let deep = format!(r#"{{"nodeName":"{here}","x":{}{}}}"#, "[".repeat(1500), "]".repeat(1500));
    rig.begins_with("web", &long(2000), &["192.0.2.1:8080"]).await?;
    rig.begins_with("web", &long(5000), &["192.0.2.1:8080", "192.0.2.2:8080"]).await?;
    // Deep nesting may or may not be parsed, but the request is answered.
    rig.discovery.get(&rig.path("web"), &deep).await?.next().await?;
    Ok(())
}

#[tokio::test]
async fn requests_that_are_too_long_get_a_short_refusal_and_keep_the_connection() -> Result<()> {
    let rig = Rig::start("long").await?;
    rig.put_all([service("web"), slice("web", "web", &[address("192.0.2.1")])]).await?;
    let mut endpoints = rig.shows("web:80", &["192.0.2.1:8080"]).await?;
    for length in [300, 3_000, 15_000] {
        let (code, text) = rig.discovery.refusal(&"a".repeat(length), "").await?;
        ensure!(code == INVALID && text.starts_with("Invalid authority: aaaa") && text.len() < 2048, "{code:?} {text}");
        let path = format!("{}.{}.svc.cluster.local", "b".repeat(length), rig.name());
        let (code, text) = rig.discovery.refusal(&path, "").await?;
        ensure!(code == Code::NotFound && text.starts_with("Service bbbb") && text.len() < 2048, "{code:?} {text}");
        // The text is not truncated within a character.
        let (code, text) = rig.discovery.refusal(&"ß".repeat(length / 2), "").await?;
        ensure!(code == INVALID && text.starts_with("Invalid authority: ßßßß") && text.len() < 2048, "{code:?} {text}");
    }
    for length in [17 * 1024, 1024 * 1024, 3 * 1024 * 1024] {
        for (path, token) in [("a".repeat(length), String::new()), (rig.path("web"), "t".repeat(length))] {
            let (code, text) = rig.discovery.refusal(&path, &token).await?;
            ensure!(code == INVALID && text.len() < 2048, "{length} bytes: {code:?} {text}");
        }
    }
    rig.set_endpoints("web", &[address("192.0.2.2")]).await?;
    endpoints.shows(&["192.0.2.2:8080"]).await
}
