//! The next step of a rotation. Pure.
//!
//! In: the roots, the issuer, the proxies that are behind. Out: one sentence, and the commands. Always holds: by what was
//! seen, the step breaks no connection; a root that may be a tenant's is never named as one to put into the bundle.

use jiff::{SignedDuration, Timestamp};
use serde::Serialize;

use super::{
    behind::{BehindRow, BehindState},
    leaf_reach::LeafReach,
    problems::must_be_renewed,
    roots::{IssuerReach, MeshRoots, pods},
    rotation::{RotationProgress, former_place, place, toward},
    seen::{NotSeen, SeenLeaves, SeenTrust},
    words::{day, named, proxies, proxies_trust, rounded},
};
use crate::{
    api::{ISSUER, NEXT_ISSUER, TRUST_ROOTS},
    text::and_more,
    x509::{anchors::RootCertificate, certificate::ChainCertificate},
};

/// A root should be replaced earlier than this before its end.
const ROTATE: SignedDuration = SignedDuration::from_hours(60 * 24);
/// The maximum number of clusters or roots in a sentence.
const SHOWN: usize = 10;
/// What follows a new issuer after one that has expired.
const RESTART_ALL: &str =
    "Then restart linkerd-identity, and the workloads: their certificates have ended with the issuer";
/// The maximum number of commands.
const MAX_COMMANDS: usize = 5;

/// What to do next.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RotationStep {
    pub sentence: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub commands: Vec<String>,
}

// === impl RotationStep ===

impl RotationStep {
    fn only(sentence: impl Into<String>) -> Self {
        Self { sentence: sentence.into(), commands: Vec::new() }
    }

    /// Adds the linked clusters, whose proxies are not seen here and must obey the same rules.
    pub(super) fn in_all_clusters(mut self, seen: &SeenTrust) -> Self {
        if !seen.linked_clusters.is_empty() {
            let names = and_more(seen.linked_clusters.iter().take(SHOWN), seen.linked_clusters.len(), ", ");
            self.sentence.push_str(&format!(". The same must be true in the linked clusters {names}"));
        }
        self
    }
}

pub(super) fn next_step(
    seen: &SeenTrust,
    roots: &MeshRoots<'_>,
    behind: &[BehindRow],
    progress: &RotationProgress,
) -> RotationStep {
    if let Some(step) = cut(seen, roots, behind).or_else(|| missed(seen, roots)) {
        return step;
    }
    if let Some(step) = without_knowledge(seen, roots) {
        return step;
    }
    let Ok(issuer) = &roots.issuer else { return RotationStep::only("replace the issuer") };
    if let Some(step) = repair(seen, roots, issuer, behind) {
        return step;
    }
    let home = issuer.home.and_then(|home| roots.find(&home));
    if seen.desired.is_some() {
        let step = toward(seen, roots, progress).map(|step| step.in_all_clusters(seen));
        return step.unwrap_or_else(|| at_rest(seen, roots, issuer, home, behind));
    }
    let others: Vec<_> =
        roots.all.iter().filter(|root| roots.in_bundle.contains(&root.id) && Some(root.id) != issuer.home).collect();
    // Certificates reach the old root over the bridge.
    if let Some(old) = others.iter().find(|root| issuer.reached.contains(&root.id)) {
        return retire(old, seen, issuer).in_all_clusters(seen);
    }
    let lacks = |root: &RootCertificate| pods(roots.mesh().filter(|group| !group.trusts.contains(&root.id)));
    if let Some(other) = others.iter().max_by_key(|root| lacks(root)) {
        return match lacks(other) {
            0 => unreached(other, seen, issuer).in_all_clusters(seen),
            count => spread(other, count),
        };
    }
    at_rest(seen, roots, issuer, home, behind)
}

