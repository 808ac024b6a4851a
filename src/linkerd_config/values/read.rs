//! From YAML to JSON, as sigs.k8s.io/yaml does it.
//!
//! In: a text. Out: a map, not yet compared with Linkerd's keys. Always holds: work and result are linear in the length of
//! the text, whatever its aliases; a text that Go's parser of YAML 1.1 could read otherwise than ours is refused.

use std::collections::{HashMap, HashSet};

use granit_parser::{Event, Parser, ScalarStyle, Span, StructureStyle, Tag};
use serde_json::{Map, Value};

use super::{
    InvalidDocument, LONGEST, Path,
    path::shortened,
    scalar::{Scalar, resolve, spelled_by_go},
};

/// Maps and lists in each other. No document of Linkerd's has ten.
pub(super) const DEEPEST: usize = 64;
/// What aliases may repeat, in bytes and, each counted as some bytes, values.
const REPEATED: usize = 4 * LONGEST;
const BYTES_OF_A_VALUE: usize = 16;

pub(super) fn map(text: &str) -> Result<Map<String, Value>, InvalidDocument> {
    if text.len() > LONGEST {
        return Err(InvalidDocument::TooLong);
    }
    check_characters(text)?;
    let options = granit_parser::options! { emit_comments: false };
    let mut builder = Builder::default();
    let mut ended = false;
    for event in Parser::new_from_str_with_options(text, options) {
        let (event, span) = event.map_err(|error| {
            let (line, column) = (error.marker().line(), error.marker().col() + 1);
            InvalidDocument::NotYaml { line, column, reason: shortened(&error.info(), 200) }
        })?;
        match event {
            Event::DocumentEnd => ended = true,
            Event::DocumentStart(false, _) if ended => return Err(Place::of(&span).refuse("more after the end")),
            // Go reads the first document of a stream, and so do we.
            Event::DocumentStart(..) | Event::StreamEnd if ended => break,
            event => builder.take(as_go(event, &span, text)?, Place::of(&span))?,
        }
    }
    match builder.root {
        Some(Value::Object(map)) => Ok(map),
        _ => Err(InvalidDocument::NotAMap),
    }
}

/// Go adds no line break to a block scalar in whose last line the text ends.
fn as_go<'a>(event: Event<'a>, span: &Span, text: &str) -> Result<Event<'a>, InvalidDocument> {
    let Event::Scalar(value, style @ (ScalarStyle::Literal | ScalarStyle::Folded), anchor, tag) = event else {
        return Ok(event);
    };
    let at_the_end = span.end.byte_offset().and_then(|end| text.get(end..)).is_none_or(|rest| rest.trim().is_empty());
    let last_line = text.rsplit('\n').next().unwrap_or_default();
    if !at_the_end || last_line.is_empty() {
        return Ok(Event::Scalar(value, style, anchor, tag));
    }
    if last_line.trim().is_empty() {
        return Err(Place::of(span).refuse("a text whose last line is blank and has no end"));
    }
    let value = value.strip_suffix('\n').unwrap_or(&value).to_owned();
    Ok(Event::Scalar(value.into(), style, anchor, tag))
}

/// What Go's reader refuses, and what it may see as other lines than ours: line breaks that YAML 1.1 has and 1.2 has not,
/// and tabs before the first character of a line.
fn check_characters(text: &str) -> Result<(), InvalidDocument> {
    let odd = |c: char| {
        let allowed = matches!(c, '\t' | '\n' | '\r' | ' '..='~' | '\u{a0}'..='\u{fffd}' | '\u{10000}'..);
        !allowed || matches!(c, '\u{2028}' | '\u{2029}')
    };
    if text.trim_start().starts_with("...") {
        return Err(InvalidDocument::NotYaml { line: 1, column: 1, reason: "an end before a beginning".to_owned() });
    }
    let indented_by_tab = |line: &str| line.trim_start_matches([' ', '-', '?']).starts_with('\t');
    if let Some(at) = text.split('\n').position(indented_by_tab) {
        let reason = "a tab where Go wants spaces".to_owned();
        return Err(InvalidDocument::NotYaml { line: at + 1, column: 1, reason });
    }
    let Some(at) = text.find(odd) else { return Ok(()) };
    let before = text.get(..at).unwrap_or_default();
    let line = before.matches('\n').count() + 1;
    let column = before.rsplit('\n').next().unwrap_or_default().chars().count() + 1;
    Err(InvalidDocument::NotYaml { line, column, reason: "a character that must be escaped".to_owned() })
}

