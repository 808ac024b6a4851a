//! The documentation: links lead to pages and headings that exist, the book lists all its pages, and generated pages
//! are up to date.
//!
//! `UPDATE_DOCS=1 cargo test --lib docs` writes the generated pages.

use std::{
    collections::{BTreeMap, BTreeSet},
    env,
    fmt::Write,
    fs,
    path::{Path, PathBuf},
};

use clap::CommandFactory;
use kube::CustomResourceExt;
use serde::Deserialize;
use serde_json::Value;

use crate::{
    api::{LinkerdConfig, LinkerdTrust},
    args::Args,
    drop_in::DROP_INS,
    reasons::{CONDITIONS, ConditionReasons, EVENTS, ReasonEntry, ReasonGroup, TRUST_CONDITIONS, WORKLOADS},
    testing::{files, repository},
};

/// The user's book.
const BOOK: &str = "docs/src";
/// The book of contributors and auditors.
const INTERNALS: &str = "docs/internals/src";

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The lines outside of fenced code blocks.
fn prose(text: &str) -> impl Iterator<Item = &str> {
    let mut in_code = false;
    text.lines().filter(move |line| {
        let fence = line.trim_start().starts_with("```");
        in_code ^= fence;
        !in_code && !fence
    })
}

/// The targets of the links outside of code.
fn links(text: &str) -> Vec<String> {
    let prose: String = prose(text).map(|line| line.to_owned() + "\n").collect();
    let outside_code: String = prose.split('`').step_by(2).collect();
    let targets = outside_code.split("](").skip(1).filter_map(|rest| rest.split(')').next());
    targets.map(|target| target.replace('\n', "")).collect()
}

/// The anchors of the headings, as mdBook and code hosts derive them: in lower case, spaces as hyphens, nothing else
/// but letters, digits, hyphens and underscores.
fn anchors(text: &str) -> BTreeSet<String> {
    let mut seen = BTreeMap::<String, usize>::new();
    let mut found = BTreeSet::new();
    for heading in prose(text).filter(|line| line.starts_with('#')) {
        let heading = heading.trim_start_matches('#').trim().to_lowercase().replace(' ', "-");
        let anchor: String = heading.chars().filter(|c| c.is_alphanumeric() || matches!(c, '-' | '_')).collect();
        let count = seen.entry(anchor.clone()).or_default();
        found.insert(if *count == 0 { anchor } else { format!("{anchor}-{count}") });
        *count += 1;
    }
    found
}

#[test]
fn every_link_leads_to_a_page_and_a_heading_that_exist() {
    let mut pages: Vec<_> =
        [BOOK, INTERNALS, ".github", "e2e", "proto"].iter().flat_map(|folder| files(folder, "md")).collect();
    pages.extend(["README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md"].map(|name| repository().join(name)));
    let mut broken = Vec::new();
    for page in &pages {
        for link in links(&read(page)).into_iter().filter(|link| !link.contains("://") && !link.starts_with("mailto:"))
        {
            let (path, anchor) = link.split_once('#').unwrap_or((&link, ""));
            let target = if path.is_empty() { page.clone() } else { page.parent().unwrap().join(path) };
            let exists = target.is_file() || (anchor.is_empty() && target.is_dir());
            if !exists || !(anchor.is_empty() || anchors(&read(&target)).contains(anchor)) {
                broken.push(format!("{}: {link}", page.strip_prefix(repository()).unwrap().display()));
            }
        }
    }
    assert!(pages.len() > 40, "{pages:?}");
    assert!(broken.is_empty(), "broken links:\n{}", broken.join("\n"));
}

#[test]
fn the_summary_of_each_book_lists_every_page_once() {
    for name in [BOOK, INTERNALS] {
        let book = repository().join(name);
        let path = |page: &PathBuf| page.strip_prefix(&book).unwrap().to_str().unwrap().to_owned();
        let mut pages: Vec<_> = files(name, "md").iter().map(path).collect();
        pages.retain(|page| page != "SUMMARY.md");
        pages.sort();
        let mut listed = links(&read(&book.join("SUMMARY.md")));
        listed.sort();
        assert_eq!(listed, pages, "{name}");
    }
}

