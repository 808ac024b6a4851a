//! The second act: one resource owns the mesh's proxy configuration.

use std::{
    path::PathBuf,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use e2e::{
    ControlPlane, Injector, Manager, Process, Spawn, holds, injector::Behaviour, mesh::SOON,
    process::beside_this_executable, wait::eventually,
};
use serde_json::{Value, json};

use crate::{Kubectl, in_repository, metrics, say};

const INSTALLED: &str = "config/samples/linkerd.yaml";
pub(crate) const DECLARED: &str = "config/samples/linkerdconfig-minimal.yaml";
const WIDE: [&str; 4] = ["get", "linkerdconfigs", "-o", "wide"];
const EVENTS: [&str; 6] = [
    "get",
    "events.events.k8s.io",
    "--all-namespaces",
    "--field-selector=regarding.kind=LinkerdConfig",
    "--sort-by=.eventTime",
    "-o=custom-columns=TYPE:.type,REASON:.reason,OBJECT:.regarding.name,NOTE:.note",
];

const CONDITIONS: [&str; 4] = [
    "get",
    "linkerdconfig",
    "mesh",
    r#"-o=go-template={{range .status.conditions}}{{printf "%-16s%-8s%-20s%s\n" .type .status .reason .message}}{{end}}"#,
];
const BAD: &str = r#"{"spec": {"proxy": {"logLevel": "warn,lnkerd=debug"}}}"#;
const GOOD: &str = r#"[{"op": "remove", "path": "/spec/proxy/logLevel"}]"#;

pub(crate) async fn act(control_plane: &ControlPlane, manager: &Manager, injector: &Injector) -> Result<()> {
    let show = Kubectl(control_plane);
    let document = Linkerd(control_plane);
    for replica in injector.replicas() {
        injector.set_lag(replica, Duration::from_secs(90))?;
    }

    say(
        "The second act. What Helm leaves of Linkerd's configuration, here cut short: the ConfigMap that its injector reads.",
    );
    println!("$ kubectl apply --server-side --field-manager=helm -f {INSTALLED}");
    println!("{}", document.install(&in_repository(INSTALLED)).await?);
    document.shows("accessLog", "accessLog: ''").await?;

    say("A LinkerdConfig that sets one value. Before it is applied: what would it change?");
    println!("$ cat {DECLARED}\n{}", std::fs::read_to_string(in_repository(DECLARED))?.trim_end());
    let told = document.explain(&["-f", DECLARED]).await?;
    ensure!(told.contains("1 value would change"), "{told}");

    say(
        "It is applied. The operator keeps what Helm wrote as a ControllerRevision, and then writes that one value. Two replicas of\n\
         a stand-in for Linkerd's injector read the ConfigMap from files that their kubelet would refresh within 90 s: the operator\n\
         asks each until it proves that it uses what was written, and nudges who does not.",
    );
    show.file("-f", DECLARED).await?;
    document.becomes("accessLog: apache").await?;
    document.shows("accessLog", "accessLog: apache").await?;
    show.run(&["-n", "linkerd", "get", "controllerrevisions"]).await?;
    document.tells("LinkerdConfigUpdated").await?;
    eventually(SOON, "it to be ready", async || {
        let shown = control_plane.kubectl(&WIDE).await?;
        ensure!(shown.contains("true     True"), "{shown}");
        Ok(())
    })
    .await?;
    show.run(&WIDE).await?;

    say(
        "Somebody edits the ConfigMap by hand: this value, and another one that no resource names. Both are put back, and it is\n\
         said who did it.",
    );
    let before = document.values().await?;
    let edited = before.replace("accessLog: apache", "accessLog: json").replace("hickory=error", "hickory=trace");
    ensure!(edited != before, "there is nothing to edit:\n{before}");
    let since = Instant::now();
    document.edit(&edited).await?;
    eventually(SOON, "the edit to be reverted", async || {
        ensure!(document.values().await? == before, "it is still there");
        Ok(())
    })
    .await?;
    println!("as it was again, {} ms after kubectl was started", since.elapsed().as_millis());
    document.shows("accessLog|hickory", "accessLog: apache").await?;
    document.tells("DriftReverted").await?;
    show.run(&EVENTS).await?;

    say(
        "A value that the schema takes and the injector does not: it denies every Pod. The operator asks it before anybody else\n\
         does, and puts the last good document back.",
    );
    let before = document.values().await?;
    for replica in injector.replicas() {
        injector.set_behaviour(replica, Behaviour::Denies("proxy.logLevel: no such target".to_owned())).await?;
    }
    show.run(&["patch", "linkerdconfig", "mesh", "--type=merge", "-p", BAD]).await?;
    document.tells("ConfigRolledBack").await?;
    ensure!(document.values().await? == before, "it is not as it was");
    for replica in injector.replicas() {
        injector.set_behaviour(replica, Behaviour::Right).await?;
    }
    show.run(&CONDITIONS).await?;
    say("The resource is put right.");
    show.run(&["patch", "linkerdconfig", "mesh", "--type=json", "-p", GOOD]).await?;
    eventually(SOON, "it to be ready", async || {
        let shown = control_plane.kubectl(&WIDE).await?;
        ensure!(shown.contains("true     True"), "{shown}");
        Ok(())
    })
    .await?;
    show.run(&CONDITIONS).await?;

    say("helm upgrade is no drift: what it writes is the new base, and what the resource names is put over it again.");
    let sample = std::fs::read_to_string(in_repository(INSTALLED))?;
    let upgraded = document.file("upgraded.yaml", &sample.replace("edge-26.8.3", "edge-26.8.4"))?;
    println!("$ kubectl apply --server-side --field-manager=helm --force-conflicts -f upgraded.yaml");
    println!("{}", document.install(&upgraded.display().to_string()).await?);
    document.becomes("linkerdVersion: edge-26.8.4").await?;
    document.becomes("accessLog: apache").await?;
    document.tells("BaseUpdated").await?;
    eventually(SOON, "its status to say so", async || {
        let shown = control_plane.kubectl(&WIDE).await?;
        ensure!(shown.contains("true     True    edge-26.8.4"), "{shown}");
        Ok(())
    })
    .await?;
    show.run(&WIDE).await?;

    say("Where each value is from, now.");
    let told = document.explain(&[]).await?;
    ensure!(
        told.contains("revision") && told.contains("Synced: the ConfigMap holds the declared configuration"),
        "{told}"
    );

    say("What the metrics say.");
    metrics(
        manager,
        &[
            "linkerd_operator_linkerdconfig_info",
            "linkerd_operator_linkerdconfig_condition",
            "linkerd_operator_linkerdconfig_drift_total",
            "linkerd_operator_linkerdconfig_configmap_writes_total{result=\"ok\"",
            "linkerd_operator_linkerdconfig_injector_replicas",
        ],
    )
    .await?;

    say("It is deleted. By default that changes nothing in the mesh: the ConfigMap stays as it is, to the byte.");
    let before = document.object().await?;
    show.run(&["delete", "linkerdconfig", "mesh"]).await?;
    holds(Duration::from_secs(2), "the ConfigMap to stay", async || {
        ensure!(document.object().await? == before, "it changed");
        Ok(())
    })
    .await?;
    document.shows("accessLog", "accessLog: apache").await
}

/// Its ConfigMap, and who changes and explains it.
struct Linkerd<'a>(&'a ControlPlane);

