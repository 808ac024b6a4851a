//! The graph of the files that use names of each other.
//!
//! In: the production code of each file. Out: for each file, the files that define a name it uses, with the name.
//! Always holds: a name that a file re-exports leads to the file that defines it; `mod` and `pub use` alone do not
//! count, and neither does a `use` that only the children of a module follow.

use std::collections::{BTreeMap, BTreeSet};

/// A module's path from the root of the crate, which is empty.
type ModulePath = Vec<String>;
/// For each file, the files that it uses, with one of the names.
pub(super) type FileGraph = BTreeMap<String, BTreeMap<String, String>>;

/// Keywords before the name of an item.
const ITEMS: [&str; 9] = ["const", "enum", "fn", "macro_rules", "static", "struct", "trait", "type", "union"];

struct SourceFile {
    module: ModulePath,
    below: String,
    /// The names of the items outside of blocks, and of the types that a macro of the file defines.
    defined: BTreeSet<String>,
    uses: Vec<UsedPath>,
    /// The paths in the code, apart from `use` items. A single name is a path of one segment.
    paths: BTreeSet<Vec<String>>,
}

struct UsedPath {
    path: Vec<String>,
    /// `None` for `*`.
    name: Option<String>,
    is_public: bool,
}

struct Resolver<'a> {
    files: &'a BTreeMap<ModulePath, SourceFile>,
    /// The `use` items that a path of another module led through.
    followed: BTreeSet<(ModulePath, String)>,
}

/// Returns the graph of files, each of which is given by its path below `src` and its code.
pub(super) fn file_graph<'a>(sources: impl IntoIterator<Item = (&'a str, &'a str)>) -> FileGraph {
    let files = sources.into_iter().map(|(below, code)| SourceFile::read(below, code));
    let files: BTreeMap<_, _> = files.map(|file| (file.module.clone(), file)).collect();
    let mut resolver = Resolver { files: &files, followed: BTreeSet::new() };
    let mut graph = FileGraph::new();
    let mut add = |file: &SourceFile, found: Option<(ModulePath, String)>| {
        let edges = graph.entry(file.below.clone()).or_default();
        if let Some((module, name)) = found
            && module != file.module
        {
            edges.entry(files[&module].below.clone()).or_insert(name);
        }
    };
    for file in files.values() {
        for path in &file.paths {
            add(file, resolver.resolve(&file.module, path, &mut Vec::new()));
        }
    }
    // Code that uses a trait may name only its methods.
    for file in files.values() {
        for used in file.uses.iter().filter(|used| !used.is_public) {
            if let Some(name) = &used.name
                && (name == "_" || !file.paths.iter().any(|path| path[0] == *name))
                && !resolver.followed.contains(&(file.module.clone(), name.clone()))
            {
                add(file, resolver.resolve(&file.module, &used.path, &mut Vec::new()));
            }
        }
    }
    graph
}

/// Returns the groups of at least two files in which each file uses each other file, directly or over others.
pub(super) fn circles(graph: &FileGraph) -> Vec<BTreeSet<String>> {
    let reached: BTreeMap<_, _> = graph.keys().map(|file| (file, reached_from(graph, file))).collect();
    let mut found = BTreeSet::new();
    for (file, others) in &reached {
        let circle: BTreeSet<_> = others.iter().filter(|it| reached[it].contains(*file)).cloned().collect();
        if circle.len() > 1 {
            found.insert(circle);
        }
    }
    found.into_iter().collect()
}

/// Returns one of the shortest ways from the first file of a circle back to it, with the names that are used.
pub(super) fn one_way_around(graph: &FileGraph, circle: &BTreeSet<String>) -> String {
    let first = circle.first().unwrap();
    let mut ways = vec![vec![first]];
    let mut seen = BTreeSet::new();
    loop {
        let mut longer = Vec::new();
        for way in &ways {
            for next in graph[*way.last().unwrap()].keys().filter(|next| circle.contains(*next)) {
                let way: Vec<_> = way.iter().copied().chain([next]).collect();
                if next == first {
                    let steps = way.windows(2).map(|step| format!(" -{}-> {}", graph[step[0]][step[1]], step[1]));
                    return format!("{first}{}", steps.collect::<String>());
                }
                if seen.insert(next) {
                    longer.push(way);
                }
            }
        }
        ways = longer;
    }
}

