//! The identity service without a cluster: its server, a stand-in for its API server, and its callers.
//!
//! ```text
//!   CertifyWorkload ─▶ CertifyCaller ──Certify──▶ IdentityProcess ──TokenReview──▶ ReviewServer
//!                                                    └── Volume: the issuer, the trust anchors
//! ```
//!
//! * Out: an [`IdentityRig`] with all of them. Always: it ends when it is dropped, with its folder.

mod caller;
mod certify;
mod process;
mod reviews;
mod volume;
mod workload;

use std::path::Path;

use anyhow::Result;
use hyper::StatusCode;
use tempfile::TempDir;

pub use self::{
    caller::{Answered, CertifyCaller, call_all, connect_all},
    certify::{AUDIENCE, certify, verify},
    process::{IdentityOptions, IdentityProcess},
    reviews::{HeldReviews, ReviewScript, ReviewServer},
    volume::{MeshAuthority, Volume},
    workload::CertifyWorkload,
};

/// A ready server with an issuer, and its API server.
pub struct IdentityRig {
    pub server: IdentityProcess,
    pub reviews: ReviewServer,
    pub root: MeshAuthority,
    folder: TempDir,
}

// === impl IdentityRig ===

impl IdentityRig {
    /// # Errors
    /// Fails if the server is not ready in time.
    pub async fn start(options: IdentityOptions) -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let reviews = ReviewServer::start(folder.path()).await?;
        let server = IdentityProcess::start(folder.path(), reviews.kubeconfig(), options)?;
        let root = MeshAuthority::root("root.linkerd.cluster.local")?;
        server.roots.put_roots(&[&root])?;
        server.issuer.put_issuer(&root.signs("identity.linkerd.cluster.local")?)?;
        server.shows(StatusCode::OK).await?;
        Ok(Self { server, reviews, root, folder })
    }

    /// The folder with the volumes, the kubeconfig and the log.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }
}
