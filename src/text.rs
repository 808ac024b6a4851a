//! Text helpers: truncation, shortened lists, counted nouns, hexadecimal digits.

pub mod table;

use std::fmt::{Display, Write};

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

/// Returns a count and its noun: `1 Pod`, `2 Pods`.
pub fn counted(count: usize, noun: &str) -> String {
    if count == 1 { format!("1 {noun}") } else { format!("{count} {noun}s") }
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
    fn bytes_have_two_digits_each() {
        assert_eq!(hex([0, 15, 255]), "000fff");
    }
}
