//! Follows the Secret in every replica, and hands its pair to the server.
//!
//! In: a watch of one Secret. Out: the [`ServingCertificate`] in use, or the reason why the replica has no certificate.
//! Always holds: a Secret that is deleted or cannot be used leaves the pair in use; a watch that fails is retried without limit.

use std::sync::Arc;

use k8s_openapi::api::core::v1::Secret;
use kube::{Api, Client};
use parking_lot::Mutex;
use tracing::{info, warn};

use super::secret::{LEAF, LEAF_KEY, value};
use crate::{
    api::NamespacedName,
    client::{describe, watch_one},
    contain::{Work, contain},
    webhook::ServingCertificate,
};

/// Whether this replica has a certificate.
#[derive(Clone)]
pub struct FollowedSecret(Arc<Followed>);

struct Followed {
    key: NamespacedName,
    certificate: Arc<ServingCertificate>,
    /// Why the watch or the content of the Secret cannot be used.
    problems: Mutex<FollowProblems>,
}

#[derive(Default)]
struct FollowProblems {
    watch: Option<String>,
    content: Option<String>,
}

// === impl FollowedSecret ===

impl FollowedSecret {
    pub(super) fn new(key: NamespacedName, certificate: Arc<ServingCertificate>) -> Self {
        let problems = FollowProblems { content: Some("it was not read yet".to_owned()), watch: None };
        Self(Arc::new(Followed { key, certificate, problems: Mutex::new(problems) }))
    }

    /// Whether there is a certificate. It stays while the Secret cannot be read.
    pub fn is_ready(&self) -> bool {
        self.0.certificate.not_after().is_some()
    }

    /// Returns why there is no certificate, or not the one of the Secret, for `/ready`.
    pub fn problem(&self) -> Option<String> {
        let Followed { key, certificate, problems } = &*self.0;
        let problems = problems.lock();
        let why = problems.watch.as_ref().or(problems.content.as_ref());
        match (certificate.not_after(), why) {
            (None, Some(why)) => Some(format!("the webhooks have no certificate: Secret {key}: {why}")),
            (None, None) => Some(format!("the webhooks have no certificate: waiting for Secret {key}")),
            (Some(_), why) => certificate
                .expired(format_args!("Secret {key}"))
                .or_else(|| why.map(|why| format!("the webhooks keep their last certificate: Secret {key}: {why}"))),
        }
    }

    /// Follows the Secret, forever.
    pub(super) async fn follow(self, client: Client) {
        let key = self.0.key.clone();
        let api = Api::<Secret>::namespaced(client, &key.namespace);
        watch_one(api, &key.name, |seen| match seen {
            Ok(Some(secret)) => {
                self.works();
                self.use_pair(&secret);
            }
            Ok(None) => {
                self.works();
                self.lacks("it does not exist".to_owned());
            }
            Err(error) => {
                let error = describe(&error);
                let problem = Some(format!("it cannot be watched: {error}"));
                let mut problems = self.0.problems.lock();
                if problems.watch != problem {
                    warn!(secret = %self.0.key, error, "could not watch the Secret of the webhooks, retrying");
                    problems.watch = problem;
                }
            }
        })
        .await;
    }

    fn works(&self) {
        self.0.problems.lock().watch = None;
    }

    fn use_pair(&self, secret: &Secret) {
        let (leaf, key) = (value(secret, LEAF), value(secret, LEAF_KEY));
        if leaf.is_empty() {
            return self.lacks(format!("it has no {LEAF} yet"));
        }
        let offered = contain(Work::Certifying, || self.0.certificate.offer(leaf, key));
        match offered.unwrap_or_else(|panicked| Err(anyhow::anyhow!("{panicked}"))) {
            Ok(is_new) => {
                self.0.problems.lock().content = None;
                if is_new {
                    info!(secret = %self.0.key, "using the new certificate of the webhooks");
                }
            }
            Err(error) => self.lacks(format!("{error:#}")),
        }
    }

    fn lacks(&self, why: String) {
        let mut problems = self.0.problems.lock();
        if problems.content.as_ref() != Some(&why) {
            warn!(secret = %self.0.key, why, "the Secret has no usable certificate, keeping the last one if there is one");
            problems.content = Some(why);
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::contain;

    #[test]
    fn a_secret_that_causes_a_panic_is_a_problem_and_a_later_one_is_read() {
        let followed = FollowedSecret::new(NamespacedName::new("ns", "pair"), Arc::default());
        let secret: Secret = serde_json::from_value(json!({"data": {"tls.crt": "eA==", "tls.key": "eA=="}})).unwrap();
        contain::testing::panic_in_next(Work::Certifying);
        followed.use_pair(&secret);
        let problem = || followed.problem().unwrap();
        assert!(problem().contains("Secret ns/pair: it panicked"), "{}", problem());
        followed.use_pair(&secret);
        assert!(!problem().contains("panicked"), "{}", problem());
    }
}