impl Linkerd<'_> {
    async fn install(&self, file: &str) -> Result<String> {
        let helm = ["apply", "--server-side", "--field-manager=helm", "--force-conflicts", "-f", file];
        Ok(self.0.kubectl(&helm).await?.trim_end().to_owned())
    }

    async fn object(&self) -> Result<Value> {
        let object = self.0.kubectl(&["-n", "linkerd", "get", "configmap", "linkerd-config", "-o", "json"]).await?;
        Ok(serde_json::from_str(&object)?)
    }

    async fn values(&self) -> Result<String> {
        let object = self.object().await?;
        let values = object.pointer("/data/values").and_then(Value::as_str);
        values.map(str::to_owned).context("the ConfigMap has no values")
    }

    /// Shows the lines of the document with these words, and checks what is among them.
    async fn shows(&self, words: &str, expected: &str) -> Result<()> {
        println!("$ kubectl -n linkerd get configmap linkerd-config -o=jsonpath={{.data.values}} | grep -E '{words}'");
        let values = self.values().await?;
        let lines = values.lines().filter(|line| words.split('|').any(|word| line.contains(word)));
        let lines: Vec<&str> = lines.collect();
        println!("{}", lines.join("\n"));
        ensure!(lines.iter().any(|line| line.contains(expected)), "there is no {expected:?}");
        Ok(())
    }

    async fn becomes(&self, expected: &str) -> Result<()> {
        eventually(SOON, format_args!("the document to have {expected:?}"), async || {
            let values = self.values().await?;
            ensure!(values.contains(expected), "{values}");
            Ok(())
        })
        .await
    }

    /// As `kubectl edit` does it.
    async fn edit(&self, values: &str) -> Result<()> {
        let patch = self.file("edited.yaml", &json!({"data": {"values": values}}).to_string())?;
        println!(
            "$ kubectl -n linkerd patch configmap linkerd-config --field-manager=kubectl-edit --patch-file edited.yaml"
        );
        let patch = patch.display().to_string();
        let args =
            ["-n", "linkerd", "patch", "configmap", "linkerd-config", "--field-manager=kubectl-edit", "--patch-file"];
        println!("{}", self.0.kubectl(&[&args[..], &[&patch]].concat()).await?.trim_end());
        Ok(())
    }

    /// Waits for an Event.
    async fn tells(&self, reason: &str) -> Result<()> {
        eventually(SOON, format_args!("an Event {reason}"), async || {
            let events = self.0.kubectl(&EVENTS).await?;
            ensure!(events.contains(reason), "{events}");
            Ok(())
        })
        .await
    }

    /// What the terminal shows of the resource in effect, or of a manifest in the repository.
    async fn explain(&self, args: &[&str]) -> Result<String> {
        println!("$ linkerd-operator {}", [&["explain"], args].concat().join(" "));
        let binary = beside_this_executable("linkerd-operator", "LINKERD_OPERATOR_BIN")?;
        let kubeconfig = self.0.kubeconfig().display().to_string();
        let paths = args.iter().map(|arg| if arg.starts_with('-') { (*arg).to_owned() } else { in_repository(arg) });
        let args = ["explain".to_owned(), "--kubeconfig".to_owned(), kubeconfig].into_iter().chain(paths);
        let log = self.file("explain.log", "")?;
        let mut process = Process::spawn(Spawn::new("explain", binary, log).args(args))?;
        let status = process.wait(SOON).await?;
        let printed = process.log();
        println!("{}", printed.trim_end());
        ensure!(status.success(), "it ended with {status}");
        Ok(printed)
    }

    fn file(&self, name: &str, text: &str) -> Result<PathBuf> {
        let path = self.0.directory().join(name);
        std::fs::write(&path, text)?;
        Ok(path)
    }
}
