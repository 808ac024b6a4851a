//! Compares the output of a command with what a page shows.
//!
//! * In: the text of a page, the output. Out: whether the output ends with the text.
//! * Always: a line of `…` stands for any lines, and `…` at the end of a line for the rest of it. Lengths of spaces and
//!   empty lines do not matter. A word that differs in each run matches another one of the same [form](form): ages,
//!   times, hashes, and names that Kubernetes or the operator generates. All other words are equal.

use anyhow::{Result, ensure};

const ANYTHING: &str = "…";
/// The characters of names that Kubernetes generates.
const GENERATED: &str = "bcdfghjklmnpqrstvwxz2456789";

/// Checks that the output ends with what the page shows.
pub(crate) fn ends_with(output: &str, shown: &str) -> Result<()> {
    let lines = |text: &str| text.lines().map(normal).filter(|line| !line.is_empty()).collect::<Vec<_>>();
    let (expected, seen) = (lines(shown), lines(output));
    ensure!(!expected.is_empty(), "the page shows an empty output");
    let is_shown = (0..=seen.len()).any(|start| seen.get(start..).is_some_and(|seen| are_equal(&expected, seen)));
    ensure!(is_shown, "the page shows:\n{}\n\nthe output is:\n{}", shown.trim_end(), output.trim_end());
    Ok(())
}

fn are_equal(expected: &[String], seen: &[String]) -> bool {
    match (expected.split_first(), seen.split_first()) {
        (None, None) => true,
        (Some((first, expected)), _) if first == ANYTHING => {
            (0..=seen.len()).any(|start| seen.get(start..).is_some_and(|seen| are_equal(expected, seen)))
        }
        (Some((first, expected)), Some((line, seen))) => {
            let is_equal = match first.strip_suffix(ANYTHING) {
                Some(start) => line.starts_with(start),
                None => line == first,
            };
            is_equal && are_equal(expected, seen)
        }
        _ => false,
    }
}

/// The line with one space between its words, and with the form of each word that differs in each run.
fn normal(line: &str) -> String {
    line.split_whitespace().map(form).collect::<Vec<_>>().join(" ")
}

/// The form of a word that differs in each run, and else the word. Quotes and punctuation around it stay.
fn form(word: &str) -> String {
    let is_around = |c: char| "\"',.;:()".contains(c);
    let inner = word.trim_matches(is_around);
    let Some((before, after)) = word.split_once(inner).filter(|_| !inner.is_empty()) else { return word.to_owned() };
    let form = match inner {
        it if is_age(it) => "<age>".to_owned(),
        it if is_time(it) => "<time>".to_owned(),
        it if it.split('-').all(is_hash) => "<hash>".to_owned(),
        it => without_generated_parts(it).map_or_else(|| it.to_owned(), |name| format!("{name}-<generated>")),
    };
    format!("{before}{form}{after}")
}

/// As `2m5s`.
fn is_age(word: &str) -> bool {
    let mut parts = word.split_inclusive(['s', 'm', 'h', 'd']);
    let is_part = |part: &str| {
        let number = part.strip_suffix(['s', 'm', 'h', 'd']).unwrap_or_default();
        !number.is_empty() && number.chars().all(|c| c.is_ascii_digit())
    };
    parts.all(is_part)
}

/// As `2026-11-27T14:55:02Z`.
fn is_time(word: &str) -> bool {
    let pattern: String = word.chars().map(|c| if c.is_ascii_digit() { '0' } else { c }).collect();
    pattern == "0000-00-00T00:00:00Z"
}

fn is_hash(word: &str) -> bool {
    word.len() >= 8 && word.chars().all(|c| c.is_ascii_digit() || ('a'..='f').contains(&c))
}

/// `web` for `web-685b6c7d86-7tg95`, for `web-7tg95`, and for `web-11b6f2ca4c9e1bcb`.
fn without_generated_parts(name: &str) -> Option<&str> {
    let is_generated = |part: &str| part.chars().all(|c| GENERATED.contains(c));
    if let Some((start, _)) = name.rsplit_once('-').filter(|(_, suffix)| suffix.len() == 16 && is_hash(suffix)) {
        return Some(start);
    }
    let (owner, _) = name.rsplit_once('-').filter(|(_, suffix)| suffix.len() == 5 && is_generated(suffix))?;
    let template = owner.rsplit_once('-').filter(|(_, hash)| (6..=10).contains(&hash.len()) && is_generated(hash));
    Some(template.map_or(owner, |(workload, _)| workload))
}

#[test]
fn an_output_ends_with_the_lines_of_the_page_up_to_what_differs_in_each_run() {
    let is = |output: &str, shown: &str| ends_with(output, shown).is_ok();
    // What differs in each run.
    assert!(is("a\nNAME   AGE\nmesh   2m5s\n", "NAME AGE\n\nmesh  33s"));
    assert!(is("web-ff89544b6-fn8dd 1", "web-685b6c7d86-7tg95 1"));
    assert!(is("linkerd-external-web-4e8c46bd433e5c2b true", "linkerd-external-web-11b6f2ca4c9e1bcb true"));
    assert!(is("to be restarted for 8b83f3752f2d4948-0474e4bc: 2", "to be restarted for c21e192cdf77fb4b-0474e4bc: 2"));
    assert!(is("since 2026-11-27T14:55:02Z: all", "since 2025-01-01T00:00:00Z: all"));
    assert!(is("pods \"web-597b587d6d-wzjl9\" is", "pods \"web-6486f69c46-5qz26\" is"));
    // What is left out.
    assert!(is("a\nb\nc\nd", "a\n…\nd") && is("a\nd", "a\n…\nd") && is("a b c", "a b …"));
    // Everything else.
    for (output, shown) in [
        ("a\nb", "a"),
        ("a\nb\nd", "a\nd"),
        ("mesh 1/1 33s", "mesh 0/1 33s"),
        ("mesh 33s", "mesh x"),
        ("api-685b6c7d86-7tg95", "web-685b6c7d86-7tg95"),
        ("web-7tg95:", "web-7tg95"),
        ("8080", "8081"),
        ("192.0.2.12", "192.0.2.11"),
        ("edge-26.8.4", "edge-26.8.3"),
        ("linkerd-external-web-11b6f2ca4c9e1bcb", "linkerd-external-api-11b6f2ca4c9e1bcb"),
        ("a x", "a b …"),
        ("a", "a\n…\na"),
        ("", "a"),
        ("a", "…\nb\n…"),
        ("a", "\n"),
    ] {
        assert!(!is(output, shown), "{output:?} {shown:?}");
    }
}
