//! The Deployment of the identity service: its objects, and that it issues certificates with an account that has no other
//! right.

use std::{collections::BTreeSet, net::SocketAddr, time::Duration};

use anyhow::{Context, Result, ensure};
use e2e::{
    Manager, Rig, eventually,
    identity::{AUDIENCE, MeshAuthority, Volume, certify, verify},
    mesh::SOON,
    port,
    shipped::is_named,
    tls::connector,
};
use rustls::pki_types::ServerName;
use serde_json::{Value, json};
use tokio::net::TcpStream;

use super::{
    components::{components, lacks_nothing, start_manager},
    id, of_kind,
};
use crate::identity::WEB;

/// An identity service that watches its issuer, in a cluster.
struct WatchingIdentity {
    control_plane: Rig,
    manager: Manager,
    address: SocketAddr,
}

const FOLDER: &str = "config/control-plane";
const IDENTITY: &str = "linkerd-operator-identity";
const LINKERD: &str = "linkerd";
const COMPONENT: &str = "linkerd.io/control-plane-component";
/// The longest time from a change of a watched object to the certificates that follow from it.
const AT_ONCE: Duration = Duration::from_secs(2);

#[tokio::test]
async fn the_component_adds_objects_of_one_name_and_only_the_pods_have_linkerds_label() -> Result<()> {
    let control_plane = e2e::shared().await?;
    let whole = control_plane.shipped(FOLDER).await?;
    let mut objects = control_plane.shipped_with(FOLDER, &components(&["identity"])).await?;
    objects.retain(|object| !whole.contains(object));
    let kinds =
        ["ClusterRole", "ClusterRoleBinding", "Deployment", "NetworkPolicy", "PodDisruptionBudget", "ServiceAccount"];
    assert_eq!(
        objects.iter().map(id).collect::<BTreeSet<_>>(),
        kinds.map(|kind| format!("{kind}/{IDENTITY}")).into(),
        "no other object may change"
    );
    for object in &objects {
        let namespace = &object["metadata"]["namespace"];
        ensure!(*namespace == LINKERD || id(object).starts_with("ClusterRole"), "{} is in {namespace}", id(object));
        let labels = object["metadata"]["labels"].to_string();
        // `linkerd prune` deletes objects with such labels, and restarts of workloads wait for such Deployments.
        ensure!(!labels.contains("linkerd.io/"), "{}: {labels}", id(object));
    }

    let deployment = of_kind(&objects, "Deployment")[0];
    let template = &deployment["spec"]["template"];
    assert_eq!(template["metadata"]["labels"][COMPONENT], "identity", "Linkerd's Services must select the Pods");
    assert_eq!(template["metadata"]["annotations"]["linkerd.io/inject"], "disabled");
    let own = json!({"app.kubernetes.io/name": IDENTITY});
    for selector in [
        &deployment["spec"]["selector"]["matchLabels"],
        &of_kind(&objects, "PodDisruptionBudget")[0]["spec"]["selector"]["matchLabels"],
        &of_kind(&objects, "NetworkPolicy")[0]["spec"]["podSelector"]["matchLabels"],
    ] {
        // A selector with Linkerd's label would select Linkerd's Pods, too.
        assert_eq!(*selector, own);
    }
    let (shipped, pod) = (control_plane.shipped("config/manager").await?, &template["spec"]);
    let manager = &of_kind(&shipped, "Deployment")[0]["spec"]["template"]["spec"];
    let container = &pod["containers"][0];
    assert_eq!(pod["securityContext"], manager["securityContext"]);
    for field in ["securityContext", "livenessProbe", "readinessProbe", "resources", "image", "args"] {
        assert_eq!(container[field], manager["containers"][0][field], "{field}");
    }
    let grpc = json!({"name": "grpc", "containerPort": 8080});
    ensure!(container["ports"].as_array().is_some_and(|ports| ports.contains(&grpc)), "{container}");
    let sources: Vec<&Value> = pod["volumes"].as_array().into_iter().flatten().collect();
    assert_eq!(sources[0]["secret"], json!({"secretName": "linkerd-identity-issuer"}));
    assert_eq!(sources[1]["configMap"], json!({"name": "linkerd-identity-trust-roots"}));
    assert_eq!(sources.len(), 2);
    let metrics = json!([{"namespaceSelector": {"matchLabels": {"metrics": "enabled"}}}]);
    assert_eq!(
        of_kind(&objects, "NetworkPolicy")[0]["spec"]["ingress"],
        json!([{"ports": [{"port": "grpc"}]}, {"from": metrics, "ports": [{"port": "admin"}]}])
    );
    Ok(())
}

