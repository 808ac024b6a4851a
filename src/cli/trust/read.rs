//! Reads the trust of a mesh from its cluster.
//!
//! In: a client. Out: [`SeenTrust`]. Always holds: nothing is written; what cannot be read is said with its reason, and
//! does not prevent the rest; the key in the Secret of the issuer is skipped.

use anyhow::{Context, Result};
use k8s_openapi::{
    ByteString,
    api::core::v1 as core,
    apimachinery::pkg::apis::meta::v1::{ManagedFieldsEntry, ObjectMeta},
    jiff::{SignedDuration, Timestamp},
};
use kube::{Api, Client, ResourceExt, api::ListParams};
use serde::Deserialize;

use super::cert_manager;
use crate::{
    api::{CONTROL_PLANE_NAMESPACE_LABEL, INJECTORS_CONFIG_MAP, PROXY_NAME, TRUST_ANCHORS_ENV, TRUST_ROOTS},
    client,
    go::duration,
    trust::seen::{LeafSettings, MeshedWorkload, SeenIssuer, SeenProxies, SeenTrust},
    values::{Document, Path},
};

const ISSUER: &str = "linkerd-identity-issuer";
/// The key of the bundle in its ConfigMap.
const BUNDLE: &str = "ca-bundle.crt";
/// The number of Pods of a page.
const PAGE: u32 = 500;
const DAY: SignedDuration = SignedDuration::from_hours(24);
/// As in Linkerd's chart.
const CLOCK_SKEW: SignedDuration = SignedDuration::from_secs(20);

