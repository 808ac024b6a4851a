//! The observers, which receive the changes of the state.

use std::sync::Arc;

use tokio::time::Instant;

use super::{
    State,
    kinds::{Change, Kind},
};

/// A consumer of the state. It adds the keys that a change affects to its own queue.
pub trait Observer: Send + Sync + 'static {
    /// The kinds that the consumer reads. A kind that no observer reads is not watched.
    fn kinds(&self) -> &'static [Kind];

    /// The part of a kind that the consumer needs. If the observers of a kind need different parts, the whole kind is
    /// watched.
    fn scope(&self, _: Kind) -> WatchScope {
        WatchScope::default()
    }

    /// Whether the process is not ready until each of the consumer's kinds was listed or is known not to be served.
    fn blocks_readiness(&self) -> bool;

    /// Called with all changes that one event, or one whole relist, makes to one of [`Observer::kinds`]. The state
    /// already contains them, and its lock is held. The observer must not block, must do only work in proportion to the
    /// changes, and must queue all affected keys in one operation, so that its consumer never processes a part of a
    /// relist.
    fn changed(&self, state: &State, changes: &[Change], received: Instant);
}

/// The part of a kind that list and watch select.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WatchScope {
    /// `None` for all namespaces.
    pub namespace: Option<Arc<str>>,
    /// A label selector; `None` for all objects.
    pub labels: Option<String>,
    /// A field selector; `None` for all objects.
    pub fields: Option<String>,
}

// === impl WatchScope ===

impl WatchScope {
    /// Returns the part that all observers of the kind need, or `None` if no observer reads the kind.
    pub(super) fn of(kind: Kind, observers: &[Arc<dyn Observer>]) -> Option<Self> {
        let mut scopes = observers.iter().filter(|it| it.kinds().contains(&kind)).map(|observer| observer.scope(kind));
        let first = scopes.next()?;
        Some(if scopes.all(|scope| scope == first) { first } else { Self::default() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Slices(Option<&'static str>);

    impl Observer for Slices {
        fn kinds(&self) -> &'static [Kind] {
            &[Kind::EndpointSlice]
        }

        fn scope(&self, _: Kind) -> WatchScope {
            WatchScope { labels: self.0.map(str::to_owned), ..WatchScope::default() }
        }

        fn blocks_readiness(&self) -> bool {
            false
        }

        fn changed(&self, _: &State, _: &[Change], _: Instant) {}
    }

    #[test]
    fn a_kind_is_watched_in_part_only_if_all_its_observers_need_the_same_part() {
        let scope = |observers: &[Option<&'static str>]| {
            let observers: Vec<Arc<dyn Observer>> =
                observers.iter().map(|labels| Arc::new(Slices(*labels)) as Arc<dyn Observer>).collect();
            (
                WatchScope::of(Kind::EndpointSlice, &observers).map(|scope| scope.labels),
                WatchScope::of(Kind::Pod, &observers),
            )
        };
        assert_eq!(scope(&[]), (None, None));
        assert_eq!(scope(&[Some("a=b"), Some("a=b")]), (Some(Some("a=b".to_owned())), None));
        assert_eq!(scope(&[Some("a=b"), None]), (Some(None), None));
    }
}
