//! `trust plan`: what leads from the roots of a mesh to those of a LinkerdTrust in a file.
//!
//! In: the file, a cluster, which is only read. Out: the steps, and the restarts that they need. Always holds: nothing is
//! written, and the operator need not be installed.

use std::{
    fmt::Write,
    fs::{self, File},
    io::Read,
    path::PathBuf,
    process::ExitCode,
};

use anyhow::{Context, Result, anyhow, bail};
use clap::Args as ClapArgs;
use kube::{CustomResourceExt, ResourceExt};
use serde_json::Value;

use super::{
    super::{OutputFormat, cluster_flags::ClusterFlags, terminal::write},
    read,
};
use crate::{
    api::LinkerdTrust,
    text::{counted, printable},
    trust::{
        TrustPlan,
        declared::declared_roots,
        plan::{DistrustWay, PlannedDistrust},
    },
    values::manifest,
};

/// The maximum length of the file, in bytes: that of an object.
const LONGEST_FILE: u64 = 3 << 19;

#[derive(Clone, Debug, ClapArgs)]
pub struct PlanArgs {
    /// File with a LinkerdTrust, such as the one that `trust new` writes
    #[arg(long, short = 'f', value_name = "FILE")]
    pub file: PathBuf,

    /// Output format
    #[arg(long, short, value_name = "FORMAT", default_value = "table")]
    pub output: OutputFormat,

    #[command(flatten)]
    pub cluster: ClusterFlags,
}

pub(super) async fn plan(args: &PlanArgs) -> Result<ExitCode> {
    let file = args.file.display();
    // A pipe may have no end, and no beginning.
    if !fs::metadata(&args.file).with_context(|| format!("cannot read {file}"))?.is_file() {
        bail!("{file} is not a regular file");
    }
    let open = File::open(&args.file).with_context(|| format!("cannot read {file}"))?;
    let mut text = String::new();
    let length =
        open.take(LONGEST_FILE + 1).read_to_string(&mut text).with_context(|| format!("cannot read {file}"))?;
    if length as u64 > LONGEST_FILE {
        bail!("{file} is longer than {LONGEST_FILE} bytes");
    }
    let object = manifest(&text).with_context(|| format!("cannot read {file}"))?;
    // kubectl applies all of them.
    if documents(&text) > 1 {
        bail!("{file} has several objects: give a file with the LinkerdTrust alone");
    }
    if object.get("kind") != Some(&Value::from("LinkerdTrust")) {
        bail!("{file} has no LinkerdTrust: give the file that `trust new` writes");
    }
    // As the API server does.
    let schema = serde_json::to_value(LinkerdTrust::crd()).context("the CustomResourceDefinition")?;
    let schema = schema.pointer("/spec/versions/0/schema/openAPIV3Schema/properties/spec");
    if let Some(field) = object.get("spec").zip(schema).and_then(|(spec, schema)| unknown_field(spec, schema, "spec")) {
        bail!("{file}: unknown field {field}");
    }
    let trust: LinkerdTrust = serde_json::from_value(Value::Object(object))
        .with_context(|| format!("cannot read the LinkerdTrust of {file}"))?;
    let declared = declared_roots(&trust.name_any(), &trust.spec).map_err(|why| anyhow!("{file}: {why}"))?;
    let Some(declared) = declared else { bail!("{file} declares no trust anchors: set spec.anchors.pem") };
    let mut seen = read::read(&args.cluster.client()?, &trust.spec.control_plane_namespace, None).await?;
    seen.desired = Some(declared);
    let plan = TrustPlan::new(&seen).map_err(|why| anyhow!("no step can be planned: {why}"))?;
    write(&args.output.print(&plan, || text_of(&plan))?)?;
    Ok(ExitCode::SUCCESS)
}

/// The number of documents that have more than comments.
fn documents(text: &str) -> usize {
    let has_content =
        |lines: &&[&str]| lines.iter().any(|line| !line.trim().is_empty() && !line.trim_start().starts_with('#'));
    let lines: Vec<_> = text.lines().collect();
    lines.split(|line| line.trim_end() == "---" || line.starts_with("--- ")).filter(has_content).count()
}

/// Returns the path of the first field that the schema does not have.
fn unknown_field(value: &Value, schema: &Value, path: &str) -> Option<String> {
    match value {
        Value::Object(fields) => {
            let known = schema.get("properties")?;
            fields.iter().find_map(|(name, value)| {
                let path = format!("{path}.{name}");
                known.get(name).map_or_else(|| Some(path.clone()), |schema| unknown_field(value, schema, &path))
            })
        }
        Value::Array(items) => items.iter().find_map(|item| unknown_field(item, schema.get("items")?, path)),
        _ => None,
    }
}

