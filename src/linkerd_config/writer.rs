//! The controller's requests to the API server.
//!
//! Always holds: leadership is checked immediately before each request; the document is replaced only at the
//! resourceVersion that was read, and only `data.values` and our annotations change with it.

use std::{collections::HashSet, sync::Arc};

use k8s_openapi::{
    api::{
        apps::v1::{ControllerRevision, Deployment},
        core::v1 as core,
    },
    apimachinery::pkg::apis::meta::v1::OwnerReference,
};
use kube::{
    Api, Client, ResourceExt,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
};
use prometheus::{IntCounterVec, Registry, register_int_counter_vec_with_registry};
use serde_json::{Value, json};

use super::{
    base::{Base, MAX_REVISIONS},
    drift::{HASH_ANNOTATION, last_writer},
    plan::ConfigMapWrite,
    revert::{
        kept::{self, MAX_REVERTED},
        predecessor::Predecessor,
        restore::{RestorePlan, restore_plan},
    },
};
use crate::{
    api::{
        CONFIG_GROUP, FIELD_MANAGER, INJECTOR, LINKERD_CONFIG_KIND, LinkerdConfig, LinkerdConfigSpec,
        LinkerdConfigStatus, MANAGED_BY_ANNOTATION, OPERATOR, RESTARTED_FOR_ANNOTATION, RESTORE_BASE_FINALIZER,
    },
    cluster::{
        Problems, Projected,
        kinds::config_map::{ConfigMap, ConfigMapObject},
    },
    lease::Fence,
    write::WriteError,
};

/// The maximum number of attempts to write a status in one reconcile.
const MAX_STATUS_ATTEMPTS: u32 = 5;
const REVISION_ANNOTATION: &str = "config.linkerd.io/base-revision";

pub(super) struct ConfigWriter {
    pub(super) fence: Fence,
    configs: Api<LinkerdConfig>,
    pub(super) config_maps: Api<core::ConfigMap>,
    /// The same ConfigMaps, for reads of what the operator projects.
    projected: Api<ConfigMapObject>,
    revisions: Api<ControllerRevision>,
    deployments: Api<Deployment>,
    pub(super) writes: IntCounterVec,
}

/// The outcome of the restore of a base.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum RestoreOutcome {
    /// The ConfigMap does not exist, or has no annotation of ours.
    Nothing,
    Restored,
    /// The text of another writer stays.
    Kept {
        manager: String,
    },
    /// The operator wrote the text, and no base was saved.
    NoBase,
}

impl ConfigWriter {
    /// # Errors
    /// When the metrics are registered already.
    pub(super) fn new(client: &Client, namespace: &str, fence: Fence, registry: &Registry) -> prometheus::Result<Self> {
        let writes = register_int_counter_vec_with_registry!(
            "linkerd_operator_linkerdconfig_configmap_writes_total",
            "Writes of Linkerd's ConfigMap that were sent to the API server, by result",
            &["result"],
            registry
        )?;
        for result in WriteError::RESULTS {
            writes.with_label_values(&[result]);
        }
        Ok(Self {
            fence,
            configs: Api::all(client.clone()),
            config_maps: Api::namespaced(client.clone(), namespace),
            projected: Api::namespaced(client.clone(), namespace),
            revisions: Api::namespaced(client.clone(), namespace),
            deployments: Api::namespaced(client.clone(), namespace),
            writes,
        })
    }

    /// Returns the newest base of a ConfigMap; the inner `Err` is the reason why it cannot be read.
    pub(super) async fn newest_base(&self, config_map: &str) -> Result<Result<Option<Base>, String>, WriteError> {
        Ok(Base::newest(&self.list_revisions(config_map).await?))
    }

    /// Returns the predecessor of the document in effect, if its revision still exists.
    pub(super) async fn predecessor(
        &self,
        status: &LinkerdConfigStatus,
        config_map: &str,
    ) -> Result<Option<Predecessor>, WriteError> {
        Ok(Predecessor::find(status, &self.list_revisions(config_map).await?))
    }

