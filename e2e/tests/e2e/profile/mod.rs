//! `Destination.GetProfile` as a proxy sees it, over a real API server, on the shared control plane.
//!
//! Addresses are looked up in the whole cluster, so each test gets unused ones from [`ip`]. Messages are compared by
//! their [`summary`]. A new stream must always begin with the last message of an open one.

mod changes;
mod process;
mod routes;
mod series;
mod watches;

use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    sync::atomic::{AtomicU32, Ordering},
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use e2e::{eventually, mesh::SOON, profile::Profiles};
use kube::{
    ResourceExt,
    api::{Patch, PatchParams},
};
use linkerd2_proxy_api::destination::{DestinationProfile, RetryBudget};
use serde_json::{Value, json};
use tonic::Code;

use crate::discovery::{
    QUIET, Served,
    objects::{Object, service, service_profile, workload},
    received,
};

/// The traits of a meshed Pod or an ExternalWorkload with the settings of Linkerd's charts.
const MESHED: &str = "with h2 4143 identity http2";
/// The same on an opaque port.
const OPAQUE: &str = "with opaque 4143 identity http2";

/// An open stream and its request.
struct OpenStream<'rig> {
    rig: &'rig Served,
    path: String,
    token: String,
    stream: Profiles,
}

// === Addresses ===

static NUMBERS: AtomicU32 = AtomicU32::new(0);

/// Returns a number that no other test uses. The process ID keeps it distinct from recent runs on an existing cluster.
fn number() -> u32 {
    let number = std::process::id().wrapping_mul(1024).wrapping_add(NUMBERS.fetch_add(1, Ordering::Relaxed));
    number % (1 << 22)
}

/// Returns an unused address.
fn ip() -> String {
    Ipv4Addr::from(u32::from(Ipv4Addr::new(100, 64, 0, 0)) + number()).to_string()
}

/// The authority of an address and port.
fn at(ip: &str, port: u16) -> String {
    match ip.parse::<IpAddr>() {
        Ok(ip) => SocketAddr::new(ip, port).to_string(),
        Err(_) => format!("{ip}:{port}"),
    }
}

// === Objects ===

/// An ExternalWorkload with these addresses.
fn workload_at(name: &str, ips: &[&str]) -> Object {
    let ips: Vec<Value> = ips.iter().map(|ip| json!({ "ip": ip })).collect();
    workload(name).with(json!({"spec": { "workloadIPs": ips }}))
}

/// A spec with one route for each name, matching the path `/<name>`.
fn routes(names: &[&str]) -> Value {
    let route = |name: &&str| json!({"name": name, "condition": {"pathRegex": format!("/{name}")}});
    json!({"routes": names.iter().map(route).collect::<Vec<_>>()})
}

// === Messages ===

fn default_budget() -> Option<RetryBudget> {
    let ttl = prost_types::Duration { seconds: 10, nanos: 0 };
    Some(RetryBudget { retry_ratio: 0.2, min_retries_per_second: 10, ttl: Some(ttl) })
}

/// A summary of a message: `empty`, `service web with routes a b`, `pod web-1 with h2 4143 identity http2`, or
/// `address` for an endpoint without a workload. It begins with `opaque` if the protocol is opaque.
fn summary(profile: &DestinationProfile) -> String {
    if *profile == DestinationProfile::default() {
        return "empty".to_owned();
    }
    let mut words = Vec::new();
    if profile.opaque_protocol {
        words.push("opaque".to_owned());
    }
    match &profile.endpoint {
        Some(endpoint) => {
            let name = |label: &str| endpoint.metric_labels.get(label).map(|name| format!("{label} {name}"));
            words.push(name("pod").or_else(|| name("external_workload")).unwrap_or_else(|| "address".to_owned()));
            let traits = received::traits(endpoint);
            words.extend((!traits.is_empty()).then(|| format!("with {traits}")));
        }
        None => {
            let service = profile.fully_qualified_name.split('.').next().unwrap_or_default();
            words.push(format!("service {service}"));
            let routes = profile.routes.iter().filter_map(|route| route.metrics_labels.get("route"));
            let routes: Vec<&str> = routes.map(String::as_str).collect();
            words.extend((!routes.is_empty()).then(|| format!("with routes {}", routes.join(" "))));
        }
    }
    words.join(" ")
}

/// Waits until the last message of a stream of a dedicated manager has this summary.
async fn becomes(stream: &mut Profiles, expected: &str) -> Result<()> {
    stream.until(expected, |profile| summary(profile) == expected).await
}

// === impl Served ===

