//! The context token, which contains the namespace and the node of a proxy. Pure.
//!
//! The client writes the token, so the token is a hint and never a proof. An invalid token is not an error, because a
//! proxy that is refused for its token would have no discovery at all. The parser behaves like Go's `encoding/json`,
//! also for odd tokens.

use serde::{
    Deserialize, Deserializer,
    de::{IgnoredAny, MapAccess, Visitor},
};
use serde_json::value::RawValue;

use crate::api::{LONGEST_NAME, is_dns_label};

/// The maximum size of a token in bytes. The tokens of proxies are shorter.
const LONGEST: usize = 4096;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ContextToken {
    /// The client's namespace; empty if unknown.
    pub(super) namespace: String,
    /// The client's node; empty if unknown.
    pub(super) node: String,
    /// The key `clusters`: whether endpoints in other clusters have the label `cluster`. Only our command line sets it.
    /// For proxies, the label would become a label of their metrics.
    pub(super) clusters: bool,
}

impl ContextToken {
    /// Parses a token. Returns an empty token if the text is invalid.
    pub(super) fn parse(text: &str) -> Self {
        if text.len() > LONGEST {
            return Self::default();
        }
        let token: Self = match serde_json::from_str(text) {
            Ok(token) => token,
            // The format of proxies from before the token was JSON.
            Err(_) => match text.split_once(':') {
                Some(("ns", namespace)) => Self { namespace: namespace.to_owned(), ..Self::default() },
                _ => Self::default(),
            },
        };
        // The namespace is part of view keys, so an invalid namespace name is dropped.
        if is_dns_label(&token.namespace) { token } else { Self { namespace: String::new(), ..token } }
    }
}

/// Accepts keys in any case. The last of two equal keys wins. A value of the wrong type is ignored and does not affect
/// other fields.
impl<'de> Deserialize<'de> for ContextToken {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Fields;
        impl<'de> Visitor<'de> for Fields {
            type Value = ContextToken;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("a context token")
            }

            fn visit_unit<E>(self) -> Result<ContextToken, E> {
                Ok(ContextToken::default())
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<ContextToken, A::Error> {
                let mut token = ContextToken::default();
                while let Some(key) = map.next_key::<String>()? {
                    let field = match key.to_ascii_lowercase().as_str() {
                        "ns" => &mut token.namespace,
                        "nodename" => &mut token.node,
                        "clusters" => {
                            token.clusters =
                                serde_json::from_str(map.next_value::<Box<RawValue>>()?.get()).unwrap_or(false);
                            continue;
                        }
                        _ => {
                            map.next_value::<IgnoredAny>()?;
                            continue;
                        }
                    };
                    let value = map.next_value::<Box<RawValue>>()?;
                    if let Ok(text) = serde_json::from_str::<String>(value.get())
                        && text.len() <= LONGEST_NAME
                    {
                        *field = text;
                    }
                }
                Ok(token)
            }
        }
        deserializer.deserialize_any(Fields)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn parse(text: &str) -> (String, String) {
        let token = ContextToken::parse(text);
        (token.namespace, token.node)
    }

    #[test]
    fn tokens_are_parsed_as_leniently_as_upstream_parses_them() {
        for (text, namespace, node) in [
            ("{\"ns\":\"prod\", \"nodeName\":\"node-1\", \"pod\":\"web\"}\n", "prod", "node-1"),
            (" \t{\"NS\":\"prod\",\"nodename\":\"node-1\"} \r\n", "prod", "node-1"),
            (r#"{"ns":1,"nodeName":"node-1"}"#, "", "node-1"),
            (r#"{"ns":"prod","nodeName":{"a":[1]}}"#, "prod", ""),
            (r#"{"nodeName":"a","NodeName":"b"}"#, "", "b"),
            (r#"{"nodeName":"a","nodeName":null}"#, "", "a"),
            (r#"{"nodeName":null,"other":[{}]}"#, "", ""),
            ("null", "", ""),
            ("ns:prod", "prod", ""),
            ("ns:", "", ""),
            ("ns:a:b", "", ""),
            ("ns:Prod", "", ""),
            ("ns:a/b", "", ""),
            (r#"{"ns":"a.b","nodeName":"node-1"}"#, "", "node-1"),
            ("NS:prod", "", ""),
            ("", "", ""),
            ("123fa-test", "", ""),
            ("[]", "", ""),
            (r#""ns""#, "", ""),
            (r#"{"ns":"prod"} trailing"#, "", ""),
            (r#"{"ns":"prod""#, "", ""),
        ] {
            assert_eq!(parse(text), (namespace.to_owned(), node.to_owned()), "{text:?}");
        }
    }

    #[test]
    fn a_token_that_is_too_long_is_ignored() {
        let giant = format!(r#"{{"nodeName":"node-1","pad":"{}"}}"#, "x".repeat(LONGEST));
        assert_eq!(parse(&giant), (String::new(), String::new()));
        let long = format!(r#"{{"ns":"prod","nodeName":"{}"}}"#, "x".repeat(LONGEST_NAME + 1));
        assert_eq!(parse(&long), ("prod".to_owned(), String::new()));
        for (length, kept) in [(63, true), (64, false)] {
            let name = "x".repeat(length);
            let parsed = [parse(&format!("ns:{name}")).0, parse(&format!(r#"{{"ns":"{name}"}}"#)).0];
            assert_eq!(parsed.map(|it| it == name), [kept; 2]);
        }
    }

    #[test]
    fn the_clusters_of_endpoints_are_labels_only_if_the_token_asks_for_it() {
        for (text, expected) in [
            (r#"{"clusters":true}"#, true),
            (r#"{"ns":"prod"}"#, false),
            (r#"{"clusters":"true"}"#, false),
            ("", false),
        ] {
            assert_eq!(ContextToken::parse(text).clusters, expected, "{text}");
        }
    }

    proptest! {
        #[test]
        fn parsing_never_panics(text in ".{0,200}") {
            ContextToken::parse(&text);
        }
    }
}
