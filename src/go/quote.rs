//! Quotes texts like Go's `%q`.

use std::fmt::Write;

/// Returns a text in double quotes, with Go's escapes. Rust's Unicode tables decide which characters are printable;
/// they may be newer or older than those of a Go program.
pub(crate) fn quoted(text: &str) -> String {
    let mut quoted = String::from("\"");
    for c in text.chars() {
        let escaped = match c {
            '"' => "\\\"",
            '\\' => "\\\\",
            '\u{7}' => "\\a",
            '\u{8}' => "\\b",
            '\u{c}' => "\\f",
            '\n' => "\\n",
            '\r' => "\\r",
            '\t' => "\\t",
            '\u{b}' => "\\v",
            c if is_printable(c) => {
                quoted.push(c);
                continue;
            }
            // Writing to a String cannot fail.
            c => {
                _ = match u32::from(c) {
                    code @ ..=0x7f => write!(quoted, "\\x{code:02x}"),
                    code @ ..=0xffff => write!(quoted, "\\u{code:04x}"),
                    code => write!(quoted, "\\U{code:08x}"),
                };
                continue;
            }
        };
        quoted.push_str(escaped);
    }
    quoted.push('"');
    quoted
}

/// Combining characters are printable in Go. Rust escapes one only at the beginning of a text.
fn is_printable(c: char) -> bool {
    let text: String = ['a', c].into_iter().collect();
    c == '\'' || text.escape_debug().count() == 2
}

#[cfg(test)]
mod tests {
    use super::*;

    /// From the documentation of Go's `strconv.Quote`, and answers of Linkerd's sp-validator.
    #[test]
    fn texts_are_quoted_as_in_go() {
        for (text, expected) in [
            ("", r#""""#),
            ("^.^", r#""^.^""#),
            ("it's", r#""it's""#),
            ("a\u{e9}\u{301}z", "\"a\u{e9}\u{301}z\""),
            ("\u{301}", "\"\u{301}\""),
            ("\"Fran & Freddie's Diner\t\u{263a}\"", "\"\\\"Fran & Freddie's Diner\\t\u{263a}\\\"\""),
            ("\u{7}\u{8}\u{c}\n\r\u{b}\\", r#""\a\b\f\n\r\v\\""#),
            ("\0\u{1}\u{7f}", r#""\x00\x01\x7f""#),
            ("\u{ad}\u{200b}\u{2028}", r#""\u00ad\u200b\u2028""#),
            ("\u{e0001}", r#""\U000e0001""#),
            ("\u{1f600}", "\"\u{1f600}\""),
        ] {
            assert_eq!(quoted(text), expected);
        }
    }
}
