//! The admission policies: every write of the operator passes with the token of its ServiceAccount, every other write
//! that RBAC permits is refused, and only the operator writes its annotations.

mod cases;

use std::collections::BTreeSet;

use anyhow::{Context, Result, ensure};
use e2e::{ControlPlane, Options, Rig, User, eventually, kubeconfig, mesh::SOON, shipped::OPERATOR_NAMESPACE};
use hyper::StatusCode;
use k8s_openapi::api::admissionregistration::v1::ValidatingAdmissionPolicy;
use kube::{Api, Client, api::ListParams};
use serde_json::{Value, json};

use super::{of_kind, probe::Probe};
use cases::{APP, By, PolicyCase};

const ANNOTATIONS: &str = "linkerd-operator-rollout-annotations";
/// A ServiceAccount with the operator's name in a tenant's namespace.
const IMPOSTOR: &str = "system:serviceaccount:app:linkerd-operator";

struct PolicyClients {
    operator: Client,
    issuer_writer: Client,
    admin: Client,
    impostor: Client,
}

impl PolicyClients {
    fn of(&self, by: By) -> &Client {
        match by {
            By::Operator => &self.operator,
            By::IssuerWriter => &self.issuer_writer,
            By::Admin => &self.admin,
            By::Impostor => &self.impostor,
        }
    }
}

/// Starts a cluster with the shipped manifests, without the policies.
async fn start(options: Options) -> Result<(Rig, PolicyClients)> {
    let impostor = User { name: IMPOSTOR.to_owned(), groups: vec!["system:masters".to_owned()] };
    let options = Options { users: vec![impostor], ..options };
    let control_plane = Rig::bare().options(options).namespace("linkerd").start().await?;
    let objects = control_plane.shipped("config/default").await?;
    let objects: Vec<_> = objects.into_iter().filter(|it| it["kind"] != "Deployment" && !is_policy(it)).collect();
    control_plane.apply(&objects).await?;
    control_plane.apply_folder("config/control-plane").await?;
    control_plane.install_crds("crd").await?;
    for optional in [
        "samples/dry_run_role.yaml",
        "components/trust-anchors/trust_anchors_role.yaml",
        "components/webhook-server/certificate_role.yaml",
        "components/issuer-writer/issuer_writer_role.yaml",
        "components/issuer-writer/service_account.yaml",
        "components/issuer-writer/control-plane/issuer_writer_role.yaml",
    ] {
        let path = format!("{}/../config/{optional}", env!("CARGO_MANIFEST_DIR"));
        control_plane.kubectl(&["apply", "-f", &path]).await?;
    }
    control_plane.apply(&cases::namespaces()).await?;
    let issuer_writer =
        control_plane.kubeconfig_for_service_account(OPERATOR_NAMESPACE, "linkerd-operator-issuer").await?;
    let clients = PolicyClients {
        operator: kubeconfig::client(&control_plane.operator_kubeconfig().await?).await?,
        issuer_writer: kubeconfig::client(&issuer_writer).await?,
        admin: control_plane.client.clone(),
        impostor: kubeconfig::client(&control_plane.kubeconfig_for(IMPOSTOR)?).await?,
    };
    Ok((control_plane, clients))
}

fn is_policy(object: &Value) -> bool {
    object["kind"].as_str().is_some_and(|kind| kind.starts_with("ValidatingAdmissionPolicy"))
}

async fn apply_policies(control_plane: &ControlPlane) -> Result<()> {
    let objects = control_plane.shipped("config/default").await?;
    control_plane.apply(&objects.into_iter().filter(is_policy).collect::<Vec<_>>()).await
}

