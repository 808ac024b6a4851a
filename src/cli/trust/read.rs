//! Reads the trust of a mesh from its cluster.
//!
//! In: a client. Out: [`SeenTrust`]. Always holds: nothing is written; what cannot be read is said with its reason, and
//! does not prevent the rest; the key in the Secret of the issuer is skipped.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use k8s_openapi::{
    ByteString,
    api::core::v1 as core,
    apimachinery::pkg::apis::meta::v1::{ManagedFieldsEntry, ObjectMeta},
    jiff::Timestamp,
};
use kube::{Api, Client, ResourceExt, api::ListParams};
use serde::Deserialize;

use super::{cert_manager, links::linked_clusters};
use crate::{
    api::{
        CONTROL_PLANE_COMPONENT_LABEL, CONTROL_PLANE_NAMESPACE_LABEL, FIELD_MANAGER, INJECTORS_CONFIG_MAP, ISSUER,
        LinkerdTrust, PROXY_NAME, TRUST_ANCHORS_ENV, TRUST_ROOTS, TRUST_ROOTS_KEY,
        linkerd_trust::{TrustCondition, TrustReason},
    },
    client,
    cluster::kinds::config_map::trust_manager_source,
    response_limit::PageTooLarge,
    text::sha256,
    trust::{
        declared::declared_roots,
        obstacle::RestartObstacle,
        seen::{LeafSettings, MeshedWorkload, NotSeen, SeenBundle, SeenIssuer, SeenProxies, SeenTrust},
    },
    values::{Document, Path},
    x509::anchor_set::AnchorSet,
};

/// The maximum length of the name of an object.
const LONGEST_NAME: usize = 253;
const APPS: [&str; 4] = ["Deployment", "StatefulSet", "DaemonSet", "ReplicaSet"];
/// With this variable, or flag, the identity service holds an issuer.
const WATCH_ENV: &str = "LINKERD_OPERATOR_IDENTITY_WATCH";
const WATCH_FLAG: &str = "--identity-watch";
/// The number of Pods of a page.
const PAGE: u32 = 200;

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
    args: Option<Vec<String>>,
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
pub(super) async fn read(client: &Client, namespace: &str, declared: Option<&LinkerdTrust>) -> Result<SeenTrust> {
    // An invalid resource declares nothing; its condition says why.
    let desired = declared.and_then(|trust| declared_roots(&trust.name_any(), &trust.spec).ok()?);
    let status = declared.and_then(|trust| trust.status.as_ref());
    let generation = declared.and_then(|trust| trust.metadata.generation);
    let current = status.filter(|status| status.observed_generation == generation);
    let renewed = current.filter(|status| status.has(TrustCondition::LeavesRenewed, TrustReason::Synced));
    let renewed = renewed.and_then(|status| status.condition(TrustCondition::LeavesRenewed));
    let renewed = renewed.map(|condition| condition.last_transition_time.0);
    let config_maps = Api::<core::ConfigMap>::namespaced(client.clone(), namespace);
    let values = values(&config_maps).await;
    let bundle = match config_maps.get_opt(TRUST_ROOTS).await {
        Ok(Some(map)) => {
            let (last, source) = (written(&map.metadata), trust_manager_source(&map.metadata));
            let (written, is_by_operator) =
                (last.map(|(time, _)| time), last.is_some_and(|(_, manager)| manager == Some(FIELD_MANAGER)));
            let mut data = map.data.unwrap_or_default();
            let found = data.remove(TRUST_ROOTS_KEY).map(|pem| SeenBundle { pem, written, is_by_operator, source });
            let keys = || data.keys().map(String::as_str).collect::<Vec<_>>().join(", ");
            found
                .ok_or_else(|| NotSeen::no_bundle(namespace, &format!("has no key {TRUST_ROOTS_KEY}, but: {}", keys())))
        }
        Ok(None) => Err(NotSeen::no_bundle(namespace, "does not exist")),
        Err(error) => Err(NotSeen::Unread(format!("ConfigMap {TRUST_ROOTS}: {}", client::describe(&error)))),
    };
    let issuer = issuer(client, namespace, values.as_ref()).await;
    let written = issuer.as_ref().ok().and_then(|issuer| issuer.written);
    let bundle_written = bundle.as_ref().ok().and_then(|bundle| bundle.written);
    Ok(SeenTrust {
        namespace: namespace.to_owned(),
        desired,
        // What was observed before the issuer was written says nothing about it.
        is_renewed: renewed.is_some_and(|renewed| written.is_some_and(|written| renewed > written)),
        bundle,
        issuer,
        proxies: proxies(client, namespace, bundle_written).await?,
        renewed_root: cert_manager::renewed_root(client, namespace).await,
        leaves: None,
        signing_since: None,
        held: current.and_then(|status| status.held()).map(str::to_owned),
        issuer_condition: current.and_then(|status| status.issuer_condition(generation)).cloned(),
        is_writer_silent: current.is_some_and(|status| status.is_writer_silent(generation)),
        // One that proxies present certificates of is in use.
        is_guarded: current.is_some_and(|status| !status.presents_declared()) && is_guarded(client, namespace).await,
        settings: LeafSettings::of(values.as_ref()),
        linked_clusters: linked_clusters(client).await,
        now: Timestamp::now(),
    })
}

