//! How a watch receives the objects of its kind when it begins: in a stream, or in pages.
//!
//! In: the configuration of a watch, and its errors. Out: the configuration with a transport, and the transport to use
//! instead.
//!
//! With a stream, the API server sends the objects as events of the watch itself
//! (<https://kubernetes.io/docs/reference/using-api/api-concepts/#streaming-lists>). A page costs the API server and etcd
//! a pass over all objects: 150,000 Pods take half of the time in a stream. An API server that has no streams refuses the
//! request.

use kube::runtime::watcher::{self, Config};

use crate::response_limit::PageTooLarge;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ListTransport {
    Stream,
    /// The number of objects in a page. It is halved while a page is too large.
    Pages(u32),
}

// === impl ListTransport ===

impl ListTransport {
    pub(super) const PAGES: Self = Self::Pages(250);

    pub(super) fn configure(self, config: &Config) -> Config {
        match self {
            // kube asks for any version; the client asks for the most recent one instead ([`crate::client`]).
            Self::Stream => config.clone().streaming_lists(),
            Self::Pages(objects) => config.clone().page_size(objects),
        }
    }

    /// Returns the transport to use instead because of an error; `None` if another one would not help.
    pub(super) fn instead(self, error: &watcher::Error) -> Option<Self> {
        match (self, error) {
            (Self::Stream, watcher::Error::WatchStartFailed(kube::Error::Api(status)))
                if matches!(status.code, 400 | 422) =>
            {
                Some(Self::PAGES)
            }
            (Self::Pages(objects), error) if objects > 1 && PageTooLarge::caused(error) => {
                Some(Self::Pages(objects / 2))
            }
            _ => None,
        }
    }
}
