//! Runs the commands of documentation pages as their readers run them: with `sh`, on a real API server.
//!
//! * In: the text of a page, a control plane. Out: whether each command succeeds, and prints what the page shows.
//! * Always: a command runs with the tools and the kubeconfig of the test, and nothing else of this host is changed.

pub(crate) mod shown;

use std::{
    os::unix::fs::{PermissionsExt, symlink},
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context, Result};
use e2e::{
    ControlPlane,
    binaries::Binaries,
    command::Ended,
    executable::operator_binary,
    shipped::{in_repository, path_to_repository, remove_makes_variables},
};
use tokio::process::Command;

/// More than the longest `--timeout` on a page, whose error says what it waited for.
const DEADLINE: Duration = Duration::from_secs(11 * 60);

/// A shell block of a page.
#[derive(Debug)]
pub(crate) struct ShellBlock {
    /// The text before it, up to the previous block.
    pub(crate) before: String,
    pub(crate) text: String,
    /// The output that the page shows directly below it.
    pub(crate) shown: Option<String>,
}

/// Returns the shell blocks of a text, in order.
pub(crate) fn shell_blocks(text: &str) -> Vec<ShellBlock> {
    let mut parts = text.split("```sh\n");
    let mut before = parts.next().unwrap_or_default();
    let mut blocks = Vec::new();
    for part in parts {
        let (text, after) = part.split_once("```").unwrap_or((part, ""));
        let shown = after.trim_start().strip_prefix("```text\n").and_then(|rest| rest.split_once("```"));
        blocks.push(ShellBlock {
            before: before.to_owned(),
            text: text.to_owned(),
            shown: shown.map(|(shown, _)| shown.to_owned()),
        });
        before = after;
    }
    blocks
}

/// Returns the commands of a block: its lines, joined where one continues on the next.
pub(crate) fn commands(block: &str) -> Vec<String> {
    let mut commands: Vec<String> = Vec::new();
    let mut is_continued = false;
    for line in block.lines().map(str::trim).filter(|line| !line.is_empty()) {
        match commands.last_mut().filter(|_| is_continued) {
            Some(command) => *command = format!("{} {line}", command.trim_end_matches('\\').trim_end()),
            None => commands.push(line.to_owned()),
        }
        is_continued = line.ends_with('\\') || line.ends_with('|');
    }
    commands
}

/// A command that runs in the checkout and changes nothing in it: neither the deployed kustomization, which other runs
/// may use, nor files elsewhere.
pub(crate) fn in_the_checkout(control_plane: &ControlPlane, command: &str) -> Result<String> {
    let directory = control_plane.directory().display().to_string();
    let mut text = command.replace("/tmp/", &format!("{directory}/"));
    if text.starts_with("make ") {
        let overlay = control_plane.directory().join("overlay");
        std::fs::create_dir_all(&overlay)?;
        text += &format!(" OVERLAY={} OVERLAY_BASE={}", overlay.display(), path_to_repository(&overlay)?);
    }
    Ok(text)
}

/// Where commands run.
pub(crate) struct Shell {
    /// The working directory.
    directory: PathBuf,
    kubeconfig: PathBuf,
    tools: PathBuf,
    home: PathBuf,
}

// === impl Shell ===

impl Shell {
    /// Makes a folder with the programs that pages use: kubectl, this Helm, and the operator's command line.
    pub(crate) async fn new(control_plane: &ControlPlane, helm: &str) -> Result<Self> {
        let home = control_plane.directory().join("home");
        let tools = home.join("tools");
        tokio::fs::create_dir_all(&tools).await?;
        let helm = tokio::task::spawn_blocking(Binaries::find_or_build_helm).await??.tool(helm)?;
        symlink(helm, tools.join("helm"))?;
        symlink(control_plane.kubectl_path()?, tools.join("kubectl"))?;
        symlink(operator_binary()?, tools.join("linkerd-operator"))?;
        let kubeconfig = control_plane.kubeconfig().to_owned();
        Ok(Self { directory: PathBuf::from(in_repository("")), kubeconfig, tools, home })
    }

    /// Adds a program: a script of `sh`.
    pub(crate) fn add_script(&self, name: &str, text: &str) -> Result<()> {
        let path = self.tools.join(name);
        std::fs::write(&path, format!("#!/bin/sh\n{text}"))?;
        Ok(std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755))?)
    }

    /// Only kubectl, in another working directory.
    pub(crate) fn with_kubectl(control_plane: &ControlPlane, directory: &Path) -> Result<Self> {
        let kubectl = control_plane.kubectl_path()?;
        let tools = kubectl.parent().context("kubectl has no folder")?.to_owned();
        let kubeconfig = control_plane.kubeconfig().to_owned();
        Ok(Self { directory: directory.to_owned(), kubeconfig, tools, home: directory.to_owned() })
    }

    /// Runs a text. `editor` is what `kubectl edit` runs.
    pub(crate) async fn output(&self, text: &str, editor: &str) -> Result<Ended> {
        let mut command = Command::new("sh");
        command.args(["-e", "-u", "-c", text]).current_dir(&self.directory);
        remove_makes_variables(&mut command);
        command.env_remove("KUBECTL").env_remove("HELM");
        let path = std::env::var("PATH").unwrap_or_default();
        command.env("PATH", format!("{}:{path}", self.tools.display())).env("KUBE_EDITOR", editor);
        command.env("KUBECONFIG", &self.kubeconfig).env("HOME", &self.home);
        Ended::of(command, DEADLINE).await
    }

    /// As [`Self::output`]. It fails if the text does.
    pub(crate) async fn run(&self, text: &str, editor: &str) -> Result<()> {
        self.output(text, editor).await?.succeeded().map(drop).with_context(|| text.to_owned())
    }
}

#[test]
fn the_blocks_of_a_page_are_found_and_their_lines_joined_to_commands() {
    let page = "Do:\n\n```sh\na b \\\n  c\nd |\n  e\n```\n\n```text\ng\n```\n\n- Helm:\n\n  ```sh\n  f\n  ```\n";
    let blocks = shell_blocks(page);
    let [first, second] = &blocks[..] else { panic!("{blocks:?}") };
    assert_eq!(
        (first.before.as_str(), commands(&first.text)),
        ("Do:\n\n", vec!["a b c".to_owned(), "d | e".to_owned()])
    );
    assert_eq!(first.shown.as_deref(), Some("g\n"));
    assert_eq!(second.shown, None);
    assert!(second.before.trim_end().ends_with("\n- Helm:"), "{}", second.before);
    assert_eq!(commands(&second.text), ["f"]);
}
