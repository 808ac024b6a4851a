//! Carries out what was decided, one write after the other.
//!
//! Always holds: leadership is checked right before each write; the ConfigMap is replaced only as it was looked at, and nothing of
//! it is touched but `data.values` and our annotations; a base is kept before anything is written over it.

use std::sync::Arc;

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
use prometheus::{IntCounterVec, Opts, Registry};
use serde_json::{Value, json};

use super::{
    base::{Base, KEPT},
    drift::{FIELD_MANAGER, HASH_ANNOTATION},
    plan::Write,
    values::Document,
};
use crate::{
    api::{
        CONFIG_GROUP, INJECTOR, LINKERD_CONFIG_KIND, LinkerdConfig, LinkerdConfigStatus, RESTARTED_FOR_ANNOTATION,
        RESTORE_BASE_FINALIZER,
    },
    cluster::kinds::config_map::ConfigMap,
    lease::Fence,
    write::WriteError,
};

const MANAGED_BY_ANNOTATION: &str = "config.linkerd.io/managed-by";
/// A resource that others write to all the time is told later.
const TELL_ATTEMPTS: u32 = 5;
pub(super) const REVISION_ANNOTATION: &str = "config.linkerd.io/base-revision";

pub(super) struct Writer {
    fence: Fence,
    configs: Api<LinkerdConfig>,
    config_maps: Api<core::ConfigMap>,
    revisions: Api<ControllerRevision>,
    deployments: Api<Deployment>,
    writes: IntCounterVec,
}

impl Writer {
    /// # Errors
    /// When the metrics are registered already.
    pub(super) fn new(client: &Client, namespace: &str, fence: Fence, registry: &Registry) -> prometheus::Result<Self> {
        let writes = IntCounterVec::new(
            Opts::new(
                "linkerd_operator_linkerdconfig_configmap_writes_total",
                "Writes of Linkerd's ConfigMap that were sent",
            ),
            &["result"],
        )?;
        for result in WriteError::RESULTS {
            writes.with_label_values(&[result]);
        }
        registry.register(Box::new(writes.clone()))?;
        Ok(Self {
            fence,
            configs: Api::all(client.clone()),
            config_maps: Api::namespaced(client.clone(), namespace),
            revisions: Api::namespaced(client.clone(), namespace),
            deployments: Api::namespaced(client.clone(), namespace),
            writes,
        })
    }

    /// What is kept of a ConfigMap; `Err` inside where the newest cannot be read.
    pub(super) async fn base(&self, config_map: &str) -> Result<Result<Option<Base>, String>, WriteError> {
        Ok(Base::newest(&self.revisions_of(config_map).await?))
    }

    /// The documents that were declared at other revisions over the same base, as far as they are still kept.
    pub(super) async fn declared_at(
        &self,
        revisions: &[i64],
        base: &Base,
        config_map: &str,
    ) -> Result<Vec<Document>, WriteError> {
        Ok(base.declared_at(&self.revisions_of(config_map).await?, revisions))
    }

    /// Keeps a base, and forgets the oldest, but not those that work. With the number that it was kept under.
    pub(super) async fn keep(&self, base: &Base, config_map: &str, good: &[i64]) -> Result<Base, WriteError> {
        let mut revisions = self.revisions_of(config_map).await?;
        let newest = revisions.iter().map(|object| object.revision).max().unwrap_or_default();
        let base = Base { revision: newest + 1, ..base.clone() };
        self.fence.send(self.revisions.create(&params(), &base.to_object(config_map))).await?;
        revisions.sort_by_key(|object| std::cmp::Reverse(object.revision));
        for old in revisions.iter().skip(KEPT - 1).filter(|old| !good.contains(&old.revision)) {
            match self.fence.send(self.revisions.delete(&old.name_any(), &DeleteParams::default())).await {
                Err(WriteError::Refused(status)) if status.is_not_found() => {}
                result => drop(result?),
            }
        }
        Ok(base)
    }

    async fn revisions_of(&self, config_map: &str) -> Result<Vec<ControllerRevision>, WriteError> {
        let of_it = ListParams::default().labels(&Base::selector(config_map));
        Ok(self.fence.send(self.revisions.list(&of_it)).await?.items)
    }

    /// Writes a document in the place of the one that was looked at. Its new version.
    pub(super) async fn write(&self, live: &ConfigMap, write: &Write, revision: i64) -> Result<Arc<str>, WriteError> {
        let annotations = json!({
            MANAGED_BY_ANNOTATION: "linkerd-operator",
            HASH_ANNOTATION: write.hash,
            REVISION_ANNOTATION: revision.to_string(),
        });
        self.patch(&live.key.name, &live.version, &write.values, annotations).await
    }

    /// Puts back what the installer wrote, to the byte, and takes our annotations away: where they are, because only then the
    /// document is ours.
    pub(super) async fn restore(&self, config_map: &str, base: &Base) -> Result<bool, WriteError> {
        // As it is now, and not as the watch showed it last.
        let Some(object) = self.fence.send(self.config_maps.get_opt(config_map)).await? else { return Ok(false) };
        let is_same = object.uid().as_deref().unwrap_or_default() == &*base.uid;
        if !object.annotations().contains_key(HASH_ANNOTATION) || !is_same {
            return Ok(false);
        }
        let annotations = json!({ MANAGED_BY_ANNOTATION: null, HASH_ANNOTATION: null, REVISION_ANNOTATION: null });
        let version = object.resource_version().unwrap_or_default();
        self.patch(config_map, &version, &base.text, annotations).await?;
        Ok(true)
    }

