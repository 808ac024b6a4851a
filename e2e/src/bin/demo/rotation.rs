//! An act: the root of a mesh is replaced, and no Pod restarts.

use std::{fs, time::Duration};

use anyhow::{Context, Result, ensure};
use e2e::{
    Job, ManagerOptions, Rig, eventually,
    identity::{AUDIENCE, IdentityOptions, IdentityProcess, MeshAuthority},
    shipped::{OPERATOR_ACCOUNT, OPERATOR_NAMESPACE},
    shown_proxy::{LATE, ShownProxy},
};
use serde_json::{Value, json};

use crate::{Kubectl, say};

const NAMES: [&str; 2] = ["web-1", "web-2"];
/// Each proxy is asked for its certificate, and the identity service twice, with three minutes between.
const PHASE: Duration = Duration::from_secs(90);
const REMOVAL: Duration = Duration::from_secs(300);

pub(crate) async fn act() -> Result<()> {
    say(
        "Another mesh, whose root ends soon. Its proxies and its identity service present certificates, as Linkerd's do.",
    );
    let rig = Rig::linkerd().crds("crd").start().await?;
    rig.create_namespaces(&[OPERATOR_NAMESPACE]).await?;
    let old = MeshAuthority::root("old")?;
    let (old_issuer, new) = (old.signs("old issuer")?, MeshAuthority::root("new")?);
    let (issuer, bridge) = (new.signs("new issuer")?, old.bridges(&new, "new")?);
    let metadata = |name: &str| json!({"name": name, "namespace": "linkerd"});
    let account = json!({"apiVersion": "v1", "kind": "ServiceAccount",
        "metadata": {"name": OPERATOR_ACCOUNT, "namespace": OPERATOR_NAMESPACE}});
    let bundle = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata("linkerd-identity-trust-roots"),
        "data": {"ca-bundle.crt": old.pem()}});
    let secret = json!({"apiVersion": "v1", "kind": "Secret", "metadata": metadata("linkerd-identity-issuer"),
        "stringData": {"crt.pem": old_issuer.pem(), "key.pem": old_issuer.key_pem()}});
    rig.apply(&[account, bundle, secret]).await?;
    let mut proxies = Vec::new();
    for name in NAMES {
        let proxy = ShownProxy::start(e2e::shown_proxy::IDENTITY, &[&old_issuer], &old, LATE).await?;
        rig.apply(&[proxy.pod(name, &old.pem())]).await?;
        proxies.push(proxy);
    }
    let identity = IdentityProcess::start(
        rig.directory(),
        rig.kubeconfig(),
        IdentityOptions { tls: true, ..IdentityOptions::default() },
    )?;
    identity.roots.put_roots(&[&old])?;
    identity.issuer.put_chain(&[&old_issuer])?;
    rig.apply(&[identity.pod("linkerd-identity-1")]).await?;
    for (namespace, pod) in [("default", NAMES[0]), ("default", NAMES[1]), ("linkerd", "linkerd-identity-1")] {
        e2e::shown_proxy::runs(&rig, namespace, pod).await?;
    }

    let token = rig.directory().join("identity-token");
    fs::write(&token, rig.token_for(OPERATOR_NAMESPACE, OPERATOR_ACCOUNT, &[AUDIENCE]).await?)?;
    let own = format!("--operator-namespace={OPERATOR_NAMESPACE}");
    let options = ManagerOptions::only(Job::LinkerdConfig)
        .args([own.clone(), format!("--identity-token-file={}", token.display())]);
    let manager = options.ready(&rig).await?;
    let options = ManagerOptions::only(Job::LinkerdConfig).args([
        own,
        "--enable-linkerd-config=false".to_owned(),
        "--enable-issuer-writer".to_owned(),
    ]);
    let writer = options.ready(&rig).await?;
    let show = Kubectl(&rig);
    let created = "-o=custom-columns=POD:.metadata.name,CREATED:.metadata.creationTimestamp,UID:.metadata.uid";
    show.run(&["get", "pods", created]).await?;
    let before = rig.kubectl(&["get", "pods", created]).await?;

    say(
        "The new root, an issuer of it, and a bridge: the new root, signed once by the old one. `linkerd-operator trust new --enforce`\n\
         makes them. The issuer goes into a Secret beside the present one, and a LinkerdTrust declares the root and the bridge.",
    );
    let next = json!({"apiVersion": "v1", "kind": "Secret", "metadata": metadata("linkerd-identity-issuer-next"),
        "type": "kubernetes.io/tls", "stringData": {"tls.crt": issuer.pem(), "tls.key": issuer.key_pem()}});
    let trust = json!({"apiVersion": "config.linkerd.io/v1alpha1", "kind": "LinkerdTrust", "metadata": {"name": "mesh"},
        "spec": {"mode": "Enforce", "issuer": {"manage": "Secret"}, "anchors": {"pem": new.pem()},
            "bridge": {"pem": format!("{}{}", bridge.pem(), old.pem())}}});
    rig.apply(&[next, trust]).await?;

    say("The operator adds the root to the bundle, and writes the issuer with the bridge after it.");
    let chain = format!("{}{}", issuer.pem(), bridge.pem());
    eventually(PHASE, "the issuer to be written", async || {
        let secret = rig.get(&["secret", "linkerd-identity-issuer", "--namespace=linkerd"]).await?;
        let expected = k8s_openapi::ByteString(chain.clone().into_bytes());
        ensure!(secret.pointer("/data/crt.pem") == Some(&json!(expected)), "it has another issuer");
        Ok(())
    })
    .await?;
    show.run(&["get", "linkerdtrusts", "-o=custom-columns=PHASE:.status.phase,NEXT:.status.nextStep"]).await?;

    say("The kubelet updates the files of the identity service, and each proxy renews its certificate when it is due.");
    identity.roots.put_roots(&[&old, &new])?;
    identity.issuer.put_chain(&[&issuer, &bridge])?;
    for proxy in &proxies {
        proxy.renew(&[&issuer, &bridge], &old)?;
    }
    phase(&rig, PHASE, "Retiring").await?;
    show.run(&["get", "linkerdtrusts", "-o=custom-columns=PHASE:.status.phase,NEXT:.status.nextStep"]).await?;

    say(
        "After three minutes the identity service has shown twice that no certificate needs the old root: the operator removes it.",
    );
    phase(&rig, REMOVAL, "Complete").await?;
    show.run(&["get", "linkerdtrusts"]).await?;
    show.run(&[
        "get",
        "events",
        "--field-selector=involvedObject.kind=LinkerdTrust",
        "-o=custom-columns=REASON:.reason,NOTE:.message",
    ])
    .await?;
    show.run(&["get", "pods", created]).await?;
    let after = rig.kubectl(&["get", "pods", created]).await?;
    ensure!(before == after, "a Pod was created again");
    let map = rig.get(&["configmap", "linkerd-identity-trust-roots", "--namespace=linkerd"]).await?;
    ensure!(map.pointer("/data/ca-bundle.crt") == Some(&json!(new.pem())), "the bundle has another root: {map:#}");
    drop((manager, writer));
    Ok(())
}

async fn phase(rig: &Rig, deadline: Duration, phase: &str) -> Result<()> {
    eventually(deadline, format_args!("the phase {phase}"), async || {
        let trust = rig.get(&["linkerdtrust", "mesh"]).await?;
        let found = trust.pointer("/status/phase").and_then(Value::as_str).context("no phase")?;
        ensure!(found == phase, "{found}");
        Ok(())
    })
    .await
}
