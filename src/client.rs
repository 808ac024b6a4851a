//! Kubernetes API clients that report an outage in time instead of hiding it behind retries.
//!
//! kube's default client retries a 503 for minutes before the caller gets the error, and has a timeout only for
//! connecting. The operator's clients do not retry. They have a timeout for the headers of a response, and one for the
//! gap between two reads of a body. They count each request, with the metric names of Go's client.

mod credentials;
mod describe;
mod kubeconfig;
#[cfg(test)]
mod kubeconfig_tests;
mod proxy;
mod resource;
mod token_file;
mod url;
mod watched;

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    path::Path,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use anyhow::{Context as _, anyhow, bail};
use http::{Method, Request, Response, StatusCode, header::AUTHORIZATION};
use kube::{
    Client, Config,
    client::{Body, ClientBuilder},
};
use prometheus::{
    HistogramOpts, HistogramVec, IntCounterVec, IntGauge, Opts, Registry, register_histogram_vec_with_registry,
    register_int_counter_vec_with_registry, register_int_gauge_with_registry,
};
use tokio::time::{Instant, timeout};
use tower::{BoxError, Layer, Service, util::MapRequestLayer};

use self::{describe::ClientOrigin, proxy::ProxyEnvironment, resource::resource, token_file::TokenFile};
pub use self::{
    describe::describe,
    watched::{watch_one, watched},
};
use crate::response_limit::ResponseLimitLayer;

/// The timeout for the headers of a response. Nine seconds, to distinguish it from the many timeouts of ten seconds.
const HEADER_TIMEOUT: Duration = Duration::from_secs(9);
/// The timeout for the headers of the response to a list or a watch. API Priority and Fairness may queue it for a
/// quarter of the API server's request timeout, by default for 15 s. A request that is cancelled earlier returns to the
/// end of the queue.
const LIST_HEADER_TIMEOUT: Duration = Duration::from_secs(20);
/// The timeout for the next byte of a response. It is longer than kube waits for an idle watch (65 s).
const READ_TIMEOUT: Duration = Duration::from_secs(70);
/// The buckets of Linkerd's histogram.
const LATENCY_SECONDS: [f64; 20] =
    [0.01, 0.02, 0.03, 0.04, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 1.0, 2.0, 3.0, 4.0, 5.0, 10.0, 20.0, 30.0, 40.0, 50.0];
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Returns the configuration of a client: from the given file; else `$KUBECONFIG`; else `~/.kube/config`; else the
/// ServiceAccount of the Pod.
///
/// # Errors
/// Fails if the file cannot be read, or if no source exists.
pub fn config(kubeconfig: Option<&Path>) -> anyhow::Result<Config> {
    config_of(kubeconfig, None)
}

/// Returns the configuration of a client that sends no request.
pub fn unused() -> Config {
    with_deadlines(Config::new(http::Uri::from_static("http://localhost")))
}

/// As [`config`], for a context other than the current one.
///
/// # Errors
/// Also if the kubeconfig has no such context, or if there is a context but no kubeconfig.
pub fn config_of(kubeconfig: Option<&Path>, context: Option<&str>) -> anyhow::Result<Config> {
    let config = match kubeconfig::read(kubeconfig)? {
        Some((file, source)) => kubeconfig::config_of(file, context, &proxies())
            .with_context(|| format!("cannot use the kubeconfig of {source}"))?,
        None if context.is_some() => bail!("there is no kubeconfig with the context: pass --kubeconfig"),
        // Without a proxy: the API server is inside of the cluster, and proxies of a Pod's environment are for the
        // world outside of it.
        None => Config::incluster().context(
            "no kubeconfig and no ServiceAccount: pass --kubeconfig, set KUBECONFIG, write ~/.kube/config, or run in a pod with a ServiceAccount",
        )?,
    };
    Ok(with_deadlines(config))
}

/// Returns a client of a linked cluster from the text of an untrusted kubeconfig. Errors never quote its values.
///
/// # Errors
/// Fails if it is not a kubeconfig, if it would run a program or read a file, if it has no credentials, or if a value of
/// it cannot be used.
pub fn embedded(kubeconfig: &str) -> anyhow::Result<Client> {
    let config = kubeconfig::linked(kubeconfig, &proxies())?;
    client_with(with_deadlines(config), &Registry::new(), &ResponseLimitLayer::linked())
}

fn proxies() -> ProxyEnvironment {
    ProxyEnvironment::read(|name| std::env::var(name).ok())
}

