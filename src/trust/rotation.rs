//! The phase of a rotation to the declared roots, and what leads to the next one. Pure.
//!
//! In: the roots, the issuer, the proxies and their certificates. Out: a [`TrustPhase`], and the step. Always holds: the
//! phase is computed, and never stored, so a root that is declared again leads back from each phase.

use std::collections::BTreeSet;

use jiff::Timestamp;

use super::{
    next_step::RotationStep,
    roots::{MeshRoots, ProxyGroup, ProxyStanding, pods},
    seen::{DeclaredRoots, SeenTrust},
    sufficient::{reached_by_desired_issuer, with_bridges},
    words::{named, proxies, proxies_trust, rounded},
};
use crate::{
    api::{ISSUER, NEXT_ISSUER, TRUST_ROOTS, linkerd_trust::TrustPhase},
    text::and_more,
    x509::{anchor_set::Fingerprint, anchors::RootCertificate},
};

/// The maximum number of roots in a sentence.
const SHOWN: usize = 5;
/// What the operator cannot see: it does not read the Secret.
const SHOWN_LATER: &str = ". If it is written already, the next proxy that renews its certificate shows it";

/// Where a root is added or removed.
const IN_CONFIG_MAP: &str = "the bundle in ConfigMap linkerd-identity-trust-roots";

/// How far the mesh is on the way to the declared roots.
#[derive(Debug, PartialEq)]
pub struct RotationProgress {
    pub phase: TrustPhase,
    /// The proxies that trust the declared root of the issuer, or the one that it should have.
    pub trusting: usize,
    /// The proxies that do not.
    pub untrusting: usize,
    /// Whether these proxies accept the certificates of an issuer that belongs to a declared root all the same.
    pub is_bridged: bool,
    /// Whether the issuer does not belong to a declared root, or is not known.
    pub awaits_issuer: bool,
    /// Whether each proxy that accepts the certificates of the present issuer accepts those of the next one, by the declared
    /// bridges.
    pub accepts_next: bool,
    /// The roots that the certificates of this issuer reach.
    pub(super) reached: BTreeSet<Fingerprint>,
    /// The proxies that present certificates which reach none of the declared roots.
    pub not_renewed: usize,
    /// When the newest of these certificates was issued.
    pub newest_old: Option<Timestamp>,
    /// The proxies whose certificates were not observed.
    pub unobserved: usize,
    /// The declared roots that the bundle lacks, for people.
    pub missing: Option<String>,
    /// Whether the bundle has exactly the declared roots.
    pub is_bundle_synced: bool,
}

// === impl RotationProgress ===

impl RotationProgress {
    pub(super) fn of(seen: &SeenTrust, roots: &MeshRoots<'_>) -> Self {
        let target = roots.target();
        let trusts = |group: &&ProxyGroup<'_>| target.is_some_and(|target| group.trusts.contains(&target.id));
        let (trusting, all) = (pods(roots.mesh().filter(trusts)), pods(roots.mesh()));
        let reached = reached_by_desired_issuer(roots);
        let is_bridged = roots.mesh().all(|group| group.accepts(&reached));
        let leaves = roots.leaves.as_ref();
        let progress = Self {
            phase: TrustPhase::Unknown,
            trusting,
            untrusting: all - trusting,
            is_bridged,
            awaits_issuer: !roots.is_issuer_desired(),
            accepts_next: !roots.reached().is_empty() && roots.reached().is_subset(&with_bridges(roots)),
            reached,
            not_renewed: leaves.map_or(0, |leaves| leaves.without(&roots.desired)),
            newest_old: leaves.and_then(|leaves| leaves.newest_without(&roots.desired)),
            unobserved: leaves.map_or(0, |leaves| leaves.unobserved),
            missing: Some(list(&roots.missing)).filter(|_| !roots.missing.is_empty()),
            is_bundle_synced: roots.in_bundle == roots.desired && roots.missing.is_empty(),
        };
        Self { phase: progress.phase_of(seen, roots), ..progress }
    }

