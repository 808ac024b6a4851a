//! The Events of the identity service.
//!
//! In: what happened. Out: Events with the reasons and texts of Linkerd's identity service, and further ones. Always
//! holds: a ServiceAccount gets at most one Event for each lifetime of its certificates.

use std::{collections::HashMap, sync::Arc};

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::ObjectReference;
use parking_lot::Mutex;

use super::{issuer::Leaf, review::ReviewedToken};
use crate::{
    api::NamespacedName,
    events::{Events, Notice, Reason, object_reference},
    text::sha256,
};

/// The Deployment that Events about the issuer regard.
const DEPLOYMENT: &str = "linkerd-identity";
/// The maximum number of remembered ServiceAccounts.
const REMEMBERED: usize = 20_000;
/// The shortest time between two searches for those whose certificates have ended.
const SEARCH: SignedDuration = SignedDuration::from_mins(1);

#[derive(Clone)]
pub(super) struct IdentityEvents(Arc<Writing>);

struct Writing {
    /// `None` if this process writes no Events.
    events: Option<Events>,
    deployment: ObjectReference,
    reports_leaves: bool,
    reported: Mutex<ReportedLeaves>,
}

/// The certificates with an Event.
#[derive(Default)]
struct ReportedLeaves {
    /// When the certificate of the last Event about an identity ends.
    ends: HashMap<String, Timestamp>,
    searched: Option<Timestamp>,
}

// === impl IdentityEvents ===

impl IdentityEvents {
    /// With `reports_leaves`, there are Events about the certificates of ServiceAccounts.
    pub(super) fn new(events: Option<Events>, control_plane_namespace: &str, reports_leaves: bool) -> Self {
        let key = NamespacedName::new(control_plane_namespace, DEPLOYMENT);
        let deployment = ObjectReference { uid: None, ..object_reference("apps/v1", "Deployment", &key, "") };
        Self(Arc::new(Writing { events, deployment, reports_leaves, reported: Mutex::default() }))
    }

    pub(super) fn issuer_updated(&self) {
        self.about_issuer(Reason::IssuerUpdated, "Updated identity issuer".to_owned());
    }

    pub(super) fn issuer_update_skipped(&self, note: &str) {
        self.about_issuer(Reason::IssuerUpdateSkipped, note.to_owned());
    }

    pub(super) fn issuer_held(&self, note: &str) {
        self.about_issuer(Reason::IssuerHeld, note.to_owned());
    }

    pub(super) fn issuer_validation_failed(&self, why: &str, identity: &str) {
        self.about_issuer(Reason::IssuerValidationFailed, format!("{why} - CSR Identity : {identity}"));
    }

    pub(super) fn issuer_expires_soon(&self, note: &str) {
        self.about_issuer(Reason::IssuerExpiresSoon, note.to_owned());
    }

    pub(super) fn issuer_is_trust_anchor(&self, note: &str) {
        self.about_issuer(Reason::IssuerIsTrustAnchor, note.to_owned());
    }

    pub(super) fn trust_anchor_expired(&self, note: &str) {
        self.about_issuer(Reason::TrustAnchorExpired, note.to_owned());
    }

    pub(super) fn trust_anchors_updated(&self, count: &str) {
        self.about_issuer(Reason::TrustAnchorsUpdated, format!("{count} loaded"));
    }

    /// Reports a certificate of a ServiceAccount, with the user of its token.
    pub(super) fn leaf_issued(&self, identity: &str, token: &ReviewedToken, leaf: &Leaf, now: Timestamp) {
        let Writing { events, reports_leaves, reported, .. } = &*self.0;
        let (Some(events), true) = (events, reports_leaves) else { return };
        let Some(account) = service_account(token) else { return };
        let mut reported = reported.lock();
        if !reported.may_report(identity, now) {
            return;
        }
        let note = format!("issued certificate for {identity} until {}: {}", leaf.not_after, sha256(&leaf.der));
        let notice = Notice { reason: Reason::IssuedLeafCertificate, regarding: account, related: None, note };
        // Without a place in the queue, the next certificate has an Event.
        if events.try_publish(notice) {
            reported.ends.insert(identity.to_owned(), leaf.not_after);
        }
    }

    fn about_issuer(&self, reason: Reason, note: String) {
        if let Some(events) = &self.0.events {
            events.publish(Notice { reason, regarding: self.0.deployment.clone(), related: None, note });
        }
    }
}