fn reached_from(graph: &FileGraph, file: &str) -> BTreeSet<String> {
    let mut reached = BTreeSet::new();
    let mut waiting = vec![file];
    while let Some(file) = waiting.pop() {
        for next in graph.get(file).into_iter().flat_map(BTreeMap::keys) {
            if reached.insert(next.clone()) {
                waiting.push(next);
            }
        }
    }
    reached
}

// === impl Resolver ===

impl Resolver<'_> {
    /// Returns the module that defines what a path in the code of `from` names, and the name there. `None` if the path
    /// names a module, an item of another crate, or something local.
    fn resolve(
        &mut self,
        from: &ModulePath,
        path: &[String],
        visited: &mut Vec<(ModulePath, String)>,
    ) -> Option<(ModulePath, String)> {
        let mut module = from.clone();
        for (at, segment) in path.iter().enumerate() {
            match segment.as_str() {
                "crate" => module.clear(),
                "self" => {}
                "super" => drop(module.pop()),
                name => {
                    let child: ModulePath = module.iter().cloned().chain([name.to_owned()]).collect();
                    if self.files.contains_key(&child) && (at + 1 < path.len() || !self.has_name(&module, name)) {
                        module = child;
                        continue;
                    }
                    if at > 0 && module != *from {
                        self.followed.insert((module.clone(), name.to_owned()));
                    }
                    return self.name_in(&module, name, &path[at + 1..], visited);
                }
            }
        }
        None
    }

    fn has_name(&self, module: &ModulePath, name: &str) -> bool {
        let file = &self.files[module];
        file.defined.contains(name) || file.uses.iter().any(|used| used.name.as_deref() == Some(name))
    }

    /// Returns the module that defines a name which is used in, or looked for in, a module. `rest` follows the name.
    fn name_in(
        &mut self,
        module: &ModulePath,
        name: &str,
        rest: &[String],
        visited: &mut Vec<(ModulePath, String)>,
    ) -> Option<(ModulePath, String)> {
        if visited.contains(&(module.clone(), name.to_owned())) {
            return None;
        }
        visited.push((module.clone(), name.to_owned()));
        let files = self.files;
        let file = files.get(module)?;
        if file.defined.contains(name) {
            return Some((module.clone(), name.to_owned()));
        }
        for used in &file.uses {
            let path: Vec<_> = match &used.name {
                Some(alias) if alias == name => used.path.iter().chain(rest).cloned().collect(),
                None => used.path.iter().cloned().chain([name.to_owned()]).chain(rest.iter().cloned()).collect(),
                Some(_) => continue,
            };
            let found = self.resolve(module, &path, visited);
            if found.is_some() {
                return found;
            }
        }
        None
    }
}

// === impl SourceFile ===

impl SourceFile {
    fn read(below: &str, code: &str) -> Self {
        let stem = below.trim_end_matches(".rs");
        let stem = stem.strip_suffix("/mod").unwrap_or(stem);
        let module = if stem == "lib" { Vec::new() } else { stem.split('/').map(str::to_owned).collect() };
        let mut file = Self {
            module,
            below: below.to_owned(),
            defined: BTreeSet::new(),
            uses: Vec::new(),
            paths: BTreeSet::new(),
        };
        let tokens = without_test_items(&tokens(code));
        let mut depth = 0;
        // The items in a macro's rules are those of the file that expands it.
        let mut is_macro = false;
        let mut at = 0;
        while let Some(token) = tokens.get(at) {
            let next = tokens.get(at + 1).map_or("", String::as_str);
            let previous = if at > 0 { tokens[at - 1].as_str() } else { "" };
            at += 1;
            match token.as_str() {
                "{" => depth += 1,
                "}" => {
                    depth -= 1;
                    is_macro &= depth > 0;
                }
                "use" => file.read_use_tree(&tokens, &mut at, Vec::new(), ["pub", ")"].contains(&previous)),
                // The name of a child module is not a use of it.
                "mod" => at += 1,
                item if ITEMS.contains(&item) => {
                    let name = if next == "!" { tokens.get(at + 1) } else { tokens.get(at) };
                    is_macro |= item == "macro_rules";
                    if depth == 0 || is_macro && item != "fn" {
                        file.defined.extend(name.filter(|name| is_name(name)).cloned());
                    }
                }
                // The rest of a path, for instance after type parameters, and a field or method.
                _ if ["::", "."].contains(&previous) => {}
                name if is_name(name) => {
                    let mut path = vec![name.to_owned()];
                    while let [colons, name, ..] = &tokens[at..]
                        && colons == "::"
                        && is_name(name)
                    {
                        path.push(name.clone());
                        at += 2;
                    }
                    file.paths.insert(path);
                }
                _ => {}
            }
        }
        file
    }

