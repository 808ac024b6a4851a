//! Reads a page of a Pod: through a port-forward, to which no NetworkPolicy applies and which needs no token for the
//! metrics, or else through the API server's proxy.
//!
//! In: a Pod, a port, a path. Out: the text, or why it could not be read. Always holds: the length of an answer and the
//! time are bounded; an error page of the operator is an answer, too.

use std::{error::Error, pin::pin, time::Duration};

use anyhow::{Context, Result, anyhow};
use bytes::Bytes;
use http::{Request, Response, StatusCode, header};
use http_body_util::{BodyExt, Empty, Limited};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use k8s_openapi::api::core::v1::Pod;
use kube::{Api, Client, client::Body};
use serde::Deserialize;
use tokio::time::timeout;

use super::unread::{Known, Unread};
use crate::{client, text::truncate};

/// The maximum length of an answer of a replica.
const ANSWER_BYTES: usize = 16 << 20;
const ANSWER_DEADLINE: Duration = Duration::from_secs(10);
/// The part of that deadline for a port-forward.
const FORWARD_DEADLINE: Duration = Duration::from_secs(5);
/// The maximum length of an answer that is an error, as it is shown.
const REFUSAL_BYTES: usize = 512;

pub(super) async fn answer(client: &Client, namespace: &str, pod: &str, port: i32, path: &str) -> Known<String> {
    let (status, text) = match timeout(ANSWER_DEADLINE, get(client, namespace, pod, port, path)).await {
        Ok(Ok(answer)) => answer,
        Ok(Err(error)) => {
            return Err(Unread::failed(format!("cannot read /{path} of the Pod: {}", client::describe(&*error))));
        }
        Err(_) => {
            let seconds = ANSWER_DEADLINE.as_secs();
            return Err(Unread::failed(format!("/{path} of the Pod did not answer within {seconds} s")));
        }
    };
    match status {
        StatusCode::OK => Ok(text),
        StatusCode::SERVICE_UNAVAILABLE if text.starts_with("not ready") => Ok(text),
        status => Err(Unread {
            is_denied: status == StatusCode::FORBIDDEN,
            reason: format!("cannot read /{path} of the Pod: {}", refusal(status, &text)),
        }),
    }
}

async fn get(client: &Client, namespace: &str, pod: &str, port: i32, path: &str) -> Result<(StatusCode, String)> {
    match timeout(FORWARD_DEADLINE, forwarded(client, namespace, pod, port, path)).await {
        Ok(Ok(answer)) => Ok(answer),
        // The user may have only the other permission, and a node may serve no port-forwards.
        _ => proxied(client, namespace, pod, port, path).await.context("the request failed"),
    }
}

async fn forwarded(client: &Client, namespace: &str, pod: &str, port: i32, path: &str) -> Result<(StatusCode, String)> {
    let port = u16::try_from(port)?;
    let mut forwarder = Api::<Pod>::namespaced(client.clone(), namespace).portforward(pod, &[port]).await?;
    let stream = forwarder.take_stream(port).context("the port-forward has no stream")?;
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    let request = Request::get(format!("/{path}")).header(header::HOST, "localhost").body(Empty::<Bytes>::new())?;
    let mut answer = pin!(async { read(sender.send_request(request).await?).await });
    tokio::select! {
        answer = &mut answer => answer,
        // It ends first if the kubelet closes it. What it has read is still there.
        _ = connection => answer.await,
    }
}

async fn proxied(client: &Client, namespace: &str, pod: &str, port: i32, path: &str) -> Result<(StatusCode, String)> {
    let uri = format!("/api/v1/namespaces/{namespace}/pods/{pod}:{port}/proxy/{path}");
    read(client.send(Request::get(uri).body(Body::empty())?).await?).await
}

async fn read<B>(response: Response<B>) -> Result<(StatusCode, String)>
where
    B: http_body::Body<Error: Into<Box<dyn Error + Send + Sync>>>,
{
    let status = response.status();
    let body = Limited::new(response.into_body(), ANSWER_BYTES).collect().await.map_err(|error| anyhow!(error))?;
    Ok((status, String::from_utf8_lossy(&body.to_bytes()).into_owned()))
}

/// Describes an answer that is an error: the message of the API server, or the start of another body. On the way to the
/// Pod, a proxy or a policy can refuse the request, too.
fn refusal(status: StatusCode, body: &str) -> String {
    #[derive(Deserialize)]
    struct ApiStatus {
        message: String,
    }
    let text = match serde_json::from_str::<ApiStatus>(body) {
        Ok(ApiStatus { message }) => message,
        Err(_) => body.to_owned(),
    };
    // A terminal must not interpret what a Pod answers.
    let text: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    match truncate(text.trim(), REFUSAL_BYTES) {
        "" => format!("the answer is {status}"),
        text => format!("the answer is {status}: {text}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_is_shown_with_its_body() {
        let denied = r#"{"kind": "Status", "code": 403, "message": "pods \"a\" is forbidden: User \"u\" cannot get \"pods/proxy\""}"#;
        for (status, body, expected) in [
            (
                StatusCode::FORBIDDEN,
                denied,
                r#"the answer is 403 Forbidden: pods "a" is forbidden: User "u" cannot get "pods/proxy""#,
            ),
            (StatusCode::FORBIDDEN, "denied by\u{1b}[2J policy\n", "the answer is 403 Forbidden: denied by [2J policy"),
            (StatusCode::BAD_GATEWAY, "", "the answer is 502 Bad Gateway"),
        ] {
            assert_eq!(refusal(status, body), expected);
        }
        assert!(refusal(StatusCode::FORBIDDEN, &"x".repeat(9999)).len() < 600);
    }
}
