//! Clients of the Kubernetes API that fail in time instead of hiding an outage.
//!
//! kube's defaults retry a 503 for minutes before the caller hears of it, and bound nothing but the connection. Ours: no
//! hidden retries, a deadline for the response's headers, and one for silence in the middle of a body.

use std::{
    error::Error,
    io::ErrorKind,
    path::Path,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use anyhow::Context as _;
use http::{Request, Response};
use kube::{
    Client, Config,
    client::{Body, ClientBuilder},
    config::{KubeConfigOptions, Kubeconfig, KubeconfigError},
};
use tower::{BoxError, Layer, Service};

/// Until a response's headers are there. Nine seconds, to tell it from the many deadlines of ten.
const HEADER_TIMEOUT: Duration = Duration::from_secs(9);
/// Until the next byte of a response. Longer than an idle watch is silent before kube gives it up (65 s).
const READ_TIMEOUT: Duration = Duration::from_secs(70);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// The file that was named; else `$KUBECONFIG`; else `~/.kube/config`; else the ServiceAccount of the pod.
///
/// # Errors
/// When the file cannot be read, or none of the sources is there.
pub async fn config(kubeconfig: Option<&Path>) -> anyhow::Result<Config> {
    let mut config = match read(kubeconfig)? {
        Some((file, source)) => Config::from_custom_kubeconfig(file, &KubeConfigOptions::default())
            .await
            .with_context(|| format!("cannot use the kubeconfig of {source}"))?,
        None => Config::incluster().context(
            "no way to an API server: pass --kubeconfig, set KUBECONFIG, write ~/.kube/config, or run in a pod with a ServiceAccount",
        )?,
    };
    config.default_retry = false;
    config.connect_timeout = Some(CONNECT_TIMEOUT);
    config.read_timeout = Some(READ_TIMEOUT);
    // Without it the time that a connection idles in the pool counts as silence.
    config.reset_reader_on_write = true;
    Ok(config)
}

/// The first kubeconfig that there is, and where it is from. One that is there and cannot be read is an error: what its owner
/// meant to reach must not be replaced by another cluster in silence.
fn read(named: Option<&Path>) -> anyhow::Result<Option<(Kubeconfig, String)>> {
    if let Some(path) = named {
        let source = path.display().to_string();
        let file = Kubeconfig::read_from(path).with_context(|| format!("cannot read the kubeconfig {source}"))?;
        return Ok(Some((file, source)));
    }
    if let Some(file) = Kubeconfig::from_env().context("cannot read the kubeconfig that KUBECONFIG names")? {
        return Ok(Some((file, "KUBECONFIG".to_owned())));
    }
    match Kubeconfig::read() {
        Ok(file) => Ok(Some((file, "~/.kube/config".to_owned()))),
        Err(KubeconfigError::FindPath) => Ok(None),
        Err(KubeconfigError::ReadConfig(error, _)) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error).context("cannot read ~/.kube/config"),
    }
}

/// A client for an API server.
///
/// # Errors
/// When the configuration holds certificates or credentials that cannot be used.
pub fn client(config: Config) -> anyhow::Result<Client> {
    let builder =
        ClientBuilder::try_from(config).context("cannot make a client of the API server from its configuration")?;
    Ok(builder.with_layer(&HeaderTimeout).build())
}

/// The error and what caused it, each said once. kube's errors name their source already, hyper's do not.
pub fn describe(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        if !text.contains(&cause_text) {
            text = format!("{text}: {cause_text}");
        }
        source = cause.source();
    }
    text
}

/// Bounds the time to a response's headers and leaves its body, which may be a watch, alone.
#[derive(Clone)]
struct HeaderTimeout;

#[derive(Clone)]
struct WithHeaderTimeout<S>(S);

// === impl HeaderTimeout ===

impl<S> Layer<S> for HeaderTimeout {
    type Service = WithHeaderTimeout<S>;

    fn layer(&self, inner: S) -> Self::Service {
        WithHeaderTimeout(inner)
    }
}

impl<S, B> Service<Request<Body>> for WithHeaderTimeout<S>
where
    S: Service<Request<Body>, Response = Response<B>>,
    S::Error: Into<BoxError>,
    S::Future: Send + 'static,
{
    type Response = Response<B>;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<Response<B>, BoxError>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.0.poll_ready(cx).map_err(Into::into)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let response = tokio::time::timeout(HEADER_TIMEOUT, self.0.call(request));
        Box::pin(async move {
            match response.await {
                Ok(response) => response.map_err(Into::into),
                Err(_) => Err(format!("no response within {} s", HEADER_TIMEOUT.as_secs()).into()),
            }
        })
    }
}