    fn read_use_tree(&mut self, tokens: &[String], at: &mut usize, mut path: Vec<String>, is_public: bool) {
        let mut name = None;
        while let Some(token) = tokens.get(*at) {
            match token.as_str() {
                ";" | "," | "}" => break,
                "{" => {
                    while tokens.get(*at).is_some_and(|it| it != "}") {
                        *at += 1;
                        if tokens.get(*at).is_some_and(|it| it != "}") {
                            self.read_use_tree(tokens, at, path.clone(), is_public);
                        }
                    }
                    *at += 1;
                    return;
                }
                "as" => {
                    name = tokens.get(*at + 1).cloned();
                    *at += 1;
                }
                "*" => {
                    self.uses.push(UsedPath { path, name: None, is_public });
                    *at += 1;
                    return;
                }
                // `a::{self}` is `a`.
                "self" if !path.is_empty() => {}
                segment if is_name(segment) => path.push(segment.to_owned()),
                _ => {}
            }
            *at += 1;
        }
        let name = name.or_else(|| path.last().cloned());
        self.uses.push(UsedPath { path, name, is_public });
    }
}

fn is_name(token: &str) -> bool {
    token.starts_with(|c: char| c.is_alphabetic() || c == '_')
}

/// Splits code into names, `::` and single characters, without comments, texts and lifetimes.
fn tokens(code: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut rest = code;
    while let Some(first) = rest.chars().next() {
        let length = match first {
            _ if rest.starts_with("//") => rest.find('\n').unwrap_or(rest.len()),
            _ if rest.starts_with("::") => 2,
            'r' | 'b' if raw_text(rest).is_some() => raw_text(rest).unwrap(),
            '"' => text(rest),
            '\'' => character_or_lifetime(rest),
            _ if first.is_alphanumeric() || first == '_' => {
                rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len())
            }
            _ => first.len_utf8(),
        };
        let (token, after) = rest.split_at(length);
        if !first.is_whitespace() && !['"', '\''].contains(&first) && !token.starts_with("//") && !token.contains('"') {
            found.push(token.to_owned());
        }
        rest = after;
    }
    found
}

/// The length of the text that begins here, with its quotes.
fn text(rest: &str) -> usize {
    let mut is_escaped = false;
    let end = rest.char_indices().skip(1).find(|(_, c)| {
        let ends = *c == '"' && !is_escaped;
        is_escaped = *c == '\\' && !is_escaped;
        ends
    });
    end.map_or(rest.len(), |(at, _)| at + 1)
}

/// The length of the raw text that begins here; `None` if something else does.
fn raw_text(rest: &str) -> Option<usize> {
    let start = rest.strip_prefix('b').unwrap_or(rest).strip_prefix('r')?;
    let hashes = start.len() - start.trim_start_matches('#').len();
    let content = start[hashes..].strip_prefix('"')?;
    let end = format!("\"{}", "#".repeat(hashes));
    Some(rest.len() - content.len() + content.find(&end)? + end.len())
}

fn character_or_lifetime(rest: &str) -> usize {
    let mut characters = rest.char_indices().skip(1);
    match (characters.next(), characters.next()) {
        (Some((_, '\\')), _) => rest[3..].find('\'').map_or(rest.len(), |at| at + 4),
        (Some(_), Some((at, '\''))) => at + 1,
        _ => 1 + rest[1..].find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len() - 1),
    }
}

