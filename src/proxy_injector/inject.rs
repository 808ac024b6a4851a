//! The patch of an object that the API server is about to create.
//!
//! In: the configuration, the namespace, the workload and the object. Out: the decision, a JSON patch (RFC 6902), and
//! warnings for the author. Always holds: the same input gives the same patch; values are JSON, and never text that is
//! pasted into a template.

use json_patch::{AddOperation, PatchOperation, jsonptr::PointerBuf};
use serde_json::{Value, json};

use super::{
    annotations::{AnnotationMap, Annotations},
    configuration::Configuration,
    containers::{self, AddedContainers, NotRenderable, ProxyContext},
    decision::InjectionDecision,
    opaque_ports,
    overrides::overridden,
    owner::Workload,
    reviewed::{ReviewedMetadata, ReviewedObject},
    warnings::{self, AuthorWarnings},
};
use crate::{
    api::{
        CONTROL_PLANE_NAMESPACE_LABEL, CREATED_BY_ANNOTATION, OPAQUE_PORTS_ANNOTATION, PROXY_VERSION_ANNOTATION,
        TRUST_ROOT_ANNOTATION,
    },
    values::ProxyValues,
};

/// The label of a meshed Pod with its namespace.
const WORKLOAD_NAMESPACE_LABEL: &str = "linkerd.io/workload-ns";

/// The settings of the injector.
#[derive(Clone, Copy, Debug)]
pub(super) struct Injector<'a> {
    /// The namespace of the control plane.
    pub(super) controller_namespace: &'a str,
    /// The version that injected Pods name.
    pub(super) version: &'a str,
}

/// Where an object is created.
#[derive(Clone, Copy, Debug)]
pub(super) struct ReviewTarget<'a> {
    /// The annotations of the namespace.
    pub(super) namespace: &'a AnnotationMap,
    pub(super) namespace_name: &'a str,
    /// The label `linkerd.io/inject` of the namespace, which has no effect.
    pub(super) inject_label: Option<&'a str>,
    /// The workload of a Pod.
    pub(super) workload: Option<&'a Workload>,
}

/// The kinds of objects that are changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ObjectKind {
    Pod,
    Service,
}

/// The result of a review.
#[derive(Debug, Default)]
pub(super) struct AdmissionOutcome {
    pub(super) decision: InjectionDecision,
    pub(super) patch: Vec<PatchOperation>,
    pub(super) warnings: AuthorWarnings,
}

// === impl AdmissionOutcome ===

impl AdmissionOutcome {
    /// Returns the warnings of the answer.
    pub(super) fn into_warnings(self) -> Vec<String> {
        let skipped = if self.decision.was_requested() { self.decision.skipped } else { Vec::new() };
        let reasons = skipped.iter().map(|reason| format!("no proxy is injected: {}", reason.sentence()));
        reasons.chain(self.warnings.into_texts()).collect()
    }
}

// === impl ObjectKind ===

impl ObjectKind {
    /// Returns `None` for a kind that is never changed. Linkerd's injector does not look at the group, either.
    pub(super) fn of(kind: &str) -> Option<Self> {
        match kind.to_ascii_lowercase().as_str() {
            "pod" => Some(Self::Pod),
            "service" => Some(Self::Service),
            _ => None,
        }
    }
}

// === impl Injector ===

