//! The kubelet of one replica: it mounts two ConfigMaps as files, with a delay.
//!
//! ```text
//!   ConfigMaps ─watch─▶ Published ─lag─▶ Kubelet ─▶ <directory>/config/values, <directory>/identity/trust-roots/ca-bundle.crt
//!                           ▲               ▲
//!                           └──── GET ──────┴─ nudge: an annotation of its Pod changed
//! ```
//!
//! * In: the ConfigMaps and the replica's Pod, from the API server. Out: the files.
//! * Always: a sync writes the newest version of both ConfigMaps, so the lag starts at the first change that is not
//!   written. A nudge causes a sync with the current state of the API server. A file is replaced atomically. Files of a
//!   deleted ConfigMap stay. A ConfigMap that was missing at the start is written immediately when it is created, like
//!   the mount of a Pod that waits for it.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use anyhow::{Context, Result};
use futures::StreamExt;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{
    Api, ResourceExt,
    api::ListParams,
    runtime::{WatchStreamExt, watcher},
};
use tokio::{
    sync::{Notify, watch},
    time::{Instant, sleep_until},
};

use super::injection::Mounts;

/// The ConfigMaps and their mount directories, below `/var/run/linkerd` in Linkerd's containers.
const MOUNTED: [(&str, &str); 2] =
    [("linkerd-config", "config"), ("linkerd-identity-trust-roots", "identity/trust-roots")];

pub(super) type Annotations = BTreeMap<String, String>;

/// The ConfigMaps in the API server, shared by all replicas.
pub(super) struct Published {
    maps: Api<ConfigMap>,
    contents: watch::Sender<Contents>,
}

/// By mount directory.
type Contents = BTreeMap<&'static str, MountedContent>;

struct MountedContent {
    version: u64,
    /// `None` for a missing ConfigMap.
    files: Option<Files>,
}

type Files = BTreeMap<String, String>;

