//! A root that has ended is replaced over a bridge. Situations 14 and 15.

use anyhow::{Result, ensure};
use e2e::{
    eventually,
    identity::{AUDIENCE, CertifyCaller, CertifyWorkload, MeshAuthority, verify},
};
use linkerd2_proxy_api::identity::CertifyRequest;
use serde_json::json;

use super::{CONFIRMED, RENEWED, ReportedMesh, SOON, bundle_becomes, issuer::IssuerMesh, next_step};

#[tokio::test(flavor = "multi_thread")]
async fn a_root_that_has_ended_is_replaced_over_a_bridge_while_certificates_are_issued_and_no_proxy_restarts()
-> Result<()> {
    let mesh = ReportedMesh::with_root(MeshAuthority::expired_root("old")?).await?;
    let it = IssuerMesh::on(mesh).await?;
    let (old, rig) = (&it.mesh.old, &it.mesh.rig);
    let identity = it.mesh.put_identity("linkerd-identity-1", &[&it.old_issuer], &[old]).await?;
    rig.kubectl(&["create", "namespace", "app"]).await?;
    rig.kubectl(&["-n=app", "create", "serviceaccount", "web"]).await?;
    let (token, workload) =
        (rig.token_for("app", "web", &[AUDIENCE]).await?, CertifyWorkload::new("app", "web", "web")?);
    // As a proxy that trusts only the old root.
    let certify = async || {
        let caller = CertifyCaller::connect_over_tls(identity.address, old).await?;
        let request = CertifyRequest { token: token.clone().into_bytes(), ..workload.request(0) };
        let answer = caller.call(request).await?;
        verify(&answer, &workload.identity(), old)?;
        anyhow::Ok(answer)
    };
    certify().await?;
    it.declare(old, false).await?;
    let ended = it.mesh.reaches(SOON, "Steady", &["Ready=False/Broken", "Expiring=True/CertificateEnds"]).await?;
    ensure!(
        ended["problems"][0].as_str().is_some_and(|it| it.contains("has expired. Proxies ignore this")),
        "{ended:#}"
    );

    it.put_next(&[&it.new_issuer]).await?;
    it.declare(&it.new, true).await?;
    bundle_becomes(rig, &format!("{}{}", old.pem(), it.new.pem())).await?;
    let chain = [&it.new_issuer, &it.bridge];
    it.present_becomes(&chain).await?;
    // A replica that has missed the change, as Linkerd's has at times.
    let missed = it.mesh.reaches(CONFIRMED + SOON, "AwaitingIssuer", &["LeavesRenewed=False/IssuerNotTaken"]).await?;
    let replica = "Pod linkerd-identity-1 of the identity service signs with issuer (";
    ensure!(next_step(&missed).contains(replica), "{missed:#}");
    let restart = "kubectl -n linkerd rollout restart deployment/linkerd-identity";
    ensure!(missed["commands"] == json!([restart]), "{missed:#}");
    it.mesh.expect_event("IssuerNotTaken", replica).await?;
    identity.roots.put_roots(&[old, &it.new])?;
    identity.issuer.put_chain(&chain)?;
    let answer = eventually(SOON, "a certificate of the new issuer", async || {
        let answer = certify().await?;
        ensure!(
            answer.intermediate_certificates.first().is_some_and(|own| own == it.new_issuer.der()),
            "another issuer"
        );
        Ok(answer)
    })
    .await?;
    verify(&answer, &workload.identity(), &it.new)?;
    it.mesh.reaches(RENEWED, "AwaitingIssuer", &["LeavesRenewed=False/OldLeaves"]).await?;
    for proxy in it.mesh.proxies.values() {
        proxy.renew(&chain, old)?;
    }
    it.mesh.reaches(RENEWED, "Retiring", &["Ready=False/RotationInProgress", "LeavesRenewed=True/Synced"]).await?;
    Ok(())
}
