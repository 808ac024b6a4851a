//! The CPU of a first certificate, of a renewal, and of a refusal.
//!
//! A renewal is the same signing request with another token. Each call has a token of its own, because a server may use
//! the review of a token again for some seconds.

use std::time::Duration;

use anyhow::{Result, ensure};
use e2e::{
    identity::{CertifyCaller, CertifyWorkload, call_all, connect_all},
    load::Cost,
};
use linkerd2_proxy_api::identity::CertifyRequest;
use serde_json::json;
use tonic::Code;

use super::{
    bare::{self, BareCost},
    subject::{CertifySubject, Subjects},
};
use crate::report::{Report, median, milliseconds};

const CONNECTIONS: usize = 8;
/// Fewer than the reviews at the same time.
const AT_ONCE: usize = 64;
const WARM_UP: usize = 300;
const ROUNDS: usize = 5;
const CALLS: usize = 1_000;

/// The CPU of each kind of call, in milliseconds, the median of the rounds.
pub(super) struct CertifyCosts {
    first: f64,
    renewal: f64,
    refused: f64,
}

/// The CPU time of each round, in milliseconds for a call.
#[derive(Default)]
struct RoundCosts(Vec<f64>);

// === impl RoundCosts ===

impl RoundCosts {
    fn median(&self) -> f64 {
        median(self.0.clone())
    }

    fn row(&self, report: &mut Report, figure: String, bare: Option<f64>, wanted: &'static str) {
        let middle = self.median();
        let (least, most) =
            self.0.iter().fold((f64::MAX, 0.0_f64), |(least, most), it| (least.min(*it), most.max(*it)));
        let mut text = format!(
            "{middle:.3} ms of CPU, {:.0} per CPU-second ({ROUNDS} rounds: {least:.3} to {most:.3} ms)",
            1000.0 / middle
        );
        if let Some(bare) = bare {
            text.push_str(&format!(", {:.1} times the bare loop", middle / bare));
        }
        report.row(figure, text, wanted, json!({"milliseconds": self.0, "bare_milliseconds": bare}));
    }
}

pub(super) async fn costs(report: &mut Report, subjects: &Subjects) -> Result<CertifyCosts> {
    let name = subjects.name();
    let subject = subjects.subject().await?;
    let callers = connect_all(subject.address(), CONNECTIONS).await?;
    let workloads = CertifyWorkload::many(WARM_UP + ROUNDS * CALLS)?;
    let (warm_up, measured) = workloads.split_at(WARM_UP);
    cost(&subject, &callers, requests(warm_up, 0), Code::Ok).await?;
    let [mut first, mut renewal, mut refused] = [(); 3].map(|()| RoundCosts::default());
    let (mut verify, mut sign) = (Vec::new(), Vec::new());
    for round in measured.chunks(CALLS) {
        let BareCost { verify: verified, sign: signed } = bare::cost()?;
        verify.push(milliseconds(&verified));
        sign.push(milliseconds(&signed));
        first.0.push(cost(&subject, &callers, requests(round, 0), Code::Ok).await?);
        renewal.0.push(cost(&subject, &callers, requests(round, 1), Code::Ok).await?);
        let others = requests(round, 2).into_iter().map(for_another).collect();
        refused.0.push(cost(&subject, &callers, others, Code::FailedPrecondition).await?);
    }
    let (verify, sign) = (median(verify), median(sign));
    let bare = verify + sign;
    let text = format!("{bare:.3} ms of CPU: {verify:.3} and {sign:.3} ms");
    report.row("a bare verification and signature, ring, P-256", text, "", json!([verify, sign]));
    first.row(report, format!("{name}: a first certificate"), Some(bare), "≤ 0.27 ms");
    renewal.row(report, format!("{name}: a renewal, the same signing request"), Some(bare), "≤ 0.17 ms");
    refused.row(report, format!("{name}: a call that is refused before the review"), None, "≤ 0.03 ms");
    Ok(CertifyCosts { first: first.median(), renewal: renewal.median(), refused: refused.median() })
}

/// Adds the ratios of two servers.
pub(super) fn compare(report: &mut Report, ours: &CertifyCosts, theirs: &CertifyCosts) {
    for (figure, ours, theirs, wanted) in [
        ("a first certificate", ours.first, theirs.first, "≥ 4 times"),
        ("a renewal", ours.renewal, theirs.renewal, "≥ 6 times"),
        ("a call that is refused before the review", ours.refused, theirs.refused, "≥ 10 times"),
    ] {
        let ratio = theirs / ours;
        report.row(
            format!("{figure}: CPU of the other server, against the operator"),
            format!("{ratio:.1} times"),
            wanted,
            json!(ratio),
        );
    }
}

fn requests(workloads: &[CertifyWorkload], token: usize) -> Vec<CertifyRequest> {
    workloads.iter().map(|workload| workload.request(token)).collect()
}

/// Requests the identity of another workload.
fn for_another(mut request: CertifyRequest) -> CertifyRequest {
    request.identity = format!("x-{}", request.identity);
    request
}

/// Makes all calls, and returns the server's CPU time for one of them, in milliseconds.
async fn cost(
    subject: &CertifySubject<'_>,
    callers: &[CertifyCaller],
    requests: Vec<CertifyRequest>,
    expected: Code,
) -> Result<f64> {
    let calls = u32::try_from(requests.len())?;
    let before = Cost::of_process(subject.pid())?;
    let answers = call_all(callers, requests, AT_ONCE).await?;
    let spent: Duration = Cost::of_process(subject.pid())?.ran.saturating_sub(before.ran);
    let wrong = answers.iter().find(|answer| answer.code != expected);
    ensure!(wrong.is_none(), "an answer that was not expected: {wrong:?}");
    Ok(milliseconds(&(spent / calls)))
}
