//! Converts YAML to JSON as sigs.k8s.io/yaml does.
//!
//! In: a text. Out: a map, not yet compared with Linkerd's keys. Always holds: work and result are linear in the length
//! of the text; a text that Go's YAML 1.1 parser could read differently is rejected. Anchors, aliases, merge keys and
//! tags are rejected too, because no installer writes them.

use granit_parser::{Event, Parser, ScalarStyle, Span, StructureStyle};
use serde_json::{Map, Value};

use super::{
    InvalidDocument, LONGEST, Path,
    path::shortened,
    tabs::{IndentingTabs, Nesting},
};
use crate::go::scalar::resolve;

/// The maximum nesting of maps and lists. No document of Linkerd's has ten levels.
pub(super) const DEEPEST: usize = 64;

/// Parses a text as Linkerd reads it.
pub(super) fn map(text: &str) -> Result<Map<String, Value>, InvalidDocument> {
    parse(text, false)
}

/// Parses a text as kubectl reads it: unlike Linkerd, it reads JSON with all escapes of JSON.
pub(super) fn manifest(text: &str) -> Result<Map<String, Value>, InvalidDocument> {
    parse(text, text.trim_start().starts_with('{'))
}

fn parse(text: &str, is_json: bool) -> Result<Map<String, Value>, InvalidDocument> {
    if text.len() > LONGEST {
        return Err(InvalidDocument::TooLong);
    }
    check_characters(text)?;
    let options = granit_parser::options! { emit_comments: false };
    let end = TextEnd::of(text);
    let mut builder = Builder::default();
    let mut tabs = IndentingTabs::of(text);
    let mut ended = false;
    for event in Parser::new_from_str_with_options(text, options) {
        let (event, span) = event.map_err(|error| {
            let (line, column) = (error.marker().line(), error.marker().col() + 1);
            let not_yaml = || InvalidDocument::NotYaml { line, column, reason: shortened(&error.info(), 200) };
            tabs.reason_of(&error).unwrap_or_else(not_yaml)
        })?;
        tabs.check(&event, &span, builder.nesting())?;
        match event {
            Event::DocumentEnd => ended = true,
            Event::DocumentStart(false, _) if ended => {
                return Err(Place::of(&span).reject("content after the end of the document"));
            }
            // Go reads only the first document of a stream.
            Event::DocumentStart(..) | Event::StreamEnd if ended => break,
            event => {
                let event = as_go(event, &span, end)?;
                check_flow(&event, &span, text, builder.open.last())?;
                if !is_json {
                    check_escapes(&event, &span, text)?;
                }
                builder.take(event, Place::of(&span))?;
            }
        }
    }
    match builder.root {
        Some(Value::Object(map)) => Ok(map),
        _ => Err(InvalidDocument::NotAMap),
    }
}

/// Removes the final line break of a block scalar if the text ends within its last line, as Go does.
fn as_go<'a>(event: Event<'a>, span: &Span, end: TextEnd<'_>) -> Result<Event<'a>, InvalidDocument> {
    let Event::Scalar(value, style @ (ScalarStyle::Literal | ScalarStyle::Folded), anchor, tag) = event else {
        return Ok(event);
    };
    let TextEnd { blank_from, last_line } = end;
    let at_the_end = span.end.byte_offset().is_none_or(|end| end >= blank_from);
    if !at_the_end || last_line.is_empty() {
        return Ok(Event::Scalar(value, style, anchor, tag));
    }
    if last_line.trim().is_empty() {
        return Err(Place::of(span).reject("a block scalar whose last line is blank and has no line break"));
    }
    let value = value.strip_suffix('\n').unwrap_or(&value).to_owned();
    Ok(Event::Scalar(value.into(), style, anchor, tag))
}

