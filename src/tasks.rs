//! The tasks of the process, each with an owner: a task that ends early takes the process down with its name.

use std::{collections::HashMap, future::Future, time::Duration};

use tokio::task::{Id, JoinSet};
use tracing::warn;

/// Tasks that are stopped together. Dropping it aborts them.
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

    /// Resolves when one of the tasks has ended, to a sentence that says which and how. Never, while none has.
    pub async fn ended(&mut self) -> String {
        match self.set.join_next_with_id().await {
            None => std::future::pending().await,
            Some(Ok((id, ()))) => format!("task {} ended by itself", self.name(id)),
            Some(Err(error)) => format!("task {} ended: {error}", self.name(error.id())),
        }
    }

    /// Waits for all of them to end, as they were told to; aborts what has not ended by the deadline.
    pub async fn finish(mut self, deadline: Duration) {
        let all = async {
            while let Some(ended) = self.set.join_next_with_id().await {
                let id = ended.map_or_else(|error| error.id(), |(id, ())| id);
                self.names.remove(&id);
            }
        };
        if tokio::time::timeout(deadline, all).await.is_err() {
            let names: Vec<_> = self.names.values().copied().collect();
            warn!(tasks = names.join(", "), "tasks were still at work when the time to stop was over");
        }
    }

    fn name(&self, id: Id) -> &'static str {
        self.names.get(&id).copied().unwrap_or("without a name")
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
        assert_eq!(tasks.ended().await, "task lease ended by itself");
        tasks.spawn("events", async { panic!("out of ink") });
        let ended = tasks.ended().await;
        assert!(ended.starts_with("task events ended") && ended.contains("out of ink"), "{ended}");
    }
}
