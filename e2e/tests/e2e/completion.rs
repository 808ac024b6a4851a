//! The completion of a command line in a shell: the script of bash, and names of the cluster from a real API server.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use e2e::{Rig, TestNamespace, command::Ended, executable::operator_binary};
use serde_json::json;
use tempfile::TempDir;
use tokio::process::Command;

use crate::cli::run;

#[tokio::test]
async fn bash_completes_subcommands() -> Result<()> {
    let directory = TempDir::new()?;
    let script = directory.path().join("completion");
    std::fs::write(&script, run(&["completion", "bash"]).await?.stdout)?;
    // bash calls the function that is registered for the command.
    let complete = r#"source "$1"; COMP_WORDS=(linkerd-operator exp); COMP_CWORD=1; PATH="$2:$PATH"
        function=$(complete -p linkerd-operator | sed 's/.* -F \([^ ]*\) .*/\1/')
        "$function" linkerd-operator exp linkerd-operator; echo "${COMPREPLY[@]}""#;
    let mut bash = Command::new("bash");
    // The script asks the program that a user would start.
    let binary = operator_binary()?;
    let folder = binary.parent().context("a folder")?;
    bash.args(["-c", complete, "bash"]).arg(&script).arg(folder);
    let ended = Ended::of(bash, Duration::from_secs(10)).await?;
    assert_eq!(ended.stdout, "explain\n", "{}", ended.stderr);
    Ok(())
}

/// Returns what a shell may offer for the last word of a command line, which it asks for as the script of bash does.
async fn completed(line: &[&str], kubeconfig: &str) -> Result<Vec<String>> {
    let mut command = Command::new(operator_binary()?);
    let flag = format!("--kubeconfig={kubeconfig}");
    let words = line.iter().map(|&word| if word == "KUBECONFIG" { flag.as_str() } else { word });
    command.args(["--", "linkerd-operator"]).args(words);
    command.env("LINKERD_OPERATOR_COMPLETE", "bash").env("_CLAP_COMPLETE_INDEX", line.len().to_string());
    command.env_remove("KUBECONFIG");
    let ended = Ended::of(command, Duration::from_secs(10)).await?;
    ensure!(ended.code == Some(0) && ended.stderr.is_empty(), "{}", ended.stderr);
    Ok(ended.stdout.lines().map(str::to_owned).collect())
}

#[tokio::test]
async fn a_shell_completes_the_names_of_linkerd_configs_namespaces_and_workloads() -> Result<()> {
    let control_plane = Rig::bare().crds("crd").start().await?;
    let namespace = TestNamespace::create(&control_plane.client, "completion").await?;
    let config = json!({
        "apiVersion": "config.linkerd.io/v1alpha1", "kind": "LinkerdConfig", "metadata": {"name": "mesh"}, "spec": {},
    });
    let pod =
        json!({"metadata": {"labels": {"app": "web"}}, "spec": {"containers": [{"name": "web", "image": "web"}]}});
    let web = json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web", "namespace": namespace.name()},
        "spec": {"selector": {"matchLabels": {"app": "web"}}, "template": pod},
    });
    control_plane.apply(&[config, web]).await?;
    let kubeconfig = control_plane.kubeconfig().to_string_lossy().into_owned();
    let name = namespace.name();
    for (line, expected) in [
        (&["status", "KUBECONFIG", "me"][..], "mesh".to_owned()),
        (&["explain", "KUBECONFIG", ""], "mesh".to_owned()),
        (&["rollout", "retry", "KUBECONFIG", "m"], "mesh".to_owned()),
        (&["check", "KUBECONFIG", "--operator-namespace", "comp"], name.to_owned()),
        (&["rollout", "restart", "KUBECONFIG", "comp"], format!("{name}/")),
        (&["rollout", "restart", "KUBECONFIG", &format!("{name}/de")], format!("{name}/deployment/web")),
    ] {
        let found = completed(line, &kubeconfig).await?;
        ensure!(found.contains(&expected), "{line:?}: {found:?}");
    }

    // A server that never answers, and none at all.
    let silent = std::net::TcpListener::bind("127.0.0.1:0")?;
    let directory = TempDir::new()?;
    let path = directory.path().join("kubeconfig");
    let cluster = json!({"server": format!("https://{}", silent.local_addr()?)});
    let config = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "silent",
        "clusters": [{"name": "silent", "cluster": cluster}], "users": [{"name": "silent", "user": {}}],
        "contexts": [{"name": "silent", "context": {"cluster": "silent", "user": "silent"}}],
    });
    std::fs::write(&path, config.to_string())?;
    for kubeconfig in [path.to_string_lossy(), "/does/not/exist".into()] {
        let found = completed(&["status", "KUBECONFIG", "me"], &kubeconfig).await?;
        ensure!(found.is_empty(), "{found:?}");
    }
    Ok(())
}
