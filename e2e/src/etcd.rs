//! Operations of tests on etcd, through its JSON gateway.
//!
//! * In: etcd's client address. Out: revisions, which are the resourceVersions of the API server.

use std::{net::SocketAddr, time::Duration};

use anyhow::{Context, Result, ensure};
use hyper::Method;
use serde_json::{Value, json};

use crate::plain_http;

/// A compaction removes a thousand old revisions at a time. The hundred thousands of the largest cluster take a while.
const DEADLINE: Duration = Duration::from_secs(120);

/// Compacts all history up to now. Returns the compacted revision.
pub(crate) async fn compact(address: SocketAddr) -> Result<i64> {
    // Any key works (this one is "a"): the header of the answer contains the revision.
    let range = call(address, "/v3/kv/range", &json!({"key": "YQ==", "limit": "1"})).await?;
    let revision: i64 =
        range.pointer("/header/revision").and_then(Value::as_str).context("etcd's answer has no revision")?.parse()?;
    call(address, "/v3/kv/compaction", &json!({"revision": revision.to_string(), "physical": true})).await?;
    Ok(revision)
}

async fn call(address: SocketAddr, path: &str, body: &Value) -> Result<Value> {
    let (status, answer) =
        plain_http::request(address, Method::POST, path, serde_json::to_vec(body)?, DEADLINE).await?;
    ensure!(status.is_success(), "etcd {path}: {status} {}", String::from_utf8_lossy(&answer));
    Ok(serde_json::from_slice(&answer)?)
}
