//! A namespace with Services that select ExternalWorkloads: objects as users write them, EndpointSlices as consumers
//! read them.
//!
//! * In: a client and a namespace. Out: functions to create, patch and delete objects, and to read EndpointSlices and
//!   Events.
//! * Always: uses other types than the operator, so that a mistake in the operator's types is detected.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::{core::v1::Service, discovery::v1::EndpointSlice, events::v1::Event};
use kube::{
    Api, Client, ResourceExt,
    api::{ApiResource, DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};

use crate::{objects::kind, wait::eventually};

/// Long enough for a loaded host, short enough that a failing test ends soon.
pub const SOON: Duration = Duration::from_secs(45);
pub const MANAGED_BY: &str = "linkerd-external-workloads-controller";

#[derive(Clone)]
pub struct Mesh {
    namespace: String,
    pub services: Api<Service>,
    pub slices: Api<EndpointSlice>,
    pub workloads: Api<DynamicObject>,
    pub events: Api<Event>,
}

/// The kind ExternalWorkload, in Linkerd's storage version.
pub fn external_workload() -> ApiResource {
    kind("workload.linkerd.io/v1beta1", "ExternalWorkload")
}

impl Mesh {
    pub fn new(client: &Client, namespace: &str) -> Self {
        Self {
            namespace: namespace.to_owned(),
            services: Api::namespaced(client.clone(), namespace),
            slices: Api::namespaced(client.clone(), namespace),
            workloads: Api::namespaced_with(client.clone(), namespace, &external_workload()),
            events: Api::namespaced(client.clone(), namespace),
        }
    }

    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    /// Creates a Service that selects `app: <name>`, with this `spec` merged over the defaults: port 80, single-stack
    /// IPv4.
    pub async fn put_service(&self, name: &str, spec: Value) -> Result<Service> {
        let mut object = json!({
            "metadata": {"name": name},
            "spec": {"selector": {"app": name}, "ipFamilies": ["IPv4"], "ipFamilyPolicy": "SingleStack",
                "ports": [{"name": "http", "port": 80}]},
        });
        merge(&mut object, json!({ "spec": spec }));
        self.services
            .create(&PostParams::default(), &serde_json::from_value(object)?)
            .await
            .with_context(|| format!("creating Service {name}"))
    }

    pub async fn patch_service(&self, name: &str, patch: Value) -> Result<Service> {
        Ok(self.services.patch(name, &PatchParams::default(), &Patch::Merge(patch)).await?)
    }

    /// Creates a ready ExternalWorkload labelled `app: <app>`, with these addresses and port 80.
    pub async fn put_workload(&self, name: &str, app: &str, ips: &[&str]) -> Result<()> {
        let ips: Vec<Value> = ips.iter().map(|ip| json!({ "ip": ip })).collect();
        self.put_workload_with(name, app, json!({ "spec": { "workloadIPs": ips } })).await?;
        self.set_ready(name, true).await
    }

    /// Creates the Service `web` with the ready workload `vm` at 192.0.2.4, published: the initial state of most tests.
    pub async fn put_web_over_vm(&self) -> Result<Service> {
        let service = self.put_service("web", json!({})).await?;
        self.put_workload("vm", "web", &["192.0.2.4"]).await?;
        self.shows("web", &[("vm", true)]).await?;
        Ok(service)
    }

    /// Creates an ExternalWorkload as [`Mesh::put_workload`] does, but not ready, with `object` merged over it.
    pub async fn put_workload_with(&self, name: &str, app: &str, object: Value) -> Result<()> {
        let mut whole = json!({
            "apiVersion": "workload.linkerd.io/v1beta1", "kind": "ExternalWorkload",
            "metadata": {"name": name, "labels": {"app": app}},
            "spec": {"meshTLS": {"identity": format!("spiffe://root.linkerd.cluster.local/{name}"), "serverName": "vm.example"},
                "ports": [{"name": "http", "port": 80}]},
        });
        merge(&mut whole, object);
        self.workloads
            .create(&PostParams::default(), &serde_json::from_value(whole)?)
            .await
            .with_context(|| format!("creating ExternalWorkload {name}"))?;
        Ok(())
    }

    pub async fn patch_workload(&self, name: &str, patch: Value) -> Result<()> {
        self.workloads.patch(name, &PatchParams::default(), &Patch::Merge(patch)).await?;
        Ok(())
    }

    /// Sets the condition Ready through the status subresource, as a health checker does.
    pub async fn set_ready(&self, name: &str, ready: bool) -> Result<()> {
        let status = if ready { "True" } else { "False" };
        let patch = json!({"status": {"conditions": [{"type": "Ready", "status": status}]}});
        self.workloads.patch_status(name, &PatchParams::default(), &Patch::Merge(patch)).await?;
        Ok(())
    }

    pub async fn delete_workload(&self, name: &str) -> Result<()> {
        self.workloads.delete(name, &DeleteParams::default()).await?;
        Ok(())
    }

    /// The EndpointSlices of a Service that our controller manages, sorted by name.
    pub async fn our_slices(&self, service: &str) -> Result<Vec<EndpointSlice>> {
        let labels =
            format!("kubernetes.io/service-name={service},endpointslice.kubernetes.io/managed-by={MANAGED_BY}");
        let mut slices = self.slices.list(&ListParams::default().labels(&labels)).await?.items;
        slices.sort_by_key(ResourceExt::name_any);
        Ok(slices)
    }

    /// The published workloads, and whether each is ready; an error when a workload is in two slices of one address
    /// family.
    pub async fn readiness(&self, service: &str) -> Result<BTreeMap<String, bool>> {
        let mut published = BTreeMap::new();
        let mut places = BTreeSet::new();
        for slice in self.our_slices(service).await? {
            for endpoint in slice.endpoints {
                let target = endpoint.target_ref.context("one of our endpoints has no targetRef")?;
                let name = target.name.context("one of our targetRefs has no name")?;
                ensure!(
                    places.insert((slice.address_type.clone(), name.clone())),
                    "{name} is in two EndpointSlices of {service}"
                );
                published.insert(name, endpoint.conditions.and_then(|conditions| conditions.ready) == Some(true));
            }
        }
        Ok(published)
    }

    /// Waits until the published workloads and their readiness are exactly these.
    pub async fn shows(&self, service: &str, expected: &[(&str, bool)]) -> Result<()> {
        let expected: BTreeMap<String, bool> =
            expected.iter().map(|(name, ready)| ((*name).to_owned(), *ready)).collect();
        eventually(SOON, format_args!("Service {service} to have {expected:?}"), async || {
            let seen = self.readiness(service).await?;
            ensure!(seen == expected, "{seen:?}");
            Ok(())
        })
        .await
    }

    /// The operator's Events on one object, as `reason: note`, oldest first.
    pub async fn events_of(&self, name: &str) -> Result<Vec<String>> {
        let fields = format!("regarding.name={name}");
        let mut events = self.events.list(&ListParams::default().fields(&fields)).await?.items;
        events.retain(|event| event.reporting_controller.as_deref() == Some("linkerd-operator"));
        events.sort_by(|a, b| a.event_time.as_ref().map(|t| t.0).cmp(&b.event_time.as_ref().map(|t| t.0)));
        let line = |event: Event| format!("{}: {}", event.reason.unwrap_or_default(), event.note.unwrap_or_default());
        Ok(events.into_iter().map(line).collect())
    }

    /// Waits for an Event of the object with this reason.
    pub async fn expect_event(&self, name: &str, reason: &str) -> Result<String> {
        eventually(SOON, format_args!("an Event {reason} on {name}"), async || {
            let events = self.events_of(name).await?;
            let found = events.iter().find(|event| event.starts_with(&format!("{reason}: ")));
            found.cloned().with_context(|| format!("its Events are {events:?}"))
        })
        .await
    }
}

/// Merges as in RFC 7386, but without removal: objects are merged, all other values are replaced.
pub fn merge(into: &mut Value, from: Value) {
    match (into, from) {
        (Value::Object(into), Value::Object(from)) => {
            for (key, value) in from {
                merge(into.entry(key).or_insert(Value::Null), value);
            }
        }
        (into, from) => *into = from,
    }
}
