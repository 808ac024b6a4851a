//! Pods whose proxies request certificates.
//!
//! * In: the names of a Pod and of its ServiceAccount. Out: requests with its token, and the claims in a token. Always:
//!   a token looks like one of an API server, but nothing signed it; a workload has one signing request, as a proxy.

use anyhow::Result;
use base64::{Engine, prelude::BASE64_URL_SAFE_NO_PAD};
use linkerd2_proxy_api::identity::CertifyRequest;
use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair};
use serde_json::{Value, json};

/// The length of the signature of a token, RS256.
const SIGNATURE: usize = 256;

/// A Pod with a proxy.
#[derive(Clone, Debug)]
pub struct CertifyWorkload {
    namespace: String,
    account: String,
    pod: String,
    signing_request: Vec<u8>,
}

/// What a token claims.
pub(super) struct ClaimedPod {
    pub(super) namespace: String,
    pub(super) account: String,
    pub(super) pod: String,
}

// === impl CertifyWorkload ===

impl CertifyWorkload {
    /// # Errors
    /// Fails if the names are no part of an identity.
    pub fn new(namespace: &str, account: &str, pod: &str) -> Result<Self> {
        let identity = identity(namespace, account);
        let mut params = CertificateParams::new(vec![identity.clone()])?;
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, identity);
        let signing_request = params.serialize_request(&KeyPair::generate()?)?.der().to_vec();
        let [namespace, account, pod] = [namespace, account, pod].map(str::to_owned);
        Ok(Self { namespace, account, pod, signing_request })
    }

    /// So many workloads, of a ServiceAccount for each 20 of them, and a namespace for each 200.
    ///
    /// # Errors
    /// Fails if the operating system has no random numbers.
    pub fn many(count: usize) -> Result<Vec<Self>> {
        let named = |number: usize| {
            let (namespace, account) = (number / 200, number / 20);
            Self::new(&format!("app-{namespace}"), &format!("web-{account}"), &format!("web-{number}"))
        };
        (0..count).map(named).collect()
    }

    pub fn identity(&self) -> String {
        identity(&self.namespace, &self.account)
    }

    /// The request with the token of this number. The kubelet renews a token several times in the life of a certificate.
    pub fn request(&self, token: usize) -> CertifyRequest {
        CertifyRequest {
            identity: self.identity(),
            token: self.token(token).into_bytes(),
            certificate_signing_request: self.signing_request.clone(),
        }
    }

    fn token(&self, number: usize) -> String {
        let Self { namespace, account, pod, .. } = self;
        let header = json!({"alg": "RS256", "kid": "dDl0Y2hpcy1pcy1hLWtleS1pZC1vZi1hbi1hcGktc2VydmVy"});
        let claims = json!({
            "aud": ["identity.l5d.io"],
            "exp": 1_900_000_000,
            "iat": 1_800_000_000,
            "iss": "https://kubernetes.default.svc.cluster.local",
            "jti": format!("{number:08x}-7d0c-4a4c-9d0b-0d9b2a1c3e4f"),
            "kubernetes.io": {
                "namespace": namespace,
                "node": {"name": "node-a", "uid": "0b9c1f2e-5a77-4f0e-8a5e-2f6f0c1d9e11"},
                "pod": {"name": pod, "uid": format!("uid-of-{pod}")},
                "serviceaccount": {"name": account, "uid": format!("uid-of-{namespace}-{account}")},
            },
            "nbf": 1_800_000_000,
            "sub": format!("system:serviceaccount:{namespace}:{account}"),
        });
        let encoded = |bytes: &[u8]| BASE64_URL_SAFE_NO_PAD.encode(bytes);
        let signature = encoded(&[0x5a; SIGNATURE]);
        format!("{}.{}.{signature}", encoded(header.to_string().as_bytes()), encoded(claims.to_string().as_bytes()))
    }
}

fn identity(namespace: &str, account: &str) -> String {
    format!("{account}.{namespace}.serviceaccount.identity.linkerd.cluster.local")
}

// === impl ClaimedPod ===

impl ClaimedPod {
    /// `None` if it is no token of a workload.
    pub(super) fn of(token: &str) -> Option<Self> {
        let claims = BASE64_URL_SAFE_NO_PAD.decode(token.split('.').nth(1)?).ok()?;
        let claims: Value = serde_json::from_slice(&claims).ok()?;
        let text = |path: &str| claims.pointer(path).and_then(Value::as_str).map(str::to_owned);
        Some(Self {
            namespace: text("/kubernetes.io/namespace")?,
            account: text("/kubernetes.io/serviceaccount/name")?,
            pod: text("/kubernetes.io/pod/name")?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_names_its_pod_and_has_the_size_of_a_real_one() {
        let workload = CertifyWorkload::new("emojivoto", "web", "web-1").unwrap();
        let token = String::from_utf8(workload.request(7).token).unwrap();
        let claimed = ClaimedPod::of(&token).unwrap();
        assert_eq!(
            (&*claimed.namespace, &*claimed.account, &*claimed.pod, workload.identity().as_str()),
            ("emojivoto", "web", "web-1", "web.emojivoto.serviceaccount.identity.linkerd.cluster.local")
        );
        assert!((900..1300).contains(&token.len()), "{}", token.len());
        assert_ne!(workload.request(8).token, token.into_bytes());
        assert!(ClaimedPod::of("nonsense").is_none());
    }
}