impl Served {
    /// Opens a stream as soon as it is not refused.
    async fn open(&self, path: &str) -> Result<OpenStream<'_>> {
        self.open_with(path, "").await
    }

    async fn open_with(&self, path: &str, token: &str) -> Result<OpenStream<'_>> {
        let stream = eventually(SOON, format_args!("{path} to be answered"), async || {
            Ok(self.discovery.get_profile(path, token).await?)
        })
        .await?;
        Ok(OpenStream { rig: self, path: path.to_owned(), token: token.to_owned(), stream })
    }

    /// Opens a stream for `web:80` by name.
    async fn open_service(&self, service_and_port: &str) -> Result<OpenStream<'_>> {
        self.open(&self.path(service_and_port)).await
    }

    /// Opens a stream for `web:80` by name, from a client in this namespace.
    async fn open_service_from(&self, namespace: &str, service_and_port: &str) -> Result<OpenStream<'_>> {
        self.open_with(&self.path(service_and_port), &e2e::discovery::token(namespace, "node")).await
    }

    /// Retries until a new stream begins with this summary, because earlier writes may not have arrived yet.
    async fn opens_with(&self, path: &str, expected: &str) -> Result<OpenStream<'_>> {
        eventually(SOON, format_args!("a stream for {path} to begin with {expected:?}"), async || {
            let mut open = self.open(path).await?;
            let seen = open.stream.next().await?.as_ref().map(summary);
            ensure!(seen.as_deref() == Some(expected), "it begins with {seen:?}");
            Ok(open)
        })
        .await
    }

    /// Waits until the path is refused with this code and a message that begins with `text`.
    async fn is_refused(&self, path: &str, code: Code, text: &str) -> Result<()> {
        eventually(SOON, format_args!("{path:?} to be refused"), async || {
            let (seen, message) = self.discovery.profile_refusal(path, "").await?;
            ensure!(
                seen == code && message.starts_with(text),
                "expected {code:?} {text:?}, received {seen:?} {message:?}"
            );
            Ok(())
        })
        .await
    }

    /// A profile of a Service in this namespace, with the required name.
    fn profile(&self, service: &str, spec: Value) -> Object {
        service_profile(&self.full_name(service), spec)
    }

    /// Creates a Service and returns its cluster IP.
    async fn put_service(&self, object: Object) -> Result<String> {
        let created = self.create(object).await?;
        let ip = created.data.pointer("/spec/clusterIP").and_then(Value::as_str);
        Ok(ip.context("a Service without clusterIP")?.to_owned())
    }

    /// Creates a running Pod with these addresses.
    async fn run(&self, pod: Object, ips: &[&str]) -> Result<()> {
        let all: Vec<Value> = ips.iter().map(|ip| json!({ "ip": ip })).collect();
        let status = json!({"phase": "Running", "podIP": ips.first(), "podIPs": all});
        let name = self.create(pod).await?.name_any();
        let patch = Patch::Merge(json!({ "status": status }));
        let patched = self.api("Pod").patch_status(&name, &PatchParams::default(), &patch).await;
        patched.map(drop).with_context(|| format!("patching the status of Pod {name}: {patch:?}"))
    }

    /// Waits until all earlier writes of ServiceProfiles have been processed: a further one takes effect.
    async fn profiles_catch_up(&self) -> Result<()> {
        let name = format!("seen-{}", number());
        self.put_all([service(&name), self.profile(&name, routes(&["seen"]))]).await?;
        self.open_service(&name).await?.becomes(&format!("service {name} with routes seen")).await
    }
}

// === impl OpenStream ===

impl OpenStream<'_> {
    /// Waits until `wanted` accepts the last message, and a new stream begins with the same message.
    async fn shows(&mut self, what: &str, wanted: impl FnMut(&DestinationProfile) -> bool) -> Result<()> {
        let shown = self.stream.until(what, wanted).await;
        shown.with_context(|| format!("{}: last seen: {:?}", self.path, self.stream.last().map(summary)))?;
        self.matches_new_stream().await
    }

    /// Waits until the last message has this summary.
    async fn becomes(&mut self, expected: &str) -> Result<()> {
        self.shows(expected, |profile| summary(profile) == expected).await
    }

    async fn becomes_exactly(&mut self, expected: &DestinationProfile) -> Result<()> {
        self.shows(&format!("{expected:?}"), |profile| profile == expected).await
    }

    /// Waits until a new stream begins with the last message of this one.
    async fn matches_new_stream(&mut self) -> Result<()> {
        eventually(SOON, format_args!("a new stream for {} to begin like the open one", self.path), async || {
            let fresh = self.rig.discovery.first_profile(&self.path, &self.token).await?;
            ensure!(self.stream.settle(Duration::from_millis(10)).await?, "the open stream has ended");
            ensure!(*self.stream.last()? == fresh, "open: {:?}, new: {fresh:?}", self.stream.last());
            Ok(())
        })
        .await
    }

    /// Checks that the stream has received exactly this number of messages, and that no other arrives.
    async fn has_received(&mut self, count: usize) -> Result<()> {
        self.is_quiet().await?;
        let summaries: Vec<String> = self.stream.messages.iter().map(summary).collect();
        ensure!(summaries.len() == count, "{}: expected {count} messages, received {summaries:?}", self.path);
        Ok(())
    }

    async fn is_quiet(&mut self) -> Result<()> {
        self.stream.is_quiet_for(QUIET).await.with_context(|| self.path.clone())
    }

    /// Waits for the end of the stream, and then for a new request to be refused.
    async fn ends_and_then_is_refused(mut self, code: Code, text: &str) -> Result<()> {
        self.stream.ended().await.with_context(|| self.path.clone())?;
        self.rig.is_refused(&self.path, code, text).await
    }
}