// === impl ReportedLeaves ===

impl ReportedLeaves {
    /// Returns whether there is no Event yet about a certificate of this identity that is still valid, and another one can
    /// be remembered.
    fn may_report(&mut self, identity: &str, now: Timestamp) -> bool {
        if let Some(end) = self.ends.get(identity) {
            return *end <= now;
        }
        if self.ends.len() >= REMEMBERED && self.searched.is_none_or(|last| now.duration_since(last) >= SEARCH) {
            self.searched = Some(now);
            self.ends.retain(|_, end| now < *end);
        }
        self.ends.len() < REMEMBERED
    }
}

fn service_account(token: &ReviewedToken) -> Option<ObjectReference> {
    let mut parts = token.username.split(':').skip(2);
    let key = NamespacedName::new(parts.next()?, parts.next()?);
    Some(object_reference("v1", "ServiceAccount", &key, &token.uid))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token(username: &str) -> ReviewedToken {
        ReviewedToken { username: username.to_owned(), uid: "1-2".to_owned(), pod: None, by_api_audience: false }
    }

    const NOW: Timestamp = Timestamp::constant(1_800_000_000, 0);

    /// A certificate that is valid for a day from [`NOW`] on.
    fn leaf() -> Leaf {
        Leaf { der: vec![1, 2], not_after: NOW + SignedDuration::from_hours(24), is_clamped: false }
    }

    #[test]
    fn a_service_account_gets_one_event_for_each_lifetime_of_its_certificates() {
        let (events, mut notices) = Events::recorded_of_reviews(10);
        let events = IdentityEvents::new(Some(events), "linkerd", true);
        let token = token("system:serviceaccount:emojivoto:web");
        for (hours, expected) in [(0, true), (1, false), (23, false), (24, true)] {
            events.leaf_issued("web.emojivoto", &token, &leaf(), NOW + SignedDuration::from_hours(hours));
            assert_eq!(notices.try_recv().is_ok(), expected, "{hours}");
        }
    }

    #[test]
    fn an_event_without_a_place_in_the_queue_is_written_with_the_next_certificate() {
        let (events, mut notices) = Events::recorded_of_reviews(1);
        let events = IdentityEvents::new(Some(events), "linkerd", true);
        let token = token("system:serviceaccount:emojivoto:web");
        for identity in ["web", "voting"] {
            events.leaf_issued(identity, &token, &leaf(), NOW);
        }
        assert!(notices.try_recv().unwrap().note.starts_with("issued certificate for web until "));
        for identity in ["web", "voting"] {
            events.leaf_issued(identity, &token, &leaf(), NOW + SignedDuration::from_hours(1));
        }
        assert!(notices.try_recv().unwrap().note.starts_with("issued certificate for voting until "));
    }

    #[test]
    fn an_event_about_the_issuer_is_about_the_deployment() {
        let (events, mut notices) = Events::recorded();
        IdentityEvents::new(Some(events), "linkerd", true).issuer_updated();
        let notice = notices.try_recv().unwrap();
        assert_eq!((notice.reason, &*notice.note), (Reason::IssuerUpdated, "Updated identity issuer"));
        assert_eq!(notice.regarding.name.as_deref(), Some("linkerd-identity"));
    }

    #[test]
    fn an_event_is_about_the_service_account_of_the_token() {
        let account = service_account(&token("system:serviceaccount:emojivoto:web")).unwrap();
        let text = |text: &Option<String>| text.clone().unwrap_or_default();
        assert_eq!(
            (text(&account.kind), text(&account.namespace), text(&account.name), text(&account.uid)),
            ("ServiceAccount".to_owned(), "emojivoto".to_owned(), "web".to_owned(), "1-2".to_owned())
        );
    }

    #[test]
    fn the_number_of_remembered_service_accounts_is_bounded() {
        let (events, _notices) = Events::recorded_of_reviews(2 * REMEMBERED);
        let events = IdentityEvents::new(Some(events), "linkerd", true);
        let token = token("system:serviceaccount:emojivoto:web");
        for identity in 0..2 * REMEMBERED {
            events.leaf_issued(&identity.to_string(), &token, &leaf(), NOW);
        }
        let mut reported = events.0.reported.lock();
        assert_eq!(reported.ends.len(), REMEMBERED);
        assert!(reported.may_report("later", leaf().not_after) && reported.ends.is_empty());
    }
}
