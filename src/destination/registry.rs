//! The views that streams subscribe to. Both methods of the API use this registry; each has its own [`ViewIndex`],
//! because their views have different keys.
//!
//! In: clients that subscribe and unsubscribe, and the content that the publisher sends. Out: the latest content of a
//! view, for its streams. Always holds: a view exists while it has clients; after [`Registry::close`] every stream ends
//! and no new stream begins. Views publish state, not events: a slow client receives the latest content, and no queue
//! grows for it.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use parking_lot::{MappedMutexGuard, Mutex, MutexGuard};
use tokio::sync::watch;

use super::{labels::EndReason, observer::DestinationObserver};

/// The views of one method, with all that their streams need.
pub(super) trait ViewKind: Sized + 'static {
    type Key;
    type Content: Clone;
    type Index: ViewIndex<Self>;

    fn registry(&self) -> &Registry<Self>;
    /// Returns the content of a view before its first publication.
    fn unpublished() -> Self::Content;
}

/// The views of one method, by key.
pub(super) trait ViewIndex<K: ViewKind>: Default {
    /// Returns the view of a key, and creates it if it does not exist.
    fn get_or_insert(&mut self, key: K::Key) -> Arc<View<K>>;
    /// Removes this view, but not another view with the same key.
    fn remove(&mut self, view: &Arc<View<K>>);
    /// Iterates over all views. A view may occur more than once.
    fn views(&self) -> impl Iterator<Item = &Arc<View<K>>>;
}

pub(super) struct Registry<K: ViewKind> {
    registered: Mutex<Registered<K>>,
    observer: Arc<DestinationObserver>,
}

struct Registered<K: ViewKind> {
    index: K::Index,
    closed: bool,
}

/// The content that the clients of one key receive.
pub(super) struct View<K: ViewKind> {
    pub(super) key: K::Key,
    clients: AtomicUsize,
    /// The generation of the cluster's state that was published last; `None` if the content is not valid. Locked while
    /// the content is computed.
    pub(super) generation: Mutex<Option<Generation>>,
    pub(super) sender: watch::Sender<Published<K::Content>>,
}

/// When content was read. Of two contents for one key, the one with the greater generation is newer. This cluster's
/// generation is compared first, then the number of the read. No two reads of several clusters happen at the same time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Generation {
    /// The generation of this cluster's state.
    pub(super) local: u64,
    /// The number of the read; 0 if only this cluster was read.
    pub(super) federated: u64,
}

/// The state of a view, for its streams.
#[derive(Clone)]
pub(super) struct Published<C> {
    pub(super) content: C,
    /// The reason why all streams of the view end; `None` while they stay open.
    pub(super) end: Option<EndReason>,
}

/// A client's reference to a view.
pub(super) struct Subscription<K: ViewKind> {
    views: Arc<K>,
    view: Arc<View<K>>,
    receiver: watch::Receiver<Published<K::Content>>,
}

/// The process stops, so no stream may begin.
#[derive(Debug)]
pub(super) struct Stopping;

// === impl Generation ===

impl From<u64> for Generation {
    fn from(local: u64) -> Self {
        Self { local, federated: 0 }
    }
}

// === impl Registry ===

impl<K: ViewKind> Registry<K> {
    pub(super) fn new(observer: &Arc<DestinationObserver>) -> Self {
        let registered = Mutex::new(Registered { index: K::Index::default(), closed: false });
        Self { registered, observer: Arc::clone(observer) }
    }

    /// Locks the index.
    pub(super) fn index(&self) -> MappedMutexGuard<'_, K::Index> {
        MutexGuard::map(self.registered.lock(), |registered| &mut registered.index)
    }

    /// Ends all streams with OK and refuses new streams.
    pub(super) fn close(&self) {
        let views: Vec<Arc<View<K>>> = {
            let mut registered = self.registered.lock();
            registered.closed = true;
            registered.index.views().cloned().collect()
        };
        for view in views {
            view.end(EndReason::Shutdown);
        }
    }

    /// Ends the streams of a view whose content cannot be computed. Their clients reconnect, to another view.
    pub(super) fn reset(&self, view: &Arc<View<K>>) {
        self.index().remove(view);
        view.end(EndReason::Panicked);
    }
}

// === impl View ===

impl<K: ViewKind> View<K> {
    pub(super) fn new(key: K::Key) -> Self {
        let (sender, _) = watch::channel(Published { content: K::unpublished(), end: None });
        Self { key, clients: AtomicUsize::new(0), generation: Mutex::new(None), sender }
    }

    pub(super) fn clients(&self) -> usize {
        self.clients.load(Ordering::Relaxed)
    }

    /// Ends all streams of the view. Only the first reason counts.
    pub(super) fn end(&self, reason: EndReason) {
        self.sender.send_if_modified(|published| {
            let first = published.end.is_none();
            if first {
                published.end = Some(reason);
            }
            first
        });
    }

    pub(super) fn has_ended(&self) -> bool {
        self.sender.borrow().end.is_some()
    }
}

// === impl Subscription ===

impl<K: ViewKind> Subscription<K> {
    /// Subscribes to the view of a key.
    ///
    /// # Errors
    /// When the process stops.
    pub(super) fn new(views: &Arc<K>, key: K::Key) -> Result<Self, Stopping> {
        let registry = views.registry();
        let mut registered = registry.registered.lock();
        if registered.closed {
            return Err(Stopping);
        }
        registry.observer.subscribed();
        let view = registered.index.get_or_insert(key);
        // The client is counted under the lock, so that the view is not removed before that.
        view.clients.fetch_add(1, Ordering::Relaxed);
        let receiver = view.sender.subscribe();
        drop(registered);
        Ok(Self { views: Arc::clone(views), view, receiver })
    }

    pub(super) fn view(&self) -> &Arc<View<K>> {
        &self.view
    }

    pub(super) fn views(&self) -> &Arc<K> {
        &self.views
    }

    /// Returns the latest state, and marks it as seen.
    pub(super) fn latest(&mut self) -> Published<K::Content> {
        #[cfg(test)]
        super::testing::interleave();
        self.receiver.borrow_and_update().clone()
    }

    /// Waits until the view has a state that was not seen yet. Cancel safe.
    pub(super) async fn changed(&mut self) {
        if self.receiver.changed().await.is_err() {
            // This cannot happen: the subscription keeps its view alive, and the view owns the sender.
            std::future::pending::<()>().await;
        }
    }
}

impl<K: ViewKind> Drop for Subscription<K> {
    fn drop(&mut self) {
        let registry = self.views.registry();
        registry.observer.unsubscribed();
        let mut registered = registry.registered.lock();
        if self.view.clients.fetch_sub(1, Ordering::Relaxed) == 1 {
            registered.index.remove(&self.view);
        }
    }
}
