use k8s_openapi::{
    api::coordination::v1::LeaseSpec,
    apimachinery::pkg::apis::meta::v1::{MicroTime, Time},
};
use serde_json::{Value, json};

use super::*;
use crate::cli::check::read::CheckedReadiness;

const NOW: &str = "2026-11-25T10:00:00Z";

fn time(text: &str) -> Timestamp {
    text.parse().unwrap()
}

fn lease(holder: &str, renewed: &str) -> Known<Option<Lease>> {
    let spec = LeaseSpec {
        holder_identity: Some(holder.to_owned()),
        lease_duration_seconds: Some(30),
        renew_time: Some(MicroTime(time(renewed))),
        ..LeaseSpec::default()
    };
    Ok(Some(Lease { spec: Some(spec), ..Lease::default() }))
}

fn replica(pod: &str) -> CheckedReplica {
    CheckedReplica {
        namespace: "operators".to_owned(),
        pod: pod.to_owned(),
        role: ReplicaRole::Manager,
        pod_problem: None,
        ready: Ok(CheckedReadiness { is_ready: true, waiting_for: Vec::new() }),
        remote_clusters: BTreeMap::new(),
    }
}

fn config(name: &str, conditions: &[(&str, &str, &str)]) -> CheckedConfig {
    let condition = |(type_, status, message): &(&str, &str, &str)| Condition {
        type_: (*type_).to_owned(),
        status: (*status).to_owned(),
        reason: "Reason".to_owned(),
        message: (*message).to_owned(),
        last_transition_time: Time(time(NOW)),
        observed_generation: None,
    };
    CheckedConfig {
        name: name.to_owned(),
        is_active: true,
        is_observed: true,
        conditions: conditions.iter().map(condition).collect(),
    }
}

/// Two good replicas, one of which leads.
fn good() -> CheckFacts {
    CheckFacts {
        version: Ok("v1.36.3".to_owned()),
        crds: vec![("linkerdconfigs.config.linkerd.io", Ok(true)), ("servers.policy.linkerd.io", Ok(true))],
        replicas: Ok(vec![replica("a"), replica("b")]),
        leases: vec![("linkerd/linkerd-operator".to_owned(), lease("a", "2026-11-25T09:59:58Z"))],
        configs: Ok(vec![config("mesh", &[("Ready", "True", "")])]),
        now: time(NOW),
    }
}

/// The checks that do not succeed: the description and the error, after a mark.
fn problems(report: &CheckReport) -> Vec<String> {
    let checks = report.categories.iter().flat_map(|category| &category.checks);
    let line = |check: &InstallationCheck| match (check.result, &check.error) {
        (CheckResult::Success, None) => None,
        (result, error) => Some(format!("{result:?}: {}: {}", check.description, error.as_deref().unwrap_or_default())),
    };
    checks.filter_map(line).collect()
}

/// The problems of the good installation after this change.
fn changed(change: impl FnOnce(&mut CheckFacts)) -> (bool, Vec<String>) {
    let mut facts = good();
    change(&mut facts);
    let report = installation(&facts);
    (report.success, problems(&report))
}

#[test]
fn a_good_installation_has_no_problem_and_the_form_that_linkerd_reads() {
    let report = installation(&good());
    assert_eq!((report.success, problems(&report)), (true, Vec::new()));
    let document: Value = serde_json::to_value(&report).unwrap();
    assert_eq!(document["success"], true);
    assert_eq!(document["categories"][0]["categoryName"], "linkerd-operator-api");
    let check = json!({"description": "can query the API server", "result": "success"});
    assert_eq!(document["categories"][0]["checks"][0], check);
}

#[test]
fn without_a_pod_the_operator_is_not_installed() {
    let (success, found) = changed(|facts| facts.replicas = Ok(Vec::new()));
    assert!(!success && found.len() == 1, "{found:?}");
    assert!(found[0].starts_with("Error: the operator is installed: there is no Pod"), "{found:?}");
}

#[test]
fn what_a_ready_replica_waits_for_is_a_warning_and_a_replica_that_is_not_ready_is_an_error() {
    let waiting = |is_ready| {
        Ok(CheckedReadiness { is_ready, waiting_for: vec!["the cluster east cannot be reached".to_owned()] })
    };
    let (success, found) = changed(|facts| facts.replicas.as_mut().unwrap()[1].ready = waiting(true));
    let expected = "Warning: no replica waits for anything: operators/b: the cluster east cannot be reached";
    assert_eq!((success, found), (true, vec![expected.to_owned()]));
    let (success, found) = changed(|facts| facts.replicas.as_mut().unwrap()[1].ready = waiting(false));
    let expected = "Error: all replicas are ready: operators/b: the cluster east cannot be reached";
    assert_eq!((success, found), (false, vec![expected.to_owned()]));
}

