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
use kube::ResourceExt;
use serde_json::Value;

use super::{
    super::{OutputFormat, cluster_flags::ClusterFlags, terminal::write},
    read,
};
use crate::{
    api::LinkerdTrust,
    text::{counted, printable},
    trust::{TrustPlan, declared::declared_roots},
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
    if object.get("kind") != Some(&Value::from("LinkerdTrust")) {
        bail!("{file} has no LinkerdTrust: give the file that `trust new` writes");
    }
    let trust: LinkerdTrust = serde_json::from_value(Value::Object(object))
        .with_context(|| format!("{file} has no LinkerdTrust: give the file that `trust new` writes"))?;
    let declared = declared_roots(&trust.name_any(), &trust.spec).map_err(|why| anyhow!("{file}: {why}"))?;
    let Some(declared) = declared else { bail!("{file} declares no trust anchors: set spec.anchors.pem") };
    let mut seen = read::read(&args.cluster.client()?, &trust.spec.control_plane_namespace, None).await?;
    seen.desired = Some(declared);
    let plan = TrustPlan::new(&seen).map_err(|why| anyhow!("no step can be planned: {why}"))?;
    write(&args.output.print(&plan, || text_of(&plan))?)?;
    Ok(ExitCode::SUCCESS)
}

fn text_of(plan: &TrustPlan) -> String {
    let mut text = String::new();
    for (number, step) in (1..).zip(&plan.steps) {
        _ = writeln!(text, "{number}. {}", printable(step));
    }
    if plan.steps.is_empty() {
        text.push_str("nothing to do: the mesh has these trust anchors\n");
    }
    if plan.restarts_without_bridge.is_empty() {
        return text;
    }
    let first = match plan.has_bridge {
        true => "With the declared bridge no proxy has to restart. Without it",
        false => "With a bridge no proxy has to restart. Without one",
    };
    // Writing to a String cannot fail.
    _ = writeln!(text, "\n{first}, these must restart before the issuer changes, and so must the control plane:");
    for it in &plan.restarts_without_bridge {
        let (workloads, pods) = (counted(it.workloads, "workload"), counted(it.pods, "Pod"));
        _ = writeln!(text, "   {}: {workloads}, {pods}", printable(&it.namespace));
    }
    if plan.more_namespaces > 0 {
        _ = writeln!(text, "   and {}", counted(plan.more_namespaces, "further namespace"));
    }
    text
}