/// Lines and columns from one.
#[derive(Clone, Copy)]
struct Place {
    line: usize,
    column: usize,
}

/// Puts events together, without recursion.
#[derive(Default)]
struct Builder {
    root: Option<Value>,
    open: Vec<Open>,
    anchors: HashMap<usize, Anchored>,
    repeated: usize,
}

struct Anchored {
    node: Node,
    weight: usize,
}

/// A value, and what it is as a key.
#[derive(Clone)]
struct Node {
    value: Value,
    key: Option<Key>,
    is_alias: bool,
}

#[derive(Clone)]
enum Key {
    Text(String),
    Merge,
}

enum Kind {
    List(Vec<Value>),
    Map {
        entries: Map<String, Value>,
        /// The keys that were written here, and not merged into the map.
        written: HashSet<String>,
        key: Option<Key>,
    },
    /// The value of a merge key, as a list.
    Merged(Vec<Value>),
}

struct Open {
    kind: Kind,
    is_flow: bool,
    anchor: usize,
}

// === impl Place ===

impl Place {
    fn of(span: &Span) -> Self {
        Self { line: span.start.line(), column: span.start.col() + 1 }
    }

    fn refuse(self, reason: &str) -> InvalidDocument {
        InvalidDocument::NotYaml { line: self.line, column: self.column, reason: reason.to_owned() }
    }
}

// === impl Builder ===

impl Builder {
    fn take(&mut self, event: Event<'_>, place: Place) -> Result<(), InvalidDocument> {
        match event {
            Event::Scalar(text, style, anchor, tag) => {
                let in_flow = self.open.last().is_some_and(|open| open.is_flow);
                let indicator = text.starts_with(':') || text.ends_with('?') || text.contains("? ");
                if in_flow && matches!(style, ScalarStyle::Plain) && indicator {
                    return Err(place.refuse("a colon or question mark that means something else to Go"));
                }
                let node = scalar(&text, style, tag.as_deref(), place)?;
                self.anchor(anchor, &node, place)?;
                self.put(node, place)
            }
            Event::Alias(anchor) => {
                // One that is still open would contain itself.
                let Some(anchored) = self.anchors.get(&anchor) else {
                    return Err(place.refuse("an alias of what is not there yet"));
                };
                let (node, weight) = (anchored.node.clone(), anchored.weight);
                self.spend(weight, place)?;
                self.put(Node { is_alias: true, ..node }, place)
            }
            Event::SequenceStart(style, anchor, _) => {
                let merged =
                    matches!(self.open.last(), Some(Open { kind: Kind::Map { key: Some(Key::Merge), .. }, .. }));
                let kind = if merged { Kind::Merged(Vec::new()) } else { Kind::List(Vec::new()) };
                self.open(kind, style, anchor, place)
            }
            Event::MappingStart(style, anchor, _) => {
                self.open(Kind::Map { entries: Map::new(), written: HashSet::new(), key: None }, style, anchor, place)
            }
            Event::SequenceEnd | Event::MappingEnd => {
                let Some(Open { kind, anchor, .. }) = self.open.pop() else {
                    return Err(place.refuse("an end without a beginning"));
                };
                let value = match kind {
                    Kind::List(items) | Kind::Merged(items) => Value::Array(items),
                    Kind::Map { entries, .. } => Value::Object(entries),
                };
                let node = Node { value, key: None, is_alias: false };
                self.anchor(anchor, &node, place)?;
                self.put(node, place)
            }
            _ => Ok(()),
        }
    }

