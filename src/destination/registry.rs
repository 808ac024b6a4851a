//! A client's hold on a view: the view stays for as long as anybody has one.

use std::sync::Arc;

use tokio::sync::watch;

use super::get::views::Views;

/// What clients look at together.
pub(super) trait Viewed: Sized {
    /// Its state, for its streams.
    type Published: Clone;
    /// A client has left.
    fn left(view: &Arc<Self>, views: &Views);
}

pub(super) struct Hold<V: Viewed> {
    views: Arc<Views>,
    view: Arc<V>,
    receiver: watch::Receiver<V::Published>,
}

impl<V: Viewed> Hold<V> {
    /// Of a client that was counted.
    pub(super) fn new(views: &Arc<Views>, view: Arc<V>, receiver: watch::Receiver<V::Published>) -> Self {
        Self { views: Arc::clone(views), view, receiver }
    }

    pub(super) fn view(&self) -> &Arc<V> {
        &self.view
    }

    pub(super) fn views(&self) -> &Arc<Views> {
        &self.views
    }

    /// The view's state, now seen.
    pub(super) fn latest(&mut self) -> V::Published {
        self.receiver.borrow_and_update().clone()
    }

    /// Waits until the view has a state that was not looked at. Nothing is lost when the wait is given up.
    pub(super) async fn changed(&mut self) {
        if self.receiver.changed().await.is_err() {
            // A view is kept by those who hold it, so this cannot be: and if it were, there would be nothing to wait for.
            std::future::pending::<()>().await;
        }
    }
}

impl<V: Viewed> Drop for Hold<V> {
    fn drop(&mut self) {
        V::left(&self.view, &self.views);
    }
}
