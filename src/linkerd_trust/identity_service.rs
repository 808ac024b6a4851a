//! Asks each replica of the identity service for a certificate, to see its issuer.
//!
//! In: the Pods of the identity service, as the state has them; the token of the operator's ServiceAccount; the bundle.
//! Out: the chain of each replica. Always holds: the token is sent only to a server that proves, under a root of the
//! bundle, to be the identity service; a replica that does not answer is an error; the key of the certificate is not kept.
//!
//! What proxies present shows only which issuer a replica had when it signed. It may have another one since.

use std::{fs::File, io::Read, net::SocketAddr, path::PathBuf, sync::Arc, time::Duration};

use anyhow::{Context, Result, bail, ensure};
use futures::future::join_all;
use http::{Uri, uri::PathAndQuery};
use hyper::client::conn::http2::Builder;
use hyper_util::rt::{TokioExecutor, TokioIo};
use k8s_openapi::jiff::Timestamp;
use prometheus::{IntCounterVec, Registry, register_int_counter_vec_with_registry};
use rcgen::{CertificateParams, DistinguishedName, KeyPair};
use rustls::{
    ClientConfig, RootCertStore,
    crypto::ring,
    pki_types::{CertificateDer, ServerName},
    version::TLS13,
};
use serde::Deserialize;
use tokio::{net::TcpStream, time::timeout};
use tokio_rustls::TlsConnector;
use tonic::{Request, client::Grpc};
use tonic_prost::ProstCodec;

use super::leaves::ObservedLeaf;
use crate::{
    api::CONTROL_PLANE_COMPONENT_LABEL,
    cluster::{
        Cluster, State,
        kinds::pod::{Pod, PodPhase},
    },
    grpc_client::Http2,
    proto::identity::{CertifyRequest, CertifyResponse},
    trust::{seen::LeafSettings, signers::Signer},
    x509::{anchor_set::readable_certificates, certificate::ChainCertificate, pem::base64url},
};

/// The value of the label of its Pods.
const COMPONENT: &str = "identity";
/// The names of the port in Linkerd's chart, and in the operator's.
const PORT_NAMES: [&str; 2] = ["ident-grpc", "grpc"];
const METHOD: &str = "/io.linkerd.proxy.identity.Identity/Certify";
/// A TokenReview may take a few seconds.
const DEADLINE: Duration = Duration::from_secs(10);
/// The maximum number of replicas.
const MAX_REPLICAS: usize = 20;
/// The maximum length of a token, in bytes.
const LONGEST_TOKEN: u64 = 16 << 10;
const RESULTS: [&str; 2] = ["answered", "failed"];

pub(super) struct IdentityService {
    cluster: Cluster,
    control_plane: Arc<str>,
    /// The file of the token.
    token: PathBuf,
    requests: IntCounterVec,
}

/// The token of the operator's ServiceAccount.
struct OwnToken {
    text: String,
    namespace: String,
    account: String,
}

/// A replica.
struct IdentityReplica {
    pod: String,
    address: SocketAddr,
}

// === impl IdentityService ===

impl IdentityService {
    /// # Errors
    /// When the metric is already registered.
    pub(super) fn new(
        cluster: &Cluster,
        control_plane: &Arc<str>,
        token: PathBuf,
        registry: &Registry,
    ) -> prometheus::Result<Self> {
        let requests = register_int_counter_vec_with_registry!(
            "linkerd_operator_trust_identity_requests_total",
            "Requests to replicas of the identity service for a certificate that shows their issuer, by result",
            &["result"],
            registry
        )?;
        for result in RESULTS {
            requests.with_label_values(&[result]);
        }
        Ok(Self { cluster: cluster.clone(), control_plane: Arc::clone(control_plane), token, requests })
    }

    /// The namespace of the control plane.
    pub(super) fn control_plane(&self) -> &str {
        &self.control_plane
    }

    /// The command that restarts it.
    pub(super) fn restart(&self) -> String {
        let state = self.cluster.read();
        let mut workloads = self.pods(&state).map(|pod| state.workload_of(pod));
        let deployment = workloads.find(|workload| *workload.kind == *"Deployment").map(|workload| workload.name);
        let name = deployment.as_deref().unwrap_or("linkerd-identity");
        format!("kubectl -n {} rollout restart deployment/{name}", self.control_plane)
    }

