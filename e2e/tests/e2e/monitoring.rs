//! The alerts, the recording rules and the dashboard, with Prometheus' own programs.
//!
//! * promtool runs the tests in `config/prometheus/tests`: each alert in a case in which it fires, and in a near miss.
//! * Prometheus scrapes two replicas and evaluates every rule and every query of the dashboard.

use std::{
    fs,
    net::{Ipv4Addr, SocketAddr},
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use e2e::{
    Manager, ManagerOptions, Process, Rig, Spawn, binaries::Binaries, command::Ended, eventually, holds, mesh::SOON,
    plain_http, port, shipped::in_repository,
};
use hyper::{Method, StatusCode};
use serde_json::{Value, json};
use tokio::process::Command;

/// The files of rules, without their ends.
const RULES: [&str; 2] = ["alerts", "recording_rules"];
const DEADLINE: Duration = Duration::from_secs(60);
/// The tests take 20 s of CPU time.
const PROMTOOL_DEADLINE: Duration = Duration::from_secs(300);
/// Longer than two scrapes and several evaluations.
const AT_REST: Duration = Duration::from_secs(12);

async fn tool(name: &str) -> Result<PathBuf> {
    tokio::task::spawn_blocking(Binaries::find_or_build_prometheus).await??.tool(name)
}

/// Runs promtool in this directory, and returns its output. It fails if promtool does.
async fn promtool(directory: &Path, args: &[&str]) -> Result<String> {
    let mut command = Command::new(tool("promtool").await?);
    command.args(args).current_dir(directory).env_clear();
    let Ended { code, stdout, stderr } = Ended::of(command, PROMTOOL_DEADLINE).await?;
    ensure!(code == Some(0), "promtool {}:\n{stdout}{stderr}", args.join(" "));
    Ok(stdout + &stderr)
}

/// Writes the rules of each `PrometheusRule` into a file of Prometheus' own format. Returns their number.
fn write_rules(directory: &Path) -> Result<usize> {
    let mut count = 0;
    for name in RULES {
        let text = fs::read_to_string(in_repository(&format!("config/prometheus/{name}.yaml")))?;
        let rule: Value = serde_yaml::from_str(&text).with_context(|| name.to_owned())?;
        let groups = rule.pointer("/spec/groups").and_then(Value::as_array).context("no groups")?;
        count += groups.iter().filter_map(|group| group["rules"].as_array()).map(Vec::len).sum::<usize>();
        let groups = json!({"groups": groups});
        fs::write(directory.join(format!("{name}.yaml")), serde_yaml::to_string(&groups)?)?;
    }
    Ok(count)
}

/// Writes the queries of the dashboard as rules, with all values of its variables.
fn write_dashboard(directory: &Path) -> Result<usize> {
    let dashboard: Value =
        serde_json::from_str(&fs::read_to_string(in_repository("config/prometheus/dashboard.json"))?)?;
    let panels = dashboard.get("panels").and_then(Value::as_array).context("no panels")?;
    let targets = panels.iter().filter_map(|panel| panel.get("targets")?.as_array()).flatten();
    let queries = targets.filter_map(|target| target.get("expr")?.as_str());
    let rule = |(number, query): (usize, &str)| {
        let query = query.replace("$__rate_interval", "1m").replace("$job", ".+").replace("$pod", ".+");
        json!({"record": format!("dashboard:{number}"), "expr": query})
    };
    let rules: Vec<_> = queries.enumerate().map(rule).collect();
    let groups = json!({"groups": [{"name": "dashboard", "rules": rules}]});
    fs::write(directory.join("dashboard.yaml"), serde_yaml::to_string(&groups)?)?;
    Ok(rules.len())
}

#[tokio::test]
async fn promtool_accepts_the_rules_and_every_alert_fires_where_it_should_and_not_elsewhere() -> Result<()> {
    let directory = tempfile::tempdir()?;
    ensure!(write_rules(directory.path())? >= 15 && write_dashboard(directory.path())? > 50);
    let files = ["alerts.yaml", "recording_rules.yaml", "dashboard.yaml"];
    let check = ["check", "rules", "--lint=all", "--lint-fatal"];
    promtool(directory.path(), &[check.as_slice(), &files].concat()).await?;

    let mut tests = Vec::new();
    for file in fs::read_dir(in_repository("config/prometheus/tests"))? {
        let file = file?;
        let name = format!("test-{}", file.file_name().to_string_lossy());
        fs::copy(file.path(), directory.path().join(&name))?;
        tests.push(name);
    }
    let args: Vec<_> = ["test", "rules"].into_iter().chain(tests.iter().map(String::as_str)).collect();
    promtool(directory.path(), &args).await?;
    Ok(())
}

/// A Prometheus that scrapes managers every five seconds and evaluates the rules each second. A scrape that takes too long
/// would look like a missing replica.
struct Prometheus {
    address: SocketAddr,
    /// The number of rules in its files.
    rules: usize,
    _process: Process,
    _directory: tempfile::TempDir,
}

// === impl Prometheus ===

impl Prometheus {
    async fn start(managers: &[&Manager]) -> Result<Self> {
        let directory = tempfile::tempdir()?;
        let rules = write_rules(directory.path())? + write_dashboard(directory.path())?;
        // The labels that the Prometheus operator adds for the PodMonitor.
        let targets = managers.iter().enumerate().map(|(number, manager)| {
            json!({
                "targets": [manager.admin_address().to_string()],
                "labels": {"namespace": "linkerd-operator-system", "pod": format!("linkerd-operator-{number}")},
            })
        });
        let config = json!({
            "global": {"scrape_interval": "5s", "scrape_timeout": "5s", "evaluation_interval": "1s"},
            "rule_files": ["*.yaml"],
            "scrape_configs": [{
                "job_name": "linkerd-operator",
                "honor_labels": true,
                "static_configs": targets.collect::<Vec<_>>(),
            }],
        });
        let file = directory.path().join("prometheus.json");
        fs::write(&file, serde_yaml::to_string(&config)?)?;
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port::free()?));
        let spawn =
            Spawn::new("prometheus", tool("prometheus").await?, directory.path().join("prometheus.log")).args([
                format!("--config.file={}", file.display()),
                format!("--storage.tsdb.path={}", directory.path().join("data").display()),
                format!("--web.listen-address={address}"),
                "--log.level=warn".to_owned(),
            ]);
        Ok(Self { address, rules, _process: Process::spawn(spawn)?, _directory: directory })
    }

    /// Returns `data` of a response of the API.
    async fn get(&self, path: &str) -> Result<Value> {
        let (status, body) = plain_http::request(self.address, Method::GET, path, "", SOON).await?;
        ensure!(status == StatusCode::OK, "{path}: {status} {}", String::from_utf8_lossy(&body));
        let mut response: Value = serde_json::from_slice(&body)?;
        Ok(response.get_mut("data").map(Value::take).unwrap_or_default())
    }

    /// Returns the health of each target.
    async fn targets(&self) -> Result<Vec<String>> {
        let targets = self.get("/api/v1/targets?state=active").await?;
        let targets = targets.get("activeTargets").and_then(Value::as_array).context("no targets")?;
        Ok(targets.iter().map(|target| text(target, "health")).collect())
    }

    /// Returns all rules. It fails if a rule was not evaluated, or not without an error.
    async fn rules(&self) -> Result<Vec<Value>> {
        let rules = self.get("/api/v1/rules").await?;
        let groups = rules.get("groups").and_then(Value::as_array).context("no groups")?;
        let rules: Vec<_> =
            groups.iter().filter_map(|group| group.get("rules")?.as_array()).flatten().cloned().collect();
        for rule in &rules {
            ensure!(text(rule, "health") == "ok", "{rule}");
        }
        Ok(rules)
    }

    /// Returns the alerts that are pending or fire.
    async fn alerts(&self) -> Result<Vec<String>> {
        let alerts = self.get("/api/v1/alerts").await?;
        let alerts = alerts.get("alerts").and_then(Value::as_array).context("no alerts")?;
        Ok(alerts.iter().map(|alert| text(&alert["labels"], "alertname")).collect())
    }
}

