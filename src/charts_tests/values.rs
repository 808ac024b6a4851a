//! The values of the charts. The schema is the source: `values.yaml` and the reference page have its descriptions and
//! defaults, and its settings are the flags of the manager.

use std::fmt::Write;

use clap::CommandFactory;
use serde_yaml::{Mapping, Value};

use super::{assert_generated, read};
use crate::args::Args;

const CHARTS: [&str; 2] = ["linkerd-operator", "linkerd-operator-crds"];
/// The flags that the chart sets itself, and those whose ports and files its Pods do not have.
const SET_BY_THE_CHART: [&str; 25] = [
    "admin-addr",
    "controller-namespace",
    "destination-addr",
    "enable-destination",
    "enable-external-workload",
    "enable-identity",
    "enable-issuer-writer",
    "enable-linkerd-config",
    "enable-multicluster",
    "enable-proxy-injector",
    "enable-webhooks",
    "help",
    "identity-addr",
    "identity-issuer",
    "identity-tls",
    "identity-trust-roots",
    "identity-watch",
    "kubeconfig",
    "leader-election-identity",
    "metrics-authentication",
    "operator-namespace",
    "webhook-addr",
    "webhook-certificate-secret",
    "webhook-folder",
    "webhook-service",
];

/// One value of a chart: a leaf of the schema.
struct Leaf {
    key: String,
    schema: Value,
}

fn schema(chart: &str) -> Value {
    // JSON is YAML, and this parser keeps the order of the keys.
    serde_yaml::from_str(&read(&format!("charts/{chart}/values.schema.json"))).unwrap()
}

fn text<'a>(schema: &'a Value, key: &str) -> &'a str {
    schema[key].as_str().unwrap_or_default()
}

/// The properties of an object that has no default, which is a group of values.
fn group(schema: &Value) -> Option<&Mapping> {
    schema["properties"].as_mapping().filter(|_| schema.get("default").is_none())
}

fn leaves(schema: &Value, prefix: &str) -> Vec<Leaf> {
    let mut found = Vec::new();
    for (name, property) in group(schema).into_iter().flatten() {
        let key = format!("{prefix}{}", name.as_str().unwrap());
        match group(property) {
            Some(_) => found.extend(leaves(property, &format!("{key}."))),
            None => found.push(Leaf { key, schema: property.clone() }),
        }
    }
    found
}

/// Wraps a text at 120 columns. Each line begins with this.
fn wrapped(text: &str, start: &str) -> String {
    let mut lines = vec![String::new()];
    for word in text.split(' ') {
        let line = lines.last_mut().unwrap();
        if !line.is_empty() && start.chars().count() + line.chars().count() + 1 + word.chars().count() > 120 {
            lines.push(word.to_owned());
        } else {
            line.push_str(if line.is_empty() { "" } else { " " });
            line.push_str(word);
        }
    }
    lines.iter().map(|line| format!("{start}{line}\n")).collect()
}

fn yaml(value: &Value) -> String {
    serde_yaml::to_string(value).unwrap().trim_end().to_owned()
}

/// The lines of `values.yaml` for the properties of a schema.
fn lines(schema: &Value, indent: &str) -> String {
    let mut all = String::new();
    for (name, property) in group(schema).into_iter().flatten() {
        let name = name.as_str().unwrap();
        if indent.is_empty() {
            all.push('\n');
        }
        all.push_str(&wrapped(text(property, "description"), &format!("{indent}# ")));
        if group(property).is_some() {
            writeln!(all, "{indent}{name}:\n{}", lines(property, &format!("{indent}  ")).trim_end()).unwrap();
            continue;
        }
        let default = &property["default"];
        let is_block = default.as_mapping().is_some_and(|map| !map.is_empty())
            || default.as_sequence().is_some_and(|list| !list.is_empty());
        if is_block {
            writeln!(all, "{indent}{name}:").unwrap();
            yaml(default).lines().for_each(|line| writeln!(all, "{indent}  {line}").unwrap());
        } else {
            writeln!(all, "{indent}{name}: {}", yaml(default).replace("''", "\"\"")).unwrap();
        }
    }
    all
}

/// The schema of each flag that users may set.
fn settings() -> Mapping {
    let mut root = Args::command();
    root.build();
    let manager = root.find_subcommand("manager").unwrap();
    let mut properties = Mapping::new();
    for arg in manager.get_arguments().filter(|arg| !arg.is_hide_set()) {
        let name = arg.get_long().unwrap();
        if SET_BY_THE_CHART.contains(&name) {
            continue;
        }
        let variable = arg.get_env().unwrap().to_str().unwrap();
        assert_eq!(variable, format!("LINKERD_OPERATOR_{}", name.to_uppercase().replace('-', "_")), "the chart");
        let help = arg.get_long_help().or(arg.get_help()).unwrap().to_string();
        let help = help.split_whitespace().collect::<Vec<_>>().join(" ");
        let possible: Vec<_> = arg.get_possible_values().iter().map(|value| value.get_name().to_owned()).collect();
        let mut property = Mapping::new();
        if possible.is_empty() || possible.iter().any(|value| value == "true") {
            property.insert("type".into(), vec!["string", "integer", "boolean"].into());
        } else {
            property.insert("enum".into(), possible.into());
        }
        property.insert("description".into(), format!("{}.", help.trim_end_matches('.')).into());
        properties.insert(name.into(), property.into());
    }
    properties
}

