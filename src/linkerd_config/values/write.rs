//! From JSON to YAML that every reader understands alike, whether by the rules of YAML 1.1 or of 1.2.
//!
//! A string is plain only if it begins with a letter or a slash, has nothing but a few harmless characters, and is no word
//! that some reader takes for a bool, a null or a number. Lines of text are a literal block if they have no odd characters,
//! no odd spaces and at most one line break at their end. All other strings are in double quotes, with the escapes of JSON.

use serde_json::{Map, Number, Value};

/// Words of YAML 1.1 and of some of its readers, in small letters.
const WORDS: [&str; 14] =
    ["y", "n", "yes", "no", "on", "off", "true", "false", "t", "f", "null", "nan", "inf", "infinity"];
/// A longer key is written after a `?`: YAML lets a reader look ahead only so far for the colon.
const LONGEST_KEY: usize = 500;

pub(super) fn document(map: &Map<String, Value>) -> String {
    let mut writer = Writer(String::new());
    if map.is_empty() {
        writer.0.push_str("{}\n");
    } else {
        writer.map(map, 0, false);
    }
    writer.0
}

struct Writer(String);

// === impl Writer ===

impl Writer {
    /// `started`: something stands on the first line already.
    fn map(&mut self, map: &Map<String, Value>, indent: usize, mut started: bool) {
        let mut entries: Vec<_> = map.iter().collect();
        entries.sort_unstable_by_key(|(key, _)| *key);
        for (key, value) in entries {
            if !std::mem::take(&mut started) {
                self.indent(indent);
            }
            let key = if is_plain(key) { key.clone() } else { quoted(key) };
            if key.len() > LONGEST_KEY {
                self.0.push_str("? ");
                self.0.push_str(&key);
                self.0.push('\n');
                self.indent(indent);
            } else {
                self.0.push_str(&key);
            }
            self.0.push(':');
            match value {
                Value::Object(below) if !below.is_empty() => {
                    self.0.push('\n');
                    self.map(below, indent + 2, false);
                }
                Value::Array(items) if !items.is_empty() => {
                    self.0.push('\n');
                    self.list(items, indent, false);
                }
                value => {
                    self.0.push(' ');
                    self.scalar(value, indent);
                }
            }
        }
    }

    fn list(&mut self, items: &[Value], indent: usize, mut started: bool) {
        for item in items {
            if !std::mem::take(&mut started) {
                self.indent(indent);
            }
            self.0.push_str("- ");
            match item {
                Value::Object(map) if !map.is_empty() => self.map(map, indent + 2, true),
                Value::Array(items) if !items.is_empty() => self.list(items, indent + 2, true),
                value => self.scalar(value, indent),
            }
        }
    }

    fn scalar(&mut self, value: &Value, indent: usize) {
        match value {
            Value::String(text) if is_plain(text) => self.0.push_str(text),
            Value::String(text) if is_block(text) => {
                self.0.push_str(if text.ends_with('\n') { "|" } else { "|-" });
                for line in text.strip_suffix('\n').unwrap_or(text).split('\n') {
                    self.0.push('\n');
                    if !line.is_empty() {
                        self.indent(indent + 2);
                        self.0.push_str(line);
                    }
                }
            }
            Value::String(text) => self.0.push_str(&quoted(text)),
            Value::Number(number) => self.0.push_str(&spelled(number)),
            Value::Object(_) => self.0.push_str("{}"),
            Value::Array(_) => self.0.push_str("[]"),
            Value::Null | Value::Bool(_) => self.0.push_str(&value.to_string()),
        }
        self.0.push('\n');
    }

    fn indent(&mut self, indent: usize) {
        self.0.extend(std::iter::repeat_n(' ', indent));
    }
}

fn is_plain(text: &str) -> bool {
    let Some(first) = text.chars().next() else { return false };
    let next = |at: usize| text.as_bytes().get(at + 1).copied();
    (first.is_ascii_alphabetic() || first == '/')
        && text.bytes().enumerate().all(|(at, byte)| match byte {
            b'-' | b'_' | b'.' | b',' | b'/' | b'=' | b'+' | b'@' | b'(' | b')' => true,
            b':' | b' ' => next(at).is_some_and(|next| next != b' '),
            byte => byte.is_ascii_alphanumeric(),
        })
        && !WORDS.contains(&text.to_ascii_lowercase().as_str())
}

