//! Reads the facts of a cluster once.
//!
//! * In: a client. Out: [`CheckFacts`] or [`PreflightFacts`].
//! * Always: nothing is written, except the access reviews of the preflight, which are not stored; a fact that cannot be
//!   read is an error with its reason; the number of replicas and the length of each answer are bounded.

use std::{collections::BTreeMap, error::Error, pin::pin, time::Duration};

use anyhow::{Context, Result, anyhow, bail};
use bytes::Bytes;
use futures::{StreamExt, future, stream};
use http::{Request, Response, StatusCode, header};
use http_body_util::{BodyExt, Empty, Limited};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use k8s_openapi::{
    api::{
        authorization::v1::{ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec},
        coordination::v1::Lease,
        core::v1::{ConfigMap, Container, Pod},
    },
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
    apimachinery::pkg::apis::meta::v1::Condition,
    jiff::Timestamp,
};
use kube::{
    Api, Client, ResourceExt,
    api::{ListParams, PostParams},
    client::Body,
};
use serde::Deserialize;
use tokio::time::timeout;

use super::metrics::{CheckedCluster, remote_clusters};
use crate::{
    api::{self, CONTROL_PLANE_COMPONENT_LABEL, INJECTORS_CONFIG_MAP},
    client, external_workload, linkerd_config,
    text::truncate,
};

/// The label of the operator's Pods.
const OPERATOR_SELECTOR: &str = "app.kubernetes.io/name=linkerd-operator";
const OPERATOR_CRD: &str = "linkerdconfigs.config.linkerd.io";
const LINKERD_CRDS: [&str; 3] =
    ["externalworkloads.workload.linkerd.io", "servers.policy.linkerd.io", "serviceprofiles.linkerd.io"];
/// The maximum number of Pods of a kind that are read.
const PODS: u32 = 50;
const CONCURRENCY: usize = 8;
/// The maximum length of an answer of a replica.
const ANSWER_BYTES: usize = 16 << 20;
const ANSWER_DEADLINE: Duration = Duration::from_secs(10);
/// The part of that deadline for a port-forward.
const FORWARD_DEADLINE: Duration = Duration::from_secs(5);
/// The maximum length of an answer that is an error, as it is shown.
const REFUSAL_BYTES: usize = 512;

/// A fact, or why it is unknown.
pub(super) type Known<T> = Result<T, String>;