    /// Whether each proxy that shows its roots accepts what reaches the sufficient ones. While an issuer is awaited, these are
    /// what the next one reaches; later, roots that are not declared may help the present one.
    pub fn may_switch(&self) -> bool {
        match self.phase {
            TrustPhase::Unknown | TrustPhase::Adding | TrustPhase::Spreading => false,
            TrustPhase::AwaitingIssuer => true,
            TrustPhase::Renewing | TrustPhase::Retiring | TrustPhase::Complete | TrustPhase::Steady => {
                self.untrusting == 0
            }
        }
    }

    fn phase_of(&self, seen: &SeenTrust, roots: &MeshRoots<'_>) -> TrustPhase {
        // With too many different sets of roots, some proxies are not compared.
        if roots.in_bundle.is_empty() || seen.proxies.others > 0 {
            return TrustPhase::Unknown;
        }
        if !roots.missing.is_empty() {
            return TrustPhase::Adding;
        }
        let Ok(issuer) = &roots.issuer else { return TrustPhase::Unknown };
        if self.untrusting > 0 && !self.is_bridged {
            return TrustPhase::Spreading;
        }
        if !roots.is_issuer_desired() {
            return TrustPhase::AwaitingIssuer;
        }
        let has_others = roots.in_bundle != roots.desired;
        let renewed = issuer.written.map(|written| seen.settings.renewed(written));
        // Where certificates are not observed, time decides.
        let may_be_old = match seen.leaves {
            Some(_) => self.unobserved > 0 && seen.older_end().is_none_or(|end| end > seen.now),
            None => !seen.is_renewed && renewed.is_none_or(|renewed| renewed > seen.now),
        };
        if self.not_renewed > 0 || has_others && may_be_old {
            return TrustPhase::Renewing;
        }
        if has_others {
            return TrustPhase::Retiring;
        }
        let mut shown = roots.groups.iter().filter(|group| group.standing != ProxyStanding::CutOff);
        match shown.any(|group| group.trusts != roots.desired) {
            true => TrustPhase::Complete,
            false => TrustPhase::Steady,
        }
    }
}

/// Returns the root that must sign a bridge to the target: the one that all proxies trust that do not trust the target.
fn signer<'a>(roots: &MeshRoots<'a>, target: Fingerprint) -> Option<&'a RootCertificate> {
    let untrusting: Vec<_> = roots.with_root_of_mesh().filter(|group| !group.trusts.contains(&target)).collect();
    let is_known = |root: &&RootCertificate| roots.in_bundle.contains(&root.id) || roots.may_return(root);
    roots
        .all
        .iter()
        .copied()
        .filter(is_known)
        .find(|root| untrusting.iter().all(|group| group.trusts.contains(&root.id)))
}

