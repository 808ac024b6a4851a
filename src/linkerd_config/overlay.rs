//! What a LinkerdConfig says about Linkerd's values, and what comes of it over what is there. Pure.
//!
//! In: a resource, the bundle of trust anchors that the mesh uses, a document. Out: the effective document, and where each of
//! its values is from; or all that is wrong. Always holds: nothing changes that the resource does not name, but the copy of the
//! trust anchors; to lay it over a document twice is to lay it once.

use std::collections::BTreeSet;

use rustls::pki_types::{CertificateDer, pem::PemObject};
use serde_json::{Map, Value, json};

use super::{
    sha256,
    values::{Document, MARKER, Path, Problem, patch_problems},
};
use crate::api::linkerd_config::{
    EnvVar, GlobalSpec, LinkerdConfigSpec, ProxySpec, ResourceAmounts, TrustAnchorsPolicy,
};

/// Of `spec.values`, as JSON.
const LONGEST_PATCH: usize = 128 * 1024;

/// Where an effective value is from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// What the installer wrote.
    Base,
    /// `spec.values`.
    Values,
    /// `spec.global` and `spec.proxy`.
    Typed,
    /// The ConfigMap of the trust anchors.
    TrustRoots,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Overlay {
    patch: Map<String, Value>,
    /// Each path once, none above another.
    typed: Vec<(Path, Value)>,
    /// Merged by name: variables of others stay.
    environment: Vec<EnvVar>,
    anchors: Option<Anchors>,
}

/// The certificates that the mesh trusts.
#[derive(Clone, Debug, PartialEq)]
struct Anchors {
    pem: String,
    source: Source,
}

// === impl Source ===

impl Source {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Base => "base",
            Self::Values => "spec.values",
            Self::Typed => "spec",
            Self::TrustRoots => "trust roots",
        }
    }
}

// === impl Overlay ===

impl Overlay {
    /// # Errors
    /// All that the schema could not judge, at once; with what is wrong over a document, where there is one.
    pub fn of(
        spec: &LinkerdConfigSpec,
        bundle: Option<&str>,
        document: Option<&Document>,
    ) -> Result<Self, Vec<Problem>> {
        let (overlay, mut problems) = Self::read(spec, bundle);
        if problems.is_empty() {
            return Ok(overlay);
        }
        if let Some(document) = document {
            let effective = overlay.over(document);
            for problem in effective.problems() {
                let known = problems.iter().any(|known| known.path == problem.path);
                if !known && overlay.source(&problem.path, &effective) != Source::Base {
                    problems.push(problem);
                }
            }
        }
        Err(problems)
    }

    fn read(spec: &LinkerdConfigSpec, bundle: Option<&str>) -> (Self, Vec<Problem>) {
        let patch = spec.values.clone().unwrap_or_default();
        let mut problems = patch_problems(&patch);
        let length = serde_json::to_string(&patch).map_or(usize::MAX, |text| text.len());
        if length > LONGEST_PATCH {
            let reason = format!("it has {length} bytes, and may have {LONGEST_PATCH}");
            problems.push(problem(&["spec", "values"], "", reason));
        }
        let typed = [of_global(&spec.global), of_proxy(&spec.proxy)].concat();
        let environment = spec.proxy.additional_env.clone().unwrap_or_default();
        let named = leaves(&patch);
        let owned = typed.iter().map(|(path, _)| path.clone()).chain(environment.first().map(|_| environment_path()));
        for path in owned {
            if let Some(twice) = named.iter().find(|it| it.starts_with(&path) || path.starts_with(it)) {
                let reason = format!("spec.values and a field of the resource both set it ({twice}): keep one of them");
                problems.push(Problem { path, value: String::new(), reason });
            }
        }
        let of_patch = patch.get("proxy").and_then(|proxy| proxy.get("additionalEnv")).and_then(Value::as_array);
        let mut names = of_patch.into_iter().flatten().filter_map(|variable| variable.get("name")?.as_str());
        if names.any(|name| name == MARKER) || environment.iter().any(|variable| variable.name == MARKER) {
            let reason = "the operator sets this variable: it says what a proxy was injected with";
            problems.push(Problem { path: environment_path(), value: MARKER.to_owned(), reason: reason.to_owned() });
        }
        let anchors = anchors(spec, bundle).map_err(|problem| problems.push(problem)).ok().flatten();
        (Self { patch, typed, environment, anchors }, problems)
    }

