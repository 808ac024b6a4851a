//! Clients of the Kubernetes API that fail in time instead of hiding an outage.
//!
//! kube's defaults retry a 503 for minutes before the caller hears of it, and bound nothing but the connection. Ours: no
//! hidden retries, a deadline for the response's headers, and one for silence in the middle of a body. And each request is
//! counted, under the names that Go's client gives its metrics.

use std::{
    error::Error,
    io::ErrorKind,
    path::Path,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use anyhow::Context as _;
use http::{Method, Request, Response};
use kube::{
    Client, Config,
    client::{Body, ClientBuilder},
    config::{KubeConfigOptions, Kubeconfig, KubeconfigError},
};
use prometheus::{HistogramOpts, HistogramVec, IntCounterVec, IntGauge, Opts, Registry};
use tokio::time::{Instant, timeout};
use tower::{BoxError, Layer, Service};

/// Until a response's headers are there. Nine seconds, to tell it from the many deadlines of ten.
const HEADER_TIMEOUT: Duration = Duration::from_secs(9);
/// Until the next byte of a response. Longer than an idle watch is silent before kube gives it up (65 s).
const READ_TIMEOUT: Duration = Duration::from_secs(70);
/// Linkerd's buckets.
const LATENCY_SECONDS: [f64; 20] =
    [0.01, 0.02, 0.03, 0.04, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 1.0, 2.0, 3.0, 4.0, 5.0, 10.0, 20.0, 30.0, 40.0, 50.0];
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
/// When the configuration holds certificates or credentials that cannot be used, or its metrics are registered already.
pub fn client(config: Config, registry: &Registry) -> anyhow::Result<Client> {
    let builder =
        ClientBuilder::try_from(config).context("cannot make a client of the API server from its configuration")?;
    Ok(builder.with_layer(&Bounded(Metrics::register(registry)?)).build())
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

/// Bounds the time to a response's headers, measures it, and leaves the body, which may be a watch, alone.
#[derive(Clone)]
struct Bounded(Metrics);

#[derive(Clone)]
struct BoundedService<S> {
    inner: S,
    metrics: Metrics,
}

#[derive(Clone)]
struct Metrics {
    requests: IntCounterVec,
    errors: IntCounterVec,
    latency: HistogramVec,
    in_flight: IntGauge,
}

/// A request without an answer, however it ends.
struct InFlight(IntGauge);

// === impl Bounded ===

impl<S> Layer<S> for Bounded {
    type Service = BoundedService<S>;

    fn layer(&self, inner: S) -> Self::Service {
        BoundedService { inner, metrics: self.0.clone() }
    }
}

impl<S, B> Service<Request<Body>> for BoundedService<S>
where
    S: Service<Request<Body>, Response = Response<B>>,
    S::Error: Into<BoxError>,
    S::Future: Send + 'static,
{
    type Response = Response<B>;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<Response<B>, BoxError>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.inner.poll_ready(cx).map_err(Into::into)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let metrics = self.metrics.clone();
        let method = method(request.method());
        let response = timeout(HEADER_TIMEOUT, self.inner.call(request));
        Box::pin(async move {
            let begun = Instant::now();
            let _in_flight = InFlight::new(&metrics.in_flight);
            let response = match response.await {
                Ok(response) => response.map_err(Into::into),
                Err(_) => Err(format!("no response within {} s", HEADER_TIMEOUT.as_secs()).into()),
            };
            match &response {
                Ok(response) => {
                    let code = response.status();
                    let labels = [code.as_str(), method];
                    metrics.requests.with_label_values(&labels).inc();
                    metrics.latency.with_label_values(&labels).observe(begun.elapsed().as_secs_f64());
                }
                Err(_) => metrics.errors.with_label_values(&[method]).inc(),
            }
            response
        })
    }
}

/// A closed set of labels.
fn method(method: &Method) -> &'static str {
    match *method {
        Method::GET => "get",
        Method::POST => "post",
        Method::PUT => "put",
        Method::PATCH => "patch",
        Method::DELETE => "delete",
        _ => "other",
    }
}

// === impl Metrics ===

impl Metrics {
    fn register(registry: &Registry) -> prometheus::Result<Self> {
        // As client-go's are labelled in Linkerd, which has clients of several kinds.
        let opts = |name, help| Opts::new(name, help).const_label("client", "k8s");
        let latency = HistogramOpts {
            common_opts: opts(
                "http_client_request_latency_seconds",
                "Until the headers of a response of the API server",
            ),
            buckets: LATENCY_SECONDS.to_vec(),
        };
        let metrics = Self {
            requests: IntCounterVec::new(
                opts("http_client_requests_total", "Responses of the API server"),
                &["code", "method"],
            )?,
            errors: IntCounterVec::new(opts("http_client_errors_total", "Requests without a response"), &["method"])?,
            latency: HistogramVec::new(latency, &["code", "method"])?,
            in_flight: IntGauge::with_opts(opts(
                "http_client_in_flight_requests",
                "Requests that wait for a response",
            ))?,
        };
        registry.register(Box::new(metrics.requests.clone()))?;
        registry.register(Box::new(metrics.errors.clone()))?;
        registry.register(Box::new(metrics.latency.clone()))?;
        registry.register(Box::new(metrics.in_flight.clone()))?;
        Ok(metrics)
    }
}

// === impl InFlight ===

impl InFlight {
    fn new(gauge: &IntGauge) -> Self {
        gauge.inc();
        Self(gauge.clone())
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.0.dec();
    }
}
