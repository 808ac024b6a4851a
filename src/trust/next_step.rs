//! The next step of a rotation. Pure.
//!
//! In: the roots, the issuer, the proxies that are behind. Out: one sentence, and the commands. Always holds: the step
//! breaks no connection, by the two rules of this room.

use std::collections::BTreeSet;

use jiff::{SignedDuration, Timestamp};
use serde::Serialize;

use super::{
    report::{BehindRow, day, in_time, named, pods, proxies, rounded},
    roots::{IssuerReach, MeshRoots},
    seen::SeenTrust,
};
use crate::x509::{anchor_set::Fingerprint, anchors::RootCertificate};

/// A root should be replaced earlier than this before its end.
const ROTATE: SignedDuration = SignedDuration::from_hours(60 * 24);
/// How long a proxy may take from a change of the issuer until it asks again, beside the lifetime of its certificate.
const SPARE: SignedDuration = SignedDuration::from_mins(3);
/// The maximum number of commands.
const MAX_COMMANDS: usize = 5;

/// What to do next.
#[derive(Debug, PartialEq, Serialize)]
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
}

pub(super) fn next_step(seen: &SeenTrust, roots: &MeshRoots<'_>, behind: &[BehindRow]) -> RotationStep {
    if roots.in_bundle.is_empty() {
        return RotationStep::only("restore the bundle in ConfigMap linkerd-identity-trust-roots");
    }
    let Ok(issuer) = &roots.issuer else {
        return RotationStep::only(
            "let somebody run this command who may read the Secret linkerd-identity-issuer: without it, it is unknown \
             which roots certificates reach",
        );
    };
    if issuer.reached.is_disjoint(&roots.in_bundle) {
        return RotationStep::only(
            "put the issuer before back into the Secret linkerd-identity-issuer: proxies keep the certificates that they \
             have until they end",
        );
    }
    if behind.iter().any(|row| row.refuses) {
        let first = "restart these workloads: their proxies refuse new certificates. Or go back to the issuer before";
        return restart(first, behind.iter().filter(|row| row.refuses));
    }
    let home = issuer.home.and_then(|home| roots.find(&home));
    let is_newer = |root: &RootCertificate| {
        home.is_none_or(|home| (root.not_before, root.not_after) > (home.not_before, home.not_after))
    };
    let of_bundle = || roots.all.iter().copied().filter(|root| roots.in_bundle.contains(&root.sha256));
    let others: Vec<_> = of_bundle().filter(|root| Some(root.sha256) != issuer.home).collect();
    if let Some(next) = others.iter().find(|root| is_newer(root)) {
        return towards(next, roots, behind);
    }
    if let Some(old) = others.first() {
        return retire(old, seen, roots, issuer);
    }
    let bridged: BTreeSet<Fingerprint> = issuer.reached.difference(&roots.in_bundle).copied().collect();
    let on_bridge = pods(roots.mesh().filter(|group| group.trusts.is_disjoint(&roots.in_bundle)));
    if on_bridge > 0 {
        return RotationStep::only(format!(
            "nothing is urgent: {} know only an older root, and accept the others over the bridge, which ends {}. They know \
             the new root once their Pods are created again",
            proxies(on_bridge),
            issuer.others.iter().map(|it| it.not_after).min().map_or_else(String::new, |end| in_time(end, seen.now))
        ));
    }
    if !bridged.is_empty() {
        return RotationStep::only(
            "the bridge is not needed any more: leave it out of the Secret linkerd-identity-issuer at the next renewal",
        );
    }
    match home.and_then(|home| Some((home, home.not_after?))) {
        Some((home, end)) if end.duration_since(seen.now) <= ROTATE => RotationStep {
            sentence: format!(
                "replace the root {}. With its key you can sign a bridge, and no proxy has to restart",
                named(home)
            ),
            commands: vec!["linkerd-operator trust new ./pki --bridge-from ca.crt --old-key ca.key".to_owned()],
        },
        Some((home, end)) => RotationStep::only(format!(
            "nothing to do: replace the root {} before {}",
            named(home),
            day(end.checked_sub(ROTATE).unwrap_or(end))
        )),
        None => RotationStep::only("nothing to do"),
    }
}

/// The bundle has a newer root than the one of the issuer.
fn towards(next: &RootCertificate, roots: &MeshRoots<'_>, behind: &[BehindRow]) -> RotationStep {
    let lacks = pods(roots.mesh().filter(|group| !group.trusts.contains(&next.sha256)));
    if lacks == 0 {
        return RotationStep {
            sentence: format!(
                "every proxy trusts {}: write an issuer of this root into the Secret linkerd-identity-issuer. Before, restart \
                 the control plane, whose proxies do not show what they trust",
                named(next)
            ),
            commands: vec!["kubectl -n linkerd rollout restart deployment".to_owned()],
        };
    }
    let first = format!(
        "{} do not trust {} yet. With a bridge nothing has to restart: write the issuer of the new root, and \
         the bridge after it, into the Secret linkerd-identity-issuer (linkerd-operator trust bridge). Without one, \
         restart these workloads first",
        proxies(lacks),
        named(next)
    );
    restart(first, behind.iter())
}

/// The bundle has a root that is older than that of the issuer.
fn retire(old: &RootCertificate, seen: &SeenTrust, roots: &MeshRoots<'_>, issuer: &IssuerReach) -> RotationStep {
    let rest: BTreeSet<_> = roots.in_bundle.iter().filter(|root| **root != old.sha256).copied().collect();
    if issuer.reached.is_disjoint(&rest) {
        return RotationStep::only("nothing to do");
    }
    let settings = &seen.settings;
    let renewed = |written: Timestamp| {
        let longest = settings.lifetime + settings.clock_skew * 2 + SPARE;
        written.checked_add(longest).unwrap_or(Timestamp::MAX)
    };
    match issuer.written.map(renewed) {
        Some(renewed) if renewed > seen.now => RotationStep::only(format!(
            "wait until all proxies have renewed their certificates, at the latest {}; then remove {} from the bundle",
            in_time(renewed, seen.now),
            named(old)
        )),
        Some(_) => RotationStep::only(format!(
            "all proxies have renewed their certificates: remove {} from the bundle in ConfigMap \
             linkerd-identity-trust-roots. New Pods then do not trust it any more",
            named(old)
        )),
        None => RotationStep::only(format!(
            "once {} have passed since the issuer changed, remove {} from the bundle",
            rounded(settings.lifetime),
            named(old)
        )),
    }
}

fn restart<'a>(sentence: impl Into<String>, rows: impl Iterator<Item = &'a BehindRow>) -> RotationStep {
    let commands = rows.take(MAX_COMMANDS).map(|row| row.what_to_do.clone()).collect();
    RotationStep { sentence: sentence.into(), commands }
}
