//! Reviews of tokens by the API server.
//!
//! ```text
//! token ─▶ known answer? ─▶ queue, fair to namespaces ─▶ TokenReview, repeated until the deadline ─▶ answer
//! ```
//!
//! In: a token. Out: its user, or a refusal. Always holds: the API server decides, with the audience
//! `identity.l5d.io`; a token is neither logged nor kept; a review has a deadline with all its retries; equal tokens are
//! reviewed together; no lock is held while a review waits.

mod answer;
mod claims;
mod known;
mod queue;

use std::{sync::Arc, time::Duration};

use http::{Request, header};
use kube::Client;
use parking_lot::Mutex;
use serde::Serialize;
use tokio::time::{Instant, sleep_until, timeout_at};
use tracing::{error, warn};

use self::{
    answer::{ReviewAnswer, ReviewOutcome},
    known::{KEPT_NEGATIVE, KEPT_POSITIVE, KnownAnswer, KnownAnswers, ReviewedHash},
    queue::ReviewQueue,
};
use super::metrics::{IdentityMetrics, ReviewResult};
use crate::{
    client,
    retry::{ReportRate, backoff},
};

/// The audience of the tokens that Linkerd's proxies send.
pub(super) const AUDIENCE: &str = "identity.l5d.io";
/// The deadline of one request. A request that hangs leaves time for another one.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(4);
/// The first and the longest delay between two requests.
const RETRY: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(1));
/// The shortest time between two warnings about tokens without the audience.
const WARNINGS: Duration = Duration::from_secs(24 * 60 * 60);
/// The shortest time between two errors about reviews that are refused, or not answered: the same happens to many calls.
const ERRORS: Duration = Duration::from_secs(10);
const PATH: &str = "/apis/authentication.k8s.io/v1/tokenreviews";

/// A token that the API server has authenticated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ReviewedToken {
    pub(super) username: String,
    /// The uid of the ServiceAccount.
    pub(super) uid: String,
    /// `None` for a token that is not bound to a Pod.
    pub(super) pod: Option<ReviewedPod>,
    /// Whether the token was accepted without the audience of the identity service.
    pub(super) by_api_audience: bool,
}

/// The Pod that a token is bound to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ReviewedPod {
    pub(super) name: String,
    pub(super) uid: String,
    pub(super) node: Option<String>,
}

/// Why a token has no user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ReviewRefusal {
    /// The API server says what is wrong with the token.
    Invalid(String),
    Unauthenticated,
    /// The API server accepts the token, but not for the identity service.
    OtherAudience,
    /// The API server refuses to review tokens.
    Denied(String),
    /// The API server did not answer before the deadline.
    Unavailable(String),
    /// Too many reviews wait.
    Overloaded,
}

type SharedAnswer = Arc<Result<ReviewedToken, ReviewRefusal>>;

/// Reviews tokens.
pub(super) struct Reviewer {
    client: Client,
    queue: Arc<ReviewQueue>,
    known: Mutex<KnownAnswers<SharedAnswer>>,
    metrics: Arc<IdentityMetrics>,
    /// Whether a token for the API server itself is accepted, too.
    allows_api_audience: bool,
    warnings: ReportRate,
    denied: ReportRate,
    unanswered: ReportRate,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct TokenReviewBody<'a> {
    api_version: &'static str,
    kind: &'static str,
    spec: TokenReviewSpec<'a>,
}

#[derive(Serialize)]
struct TokenReviewSpec<'a> {
    token: &'a str,
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    audiences: &'a [&'static str],
}

// === impl ReviewRefusal ===

impl ReviewRefusal {
    fn result(&self) -> ReviewResult {
        match self {
            Self::Invalid(_) => ReviewResult::Invalid,
            Self::Unauthenticated => ReviewResult::Unauthenticated,
            Self::OtherAudience => ReviewResult::OtherAudience,
            Self::Denied(_) => ReviewResult::Denied,
            Self::Unavailable(_) => ReviewResult::Unavailable,
            Self::Overloaded => ReviewResult::Overloaded,
        }
    }
}

// === impl Reviewer ===

impl Reviewer {
    /// At most `at_once` reviews run at the same time.
    pub(super) fn new(
        client: &Client,
        at_once: usize,
        allows_api_audience: bool,
        metrics: &Arc<IdentityMetrics>,
    ) -> Self {
        Self {
            client: client.clone(),
            queue: ReviewQueue::new(at_once),
            known: Mutex::default(),
            metrics: Arc::clone(metrics),
            allows_api_audience,
            warnings: ReportRate::new(WARNINGS),
            denied: ReportRate::new(ERRORS),
            unanswered: ReportRate::new(ERRORS),
        }
    }

