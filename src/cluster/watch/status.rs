//! The status of a watch: whether its kind is known, and why the watch fails.
//!
//! In: completed lists and failures. Out: [`WatchStatus`], for readiness and for writers that wait. Always holds: a
//! kind that was once known stays known.

use std::{fmt, sync::Arc, time::Duration};

use kube::{core::Status, runtime::watcher};
use strum::{IntoStaticStr, VariantNames};
use tokio::time::Instant;
use tracing::{info, warn};

use crate::{
    cluster::Kind,
    text::{printable, truncate},
};

/// The time for which an optional kind must not be served before it counts as absent. An API server that is starting,
/// or a proxy in front of it, may respond 404 for a kind that exists. On a cluster without the kind, discovery is ready
/// only after this time.
pub(super) const ABSENCE_CONFIRMED: Duration = Duration::from_secs(1);

/// The maximum length of an API server's message.
const MESSAGE_BYTES: usize = 1024;
/// The maximum length of the user in a sentence. A ServiceAccount has at most 338 bytes.
const USER_BYTES: usize = 340;

/// The user of requests without credentials, or with credentials that the API server does not know.
const ANONYMOUS: &str = "system:anonymous";

/// A problem of a watch, for `/ready`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WatchProblem {
    /// The problem and its remedy, for a person.
    pub text: String,
    /// Whether the problem keeps the process from being ready.
    pub blocks_readiness: bool,
    /// Whether a request failed; otherwise the first list has not completed yet.
    pub is_failure: bool,
}

/// The status of a watch.
#[derive(Clone, Debug)]
pub(in crate::cluster) struct WatchStatus {
    pub kind: Kind,
    /// The name of another cluster; `None` for this one.
    cluster: Option<Arc<str>>,
    /// Whether an observer of the kind keeps the process from being ready until the kind is known.
    blocks_readiness: bool,
    pub synced: bool,
    /// When the first of the consecutive 404 responses for an optional kind was received.
    missing_since: Option<Instant>,
    /// Whether an optional kind was confirmed as not served. A later outage does not reset this.
    pub(super) absent: bool,
    pub(super) failure: Option<WatchFailure>,
    /// When the first of the consecutive failures happened.
    failing_since: Option<Instant>,
}

/// The reason why a list or a watch failed; its class is a metric label.
#[derive(Clone, Debug, PartialEq, Eq, IntoStaticStr, VariantNames)]
#[strum(serialize_all = "snake_case")]
pub(super) enum WatchFailure {
    /// The API server answered 404: it does not serve the kind.
    #[strum(serialize = "not_served")]
    KindMissing,
    /// The API server answered 401 or 403.
    Denied(String),
    Unreachable(String),
    /// The objects of another cluster do not fit into the memory.
    NoMemory,
}

// === impl WatchStatus ===

impl WatchStatus {
    pub(in crate::cluster) fn new(kind: Kind, blocks_readiness: bool) -> Self {
        Self {
            kind,
            cluster: None,
            blocks_readiness,
            synced: false,
            missing_since: None,
            absent: false,
            failure: None,
            failing_since: None,
        }
    }

    /// As [`WatchStatus::new`], for a watch of another cluster.
    pub(in crate::cluster) fn of(cluster: Option<&Arc<str>>, kind: Kind, blocks_readiness: bool) -> Self {
        Self { cluster: cluster.cloned(), ..Self::new(kind, blocks_readiness) }
    }

    /// Whether the kind has been listed and the watch is not failing. A connection that fell silent is detected only
    /// after a minute.
    pub(in crate::cluster) fn is_followed(&self) -> bool {
        self.synced && self.failure.is_none()
    }

    /// Whether the state is complete for the kind, so that an object that it lacks does not exist: the kind was listed,
    /// or is not served.
    pub(in crate::cluster) fn is_known(&self) -> bool {
        self.synced || self.absent
    }

    /// Returns whether the kind is optional and the API server does not serve it now.
    pub(in crate::cluster) fn is_not_served(&self) -> bool {
        self.absent && self.failure == Some(WatchFailure::KindMissing)
    }

    /// Returns for how long the objects of the kind may have been out of date; `None` if the watch is not failing.
    pub(in crate::cluster) fn failing_for(&self) -> Option<Duration> {
        self.failing_since.as_ref().map(Instant::elapsed)
    }

