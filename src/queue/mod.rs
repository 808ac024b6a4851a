//! Queues of keys: a [`WorkQueue`] feeds a controller, a [`DirtySet`] feeds a publisher or a planner.

mod dirty_set;
mod turns;
mod work_queue;

pub use dirty_set::DirtySet;
pub use work_queue::WorkQueue;
