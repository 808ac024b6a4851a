//! Decodes a ServiceProfile as strictly as Linkerd's validator, and with its errors. Pure.
//!
//! In: the text of an object. Out: its name and its spec, or the first error in Go's words.

use k8s_openapi::jiff::Timestamp;
use serde_json::{Value, value::RawValue};

use crate::{
    api::{ServiceProfileSpec, quantity::Quantity},
    go::decode::{FieldShape, ObjectShape, Shape, decode},
};

/// The parts of a ServiceProfile that the rules examine.
#[derive(Debug, Default)]
pub(super) struct DecodedProfile {
    pub(super) name: String,
    pub(super) namespace: String,
    pub(super) spec: ServiceProfileSpec,
}

static SERVICE_PROFILE: ObjectShape = linkerd(
    "ServiceProfile",
    &[
        ("apiVersion", Shape::EmbeddedText("TypeMeta")),
        ("kind", Shape::EmbeddedText("TypeMeta")),
        ("metadata", Shape::Object(&METADATA)),
        ("spec", Shape::Object(&SPEC)),
    ],
);

static METADATA: ObjectShape = apimachinery(
    "ObjectMeta",
    &[
        ("annotations", Shape::Texts),
        ("creationTimestamp", Shape::Own(is_time)),
        ("deletionGracePeriodSeconds", Shape::Int64),
        ("deletionTimestamp", Shape::Own(is_time)),
        ("finalizers", Shape::List(&Shape::Text)),
        ("generateName", Shape::Text),
        ("generation", Shape::Int64),
        ("labels", Shape::Texts),
        ("managedFields", Shape::List(&Shape::Object(&MANAGED_FIELDS))),
        ("name", Shape::Text),
        ("namespace", Shape::Text),
        ("ownerReferences", Shape::List(&Shape::Object(&OWNER_REFERENCE))),
        ("resourceVersion", Shape::Text),
        ("selfLink", Shape::Text),
        ("uid", Shape::Text),
    ],
);

static OWNER_REFERENCE: ObjectShape = apimachinery(
    "OwnerReference",
    &[
        ("apiVersion", Shape::Text),
        ("blockOwnerDeletion", Shape::Bool),
        ("controller", Shape::Bool),
        ("kind", Shape::Text),
        ("name", Shape::Text),
        ("uid", Shape::Text),
    ],
);

static MANAGED_FIELDS: ObjectShape = apimachinery(
    "ManagedFieldsEntry",
    &[
        ("apiVersion", Shape::Text),
        ("fieldsType", Shape::Text),
        ("fieldsV1", Shape::Anything),
        ("manager", Shape::Text),
        ("operation", Shape::Text),
        ("subresource", Shape::Text),
        ("time", Shape::Own(is_time)),
    ],
);

static SPEC: ObjectShape = linkerd(
    "ServiceProfileSpec",
    &[
        ("dstOverrides", Shape::List(&Shape::Object(&WEIGHTED_DST))),
        ("opaquePorts", Shape::Ports),
        ("retryBudget", Shape::Object(&RETRY_BUDGET)),
        ("routes", Shape::List(&Shape::Object(&ROUTE))),
    ],
);

static ROUTE: ObjectShape = linkerd(
    "RouteSpec",
    &[
        ("condition", Shape::Object(&REQUEST_MATCH)),
        ("isRetryable", Shape::Bool),
        ("name", Shape::Text),
        ("responseClasses", Shape::List(&Shape::Object(&RESPONSE_CLASS))),
        ("timeout", Shape::Text),
    ],
);

static REQUEST_MATCH: ObjectShape = linkerd(
    "RequestMatch",
    &[
        ("all", Shape::List(&Shape::Object(&REQUEST_MATCH))),
        ("any", Shape::List(&Shape::Object(&REQUEST_MATCH))),
        ("method", Shape::Text),
        ("not", Shape::Object(&REQUEST_MATCH)),
        ("pathRegex", Shape::Text),
    ],
);