    fn open(&mut self, kind: Kind, style: StructureStyle, anchor: usize, place: Place) -> Result<(), InvalidDocument> {
        if self.open.len() >= DEEPEST {
            return Err(InvalidDocument::TooDeep { line: place.line, column: place.column });
        }
        self.open.push(Open { kind, is_flow: matches!(style, StructureStyle::Flow), anchor });
        Ok(())
    }

    /// Remembers what may be repeated.
    fn anchor(&mut self, anchor: usize, node: &Node, place: Place) -> Result<(), InvalidDocument> {
        if anchor != 0 {
            let weight = weight(&node.value);
            self.spend(weight, place)?;
            self.anchors.insert(anchor, Anchored { node: node.clone(), weight });
        }
        Ok(())
    }

    fn spend(&mut self, weight: usize, place: Place) -> Result<(), InvalidDocument> {
        self.repeated = self.repeated.saturating_add(weight);
        let Place { line, column } = place;
        if self.repeated > REPEATED { Err(InvalidDocument::TooManyAliases { line, column }) } else { Ok(()) }
    }

    fn put(&mut self, node: Node, place: Place) -> Result<(), InvalidDocument> {
        let Some(open) = self.open.last_mut() else {
            self.root = Some(node.value);
            return Ok(());
        };
        match &mut open.kind {
            Kind::List(items) => items.push(node.value),
            Kind::Merged(items) => {
                if !node.value.is_object() {
                    return Err(place.refuse(WANTS_MAPS));
                }
                items.push(node.value);
            }
            Kind::Map { entries, written, key } => match key.take() {
                None => {
                    let found =
                        node.key.ok_or(InvalidDocument::KeyIsNoString { line: place.line, column: place.column })?;
                    if matches!(&found, Key::Text(text) if !written.insert(text.clone())) {
                        let path = self.path_of(&found);
                        return Err(InvalidDocument::DuplicateKey { path, line: place.line, column: place.column });
                    }
                    *key = Some(found);
                }
                Some(Key::Text(key)) => {
                    entries.insert(key, node.value);
                }
                Some(Key::Merge) => merge(entries, node, place)?,
            },
        }
        Ok(())
    }

    /// Of a key in the innermost map.
    fn path_of(&self, key: &Key) -> Path {
        let above = self.open.iter().filter_map(|open| match &open.kind {
            Kind::Map { key: Some(Key::Text(key)), .. } => Some(key.as_str()),
            _ => None,
        });
        let last = match key {
            Key::Text(key) => key,
            Key::Merge => "<<",
        };
        above.chain([last]).collect()
    }
}

const WANTS_MAPS: &str = "the value of a merge key must be a map or a list of maps";

/// Where it stands, as Go does it: over what was written before it, under what comes after. Of several maps the first counts.
fn merge(entries: &mut Map<String, Value>, node: Node, place: Place) -> Result<(), InvalidDocument> {
    let maps = match node.value {
        Value::Array(maps) if !node.is_alias => maps,
        map => vec![map],
    };
    for map in maps.into_iter().rev() {
        let Value::Object(map) = map else { return Err(place.refuse(WANTS_MAPS)) };
        entries.extend(map);
    }
    Ok(())
}