#[test]
fn every_test_on_the_page_of_attackers_exists() {
    let page = read(&repository().join(INTERNALS).join("attackers.md"));
    let sources: String =
        ["src", "e2e"].iter().flat_map(|folder| files(folder, "rs")).map(|file| read(&file)).collect();
    let named: BTreeSet<&str> = page.split('`').skip(1).step_by(2).filter(|code| is_test_name(code)).collect();
    let missing: Vec<_> = named.iter().filter(|name| !sources.contains(&format!("fn {name}("))).collect();
    assert!(named.len() > 20, "{named:?}");
    assert!(missing.is_empty(), "attackers.md names tests that do not exist: {missing:?}");
}

/// Whether code on a page is the name of a test: the names of our tests are sentences.
fn is_test_name(code: &str) -> bool {
    code.matches('_').count() >= 3 && code.chars().all(|c| matches!(c, 'a'..='z' | '0'..='9' | '_'))
}

#[test]
fn the_page_of_permissions_agrees_with_the_roles_verb_by_verb() {
    let page = read(&repository().join(INTERNALS).join("permissions.md"));
    let mut roles = 0;
    for directory in [
        "config/rbac",
        "config/control-plane",
        "config/components/identity",
        "config/components/metrics-authentication",
        "config/components/multicluster/control-plane",
        "config/components/proxy-injector",
        "config/components/webhook-server",
    ] {
        for manifest in files(directory, "yaml") {
            for document in serde_yaml::Deserializer::from_str(&read(&manifest)) {
                let role = Value::deserialize(document).unwrap();
                let (Some(kind @ ("Role" | "ClusterRole")), Some(name)) =
                    (role["kind"].as_str(), role["metadata"]["name"].as_str())
                else {
                    continue;
                };
                let heading = format!("### {kind} {name}\n");
                let section = page
                    .split(&heading)
                    .nth(1)
                    .unwrap_or_else(|| panic!("permissions.md has no section {kind} {name}"));
                let section = section.split("\n#").next().unwrap();
                assert_eq!(documented_permissions(section), granted_permissions(&role["rules"]), "{kind} {name}");
                roles += 1;
            }
        }
    }
    assert!(roles >= 8, "{roles}");
}

/// A resource, the name of the object if only one is permitted, and a verb.
type Permission = (String, String, String);

/// The permissions in the tables of a section, each once and with a reason.
fn documented_permissions(section: &str) -> Vec<Permission> {
    let mut permissions = Vec::new();
    for row in section.lines().filter_map(|line| line.strip_prefix("| `")) {
        let cells: Vec<_> = row.trim_end_matches('|').split(" | ").map(str::trim).collect();
        assert!(cells.len() == 3 && !cells[2].is_empty(), "{row}");
        let (resource, rest) = cells[0].split_once('`').unwrap();
        let name = rest.strip_prefix(", only `").map(|name| name.trim_end_matches('`')).unwrap_or_default();
        assert!(rest.is_empty() || !name.is_empty(), "{row}");
        let permission = |verb: &str| (resource.to_owned(), name.to_owned(), verb.to_owned());
        permissions.extend(cells[1].split(", ").map(permission));
    }
    permissions.sort();
    permissions
}

/// The permissions that the rules grant.
fn granted_permissions(rules: &Value) -> Vec<Permission> {
    let texts = |value: &Value| -> Vec<String> {
        value.as_array().into_iter().flatten().map(|text| text.as_str().unwrap().to_owned()).collect()
    };
    let mut permissions = Vec::new();
    for rule in rules.as_array().into_iter().flatten() {
        for (group, resource) in texts(&rule["apiGroups"])
            .iter()
            .flat_map(|group| texts(&rule["resources"]).into_iter().map(move |resource| (group.clone(), resource)))
        {
            let resource = match (&*group, resource.split_once('/')) {
                ("", _) => resource,
                (group, None) => format!("{resource}.{group}"),
                (group, Some((resource, part))) => format!("{resource}.{group}/{part}"),
            };
            let names = Some(texts(&rule["resourceNames"])).filter(|names| !names.is_empty());
            for name in names.unwrap_or_else(|| vec![String::new()]) {
                let verbs = texts(&rule["verbs"]).into_iter();
                permissions.extend(verbs.map(|verb| (resource.clone(), name.clone(), verb)));
            }
        }
    }
    permissions.sort();
    permissions
}