/// Makes the requests as another user, as kubectl's `--as` does.
///
/// # Errors
/// Fails if a name cannot be sent.
pub fn impersonating(mut config: Config, user: Option<&str>, groups: &[String]) -> anyhow::Result<Config> {
    if let Some(user) = user {
        config.auth_info.impersonate = Some(user.to_owned());
    }
    if !groups.is_empty() {
        config.auth_info.impersonate_groups = Some(groups.to_vec());
    }
    credentials::impersonation(&config.auth_info, "the command line")?;
    Ok(config)
}

fn with_deadlines(mut config: Config) -> Config {
    config.default_retry = false;
    config.connect_timeout = Some(CONNECT_TIMEOUT);
    config.read_timeout = Some(READ_TIMEOUT);
    // Otherwise the read timeout would include the time that a connection is idle in the pool.
    config.reset_reader_on_write = true;
    config
}

/// Returns the namespace of the Pod that this process runs in; `None` outside a Pod.
pub fn pod_namespace() -> Option<String> {
    let namespace = std::fs::read_to_string("/var/run/secrets/kubernetes.io/serviceaccount/namespace").ok()?;
    Some(namespace.trim().to_owned()).filter(|namespace| !namespace.is_empty())
}

/// Returns a client of an API server.
///
/// # Errors
/// Fails if the configuration has unusable certificates or credentials, or if the metrics are already registered.
pub fn client(config: Config, registry: &Registry) -> anyhow::Result<Client> {
    client_with(config, registry, &ResponseLimitLayer::new())
}

fn client_with(mut config: Config, registry: &Registry, limit: &ResponseLimitLayer) -> anyhow::Result<Client> {
    let origin = Arc::new(ClientOrigin::of(&config));
    let token = TokenFile::take(&mut config.auth_info)?.map(Arc::new);
    // kube panics for a token of an exec plugin that is no value of a header.
    let builder = catch_unwind(AssertUnwindSafe(|| ClientBuilder::try_from(config)))
        .map_err(|_| anyhow!("a credential of the kubeconfig cannot be used: check what its exec plugin prints"))?
        .map_err(|error| anyhow::Error::from_boxed(origin.explain(error.into())))
        .context("cannot create a client of the API server from its configuration")?;
    let deadlines = DeadlineLayer { metrics: RequestMetrics::register(registry)?, origin };
    let most_recent = MapRequestLayer::new(most_recent_list);
    let authorized = MapRequestLayer::new(move |mut request: Request<Body>| {
        if let Some(token) = &token {
            request.headers_mut().insert(AUTHORIZATION, token.header());
        }
        request
    });
    Ok(builder.with_layer(&deadlines).with_layer(&authorized).with_layer(&most_recent).with_layer(limit).build())
}

/// Makes the request for a list in a stream one for the most recent version. kube (5.0) requests any version that the
/// API server has, which may be older than what this process has already seen from another API server.
fn most_recent_list(mut request: Request<Body>) -> Request<Body> {
    let query = request.uri().query().unwrap_or_default();
    if query.contains("&sendInitialEvents=true") {
        let uri = request.uri().to_string().replace("&resourceVersion=0", "&resourceVersion=");
        if let Ok(uri) = uri.parse() {
            *request.uri_mut() = uri;
        }
    }
    request
}

/// Sets a timeout for the headers of a response, and measures the time until they arrive. The body has no timeout here,
/// because it may be a watch.
#[derive(Clone)]
struct DeadlineLayer {
    metrics: RequestMetrics,
    /// Explains errors.
    origin: Arc<ClientOrigin>,
}

#[derive(Clone)]
struct DeadlineService<S> {
    inner: S,
    layer: DeadlineLayer,
}

#[derive(Clone)]
struct RequestMetrics {
    requests: IntCounterVec,
    forbidden: IntCounterVec,
    errors: IntCounterVec,
    latency: HistogramVec,
    in_flight: IntGauge,
}

/// A request that waits for its response. Decrements the gauge when it is dropped.
struct InFlight(IntGauge);

// === impl DeadlineLayer ===

impl<S> Layer<S> for DeadlineLayer {
    type Service = DeadlineService<S>;

