//! The open connections of the webhook server.
//!
//! In: the tasks of the connections, the begin and the end of each request. Out: room for a further connection. Always
//! holds: there are at most as many connections as the limit; a connection is closed for another one only while it has
//! no request under way.

use std::{sync::Arc, time::Duration};

use parking_lot::Mutex;
use tokio::{
    task::{AbortHandle, JoinSet},
    time::{Instant, sleep_until, timeout},
};
use tracing::debug;

/// The open connections. Dropping them closes them.
pub(super) struct Connections {
    limit: usize,
    open: Vec<OpenConnection>,
    tasks: JoinSet<()>,
}

struct OpenConnection {
    activity: Arc<Activity>,
    task: AbortHandle,
}

/// The requests of one connection.
pub(super) struct Activity(Mutex<Requested>);

struct Requested {
    under_way: usize,
    /// When the connection was accepted, or its last request ended.
    since: Instant,
}

/// A request that is under way until this is dropped.
pub(super) struct UnderWay(Arc<Activity>);

// === impl Connections ===

impl Connections {
    pub(super) fn new(limit: usize) -> Self {
        Self { limit, open: Vec::new(), tasks: JoinSet::new() }
    }

    /// Makes room for one more connection: at the limit, closes the one that has been idle for the longest time.
    /// Returns false if none is idle.
    pub(super) fn make_room(&mut self) -> bool {
        while self.tasks.try_join_next().is_some() {}
        self.open.retain(|connection| !connection.task.is_finished());
        if self.open.len() < self.limit {
            return true;
        }
        let idle = self.open.iter().enumerate();
        let idle = idle.filter_map(|(index, connection)| Some((connection.activity.idle_since()?, index)));
        let Some((_, longest)) = idle.min() else {
            return false;
        };
        debug!("closing an idle webhook connection, because there are too many");
        self.open.swap_remove(longest).task.abort();
        true
    }

    /// Serves one more connection in its own task.
    pub(super) fn spawn<F>(&mut self, serve: impl FnOnce(Arc<Activity>) -> F)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let activity = Arc::new(Activity::new());
        let task = self.tasks.spawn(serve(Arc::clone(&activity)));
        self.open.push(OpenConnection { activity, task });
    }

    /// Waits for all connections to end; the caller has already requested that. Closes those that exceed the deadline.
    pub(super) async fn finish(mut self, deadline: Duration) {
        let all = async { while self.tasks.join_next().await.is_some() {} };
        if timeout(deadline, all).await.is_err() {
            debug!("some webhook connections did not end in time and are closed");
        }
    }
}

// === impl Activity ===

impl Activity {
    fn new() -> Self {
        Self(Mutex::new(Requested { under_way: 0, since: Instant::now() }))
    }

    /// A request begins.
    pub(super) fn begin(self: &Arc<Self>) -> UnderWay {
        self.0.lock().under_way += 1;
        UnderWay(Arc::clone(self))
    }

    /// Counts the idle time from now on.
    pub(super) fn restart(&self) {
        self.0.lock().since = Instant::now();
    }

    /// Returns `None` while a request is under way.
    fn idle_since(&self) -> Option<Instant> {
        let requested = self.0.lock();
        (requested.under_way == 0).then_some(requested.since)
    }

    /// Waits until the connection has been idle for this time.
    pub(super) async fn idle_for(&self, time: Duration) {
        loop {
            // A request that is under way now cannot have ended that long ago before the time has passed.
            let until = self.idle_since().unwrap_or_else(Instant::now) + time;
            sleep_until(until).await;
            if self.idle_since().is_some_and(|since| since + time <= Instant::now()) {
                return;
            }
        }
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        let mut requested = self.0.0.lock();
        requested.under_way = requested.under_way.saturating_sub(1);
        requested.since = Instant::now();
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use tokio::time::{advance, sleep};

    use super::*;

    /// Adds a silent connection.
    fn add(connections: &mut Connections) -> OpenConnection {
        assert!(connections.make_room());
        connections.spawn(|_| pending());
        let added = connections.open.last().unwrap();
        OpenConnection { activity: Arc::clone(&added.activity), task: added.task.clone() }
    }

    #[tokio::test(start_paused = true)]
    async fn the_connection_that_is_idle_for_the_longest_time_is_closed_for_another() {
        let mut connections = Connections::new(3);
        let mut open = Vec::new();
        for _ in 0..3 {
            open.push(add(&mut connections));
            advance(Duration::from_secs(1)).await;
        }
        // The first one has a request, and that of the second one has just ended.
        let _under_way = open[0].activity.begin();
        drop(open[1].activity.begin());
        add(&mut connections);
        sleep(Duration::from_millis(1)).await;
        assert_eq!(open.iter().map(|it| it.task.is_finished()).collect::<Vec<_>>(), [false, false, true]);
    }

    #[tokio::test]
    async fn there_is_no_room_while_all_connections_have_requests() {
        let mut connections = Connections::new(2);
        let under_way = [add(&mut connections), add(&mut connections)].map(|it| it.activity.begin());
        assert!(!connections.make_room());
        drop(under_way);
        assert!(connections.make_room());
    }

    #[tokio::test(start_paused = true)]
    async fn idle_time_counts_from_the_end_of_the_last_request() {
        let (activity, begun) = (Arc::new(Activity::new()), Instant::now());
        let requests = async {
            sleep(Duration::from_secs(80)).await;
            let _under_way = activity.begin();
            sleep(Duration::from_secs(40)).await;
        };
        tokio::join!(requests, activity.idle_for(Duration::from_secs(90)));
        assert_eq!(begun.elapsed(), Duration::from_secs(210));
    }
}
