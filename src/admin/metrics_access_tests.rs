//! The decisions with literals, and the reviews with a stand-in for the API server.

use std::{
    collections::BTreeMap,
    convert::Infallible,
    sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed},
};

use futures::future::join_all;
use http_body_util::BodyExt;
use kube::client::Body;
use serde_json::{Value, json};

use super::*;

/// The token of Prometheus, and one whose user lacks the permission. All others are unknown to the API server.
const PROMETHEUS: &str = "prometheus";
const TENANT: &str = "tenant";

/// What the API server receives, and how it answers.
#[derive(Default)]
struct ApiServer {
    /// The number of requests by the last part of their path.
    received: Mutex<BTreeMap<String, usize>>,
    /// The last SubjectAccessReview.
    access: Mutex<Value>,
    fails: AtomicBool,
    hangs: AtomicBool,
    under_way: AtomicUsize,
    most_under_way: AtomicUsize,
}

// === impl ApiServer ===

impl ApiServer {
    fn reviews(&self, resource: &str) -> usize {
        self.received.lock().get(resource).copied().unwrap_or_default()
    }

    async fn answer(&self, request: http::Request<Body>) -> Response<Body> {
        let resource = request.uri().path().rsplit('/').next().unwrap().to_owned();
        *self.received.lock().entry(resource.clone()).or_default() += 1;
        let under_way = self.under_way.fetch_add(1, Relaxed) + 1;
        self.most_under_way.fetch_max(under_way, Relaxed);
        if self.hangs.load(Relaxed) {
            std::future::pending::<()>().await;
        }
        tokio::task::yield_now().await;
        self.under_way.fetch_sub(1, Relaxed);
        let body = request.into_body().collect().await.unwrap().to_bytes();
        let mut review: Value = serde_json::from_slice(&body).unwrap();
        if self.fails.load(Relaxed) {
            let status =
                json!({"kind": "Status", "status": "Failure", "message": "no", "reason": "Forbidden", "code": 403});
            return Response::builder().status(403).body(Body::from(status.to_string().into_bytes())).unwrap();
        }
        review["status"] = match resource.as_str() {
            "tokenreviews" => match review["spec"]["token"].as_str().unwrap() {
                known @ (PROMETHEUS | TENANT) => json!({"authenticated": true, "user": {
                    "username": format!("system:serviceaccount:a:{known}"), "uid": "u", "groups": ["g"],
                    "extra": {"authentication.kubernetes.io/pod-name": ["p"]},
                }}),
                _ => json!({"user": {}, "error": "[invalid bearer token]"}),
            },
            _ => json!({"allowed": review["spec"]["user"] == "system:serviceaccount:a:prometheus"}),
        };
        if resource == "subjectaccessreviews" {
            *self.access.lock() = review["spec"].clone();
        }
        Response::new(Body::from(review.to_string().into_bytes()))
    }
}

fn access() -> (Arc<MetricsAccess>, Arc<ApiServer>) {
    let server = Arc::<ApiServer>::default();
    let seen = Arc::clone(&server);
    let service = tower::service_fn(move |request| {
        let seen = Arc::clone(&seen);
        async move { Ok::<_, Infallible>(seen.answer(request).await) }
    });
    (Arc::new(MetricsAccess::new(&Client::new(service, "default"))), server)
}

fn headers(credentials: &[&str]) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for text in credentials {
        headers.append(header::AUTHORIZATION, text.parse().unwrap());
    }
    headers
}

async fn admit(access: &MetricsAccess, token: &str) -> Result<(), MetricsRefusal> {
    access.admit(&headers(&[&format!("Bearer {token}")])).await
}

#[test]
fn only_one_bearer_token_is_read() {
    for (credentials, token) in [
        (&[][..], None),
        (&["Bearer abc"], Some("abc")),
        (&["bearer  abc "], Some("abc")),
        (&["Bearer"], None),
        (&["Bearer "], None),
        (&["Bearer a b"], None),
        (&["Basic YTpi"], None),
        (&["abc"], None),
        (&["Bearer abc", "Bearer abc"], None),
    ] {
        assert_eq!(bearer_token(&headers(credentials)), token, "{credentials:?}");
    }
    let longest = "x".repeat(16384);
    assert!(bearer_token(&headers(&[&format!("Bearer {longest}")])).is_some());
    assert!(bearer_token(&headers(&[&format!("Bearer {longest}x")])).is_none());
}

#[test]
fn a_token_is_authenticated_only_if_the_review_says_so_and_names_a_user() {
    for (status, expected) in [
        (json!({"authenticated": true, "user": {"username": "u"}}), true),
        (json!({"authenticated": false, "user": {"username": "u"}}), false),
        (json!({"user": {"username": "u"}}), false),
        (json!({"authenticated": true, "user": {"username": ""}}), false),
        (json!({"authenticated": true}), false),
        (json!(null), false),
    ] {
        let review = serde_json::from_value(json!({"spec": {}, "status": status})).unwrap();
        assert_eq!(authenticated(review).is_some(), expected, "{status}");
    }
}