#[test]
fn a_pod_that_is_not_running_is_named_once() {
    let (success, found) = changed(|facts| {
        let replica = &mut facts.replicas.as_mut().unwrap()[0];
        replica.pod_problem = Some("is Pending".to_owned());
        replica.ready = Err("its Pod is not running".to_owned());
    });
    let expected = "Error: all Pods of the operator are running: Pod operators/a is Pending";
    assert_eq!((success, found), (false, vec![expected.to_owned()]));
}

#[test]
fn one_replica_alone_is_a_warning() {
    let (success, found) = changed(|facts| facts.replicas.as_mut().unwrap().truncate(1));
    assert!(success && found.len() == 1 && found[0].contains("run at least two"), "{found:?}");
}

#[test]
fn a_lease_that_is_missing_free_or_not_renewed_is_a_problem() {
    for (lease, success, part) in [
        (Ok(None), true, "Warning: a replica holds the Lease linkerd/linkerd-operator: it does not exist"),
        (lease("", "2026-11-25T09:59:58Z"), false, "no replica holds it"),
        (lease("a", "2026-11-25T09:58:50Z"), false, "a renewed it 70 s ago"),
        (Err("no permission".to_owned()), false, "no permission"),
    ] {
        let (seen, found) = changed(|facts| facts.leases[0].1 = lease);
        assert!(seen == success && found.len() == 1 && found[0].contains(part), "{part}: {found:?}");
    }
    // The clock of the replica may be ahead, and a renewal may be a little late.
    for renewed in ["2026-11-25T10:00:20Z", "2026-11-25T09:59:10Z"] {
        assert_eq!(changed(|facts| facts.leases[0].1 = lease("a", renewed)), (true, Vec::new()), "{renewed}");
    }
}

#[test]
fn a_linkerd_config_in_effect_that_is_not_ready_is_an_error() {
    let not_ready = || config("mesh", &[("Ready", "False", "the injector does not answer")]);
    let (success, found) = changed(|facts| facts.configs = Ok(vec![not_ready()]));
    let expected = "Error: LinkerdConfig mesh is ready: Reason: the injector does not answer";
    assert_eq!((success, found), (false, vec![expected.to_owned()]));
    let (success, found) = changed(|facts| {
        let config = config("mesh", &[("Ready", "True", "")]);
        facts.configs = Ok(vec![CheckedConfig { is_observed: false, ..config }]);
    });
    assert!(!success && found[0].contains("has not processed its last change"), "{found:?}");
    let (success, found) = changed(|facts| {
        facts.configs = Ok(vec![config("mesh", &[("Ready", "True", ""), ("VersionSkew", "True", "too old")])]);
    });
    assert_eq!(
        (success, found),
        (true, vec!["Warning: LinkerdConfig mesh has no condition VersionSkew: Reason: too old".to_owned()])
    );
}

/// A resource with these conditions, as its JSON in the cluster.
fn stored(name: &str, active: bool, conditions: &Value) -> CheckedConfig {
    let metadata = json!({"name": name, "generation": 3});
    let status = json!({"observedGeneration": 3, "active": active, "conditions": conditions});
    let object = json!({"apiVersion": "config.linkerd.io/v1alpha1", "kind": "LinkerdConfig", "metadata": metadata,
        "spec": {}, "status": status});
    CheckedConfig::of(serde_json::from_value(object).unwrap())
}

#[test]
fn a_linkerd_config_in_reserve_is_no_problem_whatever_becomes_of_the_one_in_effect() {
    let condition = |type_: &str, status: &str, reason: &str, message: &str| json!({"type": type_, "status": status, "reason": reason, "message": message, "lastTransitionTime": NOW});
    // The status of a reserve has no Ready.
    let conflict = "LinkerdConfig mesh is in effect for linkerd/linkerd-config: it has a higher priority";
    let reserve = || stored("spare", false, &json!([condition("Accepted", "False", "Conflicted", conflict)]));
    let mesh = |status, reason, message| {
        let accepted = condition("Accepted", "True", "Accepted", "the resource is in effect");
        stored("mesh", true, &json!([accepted, condition("Ready", status, reason, message)]))
    };
    let (success, found) = changed(|facts| {
        facts.configs = Ok(vec![mesh("True", "Reconciled", "the declared configuration is in effect"), reserve()]);
    });
    assert_eq!((success, found), (true, Vec::new()));
    let (success, found) =
        changed(|facts| facts.configs = Ok(vec![reserve(), mesh("False", "Drifted", "helm changed it")]));
    assert_eq!(
        (success, found),
        (false, vec!["Error: LinkerdConfig mesh is ready: Drifted: helm changed it".to_owned()])
    );
    // A resource for the ConfigMap of another control plane has Ready, and this operator does not apply it.
    let foreign = "this operator manages namespace linkerd";
    let foreign = json!([
        condition("Accepted", "False", "TargetNotFound", foreign),
        condition("Ready", "False", "TargetNotFound", foreign)
    ]);
    let (success, found) = changed(|facts| facts.configs = Ok(vec![stored("other", false, &foreign)]));
    assert!(success && found.len() == 1 && found[0].starts_with("Warning: LinkerdConfig other is ready"), "{found:?}");
}

