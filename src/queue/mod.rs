//! Queues of keys: a [`WorkQueue`] feeds a controller, a [`DirtySet`] feeds a task that processes all marked keys at
//! once: the publisher of discovery, or the rollout engine.

mod dirty_set;
mod fair_queue;
mod work_queue;

pub use dirty_set::DirtySet;
pub use work_queue::WorkQueue;
