//! The schemas of the fields of our custom resources, and their CEL rules with error messages.
//!
//! Every string and list has a maximum length: the API server estimates the worst-case cost of all rules, and rejects a
//! schema that exceeds its budget.

use kube::core::Rule;
use schemars::{JsonSchema as _, Schema, SchemaGenerator, json_schema, transform::transform_subschemas};
use serde_json::{Value, json};

use crate::api::INJECTORS_CONFIG_MAP;

const PORT_OR_RANGE: &str =
    "self.matches('^[0-9]{1,5}(-[0-9]{1,5})?$') && self.split('-').all(port, int(port) >= 1 && int(port) <= 65535)";
const ORDERED: &str = "!self.matches('^[0-9]{1,5}-[0-9]{1,5}$') || int(self.split('-')[0]) <= int(self.split('-')[1])";
const PORTS_OF_THE_PROXY: [&str; 4] = ["adminPort", "controlPort", "inboundPort", "outboundPort"];
/// The names of resources in JSON paths and in CEL.
const RESOURCES: [(&str, &str); 3] =
    [(".cpu", "cpu"), (".memory", "memory"), ("['ephemeral-storage']", "ephemeral__dash__storage")];

/// Returns whether a value is the default, for `skip_serializing_if`.
pub(in crate::api) fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// Adapts a schema to the API server and `kubectl explain`. No field accepts null, because the API server then reads a
/// null as absent; each paragraph of documentation is one line.
pub(in crate::api) fn tidy(schema: &mut Schema) {
    transform_subschemas(&mut tidy, schema);
    let not_null = |schema: &Value| schema.get("type").is_none_or(|kind| kind != "null");
    if let Some(Value::Array(kinds)) = schema.get_mut("type") {
        kinds.retain(|kind| kind != "null");
        if let [kind] = kinds.as_slice() {
            let kind = kind.clone();
            schema.insert("type".to_owned(), kind);
        }
    }
    if let Some(Value::Array(values)) = schema.get_mut("enum") {
        values.retain(|value| !value.is_null());
    }
    if let Some(Value::Array(alternatives)) = schema.remove("anyOf")
        && let Some(Value::Object(only)) = alternatives.into_iter().find(not_null)
    {
        for (key, value) in only {
            schema.ensure_object().entry(key).or_insert(value);
        }
    }
    if let Some(Value::String(text)) = schema.get_mut("description") {
        let paragraphs: Vec<String> = text.split("\n\n").map(|paragraph| paragraph.replace('\n', " ")).collect();
        *text = paragraphs.join("\n\n");
    }
}

// === Kinds of values ===

pub(in crate::api) fn target_namespace(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": "string", "maxLength": 63, "x-kubernetes-validations": [
        immutable(),
        namespace_rule(),
    ]})
}

pub(in crate::api) fn namespace(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": "string", "maxLength": 63, "x-kubernetes-validations": [namespace_rule()]})
}

/// The only ConfigMap that Linkerd reads.
pub(in crate::api) fn target_config_map(_: &mut SchemaGenerator) -> Schema {
    one_of(&[INJECTORS_CONFIG_MAP])
}

pub(in crate::api) fn version(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": "string", "maxLength": 128, "x-kubernetes-validations": [
        rule(
            "self.matches('^[A-Za-z0-9._-]+$')",
            "must be a version such as edge-26.8.3: letters, digits, '.', '_' and '-'",
        ),
    ]})
}

pub(in crate::api) fn domain(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": "string", "maxLength": 253, "x-kubernetes-validations": [
        rule(
            "self.matches('^[a-z0-9]([-.a-z0-9]*[a-z0-9])?$')",
            "must be a domain such as cluster.local: lower case letters, digits, '-' and '.'",
        ),
    ]})
}

pub(in crate::api) fn certificates(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": "string", "maxLength": 131_072, "x-kubernetes-validations": [
        rule(
            "self.contains('PRIVATE KEY-----') || self.startsWith('-----BEGIN CERTIFICATE-----')",
            "must begin with -----BEGIN CERTIFICATE-----",
        ),
        // With the reason Forbidden the message does not repeat the value.
        {
            "rule": "!self.contains('PRIVATE KEY-----')",
            "message": "must contain only certificates, and no private key",
            "reason": "FieldValueForbidden",
        },
    ]})
}

pub(in crate::api) fn kind(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": "string", "maxLength": 63, "x-kubernetes-validations": [
        rule("self.matches('^[A-Z][A-Za-z0-9]*$')", "must be a kind, such as Deployment"),
    ]})
}

pub(in crate::api) fn object_name(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": "string", "maxLength": 253, "x-kubernetes-validations": [
        rule("self.matches('^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$')", "must be the name of an object"),
    ]})
}

