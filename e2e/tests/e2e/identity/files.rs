//! The files of the issuer, and a server that is killed while they change.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use e2e::{
    eventually,
    identity::{CertifyCaller, CertifyWorkload, IdentityOptions, IdentityProcess, IdentityRig, MeshAuthority},
    mesh::SOON,
};
use hyper::StatusCode;
use tokio::time::interval;

use super::verify;

const SWAPS: usize = 1_000;
const BETWEEN: Duration = Duration::from_millis(10);

/// Returns the certificate of the issuer that signs now, and verifies the leaf with this root.
async fn signer(caller: &CertifyCaller, workload: &CertifyWorkload, root: &MeshAuthority) -> Result<Vec<u8>> {
    let answer = caller.call(workload.request(0)).await?;
    verify(&answer, &workload.identity(), root)?;
    answer.intermediate_certificates.into_iter().next().context("an answer without an issuer")
}

async fn differs_from_files(server: &IdentityProcess, expected: bool) -> Result<()> {
    let differs = server.metric("linkerd_operator_identity_issuer_differs_from_files", &[]).await?;
    ensure!((differs > 0.5) == expected, "issuer_differs_from_files is {differs}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_is_killed_during_a_swap_signs_with_the_issuer_of_the_files_when_it_is_back() -> Result<()> {
    let mut rig = IdentityRig::start(IdentityOptions::default()).await?;
    for round in 0..5 {
        let issuer = rig.root.signs(&format!("issuer-{round}"))?;
        let (volume, wait) = (&rig.server.issuer, Duration::from_millis(round * 70));
        volume.put_issuer(&issuer)?;
        tokio::time::sleep(wait).await;
        rig.server.kill().await?;
        rig.server.start_again()?;
        rig.server.shows(StatusCode::OK).await?;
        let caller = CertifyCaller::connect(rig.server.address).await?;
        let workload = CertifyWorkload::new("app", "web", &format!("web-{round}"))?;
        assert_eq!(signer(&caller, &workload, &rig.root).await?, issuer.der(), "round {round}");
    }
    Ok(())
}

/// Situation 13: a proxy whose certificate has ended cannot ask a service behind a proxy any more, which would verify it.
#[tokio::test(flavor = "multi_thread")]
async fn a_proxy_whose_certificate_ended_while_the_service_was_away_gets_another_one_when_it_is_back() -> Result<()> {
    let flags = "-identity-issuance-lifetime=1s -identity-clock-skew-allowance=1s";
    let options = IdentityOptions { tls: true, flags, ..IdentityOptions::default() };
    let mut rig = IdentityRig::start(options).await?;
    let workload = CertifyWorkload::new("app", "web", "web-1")?;
    let renewed = async |rig: &IdentityRig| {
        let caller = CertifyCaller::connect_over_tls(rig.server.address, &rig.root).await?;
        Ok(caller.call(workload.request(0)).await?)
    };
    let first = renewed(&rig).await?;
    verify(&first, &workload.identity(), &rig.root)?;
    rig.server.kill().await?;
    eventually(SOON, "the certificate to end", async || {
        let ended = verify(&first, &workload.identity(), &rig.root).is_err();
        ensure!(ended, "it is valid");
        Ok(())
    })
    .await?;
    rig.server.start_again()?;
    let second = eventually(SOON, "another certificate", async || renewed(&rig).await).await?;
    verify(&second, &workload.identity(), &rig.root)
}

/// Each seventh pair is a certificate with the key of another one.
#[tokio::test(flavor = "multi_thread")]
async fn after_a_thousand_swaps_the_issuer_of_the_files_signs_or_a_metric_says_why_not() -> Result<()> {
    let rig = IdentityRig::start(IdentityOptions::default()).await?;
    let issuers = (0..4).map(|number| rig.root.signs(&format!("issuer-{number}"))).collect::<Result<Vec<_>>>()?;
    let workloads = CertifyWorkload::many(200)?;
    let caller = CertifyCaller::connect(rig.server.address).await?;
    let swaps = async {
        let mut next = interval(BETWEEN);
        let pairs = issuers.iter().cycle().zip(issuers.iter().cycle().skip(1));
        for (swap, (issuer, other)) in pairs.take(SWAPS).enumerate() {
            next.tick().await;
            rig.server.issuer.put_pair(issuer, if swap % 7 == 0 { other } else { issuer })?;
        }
        anyhow::Ok(())
    };
    let mut calls = 0;
    let calling = async {
        for workload in workloads.iter().cycle() {
            signer(&caller, workload, &rig.root).await?;
            calls += 1;
            tokio::time::sleep(BETWEEN).await;
        }
        anyhow::Ok(())
    };
    tokio::select! {
        swapped = swaps => swapped?,
        failed = calling => failed?,
    }
    ensure!(calls > 0, "no call was answered while the files changed");

    let [last, broken, ..] = issuers.as_slice() else { anyhow::bail!("too few issuers") };
    rig.server.issuer.put_issuer(last)?;
    let workload = CertifyWorkload::new("app", "last", "last-1")?;
    eventually(SOON, "the issuer of the files to sign", async || {
        ensure!(signer(&caller, &workload, &rig.root).await? == last.der(), "another issuer signs");
        differs_from_files(&rig.server, false).await
    })
    .await?;
    rig.server.issuer.put_pair(broken, last)?;
    eventually(SOON, "the metric to say that another issuer signs", async || {
        differs_from_files(&rig.server, true).await
    })
    .await?;
    let (_, text) = rig.server.get("/ready").await?;
    assert!(text.contains("the key of the issuer is not the key of the first certificate"), "{text}");
    assert_eq!(signer(&caller, &CertifyWorkload::new("app", "web", "web-x")?, &rig.root).await?, last.der());
    Ok(())
}
