//! The hooks of `helm test`: the Pod runs `linkerd-operator check`, and its account has exactly the permissions that the
//! command needs. No kubelet runs the Pod here: its container's command runs with the token of its account.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use e2e::{command::Ended, eventually, injector::machine_address, port};
use serde_json::{Value, json};

use super::{
    DEADLINE, Helm, IMAGE, OPERATOR,
    permissions::{LINKERD, NAMESPACE, OtherNamesRig},
};
use crate::{
    check::ReplicaPod,
    manifests::{id, of_kind},
};

const ACCOUNT: &str = "linkerd-operator-test";

fn hooks(objects: &[Value]) -> Vec<Value> {
    let is_hook = |object: &&Value| object["metadata"]["annotations"]["helm.sh/hook"] == "test";
    objects.iter().filter(is_hook).cloned().collect()
}

/// The command of the Pod, with the permissions of its account.
struct TestPod<'a> {
    kubeconfig: &'a Path,
    args: Vec<String>,
}

// === impl TestPod ===

impl TestPod<'_> {
    async fn run(&self, more: &[&str]) -> Result<(Option<i32>, String)> {
        let own: Vec<&str> = self.args.iter().map(String::as_str).collect();
        let kubeconfig = format!("--kubeconfig={}", self.kubeconfig.display());
        let ended = Ended::operator(&[&own, more, &[kubeconfig.as_str()]].concat(), DEADLINE).await?;
        Ok((ended.code, ended.stdout))
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_account_of_the_test_may_read_what_check_needs_and_nothing_else() -> Result<()> {
    let cluster = OtherNamesRig::start(&[]).await?;
    let control_plane = &cluster.rig;
    let hooks = hooks(&cluster.objects);
    let (pods, others): (Vec<_>, Vec<_>) = hooks.into_iter().partition(|object| object["kind"] == "Pod");
    control_plane.apply(&others).await?;
    let container = &pods.first().context("no Pod")?["spec"]["containers"][0];
    let args: Vec<String> = serde_json::from_value(container["args"].clone())?;
    ensure!(pods[0]["spec"]["serviceAccountName"] == ACCOUNT, "{}", pods[0]);
    let kubeconfig = control_plane.kubeconfig_for_service_account(NAMESPACE, ACCOUNT).await?;
    let test = TestPod { kubeconfig: &kubeconfig, args };

    let (address, port) = (machine_address()?, port::free()?);
    let _manager = cluster.manager_with(OPERATOR, &[format!("--admin-addr=0.0.0.0:{port}")]).await?;
    let replica = ReplicaPod {
        node: "none",
        namespace: NAMESPACE,
        name: "replica",
        label: ("app.kubernetes.io/name", OPERATOR),
        container: "manager",
        port_name: "admin",
        phase: "Running",
    };
    replica.create(control_plane, address, port).await?;
    let validator = ReplicaPod {
        namespace: LINKERD,
        name: "linkerd-destination",
        label: ("linkerd.io/control-plane-component", "destination"),
        container: "sp-validator",
        port_name: "spval-admin",
        ..replica
    };
    validator.create(control_plane, address, port).await?;

    let (code, text) = test.run(&[]).await?;
    ensure!(code == Some(0) && !text.contains("not looked at") && !text.contains("forbidden"), "{text}");
    for line in [
        "√ all replicas are ready",
        "√ the CRD linkerdconfigs.config.linkerd.io exists",
        "√ the operator's admission policies are in force",
        "√ a replica holds the Lease mesh/linkerd-operator",
        "Status check results are √",
    ] {
        ensure!(text.contains(line), "no {line:?} in:\n{text}");
    }

    // Without any one rule, something is not looked at, and the message of the API server names it.
    let mut rules = 0;
    for role in others.iter().filter(|object| object["kind"].as_str().is_some_and(|kind| kind.ends_with("Role"))) {
        for (at, rule) in role["rules"].as_array().context("rules")?.iter().enumerate() {
            let mut reduced = role.clone();
            reduced["rules"].as_array_mut().context("rules")?.remove(at);
            control_plane.apply(&[reduced]).await?;
            let resource = rule["resources"][0].as_str().context("a resource")?;
            let scope = match role["metadata"]["namespace"].as_str() {
                Some(namespace) => format!("in the namespace \"{namespace}\""),
                None => "at the cluster scope".to_owned(),
            };
            eventually(DEADLINE, "the permission to be missed", async || {
                let (code, text) = test.run(&["--wait=0s"]).await?;
                let is_missed =
                    |line: &str| line.contains(&format!("resource \"{resource}\"")) && line.contains(&scope);
                ensure!(code == Some(1) && text.lines().any(is_missed), "{resource} {scope}:\n{text}");
                ensure!(text.ends_with("Status check results are ‼\n"), "{text}");
                Ok(())
            })
            .await
            .with_context(|| id(role))?;
            control_plane.apply(std::slice::from_ref(role)).await?;
            rules += 1;
        }
    }
    ensure!(rules == 9, "{rules} rules");
    Ok(())
}

#[tokio::test]
async fn helm_renders_the_hooks_of_the_test_unless_it_is_off() -> Result<()> {
    let helm = Helm::new("helm4", e2e::shared().await?).await?;
    let rendered = async |values: &[&str]| -> Result<Vec<Value>> {
        Ok(hooks(&helm.template(OPERATOR, "mesh-operator", &[&IMAGE[..], values].concat()).await?))
    };
    let all = rendered(&["controlPlane.namespace=mesh", "imagePullSecrets[0].name=registry"]).await?;
    assert_eq!(all.len(), 8, "{all:?}");
    for object in &all {
        let annotations = &object["metadata"]["annotations"];
        // After a failure, the Pod stays for its log, and the account does not.
        let policy = match object["kind"] == "Pod" {
            true => "before-hook-creation,hook-succeeded",
            false => "before-hook-creation,hook-succeeded,hook-failed",
        };
        assert_eq!(annotations["helm.sh/hook-delete-policy"], policy, "{}", id(object));
        // The account and its permissions exist before the Pod.
        let weight = if object["kind"] == "Pod" { "0" } else { "-1" };
        assert_eq!(annotations["helm.sh/hook-weight"], weight, "{}", id(object));
    }
    let [pod] = of_kind(&all, "Pod")[..] else { anyhow::bail!("expected one Pod") };
    let container = &pod["spec"]["containers"][0];
    assert_eq!(container["image"], "linkerd-operator:dev");
    let args = ["check", "--wait=2m", "--operator-namespace=mesh-operator", "--linkerd-namespace=mesh"];
    assert_eq!(container["args"], json!(args));
    assert_eq!(pod["spec"]["imagePullSecrets"], json!([{"name": "registry"}]));
    // check must not count it as a replica.
    assert_eq!(pod["metadata"]["labels"]["app.kubernetes.io/name"], ACCOUNT);
    assert_eq!(rendered(&["helmTest.enabled=false"]).await?, [Value::Null; 0]);
    // Without Linkerd's namespace there are no roles in it.
    let without = rendered(&["controlPlane.roles=false"]).await?;
    assert_eq!(of_kind(&without, "Role").len(), 1);
    Ok(())
}

/// The test ends as its kubelet would end it.
#[tokio::test(flavor = "multi_thread")]
async fn helm_waits_for_the_pod_and_deletes_all_hooks_after_a_success() -> Result<()> {
    let cluster = OtherNamesRig::start(&[]).await?;
    let control_plane = &cluster.rig;
    let helm = Helm::new("helm4", control_plane).await?;
    let succeeds = eventually(DEADLINE, "the Pod of the test", async || {
        let status = json!({"status": {"phase": "Succeeded"}}).to_string();
        let patch = ["patch", "pod", ACCOUNT, "--namespace", NAMESPACE, "--subresource=status", "--type=merge", "-p"];
        control_plane.kubectl(&[&patch[..], &[&status]].concat()).await
    });
    let (ended, patched) = tokio::join!(helm.run(&["test", OPERATOR, "--namespace", NAMESPACE]), succeeds);
    patched?;
    ensure!(ended?.contains("Succeeded"), "helm test printed no success");
    let kinds = "serviceaccounts,pods,roles,rolebindings,clusterroles,clusterrolebindings";
    let left = control_plane.kubectl(&["get", kinds, "--all-namespaces", "--output=name"]).await?;
    ensure!(left.contains("clusterrole") && !left.contains(ACCOUNT), "{left}");
    Ok(())
}
