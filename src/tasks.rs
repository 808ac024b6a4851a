//! The tasks of the process. Every task has an owner: a task that ends early stops the process, which reports its name.

use std::{collections::HashMap, future::Future, time::Duration};

use tokio::task::{Id, JoinSet};
use tracing::warn;

/// A group of tasks that stop together. Dropping the group aborts them.
#[derive(Default)]
pub struct Tasks {
    set: JoinSet<()>,
    names: HashMap<Id, &'static str>,
}

impl Tasks {
    pub fn spawn(&mut self, name: &'static str, task: impl Future<Output = ()> + Send + 'static) {
        let id = self.set.spawn(task).id();
        self.names.insert(id, name);
    }

    /// Waits until a task ends, and returns a sentence with its name and the reason. Waits forever if the group is
    /// empty.
    pub async fn ended(&mut self) -> String {
        match self.set.join_next_with_id().await {
            None => std::future::pending().await,
            Some(Ok((id, ()))) => format!("task {} ended unexpectedly", self.name(id)),
            Some(Err(error)) => format!("task {} ended: {error}", self.name(error.id())),
        }
    }

    /// Waits for all tasks to end; the caller has already requested them to stop. Aborts tasks that exceed the
    /// deadline.
    pub async fn finish(mut self, deadline: Duration) {
        let all = async {
            while let Some(ended) = self.set.join_next_with_id().await {
                let id = ended.map_or_else(|error| error.id(), |(id, ())| id);
                self.names.remove(&id);
            }
        };
        if tokio::time::timeout(deadline, all).await.is_err() {
            let names: Vec<_> = self.names.values().copied().collect();
            warn!(tasks = names.join(", "), "tasks did not stop in time and are aborted");
        }
    }

    fn name(&self, id: Id) -> &'static str {
        self.names.get(&id).copied().unwrap_or("(unnamed)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_task_that_ends_or_panics_is_named() {
        let mut tasks = Tasks::default();
        tasks.spawn("watch", std::future::pending());
        tasks.spawn("lease", async {});
        assert_eq!(tasks.ended().await, "task lease ended unexpectedly");
        tasks.spawn("events", async { panic!("out of ink") });
        let ended = tasks.ended().await;
        assert!(ended.starts_with("task events ended") && ended.contains("out of ink"), "{ended}");
    }
}
