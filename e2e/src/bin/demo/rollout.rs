//! The third act: running proxies are updated to the configuration, one workload after the other.

use anyhow::{Context, Result, ensure};
use e2e::{ControlPlane, Manager, mesh::SOON, wait::eventually};

use crate::{Kubectl, linkerd_config::DECLARED, metrics, say, shown, watcher::Watcher};

pub(crate) const NAMESPACE: &str = "shop";
const WORKLOADS: &str = "config/samples/shop.yaml";
const OPTED_IN: [&str; 2] = ["cart", "orders"];
const OTHER: &str = "search";
const CONFIGS: [&str; 2] = ["get", "lcfg"];
/// With short pauses for the demo.
const CHANGE: &str =
    r#"{"spec": {"proxy": {"logLevel": "warn,linkerd=debug"}, "rollout": {"interval": "1s", "soak": "2s"}}}"#;
const OURS: &str = "--field-selector=reportingController=linkerd-operator";
const EVENT: &str = r#"-o=go-template={{printf "%s  %-7s %-13s %s\n" .eventTime .regarding.name .reason .note}}"#;
const PROXIES: [&str; 6] = [
    "-n",
    NAMESPACE,
    "get",
    "pods",
    "--sort-by=.metadata.name",
    r#"-o=custom-columns=POD:.metadata.name,BORN:.metadata.creationTimestamp,LOG LEVEL OF ITS PROXY:.spec.initContainers[?(@.name=="linkerd-proxy")].env[?(@.name=="LINKERD2_PROXY_LOG")].value"#,
];

pub(crate) async fn act(control_plane: &ControlPlane, manager: &Manager) -> Result<()> {
    let show = Kubectl(control_plane);
    say(&format!(
        "The third act. Three Deployments whose Pods get proxies from the injector. Two have opted in to restarts, by a label\n\
         ({WORKLOADS})."
    ));
    show.file("-f", WORKLOADS).await?;
    for name in OPTED_IN.iter().chain([&OTHER]) {
        let target = format!("deployment/{name}");
        control_plane.kubectl(&["-n", NAMESPACE, "rollout", "status", &target, "--timeout=30s"]).await?;
    }
    show.run(&["-n", NAMESPACE, "get", "deployments", "-L", "config.linkerd.io/reconcile"]).await?;

    say(
        "The resource is applied again. All workloads that opted in already run with its configuration, so none is restarted.",
    );
    show.file("-f", DECLARED).await?;
    eventually(SOON, "the rollout to be complete", async || {
        let shown = control_plane.kubectl(&CONFIGS).await?;
        ensure!(shown.contains("2/2") && shown.contains("Complete"), "{shown}");
        Ok(())
    })
    .await?;
    show.run(&CONFIGS).await?;
    show.run(&PROXIES).await?;

    say(
        "Another log level for all proxies, which read it only at their start. The workloads that opted in are restarted, each one\n\
         after the previous one is ready and has stayed ready for the soak time. The Events, until the rollout is complete:",
    );
    let before = pods(control_plane, OTHER).await?;
    let watch = ["-n", NAMESPACE, "get", "events.events.k8s.io", "--watch", OURS, EVENT];
    let mut events = Watcher::of(control_plane.start_kubectl(&watch)?);
    show.run(&["patch", "lcfg", "mesh", "--type=merge", "-p", CHANGE]).await?;
    println!("{}", shown(&watch));
    let mut printed = String::new();
    // Two lines for each workload.
    while printed.lines().count() < 2 * OPTED_IN.len() {
        printed += &events.prints(&["\n"]).await?;
    }
    show.run(&["wait", "--for=condition=RolloutComplete", "lcfg/mesh", "--timeout=30s"]).await?;
    were_restarted_in_turn(&printed)?;

    say("Both run with it. The third one has not opted in, so it is not restarted.");
    show.run(&CONFIGS).await?;
    show.run(&PROXIES).await?;
    ensure!(pods(control_plane, OTHER).await? == before, "{OTHER} was restarted");

    say("The last restart of each workload, as annotations and as Events.");
    let columns = r"-o=custom-columns=DEPLOYMENT:.metadata.name,RESTARTED FOR:.spec.template.metadata.annotations.config\.linkerd\.io/restarted-for,STATE:.metadata.annotations.config\.linkerd\.io/rollout-state";
    show.run(&["-n", NAMESPACE, "get", "deployments", columns]).await?;
    let of_one = format!("{OURS},regarding.name={}", OPTED_IN[0]);
    let columns = "-o=custom-columns=TYPE:.type,REASON:.reason,OBJECT:.regarding.name,NOTE:.note";
    show.run(&["-n", NAMESPACE, "get", "events.events.k8s.io", &of_one, "--sort-by=.eventTime", columns]).await?;

    say("The metrics.");
    metrics(manager, &["linkerd_operator_linkerdconfig_restarts_total{kind=\"Deployment\""]).await
}

/// The Pods of a workload.
async fn pods(control_plane: &ControlPlane, workload: &str) -> Result<String> {
    let of = format!("app={workload}");
    control_plane.kubectl(&["-n", NAMESPACE, "get", "pods", "-l", &of, "-o", "name"]).await
}

/// Fails unless each workload was up to date before the next one was restarted.
fn were_restarted_in_turn(printed: &str) -> Result<()> {
    let column = |line: &str, number| line.split_whitespace().nth(number).map(str::to_owned);
    let printed: Option<Vec<(String, String)>> =
        printed.lines().map(|line| Some((column(line, 2)?, column(line, 1)?))).collect();
    let printed = printed.context("the lines have an unexpected format")?;
    let each = |reason: &'static str, name: &str| (reason.to_owned(), name.to_owned());
    let wanted: Vec<_> =
        OPTED_IN.iter().flat_map(|name| [each("PodRestart", name), each("ProxyUpToDate", name)]).collect();
    ensure!(printed == wanted, "{printed:?}");
    Ok(())
}
