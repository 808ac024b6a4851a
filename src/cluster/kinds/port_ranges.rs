//! Sets of ports as Linkerd's annotations and flags spell them: `25,587,http,9000-9100`.

use std::collections::HashMap;

use crate::cluster::Problems;

/// A set of ports, as sorted inclusive ranges that do not touch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PortRanges(Box<[(u16, u16)]>);

/// A port with a name, and whether the list has had the name already.
struct NamedPort {
    port: u16,
    is_listed: bool,
}

// === impl PortRanges ===

impl PortRanges {
    /// Parses a list as [`listed`] does. An item that cannot be used becomes a problem.
    pub fn parse<'a>(text: &str, named: impl IntoIterator<Item = (&'a str, u16)>, problems: &mut Problems) -> Self {
        let invalid =
            |item: &str| problems.add(format_args!("{item:?} is neither a port, nor a range, nor the name of a port"));
        Self::of(listed(text, named, invalid))
    }

    pub fn contains(&self, port: u16) -> bool {
        let after = self.0.partition_point(|(low, _)| *low <= port);
        after.checked_sub(1).and_then(|at| self.0.get(at)).is_some_and(|(_, high)| port <= *high)
    }

    fn of(mut ranges: Vec<(u16, u16)>) -> Self {
        ranges.sort_unstable();
        let mut merged: Vec<(u16, u16)> = Vec::with_capacity(ranges.len());
        for (low, high) in ranges {
            match merged.last_mut() {
                Some(last) if u32::from(low) <= u32::from(last.1) + 1 => last.1 = last.1.max(high),
                _ => merged.push((low, high)),
            }
        }
        Self(merged.into())
    }
}

/// Reads a comma-separated list, in its order. An item, trimmed, is a name out of `named`, a number, or a range `low-high`.
/// Names take precedence, so a port named `1-2` is not a range; if several ports have a name, the last one is used. An
/// item that cannot be used is given to `invalid` and left out. One trailing comma is allowed. A name counts once:
/// otherwise a short name again and again would become a list several times as long as the text.
pub fn listed<'a>(
    text: &str,
    named: impl IntoIterator<Item = (&'a str, u16)>,
    mut invalid: impl FnMut(&str),
) -> Vec<(u16, u16)> {
    // A map, because both lists can be as long as an object allows.
    let mut named: HashMap<&str, NamedPort> =
        named.into_iter().map(|(name, port)| (name, NamedPort { port, is_listed: false })).collect();
    let text = text.trim();
    let text = text.strip_suffix(',').unwrap_or(text);
    let mut ranges = Vec::new();
    if text.is_empty() {
        return ranges;
    }
    for item in text.split(',').map(str::trim) {
        // A blank item is not a name: it would match every unnamed port.
        match named.get_mut(item).filter(|_| !item.is_empty()) {
            Some(NamedPort { is_listed: true, .. }) => {}
            Some(NamedPort { port, is_listed }) => {
                ranges.push((*port, *port));
                *is_listed = true;
            }
            None => match range(item) {
                Some(range) => ranges.push(range),
                None => invalid(item),
            },
        }
    }
    ranges
}

/// Reads a port, or a range without spaces. The programs that set up the firewall of a Pod read items in the same way.
pub fn range(item: &str) -> Option<(u16, u16)> {
    let (low, high) = item.split_once('-').unwrap_or((item, item));
    // As Go's strconv.Atoi, this accepts a plus sign. A minus sign never gets here.
    let (low, high): (u16, u16) = (low.parse().ok()?, high.parse().ok()?);
    (low <= high).then_some((low, high))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn parse(text: &str) -> (PortRanges, usize) {
        let named = [("http", 1), ("http", 8080), ("1-2", 99), ("", 7)];
        let mut problems = Problems::default();
        let ranges = PortRanges::parse(text, named, &mut problems);
        (ranges, problems.len())
    }

    #[test]
    fn numbers_ranges_and_names_are_accepted_and_each_other_item_is_a_problem() {
        for (text, ports, problems) in [
            ("", &[][..], 0),
            (" ", &[], 0),
            (",", &[], 0),
            ("25", &[(25, 25)], 0),
            ("25,587,", &[(25, 25), (587, 587)], 0),
            (" 25 , http", &[(25, 25), (8080, 8080)], 0),
            ("9000-9002,9001,9003", &[(9000, 9003)], 0),
            ("1-2", &[(99, 99)], 0),
            ("0-65535", &[(0, 65535)], 0),
            ("65535,0", &[(0, 0), (65535, 65535)], 0),
            ("80,abc,-1,70000-1", &[(80, 80)], 3),
            ("80,,90", &[(80, 80), (90, 90)], 1),
            // Go's strconv.Atoi accepts a plus sign and leading zeros.
            ("+80,+0090-+91", &[(80, 80), (90, 91)], 0),
            ("30 - 40,++5,2-1,65536,0x10,1-2-3,+,1_0,-5", &[], 9),
        ] {
            let (ranges, found) = parse(text);
            assert_eq!((&*ranges.0, found), (ports, problems), "{text:?}");
        }
    }

    /// Linkerd repeats both. What a text repeats itself makes the list no longer than the text.
    #[test]
    fn a_name_counts_once_and_a_number_as_often_as_it_is_listed() {
        let named = [("a", 65535), ("b", 65535), ("1-2", 7), ("", 9)];
        let listed = |text: &str| listed(text, named, |item| panic!("{item:?} is invalid"));
        assert_eq!(
            listed("a,80,a, a ,b,80,65535,1-2,1-2"),
            [(65535, 65535), (80, 80), (65535, 65535), (80, 80), (65535, 65535), (7, 7)]
        );
        assert_eq!(listed(&"a,".repeat(100_000)), [(65535, 65535)]);
    }

    proptest! {
        #[test]
        fn a_set_contains_a_port_if_one_of_its_ranges_does(
            ranges in prop::collection::vec((0..60u16, 0..9u16), 0..6), port in 0..80u16,
        ) {
            let ranges: Vec<_> = ranges.into_iter().map(|(low, size)| (low, low + size)).collect();
            let expected = ranges.iter().any(|(low, high)| (*low..=*high).contains(&port));
            prop_assert_eq!(PortRanges::of(ranges).contains(port), expected);
        }
    }
}