    /// The effective document.
    pub fn over(&self, base: &Document) -> Document {
        let mut document = base.clone();
        document.merge(&self.patch);
        for (path, value) in &self.typed {
            document.set(path, value.clone());
        }
        if !self.environment.is_empty() {
            let known = document.get(&environment_path()).cloned();
            document.set(&environment_path(), merged(known, &self.environment));
        }
        if let Some(anchors) = &self.anchors
            && !has_external_ca(&document)
            && document.get(&anchors_path()).and_then(Value::as_str).map(str::trim) != Some(anchors.pem.trim())
        {
            // Linkerd trims it as well: what stands around the certificates is no reason to write.
            document.set(&anchors_path(), json!(format!("{}\n", anchors.pem.trim())));
        }
        document
    }

    /// The effective document where another was in effect before. While nobody says which trust anchors the mesh uses the last
    /// ones stay: those that the installer was given may be old by now, and to go back to them would cut the mesh in two.
    pub fn after(&self, last: &Document, base: &Document) -> Document {
        let mut document = self.over(base);
        if let (None, false, Some(anchors)) = (&self.anchors, has_external_ca(&document), last.get(&anchors_path())) {
            document.set(&anchors_path(), anchors.clone());
        }
        document
    }

    /// Where the value of a path in the effective document is from.
    pub fn source(&self, path: &Path, effective: &Document) -> Source {
        let named = |it: &Path| it.starts_with(path) || path.starts_with(it);
        match &self.anchors {
            Some(anchors) if *path == anchors_path() && !has_external_ca(effective) => anchors.source,
            _ if self.typed.iter().any(|(it, _)| named(it)) => Source::Typed,
            _ if !self.environment.is_empty() && named(&environment_path()) => Source::Typed,
            _ if leaves(&self.patch).iter().any(named) => Source::Values,
            _ => Source::Base,
        }
    }

    /// What the resource names, and the copy of the trust anchors.
    pub fn paths(&self) -> impl Iterator<Item = Path> {
        let typed = self.typed.iter().map(|(path, _)| path.clone());
        let environment = self.environment.first().map(|_| environment_path());
        let anchors = self.anchors.as_ref().map(|_| anchors_path());
        leaves(&self.patch).into_iter().chain(typed).chain(environment).chain(anchors)
    }

    /// Where the trust anchors are from that the document copies; `None` where nobody says any.
    pub fn anchors_source(&self) -> Option<Source> {
        self.anchors.as_ref().map(|anchors| anchors.source)
    }
}

/// The fields of the resource that are accepted and do nothing any more.
pub fn deprecated(spec: &LinkerdConfigSpec) -> Vec<String> {
    let image = &spec.proxy.proxy_init_image;
    [
        ("spec.global.omitWebhookSideEffects", spec.global.omit_webhook_side_effects.is_some()),
        ("spec.proxy.proxyInitImage", image.name.is_some() || image.pull_policy.is_some()),
        ("spec.proxy.proxyInitImageVersion", spec.proxy.proxy_init_image_version.is_some()),
    ]
    .into_iter()
    .filter(|(_, set)| *set)
    .map(|(field, _)| field.to_owned())
    .collect()
}

/// The version of the proxies that a document has injected.
pub fn proxy_version(document: &Document) -> Option<String> {
    let text = |keys: &[&str]| document.get(&Path::from(keys)).and_then(Value::as_str).filter(|text| !text.is_empty());
    text(&["proxy", "image", "version"]).or_else(|| text(&["linkerdVersion"])).map(str::to_owned)
}

/// The SHA-256 of each certificate in a bundle, as far as it can be read, in the order of the bundle.
pub fn fingerprints(bundle: &str) -> Vec<String> {
    const MOST: usize = 50;
    let certificates = CertificateDer::pem_slice_iter(bundle.as_bytes()).filter_map(Result::ok);
    certificates.take(MOST).map(|certificate| sha256(&certificate)).collect()
}

fn environment_path() -> Path {
    Path::from(&["proxy", "additionalEnv"][..])
}

fn anchors_path() -> Path {
    Path::from(&["identityTrustAnchorsPEM"][..])
}

/// Then another keeps the trust anchors, and the document has no copy.
fn has_external_ca(document: &Document) -> bool {
    document.get(&Path::from(&["identity", "externalCA"][..])) == Some(&Value::Bool(true))
}