impl Injector<'_> {
    /// Decides about an object. Without a configuration, only a Pod that requests a proxy is denied; the error is the list
    /// of default opaque ports, which all other objects need.
    ///
    /// # Errors
    /// When a Pod requests a proxy that cannot be injected.
    pub(super) fn decide(
        self,
        configuration: Result<&Configuration, &str>,
        kind: ObjectKind,
        target: ReviewTarget<'_>,
        object: &ReviewedObject,
    ) -> Result<AdmissionOutcome, NotRenderable> {
        match (configuration, kind) {
            (Ok(configuration), ObjectKind::Pod) => self.pod(configuration, target, object),
            (Ok(configuration), ObjectKind::Service) => {
                Ok(Self::service(&configuration.values.proxy.opaque_ports, target, object))
            }
            (Err(opaque_ports), ObjectKind::Service) => Ok(Self::service(opaque_ports, target, object)),
            (Err(opaque_ports), ObjectKind::Pod) => {
                let annotations = &object.metadata.annotations;
                let decision = InjectionDecision::about_pod(target.namespace, annotations, &object.spec, true);
                match decision.injects() {
                    true => Err(NotRenderable::missing("a usable configuration of Linkerd")),
                    false => Ok(Self::skipped(decision, opaque_ports, target, object)),
                }
            }
        }
    }

    fn pod(
        self,
        configuration: &Configuration,
        target: ReviewTarget<'_>,
        pod: &ReviewedObject,
    ) -> Result<AdmissionOutcome, NotRenderable> {
        let has_projected_token = configuration.values.identity.service_account_token_projection;
        let decision =
            InjectionDecision::about_pod(target.namespace, &pod.metadata.annotations, &pod.spec, has_projected_token);
        if !decision.injects() {
            return Ok(Self::skipped(decision, &configuration.values.proxy.opaque_ports, target, pod));
        }
        let (patch, mut warnings) = self.pod_patch(configuration, target, pod)?;
        warnings::of_injection(&decision, target, &pod.metadata, &mut warnings);
        Ok(AdmissionOutcome { decision, patch, warnings })
    }

    /// Returns the outcome for a Pod that gets no proxy.
    fn skipped(
        decision: InjectionDecision,
        defaults: &str,
        target: ReviewTarget<'_>,
        pod: &ReviewedObject,
    ) -> AdmissionOutcome {
        let annotations = Annotations { pod: &pod.metadata.annotations, namespace: target.namespace };
        let opaque = opaque_ports::of_pod(annotations, &pod.spec, defaults);
        let (patch, mut warnings) = only_opaque_ports(&pod.metadata, opaque);
        warnings::of_injection(&decision, target, &pod.metadata, &mut warnings);
        AdmissionOutcome { decision, patch, warnings }
    }

    fn service(defaults: &str, target: ReviewTarget<'_>, service: &ReviewedObject) -> AdmissionOutcome {
        let annotations = Annotations { pod: &service.metadata.annotations, namespace: target.namespace };
        let opaque = opaque_ports::of_service(annotations, &service.spec.ports, defaults);
        let (patch, mut warnings) = only_opaque_ports(&service.metadata, opaque);
        warnings::of_service(service, &mut warnings);
        AdmissionOutcome { decision: InjectionDecision::unsupported(), patch, warnings }
    }

    /// Returns the patch that injects a proxy, and warnings.
    pub(super) fn pod_patch(
        self,
        configuration: &Configuration,
        target: ReviewTarget<'_>,
        pod: &ReviewedObject,
    ) -> Result<(Vec<PatchOperation>, AuthorWarnings), NotRenderable> {
        let annotations = Annotations { pod: &pod.metadata.annotations, namespace: target.namespace };
        let (mut values, mut warnings) = overridden(&configuration.values, annotations, pod);
        // The default ports that the Pod has are written to its annotation, and an annotation overrides the default list.
        let opaque = opaque_ports::of_pod(annotations, &pod.spec, &configuration.values.proxy.opaque_ports)
            .filter(|_| annotations.get("opaque-ports").is_none());
        if let Some(opaque) = &opaque {
            values.proxy.opaque_ports.clone_from(opaque);
        }
        warnings::of_injected(&values, annotations, &pod.spec, &mut warnings);
        let mut patch = Vec::new();
        let added = self.annotations(configuration, &values, annotations, opaque);
        if !pod.metadata.has_room_for(&added) {
            return Err(NotRenderable::too_long());
        }
        add_entries(&mut patch, "annotations", pod.metadata.annotations.is_empty(), added);
        add_entries(&mut patch, "labels", pod.metadata.labels.is_empty(), self.labels(target));
        let volumes = containers::volumes(&values);
        let containers = self.containers(configuration, &values, annotations, pod)?;
        warnings::of_added(&containers, &volumes, &pod.spec, &mut warnings);
        add_list(&mut patch, "volumes", pod.spec.volumes.is_empty(), volumes);
        add_containers(&mut patch, containers, &values, pod);
        Ok((patch, warnings))
    }

    fn annotations(
        self,
        configuration: &Configuration,
        values: &ProxyValues,
        annotations: Annotations<'_>,
        opaque: Option<String>,
    ) -> AnnotationMap {
        let inherited = annotations.inherited().map(|(key, value)| (key.to_owned(), value.to_owned()));
        let mut added: AnnotationMap = inherited.collect();
        added.extend(opaque.map(|ports| (OPAQUE_PORTS_ANNOTATION.to_owned(), ports)));
        let created_by = format!("linkerd/proxy-injector {}", self.version);
        added.insert(CREATED_BY_ANNOTATION.to_owned(), created_by);
        let version = values.version_of(&values.proxy.image).to_owned();
        added.insert(PROXY_VERSION_ANNOTATION.to_owned(), version);
        added.insert(TRUST_ROOT_ANNOTATION.to_owned(), configuration.trust_anchors_hash.clone());
        added
    }

    fn labels(self, target: ReviewTarget<'_>) -> AnnotationMap {
        let mut added = AnnotationMap::from([
            (CONTROL_PLANE_NAMESPACE_LABEL.to_owned(), self.controller_namespace.to_owned()),
            (WORKLOAD_NAMESPACE_LABEL.to_owned(), target.namespace_name.to_owned()),
        ]);
        added.extend(target.workload.and_then(Workload::label));
        added
    }

    fn containers(
        self,
        configuration: &Configuration,
        values: &ProxyValues,
        annotations: Annotations<'_>,
        pod: &ReviewedObject,
    ) -> Result<AddedContainers, NotRenderable> {
        let inbound_ports = pod.spec.inbound_ports();
        let context = ProxyContext {
            controller_namespace: self.controller_namespace,
            trust_anchors: &configuration.trust_anchors,
            injection_hash: &configuration.injection_hash,
            inbound_ports: &inbound_ports,
        };
        Ok(AddedContainers {
            init: if values.cni_enabled { containers::validator(values) } else { containers::init(values) }?,
            proxy: containers::proxy(values, context)?,
            debug: annotations.is_debugged().then(|| containers::debug(values)).transpose()?,
        })
    }
}

