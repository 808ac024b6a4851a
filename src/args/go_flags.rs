//! Command lines as Go's package `flag` reads them: `-name=value`, `--name=value`, `-name value`, and flags that are on or off
//! only as `-name` or `-name=value`.
//!
//! * In: a table of flags, and arguments. Out: the last value of each flag that was given; or what Go would print.
//! * Always: a flag that the table does not have is an error, and the first argument that is no flag ends them all.

use std::{collections::HashMap, fmt::Write};

/// A flag that there is.
pub(super) struct Flag {
    pub name: &'static str,
    pub kind: Kind,
    pub default: &'static str,
    pub help: &'static str,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Text,
    Switch,
    Number,
}

/// Values by the names of flags: each that is not given has its default.
#[derive(Debug)]
pub(super) struct Values<'a>(HashMap<&'static str, &'a str>);

/// Why there are no values.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Unread {
    /// `-h` and `-help`, where no flag has that name.
    Help,
    /// A sentence.
    Mistake(String),
}

// === impl Values ===

impl<'a> Values<'a> {
    /// # Errors
    /// What Go would refuse, in Go's words.
    pub(super) fn read(flags: &'static [Flag], arguments: &'a [String]) -> Result<Self, Unread> {
        let mut values: HashMap<_, &str> = flags.iter().map(|flag| (flag.name, flag.default)).collect();
        let mut rest = arguments.iter().map(String::as_str);
        while let Some(argument) = rest.next() {
            let Some(named) = argument.strip_prefix('-').filter(|named| !named.is_empty()) else { break };
            let named = named.strip_prefix('-').unwrap_or(named);
            if named.is_empty() {
                break;
            }
            if named.starts_with(['-', '=']) {
                return Err(Unread::Mistake(format!("bad flag syntax: {argument}")));
            }
            let (name, value) = match named.split_once('=') {
                Some((name, value)) => (name, Some(value)),
                None => (named, None),
            };
            let Some(flag) = flags.iter().find(|flag| flag.name == name) else {
                return Err(match name {
                    "h" | "help" => Unread::Help,
                    _ => Unread::Mistake(format!("flag provided but not defined: -{name}")),
                });
            };
            let value = match (value, flag.kind) {
                (Some(value), _) => value,
                (None, Kind::Switch) => "true",
                (None, _) => rest.next().ok_or_else(|| Unread::Mistake(format!("flag needs an argument: -{name}")))?,
            };
            match flag.kind {
                Kind::Switch if switch(value).is_none() => {
                    return Err(Unread::Mistake(format!("invalid boolean value {value:?} for -{name}: parse error")));
                }
                Kind::Number if value.parse::<i64>().is_err() => {
                    return Err(Unread::Mistake(format!("invalid value {value:?} for flag -{name}: parse error")));
                }
                _ => _ = values.insert(flag.name, value),
            }
        }
        Ok(Self(values))
    }

    pub(super) fn text(&self, name: &str) -> &'a str {
        self.0.get(name).copied().unwrap_or_default()
    }

    pub(super) fn is_on(&self, name: &str) -> bool {
        switch(self.text(name)).unwrap_or_default()
    }

    pub(super) fn number(&self, name: &str) -> i64 {
        self.text(name).parse().unwrap_or_default()
    }
}

/// What Go's `strconv.ParseBool` takes.
fn switch(text: &str) -> Option<bool> {
    match text {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Some(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Some(false),
        _ => None,
    }
}

/// All flags, as Go lists them.
pub(super) fn usage(command: &str, flags: &[Flag]) -> String {
    let mut text = format!("Usage of {command}:\n");
    let mut flags: Vec<&Flag> = flags.iter().collect();
    flags.sort_unstable_by_key(|flag| flag.name);
    for Flag { name, kind, default, help } in flags {
        let (value, default) = match (kind, *default) {
            (Kind::Switch, "false") => ("", String::new()),
            (Kind::Switch, default) => ("", format!(" (default {default})")),
            (Kind::Number, default) => (" int", format!(" (default {default})")),
            (Kind::Text, "") => (" string", String::new()),
            (Kind::Text, default) => (" string", format!(" (default {default:?})")),
        };
        // Writing to a String cannot fail.
        let _ = writeln!(text, "  -{name}{value}\n    \t{help}{default}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    const FLAGS: &[Flag] = &[
        Flag { name: "addr", kind: Kind::Text, default: ":1", help: "where" },
        Flag { name: "on", kind: Kind::Switch, default: "false", help: "whether" },
        Flag { name: "count", kind: Kind::Number, default: "7", help: "how many" },
    ];

    fn read(arguments: &[&str]) -> Result<(String, bool, i64), Unread> {
        let arguments: Vec<String> = arguments.iter().map(|it| (*it).to_owned()).collect();
        let values = Values::read(FLAGS, &arguments)?;
        Ok((values.text("addr").to_owned(), values.is_on("on"), values.number("count")))
    }

    fn mistake(argument: &[&str]) -> String {
        match read(argument) {
            Err(Unread::Mistake(sentence)) => sentence,
            other => panic!("{argument:?}: {other:?}"),
        }
    }

    #[test]
    fn one_dash_is_as_good_as_two_and_a_value_may_be_the_next_argument() {
        let all = (":2".to_owned(), true, -3);
        assert_eq!(read(&["-addr=:2", "-on", "-count=-3"]), Ok(all.clone()));
        assert_eq!(read(&["--addr", ":2", "--on=true", "--count", "-3"]), Ok(all));
        assert_eq!(read(&["-addr=a=b", "-addr", "-on"]), Ok(("-on".to_owned(), false, 7)), "the last counts");
        assert_eq!(read(&["-addr="]), Ok((String::new(), false, 7)));
        assert_eq!(read(&[]), Ok((":1".to_owned(), false, 7)));
    }

    #[test]
    fn the_first_that_is_no_flag_ends_them() {
        for end in ["--", "-", "false"] {
            assert_eq!(read(&["-on", end, "-nonsense"]), Ok((":1".to_owned(), true, 7)), "{end}");
        }
    }

    #[test]
    fn what_go_refuses_is_refused_in_gos_words() {
        assert_eq!(mistake(&["-x=1"]), "flag provided but not defined: -x");
        assert_eq!(mistake(&["---addr=1"]), "bad flag syntax: ---addr=1");
        assert_eq!(mistake(&["-=1"]), "bad flag syntax: -=1");
        assert_eq!(mistake(&["-on", "-addr"]), "flag needs an argument: -addr");
        assert_eq!(mistake(&["-on=yes"]), "invalid boolean value \"yes\" for -on: parse error");
        assert_eq!(mistake(&["-count=many"]), "invalid value \"many\" for flag -count: parse error");
        assert_eq!(read(&["-on", "--help"]), Err(Unread::Help));
    }

    #[test]
    fn usage_lists_them_as_go_does() {
        let listed = "Usage of it:\n  -addr string\n    \twhere (default \":1\")\n  -count int\n    \thow many (default 7)\n  -on\n    \twhether\n";
        assert_eq!(usage("it", FLAGS), listed);
    }
}
