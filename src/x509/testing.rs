//! For tests: bundles of trust anchors.

/// Returns a bundle with a certificate for each letter from `a` to `d`, whose DER is only that letter.
pub(crate) fn anchors(letters: &str) -> String {
    let certificate = |letter: char| {
        let body = ["YQ==", "Yg==", "Yw==", "ZA=="]["abcd".find(letter).unwrap()];
        format!("-----BEGIN CERTIFICATE-----\n{body}\n-----END CERTIFICATE-----\n")
    };
    letters.chars().map(certificate).collect()
}
