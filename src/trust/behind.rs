//! The workloads whose proxies lack a root of the bundle, or have a distrusted one, and what helps. Pure.
//!
//! In: the roots, the proxies, how workloads replace their Pods. Out: a row for each workload, the most urgent first. Always
//! holds: a command has only characters that no shell obeys; a workload that a restart does not help has other advice.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;
use strum::IntoStaticStr;

use super::{
    obstacle::RestartObstacle,
    roots::{MeshRoots, ProxyGroup, ProxyStanding},
    rotation::RotationProgress,
    seen::{MeshedWorkload, SeenTrust},
    words::named,
};
use crate::text::is_name;

/// What to do about proxies that accept all certificates.
const NOT_URGENT: &str = "nothing is urgent: its next Pods have the bundle";
/// What to do about Pods that are being deleted.
const DELETED: &str = "wait until the deleted Pods have ended. If their node is lost, delete them with --force";
/// What to do about proxies that trust a distrusted root which the bundle has.
const NOT_YET: &str = "wait until the distrusted root has left the bundle: its next Pods would trust it, too";

/// A workload whose proxies lack a root.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct BehindRow {
    pub namespace: String,
    pub kind: String,
    pub name: String,
    pub pods: usize,
    pub state: BehindState,
    /// The roots of the bundle that they lack.
    pub lacks: Vec<String>,
    pub what_to_do: String,
}

/// What follows from the roots that proxies lack, the most urgent first.
#[derive(Clone, Copy, Debug, IntoStaticStr, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub enum BehindState {
    /// They refuse new certificates of others.
    Refuses,
    /// They would refuse the certificates of the next issuer, which waits for them.
    Holds,
    /// They trust a distrusted root, which the bundle does not have.
    Exposed,
    /// They trust no root of the mesh, and delay nothing.
    CutOff,
    /// They accept all certificates, also those of the next issuer.
    Behind,
    /// They may refuse certificates, by the LinkerdTrust.
    Accepted,
}

// === impl BehindState ===

impl BehindState {
    pub fn as_str(self) -> &'static str {
        self.into()
    }

    fn of(group: &ProxyGroup<'_>, roots: &MeshRoots<'_>, progress: &RotationProgress) -> Self {
        let reached = roots.reached();
        let is_exposed = roots.distrusted().iter().any(|root| group.trusts.contains(&root.id));
        match group.standing {
            ProxyStanding::OfMesh if !reached.is_empty() && !group.accepts(&reached) => Self::Refuses,
            _ if is_exposed => Self::Exposed,
            ProxyStanding::OfMesh if !progress.reached.is_empty() && !group.accepts(&progress.reached) => Self::Holds,
            ProxyStanding::OfMesh => Self::Behind,
            ProxyStanding::CutOff => Self::CutOff,
            ProxyStanding::Accepted => Self::Accepted,
        }
    }
}

// === impl BehindRow ===

impl BehindRow {
    /// The workload in a sentence.
    pub(super) fn named(&self) -> String {
        let Self { namespace, kind, name, .. } = self;
        match is_name(kind) && is_name(name) {
            true => format!("{kind} {namespace}/{name}"),
            false => format!("a workload of namespace {namespace}"),
        }
    }
}

