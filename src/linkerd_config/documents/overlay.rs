//! The overlay: the values that a LinkerdConfig declares over Linkerd's. Pure.
//!
//! In: a resource, the bundle of the mesh's trust anchors, a document. Out: the effective document, and the source of
//! each of its values; or all problems of the resource. Always holds: only the declared paths and the copy of the trust
//! anchors change; applying an overlay is idempotent.

use serde_json::{Map, Value, json};
use strum::IntoStaticStr;

use super::trust_anchors::{self, TrustAnchors};
use crate::{
    api::linkerd_config::{EnvVar, GlobalSpec, LinkerdConfigSpec, ProxyShapeStatus, ProxySpec, ResourceAmounts},
    values::{CONFIG_HASH_ENV, Document, Path, Problem, patch_problems},
};

/// The maximum length of `spec.values` as JSON.
const MAX_PATCH_BYTES: usize = 128 * 1024;

/// The source of an effective value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, IntoStaticStr)]
#[strum(const_into_str)]
pub enum ValueSource {
    /// The installer's document.
    #[strum(serialize = "base")]
    Base,
    /// `spec.values`.
    #[strum(serialize = "spec.values")]
    Values,
    /// `spec.global` and `spec.proxy`.
    #[strum(serialize = "spec")]
    Typed,
    /// The ConfigMap of the trust anchors.
    #[strum(serialize = "trust roots")]
    TrustRoots,
}

/// The values that one resource declares.
#[derive(Clone, Debug, PartialEq)]
pub struct Overlay {
    patch: Map<String, Value>,
    /// The values of typed fields. Each path occurs once, and no path contains another.
    typed: Vec<(Path, Value)>,
    /// The environment variables, merged by name. Other variables of the document are kept.
    environment: Vec<EnvVar>,
    anchors: Option<TrustAnchors>,
}

// === impl Overlay ===

impl Overlay {
    /// # Errors
    /// All problems that the schema cannot detect, and those of the effective document if a document is given.
    pub fn new(
        spec: &LinkerdConfigSpec,
        bundle: Option<&str>,
        document: Option<&Document>,
    ) -> Result<Self, Vec<Problem>> {
        let (overlay, mut problems) = Self::parse(spec, bundle);
        if problems.is_empty() {
            return Ok(overlay);
        }
        for problem in document.map(|document| overlay.problems_over(document)).unwrap_or_default() {
            if problems.iter().all(|known| known.path != problem.path) {
                problems.push(problem);
            }
        }
        Err(problems)
    }

    /// Returns the problems of the values that the resource declares, over a document.
    pub fn problems_over(&self, document: &Document) -> Vec<Problem> {
        let effective = self.apply_to(document);
        let mut problems = effective.problems();
        problems.retain(|problem| self.source(&problem.path, &effective) != ValueSource::Base);
        problems
    }

    fn parse(spec: &LinkerdConfigSpec, bundle: Option<&str>) -> (Self, Vec<Problem>) {
        let patch = spec.values.clone().unwrap_or_default();
        let mut problems = patch_problems(&patch);
        let length = serde_json::to_string(&patch).map_or(usize::MAX, |text| text.len());
        if length > MAX_PATCH_BYTES {
            let reason = format!("it has {length} bytes; the limit is {MAX_PATCH_BYTES} bytes");
            problems.push(problem(&["spec", "values"], "", reason));
        }
        let superseded = superseded_fields(spec).map(|(_, path, value)| (path, value));
        let typed = [global_fields(&spec.global), proxy_fields(&spec.proxy), paths(superseded)].concat();
        let environment = spec.proxy.additional_env.clone().unwrap_or_default();
        let named = patch_leaves(&patch);
        let owned = typed.iter().map(|(path, _)| path.clone()).chain(environment.first().map(|_| environment_path()));
        for path in owned {
            if let Some(conflict) = named.iter().find(|it| it.starts_with(&path) || path.starts_with(it)) {
                let reason =
                    format!("spec.values and a field of the resource both set it ({conflict}): keep one of them");
                problems.push(Problem { path, value: String::new(), reason });
            }
        }
        let of_patch = patch.get("proxy").and_then(|proxy| proxy.get("additionalEnv")).and_then(Value::as_array);
        let mut names = of_patch.into_iter().flatten().filter_map(|variable| variable.get("name")?.as_str());
        if names.any(|name| name == CONFIG_HASH_ENV)
            || environment.iter().any(|variable| variable.name == CONFIG_HASH_ENV)
        {
            let reason = "the operator reserves this variable for the injection hash of proxies";
            problems.push(Problem {
                path: environment_path(),
                value: CONFIG_HASH_ENV.to_owned(),
                reason: reason.to_owned(),
            });
        }
        problems.extend(trust_anchors::problem_of_copy(&patch));
        let anchors = trust_anchors::resolve(spec, bundle).map_err(|problem| problems.push(problem)).ok().flatten();
        (Self { patch, typed, environment, anchors }, problems)
    }