fn scalar(text: &str, style: ScalarStyle, tag: Option<&Tag>, place: Place) -> Result<Node, InvalidDocument> {
    let tag = tag.map(|tag| (tag.handle(), tag.suffix()));
    let plain = matches!(style, ScalarStyle::Plain);
    let resolved = match tag {
        None if plain => resolve(text),
        None | Some(("tag:yaml.org,2002:", "str")) => Scalar::Text(text),
        Some(("tag:yaml.org,2002:", name)) => match (name, resolve(text)) {
            ("null", found @ Scalar::Null)
            | ("bool", found @ Scalar::Bool(_))
            | ("int", found @ (Scalar::Int(_) | Scalar::Uint(_)))
            | ("float", found @ Scalar::Float(_)) => found,
            #[expect(clippy::cast_precision_loss, reason = "as Go does")]
            ("float", Scalar::Int(int)) => Scalar::Float(int as f64),
            _ => return Err(place.refuse("a tag that does not fit its value")),
        },
        // Go takes the text of a tag that it does not know; what a person means by one nobody knows.
        Some(_) => return Err(place.refuse("an unknown tag")),
    };
    let merge = plain && tag.is_none() && text == "<<";
    let value = match resolved {
        Scalar::Null => Value::Null,
        Scalar::Bool(it) => it.into(),
        Scalar::Int(it) => it.into(),
        Scalar::Uint(it) => it.into(),
        Scalar::Text(it) => it.into(),
        Scalar::Float(it) if it.is_finite() => it.into(),
        Scalar::Float(_) => return Err(InvalidDocument::NotFinite { line: place.line, column: place.column }),
    };
    let key = match resolved {
        _ if merge => Some(Key::Merge),
        Scalar::Null => None,
        Scalar::Float(it) => Some(Key::Text(spelled_by_go(it))),
        Scalar::Text(it) => Some(Key::Text(it.to_owned())),
        _ => Some(Key::Text(value.to_string())),
    };
    Ok(Node { value, key, is_alias: false })
}

