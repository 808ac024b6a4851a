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

    pub(super) fn issuer_update_skipped(&self, why: &str) {
        let note = format!("Skipping issuer update as certs could not be read from disk: {why}");
        self.about_issuer(Reason::IssuerUpdateSkipped, note);
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
        if !reported.lock().may_report(identity, leaf.not_after, now) {
            return;
        }
        let note = format!("issued certificate for {identity} until {}: {}", leaf.not_after, sha256(&leaf.der));
        events.publish(Notice { reason: Reason::IssuedLeafCertificate, regarding: account, related: None, note });
    }

    fn about_issuer(&self, reason: Reason, note: String) {
        if let Some(events) = &self.0.events {
            events.publish(Notice { reason, regarding: self.0.deployment.clone(), related: None, note });
        }
    }
}

// === impl ReportedLeaves ===

impl ReportedLeaves {
    /// Returns whether there is no Event yet about a certificate of this identity that is still valid, and remembers it.
    fn may_report(&mut self, identity: &str, end: Timestamp, now: Timestamp) -> bool {
        if self.ends.get(identity).is_some_and(|end| now < *end) {
            return false;
        }
        if self.ends.len() >= REMEMBERED && self.searched.is_none_or(|last| now.duration_since(last) >= SEARCH) {
            self.searched = Some(now);
            self.ends.retain(|_, end| now < *end);
        }
        let is_remembered = self.ends.len() < REMEMBERED;
        if is_remembered {
            self.ends.insert(identity.to_owned(), end);
        }
        is_remembered
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

    #[test]
    fn a_service_account_gets_one_event_for_each_lifetime_of_its_certificates() {
        let (events, mut notices) = Events::recorded();
        let events = IdentityEvents::new(Some(events), "linkerd", true);
        let now = Timestamp::from_second(1_800_000_000).unwrap();
        let leaf = Leaf { der: vec![1, 2], not_after: now + SignedDuration::from_hours(24), is_clamped: false };
        let token = token("system:serviceaccount:emojivoto:web");
        for hours in [0, 1, 23, 24] {
            events.leaf_issued("web.emojivoto", &token, &leaf, now + SignedDuration::from_hours(hours));
        }
        // The queue of controllers is recorded: these Events are about the issuer.
        events.issuer_updated();
        let notice = notices.try_recv().unwrap();
        assert_eq!((notice.reason, &*notice.note), (Reason::IssuerUpdated, "Updated identity issuer"));
        assert_eq!(notice.regarding.name.as_deref(), Some("linkerd-identity"));
        assert!(notices.try_recv().is_err());
        assert_eq!(events.0.reported.lock().ends.len(), 1);
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
        let (mut reported, now) = (ReportedLeaves::default(), Timestamp::from_second(1_800_000_000).unwrap());
        let end = now + SignedDuration::from_hours(1);
        let reports = (0..2 * REMEMBERED).filter(|account| reported.may_report(&account.to_string(), end, now));
        assert_eq!(reports.count(), REMEMBERED);
        assert!(reported.may_report("later", end, end));
    }
}
