//! Whether the API server permits this process to review tokens.
//!
//! In: a client. Out: a warning. Always holds: the answer decides nothing, because a permission that is granted later
//! counts at once.

use k8s_openapi::api::authorization::v1::{ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec};
use kube::{Api, Client, api::PostParams};
use tracing::warn;

use crate::client::describe;

/// Asks once, and warns.
pub(super) async fn warn_unless_permitted(client: Client) {
    let attributes = ResourceAttributes {
        group: Some("authentication.k8s.io".to_owned()),
        version: Some("v1".to_owned()),
        resource: Some("tokenreviews".to_owned()),
        verb: Some("create".to_owned()),
        ..ResourceAttributes::default()
    };
    let spec = SelfSubjectAccessReviewSpec { resource_attributes: Some(attributes), ..Default::default() };
    let review = SelfSubjectAccessReview { spec, ..SelfSubjectAccessReview::default() };
    match Api::<SelfSubjectAccessReview>::all(client).create(&PostParams::default(), &review).await {
        Ok(review) => match review.status {
            Some(status) if !status.allowed => {
                let reason = status.reason.unwrap_or_default();
                warn!(reason, "this ServiceAccount may not create tokenreviews, so all certificates are refused");
            }
            _ => {}
        },
        Err(error) => {
            warn!(error = describe(&error), "could not ask whether this ServiceAccount may create tokenreviews");
        }
    }
}
