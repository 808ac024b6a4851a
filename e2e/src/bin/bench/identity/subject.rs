//! The measured servers of the identity service.

use std::time::Duration;

use anyhow::{Result, bail};
use e2e::{
    eventually,
    identity::{CertifyCaller, CertifyWorkload, IdentityOptions, IdentityRig, MeshAuthority, ReviewServer, Volume},
    memory::Memory,
    port::listener,
    process::pin_to_core,
};
use tempfile::TempDir;
use tokio::time::sleep;
use tonic::Code;

use crate::{discovery::Other, report::CONTAINER, spent::SERVERS_CORE};

/// Time to start the other server manually.
const START_IT: Duration = Duration::from_secs(600);
/// Time to release memory that was needed only for the start.
const REST: Duration = Duration::from_secs(3);

pub(super) enum Subjects {
    /// A new process for each row.
    Operator,
    Other(OtherServer),
}

/// Another server, which uses our stand-in for the API server.
pub(super) struct OtherServer {
    server: Other,
    pid: u32,
    reviews: ReviewServer,
    _folder: TempDir,
}

pub(super) enum CertifySubject<'a> {
    Operator(Box<IdentityRig>),
    Other(&'a OtherServer),
}

// === impl Subjects ===

impl Subjects {
    /// Prints the files that the server must use, and waits until it answers.
    pub(super) async fn other(server: Other) -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let reviews = ReviewServer::start(folder.path()).await?;
        let (issuer, roots) = (Volume::new(folder.path().join("issuer"))?, Volume::new(folder.path().join("roots"))?);
        let root = MeshAuthority::root("root.linkerd.cluster.local")?;
        roots.put_roots(&[&root])?;
        issuer.put_issuer(&root.signs("identity.linkerd.cluster.local")?)?;
        eprintln!(
            "start the identity service at {} with the kubeconfig {}, the issuer {}, and the trust anchors {}",
            server.address,
            reviews.kubeconfig().display(),
            issuer.0.display(),
            roots.0.display()
        );
        let workload = CertifyWorkload::new("app", "web", "web-1")?;
        eventually(START_IT, "the server to issue a certificate", async || {
            let caller = CertifyCaller::connect(server.address).await?;
            match caller.call(workload.request(0)).await {
                Ok(_) => Ok(()),
                Err(status) => bail!("{status}"),
            }
        })
        .await?;
        let pid = server.pid.map_or_else(|| listener(server.address.port()), Ok)?;
        pin_to_core(pid, SERVERS_CORE)?;
        Ok(Self::Other(OtherServer { server, pid, reviews, _folder: folder }))
    }

    pub(super) fn name(&self) -> &'static str {
        match self {
            Self::Operator => "operator",
            Self::Other(_) => "the other server",
        }
    }

    /// Returns a ready server that has answered a call.
    pub(super) async fn subject(&self) -> Result<CertifySubject<'_>> {
        let subject = match self {
            Self::Operator => {
                let options = IdentityOptions { memory_limit: Some(CONTAINER), ..IdentityOptions::default() };
                let rig = IdentityRig::start(options).await?;
                pin_to_core(rig.server.process.pid(), SERVERS_CORE)?;
                CertifySubject::Operator(Box::new(rig))
            }
            Self::Other(other) => CertifySubject::Other(other),
        };
        subject.reviews().delay(Duration::ZERO);
        let caller = CertifyCaller::connect(subject.address()).await?;
        match caller.code(CertifyWorkload::new("app", "first", "first-1")?.request(0)).await {
            Code::Ok => Ok(subject),
            code => bail!("the first call was refused: {code}"),
        }
    }
}

// === impl CertifySubject ===

impl CertifySubject<'_> {
    pub(super) fn address(&self) -> std::net::SocketAddr {
        match self {
            Self::Operator(rig) => rig.server.address,
            Self::Other(other) => other.server.address,
        }
    }

    pub(super) fn pid(&self) -> u32 {
        match self {
            Self::Operator(rig) => rig.server.process.pid(),
            Self::Other(other) => other.pid,
        }
    }

    pub(super) fn reviews(&self) -> &ReviewServer {
        match self {
            Self::Operator(rig) => &rig.reviews,
            Self::Other(other) => &other.reviews,
        }
    }

    pub(super) fn memory(&self) -> Result<Memory> {
        Memory::of_process(self.pid())
    }

    pub(super) async fn memory_at_rest(&self) -> Result<Memory> {
        sleep(REST).await;
        self.memory()
    }
}
