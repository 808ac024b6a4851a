//! Decides what the deletion of a LinkerdConfig with the policy RestoreBase writes. Pure.
//!
//! In: the ConfigMap, the saved base. Out: a [`RestorePlan`]. Always holds: the base replaces only a text that the
//! operator wrote. In any other text, only the lines of the injection hash are removed: the text may be newer than the
//! base.

use crate::{
    api::linkerd_config::annotations::CONFIG_HASH_ANNOTATION,
    cluster::kinds::config_map::ConfigMap,
    linkerd_config::documents::base::Base,
    values::{Document, without_injection_hash_lines},
};

#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::linkerd_config) enum RestorePlan {
    /// The ConfigMap has no annotation of ours.
    Nothing,
    /// Write the text of the base, and remove our annotations.
    WriteBase,
    /// The ConfigMap already has the installer's document: remove our annotations.
    RemoveAnnotations,
    /// Another writer changed the text. Write these values, if any, and remove our annotations.
    KeepText { values: Option<String> },
    /// The operator wrote the text, and no base was saved.
    NoBase,
}

/// Plans the restore of the base.
pub(in crate::linkerd_config) fn restore_plan(live: &ConfigMap, base: Option<&Base>) -> RestorePlan {
    let Some(written) = live.annotations.get(CONFIG_HASH_ANNOTATION) else { return RestorePlan::Nothing };
    let Some(text) = &live.values else { return RestorePlan::KeepText { values: None } };
    let Ok((document, injection_hash)) = Document::read(text) else {
        return RestorePlan::KeepText { values: None };
    };
    // The hash does not include the injection hash, so a text that differs only in that is ours.
    let is_ours = *written == document.hash().to_string();
    match base {
        Some(base) if injection_hash.is_none() && base.document == document => RestorePlan::RemoveAnnotations,
        Some(_) if is_ours => RestorePlan::WriteBase,
        None if is_ours => RestorePlan::NoBase,
        _ => RestorePlan::KeepText { values: without_injection_hash_lines(text) },
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;
    use crate::api::NamespacedName;

    const OURS: &str = "proxy:\n  additionalEnv:\n  - name: LINKERD_CONFIG_HASH\n    value: \"0\"\n  logLevel: debug\n";

    fn plan(text: Option<&str>, written: Option<&str>, base: Option<&str>) -> RestorePlan {
        let hash = written.map(|written| Document::read(written).unwrap().0.hash().to_string());
        let live = ConfigMap {
            key: NamespacedName::new("linkerd", "linkerd-config"),
            uid: "uid".into(),
            version: "1".into(),
            values: text.map(Into::into),
            legacy: false,
            immutable: false,
            owned: false,
            annotations: HashMap::from_iter(hash.map(|hash| (CONFIG_HASH_ANNOTATION.to_owned(), hash))),
            writers: Vec::new(),
            bundle: None,
            has_binary_bundle: false,
            bundle_written: None,
            bundle_writer: None,
            trust_manager_source: None,
        };
        restore_plan(&live, base.map(|text| Base::new(1, text, None).unwrap()).as_ref())
    }

    #[test]
    fn the_base_replaces_only_a_text_that_the_operator_wrote() {
        let base = Some("proxy: {logLevel: warn}");
        assert_eq!(plan(Some(OURS), Some(OURS), base), RestorePlan::WriteBase);
        let other_marker = OURS.replace("\"0\"", "\"1\"");
        assert_eq!(plan(Some(&other_marker), Some(OURS), base), RestorePlan::WriteBase);
        assert_eq!(plan(Some("proxy: {logLevel: debug}"), Some(OURS), base), RestorePlan::WriteBase);
        assert_eq!(plan(Some(OURS), Some(OURS), None), RestorePlan::NoBase);
        let newer = "linkerdVersion: edge-27\nproxy: {logLevel: warn}\n";
        assert_eq!(plan(Some(newer), Some(OURS), base), RestorePlan::KeepText { values: None });
        assert_eq!(plan(Some("proxy: {logLevel: warn}"), Some(OURS), base), RestorePlan::RemoveAnnotations);
        assert_eq!(plan(Some("proxy: ["), Some(OURS), base), RestorePlan::KeepText { values: None });
        assert_eq!(plan(None, Some(OURS), base), RestorePlan::KeepText { values: None });
        assert_eq!(plan(Some(OURS), None, base), RestorePlan::Nothing);
    }

    #[test]
    fn of_an_edited_text_only_the_lines_of_the_injection_hash_are_removed() {
        let edited = OURS.replace("debug", "trace # by hand");
        let kept = RestorePlan::KeepText { values: Some("proxy:\n  logLevel: trace # by hand\n".to_owned()) };
        assert_eq!(plan(Some(&edited), Some(OURS), Some("proxy: {logLevel: warn}")), kept);
    }
}
