//! Sends the same AdmissionReviews to the operator in place of Linkerd's injector, and to Linkerd's injector.
//!
//! * In: a running replica of each. Out: per review, whether both give the same object; else what both answered.
//! * Always: the whole objects are compared, as the API server would create them, except for the hash of the
//!   configuration, which the operator adds to each proxy.

use std::{fs, time::Duration};

use anyhow::{Context, Result};
use e2e::{
    Injector,
    injector::reviews::{Review, TRUST_ROOTS, request, reviews},
};
use k8s_openapi::ByteString;
use serde_json::{Map, Value, json};
use tokio::time::sleep;

/// The operator reads its files every second.
const READ: Duration = Duration::from_millis(1_500);

/// A review, and both answers.
pub(crate) struct OperatorCompared {
    pub(crate) name: &'static str,
    linkerd: ObjectVerdict,
    operator: ObjectVerdict,
}

/// What becomes of an object.
#[derive(PartialEq)]
enum ObjectVerdict {
    /// The connection was closed without an answer, or the answer cannot be used.
    Broken,
    Denied,
    /// The object that the API server would create.
    Created(Value),
}

/// Compares the answers of the first replicas.
pub(super) async fn compare(linkerd: &Injector, operator: &Injector) -> Result<Vec<OperatorCompared>> {
    let mut compared = Vec::new();
    let mut last = String::new();
    for injector in [linkerd, operator] {
        fs::write(injector.directory(0)?.join("identity/trust-roots/ca-bundle.crt"), TRUST_ROOTS)?;
    }
    for Review { name, document, kind, object, .. } in reviews()? {
        if document != last {
            for injector in [linkerd, operator] {
                let file = injector.directory(0)?.join("config/values");
                fs::write(file, &document).context("writing the document")?;
            }
            sleep(READ).await;
            last = document;
        }
        let body = request(kind, &object).to_string();
        let [linkerd, operator] = [linkerd, operator].map(|injector| verdict(injector, body.clone(), &object));
        compared.push(OperatorCompared { name, linkerd: linkerd.await, operator: operator.await });
    }
    Ok(compared)
}

async fn verdict(injector: &Injector, body: String, object: &Value) -> ObjectVerdict {
    let Ok((_, answer)) = injector.post(0, body).await else { return ObjectVerdict::Broken };
    created(&answer, object).unwrap_or(ObjectVerdict::Broken)
}

/// Applies an answer; `None` if it cannot be used.
fn created(answer: &[u8], object: &Value) -> Option<ObjectVerdict> {
    let answer: Value = serde_json::from_slice(answer).ok()?;
    let response = answer.get("response")?;
    if response.get("allowed") != Some(&json!(true)) {
        return Some(ObjectVerdict::Denied);
    }
    let mut object = object.clone();
    if let Some(patch) = response.get("patch") {
        let ByteString(patch) = serde_json::from_value(patch.clone()).ok()?;
        let patch: json_patch::Patch = serde_json::from_slice(&patch).ok()?;
        json_patch::patch(&mut object, &patch).ok()?;
    }
    Some(ObjectVerdict::Created(kept(object)))
}

/// Returns an object as the API server keeps it: without nulls, and without empty values of variables. And without the
/// hash of the configuration.
fn kept(value: Value) -> Value {
    match value {
        Value::Object(map) => {
            let is_kept = |(key, value): &(String, Value)| !(value.is_null() || key == "value" && *value == "");
            map.into_iter().map(|(key, value)| (key, kept(value))).filter(is_kept).collect::<Map<_, _>>().into()
        }
        Value::Array(items) => {
            let items = items.into_iter().filter(|item| item["name"] != "LINKERD_CONFIG_HASH");
            items.map(kept).collect::<Vec<_>>().into()
        }
        other => other,
    }
}

// === impl OperatorCompared ===

impl OperatorCompared {
    pub(crate) fn is_equal(&self) -> bool {
        self.linkerd == self.operator
    }

    /// Returns whether Linkerd's injector denies an object or closes the connection, for which the operator continues
    /// with its last configuration.
    pub(crate) fn is_of_refused_document(&self) -> bool {
        !matches!(self.linkerd, ObjectVerdict::Created(_)) && matches!(self.operator, ObjectVerdict::Created(_))
    }

    /// Returns how the answers differ.
    pub(crate) fn difference(&self) -> String {
        match (&self.linkerd, &self.operator) {
            (ObjectVerdict::Created(linkerd), ObjectVerdict::Created(operator)) => {
                json_patch::diff(linkerd, operator).to_string()
            }
            (linkerd, operator) => format!("Linkerd {}, the operator {}", linkerd.word(), operator.word()),
        }
    }
}

// === impl ObjectVerdict ===

impl ObjectVerdict {
    fn word(&self) -> &'static str {
        match self {
            Self::Broken => "breaks the connection",
            Self::Denied => "denies the object",
            Self::Created(_) => "allows the object",
        }
    }
}