/// Rejects scalars in flow collections that Go splits differently, or not at all: at a colon, a question mark or a line
/// break.
fn check_flow(event: &Event<'_>, span: &Span, text: &str, open: Option<&Open>) -> Result<(), InvalidDocument> {
    let Event::Scalar(scalar, style, ..) = event else { return Ok(()) };
    if !open.is_some_and(|open| open.is_flow) {
        return Ok(());
    }
    let rest = span.end.byte_offset().and_then(|end| text.get(end..)).unwrap_or_default();
    let value = rest.trim_start_matches([' ', '\t']).strip_prefix(':');
    let is_key = rest.trim_start().starts_with(':');
    let has_lines = span.start.line() != span.end.line();
    let is_odd = match style {
        ScalarStyle::Plain => {
            has_lines
                || scalar.starts_with(':')
                || scalar.contains('?')
                || value.is_some_and(|value| !value.starts_with([' ', '\n', '\r']))
        }
        _ => false,
    };
    // Go requires a key and its colon on one line.
    if is_odd || is_key && (has_lines || value.is_none()) {
        return Err(Place::of(span).reject("a scalar that Go parses differently"));
    }
    Ok(())
}

/// Rejects the escapes of JSON that Go's YAML parser rejects.
fn check_escapes(event: &Event<'_>, span: &Span, text: &str) -> Result<(), InvalidDocument> {
    let Event::Scalar(_, ScalarStyle::DoubleQuoted, ..) = event else { return Ok(()) };
    let (Some(start), Some(end)) = (span.start.byte_offset(), span.end.byte_offset()) else { return Ok(()) };
    let mut rest = text.get(start..end).unwrap_or_default();
    while let Some((_, escape)) = rest.split_once('\\') {
        if escape.starts_with('/') {
            return Err(Place::of(span).reject("the escape \\/ of JSON: write / without the backslash"));
        }
        let code = escape.strip_prefix('u').and_then(|hex| u32::from_str_radix(hex.get(..4)?, 16).ok());
        if code.is_some_and(|code| char::from_u32(code).is_none()) {
            return Err(Place::of(span).reject("two escapes for one character: write the character itself"));
        }
        // The escaped character may be a backslash.
        rest = escape.get(escape.chars().next().map_or(0, char::len_utf8)..).unwrap_or_default();
    }
    Ok(())
}

/// Rejects the characters that Go's reader rejects, and those at which it may split lines differently: line breaks of
/// YAML 1.1 only.
fn check_characters(text: &str) -> Result<(), InvalidDocument> {
    // A byte order mark is allowed only at the beginning.
    let is_odd = |(at, c): &(usize, char)| {
        let allowed = matches!(c, '\t' | '\n' | '\r' | ' '..='~' | '\u{a0}'..='\u{fffd}' | '\u{10000}'..);
        !allowed || matches!(c, '\u{2028}' | '\u{2029}') || *c == '\u{feff}' && *at > 0
    };
    if text.trim_start().starts_with("...") {
        return Err(InvalidDocument::NotYaml {
            line: 1,
            column: 1,
            reason: "a document end marker before the document".to_owned(),
        });
    }
    let Some((at, _)) = text.char_indices().find(is_odd) else { return Ok(()) };
    let before = text.get(..at).unwrap_or_default();
    let line = before.matches('\n').count() + 1;
    let column = before.rsplit('\n').next().unwrap_or_default().chars().count() + 1;
    Err(InvalidDocument::NotYaml { line, column, reason: "a character that must be escaped".to_owned() })
}

/// The end of a text. It is found once, because a text may have many scalars.
#[derive(Clone, Copy)]
struct TextEnd<'a> {
    /// Where the blank characters at the end begin.
    blank_from: usize,
    last_line: &'a str,
}

/// A line and a column, both starting at 1.
#[derive(Clone, Copy)]
struct Place {
    line: usize,
    column: usize,
}

// === impl TextEnd ===

impl<'a> TextEnd<'a> {
    fn of(text: &'a str) -> Self {
        Self { blank_from: text.trim_end().len(), last_line: text.rsplit('\n').next().unwrap_or_default() }
    }
}

/// Builds the value from the events, without recursion.
#[derive(Default)]
struct Builder {
    root: Option<Value>,
    open: Vec<Open>,
}

/// A list or a map that is still open.
struct Open {
    collection: Collection,
    is_flow: bool,
    /// The column of its first item, starting at 0.
    column: usize,
}

enum Collection {
    List(Vec<Value>),
    Map { entries: Map<String, Value>, key: Option<String> },
}

// === impl Place ===

impl Place {
    fn of(span: &Span) -> Self {
        Self { line: span.start.line(), column: span.start.col() + 1 }
    }

