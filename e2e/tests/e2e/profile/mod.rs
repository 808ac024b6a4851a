//! `Destination.GetProfile` as a proxy sees it, over a real API server: a namespace each, on the shared control plane.
//!
//! Addresses are looked up in the whole cluster, so each test takes its own from [`ip`]. What a stream is told is put in
//! words by [`look`]; and whatever an open stream was told last, a new one has to begin with.

mod addresses;
mod families;
mod hosts;
mod instances;
mod invalid;
mod matches;
mod metadata;
mod opaque_ports;
mod pods;
mod precedence;
mod process;
mod quiet;
mod requests;
mod routes;
mod series;
mod servers;
mod services;
mod upstream;
mod watches;
mod workloads;

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    sync::atomic::{AtomicU32, Ordering},
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use e2e::{eventually, mesh::SOON, profile::Profiles};
use kube::api::{DeleteParams, Patch, PatchParams};
use linkerd2_proxy_api::destination::{DestinationProfile, RetryBudget};
use serde_json::{Value, json};
use tonic::Code;

use crate::discovery::{
    QUIET, Rig,
    objects::{Object, field, pod, server, service, service_profile, workload},
    received,
};

/// Traits of a meshed Pod, and of a machine, with what Linkerd's charts set.
const MESHED: &str = "with h2 4143 identity http2";
/// The same on an opaque port.
const OPAQUE: &str = "with opaque 4143 identity http2";
/// Longer than any test takes.
const GRACE_SECONDS: u32 = 3600;

/// An open stream, and the request that it answers.
struct Asked<'rig> {
    rig: &'rig Rig,
    path: String,
    token: String,
    stream: Profiles,
}

// === Addresses ===

static NUMBERS: AtomicU32 = AtomicU32::new(0);

/// A number that no other test has; on an existing cluster, where objects stay, none of the last runs either.
fn number() -> u32 {
    let number = std::process::id().wrapping_mul(1024).wrapping_add(NUMBERS.fetch_add(1, Ordering::Relaxed));
    number % (1 << 22)
}

/// An address that nothing has yet.
fn ip() -> String {
    Ipv4Addr::from(u32::from(Ipv4Addr::new(100, 64, 0, 0)) + number()).to_string()
}

fn ipv6() -> String {
    Ipv6Addr::from((0xfd64_u128 << 112) + u128::from(number())).to_string()
}

/// As an authority.
fn at(ip: &str, port: u16) -> String {
    match ip.parse::<IpAddr>() {
        Ok(ip) => SocketAddr::new(ip, port).to_string(),
        Err(_) => format!("{ip}:{port}"),
    }
}

// === Objects ===

/// The status of a Pod that runs.
fn running(ips: &[&str]) -> Value {
    let all: Vec<Value> = ips.iter().map(|ip| json!({ "ip": ip })).collect();
    json!({"phase": "Running", "podIP": ips.first(), "podIPs": all})
}

fn phase(phase: &str) -> Value {
    json!({ "phase": phase })
}

/// An ExternalWorkload with these addresses.
fn machine(name: &str, ips: &[&str]) -> Object {
    let ips: Vec<Value> = ips.iter().map(|ip| json!({ "ip": ip })).collect();
    workload(name).with(json!({"spec": { "workloadIPs": ips }}))
}

/// One route of each name, for the path of that name.
fn routes(names: &[&str]) -> Value {
    let route = |name: &&str| json!({"name": name, "condition": {"pathRegex": format!("/{name}")}});
    json!({"routes": names.iter().map(route).collect::<Vec<_>>()})
}

// === Messages ===

fn default_budget() -> Option<RetryBudget> {
    let ttl = prost_types::Duration { seconds: 10, nanos: 0 };
    Some(RetryBudget { retry_ratio: 0.2, min_retries_per_second: 10, ttl: Some(ttl) })
}