/// Returns the step to the next phase; `None` at the end.
pub(super) fn toward(seen: &SeenTrust, roots: &MeshRoots<'_>, progress: &RotationProgress) -> Option<RotationStep> {
    let desired: Vec<_> = roots.all.iter().copied().filter(|root| roots.desired.contains(&root.id)).collect();
    let (source, place) = (source(seen), place(seen));
    let is_enforced = seen.desired.as_ref().is_some_and(|declared| declared.is_enforced);
    let is_managed = seen.desired.as_ref().is_some_and(|declared| declared.manages_issuer);
    let secret = if is_managed { NEXT_ISSUER } else { ISSUER };
    let is_written_by_operator = is_enforced && source.is_none();
    let target = roots.target();
    let issuer_of = target.map_or_else(|| list(&desired), named);
    let later = if seen.leaves.is_some() && !is_managed { SHOWN_LATER } else { "" };
    let sentence = match progress.phase {
        TrustPhase::Adding => {
            format!("add {} to {place}, and keep the roots that it has", list(&roots.missing))
        }
        TrustPhase::Spreading => {
            let restart = restarts(seen, progress, &issuer_of);
            match target.and_then(|target| signer(roots, target.id)).map(named) {
                // Each workload restarts all the same.
                _ if seen.is_distrusting() => restart,
                Some(signer) if is_managed => format!(
                    "{restart}. With a bridge that {signer} signs, and with it and its signer in spec.bridge, nothing has to \
                     restart"
                ),
                Some(signer) => format!(
                    "{restart}. Or write an issuer of {issuer_of}, and after it a bridge that {signer} signs, into the Secret \
                     {secret}, once spec.bridge has this bridge and its signer: then nothing has to restart{later}"
                ),
                None => format!("{restart}. No single bridge is enough{later}"),
            }
        }
        TrustPhase::AwaitingIssuer if is_managed => awaited_by_operator(seen, &issuer_of),
        TrustPhase::AwaitingIssuer => {
            let is_bridged = target.is_some_and(|target| !roots.over_bridges(&target.id).is_empty());
            awaited(&issuer_of, is_bridged) + later
        }
        TrustPhase::Renewing => match (progress.not_renewed, progress.unobserved) {
            (0, 0) => {
                let written = roots.issuer.as_ref().ok().and_then(|issuer| issuer.written);
                let renewed = written.map(|written| seen.settings.renewed(written));
                match renewed {
                    Some(renewed) => {
                        let latest = seen.when(renewed);
                        format!("wait until all proxies have renewed their certificates, at the latest {latest}")
                    }
                    None => format!(
                        "wait until all proxies have renewed their certificates, within {} of the change of the issuer",
                        rounded(seen.settings.lifetime)
                    ),
                }
            }
            (0, unobserved) => {
                let end = seen.older_end().map(|end| format!(", at the latest {}", seen.when(end)));
                format!(
                    "wait until the certificates of {} are observed{}: it is not known whether they need a root that is to \
                     be removed",
                    proxies(unobserved),
                    end.unwrap_or_default()
                )
            }
            (1, _) => {
                format!("wait until 1 proxy has renewed its certificate, within {}", rounded(seen.settings.lifetime))
            }
            (old, _) => format!(
                "wait until {} have renewed their certificates, within {}",
                proxies(old),
                rounded(seen.settings.lifetime)
            ),
        },
        TrustPhase::Retiring => {
            let signer = target.filter(|_| progress.untrusting > 0).and_then(|target| signer(roots, target.id));
            let bridge = signer
                .map_or_else(String::new, |signer| format!(", and after it the bridge that {} signs", named(signer)));
            let others = list(&roots.not_declared());
            let issuer = format!("an issuer of {issuer_of}{bridge}");
            match is_written_by_operator {
                true if is_managed => format!(
                    "wait: the operator removes {others} from {place}, after the identity service has shown for a few minutes \
                     that its certificates do not need it"
                ),
                true => format!(
                    "wait: the operator removes {others} from {place}, after the identity service has shown for a few \
                     minutes that its certificates do not need it. Keep {issuer} in the Secret {secret}"
                ),
                false => removal_by_hand(seen, &issuer, &others, &place),
            }
        }
        TrustPhase::Complete | TrustPhase::Steady | TrustPhase::Unknown => return None,
    };
    // trust-manager would undo what they write.
    let declared = seen.desired.as_ref().filter(|_| source.is_none());
    let commands = declared.map(|declared| commands(seen, declared, progress.phase, is_written_by_operator));
    let commands = commands.unwrap_or_default();
    Some(RotationStep { sentence, commands })
}

/// Returns what must restart before the issuer of this root.
fn restarts(seen: &SeenTrust, progress: &RotationProgress, issuer: &str) -> String {
    let untrusting = proxies_trust(progress.untrusting, false);
    let is_managed = seen.desired.as_ref().is_some_and(|declared| declared.manages_issuer);
    // People may have written the issuer already, and Linkerd's identity uses it when it starts.
    let restarts = match seen.control_plane_restart() {
        Some(_) if is_managed => "the control plane, and then the workloads that lack it",
        Some(_) => "the workloads that lack it, and the control plane",
        None => "the workloads that lack it",
    };
    format!(
        "{untrusting} the root {issuer}: restart {restarts}, or name these workloads in spec.accept. A LinkerdConfig restarts \
         those that opted in"
    )
}

/// Returns the commands with which people do the step to the next phase.
fn commands(
    seen: &SeenTrust,
    declared: &DeclaredRoots,
    phase: TrustPhase,
    is_written_by_operator: bool,
) -> Vec<String> {
    match phase {
        TrustPhase::Adding => bundle_commands(&seen.namespace, &declared.resource, true),
        TrustPhase::Spreading if declared.manages_issuer => seen.control_plane_restart().into_iter().collect(),
        TrustPhase::Retiring if !is_written_by_operator => bundle_commands(&seen.namespace, &declared.resource, false),
        TrustPhase::AwaitingIssuer if declared.manages_issuer && seen.issuer_condition.is_none() => {
            vec![next_issuer_command(&seen.namespace)]
        }
        _ => Vec::new(),
    }
}

