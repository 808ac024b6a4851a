//! Tests of an issuer that is renewed, by people or by cert-manager.

use super::{
    IssuerPlace, IssuerStep,
    tests::{Situation, file, seen},
};
use crate::{
    api::linkerd_trust::TrustReason,
    trust::testing::Pki,
    x509::testing::{DAY, TestCa, valid},
};

#[test]
fn the_present_issuer_is_renewed_while_the_issuer_of_the_declared_root_is_awaited() {
    let pki = Pki::new();
    let again = pki.old.signs("old issuer again", |_| {});
    for situation in [
        Situation::new(&[&pki.old], &[&pki.new]),
        Situation::new(&[&pki.old, &pki.new], &[&pki.new]),
        Situation::new(&[&pki.old, &pki.new], &[&pki.new]).bridged(&[&pki.bridge], &[&pki.old]),
    ] {
        let mut issuers = seen(&[&pki.old_issuer], &[&again]);
        situation.writes(&issuers, IssuerPlace::Next, &[&again]);
        issuers.present = file(&[&again]);
        let message = "-next: that which it has belongs to the trust anchor of the present one";
        situation.holds(&issuers, TrustReason::IssuerAwaited, message);
        issuers.next_certificate = Some("issuer".to_owned());
        situation.holds(&issuers, TrustReason::IssuerRefAwaited, "change the issuerRef of the Certificate issuer, ");
        let ending = pki.old.signs("ending", |params| valid(params, -DAY, DAY));
        issuers.next = Some(file(&[&ending]));
        situation.holds(&issuers, TrustReason::IssuerRefused, "within the lifetime");
    }
    // The way back comes before the renewal of what it leads back from.
    let back = Situation::new(&[&pki.old, &pki.new], &[&pki.old]).ready(Ok(&[&pki.old]));
    let mut issuers = seen(&[&pki.new_issuer], &[&pki.new.signs("new issuer again", |_| {})]);
    issuers.previous = Some(file(&[&pki.old_issuer]));
    back.writes(&issuers, IssuerPlace::Previous, &[&pki.old_issuer]);
}

#[test]
fn with_two_declared_roots_and_no_bridge_the_issuer_of_the_other_one_is_refused() {
    let pki = Pki::new();
    let both: &[&TestCa] = &[&pki.old, &pki.new];
    let situation = Situation::new(both, both).ready(Ok(&[&pki.old]));
    let message = "Declare only the trust anchor of the next issuer";
    situation.holds(&seen(&[&pki.old_issuer], &[&pki.new_issuer]), TrustReason::IssuerRefused, message);
}

#[test]
fn a_secret_that_cert_manager_writes_is_not_written_and_the_message_has_the_way_out() {
    let pki = Pki::new();
    let situation = Situation::new(&[&pki.old], &[&pki.old]);
    let again = pki.old.signs("old issuer again", |_| {});
    let mut issuers = seen(&[&pki.old_issuer], &[]);
    issuers.present_certificate = Some("issuer".to_owned());
    let moves = "kubectl -n linkerd patch certificate issuer --type=merge -p \
                 '{\"spec\":{\"secretName\":\"linkerd-identity-issuer-next\"}}'";
    situation.holds(&issuers, TrustReason::WrittenByCertManager, moves);
    issuers.next = Some(file(&[&again]));
    situation.holds(&issuers, TrustReason::WrittenByCertManager, moves);
    issuers.next_certificate = Some("issuer".to_owned());
    let releases = "kubectl -n linkerd patch secret linkerd-identity-issuer --type=merge -p \
                    '{\"metadata\":{\"annotations\":{\"cert-manager.io/certificate-name\":null},\"ownerReferences\":null}}'";
    situation.holds(&issuers, TrustReason::WrittenByCertManager, releases);
    issuers.present_certificate = None;
    situation.writes(&issuers, IssuerPlace::Next, &[&again]);
    let IssuerStep::Write(new) = situation.step(&issuers) else { panic!("it is not written") };
    assert_eq!(new.root, pki.old.pem.replace("\r\n", "\n"), "for linkerd check");
}

#[test]
fn a_renewed_issuer_of_the_same_root_is_written_at_once_with_the_bridges_of_the_present_one() {
    let pki = Pki::new();
    let again = pki.new.signs("issuer again", |_| {});
    let situation = Situation::new(&[&pki.new], &[&pki.new]);
    situation.writes(&seen(&[&pki.new_issuer], &[&again]), IssuerPlace::Next, &[&again]);
    let bridged: &[&TestCa] = &[&pki.new_issuer, &pki.bridge];
    situation.writes(&seen(bridged, &[&again]), IssuerPlace::Next, &[&again, &pki.bridge]);
    let ended = pki.old.signs_again(&pki.new, |params| valid(params, -2 * DAY, -DAY));
    situation.writes(&seen(&[&pki.new_issuer, &ended], &[&again]), IssuerPlace::Next, &[&again]);
}
