//! Decides whether the end of a healthy stream was needed.
//!
//! ```text
//!   each change of a world ──▶ the kind of each reply, by the oracle ──▶ when it last changed ◀── a stream ended
//! ```
//!
//! * In: the objects of a world after each change; ends of streams. Out: whether an end has an explanation.
//! * Always: a stream may end only when the kind of its reply changes, for example because its Service becomes an
//!   ExternalName, because a second Pod has its address, or because the endpoint of its hostname is a Pod no longer. Only some kinds of objects change the kind of a reply, so only
//!   those are kept.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use anyhow::Result;
use e2e::{
    oracle::{ApiState, ObjectKind, Settings},
    world::{Change, World},
};

use crate::call::{Call, Method};

/// The longest time from a change until a stream ends for it: a watch whose connection was cut is resumed after a
/// backoff of up to 30 s, and may then fail again.
const LATEST: Duration = Duration::from_secs(90);

/// The calls of one world, in the names of that world.
pub(crate) struct History {
    settings: Settings,
    calls: Vec<Call>,
    state: Mutex<HistoryState>,
}

struct HistoryState {
    objects: ApiState,
    kinds: Vec<(String, Option<Instant>)>,
}

// === impl History ===

impl History {
    pub(crate) fn new(settings: &Settings, calls: Vec<Call>, world: &World) -> Result<Arc<Self>> {
        let mut objects = ApiState::default();
        for (key, object) in world.json() {
            if is_kept(key.kind) {
                objects.put(key, object)?;
            }
        }
        let kinds = calls.iter().map(|call| (call.kind_while_open(&objects, settings), None)).collect();
        let state = Mutex::new(HistoryState { objects, kinds });
        Ok(Arc::new(Self { settings: settings.clone(), calls, state }))
    }

    /// Records a change, before it is written.
    pub(crate) fn record(&self, change: &Change) -> Result<()> {
        let (Change::Applied { key, .. } | Change::Deleted { key, .. }) = change;
        if !is_kept(key.kind) {
            return Ok(());
        }
        let mut state = self.lock();
        let HistoryState { objects, kinds } = &mut *state;
        match change {
            Change::Applied { key, object } => objects.put(key, object)?,
            Change::Deleted { key, .. } => objects.remove(key),
        }
        // Which Pod or workload has an address matters for profiles only.
        let all = matches!(key.kind, ObjectKind::Service | ObjectKind::EndpointSlice);
        for (call, (kind, changed)) in self.calls.iter().zip(kinds) {
            if !all && call.method == Method::Get {
                continue;
            }
            let now = call.kind_while_open(objects, &self.settings);
            if now != *kind {
                (*kind, *changed) = (now, Some(Instant::now()));
            }
        }
        Ok(())
    }

    /// Returns whether a stream of this call had to end now, or shortly before.
    pub(crate) fn explains_end_of(&self, call: usize) -> bool {
        let state = self.lock();
        state.kinds.get(call).is_some_and(|(_, changed)| changed.is_some_and(|changed| changed.elapsed() < LATEST))
    }

    fn lock(&self) -> MutexGuard<'_, HistoryState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn is_kept(kind: ObjectKind) -> bool {
    matches!(kind, ObjectKind::Service | ObjectKind::EndpointSlice | ObjectKind::Pod | ObjectKind::ExternalWorkload)
}

#[cfg(test)]
mod tests {
    use e2e::{
        answers::settings,
        oracle::{Key, Request},
    };
    use serde_json::{Value, json};

    use super::*;

    fn history() -> Arc<History> {
        let call = |method, host: &str| Call {
            method,
            request: Request { path: format!("{host}.world.svc.cluster.local:80"), token: String::new() },
        };
        let calls =
            vec![call(Method::Get, "web"), call(Method::GetProfile, "web"), call(Method::GetProfile, "soak-0.web")];
        let history = History::new(&settings().0, calls, &World::valid(1).unwrap()).unwrap();
        history.record(&service(&json!({"ports": [{"port": 80}]}))).unwrap();
        let mut state = history.lock();
        state.kinds.iter_mut().for_each(|(_, changed)| *changed = None);
        drop(state);
        history
    }

    fn service(spec: &Value) -> Change {
        let object = json!({"kind": "Service", "apiVersion": "v1", "metadata": {"namespace": "world", "name": "web"},
            "spec": spec});
        Change::Applied { key: Key::of(&object).unwrap(), object }
    }

    #[test]
    fn a_change_of_ports_or_a_deletion_explains_no_end() {
        let history = history();
        history.record(&service(&json!({"ports": [{"port": 81}]}))).unwrap();
        assert!(!history.explains_end_of(0) && !history.explains_end_of(1));
        let Change::Applied { key, object } = service(&json!({})) else { panic!("not an applied change") };
        history.record(&Change::Deleted { key, object }).unwrap();
        assert!(!history.explains_end_of(0) && !history.explains_end_of(1));
        assert!(!history.explains_end_of(3), "an unknown call");
    }

    /// The address stays the same, and so does the profile.
    #[test]
    fn a_hostname_whose_endpoint_is_a_pod_no_longer_explains_the_end() {
        let history = history();
        let applied = |object: Value| Change::Applied { key: Key::of(&object).unwrap(), object };
        let pod = json!({"kind": "Pod", "metadata": {"namespace": "world", "name": "soak-0"},
            "status": {"phase": "Running", "podIP": "10.0.0.1", "podIPs": [{"ip": "10.0.0.1"}]}});
        let slice = |target: Value| {
            let endpoint = json!({"addresses": ["10.0.0.1"], "hostname": "soak-0", "targetRef": target});
            json!({"kind": "EndpointSlice", "addressType": "IPv4", "endpoints": [endpoint],
                "metadata": {"namespace": "world", "name": "soak", "labels": {"kubernetes.io/service-name": "web"}}})
        };
        history.record(&applied(pod)).unwrap();
        history.record(&applied(slice(json!({"kind": "Pod", "name": "soak-0"})))).unwrap();
        history.lock().kinds.iter_mut().for_each(|(_, changed)| *changed = None);
        history.record(&applied(slice(Value::Null))).unwrap();
        assert!(history.explains_end_of(2) && !history.explains_end_of(1));
    }

    #[test]
    fn an_external_name_explains_the_end_also_when_it_was_reverted() {
        let history = history();
        let external = json!({"type": "ExternalName", "externalName": "example.com", "ports": [{"port": 80}]});
        history.record(&service(&external)).unwrap();
        history.record(&service(&json!({"ports": [{"port": 80}]}))).unwrap();
        assert!(history.explains_end_of(0) && history.explains_end_of(1));
    }
}
