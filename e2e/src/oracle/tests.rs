//! Open streams. The table of cases (`e2e/cases`) has the answers to new ones.

use serde_json::{Value, json};

use super::{Answer, ApiState, Key, Request, Settings, answer_while_open};
use crate::answers::settings;

fn answer(objects: &[Value]) -> Answer {
    let mut state = ApiState::default();
    for object in objects {
        state.put(&Key::of(object).unwrap(), object).unwrap();
    }
    let request = Request { path: "web.prod.svc.cluster.local:80".to_owned(), token: String::new() };
    let settings: Settings = settings().0;
    answer_while_open(&state, &settings, &request)
}

#[test]
fn an_open_stream_survives_the_deletion_of_its_service_but_not_its_redirection() {
    let service =
        |spec: Value| json!({"kind": "Service", "metadata": {"name": "web", "namespace": "prod"}, "spec": spec});
    let slice = json!({"kind": "EndpointSlice", "addressType": "IPv4", "ports": [{"port": 80}],
        "endpoints": [{"addresses": ["192.0.2.1"]}],
        "metadata": {"name": "web", "namespace": "prod", "labels": {"kubernetes.io/service-name": "web"}}});
    let Answer::Endpoints(endpoints) = answer(&[service(json!({"ports": [{"port": 80}]})), slice.clone()]) else {
        panic!("refused")
    };
    assert_eq!(endpoints.len(), 1);
    assert_eq!(answer(std::slice::from_ref(&slice)), Answer::Endpoints([].into()));
    assert!(matches!(answer(&[service(json!({"type": "ExternalName"})), slice]), Answer::Refused(..)));
}