/// Returns the LinkerdTrust in effect for the control plane; `None` without one, or if LinkerdTrusts cannot be read.
pub(super) async fn declared(client: &Client, namespace: &str) -> Option<LinkerdTrust> {
    let all = Api::<LinkerdTrust>::all(client.clone()).list(&ListParams::default()).await.ok()?;
    let of = all.items.into_iter().filter(|trust| trust.spec.control_plane_namespace == namespace);
    of.min_by_key(|trust| (trust.metadata.creation_timestamp.clone(), trust.name_any()))
}

/// Returns Linkerd's configuration, if it can be read.
async fn values(config_maps: &Api<core::ConfigMap>) -> Option<Document> {
    let map = config_maps.get_opt(INJECTORS_CONFIG_MAP).await.ok()??;
    Document::parse(map.data?.get("values")?).ok()
}

/// Returns what Linkerd's configuration says about leaves.
pub(super) async fn leaf_settings(client: &Client, namespace: &str) -> LeafSettings {
    LeafSettings::of(values(&Api::namespaced(client.clone(), namespace)).await.as_ref())
}

/// Returns the file of the issuer. Linkerd chooses its key by the scheme in its configuration.
async fn issuer(client: &Client, namespace: &str, values: Option<&Document>) -> Result<SeenIssuer, NotSeen> {
    let secrets = Api::<IssuerSecret>::namespaced(client.clone(), namespace);
    let secret = match secrets.get_opt(ISSUER).await {
        Ok(Some(secret)) => secret,
        Ok(None) => return Err(NotSeen::Missing(format!("Secret {ISSUER} does not exist in namespace {namespace}"))),
        Err(error) => return Err(NotSeen::Unread(format!("Secret {ISSUER}: {}", client::describe(&error)))),
    };
    let written = written(&secret.metadata).map(|(time, _)| time);
    let IssuerCertificates { tls, crt } = secret.data;
    let (found, key) =
        match values.and_then(|values| values.get(&Path::from(&["identity", "issuer", "scheme"][..]))?.as_str()) {
            Some("kubernetes.io/tls") => (tls, "tls.crt"),
            Some("linkerd.io/tls") => (crt, "crt.pem"),
            _ => (tls.or(crt), "tls.crt or crt.pem"),
        };
    let pem = found.and_then(|ByteString(pem)| String::from_utf8(pem).ok()).filter(|pem| !pem.trim().is_empty());
    let pem = pem.ok_or_else(|| NotSeen::Missing(format!("Secret {ISSUER} has no certificate in {key}")))?;
    SeenIssuer::read(&pem, written)
}

/// Returns when the data of an object was written last, and the field manager that wrote it.
fn written(metadata: &ObjectMeta) -> Option<(Timestamp, Option<&str>)> {
    let of_data = |entry: &ManagedFieldsEntry| {
        let fields = entry.fields_v1.as_ref().map(|fields| &fields.0);
        // A manager that applies `stringData` owns that field, although the API server moves it to `data`.
        fields.is_some_and(|fields| fields.get("f:data").or_else(|| fields.get("f:stringData")).is_some())
    };
    let entries = metadata.managed_fields.iter().flatten().filter(|entry| of_data(entry));
    entries.filter_map(|entry| Some((entry.time.as_ref()?.0, entry.manager.as_deref()))).max_by_key(|(time, _)| *time)
}

/// Whether each replica of the identity service holds an issuer that proxies refuse. What cannot be read holds nothing.
async fn is_guarded(client: &Client, namespace: &str) -> bool {
    let params = ListParams::default().labels(&format!("{CONTROL_PLANE_COMPONENT_LABEL}=identity")).limit(PAGE);
    let Ok(pods) = Api::<MeshedPod>::namespaced(client.clone(), namespace).list(&params).await else { return false };
    !pods.items.is_empty() && pods.items.iter().all(MeshedPod::watches)
}