    /// Returns the document with the overlay applied.
    pub fn apply_to(&self, base: &Document) -> Document {
        let mut document = base.clone();
        document.merge(&self.patch);
        for (path, value) in &self.typed {
            document.set(path, value.clone());
        }
        if !self.environment.is_empty() {
            let known = document.get(&environment_path()).cloned();
            let variables = self.environment.iter().map(|variable| serde_json::to_value(variable).unwrap_or_default());
            document.set(&environment_path(), merge_env(known, variables));
        }
        if let Some(anchors) = &self.anchors
            && !has_external_ca(&document)
            && document.get(&anchors_path()).and_then(Value::as_str).map(str::trim) != Some(anchors.pem.trim())
        {
            // Linkerd trims the text too, so a difference in white space alone causes no write.
            document.set(&anchors_path(), json!(format!("{}\n", anchors.pem.trim())));
        }
        document
    }

    /// Returns the effective document over a base. Without a source of trust anchors, those of the last document are
    /// kept: the installer's may be outdated, and restoring them would split the mesh.
    pub fn effective(&self, last: &Document, base: &Document) -> Document {
        let mut document = self.apply_to(base);
        if let (None, false, Some(anchors)) = (&self.anchors, has_external_ca(&document), last.get(&anchors_path())) {
            document.set(&anchors_path(), anchors.clone());
        }
        document
    }

    /// Returns the source of the value at a path in the effective document.
    pub fn source(&self, path: &Path, effective: &Document) -> ValueSource {
        let named = |it: &Path| it.starts_with(path) || path.starts_with(it);
        match &self.anchors {
            Some(anchors) if *path == anchors_path() && !has_external_ca(effective) => anchors.source,
            _ if self.typed.iter().any(|(it, _)| named(it)) => ValueSource::Typed,
            _ if !self.environment.is_empty() && named(&environment_path()) => ValueSource::Typed,
            _ if patch_leaves(&self.patch).iter().any(named) => ValueSource::Values,
            _ => ValueSource::Base,
        }
    }

    /// Returns the declared paths, and the path of the copied trust anchors.
    pub fn paths(&self) -> impl Iterator<Item = Path> {
        let typed = self.typed.iter().map(|(path, _)| path.clone());
        let environment = self.environment.first().map(|_| environment_path());
        let anchors = self.anchors.as_ref().map(|_| anchors_path());
        patch_leaves(&self.patch).into_iter().chain(typed).chain(environment).chain(anchors)
    }

    /// Whether `spec.values` declares the whole list of variables, as a merge patch does.
    pub(in crate::linkerd_config) fn replaces_environment(&self) -> bool {
        self.patch.get("proxy").and_then(|proxy| proxy.get("additionalEnv")).is_some()
    }

    /// Returns the source of the trust anchors, if one is known.
    pub fn anchors_source(&self) -> Option<ValueSource> {
        self.anchors.as_ref().map(|anchors| anchors.source)
    }
}

/// Returns the deprecated fields that the resource sets.
pub fn deprecated(spec: &LinkerdConfigSpec) -> Vec<String> {
    let mut fields = [ineffective(spec), superseded(spec)].concat();
    fields.sort();
    fields
}

/// Returns the warning about deprecated fields of the resource that still have an effect.
pub fn superseded_warning(spec: &LinkerdConfigSpec) -> Option<String> {
    let fields = superseded(spec);
    let named = fields.join(", ");
    (!fields.is_empty())
        .then(|| format!("deprecated, still in effect: {named}: set the values with Helm or spec.values"))
}

fn superseded(spec: &LinkerdConfigSpec) -> Vec<String> {
    superseded_fields(spec).into_iter().filter_map(|(field, _, value)| value.map(|_| field.to_owned())).collect()
}

