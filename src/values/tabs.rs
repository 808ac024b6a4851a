//! The tabs before the first character of a line, of which Go's YAML parser accepts some. Pure.
//!
//! In: a text, and its events. Out: the first tab that Go rejects. Always holds: a tab is accepted only where Go reads
//! a blank or a part of a scalar: between the tokens of a flow collection, as in indented JSON; within a quoted scalar;
//! and within or behind any other scalar that is indented deeply enough with spaces. The work is linear in the length
//! of the text.

use std::str::SplitInclusive;

use granit_parser::{ErrorKind, Event, ScalarStyle, ScanError, Span};

use super::InvalidDocument;

const BYTE_ORDER_MARK: char = '\u{feff}';

/// The tabs of a text that no event has passed yet.
pub(super) struct IndentingTabs<'a> {
    text: &'a str,
    /// The lines after the next tab, where they begin, and the number of the first one.
    lines: SplitInclusive<'a, [char; 2]>,
    at: usize,
    line: usize,
    next: Option<IndentingTab>,
    /// The end of the last plain scalar and of the blanks behind it, which Go reads as its part.
    plain_end: Option<usize>,
}

/// The first tab of a line, if only blanks or indicators are before it.
#[derive(Clone, Copy)]
struct IndentingTab {
    at: usize,
    line: usize,
    /// The number of spaces before the tab; `None` if an indicator is before it.
    spaces: Option<usize>,
}

/// Where an event is.
#[derive(Clone, Copy)]
pub(super) struct Nesting {
    /// Whether the innermost open collection is a flow collection.
    pub(super) is_flow: bool,
    /// The number of spaces with which Go requires a plain scalar to be indented.
    pub(super) indent: usize,
}

// === impl IndentingTabs ===

impl<'a> IndentingTabs<'a> {
    pub(super) fn of(text: &'a str) -> Self {
        // Go ends a line at a lone carriage return too.
        let lines = text.split_inclusive(['\n', '\r']);
        let mut tabs = Self { text, lines, at: 0, line: 1, next: None, plain_end: None };
        tabs.advance();
        tabs
    }

    /// Finds the next tab.
    fn advance(&mut self) {
        self.next = None;
        for line in self.lines.by_ref() {
            let after = line.trim_start_matches([' ', '-', '?', ':', BYTE_ORDER_MARK]);
            // A document may begin behind its marker and a tab.
            if after.starts_with('\t') && !line.starts_with("---") {
                let before = line.strip_suffix(after).unwrap_or_default();
                let spaces = before.chars().all(|c| c == ' ').then_some(before.len());
                self.next = Some(IndentingTab { at: self.at + before.len(), line: self.line, spaces });
            }
            self.at += line.len();
            self.line += usize::from(line.ends_with('\n'));
            if self.next.is_some() {
                return;
            }
        }
    }

    /// Returns the next tab if it is before this place.
    fn before(&mut self, end: usize) -> Option<IndentingTab> {
        let tab = self.next.filter(|tab| tab.at < end)?;
        self.advance();
        Some(tab)
    }

    /// Checks the tabs before the end of an event. `nesting` is where the event is.
    pub(super) fn check(&mut self, event: &Event<'_>, span: &Span, nesting: Nesting) -> Result<(), InvalidDocument> {
        let (Some(start), Some(end)) = (span.start.byte_offset(), span.end.byte_offset()) else { return Ok(()) };
        while let Some(tab) = self.before(start) {
            if !self.is_blank(tab, nesting) {
                return Err(tab.rejected());
            }
        }
        if let Event::Scalar(_, style, ..) = event {
            while let Some(tab) = self.before(end) {
                tab.check_within(*style, span, nesting)?;
            }
            // An absent value has no text.
            if matches!(style, ScalarStyle::Plain) && start < end {
                self.plain_end = Some(end);
            }
        }
        // Go does not read on.
        if matches!(event, Event::DocumentEnd) && self.text.get(start..).is_some_and(|rest| rest.starts_with("...")) {
            (self.lines, self.next) = ("".split_inclusive(['\n', '\r']), None);
        }
        Ok(())
    }