async fn proxies(client: &Client, namespace: &str, bundle_written: Option<Timestamp>) -> Result<SeenProxies> {
    let pods = Api::<MeshedPod>::all(client.clone());
    let labels = format!("{CONTROL_PLANE_NAMESPACE_LABEL}={namespace}");
    let (mut limit, mut token) = (PAGE, None);
    let mut proxies = SeenProxies::default();
    // By the roots of the Pods.
    let mut all_deleted = BTreeMap::<(MeshedWorkload, Option<String>), bool>::new();
    loop {
        let mut params = ListParams::default().labels(&labels).limit(limit);
        params.continue_token.clone_from(&token);
        let page = match pods.list(&params).await {
            Ok(page) => page,
            // Pods may have up to 1.5 MiB each.
            Err(error) if PageTooLarge::caused(&error) && limit > 1 => {
                limit /= 2;
                continue;
            }
            Err(error) => return Err(error).context("cannot list the Pods of the mesh"),
        };
        for pod in &page.items {
            let Some(bundle) = pod.bundle() else { continue };
            let workload = pod.workload();
            let created = pod.metadata.creation_timestamp.as_ref().map(|time| time.0);
            // Such a Pod of a tenant reads another ConfigMap.
            let is_deleted = pod.metadata.deletion_timestamp.is_some();
            let reads_bundle = bundle.is_none() && workload.namespace == namespace;
            *all_deleted.entry((workload.clone(), bundle.map(sha256))).or_insert(true) &= is_deleted;
            if reads_bundle && !is_deleted && created.is_none_or(|created| Some(created) <= bundle_written) {
                proxies.behind_config_map.insert(workload.clone());
            }
            proxies.add(workload, bundle.map(AnchorSet::of).as_ref(), 1);
        }
        token = page.metadata.continue_.filter(|token| !token.is_empty());
        if token.is_none() {
            break;
        }
    }
    let deleted = all_deleted.into_iter().filter(|(_, is_deleted)| *is_deleted);
    proxies.obstacles = deleted.map(|((workload, _), _)| (workload, RestartObstacle::Deleted)).collect();
    Ok(proxies)
}

// === impl MeshedPod ===

impl MeshedPod {
    /// Whether this replica of the identity service holds an issuer that proxies refuse.
    fn watches(&self) -> bool {
        let is_set = |it: &MeshedVariable| it.name == WATCH_ENV && it.value.as_deref() == Some("true");
        self.spec.containers.iter().flatten().any(|container| {
            let is_flag = |arg: &String| arg.strip_prefix(WATCH_FLAG).is_some_and(|rest| matches!(rest, "" | "=true"));
            container.env.iter().flatten().any(is_set) || container.args.iter().flatten().any(is_flag)
        })
    }

    /// Returns the bundle in the environment of the proxy; the inner `None` if it is a reference. `None` if no proxy runs.
    fn bundle(&self) -> Option<Option<&str>> {
        if matches!(self.status.phase.as_deref(), Some("Succeeded" | "Failed")) {
            return None;
        }
        let mut containers = self.spec.init_containers.iter().chain(&self.spec.containers).flatten();
        let proxy = containers.find(|container| container.name == PROXY_NAME)?;
        // The kubelet uses the last one, and replaces references in it.
        let variable = proxy.env.iter().flatten().rfind(|variable| variable.name == TRUST_ANCHORS_ENV);
        Some(variable.and_then(|variable| variable.value.as_deref()).filter(|value| !value.contains("$(")))
    }