    fn reject(self, reason: &str) -> InvalidDocument {
        InvalidDocument::NotYaml { line: self.line, column: self.column, reason: reason.to_owned() }
    }

    fn unsupported(self, reason: &'static str) -> InvalidDocument {
        InvalidDocument::Unsupported { line: self.line, column: self.column, reason }
    }
}

// === impl Builder ===

impl Builder {
    fn take(&mut self, event: Event<'_>, place: Place) -> Result<(), InvalidDocument> {
        match event {
            Event::Scalar(text, style, 0, None) => {
                let value = scalar(&text, style, place)?;
                self.put(value, place)
            }
            Event::SequenceStart(style, 0, None) => self.open(Collection::List(Vec::new()), style, place),
            Event::MappingStart(style, 0, None) => {
                self.open(Collection::Map { entries: Map::new(), key: None }, style, place)
            }
            Event::Scalar(..) | Event::SequenceStart(..) | Event::MappingStart(..) | Event::Alias(_) => {
                Err(place.unsupported("anchors, aliases and tags are not supported"))
            }
            Event::SequenceEnd | Event::MappingEnd => {
                let value = match self.open.pop().map(|open| open.collection) {
                    Some(Collection::List(items)) => Value::Array(items),
                    Some(Collection::Map { entries, .. }) => Value::Object(entries),
                    None => return Err(place.reject("the end of a collection that was not opened")),
                };
                self.put(value, place)
            }
            _ => Ok(()),
        }
    }

    fn open(&mut self, collection: Collection, style: StructureStyle, place: Place) -> Result<(), InvalidDocument> {
        if self.open.len() >= DEEPEST {
            return Err(InvalidDocument::TooDeep { line: place.line, column: place.column });
        }
        let is_flow = matches!(style, StructureStyle::Flow);
        self.open.push(Open { collection, is_flow, column: place.column.saturating_sub(1) });
        Ok(())
    }

    /// Returns where the next event is.
    fn nesting(&self) -> Nesting {
        let block = self.open.iter().rev().find(|open| !open.is_flow);
        Nesting {
            is_flow: self.open.last().is_some_and(|open| open.is_flow),
            indent: block.map_or(0, |open| open.column + 1),
        }
    }

    fn put(&mut self, value: Value, place: Place) -> Result<(), InvalidDocument> {
        let Place { line, column } = place;
        match self.open.last_mut().map(|open| &mut open.collection) {
            None => self.root = Some(value),
            Some(Collection::List(items)) => items.push(value),
            Some(Collection::Map { entries, key }) => match key.take() {
                // This is a key; its value follows.
                None => {
                    let found = key_of(value).ok_or(InvalidDocument::KeyIsNoString { line, column })?;
                    let is_duplicate = entries.contains_key(&found);
                    *key = Some(found);
                    if is_duplicate {
                        return Err(InvalidDocument::DuplicateKey { path: self.path(), line, column });
                    }
                }
                Some(key) => {
                    entries.insert(key, value);
                }
            },
        }
        Ok(())
    }

    /// Returns the keys of all open maps.
    fn path(&self) -> Path {
        let key = |open: &'_ Open| match &open.collection {
            Collection::Map { key, .. } => key.clone(),
            Collection::List(_) => None,
        };
        let keys: Vec<String> = self.open.iter().filter_map(key).collect();
        keys.iter().map(String::as_str).collect()
    }
}

fn scalar(text: &str, style: ScalarStyle, place: Place) -> Result<Value, InvalidDocument> {
    if !matches!(style, ScalarStyle::Plain) {
        return Ok(text.into());
    }
    if text == "<<" {
        return Err(place.unsupported("merge keys are not supported"));
    }
    resolve(text)
        .ok_or_else(|| place.unsupported("a number in a form that is not supported: write it as in JSON, or quote it"))
}

