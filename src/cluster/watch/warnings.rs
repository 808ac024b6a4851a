//! The log lines about unusable objects, at a bounded rate. Pure except for the clock and the log.
//!
//! In: the new problems of each object. Out: a warning, or a line at the level debug. Always holds: a tenant who rewrites
//! objects without end causes few warnings, and takes none from other namespaces; the memory is bounded by the number of
//! namespaces with a problem in one window.

use std::{collections::HashMap, sync::Arc, time::Duration};

use tokio::time::Instant;
use tracing::{debug, warn};

use crate::{api::NamespacedName, cluster::Problems};

/// The maximum number of warnings about one kind in one namespace within [`WINDOW`].
const MAX: u32 = 10;
const WINDOW: Duration = Duration::from_secs(60);

/// The warnings about one kind.
#[derive(Default)]
pub(super) struct Warnings {
    /// When the window of all namespaces began.
    begun: Option<Instant>,
    /// The number of problems in each namespace since then.
    counts: HashMap<Arc<str>, u32>,
}

/// How a problem is logged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WarningLevel {
    Warn,
    /// As a warning that says that the next problems are logged at the level debug.
    LastWarn,
    Debug,
}

// === impl Warnings ===

impl Warnings {
    /// Logs the new problems of an object. `what` says what happens to the object.
    pub(super) fn log(&mut self, what: &str, object: &NamespacedName, resource: &str, problems: &Problems) {
        let level = self.count(&object.namespace);
        match level {
            WarningLevel::Debug => debug!(%object, resource, %problems, "{what}"),
            _ => warn!(%object, resource, %problems, "{what}"),
        }
        if level == WarningLevel::LastWarn {
            let namespace = &object.namespace;
            warn!(%namespace, resource, "logging further problems of this namespace at the level debug for up to {WINDOW:?}");
        }
    }

    /// Counts a problem of an object in this namespace, and returns how to log it.
    fn count(&mut self, namespace: &Arc<str>) -> WarningLevel {
        if self.begun.is_none_or(|begun| begun.elapsed() >= WINDOW) {
            (self.begun, self.counts) = (Some(Instant::now()), HashMap::new());
        }
        let count = self.counts.entry(Arc::clone(namespace)).or_default();
        *count = count.saturating_add(1);
        match *count {
            MAX => WarningLevel::LastWarn,
            count if count < MAX => WarningLevel::Warn,
            _ => WarningLevel::Debug,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Counts this number of problems of one namespace. Returns how many of them are warnings.
    fn warned(warnings: &mut Warnings, namespace: &str, problems: usize) -> usize {
        let namespace = Arc::from(namespace);
        (0..problems).filter(|_| warnings.count(&namespace) != WarningLevel::Debug).count()
    }

    #[tokio::test(start_paused = true)]
    async fn a_tenant_who_rewrites_objects_without_end_causes_ten_warnings_a_minute_and_takes_none_from_others() {
        let mut warnings = Warnings::default();
        assert_eq!(warned(&mut warnings, "hostile", 9), 9);
        assert_eq!(warnings.count(&"hostile".into()), WarningLevel::LastWarn);
        assert_eq!((warned(&mut warnings, "hostile", 1000), warned(&mut warnings, "other", 3)), (0, 3));
        tokio::time::advance(Duration::from_secs(59)).await;
        assert_eq!(warned(&mut warnings, "hostile", 1), 0);
        tokio::time::advance(Duration::from_secs(1)).await;
        assert_eq!(warned(&mut warnings, "hostile", 1000), 10);
    }

    #[tokio::test(start_paused = true)]
    async fn namespaces_without_a_recent_problem_are_forgotten() {
        let mut warnings = Warnings::default();
        for number in 0..1000 {
            tokio::time::advance(Duration::from_secs(1)).await;
            warnings.count(&number.to_string().into());
        }
        assert!(warnings.counts.len() <= 60, "{}", warnings.counts.len());
    }
}