static RESPONSE_MATCH: ObjectShape = linkerd(
    "ResponseMatch",
    &[
        ("all", Shape::List(&Shape::Object(&RESPONSE_MATCH))),
        ("any", Shape::List(&Shape::Object(&RESPONSE_MATCH))),
        ("not", Shape::Object(&RESPONSE_MATCH)),
        ("status", Shape::Object(&STATUS_RANGE)),
    ],
);

static RESPONSE_CLASS: ObjectShape =
    linkerd("ResponseClass", &[("condition", Shape::Object(&RESPONSE_MATCH)), ("isFailure", Shape::Bool)]);

static STATUS_RANGE: ObjectShape = linkerd("Range", &[("max", Shape::Uint32), ("min", Shape::Uint32)]);

static RETRY_BUDGET: ObjectShape = linkerd(
    "RetryBudget",
    &[("minRetriesPerSecond", Shape::Uint32), ("retryRatio", Shape::Float32), ("ttl", Shape::Text)],
);

static WEIGHTED_DST: ObjectShape =
    linkerd("WeightedDst", &[("authority", Shape::Text), ("weight", Shape::Own(is_quantity))]);

const fn linkerd(name: &'static str, fields: &'static [FieldShape]) -> ObjectShape {
    ObjectShape { package: "v1alpha2", name, fields }
}

const fn apimachinery(name: &'static str, fields: &'static [FieldShape]) -> ObjectShape {
    ObjectShape { package: "v1", name, fields }
}

/// Decodes an object; without one, as for the review of a deletion, an empty ServiceProfile.
///
/// # Errors
/// Returns the text of the first error.
pub(super) fn decoded_profile(object: Option<&RawValue>) -> Result<DecodedProfile, String> {
    let mut decoded = decode(object.map_or("null", RawValue::get), &SERVICE_PROFILE)?;
    let text = |key: &str| decoded.pointer(key).and_then(Value::as_str).unwrap_or_default().to_owned();
    let (name, namespace) = (text("/metadata/name"), text("/metadata/namespace"));
    let spec = decoded.get_mut("spec").map(Value::take).unwrap_or_default();
    let spec: Option<ServiceProfileSpec> = serde_json::from_value(spec).map_err(|error| error.to_string())?;
    Ok(DecodedProfile { name, namespace, spec: spec.unwrap_or_default() })
}

fn is_time(value: &Value) -> Result<bool, String> {
    let Some(text) = value.as_str() else { return Ok(false) };
    let unusable = |_| format!("parsing time {text:?} as \"2006-01-02T15:04:05Z07:00\": it is not such a time");
    text.parse::<Timestamp>().map(|_| true).map_err(unusable)
}

/// Checks that a value is a Kubernetes quantity. Linkerd's decoder also accepts one without digits, which counts as 0.
fn is_quantity(value: &Value) -> Result<bool, String> {
    const FORM: &str = "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'";
    const SUFFIX: &str = "unable to parse quantity's suffix";
    let text = match value {
        Value::Number(number) => number.to_string(),
        // Blanks around it are ignored.
        Value::String(text) => text.trim().to_owned(),
        _ => return Err(FORM.to_owned()),
    };
    let digits = |c: char| c.is_ascii_digit();
    let unsigned = text.strip_prefix(['+', '-']).unwrap_or(&text);
    let fraction = unsigned.trim_start_matches(digits);
    let suffix = fraction.strip_prefix('.').unwrap_or(fraction).trim_start_matches(digits);
    let exponent = suffix.trim_start_matches(|c| "eEinumkKMGTP".contains(c));
    let rest = exponent.strip_prefix(['+', '-']).unwrap_or(exponent).trim_start_matches(digits);
    if text.is_empty() || !rest.is_empty() {
        return Err(FORM.to_owned());
    }
    // The suffix decides; a number of any size is accepted.
    format!("0{suffix}").parse::<Quantity>().map(|_| true).map_err(|_| SUFFIX.to_owned())
}
