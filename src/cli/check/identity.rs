//! The issuers with which the replicas of the identity service sign.
//!
//! In: Prometheus' text format, from another process. Out: a check for each issuer, and one if there are several. Always
//! holds: a line that cannot be read is skipped; without the identity service there is no check.

use std::collections::BTreeMap;

use k8s_openapi::jiff::{SignedDuration, Timestamp};

use super::{
    judge::{InstallationCheck, listed},
    read::CheckedReplica,
    unread::Unread,
};

const NOT_BEFORE: &str = "linkerd_operator_identity_issuer_not_before_timestamp_seconds";
const EXPIRES: &str = "linkerd_operator_identity_issuer_expiry_timestamp_seconds";
/// An issuer should be renewed earlier than this before its end, and before a quarter of its validity is left: as for the
/// alert.
const RENEWED: SignedDuration = SignedDuration::from_hours(7 * 24);

/// The issuer of a replica. The name is the start of a hash of its key, which a renewed certificate can share.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct CheckedIssuer {
    name: String,
    not_before: Timestamp,
    expires: Timestamp,
}

// === impl CheckedIssuer ===

impl CheckedIssuer {
    /// Reads the metrics of a replica. Returns `None` if it has no issuer.
    pub(super) fn read(metrics: &str) -> Option<Self> {
        let (name, expires) = sample(metrics, EXPIRES)?;
        let (_, not_before) = sample(metrics, NOT_BEFORE)?;
        Some(Self { name: name.to_owned(), not_before, expires })
    }

    fn judge(&self, replicas: &[String], now: Timestamp) -> InstallationCheck {
        let Self { name, not_before, expires } = self;
        let description = format!("the issuer of certificates {name} is valid until {expires}");
        let left = expires.duration_since(now);
        let is_due = left < RENEWED && left < expires.duration_since(*not_before) / 4;
        if left <= SignedDuration::ZERO {
            let text = format!("it has expired, so that no proxy gets a certificate: renew it\n{}", listed(replicas));
            InstallationCheck::error(description, text)
        } else if is_due {
            let text = format!("renew it: only {left:#} are left\n{}", listed(replicas));
            InstallationCheck::warning(description, text)
        } else {
            InstallationCheck::success(description)
        }
    }
}

/// Judges the issuer of each replica that has one.
pub(super) fn judge(replicas: &[CheckedReplica], now: Timestamp) -> Vec<InstallationCheck> {
    let (mut issuers, mut unread) = (BTreeMap::<&CheckedIssuer, Vec<String>>::new(), Vec::new());
    for replica in replicas.iter().filter(|replica| replica.ready.is_ok()) {
        match &replica.issuer {
            Ok(Some(issuer)) => issuers.entry(issuer).or_default().push(replica.name()),
            Err(reason) if replica.issues_certificates() => {
                unread.push(format!("{}: {}", replica.name(), reason.reason));
            }
            Ok(None) | Err(_) => {}
        }
    }
    let mut checks: Vec<_> = issuers.iter().map(|(issuer, replicas)| issuer.judge(replicas, now)).collect();
    if issuers.len() > 1 {
        let named = |(issuer, replicas): (&&CheckedIssuer, &Vec<String>)| {
            format!("{}, valid until {}: {}", issuer.name, issuer.expires, replicas.join(", "))
        };
        let lines: Vec<_> = issuers.iter().map(named).collect();
        let text = format!("{}\nafter a change of the Secret, the kubelets need up to two minutes", listed(&lines));
        checks.push(InstallationCheck::warning("all replicas sign with the same issuer", text));
    }
    if !unread.is_empty() {
        checks.push(InstallationCheck::unread("the issuer of certificates is known", &Unread::denied(listed(&unread))));
    }
    checks
}