/// Compares a page with its generated text, or writes it.
fn assert_generated(page: &str, text: &str) {
    let path = repository().join(BOOK).join(page);
    if env::var_os("UPDATE_DOCS").is_some() {
        fs::write(&path, text).unwrap();
    }
    assert!(read(&path) == text, "{page} is out of date: UPDATE_DOCS=1 cargo test --lib docs");
}

#[test]
fn the_page_of_flags_is_generated_from_the_command_line() {
    let mut text = "# Flags\n\n<!-- Generated: UPDATE_DOCS=1 cargo test --lib docs -->\n\n\
        Each flag of `linkerd-operator manager` can also be set by the environment variable that is named with it; the flag\n\
        takes precedence. Durations are written as `10s`, `1m30s` or `2h`. The commands in place of Linkerd's containers have\n\
        [a page of their own](../../internals/src/container-flags.md).\n"
        .to_owned();
    let mut root = Args::command();
    root.build();
    let mut containers = "# Flags in place of Linkerd's containers\n\n\
        <!-- Generated: UPDATE_DOCS=1 cargo test --lib docs -->\n\n\
        [The guide](../../src/guides/replace-destination.md) has the steps.\n"
        .to_owned();
    for command in commands(&root) {
        let is_container = DROP_INS.iter().any(|it| it.container() == command.get_name());
        let text = if is_container { &mut containers } else { &mut text };
        let name = command.get_name();
        let flags = flags_of(command);
        let flags = if flags.is_empty() { flags } else { format!("\n{flags}") };
        write!(text, "\n## linkerd-operator {name}\n\n{}\n{flags}", wrapped(&about(command), "")).unwrap();
        // Those with the same flags share them.
        let subcommands: Vec<_> = commands(command).collect();
        for same in subcommands.chunk_by(|one, other| flags_of(one) == flags_of(other)) {
            let names: Vec<_> = same.iter().map(|subcommand| subcommand.get_name()).collect();
            let abouts = match same {
                [one] => wrapped(&about(one), ""),
                _ => {
                    let rows: Vec<_> =
                        same.iter().map(|it| format!("| `{}` | {} |", it.get_name(), about(it))).collect();
                    format!("| command | does |\n|---|---|\n{}", rows.join("\n"))
                }
            };
            write!(text, "\n### linkerd-operator {name} {}\n\n{abouts}\n\n{}", names.join(", "), flags_of(same[0]))
                .unwrap();
        }
    }
    text.push_str("\n## Cluster\n\n");
    let explain = root.find_subcommand("explain").unwrap();
    for arg in explain.get_arguments().filter(|arg| arg.get_help_heading() == Some(CLUSTER)) {
        text.push_str(&flag(arg));
    }
    assert_generated("reference/flags.md", &text);
    assert_generated("../internals/src/container-flags.md", &containers);
}

fn commands(command: &clap::Command) -> impl Iterator<Item = &clap::Command> {
    command.get_subcommands().filter(|it| it.get_name() != "help" && !it.is_hide_set())
}

fn about(command: &clap::Command) -> String {
    sentence(&command.get_long_about().or(command.get_about()).map(ToString::to_string).unwrap_or_default())
}

fn flags_of(command: &clap::Command) -> String {
    let mut text = String::new();
    let is_own = |arg: &&clap::Arg| !arg.is_hide_set() && !matches!(arg.get_id().as_str(), "help" | "version");
    let (of_cluster, own): (Vec<_>, Vec<_>) =
        command.get_arguments().filter(is_own).partition(|arg| arg.get_help_heading() == Some(CLUSTER));
    for arg in own {
        text.push_str(&flag(arg));
    }
    if !of_cluster.is_empty() {
        text.push_str("- the flags that select a [cluster](#cluster)\n");
    }
    text
}

/// The maximum number of values that are listed for a flag.
const LISTED: usize = 10;
/// The heading of the flags that select a cluster, which most commands have.
const CLUSTER: &str = "Cluster";