/// Go converts bool and integer keys to strings. Its conversion of floats loses digits, so float keys are rejected.
fn key_of(value: Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text),
        Value::Number(number) if !number.is_f64() => Some(number.to_string()),
        Value::Bool(it) => Some(it.to_string()),
        Value::Null | Value::Number(_) | Value::Array(_) | Value::Object(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(text: &str) -> Value {
        Value::Object(map(text).unwrap_or_else(|error| panic!("{text:?}: {error}")))
    }

    #[test]
    fn quotes_decide_whether_a_scalar_is_a_string() {
        let text = "plain: off\nsingle: 'off'\ndouble: \"off\"\nblock: |-\n  off\nfolded: >-\n  off\n  on\nempty:\nnothing: ~\n\
                    quoted: '<<'\nhex: '0x10'\nescaped: \"\\x41\\u00e9\"\n";
        let expected = json!({
            "plain": false, "single": "off", "double": "off", "block": "off", "folded": "off on", "empty": null,
            "nothing": null, "quoted": "<<", "hex": "0x10", "escaped": "Aé",
        });
        assert_eq!(read(text), expected);
    }

    #[test]
    fn keys_that_are_not_strings_become_strings_as_in_go() {
        let expected = json!({"1": "a", "true": "b", "2001-01-01": "f", "": "g", "<<": "h"});
        assert_eq!(read("1: a\non: b\n2001-01-01: f\n'': g\n'<<': h\n"), expected);
        assert_eq!(map("a:\n  ~: 1\n"), Err(InvalidDocument::KeyIsNoString { line: 2, column: 3 }));
        assert_eq!(map("1.5: a\n"), Err(InvalidDocument::KeyIsNoString { line: 1, column: 1 }));
        assert_eq!(map("[a]: 1\n"), Err(InvalidDocument::KeyIsNoString { line: 1, column: 3 }));
    }

    #[test]
    fn only_the_first_document_of_a_stream_is_read_and_a_text_may_end_anywhere() {
        assert_eq!(read("---\na: 1\n---\nb: 2\n"), json!({"a": 1}));
        assert_eq!(read("a: 1\n...\n"), json!({"a": 1}));
        assert_eq!(read("a: |\n  text"), json!({"a": "text"}));
        assert_eq!(read("a: |\n  text\n"), json!({"a": "text\n"}));
        assert_eq!(read("a: 1\r\nb: |\r\n  x\r\n"), json!({"a": 1, "b": "x\n"}));
    }

    #[test]
    fn an_invalid_document_is_rejected_with_its_position() {
        const NOT_YAML: &str = "not YAML that Go can parse: ";
        for (text, kind, place) in [
            ("", "", "not a map"),
            ("# nothing\n", "", "not a map"),
            ("- a\n", "", "not a map"),
            ("text", "", "not a map"),
            ("a: {b: 1, b: 2}\n", "", "line 1, column 11: duplicate key a.b"),
            ("a: 1\n'a': 2\n", "", "line 2, column 1: duplicate key a"),
            ("1: 1\n'1': 2\n", "", "line 2, column 1: duplicate key 1"),
            (
                "a: .inf\n",
                "",
                "line 1, column 4: a number in a form that is not supported: write it as in JSON, or quote it",
            ),
            ("a: [.nan]\n", "", "line 1, column 5: a number in a form that is not supported"),
            ("a: 0777\n", "", "line 1, column 4: a number in a form that is not supported"),
            ("1_000: a\n", "", "line 1, column 1: a number in a form that is not supported"),
            ("a: *b\n", NOT_YAML, "line 1, column 4: "),
            ("a: &a 1\nb: *a\n", "", "line 1, column 7: anchors, aliases and tags are not supported"),
            ("a: &a [1]\n", "", "line 1, column 7: anchors, aliases and tags are not supported"),
            ("a: &a {}\n", "", "line 1, column 7: anchors, aliases and tags are not supported"),
            ("&a a: 1\n", "", "line 1, column 4: anchors, aliases and tags are not supported"),
            ("a: !custom b\n", "", "line 1, column 12: anchors, aliases and tags are not supported"),
            ("a: !!str b\n", "", "line 1, column 10: anchors, aliases and tags are not supported"),
            ("a: ! b\n", "", "line 1, column 6: anchors, aliases and tags are not supported"),
            ("a: !!map {}\n", "", "line 1, column 10: anchors, aliases and tags are not supported"),
            ("a: !!seq []\n", "", "line 1, column 10: anchors, aliases and tags are not supported"),
            ("<<: {a: 1}\n", "", "line 1, column 1: merge keys are not supported"),
            ("a: b\r\tc\n", NOT_YAML, "line 1, column 1: a tab where Go requires spaces"),
            ("a: [9?1]\n", NOT_YAML, "line 1, column 5: a scalar that Go parses differently"),
            ("a:\n\tb: 1\n", NOT_YAML, "line 2, column 1: a tab where Go requires spaces"),
            ("a: b\u{7}\n", NOT_YAML, "line 1, column 5: a character that must be escaped"),
            ("a: 1\n\u{feff}b: 1\n", NOT_YAML, "line 2, column 1: a character that must be escaped"),
            ("a: 1\nb: \"\u{2028}\"\n", NOT_YAML, "line 2, column 5: a character that must be escaped"),
            ("a: [\n", NOT_YAML, "line "),
            ("a: [:b]\n", NOT_YAML, "line 1, column 5: a scalar that Go parses differently"),
            ("a: [b:, 1]\n", NOT_YAML, "line 1, column 5: a scalar that Go parses differently"),
            ("a: [b\t:, 1]\n", NOT_YAML, "line 1, column 5: a scalar that Go parses differently"),
            ("a: [?b, 1]\n", NOT_YAML, "line 1, column 5: a scalar that Go parses differently"),
            ("a: {'b\n  c': 1}\n", NOT_YAML, "line 1, column 5: a scalar that Go parses differently"),
            ("a: {'b'\n  : 1}\n", NOT_YAML, "line 1, column 5: a scalar that Go parses differently"),
            ("a: {b\n  c: 1}\n", NOT_YAML, "line 1, column 5: a scalar that Go parses differently"),
            ("{a: 1} b\n", NOT_YAML, "line 1, column 8: "),
            ("...\na: 1\n", NOT_YAML, "line 1, column 1: a document end marker before the document"),
        ] {
            let error = map(text).unwrap_err().to_string();
            assert!(error.starts_with(&format!("{kind}{place}")), "{text:?}: {error:?}");
        }
    }

    /// sigs.k8s.io/yaml v1.6.0 has rejected these escapes. kubectl reads a text that begins with a brace as JSON.
    #[test]
    fn escapes_of_json_that_go_does_not_know_are_rejected_in_the_values_and_not_in_manifests() {
        for (escaped, character, reason) in [
            (r#"{"a": "\\/", "b": ["x\\\/"]}"#, "/", "line 1, column 20: the escape \\/ of JSON"),
            (r#"{"b": ["x\\\ud83d\ude00"], "a": "\\/"}"#, "😀", "line 1, column 8: two escapes for one character"),
        ] {
            let error = map(escaped).unwrap_err().to_string();
            assert!(error.starts_with(&format!("not YAML that Go can parse: {reason}")), "{error}");
            let expected = json!({"a": "\\/", "b": [format!("x\\{character}")]});
            assert_eq!(Value::Object(manifest(escaped).unwrap()), expected);
        }
        assert!(manifest("a: \"\\/\"\n").is_err());
        assert_eq!(read("a: \"\\u00e9\\\\/\"\n"), json!({"a": "é\\/"}));
    }

    /// Together they took more than a minute in a debug build when the end was searched for every scalar.
    #[test]
    fn many_block_scalars_before_a_long_blank_end_or_a_long_last_line_take_little_time() {
        let scalars = "a:\n".to_owned() + &"- |\n x\n".repeat(30_000);
        let begun = std::time::Instant::now();
        for end in ["\n".repeat(250 << 10), format!("- \"{}\"", "x".repeat(250 << 10))] {
            assert!(map(&(scalars.clone() + &end)).is_ok());
        }
        assert!(begun.elapsed().as_secs() < 20, "{:?}", begun.elapsed());
    }

    #[test]
    fn size_and_depth_are_bounded() {
        assert_eq!(map(&"x".repeat(LONGEST + 1)), Err(InvalidDocument::TooLong));
        assert!(map(&format!("a: {}\n", "x".repeat(LONGEST - 10))).is_ok());
        for (open, close) in [("[", "]"), ("{a: ", "}")] {
            let nested = |depth: usize| format!("a: {}{}\n", open.repeat(depth), close.repeat(depth));
            assert!(map(&nested(DEEPEST - 1)).is_ok());
            assert!(matches!(map(&nested(DEEPEST)), Err(InvalidDocument::TooDeep { line: 1, .. })));
            assert!(map(&nested(50_000)).is_err());
        }
    }
}