pub(in crate::api) fn sha256(_: &mut SchemaGenerator) -> Schema {
    // With colons, as openssl prints it, it has 95 characters.
    json_schema!({"type": "string", "maxLength": 128, "x-kubernetes-validations": [
        rule("self.matches('^[0-9a-f]{64}$')", "must be a SHA-256: 64 of the digits 0 to 9 and a to f, without colons"),
    ]})
}

/// A Go duration that is not negative.
pub(in crate::api) fn duration(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": "string", "maxLength": 64, "x-kubernetes-validations": [
        rule(
            "self == '0' || self.matches('^(([0-9]+([.][0-9]*)?|[.][0-9]+)(ns|us|µs|μs|ms|s|m|h))+$')",
            "must be a Go duration, such as 24h0m0s, 90s or 1.5h",
        ),
    ]})
}

/// A Go duration that is greater than zero.
pub(in crate::api) fn some_time(generator: &mut SchemaGenerator) -> Schema {
    with_rule(
        duration(generator),
        rule("!self.matches('^[0-9.nuµμmsh]+$') || self.matches('[1-9]')", "must be greater than zero"),
    )
}

/// The duration of a window. A text that is not a duration is rejected by the rules above; this rule skips it, because
/// `duration()` would be an evaluation error.
pub(in crate::api) fn window_duration(generator: &mut SchemaGenerator) -> Schema {
    with_rule(
        some_time(generator),
        rule(
            "!self.matches('^([0-9]{1,5}([.][0-9]{1,9})?(ns|us|ms|s|m|h))+$') || duration(self) <= duration('168h')",
            "must not be longer than seven days, 168h",
        ),
    )
}

/// A duration that Go and the proxy parse to the same value.
pub(in crate::api) fn proxy_duration(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": "string", "maxLength": 16, "x-kubernetes-validations": [
        rule(
            "self.matches('^[0-9]+(ms|s|m|h)$')",
            "must be a whole number with one unit, such as 500ms, 30s, 2m or 1h, because proxies read no other form",
        ),
    ]})
}

pub(in crate::api) fn image_name(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": "string", "maxLength": 512, "x-kubernetes-validations": [
        rule("self.matches('^[^ \\\\t\\\\r\\\\n]+$')", "must be the name of an image, without white space"),
    ]})
}

pub(in crate::api) fn pull_policy(_: &mut SchemaGenerator) -> Schema {
    one_of(&["Always", "IfNotPresent", "Never"])
}

pub(in crate::api) fn ignored_text(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": "string", "maxLength": 512})
}

pub(in crate::api) fn log_level(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": "string", "minLength": 1, "maxLength": 2048})
}

pub(in crate::api) fn log_format(_: &mut SchemaGenerator) -> Schema {
    one_of(&["plain", "json"])
}

pub(in crate::api) fn access_log(_: &mut SchemaGenerator) -> Schema {
    one_of(&["", "apache", "json"])
}

pub(in crate::api) fn inbound_policy(_: &mut SchemaGenerator) -> Schema {
    one_of(&[
        "all-unauthenticated",
        "all-authenticated",
        "cluster-unauthenticated",
        "cluster-authenticated",
        "deny",
        "audit",
    ])
}

pub(in crate::api) fn port(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": "integer", "format": "int64", "minimum": 1, "maximum": 65535})
}

/// A user ID or group ID that Kubernetes accepts.
pub(in crate::api) fn id(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": "integer", "format": "int64", "minimum": 0, "maximum": i32::MAX})
}

pub(in crate::api) fn ports(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": "array", "maxItems": 256, "x-kubernetes-list-type": "atomic", "items": {
        "type": "string", "maxLength": 11, "x-kubernetes-validations": [
            rule(
                PORT_OR_RANGE,
                "must be a port such as 4567, or a range of ports such as 8000-8010; ports are from 1 to 65535",
            ),
            rule(ORDERED, "must be a range that does not end before its start"),
        ],
    }})
}

pub(in crate::api) fn networks(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": "array", "maxItems": 128, "x-kubernetes-list-type": "atomic", "items": {
        "type": "string", "maxLength": 49, "x-kubernetes-validations": [
            rule("isCIDR(self)", "must be a network in CIDR notation, such as 10.0.0.0/8 or fd00::/8"),
        ],
    }})
}

pub(in crate::api) fn quantity(_: &mut SchemaGenerator) -> Schema {
    // Set explicitly, because kube would make it nullable.
    json_schema!({"x-kubernetes-int-or-string": true, "nullable": false, "maxLength": 32, "x-kubernetes-validations": [
        rule(
            "isQuantity(string(self)) && !quantity(string(self)).isLessThan(quantity('0'))",
            "must be a quantity that is not negative, such as 100m, 1 or 250Mi",
        ),
    ]})
}

