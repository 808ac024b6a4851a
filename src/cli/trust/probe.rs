//! `trust probe`: the certificate that one proxy presents, and whether it trusts an issuer, by TLS handshakes.
//!
//! In: a Pod, whose admin port is forwarded, or an address; the identity of the proxy; an issuer with its key. Out: its
//! certificate, the chain that it sends, the roots of the mesh with which others accept it, and whether it accepts a
//! certificate of the issuer. Always holds: the handshake proves that the proxy has the key of the certificate; nothing is
//! sent after it; everything has a deadline.

use std::{
    fmt::Write,
    path::{Path, PathBuf},
    process::ExitCode,
    time::Duration,
};

use anyhow::{Context, Result, anyhow};
use clap::Args as ClapArgs;
use k8s_openapi::{
    api::core::v1::{ConfigMap, Pod},
    jiff::{SignedDuration, Timestamp},
};
use kube::{Api, Client};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use serde::Serialize;
use tokio::{net::TcpStream, time::timeout};

use super::{
    super::{OutputFormat, cluster_flags::ClusterFlags, connect::ByteStream, terminal::write},
    authority, read,
};
use crate::{
    api::{TRUST_ROOTS, TRUST_ROOTS_KEY},
    text::printable,
    trust::words::in_time,
    x509::{
        anchors::AnchorBundle,
        authority::client_leaf,
        certificate::ChainCertificate,
        chain,
        handshake::{presented, refusal},
        verify::{ALGORITHMS, TestedLeaf, sentence},
    },
};

/// The admin port of a proxy.
const ADMIN: u16 = 4191;
const DEADLINE: Duration = Duration::from_secs(15);
/// The ServiceAccount in the identity of the client.
const CLIENT: &str = "linkerd-operator";
/// How long its certificate is valid.
const VALID: SignedDuration = SignedDuration::from_mins(5);
/// The maximum number of certificates that are looked at.
const LONGEST_CHAIN: usize = 16;

#[derive(Clone, Debug, ClapArgs)]
pub struct ProbeArgs {
    /// NAMESPACE/POD, or IP:PORT of a proxy
    #[arg(value_name = "NAMESPACE/POD|IP:PORT")]
    pub proxy: String,

    /// Identity of the proxy; if absent, that of the Pod's ServiceAccount
    #[arg(long, value_name = "NAME")]
    pub identity: Option<String>,

    /// Server name of the handshake, which a proxy outside of the cluster needs; if absent, the identity
    #[arg(long, value_name = "NAME")]
    pub server_name: Option<String>,

    /// File of an issuer, with the certificates that are sent after it: does the proxy accept a certificate of it?
    #[arg(long, value_name = "FILE", requires = "issuer_key")]
    pub issuer: Option<PathBuf>,

    /// Private key of this issuer: ECDSA, in PEM
    #[arg(long, value_name = "FILE", requires = "issuer")]
    pub issuer_key: Option<PathBuf>,

    /// Namespace of Linkerd's control plane
    #[arg(long, short, value_name = "NAME", default_value = "linkerd")]
    pub namespace: String,

    /// Output format
    #[arg(long, short, value_name = "FORMAT", default_value = "table")]
    pub output: OutputFormat,

    #[command(flatten)]
    pub cluster: ClusterFlags,
}

/// What a proxy presented.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Presented {
    identity: String,
    expires: Timestamp,
    /// The names of the other certificates that it sent.
    sent: Vec<String>,
    /// The roots of the bundle with which its certificate is accepted.
    accepted_by: Vec<String>,
    /// Why it is accepted with none.
    #[serde(skip_serializing_if = "Option::is_none")]
    refused: Option<String>,
    /// What it says to a client with a certificate of this issuer.
    #[serde(skip_serializing_if = "Option::is_none")]
    issuer: Option<TestedIssuer>,
}

/// An issuer of which the proxy was shown a certificate.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct TestedIssuer {
    name: String,
    /// Why the proxy refuses it.
    #[serde(skip_serializing_if = "Option::is_none")]
    refused: Option<String>,
}

