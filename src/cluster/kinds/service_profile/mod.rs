//! ServiceProfiles, by the names that they have for the clients of a Service: `web.prod.svc.cluster.local` in the
//! namespace of the client, or in that of the Service.

pub mod route;
mod weight;

use std::sync::Arc;

use route::ProfileContent;

use crate::{
    api::{self, NamespacedName, ServiceProfileSpec},
    cluster::{
        Problems, Projected,
        index::store::{Store, Stored},
    },
};

/// A ServiceProfile.
#[derive(Clone, Debug, PartialEq)]
pub struct ServiceProfile {
    pub key: NamespacedName,
    /// `None` for an invalid ServiceProfile, which is treated as if it did not exist.
    pub content: Option<Arc<ProfileContent>>,
    /// The number of writes that the watch delivered.
    pub updates: u64,
    version: Option<String>,
}

// === impl ServiceProfile ===

impl Projected for ServiceProfile {
    type Wire = api::ServiceProfile;
    const INFORMER_LAG: Option<&'static str> = Some("serviceprofiles_informer_lag_seconds");
    const IS_OPTIONAL: bool = true;

    fn project(wire: api::ServiceProfile, problems: &mut Problems) -> Self {
        let spec = wire.spec.as_ref().map_or("null", |spec| spec.get());
        let spec: Result<Option<ServiceProfileSpec>, _> = serde_json::from_str(spec);
        let content = match spec.map(Option::unwrap_or_default) {
            Ok(spec) => ProfileContent::of(spec, problems).map_err(|invalid| invalid.to_string()),
            Err(error) => Err(error.to_string()),
        };
        let content = content.map_err(|error| {
            problems.add(format_args!("it is invalid and is ignored: {error}"));
        });
        Self {
            key: NamespacedName::of(&wire.metadata),
            content: content.ok().map(Arc::new),
            updates: 1,
            version: wire.metadata.resource_version,
        }
    }
}

impl Stored for ServiceProfile {
    type NamespaceIndex = ();
    type ClusterIndex = ();

    fn key(&self) -> NamespacedName {
        self.key.clone()
    }

    fn inherit(&mut self, known: &Self) {
        self.updates = known.updates + u64::from(known.version != self.version);
    }

    fn is_change(&self, known: &Self) -> bool {
        self.content != known.content
    }
}

impl Store<ServiceProfile> {
    /// The content of a ServiceProfile that exists and is valid.
    pub fn content(&self, key: &NamespacedName) -> Option<&Arc<ProfileContent>> {
        self.get(key)?.content.as_ref()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::cluster::watch::guarded::Guarded;
    use crate::cluster::{State, Watched};

    fn profile(version: &str, spec: &Value) -> (ServiceProfile, usize) {
        let metadata = json!({"name": "web.ns.svc.cluster.local", "namespace": "ns", "resourceVersion": version});
        let object = json!({"metadata": metadata, "spec": spec});
        let mut problems = Problems::default();
        let profile = ServiceProfile::project(serde_json::from_value(object).unwrap(), &mut problems);
        (profile, problems.len())
    }

    #[test]
    fn every_spec_is_read_and_an_invalid_one_is_a_problem() {
        let route = |condition: Value| json!({"routes": [{"name": "r", "condition": condition}]});
        for (spec, valid) in [
            (json!(null), true),
            (json!({}), true),
            (json!({"routes": null, "dstOverrides": null, "retryBudget": null}), true),
            (json!({"opaquePorts": ["80"]}), true),
            (json!({"opaquePorts": {"80": {}}}), true),
            (route(json!({"method": "GET"})), true),
            (route(json!({"not": {"method": "GET"}})), true),
            (route(json!({"not": [{"method": "GET"}]})), true),
            (route(json!({"not": [{"method": "GET"}, {"method": "PUT"}]})), false),
            (route(json!({"not": []})), false),
            (route(json!({"method": 7})), false),
            (json!("text"), false),
            (json!([]), false),
            (json!({"retryBudget": [0.2, 10, "10s"]}), false),
            (route(json!({"all": [[null, null, "GET"]]})), false),
            (json!({"routes": "text"}), false),
            (json!({"routes": [null]}), false),
            (json!({"retryBudget": {"retryRatio": 0.2, "minRetriesPerSecond": -5, "ttl": "10s"}}), false),
        ] {
            let (profile, problems) = profile("1", &spec);
            assert_eq!((profile.content.is_some(), problems), (valid, usize::from(!valid)), "{spec}");
        }
    }

    #[test]
    fn a_profile_that_is_nested_too_deep_replaces_its_predecessor_and_is_invalid() {
        let metadata = r#"{"name": "web.ns.svc.cluster.local", "namespace": "ns"}"#;
        let nested = format!("{}{}", "[".repeat(1_000), "]".repeat(1_000));
        let text = format!(r#"{{"metadata": {metadata}, "spec": {{"routes": {nested}}}}}"#);
        let wire: Guarded<api::ServiceProfile> = serde_json::from_str(&text).unwrap();
        let Guarded::Valid(wire) = wire else { panic!("{wire:?}") };
        assert_eq!(ServiceProfile::project(wire, &mut Problems::default()).content, None);
    }

    #[test]
    fn an_invalid_timeout_is_left_out_alone() {
        let route = json!({"name": "r", "condition": {"method": "GET"}, "timeout": "soon"});
        let (profile, problems) = profile("1", &json!({"routes": [route]}));
        assert_eq!((profile.content.unwrap().routes[0].timeout, problems), (None, 1));
    }

    #[test]
    fn only_a_change_of_the_content_is_a_change_and_every_write_is_counted() {
        let mut state = State::default();
        let updates = |state: &State| state.service_profiles.iter().map(|profile| profile.updates).sum::<u64>();
        let (one, other) = (json!({}), json!({"dstOverrides": [{"authority": "web-2", "weight": 1}]}));
        let changed = |version: &str, spec: &Value, state: &mut State| {
            usize::from(profile(version, spec).0.apply(state).is_some())
        };
        assert_eq!((changed("1", &one, &mut state), updates(&state)), (1, 1));
        assert_eq!((changed("1", &one, &mut state), updates(&state)), (0, 1), "listed again");
        assert_eq!((changed("2", &one, &mut state), updates(&state)), (0, 2), "only the version changed");
        assert_eq!((changed("3", &other, &mut state), updates(&state)), (1, 3));
        assert_eq!((changed("4", &json!("text"), &mut state), updates(&state)), (1, 4));
        let key = NamespacedName::new("ns", "web.ns.svc.cluster.local");
        assert_eq!(state.service_profiles.content(&key), None);
        assert!(ServiceProfile::remove(&key, &mut state).is_some());
        assert!(state.service_profiles.is_empty());
    }
}
