//! The second act: one resource owns the proxy configuration of the mesh.

use std::{
    path::PathBuf,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use e2e::{
    ControlPlane, Injector, Manager, holds, injector::Behaviour, mesh::SOON, shipped::in_repository, wait::eventually,
};
use serde_json::{Value, json};

use crate::{Kubectl, metrics, operator, rollout, say, shown};

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
const BAD: &str = r#"{"spec": {"values": {"proxy": {"metrics": {"hostnameLabels": true}}}}}"#;
const GOOD: &str = r#"[{"op": "remove", "path": "/spec/values"}]"#;
/// The longest time until a kubelet refreshes the file of a replica.
const LAG: Duration = Duration::from_secs(90);
/// The namespaces whose Pods the injectors review, besides Linkerd's.
const REVIEWED: [&str; 2] = ["default", rollout::NAMESPACE];
/// A Pod that is not created.
const NEW_POD: [&str; 5] = ["run", "new", "--image=new", "--annotations=linkerd.io/inject=enabled", "--dry-run=server"];

/// Returns the injector, which runs on.
pub(crate) async fn act(control_plane: &ControlPlane, manager: &Manager) -> Result<Injector> {
    let show = Kubectl(control_plane);
    let document = LinkerdDocument(control_plane);

    say("The second act. The ConfigMap of Linkerd's injector as Helm writes it, shortened.");
    println!("$ kubectl apply --server-side --field-manager=helm -f {INSTALLED}");
    println!("{}", document.install(&in_repository(INSTALLED)).await?);
    document.shows("accessLog", "accessLog: ''").await?;

    say("A LinkerdConfig that sets one value. Before it is applied: `explain` shows what it would change.");
    println!("$ cat {DECLARED}\n{}", std::fs::read_to_string(in_repository(DECLARED))?.trim_end());
    let explained = document.explain(&["-f", DECLARED]).await?;
    ensure!(explained.contains("1 value would change"), "{explained}");

    say(
        "The resource is applied. The operator saves Helm's document as a ControllerRevision, and then writes that one value. Two\n\
         replicas of our proxy injector, each a process of its own, watch the ConfigMap. The operator probes each replica until it\n\
         uses the new document.",
    );
    let injector = Injector::start_operator(true, control_plane, "linkerd", &REVIEWED, 2).await?;
    show.file("-f", DECLARED).await?;
    document.becomes("accessLog: apache").await?;
    document.shows("accessLog", "accessLog: apache").await?;
    show.run(&["-n", "linkerd", "get", "controllerrevisions"]).await?;
    document.prints(&EVENTS, &["LinkerdConfigUpdated"]).await?;
    document.prints(&WIDE, &["true     True"]).await?;
    show.run(&WIDE).await?;

    say(
        "The ConfigMap is edited by hand: this value, and another one that the resource does not set. Both are reverted, and an\n\
         Event names the field manager.",
    );
    let before = document.values().await?;
    let edited = before.replace("accessLog: apache", "accessLog: json").replace("hickory=error", "hickory=trace");
    ensure!(edited != before, "the document does not contain the values to edit:\n{before}");
    let since = Instant::now();
    document.edit(&edited).await?;
    eventually(SOON, "the edit to be reverted", async || {
        ensure!(document.values().await? == before, "the edit has not been reverted");
        Ok(())
    })
    .await?;
    println!("reverted {} ms after kubectl was started", since.elapsed().as_millis());
    document.shows("accessLog|hickory", "accessLog: apache").await?;
    document.prints(&EVENTS, &["DriftReverted"]).await?;
    show.run(&EVENTS).await?;

    say(
        "The operator refuses the values that Linkerd's injector is known to deny. What it does not know, the probe finds. Staged:\n\
         two replicas of the demo's stand-in for Linkerd's injector, which read the ConfigMap from files, take the place of ours. They\n\
         deny every Pod, as another version of Linkerd may deny a value that this version accepts. The text is the demo's. The\n\
         operator rolls the document back.",
    );
    remove_all(&injector).await?;
    let injector = Injector::start(control_plane, "linkerd", &REVIEWED, 2).await?;
    let lag = |lag| injector.replicas().into_iter().try_for_each(|replica| injector.set_lag(replica, lag));
    document.prints(&WIDE, &["true     True"]).await?;
    lag(LAG)?;
    let before = document.values().await?;
    for replica in injector.replicas() {
        injector.set_behaviour(replica, Behaviour::Denies("denied by the demo's stand-in".to_owned())).await?;
    }
    show.run(&["patch", "linkerdconfig", "mesh", "--type=merge", "-p", BAD]).await?;
    document.prints(&EVENTS, &["ConfigRolledBack"]).await?;
    ensure!(document.values().await? == before, "the document was not rolled back");
    for replica in injector.replicas() {
        injector.set_behaviour(replica, Behaviour::Right).await?;
    }
    show.run(&CONDITIONS).await?;
    say("The resource is corrected.");
    show.run(&["patch", "linkerdconfig", "mesh", "--type=json", "-p", GOOD]).await?;
    document.prints(&WIDE, &["true     True"]).await?;
    show.run(&CONDITIONS).await?;

    say(
        "helm upgrade with a value that Linkerd's injector denies: its template accepts only insecure and off. From then on no Pod\n\
         of the mesh can be created. The demo's stand-in for the injector has the same rule. The operator\n\
         keeps the installer's value, and its conditions name it and quote the injector.",
    );
    let sample = std::fs::read_to_string(in_repository(INSTALLED))?;
    let denied = sample.replace("logHTTPHeaders: 'off'", "logHTTPHeaders: all");
    ensure!(denied != sample, "the sample does not contain the value to change");
    let denied = document.file("denied.yaml", &denied)?;
    lag(Duration::ZERO)?;
    println!("$ kubectl apply --server-side --field-manager=helm --force-conflicts -f denied.yaml");
    println!("{}", document.install(&denied.display().to_string()).await?);
    let denial = eventually(SOON, "the injector to deny a Pod", async || {
        let Err(denial) = control_plane.kubectl(&NEW_POD).await else { bail!("it accepts the Pod") };
        let denial = denial.to_string();
        ensure!(denial.contains("logHTTPHeaders must not be all"), "{denial}");
        Ok(denial)
    })
    .await?;
    println!("{}\n{}", shown(&NEW_POD), denial.split_once(": ").map_or(&*denial, |(_, denial)| denial));
    lag(LAG)?;
    document.prints(&CONDITIONS, &["SuspectBase", "proxy.logHTTPHeaders", "Denied"]).await?;
    show.run(&CONDITIONS).await?;

    say(
        "helm upgrade with a good value. It is not drift: the document is the new base, and the operator writes the declared value\n\
         into it again.",
    );
    let upgraded = document.file("upgraded.yaml", &sample.replace("edge-26.8.3", "edge-26.8.4"))?;
    println!("$ kubectl apply --server-side --field-manager=helm --force-conflicts -f upgraded.yaml");
    println!("{}", document.install(&upgraded.display().to_string()).await?);
    document.becomes("linkerdVersion: edge-26.8.4").await?;
    document.becomes("accessLog: apache").await?;
    document.prints(&EVENTS, &["BaseUpdated"]).await?;
    document.prints(&WIDE, &["true     True", "edge-26.8.4"]).await?;
    show.run(&WIDE).await?;

    say("Our proxy injector takes the place of the stand-in again.");
    remove_all(&injector).await?;
    let injector = Injector::start_operator(true, control_plane, "linkerd", &REVIEWED, 2).await?;
    document.prints(&WIDE, &["true     True", "edge-26.8.4"]).await?;
    document.prints(&CONDITIONS, &["2 of 2 replicas use the configuration"]).await?;
    show.run(&CONDITIONS).await?;

    say("The origin of each value.");
    let explained = document.explain(&[]).await?;
    ensure!(
        explained.contains("revision") && explained.contains("Synced: the ConfigMap holds the declared configuration"),
        "{explained}"
    );

    say("The metrics.");
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

    say(
        "The resource is deleted. By default that changes nothing in the mesh: the ConfigMap stays byte for byte the same.",
    );
    let before = document.object().await?;
    show.run(&["delete", "linkerdconfig", "mesh"]).await?;
    holds(Duration::from_secs(2), "the ConfigMap to stay", async || {
        ensure!(document.object().await? == before, "the ConfigMap changed");
        Ok(())
    })
    .await?;
    document.shows("accessLog", "accessLog: apache").await?;
    Ok(injector)
}

async fn remove_all(injector: &Injector) -> Result<()> {
    for replica in injector.replicas() {
        injector.remove_replica(replica).await?;
    }
    Ok(())
}

/// Linkerd's ConfigMap, with functions to change and explain it.
struct LinkerdDocument<'a>(&'a ControlPlane);