/// What the process that writes the issuer waits for, or that there is no next issuer.
fn awaited_by_operator(seen: &SeenTrust, issuer: &str) -> String {
    match &seen.issuer_condition {
        Some(condition) if condition.status == "True" => {
            format!("wait until a proxy has renewed its certificate: {}", condition.message)
        }
        Some(condition) => condition.message.clone(),
        None => format!(
            "write an issuer of {issuer} into the Secret {NEXT_ISSUER}. The operator makes it the issuer of the mesh, with the \
             declared bridges, once all proxies accept its certificates. {}",
            match seen.is_writer_silent {
                true => "The Deployment linkerd-operator-issuer has said nothing about this spec: see that it runs",
                false => {
                    "The Deployment linkerd-operator-issuer says in the condition IssuerSynced what it waits for"
                }
            }
        ),
    }
}

fn awaited(issuer: &str, is_bridged: bool) -> String {
    match is_bridged {
        true => format!(
            "write an issuer of {issuer}, and after it the declared bridge, into the Secret linkerd-identity-issuer"
        ),
        false => format!(
            "write an issuer of {issuer} into the Secret linkerd-identity-issuer. Without a bridge, first restart the control \
             plane, whose proxies do not show what they trust"
        ),
    }
}

fn removal_by_hand(seen: &SeenTrust, issuer: &str, others: &str, place: &str) -> String {
    let why = match seen.leaves {
        Some(_) => "No observed certificate needs it",
        None => "The certificates of the previous issuer have ended",
    };
    format!(
        "make sure that the Secret linkerd-identity-issuer has {issuer}; then remove {others} from {place}. {why}, and new \
         Pods then do not trust it"
    )
}

fn list(roots: &[&RootCertificate]) -> String {
    and_more(roots.iter().take(SHOWN).map(|root| named(root)), roots.len(), ", ")
}

fn source(seen: &SeenTrust) -> Option<&str> {
    seen.bundle.as_ref().ok().and_then(|bundle| bundle.source.as_deref())
}

/// Returns where a root is added or removed, for people.
pub(super) fn place(seen: &SeenTrust) -> String {
    source(seen).map_or_else(|| IN_CONFIG_MAP.to_owned(), in_source)
}

/// The same for a root that was there: its place is known.
pub(super) fn former_place(seen: &SeenTrust) -> String {
    source(seen).map_or_else(|| "the bundle".to_owned(), in_source)
}

fn in_source(bundle: &str) -> String {
    format!(
        "the sources of the Bundle {bundle}, from which trust-manager writes ConfigMap linkerd-identity-trust-roots"
    )
}

fn next_issuer_command(namespace: &str) -> String {
    format!(
        "kubectl -n {namespace} create secret tls {NEXT_ISSUER} --cert=issuer.crt --key=issuer.key --dry-run=client -o yaml | \
         kubectl apply --server-side --force-conflicts -f -"
    )
}

/// Returns the commands that write the declared roots into the bundle, with the ones that it has or without them.
fn bundle_commands(namespace: &str, resource: &str, keeps_others: bool) -> Vec<String> {
    let declared = format!("kubectl get linkerdtrust {resource} -o jsonpath='{{.spec.anchors.pem}}'");
    let get = format!("kubectl -n {namespace} get configmap {TRUST_ROOTS} -o jsonpath='{{.data.ca-bundle\\.crt}}'");
    // A text may have no line end, and a failure must not leave half a bundle.
    let written = match keeps_others {
        true => format!("{{ {declared} && echo && {get}; }} > ca-bundle.crt"),
        false => format!("{declared} > ca-bundle.crt"),
    };
    let create = format!("kubectl -n {namespace} create configmap {TRUST_ROOTS} --from-file=ca-bundle.crt");
    vec![format!(
        "{written} && test -s ca-bundle.crt && {create} --dry-run=client -o yaml | kubectl apply --server-side \
         --force-conflicts -f -"
    )]
}