    fn layer(&self, inner: S) -> Self::Service {
        DeadlineService { inner, layer: self.clone() }
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
        let DeadlineLayer { metrics, origin } = self.layer.clone();
        let method = method(request.method());
        let resource = resource(request.uri().path());
        let query = request.uri().query().unwrap_or_default();
        let is_list = query.split('&').any(|it| it.starts_with("limit=") || it == "watch=true");
        let deadline = if is_list { LIST_HEADER_TIMEOUT } else { HEADER_TIMEOUT };
        let response = timeout(deadline, self.inner.call(request));
        Box::pin(async move {
            let begun = Instant::now();
            let _in_flight = InFlight::new(&metrics.in_flight);
            let response = match response.await {
                Ok(response) => response.map_err(|error| origin.explain(error.into())),
                Err(_) => Err(format!("no response within {} s", deadline.as_secs()).into()),
            };
            match &response {
                Ok(response) => {
                    let code = response.status();
                    let labels = [code.as_str(), method];
                    metrics.requests.with_label_values(&labels).inc();
                    if code == StatusCode::FORBIDDEN {
                        metrics.forbidden.with_label_values(&[resource]).inc();
                    }
                    metrics.latency.with_label_values(&labels).observe(begun.elapsed().as_secs_f64());
                }
                Err(_) => metrics.errors.with_label_values(&[method]).inc(),
            }
            response
        })
    }
}

/// Returns the label of a method, from a closed set.
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
        // The label of client-go's metrics in Linkerd, which has several kinds of clients.
        let opts = |name, help| Opts::new(name, help).const_label("client", "k8s");
        let latency = HistogramOpts {
            common_opts: opts(
                "http_client_request_latency_seconds",
                "Time until the response headers of the API server, in seconds",
            ),
            buckets: LATENCY_SECONDS.to_vec(),
        };
        Ok(Self {
            requests: register_int_counter_vec_with_registry!(
                opts("http_client_requests_total", "Number of responses of the API server"),
                &["code", "method"],
                registry
            )?,
            forbidden: register_int_counter_vec_with_registry!(
                "linkerd_operator_forbidden_requests_total",
                "Number of requests that the API server answered with 403, by resource",
                &["resource"],
                registry
            )?,
            errors: register_int_counter_vec_with_registry!(
                opts("http_client_errors_total", "Number of API server requests that failed without a response"),
                &["method"],
                registry
            )?,
            latency: register_histogram_vec_with_registry!(latency, &["code", "method"], registry)?,
            in_flight: register_int_gauge_with_registry!(
                opts("http_client_in_flight_requests", "Number of API server requests that wait for a response"),
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

/// Whether the API server refused a new object because its namespace is being deleted.
pub fn is_namespace_terminating(status: &kube::core::Status) -> bool {
    status.details.iter().flat_map(|details| &details.causes).any(|cause| cause.reason == "NamespaceTerminating")
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use tower::{ServiceExt, service_fn};

    use super::*;

    #[tokio::test]
    async fn a_forbidden_request_is_counted_with_its_resource() {
        let registry = Registry::new();
        let layer = DeadlineLayer {
            metrics: RequestMetrics::register(&registry).unwrap(),
            origin: Arc::new(ClientOrigin::of(&unused())),
        };
        let answer = |code| service_fn(move |_| async move { Ok::<_, Infallible>(response(code)) });
        let path = "/apis/apps/v1/namespaces/shop/deployments/web";
        for code in [StatusCode::FORBIDDEN, StatusCode::OK, StatusCode::FORBIDDEN, StatusCode::NOT_FOUND] {
            let request = Request::get(path).body(Body::empty()).unwrap();
            layer.layer(answer(code)).oneshot(request).await.unwrap();
        }
        let families = registry.gather();
        let forbidden = families.iter().find(|it| it.name() == "linkerd_operator_forbidden_requests_total").unwrap();
        let [sample] = forbidden.get_metric() else { panic!("{forbidden:?}") };
        let labels: Vec<_> = sample.get_label().iter().map(|it| (it.name(), it.value())).collect();
        assert_eq!(labels, [("resource", "deployments.apps")]);
        assert!((sample.get_counter().get_value() - 2.0).abs() < f64::EPSILON, "{sample:?}");
    }

    fn response(code: StatusCode) -> Response<()> {
        let mut response = Response::new(());
        *response.status_mut() = code;
        response
    }

    #[test]
    fn a_list_in_a_stream_is_requested_in_its_most_recent_version() {
        let params = kube::api::WatchParams::streaming_lists();
        let requests = kube::core::Request::new("/api/v1/pods");
        let query = |params: &kube::api::WatchParams, version: &str| {
            let request = requests.watch(params, version).unwrap();
            let request = most_recent_list(request.map(Body::from));
            request.uri().query().unwrap().to_owned()
        };
        let list = query(&params, "0");
        assert!(list.contains("sendInitialEvents=true") && list.ends_with("&resourceVersion="), "{list}");
        let resumed = query(&kube::api::WatchParams::default(), "0");
        assert!(resumed.ends_with("&resourceVersion=0"), "{resumed}");
    }
}
