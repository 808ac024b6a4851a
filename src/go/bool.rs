//! Parses booleans like Go's `strconv.ParseBool`.

/// Returns the boolean, or `None` for a text that Go rejects, such as `yes`.
pub(crate) fn parse(text: &str) -> Option<bool> {
    match text {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Some(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Some(false),
        _ => None,
    }
}
