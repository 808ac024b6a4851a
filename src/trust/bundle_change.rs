//! The bundle with the declared roots that it lacks, and without the others. Pure.
//!
//! In: the text of the bundle, the declared roots. Out: the text to write. Always holds: an addition keeps what the bundle
//! has, byte for byte, so new Pods lose no root; nothing but declared certificates is added; a removal leaves all declared
//! certificates; a Pod can start with what is returned.

use std::collections::BTreeSet;

use super::{seen::DeclaredRoots, words::named};
use crate::{
    text::and_more,
    values::UnusableTrustBundle,
    x509::{
        anchor_set::Fingerprint,
        anchors::{AnchorBundle, RootCertificate},
        certificate::ChainCertificate,
        pem,
        unusual::unusual,
    },
};

/// The maximum length of a bundle that the operator writes, in bytes. Linux permits 128 KiB for an environment variable,
/// and with a longer one no proxy can start.
const LONGEST: usize = 64 << 10;

/// What a write does to roots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BundleChangeKind {
    Addition,
    Removal,
}

/// What the operator writes into the bundle.
#[derive(Debug, PartialEq)]
pub(crate) struct BundleChange {
    pub(crate) kind: BundleChangeKind,
    /// The whole bundle.
    pub(crate) text: String,
    /// The roots that are added or removed, for people.
    pub(crate) names: String,
    pub(crate) roots: BTreeSet<Fingerprint>,
    /// Whether a distrusted root is removed.
    pub(crate) is_urgent: bool,
}

/// Returns why a certificate is not added.
fn refused(root: &RootCertificate) -> Option<String> {
    let name = named(root);
    // Roots and bridges have the same name, as a rule.
    if !ChainCertificate::parse(&root.der).is_some_and(|own| own.is_signed_by(&own)) {
        return Some(format!(
            "{name} is not signed with its own key, as a root is, or the operator cannot read this kind of key. Declare the root; \
             or, if this certificate is meant, add it to the bundle by hand"
        ));
    }
    let what = unusual(&root.der)?;
    Some(format!(
        "{name} is unusual in {what}, and Linkerd's identity and the start of each proxy may refuse the whole bundle with it: \
         make another root"
    ))
}

/// Returns the bundle with the declared roots; `None` if it has all of them.
///
/// # Errors
/// When the bundle has no certificate, or no proxy could start with what would be written.
pub(crate) fn addition(bundle: &str, declared: &DeclaredRoots) -> Result<Option<BundleChange>, String> {
    // If the bundle is empty, the declared roots alone may be ones that no proxy trusts yet.
    let known = AnchorBundle::parse(bundle.as_bytes())?;
    let missing = declared.missing_in(known.roots());
    if missing.is_empty() {
        return Ok(None);
    }
    // Go reads no further than a section that is not a certificate.
    if let Some(warning) = known.warnings().first() {
        return Err(warning.clone());
    }
    let (missing, refused): (Vec<_>, Vec<_>) =
        missing.into_iter().map(|root| (root, refused(root))).partition(|(_, why)| why.is_none());
    // The others are added all the same.
    if let ([], [(_, Some(why)), ..]) = (&missing[..], &refused[..]) {
        return Err(why.clone());
    }
    let missing: Vec<_> = missing.into_iter().map(|(root, _)| root).collect();
    let names: Vec<_> = missing.iter().map(|root| named(root)).collect();
    let names = and_more(&names, names.len(), ", ");
    // The end is as before: a chart that renders the same roots then has the same text, with which Helm 4 has no conflict.
    let has_line_end = bundle.ends_with('\n');
    let mut text = format!("{bundle}{}", if has_line_end { "" } else { "\n" });
    text.extend(missing.iter().map(|root| pem::certificate(&root.der)));
    if !has_line_end {
        text.truncate(text.trim_end().len());
    }
    if text.len() > LONGEST {
        return Err(format!("with {names} it would be longer than {LONGEST} bytes"));
    }
    UnusableTrustBundle::check(&text).map_err(|unusable| unusable.to_string())?;
    let roots = missing.iter().map(|root| root.sha256).collect();
    Ok(Some(BundleChange { kind: BundleChangeKind::Addition, text, names, roots, is_urgent: false }))
}