fn weight(value: &Value) -> usize {
    BYTES_OF_A_VALUE
        + match value {
            Value::String(text) => text.len(),
            Value::Array(items) => items.iter().map(weight).sum(),
            Value::Object(map) => map.iter().map(|(key, value)| key.len() + weight(value)).sum(),
            _ => 0,
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
    fn quotes_and_tags_decide_what_a_scalar_is() {
        let text = "plain: off\nsingle: 'off'\ndouble: \"off\"\nblock: |-\n  off\nfolded: >-\n  off\n  on\nempty:\nnothing: ~\n\
                    tagged: !!str off\nfloat: !!float 1\nnumber: !!int '0x10'\nescaped: \"\\x41\\u00e9\"\n";
        let expected = json!({
            "plain": false, "single": "off", "double": "off", "block": "off", "folded": "off on", "empty": null,
            "nothing": null, "tagged": "off", "float": 1.0, "number": 16, "escaped": "Aé",
        });
        assert_eq!(read(text), expected);
    }

    #[test]
    fn keys_that_are_no_strings_become_strings_as_go_makes_them() {
        let expected = json!({"1": "a", "true": "b", "8": "c", "1e+06": "d", "0.5": "e", "2001-01-01": "f", "": "g"});
        assert_eq!(read("1: a\non: b\n0o10: c\n1e6: d\n.5: e\n2001-01-01: f\n'': g\n"), expected);
        assert_eq!(map("a:\n  ~: 1\n"), Err(InvalidDocument::KeyIsNoString { line: 2, column: 3 }));
        assert_eq!(map("[a]: 1\n"), Err(InvalidDocument::KeyIsNoString { line: 1, column: 3 }));
    }

    #[test]
    fn merge_keys_count_where_they_stand() {
        for (text, expected) in [
            ("x: &x {a: 1, b: 1}\nz: {<<: *x, a: 2}\n", json!({"a": 2, "b": 1})),
            ("x: &x {a: 1, b: 1}\nz: {a: 2, <<: *x}\n", json!({"a": 1, "b": 1})),
            ("x: &x {a: 1}\nz: {<<: [{a: 3, c: 3}, *x, {b: 4, c: 4}]}\n", json!({"a": 3, "b": 4, "c": 3})),
            ("x: 1\nz: {'<<': {a: 1}}\n", json!({"<<": {"a": 1}})),
        ] {
            assert_eq!(read(text)["z"], expected, "{text}");
        }
        for text in ["z: {<<: 1}\n", "z: {<<: [1]}\n", "x: &x [{a: 1}]\nz: {<<: *x}\n", "z: {<<: }\n"] {
            assert!(
                matches!(map(text), Err(InvalidDocument::NotYaml { reason, .. }) if reason == WANTS_MAPS),
                "{text}"
            );
        }
    }

    #[test]
    fn the_first_document_of_a_stream_counts_and_a_text_may_end_anywhere() {
        assert_eq!(read("---\na: 1\n---\nb: 2\n"), json!({"a": 1}));
        assert_eq!(read("a: 1\n...\n"), json!({"a": 1}));
        assert_eq!(read("a: |\n  text"), json!({"a": "text"}));
        assert_eq!(read("a: |\n  text\n"), json!({"a": "text\n"}));
        assert_eq!(read("a: 1\r\nb: |\r\n  x\r\n"), json!({"a": 1, "b": "x\n"}));
    }

    #[test]
    fn what_is_no_document_is_refused_with_its_place() {
        const NOT_YAML: &str = "no YAML that Go reads: ";
        for (text, kind, place) in [
            ("", "", "no map"),
            ("# nothing\n", "", "no map"),
            ("- a\n", "", "no map"),
            ("text", "", "no map"),
            ("a: {b: 1, b: 2}\n", "", "line 1, column 11: a.b is there twice"),
            ("a: 1\n'a': 2\n", "", "line 2, column 1: a is there twice"),
            ("1: 1\n'1': 2\n", "", "line 2, column 1: 1 is there twice"),
            ("a: .inf\n", "", "line 1, column 4: a number that JSON does not have"),
            ("a: [.nan]\n", "", "line 1, column 5: a number that JSON does not have"),
            ("a: *b\n", NOT_YAML, "line 1, column 4: "),
            ("a: &a [*a]\n", NOT_YAML, "line 1, column 8: an alias of what is not there yet"),
            ("a: !custom b\n", NOT_YAML, "line 1, column 12: an unknown tag"),
            ("a: !!int b\n", NOT_YAML, "line 1, column 10: a tag that does not fit its value"),
            ("a:\n\tb: 1\n", NOT_YAML, "line 2, column 1: a tab where Go wants spaces"),
            ("a: b\u{7}\n", NOT_YAML, "line 1, column 5: a character that must be escaped"),
            ("a: 1\nb: \"\u{2028}\"\n", NOT_YAML, "line 2, column 5: a character that must be escaped"),
            ("a: [\n", NOT_YAML, "line "),
            ("a: [:b]\n", NOT_YAML, "line 1, column 5: a colon or question mark that means something else to Go"),
            ("{a: 1} b\n", NOT_YAML, "line 1, column 8: "),
            ("...\na: 1\n", NOT_YAML, "line 1, column 1: an end before a beginning"),
        ] {
            let error = map(text).unwrap_err().to_string();
            assert!(error.starts_with(&format!("{kind}{place}")), "{text:?}: {error:?}");
        }
    }

    #[test]
    fn size_depth_and_aliases_are_bounded() {
        assert_eq!(map(&"x".repeat(LONGEST + 1)), Err(InvalidDocument::TooLong));
        assert!(map(&format!("a: {}\n", "x".repeat(LONGEST - 10))).is_ok());
        for (open, close) in [("[", "]"), ("{a: ", "}")] {
            let nested = |depth: usize| format!("a: {}{}\n", open.repeat(depth), close.repeat(depth));
            assert!(map(&nested(DEEPEST - 1)).is_ok());
            assert!(matches!(map(&nested(DEEPEST)), Err(InvalidDocument::TooDeep { line: 1, .. })));
            assert!(map(&nested(50_000)).is_err());
        }
        let laughs = (1..30).fold("a0: &a0 [lol]\n".to_owned(), |text, at| {
            let below = at - 1;
            text + &format!("a{at}: &a{at} [*a{below}, *a{below}, *a{below}]\n")
        });
        assert!(matches!(map(&laughs), Err(InvalidDocument::TooManyAliases { .. })));
        let long = format!("a: &a {}\nb: [{}]\n", "x".repeat(100_000), "*a,".repeat(1_000));
        assert!(matches!(map(&long), Err(InvalidDocument::TooManyAliases { .. })));
        assert!(map(&format!("a: &a [x]\nb: [{}]\n", "*a,".repeat(1_000))).is_ok());
    }
}
