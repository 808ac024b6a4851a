//! The namespace that a token claims. Pure.
//!
//! In: a token that no one has verified. Out: the key of a fair queue. Always holds: the claim decides nothing else,
//! because any client can write it.

use serde::Deserialize;

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
    let payload = token.split('.').nth(1).and_then(decoded);
    let claims = payload.and_then(|payload| serde_json::from_slice::<Claims>(&payload).ok());
    let namespace = claims.map(|claims| claims.kubernetes.namespace);
    namespace.filter(|namespace| namespace.len() <= LONGEST).unwrap_or_default()
}

/// Decodes base64url without padding.
fn decoded(text: &str) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(text.len() * 3 / 4);
    let (mut bits, mut count) = (0u32, 0);
    for character in text.bytes() {
        let value = match character {
            b'A'..=b'Z' => character - b'A',
            b'a'..=b'z' => character - b'a' + 26,
            b'0'..=b'9' => character - b'0' + 52,
            b'-' => 62,
            b'_' => 63,
            _ => return None,
        };
        bits = (bits << 6) | u32::from(value);
        count += 6;
        if count >= 8 {
            count -= 8;
            bytes.push(u8::try_from((bits >> count) & 0xff).ok()?);
        }
    }
    Some(bytes)
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

    #[test]
    fn all_characters_of_base64url_are_decoded() {
        assert_eq!(decoded("-_8AeZ0"), Some(vec![0xfb, 0xff, 0x00, 0x79, 0x9d]));
        assert_eq!(decoded(""), Some(Vec::new()));
        assert_eq!(decoded("+/"), None);
    }
}
