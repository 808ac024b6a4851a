//! The operator replaces a root whose key was stolen: over a bridge, in two passes, and while connections are cut.
//!
//! * In: an [`IdentityRun`]. Out: its steps. Always: the operator writes the bundle and the issuer; this file plays the
//!   kubelet, which gives them to the identity service, and creates Pods again.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use anyhow::{Context, Result, bail, ensure};
use tokio::time::{Instant, sleep};

use super::{
    operated::{self, TrustOperator},
    scene::{CLIENT_POD, IDENTITY, LATE, WEB},
    steps::{IdentityRun, PAUSE},
};
use crate::{
    replica::ServerKind::{self, Ours, Theirs},
    traffic::identity::{MeshTrust, RootFolder},
};

/// The operator writes the bundle and the issuer at once. It removes a root when all older certificates have ended, three
/// minutes later, and the identity service has then shown twice, with three minutes between, that its certificates do not need it.
const WRITTEN: Duration = Duration::from_secs(60);
const REMOVED: Duration = Duration::from_secs(720);
/// Injectors may serve an earlier bundle for four minutes.
const INJECTED: Duration = Duration::from_secs(330);
/// The operator asks the identity service every ten seconds.
const CUT: Duration = Duration::from_secs(180);
/// The client's proxy is refused at least once in this time.
const REFUSED: Duration = Duration::from_secs(5);
/// Longer than connections are cut.
const LONG: Duration = Duration::from_secs(30 * 60);

// === impl IdentityRun ===

impl IdentityRun {
    /// Has the operator replace the root of the mesh, with a bridge from the old one.
    pub(super) async fn over_a_bridge(&mut self) -> Result<()> {
        let begun = self.begin("the old root", Theirs).await?;
        self.renewed(begun).await?;
        let mut operator = self.mesh.operate(self.options).await?;
        operator.presented(&self.mesh.control_plane, true).await?;
        let mut begun = self.begin("the operator writes the new root, its issuer and the bridge", Theirs).await?;
        let old = self.mesh.trust.keep(self.folder("old"))?;
        let next = self.declare(&old, "next", true).await?;
        self.mounted(WRITTEN, &[next.root(), next.issuer()], None).await?;
        begun.certificates = self.mesh.certificates().await?;
        self.renewed(begun).await?;
        // Over the bridge, they reach both.
        for is_desired in [true, false] {
            operator.presented(&self.mesh.control_plane, is_desired).await?;
        }
        self.removed(&old, &next).await?;
        operator.presented(&self.mesh.control_plane, true).await?;
        self.replaced(Ours).await?;
        self.starts(LATE, "a new proxy starts").await?;

        operator.behind(&self.mesh.control_plane, &[CLIENT_POD, IDENTITY, WEB]).await?;
        self.identity_created_again(&mut operator, Ours).await?;
        operator.behind(&self.mesh.control_plane, &[CLIENT_POD, WEB]).await?;
        self.only_pods_created_again(&mut operator, Ours).await?;
        operator.is_ready(&self.mesh.control_plane).await?;
        self.replaced(Theirs).await
    }

    /// Has the operator replace the root twice: each proxy starts twice, and then once, while connections are cut.
    pub(super) async fn without_a_bridge(&mut self) -> Result<()> {
        let mut operator = self.mesh.operate(self.options).await?;
        operator.presented(&self.mesh.control_plane, true).await?;
        let first = self.mesh.trust.keep(self.folder("first"))?;
        let second = self.in_two_passes(&mut operator, &first).await?;
        self.while_connections_are_cut(&mut operator, &second).await
    }

    async fn in_two_passes(&mut self, operator: &mut TrustOperator, old: &RootFolder) -> Result<RootFolder> {
        let begun = self.begin("the operator adds the new root, without a bridge", Theirs).await?;
        let next = self.declare(old, "second", false).await?;
        self.mounted(WRITTEN, &[next.root()], None).await?;
        self.renewed(begun).await?;
        operator.behind(&self.mesh.control_plane, &[CLIENT_POD, IDENTITY, WEB]).await?;
        self.restarted(operator).await?;
        let mut begun = self.begin("the operator writes the issuer", Theirs).await?;
        self.mounted(INJECTED, &[next.root(), next.issuer()], None).await?;
        begun.certificates = self.mesh.certificates().await?;
        self.renewed(begun).await?;
        operator.presented(&self.mesh.control_plane, true).await?;
        self.removed(old, &next).await?;
        operator.behind(&self.mesh.control_plane, &[CLIENT_POD, IDENTITY, WEB]).await?;
        self.restarted(operator).await?;
        operator.is_ready(&self.mesh.control_plane).await?;
        Ok(next)
    }