/// Returns the workloads that lack a root of the bundle, refuse certificates, or trust a distrusted root.
pub(super) fn workloads_behind(seen: &SeenTrust, roots: &MeshRoots<'_>, progress: &RotationProgress) -> Vec<BehindRow> {
    let mut rows = BTreeMap::<&MeshedWorkload, BehindRow>::new();
    let mut exposed = BTreeSet::<&MeshedWorkload>::new();
    // While the bundle has no root of the issuer, a new Pod would be no better.
    for group in roots.groups.iter().filter(|_| roots.bundle_accepts() || roots.is_cut(seen)) {
        let lacks: Vec<_> =
            roots.in_bundle.difference(&group.trusts).filter_map(|it| roots.find(it)).map(named).collect();
        let state = BehindState::of(group, roots, progress);
        if lacks.is_empty() && state > BehindState::CutOff {
            continue;
        }
        if roots.is_exposed(group) {
            exposed.extend(group.workloads.keys());
        }
        for (workload, pods) in &group.workloads {
            let row = rows.entry(workload).or_insert_with(|| BehindRow {
                namespace: workload.namespace.clone(),
                kind: workload.kind.clone(),
                name: workload.name.clone(),
                pods: 0,
                state,
                lacks: lacks.clone(),
                what_to_do: what_to_do(workload, seen.proxies.obstacles.get(workload).copied()),
            });
            row.pods += pods;
            row.state = row.state.min(state);
        }
    }
    // Over a bridge, only those that refuse the certificates of the issuer must restart.
    let is_bridged = (roots.leaves.is_some() || seen.desired.is_some()) && progress.is_bridged;
    for (workload, row) in &mut rows {
        let obstacle = seen.proxies.obstacles.get(*workload);
        let by_itself = obstacle == Some(&RestartObstacle::Deleted) || workload.kind != "Pod" && obstacle.is_none();
        match row.state {
            BehindState::Behind if exposed.contains(workload) => row.what_to_do = NOT_YET.to_owned(),
            BehindState::Behind if is_bridged && by_itself => row.what_to_do = NOT_URGENT.to_owned(),
            BehindState::Behind if is_bridged => {
                row.what_to_do = format!("nothing is urgent. Before the bridge ends: {}", row.what_to_do);
            }
            BehindState::Accepted => row.what_to_do = format!("nothing waits for it. To repair it: {}", row.what_to_do),
            _ => {}
        }
    }
    in_turn(rows.into_values().collect())
}

/// Returns the most urgent rows first, and of each urgency the first of each namespace, then the second, and so on: a tenant
/// must not displace others.
fn in_turn(rows: Vec<BehindRow>) -> Vec<BehindRow> {
    let mut seen = BTreeMap::<(BehindState, String), usize>::new();
    let turn = |row: BehindRow| {
        let count = seen.entry((row.state, row.namespace.clone())).or_default();
        *count += 1;
        (*count, row)
    };
    let mut rows: Vec<_> = rows.into_iter().map(turn).collect();
    rows.sort_by_key(|(turn, row)| (row.state, *turn));
    rows.into_iter().map(|(_, row)| row).collect()
}

