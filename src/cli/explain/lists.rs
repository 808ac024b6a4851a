//! Lists the workloads of the cluster once, with the projections that the rollout engine uses.
//!
//! In: a client. Out: a [`State`] of the kinds that the engine watches. Always holds: lists are read in pages; an
//! object that cannot be decoded is named on standard error and skipped.

use anyhow::{Context, Result};
use k8s_openapi::api::{
    apps::v1::{DaemonSet, Deployment, ReplicaSet, StatefulSet},
    batch::v1::Job,
};
use kube::{Api, Client, Error, ResourceExt, api::ListParams};

use crate::{
    cli::terminal::note,
    cluster::{
        Kind, Problems, State, Watched,
        kinds::{
            apps_workload::AppsWorkloadOf, disruption_budget::DisruptionBudget, linkerd_trust::LinkerdTrust,
            namespace::Namespace, owner::IntermediateOwner, pod::Pod,
        },
        watch::guarded::Guarded,
    },
};

/// The number of objects in a page of a list. Pods are large.
const PAGE: u32 = 500;

/// # Errors
/// Fails if a kind cannot be listed, and names the kind and the namespace.
pub(super) async fn workloads(client: &Client) -> Result<State> {
    let mut state = State::default();
    add::<Namespace>(client, &mut state).await?;
    add::<AppsWorkloadOf<Deployment>>(client, &mut state).await?;
    add::<AppsWorkloadOf<StatefulSet>>(client, &mut state).await?;
    add::<AppsWorkloadOf<DaemonSet>>(client, &mut state).await?;
    add::<IntermediateOwner<ReplicaSet>>(client, &mut state).await?;
    add::<IntermediateOwner<Job>>(client, &mut state).await?;
    add::<DisruptionBudget>(client, &mut state).await?;
    // Without it, Pods are compared with the bundle. Its CRD may be missing.
    if let Err(error) = add::<LinkerdTrust>(client, &mut state).await
        && !matches!(error.downcast_ref(), Some(Error::Api(status)) if status.code == 404)
    {
        note(format_args!("{error:#}"));
    }
    // Pods are listed last, so that the workloads of Pods that are created in the meantime are known.
    add::<Pod>(client, &mut state).await?;
    Ok(state)
}

async fn add<T: Watched>(client: &Client, state: &mut State) -> Result<()> {
    let resource = T::KIND.resource();
    let all: Api<Guarded<T::Wire>> = Api::all(client.clone());
    let mut params = ListParams::default().limit(PAGE);
    loop {
        let page = all.list(&params).await.with_context(|| match T::KIND {
            Kind::Namespace => format!("cannot list {resource}"),
            _ => format!("cannot list {resource} in all namespaces"),
        })?;
        for object in page.items {
            match object {
                Guarded::Valid(object) => drop(T::project(object, &mut Problems::default()).apply(state)),
                Guarded::Invalid { ref error, .. } => {
                    let namespace = object.namespace().map(|namespace| format!("{namespace}/")).unwrap_or_default();
                    note(format_args!(
                        "skipped {resource} {namespace}{}, because it cannot be decoded: {error}",
                        object.name_any()
                    ));
                }
            }
        }
        match page.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => params = params.continue_token(&token),
            None => return Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use http::{Request, Response};
    use kube::client::Body;
    use serde_json::{Value, json};

    use super::*;
    use crate::api::NamespacedName;

    /// A client of an API server whose answer depends on the path and the query.
    fn client(answer: impl Fn(&str, &str) -> (u16, Value) + Clone + Send + 'static) -> Client {
        let service = tower::service_fn(move |request: Request<Body>| {
            let (code, answer) = answer(request.uri().path(), request.uri().query().unwrap_or_default());
            let response = Response::builder().status(code).body(Body::from(answer.to_string().into_bytes()));
            async move { Ok::<_, std::convert::Infallible>(response.unwrap()) }
        });
        Client::new(service, "default")
    }

    fn page(token: &str, items: &Value) -> Value {
        json!({"apiVersion": "v1", "kind": "List", "metadata": {"continue": token}, "items": items})
    }

    #[tokio::test]
    async fn all_pages_are_read_and_an_invalid_object_is_skipped() {
        let pod = |name: &str| json!({"metadata": {"name": name, "namespace": "app"}});
        let client = client(move |path, query| {
            assert!(query.contains("limit=500"), "{path}?{query}");
            let answer = match (path, query.contains("continue=next")) {
                ("/api/v1/pods", false) => page("next", &json!([pod("a")])),
                ("/api/v1/pods", true) => {
                    page("", &json!([{"metadata": {"name": "b", "namespace": "app"}, "spec": 7}, pod("c")]))
                }
                _ => page("", &json!([])),
            };
            (200, answer)
        });
        let state = workloads(&client).await.unwrap();
        let mut pods: Vec<NamespacedName> = state.pods.iter().map(|pod| pod.key.clone()).collect();
        pods.sort();
        assert_eq!(pods, ["a", "c"].map(|name| NamespacedName::new("app", name)));
    }

    #[tokio::test]
    async fn a_missing_permission_is_reported_with_its_kind_and_scope() {
        let cases = [
            ("/api/v1/namespaces", "cannot list namespaces: "),
            ("/apis/policy/v1/poddisruptionbudgets", "cannot list poddisruptionbudgets.policy in all namespaces: "),
        ];
        for (forbidden, expected) in cases {
            let client = client(move |path, _| match path == forbidden {
                true => (
                    403,
                    json!({"kind": "Status", "status": "Failure", "code": 403, "reason": "Forbidden", "message": "no"}),
                ),
                false => (200, page("", &json!([]))),
            });
            let error = workloads(&client).await.err().unwrap();
            assert_eq!(crate::client::describe(&*error), format!("{expected}no"));
        }
    }
}
