//! The meaning of the API server's answer to a TokenReview. Pure.
//!
//! In: the status of a review. Out: the user of the token, or why there is none. Always holds: the error of a status
//! counts more than `authenticated`; a token that is valid for other audiences only is not accepted.

use std::collections::HashMap;

use serde::{Deserialize, Deserializer};

use super::{AUDIENCE, ReviewRefusal, ReviewedPod, ReviewedToken};

/// A part of the error for a token without the audience, by which Linkerd recognizes it.
const OTHER_AUDIENCE: &str = "token audiences";

/// The part of a TokenReview that is read.
#[derive(Debug, Deserialize)]
pub(super) struct ReviewAnswer {
    #[serde(default, deserialize_with = "or_null")]
    status: ReviewStatus,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct ReviewStatus {
    #[serde(deserialize_with = "or_null")]
    authenticated: bool,
    #[serde(deserialize_with = "or_null")]
    error: String,
    audiences: Option<Vec<String>>,
    #[serde(deserialize_with = "or_null")]
    user: ReviewedUser,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct ReviewedUser {
    #[serde(deserialize_with = "or_null")]
    username: String,
    #[serde(deserialize_with = "or_null")]
    uid: String,
    #[serde(deserialize_with = "or_null")]
    extra: HashMap<String, Option<Vec<String>>>,
}

/// Reads `null` as Go does: as if the field were absent.
fn or_null<'de, D: Deserializer<'de>, T: Default + Deserialize<'de>>(deserializer: D) -> Result<T, D::Error> {
    Option::deserialize(deserializer).map(Option::unwrap_or_default)
}

/// What an answer decides.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum ReviewOutcome {
    Decided(Result<ReviewedToken, ReviewRefusal>),
    /// The token does not have the audience. A review without an audience may accept it.
    OtherAudience {
        error: String,
    },
}

// === impl ReviewAnswer ===

impl ReviewAnswer {
    /// Returns the outcome of a review with the audience.
    pub(super) fn with_audience(self) -> ReviewOutcome {
        let ReviewStatus { authenticated, error, audiences, user } = self.status;
        if error.contains(OTHER_AUDIENCE) {
            return ReviewOutcome::OtherAudience { error };
        }
        if !error.is_empty() {
            return ReviewOutcome::Decided(Err(ReviewRefusal::Invalid(error)));
        }
        let has_audience = audiences.is_none_or(|audiences| audiences.iter().any(|it| it == AUDIENCE));
        ReviewOutcome::Decided(match (authenticated, has_audience) {
            (false, _) => Err(ReviewRefusal::Unauthenticated),
            (true, false) => Err(ReviewRefusal::OtherAudience),
            (true, true) => Ok(user.reviewed(false)),
        })
    }

    /// Returns the outcome of a review without an audience.
    pub(super) fn without_audience(self) -> Result<ReviewedToken, ReviewRefusal> {
        let ReviewStatus { authenticated, error, user, .. } = self.status;
        if !error.is_empty() {
            return Err(ReviewRefusal::Invalid(error));
        }
        if authenticated { Ok(user.reviewed(true)) } else { Err(ReviewRefusal::Unauthenticated) }
    }
}

// === impl ReviewedUser ===