    /// Returns the user of a token, or why it has none. The deadline is that of the review with its retries and its time
    /// in the queue.
    pub(super) async fn review(&self, token: &str, deadline: Instant) -> SharedAnswer {
        let place = self.known.lock().place(ReviewedHash::of(token), Instant::now());
        let Some(place) = place else { return self.reviewed(token, deadline).await.answer };
        if let Some(known) = place.get() {
            self.metrics.token_review(ReviewResult::Known);
            return Arc::clone(&known.answer);
        }
        // Equal reviews wait here for the first one. If its call ends, the next one sends a request.
        Arc::clone(&place.get_or_init(|| self.reviewed(token, deadline)).await.answer)
    }

    async fn reviewed(&self, token: &str, deadline: Instant) -> KnownAnswer<SharedAnswer> {
        let answer = self.queued(token, deadline).await;
        let (result, kept) = match &answer {
            Ok(token) if token.by_api_audience => (ReviewResult::ApiAudience, KEPT_POSITIVE),
            Ok(_) => (ReviewResult::Authenticated, KEPT_POSITIVE),
            Err(
                refusal @ (ReviewRefusal::Invalid(_) | ReviewRefusal::Unauthenticated | ReviewRefusal::OtherAudience),
            ) => (refusal.result(), KEPT_NEGATIVE),
            // The token may be valid.
            Err(refusal) => (refusal.result(), Duration::ZERO),
        };
        self.metrics.token_review(result);
        KnownAnswer { answer: Arc::new(answer), until: Instant::now() + kept }
    }

    async fn queued(&self, token: &str, deadline: Instant) -> Result<ReviewedToken, ReviewRefusal> {
        let queued = Instant::now();
        let permit = self.queue.acquire(&claims::namespace(token), deadline).await;
        self.metrics.queued(queued);
        let _permit = permit.map_err(|_| ReviewRefusal::Overloaded)?;
        let _under_way = self.metrics.review_under_way();
        match self.request(token, &[AUDIENCE], deadline).await?.with_audience() {
            ReviewOutcome::Decided(decided) => decided,
            ReviewOutcome::OtherAudience { error } if !self.allows_api_audience => Err(ReviewRefusal::Invalid(error)),
            ReviewOutcome::OtherAudience { .. } => {
                let token = self.request(token, &[], deadline).await?.without_audience()?;
                self.warn_of_api_audience(&token.username);
                Ok(token)
            }
        }
    }

    /// Sends a review until it is answered.
    async fn request(
        &self,
        token: &str,
        audiences: &[&'static str],
        deadline: Instant,
    ) -> Result<ReviewAnswer, ReviewRefusal> {
        let spec = TokenReviewSpec { token, audiences };
        let review = TokenReviewBody { api_version: "authentication.k8s.io/v1", kind: "TokenReview", spec };
        let body = serde_json::to_vec(&review).map_err(|error| ReviewRefusal::Denied(error.to_string()))?;
        let mut failures = 0;
        loop {
            let request = Request::post(PATH).header(header::CONTENT_TYPE, "application/json").body(body.clone());
            let request = request.map_err(|error| ReviewRefusal::Denied(error.to_string()))?;
            let end = deadline.min(Instant::now() + REQUEST_TIMEOUT);
            // In a box, because most calls wait for a permit and have no request.
            let answer = Box::pin(self.client.request::<ReviewAnswer>(request));
            let why = match timeout_at(end, answer).await {
                Ok(Ok(answer)) => return Ok(answer),
                Ok(Err(kube::Error::Api(status))) if !is_transient(status.code) => {
                    if self.denied.allows() {
                        error!(error = status.message, "the API server refuses to review tokens");
                    }
                    return Err(ReviewRefusal::Denied(status.message.clone()));
                }
                Ok(Err(error)) => client::describe(&error),
                Err(_) => "the API server did not answer in time".to_owned(),
            };
            let next = Instant::now() + backoff(failures, RETRY.0, RETRY.1);
            if next >= deadline {
                if self.unanswered.allows() {
                    error!(error = why, "could not review a token");
                }
                return Err(ReviewRefusal::Unavailable(why));
            }
            failures += 1;
            sleep_until(next).await;
        }
    }

    /// Names the fallback once a day: every token of a ServiceAccount for the API server is then a credential of the
    /// mesh.
    fn warn_of_api_audience(&self, username: &str) {
        if self.warnings.allows() {
            warn!(
                username,
                audience = AUDIENCE,
                "accepted a token without the audience, as Linkerd does: set -allow-api-audience=false, or --identity-allow-api-audience=false of the manager, to refuse such tokens"
            );
        }
    }
}

/// Whether another request may succeed.
fn is_transient(code: u16) -> bool {
    code == 429 || code >= 500
}

#[cfg(test)]
mod tests;
