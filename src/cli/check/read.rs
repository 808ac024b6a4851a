//! Reads the facts of a cluster once.
//!
//! In: a client. Out: [`CheckFacts`] or [`PreflightFacts`]. Always holds: nothing is written, except the access reviews
//! of the preflight, which are not stored; a fact that cannot be read is an error with its reason; the number of
//! replicas and the length of each answer are bounded.

use std::{
    collections::{BTreeMap, BTreeSet},
    iter,
};

use futures::{StreamExt, future, stream};
use k8s_openapi::{
    api::{
        authorization::v1::{ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec},
        coordination::v1::Lease,
        core::v1::{ConfigMap, Container, Pod},
    },
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
    jiff::Timestamp,
};
use kube::{
    Api, Client, ResourceExt,
    api::{ListParams, PostParams},
};

use super::{
    answer::answer,
    identity::CheckedIssuer,
    metrics::{CheckedCluster, remote_clusters},
    policies::{self, CheckedBinding},
    unread::{Known, Unread},
};
use crate::{
    api::{self, CONTROL_PLANE_COMPONENT_LABEL, INJECTORS_CONFIG_MAP, LinkerdConfigStatus},
    drop_in::{DROP_INS, DropIn},
    external_workload, linkerd_config,
};

/// The label that names the Deployment of a Pod.
const APP_LABEL: &str = "app.kubernetes.io/name";
/// The operator's Deployments: the last three exist if these jobs run apart from the others.
const OPERATOR_SELECTOR: &str = "app.kubernetes.io/name in (linkerd-operator,linkerd-operator-destination,linkerd-operator-external-workload,\
     linkerd-operator-issuer)";
/// The Deployment of the identity service, in Linkerd's namespace.
const IDENTITY_APP: &str = "linkerd-operator-identity";
const OPERATOR_CRD: &str = "linkerdconfigs.config.linkerd.io";
const LINKERD_CRDS: [&str; 3] =
    ["externalworkloads.workload.linkerd.io", "servers.policy.linkerd.io", "serviceprofiles.linkerd.io"];
/// The maximum number of Pods of a kind that are read.
const PODS: u32 = 500;
const CONCURRENCY: usize = 8;

/// The facts about an installed operator.
pub(super) struct CheckFacts {
    /// The version of the API server.
    pub(super) version: Known<String>,
    /// Whether each CRD exists.
    pub(super) crds: Vec<(&'static str, Known<bool>)>,
    pub(super) replicas: Vec<CheckedReplica>,
    /// The Pods that could not be listed.
    pub(super) unlisted: Vec<UnlistedPods>,
    pub(super) operator_namespace: String,
    pub(super) policies: Vec<CheckedBinding>,
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
    /// The identity service in a Deployment of its own.
    Identity,
    /// It replaces this container of Linkerd.
    Replacement(DropIn),
}

/// Pods, some of which could not be listed.
pub(super) struct UnlistedPods {
    pub(super) role: ReplicaRole,
    /// Which ones, in words.
    pub(super) pods: String,
    pub(super) unread: Unread,
}

/// A container that is, or may be, the operator.
#[derive(Debug)]
pub(super) struct CheckedReplica {
    pub(super) namespace: String,
    pub(super) pod: String,
    pub(super) role: ReplicaRole,
    /// The name of the Deployment, as a label.
    pub(super) app: String,
    /// Why the Pod is not running.
    pub(super) pod_problem: Option<String>,
    pub(super) ready: Known<CheckedReadiness>,
    pub(super) remote_clusters: Known<BTreeMap<String, CheckedCluster>>,
    /// `None` if it issues no certificates.
    pub(super) issuer: Known<Option<CheckedIssuer>>,
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
    /// Whether the status describes the last change.
    pub(super) is_observed: bool,
    pub(super) status: LinkerdConfigStatus,
}

// === impl CheckedReplica ===

impl CheckedReplica {
    /// The namespace and the name of the Pod, and the container if the Pod has others.
    pub(super) fn name(&self) -> String {
        match self.role {
            ReplicaRole::Manager | ReplicaRole::Identity => format!("{}/{}", self.namespace, self.pod),
            ReplicaRole::Replacement(drop_in) => {
                format!("{}/{} ({})", self.namespace, self.pod, drop_in.container())
            }
        }
    }

    /// Whether its Pod belongs to the operator, and not to Linkerd.
    pub(super) fn is_own(&self) -> bool {
        !matches!(self.role, ReplicaRole::Replacement(_))
    }