/// Returns the bundle without the roots that are not declared; `None` if it has no other one, or lacks a declared one.
///
/// # Errors
/// When a part of the bundle cannot be read: it could be a root that is needed.
pub(crate) fn removal(bundle: &str, declared: &DeclaredRoots) -> Result<Option<BundleChange>, String> {
    without(bundle, declared, |root| !declared.has(root), |kept| declared.missing_in(kept).is_empty())
}

/// Returns the bundle without the distrusted roots; `None` if it has none of them, or no declared one.
///
/// # Errors
/// As for [`removal`].
pub(crate) fn cut(bundle: &str, declared: &DeclaredRoots) -> Result<Option<BundleChange>, String> {
    let has_declared = |kept: &[RootCertificate]| kept.iter().any(|root| declared.has(root));
    without(bundle, declared, |root| declared.distrusted.mean(root), has_declared)
}

fn without(
    bundle: &str,
    declared: &DeclaredRoots,
    is_removed: impl Fn(&RootCertificate) -> bool,
    is_enough: impl FnOnce(&[RootCertificate]) -> bool,
) -> Result<Option<BundleChange>, String> {
    let known = AnchorBundle::parse(bundle.as_bytes())?;
    if let Some(warning) = known.warnings().first() {
        return Err(warning.clone());
    }
    let (others, kept): (Vec<_>, Vec<_>) = known.roots().iter().cloned().partition(is_removed);
    if others.is_empty() || !is_enough(&kept) {
        return Ok(None);
    }
    let names: Vec<_> = others.iter().map(named).collect();
    let mut text: String = kept.iter().map(|root| pem::certificate(&root.der)).collect();
    if !bundle.ends_with('\n') {
        text.truncate(text.trim_end().len());
    }
    UnusableTrustBundle::check(&text).map_err(|unusable| unusable.to_string())?;
    let roots: BTreeSet<_> = others.iter().map(|root| root.sha256).collect();
    let names = and_more(&names, names.len(), ", ");
    let is_urgent = others.iter().any(|root| declared.distrusted.mean(root));
    Ok(Some(BundleChange { kind: BundleChangeKind::Removal, text, names, roots, is_urgent }))
}

#[cfg(test)]
mod tests {
    use rcgen::SanType;

    use super::*;
    use crate::{
        trust::testing::root_of,
        x509::{
            anchor_set::readable_certificates,
            testing::{DAY, TestCa, pem_of},
        },
    };

    fn declared(roots: &[&TestCa]) -> DeclaredRoots {
        let bundle = AnchorBundle::parse(pem_of(roots).as_bytes()).unwrap();
        DeclaredRoots::only("mesh", bundle)
    }

    #[test]
    fn a_root_that_the_bundle_lacks_comes_after_what_it_has() {
        let (old, new) = (root_of("old", -DAY), root_of("new", 0));
        for before in [old.pem.clone(), old.pem.trim().to_owned(), format!("# ours\r\n{}\n\n# end", old.pem)] {
            let added = addition(&before, &declared(&[&new])).unwrap().unwrap();
            assert!(added.text.starts_with(&before), "{}", added.text);
            assert_eq!(added.text.ends_with('\n'), before.ends_with('\n'), "a chart renders a text without a line end");
            assert!(added.names.starts_with("new ("), "{}", added.names);
            let read: Vec<_> = readable_certificates(&added.text).collect();
            let expected: Vec<_> = readable_certificates(&pem_of(&[&old, &new])).collect();
            assert_eq!(read, expected, "after {before}");
            assert_eq!(addition(&added.text, &declared(&[&new])), Ok(None), "it is added once");
            assert_eq!(addition(&added.text, &declared(&[&old])), Ok(None), "nothing is removed");
        }
    }

