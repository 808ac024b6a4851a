use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use serde_json::{Value, json};

use super::*;
use crate::{
    cluster::{Problems, Projected, kinds::linkerd_config::LinkerdConfig},
    summary::ConfigSummary,
};

const NOW: &str = "2026-11-27T12:00:00Z";
const SINCE: &str = "2026-11-27T11:48:10Z";

fn now() -> Timestamp {
    NOW.parse().unwrap()
}

fn config(name: &str, conditions: &[(&str, &str, &str, &str)]) -> ConfigRow {
    let condition = |(type_, status, reason, message): &(&str, &str, &str, &str)| json!({"type": type_, "status": status, "reason": reason, "message": message, "lastTransitionTime": SINCE});
    let conditions: Vec<Value> = conditions.iter().map(condition).collect();
    let status = json!({"observedGeneration": 1, "active": true, "conditions": conditions});
    let object = json!({"metadata": {"name": name, "generation": 1}, "spec": {}, "status": status});
    let config = LinkerdConfig::project(serde_json::from_value(object).unwrap(), &mut Problems::default());
    let conditions: Vec<Condition> = config.status.conditions.clone();
    ConfigRow::new(ConfigSummary::new(&config, true, now()), conditions, now())
}

fn halted() -> ConfigRow {
    config(
        "mesh",
        &[
            ("Accepted", "True", "Accepted", "the resource is in effect"),
            ("Ready", "True", "Reconciled", "the declared configuration is in effect"),
            ("Stalled", "True", "RolloutHalted", "1 workload failed: ads/Deployment/web"),
        ],
    )
}

fn complete(name: &str) -> ConfigRow {
    config(
        name,
        &[
            ("Accepted", "True", "Accepted", "the resource is in effect"),
            ("Ready", "True", "Reconciled", "the declared configuration is in effect"),
            ("RolloutComplete", "True", "UpToDate", "3 of 3 workloads"),
        ],
    )
}

fn watch(kind: Kind, is_not_served: bool, failing: Option<u64>, problem: &str) -> WatchReport {
    let failing_for = failing.map(Duration::from_secs);
    let problem = Some(problem.to_owned());
    WatchReport { kind, objects: 0, is_listed: !is_not_served, is_not_served, failing_for, problem }
}

fn process<'a>(ready: bool, waiting_for: &'a [String], watches: &'a [WatchReport]) -> ProcessState<'a> {
    ProcessState { ready, waiting_for, watches, not_after: None, has_configs: true }
}

/// Returns the attention, the subject and the reason of each headline, and the first title.
fn shown(process: &ProcessState<'_>, configs: &[ConfigRow]) -> (Vec<(Attention, String, String)>, String) {
    let all = headlines(process, configs, &[], now());
    let first = all[0].title.clone();
    (all.into_iter().map(|it| (it.attention, it.subject, it.reason)).collect(), first)
}

fn problem(subject: &str, reason: &str) -> (Attention, String, String) {
    (Attention::Problem, subject.to_owned(), reason.to_owned())
}

#[test]
fn a_halted_rollout_is_the_banner_with_the_command_and_the_time() {
    let first = headlines(&process(true, &[], &[]), &[complete("other"), halted()], &[], now()).remove(0);
    assert_eq!((first.subject.as_str(), first.reason.as_str()), ("LinkerdConfig mesh", "RolloutHalted"));
    assert_eq!(first.title, "Workloads failed, and no further restart begins");
    assert_eq!(first.sentence.as_deref(), Some("1 workload failed: ads/Deployment/web"));
    assert_eq!(first.command.as_deref(), Some("linkerd-operator rollout retry mesh"));
    assert_eq!(first.since, Some(SINCE.parse().unwrap()));
    assert!(first.next.unwrap().starts_with("Fix the cause"));
}

#[test]
fn a_replica_that_is_not_ready_is_worse_than_a_halted_rollout_and_a_degraded_one_is_not() {
    let texts = ["the webhooks have no certificate: waiting for Secret a/b".to_owned()];
    let (all, first) = shown(&process(false, &texts, &[]), &[halted()]);
    assert_eq!(all, [problem(PROCESS, "NotReady"), problem("LinkerdConfig mesh", "RolloutHalted")]);
    assert_eq!(first, format!("this replica is not ready: {}", texts[0]));
    let (all, _) = shown(&process(true, &texts, &[]), &[halted()]);
    assert_eq!(all, [problem("LinkerdConfig mesh", "RolloutHalted"), problem(PROCESS, "Degraded")]);
    let (all, first) = shown(&process(false, &[], &[]), &[complete("mesh")]);
    assert_eq!((all[0].0, first.as_str()), (Attention::Progressing, "this replica is not ready: it stops"));
}

