//! The context token, with which a proxy says where it runs. Pure.
//!
//! It is written by the client, so it is a hint and never a proof; and it is never an error, because a proxy that is refused
//! for its token would have no discovery at all. It is read as Go's `encoding/json` reads it, odd ones included.

use serde::{
    Deserialize, Deserializer,
    de::{IgnoredAny, MapAccess, Visitor},
};
use serde_json::value::RawValue;

use crate::api::{LONGEST_LABEL, LONGEST_NAME};

/// A longer one is nobody's.
const LONGEST: usize = 4096;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ContextToken {
    /// The client's namespace; empty when it is not known.
    pub(super) namespace: String,
    /// The client's node; empty when it is not known.
    pub(super) node: String,
}

impl ContextToken {
    /// Total: what cannot be read is an empty token.
    pub(super) fn parse(text: &str) -> Self {
        if text.len() > LONGEST {
            return Self::default();
        }
        let token: Self = match serde_json::from_str(text) {
            Ok(token) => token,
            // What proxies sent before the token was JSON.
            Err(_) => match text.split_once(':') {
                Some(("ns", namespace)) => Self { namespace: namespace.to_owned(), ..Self::default() },
                _ => Self::default(),
            },
        };
        // Views are kept by it: what no namespace can be called is none.
        let is_label = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
        let is_name = token.namespace.len() <= LONGEST_LABEL && token.namespace.bytes().all(is_label);
        if is_name { token } else { Self { namespace: String::new(), ..token } }
    }
}

/// Keys in any case, of two the last; a value of the wrong type costs only its own field.
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
    fn tokens_are_read_as_leniently_as_upstream_does() {
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
    fn a_giant_token_is_an_empty_one() {
        let giant = format!(r#"{{"nodeName":"node-1","pad":"{}"}}"#, "x".repeat(LONGEST));
        assert_eq!(parse(&giant), (String::new(), String::new()));
        let long = format!(r#"{{"ns":"prod","nodeName":"{}"}}"#, "x".repeat(LONGEST_NAME + 1));
        assert_eq!(parse(&long), ("prod".to_owned(), String::new()));
        for (length, kept) in [(63, true), (64, false)] {
            let name = "x".repeat(length);
            let told = [parse(&format!("ns:{name}")).0, parse(&format!(r#"{{"ns":"{name}"}}"#)).0];
            assert_eq!(told.map(|it| it == name), [kept; 2]);
        }
    }

    proptest! {
        #[test]
        fn nothing_makes_it_panic(text in ".{0,200}") {
            ContextToken::parse(&text);
        }
    }
}