    /// Returns the tab that is the reason why the text cannot be parsed.
    pub(super) fn reason_of(&self, error: &ScanError) -> Option<InvalidDocument> {
        let is_about_tabs = matches!(
            error.kind(),
            ErrorKind::TabNotAllowed
                | ErrorKind::TabInBlockIndentation
                | ErrorKind::TabInIndentation
                | ErrorKind::TabInPlainScalar
                | ErrorKind::TabAtBlockScalarStart
        );
        let tab = self.next.filter(|tab| is_about_tabs || tab.line <= error.marker().line())?;
        // Go accepts some tabs in flow collections and quoted scalars that the parser does not.
        let may_be_inside = self.text.get(..tab.at)?.contains(['{', '[', '"', '\'']);
        match (is_about_tabs, may_be_inside) {
            (_, false) => Some(tab.rejected()),
            (true, true) => Some(tab.unsupported()),
            (false, true) => None,
        }
    }

    /// Whether Go reads a tab between two tokens as a blank.
    fn is_blank(&mut self, tab: IndentingTab, nesting: Nesting) -> bool {
        let Some(spaces) = tab.spaces else { return false };
        let behind = self.plain_end.and_then(|end| self.text.get(end..tab.at));
        let is_behind_plain = behind.is_some_and(|behind| behind.trim().is_empty());
        self.plain_end = is_behind_plain.then_some(tab.at);
        if is_behind_plain { spaces >= nesting.indent } else { nesting.is_flow }
    }
}

// === impl IndentingTab ===

impl IndentingTab {
    /// Checks that Go reads the tab as a part of a scalar.
    fn check_within(self, style: ScalarStyle, scalar: &Span, nesting: Nesting) -> Result<(), InvalidDocument> {
        // With an indicator before it, it is not a part of the indentation.
        let Some(spaces) = self.spaces else { return Ok(()) };
        let fits = match style {
            ScalarStyle::SingleQuoted | ScalarStyle::DoubleQuoted => true,
            ScalarStyle::Plain => spaces >= nesting.indent,
            // Unless a digit says how deeply it is indented, Go rejects a tab as its first character.
            ScalarStyle::Literal | ScalarStyle::Folded if scalar.start.byte_offset() == Some(self.at) => {
                return Err(self.unsupported());
            }
            ScalarStyle::Literal | ScalarStyle::Folded => spaces >= scalar.start.col(),
        };
        if fits { Ok(()) } else { Err(self.rejected()) }
    }

    fn rejected(self) -> InvalidDocument {
        let reason = "a tab where Go requires spaces: indent with spaces".to_owned();
        InvalidDocument::NotYaml { line: self.line, column: 1, reason }
    }

    fn unsupported(self) -> InvalidDocument {
        let reason = "a tab before the first character of the line: indent with spaces";
        InvalidDocument::Unsupported { line: self.line, column: 1, reason }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Serializer, Value, json, ser::PrettyFormatter};

    use super::super::{read::map, testing::fixture};

    #[test]
    fn a_document_in_json_is_read_however_it_is_indented() {
        let document = fixture();
        let spaces = serde_json::to_string_pretty(document.as_map()).unwrap();
        let mut tabs = Vec::new();
        let mut serializer = Serializer::with_formatter(&mut tabs, PrettyFormatter::with_indent(b"\t"));
        serde::Serialize::serialize(document.as_map(), &mut serializer).unwrap();
        let tabs = String::from_utf8(tabs).unwrap();
        assert!(tabs.contains("\n\t\t\"logLevel\": "));
        for text in [json!(document.as_map()).to_string(), spaces, tabs.clone(), tabs.replace('\n', "\r\n")] {
            assert_eq!(map(&text).unwrap(), *document.as_map());
        }
    }

