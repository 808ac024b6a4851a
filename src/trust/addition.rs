//! The bundle with the declared roots that it lacks. Pure.
//!
//! In: the text of the bundle, the declared roots. Out: the same text with these roots after it. Always holds: what the
//! bundle has stays, byte for byte, so new Pods lose no root; nothing but declared certificates is added; a Pod can start
//! with what is returned.

use std::collections::BTreeSet;

use super::{seen::DeclaredRoots, words::named};
use crate::{
    text::and_more,
    values::UnusableTrustBundle,
    x509::{anchor_set::Fingerprint, anchors::AnchorBundle, pem, unusual::unusual},
};

/// The maximum length of a bundle that the operator writes, in bytes. Linux permits 128 KiB for an environment variable,
/// and with a longer one no proxy can start.
const LONGEST: usize = 64 << 10;

/// What the operator writes into the bundle.
#[derive(Debug, PartialEq)]
pub(crate) struct BundleAddition {
    /// The whole bundle.
    pub(crate) text: String,
    /// The roots that are added, for people.
    pub(crate) names: String,
    pub(crate) roots: BTreeSet<Fingerprint>,
}

/// Returns what to write; `None` if the bundle has all declared roots.
///
/// # Errors
/// When the bundle has no certificate, or no proxy could start with what would be written.
pub(crate) fn addition(bundle: &str, declared: &DeclaredRoots) -> Result<Option<BundleAddition>, String> {
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
        missing.into_iter().map(|root| (root, unusual(&root.der))).partition(|(_, what)| what.is_none());
    // The others are added all the same.
    if let ([], [(root, Some(what)), ..]) = (&missing[..], &refused[..]) {
        return Err(format!(
            "{} is unusual in {what}, and Linkerd's identity and the start of each proxy may refuse the whole bundle with it: \
             make another root",
            named(root)
        ));
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
    Ok(Some(BundleAddition { text, names, roots: missing.iter().map(|root| root.sha256).collect() }))
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
        DeclaredRoots { resource: "mesh".to_owned(), bundle }
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
            old.signs_again(&new, |params| params.subject_alt_names = vec![SanType::IpAddress([1, 2, 3, 4].into())]);
        assert!(addition(&old.pem, &declared(&[&unusual])).unwrap_err().contains("its extension 2.5.29.17"));
        let added = addition(&old.pem, &declared(&[&unusual, &new])).unwrap().unwrap();
        assert_eq!(added.text, pem_of(&[&old, &new]), "the usual one is added");
        let long = format!("{}\n{}", "#".repeat(LONGEST), old.pem);
        assert!(addition(&long, &declared(&[&new])).unwrap_err().contains("longer than 65536 bytes"));
    }
}