fn leaves(patch: &Map<String, Value>) -> Vec<Path> {
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

/// Variables by name; of a name that is there already, in its place.
fn merged(known: Option<Value>, variables: &[EnvVar]) -> Value {
    let mut merged = match known {
        Some(Value::Array(known)) => known,
        _ => Vec::new(),
    };
    for variable in variables {
        let value = serde_json::to_value(variable).unwrap_or_default();
        match merged.iter_mut().find(|it| it.get("name").and_then(Value::as_str) == Some(&variable.name)) {
            Some(known) => *known = value,
            None => merged.push(value),
        }
    }
    Value::Array(merged)
}

/// The bundle that is in use comes first: what the resource brings is compared with it, or is the last resort. A bundle that
/// holds no certificate is none: nobody could use it.
fn anchors(spec: &LinkerdConfigSpec, bundle: Option<&str>) -> Result<Option<Anchors>, Problem> {
    const FIELD: [&str; 4] = ["spec", "global", "identityContext", "trustAnchorsPEM"];
    let context = &spec.global.identity_context;
    let given = context.trust_anchors_pem.as_deref().filter(|pem| !pem.trim().is_empty());
    let brought = given.map(certificates).transpose().map_err(|reason| problem(&FIELD, "", reason))?;
    let bundle = bundle.and_then(|bundle| Some((bundle, certificates(bundle).ok()?)));
    match (context.trust_anchors_policy, given.zip(brought), bundle) {
        (TrustAnchorsPolicy::Verify, Some((_, brought)), Some((_, trusted))) if brought != trusted => {
            Err(problem(&FIELD, "", "the mesh trusts others: linkerd-identity-trust-roots holds another bundle"))
        }
        (TrustAnchorsPolicy::Verify, Some(_), None) => {
            Err(problem(&FIELD, "", "there is no ConfigMap linkerd-identity-trust-roots to compare it with"))
        }
        (_, _, Some((bundle, _))) => Ok(Some(Anchors { pem: bundle.to_owned(), source: Source::TrustRoots })),
        (_, Some((given, _)), None) => Ok(Some(Anchors { pem: given.to_owned(), source: Source::Typed })),
        (_, None, None) => Ok(None),
    }
}

/// Whatever their order, and what else is written between them.
fn certificates(pem: &str) -> Result<BTreeSet<Vec<u8>>, String> {
    let found: Result<BTreeSet<Vec<u8>>, _> =
        CertificateDer::pem_slice_iter(pem.as_bytes()).map(|it| it.map(|certificate| certificate.to_vec())).collect();
    match found {
        Ok(found) if found.is_empty() => Err("it holds no certificate".to_owned()),
        Ok(found) => Ok(found),
        Err(error) => Err(format!("it is no PEM of certificates: {error}")),
    }
}

fn of_global(global: &GlobalSpec) -> Vec<(Path, Value)> {
    let context = &global.identity_context;
    let text = |value: &Option<String>| value.clone().map(Value::String);
    let flag = |value: Option<bool>| value.map(Value::Bool);
    paths([
        (&["linkerdVersion"], text(&global.version)),
        (&["clusterDomain"], text(&global.cluster_domain)),
        (&["clusterNetworks"], list(global.cluster_networks.as_ref())),
        (&["cniEnabled"], flag(global.cni_enabled)),
        (&["disableIPv6"], flag(global.disable_ipv6)),
        (&["identityTrustDomain"], text(&context.trust_domain)),
        (&["identity", "issuer", "issuanceLifetime"], text(&context.issuance_life_time)),
        (&["identity", "issuer", "clockSkewAllowance"], text(&context.clock_skew_allowance)),
        (&["identity", "issuer", "scheme"], text(&context.scheme)),
    ])
}

fn of_proxy(proxy: &ProxySpec) -> Vec<(Path, Value)> {
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
        (&["proxy", "opaquePorts"], list(proxy.opaque_ports.as_ref())),
        (&["proxy", "enableExternalProfiles"], flag(proxy.disable_external_profiles.map(|disabled| !disabled))),
        (&["proxy", "accessLog"], text(&proxy.access_log)),
        (&["proxy", "defaultInboundPolicy"], text(&proxy.default_inbound_policy)),
        (&["proxy", "nativeSidecar"], flag(proxy.native_sidecar)),
        (&["proxy", "await"], flag(proxy.await_)),
        (&["proxy", "shutdownGracePeriod"], text(&proxy.shutdown_grace_period)),
        (&["proxy", "inboundConnectTimeout"], text(&proxy.inbound_connect_timeout)),
        (&["proxy", "outboundConnectTimeout"], text(&proxy.outbound_connect_timeout)),
    ]);
    let amounts = [("request", &proxy.resource.requests), ("limit", &proxy.resource.limits)];
    typed.into_iter().chain(amounts.into_iter().flat_map(|(kind, amounts)| of_amounts(kind, amounts))).collect()
}

fn of_amounts(kind: &str, amounts: &ResourceAmounts) -> Vec<(Path, Value)> {
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
