//! Who may read the metrics, with `--metrics-authentication`.
//!
//! * In: the header `Authorization` of a request. Out: permission, or a constant answer.
//! * Always: the API server decides, by a TokenReview and a SubjectAccessReview for `get` of `/metrics`; a token is neither
//!   kept nor logged; an answer has a deadline; unknown tokens cause at most [`AT_ONCE`] reviews in [`PAUSE`], and
//!   do not delay a token that was permitted before.

use std::{sync::Arc, time::Duration};

use anyhow::Context as _;
use http::{HeaderMap, Response, StatusCode, header};
use k8s_openapi::api::{
    authentication::v1::{TokenReview, TokenReviewSpec, UserInfo},
    authorization::v1::{NonResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec},
};
use kube::{Api, Client, api::PostParams};
use parking_lot::Mutex;
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::{Instant, sleep, timeout},
};
use tracing::warn;

use super::{
    known_tokens::{KnownTokens, TokenDigest, TokenVerdict},
    text,
};
use crate::{client, dashboard::AdminBody};

/// The deadline for both reviews. Prometheus waits 10 s for an answer by default.
const DEADLINE: Duration = Duration::from_secs(5);
/// How many reviews run at once: this number for unknown tokens, and the same number for tokens that were permitted before.
const AT_ONCE: usize = 2;
/// A review of an unknown token occupies its place for at least this time, which bounds the rate of reviews.
const PAUSE: Duration = Duration::from_millis(100);
/// The length of the longest token that is reviewed. Those of ServiceAccounts have about 1 KiB.
const LONGEST: usize = 16 << 10;
/// The shortest time between two warnings.
const WARNINGS: Duration = Duration::from_secs(60);
/// The permission, as a ClusterRole names it.
const VERB: &str = "get";
const PATH: &str = "/metrics";

pub struct MetricsAccess {
    client: Client,
    known: Mutex<KnownTokens>,
    unknown: Arc<Semaphore>,
    permitted: Semaphore,
    warned: Mutex<Option<Instant>>,
}

/// Why a request for the metrics is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MetricsRefusal {
    Unauthenticated,
    Forbidden,
    /// The API server did not answer.
    Unavailable,
}

// === impl MetricsAccess ===

impl MetricsAccess {
    pub fn new(client: &Client) -> Self {
        let unknown = Arc::new(Semaphore::new(AT_ONCE));
        let permitted = Semaphore::new(AT_ONCE);
        Self { client: client.clone(), known: Mutex::default(), unknown, permitted, warned: Mutex::default() }
    }

    /// # Errors
    /// Returns the answer to a client that may not read the metrics.
    pub(super) async fn admit(&self, headers: &HeaderMap) -> Result<(), MetricsRefusal> {
        let token = bearer_token(headers).ok_or(MetricsRefusal::Unauthenticated)?;
        let digest = TokenDigest::of(token);
        let known = self.known.lock().verdict(digest, Instant::now());
        let verdict = match known {
            Some(verdict) => verdict,
            None => self.review(token, digest).await?,
        };
        match verdict {
            TokenVerdict::Permitted => Ok(()),
            TokenVerdict::Unauthenticated => Err(MetricsRefusal::Unauthenticated),
            TokenVerdict::Forbidden => Err(MetricsRefusal::Forbidden),
        }
    }

    async fn review(&self, token: &str, digest: TokenDigest) -> Result<TokenVerdict, MetricsRefusal> {
        let was_permitted = self.known.lock().was_permitted(digest, Instant::now());
        let reviewed = timeout(DEADLINE, async {
            let _permit = if was_permitted { Some(self.permitted.acquire().await?) } else { None };
            let _place = if was_permitted { None } else { Some(self.place().await?) };
            // Another request may have had the same token reviewed meanwhile.
            let known = self.known.lock().verdict(digest, Instant::now());
            match known {
                Some(verdict) => Ok(verdict),
                None => self.ask(token).await,
            }
        });
        let error = match reviewed.await {
            Ok(Ok(verdict)) => {
                self.known.lock().insert(digest, verdict, Instant::now());
                return Ok(verdict);
            }
            Ok(Err(error)) => client::describe(&*error),
            Err(_) => format!("no answer within {} s", DEADLINE.as_secs()),
        };
        self.warn(&error);
        if was_permitted { Ok(TokenVerdict::Permitted) } else { Err(MetricsRefusal::Unavailable) }
    }