/// The Secret of the issuer, without its key.
#[derive(Clone, Debug, Deserialize, kube::Resource)]
#[resource(inherit = "core::Secret")]
struct IssuerSecret {
    metadata: ObjectMeta,
    #[serde(default)]
    data: IssuerCertificates,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct IssuerCertificates {
    /// As cert-manager writes it.
    #[serde(rename = "tls.crt")]
    tls: Option<ByteString>,
    /// As Linkerd's chart writes it.
    #[serde(rename = "crt.pem")]
    crt: Option<ByteString>,
}

/// A Pod, as far as its proxy is concerned.
#[derive(Clone, Debug, Deserialize, kube::Resource)]
#[resource(inherit = "core::Pod")]
struct MeshedPod {
    metadata: ObjectMeta,
    #[serde(default)]
    spec: MeshedPodSpec,
    #[serde(default)]
    status: MeshedPodStatus,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct MeshedPodSpec {
    init_containers: Option<Vec<MeshedContainer>>,
    containers: Option<Vec<MeshedContainer>>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct MeshedContainer {
    name: String,
    env: Option<Vec<MeshedVariable>>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct MeshedVariable {
    name: String,
    value: Option<String>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct MeshedPodStatus {
    phase: Option<String>,
}

/// # Errors
/// Fails if the Pods cannot be listed: without them, nothing can be said about the next step.
pub(super) async fn read(client: &Client, namespace: &str) -> Result<SeenTrust> {
    let config_maps = Api::<core::ConfigMap>::namespaced(client.clone(), namespace);
    let values = config_maps.get_opt(INJECTORS_CONFIG_MAP).await.ok().flatten();
    let values = values.and_then(|map| map.data?.remove("values"));
    let values = values.and_then(|text| Document::parse(&text).ok());
    let bundle = match config_maps.get_opt(TRUST_ROOTS).await {
        Ok(Some(map)) => {
            map.data.and_then(|mut data| data.remove(BUNDLE)).ok_or_else(|| format!("it has no key {BUNDLE}"))
        }
        Ok(None) => Err("it does not exist".to_owned()),
        Err(error) => Err(format!("it cannot be read: {}", client::describe(&error))),
    };
    Ok(SeenTrust {
        namespace: namespace.to_owned(),
        bundle,
        issuer: issuer(client, namespace, values.as_ref()).await,
        proxies: proxies(client, namespace).await?,
        renewed_root: cert_manager::renewed_root(client, namespace, ISSUER).await,
        settings: settings(values.as_ref()),
        now: Timestamp::now(),
    })
}

/// Returns the file of the issuer: of its Secret, or else the copy in Linkerd's configuration.
async fn issuer(client: &Client, namespace: &str, values: Option<&Document>) -> Result<SeenIssuer, String> {
    let secrets = Api::<IssuerSecret>::namespaced(client.clone(), namespace);
    let why = match secrets.get_opt(ISSUER).await {
        Ok(Some(secret)) => {
            let written = secret.metadata.managed_fields.iter().flatten().filter_map(written_data).max();
            let found = secret.data.tls.or(secret.data.crt);
            match found.and_then(|ByteString(pem)| String::from_utf8(pem).ok()) {
                Some(pem) => return Ok(SeenIssuer { pem, written }),
                None => format!("Secret {ISSUER} has neither tls.crt nor crt.pem"),
            }
        }
        Ok(None) => format!("Secret {ISSUER} does not exist in namespace {namespace}"),
        Err(error) => format!("Secret {ISSUER} cannot be read: {}", client::describe(&error)),
    };
    let copy = values.and_then(|values| text(values, &["identity", "issuer", "tls", "crtPEM"]));
    match copy.filter(|copy| !copy.trim().is_empty()) {
        Some(copy) => Ok(SeenIssuer { pem: copy.to_owned(), written: None }),
        None => Err(why),
    }
}

/// Returns when this manager wrote the data of an object.
fn written_data(entry: &ManagedFieldsEntry) -> Option<Timestamp> {
    let fields = &entry.fields_v1.as_ref()?.0;
    // A manager that applies `stringData` owns that field, although the API server moves it to `data`.
    fields.get("f:data").or_else(|| fields.get("f:stringData"))?;
    Some(entry.time.as_ref()?.0)
}

fn text<'a>(values: &'a Document, path: &[&str]) -> Option<&'a str> {
    values.get(&Path::from(path))?.as_str()
}

fn settings(values: Option<&Document>) -> LeafSettings {
    let issuer = |field: &str| {
        let text = values.and_then(|values| text(values, &["identity", "issuer", field]))?;
        duration::parse(text).map(SignedDuration::from_nanos).filter(SignedDuration::is_positive)
    };
    let domain = values.and_then(|values| text(values, &["identityTrustDomain"])).filter(|domain| !domain.is_empty());
    LeafSettings {
        trust_domain: domain.unwrap_or("cluster.local").to_owned(),
        lifetime: issuer("issuanceLifetime").unwrap_or(DAY),
        clock_skew: issuer("clockSkewAllowance").unwrap_or(CLOCK_SKEW),
    }
}

async fn proxies(client: &Client, namespace: &str) -> Result<SeenProxies> {
    let pods = Api::<MeshedPod>::all(client.clone());
    let mut params = ListParams::default().labels(&format!("{CONTROL_PLANE_NAMESPACE_LABEL}={namespace}")).limit(PAGE);
    let mut proxies = SeenProxies::default();
    loop {
        let page = pods.list(&params).await.context("cannot list the Pods of the mesh")?;
        for pod in &page.items {
            if let Some(bundle) = pod.bundle() {
                proxies.add(pod.workload(), bundle);
            }
        }
        match page.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => params.continue_token = Some(token),
            None => return Ok(proxies),
        }
    }
}

// === impl MeshedPod ===

impl MeshedPod {
    /// Returns the bundle in the environment of the proxy; the inner `None` if it is a reference. `None` if no proxy runs.
    fn bundle(&self) -> Option<Option<&str>> {
        if matches!(self.status.phase.as_deref(), Some("Succeeded" | "Failed"))
            || self.metadata.deletion_timestamp.is_some()
        {
            return None;
        }
        let mut containers = self.spec.init_containers.iter().chain(&self.spec.containers).flatten();
        let proxy = containers.find(|container| container.name == PROXY_NAME)?;
        let variable = proxy.env.iter().flatten().find(|variable| variable.name == TRUST_ANCHORS_ENV);
        Some(variable.and_then(|variable| variable.value.as_deref()))
    }