    /// Saves a base, and deletes the oldest revisions except those to keep. Returns the base with its revision.
    pub(super) async fn save_base(&self, base: &Base, config_map: &str, keep: &[i64]) -> Result<Base, WriteError> {
        let mut revisions = self.list_revisions(config_map).await?;
        let newest = revisions.iter().map(|object| object.revision).max().unwrap_or_default();
        let base = match self.create_base(base, config_map, newest.saturating_add(1)).await {
            Err(WriteError::Refused(status)) if status.is_already_exists() => {
                let free = self.free_revision(config_map, newest).await?;
                self.create_base(base, config_map, free).await
            }
            result => result,
        }?;
        revisions.sort_by_key(|object| std::cmp::Reverse(object.revision));
        for old in revisions.iter().skip(MAX_REVISIONS - 1).filter(|old| !keep.contains(&old.revision)) {
            self.delete_revision(old).await?;
        }
        Ok(base)
    }

    async fn create_base(&self, base: &Base, config_map: &str, revision: i64) -> Result<Base, WriteError> {
        let base = Base { revision, ..base.clone() };
        self.fence.send(self.revisions.create(&post_params(), &base.to_object(config_map))).await?;
        Ok(base)
    }

    /// Returns the next revision whose name no ControllerRevision has. Another client may have created one without our
    /// label, which would otherwise keep the base from being saved until a person deletes it.
    async fn free_revision(&self, config_map: &str, newest: i64) -> Result<i64, WriteError> {
        let all = self.fence.send(self.revisions.list_metadata(&ListParams::default())).await?.items;
        let names: HashSet<String> = all.iter().map(ResourceExt::name_any).collect();
        let free = (newest.saturating_add(1)..i64::MAX).find(|it| !names.contains(&Base::name_at(config_map, *it)));
        Ok(free.unwrap_or(i64::MAX))
    }

    async fn list_revisions(&self, config_map: &str) -> Result<Vec<ControllerRevision>, WriteError> {
        let selector = ListParams::default().labels(&Base::selector(config_map));
        Ok(self.fence.send(self.revisions.list(&selector)).await?.items)
    }

    /// Replaces the document at the resourceVersion that the plan was made with. Returns the new resourceVersion.
    pub(super) async fn write_config_map(
        &self,
        live: &ConfigMap,
        write: &ConfigMapWrite,
        revision: i64,
    ) -> Result<Arc<str>, WriteError> {
        let annotations = json!({
            MANAGED_BY_ANNOTATION: OPERATOR,
            HASH_ANNOTATION: write.hash,
            REVISION_ANNOTATION: revision.to_string(),
        });
        self.patch_config_map(&live.key.name, &live.version, Some(&write.values), annotations).await
    }

    /// Keeps a reverted document, and deletes the oldest ones. Returns the name of its ControllerRevision; `None` if the
    /// text must not be kept.
    pub(super) async fn keep_reverted(
        &self,
        config_map: &str,
        text: &str,
        manager: &str,
    ) -> Result<Option<String>, WriteError> {
        if !kept::may_be_kept(text) {
            return Ok(None);
        }
        let latest = ListParams::default().labels(&kept::selector(config_map));
        // The latest list may take 100 ms: the API server waits until its cache has reached etcd's revision, and asks
        // for it at that interval. The revert should not wait for it, so the list may be older at first.
        match self.keep_among(&latest.clone().match_any(), config_map, text, manager).await {
            Err(WriteError::Refused(status)) if status.is_already_exists() => {
                self.keep_among(&latest, config_map, text, manager).await
            }
            result => result,
        }
        .map(Some)
    }

    /// Keeps a document unless the listed ones contain it. Returns the name of its ControllerRevision.
    async fn keep_among(
        &self,
        list: &ListParams,
        config_map: &str,
        text: &str,
        manager: &str,
    ) -> Result<String, WriteError> {
        let mut all = self.fence.send(self.revisions.list(list)).await?.items;
        if let Some(same) = all.iter().find(|object| kept::has_text(object, text)) {
            return Ok(same.name_any());
        }
        all.sort_by_key(|object| std::cmp::Reverse(object.revision));
        let newest = all.first().map(|object| object.revision).unwrap_or_default();
        let object = kept::to_object(config_map, newest.saturating_add(1), text, manager);
        self.fence.send(self.revisions.create(&post_params(), &object)).await?;
        for old in all.iter().skip(MAX_REVERTED - 1) {
            self.delete_revision(old).await?;
        }
        Ok(object.name_any())
    }