/// The step while connections are cut, so that proxies lose distrusted roots at once. What is broken meanwhile is repaired by
/// it.
fn cut(seen: &SeenTrust, roots: &MeshRoots<'_>, behind: &[BehindRow]) -> Option<RotationStep> {
    seen.desired.as_ref().filter(|declared| declared.distrusted.is_cut)?;
    let in_bundle: Vec<_> = roots.distrusted_in_bundle().map(named).collect();
    if in_bundle.is_empty() && !roots.groups.iter().any(|group| roots.is_exposed(group)) {
        return None;
    }
    let listed = |names: &[String]| and_more(names.iter().take(SHOWN), names.len(), ", ");
    if !roots.missing.is_empty() && !seen.is_issuer_written() {
        let missing: Vec<_> = roots.missing.iter().map(|root| named(root)).collect();
        return Some(RotationStep::only(format!("add {} to {}", listed(&missing), place(seen))));
    }
    if !seen.is_issuer_written() {
        let condition = seen.issuer_condition.as_ref().map(|condition| condition.message.clone());
        return Some(RotationStep::only(condition.unwrap_or_else(|| {
            let target = roots.target().map_or_else(|| "a declared trust anchor".to_owned(), named);
            format!(
                "write an issuer of {target} into the Secret {NEXT_ISSUER}: the operator makes it the issuer at once"
            )
        })));
    }
    if !in_bundle.is_empty() {
        return Some(RotationStep::only(format!("remove {} from {}", listed(&in_bundle), place(seen))));
    }
    exposed(seen, roots, behind)
}

/// The step if a distrusted root left the bundle while proxies need it: people must choose.
fn missed(seen: &SeenTrust, roots: &MeshRoots<'_>) -> Option<RotationStep> {
    let leaves = roots.leaves.as_ref()?;
    let needed: Vec<_> = roots.distrusted().into_iter().filter(|root| roots.presented_by(&root.id) > 0).collect();
    let ids = needed.iter().map(|root| root.id).collect();
    let old = leaves.with(|reached| reached.is_disjoint(&roots.in_bundle) && !reached.is_disjoint(&ids));
    let names = needed.iter().map(|root| named(root));
    let manages_issuer = seen.desired.as_ref().is_some_and(|declared| declared.manages_issuer);
    let needs = if manages_issuer { "" } else { ", with spec.mode Enforce and spec.issuer.manage Secret" };
    (old > 0).then(|| {
        RotationStep::only(format!(
            "the bundle lost the distrusted {}, although {} need it. Set spec.distrust.connections to Cut{needs}: then each \
             workload restarts, and until then connections are refused. Or put it back until these have renewed their \
             certificates: then new Pods trust it, too",
            and_more(names.take(SHOWN), needed.len(), ", "),
            proxies(old)
        ))
    })
}

/// Returns how the mesh gets an issuer that its proxies accept: the previous one, unless it may be the one that is distrusted.
fn other_issuer(seen: &SeenTrust, roots: &MeshRoots<'_>) -> String {
    match roots.target().zip(seen.desired.as_ref()).filter(|(_, declared)| !declared.distrusted.is_empty()) {
        Some((target, declared)) => {
            let secret = if declared.manages_issuer { NEXT_ISSUER } else { ISSUER };
            format!("write an issuer of {} into the Secret {secret}", named(target))
        }
        None => format!("put the previous issuer back into the Secret {ISSUER}"),
    }
}

/// Returns how the bundle gets its roots again, if those that are needed could be those of a tenant.
fn restored_bundle(seen: &SeenTrust) -> String {
    let without = if seen.is_distrusting() { ", without the roots of spec.distrust" } else { "" };
    format!("restore the previous bundle in ConfigMap {TRUST_ROOTS}{without}")
}

/// The step if proxies trust a distrusted root that the bundle does not have.
fn exposed(seen: &SeenTrust, roots: &MeshRoots<'_>, behind: &[BehindRow]) -> Option<RotationStep> {
    // While connections are cut, these refuse certificates, too.
    let rows = || behind.iter().filter(|row| matches!(row.state, BehindState::Refuses | BehindState::Exposed));
    let control_plane = roots.exposed_control_plane(seen);
    let workloads = and_more(rows().take(SHOWN).map(BehindRow::named), rows().count(), ", ");
    let created = format!(
        "create the Pods of {workloads} again, which trust a distrusted root. A LinkerdConfig with the trigger TrustRoots \
         restarts those that opted in"
    );
    let control_plane_first = "restart the control plane, which read the bundle before it was changed";
    let sentence = match (&control_plane, workloads.is_empty()) {
        (None, true) => return None,
        (Some(_), true) => control_plane_first.to_owned(),
        (Some(_), false) => format!("{control_plane_first}. Then {created}"),
        (None, false) => created,
    };
    let RotationStep { sentence, commands } = restart(sentence, rows());
    let commands = control_plane.into_iter().chain(commands).take(MAX_COMMANDS).collect();
    Some(RotationStep { sentence, commands })
}

