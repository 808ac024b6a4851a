//! When the roots that are not declared may leave the bundle.
//!
//! In: a mesh whose observed certificates need only declared roots. Out: now, later, or the reason why not. Always holds:
//! before a removal, each replica of the identity service has shown twice, with [`CONFIRMED_AFTER`] between, that its
//! certificates need only declared roots, and in between each proxy was asked again; proxies that are not seen from here
//! keep every root.

use std::{sync::Arc, time::Duration};

use k8s_openapi::jiff::Timestamp;
use kube::Client;
use parking_lot::Mutex;
use tokio::time::Instant;

use super::{identity_service::IdentityService, prober::SharedLeaves, status::HeldWrite, unseen_proxies};
use crate::{
    api::linkerd_trust::TrustReason,
    trust::{SeenTrust, signers::check_signers},
};

/// Longer than kubelets take to update the files of a Secret that was written just before the first answer.
const CONFIRMED_AFTER: Duration = Duration::from_secs(90);
/// An older confirmation is made again.
const CONFIRMED_FOR: Duration = Duration::from_secs(3600);
const RETRY: Duration = Duration::from_secs(60);

pub(super) struct Retirement {
    client: Client,
    identity: IdentityService,
    leaves: Arc<SharedLeaves>,
    confirmed: Mutex<Option<Confirmation>>,
}

/// What must not change between the two answers.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct RetirementBasis {
    pub(super) generation: i64,
    /// The resource, and the version of the ConfigMap.
    pub(super) uid: Arc<str>,
    pub(super) version: Arc<str>,
}

/// The first answers of the identity service.
struct Confirmation {
    basis: RetirementBasis,
    since: Instant,
}

pub(super) enum RetirementStep {
    Now,
    /// The resource is reconciled again after this time.
    After(Duration),
    Held(HeldWrite),
}

// === impl Retirement ===

impl Retirement {
    pub(super) fn new(client: &Client, identity: IdentityService, leaves: &Arc<SharedLeaves>) -> Self {
        Self { client: client.clone(), identity, leaves: Arc::clone(leaves), confirmed: Mutex::default() }
    }

    /// Returns when the roots may be removed.
    pub(super) async fn next(&self, basis: RetirementBasis, seen: SeenTrust, now: Timestamp) -> RetirementStep {
        if let Some(left) = self.left(&basis) {
            return RetirementStep::After(left);
        }
        if let Err(why) = self.check(seen).await {
            *self.confirmed.lock() = None;
            let message = format!("the roots that are not declared stay in the bundle: {why}");
            return RetirementStep::Held(HeldWrite { reason: TrustReason::RemovalHeld, message, retry: Some(RETRY) });
        }
        let confirmed = self.confirmed.lock().take();
        match confirmed.filter(|known| known.basis == basis && known.since.elapsed() < CONFIRMED_FOR) {
            Some(_) => RetirementStep::Now,
            None => {
                *self.confirmed.lock() = Some(Confirmation { basis, since: Instant::now() });
                self.leaves.ask_all(now);
                RetirementStep::After(CONFIRMED_AFTER)
            }
        }
    }

    /// Returns the time until the second question.
    fn left(&self, basis: &RetirementBasis) -> Option<Duration> {
        let confirmed = self.confirmed.lock();
        let known = confirmed.as_ref().filter(|known| known.basis == *basis)?;
        CONFIRMED_AFTER.checked_sub(known.since.elapsed()).filter(|left| !left.is_zero())
    }

    async fn check(&self, mut seen: SeenTrust) -> Result<(), String> {
        unseen_proxies::check(&self.client).await?;
        let signers = self.identity.ask(&seen).await.map_err(|error| format!("{error:#}"))?;
        match tokio::task::spawn_blocking(move || check_signers(&mut seen, &signers)).await {
            Ok(checked) => checked,
            Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
            Err(_) => Err("the operator stops".to_owned()),
        }
    }
}