/// A number of workloads, or a percentage of them.
pub(in crate::api) fn number_or_percentage(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"x-kubernetes-int-or-string": true, "nullable": false, "maxLength": 8, "x-kubernetes-validations": [
        rule(
            "type(self) == int ? self >= 1 && self <= 10000 : self.matches('^(100|[1-9][0-9]?)%$')",
            "must be a number from 1 to 10000, or a percentage from 1% to 100%",
        ),
    ]})
}

pub(in crate::api) fn count(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": "integer", "format": "int64", "minimum": 1, "maximum": 10_000})
}

/// One or more of these values, without duplicates.
pub(in crate::api) fn some_of(values: &[&str]) -> Schema {
    json_schema!({
        "type": "array", "minItems": 1, "maxItems": values.len(), "x-kubernetes-list-type": "set",
        "items": one_of(values),
    })
}

pub(in crate::api) fn time_zone(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": "string", "maxLength": 64, "x-kubernetes-validations": [
        rule(
            "self.matches('^[A-Za-z0-9_+-]+(/[A-Za-z0-9_+-]+)*$')",
            "must be the name of a time zone, such as UTC or Europe/Berlin",
        ),
    ]})
}

pub(in crate::api) fn cron(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": "string", "maxLength": 256, "x-kubernetes-validations": [
        rule(
            "self.matches('^[0-9A-Za-z*,/-]+( +[0-9A-Za-z*,/-]+){4}$')",
            "must be the five fields of a cron expression: minute, hour, day of month, month and day of week",
        ),
    ]})
}

pub(in crate::api) fn label_selector(_: &mut SchemaGenerator) -> Schema {
    let text = |length: u32| json!({"type": "string", "maxLength": length});
    let key = json!({"type": "string", "minLength": 1, "maxLength": 317, "x-kubernetes-validations": [rule(
        "self.matches('^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$')",
        "must be a label key",
    )]});
    let values = json!({"type": "array", "maxItems": 64, "x-kubernetes-list-type": "atomic", "items": text(63)});
    let properties = json!({
        "key": described("The key of the label.", key),
        "operator": described(
            "The relation of the label to the values: In, NotIn, Exists or DoesNotExist.",
            one_of(&["In", "NotIn", "Exists", "DoesNotExist"]).to_value(),
        ),
        "values": described("The values, for In and NotIn only.", values),
    });
    let labels = json!({"type": "object", "maxProperties": 32, "additionalProperties": text(63)});
    let expressions = json!({
        "type": "array", "maxItems": 32, "x-kubernetes-list-type": "atomic",
        "items": {
            "type": "object", "required": ["key", "operator"], "properties": properties,
            "x-kubernetes-validations": [
                {
                    "rule": "!(self.operator in ['In', 'NotIn']) || has(self.values) && size(self.values) > 0",
                    "message": "must contain at least one value for In and NotIn", "fieldPath": ".values",
                },
                {
                    "rule": "self.operator in ['In', 'NotIn'] || !has(self.values) || size(self.values) == 0",
                    "message": "must not be set with Exists and DoesNotExist", "fieldPath": ".values",
                },
            ],
        },
    });
    json_schema!({"type": "object", "x-kubernetes-map-type": "atomic", "properties": {
        "matchLabels": described("The labels that must be present, with these values.", labels),
        "matchExpressions": described("Further requirements for the labels. All of them must be met.", expressions),
    }})
}

/// A label selector that does not select everything.
pub(in crate::api) fn some_label_selector(generator: &mut SchemaGenerator) -> Schema {
    let mut schema = label_selector(generator);
    let is_not_empty = rule(
        "has(self.matchLabels) && size(self.matchLabels) > 0 || has(self.matchExpressions) && size(self.matchExpressions) > 0",
        "must not be empty",
    );
    schema.insert("x-kubernetes-validations".to_owned(), json!([is_not_empty]));
    schema
}

pub(in crate::api) fn env_name(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": "string", "maxLength": 256, "x-kubernetes-validations": [
        rule(
            "self.matches('^[-._a-zA-Z][-._a-zA-Z0-9]*$')",
            "must be the name of an environment variable: letters, digits, '_', '-' and '.', not beginning with a digit",
        ),
    ]})
}

pub(in crate::api) fn env_value(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": "string", "maxLength": 32_768})
}

pub(in crate::api) fn free_object(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": "object", "x-kubernetes-preserve-unknown-fields": true})
}

pub(in crate::api) fn managers(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": "array", "maxItems": 64, "x-kubernetes-list-type": "set", "items": {
        "type": "string", "minLength": 1, "maxLength": 128,
    }})
}

pub(in crate::api) fn time(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": "string", "format": "date-time"})
}