/// The three ways, so that people can choose.
fn distrust(text: &mut String, plan: &PlannedDistrust, is_last: bool) {
    let PlannedDistrust { roots, renewed_within, .. } = plan;
    let (workloads, pods) = (counted(plan.workloads, "workload"), counted(plan.pods, "Pod"));
    // Writing to a String cannot fail.
    _ = writeln!(
        text,
        "\nUntil no proxy trusts {}, {workloads} with {pods} must restart{}",
        printable(roots),
        if is_last { "" } else { ":" }
    );
    if is_last {
        return;
    }
    for (way, what) in [
        (
            DistrustWay::OneRestart,
            format!("with a bridge, or if all proxies trust the next root: each once, after certificates were renewed, within {renewed_within}. No connection is refused"),
        ),
        (
            DistrustWay::TwoRestarts,
            format!(
                "otherwise: each once before the issuer changes, and once after certificates were renewed, within \
                 {renewed_within}. No connection is refused"
            ),
        ),
        (
            DistrustWay::Cut,
            "with connections: Cut: each once, as soon as the next issuer is there. Until the last has restarted, proxies before and after their restart \
             refuse each other: up to half of all pairs"
                .to_owned(),
        ),
    ] {
        let mark = if way == plan.way { "->" } else { "  " };
        _ = writeln!(text, " {mark} {what}");
    }
}

fn text_of(plan: &TrustPlan) -> String {
    let mut text = String::new();
    for (number, step) in (1..).zip(&plan.steps) {
        _ = writeln!(text, "{number}. {}", printable(step));
    }
    if plan.steps.is_empty() {
        text.push_str("nothing to do: the mesh has these trust anchors\n");
    }
    if let Some(distrusted) = &plan.distrusted {
        // At the end of the rotation, all ways are the same.
        distrust(&mut text, distrusted, plan.steps.is_empty());
    }
    let way = plan.distrusted.as_ref().map(|distrusted| distrusted.way);
    let first = match (way, plan.has_bridge) {
        // No restart comes before the issuer.
        _ if plan.restarts_without_bridge.is_empty() => return text,
        (Some(DistrustWay::Cut | DistrustWay::OneRestart), _) => return text,
        (Some(DistrustWay::TwoRestarts), _) => "These",
        (None, true) => "With the declared bridge no proxy has to restart. Without it, these",
        (None, false) => "With a bridge no proxy has to restart. Without one, these",
    };
    // Writing to a String cannot fail.
    _ = writeln!(text, "\n{first} must restart before the issuer changes, and so must the control plane:");
    for it in &plan.restarts_without_bridge {
        let (workloads, pods) = (counted(it.workloads, "workload"), counted(it.pods, "Pod"));
        _ = writeln!(text, "   {}: {workloads}, {pods}", printable(&it.namespace));
    }
    if plan.more_namespaces > 0 {
        _ = writeln!(text, "   and {}", counted(plan.more_namespaces, "further namespace"));
    }
    text
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    use crate::{api::linkerd_trust::TrustPhase, trust::plan::PlannedRestarts};

    #[test]
    fn documents_are_told_from_comments() {
        for (text, count) in [("a: b", 1), ("# c\n---\na: b\n---\n", 1), ("a: b\n---\nc: d", 2), ("a: |\n  ---\n", 1)] {
            assert_eq!(documents(text), count, "{text}");
        }
    }

    #[test]
    fn an_unknown_field_has_its_path() {
        let schema = serde_json::to_value(LinkerdTrust::crd()).unwrap();
        let schema = schema.pointer("/spec/versions/0/schema/openAPIV3Schema/properties/spec").unwrap();
        for (spec, expected) in [
            (json!({"anchors": {"pem": "a"}, "accept": [{"kind": "Job"}], "mode": "Enforce"}), None),
            (json!({"brigde": {"pem": "a"}}), Some("spec.brigde")),
            (json!({"distrust": {"connection": "Cut"}}), Some("spec.distrust.connection")),
            (json!({"accept": [{"kind": "Job"}, {"nam": "a"}]}), Some("spec.accept.nam")),
        ] {
            assert_eq!(unknown_field(&spec, schema, "spec").as_deref(), expected, "{spec}");
        }
    }

    #[test]
    fn a_plan_that_distrusts_a_root_compares_the_ways_and_marks_that_of_the_file() {
        for (way, marked, has_restarts) in [
            (DistrustWay::OneRestart, " -> with a bridge, or if all proxies trust the next root: each once", false),
            (DistrustWay::TwoRestarts, " -> otherwise: each once before", true),
            (DistrustWay::Cut, " -> with connections: Cut: each once", false),
        ] {
            let (roots, renewed_within) = ("old (3f2a90c1)".to_owned(), "24 h".to_owned());
            let plan = TrustPlan {
                phase: TrustPhase::Adding,
                steps: vec!["add new".to_owned()],
                restarts_without_bridge: vec![PlannedRestarts { namespace: "shop".to_owned(), workloads: 2, pods: 9 }],
                more_namespaces: 0,
                has_bridge: way == DistrustWay::OneRestart,
                distrusted: Some(PlannedDistrust { roots, workloads: 57, pods: 412, way, renewed_within }),
            };
            let text = text_of(&plan);
            assert!(
                text.contains("Until no proxy trusts old (3f2a90c1), 57 workloads with 412 Pods must restart:\n"),
                "{text}"
            );
            assert!(text.contains(marked) && text.matches("->").count() == 1, "{text}");
            assert_eq!(text.contains("shop: 2 workloads, 9 Pods"), has_restarts, "{text}");
        }
    }
}
