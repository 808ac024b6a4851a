//! What waits to be looked at: a [`WorkQueue`] for a controller, a `DirtySet` for a publisher.

pub mod dirty_set;
pub mod work_queue;
