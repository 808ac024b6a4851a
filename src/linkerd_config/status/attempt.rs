//! Compares a status with the present attempt at a resource: its generation and its retry annotation. Pure.
//!
//! In: a resource, its status. Out: whether the status is about that attempt, and the documents that failed in it.
//! Always holds: a failure of another attempt does not count.

use crate::{
    api::linkerd_config::{LinkerdConfigStatus, annotations::RETRY_ANNOTATION},
    cluster::kinds::linkerd_config::LinkerdConfig,
    text::sha256,
};

/// The maximum length of the retry annotation in the status.
const MAX_RETRY_BYTES: usize = 256;

/// Returns the hashes of the documents that failed in the present attempt. If there is any, the declared values are not
/// retried, even over another document of the installer.
pub fn failed_hashes<'a>(config: &LinkerdConfig, status: &'a LinkerdConfigStatus) -> &'a [String] {
    let revisions = status.revisions.as_ref().filter(|_| is_current(config, status));
    revisions.map(|revisions| revisions.failed.as_slice()).unwrap_or_default()
}

/// Whether the status belongs to the current generation and the current retry annotation of the resource.
pub(in crate::linkerd_config) fn is_current(config: &LinkerdConfig, status: &LinkerdConfigStatus) -> bool {
    let tried = status.rollout.as_ref().and_then(|rollout| rollout.retry.clone());
    status.observed_generation == Some(config.generation) && tried == retry(config)
}

/// Returns the retry annotation for the status. A text that is too long is replaced with its hash.
pub(in crate::linkerd_config) fn retry(config: &LinkerdConfig) -> Option<String> {
    let retry = config.annotations.get(RETRY_ANNOTATION)?;
    Some(if retry.len() <= MAX_RETRY_BYTES { retry.to_string() } else { sha256(&**retry) })
}