    async fn delete_revision(&self, revision: &ControllerRevision) -> Result<(), WriteError> {
        match self.fence.send(self.revisions.delete(&revision.name_any(), &DeleteParams::default())).await {
            Err(WriteError::Refused(status)) if status.is_not_found() => Ok(()),
            result => result.map(drop),
        }
    }

    /// Restores the text of the base byte for byte if the operator wrote the present text, and removes our annotations.
    pub(super) async fn restore_base(
        &self,
        config_map: &str,
        base: Option<&Base>,
    ) -> Result<RestoreOutcome, WriteError> {
        // Read the current object: the watch may lag.
        let Some(object) = self.fence.send(self.projected.get_opt(config_map)).await? else {
            return Ok(RestoreOutcome::Nothing);
        };
        let live = ConfigMap::project(object, &mut Problems::default());
        let plan = restore_plan(&live, base);
        let values = match &plan {
            RestorePlan::Nothing => return Ok(RestoreOutcome::Nothing),
            RestorePlan::NoBase => return Ok(RestoreOutcome::NoBase),
            RestorePlan::WriteBase => base.map(|base| &*base.text),
            RestorePlan::RemoveAnnotations => None,
            RestorePlan::KeepText { values } => values.as_deref(),
        };
        let annotations = json!({ MANAGED_BY_ANNOTATION: null, HASH_ANNOTATION: null, REVISION_ANNOTATION: null });
        self.patch_config_map(config_map, &live.version, values, annotations).await?;
        Ok(match plan {
            RestorePlan::KeepText { .. } => RestoreOutcome::Kept { manager: last_writer(&live) },
            _ => RestoreOutcome::Restored,
        })
    }

    pub(super) async fn patch_config_map(
        &self,
        name: &str,
        version: &str,
        values: Option<&str>,
        annotations: Value,
    ) -> Result<Arc<str>, WriteError> {
        let mut patch = json!({"metadata": {"resourceVersion": version, "annotations": annotations}});
        if let (Some(values), Some(patch)) = (values, patch.as_object_mut()) {
            patch.insert("data".to_owned(), json!({ "values": values }));
        }
        let request = async { self.config_maps.patch(name, &patch_params(), &Patch::Merge(&patch)).await };
        let result = self.fence.send(request).await;
        if let Some(label) = WriteError::result(&result) {
            self.writes.with_label_values(&[label]).inc();
        }
        Ok(result?.resource_version().unwrap_or_default().into())
    }

    /// Restarts the injectors, once for each configuration.
    pub(super) async fn restart_injector(&self, configuration: &str) -> Result<(), WriteError> {
        let annotations = json!({ RESTARTED_FOR_ANNOTATION: configuration });
        let patch = json!({"spec": {"template": {"metadata": {"annotations": annotations}}}});
        let request = async { self.deployments.patch(INJECTOR, &patch_params(), &Patch::Merge(&patch)).await };
        self.fence.send(request).await.map(drop)
    }

    /// Removes the owner references that would delete the ConfigMap together with a LinkerdConfig.
    pub(super) async fn remove_owner_references(&self, live: &ConfigMap) -> Result<(), WriteError> {
        let name = &live.key.name;
        let object = self.fence.send(self.config_maps.get(name)).await?;
        let owners = object.owner_references().iter().filter(|owner| !is_linkerd_config_owner(owner));
        let owners: Vec<_> = owners.cloned().collect();
        let patch = json!({"metadata": {"resourceVersion": object.resource_version(), "ownerReferences": owners}});
        self.fence.send(async { self.config_maps.patch(name, &patch_params(), &Patch::Merge(&patch)).await }).await?;
        Ok(())
    }

