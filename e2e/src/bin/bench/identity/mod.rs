//! The identity service: the CPU of a certificate and of a refusal, storms of first calls, and memory.
//!
//! * In: the operator in place of Linkerd's container, and the address of another server, if there is one. Out: rows for
//!   both in the same run, beside a bare loop of verifications and signatures.
//! * Always: the server has a core to itself; the stand-in for the API server and the callers share another. The
//!   operator is a new process for each row.

mod bare;
mod cost;
mod memory;
mod storm;
mod subject;

use anyhow::Result;
use e2e::process::pin_to_core;

use self::{cost::CertifyCosts, subject::Subjects};
use crate::{discovery::Other, report::Report, spent::CLIENTS_CORE};

pub(crate) const FIGURE: &str = "identity";

/// Measures the operator and, if it is given, another server.
pub(crate) async fn figures(report: &mut Report, other: Option<Other>) -> Result<()> {
    // Child processes inherit the core.
    pin_to_core(std::process::id(), CLIENTS_CORE)?;
    let ours = measure(report, &Subjects::Operator).await?;
    let Some(other) = other else { return Ok(()) };
    let other = Subjects::other(other).await?;
    let theirs = measure(report, &other).await?;
    cost::compare(report, &ours, &theirs);
    Ok(())
}

async fn measure(report: &mut Report, subjects: &Subjects) -> Result<CertifyCosts> {
    memory::memory(report, subjects).await?;
    let costs = cost::costs(report, subjects).await?;
    for delay in storm::DELAYS {
        storm::storm(report, subjects, delay).await?;
    }
    Ok(costs)
}