#[test]
fn an_expired_certificate_is_one_problem_with_its_source() {
    let title = "the certificate of the webhooks expired at 2026-11-27T09:00:00Z";
    for (waiting_for, sentence) in
        [(vec![format!("{title}: Secret a/b")], Some("it is from Secret a/b")), (vec![], None)]
    {
        let mut process = process(true, &waiting_for, &[]);
        process.not_after = Some("2026-11-27T09:00:00Z".parse().unwrap());
        let (all, first) = shown(&process, &[complete("mesh")]);
        assert_eq!((all, first.as_str()), (vec![problem(PROCESS, "CertificateExpired")], title));
        assert_eq!(headlines(&process, &[], &[], now())[0].sentence.as_deref(), sentence);
    }
}

#[test]
fn a_certificate_that_expires_in_a_second_is_no_problem() {
    let mut process = process(true, &[], &[]);
    process.not_after = Some("2026-11-27T12:00:01Z".parse().unwrap());
    assert_eq!(shown(&process, &[complete("mesh")]).0[0].0, Attention::Done);
}

#[test]
fn a_watch_that_fails_is_a_problem_and_its_first_attempts_are_not() {
    let text = ["cannot list or watch pods: refused".to_owned()];
    for (failing, expected) in
        [(None, Attention::Progressing), (Some(9), Attention::Progressing), (Some(10), Attention::Problem)]
    {
        let watches = [watch(Kind::Pod, false, failing, &text[0])];
        let (all, _) = shown(&process(true, &text, &watches), &[complete("mesh")]);
        assert_eq!((all.len(), all[0].0), (1, expected), "{failing:?}");
    }
}

#[test]
fn a_kind_that_the_cluster_does_not_serve_is_no_problem_unless_it_is_linkerd_config() {
    let text = ["the API server does not serve it: install its CustomResourceDefinition".to_owned()];
    let server = [watch(Kind::Server, true, Some(900), &text[0])];
    assert_eq!(shown(&process(true, &text, &server), &[complete("mesh")]).0[0].0, Attention::Done);
    let own = [watch(Kind::LinkerdConfig, true, Some(900), &text[0])];
    assert_eq!(shown(&process(true, &text, &own), &[]).0[0].0, Attention::Waiting);
}

#[test]
fn if_nothing_is_wrong_the_sentence_is_that_of_the_linkerd_config_in_effect() {
    let (all, first) = shown(&process(true, &[], &[]), &[complete("mesh")]);
    assert_eq!(all, [(Attention::Done, "LinkerdConfig mesh".to_owned(), "UpToDate".to_owned())]);
    assert_eq!(first, "Every selected workload runs with the declared configuration");
    let (_, first) = shown(&process(true, &[], &[]), &[]);
    assert_eq!(first, "no LinkerdConfig is in effect, so nothing is configured or rolled out");
    let disabled = ProcessState { has_configs: false, ..process(true, &[], &[]) };
    assert_eq!(shown(&disabled, &[]).1, "this replica is ready");
}

#[test]
fn the_page_has_a_bounded_number_of_sentences() {
    let texts: Vec<String> = (0..100).map(|number| format!("cluster c{number} is not reachable")).collect();
    assert_eq!(shown(&process(true, &texts, &[]), &[]).0.len(), 20);
}

#[test]
fn a_linkerd_trust_is_a_headline_while_something_is_broken_ends_or_is_to_be_done() {
    let trust = |phase: &str, conditions: &[(&str, &str, &str)]| {
        let condition = |(type_, status, reason): &(&str, &str, &str)| json!({"type": type_, "status": status, "reason": reason, "message": reason, "lastTransitionTime": SINCE});
        let conditions: Vec<Value> = conditions.iter().map(condition).collect();
        let status = json!({"phase": phase, "nextStep": "do this", "conditions": conditions});
        let object = json!({"metadata": {"name": "mesh"}, "spec": {}, "status": status});
        Arc::new(LinkerdTrust::project(serde_json::from_value(object).unwrap(), &mut Problems::default()))
    };
    let first = |trust: Arc<LinkerdTrust>| {
        let Headline { subject, reason, next, attention, .. } =
            headlines(&process(true, &[], &[]), &[complete("mesh")], &[trust], now()).remove(0);
        (subject, reason, next, attention)
    };
    let of = |reason: &str, next: Option<&str>, attention| {
        ("LinkerdTrust mesh".to_owned(), reason.to_owned(), next.map(str::to_owned), attention)
    };
    assert_eq!(first(trust("Steady", &[("Ready", "True", "Synced")])).0, "LinkerdConfig mesh");
    let broken = trust("Steady", &[("Ready", "False", "Broken"), ("Expiring", "True", "CertificateEnds")]);
    assert_eq!(first(broken), of("Broken", Some("do this"), Attention::Problem));
    let ends = trust("Steady", &[("Ready", "True", "Synced"), ("Expiring", "True", "CertificateEnds")]);
    assert_eq!(first(ends), of("CertificateEnds", Some("do this"), Attention::Problem));
    // The message of the condition has the next step.
    let waits = |phase| first(trust(phase, &[("Ready", "False", "RotationInProgress")]));
    assert_eq!(waits("Retiring"), of("RotationInProgress", None, Attention::Waiting));
    assert_eq!(waits("Renewing"), of("RotationInProgress", None, Attention::Progressing));
}
