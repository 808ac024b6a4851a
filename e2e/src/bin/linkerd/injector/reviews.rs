//! Sends the same AdmissionReviews to the stand-in and to Linkerd's injector.
//!
//! * In: a running replica of Linkerd's injector. Out: per review what both answered, as far as the operator, its tests
//!   and its documentation rely on it.
//! * Always: both have the same values document and the same trust roots.

use std::{collections::BTreeMap, fs};

use anyhow::{Context, Result};
use e2e::{
    Injector,
    injector::{
        reviews::{Review, TRUST_ROOTS, request, reviews},
        stand_in_answer,
    },
};
use k8s_openapi::ByteString;
use serde_json::{Value, json};

use super::scene::LINKERD;

/// A review, and what was seen of both answers.
pub(crate) struct Compared {
    pub(crate) name: &'static str,
    pub(crate) stand_in: SeenAnswer,
    pub(crate) linkerd: SeenAnswer,
}

/// An answer.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum SeenAnswer {
    /// The connection was closed without an answer.
    Broken,
    Denied,
    /// Allowed without a proxy.
    Uninjected,
    Injected(Box<Injected>),
}

/// The injected proxy.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Injected {
    /// The list that has the proxy, and its position there.
    pub(crate) place: (&'static str, usize),
    pub(crate) image: Value,
    pub(crate) pull_policy: Value,
    pub(crate) restart_policy: Value,
    pub(crate) user: Value,
    pub(crate) group: Value,
    pub(crate) log: Value,
    /// The value of LINKERD_CONFIG_HASH.
    pub(crate) marker: Value,
    /// The name of the last variable of the environment.
    pub(crate) last_variable: Value,
    /// Linkerd's annotations, without `config.linkerd.io`.
    pub(crate) annotations: BTreeMap<String, Value>,
    /// The namespaces in labels.
    pub(crate) labels: BTreeMap<String, Value>,
}

pub(super) async fn compare(injector: &Injector) -> Result<Vec<Compared>> {
    let folder = injector.directory(0)?;
    fs::write(folder.join("identity/trust-roots/ca-bundle.crt"), TRUST_ROOTS)?;
    let mut compared = Vec::new();
    for Review { name, document, kind, object, .. } in reviews()? {
        fs::write(folder.join("config/values"), &document).context("writing the document")?;
        let body = request(kind, &object).to_string();
        let linkerd = match injector.post(0, body.clone()).await {
            Ok((_, answer)) => seen(&serde_json::from_slice(&answer)?, &object).context(name)?,
            Err(_) => SeenAnswer::Broken,
        };
        let stand_in = match stand_in_answer(body.as_bytes(), &document, TRUST_ROOTS, LINKERD)? {
            Some(answer) => seen(&answer, &object).context(name)?,
            None => SeenAnswer::Broken,
        };
        compared.push(Compared { name, stand_in, linkerd });
    }
    Ok(compared)
}

/// Applies the answer to the object.
pub(super) fn seen(answer: &Value, object: &Value) -> Result<SeenAnswer> {
    let response = answer.get("response").context("no response")?;
    if response.get("allowed") != Some(&json!(true)) {
        return Ok(SeenAnswer::Denied);
    }
    let Some(patch) = response.get("patch") else { return Ok(SeenAnswer::Uninjected) };
    let ByteString(patch) = serde_json::from_value(patch.clone())?;
    let mut patched = object.clone();
    let patch: json_patch::Patch = serde_json::from_slice(&patch).context("the patch is not JSON")?;
    json_patch::patch(&mut patched, &patch).context("the patch cannot be applied")?;
    let lists = ["initContainers", "containers"].into_iter();
    let containers = lists.flat_map(|list| {
        let of_list = patched.pointer(&format!("/spec/{list}")).and_then(Value::as_array).into_iter().flatten();
        of_list.enumerate().map(move |(at, container)| ((list, at), container))
    });
    let is_proxy = |container: &Value| container.get("name") == Some(&json!("linkerd-proxy"));
    let had = |list: &str| {
        object.pointer(&format!("/spec/{list}")).and_then(Value::as_array).is_some_and(|it| it.iter().any(is_proxy))
    };
    let found = containers.into_iter().find(|(_, container)| is_proxy(container));
    let Some((place, proxy)) = found.filter(|_| !had("containers") && !had("initContainers")) else {
        return Ok(SeenAnswer::Uninjected);
    };
    let field = |pointer: &str| proxy.pointer(pointer).cloned().unwrap_or_default();
    let env: Vec<&Value> = proxy.get("env").and_then(Value::as_array).into_iter().flatten().collect();
    let variable =
        |name: &str| env.iter().find(|it| it.get("name") == Some(&json!(name))).and_then(|it| it.get("value"));
    let metadata = |map: &str, prefix: &str| -> BTreeMap<String, Value> {
        let map = patched.pointer(&format!("/metadata/{map}")).and_then(Value::as_object).into_iter().flatten();
        map.filter(|(key, _)| key.starts_with(prefix)).map(|(key, value)| (key.clone(), value.clone())).collect()
    };
    Ok(SeenAnswer::Injected(Box::new(Injected {
        place,
        image: field("/image"),
        pull_policy: field("/imagePullPolicy"),
        restart_policy: field("/restartPolicy"),
        user: field("/securityContext/runAsUser"),
        group: field("/securityContext/runAsGroup"),
        log: variable("LINKERD2_PROXY_LOG").cloned().unwrap_or_default(),
        marker: variable("LINKERD_CONFIG_HASH").cloned().unwrap_or_default(),
        last_variable: env.last().and_then(|last| last.get("name")).cloned().unwrap_or_default(),
        annotations: metadata("annotations", "linkerd.io/"),
        labels: metadata("labels", "linkerd.io/"),
    })))
}