/// What a message is about: `nothing`, `service web with routes a b`, `pod web-1 with h2 4143 identity http2`, `nobody`;
/// with `opaque` before it where connections are to be taken so.
fn look(profile: &DestinationProfile) -> String {
    if *profile == DestinationProfile::default() {
        return "nothing".to_owned();
    }
    let mut words = Vec::new();
    if profile.opaque_protocol {
        words.push("opaque".to_owned());
    }
    match &profile.endpoint {
        Some(endpoint) => {
            let name = |label: &str| endpoint.metric_labels.get(label).map(|name| format!("{label} {name}"));
            words.push(name("pod").or_else(|| name("external_workload")).unwrap_or_else(|| "nobody".to_owned()));
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

// === impl Rig ===

impl Rig {
    /// A stream, as soon as it is not refused.
    async fn ask(&self, path: &str) -> Result<Asked<'_>> {
        self.ask_with(path, "").await
    }

    async fn ask_with(&self, path: &str, token: &str) -> Result<Asked<'_>> {
        let stream = eventually(SOON, format_args!("{path} to be answered"), async || {
            Ok(self.discovery.get_profile(path, token).await?)
        })
        .await?;
        Ok(Asked { rig: self, path: path.to_owned(), token: token.to_owned(), stream })
    }

    /// `web:80`, by name.
    async fn ask_for(&self, service_and_port: &str) -> Result<Asked<'_>> {
        self.ask(&self.path(service_and_port)).await
    }

    /// `web:80`, by name, from a client in a namespace.
    async fn ask_from(&self, namespace: &str, service_and_port: &str) -> Result<Asked<'_>> {
        self.ask_with(&self.path(service_and_port), &e2e::discovery::token(namespace, "node")).await
    }

    /// A stream that begins like this. What was written before may take a moment to be seen.
    async fn hears(&self, path: &str, expected: &str) -> Result<Asked<'_>> {
        eventually(SOON, format_args!("a stream for {path} to begin with {expected:?}"), async || {
            let mut asked = self.ask(path).await?;
            let seen = asked.stream.next().await?.as_ref().map(look);
            ensure!(seen.as_deref() == Some(expected), "it begins with {seen:?}");
            Ok(asked)
        })
        .await
    }

    /// Waits until the path is refused so; of the text this is how it begins.
    async fn is_refused(&self, path: &str, code: Code, text: &str) -> Result<()> {
        eventually(SOON, format_args!("{path:?} to be refused"), async || {
            let (seen, message) = self.discovery.profile_refusal(path, "").await?;
            ensure!(seen == code && message.starts_with(text), "expected {code:?} {text:?}, came {seen:?} {message:?}");
            Ok(())
        })
        .await
    }

    /// The profile of a Service of this namespace, under the name that it has to have.
    fn profile(&self, service: &str, spec: Value) -> Object {
        service_profile(&self.full_name(service), spec)
    }

    fn full_name(&self, service: &str) -> String {
        format!("{service}.{}.svc.{}", self.namespace.name(), self.domain)
    }

    /// A Service and the address that the cluster gives it.
    async fn put_service(&self, object: Object) -> Result<String> {
        let created = self.create(object).await?;
        let ip = created.data.pointer("/spec/clusterIP").and_then(Value::as_str);
        Ok(ip.context("a Service without clusterIP")?.to_owned())
    }

    /// A Pod that runs at these addresses.
    async fn run(&self, pod: Object, ips: &[&str]) -> Result<()> {
        self.put_with_status(pod, running(ips)).await
    }

    async fn put_with_status(&self, object: Object, status: Value) -> Result<()> {
        let name = object.value.pointer("/metadata/name").and_then(Value::as_str);
        let (kind, name) = (object.kind, name.unwrap_or_default().to_owned());
        self.put(object).await?;
        self.set_status(kind, &name, status).await
    }

    async fn set_status(&self, kind: &str, name: &str, status: Value) -> Result<()> {
        let patch = Patch::Merge(json!({ "status": status }));
        let patched = self.api(kind).patch_status(name, &PatchParams::default(), &patch).await;
        patched.map(drop).with_context(|| format!("the status of {kind} {name}: {patch:?}"))
    }

    async fn annotate(&self, kind: &str, name: &str, key: &str, value: Option<&str>) -> Result<()> {
        self.patch(kind, name, json!({"metadata": {"annotations": field(key, json!(value))}})).await
    }

    async fn label(&self, kind: &str, name: &str, key: &str, value: Option<&str>) -> Result<()> {
        self.patch(kind, name, json!({"metadata": {"labels": field(key, json!(value))}})).await
    }

    /// A Pod that is to go, and stays: no kubelet says that it has.
    async fn terminate(&self, pod: &str) -> Result<()> {
        let parameters = DeleteParams::default().grace_period(GRACE_SECONDS);
        let deleted = self.api("Pod").delete(pod, &parameters).await;
        deleted.map(drop).with_context(|| format!("terminating {pod}"))
    }

    /// Waits until whatever has been written of this kind so far has been looked at: another one shows.
    async fn seen(&self, kind: &str) -> Result<()> {
        let (name, ip) = (format!("seen-{}", number()), ip());
        let (path, expected) = match kind {
            "Pod" => {
                self.run(pod(&name), &[&ip]).await?;
                (at(&ip, 8080), format!("pod {name}"))
            }
            "Service" => {
                self.put(service(&name)).await?;
                (self.path(&name), format!("service {name}"))
            }
            "ServiceProfile" => {
                self.put_all([service(&name), self.profile(&name, routes(&["seen"]))]).await?;
                (self.path(&name), format!("service {name} with routes seen"))
            }
            "ExternalWorkload" => {
                self.put(machine(&name, &[&ip])).await?;
                (at(&ip, 8080), format!("external_workload {name}"))
            }
            _ => {
                let selector = json!({"matchLabels": {"app": name}});
                let spec = json!({"externalWorkloadSelector": selector, "port": 8080, "proxyProtocol": "opaque"});
                self.put_all([server(&name, spec), machine(&name, &[&ip]).labelled("app", &name)]).await?;
                (at(&ip, 8080), format!("opaque external_workload {name} "))
            }
        };
        self.ask(&path).await?.shows(&expected, |profile| look(profile).contains(&expected)).await
    }
}

