//! The operator against Linkerd's own proxy injector, and the harness's stand-in for it.
//!
//! * In: the paths of Linkerd's controller, and of its charts and CLI if they are given. Out: what was seen at each
//!   step; the answers of the stand-in and of the real injector to the same reviews, and those about every field.
//! * Always: the injector is Linkerd's process behind a webhook of the API server. Only its kubelet is a stand-in, which
//!   copies the ConfigMaps to its files.

mod bursts;
mod documents;
mod fields;
mod operator;
mod reviews;
mod scene;

use std::{
    path::Path,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use e2e::{
    ControlPlane, Injector, Options,
    injector::{CertificateKind, install, reviews::INSTALLED},
    mesh::merge,
    workload::{self, Kind, opted_in},
};
use serde_json::{Value, json};

pub(crate) use bursts::{Burst, bursts};
use documents::InstallerDocument;
pub(crate) use fields::ComparedFields;
use operator::OperatorCompared;
pub(crate) use reviews::Compared;
use scene::{APP, LINKERD, REPLICAS, Scene, message};

/// A replica that follows the ConfigMap only after a nudge.
const NEVER: Duration = Duration::MAX;

/// The steps with LinkerdConfigs.
pub(crate) struct Steps {
    /// The source of the first document.
    pub(crate) document: &'static str,
    pub(crate) steps: Vec<Step>,
    begun: Instant,
}

/// The answers to the same reviews, and those about every field.
pub(crate) struct Reviews {
    pub(crate) compared: Vec<Compared>,
    pub(crate) operator: Vec<OperatorCompared>,
    pub(crate) fields: ComparedFields,
}

/// What was done, what was seen, and how long it took.
pub(crate) struct Step {
    pub(crate) what: String,
    pub(crate) seen: String,
    pub(crate) took: Duration,
}

/// Changes LinkerdConfigs and documents, and waits for what they must cause.
pub(crate) async fn run(controller: &Path, charts: Option<&Path>, cli: Option<&Path>) -> Result<Steps> {
    let documents = documents(charts, cli).await?;
    let first = documents.first().context("no document")?;
    let mut steps = Steps { document: first.from, steps: Vec::new(), begun: Instant::now() };
    take_steps(controller, &documents, &mut steps).await?;
    Ok(steps)
}

/// Sends reviews to Linkerd's injector, to the stand-in, and to the operator in place of Linkerd's injector.
pub(crate) async fn compare(controller: &Path) -> Result<Reviews> {
    let control_plane = ControlPlane::start(Options::default()).await?;
    install(&control_plane, LINKERD, APP).await?;
    let signed = CertificateKind::SignedByAuthority;
    let injector = Injector::start_linkerd(controller, signed, &control_plane, LINKERD, &[APP], REPLICAS).await?;
    let compared = reviews::compare(&injector).await?;
    eprintln!("the injector: {} reviews", compared.len());
    let operator = Injector::start_operator(false, &control_plane, LINKERD, &[APP], 1).await?;
    let of_operator = operator::compare(&injector, &operator).await?;
    eprintln!("the operator's injector: {} reviews", of_operator.len());
    Ok(Reviews { compared, operator: of_operator, fields: fields::compare(&injector).await? })
}

/// The documents to install, in this order.
async fn documents(charts: Option<&Path>, cli: Option<&Path>) -> Result<Vec<InstallerDocument>> {
    let (charts, cli) = (charts.map(Path::to_owned), cli.map(Path::to_owned));
    let rendered = tokio::task::spawn_blocking(move || {
        let of_chart = charts.as_deref().map(documents::of_chart);
        let recorded =
            || Ok(InstallerDocument { from: "the recorded document of the chart", text: INSTALLED.to_owned() });
        let first = of_chart.unwrap_or_else(recorded)?;
        let further = cli.as_deref().map(documents::of_cli).transpose()?;
        anyhow::Ok([Some(first), further].into_iter().flatten().collect())
    });
    rendered.await?
}

async fn take_steps(controller: &Path, documents: &[InstallerDocument], steps: &mut Steps) -> Result<()> {
    let first = documents.first().context("no document")?;
    let mut scene = Scene::start(controller, &first.text).await?;
    // The injected volume of a token requires an account, which this control plane does not set by itself.
    let mut over = json!({"spec": {"template": {"spec": {"serviceAccountName": "default"}}}});
    merge(&mut over, opted_in());
    let web = workload::put(&scene.client, APP, Kind::Deployment, "web", 2, over).await?;
    web.is_settled(2).await?;
    ensure!(web.proxies().await?.iter().all(Option::is_some), "a Pod of the Deployment has no proxy");

    scene.declare(json!({})).await?;
    scene.is_current(&["RolloutComplete=True/UpToDate"]).await?;
    steps.seen("LinkerdConfig without values", "both replicas current, no restart");

    steps.begin();
    scene.change(json!({"proxy": {"accessLog": "json"}})).await?;
    let hash = scene.is_current(&[]).await?;
    steps.seen("`proxy.accessLog` is changed", format!("both replicas are proven current: {hash}"));

    steps.begin();
    let marker = scene.new_proxy().await?.context("the Pod has no proxy")?.marker;
    ensure!(marker.as_deref() == Some(hash.as_str()), "a new Pod has the marker {marker:?} instead of {hash}");
    steps.seen("a Pod is created", format!("its `LINKERD_CONFIG_HASH` is {hash}"));

    scene.is_current(&["RolloutComplete=True/UpToDate"]).await?;
    web.gets(2, &hash).await?;
    steps.seen("the opted-in Deployment", "restarted; both Pods have the marker");

    scene.injector.set_lag(1, NEVER)?;
    let before = scene.injector.nudges(1);
    steps.begin();
    scene.change(json!({"proxy": {"accessLog": "apache"}})).await?;
    scene.is_current(&[]).await?;
    let nudges = scene.injector.nudges(1) - before;
    ensure!(nudges > 0, "the replica was not nudged");
    let seen = format!("its Pod is nudged ({nudges}); both replicas are proven current");
    steps.seen("a change that the kubelet of one replica does not copy", seen);
    scene.injector.set_lag(1, Duration::ZERO)?;

    refused(&scene, steps).await?;
    for document in documents.iter().skip(1) {
        steps.begin();
        scene.install(&document.text).await?;
        scene.is_current(&["Ready=True/Reconciled"]).await?;
        let budget = budget(&document.text)?;
        let seen = format!("ready, both replicas current, with `podDisruptionBudget.maxUnavailable: {budget}`");
        steps.seen(format!("the document of {}", document.from), seen);
    }
    suspect(&scene, steps).await?;

    scene.replace_injector(controller, CertificateKind::SelfSignedAuthority).await?;
    steps.begin();
    scene.change(json!({"proxy": {"accessLog": "json"}})).await?;
    let hash = scene.is_current(&[]).await?;
    let marker = scene.new_proxy().await?.context("the Pod has no proxy")?.marker;
    ensure!(marker.as_deref() == Some(hash.as_str()), "a new Pod has the marker {marker:?} instead of {hash}");
    steps.seen("a certificate with `CA:TRUE` that is its own CA", "the API server and the probe accept it");
    scene.stop().await
}

/// A value for the control plane with which the injector denies every Pod, because it reads the whole document.
async fn refused(scene: &Scene, steps: &mut Steps) -> Result<()> {
    let divisor = json!({"resourceFieldRef": {"resource": "limits.cpu", "divisor": "all"}});
    steps.begin();
    let variables = json!([{"name": "CORES", "valueFrom": divisor}]);
    scene.change(json!({"values": {"identity": {"additionalEnv": variables}}})).await?;
    let status = scene.reaches(&["Accepted=False/Invalid"]).await?;
    let text = message(&status, "Accepted");
    ensure!(text.contains("divisor"), "{text}");
    ensure!(scene.new_proxy().await?.is_some(), "a new Pod has no proxy");
    steps.seen(
        "a variable of identity with a wrong `divisor`, with which the injector denies every Pod",
        format!("refused before it is written; a new Pod has a proxy; {text}"),
    );
    scene.change(json!({"values": null})).await?;
    scene.is_current(&["Ready=True/Reconciled"]).await.map(drop)
}

/// Documents of the installer with values that the operator's rules refuse and the injector takes, and one that the
/// injector denies.
async fn suspect(scene: &Scene, steps: &mut Steps) -> Result<()> {
    let with = |patch: Value| -> Result<String> {
        let mut document: Value = serde_yaml::from_str(INSTALLED)?;
        merge(&mut document, patch);
        Ok(document.to_string())
    };
    for budget in [json!("1"), json!("25%")] {
        steps.begin();
        scene.install(&with(json!({"controller": {"podDisruptionBudget": {"maxUnavailable": budget}}}))?).await?;
        scene.is_current(&["Ready=True/Reconciled"]).await?;
        steps.seen(
            format!("the installer's `podDisruptionBudget.maxUnavailable: {budget}`"),
            "ready, both replicas current",
        );
    }
    steps.begin();
    scene.install(&with(json!({"proxy": {"inboundConnectTimeout": "soon"}}))?).await?;
    let status =
        scene.reaches(&["InjectorSynced=True/AllReplicasCurrent", "SuspectBase=True/UnexpectedValues"]).await?;
    steps.seen(
        "the installer's `proxy.inboundConnectTimeout: soon`, which the rules refuse and the injector takes",
        format!("kept and declared over; SuspectBase: {}", message(&status, "SuspectBase")),
    );
    steps.begin();
    scene.install(&with(json!({"proxy": {"await": "true"}}))?).await?;
    let status = scene.reaches(&["InjectorSynced=False/Denied", "SuspectBase=True/UnexpectedValues"]).await?;
    let proxy = scene.new_proxy().await;
    steps.seen(
        "the installer's `proxy.await: \"true\"`, which the injector denies",
        format!(
            "kept; InjectorSynced: {}; a new Pod is {}",
            message(&status, "InjectorSynced"),
            if proxy.is_err() { "denied" } else { "created" },
        ),
    );
    scene.install(INSTALLED).await?;
    scene.is_current(&["Ready=True/Reconciled"]).await.map(drop)
}

fn budget(document: &str) -> Result<Value> {
    let document: Value = serde_yaml::from_str(document)?;
    Ok(document.pointer("/controller/podDisruptionBudget/maxUnavailable").cloned().unwrap_or_default())
}

// === impl Steps ===

impl Steps {
    fn begin(&mut self) {
        self.begun = Instant::now();
    }

    fn seen(&mut self, what: impl Into<String>, seen: impl Into<String>) {
        let step = Step { what: what.into(), seen: seen.into(), took: self.begun.elapsed() };
        eprintln!("the injector: {}: {} ({:.1} s)", step.what, step.seen, step.took.as_secs_f64());
        self.steps.push(step);
    }
}

// === impl Reviews ===

impl Reviews {
    /// Returns whether all injectors answered equally, and as recorded.
    pub(crate) fn is_equal(&self) -> bool {
        self.compared.iter().all(|it| it.stand_in == it.linkerd)
            && self.operator.iter().all(|it| it.is_equal() || it.is_of_refused_document())
            && self.fields.changed.is_empty()
    }
}