    /// The Pods of its replicas.
    fn pods<'a>(&self, state: &'a State) -> impl Iterator<Item = &'a Arc<Pod>> {
        let is_identity = |pod: &&Arc<Pod>| {
            pod.labels.get(CONTROL_PLANE_COMPONENT_LABEL).is_some_and(|component| **component == *COMPONENT)
                && pod.phase != PodPhase::Finished
        };
        state.pods.in_namespace(&self.control_plane).filter(is_identity)
    }

    /// Returns the chain of each replica. It must prove its identity under a root of this bundle.
    ///
    /// # Errors
    /// When a replica does not answer with a certificate, or no replica exists.
    pub(super) async fn ask(&self, bundle: &str, settings: &LeafSettings) -> Result<Vec<Signer>> {
        let token = OwnToken::read(&self.token)?;
        let identity = settings.identity_of(&self.control_plane, &token.namespace, &token.account);
        let key = KeyPair::generate().context("cannot make a key")?;
        let mut params = CertificateParams::new([identity.clone()]).context("the ServiceAccount has no identity")?;
        params.distinguished_name = DistinguishedName::new();
        let signing_request = params.serialize_request(&key).context("cannot make a signing request")?;
        let request = CertifyRequest {
            identity,
            token: token.text.into_bytes(),
            certificate_signing_request: signing_request.der().to_vec(),
        };
        let roots: Vec<_> = readable_certificates(bundle).filter_map(|der| ChainCertificate::parse(&der)).collect();
        let (connector, name) = (connector(&roots)?, settings.identity_service(&self.control_plane));
        let replicas = self.replicas()?;
        let asked = replicas.into_iter().map(async |replica| {
            let answer = timeout(DEADLINE, certify(replica.address, &name, &connector, request.clone())).await;
            let answer = answer.unwrap_or_else(|_| {
                bail!("no answer within {} s: permit the operator to connect to it", DEADLINE.as_secs())
            });
            self.requests.with_label_values(&[if answer.is_ok() { RESULTS[0] } else { RESULTS[1] }]).inc();
            let answer = answer.with_context(|| format!("Pod {} of the identity service", replica.pod))?;
            let sent: Vec<_> = answer.intermediate_certificates.iter().map(Vec::as_slice).collect();
            let leaf = ObservedLeaf::read(&answer.leaf_certificate, &sent, &request.identity, &roots, Timestamp::now());
            let leaf = leaf.with_context(|| {
                format!("Pod {} of the identity service sent a certificate that its issuer did not sign", replica.pod)
            })?;
            Ok(Signer { pod: replica.pod, chain: leaf.chain })
        });
        // The first one by its name, so that the same problem has the same message.
        join_all(asked).await.into_iter().collect()
    }

    /// # Errors
    /// When a replica starts or ends, so that its issuer is not known.
    fn replicas(&self) -> Result<Vec<IdentityReplica>> {
        let mut pods: Vec<Arc<Pod>> = self.pods(&self.cluster.read()).cloned().collect();
        pods.sort_by(|one, other| one.key.name.cmp(&other.key.name));
        ensure!(!pods.is_empty(), "namespace {} has no Pod of the identity service", self.control_plane);
        ensure!(pods.len() <= MAX_REPLICAS, "the identity service has more than {MAX_REPLICAS} Pods");
        pods.iter().map(|pod| IdentityReplica::of(pod)).collect()
    }
}

// === impl IdentityReplica ===

impl IdentityReplica {
    fn of(pod: &Pod) -> Result<Self> {
        let name = &pod.key.name;
        ensure!(
            pod.phase == PodPhase::Running && !pod.terminating,
            "Pod {name} of the identity service is starting or ending. Delete it with --force if its node is gone"
        );
        let port = pod.ports.iter().find(|port| PORT_NAMES.contains(&&*port.name));
        let port = port.with_context(|| format!("Pod {name} of the identity service has no port ident-grpc"))?;
        let address = pod.addresses.first();
        let address = address.with_context(|| format!("Pod {name} of the identity service has no address"))?;
        Ok(Self { pod: name.to_string(), address: SocketAddr::new(*address, port.number) })
    }
}

// === impl OwnToken ===

impl OwnToken {
    fn read(file: &PathBuf) -> Result<Self> {
        let (shown, mut text) = (file.display(), String::new());
        File::open(file).and_then(|file| file.take(LONGEST_TOKEN).read_to_string(&mut text)).with_context(|| {
            format!(
                "cannot read the token for the identity service from {shown}, which the volume identity-token of the \
                     shipped Deployment has"
            )
        })?;
        let token = Self::parse(text.trim());
        token.with_context(|| format!("{shown} has no token of a ServiceAccount"))
    }

    /// The API server verifies the token; here only its owner matters, which is this process.
    fn parse(text: &str) -> Option<Self> {
        #[derive(Deserialize)]
        struct Claims {
            sub: String,
        }
        let payload = text.split('.').nth(1).and_then(base64url)?;
        let claims: Claims = serde_json::from_slice(&payload).ok()?;
        let (namespace, account) = claims.sub.strip_prefix("system:serviceaccount:")?.split_once(':')?;
        Some(Self { text: text.to_owned(), namespace: namespace.to_owned(), account: account.to_owned() })
    }
}

/// Returns a TLS connector that trusts only these roots.
fn connector(roots: &[ChainCertificate]) -> Result<TlsConnector> {
    let mut store = RootCertStore::empty();
    store.add_parsable_certificates(roots.iter().map(|root| CertificateDer::from(&*root.der)));
    let mut config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_protocol_versions(&[&TLS13])?
        .with_root_certificates(store)
        .with_no_client_auth();
    config.resumption = rustls::client::Resumption::disabled();
    Ok(Arc::new(config).into())
}

