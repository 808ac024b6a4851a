use std::{
    convert::Infallible,
    sync::atomic::{AtomicUsize, Ordering},
};

use http::{Response, StatusCode};
use http_body_util::BodyExt;
use kube::client::Body;
use prometheus::Registry;
use serde_json::{Value, json};
use tokio::time::sleep;
use tower::service_fn;

use super::*;
use crate::testing::LoggedLines;

const DEADLINE: Duration = Duration::from_secs(8);

/// An API server whose reviews follow a script in the token.
#[derive(Default)]
struct ReviewScript {
    requests: AtomicUsize,
    running: AtomicUsize,
    most: AtomicUsize,
}

// === impl ReviewScript ===

impl ReviewScript {
    async fn answer(&self, request: Request<Body>) -> Response<Body> {
        assert_eq!((request.method().as_str(), request.uri().path()), ("POST", PATH));
        let body = request.into_body().collect().await.unwrap().to_bytes();
        let review: Value = serde_json::from_slice(&body).unwrap();
        assert_eq!(
            (&review["kind"], &review["apiVersion"]),
            (&json!("TokenReview"), &json!("authentication.k8s.io/v1"))
        );
        let token = review["spec"]["token"].as_str().unwrap();
        let audiences = review["spec"]["audiences"].clone();
        let number = self.requests.fetch_add(1, Ordering::Relaxed);
        let running = self.running.fetch_add(1, Ordering::Relaxed) + 1;
        self.most.fetch_max(running, Ordering::Relaxed);
        let user = |name: &str| json!({"authenticated": true, "user": {"username": name}, "audiences": audiences});
        let (code, status) = match token.split(':').collect::<Vec<_>>()[..] {
            ["slow", name] => {
                sleep(Duration::from_secs(2)).await;
                (201, user(name))
            }
            ["hangs", name] if number == 0 => {
                sleep(Duration::from_secs(100)).await;
                (201, user(name))
            }
            ["hangs", name] => (201, user(name)),
            ["flaky", _] if number == 0 => (500, Value::Null),
            ["flaky", name] => (201, user(name)),
            ["code", code] => (code.parse().unwrap(), Value::Null),
            ["api", _] if !audiences.is_null() => (201, json!({"error": "token audiences mismatch"})),
            ["api", name] => (201, json!({"authenticated": true, "user": {"username": name}})),
            ["no"] => (201, json!({})),
            ["ok", name] => (201, user(name)),
            _ => panic!("{token}"),
        };
        self.running.fetch_sub(1, Ordering::Relaxed);
        let answer = match status {
            Value::Null => json!({"kind": "Status", "status": "Failure", "code": code, "message": "no", "reason": "x"}),
            status => json!({"kind": "TokenReview", "status": status}),
        };
        let mut response = Response::new(Body::from(answer.to_string().into_bytes()));
        *response.status_mut() = StatusCode::from_u16(code).unwrap();
        response
    }
}

fn reviewer(at_once: usize, allows_api_audience: bool) -> (Arc<ReviewScript>, Arc<Reviewer>) {
    let script = Arc::<ReviewScript>::default();
    let answers = Arc::clone(&script);
    let service = service_fn(move |request| {
        let script = Arc::clone(&answers);
        async move { Ok::<_, Infallible>(script.answer(request).await) }
    });
    let metrics = IdentityMetrics::register(&Registry::new()).unwrap();
    let client = Client::new(service, "default");
    (script, Arc::new(Reviewer::new(&client, at_once, allows_api_audience, &metrics)))
}

async fn username(reviewer: &Reviewer, token: &str) -> Result<String, ReviewRefusal> {
    (*reviewer.review(token, Instant::now() + DEADLINE).await).clone().map(|token| token.username)
}

#[tokio::test(start_paused = true)]
async fn equal_tokens_are_reviewed_once_and_the_answer_is_used_again_for_a_while() {
    let (script, reviewer) = reviewer(10, false);
    let reviews = (0..20).map(|_| username(&reviewer, "slow:a"));
    for user in futures::future::join_all(reviews).await {
        assert_eq!(user.as_deref(), Ok("a"));
    }
    assert_eq!(username(&reviewer, "slow:a").await.as_deref(), Ok("a"));
    assert_eq!(script.requests.load(Ordering::Relaxed), 1);
    sleep(KEPT_POSITIVE).await;
    assert_eq!(username(&reviewer, "slow:a").await.as_deref(), Ok("a"));
    assert_eq!(script.requests.load(Ordering::Relaxed), 2);
}