    /// Returns the problem of the watch; `None` if the kind has been listed and the watch is not failing.
    pub(in crate::cluster) fn problem(&self) -> Option<WatchProblem> {
        let resource = self.kind.resource();
        let text = match &self.failure {
            None if self.synced => return None,
            None => format!("the first list of {resource} has not completed yet"),
            Some(WatchFailure::KindMissing) => match &self.cluster {
                _ if !self.kind.is_optional() => format!("the API server does not serve {resource}"),
                None => format!(
                    "the API server does not serve {resource}: install its CustomResourceDefinition (make install)"
                ),
                Some(cluster) => format!(
                    "the API server does not serve {resource}: install Linkerd's CustomResourceDefinitions in the cluster \
                     {cluster}"
                ),
            },
            Some(WatchFailure::Denied(message)) => {
                format!("list and watch of {resource} are denied, {}: {message}", self.remedy(message))
            }
            Some(failure @ (WatchFailure::Unreachable(_) | WatchFailure::NoMemory)) => {
                format!("cannot list or watch {resource}: {failure}")
            }
        };
        // A kind that is not served does not block readiness: discovery serves proxies while the controllers that read
        // the kind wait for it.
        let blocks_readiness = self.blocks_readiness && !self.is_known();
        Some(WatchProblem { text, blocks_readiness, is_failure: self.failure.is_some() })
    }

    /// Returns what to do about requests that an API server has denied with this message.
    fn remedy(&self, message: &str) -> String {
        match (denied_user(message), &self.cluster) {
            (Some(ANONYMOUS), None) => {
                "because the requests have no credentials that the API server accepts, check the user \
                                        of the kubeconfig"
                    .to_owned()
            }
            (Some(ANONYMOUS), Some(cluster)) => format!(
                "because the requests have no credentials that the API server of the cluster {cluster} accepts, write a \
                 token or a client certificate into the kubeconfig of its Secret"
            ),
            (_, None) => "grant them to this ServiceAccount".to_owned(),
            (Some(user), Some(cluster)) => {
                format!("grant them to the user \"{}\" in the cluster {cluster}", truncate(user, USER_BYTES))
            }
            (None, Some(cluster)) => format!("grant them to the user of the kubeconfig in the cluster {cluster}"),
        }
    }

    /// Records that the watch works. Returns whether it was failing.
    pub(super) fn recovered(&mut self) -> bool {
        let failed = self.failure.take().is_some();
        self.failing_since = None;
        if failed {
            info!(resource = self.kind.resource(), "watch recovered");
        }
        failed
    }

    /// Records that a list is complete. Returns whether it was the first one.
    pub(in crate::cluster) fn listed(&mut self) -> bool {
        let first = !std::mem::replace(&mut self.synced, true);
        if first {
            info!(resource = self.kind.resource(), "completed the first list");
        }
        first
    }

    /// Records a failure. Returns whether it changed the status.
    pub(super) fn failed(&mut self, failure: WatchFailure) -> bool {
        // Every cluster serves the kinds that are not optional. A 404 for one of them most likely comes from a proxy in
        // front of the API server.
        if failure == WatchFailure::KindMissing && self.kind.is_optional() {
            let since = self.missing_since.get_or_insert_with(Instant::now);
            self.absent |= since.elapsed() >= ABSENCE_CONFIRMED;
        } else {
            self.missing_since = None;
        }
        self.failing_since.get_or_insert_with(Instant::now);
        let changed = self.failure.as_ref() != Some(&failure);
        if changed {
            let resource = self.kind.resource();
            warn!(resource, error = %failure, "list or watch failed, retrying");
            self.failure = Some(failure);
        }
        changed
    }
}

impl WatchFailure {
    pub(super) fn of(error: &watcher::Error) -> Self {
        let cause = match error {
            watcher::Error::InitialListFailed(cause)
            | watcher::Error::WatchStartFailed(cause)
            | watcher::Error::WatchFailed(cause) => cause,
            watcher::Error::WatchError(status) => return Self::Unreachable(message(status)),
            watcher::Error::NoResourceVersion => return Self::Unreachable(error.to_string()),
        };
        match cause {
            // Matched by code: the response for an API group that does not exist is plain text without a reason.
            kube::Error::Api(status) if status.code == 404 => Self::KindMissing,
            kube::Error::Api(status) if status.code == 403 => Self::Denied(message(status)),
            kube::Error::Api(status) if status.code == 401 => {
                Self::Unreachable(format!("the credentials are refused: {}", message(status)))
            }
            kube::Error::Api(status) => Self::Unreachable(message(status)),
            other => Self::Unreachable(shown(&crate::client::describe(other))),
        }
    }
}