    /// Whether it exists to issue certificates.
    pub(super) fn issues_certificates(&self) -> bool {
        matches!(self.role, ReplicaRole::Identity | ReplicaRole::Replacement(DropIn::Identity))
    }
}

// === impl CheckedConfig ===

impl CheckedConfig {
    pub(super) fn of(config: api::LinkerdConfig) -> Self {
        let generation = config.metadata.generation;
        let name = config.name_any();
        let status = config.status.unwrap_or_default();
        Self { name, is_observed: status.observed_generation >= generation, status }
    }
}

// === impl CheckedReadiness ===

impl CheckedReadiness {
    /// Reads the answer of the operator. Returns `None` for the answer of another program, such as Linkerd's own
    /// container.
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
        (format!("{linkerd_namespace}/{name}"), leases.get_opt(name).await.map_err(Unread::from))
    };
    let names = iter::once(OPERATOR_CRD).chain(LINKERD_CRDS);
    let (version, crds, (replicas, unlisted), config_lease, workload_lease, configs, policies) = tokio::join!(
        version(client),
        crds(client, names),
        replicas(client, operator_namespace, linkerd_namespace),
        lease(linkerd_config::LEASE),
        lease(external_workload::LEASE),
        configs(client),
        policies::read(client),
    );
    CheckFacts {
        version,
        crds,
        replicas,
        unlisted,
        operator_namespace: operator_namespace.to_owned(),
        policies,
        leases: vec![config_lease, workload_lease],
        configs,
        now: Timestamp::now(),
    }
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
    let linkerd_config = linkerd_config.map(|found| found.is_some()).map_err(Unread::from);
    PreflightFacts { version, linkerd_config, linkerd_crds, permissions }
}

async fn version(client: &Client) -> Known<String> {
    Ok(client.apiserver_version().await?.git_version)
}

async fn crds(client: &Client, names: impl IntoIterator<Item = &'static str>) -> Vec<(&'static str, Known<bool>)> {
    let crds: Api<CustomResourceDefinition> = Api::all(client.clone());
    let exists = async |name| {
        let found = crds.get_metadata_opt(name).await;
        (name, found.map(|found| found.is_some()).map_err(Unread::from))
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
    (what, answer.map(|review| review.status.is_some_and(|status| status.allowed)).map_err(Unread::from))
}

async fn configs(client: &Client) -> Known<Vec<CheckedConfig>> {
    let configs: Api<api::LinkerdConfig> = Api::all(client.clone());
    let found = match configs.list(&ListParams::default()).await {
        // check reports the missing CRD.
        Err(kube::Error::Api(status)) if status.code == 404 => return Ok(Vec::new()),
        found => found?,
    };
    Ok(found.items.into_iter().map(CheckedConfig::of).collect())
}

async fn replicas(
    client: &Client,
    operator_namespace: &str,
    linkerd_namespace: &str,
) -> (Vec<CheckedReplica>, Vec<UnlistedPods>) {
    let components: BTreeSet<_> = DROP_INS.into_iter().map(DropIn::component).collect();
    let replacements = components.into_iter().map(|component| {
        let roles = DROP_INS.into_iter().filter(|it| it.component() == component).map(ReplicaRole::Replacement);
        (roles.collect(), linkerd_namespace, format!("{CONTROL_PLANE_COMPONENT_LABEL}={component}"))
    });
    let managers = (vec![ReplicaRole::Manager], operator_namespace, OPERATOR_SELECTOR.to_owned());
    let (mut containers, mut unlisted) = (Vec::new(), Vec::new());
    for (roles, namespace, selector) in iter::once(managers).chain(replacements) {
        let list = ListParams::default().labels(&selector).limit(PODS);
        let found = Api::<Pod>::namespaced(client.clone(), namespace).list(&list).await;
        let unread = match found {
            Ok(found) => {
                let is_part = found.metadata.continue_.is_some_and(|it| !it.is_empty());
                for pod in found.items {
                    let roles = roles_of(&pod, &roles);
                    containers.extend(roles.iter().map(|role| (*role, pod.clone())));
                }
                is_part.then(|| Unread::failed(format!("there are more than {PODS}: delete those that have ended")))
            }
            Err(error) => Some(error.into()),
        };
        unlisted.extend(roles.first().zip(unread).map(|(&role, unread)| {
            let pods = format!("the Pods {selector} in namespace {namespace}");
            UnlistedPods { role, pods, unread }
        }));
    }
    let replicas = stream::iter(containers).map(|(role, pod)| replica(client, role, pod)).buffered(CONCURRENCY);
    (replicas.filter_map(future::ready).collect().await, unlisted)
}

/// Returns the roles that the containers of a Pod may have: those of its component, unless it is the operator's own Pod.
fn roles_of<'a>(pod: &Pod, of_component: &'a [ReplicaRole]) -> &'a [ReplicaRole] {
    match pod.labels().get(APP_LABEL).is_some_and(|app| app == IDENTITY_APP) {
        true => &[ReplicaRole::Identity],
        false => of_component,
    }
}