/// The facts about an installed operator.
pub(super) struct CheckFacts {
    /// The version of the API server.
    pub(super) version: Known<String>,
    /// Whether each CRD exists.
    pub(super) crds: Vec<(&'static str, Known<bool>)>,
    pub(super) replicas: Known<Vec<CheckedReplica>>,
    /// The Leases, by namespace and name.
    pub(super) leases: Vec<(String, Known<Option<Lease>>)>,
    pub(super) configs: Known<Vec<CheckedConfig>>,
    pub(super) now: Timestamp,
}

/// The facts about a cluster without the operator.
pub(super) struct PreflightFacts {
    pub(super) version: Known<String>,
    /// Whether the ConfigMap linkerd-config exists.
    pub(super) linkerd_config: Known<bool>,
    pub(super) linkerd_crds: Vec<(&'static str, Known<bool>)>,
    /// Whether the user has each permission.
    pub(super) permissions: Vec<(String, Known<bool>)>,
}

/// The task of a replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReplicaRole {
    Manager,
    /// It replaces Linkerd's container of this name.
    Replacement(&'static str),
}

/// A Pod with the operator.
#[derive(Debug)]
pub(super) struct CheckedReplica {
    pub(super) namespace: String,
    pub(super) pod: String,
    pub(super) role: ReplicaRole,
    /// Why the Pod is not running.
    pub(super) pod_problem: Option<String>,
    pub(super) ready: Known<CheckedReadiness>,
    pub(super) remote_clusters: BTreeMap<String, CheckedCluster>,
}

/// The answer of `/ready`.
#[derive(Debug, PartialEq)]
pub(super) struct CheckedReadiness {
    pub(super) is_ready: bool,
    pub(super) waiting_for: Vec<String>,
}

#[derive(Debug)]
pub(super) struct CheckedConfig {
    pub(super) name: String,
    pub(super) is_active: bool,
    /// Whether the status describes the last change.
    pub(super) is_observed: bool,
    pub(super) conditions: Vec<Condition>,
}

// === impl CheckedReplica ===

impl CheckedReplica {
    /// The namespace and the name of the Pod.
    pub(super) fn name(&self) -> String {
        format!("{}/{}", self.namespace, self.pod)
    }
}

// === impl CheckedConfig ===

impl CheckedConfig {
    pub(super) fn of(config: api::LinkerdConfig) -> Self {
        let generation = config.metadata.generation;
        let name = config.name_any();
        let status = config.status.unwrap_or_default();
        Self {
            name,
            is_active: status.active.unwrap_or_default(),
            is_observed: status.observed_generation >= generation,
            conditions: status.conditions,
        }
    }
}

// === impl CheckedReadiness ===

impl CheckedReadiness {
    /// Reads the answer of the operator. Returns `None` for that of another program, such as Linkerd's own container.
    fn parse(text: &str) -> Option<Self> {
        let mut lines = text.lines();
        let is_ready = match lines.next() {
            Some("ready") => true,
            Some("not ready") => false,
            _ => return None,
        };
        let waiting = lines.filter_map(|line| line.strip_prefix("waiting: "));
        Some(Self { is_ready, waiting_for: waiting.map(str::to_owned).collect() })
    }
}

pub(super) async fn installation(client: &Client, operator_namespace: &str, linkerd_namespace: &str) -> CheckFacts {
    let lease = async |name: &str| {
        let leases: Api<Lease> = Api::namespaced(client.clone(), linkerd_namespace);
        (format!("{linkerd_namespace}/{name}"), known(leases.get_opt(name).await))
    };
    let names = std::iter::once(OPERATOR_CRD).chain(LINKERD_CRDS);
    let (version, crds, replicas, config_lease, workload_lease, configs) = tokio::join!(
        version(client),
        crds(client, names),
        replicas(client, operator_namespace, linkerd_namespace),
        lease(linkerd_config::LEASE),
        lease(external_workload::LEASE),
        configs(client),
    );
    let replicas = replicas.map_err(|error| client::describe(&*error));
    CheckFacts { version, crds, replicas, leases: vec![config_lease, workload_lease], configs, now: Timestamp::now() }
}

pub(super) async fn preflight(client: &Client, linkerd_namespace: &str) -> PreflightFacts {
    let config_maps: Api<ConfigMap> = Api::namespaced(client.clone(), linkerd_namespace);
    let permissions = [
        ("", "namespaces", None),
        ("", "serviceaccounts", None),
        ("", "services", None),
        ("apps", "deployments", None),
        ("policy", "poddisruptionbudgets", None),
        ("apiextensions.k8s.io", "customresourcedefinitions", None),
        ("admissionregistration.k8s.io", "validatingadmissionpolicies", None),
        ("admissionregistration.k8s.io", "validatingadmissionpolicybindings", None),
        ("rbac.authorization.k8s.io", "clusterroles", None),
        ("rbac.authorization.k8s.io", "clusterrolebindings", None),
        ("rbac.authorization.k8s.io", "roles", Some(linkerd_namespace)),
        ("rbac.authorization.k8s.io", "rolebindings", Some(linkerd_namespace)),
    ];
    let permission = async |(group, resource, namespace)| may(client, group, resource, namespace).await;
    let (version, linkerd_config, linkerd_crds, permissions) = tokio::join!(
        version(client),
        config_maps.get_metadata_opt(INJECTORS_CONFIG_MAP),
        crds(client, LINKERD_CRDS),
        future::join_all(permissions.map(permission)),
    );
    let linkerd_config = known(linkerd_config.map(|found| found.is_some()));
    PreflightFacts { version, linkerd_config, linkerd_crds, permissions }
}

async fn version(client: &Client) -> Known<String> {
    known(client.apiserver_version().await.map(|info| info.git_version))
}

async fn crds(client: &Client, names: impl IntoIterator<Item = &'static str>) -> Vec<(&'static str, Known<bool>)> {
    let crds: Api<CustomResourceDefinition> = Api::all(client.clone());
    let exists = async |name| {
        let found = crds.get_metadata_opt(name).await;
        (name, known(found.map(|found| found.is_some())))
    };
    future::join_all(names.into_iter().map(exists)).await
}

/// Returns whether the user may create a resource, and what that is in words.
async fn may(
    client: &Client,
    group: &'static str,
    resource: &'static str,
    namespace: Option<&str>,
) -> (String, Known<bool>) {
    let review = SelfSubjectAccessReview {
        spec: SelfSubjectAccessReviewSpec {
            resource_attributes: Some(ResourceAttributes {
                group: Some(group.to_owned()),
                resource: Some(resource.to_owned()),
                verb: Some("create".to_owned()),
                namespace: namespace.map(str::to_owned),
                ..ResourceAttributes::default()
            }),
            non_resource_attributes: None,
        },
        ..SelfSubjectAccessReview::default()
    };
    let what = match namespace {
        Some(namespace) => format!("create {resource} in namespace {namespace}"),
        None => format!("create {resource}"),
    };
    let answer = Api::<SelfSubjectAccessReview>::all(client.clone()).create(&PostParams::default(), &review).await;
    (what, known(answer.map(|review| review.status.is_some_and(|status| status.allowed))))
}

async fn configs(client: &Client) -> Known<Vec<CheckedConfig>> {
    let configs: Api<api::LinkerdConfig> = Api::all(client.clone());
    let found = match configs.list(&ListParams::default()).await {
        // check reports the missing CRD.
        Err(kube::Error::Api(status)) if status.code == 404 => return Ok(Vec::new()),
        found => known(found)?,
    };
    Ok(found.items.into_iter().map(CheckedConfig::of).collect())
}

async fn replicas(client: &Client, operator_namespace: &str, linkerd_namespace: &str) -> Result<Vec<CheckedReplica>> {
    let component = |name: &str| format!("{CONTROL_PLANE_COMPONENT_LABEL}={name}");
    let (destination, injector) = (component("destination"), component("proxy-injector"));
    let wanted = [
        (ReplicaRole::Manager, operator_namespace, OPERATOR_SELECTOR),
        (ReplicaRole::Replacement("destination"), linkerd_namespace, destination.as_str()),
        (ReplicaRole::Replacement("proxy-injector"), linkerd_namespace, injector.as_str()),
    ];
    let mut pods = Vec::new();
    for (role, namespace, selector) in wanted {
        let list = ListParams::default().labels(selector).limit(PODS);
        let found = Api::<Pod>::namespaced(client.clone(), namespace).list(&list).await;
        let found = found.map_err(|error| {
            anyhow!("cannot list the Pods {selector} in namespace {namespace}: {}", client::describe(&error))
        })?;
        pods.extend(found.items.into_iter().map(|pod| (role, pod)));
    }
    let replicas = stream::iter(pods).map(|(role, pod)| replica(client, role, pod)).buffered(CONCURRENCY);
    Ok(replicas.filter_map(future::ready).collect().await)
}

/// Reads the state of a Pod. Returns `None` if it runs Linkerd's own container.
async fn replica(client: &Client, role: ReplicaRole, pod: Pod) -> Option<CheckedReplica> {
    let (namespace, name) = (pod.namespace().unwrap_or_default(), pod.name_any());
    let pod_problem = not_running(&pod);
    let port = pod.spec.as_ref().and_then(|spec| admin_port(role, &spec.containers));
    let mut replica = CheckedReplica {
        namespace,
        pod: name,
        role,
        pod_problem,
        ready: Err("its Pod is not running".to_owned()),
        remote_clusters: BTreeMap::new(),
    };
    let replaces = matches!(role, ReplicaRole::Replacement(_));
    if replica.pod_problem.is_some() {
        // Nothing tells whether it would run the operator.
        return (!replaces).then_some(replica);
    }
    let Some(port) = port else {
        replica.ready = Err("its Pod declares no port for probes".to_owned());
        return (!replaces).then_some(replica);
    };
    let get = async |path: &str| {
        let read = timeout(ANSWER_DEADLINE, answer(client, &replica.namespace, &replica.pod, port, path)).await;
        read.with_context(|| format!("/{path} did not answer within {} s", ANSWER_DEADLINE.as_secs()))?
    };
    let (ready, metrics) = tokio::join!(get("ready"), get("metrics"));
    let ready = match ready {
        Ok(text) => match CheckedReadiness::parse(&text) {
            Some(ready) => Ok(ready),
            None if replaces => return None,
            None => Err("/ready is not the operator's".to_owned()),
        },
        // A permission or a policy keeps it from being read. It may be Linkerd's own container.
        Err(_) if replaces => return None,
        Err(error) => Err(client::describe(&*error)),
    };
    replica.ready = ready;
    replica.remote_clusters = metrics.map(|metrics| remote_clusters(&metrics)).unwrap_or_default();
    Some(replica)
}

/// Returns what a Pod with the operator's Destination API waits for; `None` if that cannot be read.
pub(in crate::cli) async fn waiting_for(client: &Client, pod: &Pod) -> Option<Vec<String>> {
    let containers = &pod.spec.as_ref()?.containers;
    let roles = [ReplicaRole::Manager, ReplicaRole::Replacement("destination")];
    let port = roles.into_iter().find_map(|role| admin_port(role, containers))?;
    let (namespace, name) = (pod.namespace()?, pod.name_any());
    let ready = timeout(ANSWER_DEADLINE, answer(client, &namespace, &name, port, "ready")).await.ok()?.ok()?;
    CheckedReadiness::parse(&ready).map(|ready| ready.waiting_for)
}

/// Returns the port of the probes: the port with this name of the manager, or of the container that it replaces.
fn admin_port(role: ReplicaRole, containers: &[Container]) -> Option<i32> {
    let (container, suffix) = match role {
        ReplicaRole::Manager => ("manager", "admin"),
        ReplicaRole::Replacement(name) => (name, "-admin"),
    };
    let ports = containers.iter().filter(|it| it.name == container).flat_map(|it| it.ports.iter().flatten());
    let mut ports = ports.filter(|port| port.name.as_deref().is_some_and(|name| name.ends_with(suffix)));
    ports.next().map(|port| port.container_port)
}

fn not_running(pod: &Pod) -> Option<String> {
    if pod.metadata.deletion_timestamp.is_some() {
        return Some("is being deleted".to_owned());
    }
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref()).unwrap_or("Unknown");
    (phase != "Running").then(|| format!("is {phase}"))
}

/// Reads a page of a Pod: through a port-forward, to which no NetworkPolicy applies and which needs no token for the
/// metrics, or else through the API server's proxy. An error page of the operator is an answer, too.
async fn answer(client: &Client, namespace: &str, pod: &str, port: i32, path: &str) -> Result<String> {
    let forwarded = timeout(FORWARD_DEADLINE, forwarded(client, namespace, pod, port, path)).await;
    let (status, text) = match forwarded {
        Ok(Ok(answer)) => answer,
        // The user may have only the other permission, and a node may serve no port-forwards.
        _ => proxied(client, namespace, pod, port, path)
            .await
            .with_context(|| format!("cannot read /{path} of the Pod"))?,
    };
    match status {
        StatusCode::OK => Ok(text),
        StatusCode::SERVICE_UNAVAILABLE if text.starts_with("not ready") => Ok(text),
        status => bail!("cannot read /{path} of the Pod: {}", refusal(status, &text)),
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

fn known<T>(result: kube::Result<T>) -> Known<T> {
    result.map_err(|error| client::describe(&error))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_the_operators_answer_of_ready_is_read() {
        let read = |text| CheckedReadiness::parse(text);
        let ready = |is_ready, waiting: &[&str]| {
            Some(CheckedReadiness { is_ready, waiting_for: waiting.iter().map(|&line| line.to_owned()).collect() })
        };
        assert_eq!(read("ready\n"), ready(true, &[]));
        assert_eq!(
            read("not ready\nwaiting: pods were not listed\nwaiting: x\n"),
            ready(false, &["pods were not listed", "x"])
        );
        // Linkerd's own containers.
        assert_eq!(read("ok\n"), None);
        assert_eq!(read(""), None);
    }

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

    #[test]
    fn the_port_of_the_probes_is_that_of_the_container_with_the_operator() {
        let containers: Vec<Container> = serde_json::from_value(json!([
            {"name": "linkerd-proxy", "ports": [{"name": "linkerd-admin", "containerPort": 4191}]},
            {"name": "destination", "ports": [
                {"name": "dest-grpc", "containerPort": 8086}, {"name": "dest-admin", "containerPort": 9996},
            ]},
            {"name": "manager", "ports": [{"name": "grpc", "containerPort": 8086}, {"name": "admin", "containerPort": 9990}]},
            {"name": "proxy-injector"},
        ]))
        .unwrap();
        assert_eq!(admin_port(ReplicaRole::Manager, &containers), Some(9990));
        assert_eq!(admin_port(ReplicaRole::Replacement("destination"), &containers), Some(9996));
        assert_eq!(admin_port(ReplicaRole::Replacement("proxy-injector"), &containers), None);
    }
}