/// The mounted files of a replica, by directory.
#[derive(Default)]
pub(super) struct Mounted(BTreeMap<&'static str, Files>);

pub(super) struct Kubelet {
    directory: PathBuf,
    lag: watch::Sender<Duration>,
    annotations: Mutex<Annotations>,
    nudges: AtomicUsize,
    nudged: Notify,
}

// === impl Published ===

impl Published {
    pub(super) fn new(maps: Api<ConfigMap>) -> Self {
        Self { maps, contents: watch::Sender::default() }
    }

    /// Watches the ConfigMaps forever.
    pub(super) async fn follow(&self) {
        let mut changes = std::pin::pin!(watcher(self.maps.clone(), watcher::Config::default()).default_backoff());
        while let Some(change) = changes.next().await {
            match change {
                Ok(watcher::Event::Apply(map) | watcher::Event::InitApply(map)) => self.offer_map(map),
                Ok(watcher::Event::Delete(map)) => self.offer(&map.name_any(), map.resource_version(), None),
                Ok(_) => {}
                Err(error) => tracing::debug!("watching ConfigMaps for the injector: {error}"),
            }
        }
    }

    /// Lists the ConfigMaps, because the watch may lag behind earlier writes.
    async fn refresh(&self) -> Result<()> {
        let list = self.maps.list(&ListParams::default()).await?;
        for (name, _) in MOUNTED {
            match list.items.iter().find(|map| map.name_any() == name) {
                Some(map) => self.offer_map(map.clone()),
                None => self.offer(name, list.metadata.resource_version.clone(), None),
            }
        }
        Ok(())
    }

    fn offer_map(&self, map: ConfigMap) {
        self.offer(&map.name_any(), map.resource_version(), Some(map.data.unwrap_or_default()));
    }

    /// Keeps the content if it is newer: a watch event may be older than the last list.
    fn offer(&self, name: &str, version: Option<String>, files: Option<Files>) {
        let Some((_, folder)) = MOUNTED.into_iter().find(|(mounted, _)| *mounted == name) else { return };
        let version = version.and_then(|version| version.parse().ok()).unwrap_or_default();
        self.contents.send_if_modified(|contents| {
            let newer = contents.get(folder).is_none_or(|known| known.version < version);
            if newer {
                contents.insert(folder, MountedContent { version, files });
            }
            newer
        });
    }

    /// The current content, as mounted into a Pod that starts now.
    fn newest(&self) -> Mounted {
        let contents = self.contents.borrow();
        let there = contents.iter().filter_map(|(folder, content)| Some((*folder, content.files.clone()?)));
        Mounted(there.collect())
    }
}

// === impl Kubelet ===

impl Kubelet {
    /// The kubelet of a Pod that was created with these annotations.
    pub(super) fn new(directory: &Path, annotations: Annotations, lag: Duration) -> Self {
        Self {
            directory: directory.to_owned(),
            lag: watch::Sender::new(lag),
            annotations: Mutex::new(annotations),
            nudges: AtomicUsize::new(0),
            nudged: Notify::new(),
        }
    }

    /// Fills the directory for the first time.
    pub(super) async fn mount(&self, published: &Published) -> Result<Mounted> {
        published.refresh().await?;
        let mut mounted = Mounted::default();
        self.sync(published.newest(), &mut mounted)?;
        Ok(mounted)
    }

    /// Writes changes forever.
    pub(super) async fn run(self: Arc<Self>, published: Arc<Published>, mut mounted: Mounted) {
        let mut contents = published.contents.subscribe();
        // The ConfigMaps may have changed since the mount.
        contents.mark_changed();
        let mut lag = self.lag.subscribe();
        let mut waiting_since = None;
        loop {
            // Also `None` if the lag is infinite.
            let due = waiting_since.and_then(|since: Instant| since.checked_add(*lag.borrow_and_update()));
            let is_due = tokio::select! {
                _ = contents.changed() => published.newest().0.keys().any(|folder| !mounted.0.contains_key(folder)),
                _ = lag.changed() => false,
                () = self.nudged.notified() => {
                    if let Err(error) = published.refresh().await {
                        tracing::debug!("reading ConfigMaps for the injector: {error:#}");
                    }
                    true
                }
                () = sleep_until(due.unwrap_or_else(Instant::now)), if due.is_some() => true,
            };
            let newest = published.newest();
            if is_due {
                if let Err(error) = self.sync(newest, &mut mounted) {
                    tracing::warn!("writing the files of an injector: {error:#}");
                }
                waiting_since = None;
            } else if newest.0.iter().all(|(folder, files)| mounted.0.get(folder) == Some(files)) {
                waiting_since = None;
            } else {
                waiting_since.get_or_insert_with(Instant::now);
            }
        }
    }

    /// Reads the current files.
    pub(super) fn read(&self) -> Mounts {
        Mounts {
            values: fs::read(self.directory.join("config/values")),
            trust_roots: fs::read(self.directory.join("identity/trust-roots/ca-bundle.crt")),
        }
    }

    pub(super) fn set_lag(&self, lag: Duration) {
        self.lag.send_replace(lag);
    }

    pub(super) fn lag(&self) -> Duration {
        *self.lag.borrow()
    }

    /// Handles the current annotations of the Pod: a change is a nudge.
    pub(super) fn observe_pod(&self, annotations: &Annotations) {
        let mut known = self.annotations.lock().unwrap_or_else(PoisonError::into_inner);
        if *known != *annotations {
            known.clone_from(annotations);
            self.nudges.fetch_add(1, Ordering::SeqCst);
            self.nudged.notify_one();
        }
    }

    pub(super) fn nudges(&self) -> usize {
        self.nudges.load(Ordering::SeqCst)
    }

    /// Writes all existing ConfigMaps; files of missing ones stay.
    fn sync(&self, newest: Mounted, mounted: &mut Mounted) -> Result<()> {
        for (folder, files) in newest.0 {
            replace(&self.directory.join(folder), &files).with_context(|| format!("writing {folder}"))?;
            mounted.0.insert(folder, files);
        }
        Ok(())
    }
}

fn replace(folder: &Path, files: &Files) -> Result<()> {
    fs::create_dir_all(folder)?;
    for (name, text) in files {
        let written = folder.join(format!("..{name}"));
        fs::write(&written, text)?;
        fs::rename(written, folder.join(name))?;
    }
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        if !entry.file_name().to_str().is_some_and(|name| files.contains_key(name)) {
            fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}