    async fn patch(&self, name: &str, version: &str, values: &str, annotations: Value) -> Result<Arc<str>, WriteError> {
        let patch = json!({
            "metadata": {"resourceVersion": version, "annotations": annotations},
            "data": {"values": values},
        });
        let request = async { self.config_maps.patch(name, &merge(), &Patch::Merge(&patch)).await };
        let result = self.fence.send(request).await;
        if let Some(label) = WriteError::result(&result) {
            self.writes.with_label_values(&[label]).inc();
        }
        Ok(result?.resource_version().unwrap_or_default().into())
    }

    /// Has the injectors made anew, once for each configuration.
    pub(super) async fn restart_injector(&self, configuration: &str) -> Result<(), WriteError> {
        let annotations = json!({ RESTARTED_FOR_ANNOTATION: configuration });
        let patch = json!({"spec": {"template": {"metadata": {"annotations": annotations}}}});
        let request = async { self.deployments.patch(INJECTOR, &merge(), &Patch::Merge(&patch)).await };
        self.fence.send(request).await.map(drop)
    }

    /// Takes away what would have the ConfigMap deleted together with a LinkerdConfig.
    pub(super) async fn disown(&self, live: &ConfigMap) -> Result<(), WriteError> {
        let name = &live.key.name;
        let object = self.fence.send(self.config_maps.get(name)).await?;
        let owners = object.owner_references().iter().filter(|owner| !is_ours(owner));
        let owners: Vec<_> = owners.cloned().collect();
        let patch = json!({"metadata": {"resourceVersion": object.resource_version(), "ownerReferences": owners}});
        self.fence.send(async { self.config_maps.patch(name, &merge(), &Patch::Merge(&patch)).await }).await?;
        Ok(())
    }

    /// Has the deletion of a resource wait for us, or no longer.
    pub(super) async fn finalize(&self, name: &str, wanted: bool) -> Result<(), WriteError> {
        let Some(object) = self.fence.send(self.configs.get_opt(name)).await? else { return Ok(()) };
        let others = object.finalizers().iter().filter(|it| *it != RESTORE_BASE_FINALIZER).cloned();
        let finalizers: Vec<String> = others.chain(wanted.then(|| RESTORE_BASE_FINALIZER.to_owned())).collect();
        let patch = json!({"metadata": {"resourceVersion": object.resource_version(), "finalizers": finalizers}});
        match self.fence.send(async { self.configs.patch(name, &merge(), &Patch::Merge(&patch)).await }).await {
            Err(WriteError::Refused(status)) if status.is_not_found() => Ok(()),
            result => result.map(drop),
        }
    }

    /// Tells a resource about itself, which had this version when it was told last. Of one that is gone nobody wants to know. With
    /// the version that says so.
    ///
    /// A status is also what the next leader remembers: one that was on its way when its sender was replaced must not undo what
    /// the successor has written since. Who still leads tries again.
    pub(super) async fn tell(
        &self,
        name: &str,
        uid: &str,
        version: &str,
        status: &LinkerdConfigStatus,
    ) -> Result<Option<String>, WriteError> {
        let mut told = serde_json::to_value(status).unwrap_or_default();
        say_what_is_not(&mut told);
        let mut version = version.to_owned();
        let mut attempts = 0;
        loop {
            attempts += 1;
            let patch = json!({"metadata": {"uid": uid, "resourceVersion": version}, "status": told});
            let request = async { self.configs.patch_status(name, &merge(), &Patch::Merge(&patch)).await };
            match self.fence.send(request).await {
                Err(WriteError::Refused(status)) if status.is_not_found() => return Ok(None),
                Err(WriteError::Refused(status)) if status.is_conflict() && attempts < TELL_ATTEMPTS => {
                    let now = self.fence.send(self.configs.get_opt(name)).await?;
                    let Some(now) = now.filter(|now| now.uid().as_deref() == Some(uid)) else { return Ok(None) };
                    version = now.resource_version().unwrap_or_default();
                }
                result => return result.map(|object| object.resource_version()),
            }
        }
    }
}

/// What is not there any more has to be said of a merge patch, field by field.
fn say_what_is_not(status: &mut Value) {
    const FIELDS: [&str; 11] = [
        "target",
        "configHash",
        "injectionHash",
        "injector",
        "trustRootsSHA256",
        "proxyVersion",
        "revisions",
        "drift",
        "rollout",
        "deprecatedFields",
        "trustAnchors",
    ];
    const NESTED: [(&str, &[&str]); 5] = [
        ("target", &["uid"]),
        ("revisions", &["base", "lastKnownGood", "lastKnownGoodHash", "lastRolledOut", "failed"]),
        ("drift", &["lastTime", "count", "manager", "paths", "windows"]),
        ("trustAnchors", &["fingerprints", "replaced"]),
        (
            "rollout",
            &[
                "hash",
                "startedAt",
                "completedAt",
                "nextWindow",
                "adoptedAt",
                "baselineHash",
                "rolledBack",
                "retry",
                "summary",
                "workloads",
                "pods",
                "updating",
                "failures",
                "skipped",
            ],
        ),
    ];
    let Some(status) = status.as_object_mut() else { return };
    for field in FIELDS {
        status.entry(field).or_insert(Value::Null);
    }
    for (field, below) in NESTED {
        if let Some(nested) = status.get_mut(field).and_then(Value::as_object_mut) {
            for field in below {
                nested.entry(*field).or_insert(Value::Null);
            }
        }
    }
}

fn is_ours(owner: &OwnerReference) -> bool {
    owner.kind == LINKERD_CONFIG_KIND && owner.api_version.starts_with(CONFIG_GROUP)
}

fn params() -> PostParams {
    PostParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PostParams::default() }
}

fn merge() -> PatchParams {
    PatchParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PatchParams::default() }
}