pub(in crate::api) fn conditions(generator: &mut SchemaGenerator) -> Schema {
    let text = |length: u32| json!({"type": "string", "maxLength": length});
    let status = json!({"type": "string", "enum": ["True", "False", "Unknown"]});
    let reason = json!({"type": "string", "minLength": 1, "maxLength": 1024});
    let generation = i64::json_schema(generator).to_value();
    let properties = json!({
        "type": described("The type of the condition.", text(316)),
        "status": described("The status of the condition: True, False or Unknown.", status),
        "reason": described("The reason in one word, for programs.", reason),
        "message": described("The reason in a sentence, for people.", text(32_768)),
        "observedGeneration": described("The metadata.generation that the condition is about.", generation),
        "lastTransitionTime": described("The time of the last change of the status.", time(generator).to_value()),
    });
    json_schema!({
        "type": "array", "maxItems": 16, "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"],
        "items": {
            "type": "object",
            "required": ["lastTransitionTime", "message", "reason", "status", "type"],
            "properties": properties,
        },
    })
}

// === Rules about several fields ===

pub(in crate::api) fn identity_rules() -> Vec<Rule> {
    vec![
        Rule::new("self.trustAnchorsPolicy != 'Verify' || has(self.trustAnchorsPEM)")
            .message("must be set if trustAnchorsPolicy is Verify")
            .field_path(".trustAnchorsPEM"),
    ]
}

pub(in crate::api) fn proxy_rules() -> Vec<Rule> {
    let pairs = PORTS_OF_THE_PROXY
        .iter()
        .enumerate()
        .flat_map(|(index, first)| PORTS_OF_THE_PROXY.iter().skip(index + 1).map(move |second| (*first, *second)));
    pairs
        .map(|(first, second)| {
            Rule::new(format!("!has(self.{first}) || !has(self.{second}) || self.{first} != self.{second}"))
                .message(format!("must not be the same port as {first}").as_str())
                .field_path(format!(".{second}"))
        })
        .collect()
}

pub(in crate::api) fn resource_rules() -> Vec<Rule> {
    let rule = |(path, name): (&str, &str)| {
        let [request, limit] = ["requests", "limits"].map(|side| format!("self.{side}.{name}"));
        // A value that is not a quantity is rejected by the rule of its field. Here its comparison would be an
        // evaluation error.
        let given = |side: &str, it: &str| format!("has(self.{side}) && has({it}) && isQuantity(string({it}))");
        let both = format!("{} && {}", given("requests", &request), given("limits", &limit));
        let more = format!("quantity(string({request})).isGreaterThan(quantity(string({limit})))");
        Rule::new(format!("!({both} && {more})"))
            .message("must not be more than the limit")
            .field_path(format!(".requests{path}"))
    };
    RESOURCES.map(rule).to_vec()
}

pub(in crate::api) fn env_rules() -> Vec<Rule> {
    vec![
        Rule::new("!has(self.value) || !has(self.valueFrom)")
            .message("must not be set together with value")
            .field_path(".valueFrom"),
    ]
}

pub(in crate::api) fn denied_rules() -> Vec<Rule> {
    vec![Rule::new("self.from < self.to").message("must be later than from").field_path(".to")]
}

// === Parts of the above ===

fn with_rule(mut schema: Schema, rule: Value) -> Schema {
    if let Some(Value::Array(rules)) = schema.get_mut("x-kubernetes-validations") {
        rules.push(rule);
    }
    schema
}

fn rule(expression: &str, message: &str) -> Value {
    json!({"rule": expression, "message": message})
}

fn namespace_rule() -> Value {
    rule(
        "self.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?$')",
        "must be the name of a namespace: lower case letters, digits and '-'",
    )
}

fn immutable() -> Value {
    rule("self == oldSelf", "cannot be changed; create another resource instead")
}

fn one_of(values: &[&str]) -> Schema {
    json_schema!({"type": "string", "enum": values})
}

fn described(text: &str, mut schema: Value) -> Value {
    if let Some(object) = schema.as_object_mut() {
        object.insert("description".to_owned(), text.into());
    }
    schema
}

#[cfg(test)]
pub(in crate::api) mod testing {
    use std::collections::BTreeSet;

    use serde_json::Value;

    /// Adds the paths that a schema describes. Each must have documentation.
    pub(in crate::api) fn document_fields(schema: &Value, path: &str, found: &mut BTreeSet<String>) {
        let description = schema["description"].as_str().unwrap_or_default();
        let is_sentence = description.len() > 10 && description.ends_with('.') && !description.contains('\n');
        assert!(is_sentence, "{path} has the description {description:?}");
        let object = if schema["items"].is_object() { &schema["items"] } else { schema };
        for (name, field) in object["properties"].as_object().into_iter().flatten() {
            let path = format!("{path}.{name}");
            document_fields(field, &path, found);
            found.insert(path);
        }
    }
}
