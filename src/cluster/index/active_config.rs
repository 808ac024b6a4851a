//! Selects the active LinkerdConfig of a ConfigMap: the one with the highest priority, then the oldest, then the first
//! by name. A resource that is being deleted is never active. Pure.

use std::{cmp::Reverse, sync::Arc};

use crate::{
    api::NamespacedName,
    cluster::{index::store::Store, kinds::linkerd_config::LinkerdConfig},
};

/// Returns the active resource for a ConfigMap.
pub fn of<'a>(configs: &'a Store<LinkerdConfig>, target: &NamespacedName) -> Option<&'a Arc<LinkerdConfig>> {
    first(configs.targeting(target))
}

/// Whether the resource with this name is active for a ConfigMap.
pub fn is_active(configs: &Store<LinkerdConfig>, target: &NamespacedName, name: &str) -> bool {
    of(configs, target).is_some_and(|active| *active.name == *name)
}

/// Returns the active resources for the ConfigMaps of a namespace.
pub fn in_namespace<'a>(
    configs: &'a Store<LinkerdConfig>,
    namespace: &str,
) -> impl Iterator<Item = &'a Arc<LinkerdConfig>> {
    let targets = configs.targets().filter(move |target| *target.namespace == *namespace);
    targets.filter_map(|target| of(configs, target))
}

/// Returns the active one of the resources for a ConfigMap.
pub fn first<C: AsRef<LinkerdConfig>>(configs: impl Iterator<Item = C>) -> Option<C> {
    configs.filter(|config| !config.as_ref().deleting).min_by(|a, b| rank(a.as_ref()).cmp(&rank(b.as_ref())))
}

fn rank(config: &LinkerdConfig) -> impl Ord + use<'_> {
    (Reverse(config.spec.priority), config.created, &config.name)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::cluster::{Problems, Projected, State, Watched};

    const OLD: &str = "2026-01-01T00:00:00Z";
    const NEW: &str = "2026-01-02T00:00:00Z";

    fn apply(state: &mut State, name: &str, priority: i32, created: &str, deleted: Option<&str>) {
        let metadata = json!({"name": name, "uid": name, "creationTimestamp": created, "deletionTimestamp": deleted});
        let object = json!({"metadata": metadata, "spec": {"priority": priority}});
        LinkerdConfig::project(serde_json::from_value(object).unwrap(), &mut Problems::default()).apply(state);
    }

    #[test]
    fn the_highest_priority_then_the_oldest_then_the_first_by_name_is_active() {
        let mut state = State::default();
        let target = NamespacedName::new("linkerd", "linkerd-config");
        let active = |state: &State| {
            let name = of(&state.linkerd_configs, &target).map(|it| it.name.to_string());
            let are_active = ["a", "b", "c", "d"].map(|one| is_active(&state.linkerd_configs, &target, one));
            assert_eq!(are_active, ["a", "b", "c", "d"].map(|one| name.as_deref() == Some(one)));
            name
        };
        for (name, priority, created, expected) in
            [("b", 0, NEW, "b"), ("c", 0, OLD, "c"), ("a", 0, OLD, "a"), ("d", 7, NEW, "d"), ("b", 1, NEW, "d")]
        {
            apply(&mut state, name, priority, created, None);
            assert_eq!(active(&state).as_deref(), Some(expected));
        }
        apply(&mut state, "d", 7, NEW, Some(NEW));
        assert_eq!(active(&state).as_deref(), Some("b"), "a resource that is being deleted is not active");
        assert_eq!(in_namespace(&state.linkerd_configs, "linkerd").count(), 1);
        assert_eq!(in_namespace(&state.linkerd_configs, "other").count(), 0);
        for name in ["b", "a", "c", "d"] {
            LinkerdConfig::remove(&NamespacedName::new("", name), &mut state);
        }
        assert_eq!(active(&state), None);
    }
}
