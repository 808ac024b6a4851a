//! Guesses which name a misspelled one stands for.

use strsim::osa_distance;

/// The longest name that is compared with others, in characters. The time grows with the square.
const LONGEST: usize = 64;

/// Returns the path that an unknown one may stand for: the closest name at the same place, or else the only place that has
/// a field of the name. Keys are separated by dots, and items of lists have `[]` in `known` and a number in `unknown`.
pub fn meant_path<T: AsRef<str>>(unknown: &str, known: &[T]) -> Option<String> {
    let (above, name) = split(unknown);
    let place = without_numbers(above);
    let known = || known.iter().map(AsRef::as_ref);
    let siblings = known().map(split).filter(|(above, _)| *above == place).map(|(_, name)| name);
    if let Some(name) = closest(name, siblings) {
        return Some(if above.is_empty() { name.to_owned() } else { format!("{above}.{name}") });
    }
    let mut elsewhere = known().filter(|path| split(path).1.eq_ignore_ascii_case(name));
    match (elsewhere.next(), elsewhere.next()) {
        (Some(only), None) => Some(only.to_owned()),
        _ => None,
    }
}

/// Returns the name that differs in the fewest characters, in at most a third of them.
fn closest<'a>(name: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let length = name.chars().count();
    if length > LONGEST {
        return None;
    }
    let name = name.to_lowercase();
    let distances = known.map(|known| (osa_distance(&name, &known.to_lowercase()), known));
    distances.filter(|(distance, _)| *distance <= length.max(3) / 3).min().map(|(_, known)| known)
}

/// Returns the path above a name, and the name.
fn split(path: &str) -> (&str, &str) {
    path.rsplit_once('.').unwrap_or(("", path))
}

/// Removes the numbers of items: `allow[0]` is `allow[]`.
fn without_numbers(path: &str) -> String {
    let mut is_number = false;
    let is_kept = |c: &char| {
        is_number = (is_number && *c != ']') || *c == '[';
        !is_number || *c == '['
    };
    path.chars().filter(is_kept).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_misspelled_name_has_the_closest_one_at_its_place() {
        let known =
            ["proxy", "proxy.logLevel", "proxy.logFormat", "proxy.cores", "init.logLevel", "list", "list[].name"];
        for (unknown, meant) in [
            ("proxy.logLevl", Some("proxy.logLevel")),
            ("proxy.loglevel", Some("proxy.logLevel")),
            ("proxy.logleveL", Some("proxy.logLevel")),
            ("proxy.lgoLevel", Some("proxy.logLevel")),
            ("proxy.core", Some("proxy.cores")),
            ("Proxy", Some("proxy")),
            ("list[12].nam", Some("list[12].name")),
            ("cores", Some("proxy.cores")),
            ("list.cores", Some("proxy.cores")),
            // Two places have this one.
            ("logLevel", None),
            ("proxy.corridor", None),
            ("proxy.x", None),
            ("", None),
        ] {
            assert_eq!(meant_path(unknown, &known).as_deref(), meant, "{unknown}");
        }
        assert_eq!(meant_path(&format!("proxy.{}", "l".repeat(1_000_000)), &known), None);
    }
}