/// Finds `name{issuer="0123456789ab"} 1800000000`.
fn sample<'a>(metrics: &'a str, name: &str) -> Option<(&'a str, Timestamp)> {
    metrics.lines().find_map(|line| {
        let (issuer, value) = line.strip_prefix(name)?.strip_prefix("{issuer=\"")?.split_once("\"} ")?;
        // A terminal must not interpret what a Pod answers.
        let is_hash = issuer.bytes().all(|byte| byte.is_ascii_hexdigit());
        is_hash.then_some((issuer, Timestamp::from_second(value.trim().parse().ok()?).ok()?))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        cli::check::{
            judge::CheckResult,
            read::{CheckedReadiness, ReplicaRole},
        },
        drop_in::DropIn,
    };

    const HOUR: i64 = 3600;
    const NOW: i64 = 1_800_000_000;

    /// An issuer that is valid for so many hours, of which so many are left.
    fn issuer(name: &str, valid: i64, left: i64) -> CheckedIssuer {
        let at = |hours: i64| Timestamp::from_second(NOW + hours * HOUR).unwrap();
        CheckedIssuer { name: name.to_owned(), not_before: at(left - valid), expires: at(left) }
    }

    fn replica(pod: &str, role: ReplicaRole, issuer: Result<Option<CheckedIssuer>, Unread>) -> CheckedReplica {
        CheckedReplica {
            namespace: "linkerd".to_owned(),
            pod: pod.to_owned(),
            role,
            app: String::new(),
            pod_problem: None,
            ready: Ok(CheckedReadiness { is_ready: true, waiting_for: Vec::new() }),
            remote_clusters: Ok(BTreeMap::new()),
            issuer,
        }
    }

    fn judged(replicas: &[CheckedReplica]) -> Vec<(CheckResult, String)> {
        let checks = judge(replicas, Timestamp::from_second(NOW).unwrap());
        checks.into_iter().map(|check| (check.result, check.error.unwrap_or(check.description))).collect()
    }

    #[test]
    fn the_issuer_is_read_from_two_metrics() {
        let metrics = format!(
            "# TYPE {EXPIRES} gauge\n{EXPIRES}{{issuer=\"0123456789ab\"}} 1800003600\n\
             {NOT_BEFORE}{{issuer=\"0123456789ab\"}} 1799996400\nissuer_cert_ttl_seconds 3600\n"
        );
        assert_eq!(CheckedIssuer::read(&metrics), Some(issuer("0123456789ab", 2, 1)));
        for other in
            ["", "# nothing", &*format!("{EXPIRES}{{issuer=\"a\"}} soon"), &*metrics.replace("ab\"", "\u{1b}\"")]
        {
            assert_eq!(CheckedIssuer::read(other), None, "{other}");
        }
    }

    #[test]
    fn an_issuer_is_due_when_a_quarter_of_its_validity_and_less_than_a_week_is_left() {
        let result = |valid, left| judged(&[replica("a", ReplicaRole::Identity, Ok(Some(issuer("i", valid, left))))]);
        for (valid, left, expected) in [
            // cert-manager renews it when 25 hours are left.
            (48, 24, CheckResult::Success),
            (48, 12, CheckResult::Success),
            (48, 11, CheckResult::Warning),
            (365 * 24, 8 * 24, CheckResult::Success),
            (365 * 24, 7 * 24 - 1, CheckResult::Warning),
            (48, 0, CheckResult::Error),
            (48, -1, CheckResult::Error),
        ] {
            let found = result(valid, left);
            assert!(found.len() == 1 && found[0].0 == expected, "{valid} {left}: {found:?}");
        }
        let (_, description) = &result(48, 24)[0];
        assert_eq!(description, "the issuer of certificates i is valid until 2027-01-16T08:00:00Z");
        let (_, text) = &result(48, -1)[0];
        assert_eq!(text, "it has expired, so that no proxy gets a certificate: renew it\nlinkerd/a");
    }

    #[test]
    fn a_replica_without_the_renewed_certificate_of_the_same_key_is_named() {
        let found = judged(&[
            replica("a", ReplicaRole::Identity, Ok(Some(issuer("i", 48, 40)))),
            replica("b", ReplicaRole::Identity, Ok(Some(issuer("i", 48, -1)))),
        ]);
        let results: Vec<_> = found.iter().map(|(result, _)| *result).collect();
        assert_eq!(results, [CheckResult::Error, CheckResult::Success, CheckResult::Warning]);
        assert!(found[0].1.ends_with("\nlinkerd/b"), "{found:?}");
    }

    #[test]
    fn replicas_with_different_issuers_are_named_and_so_are_those_that_could_not_be_read() {
        let in_place = ReplicaRole::Replacement(DropIn::Identity);
        let denied = || Err(Unread::denied("pods is forbidden"));
        let found = judged(&[
            replica("a", ReplicaRole::Identity, Ok(Some(issuer("new", 48, 40)))),
            replica("b", ReplicaRole::Identity, Ok(Some(issuer("new", 48, 40)))),
            replica("c", in_place, Ok(Some(issuer("old", 48, 20)))),
            replica("d", in_place, denied()),
            replica("e", ReplicaRole::Manager, denied()),
            replica("f", ReplicaRole::Manager, Ok(None)),
        ]);
        assert_eq!(found.len(), 4, "{found:?}");
        let (result, text) = &found[2];
        assert_eq!(*result, CheckResult::Warning);
        let expected = "new, valid until 2027-01-17T00:00:00Z: linkerd/a, linkerd/b\n\
                        old, valid until 2027-01-16T04:00:00Z: linkerd/c (identity)\n";
        assert!(text.starts_with(expected), "{text}");
        assert_eq!(found[3].1, "not looked at: linkerd/d (identity): pods is forbidden");
        assert!(judged(&[replica("e", ReplicaRole::Manager, denied())]).is_empty());
    }
}
