//! The record of the proxy's requests.
//!
//! * Always: the log keeps only the newest requests; the counts include all, by method and path without the query.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::{Mutex, MutexGuard, PoisonError},
};

const LOG_LENGTH: usize = 10_000;

/// One request and the status that the client got; `None` if it got none (yet).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordedRequest {
    pub method: String,
    /// The path with the query.
    pub path: String,
    pub status: Option<u16>,
}

impl RecordedRequest {
    /// Whether the request changes an object other than a Lease.
    pub(super) fn is_write(&self) -> bool {
        self.method != "GET" && !self.path.contains("/leases")
    }

    pub(super) fn path_without_query(&self) -> &str {
        self.path.split('?').next().unwrap_or(&self.path)
    }
}

#[derive(Default)]
pub(super) struct Record(Mutex<Inner>);

#[derive(Default)]
struct Inner {
    log: VecDeque<RecordedRequest>,
    /// The number of requests that were dropped from the log.
    forgotten: usize,
    counts: BTreeMap<(String, String), usize>,
}

impl Record {
    /// Records a request. Returns its number for [`Record::answered`].
    pub(super) fn arrived(&self, method: &str, path: &str) -> usize {
        let mut inner = self.lock();
        let bare = path.split('?').next().unwrap_or(path);
        *inner.counts.entry((method.to_owned(), bare.to_owned())).or_default() += 1;
        inner.log.push_back(RecordedRequest { method: method.to_owned(), path: path.to_owned(), status: None });
        if inner.log.len() > LOG_LENGTH {
            inner.log.pop_front();
            inner.forgotten += 1;
        }
        inner.forgotten + inner.log.len() - 1
    }

    pub(super) fn answered(&self, number: usize, status: u16) {
        let mut inner = self.lock();
        let place = number.checked_sub(inner.forgotten);
        if let Some(request) = place.and_then(|place| inner.log.get_mut(place)) {
            request.status = Some(status);
        }
    }

    pub(super) fn log(&self) -> Vec<RecordedRequest> {
        self.lock().log.iter().cloned().collect()
    }

    pub(super) fn count(&self, method: &str, path_contains: &str) -> usize {
        let inner = self.lock();
        let matching = inner.counts.iter().filter(|((own, path), _)| own == method && path.contains(path_contains));
        matching.map(|(_, count)| count).sum()
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