/// A native sidecar starts before all other containers, so its init container is first. Otherwise the init container is
/// last, so that init containers of the Pod reach the network without the proxy.
fn add_containers(
    patch: &mut Vec<PatchOperation>,
    containers: AddedContainers,
    values: &ProxyValues,
    pod: &ReviewedObject,
) {
    let AddedContainers { init, proxy, debug } = containers;
    let is_native = values.proxy.native_sidecar;
    if pod.spec.init_containers.is_empty() {
        add(patch, "/spec/initContainers", json!([]));
    }
    add(patch, if is_native { "/spec/initContainers/0" } else { "/spec/initContainers/-" }, init);
    if let Some(debug) = debug {
        add(patch, "/spec/containers/-", debug);
    }
    match (is_native, values.proxy.r#await) {
        (true, _) => add(patch, "/spec/initContainers/1", proxy),
        // The kubelet starts the next container only after the hook has ended.
        (false, true) => add(patch, "/spec/containers/0", proxy),
        (false, false) => add(patch, "/spec/containers/-", proxy),
    }
}

/// Returns a patch with the annotation for opaque ports. An object that has no room for it stays as it is.
fn only_opaque_ports(metadata: &ReviewedMetadata, opaque: Option<String>) -> (Vec<PatchOperation>, AuthorWarnings) {
    let (mut patch, mut warnings) = (Vec::new(), AuthorWarnings::default());
    let added: AnnotationMap = opaque.map(|opaque| (OPAQUE_PORTS_ANNOTATION.to_owned(), opaque)).into_iter().collect();
    if added.is_empty() {
        return (patch, warnings);
    }
    if metadata.has_room_for(&added) {
        add_entries(&mut patch, "annotations", metadata.annotations.is_empty(), added);
    } else {
        warnings
            .add(format_args!("{OPAQUE_PORTS_ANNOTATION} is not added: the annotations would be longer than 256 KiB"));
    }
    (patch, warnings)
}

/// Adds entries of a map below `metadata`. The API server has dropped an empty map.
fn add_entries(patch: &mut Vec<PatchOperation>, map: &str, is_absent: bool, entries: AnnotationMap) {
    if is_absent {
        add(patch, &format!("/metadata/{map}"), json!(entries));
        return;
    }
    for (key, value) in entries {
        let path = PointerBuf::from_tokens(["metadata", map, key.as_str()]);
        patch.push(PatchOperation::Add(AddOperation { path, value: value.into() }));
    }
}

/// Adds items to a list below `spec`.
fn add_list(patch: &mut Vec<PatchOperation>, list: &str, is_absent: bool, items: Vec<Value>) {
    if is_absent {
        add(patch, &format!("/spec/{list}"), items.into());
        return;
    }
    for item in items {
        add(patch, &format!("/spec/{list}/-"), item);
    }
}

fn add(patch: &mut Vec<PatchOperation>, path: &str, value: Value) {
    let path = PointerBuf::from_tokens(path.split('/').skip(1));
    patch.push(PatchOperation::Add(AddOperation { path, value }));
}