/// Returns the fields of the resource that are set but no longer have an effect.
pub fn ineffective(spec: &LinkerdConfigSpec) -> Vec<String> {
    let GlobalSpec { config_map, identity_context, omit_webhook_side_effects, .. } = &spec.global;
    let image = &spec.proxy.proxy_init_image;
    [
        ("spec.global.configMap", config_map.is_some()),
        ("spec.global.identityContext.clockSkewAllowance", identity_context.clock_skew_allowance.is_some()),
        ("spec.global.identityContext.issuanceLifeTime", identity_context.issuance_life_time.is_some()),
        ("spec.global.identityContext.scheme", identity_context.scheme.is_some()),
        ("spec.global.omitWebhookSideEffects", omit_webhook_side_effects.is_some()),
        ("spec.proxy.proxyInitImage", image.name.is_some() || image.pull_policy.is_some()),
        ("spec.proxy.proxyInitImageVersion", spec.proxy.proxy_init_image_version.is_some()),
    ]
    .into_iter()
    .filter(|(_, set)| *set)
    .map(|(field, _)| field.to_owned())
    .collect()
}

/// Returns the proxy version that a document declares.
pub fn proxy_version(document: &Document) -> Option<String> {
    let text = |keys: &[&str]| document.get(&Path::from(keys)).and_then(Value::as_str).filter(|text| !text.is_empty());
    text(&["proxy", "image", "version"]).or_else(|| text(&["linkerdVersion"])).map(str::to_owned)
}

/// Returns the shape of the proxies that injectors inject with a document. They take a missing boolean for false.
pub fn proxy_shape(document: &Document) -> ProxyShapeStatus {
    let is_true = |keys: &[&str]| document.get(&Path::from(keys)) == Some(&Value::Bool(true));
    ProxyShapeStatus {
        native_sidecar: is_true(&["proxy", "nativeSidecar"]),
        cni_enabled: is_true(&["cniEnabled"]),
        token_projection: is_true(&["identity", "serviceAccountTokenProjection"]),
    }
}

pub(in crate::linkerd_config) fn environment_path() -> Path {
    Path::from(&["proxy", "additionalEnv"][..])
}

pub(in crate::linkerd_config) fn anchors_path() -> Path {
    Path::from(&["identityTrustAnchorsPEM"][..])
}

/// Whether an external issuer manages the trust anchors, so that the overlay does not copy them.
fn has_external_ca(document: &Document) -> bool {
    document.get(&Path::from(&["identity", "externalCA"][..])) == Some(&Value::Bool(true))
}

fn patch_leaves(patch: &Map<String, Value>) -> Vec<Path> {
    fn walk(above: &[&str], map: &Map<String, Value>, found: &mut Vec<Path>) {
        for (key, value) in map {
            let keys = [above, &[key]].concat();
            match value {
                Value::Object(below) if !below.is_empty() => walk(&keys, below, found),
                _ => found.push(Path::from(&keys[..])),
            }
        }
    }
    let mut found = Vec::new();
    walk(&[], patch, &mut found);
    found
}

fn problem(keys: &[&str], value: &str, reason: impl Into<String>) -> Problem {
    Problem { path: Path::from(keys), value: value.to_owned(), reason: reason.into() }
}

/// Merges variables by name. An existing variable is replaced in place.
pub(in crate::linkerd_config) fn merge_env(known: Option<Value>, variables: impl Iterator<Item = Value>) -> Value {
    let mut merged = match known {
        Some(Value::Array(known)) => known,
        _ => Vec::new(),
    };
    for variable in variables {
        match merged.iter_mut().find(|known| known.get("name") == variable.get("name")) {
            Some(known) => *known = variable,
            None => merged.push(variable),
        }
    }
    Value::Array(merged)
}

fn global_fields(global: &GlobalSpec) -> Vec<(Path, Value)> {
    let text = |value: &Option<String>| value.clone().map(Value::String);
    let flag = |value: Option<bool>| value.map(Value::Bool);
    paths([(&["linkerdVersion"], text(&global.version)), (&["cniEnabled"], flag(global.cni_enabled))])
}