/// Several lines, each of which says where it begins and ends.
fn is_block(text: &str) -> bool {
    let lines = text.strip_suffix('\n').unwrap_or(text);
    let blank = |line: &str| line.bytes().all(|byte| byte == b' ');
    text.contains('\n')
        && lines.chars().all(|c| c == '\n' || is_printable(c))
        && !lines.starts_with([' ', '\n'])
        && !lines.ends_with('\n')
        && !lines.split('\n').any(|line| !line.is_empty() && blank(line))
        && !lines.is_empty()
}

/// As it stands, for every reader, and no line break for any.
fn is_printable(c: char) -> bool {
    matches!(c, ' '..='~' | '\u{a0}'..='\u{d7ff}' | '\u{e000}'..='\u{fffd}' | '\u{10000}'..)
        && !matches!(c, '\u{2028}' | '\u{2029}' | '\u{feff}')
}

fn quoted(text: &str) -> String {
    let mut quoted = String::with_capacity(text.len() + 2);
    quoted.push('"');
    for c in text.chars() {
        match c {
            '"' => quoted.push_str("\\\""),
            '\\' => quoted.push_str("\\\\"),
            '\n' => quoted.push_str("\\n"),
            '\r' => quoted.push_str("\\r"),
            '\t' => quoted.push_str("\\t"),
            c if is_printable(c) => quoted.push(c),
            // What is not printable is below U+10000.
            c => quoted.push_str(&format!("\\u{:04x}", u32::from(c))),
        }
    }
    quoted.push('"');
    quoted
}

/// YAML 1.1 wants a point in every float, and a sign before an exponent.
fn spelled(number: &Number) -> String {
    let Some(float) = number.as_f64().filter(|_| number.is_f64()) else { return number.to_string() };
    let shortest = format!("{float:e}");
    let Some((mantissa, exponent)) = shortest.split_once('e') else { return shortest };
    let point = if mantissa.contains('.') { "" } else { ".0" };
    if (-5..15).contains(&exponent.parse().unwrap_or(i32::MAX)) {
        let text = float.to_string();
        return if text.contains('.') { text } else { format!("{text}.0") };
    }
    let sign = if exponent.starts_with('-') { "" } else { "+" };
    format!("{mantissa}{point}e{sign}{exponent}")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn it_reads_like_what_helm_writes() {
        let value = json!({
            "proxy": {
                "logLevel": "warn,linkerd=info",
                "logHTTPHeaders": "off",
                "opaquePorts": "25,587",
                "image": {"name": "cr.l5d.io/linkerd/proxy", "version": ""},
                "additionalEnv": [{"name": "A", "value": "1"}, {"name": "B", "valueFrom": {"fieldRef": {"fieldPath": "x"}}}],
                "cores": null,
            },
            "matrix": [[1, 2], [], ["a"]],
            "pem": "-----BEGIN-----\nMII\n-----END-----\n",
            "empty": {},
            "ratio": 0.5,
        });
        let text = document(value.as_object().unwrap());
        let expected = r#"empty: {}
matrix:
- - 1
  - 2
- []
- - a
pem: |
  -----BEGIN-----
  MII
  -----END-----
proxy:
  additionalEnv:
  - name: A
    value: "1"
  - name: B
    valueFrom:
      fieldRef:
        fieldPath: x
  cores: null
  image:
    name: cr.l5d.io/linkerd/proxy
    version: ""
  logHTTPHeaders: "off"
  logLevel: warn,linkerd=info
  opaquePorts: "25,587"
ratio: 0.5
"#;
        assert_eq!(text, expected);
        assert_eq!(document(&Map::new()), "{}\n");
    }

    #[test]
    fn floats_look_like_floats_to_every_reader() {
        for (number, text) in [
            (0.5, "0.5"),
            (-1e-5, "-0.00001"),
            (1e-7, "1.0e-7"),
            (1.5e300, "1.5e+300"),
            (1e20, "1.0e+20"),
            (5e-324, "5.0e-324"),
        ] {
            assert_eq!(spelled(&Number::from_f64(number).unwrap()), text);
        }
    }
}
