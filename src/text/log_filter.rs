//! Filters of logs, as `tracing-subscriber` reads them: `warn,linkerd=info`. The operator and the proxies use it.
//!
//! In: a filter. Out: the directive that does not do what its author meant. Pure.

use tracing_subscriber::{EnvFilter, filter::LevelFilter};

/// The longest filter that is checked, in bytes. A filter is a setting of the author, of any length.
const LONGEST: usize = 4 << 10;

/// The reason why a directive does not do what its author meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DirectiveMistake {
    /// It cannot be parsed. The proxy ignores it.
    Unreadable,
    /// The directive is a word that is no level, or a text that is no path in Rust. It counts as the name of a module
    /// that does not exist. If the filter has no other level, nothing is logged.
    NoModule,
}

/// Returns the first directive of a filter with a mistake. A space belongs to the name of a module.
pub fn mistake(filter: &str) -> Option<(&str, DirectiveMistake)> {
    if filter.len() > LONGEST {
        return None;
    }
    filter.split(',').find_map(|directive| Some((directive, mistake_in(directive)?)))
}

/// Returns the mistake in one directive. An empty one is ignored.
pub fn mistake_in(directive: &str) -> Option<DirectiveMistake> {
    // Each is parsed alone, because one with a mistake fails the whole filter.
    if EnvFilter::builder().with_regex(false).parse(directive).is_err() {
        return Some(DirectiveMistake::Unreadable);
    }
    let module = directive.split(['=', '[']).next().unwrap_or_default();
    let is_path = |text: &str| text.chars().all(|c| c.is_alphanumeric() || "_:-.".contains(c));
    let is_word = module == directive && !directive.contains(':');
    let names_no_module =
        !is_path(module) || is_word && !directive.is_empty() && directive.parse::<LevelFilter>().is_err();
    names_no_module.then_some(DirectiveMistake::NoModule)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the library does with each was observed with its `EnvFilter`: see the test below for a word.
    #[test]
    fn a_word_that_is_no_level_is_a_module_and_a_directive_that_cannot_be_parsed_is_ignored() {
        for filter in [
            "warn,linkerd=info,hickory=error",
            "off",
            "DEBUG",
            "3",
            "",
            "warn,linkerd=info,[{headers}]=off,linkerd_app::x=trace,",
            "linkerd_app[{a=1}]=debug",
            "linkerd_app::inbound",
        ] {
            assert_eq!(mistake(filter), None, "{filter:?}");
        }
        for (filter, directive, expected) in [
            ("verbose", "verbose", DirectiveMistake::NoModule),
            ("warn,verbose", "verbose", DirectiveMistake::NoModule),
            ("warning", "warning", DirectiveMistake::NoModule),
            ("warn;linkerd=debug", "warn;linkerd=debug", DirectiveMistake::NoModule),
            ("info linkerd=debug", "info linkerd=debug", DirectiveMistake::NoModule),
            ("warn, info", " info", DirectiveMistake::NoModule),
            ("warn, linkerd=debug", " linkerd=debug", DirectiveMistake::Unreadable),
            ("warn,linkerd=inf", "linkerd=inf", DirectiveMistake::Unreadable),
            ("a=b=c", "a=b=c", DirectiveMistake::Unreadable),
            (";", ";", DirectiveMistake::Unreadable),
        ] {
            assert_eq!(mistake(filter), Some((directive, expected)), "{filter:?}");
        }
        assert_eq!(mistake(&"x".repeat(LONGEST + 1)), None);
    }

    /// With such a filter, the library writes nothing from other modules.
    #[test]
    fn with_a_word_alone_the_library_logs_nothing_else() {
        for (filter, logs) in
            [("warn", true), ("warn,verbose", true), ("verbose", false), ("warn;log_filter=debug", false)]
        {
            let subscriber = tracing_subscriber::fmt().with_env_filter(EnvFilter::try_new(filter).unwrap()).finish();
            let is_enabled = tracing::subscriber::with_default(
                subscriber,
                || tracing::enabled!(target: "linkerd", tracing::Level::ERROR),
            );
            assert_eq!(is_enabled, logs, "{filter}");
        }
    }
}
