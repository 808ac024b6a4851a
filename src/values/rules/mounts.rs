//! The volumes that an injector adds to Pods, and the mounts of its containers. Pure.
//!
//! In: a document. Out: the mounts that the API server rejects. It requires different paths, and volumes of the Pod.

use serde_json::Value;

use super::breaks::{
    Breaks::{self, AllPods, InitPods, Others},
    DocumentView,
};
use crate::values::{Path, findings::Findings};

pub(crate) const END_ENTITY_VOLUME: &str = "linkerd-identity-end-entity";
pub(crate) const TOKEN_VOLUME: &str = "linkerd-identity-token";
pub(crate) const PODINFO_VOLUME: &str = "linkerd-podinfo";
pub(crate) const XTABLES_VOLUME: &str = "linkerd-proxy-init-xtables-lock";
/// The volumes of proxies, and the paths of their mounts.
pub(crate) const PROXY_MOUNTS: [(&str, &str); 3] = [
    (END_ENTITY_VOLUME, "/var/run/linkerd/identity/end-entity"),
    (PODINFO_VOLUME, "/var/run/linkerd/podinfo"),
    (TOKEN_VOLUME, "/var/run/secrets/tokens"),
];
/// The volumes that are empty when a Pod starts.
pub(super) const EMPTY_VOLUMES: [&str; 2] = [END_ENTITY_VOLUME, XTABLES_VOLUME];
const SERVICE_ACCOUNT_PATH: &str = "/var/run/secrets/kubernetes.io/serviceaccount";
const TOKEN_MOUNT: [&str; 2] = ["proxy", "saMountPath"];
const XTABLES_MOUNT: [&str; 2] = ["proxyInit", "xtMountPath"];

pub(super) fn check(document: &DocumentView<'_>, counts: impl Fn(Breaks) -> bool, problems: &mut Findings) {
    for (keys, breaks) in [(TOKEN_MOUNT, AllPods), (XTABLES_MOUNT, InitPods)] {
        if counts(breaks) {
            check_path(document, keys, problems);
        }
    }
    // A Pod whose first container has a token uses the mount of this token instead.
    if counts(Others) {
        check_token(document, problems);
    }
}

fn check_path(document: &DocumentView<'_>, above: [&'static str; 2], problems: &mut Findings) {
    // An absent map has no mount.
    let Some((keys, path)) = field(document, above, "mountPath") else { return };
    if path.is_empty() || path.contains(':') {
        problems.add(&Path::from(&keys[..]), document.at(&keys), "must be a path, not empty and without a colon");
    } else if above == XTABLES_MOUNT && path.trim_end_matches('/') == SERVICE_ACCOUNT_PATH {
        let reason = "must not be the path of the token of the ServiceAccount: linkerd-init gets both mounts";
        problems.add(&Path::from(&keys[..]), document.at(&keys), reason);
    }
}

fn check_token(document: &DocumentView<'_>, problems: &mut Findings) {
    if let Some((keys, name)) = field(document, TOKEN_MOUNT, "name")
        && name != XTABLES_VOLUME
        && !PROXY_MOUNTS.iter().any(|(volume, _)| *volume == name)
    {
        let reason = format!("must be a volume of the injector, such as {TOKEN_VOLUME}: Pods may lack any other one");
        problems.add(&Path::from(&keys[..]), document.at(&keys), reason);
    }
    if let Some((keys, path)) = field(document, TOKEN_MOUNT, "mountPath") {
        let of_init = field(document, XTABLES_MOUNT, "mountPath").map(|(_, path)| path);
        let mut others = PROXY_MOUNTS.iter().map(|(_, path)| *path).chain(of_init);
        if !path.is_empty() && others.any(|other| other == path) {
            problems.add(&Path::from(&keys[..]), document.at(&keys), "must not be the path of another mount");
        }
    }
}

/// Returns a field of a mount, if there is one.
fn field<'a>(
    document: &DocumentView<'a>,
    above: [&'static str; 2],
    key: &'static str,
) -> Option<([&'static str; 3], &'a str)> {
    let [top, mount] = above;
    document.at(&above).filter(|mount| mount.is_object())?;
    let keys = [top, mount, key];
    Some((keys, document.at(&keys).and_then(Value::as_str).unwrap_or_default()))
}