/// Returns how the proxies of a workload get the present bundle: only a new Pod gets it.
fn what_to_do(workload: &MeshedWorkload, obstacle: Option<RestartObstacle>) -> String {
    let MeshedWorkload { namespace, kind, name } = workload;
    if ![namespace, kind, name].into_iter().all(|text| is_name(text)) {
        return "let its owner create the Pods again".to_owned();
    }
    let rollout = |action: &str| format!("kubectl -n {namespace} rollout {action} {}/{name}", kind.to_lowercase());
    match (kind.as_str(), obstacle) {
        (_, Some(RestartObstacle::ProxyInTemplate)) => {
            "remove the proxy from its template, or inject it again with linkerd inject".to_owned()
        }
        (_, Some(RestartObstacle::OnDelete)) => "delete its Pods: its update strategy is OnDelete".to_owned(),
        (_, Some(RestartObstacle::Partition)) => {
            "restart it, and lower the partition of its update strategy".to_owned()
        }
        (_, Some(RestartObstacle::Deleted)) => DELETED.to_owned(),
        (_, Some(RestartObstacle::Paused)) => format!("{} && {}", rollout("resume"), rollout("restart")),
        ("Deployment" | "StatefulSet" | "DaemonSet", None) => rollout("restart"),
        ("Job", None) => "wait until the Job ends".to_owned(),
        ("Pod", None) => "delete it and create it again: no controller does".to_owned(),
        (_, None) => format!("let its {kind} create the Pods again"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        api::linkerd_trust::{AcceptedStep, AcceptedWorkload, TrustPhase},
        text::sha256,
        trust::{
            TrustReport,
            accepted::AcceptedWorkloads,
            problems::TrustVerdict,
            testing::{Mesh, Pki, declaring, declaring_bridged, presenting, root_of, workload},
        },
        x509::{
            anchor_set::AnchorSet,
            testing::{DAY, TestCa, der},
        },
    };
    #[test]
    fn a_workload_has_its_own_way_to_the_bundle() {
        let pki = Pki::new();
        for (kind, obstacle, way) in [
            ("DaemonSet", None, "kubectl -n app rollout restart daemonset/a"),
            ("Deployment", None, "kubectl -n app rollout restart deployment/a"),
            ("Job", None, "wait until the Job ends"),
            ("Pod", None, "delete it and create it again: no controller does"),
            ("Rollout", None, "let its Rollout create the Pods again"),
            ("StatefulSet", None, "kubectl -n app rollout restart statefulset/a"),
            ("StatefulSet", Some(RestartObstacle::OnDelete), "delete its Pods: its update strategy is OnDelete"),
            ("Pod", Some(RestartObstacle::Deleted), DELETED),
            (
                "StatefulSet",
                Some(RestartObstacle::Partition),
                "restart it, and lower the partition of its update strategy",
            ),
            (
                "Deployment",
                Some(RestartObstacle::Paused),
                "kubectl -n app rollout resume deployment/a && kubectl -n app rollout restart deployment/a",
            ),
            (
                "DaemonSet",
                Some(RestartObstacle::ProxyInTemplate),
                "remove the proxy from its template, or inject it again with linkerd inject",
            ),
        ] {
            let mut mesh = Mesh::new(&[&pki.new, &pki.old], &[&pki.old_issuer]);
            mesh.0.proxies.add(workload(kind, "a"), Some(&AnchorSet::of(&pki.old.pem)), 1);
            mesh.0.proxies.obstacles.extend(obstacle.map(|obstacle| (workload(kind, "a"), obstacle)));
            assert_eq!(mesh.report().behind[0].what_to_do, way, "{kind} {obstacle:?}");
        }
    }

    /// A mesh without a bridge, in which these Deployments may lack a root.
    fn accepting(mut mesh: Mesh, names: &[&str], root: &TestCa) -> Mesh {
        let accepted = names.iter().map(|name| AcceptedWorkload {
            kind: "Deployment".to_owned(),
            namespace: "app".to_owned(),
            name: (*name).to_owned(),
            step: AcceptedStep::Issuer,
            anchor: sha256(der(&root.pem)),
        });
        let accepted: Vec<_> = accepted.collect();
        mesh.0.desired.as_mut().unwrap().accepted = AcceptedWorkloads::of(&accepted);
        mesh
    }

    fn states(mesh: &Mesh) -> Vec<(String, &'static str)> {
        mesh.report().behind.into_iter().map(|row| (row.name, row.state.as_str())).collect()
    }

    #[test]
    fn the_next_issuer_waits_for_each_workload_by_name_unless_its_acceptance_is_about_this_root() {
        let pki = Pki::new();
        let (old_issuer, both): (&[&TestCa], _) = (&[&pki.old_issuer], &[&pki.new, &pki.old][..]);
        let mesh = |accepted: &[&str], root: &TestCa| {
            let mesh = Mesh::new(both, &[]).pods("web", 3, &[&pki.old]).pods("db", 1, &[&pki.old]).pods("db", 1, both);
            accepting(declaring(presenting(mesh, &[(old_issuer, 5)], 0), &[&pki.new]), accepted, root)
        };
        let report = mesh(&[], &pki.new).report();
        assert_eq!((report.progress.phase, report.progress.untrusting), (TrustPhase::Spreading, 4));
        assert_eq!(report.held_by.as_deref(), Some("Deployment app/db, Deployment app/web"));
        let one = mesh(&["web", "absent"], &pki.new);
        let report = one.report();
        assert_eq!((report.progress.phase, report.progress.untrusting), (TrustPhase::Spreading, 1));
        assert_eq!((report.held_by.as_deref(), report.proxies.accepted), (Some("Deployment app/db"), 3));
        assert_eq!(states(&one), [("db".to_owned(), "Holds"), ("web".to_owned(), "Accepted")]);
        let all = mesh(&["web", "db"], &pki.new).report();
        assert_eq!(
            (all.progress.phase, all.held_by, all.verdict),
            (TrustPhase::AwaitingIssuer, None, TrustVerdict::Good)
        );
        assert_eq!((all.proxies.total, all.proxies.current, all.proxies.accepted), (5, 1, 4));
        let void = mesh(&["web", "db"], &pki.old).report();
        assert_eq!(
            (void.progress.phase, void.proxies.accepted),
            (TrustPhase::Spreading, 0),
            "it is about another root"
        );
    }

    #[test]
    fn an_accepted_workload_that_refuses_certificates_breaks_nothing_and_keeps_the_mesh_from_being_steady() {
        let pki = Pki::new();
        let (new_issuer, both): (&[&TestCa], _) = (&[&pki.new_issuer], &[&pki.new, &pki.old][..]);
        let mesh = |bundle: &[&TestCa], trusted: &[&TestCa]| {
            let mesh = Mesh::new(bundle, &[]).pods("job", 1, &[&pki.old]).pods("web", 9, trusted);
            declaring(presenting(mesh, &[(new_issuer, 9)], 0), &[&pki.new])
        };
        let broken = mesh(both, both);
        assert_eq!(broken.verdict(), TrustVerdict::Broken);
        assert_eq!(states(&broken), [("job".to_owned(), "Refuses")]);
        let report = accepting(mesh(both, both), &["job"], &pki.new).report();
        assert_eq!((report.verdict, report.progress.phase), (TrustVerdict::Good, TrustPhase::Retiring), "{report:#?}");
        assert_eq!((report.proxies.refusing, report.proxies.accepted), (0, 1));
        let last = accepting(mesh(&[&pki.new], &[&pki.new]), &["job"], &pki.new);
        assert_eq!((last.verdict(), last.report().progress.phase), (TrustVerdict::Good, TrustPhase::Complete));
        assert_eq!(states(&last), [("job".to_owned(), "Accepted")]);
    }

    /// The proxies of x reach the first root over its bridge, and are accepted for it. A tenant has a Pod that trusts only the
    /// second one.
    #[test]
    fn an_acceptance_about_one_declared_root_makes_no_other_one_the_next() {
        let pki = Pki::new();
        let (other, carrier) = (root_of("other", DAY), root_of("carrier", -DAY));
        let bridge = carrier.signs_again(&pki.new, |_| {});
        let (old_issuer, all): (&[&TestCa], _) = (&[&pki.old_issuer], &[&pki.old, &pki.new, &other][..]);
        let mesh = Mesh::new(all, &[]).pods("x", 3, &[&pki.old, &carrier]).pods("y", 2, all);
        let mesh = presenting(mesh.pods("z", 1, &[&pki.old, &other]), &[(old_issuer, 6)], 0);
        let mesh = declaring_bridged(mesh, &[&pki.new, &other], &[&bridge], &[&carrier]);
        let next = |report: &TrustReport| report.next_anchor.clone();
        let report = mesh.report();
        assert_eq!((report.progress.phase, next(&report)), (TrustPhase::Spreading, Some(sha256(der(&pki.new.pem)))));
        let report = accepting(mesh, &["x"], &pki.new).report();
        assert_eq!((report.progress.phase, next(&report)), (TrustPhase::Spreading, Some(sha256(der(&pki.new.pem)))));
        assert_eq!(report.held_by.as_deref(), Some("Deployment app/z"));
    }

    #[test]
    fn rows_of_a_tenant_displace_no_other_namespace_and_a_proxy_without_a_root_of_the_mesh_hides_none() {
        let pki = Pki::new();
        let (old_issuer, both): (&[&TestCa], _) = (&[&pki.old_issuer], &[&pki.new, &pki.old][..]);
        let mut mesh = Mesh::new(both, &[]).pods("web", 1, &[&pki.old]);
        let of_tenant = |name: String| MeshedWorkload { namespace: "aaa".to_owned(), ..workload("Deployment", &name) };
        for number in 0..30 {
            mesh.0.proxies.add(of_tenant(number.to_string()), Some(&AnchorSet::of(&pki.old.pem)), 1);
        }
        let mesh = mesh.pods("web", 1, &[&root_of("foreign", -DAY)]);
        let report = declaring(presenting(mesh, &[(old_issuer, 31)], 0), &[&pki.new]).report();
        assert!(report.held_by.unwrap().starts_with("Deployment aaa/0, Deployment app/web, "));
        assert_eq!((&*report.behind[1].name, report.behind[1].state), ("web", BehindState::Holds));
    }
}
