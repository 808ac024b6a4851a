//! Removes the lines of the injection hash from a text, and changes no other byte.

use super::{CONFIG_HASH_ENV, Document};

/// Returns the text without the lines of the injection hash. Returns `None` if the text has no injection hash, or if
/// it cannot be removed without another change: the entry is then not in the form in which the operator writes it.
pub fn without_injection_hash_lines(text: &str) -> Option<String> {
    let (wanted, injection_hash) = Document::read(text).ok()?;
    injection_hash?;
    let lines: Vec<&str> = text.split_inclusive('\n').collect();
    let name = format!("- name: {CONFIG_HASH_ENV}");
    let first = lines.iter().position(|line| line.trim() == name)?;
    lines.get(first + 1)?.trim().strip_prefix("value:")?;
    // An empty list would be parsed as null, so the line of its key is removed as well.
    [first, first.checked_sub(1)?].into_iter().find_map(|start| {
        let kept = lines.iter().enumerate().filter(|(at, _)| !(start..first + 2).contains(at));
        let text: String = kept.map(|(_, line)| *line).collect();
        let document = Document::parse(&text).ok()?;
        (document == wanted).then_some(text)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_lines_of_the_injection_hash_are_removed() {
        let entry = "  - name: LINKERD_CONFIG_HASH\n    value: 0123456789abcdef\n";
        for (before, after) in [
            (
                format!("# mine\nproxy:\n  additionalEnv:\n{entry}  uid: 1 # kept\n"),
                Some("# mine\nproxy:\n  uid: 1 # kept\n"),
            ),
            (
                format!("proxy:\n  additionalEnv:\n  - name: A\n    value: \"1\"\n{entry}"),
                Some("proxy:\n  additionalEnv:\n  - name: A\n    value: \"1\"\n"),
            ),
            (format!("proxy:\n  additionalEnv:\n{entry}    extra: x\n"), None),
            ("proxy: {additionalEnv: [{name: LINKERD_CONFIG_HASH, value: \"0\"}]}".to_owned(), None),
            ("proxy: {uid: 1}".to_owned(), None),
            ("proxy: [".to_owned(), None),
        ] {
            assert_eq!(without_injection_hash_lines(&before).as_deref(), after, "{before}");
        }
    }
}
