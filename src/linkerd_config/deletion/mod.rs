//! The deletion of a LinkerdConfig with our finalizer: by the leader, or without the control plane's namespace.

mod finalize;
pub(super) mod release;
