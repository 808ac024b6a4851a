//! An operator is killed during one of its writes. The next one reaches the same end state, and repeats no write.

use std::collections::HashMap;

use anyhow::{Context, Result, ensure};
use e2e::{Fault, FaultProxy, Rule, WriteEnd, eventually, identity::MeshAuthority, shipped::OPERATOR_ACCOUNT};

use super::{REMOVED, RENEWED, ReportedMesh, bundle_is, deployed, manager};

/// The method and a part of the path.
type Write = (&'static str, &'static str);

const BUNDLE: Write = ("PATCH", "/configmaps/linkerd-identity-trust-roots");
const STATUS: Write = ("PUT", "/linkerdtrusts/");

/// A mesh whose operator reaches the API server through a proxy.
struct CrashMesh {
    mesh: ReportedMesh,
    proxy: FaultProxy,
}

impl CrashMesh {
    async fn start() -> Result<Self> {
        let rig = deployed().await?;
        let proxy = FaultProxy::start_with_token(&rig, OPERATOR_ACCOUNT, &rig.operator_token().await?).await?;
        let manager = manager(&rig, proxy.kubeconfig()).await?;
        let mesh = ReportedMesh { rig, manager, old: MeshAuthority::root("old")?, proxies: HashMap::new() };
        mesh.permit().await?;
        mesh.put_bundle(&mesh.old.pem()).await?;
        Ok(Self { mesh, proxy })
    }

    /// Holds the next write.
    fn hold(&self, write: Write, end: WriteEnd) -> Fault {
        self.proxy.inject(Rule::path(write.1).method(write.0).times(1), end.action())
    }

    /// Kills the operator while this write is held, and starts another one.
    async fn kill_during(&mut self, write: Write, end: WriteEnd, fault: &Fault) -> Result<()> {
        eventually(REMOVED, "the write", async || {
            ensure!(fault.hits() == 1, "it is not sent");
            Ok(())
        })
        .await?;
        let executed = self.executed(write);
        self.mesh.manager.kill().await?;
        if end == WriteEnd::Unknown {
            fault.release();
            eventually(RENEWED, "the write to be executed", async || {
                ensure!(self.executed(write) > executed, "it is not");
                Ok(())
            })
            .await?;
        }
        self.mesh.manager = manager(&self.mesh.rig, self.proxy.kubeconfig()).await?;
        Ok(())
    }

    /// The number of such writes that the API server has executed.
    fn executed(&self, (method, path): Write) -> usize {
        let log = self.proxy.log().into_iter();
        log.filter(|it| it.method == method && it.path.contains(path))
            .filter(|it| it.status.is_some_and(|status| status < 300))
            .count()
    }

    async fn bundle_becomes(&self, roots: &[&MeshAuthority]) -> Result<()> {
        let pem: String = roots.iter().map(|root| root.pem()).collect();
        eventually(REMOVED, "the bundle to change", async || bundle_is(&self.mesh.rig, &pem).await).await
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_operator_that_is_killed_while_it_adds_a_root_leaves_one_addition() -> Result<()> {
    let mut crash = CrashMesh::start().await?;
    let mut roots = vec![MeshAuthority::root("old")?];
    crash.mesh.put_bundle(&roots[0].pem()).await?;
    crash.mesh.put_trust("mesh", Some(&roots[0].pem())).await?;
    crash.mesh.enforce().await?;
    let ends = [WriteEnd::Lost, WriteEnd::Unknown];
    let writes = [BUNDLE, STATUS].into_iter().flat_map(|write| ends.map(|end| (write, end)));
    for (number, (write, end)) in (1..).zip(writes) {
        roots.push(MeshAuthority::root(&format!("root {number}"))?);
        let declared: String = roots.iter().map(MeshAuthority::pem).collect();
        let fault = crash.hold(write, end);
        crash.mesh.put_trust("mesh", Some(&declared)).await?;
        let killed = crash.kill_during(write, end, &fault).await;
        killed.with_context(|| format!("{write:?} {end:?}"))?;
        crash.bundle_becomes(&roots.iter().collect::<Vec<_>>()).await?;
        crash.mesh.reaches(RENEWED, "Unknown", &["BundleSynced=True/Synced"]).await?;
        assert_eq!(crash.executed(BUNDLE), number, "{write:?} {end:?}");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn an_operator_that_is_killed_while_it_removes_a_root_leaves_one_removal() -> Result<()> {
    let mut crash = CrashMesh::start().await?;
    let new = MeshAuthority::root("new")?;
    let (issuer, bridge) = (new.signs("new issuer")?, crash.mesh.old.bridges(&new, "new")?);
    let old = crash.mesh.old.pem();
    crash.mesh.put_proxy("web-1", &old, &[&issuer, &bridge]).await?;
    let _identity =
        crash.mesh.put_identity("linkerd-identity-1", &[&issuer, &bridge], &[&crash.mesh.old, &new]).await?;
    crash.mesh.put_bundle(&format!("{}{}", new.pem(), old)).await?;
    crash.mesh.put_trust("mesh", Some(&new.pem())).await?;
    crash.mesh.enforce().await?;
    // Its successor asks the identity service again from the beginning.
    for (end, removals) in [(WriteEnd::Lost, 0), (WriteEnd::Unknown, 1)] {
        let fault = crash.hold(BUNDLE, end);
        crash.kill_during(BUNDLE, end, &fault).await.with_context(|| format!("{end:?}"))?;
        assert_eq!(crash.executed(BUNDLE), removals, "{end:?}");
    }
    crash.bundle_becomes(&[&new]).await?;
    crash.mesh.reaches(RENEWED, "Complete", &["BundleSynced=True/Synced", "Ready=True/Synced"]).await?;
    assert_eq!(crash.executed(BUNDLE), 1);
    Ok(())
}