/// What an account of Linkerd's namespace may do that every account may not do.
async fn rights(control_plane: &Rig, account: &str) -> Result<BTreeSet<String>> {
    let list = async |account: &str| -> Result<BTreeSet<String>> {
        let account = format!("--as=system:serviceaccount:{LINKERD}:{account}");
        let text = control_plane.kubectl(&["auth", "can-i", "--list", "--no-headers", "-n", LINKERD, &account]).await?;
        Ok(text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect())
    };
    let (own, of_all) = (list(account).await?, list("default").await?);
    Ok(own.difference(&of_all).cloned().collect())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_identity_deployment_issues_certificates_with_an_account_that_may_do_nothing_else() -> Result<()> {
    let control_plane = Rig::bare().namespace(LINKERD).namespace("emojivoto").start().await?;
    let mut objects = control_plane.shipped_with(FOLDER, &components(&["identity"])).await?;
    objects.retain(|object| is_named(object, IDENTITY));
    let applied: Vec<_> = objects.iter().filter(|object| object["kind"] != "Deployment").cloned().collect();
    control_plane.apply(&applied).await?;
    control_plane.kubectl(&["-n=emojivoto", "create", "serviceaccount", "web"]).await?;
    let granted = ["events.events.k8s.io [] [] [create patch]", "tokenreviews.authentication.k8s.io [] [] [create]"];
    eventually(SOON, "the rights of the account", async || {
        let rights = rights(&control_plane, IDENTITY).await?;
        ensure!(rights == granted.map(str::to_owned).into(), "{rights:?}");
        Ok(())
    })
    .await?;

    let folder = control_plane.directory();
    let (issuer, roots) = (Volume::new(folder.join("issuer"))?, Volume::new(folder.join("roots"))?);
    let root = MeshAuthority::root("root.linkerd.cluster.local")?;
    roots.put_roots(&[&root])?;
    issuer.put_issuer(&root.signs("identity.linkerd.cluster.local")?)?;
    let flags = |address: SocketAddr| {
        vec![
            format!("--identity-addr={address}"),
            format!("--identity-issuer={}", issuer.0.display()),
            format!("--identity-trust-roots={}", roots.0.display()),
        ]
    };
    let start = async |flags: &[String]| start_manager(&control_plane, &objects, IDENTITY, LINKERD, flags).await;

    // As it is deployed: with TLS, as the identity that proxies expect.
    let address = SocketAddr::from(([127, 0, 0, 1], port::free()?));
    let mut manager = start(&flags(address)).await?;
    lacks_nothing(&mut manager).await?;
    ensure!(manager.discovery().await.is_err(), "discovery is not disabled");
    let name = ServerName::try_from("linkerd-identity.linkerd.serviceaccount.identity.linkerd.cluster.local")?;
    eventually(SOON, "a handshake", async || {
        let stream = TcpStream::connect(address).await?;
        connector(&root.pem())?.connect(name.clone(), stream).await.map(drop).context("TLS")
    })
    .await?;

    let address = SocketAddr::from(([127, 0, 0, 1], port::free()?));
    let mut plain = start(&[flags(address), vec!["--identity-tls=false".to_owned()]].concat()).await?;
    lacks_nothing(&mut plain).await?;
    let token = control_plane.token_for("emojivoto", "web", &[AUDIENCE]).await?;
    verify(&certify(address, WEB, &token).await?, WEB, &root)?;
    eventually(SOON, "the Event about the certificate", async || {
        let events = control_plane.kubectl(&["-n=emojivoto", "get", "events", "-o=name"]).await?;
        ensure!(!events.is_empty(), "no Event");
        Ok(())
    })
    .await?;
    lacks_nothing(&mut plain).await?;

    control_plane.kubectl(&["delete", "clusterrolebinding", IDENTITY]).await?;
    eventually(SOON, "reviews to be refused", async || {
        // A token that was reviewed a moment ago is known.
        let token = control_plane.token_for("emojivoto", "web", &[AUDIENCE]).await?;
        ensure!(certify(address, WEB, &token).await.is_err(), "a certificate was issued");
        Ok(())
    })
    .await
}

// === impl WatchingIdentity ===

impl WatchingIdentity {
    /// Writes the Secret as Linkerd's chart does.
    async fn put_issuer(&self, issuer: &MeshAuthority) -> Result<()> {
        let metadata = json!({"name": "linkerd-identity-issuer", "namespace": LINKERD});
        let data = json!({"crt.pem": issuer.pem(), "key.pem": issuer.key_pem()});
        let secret = json!({"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "stringData": data});
        self.control_plane.apply(&[secret]).await
    }

    async fn put_roots(&self, roots: &[&MeshAuthority]) -> Result<()> {
        let metadata = json!({"name": "linkerd-identity-trust-roots", "namespace": LINKERD});
        let bundle: String = roots.iter().map(|root| root.pem()).collect();
        let data = json!({"ca-bundle.crt": bundle});
        let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data});
        self.control_plane.apply(&[map]).await
    }

    async fn signs_at_once(&self, issuer: &MeshAuthority, token: &str, root: &MeshAuthority) -> Result<()> {
        eventually(AT_ONCE, "the new issuer to sign", async || {
            let answer = certify(self.address, WEB, token).await?;
            ensure!(answer.intermediate_certificates == [issuer.der()], "another issuer signs");
            verify(&answer, WEB, root)
        })
        .await
    }

    async fn names(&self, problem: &str) -> Result<()> {
        eventually(SOON, format!("/ready to name {problem}"), async || {
            let (_, body) = self.manager.get("/ready").await?;
            ensure!(body.contains(problem), "{body}");
            Ok(())
        })
        .await
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_issuer_that_is_watched_signs_at_once_and_stays_in_use_when_its_secret_is_deleted() -> Result<()> {
    let control_plane = Rig::bare().crds("crd").namespace(LINKERD).namespace("emojivoto").start().await?;
    let mut objects = control_plane.shipped_with(FOLDER, &components(&["identity", "identity/watch"])).await?;
    objects.retain(|object| id(object).contains(IDENTITY));
    let (binding, rest): (Vec<_>, Vec<_>) = objects
        .iter()
        .filter(|object| object["kind"] != "Deployment")
        .cloned()
        .partition(|object| object["kind"] == "RoleBinding");
    assert_eq!(binding.len(), 1);
    control_plane.apply(&rest).await?;
    control_plane.kubectl(&["-n=emojivoto", "create", "serviceaccount", "web"]).await?;
    let address = SocketAddr::from(([127, 0, 0, 1], port::free()?));
    let flags = [format!("--identity-addr={address}"), "--identity-tls=false".to_owned()];
    let manager = start_manager(&control_plane, &objects, IDENTITY, LINKERD, &flags).await?;
    let mut identity = WatchingIdentity { control_plane, manager, address };

    // Without the permission.
    identity.names("permit it with the component config/components/identity/watch").await?;
    identity.names("no issuer of certificates is loaded: Secret linkerd/linkerd-identity-issuer cannot be").await?;
    let roots: Vec<_> = (1..4).map(|root| MeshAuthority::root(&format!("root-{root}"))).collect::<Result<_>>()?;
    let [one, two, three] = &roots[..] else { anyhow::bail!("three roots") };
    let [first, second] = [one.signs("first")?, one.signs("second")?];
    identity.put_roots(&[one]).await?;
    identity.put_issuer(&first).await?;
    identity.control_plane.apply(&binding).await?;
    identity.manager.ready(SOON).await?;
    identity.manager.is_well(SOON).await?;
    let log = identity.manager.log();
    assert!((1..=2).contains(&log.matches("cannot be watched").count()), "once for each object: {log}");

    let token = identity.control_plane.token_for("emojivoto", "web", &[AUDIENCE]).await?;
    identity.signs_at_once(&first, &token, one).await?;
    identity.put_issuer(&second).await?;
    identity.signs_at_once(&second, &token, one).await?;

    identity.control_plane.kubectl(&["-n=linkerd", "delete", "secret", "linkerd-identity-issuer"]).await?;
    let deleted = "the last issuer of certificates stays in use: Secret linkerd/linkerd-identity-issuer does not exist";
    identity.names(deleted).await?;
    identity.signs_at_once(&second, &token, one).await?;

    // The issuer before its root, and the root before its issuer.
    let [third, fourth] = [two.signs("third")?, three.signs("fourth")?];
    identity.put_issuer(&third).await?;
    identity.names("no trust anchor signed it").await?;
    identity.signs_at_once(&second, &token, one).await?;
    identity.put_roots(&[one, two]).await?;
    identity.signs_at_once(&third, &token, two).await?;
    identity.put_roots(&[one, two, three]).await?;
    identity.put_issuer(&fourth).await?;
    identity.signs_at_once(&fourth, &token, three).await?;
    identity.manager.is_well(SOON).await?;
    let log = identity.manager.log();
    assert!(!log.contains("PRIVATE KEY"), "{log}");
    Ok(())
}
