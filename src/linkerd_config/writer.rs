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
    documents::{
        base::{Base, MAX_REVISIONS},
        drift::last_writer,
    },
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
        linkerd_config::annotations::{BASE_REVISION_ANNOTATION, CONFIG_HASH_ANNOTATION},
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

    /// Returns the predecessor of the document in effect; `None` if a rollback has nothing to restore.
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
            CONFIG_HASH_ANNOTATION: write.hash,
            BASE_REVISION_ANNOTATION: revision.to_string(),
        });
        self.patch_config_map(&live.key.name, &live.version, Some(&write.values), annotations).await
    }

    /// Keeps a reverted document, and deletes the oldest ones. Returns the name of its ControllerRevision; `None` if
    /// the text must not be kept.
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
        let annotations = json!({
            MANAGED_BY_ANNOTATION: null,
            CONFIG_HASH_ANNOTATION: null,
            BASE_REVISION_ANNOTATION: null,
        });
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

/// Returns the revision whose declared document the ConfigMap has, from its annotation, which any writer may have
/// changed.
pub(super) fn written_revision(live: &ConfigMap) -> Option<i64> {
    live.annotations.get(BASE_REVISION_ANNOTATION)?.parse().ok()
}

pub(super) fn post_params() -> PostParams {
    PostParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PostParams::default() }
}

pub(super) fn patch_params() -> PatchParams {
    PatchParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PatchParams::default() }
}

#[cfg(test)]
#[path = "writer_tests.rs"]
mod tests;