fn flag(arg: &clap::Arg) -> String {
    let value = arg.get_value_names().and_then(|names| names.first()).filter(|_| arg.get_action().takes_values());
    let name = match (arg.get_long(), value) {
        (Some(long), Some(value)) => format!("--{long} <{value}>"),
        (Some(long), None) => format!("--{long}"),
        (None, _) => format!("<{}>", arg.get_id().as_str().to_uppercase()),
    };
    let short = arg.get_short().map(|short| format!("`-{short}`, ")).unwrap_or_default();
    let mut facts = Vec::new();
    let defaults: Vec<_> = arg.get_default_values().iter().map(|value| value.to_string_lossy()).collect();
    if !defaults.is_empty() {
        facts.push(format!("default `{}`", defaults.join(",")));
    }
    let possible = arg.get_possible_values();
    let is_switch = possible.iter().all(|value| matches!(value.get_name(), "true" | "false"));
    if arg.get_id() == "output" && possible.len() == 4 {
        facts.push("or `wide`, `json`, `yaml`".to_owned());
    } else if !possible.is_empty() && possible.len() <= LISTED && !is_switch {
        let names: Vec<_> = possible.iter().map(|value| format!("`{}`", value.get_name())).collect();
        facts.push(format!("one of {}", names.join(", ")));
    }
    if let Some(variable) = arg.get_env() {
        facts.push(format!("environment `{}`", variable.to_string_lossy()));
    }
    let facts = if facts.is_empty() { String::new() } else { format!(" ({})", facts.join("; ")) };
    let help = arg.get_long_help().or(arg.get_help()).map(ToString::to_string).unwrap_or_default();
    format!("{}\n", wrapped(&format!("- {short}`{name}`{facts}: {}", sentence(&help)), "  "))
}

#[test]
fn the_page_of_the_custom_resource_is_generated_from_its_definition() {
    let definition = serde_json::to_value(LinkerdConfig::crd()).unwrap();
    let version = &definition["spec"]["versions"][0];
    let properties = &version["schema"]["openAPIV3Schema"]["properties"];
    let mut text = format!(
        "# LinkerdConfig\n\n<!-- Generated: UPDATE_DOCS=1 cargo test --lib docs -->\n\n\
         The fields of `{}/{}` `LinkerdConfig`, a cluster-scoped resource. `kubectl explain\n\
         linkerdconfig.spec` prints the same text. [The guide](../guides/linkerdconfig.md) has examples, and\n\
         [the internals](../../internals/src/status.md) have the fields of the status.\n",
        definition["spec"]["group"].as_str().unwrap(),
        version["name"].as_str().unwrap(),
    );
    text.push('\n');
    fields(&properties["spec"], "spec", &mut text);
    let trust = serde_json::to_value(LinkerdTrust::crd()).unwrap();
    let of_trust = &trust["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"];
    text.push_str(
        "\n## LinkerdTrust\n\nA cluster-scoped resource. [Trust anchors](../guides/trust-anchors.md) has examples.\n\n",
    );
    fields(&of_trust["spec"], "spec", &mut text);
    assert_generated("reference/crd.md", &text);
    let mut text = "# Status of a LinkerdConfig\n\n<!-- Generated: UPDATE_DOCS=1 cargo test --lib docs -->\n\n\
        `kubectl explain linkerdconfig.status` prints the same text.\n\n"
        .to_owned();
    fields(&properties["status"], "status", &mut text);
    text.push_str("\n## LinkerdTrust\n\n`kubectl explain linkerdtrust.status` prints the same text.\n\n");
    fields(&of_trust["status"], "status", &mut text);
    assert_generated("../internals/src/status.md", &text);
}

