//! Calls that wait for reviews of their tokens. A stand-in for the API server sets how long they wait.

use std::time::Duration;

use anyhow::{Result, bail, ensure};
use e2e::{
    eventually,
    identity::{
        Answered, CertifyCaller, CertifyWorkload, HeldReviews, IdentityOptions, IdentityRig, call_all, connect_all,
    },
    mesh::SOON,
};
use tonic::Code;

/// The deadline of a review, and the delay of a busy host.
const DEADLINE: Duration = Duration::from_secs(8);
const BUSY: Duration = Duration::from_secs(2);

#[tokio::test(flavor = "multi_thread")]
async fn a_review_that_hangs_delays_no_other_call_and_no_reload() -> Result<()> {
    let rig = IdentityRig::start(IdentityOptions::default()).await?;
    rig.reviews.hold(HeldReviews::Of("hangs".to_owned()));
    // All calls are on one connection, as behind the proxy in the Pod of the server.
    let caller = CertifyCaller::connect(rig.server.address).await?;
    let (own, request) = (caller.clone(), CertifyWorkload::new("app", "hangs", "hangs-1")?.request(0));
    let hanging = tokio::spawn(async move { own.code(request).await });
    eventually(SOON, "the review to hang", async || {
        ensure!(rig.reviews.under_way() == 1, "{} reviews", rig.reviews.under_way());
        Ok(())
    })
    .await?;
    for workload in CertifyWorkload::many(20)? {
        assert_eq!(caller.code(workload.request(0)).await, Code::Ok);
    }
    assert!(!hanging.is_finished(), "the review did not hang");
    let issuer = rig.root.signs("second")?;
    rig.server.issuer.put_issuer(&issuer)?;
    let workload = CertifyWorkload::new("app", "web", "web-1")?;
    let mut signer = Vec::new();
    while signer != issuer.der() {
        let answer = caller.call(workload.request(1)).await;
        if let Ok(answer) = answer {
            signer = answer.intermediate_certificates.into_iter().next().unwrap_or_default();
        }
        assert!(!hanging.is_finished(), "the new issuer was not loaded before the end of the review");
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    rig.reviews.hold(HeldReviews::None);
    assert_eq!(hanging.await?, Code::Ok);
    Ok(())
}

/// Half of the calls or so can be reviewed before the deadline.
#[tokio::test(flavor = "multi_thread")]
async fn in_a_storm_every_call_is_served_or_refused_in_time_and_served_when_it_is_repeated() -> Result<()> {
    let rig = IdentityRig::start(IdentityOptions { reviews_at_once: 10, ..IdentityOptions::default() }).await?;
    rig.reviews.delay(Duration::from_millis(200));
    let workloads = CertifyWorkload::many(1_000)?;
    let callers = connect_all(rig.server.address, 10).await?;
    let requests = workloads.iter().map(|workload| workload.request(0)).collect();
    let answers = call_all(&callers, requests, workloads.len()).await?;
    let late: Vec<&Answered> = answers.iter().filter(|answer| answer.took > DEADLINE + BUSY).collect();
    assert!(late.is_empty(), "{} calls waited longer: {:?}", late.len(), late.first());
    let (served, refused): (Vec<_>, Vec<_>) = answers.into_iter().partition(|answer| answer.code == Code::Ok);
    assert!(refused.iter().all(|answer| answer.code == Code::Unavailable), "{:?}", refused.first());
    assert!(served.len() >= 100 && refused.len() >= 100, "{} served, {} refused", served.len(), refused.len());
    let counted = rig.server.metric("linkerd_operator_identity_refused_total", &[("reason", "review_unavailable")]);
    assert_eq!(counted.await?.round() as usize, refused.len());

    // The expected wait is that of the slow reviews at first.
    rig.reviews.delay(Duration::ZERO);
    let mut waiting: Vec<&CertifyWorkload> =
        refused.iter().filter_map(|answer| workloads.get(answer.request)).collect();
    for round in 1..=10 {
        let requests = waiting.iter().map(|workload| workload.request(round)).collect();
        let answers = call_all(&callers, requests, waiting.len()).await?;
        let refused: Vec<_> = answers.into_iter().filter(|answer| answer.code != Code::Ok).collect();
        assert!(refused.iter().all(|answer| answer.code == Code::Unavailable), "{:?}", refused.first());
        waiting = refused.iter().filter_map(|answer| waiting.get(answer.request).copied()).collect();
        if waiting.is_empty() {
            return Ok(());
        }
    }
    bail!("{} workloads were refused each time", waiting.len())
}