/// Leaves out the items, fields and statements with a `cfg` attribute that has `test`.
fn without_test_items(tokens: &[String]) -> Vec<String> {
    let mut kept = Vec::new();
    let mut at = 0;
    while at < tokens.len() {
        let attribute = &tokens[at..tokens.len().min(at + 4)];
        let is_cfg = attribute == ["#", "[", "cfg", "("];
        let end = at + tokens[at..].iter().position(|it| it == "]").unwrap_or(0);
        if is_cfg && tokens[at..end].iter().any(|it| it == "test") && !tokens[at..end].iter().any(|it| it == "not") {
            at = end_of_item(tokens, end + 1);
        } else {
            kept.push(tokens[at].clone());
            at += 1;
        }
    }
    kept
}

/// The position after the item, field or statement that begins at `at`.
fn end_of_item(tokens: &[String], at: usize) -> usize {
    let is_item = tokens[at..]
        .iter()
        .take_while(|it| !["{", "=", ":", ";"].contains(&it.as_str()))
        .any(|it| ITEMS.contains(&it.as_str()) || ["impl", "mod", "use"].contains(&it.as_str()));
    let mut depth = 0;
    for (end, token) in tokens.iter().enumerate().skip(at) {
        match token.as_str() {
            "{" | "(" | "[" => depth += 1,
            "}" | ")" | "]" if depth == 0 => return end,
            "}" | ")" | "]" => {
                depth -= 1;
                let is_block =
                    token == "}" && depth == 0 && tokens.get(end + 1).is_none_or(|it| it != ";" && it != ",");
                if is_block {
                    return end + 1;
                }
            }
            ";" if depth == 0 => return end + 1,
            "," if depth == 0 && !is_item => return end + 1,
            _ => {}
        }
    }
    tokens.len()
}

#[test]
fn names_lead_through_facades_to_the_files_that_define_them() {
    let plan = "
        use super::{apply::{self, Written}, helper as aid, Outcome};
        use crate::{cluster::Store, text::Quote as _};
        #[cfg(test)]
        use super::only_in_tests::Fixture;
        pub(in crate::job) struct Plan { note: &'static str, written: Written }
        // A comment that has super::other::Comment.
        fn plan() -> Outcome { apply::write(\"super::other::Text\", '\"', aid::<Store>()); Kind::Slice }
        #[cfg(test)]
        mod tests { use super::super::only_in_tests::Fixture; }
        use super::kind::*;
    ";
    let sources = [
        ("lib.rs", "pub mod cluster; pub mod job; mod text;"),
        ("cluster/mod.rs", "mod store; pub use store::Store;"),
        ("cluster/store.rs", "pub struct Store;"),
        (
            "job/mod.rs",
            "mod apply; mod kind; mod plan; mod shared; mod other; pub use plan::Plan; use shared::helper; pub enum Outcome {}",
        ),
        ("job/apply.rs", "pub struct Written; pub fn write() { self::inner() } fn inner() { crate::job::Plan::new() }"),
        ("job/kind.rs", "macro_rules! kinds { () => { pub enum Kind { Slice } }; } kinds!();"),
        ("job/other.rs", "pub struct Comment; pub struct Text;"),
        ("job/only_in_tests.rs", "pub struct Fixture;"),
        ("job/plan.rs", plan),
        ("job/shared.rs", "pub fn helper() {}"),
        ("text.rs", "pub trait Quote {}"),
    ];
    let graph = file_graph(sources);
    let used: Vec<_> = graph["job/plan.rs"].keys().map(String::as_str).collect();
    let expected = ["cluster/store.rs", "job/apply.rs", "job/kind.rs", "job/mod.rs", "job/shared.rs", "text.rs"];
    assert_eq!(used, expected);
    assert_eq!(graph["job/apply.rs"], BTreeMap::from([("job/plan.rs".to_owned(), "Plan".to_owned())]));
    let unused: Vec<_> = graph.iter().filter(|(_, used)| used.is_empty()).map(|(file, _)| file.as_str()).collect();
    let expected = ["cluster/mod.rs", "cluster/store.rs", "job/kind.rs", "job/mod.rs", "job/only_in_tests.rs"];
    assert_eq!(unused[..5], expected);
    let circle = BTreeSet::from(["job/apply.rs", "job/plan.rs"].map(str::to_owned));
    assert_eq!(circles(&graph), std::slice::from_ref(&circle));
    assert_eq!(one_way_around(&graph, &circle), "job/apply.rs -Plan-> job/plan.rs -Written-> job/apply.rs");
}