/// Returns the user that an API server names in its message: `pods is forbidden: User "NAME" cannot list …`.
fn denied_user(message: &str) -> Option<&str> {
    let (_, rest) = message.split_once(" is forbidden: User \"")?;
    rest.split_once("\" cannot ").map(|(user, _)| user)
}

/// The message of an API server.
fn message(status: &Status) -> String {
    match &*status.message {
        "" => format!("the API server answers with status {}", status.code),
        message => shown(message),
    }
}

/// Returns a text of an API server, which need not be trustworthy, for one line of a terminal.
fn shown(text: &str) -> String {
    printable(truncate(text, MESSAGE_BYTES)).into_owned()
}

impl fmt::Display for WatchFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::KindMissing => f.write_str("the API server does not serve this kind"),
            Self::NoMemory => {
                f.write_str("no memory is left for objects of other clusters, raise the memory limit of the container")
            }
            Self::Denied(message) | Self::Unreachable(message) => f.write_str(message),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SUBJECT: &str = "system:serviceaccount:linkerd-multicluster:reader";

    /// The problem of a list that an API server has denied with this message.
    fn denied(cluster: Option<&str>, message: &str) -> String {
        let status = Status::failure(message, "Forbidden").with_code(403).boxed();
        let error = watcher::Error::InitialListFailed(kube::Error::Api(status));
        problem(cluster, Kind::Pod, WatchFailure::of(&error))
    }

    fn problem(cluster: Option<&str>, kind: Kind, failure: WatchFailure) -> String {
        let mut status = WatchStatus::of(cluster.map(Arc::from).as_ref(), kind, false);
        status.failed(failure);
        status.problem().unwrap().text
    }

    fn forbidden(user: &str) -> String {
        format!(
            "pods is forbidden: User \"{user}\" cannot list resource \"pods\" in API group \"\" in the namespace \"ns\""
        )
    }

    #[test]
    fn the_advice_for_a_missing_permission_names_who_needs_it_and_where() {
        let message = forbidden(SUBJECT);
        assert_eq!(
            denied(None, &message),
            format!("list and watch of pods are denied, grant them to this ServiceAccount: {message}")
        );
        assert_eq!(
            denied(Some("east"), &message),
            format!(
                "list and watch of pods are denied, grant them to the user \"{SUBJECT}\" in the cluster east: {message}"
            )
        );
        // A policy of another program may answer, too.
        assert_eq!(
            denied(Some("east"), "no"),
            "list and watch of pods are denied, grant them to the user of the kubeconfig in the cluster east: no"
        );
        let long = denied(Some("east"), &forbidden(&"u".repeat(900)));
        let expected = format!("grant them to the user \"{}\" in the cluster east: pods is", "u".repeat(340));
        assert!(long.contains(&expected), "{long}");
    }

    #[test]
    fn a_request_without_credentials_needs_credentials_instead_of_a_permission() {
        let message = forbidden("system:anonymous");
        assert_eq!(
            denied(Some("east"), &message),
            format!(
                "list and watch of pods are denied, because the requests have no credentials that the API server of the \
                 cluster east accepts, write a token or a client certificate into the kubeconfig of its Secret: {message}"
            )
        );
        assert_eq!(
            denied(None, &message),
            format!(
                "list and watch of pods are denied, because the requests have no credentials that the API server accepts, \
                 check the user of the kubeconfig: {message}"
            )
        );
        // The name of an object is no user.
        let about = "pods \"system:anonymous\" is forbidden: User \"u\" cannot list resource \"pods\"";
        let expected = "list and watch of pods are denied, grant them to the user \"u\" in the cluster east: ";
        assert!(denied(Some("east"), about).starts_with(expected), "{}", denied(Some("east"), about));
    }

    #[test]
    fn a_missing_kind_of_another_cluster_is_installed_there() {
        assert_eq!(
            problem(Some("east"), Kind::Server, WatchFailure::KindMissing),
            "the API server does not serve servers.policy.linkerd.io: install Linkerd's CustomResourceDefinitions in the \
             cluster east"
        );
        assert_eq!(
            problem(None, Kind::Server, WatchFailure::KindMissing),
            "the API server does not serve servers.policy.linkerd.io: install its CustomResourceDefinition (make install)"
        );
    }
}