    /// Returns the owner of the Pod; the Deployment of a ReplicaSet, whose name ends with the hash in a label of the Pod.
    fn workload(&self) -> MeshedWorkload {
        let namespace = self.namespace().unwrap_or_default();
        let owner = self.metadata.owner_references.iter().flatten().find(|owner| owner.controller == Some(true));
        let owner = owner.or_else(|| self.metadata.owner_references.as_ref()?.first());
        let (kind, name) = match owner {
            None => ("Pod".to_owned(), self.name_any()),
            Some(owner) => {
                let hash = self.labels().get("pod-template-hash").map(|hash| format!("-{hash}"));
                let deployment = hash.and_then(|hash| owner.name.strip_suffix(&hash).map(str::to_owned));
                match deployment.filter(|_| owner.kind == "ReplicaSet") {
                    Some(deployment) => ("Deployment".to_owned(), deployment),
                    None => (owner.kind.clone(), owner.name.clone()),
                }
            }
        };
        MeshedWorkload { namespace, kind, name }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn pod(over: &Value) -> MeshedPod {
        let mut object = json!({
            "metadata": {"name": "web-5d4f8c7b9-x2x7q", "namespace": "app", "labels": {"pod-template-hash": "5d4f8c7b9"}},
            "spec": {"containers": [{"name": "app", "env": [{"name": "LINKERD2_PROXY_IDENTITY_TRUST_ANCHORS", "value": "app"}]},
                {"name": "linkerd-proxy", "env": [{"name": "A", "value": "b"}, {"name": "LINKERD2_PROXY_IDENTITY_TRUST_ANCHORS", "value": "pem"}]}]},
            "status": {"phase": "Running"},
        });
        json_patch::merge(&mut object, over);
        serde_json::from_value(object).unwrap()
    }

    #[test]
    fn the_bundle_is_that_of_the_proxy_of_a_pod_that_runs() {
        let reference =
            json!([{"name": "LINKERD2_PROXY_IDENTITY_TRUST_ANCHORS", "valueFrom": {"configMapKeyRef": {}}}]);
        let native = json!([{"name": "linkerd-proxy", "env": [{"name": "LINKERD2_PROXY_IDENTITY_TRUST_ANCHORS", "value": "native"}]}]);
        for (over, expected) in [
            (json!({}), Some(Some("pem"))),
            (json!({"status": {"phase": "Pending"}}), Some(Some("pem"))),
            (json!({"spec": {"initContainers": native}}), Some(Some("native"))),
            (json!({"spec": {"containers": [{"name": "linkerd-proxy", "env": reference}]}}), Some(None)),
            (json!({"spec": {"containers": [{"name": "linkerd-proxy", "env": null}]}}), Some(None)),
            (json!({"spec": {"containers": [{"name": "app"}]}}), None),
            (json!({"spec": null, "status": null}), None),
            (json!({"status": {"phase": "Succeeded"}}), None),
            (json!({"metadata": {"deletionTimestamp": "2026-11-28T00:00:00Z"}}), None),
        ] {
            assert_eq!(pod(&over).bundle(), expected, "{over}");
        }
    }

    #[test]
    fn a_pod_belongs_to_its_controller_and_to_the_deployment_of_a_replica_set() {
        let owned = |kind: &str, name: &str| {
            json!({"metadata": {"ownerReferences": [
            {"apiVersion": "v1", "kind": "Node", "name": "other", "uid": "1"},
            {"apiVersion": "v1", "kind": kind, "name": name, "uid": "2", "controller": true}]}})
        };
        for (over, kind, name) in [
            (owned("ReplicaSet", "web-5d4f8c7b9"), "Deployment", "web"),
            (owned("ReplicaSet", "mine"), "ReplicaSet", "mine"),
            (owned("StatefulSet", "db"), "StatefulSet", "db"),
            (owned("Rollout", "web-5d4f8c7b9"), "Rollout", "web-5d4f8c7b9"),
            (json!({}), "Pod", "web-5d4f8c7b9-x2x7q"),
        ] {
            let workload = pod(&over).workload();
            assert_eq!((&*workload.namespace, &*workload.kind, &*workload.name), ("app", kind, name));
        }
    }

    #[test]
    fn the_settings_of_leaves_are_those_of_linkerds_configuration_and_else_those_of_its_chart() {
        let of = |values: &str| {
            let settings = settings(Document::parse(values).ok().as_ref());
            (settings.trust_domain, settings.lifetime.as_secs(), settings.clock_skew.as_secs())
        };
        let values =
            "identityTrustDomain: example.org\nidentity: {issuer: {issuanceLifetime: 1h30m, clockSkewAllowance: 5s}}";
        assert_eq!(of(values), ("example.org".to_owned(), 5400, 5));
        for values in
            ["{}", "identityTrustDomain: ''\nidentity: {issuer: {issuanceLifetime: -1h, clockSkewAllowance: x}}", "["]
        {
            assert_eq!(of(values), ("cluster.local".to_owned(), 86_400, 20));
        }
    }
}