pub(super) async fn probe(args: &ProbeArgs) -> Result<ExitCode> {
    let client = args.cluster.client()?;
    let (stream, identity) = connect(&client, args).await?;
    let server_name = args.server_name.as_deref().unwrap_or(&identity);
    let chain =
        timeout(DEADLINE, presented(stream, server_name)).await.context("the proxy did not answer in time")??;
    let bundle = Api::<ConfigMap>::namespaced(client.clone(), &args.namespace).get(TRUST_ROOTS).await;
    let bundle = bundle.with_context(|| format!("cannot read ConfigMap {TRUST_ROOTS}"))?;
    let bundle = bundle.data.and_then(|mut data| data.remove(TRUST_ROOTS_KEY)).unwrap_or_default();
    let anchors = AnchorBundle::parse(bundle.as_bytes()).map_err(anyhow::Error::msg)?;
    let now = Timestamp::now();
    let mut presented = judge(&chain, &anchors, &identity, now)?;
    if let Some((issuer, key)) = args.issuer.as_deref().zip(args.issuer_key.as_deref()) {
        presented.issuer = Some(tested(&client, args, server_name, (issuer, key)).await?);
    }
    write(&args.output.print(&presented, || text(&presented, now))?)?;
    let is_refused = presented.issuer.as_ref().is_some_and(|issuer| issuer.refused.is_some());
    Ok(if presented.refused.is_none() && !is_refused { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Returns a connection to the proxy, and its identity.
async fn connect(client: &Client, args: &ProbeArgs) -> Result<(Box<dyn ByteStream>, String)> {
    if let Some((namespace, pod)) = args.proxy.split_once('/') {
        return of_pod(client, args, namespace, pod).await;
    }
    let identity = args.identity.clone().context("an address has no ServiceAccount: give --identity")?;
    let connected = timeout(DEADLINE, TcpStream::connect(&args.proxy)).await;
    let stream = connected.context("no connection in time").and_then(|connected| Ok(connected?));
    let stream = stream.with_context(|| format!("cannot connect to {}", args.proxy))?;
    Ok((Box::new(stream), identity))
}

/// Shows the proxy a certificate of this issuer, and what is sent after it.
async fn tested(
    client: &Client,
    args: &ProbeArgs,
    server_name: &str,
    (file, key): (&Path, &Path),
) -> Result<TestedIssuer> {
    let (own, others) = chain::read(&authority::read(file)?)
        .map_err(|why| anyhow!("the file {} of the issuer {why}", file.display()))?;
    let domain = read::leaf_settings(client, &args.namespace).await.trust_domain;
    let name = format!("{CLIENT}.{0}.serviceaccount.identity.{0}.{domain}", args.namespace);
    let leaf = client_leaf(&own, &authority::read_key(key)?, &name, Timestamp::now(), VALID);
    let leaf = leaf.context("cannot sign a certificate of this issuer")?;
    let issuer = own.name();
    let sent = std::iter::once(leaf.certificate).chain(std::iter::once(own).chain(others).map(|it| it.der));
    let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(leaf.key.as_slice()));
    let (stream, _) = connect(client, args).await?;
    let refused = timeout(DEADLINE, refusal(stream, server_name, sent.map(CertificateDer::from).collect(), &key)).await;
    Ok(TestedIssuer { name: issuer, refused: refused.context("the proxy did not answer in time")?? })
}

/// Forwards the admin port of a Pod's proxy. Returns the identity of its ServiceAccount, too.
async fn of_pod(
    client: &Client,
    args: &ProbeArgs,
    namespace: &str,
    name: &str,
) -> Result<(Box<dyn ByteStream>, String)> {
    let pods = Api::<Pod>::namespaced(client.clone(), namespace);
    let pod = pods.get(name).await.with_context(|| format!("cannot read Pod {namespace}/{name}"))?;
    let identity = match &args.identity {
        Some(identity) => identity.clone(),
        None => {
            let account = pod.spec.and_then(|spec| spec.service_account_name).unwrap_or_else(|| "default".to_owned());
            let domain = read::leaf_settings(client, &args.namespace).await.trust_domain;
            format!("{account}.{namespace}.serviceaccount.identity.{}.{domain}", args.namespace)
        }
    };
    let forwarded = timeout(DEADLINE, pods.portforward(name, &[ADMIN])).await.context("no port-forward in time")?;
    let mut forwarded = forwarded.with_context(|| format!("cannot forward port {ADMIN} of Pod {namespace}/{name}"))?;
    let stream = forwarded.take_stream(ADMIN).context("the port-forward has no stream")?;
    Ok((Box::new(stream), identity))
}

fn judge(
    presented: &[CertificateDer<'static>],
    anchors: &AnchorBundle,
    identity: &str,
    now: Timestamp,
) -> Result<Presented> {
    let (leaf, chain) = presented.split_first().context("the proxy presented no certificate")?;
    let parse = |der: &CertificateDer<'_>| ChainCertificate::parse(der);
    let own = parse(leaf).context("the certificate of the proxy cannot be read")?;
    let chain: Vec<_> = chain.iter().take(LONGEST_CHAIN).cloned().collect();
    let tested = TestedLeaf { der: leaf, chain: &chain, name: identity, now };
    let (accepted_by, refused) = match tested.reached(anchors.roots(), ALGORITHMS) {
        Ok(roots) => (roots.iter().map(|root| root.name.clone()).collect(), None),
        Err(error) => (Vec::new(), Some(sentence(&error))),
    };
    let sent = chain.iter().filter_map(|der| Some(parse(der)?.name())).collect();
    Ok(Presented { identity: identity.to_owned(), expires: own.not_after, sent, accepted_by, refused, issuer: None })
}

fn text(presented: &Presented, now: Timestamp) -> String {
    let mut text = String::new();
    let list = |names: &[String]| names.iter().map(|name| printable(name).into_owned()).collect::<Vec<_>>().join(", ");
    // Writing to a String cannot fail.
    _ = match &presented.refused {
        None => writeln!(text, "OK   accepted by proxies that trust {}", list(&presented.accepted_by)),
        Some(why) => writeln!(text, "PROBLEM   refused with each root of the bundle: {}", printable(why)),
    };
    _ = writeln!(text, "Identity   {}, ends {}", printable(&presented.identity), in_time(presented.expires, now));
    _ = writeln!(text, "Sent       {}", list(&presented.sent));
    if let Some(TestedIssuer { name, refused }) = &presented.issuer {
        _ = match refused {
            None => writeln!(text, "Accepts    certificates of {}", printable(name)),
            Some(why) => writeln!(text, "Refuses    certificates of {}: {}", printable(name), printable(why)),
        };
    }
    text
}