impl LinkerdDocument<'_> {
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

    /// Prints the lines of the document that contain these words, and checks that one contains `expected`.
    async fn shows(&self, words: &str, expected: &str) -> Result<()> {
        println!("$ kubectl -n linkerd get configmap linkerd-config -o=jsonpath={{.data.values}} | grep -E '{words}'");
        let values = self.values().await?;
        let lines = values.lines().filter(|line| words.split('|').any(|word| line.contains(word)));
        let lines: Vec<&str> = lines.collect();
        println!("{}", lines.join("\n"));
        ensure!(lines.iter().any(|line| line.contains(expected)), "no line contains {expected:?}");
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

    /// Edits the document as `kubectl edit` does.
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

    /// Waits until the output of kubectl contains these texts.
    async fn prints(&self, args: &[&str], expected: &[&str]) -> Result<()> {
        eventually(SOON, format_args!("{expected:?} to be printed"), async || {
            let printed = self.0.kubectl(args).await?;
            ensure!(expected.iter().all(|text| printed.contains(text)), "{printed}");
            Ok(())
        })
        .await
    }

    /// Prints the output of `explain` for the resource in effect, or for a manifest in the repository.
    async fn explain(&self, args: &[&str]) -> Result<String> {
        println!("$ linkerd-operator {}", [&["explain"], args].concat().join(" "));
        let kubeconfig = self.0.kubeconfig().display().to_string();
        let paths = args.iter().map(|arg| if arg.starts_with('-') { (*arg).to_owned() } else { in_repository(arg) });
        let args: Vec<String> =
            ["explain".to_owned(), "--kubeconfig".to_owned(), kubeconfig].into_iter().chain(paths).collect();
        let printed = operator(self.0, &args).await?;
        println!("{}", printed.trim_end());
        Ok(printed)
    }

    fn file(&self, name: &str, text: &str) -> Result<PathBuf> {
        let path = self.0.directory().join(name);
        std::fs::write(&path, text)?;
        Ok(path)
    }
}