fn fields(schema: &Value, path: &str, text: &mut String) {
    let required: Vec<&str> = schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    for (name, field) in schema["properties"].as_object().into_iter().flatten() {
        let path = format!("{path}.{name}");
        let mut facts = vec![match (field["type"].as_str(), field["items"]["type"].as_str()) {
            (Some("array"), Some(item)) => format!("list of {item}s"),
            (Some(kind), _) => kind.to_owned(),
            (None, _) if field["x-kubernetes-int-or-string"] == true => "integer or string".to_owned(),
            (None, _) => "any".to_owned(),
        }];
        if required.contains(&name.as_str()) {
            facts.push("required".to_owned());
        }
        if !field["default"].is_null() && !field["default"].is_object() {
            facts.push(format!("default `{}`", field["default"]));
        }
        if let Some(values) = field["enum"].as_array() {
            let values: Vec<_> = values.iter().filter_map(Value::as_str).map(|value| format!("`{value}`")).collect();
            facts.push(format!("one of {}", values.join(", ")));
        }
        let description = sentence(field["description"].as_str().unwrap_or_default());
        let facts = facts.join("; ");
        writeln!(text, "{}", wrapped(&format!("- `{path}` ({facts}): {description}"), "  ")).unwrap();
        fields(field, &path, text);
        fields(&field["items"], &format!("{path}[]"), text);
    }
}

#[test]
fn the_page_of_reasons_is_generated_from_the_catalogue() {
    let mut text = "# Reasons\n\n<!-- Generated: UPDATE_DOCS=1 cargo test --lib docs -->\n\n\
        Each reason of a condition, a workload and an Event, with its meaning and with what to do. `linkerd-operator\n\
        status` prints what to do next. Reasons are stable; messages may change.\n\n\
        ## Conditions of a LinkerdConfig\n\n\
        ControlPlaneMismatch, IneffectiveValues, Stalled, SuspectBase and VersionSkew exist only while they are True. A\n\
        resource in reserve has only Accepted.\n"
        .to_owned();
    for ConditionReasons { condition, question, reasons } in CONDITIONS {
        write!(text, "\n### {condition}\n\n{question}\n\n").unwrap();
        text.push_str(&entries(reasons));
    }
    text.push_str("\n## Conditions of a LinkerdTrust\n\nExpiring exists only while it is True.\n");
    for ConditionReasons { condition, question, reasons } in TRUST_CONDITIONS {
        write!(text, "\n### {condition} of a LinkerdTrust\n\n{question}\n\n").unwrap();
        text.push_str(&entries(reasons));
    }
    text.push_str("\n## Workloads\n");
    groups(WORKLOADS, &mut text);
    text.push_str(
        "\n## Events\n\n\
         At most one Event a minute is written for each object and reason, and at most 20 a second overall (burst 100). The\n\
         proxy injector and IssuedLeafCertificate have at most 10 a second (burst 50), of which a namespace gets one every two\n\
         seconds (burst 20). `linkerd_operator_events_dropped_total` counts the others. A note has at most 1 KiB.\n",
    );
    groups(EVENTS, &mut text);
    assert_generated("reference/reasons.md", &text);
}

fn groups(groups: &[ReasonGroup], text: &mut String) {
    for ReasonGroup { title, place, reasons } in groups {
        write!(text, "\n### {title}\n\n{}\n\n", wrapped(place, "")).unwrap();
        text.push_str(&entries(reasons));
    }
}

fn entries(reasons: &[ReasonEntry]) -> String {
    let line = |ReasonEntry { reason, status, meaning, remedy }: &ReasonEntry| {
        let status = if status.is_empty() { String::new() } else { format!(" ({status})") };
        let remedy = if remedy.is_empty() { String::new() } else { format!(" **{remedy}**") };
        wrapped(&format!("- `{reason}`{status}: {meaning}{remedy}"), "  ") + "\n"
    };
    reasons.iter().map(line).collect()
}

/// One paragraph that ends with a period, without characters that Markdown would read as a tag.
fn sentence(text: &str) -> String {
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    let text = text.trim_end_matches('.').replace('<', "\\<");
    format!("{text}.")
}

/// Wraps a paragraph at 120 columns, and indents all lines but the first.
fn wrapped(text: &str, indent: &str) -> String {
    let mut lines = vec![String::new()];
    for word in text.split(' ') {
        let line = lines.last_mut().unwrap();
        if !line.is_empty() && line.chars().count() + 1 + word.chars().count() > 120 {
            lines.push(format!("{indent}{word}"));
        } else {
            if !line.is_empty() {
                line.push(' ');
            }
            line.push_str(word);
        }
    }
    lines.join("\n")
}
