//! Certificates of Linkerd's proxies while the identity service changes hands.
//!
//! * In: Linkerd's controller and proxy; root. Out: for each [`IdentityStep`], the certificates that the proxies
//!   received, the new connections with mTLS, and the requests.
//! * Always: certificates live for half a minute, so that a step contains renewals. The application answers only if the
//!   inbound proxy has verified the client's certificate, so each answer proves mTLS.

mod operated;
mod policy;
mod roots;
mod scene;
mod steps;

use std::{path::PathBuf, time::Duration};

use anyhow::{Context, Result};
use tokio::time::timeout;

use self::steps::IdentityRun;
pub(crate) use self::steps::{Course, IdentityStep};

/// The whole part.
const DEADLINE: Duration = Duration::from_secs(40 * 60);

/// Linkerd's programs.
pub(crate) struct IdentityPrograms {
    pub(crate) controller: PathBuf,
    pub(crate) proxy: PathBuf,
}

pub(crate) async fn run(programs: IdentityPrograms, course: Course) -> Result<Vec<IdentityStep>> {
    let steps = async { IdentityRun::start(programs, course).await?.all(course).await };
    timeout(DEADLINE, steps).await.with_context(|| format!("identity took longer than {DEADLINE:?}"))?
}