/// Waits until each policy is in force: until it refuses the first of its cases.
async fn are_in_force(clients: &PolicyClients, cases: &[PolicyCase]) -> Result<()> {
    let mut seen = BTreeSet::new();
    for case in cases {
        let Some(policy) = case.refused_by.filter(|policy| seen.insert(*policy)) else { continue };
        eventually(SOON, format_args!("{policy} to refuse: {}", case.what), async || {
            let (status, _) = case.probe().send(clients.of(case.by)).await?;
            ensure!(status == StatusCode::FORBIDDEN, "{status}");
            Ok(())
        })
        .await?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_policies_refuse_every_write_that_is_not_the_operators_work_and_no_other() -> Result<()> {
    let (control_plane, clients) = start(Options::default()).await?;
    control_plane.apply(&cases::objects()).await?;
    let cases = cases::all();
    let mut wrong = Vec::new();
    for case in &cases {
        let (status, text) = eventually(SOON, format_args!("RBAC to permit: {}", case.what), async || {
            let (status, text) = case.probe().send(clients.of(case.by)).await?;
            // The roles take effect after a moment. Any other error is final.
            ensure!(status != StatusCode::FORBIDDEN, "{text}");
            Ok((status, text))
        })
        .await?;
        if !status.is_success() {
            wrong.push(format!("{}: {status} {text}", case.what));
        }
    }
    ensure!(wrong.is_empty(), "without the policies:\n{}", wrong.join("\n"));
    apply_policies(&control_plane).await?;
    are_in_force(&clients, &cases).await?;
    for case in &cases {
        let (status, text) = case.probe().send(clients.of(case.by)).await?;
        let is_right = match case.refused_by {
            None => status.is_success(),
            Some(policy) => {
                status == StatusCode::FORBIDDEN && text.contains(&format!("ValidatingAdmissionPolicy '{policy}'"))
            }
        };
        if !is_right {
            wrong.push(format!("{}: expected {:?}, got {status} {text}", case.what, case.refused_by));
        }
    }
    println!("{} writes, each sent without and with the policies", cases.len());
    ensure!(wrong.is_empty(), "{}", wrong.join("\n"));
    let policies: BTreeSet<&str> = cases.iter().filter_map(|case| case.refused_by).collect();
    let shipped = control_plane.shipped("config/admission-policy").await?;
    let shipped = of_kind(&shipped, "ValidatingAdmissionPolicy");
    let shipped: BTreeSet<&str> = shipped.iter().filter_map(|policy| policy["metadata"]["name"].as_str()).collect();
    assert_eq!(policies, shipped, "each policy must refuse a case");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rollback_with_kubectl_passes_although_it_copies_the_operators_annotations() -> Result<()> {
    let (control_plane, clients) = start(Options::with_controllers()).await?;
    control_plane.apply(&[cases::workload("Deployment", APP, "web")]).await?;
    apply_policies(&control_plane).await?;
    are_in_force(&clients, &cases::annotations()).await?;
    let of_revision = async |revision: &str| {
        let path = "{.items[*].metadata.annotations.config\\.linkerd\\.io/rollout-hash}";
        let output = format!("jsonpath={path}");
        eventually(SOON, format_args!("a ReplicaSet of {revision}"), async || {
            let hashes = control_plane.kubectl(&["get", "replicasets", "-n", APP, "-o", &output]).await?;
            ensure!(hashes.split(' ').any(|hash| hash == revision), "{hashes}");
            Ok(())
        })
        .await
    };
    of_revision("old").await?;
    let restart = cases::restart("deployments", APP, "web", "new");
    let (status, text) = restart.live().send(&clients.operator).await?;
    ensure!(status.is_success(), "{text}");
    of_revision("new").await?;
    control_plane.kubectl(&["rollout", "undo", "deployment/web", "-n", APP]).await?;
    let path = "jsonpath={.metadata.annotations.config\\.linkerd\\.io/rollout-hash}";
    let hash = control_plane.kubectl(&["get", "deployment", "web", "-n", APP, "-o", path]).await?;
    assert_eq!(hash, "old", "kubectl must have copied the annotations of the ReplicaSet");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_copied_workload_with_the_operators_annotations_is_created_with_a_warning() -> Result<()> {
    let (control_plane, clients) = start(Options::with_controllers()).await?;
    control_plane.apply(&[cases::workload("Deployment", APP, "web")]).await?;
    apply_policies(&control_plane).await?;
    are_in_force(&clients, &cases::annotations()).await?;
    let file = control_plane.directory().join("copy.json");
    let copy = cases::workload("Deployment", APP, "copy");
    tokio::fs::write(&file, copy.to_string()).await?;
    let file = file.display().to_string();
    let create = ["create", "--dry-run=server", "-f", &file];
    control_plane.kubectl(&create).await?;
    let error = control_plane.kubectl(&[&create[..], &["--warnings-as-errors"]].concat()).await.err();
    let error = format!("{:#}", error.context("no warning")?);
    ensure!(error.contains(ANNOTATIONS) && error.contains("Remove them from the manifest"), "{error}");
    Ok(())
}

/// Type checking finds misspelled fields, which would make a policy refuse every write.
#[tokio::test(flavor = "multi_thread")]
async fn the_policies_pass_the_type_check_of_the_api_server() -> Result<()> {
    let (control_plane, clients) = start(Options::with_controllers()).await?;
    apply_policies(&control_plane).await?;
    let policies: Api<ValidatingAdmissionPolicy> = Api::all(clients.admin);
    eventually(SOON, "the type check of each policy", async || {
        for policy in policies.list(&ListParams::default()).await?.items {
            let name = policy.metadata.name.as_deref().unwrap_or_default();
            let status = policy.status.with_context(|| format!("{name} has no status"))?;
            ensure!(status.observed_generation == policy.metadata.generation, "{name} is not checked yet");
            let warnings = status.type_checking.and_then(|check| check.expression_warnings).unwrap_or_default();
            ensure!(warnings.is_empty(), "{name}: {warnings:?}");
        }
        Ok(())
    })
    .await
}

/// An error in a policy must not stop other clients: each policy is limited to the operator's accounts, or to writes of
/// its annotations.
#[tokio::test]
async fn each_policy_fails_closed_for_the_operators_accounts_only() -> Result<()> {
    let objects = e2e::shared().await?.shipped("config/default").await?;
    let policies = of_kind(&objects, "ValidatingAdmissionPolicy");
    ensure!(policies.len() >= 9, "{}", policies.len());
    let account =
        r#"request.userInfo.username.startsWith("system:serviceaccount:linkerd-operator-system:linkerd-operator")"#;
    for policy in policies {
        let name = policy["metadata"]["name"].as_str().unwrap_or_default();
        let spec = &policy["spec"];
        assert_eq!(spec["failurePolicy"], "Fail", "{name}");
        let conditions = spec["matchConditions"].as_array().context("no match conditions")?;
        let names: Vec<_> = conditions.iter().filter_map(|condition| condition["name"].as_str()).collect();
        let first = &conditions[0]["expression"];
        if name == ANNOTATIONS {
            assert_eq!((names, first), (vec!["account", "writes"], &json!(format!("!{account}"))), "{name}");
        } else {
            assert_eq!((names, first), (vec!["account"], &json!(account)), "{name}");
        }
        let binding = of_kind(&objects, "ValidatingAdmissionPolicyBinding").into_iter().find(|binding| {
            binding["spec"]["policyName"] == *name && binding["spec"]["validationActions"] == json!(["Deny"])
        });
        ensure!(binding.is_some(), "{name} is not bound");
    }
    Ok(())
}
