//! Text helpers: truncation, shortened lists, counted nouns, hexadecimal digits, suggestions, filters of logs.

pub mod log_filter;
pub mod log_lines;
pub mod suggestion;
pub mod table;

use std::{
    borrow::Cow,
    fmt::{Display, Write},
};

use sha2::{Digest, Sha256};

/// Returns the longest prefix of a text that has at most `bytes` bytes and ends between characters.
pub fn truncate(text: &str, bytes: usize) -> &str {
    text.get(..text.floor_char_boundary(bytes)).unwrap_or(text)
}

/// Truncates a text to at most `bytes` bytes, between characters.
pub fn truncated(mut text: String, bytes: usize) -> String {
    text.truncate(text.floor_char_boundary(bytes));
    text
}

/// Joins the shown items, and appends how many of the `total` items are not shown: `a; b; and 3 more`.
pub fn and_more<T: Display>(shown: impl IntoIterator<Item = T>, total: usize, separator: &str) -> String {
    let mut text = String::new();
    let mut count = 0;
    for item in shown {
        let before = if count == 0 { "" } else { separator };
        // Writing to a String cannot fail.
        _ = write!(text, "{before}{item}");
        count += 1;
    }
    match total.saturating_sub(count) {
        0 => text,
        more => format!("{text}{separator}and {more} more"),
    }
}

/// Whether a text may be the name of an object, so that it can stand in a command and in a sentence. Tenants write some names,
/// and people paste commands into a shell.
pub fn is_name(text: &str) -> bool {
    // Not a flag.
    text.starts_with(|first: char| first.is_ascii_alphanumeric())
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.'))
}

/// Escapes the characters that a terminal would obey instead of printing them: control characters, which include line
/// breaks, and marks that reorder a text. The escapes are those of JSON, so that escaped JSON is the same value.
pub fn printable(text: &str) -> Cow<'_, str> {
    let is_obeyed = |c: char| {
        c.is_control()
            || matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
    };
    if !text.contains(is_obeyed) {
        return Cow::Borrowed(text);
    }
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\n' => escaped.push_str("\\n"),
            '\r' => escaped.push_str("\\r"),
            '\t' => escaped.push_str("\\t"),
            // Writing to a String cannot fail.
            c if is_obeyed(c) => _ = write!(escaped, "\\u{:04x}", u32::from(c)),
            c => escaped.push(c),
        }
    }
    Cow::Owned(escaped)
}

/// Does the same in each line of a text, and keeps the line breaks.
pub fn printable_lines(text: &str) -> Cow<'_, str> {
    if text.split('\n').all(|line| matches!(printable(line), Cow::Borrowed(_))) {
        return Cow::Borrowed(text);
    }
    Cow::Owned(text.split('\n').map(printable).collect::<Vec<_>>().join("\n"))
}

/// Returns a count and its noun: `1 Pod`, `2 Pods`.
pub fn counted(count: usize, noun: &str) -> String {
    if count == 1 { format!("1 {noun}") } else { format!("{count} {noun}s") }
}

/// Returns the SHA-256 of the exact bytes, in the form of Linkerd's Pod annotation.
pub fn sha256(bytes: impl AsRef<[u8]>) -> String {
    hex(Sha256::digest(bytes))
}

/// Returns bytes as hexadecimal digits in lower case.
pub fn hex(bytes: impl AsRef<[u8]>) -> String {
    bytes.as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_truncated_between_characters() {
        assert_eq!(truncate("aé", 2), "a");
        assert_eq!(truncate("aé", 3), "aé");
        assert_eq!(truncate("aé", 99), "aé");
        assert_eq!(truncated("aé".to_owned(), 2), "a");
    }

    #[test]
    fn a_long_list_ends_with_the_number_of_items_that_are_not_shown() {
        assert_eq!(and_more(["a", "b"], 2, "; "), "a; b");
        assert_eq!(and_more(["a", "b"], 5, "; "), "a; b; and 3 more");
        assert_eq!(and_more(Vec::<String>::new(), 0, "; "), "");
    }

    #[test]
    fn what_a_terminal_would_obey_is_escaped_as_in_json() {
        assert!(matches!(printable("spiffe://a/ü √"), Cow::Borrowed(_)));
        let text = "\u{1b}[2J\r\nforged\t\u{9b}31m\u{7f}\u{202e}\u{2028}";
        let escaped = r"\u001b[2J\r\nforged\t\u009b31m\u007f\u202e\u2028";
        assert_eq!(printable(text), escaped);
        assert_eq!(serde_json::from_str::<String>(&format!("\"{escaped}\"")).unwrap(), text);
        assert_eq!(printable_lines("a\n\u{1b}b\n"), "a\n\\u001bb\n");
        assert!(matches!(printable_lines("a\n\nb\n"), Cow::Borrowed(_)));
    }

    #[test]
    fn bytes_have_two_digits_each() {
        assert_eq!(hex([0, 15, 255]), "000fff");
    }
}