#[test]
fn nothing_is_said_about_replicas_that_could_not_be_read() {
    let mut facts = good();
    for replica in facts.replicas.as_mut().unwrap() {
        replica.ready = Err("cannot read /ready of the Pod: pods \"a\" is forbidden".to_owned());
    }
    let printed = super::super::print::text(&installation(&facts));
    assert!(!printed.contains("waits for anything"), "{printed}");
    assert!(
        printed.contains("× all replicas are ready\n    operators/a: cannot read /ready of the Pod: pods"),
        "{printed}"
    );
    // One Pod does not run, and the other one is ready.
    let mut facts = good();
    let replica = &mut facts.replicas.as_mut().unwrap()[0];
    (replica.pod_problem, replica.ready) = (Some("is Pending".to_owned()), Err("its Pod is not running".to_owned()));
    let printed = super::super::print::text(&installation(&facts));
    assert!(!printed.contains("waits for anything") && !printed.contains("all replicas are ready"), "{printed}");
}

#[test]
fn containers_that_replace_linkerds_need_no_lease_and_no_crd_of_the_operator() {
    let (success, found) = changed(|facts| {
        let role = ReplicaRole::Replacement("destination");
        facts.replicas = Ok(vec![CheckedReplica { role, ..replica("linkerd-destination-1") }]);
        facts.leases[0].1 = Ok(None);
        facts.crds[0].1 = Ok(false);
    });
    assert_eq!((success, found), (true, Vec::new()));
}

#[test]
fn each_other_cluster_is_named_with_its_state() {
    let cluster = |is_synced, failing_seconds| CheckedCluster { is_synced, failing_seconds };
    let (success, found) = changed(|facts| {
        let replicas = facts.replicas.as_mut().unwrap();
        replicas[0].remote_clusters =
            [("east".to_owned(), cluster(true, 0.0)), ("west".to_owned(), cluster(true, 61.4))].into();
        replicas[0].remote_clusters.insert("south".to_owned(), cluster(false, 0.0));
        replicas[1].remote_clusters =
            [("north", cluster(false, 3.0)), ("south", cluster(false, 0.0)), ("west", cluster(true, 0.0))]
                .map(|(name, state)| (name.to_owned(), state))
                .into();
    });
    assert!(!success && found.len() == 3, "{found:?}");
    assert!(
        found[0].starts_with("Error: the cluster north can be watched: operators/b has not listed it"),
        "{found:?}"
    );
    assert!(
        found[1].starts_with("Error: the cluster south can be watched: operators/a, operators/b have not listed it"),
        "{found:?}"
    );
    assert!(
        found[2].starts_with("Warning: the cluster west can be watched: operators/a: a watch fails for 61 s"),
        "{found:?}"
    );
}

#[test]
fn an_old_kubernetes_is_a_warning_and_an_odd_version_is_not() {
    for (version, expected) in [("v1.33.2", 1), ("v1.34.0", 0), ("v1.36.1-gke.100", 0), ("v1.35+", 0), ("odd", 0)] {
        let (success, found) = changed(|facts| facts.version = Ok(version.to_owned()));
        assert!(success && found.len() == expected, "{version}: {found:?}");
    }
}

#[test]
fn the_preflight_names_what_is_missing() {
    let facts = PreflightFacts {
        version: Ok("v1.36.3".to_owned()),
        linkerd_config: Ok(false),
        linkerd_crds: vec![("servers.policy.linkerd.io", Ok(false))],
        permissions: vec![("create namespaces".to_owned(), Ok(true)), ("create services".to_owned(), Ok(false))],
    };
    let report = preflight(&facts);
    let found = problems(&report);
    assert!(!report.success && found.len() == 3, "{found:?}");
    assert!(found[0].starts_with("Warning: Linkerd's control plane is installed: "), "{found:?}");
    assert!(found[1].starts_with("Warning: the CRD servers.policy.linkerd.io exists: "), "{found:?}");
    assert!(found[2].starts_with("Error: can create services: "), "{found:?}");
    // The operator is useful without Linkerd, and waits for it.
    let report = preflight(&PreflightFacts { permissions: Vec::new(), ..facts });
    assert!(report.success && problems(&report).len() == 2, "{report:?}");
}

#[test]
fn without_a_client_the_reason_is_the_only_result() {
    let report = without_client("there is no kubeconfig");
    assert_eq!(problems(&report), ["Error: can create a client of the API server: there is no kubeconfig"]);
}

#[test]
fn a_message_lists_at_most_ten_problems() {
    let (_, found) = changed(|facts| {
        facts.replicas = Ok((0..30).map(|at| replica(&format!("pod-{at}"))).collect());
        for replica in facts.replicas.as_mut().unwrap() {
            replica.pod_problem = Some("is Pending".to_owned());
        }
    });
    assert!(found[0].ends_with("\nand 20 more"), "{found:?}");
}
