//! Open streams. The table of cases (`e2e/cases`) has the answers to new ones.

use linkerd2_proxy_api::destination::DestinationProfile;
use serde_json::{Value, json};
use tonic::Code;

use super::{ProfileAnswer, answer_profile, answer_profile_while_open};
use crate::{
    answers::settings,
    oracle::{ApiState, Key, Request},
};

const NAME: &str = "web.prod.svc.cluster.local";

fn state(objects: &[Value]) -> ApiState {
    let mut state = ApiState::default();
    for object in objects {
        state.put(&Key::of(object).unwrap(), object).unwrap();
    }
    state
}

fn request(path: &str) -> Request {
    Request { path: path.to_owned(), token: String::new() }
}

fn new(objects: &[Value], path: &str) -> ProfileAnswer {
    answer_profile(&state(objects), &settings().0, &request(path))
}

fn open(objects: &[Value], path: &str) -> ProfileAnswer {
    answer_profile_while_open(&state(objects), &settings().0, &request(path))
}

fn profile(answer: ProfileAnswer) -> DestinationProfile {
    match answer {
        ProfileAnswer::Profile(profile) => *profile,
        refused => panic!("{refused:?}"),
    }
}

fn service(spec: &Value) -> Value {
    json!({"kind": "Service", "spec": spec, "metadata": {"name": "web", "namespace": "prod",
        "annotations": {"config.linkerd.io/opaque-ports": "80"}}})
}

#[test]
fn an_open_stream_for_a_name_survives_the_deletion_of_its_service() {
    let service = service(&json!({"clusterIP": "10.43.0.1", "ports": [{"port": 80}]}));
    let routes = json!([{"name": "a", "condition": {"pathRegex": "/"}}]);
    let of_service =
        json!({"kind": "ServiceProfile", "metadata": {"name": NAME, "namespace": "prod"}, "spec": {"routes": routes}});
    let (path, both) = (format!("{NAME}:80"), [service, of_service.clone()]);
    let before = profile(new(&both, &path));
    assert!(before.opaque_protocol && before.routes.len() == 1);
    assert_eq!(open(&both, &path), new(&both, &path));

    let left = [of_service];
    let missing = ProfileAnswer::Refused(Code::Unknown, "service \"web\" not found".to_owned());
    assert_eq!(new(&left, &path), missing);
    assert_eq!(profile(open(&left, &path)), DestinationProfile { opaque_protocol: false, ..before });
    // For any port, because no Service restricts it; and with the default list.
    let other = profile(open(&left, &format!("{NAME}:25")));
    assert!(other.opaque_protocol && other.routes.len() == 1);
    assert!(profile(open(&left, "10.43.0.1:80")).endpoint.is_some(), "the address is then unknown");
}

#[test]
fn other_open_streams_have_the_answer_of_new_ones() {
    let external = [service(&json!({"type": "ExternalName", "ports": [{"port": 80}]}))];
    assert!(matches!(open(&external, NAME), ProfileAnswer::Refused(Code::InvalidArgument, _)));
    let moved = [service(&json!({"ports": [{"port": 81}]}))];
    assert_eq!(profile(open(&moved, NAME)), DestinationProfile::default());
    let slice = json!({"kind": "EndpointSlice", "addressType": "IPv4",
        "endpoints": [{"hostname": "db-0", "addresses": ["10.0.0.7"]}],
        "metadata": {"name": "web", "namespace": "prod", "labels": {"kubernetes.io/service-name": "web"}}});
    let path = format!("db-0.{NAME}:80");
    assert!(profile(open(std::slice::from_ref(&slice), &path)).endpoint.is_some());
    assert!(matches!(open(&[], &path), ProfileAnswer::Refused(Code::NotFound, _)));
}