    /// sigs.k8s.io/yaml v1.6.0, with which Linkerd reads the document, has given these answers.
    #[test]
    fn tabs_are_read_as_go_reads_them() {
        for (text, expected) in [
            ("{\"a\":\t1,\t\"b\"\t:2\t}\t\n", Some(json!({"a": 1, "b": 2}))),
            ("{\n\t\"a\": 1,\n\t# text\n\t\"b\": [\n\t\t2\n\t]\n}\n", Some(json!({"a": 1, "b": [2]}))),
            ("{\"a\":\n\t1}\n", Some(json!({"a": 1}))),
            ("{\n\t\"a\": 1, \n  \"b\": 2\n\t}\n---\n\tx", Some(json!({"a": 1, "b": 2}))),
            ("{\n\t\"a\": \"x\n\ty\"\n}\n", Some(json!({"a": "x y"}))),
            ("---\t\na: 1\n", Some(json!({"a": 1}))),
            ("a: b\n \tc\n", Some(json!({"a": "b c"}))),
            ("a: 1\n \t\nb: 2\n", Some(json!({"a": 1, "b": 2}))),
            ("a: 1\n \t# text\nb: 2\n", Some(json!({"a": 1, "b": 2}))),
            ("a: |\n  x\n  \ty\n", Some(json!({"a": "x\n\ty\n"}))),
            ("a: |\n  x\n  \t\n  y\n", Some(json!({"a": "x\n\t\ny\n"}))),
            ("a: >\n  x\n\n  \ty\n", Some(json!({"a": "x\n\n\ty\n"}))),
            ("a: |\n  x\n  -\ty\n", Some(json!({"a": "x\n-\ty\n"}))),
            ("\t{\"a\": 1}\n", None),
            ("{\"a\": 1}\n\t\n", None),
            ("\t# text\na: 1\n", None),
            ("a:\n\tb: 1\n", None),
            ("a: 1\n\tb: 2\n", None),
            ("a: b\n\tc\n", None),
            ("a: 1\n\t\nb: 2\n", None),
            ("a: 'b'\n \t\nc: 2\n", None),
            ("a:\n-\tb\n", None),
            ("? a\n:\tb\n", None),
            ("a: |\n\tx\n", None),
            ("a: |\n  x\n\ty\n", None),
            ("a: |\n  x\n \ty\n", None),
            ("a: |\n  x\n\n\t\n  y\n", None),
            ("a:\n  {\n\t\"b\": 1\n\t}\n", None),
        ] {
            match (map(text), expected) {
                (Ok(read), expected) => assert_eq!(Some(Value::Object(read)), expected, "{text:?}"),
                (Err(error), None) => {
                    let error = error.to_string();
                    assert!(error.contains(", column 1: a tab ") && error.contains("indent with spaces"), "{error}");
                }
                (Err(error), Some(_)) => panic!("{text:?}: {error}"),
            }
        }
    }

    /// Go accepts them.
    #[test]
    fn tabs_that_the_parser_does_not_accept_are_named_as_the_reason() {
        for text in ["a: {\n\t\"b\": 1\n}\n", "a:\n- [\n\t1]\n", "a: 'b\n\tc'\n", "a: |2\n  \tx\n"] {
            let error = map(text).unwrap_err().to_string();
            assert!(error.contains("column 1: a tab before the first character of the line"), "{text:?}: {error}");
        }
    }

    #[test]
    fn a_syntax_error_beside_tabs_is_not_blamed_on_them() {
        let error = map("{\n\t\"a\": \"x\"\n\t\"b\": 2\n}\n").unwrap_err().to_string();
        assert!(error.starts_with("not YAML that Go can parse: line 3") && !error.contains("tab"), "{error}");
    }

    /// Together they would take minutes if blanks were read again for each tab.
    #[test]
    fn many_tabs_take_little_time() {
        let begun = std::time::Instant::now();
        assert!(map(&format!("a: 1\n{}b: 2\n", " \t\n".repeat(150_000))).is_ok());
        assert!(map(&format!("{{\"a\": 1{},{}}}\n", "\n".repeat(200_000), "\t\n".repeat(100_000))).is_ok());
        assert!(begun.elapsed().as_secs() < 20, "{:?}", begun.elapsed());
    }
}