/// Calls `Certify` as proxies do.
async fn certify(
    address: SocketAddr,
    name: &str,
    connector: &TlsConnector,
    request: CertifyRequest,
) -> Result<CertifyResponse> {
    let stream = TcpStream::connect(address)
        .await
        .with_context(|| format!("cannot connect to {address}: permit it to the operator"))?;
    let server = ServerName::try_from(name.to_owned()).with_context(|| format!("{name} is not a name"))?;
    let stream = connector.connect(server, stream).await.with_context(|| format!("cannot verify {name}"))?;
    let handshake = Builder::new(TokioExecutor::new()).handshake(TokioIo::new(stream)).await;
    let (requests, connection) = handshake.context("the HTTP/2 handshake failed")?;
    let origin = Uri::try_from(format!("http://{address}")).context("the address is no URI")?;
    let call = async {
        let mut grpc = Grpc::with_origin(Http2(requests), origin);
        grpc.ready().await.context("the connection has ended")?;
        let codec = ProstCodec::<CertifyRequest, CertifyResponse>::default();
        let answer = grpc.unary(Request::new(request), PathAndQuery::from_static(METHOD), codec).await;
        answer.map_err(|status| anyhow::anyhow!("{:?}: {}", status.code(), status.message()))
    };
    tokio::select! {
        // An answer may arrive together with the end of the connection.
        biased;
        answer = call => Ok(answer?.into_inner()),
        _ = connection => bail!("the connection ended before the answer"),
    }
}

#[cfg(test)]
mod tests {
    use rustls::{ServerConfig, pki_types::PrivateKeyDer};
    use tokio::{io::AsyncReadExt, net::TcpListener};
    use tokio_rustls::TlsAcceptor;

    use super::*;
    use crate::x509::testing::{TestCa, der};

    const NAME: &str = "linkerd-identity.linkerd.serviceaccount.identity.linkerd.cluster.local";

    /// Returns why no certificate came from a server with a certificate of this root for this name, and what it received.
    async fn refused(root: &TestCa, name: &str, trusted: &TestCa) -> (String, Vec<u8>) {
        let key = KeyPair::generate().unwrap();
        let issuer = rcgen::Issuer::new(root.params.clone(), &root.key);
        let leaf = CertificateParams::new([name.to_owned()]).unwrap().signed_by(&key, &issuer).unwrap();
        let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_protocol_versions(&[&TLS13])
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![leaf.der().clone()], PrivateKeyDer::try_from(key.serialize_der()).unwrap())
            .unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let server = tokio::spawn(async move {
            let mut received = Vec::new();
            let (stream, _) = listener.accept().await.unwrap();
            if let Ok(mut stream) = TlsAcceptor::from(Arc::new(config)).accept(stream).await {
                _ = stream.read_to_end(&mut received).await;
            }
            received
        });
        let connector = connector(&[ChainCertificate::parse(&der(&trusted.pem)).unwrap()]).unwrap();
        let request = CertifyRequest { token: b"secret".to_vec(), ..CertifyRequest::default() };
        let call = timeout(Duration::from_secs(1), certify(address, NAME, &connector, request)).await;
        let error = call.map_or_else(|_| "no answer".to_owned(), |answer| format!("{:#}", answer.unwrap_err()));
        (error, server.await.unwrap())
    }

    #[tokio::test]
    async fn the_token_is_sent_only_to_the_identity_service_of_a_root_of_the_bundle() {
        let (root, other) = (TestCa::root("root"), TestCa::root("root"));
        let (error, received) = refused(&root, NAME, &root).await;
        assert_eq!(error, "no answer", "the server does not speak gRPC");
        assert!(received.starts_with(b"PRI * HTTP/2.0"), "{received:?}");
        for (signer, name) in [(&other, NAME), (&root, "web.default.serviceaccount.identity.linkerd.cluster.local")] {
            let (error, received) = refused(signer, name, &root).await;
            assert!(error.starts_with(&format!("cannot verify {NAME}")), "{error}");
            assert_eq!(received, b"", "{name}");
        }
    }

    #[test]
    fn the_owner_of_a_token_is_a_service_account() {
        // {"sub":"system:serviceaccount:ns:name"}
        let token = "e30.eyJzdWIiOiJzeXN0ZW06c2VydmljZWFjY291bnQ6bnM6bmFtZSJ9.AA";
        let own = OwnToken::parse(token).unwrap();
        assert_eq!((own.namespace.as_str(), own.account.as_str()), ("ns", "name"));
        // {"sub":"admin"}
        for other in ["", "a.b.c", "e30.e30.AA", "e30.eyJzdWIiOiJhZG1pbiJ9.AA"] {
            assert!(OwnToken::parse(other).is_none(), "{other}");
        }
    }
}