    /// Returns the owner of the Pod; the Deployment of a ReplicaSet, whose name ends with the hash in a label of the Pod.
    fn workload(&self) -> MeshedWorkload {
        let namespace = self.namespace().unwrap_or_default();
        let owner = self.metadata.owner_references.iter().flatten().find(|owner| owner.controller == Some(true));
        let owner = owner.or_else(|| self.metadata.owner_references.as_ref()?.first());
        // The creator of a Pod chooses its owner references, and the API server does not verify them.
        let owner = owner.filter(|owner| is_name(&owner.name) && is_kind(&owner.kind));
        let owner = owner.filter(|owner| !APPS.contains(&owner.kind.as_str()) || owner.api_version == "apps/v1");
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

/// Whether a text has the form of names of workloads (RFC 1123).
fn is_name(text: &str) -> bool {
    let is_of_name = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || matches!(byte, b'-' | b'.');
    text.len() <= LONGEST_NAME && text.starts_with(|c: char| c.is_ascii_alphanumeric()) && text.bytes().all(is_of_name)
}

fn is_kind(text: &str) -> bool {
    text.len() <= LONGEST_NAME && text.bytes().all(|byte| byte.is_ascii_alphanumeric())
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
    fn a_replica_with_the_variable_or_the_flag_holds_an_issuer() {
        let identity = |container: serde_json::Value| pod(&json!({"spec": {"containers": [container]}}));
        let set = |value: &str| json!({"name": "manager", "env": [{"name": "LINKERD_OPERATOR_IDENTITY_WATCH", "value": value}]});
        assert!(identity(set("true")).watches());
        for flag in ["--identity-watch", "--identity-watch=true"] {
            assert!(identity(json!({"name": "manager", "args": ["identity", flag]})).watches(), "{flag}");
        }
        assert!(!identity(set("false")).watches() && !identity(json!({"name": "identity"})).watches());
    }

    #[test]
    fn the_bundle_is_that_of_the_proxy_of_a_pod_that_runs() {
        let reference =
            json!([{"name": "LINKERD2_PROXY_IDENTITY_TRUST_ANCHORS", "valueFrom": {"configMapKeyRef": {}}}]);
        let native = json!([{"name": "linkerd-proxy", "env": [{"name": "LINKERD2_PROXY_IDENTITY_TRUST_ANCHORS", "value": "native"}]}]);
        let variable = |value: &str| json!({"name": "LINKERD2_PROXY_IDENTITY_TRUST_ANCHORS", "value": value});
        let (twice, replaced) = (json!([variable("first"), variable("last")]), json!([variable("$(OTHER)")]));
        for (over, expected) in [
            (json!({}), Some(Some("pem"))),
            (json!({"status": {"phase": "Pending"}}), Some(Some("pem"))),
            (json!({"spec": {"initContainers": native}}), Some(Some("native"))),
            (json!({"spec": {"containers": [{"name": "linkerd-proxy", "env": reference}]}}), Some(None)),
            (json!({"spec": {"containers": [{"name": "linkerd-proxy", "env": null}]}}), Some(None)),
            (json!({"spec": {"containers": [{"name": "linkerd-proxy", "env": twice}]}}), Some(Some("last"))),
            (json!({"spec": {"containers": [{"name": "linkerd-proxy", "env": replaced}]}}), Some(None)),
            (json!({"spec": {"containers": [{"name": "app"}]}}), None),
            (json!({"spec": null, "status": null}), None),
            (json!({"status": {"phase": "Succeeded"}}), None),
            (json!({"metadata": {"deletionTimestamp": "2026-11-28T00:00:00Z"}}), Some(Some("pem"))),
        ] {
            assert_eq!(pod(&over).bundle(), expected, "{over}");
        }
    }

    #[test]
    fn a_pod_belongs_to_its_controller_and_to_the_deployment_of_a_replica_set() {
        let owned = |kind: &str, name: &str| {
            json!({"metadata": {"ownerReferences": [
            {"apiVersion": "v1", "kind": "Node", "name": "other", "uid": "1"},
            {"apiVersion": "apps/v1", "kind": kind, "name": name, "uid": "2", "controller": true}]}})
        };
        let mut foreign = owned("Deployment", "web");
        foreign["metadata"]["ownerReferences"][1]["apiVersion"] = json!("none/v1");
        for (over, kind, name) in [
            (owned("ReplicaSet", "web-5d4f8c7b9"), "Deployment", "web"),
            (owned("ReplicaSet", "mine"), "ReplicaSet", "mine"),
            (owned("StatefulSet", "db"), "StatefulSet", "db"),
            (owned("Rollout", "web-5d4f8c7b9"), "Rollout", "web-5d4f8c7b9"),
            (json!({}), "Pod", "web-5d4f8c7b9-x2x7q"),
            (foreign, "Pod", "web-5d4f8c7b9-x2x7q"),
            (owned("Deployment", "web; reboot"), "Pod", "web-5d4f8c7b9-x2x7q"),
            (owned("Deployment", "$(reboot)"), "Pod", "web-5d4f8c7b9-x2x7q"),
            (owned("`reboot`", "web"), "Pod", "web-5d4f8c7b9-x2x7q"),
            (owned("Deployment", &"x".repeat(70_000)), "Pod", "web-5d4f8c7b9-x2x7q"),
        ] {
            let workload = pod(&over).workload();
            assert_eq!((&*workload.namespace, &*workload.kind, &*workload.name), ("app", kind, name));
        }
    }
}