fn proxy_fields(proxy: &ProxySpec) -> Vec<(Path, Value)> {
    let text = |value: &Option<String>| value.clone().map(Value::String);
    let number = |value: Option<i64>| value.map(Value::from);
    let flag = |value: Option<bool>| value.map(Value::Bool);
    let typed = paths([
        (&["proxy", "image", "name"], text(&proxy.proxy_image.name)),
        (&["proxy", "image", "pullPolicy"], text(&proxy.proxy_image.pull_policy)),
        (&["proxy", "image", "version"], text(&proxy.proxy_version)),
        (&["proxy", "logLevel"], text(&proxy.log_level)),
        (&["proxy", "logFormat"], text(&proxy.log_format)),
        (&["proxy", "ports", "admin"], number(proxy.admin_port)),
        (&["proxy", "ports", "control"], number(proxy.control_port)),
        (&["proxy", "ports", "inbound"], number(proxy.inbound_port)),
        (&["proxy", "ports", "outbound"], number(proxy.outbound_port)),
        (&["proxy", "uid"], number(proxy.proxy_uid)),
        (&["proxy", "gid"], number(proxy.proxy_gid)),
        (&["proxyInit", "ignoreInboundPorts"], list(proxy.ignore_inbound_ports.as_ref())),
        (&["proxyInit", "ignoreOutboundPorts"], list(proxy.ignore_outbound_ports.as_ref())),
        (&["proxyInit", "skipSubnets"], list(proxy.skip_subnets.as_ref())),
        (&["proxy", "enableExternalProfiles"], flag(proxy.disable_external_profiles.map(|disabled| !disabled))),
        (&["proxy", "accessLog"], text(&proxy.access_log)),
        (&["proxy", "nativeSidecar"], flag(proxy.native_sidecar)),
        (&["proxy", "await"], flag(proxy.await_)),
        (&["proxy", "shutdownGracePeriod"], text(&proxy.shutdown_grace_period)),
        (&["proxy", "inboundConnectTimeout"], text(&proxy.inbound_connect_timeout)),
        (&["proxy", "outboundConnectTimeout"], text(&proxy.outbound_connect_timeout)),
    ]);
    let amounts = [("request", &proxy.resource.requests), ("limit", &proxy.resource.limits)];
    typed.into_iter().chain(amounts.into_iter().flat_map(|(kind, amounts)| resource_fields(kind, amounts))).collect()
}

/// Returns the deprecated fields that still have an effect: their names, paths and values. The control plane reads
/// these values from flags that Helm renders. An API server whose schema lacks such a field removes it from stored
/// resources when the schema is applied, and the value is not declared any more.
fn superseded_fields(spec: &LinkerdConfigSpec) -> [(&'static str, &'static [&'static str], Option<Value>); 6] {
    let LinkerdConfigSpec { global, proxy, .. } = spec;
    let text = |value: &Option<String>| value.clone().map(Value::String);
    let trust_domain = &global.identity_context.trust_domain;
    [
        ("spec.global.clusterDomain", &["clusterDomain"], text(&global.cluster_domain)),
        ("spec.global.clusterNetworks", &["clusterNetworks"], list(global.cluster_networks.as_ref())),
        ("spec.global.disableIPv6", &["disableIPv6"], global.disable_ipv6.map(Value::Bool)),
        ("spec.global.identityContext.trustDomain", &["identityTrustDomain"], text(trust_domain)),
        ("spec.proxy.defaultInboundPolicy", &["proxy", "defaultInboundPolicy"], text(&proxy.default_inbound_policy)),
        ("spec.proxy.opaquePorts", &["proxy", "opaquePorts"], list(proxy.opaque_ports.as_ref())),
    ]
}

fn resource_fields(kind: &str, amounts: &ResourceAmounts) -> Vec<(Path, Value)> {
    let each = [("cpu", &amounts.cpu), ("memory", &amounts.memory), ("ephemeral-storage", &amounts.ephemeral_storage)];
    let set = each.into_iter().filter_map(|(name, amount)| Some((name, amount.as_ref()?)));
    set.map(|(name, amount)| (Path::from(&["proxy", "resources", name, kind][..]), json!(amount.0))).collect()
}

fn list(items: Option<&Vec<String>>) -> Option<Value> {
    items.map(|items| Value::String(items.join(",")))
}

fn paths<const N: usize>(fields: [(&[&str], Option<Value>); N]) -> Vec<(Path, Value)> {
    fields.into_iter().filter_map(|(keys, value)| Some((Path::from(keys), value?))).collect()
}

#[cfg(test)]
#[path = "overlay_tests.rs"]
mod tests;