// === impl Asked ===

impl Asked<'_> {
    /// Waits until the last message is so, and a new stream begins with the same.
    async fn shows(&mut self, what: &str, wanted: impl FnMut(&DestinationProfile) -> bool) -> Result<()> {
        let shown = self.stream.until(what, wanted).await;
        shown.with_context(|| format!("{}: seen last: {:?}", self.path, self.stream.last().map(look)))?;
        self.agrees().await
    }

    /// As [`look`] puts it.
    async fn looks(&mut self, expected: &str) -> Result<()> {
        self.shows(expected, |profile| look(profile) == expected).await
    }

    async fn tells(&mut self, expected: &DestinationProfile) -> Result<()> {
        self.shows(&format!("{expected:?}"), |profile| profile == expected).await
    }

    /// Waits until a new stream begins with what this one was told last.
    async fn agrees(&mut self) -> Result<()> {
        eventually(SOON, format_args!("a new stream for {} to begin so", self.path), async || {
            let fresh = self.rig.discovery.first_profile(&self.path, &self.token).await?;
            ensure!(self.stream.settle(Duration::from_millis(10)).await?, "the open stream has ended");
            ensure!(*self.stream.last()? == fresh, "told {:?}, and afresh {fresh:?}", self.stream.last());
            Ok(())
        })
        .await
    }

    /// Nothing has come besides so many messages, and nothing comes.
    async fn has_told(&mut self, count: usize) -> Result<()> {
        self.is_quiet().await?;
        let looks: Vec<String> = self.stream.messages.iter().map(look).collect();
        ensure!(looks.len() == count, "{}: expected {count} messages, came {looks:?}", self.path);
        Ok(())
    }

    async fn is_quiet(&mut self) -> Result<()> {
        self.stream.is_quiet_for(QUIET).await.with_context(|| self.path.clone())
    }

    /// Waits for the end, and then for who asks again to be told this.
    async fn ends_and_then_looks(mut self, expected: &str) -> Result<()> {
        self.stream.ended().await.with_context(|| self.path.clone())?;
        self.rig.hears(&self.path, expected).await.map(drop)
    }

    /// Waits for the end, and then for who asks again to be refused.
    async fn ends_and_then_is_refused(mut self, code: Code, text: &str) -> Result<()> {
        self.stream.ended().await.with_context(|| self.path.clone())?;
        self.rig.is_refused(&self.path, code, text).await
    }
}