#[tokio::test(start_paused = true)]
async fn a_refusal_is_used_again_for_a_second_and_a_failure_is_not() {
    let (script, reviewer) = reviewer(10, false);
    for (token, refusal, second) in
        [("no", ReviewRefusal::Unauthenticated, 1), ("code:403", ReviewRefusal::Denied("no".to_owned()), 2)]
    {
        script.requests.store(0, Ordering::Relaxed);
        assert_eq!(username(&reviewer, token).await, Err(refusal.clone()));
        assert_eq!(username(&reviewer, token).await, Err(refusal.clone()));
        assert_eq!(script.requests.load(Ordering::Relaxed), second, "{token}");
        sleep(KEPT_NEGATIVE).await;
        assert_eq!(username(&reviewer, token).await, Err(refusal));
        assert_eq!(script.requests.load(Ordering::Relaxed), second + 1, "{token}");
    }
}

#[tokio::test(start_paused = true)]
async fn failures_are_retried_until_the_deadline() {
    let begun = Instant::now();
    let (script, flaky) = reviewer(10, false);
    assert_eq!(username(&flaky, "flaky:a").await.as_deref(), Ok("a"));
    assert_eq!(script.requests.load(Ordering::Relaxed), 2);
    let (_, hanging) = reviewer(10, false);
    assert_eq!(username(&hanging, "hangs:a").await.as_deref(), Ok("a"));
    assert!(begun.elapsed() < DEADLINE);
    for code in [429, 500, 503] {
        let begun = Instant::now();
        let refusal = username(&flaky, &format!("code:{code}")).await.unwrap_err();
        assert!(matches!(refusal, ReviewRefusal::Unavailable(_)), "{code}: {refusal:?}");
        let took = begun.elapsed();
        assert!((DEADLINE - Duration::from_secs(2)..=DEADLINE).contains(&took), "{code}: {took:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn at_most_so_many_reviews_run_and_one_that_hangs_delays_no_other() {
    let (script, reviewer) = reviewer(2, false);
    let begun = Instant::now();
    let tokens: Vec<_> = ["a", "b", "c", "d"].map(|name| format!("slow:{name}")).into();
    let reviews = futures::future::join_all(tokens.iter().map(|token| username(&reviewer, token))).await;
    assert!(reviews.iter().all(Result::is_ok), "{reviews:?}");
    assert_eq!((script.most.load(Ordering::Relaxed), begun.elapsed().as_secs()), (2, 4));
    script.requests.store(0, Ordering::Relaxed);
    let (begun, slow) = (Instant::now(), Arc::clone(&reviewer));
    let hanging = tokio::spawn(async move { username(&slow, "hangs:a").await });
    tokio::task::yield_now().await;
    assert_eq!(username(&reviewer, "ok:b").await.as_deref(), Ok("b"));
    assert_eq!(begun.elapsed(), Duration::ZERO);
    assert_eq!(hanging.await.unwrap().as_deref(), Ok("a"));
}

#[tokio::test(start_paused = true)]
async fn a_review_without_audience_is_sent_only_if_it_is_allowed() {
    let (script, strict) = reviewer(10, false);
    let refusal = ReviewRefusal::Invalid("token audiences mismatch".to_owned());
    assert_eq!(username(&strict, "api:a").await, Err(refusal));
    assert_eq!(script.requests.load(Ordering::Relaxed), 1);
    let (script, lenient) = reviewer(10, true);
    assert_eq!(username(&lenient, "api:a").await.as_deref(), Ok("a"));
    assert_eq!(script.requests.load(Ordering::Relaxed), 2);
}

#[tokio::test(start_paused = true)]
async fn a_call_that_is_cancelled_leaves_its_review_to_the_next_one() {
    let (script, reviewer) = reviewer(10, false);
    let (first, second) = (Arc::clone(&reviewer), Arc::clone(&reviewer));
    let first = tokio::spawn(async move { username(&first, "slow:a").await });
    tokio::task::yield_now().await;
    let second = tokio::spawn(async move { username(&second, "slow:a").await });
    tokio::task::yield_now().await;
    first.abort();
    assert_eq!(second.await.unwrap().as_deref(), Ok("a"));
    assert_eq!(script.requests.load(Ordering::Relaxed), 2);
}

#[tokio::test(start_paused = true)]
async fn reviews_that_are_refused_or_not_answered_are_logged_at_once_and_then_seldom() {
    let (log, (_, reviewer)) = (LoggedLines::record(), reviewer(100, false));
    let tokens: Vec<_> = (500..550).map(|code| format!("code:{code}")).collect();
    futures::future::join_all(tokens.iter().map(|token| username(&reviewer, token))).await;
    for _ in 0..100 {
        username(&reviewer, "code:403").await.unwrap_err();
    }
    let lines = || ["could not review a token", "refuses to review tokens"].map(|text| log.with(text).len());
    assert_eq!(lines(), [1, 1]);
    sleep(ERRORS).await;
    username(&reviewer, "code:403").await.unwrap_err();
    assert_eq!(lines(), [1, 2]);
}