/// The step if something needed is not known.
fn without_knowledge(seen: &SeenTrust, roots: &MeshRoots<'_>) -> Option<RotationStep> {
    let unread = |what: &str| RotationStep::only(format!("run this command as a user who can read {what}"));
    match &seen.bundle {
        Err(NotSeen::Unread(_)) => return Some(unread("the ConfigMaps of Linkerd's namespace")),
        Err(NotSeen::Missing(_)) if roots.groups.is_empty() => {
            let sentence = format!("is {} the namespace of Linkerd? No mesh was found", seen.namespace);
            return Some(RotationStep::only(sentence));
        }
        _ if roots.in_bundle.is_empty() => {
            return Some(RotationStep::only("restore the bundle in ConfigMap linkerd-identity-trust-roots"));
        }
        _ => {}
    }
    if roots.leaves.as_ref().is_some_and(LeafReach::is_issuer_refused) {
        let other = other_issuer(seen, roots);
        return Some(RotationStep::only(format!("{other}: the present one is not under a root of the mesh")));
    }
    if roots.issuer.is_err() && roots.shares_no_root() {
        let trusted = roots.all.iter().find(|root| !roots.in_bundle.contains(&root.id) && roots.may_return(root));
        return Some(RotationStep::only(match trusted {
            Some(root) => {
                format!("put the root {} back into {}: running proxies trust it", named(root), former_place(seen))
            }
            None => restored_bundle(seen),
        }));
    }
    match &roots.issuer {
        Err(NotSeen::Unread(_)) if seen.leaves.as_ref().is_some_and(SeenLeaves::has_ended) => {
            return Some(RotationStep {
                sentence: "restart linkerd-identity, once linkerd-operator trust shows an issuer that has not expired, and then the \
                           workloads: their certificates have ended, so they cannot ask for others"
                    .to_owned(),
                commands: vec![format!("kubectl -n {} rollout restart deployment/linkerd-identity", seen.namespace)],
            });
        }
        Err(NotSeen::Unread(_)) if seen.leaves.is_some() => {
            return Some(RotationStep::only(
                "wait until a proxy has shown its certificate. If this lasts, a NetworkPolicy may refuse the operator at the \
                 admin port of proxies, 4191",
            ));
        }
        Err(NotSeen::Unread(_)) => return Some(unread("the Secret linkerd-identity-issuer")),
        Err(NotSeen::Missing(_)) => return Some(RotationStep::only("restore the Secret linkerd-identity-issuer")),
        Ok(_) => {}
    }
    (seen.proxies.others > 0).then(|| {
        RotationStep::only("delete the Pods with roots of their own: while there are so many, no step is safe")
    })
}