impl ReviewedUser {
    fn reviewed(mut self, by_api_audience: bool) -> ReviewedToken {
        let mut extra = |name: &str| {
            let values = self.extra.remove(&format!("authentication.kubernetes.io/{name}"));
            values.flatten().and_then(|values| values.into_iter().next()).filter(|value| !value.is_empty())
        };
        let pod = extra("pod-name").zip(extra("pod-uid"));
        let pod = pod.map(|(name, uid)| ReviewedPod { name, uid, node: extra("node-name") });
        ReviewedToken { username: self.username, uid: self.uid, pod, by_api_audience }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn answer(status: Value) -> ReviewAnswer {
        let mut review = json!({"kind": "TokenReview", "spec": {"token": "t"}});
        review["status"] = status;
        serde_json::from_value(review).unwrap()
    }

    #[test]
    fn null_is_an_absent_field() {
        let user = json!({"username": "a", "uid": null, "extra": {"b": null}});
        let status = json!({"authenticated": true, "error": null, "audiences": null, "user": user});
        assert_eq!(with_audience(status), ReviewOutcome::Decided(super::tests::user("a")));
        let empty = json!({"authenticated": null, "user": {"extra": null}});
        assert_eq!(with_audience(empty), ReviewOutcome::Decided(Err(ReviewRefusal::Unauthenticated)));
        assert_eq!(with_audience(json!({"user": null})), ReviewOutcome::Decided(Err(ReviewRefusal::Unauthenticated)));
        assert_eq!(with_audience(json!(null)), ReviewOutcome::Decided(Err(ReviewRefusal::Unauthenticated)));
    }

    fn with_audience(status: Value) -> ReviewOutcome {
        answer(status).with_audience()
    }

    fn user(name: &str) -> Result<ReviewedToken, ReviewRefusal> {
        Ok(ReviewedToken { username: name.to_owned(), uid: String::new(), pod: None, by_api_audience: false })
    }

    #[test]
    fn a_token_with_the_audience_has_a_user() {
        for audiences in [json!(["identity.l5d.io"]), json!(["other", "identity.l5d.io"]), json!(null)] {
            let status = json!({"authenticated": true, "user": {"username": "u"}, "audiences": audiences});
            assert_eq!(with_audience(status), ReviewOutcome::Decided(user("u")), "{audiences}");
        }
    }

    #[test]
    fn a_token_that_the_api_server_accepts_for_other_audiences_is_refused() {
        for audiences in [json!(["other"]), json!(["identity.l5d.io "]), json!([])] {
            let status = json!({"authenticated": true, "user": {"username": "u"}, "audiences": audiences});
            let refused = ReviewOutcome::Decided(Err(ReviewRefusal::OtherAudience));
            assert_eq!(with_audience(status), refused, "{audiences}");
        }
    }

    #[test]
    fn the_error_of_a_status_counts_more_than_authenticated() {
        let status = json!({"authenticated": true, "error": "odd", "user": {"username": "u"}});
        let refusal = Err(ReviewRefusal::Invalid("odd".to_owned()));
        assert_eq!(with_audience(status.clone()), ReviewOutcome::Decided(refusal.clone()));
        assert_eq!(answer(status).without_audience(), refusal);
        for empty in [json!({}), json!({"authenticated": false})] {
            assert_eq!(with_audience(empty), ReviewOutcome::Decided(Err(ReviewRefusal::Unauthenticated)));
        }
    }

    #[test]
    fn only_the_error_about_audiences_permits_a_second_review() {
        let error = r#"[invalid bearer token, token audiences ["x"] is invalid for the target audiences ["y"]]"#;
        let outcome = with_audience(json!({"error": error, "authenticated": true}));
        assert_eq!(outcome, ReviewOutcome::OtherAudience { error: error.to_owned() });
        let second = answer(json!({"authenticated": true, "user": {"username": "u"}, "audiences": ["api"]}));
        assert_eq!(second.without_audience().map(|token| token.by_api_audience), Ok(true));
    }

    #[test]
    fn a_bound_token_names_its_pod() {
        let extra = json!({
            "authentication.kubernetes.io/pod-name": ["web-1"],
            "authentication.kubernetes.io/pod-uid": ["1-2"],
            "authentication.kubernetes.io/node-name": ["n"],
        });
        let status = json!({"authenticated": true, "user": {"username": "u", "extra": extra}});
        let ReviewOutcome::Decided(Ok(token)) = with_audience(status) else { panic!("it was refused") };
        let pod = ReviewedPod { name: "web-1".to_owned(), uid: "1-2".to_owned(), node: Some("n".to_owned()) };
        assert_eq!(token.pod, Some(pod));
    }
}