    /// Adds or removes our finalizer.
    pub(super) async fn set_finalizer(&self, name: &str, wanted: bool) -> Result<(), WriteError> {
        let Some(object) = self.fence.send(self.configs.get_opt(name)).await? else { return Ok(()) };
        let others = object.finalizers().iter().filter(|it| *it != RESTORE_BASE_FINALIZER).cloned();
        let finalizers: Vec<String> = others.chain(wanted.then(|| RESTORE_BASE_FINALIZER.to_owned())).collect();
        let patch = json!({"metadata": {"resourceVersion": object.resource_version(), "finalizers": finalizers}});
        match self.fence.send(async { self.configs.patch(name, &patch_params(), &Patch::Merge(&patch)).await }).await {
            Err(WriteError::Refused(status)) if status.is_not_found() => Ok(()),
            result => result.map(drop),
        }
    }

    /// Writes the status. `version` is the newest known resourceVersion of the resource. Returns the new
    /// resourceVersion; `None` if the resource was deleted, which is not an error.
    ///
    /// The next leader starts from the status, so a delayed write of a former leader must not undo a later one. Such a
    /// write fails with a conflict, which only a process that still leads retries.
    pub(super) async fn update_status(
        &self,
        name: &str,
        uid: &str,
        version: &str,
        status: &LinkerdConfigStatus,
    ) -> Result<Option<String>, WriteError> {
        // The API server ignores the spec in a write of the status.
        let mut object = LinkerdConfig::new(name, LinkerdConfigSpec::default());
        object.metadata.uid = Some(uid.to_owned());
        object.metadata.resource_version = Some(version.to_owned());
        object.status = Some(status.clone());
        let mut attempts = 0;
        loop {
            attempts += 1;
            let request = async { self.configs.replace_status(name, &post_params(), &object).await };
            match self.fence.send(request).await {
                Err(WriteError::Refused(status)) if status.is_not_found() => return Ok(None),
                Err(WriteError::Refused(status)) if status.is_conflict() && attempts < MAX_STATUS_ATTEMPTS => {
                    let now = self.fence.send(self.configs.get_opt(name)).await?;
                    let Some(now) = now.filter(|now| now.uid().as_deref() == Some(uid)) else { return Ok(None) };
                    object.metadata.resource_version = now.resource_version();
                }
                result => return result.map(|object| object.resource_version()),
            }
        }
    }
}

fn is_linkerd_config_owner(owner: &OwnerReference) -> bool {
    owner.kind == LINKERD_CONFIG_KIND && owner.api_version.starts_with(CONFIG_GROUP)
}

/// Returns the revision in the annotation of the ConfigMap, which any writer may have changed: the one whose declared
/// document it has.
pub(super) fn written_revision(live: &ConfigMap) -> Option<i64> {
    live.annotations.get(REVISION_ANNOTATION)?.parse().ok()
}

pub(super) fn post_params() -> PostParams {
    PostParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PostParams::default() }
}