    /// Waits for a place for an unknown token. A client that disconnects does not make room for another one earlier.
    async fn place(&self) -> anyhow::Result<Arc<OwnedSemaphorePermit>> {
        let place = Arc::new(Arc::clone(&self.unknown).acquire_owned().await?);
        let held = Arc::clone(&place);
        tokio::spawn(async move {
            sleep(PAUSE).await;
            drop(held);
        });
        Ok(place)
    }

    async fn ask(&self, token: &str) -> anyhow::Result<TokenVerdict> {
        let review = TokenReview {
            spec: TokenReviewSpec { token: Some(token.to_owned()), audiences: None },
            ..TokenReview::default()
        };
        let reviews = Api::<TokenReview>::all(self.client.clone());
        let review = reviews.create(&PostParams::default(), &review).await.context("cannot review a token")?;
        let Some(user) = authenticated(review) else { return Ok(TokenVerdict::Unauthenticated) };
        let reviews = Api::<SubjectAccessReview>::all(self.client.clone());
        let review = reviews.create(&PostParams::default(), &access_of(user)).await;
        let review = review.context("cannot review the access of a user")?;
        Ok(if permits(&review) { TokenVerdict::Permitted } else { TokenVerdict::Forbidden })
    }

    fn warn(&self, error: &str) {
        let mut warned = self.warned.lock();
        if warned.is_none_or(|last| last.elapsed() >= WARNINGS) {
            *warned = Some(Instant::now());
            warn!(%error, "could not review a client of the metrics: tokens that were not permitted before are refused");
        }
    }
}

// === impl MetricsRefusal ===

impl MetricsRefusal {
    pub(super) fn response(self) -> Response<AdminBody> {
        let (status, body) = match self {
            Self::Unauthenticated => (StatusCode::UNAUTHORIZED, "the metrics need a bearer token of the cluster\n"),
            Self::Forbidden => (StatusCode::FORBIDDEN, "the user of the token may not get /metrics\n"),
            Self::Unavailable => (StatusCode::SERVICE_UNAVAILABLE, "the token could not be reviewed, retry later\n"),
        };
        let mut response = text(status, body);
        if self == Self::Unauthenticated {
            let scheme = header::HeaderValue::from_static("Bearer");
            response.headers_mut().insert(header::WWW_AUTHENTICATE, scheme);
        }
        response
    }
}

/// Returns the token of a request with exactly one credential.
fn bearer_token(headers: &HeaderMap) -> Option<&str> {
    let mut credentials = headers.get_all(header::AUTHORIZATION).iter();
    let (Some(credential), None) = (credentials.next(), credentials.next()) else { return None };
    let (scheme, token) = credential.to_str().ok()?.split_once(' ')?;
    let token = token.trim();
    let is_usable = !token.is_empty() && token.len() <= LONGEST && !token.contains(char::is_whitespace);
    (scheme.eq_ignore_ascii_case("Bearer") && is_usable).then_some(token)
}

/// Returns the user of a token that the API server has authenticated.
fn authenticated(review: TokenReview) -> Option<UserInfo> {
    let status = review.status?;
    let user = status.user.filter(|user| user.username.as_ref().is_some_and(|name| !name.is_empty()));
    user.filter(|_| status.authenticated == Some(true))
}

fn access_of(user: UserInfo) -> SubjectAccessReview {
    let UserInfo { extra, groups, uid, username } = user;
    let path = NonResourceAttributes { path: Some(PATH.to_owned()), verb: Some(VERB.to_owned()) };
    let spec = SubjectAccessReviewSpec {
        extra,
        groups,
        non_resource_attributes: Some(path),
        resource_attributes: None,
        uid,
        user: username,
    };
    SubjectAccessReview { spec, ..SubjectAccessReview::default() }
}

fn permits(review: &SubjectAccessReview) -> bool {
    review.status.as_ref().is_some_and(|status| status.allowed && status.denied != Some(true))
}

#[cfg(test)]
#[path = "metrics_access_tests.rs"]
mod tests;