    #[test]
    fn a_root_that_was_issued_again_with_its_key_is_added_beside_the_one_that_ends() {
        let ending = root_of("root", -DAY);
        let again = ending.signs_again(&ending, |_| {});
        let added = addition(&ending.pem, &declared(&[&again])).unwrap().unwrap();
        assert_eq!(added.text, pem_of(&[&ending, &again]));
    }

    #[test]
    fn roots_that_are_not_declared_are_removed_once_the_bundle_has_all_declared_ones() {
        let [first, old, new] = [root_of("first", -DAY), root_of("old", -DAY), root_of("new", 0)];
        let before =
            format!("# ours\r\n{}# the next one\n{}", old.pem.replace('\n', "\r\n"), pem_of(&[&new, &first, &new]));
        let removed = removal(&before, &declared(&[&first, &new])).unwrap().unwrap();
        assert_eq!(removed.text, pem_of(&[&new, &first]));
        assert!(removed.names.starts_with("old ("), "{}", removed.names);
        let removed = removal(before.trim_end(), &declared(&[&new])).unwrap().unwrap();
        assert_eq!(removed.text, new.pem.trim_end(), "the end is as before");
        assert_eq!(removed.roots.len(), 2);
        assert_eq!(removal(&new.pem, &declared(&[&new])), Ok(None));
        assert_eq!(removal(&pem_of(&[&old, &first]), &declared(&[&old, &new])), Ok(None), "a declared one is missing");
        let again = old.signs_again(&old, |_| {});
        let removed = removal(&pem_of(&[&old, &again]), &declared(&[&again])).unwrap().unwrap();
        assert_eq!(removed.text, again.pem, "a root that was issued again replaces the one before");
    }

    #[test]
    fn nothing_is_removed_from_a_bundle_with_a_part_that_cannot_be_read() {
        let (old, new) = (root_of("old", -DAY), root_of("new", 0));
        for part in
            ["-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n", "-----BEGIN CERTIFICATE-----\nAAAA\n"]
        {
            assert!(removal(&format!("{}{part}", pem_of(&[&old, &new])), &declared(&[&new])).is_err(), "{part}");
        }
    }

    #[test]
    fn nothing_is_added_to_a_bundle_without_a_certificate_or_with_which_no_proxy_can_start() {
        let (old, new) = (root_of("old", -DAY), root_of("new", 0));
        let broken = "-----BEGIN CERTIFICATE-----\nAAAA\n";
        for (before, why) in [
            (String::new(), "no certificate that a proxy can use"),
            ("no certificate".to_owned(), "no certificate that a proxy can use"),
            (broken.to_owned(), "no certificate that a proxy can use"),
            (format!("{}{broken}", old.pem), "end"),
            (format!("{}{broken}-----END CERTIFICATE-----\n", old.pem), "it cannot be read"),
            (format!("{}-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----\n", old.pem), "a block PUBLIC KEY"),
            (format!("{}{}", root_of("other", -DAY).pem, old.pem.replace("-----END", "  -----END")), "has no end"),
        ] {
            let refused = addition(&before, &declared(&[&new])).unwrap_err();
            assert!(refused.contains(why), "{refused}: {before}");
        }
        let unusual =
            new.signs_again(&new, |params| params.subject_alt_names = vec![SanType::IpAddress([1, 2, 3, 4].into())]);
        assert!(addition(&old.pem, &declared(&[&unusual])).unwrap_err().contains("its extension 2.5.29.17"));
        let same = root_of("old", 0);
        for signed in [old.signs_again(&new, |_| {}), old.signs_again(&same, |_| {})] {
            let refused = addition(&old.pem, &declared(&[&signed])).unwrap_err();
            assert!(refused.contains("is not signed with its own key"), "{refused}");
        }
        let added = addition(&old.pem, &declared(&[&unusual, &new])).unwrap().unwrap();
        assert_eq!(added.text, pem_of(&[&old, &new]), "the usual one is added");
        let long = format!("{}\n{}", "#".repeat(LONGEST), old.pem);
        assert!(addition(&long, &declared(&[&new])).unwrap_err().contains("longer than 65536 bytes"));
    }
}