/// The step if certificates are refused, or soon will be.
fn repair(seen: &SeenTrust, roots: &MeshRoots<'_>, issuer: &IssuerReach, behind: &[BehindRow]) -> Option<RotationStep> {
    if issuer.own.not_after <= seen.now {
        let signs = |root: &&&RootCertificate| {
            ChainCertificate::parse(&root.der).is_some_and(|root| issuer.own.is_signed_by(&root))
        };
        let root_ends = roots.all.iter().find(signs).and_then(|root| root.not_after);

        return Some(match root_ends.is_some_and(|end| end <= seen.now) {
            true => RotationStep {
                sentence: format!(
                    "replace the root, which has expired, too. With its key you can sign a bridge. {RESTART_ALL}"
                ),
                commands: vec![new_root(seen)],
            },
            false => RotationStep {
                sentence: format!("sign a new issuer with the key of its root. {RESTART_ALL}"),
                commands: vec![new_issuer(seen)],
            },
        });
    }
    if issuer.begins_with_bridge {
        return Some(RotationStep::only("write the certificate of the issuer before the bridge into its Secret"));
    }
    if !roots.bundle_accepts() {
        let known = roots.all.iter().find(|root| issuer.reached.contains(&root.id) && roots.may_return(root));
        return Some(RotationStep::only(match known.map(|root| named(root)) {
            Some(root) => {
                let place = former_place(seen);
                format!("put the root {root} back into {place}: proxies trust it, and certificates reach it")
            }
            None => {
                let other = other_issuer(seen, roots);
                format!("{other}: proxies keep the certificates that they have until they end")
            }
        }));
    }
    let needs_more = roots.leaves.as_ref().map_or(0, |leaves| leaves.without(&roots.in_bundle));
    if needs_more > 0 {
        let left =
            roots.all.iter().filter(|root| !roots.in_bundle.contains(&root.id) && roots.presented_by(&root.id) > 0);
        let left: Vec<_> = left.filter(|root| roots.may_return(root)).map(|root| named(root)).collect();
        if left.is_empty() {
            return Some(RotationStep::only(restored_bundle(seen)));
        }
        return Some(RotationStep::only(format!(
            "put {} back into {} until {} have renewed their certificates",
            and_more(left.iter().take(SHOWN), left.len(), ", "),
            former_place(seen),
            proxies(needs_more)
        )));
    }
    let refusing = || behind.iter().filter(|row| row.state == BehindState::Refuses);
    if pods(roots.mesh().filter(|group| !group.accepts(&issuer.reached))) > 0 {
        // New Pods must accept its certificates.
        let mut refuse = roots.mesh().filter(|group| !group.accepts(&issuer.reached));
        let may_go_back = !seen.is_distrusting() && refuse.all(|group| group.accepts(&roots.in_bundle));
        let sentence = match may_go_back {
            true => "restart these workloads: their proxies refuse new certificates. Or put the previous issuer back",
            false => "restart these workloads: their proxies refuse new certificates",
        };
        return Some(restart(sentence, refusing()));
    }
    let left = roots.left_too_early(seen)?;
    Some(RotationStep::only(format!(
        "put the root {} back into {} for {}, unless the issuer before was under another root",
        named(left.root),
        former_place(seen),
        rounded(left.renewed.duration_since(seen.now))
    )))
}

/// The step if the bundle has only the root of the issuer.
fn at_rest(
    seen: &SeenTrust,
    roots: &MeshRoots<'_>,
    issuer: &IssuerReach,
    home: Option<&RootCertificate>,
    behind: &[BehindRow],
) -> RotationStep {
    if let Some(step) = exposed(seen, roots, behind) {
        return step;
    }
    if let Some(why) = seen.unwritten_issuer() {
        return RotationStep::only(why);
    }
    // A new root has a new issuer.
    let left = |end: Timestamp| end.duration_since(seen.now);
    let is_root_due = home.and_then(|home| home.not_after).is_some_and(|end| left(end) <= ROTATE);
    let is_issuer_due = must_be_renewed(seen, roots, issuer) && !is_root_due;
    if is_issuer_due || left(issuer.own.not_after) <= seen.settings.lifetime {
        return RotationStep {
            sentence: "renew the issuer, with the key of the same root".to_owned(),
            commands: vec![new_issuer(seen)],
        };
    }
    let mut cut_off = behind.iter().filter(|row| row.state == BehindState::CutOff).peekable();
    if cut_off.peek().is_some() {
        return restart("create these Pods again, or delete them: they trust no root of the mesh", cut_off);
    }
    if let Some(declared) = seen.desired.as_ref().filter(|declared| !declared.distrusted.is_empty()) {
        let remove = r#"--type=json -p '[{"op":"remove","path":"/spec/distrust"}]'"#;
        let step = RotationStep {
            sentence: "remove spec.distrust, if it has the root that was meant: no proxy that is seen here trusts it any longer"
                .to_owned(),
            commands: vec![format!("kubectl patch linkerdtrust {} {remove}", declared.resource)],
        };
        return step.in_all_clusters(seen);
    }
    match home.and_then(|home| Some((home, home.not_after?))) {
        Some((home, _)) if is_root_due => RotationStep {
            sentence: format!(
                "replace the root {}. With its key you can sign a bridge, and no proxy has to restart",
                named(home)
            ),
            commands: vec![new_root(seen)],
        },
        Some((home, end)) => {
            let on_bridge = pods(roots.mesh().filter(|group| !group.accepts(&roots.in_bundle)));
            let bridge = issuer.others.iter().map(|certificate| certificate.not_after).min();
            match bridge.filter(|_| on_bridge > 0) {
                Some(bridge) => RotationStep::only(format!(
                    "nothing is urgent: {} only an older root. New certificates are accepted over the bridge, which ends {}. \
                     New Pods trust the new root",
                    proxies_trust(on_bridge, true),
                    seen.when(bridge)
                )),
                None => RotationStep::only(format!(
                    "nothing to do now; replace the root {} before {}",
                    named(home),
                    day(end.checked_sub(ROTATE).unwrap_or(end))
                )),
            }
        }
        None => RotationStep::only("nothing to do"),
    }
}

