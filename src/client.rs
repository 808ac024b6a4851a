//! Clients of the Kubernetes API that fail in time instead of hiding an outage.
//!
//! kube's defaults retry a 503 for minutes before the caller gets the error, and limit nothing but the time to connect. Our
//! clients retry nothing, and have a deadline for the headers of a response, and one for silence in the middle of a body. They
//! count each request, under the names that Go's client gives its metrics.

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
use prometheus::{
    HistogramOpts, HistogramVec, IntCounterVec, IntGauge, Opts, Registry, register_histogram_vec_with_registry,
    register_int_counter_vec_with_registry, register_int_gauge_with_registry,
};
use tokio::time::{Instant, timeout};
use tower::{BoxError, Layer, Service};

/// Until the headers of a response. Nine seconds, to tell it from the many deadlines of ten.
const HEADER_TIMEOUT: Duration = Duration::from_secs(9);
/// Until the next byte of a response. Longer than kube waits for an idle watch (65 s).
const READ_TIMEOUT: Duration = Duration::from_secs(70);
/// Linkerd's buckets.
const LATENCY_SECONDS: [f64; 20] =
    [0.01, 0.02, 0.03, 0.04, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 1.0, 2.0, 3.0, 4.0, 5.0, 10.0, 20.0, 30.0, 40.0, 50.0];
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Returns the configuration of a client: from the given file; else `$KUBECONFIG`; else `~/.kube/config`; else the ServiceAccount
/// of the Pod.
///
/// # Errors
/// When the file cannot be read, or none of the sources exists.
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

/// Returns the first kubeconfig that exists, and its source. One that exists and cannot be read is an error, so that the process
/// does not silently connect to another cluster.
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

/// Returns a client of an API server.
///
/// # Errors
/// When the configuration holds certificates or credentials that cannot be used, or its metrics are registered already.
pub fn client(config: Config, registry: &Registry) -> anyhow::Result<Client> {
    let builder =
        ClientBuilder::try_from(config).context("cannot make a client of the API server from its configuration")?;
    Ok(builder.with_layer(&DeadlineLayer(RequestMetrics::register(registry)?)).build())
}

/// Describes an error and its causes, each once. kube's errors include their source already, hyper's do not.
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

/// Sets a deadline for the headers of a response, and measures the time until then. The body may be a watch: it has no deadline.
#[derive(Clone)]
struct DeadlineLayer(RequestMetrics);

#[derive(Clone)]
struct DeadlineService<S> {
    inner: S,
    metrics: RequestMetrics,
}

#[derive(Clone)]
struct RequestMetrics {
    requests: IntCounterVec,
    errors: IntCounterVec,
    latency: HistogramVec,
    in_flight: IntGauge,
}

/// A request without a response; counts down when it ends, however it ends.
struct InFlight(IntGauge);

// === impl DeadlineLayer ===

impl<S> Layer<S> for DeadlineLayer {
    type Service = DeadlineService<S>;

    fn layer(&self, inner: S) -> Self::Service {
        DeadlineService { inner, metrics: self.0.clone() }
    }
}

impl<S, B> Service<Request<Body>> for DeadlineService<S>
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

/// Returns the label of a method: a closed set, whatever the method.
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

// === impl RequestMetrics ===

impl RequestMetrics {
    fn register(registry: &Registry) -> prometheus::Result<Self> {
        // The label that client-go's metrics carry in Linkerd, which has clients of several kinds.
        let opts = |name, help| Opts::new(name, help).const_label("client", "k8s");
        let latency = HistogramOpts {
            common_opts: opts(
                "http_client_request_latency_seconds",
                "Until the headers of a response of the API server",
            ),
            buckets: LATENCY_SECONDS.to_vec(),
        };
        Ok(Self {
            requests: register_int_counter_vec_with_registry!(
                opts("http_client_requests_total", "Responses of the API server"),
                &["code", "method"],
                registry
            )?,
            errors: register_int_counter_vec_with_registry!(
                opts("http_client_errors_total", "Requests without a response"),
                &["method"],
                registry
            )?,
            latency: register_histogram_vec_with_registry!(latency, &["code", "method"], registry)?,
            in_flight: register_int_gauge_with_registry!(
                opts("http_client_in_flight_requests", "Requests that wait for a response"),
                registry
            )?,
        })
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
