//! The regular expressions of paths, as proxies compile them. Pure.
//!
//! In: the text of an expression. Out: its parsed form, the reason why it is not valid, or that it is too large. Always
//! holds: few expressions are compiled; the size of all others follows from bounds, in time that is proportional to the
//! length of the text.

use regex::Regex;
use regex_syntax::{
    Parser,
    ast::{self, Ast},
    hir::{Class, Hir, HirKind},
};

/// The limit of the regex crate for a compiled expression, in bytes. Proxies do not change it.
const LIMIT: usize = 10 << 20;
/// The size of one state of a compiled expression. Each byte of a literal has one.
const STATE: usize = 32;
/// More than the size of a group, a repetition or an alternative, without what is in it.
const AROUND: usize = 8 * STATE;
/// More than the size of a range of characters: up to ten sequences of up to four states each, with their transitions.
const RANGE: usize = 64 * STATE;
/// How many expressions of one profile are compiled. One that is nearly too large takes about a tenth of a second.
const COMPILED: usize = 2;

/// A valid expression.
pub(super) struct PathRegex {
    pub(super) ast: Ast,
    hir: Hir,
    anchored: String,
}

/// How many expressions may still be compiled.
pub(super) struct CompileBudget(usize);

/// Bounds of the size of a compiled expression, in bytes.
#[derive(Clone, Copy, Default)]
struct SizeBounds {
    least: usize,
    most: usize,
}

// === impl CompileBudget ===

impl Default for CompileBudget {
    fn default() -> Self {
        Self(COMPILED)
    }
}

// === impl PathRegex ===

impl PathRegex {
    /// Parses an expression like linkerd2-proxy, which anchors it at both ends.
    ///
    /// # Errors
    /// Returns the reason why it is not valid.
    pub(super) fn parse(regex: &str) -> Result<Self, String> {
        let regex = regex.trim();
        let head = if regex.starts_with('^') { "" } else { "^" };
        let tail = if regex.ends_with('$') { "" } else { "$" };
        let anchored = format!("{head}{regex}{tail}");
        let hir = Parser::new().parse(&anchored).map_err(|error| match error {
            regex_syntax::Error::Parse(error) => error.kind().to_string(),
            regex_syntax::Error::Translate(error) => error.kind().to_string(),
            error => error.to_string(),
        })?;
        let ast = ast::parse::Parser::new().parse(&anchored).map_err(|error| error.kind().to_string())?;
        Ok(Self { ast, hir, anchored })
    }

    /// Returns whether proxies ignore the expression, because it is too large. Without a budget, one that may be too
    /// large counts as usable.
    pub(super) fn is_too_large(&self, budget: &mut CompileBudget) -> bool {
        let SizeBounds { least, most } = SizeBounds::of(&self.hir);
        if least > LIMIT || most <= LIMIT {
            return least > LIMIT;
        }
        let Some(left) = budget.0.checked_sub(1) else { return false };
        budget.0 = left;
        matches!(Regex::new(&self.anchored), Err(regex::Error::CompiledTooBig(_)))
    }
}

// === impl SizeBounds ===

impl SizeBounds {
    /// Returns the bounds. The depth of an expression is limited by its parser.
    fn of(hir: &Hir) -> Self {
        match hir.kind() {
            HirKind::Empty => Self::default(),
            HirKind::Look(_) => Self { least: 0, most: AROUND },
            HirKind::Literal(literal) => {
                let bytes = literal.0.len();
                Self { least: STATE * bytes, most: 2 * STATE * bytes + AROUND }
            }
            HirKind::Class(class) => {
                let ranges = match class {
                    Class::Unicode(class) => class.ranges().len(),
                    Class::Bytes(class) => class.ranges().len(),
                };
                Self { least: STATE, most: RANGE * ranges + AROUND }
            }
            HirKind::Repetition(repetition) => {
                let Self { least, most } = Self::of(&repetition.sub);
                let copies = |count: u32| usize::try_from(count).unwrap_or(usize::MAX);
                let (fewest, highest) = (copies(repetition.min), copies(repetition.max.unwrap_or(repetition.min)));
                Self {
                    least: least.saturating_mul(fewest),
                    most: most.saturating_add(AROUND).saturating_mul(highest.saturating_add(1)),
                }
            }
            HirKind::Capture(capture) => Self::of(&capture.sub).plus(Self { least: 0, most: AROUND }),
            HirKind::Concat(parts) => parts.iter().map(Self::of).fold(Self::default(), Self::plus),
            HirKind::Alternation(parts) => {
                // Equal ends of the alternatives may be one.
                let most = parts.iter().map(Self::of).fold(Self::default(), Self::plus).most;
                Self { least: 0, most: most.saturating_add(AROUND.saturating_mul(parts.len())) }
            }
        }
    }

    fn plus(self, other: Self) -> Self {
        Self { least: self.least.saturating_add(other.least), most: self.most.saturating_add(other.most) }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use regex::RegexBuilder;

    use super::*;

    /// Returns whether the regex crate compiles the expression with so many bytes.
    fn fits(parsed: &PathRegex, bytes: usize) -> bool {
        RegexBuilder::new(&parsed.anchored).size_limit(bytes).build().is_ok()
    }

    fn expressions() -> impl Strategy<Value = String> {
        let leaf = prop_oneof![
            "[a-z/]{1,8}",
            Just(r"\w".to_owned()),
            Just(r"\pL".to_owned()),
            Just("[^/]".to_owned()),
            Just(".".to_owned()),
            Just(r"\b".to_owned()),
            Just("(?:)".to_owned()),
            Just("[\u{80}-\u{10ffff}]".to_owned()),
            Just("é".to_owned()),
        ];
        leaf.prop_recursive(4, 16, 3, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 1..3).prop_map(|parts| parts.concat()),
                prop::collection::vec(inner.clone(), 1..3).prop_map(|parts| format!("({})", parts.join("|"))),
                (inner.clone(), 0u32..9, 0u32..9)
                    .prop_map(|(it, least, more)| format!("(?:{it}){{{least},{}}}", least + more)),
                (inner, prop_oneof![Just("*"), Just("+"), Just("?"), Just("{3,}")])
                    .prop_map(|(it, of)| format!("(?:{it}){of}")),
            ]
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(200))]

        /// The regex crate keeps to the bounds. An expression of its whole limit takes too long here.
        #[test]
        fn the_size_of_a_compiled_expression_is_within_the_bounds(regex in expressions()) {
            let parsed = PathRegex::parse(&regex).unwrap();
            let SizeBounds { least, most } = SizeBounds::of(&parsed.hir);
            prop_assume!(least < 1 << 20);
            prop_assert!(fits(&parsed, most.max(AROUND)), "{regex} needs more than {most}");
            prop_assert!(least == 0 || !fits(&parsed, least - 1), "{regex} needs less than {least}");
        }
    }

    #[test]
    fn few_expressions_are_compiled() {
        let (mut budget, parsed) = (CompileBudget::default(), PathRegex::parse(r"\w{300}").unwrap());
        let too_large: Vec<bool> = (0..1000).map(|_| parsed.is_too_large(&mut budget)).collect();
        assert_eq!(too_large.iter().filter(|it| **it).count(), COMPILED);
        let (small, large) = (PathRegex::parse("/books/[^/]*").unwrap(), PathRegex::parse("(a{1000}){1000}").unwrap());
        assert!(!small.is_too_large(&mut budget) && large.is_too_large(&mut budget), "their bounds suffice");
    }
}