/// Reads the state of a container. Returns `None` if it is Linkerd's own, and if the Pod does not have it.
async fn replica(client: &Client, role: ReplicaRole, pod: Pod) -> Option<CheckedReplica> {
    let (namespace, name) = (pod.namespace().unwrap_or_default(), pod.name_any());
    let app = pod.labels().get(APP_LABEL).cloned().unwrap_or_default();
    let pod_problem = not_running(&pod);
    let port = pod.spec.as_ref().and_then(|spec| admin_port(role, &spec.containers));
    let mut replica = CheckedReplica {
        namespace,
        pod: name,
        role,
        app,
        pod_problem,
        ready: Err(Unread::failed("its Pod is not running")),
        remote_clusters: Ok(BTreeMap::new()),
        issuer: Ok(None),
    };
    let replaces = matches!(role, ReplicaRole::Replacement(_));
    if replica.pod_problem.is_some() {
        // Nothing tells whether it would run the operator.
        return (!replaces).then_some(replica);
    }
    let Some(port) = port else {
        replica.ready = Err(Unread::failed("its Pod declares no port for probes"));
        return (!replaces).then_some(replica);
    };
    let get = async |path: &str| answer(client, &replica.namespace, &replica.pod, port, path).await;
    let (ready, metrics) = tokio::join!(get("ready"), get("metrics"));
    replica.ready = match ready {
        Ok(text) => match CheckedReadiness::parse(&text) {
            Some(ready) => {
                let metrics = metrics.as_deref();
                replica.remote_clusters = metrics.map(remote_clusters).map_err(Unread::clone);
                replica.issuer = metrics.map(CheckedIssuer::read).map_err(Unread::clone);
                Ok(ready)
            }
            None if replaces => return None,
            None => Err(Unread::failed("/ready is not the operator's")),
        },
        Err(unread) => Err(unread),
    };
    Some(replica)
}

/// Returns what a Pod with the operator's Destination API waits for; `None` if that cannot be read.
pub(in crate::cli) async fn waiting_for(client: &Client, pod: &Pod) -> Option<Vec<String>> {
    let containers = &pod.spec.as_ref()?.containers;
    let roles = [ReplicaRole::Manager, ReplicaRole::Replacement(DropIn::Destination)];
    let port = roles.into_iter().find_map(|role| admin_port(role, containers))?;
    let (namespace, name) = (pod.namespace()?, pod.name_any());
    let ready = answer(client, &namespace, &name, port, "ready").await.ok()?;
    CheckedReadiness::parse(&ready).map(|ready| ready.waiting_for)
}

/// Returns the port of the probes: the port with this name of the manager, or of the container that it replaces.
fn admin_port(role: ReplicaRole, containers: &[Container]) -> Option<i32> {
    let (container, suffix) = match role {
        ReplicaRole::Manager | ReplicaRole::Identity => ("manager", "admin"),
        ReplicaRole::Replacement(drop_in) => (drop_in.container(), "-admin"),
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
    fn the_operators_identity_service_is_told_apart_from_a_container_of_linkerds() {
        let pod = |labels| -> Pod { serde_json::from_value(json!({"metadata": {"labels": labels}})).unwrap() };
        let of_component = [ReplicaRole::Replacement(DropIn::Identity)];
        let component = json!({"linkerd.io/control-plane-component": "identity"});
        assert_eq!(roles_of(&pod(component), &of_component), of_component);
        let own = json!({
            "linkerd.io/control-plane-component": "identity", "app.kubernetes.io/name": "linkerd-operator-identity",
        });
        assert_eq!(roles_of(&pod(own), &of_component), [ReplicaRole::Identity]);
    }

    #[test]
    fn the_port_of_the_probes_is_that_of_the_container_with_the_operator() {
        let containers: Vec<Container> = serde_json::from_value(json!([
            {"name": "linkerd-proxy", "ports": [{"name": "linkerd-admin", "containerPort": 4191}]},
            {"name": "destination", "ports": [
                {"name": "dest-grpc", "containerPort": 8086}, {"name": "dest-admin", "containerPort": 9996},
            ]},
            {"name": "manager", "ports": [{"name": "grpc", "containerPort": 8086}, {"name": "admin", "containerPort": 9990}]},
            {"name": "sp-validator", "ports": [
                {"name": "sp-validator", "containerPort": 8443}, {"name": "spval-admin", "containerPort": 9997},
            ]},
            {"name": "proxy-injector"},
        ]))
        .unwrap();
        assert_eq!(admin_port(ReplicaRole::Manager, &containers), Some(9990));
        assert_eq!(admin_port(ReplicaRole::Identity, &containers), Some(9990));
        assert_eq!(admin_port(ReplicaRole::Replacement(DropIn::Destination), &containers), Some(9996));
        assert_eq!(admin_port(ReplicaRole::Replacement(DropIn::SpValidator), &containers), Some(9997));
        assert_eq!(admin_port(ReplicaRole::Replacement(DropIn::ProxyInjector), &containers), None);
    }
}