#[test]
fn a_user_is_permitted_only_if_the_review_allows_and_does_not_deny() {
    for (status, expected) in [
        (json!({"allowed": true}), true),
        (json!({"allowed": true, "denied": false, "evaluationError": "a role is missing"}), true),
        (json!({"allowed": true, "denied": true}), false),
        (json!({"allowed": false}), false),
        (json!({"allowed": false, "evaluationError": "x"}), false),
        (json!(null), false),
    ] {
        let review = serde_json::from_value(json!({"spec": {}, "status": status})).unwrap();
        assert_eq!(permits(&review), expected, "{status}");
    }
}

#[tokio::test]
async fn the_api_server_decides_and_is_asked_about_the_user_with_all_its_attributes() {
    let (access, server) = access();
    assert_eq!(access.admit(&HeaderMap::new()).await, Err(MetricsRefusal::Unauthenticated));
    assert_eq!(server.reviews("tokenreviews"), 0);
    assert_eq!(admit(&access, PROMETHEUS).await, Ok(()));
    assert_eq!(
        *server.access.lock(),
        json!({
            "user": "system:serviceaccount:a:prometheus", "uid": "u", "groups": ["g"],
            "extra": {"authentication.kubernetes.io/pod-name": ["p"]},
            "nonResourceAttributes": {"path": "/metrics", "verb": "get"},
        })
    );
    assert_eq!(admit(&access, TENANT).await, Err(MetricsRefusal::Forbidden));
    assert_eq!(admit(&access, "invented").await, Err(MetricsRefusal::Unauthenticated));
    assert_eq!((server.reviews("tokenreviews"), server.reviews("subjectaccessreviews")), (3, 2));
}

#[tokio::test(start_paused = true)]
async fn a_review_serves_the_requests_of_a_minute_and_is_then_repeated() {
    let (access, server) = access();
    for _ in 0..4 {
        admit(&access, PROMETHEUS).await.unwrap();
        sleep(Duration::from_secs(14)).await;
    }
    assert_eq!(server.reviews("tokenreviews"), 1);
    sleep(Duration::from_secs(10)).await;
    admit(&access, PROMETHEUS).await.unwrap();
    assert_eq!(server.reviews("tokenreviews"), 2);
}

#[tokio::test(start_paused = true)]
async fn while_reviews_fail_only_a_token_that_was_permitted_before_is_served() {
    for hangs in [false, true] {
        let (access, server) = access();
        let outage = if hangs { &server.hangs } else { &server.fails };
        admit(&access, PROMETHEUS).await.unwrap();
        outage.store(true, Relaxed);
        sleep(Duration::from_secs(120)).await;
        let begun = Instant::now();
        assert_eq!(admit(&access, PROMETHEUS).await, Ok(()));
        assert_eq!(admit(&access, TENANT).await, Err(MetricsRefusal::Unavailable));
        assert!(begun.elapsed() <= 2 * DEADLINE, "{:?}", begun.elapsed());
        // A permission that ended is noticed as soon as the API server answers.
        sleep(Duration::from_secs(3600)).await;
        assert_eq!(admit(&access, PROMETHEUS).await, Err(MetricsRefusal::Unavailable));
        outage.store(false, Relaxed);
        assert_eq!(admit(&access, PROMETHEUS).await, Ok(()));
    }
}

#[tokio::test(start_paused = true)]
async fn invented_tokens_cause_few_reviews_and_do_not_delay_prometheus() {
    let (access, server) = access();
    admit(&access, PROMETHEUS).await.unwrap();
    sleep(Duration::from_secs(61)).await;
    let begun = Instant::now();
    // Half of the clients disconnect at once.
    let flood: Vec<_> = (0..2000)
        .map(|number| {
            let access = Arc::clone(&access);
            tokio::spawn(async move {
                let patience = if number % 2 == 0 { Duration::from_millis(1) } else { 2 * DEADLINE };
                timeout(patience, admit(&access, &format!("invented-{number}"))).await
            })
        })
        .collect();
    tokio::task::yield_now().await;
    assert_eq!(admit(&access, PROMETHEUS).await, Ok(()));
    assert!(begun.elapsed() < PAUSE, "{:?}", begun.elapsed());
    let answers = join_all(flood).await;
    assert!(answers.iter().all(|answer| !matches!(answer, Ok(Ok(Ok(()))))));
    let reviews = server.reviews("tokenreviews");
    assert!((20..=110).contains(&reviews), "{reviews} reviews in {:?}", begun.elapsed());
    assert!(server.most_under_way.load(Relaxed) <= AT_ONCE + 1);
}

#[test]
fn the_answers_are_constant() {
    for (refusal, status, scheme) in [
        (MetricsRefusal::Unauthenticated, 401, Some("Bearer")),
        (MetricsRefusal::Forbidden, 403, None),
        (MetricsRefusal::Unavailable, 503, None),
    ] {
        let response = refusal.response();
        assert_eq!(response.status(), status);
        let given = response.headers().get(header::WWW_AUTHENTICATE).map(|value| value.to_str().unwrap());
        assert_eq!(given, scheme);
    }
}