    async fn while_connections_are_cut(&mut self, operator: &mut TrustOperator, old: &RootFolder) -> Result<()> {
        // No certificate ends before its proxy starts again.
        self.options.lifetime = LONG;
        self.mesh.control_plane.apply(&[operated::settings(self.options)]).await?;
        self.replaced(Theirs).await?;
        let begun = self.begin("the operator writes the new root and its issuer at once", Theirs).await?;
        let next = self.declare(old, "third", false).await?;
        TrustOperator::cut(&self.mesh.control_plane).await?;
        self.mounted(WRITTEN, &[next.root(), next.issuer()], None).await?;
        self.end(begun, false, 0, None).await?;
        let begun = self.begin("the container is replaced, and the operator removes the old root", Theirs).await?;
        self.mesh.replace(Theirs, self.options).await?;
        self.mounted(CUT, &[next.root()], Some(&old.root())).await?;
        self.end(begun, false, 0, None).await?;
        operator.behind(&self.mesh.control_plane, &[CLIENT_POD, IDENTITY, WEB]).await?;

        let mut begun =
            self.begin("the Pods of the identity service and of the application are created again", Theirs).await?;
        let before = begun.counts.clone();
        for pod in [IDENTITY, WEB] {
            self.mesh.restart_proxy(operator, pod).await?;
        }
        sleep(PAUSE).await;
        let running = self.mesh.client.counts();
        sleep(REFUSED).await;
        let refused = self.mesh.client.counts().since(&running);
        ensure!(refused.failed > 0 && refused.failed == refused.requests, "the client was not refused: {refused:?}");
        begun.certificates = self.mesh.certificates().await?;
        self.end(begun, false, 0, Some(before)).await?;

        let mut begun = self.begin("the Pod of the client is created again", Theirs).await?;
        let before = begun.counts.clone();
        self.mesh.restart_proxy(operator, CLIENT_POD).await?;
        begun.certificates = self.mesh.certificates().await?;
        sleep(PAUSE).await;
        self.end(begun, false, 0, Some(before)).await?;
        operator.is_ready(&self.mesh.control_plane).await?;
        let begun = self.begin("all proxies trust the new root only", Theirs).await?;
        self.mesh.changes.lock().await.change().await?;
        sleep(PAUSE).await;
        self.end(begun, false, 1, None).await
    }

    fn folder(&self, name: &str) -> PathBuf {
        self.mesh.control_plane.directory().join(format!("{name}-root"))
    }

    /// Makes the next root, and declares it.
    async fn declare(&self, old: &RootFolder, name: &str, is_bridged: bool) -> Result<RootFolder> {
        let next = MeshTrust::next(old, self.folder(name), is_bridged).await?;
        TrustOperator::declare(&self.mesh.control_plane, &next).await?;
        Ok(next)
    }

    async fn removed(&mut self, old: &RootFolder, next: &RootFolder) -> Result<()> {
        let begun = self.begin("the operator removes the old root", Theirs).await?;
        self.mounted(REMOVED, &[next.root()], Some(&old.root())).await?;
        self.renewed(begun).await
    }

    /// Creates all Pods again, and the container of the identity service.
    async fn restarted(&mut self, operator: &mut TrustOperator) -> Result<()> {
        self.identity_created_again(operator, Theirs).await?;
        self.only_pods_created_again(operator, Theirs).await
    }

    async fn identity_created_again(&mut self, operator: &mut TrustOperator, server: ServerKind) -> Result<()> {
        let mut begun = self.begin("the Pod of the identity service is created again", server).await?;
        self.mesh.replace(server, self.options).await?;
        self.mesh.restart_proxy(operator, IDENTITY).await?;
        begun.certificates = self.mesh.certificates().await?;
        self.renewed(begun).await
    }

    async fn only_pods_created_again(&mut self, operator: &mut TrustOperator, server: ServerKind) -> Result<()> {
        let name = "the only Pods of the client and of the application are created again";
        let mut begun = self.begin(name, server).await?;
        for pod in [WEB, CLIENT_POD] {
            self.mesh.restart_proxy(operator, pod).await?;
        }
        begun.certificates = self.mesh.certificates().await?;
        let without_pods = begun.counts.clone();
        sleep(PAUSE).await;
        self.end(begun, false, 0, Some(without_pods)).await
    }

    /// Waits until the objects have what is in these files, and not what is in another one. Then the kubelet updates the
    /// files of the identity service.
    async fn mounted(&mut self, deadline: Duration, has: &[PathBuf], not: Option<&Path>) -> Result<()> {
        let read = |file: &Path| fs::read_to_string(file).with_context(|| format!("reading {}", file.display()));
        let has: Vec<_> = has.iter().map(|file| read(file)).collect::<Result<_>>()?;
        let not = not.map(read).transpose()?;
        let changes = Arc::clone(&self.mesh.changes);
        let mesh = &mut self.mesh;
        let end = Instant::now() + deadline;
        loop {
            mesh.trust.mount(&mesh.control_plane).await?;
            let files = format!("{}{}", mesh.trust.anchors(), mesh.trust.issuer()?.0);
            let is_written = has.iter().all(|text| files.contains(text.trim()));
            if is_written && not.as_ref().is_none_or(|text| !files.contains(text.trim())) {
                return Ok(());
            }
            if Instant::now() >= end {
                let trust = mesh.control_plane.get(&["linkerdtrust", "mesh"]).await?;
                bail!("not written in {deadline:?}: {trust:#}\nthe objects have\n{files}");
            }
            changes.lock().await.change().await?;
            sleep(PAUSE).await;
        }
    }
}