#[test]
fn the_settings_in_the_schema_are_the_flags_of_the_manager() {
    let mut schema = schema("linkerd-operator");
    schema["properties"]["settings"]["properties"] = settings().into();
    let text = serde_json::to_string_pretty(&schema).unwrap() + "\n";
    assert_generated("charts/linkerd-operator/values.schema.json", &text);
}

/// So that a misspelled value is refused. The types of Kubernetes are left to the API server.
#[test]
fn the_schemas_describe_each_value_and_refuse_others() {
    const FREE: [&str; 2] = ["affinity", "global"];
    fn check(schema: &Value, key: &str) {
        if group(schema).is_some() {
            assert_eq!(schema["additionalProperties"], Value::from(false), "{key} admits further keys");
        }
        for (name, property) in group(schema).into_iter().flatten() {
            let key = format!("{key}.{}", name.as_str().unwrap());
            let description = text(property, "description");
            assert!(description.ends_with('.') && description.len() > 5, "{key}: {description:?}");
            assert!(property.get("type").is_some(), "{key} has no type");
            check(property, &key);
        }
    }
    for chart in CHARTS {
        let schema = schema(chart);
        check(&schema, chart);
        for Leaf { key, schema } in leaves(&schema, "") {
            assert!(schema.get("default").is_some(), "{chart}: {key} has no default");
            let is_closed = schema.get("additionalProperties").is_some() || FREE.contains(&key.as_str());
            assert!(text(&schema, "type") != "object" || is_closed, "{chart}: {key} admits every key");
            assert!(text(&schema, "type") != "array" || schema.get("items").is_some(), "{chart}: {key} has no items");
        }
    }
}

/// Helm removes a key whose value is null. A list, a map or a text without a value is empty; without any other value, a
/// template would fail with an unclear error, or a default of Kubernetes would apply.
#[test]
fn null_is_refused_for_each_value_that_has_no_empty_form() {
    fn check(schema: &Value, key: &str) {
        let required = schema["required"].as_sequence().cloned().unwrap_or_default();
        for (name, property) in group(schema).into_iter().flatten() {
            let key = format!("{key}.{}", name.as_str().unwrap());
            let has_empty_form = match text(property, "type") {
                "object" => group(property).is_none(),
                "array" => true,
                "string" => property["default"] == "" || text(property, "description").contains("if empty"),
                _ => false,
            };
            assert_eq!(required.contains(name), !has_empty_form, "{key}");
            check(property, &key);
        }
    }
    for chart in CHARTS {
        check(&schema(chart), chart);
    }
}

#[test]
fn the_files_of_values_are_generated_from_the_schemas() {
    for chart in CHARTS {
        let schema = schema(chart);
        let start = format!(
            "# {}. Helm refuses other keys.\n\
             # Generated from values.schema.json: UPDATE_CHARTS=1 cargo test --lib charts\n",
            text(&schema, "title")
        );
        let text = start + &lines(&schema, "");
        let values: Value = serde_yaml::from_str(&text).unwrap();
        for Leaf { key, schema } in leaves(&schema, "") {
            let value = key.split('.').fold(&values, |value, name| &value[name]);
            assert_eq!(*value, schema["default"], "{key}");
        }
        assert_generated(&format!("charts/{chart}/values.yaml"), &text);
    }
}

#[test]
fn the_page_of_the_charts_is_generated_from_the_schemas() {
    let mut page = "# Helm charts\n\n<!-- Generated: UPDATE_CHARTS=1 cargo test --lib charts -->\n\n\
        The values of both charts. Helm refuses keys that are not listed here. [Install with\n\
        Helm](../install/helm.md) has the steps.\n"
        .to_owned();
    for chart in CHARTS {
        let schema = schema(chart);
        writeln!(page, "\n## {chart}\n").unwrap();
        for Leaf { key, schema } in leaves(&schema, "") {
            let default = serde_json::to_string(&schema["default"]).unwrap();
            let one_of = schema["enum"].as_sequence().into_iter().flatten().filter_map(Value::as_str);
            let one_of: Vec<_> = one_of.map(|value| format!("`{value}`")).collect();
            let kind = match &schema["type"] {
                Value::Sequence(kinds) => kinds.iter().filter_map(Value::as_str).collect::<Vec<_>>().join(" or "),
                _ if !one_of.is_empty() => one_of.join(" or "),
                kind => kind.as_str().unwrap().replace("array", "list"),
            };
            let item = format!("`{key}` ({kind}; default `{default}`): {}", text(&schema, "description"));
            page.push_str(&wrapped(&item, "  ").replacen("  ", "- ", 1));
        }
    }
    let keys: Vec<_> = settings().keys().map(|name| format!("`{}`", name.as_str().unwrap())).collect();
    let settings = format!("The keys of `settings`, which [Flags](flags.md) describes: {}.", keys.join(", "));
    page.push_str(&format!("\n### Settings\n\n{}", wrapped(&settings, "")));
    assert_generated("docs/src/reference/helm.md", &page);
}

#[test]
fn the_trust_domain_and_the_flags_of_the_identity_service_that_its_pod_does_not_fix_are_settings() {
    let settings = settings();
    for name in
        ["identity-trust-domain", "identity-scheme", "identity-issuance-lifetime", "identity-allow-api-audience"]
    {
        assert!(settings.contains_key(name), "{name}");
    }
    for name in [
        "enable-identity",
        "identity-addr",
        "identity-issuer",
        "identity-tls",
        "identity-trust-roots",
        "identity-watch",
    ] {
        assert!(!settings.contains_key(name), "{name}");
    }
}