fn text(object: &Value, key: &str) -> String {
    object.get(key).and_then(Value::as_str).unwrap_or_default().to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn prometheus_evaluates_every_rule_and_no_alert_is_pending_in_mode_observe() -> Result<()> {
    let control_plane = Rig::linkerd().crds("crd").start().await?;
    let sample = |name: &str| in_repository(&format!("config/samples/{name}.yaml"));
    for (manager, name) in [("helm", "linkerd"), ("kubectl", "linkerdconfig-observe")] {
        let manager = format!("--field-manager={manager}");
        control_plane.kubectl(&["apply", "--server-side", &manager, "-f", &sample(name)]).await?;
    }
    let mut managers = Vec::new();
    for identity in ["a", "b"] {
        managers.push(ManagerOptions::default().identity(identity).start(&control_plane)?);
    }
    for manager in &mut managers {
        manager.ready(DEADLINE).await?;
    }
    let ready = ["wait", "--for=condition=Ready", "linkerdconfig/observed", "--timeout=60s"];
    control_plane.kubectl(&ready).await?;

    let prometheus = Prometheus::start(&managers.iter().collect::<Vec<_>>()).await?;
    eventually(DEADLINE, "Prometheus to scrape both replicas", async || {
        let targets = prometheus.targets().await?;
        ensure!(targets == ["up", "up"], "{targets:?}");
        Ok(())
    })
    .await?;
    let rules = eventually(DEADLINE, "every rule to be evaluated", async || prometheus.rules().await).await?;
    assert_eq!(rules.len(), prometheus.rules);
    // Rules that were evaluated before the first scrape found no replica.
    eventually(DEADLINE, "no alert", async || {
        let alerts = prometheus.alerts().await?;
        ensure!(alerts.is_empty(), "{alerts:?}");
        Ok(())
    })
    .await?;
    holds(AT_REST, "that no alert is pending", async || {
        let alerts = prometheus.alerts().await?;
        ensure!(alerts.is_empty(), "{alerts:?}");
        prometheus.rules().await.map(drop)
    })
    .await?;

    for (manager, alert) in managers.iter_mut().zip(["LinkerdOperatorDegraded", "LinkerdOperatorDown"]) {
        manager.terminate(DEADLINE).await?;
        eventually(DEADLINE, alert, async || {
            let alerts = prometheus.alerts().await?;
            ensure!(alerts.iter().any(|pending| pending == alert), "{alerts:?}");
            Ok(())
        })
        .await?;
    }
    Ok(())
}

/// The labels of kube-prometheus-stack, and a ServiceMonitor that gives metrics the same labels as the PodMonitor.
#[tokio::test]
async fn the_components_select_the_same_pods_and_add_the_label_of_kube_prometheus_stack() -> Result<()> {
    let control_plane = e2e::shared().await?;
    let folder = "config/prometheus";
    let kinds = |objects: &[Value]| objects.iter().map(|object| text(object, "kind")).collect::<Vec<_>>();
    let whole = control_plane.shipped(folder).await?;
    assert_eq!(kinds(&whole), ["ConfigMap", "PodMonitor", "PrometheusRule", "PrometheusRule"]);
    let dashboard = &whole[0];
    assert_eq!(dashboard["metadata"]["labels"]["grafana_dashboard"], "1");
    let shipped = fs::read_to_string(in_repository("config/prometheus/dashboard.json"))?;
    assert_eq!(dashboard["data"]["linkerd-operator.json"], shipped);
    let (pods, own) = (&whole[1]["spec"], "app.kubernetes.io/name");
    assert_eq!(pods["jobLabel"], own);
    assert_eq!(pods["podMetricsEndpoints"][0]["honorLabels"], true);

    let lines = "components: [../../config/prometheus/service-monitor, ../../config/prometheus/kube-prometheus-stack]";
    let objects = control_plane.shipped_with(folder, lines).await?;
    for object in &objects {
        assert_eq!(object["metadata"]["labels"]["release"], "kube-prometheus-stack", "{}", object["kind"]);
    }
    let mut found = kinds(&objects);
    found.sort();
    assert_eq!(found, ["ConfigMap", "PrometheusRule", "PrometheusRule", "Service", "ServiceMonitor"]);
    let of_kind = |kind: &str| objects.iter().find(|object| object["kind"] == kind).context("an object is missing");
    let (service, monitor) = (of_kind("Service")?, &of_kind("ServiceMonitor")?["spec"]);
    assert_eq!(service["spec"]["selector"], pods["selector"]["matchLabels"]);
    for (label, value) in monitor["selector"]["matchLabels"].as_object().context("no labels")? {
        assert_eq!(service["metadata"]["labels"][label], *value);
    }
    let (endpoint, of_pods) = (&monitor["endpoints"][0], &pods["podMetricsEndpoints"][0]);
    for field in ["port", "path", "interval", "honorLabels"] {
        assert_eq!(endpoint[field], of_pods[field], "{field}");
    }
    assert_eq!(endpoint["port"], service["spec"]["ports"][0]["name"]);
    let source = "__meta_kubernetes_pod_label_app_kubernetes_io_name";
    assert_eq!(endpoint["relabelings"], json!([{"sourceLabels": [source], "targetLabel": "job"}]));
    Ok(())
}
