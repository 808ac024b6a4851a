//! The namespace that a token claims. Pure.
//!
//! In: a token that no one has verified. Out: the key of a fair queue. Always holds: the claim decides nothing else,
//! because any client can write it.

use serde::Deserialize;

use crate::x509::pem::base64url;

/// The maximum length of the name of a namespace.
const LONGEST: usize = 63;

#[derive(Deserialize)]
struct Claims {
    #[serde(rename = "kubernetes.io")]
    kubernetes: KubernetesClaims,
}

#[derive(Deserialize)]
struct KubernetesClaims {
    namespace: String,
}

/// Returns the namespace that a token claims; an empty text if it claims none.
pub(super) fn namespace(token: &str) -> String {
    let payload = token.split('.').nth(1).and_then(base64url);
    let claims = payload.and_then(|payload| serde_json::from_slice::<Claims>(&payload).ok());
    let namespace = claims.map(|claims| claims.kubernetes.namespace);
    namespace.filter(|namespace| namespace.len() <= LONGEST).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_namespace_is_that_of_the_payload() {
        // The payload is {"iss":"x","kubernetes.io":{"namespace":"emojivoto","pod":{"name":"web-1"}}}.
        let payload =
            "eyJpc3MiOiJ4Iiwia3ViZXJuZXRlcy5pbyI6eyJuYW1lc3BhY2UiOiJlbW9qaXZvdG8iLCJwb2QiOnsibmFtZSI6IndlYi0xIn19fQ";
        assert_eq!(namespace(&format!("e30.{payload}.sig")), "emojivoto");
        for token in ["", "ok:user", "a.b", "a.!.c", "a.e30.c", &format!("e30.{payload}=.sig")] {
            assert_eq!(namespace(token), "", "{token}");
        }
    }
}
