use std::collections::HashMap;

use super::*;
use crate::{api::NamespacedName, cluster::kinds::config_map::FieldManager};

fn live(writers: &[&str], annotations: &[(&str, &str)]) -> ConfigMap {
    ConfigMap {
        key: NamespacedName::new("linkerd", "linkerd-config"),
        uid: "uid".into(),
        version: "1".into(),
        values: None,
        legacy: false,
        immutable: false,
        owned: false,
        annotations: annotations
            .iter()
            .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
            .collect::<HashMap<_, _>>(),
        writers: writers.iter().map(|manager| FieldManager { manager: (*manager).to_owned(), time: None }).collect(),
        bundle: None,
        has_binary_bundle: false,
        bundle_written: None,
        bundle_writer: None,
        trust_manager_source: None,
    }
}

#[test]
fn the_origin_depends_on_the_content_first_and_then_on_the_writer() {
    let document = |text: &str| Document::parse(text).unwrap();
    let mut base = Base::new(1, "cliVersion: v1\nproxy: {uid: 1}", Some("linkerd/helm 1")).unwrap();
    base.uid = "uid".into();
    base.effective = document("cliVersion: v1\nproxy: {uid: 2}");
    let hash = base.effective.hash().to_string();
    let before = document("cliVersion: v1\nproxy: {uid: 7}");
    let (wrote, earlier) = ((CONFIG_HASH_ANNOTATION, hash.as_str()), before.hash().to_string());
    let wrote_before = (CONFIG_HASH_ANNOTATION, earlier.as_str());
    let edited = document("cliVersion: v1\nproxy: {uid: 3}");
    let upgraded = document("cliVersion: v2\nproxy: {uid: 1}");
    let (same, other) = ((CREATED_BY_ANNOTATION, "linkerd/helm 1"), (CREATED_BY_ANNOTATION, "linkerd/helm 2"));
    let installer = |manager: &str| Origin::Installer { manager: manager.to_owned() };
    let foreign = |manager: &str| Origin::Foreign { manager: manager.to_owned() };
    for (writers, annotations, document, expected) in [
        (&[FIELD_MANAGER][..], &[wrote][..], &base.effective, Origin::Ours),
        (&["kubectl-edit"], &[], &base.effective, Origin::Ours),
        (&[FIELD_MANAGER], &[wrote_before], &before, Origin::Ours),
        (&["kubectl-create"], &[same], &base.document, Origin::Ours),
        (&["helm"], &[wrote, same], &base.document, Origin::Rewritten { manager: "helm".to_owned() }),
        (&["kubectl-edit"], &[wrote, same], &base.document, foreign("kubectl-edit")),
        (&["helm", FIELD_MANAGER], &[wrote, same], &edited, installer("helm")),
        (&["kubectl-edit", "helm"], &[wrote, same], &edited, foreign("kubectl-edit")),
        (&[FIELD_MANAGER, "kubectl-edit"], &[wrote, same], &edited, foreign("kubectl-edit")),
        (&[], &[wrote], &edited, foreign("unknown")),
        (&["kubectl-edit"], &[wrote, other], &edited, installer("kubectl-edit")),
        (&["kubectl-edit"], &[wrote, same], &upgraded, installer("kubectl-edit")),
    ] {
        let found = origin(&live(writers, annotations), document, &base, &DriftSpec::default());
        assert_eq!(found, expected, "{writers:?} {annotations:?}");
    }
    let strict = DriftSpec { trusted_managers: Vec::new(), ..DriftSpec::default() };
    assert_eq!(origin(&live(&["helm"], &[same]), &edited, &base, &strict), foreign("helm"));
    let another = ConfigMap { uid: "another".into(), ..live(&["kubectl-create"], &[same]) };
    assert_eq!(origin(&another, &edited, &base, &strict), installer("kubectl-create"), "Linkerd was reinstalled");
}
