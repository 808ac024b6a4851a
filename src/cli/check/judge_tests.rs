use k8s_openapi::{
    api::coordination::v1::LeaseSpec,
    apimachinery::pkg::apis::meta::v1::{MicroTime, Time},
};
use serde_json::{Value, json};

use super::*;
use crate::{
    api::LinkerdConfigStatus,
    cli::check::{policies::tests::in_force, read::CheckedReadiness},
    drop_in::DropIn,
};

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
        app: "linkerd-operator".to_owned(),
        pod_problem: None,
        ready: Ok(CheckedReadiness { is_ready: true, waiting_for: Vec::new() }),
        remote_clusters: Ok(BTreeMap::new()),
        issuer: Ok(None),
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
        is_observed: true,
        status: LinkerdConfigStatus {
            active: Some(true),
            conditions: conditions.iter().map(condition).collect(),
            ..LinkerdConfigStatus::default()
        },
    }
}

/// Two good replicas, one of which leads.
fn good() -> CheckFacts {
    CheckFacts {
        version: Ok("v1.36.3".to_owned()),
        crds: vec![("linkerdconfigs.config.linkerd.io", Ok(true)), ("servers.policy.linkerd.io", Ok(true))],
        replicas: vec![replica("a"), replica("b")],
        unlisted: Vec::new(),
        operator_namespace: "operators".to_owned(),
        policies: in_force("operators"),
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
    let (success, found) = changed(|facts| facts.replicas = Vec::new());
    assert!(!success && found.len() == 1, "{found:?}");
    assert!(found[0].starts_with("Error: the operator is installed: there is no Pod"), "{found:?}");
}

#[test]
fn what_a_ready_replica_waits_for_is_a_warning_and_a_replica_that_is_not_ready_is_an_error() {
    let waiting = |is_ready| {
        Ok(CheckedReadiness { is_ready, waiting_for: vec!["the cluster east cannot be reached".to_owned()] })
    };
    let (success, found) = changed(|facts| facts.replicas[1].ready = waiting(true));
    let expected = "Warning: no replica waits for anything: operators/b: the cluster east cannot be reached";
    assert_eq!((success, found), (true, vec![expected.to_owned()]));
    let (success, found) = changed(|facts| facts.replicas[1].ready = waiting(false));
    let expected = "Error: all replicas are ready: operators/b: the cluster east cannot be reached";
    assert_eq!((success, found), (false, vec![expected.to_owned()]));
}

#[test]
fn a_pod_that_is_not_running_is_named_once() {
    let (success, found) = changed(|facts| {
        let replica = &mut facts.replicas[0];
        replica.pod_problem = Some("is Pending".to_owned());
        replica.ready = Err(Unread::failed("its Pod is not running"));
    });
    let expected = "Error: all Pods of the operator are running: Pod operators/a is Pending";
    assert_eq!((success, found), (false, vec![expected.to_owned()]));
}

#[test]
fn one_replica_alone_is_a_warning() {
    let (success, found) = changed(|facts| facts.replicas.truncate(1));
    assert!(success && found.len() == 1 && found[0].contains("run at least two"), "{found:?}");
}

#[test]
fn a_lease_that_is_missing_free_or_not_renewed_is_a_problem() {
    for (lease, success, part) in [
        (Ok(None), true, "Warning: a replica holds the Lease linkerd/linkerd-operator: it does not exist"),
        (lease("", "2026-11-25T09:59:58Z"), false, "no replica holds it"),
        (lease("a", "2026-11-25T09:58:50Z"), false, "a renewed it 70 s ago"),
        (
            Err(Unread::failed("etcd is gone")),
            false,
            "Error: a replica holds the Lease linkerd/linkerd-operator: etcd is gone",
        ),
        (
            Err(Unread::denied("no permission")),
            false,
            "Warning: a replica holds the Lease linkerd/linkerd-operator: not looked at: no permission",
        ),
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

/// The marks and the text of each line about the replicas, and whether the report succeeds.
fn printed(facts: &CheckFacts) -> (bool, String) {
    let report = installation(facts);
    (report.success, super::super::print::text(&report))
}

#[test]
fn replicas_that_could_not_be_read_have_no_tick() {
    let mut facts = good();
    for replica in &mut facts.replicas {
        replica.ready = Err(Unread::denied("cannot read /ready of the Pod: pods \"a\" is forbidden"));
    }
    let (success, text) = printed(&facts);
    assert!(!success && !text.contains("waits for anything"), "{text}");
    let line = "‼ all replicas are ready\n    not looked at: operators/a: cannot read /ready of the Pod: pods \"a\"";
    assert!(text.contains(line), "{text}");
    assert!(text.ends_with("Status check results are ‼\n"), "{text}");
    // A failure of one does not hide that nothing is known of the other one.
    facts.replicas[1].ready = Err(Unread::failed("the answer is 502 Bad Gateway"));
    let (success, text) = printed(&facts);
    let lines =
        "× all replicas are ready\n    operators/b: the answer is 502 Bad Gateway\n    not looked at: operators/a: ";
    assert!(!success && text.contains(lines) && text.ends_with("Status check results are ×\n"), "{text}");
    // One Pod does not run, and the other one is ready.
    let mut facts = good();
    let replica = &mut facts.replicas[0];
    (replica.pod_problem, replica.ready) =
        (Some("is Pending".to_owned()), Err(Unread::failed("its Pod is not running")));
    let (_, text) = printed(&facts);
    assert!(!text.contains("waits for anything") && !text.contains("all replicas are ready"), "{text}");
}

#[test]
fn pods_that_may_not_be_listed_are_named_and_nothing_is_said_about_all_of_them() {
    let denied = "pods is forbidden: User \"alice\" cannot list resource \"pods\" in the namespace \"linkerd\"";
    let unlisted = |role, unread| UnlistedPods { role, pods: "the Pods x=y in namespace linkerd".to_owned(), unread };
    let mut facts = good();
    facts.unlisted = vec![unlisted(ReplicaRole::Replacement(DropIn::Destination), Unread::denied(denied))];
    let (success, text) = printed(&facts);
    let line = format!("‼ can list the Pods x=y in namespace linkerd\n    not looked at: {denied}\n");
    assert!(!success && text.contains(&line), "{text}");
    for absent in ["are running", "are ready", "waits for anything"] {
        assert!(!text.contains(absent), "{absent}: {text}");
    }
    // Without the operator's own Pods, it is unknown whether it is installed. Its other objects are looked at.
    facts.unlisted = vec![unlisted(ReplicaRole::Manager, Unread::denied(denied))];
    facts.replicas = Vec::new();
    let (success, text) = printed(&facts);
    assert!(!success && !text.contains("there is no Pod") && text.contains("a replica holds the Lease"), "{text}");
}

#[test]
fn a_container_that_may_be_the_operators_has_no_tick_and_one_that_is_is_named() {
    let validator = |ready| CheckedReplica {
        namespace: "linkerd".to_owned(),
        role: ReplicaRole::Replacement(DropIn::SpValidator),
        ready,
        ..replica("linkerd-destination-1")
    };
    let mut facts = good();
    facts.replicas.push(validator(Err(Unread::denied("pods is forbidden"))));
    let (success, text) = printed(&facts);
    let line = "‼ the containers in place of Linkerd's are known\n    not looked at: \
                linkerd/linkerd-destination-1 (sp-validator): pods is forbidden\n";
    assert!(!success && text.contains(line) && !text.contains("√ all replicas are ready"), "{text}");
    // Linkerd's own container may be broken, which is no failure of the operator.
    facts.replicas[2].ready = Err(Unread::failed("the answer is 502 Bad Gateway"));
    let (success, text) = printed(&facts);
    assert!(
        success && text.contains("(sp-validator): the answer is 502") && !text.contains("√ all replicas"),
        "{text}"
    );
    let waiting = vec!["the certificate is missing".to_owned()];
    facts.replicas[2] = validator(Ok(CheckedReadiness { is_ready: false, waiting_for: waiting }));
    let (success, text) = printed(&facts);
    let line = "× all replicas are ready\n    linkerd/linkerd-destination-1 (sp-validator): the certificate is missing";
    assert!(!success && text.contains(line), "{text}");
}

#[test]
fn each_deployment_needs_two_replicas() {
    let (success, found) = changed(|facts| {
        let app = "linkerd-operator-destination".to_owned();
        facts.replicas.push(CheckedReplica { app, ..replica("c") });
    });
    let expected = "Warning: a replica can fail without an interruption: linkerd-operator-destination has one replica: \
                    run at least two";
    assert_eq!((success, found), (true, vec![expected.to_owned()]));
}

#[test]
fn a_cluster_that_only_some_replicas_could_be_asked_about_has_no_tick() {
    let mut facts = good();
    let east = CheckedCluster { is_synced: true, failing_seconds: 0.0 };
    facts.replicas[0].remote_clusters = Ok([("east".to_owned(), east)].into());
    assert!(printed(&facts).1.contains("√ the cluster east can be watched"));
    facts.replicas[1].remote_clusters = Err(Unread::denied("pods is forbidden"));
    let (success, text) = printed(&facts);
    assert!(!success && !text.contains("cluster east"), "{text}");
    assert!(
        text.contains("‼ other clusters can be watched\n    not looked at: operators/b: pods is forbidden"),
        "{text}"
    );
    (facts.replicas[1].remote_clusters, facts.replicas[1].ready) =
        (Ok(BTreeMap::new()), Err(Unread::failed("its Pod is not running")));
    assert!(!printed(&facts).1.contains("cluster east"));
}

#[test]
fn containers_that_replace_linkerds_need_no_lease_and_no_crd_of_the_operator() {
    let (success, found) = changed(|facts| {
        let role = ReplicaRole::Replacement(DropIn::Destination);
        facts.replicas = vec![CheckedReplica { role, ..replica("linkerd-destination-1") }];
        facts.leases[0].1 = Ok(None);
        facts.crds[0].1 = Ok(false);
    });
    assert_eq!((success, found), (true, Vec::new()));
}

#[test]
fn the_identity_service_alone_needs_two_replicas_and_no_lease_or_crd_of_the_operator() {
    let (success, found) = changed(|facts| {
        let identity = |pod| CheckedReplica {
            role: ReplicaRole::Identity,
            app: "linkerd-operator-identity".to_owned(),
            ..replica(pod)
        };
        facts.replicas = vec![identity("a")];
        facts.leases[0].1 = Ok(None);
        facts.crds[0].1 = Ok(false);
    });
    let expected = "Warning: a replica can fail without an interruption: linkerd-operator-identity has one replica: run \
                    at least two";
    assert_eq!((success, found), (true, vec![expected.to_owned()]));
}

#[test]
fn each_other_cluster_is_named_with_its_state() {
    let cluster = |is_synced, failing_seconds| CheckedCluster { is_synced, failing_seconds };
    let (success, found) = changed(|facts| {
        let replicas = &mut facts.replicas;
        let clusters = |of: &[(&str, CheckedCluster)]| {
            Ok(of.iter().map(|(name, state)| ((*name).to_owned(), *state)).collect::<BTreeMap<_, _>>())
        };
        replicas[0].remote_clusters =
            clusters(&[("east", cluster(true, 0.0)), ("west", cluster(true, 61.4)), ("south", cluster(false, 0.0))]);
        replicas[1].remote_clusters =
            clusters(&[("north", cluster(false, 3.0)), ("south", cluster(false, 0.0)), ("west", cluster(true, 0.0))]);
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
        facts.replicas = (0..30).map(|at| replica(&format!("pod-{at}"))).collect();
        for replica in &mut facts.replicas {
            replica.pod_problem = Some("is Pending".to_owned());
        }
    });
    assert!(found[0].ends_with("\nand 20 more"), "{found:?}");
}