/// The bundle has a root that some proxies do not trust. So it is new: they got the bundle before.
fn spread(next: &RootCertificate, lacks: usize) -> RotationStep {
    RotationStep::only(format!(
        "{} {} yet. If it is the next root: with a bridge nothing has to restart, so write the issuer of the new \
         root, and the bridge after it, into the Secret linkerd-identity-issuer. Without a bridge, first restart the \
         workloads below, and the control plane, whose proxies do not show what they trust",
        proxies_trust(lacks, false),
        named(next)
    ))
}

/// The bundle has a root that all proxies trust and no certificate reaches: the next one, or the one before.
fn unreached(root: &RootCertificate, seen: &SeenTrust, issuer: &IssuerReach) -> RotationStep {
    let renewed = issuer.written.map(|written| seen.settings.renewed(written)).filter(|renewed| *renewed > seen.now);
    let earliest = renewed.map_or_else(String::new, |renewed| format!(", but not before {}", seen.when(renewed)));
    RotationStep::only(format!(
        "every proxy trusts {}, and no certificate reaches it. If it is the next root, write an issuer of it into the Secret \
         linkerd-identity-issuer, after a restart of the control plane. If it was the root before and nothing else uses it, \
         remove it from the bundle{earliest}",
        named(root)
    ))
}

/// Certificates reach the root of the issuer, and over a bridge this one.
fn retire(old: &RootCertificate, seen: &SeenTrust, issuer: &IssuerReach) -> RotationStep {
    let old = named(old);
    match issuer.written.map(|written| seen.settings.renewed(written)) {
        Some(renewed) if renewed > seen.now => RotationStep::only(format!(
            "wait until all proxies have renewed their certificates, at the latest {}; then remove {old} from the bundle",
            seen.when(renewed)
        )),
        Some(_) => RotationStep::only(format!(
            "the certificates of the issuer before have ended: remove {old} from the bundle in ConfigMap \
             linkerd-identity-trust-roots. New Pods then do not trust it any more"
        )),
        None => RotationStep::only(format!(
            "once {} have passed since the issuer changed, remove {old} from the bundle",
            rounded(seen.settings.lifetime)
        )),
    }
}

fn new_root(seen: &SeenTrust) -> String {
    format!("linkerd-operator trust new ./pki --bridge-from ca.crt --old-key ca.key{}", of_mesh(seen))
}

fn new_issuer(seen: &SeenTrust) -> String {
    format!("linkerd-operator trust issuer ./issuer --root ca.crt --key ca.key{}", of_mesh(seen))
}

/// Returns the flags for what is not as by default.
fn of_mesh(seen: &SeenTrust) -> String {
    let mut flags = String::new();
    for (flag, value, default) in
        [("--namespace", &seen.namespace, "linkerd"), ("--trust-domain", &seen.settings.trust_domain, "cluster.local")]
    {
        if value != default {
            flags.push_str(&format!(" {flag} {value}"));
        }
    }
    flags
}

fn restart<'a>(sentence: impl Into<String>, rows: impl Iterator<Item = &'a BehindRow>) -> RotationStep {
    // Others say in words what to do.
    let commands =
        rows.map(|row| row.what_to_do.clone()).filter(|it| it.starts_with("kubectl ")).take(MAX_COMMANDS).collect();
    RotationStep { sentence: sentence.into(), commands }
}