pub(super) fn patch_params() -> PatchParams {
    PatchParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PatchParams::default() }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use http::{Method, Request, Response};
    use http_body_util::BodyExt;
    use kube::client::Body;
    use tokio_util::sync::CancellationToken;

    use super::*;
    use crate::{
        api::linkerd_config::{RolloutStatus, TargetStatus},
        lease::Leadership,
    };

    /// An API server with one LinkerdConfig. A PUT of the status replaces the status, if uid and resourceVersion match.
    #[derive(Clone)]
    struct FakeApiServer {
        object: Arc<Mutex<Value>>,
        lines: Arc<Mutex<Vec<String>>>,
    }

    impl FakeApiServer {
        fn new(uid: &str, version: &str) -> Self {
            let metadata = json!({"name": "mesh", "uid": uid, "resourceVersion": version});
            let object = json!({"apiVersion": "config.linkerd.io/v1alpha1", "kind": LINKERD_CONFIG_KIND,
                "metadata": metadata, "spec": {"priority": 7}});
            Self { object: Arc::new(Mutex::new(object)), lines: Arc::default() }
        }

        fn writer(&self) -> ConfigWriter {
            let server = self.clone();
            let service = tower::service_fn(move |request: Request<Body>| {
                let server = server.clone();
                async move { Ok::<_, std::convert::Infallible>(server.serve(request).await) }
            });
            let fence = Fence::new(Leadership::for_test(), CancellationToken::new());
            ConfigWriter::new(&Client::new(service, "default"), "linkerd", fence, &Registry::new()).unwrap()
        }

        async fn serve(&self, request: Request<Body>) -> Response<Body> {
            let (parts, body) = request.into_parts();
            let body = body.collect().await.unwrap().to_bytes();
            let body: Value = serde_json::from_slice(&body).unwrap_or_default();
            self.lines.lock().unwrap().push(format!("{} {}", parts.method, parts.uri.path()));
            let mut object = self.object.lock().unwrap();
            let of = |field: &str| (&body["metadata"][field], &object["metadata"][field]);
            let answer = match parts.method {
                Method::GET => object.clone(),
                _ if [of("uid"), of("resourceVersion")].iter().any(|(sent, is)| sent != is) => {
                    json!({"kind": "Status", "status": "Failure", "code": 409, "reason": "Conflict"})
                }
                _ => {
                    let version: u64 = body["metadata"]["resourceVersion"].as_str().unwrap().parse().unwrap();
                    object["metadata"]["resourceVersion"] = json!((version + 1).to_string());
                    object["status"] = body["status"].clone();
                    object.clone()
                }
            };
            let code = answer["code"].as_u64().map_or(200, |code| u16::try_from(code).unwrap());
            Response::builder().status(code).body(Body::from(answer.to_string().into_bytes())).unwrap()
        }

        fn status(&self) -> Value {
            self.object.lock().unwrap()["status"].clone()
        }
    }

    const PUT: &str = "PUT /apis/config.linkerd.io/v1alpha1/linkerdconfigs/mesh/status";
    const GET: &str = "GET /apis/config.linkerd.io/v1alpha1/linkerdconfigs/mesh";

    #[tokio::test]
    async fn a_field_that_is_no_longer_set_disappears_from_the_status() {
        let server = FakeApiServer::new("a", "1");
        let writer = server.writer();
        let target = TargetStatus { uid: Some("uid".into()), name: Some("linkerd-config".into()), namespace: None };
        let rollout = RolloutStatus { retry: Some("1".into()), hash: Some("hash".into()), ..RolloutStatus::default() };
        let full = LinkerdConfigStatus {
            observed_generation: Some(1),
            active: Some(true),
            target: Some(target.clone()),
            config_hash: Some("hash".into()),
            rollout: Some(rollout.clone()),
            deprecated_fields: vec!["spec.proxy.proxyInitImage".into()],
            ..LinkerdConfigStatus::default()
        };
        let version = writer.update_status("mesh", "a", "1", &full).await.unwrap();
        assert_eq!((version.as_deref(), server.status()), (Some("2"), serde_json::to_value(&full).unwrap()));
        let next = LinkerdConfigStatus {
            active: Some(false),
            target: Some(TargetStatus { uid: None, ..target }),
            rollout: Some(RolloutStatus { hash: None, ..rollout }),
            ..LinkerdConfigStatus::default()
        };
        let version = writer.update_status("mesh", "a", "2", &next).await.unwrap();
        assert_eq!(version.as_deref(), Some("3"));
        let expected = json!({"active": false, "target": {"name": "linkerd-config"}, "rollout": {"retry": "1"}});
        assert_eq!(server.status(), expected);
        assert_eq!(*server.lines.lock().unwrap(), [PUT, PUT]);
        assert_eq!(server.object.lock().unwrap()["spec"], json!({"priority": 7}));
    }

    #[tokio::test]
    async fn a_conflict_is_retried_unless_the_resource_was_recreated() {
        let status = LinkerdConfigStatus { active: Some(true), ..LinkerdConfigStatus::default() };
        let server = FakeApiServer::new("a", "5");
        assert_eq!(server.writer().update_status("mesh", "a", "1", &status).await.unwrap().as_deref(), Some("6"));
        assert_eq!(*server.lines.lock().unwrap(), [PUT, GET, PUT]);
        let server = FakeApiServer::new("b", "5");
        assert_eq!(server.writer().update_status("mesh", "a", "5", &status).await.unwrap(), None);
        assert_eq!((server.status(), server.lines.lock().unwrap().len()), (Value::Null, 2));
    }

    #[tokio::test]
    async fn a_reverted_document_that_an_older_list_lacks_is_kept_once() {
        let kept = serde_json::to_value(kept::to_object("linkerd-config", 1, "a: 1", "helm")).unwrap();
        let requests = Arc::new(Mutex::new(Vec::new()));
        let log = Arc::clone(&requests);
        let service = tower::service_fn(move |request: Request<Body>| {
            let is_older = request.uri().query().unwrap_or_default().contains("resourceVersion=0");
            log.lock().unwrap().push(format!("{} {}", request.method(), if is_older { "older" } else { "latest" }));
            let list = |items: &[&Value]| json!({"metadata": {}, "items": items});
            let (code, answer) = match (request.method(), is_older) {
                (&Method::GET, true) => (200, list(&[])),
                (&Method::GET, false) => (200, list(&[&kept])),
                _ => (409, json!({"kind": "Status", "status": "Failure", "code": 409, "reason": "AlreadyExists"})),
            };
            let response = Response::builder().status(code).body(Body::from(answer.to_string().into_bytes()));
            async move { response }
        });
        let fence = Fence::new(Leadership::for_test(), CancellationToken::new());
        let writer = ConfigWriter::new(&Client::new(service, "default"), "linkerd", fence, &Registry::new()).unwrap();
        let name = writer.keep_reverted("linkerd-config", "a: 1", "helm").await.unwrap();
        assert_eq!(name.as_deref(), Some("linkerd-config-reverted-1"));
        assert_eq!(*requests.lock().unwrap(), ["GET older", "POST latest", "GET latest"]);
    }

    /// Another client may create ControllerRevisions with such names, without the label.
    #[tokio::test]
    async fn a_base_gets_the_next_number_whose_name_is_free() {
        let known = serde_json::to_value(Base::new(15, "a: 1", None).unwrap().to_object("linkerd-config")).unwrap();
        let foreign = ["linkerd-config-base-16", "linkerd-config-base-17", "linkerd-config-base-9223372036854775807"];
        let created = Arc::new(Mutex::new(Vec::new()));
        let log = Arc::clone(&created);
        let service = tower::service_fn(move |request: Request<Body>| {
            let (log, known) = (Arc::clone(&log), known.clone());
            async move {
                let (parts, body) = request.into_parts();
                let is_labelled = parts.uri.query().unwrap_or_default().contains("labelSelector");
                let others = foreign.map(|name| json!({"metadata": {"name": name}}));
                let (code, answer) = if parts.method == Method::GET {
                    let items: Vec<_> =
                        [known].into_iter().chain(others.into_iter().filter(|_| !is_labelled)).collect();
                    (200, json!({"metadata": {}, "items": items}))
                } else {
                    let body: Value = serde_json::from_slice(&body.collect().await.unwrap().to_bytes()).unwrap();
                    let name = body["metadata"]["name"].as_str().unwrap().to_owned();
                    let is_taken = foreign.contains(&&*name);
                    log.lock().unwrap().push(name);
                    let exists = json!({"kind": "Status", "status": "Failure", "code": 409, "reason": "AlreadyExists"});
                    if is_taken { (409, exists) } else { (201, body) }
                };
                Response::builder().status(code).body(Body::from(answer.to_string().into_bytes()))
            }
        });
        let fence = Fence::new(Leadership::for_test(), CancellationToken::new());
        let writer = ConfigWriter::new(&Client::new(service, "default"), "linkerd", fence, &Registry::new()).unwrap();
        let base = Base::new(0, "a: 2", None).unwrap();
        let saved = writer.save_base(&base, "linkerd-config", &[]).await.unwrap();
        assert_eq!((saved.revision, &*saved.text), (18, "a: 2"));
        assert_eq!(*created.lock().unwrap(), ["linkerd-config-base-16", "linkerd-config-base-18"]);
    }
}
