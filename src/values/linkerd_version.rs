//! Versions of Linkerd. Pure.
//!
//! In: a tag such as `edge-26.8.3`, `stable-2.14.10` or `enterprise-2.17.1`. Out: how it compares with another one.

/// The edge release from which on edge releases belong to a series 2.x, by the tags `version-2.x` of Linkerd's
/// repository. Edge releases after the last entry count as that series.
const SERIES: [(u16, EdgeRelease); 6] = [
    (15, EdgeRelease { year: 24, month: 2, number: 4 }),
    (16, EdgeRelease { year: 24, month: 8, number: 2 }),
    (17, EdgeRelease { year: 24, month: 11, number: 8 }),
    (18, EdgeRelease { year: 25, month: 4, number: 4 }),
    (19, EdgeRelease { year: 25, month: 10, number: 7 }),
    (20, EdgeRelease { year: 26, month: 7, number: 1 }),
];

/// A released version. Builds with any other tag have no known order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkerdVersion {
    Edge(EdgeRelease),
    Stable(StableRelease),
}

/// The release edge-`year`.`month`.`number`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct EdgeRelease {
    pub year: u16,
    pub month: u16,
    pub number: u16,
}

/// The release 2.`series`.`patch`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct StableRelease {
    pub series: u16,
    pub patch: u16,
}

// === impl LinkerdVersion ===

impl LinkerdVersion {
    /// Parses a tag; `None` for a tag of another form.
    pub fn parse(tag: &str) -> Option<Self> {
        if let Some(edge) = tag.strip_prefix("edge-") {
            let [year, month, number] = numbers(edge)?;
            return Some(Self::Edge(EdgeRelease { year, month, number }));
        }
        let stable = ["stable-", "enterprise-"].into_iter().find_map(|prefix| tag.strip_prefix(prefix));
        let [major, series, patch] = numbers(stable.unwrap_or(tag))?;
        (major == 2).then_some(Self::Stable(StableRelease { series, patch }))
    }

    /// Returns the number x of the series 2.x. All edge releases before 2.15 count as 2.14.
    pub fn series(self) -> u16 {
        match self {
            Self::Stable(release) => release.series,
            Self::Edge(release) => {
                let begun = SERIES.iter().rev().find(|(_, first)| *first <= release);
                begun.map_or(14, |(series, _)| *series)
            }
        }
    }

    /// Whether this version is certainly newer: an edge release and a stable one of the same series have no order.
    pub fn is_newer_than(self, other: Self) -> bool {
        match (self, other) {
            (Self::Edge(one), Self::Edge(other)) => one > other,
            (Self::Stable(one), Self::Stable(other)) => one > other,
            _ => self.series() > other.series(),
        }
    }

    /// Whether this version has a change that came with this edge release and this series.
    pub fn includes(self, edge: EdgeRelease, series: u16) -> bool {
        match self {
            Self::Edge(release) => release >= edge,
            Self::Stable(release) => release.series >= series,
        }
    }
}

fn numbers(text: &str) -> Option<[u16; 3]> {
    let mut parts = text.split('.').map(|part| part.parse::<u16>().ok());
    let found = [parts.next()??, parts.next()??, parts.next()??];
    parts.next().is_none().then_some(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn version(tag: &str) -> LinkerdVersion {
        LinkerdVersion::parse(tag).unwrap_or_else(|| panic!("{tag} is not parsed"))
    }

    #[test]
    fn only_tags_of_releases_are_versions() {
        for tag in ["", "edge-26.8", "edge-26.8.3-debug", "edge-26.8.x", "3.1.0", "v2.300.0", "stable-2.14", "main"] {
            assert_eq!(LinkerdVersion::parse(tag), None, "{tag}");
        }
        assert_eq!(LinkerdVersion::parse(&"9".repeat(1 << 20)), None);
        assert_eq!(version("2.18.4"), version("stable-2.18.4"));
    }

    #[test]
    fn versions_are_compared_by_numbers_and_across_channels_by_series() {
        for (newer, older) in [
            ("edge-26.10.1", "edge-26.9.12"),
            ("edge-26.8.3", "edge-19.12.3"),
            ("stable-2.14.10", "stable-2.14.9"),
            ("edge-24.8.2", "stable-2.15.7"),
            ("enterprise-2.17.0", "edge-24.8.2"),
        ] {
            assert!(version(newer).is_newer_than(version(older)), "{newer} > {older}");
            assert!(!version(older).is_newer_than(version(newer)), "{older} < {newer}");
        }
        for (one, other) in [("edge-26.8.3", "edge-26.8.3"), ("edge-24.12.1", "enterprise-2.17.9")] {
            assert!(!version(one).is_newer_than(version(other)) && !version(other).is_newer_than(version(one)));
        }
    }

    #[test]
    fn an_edge_release_belongs_to_the_series_that_it_began_or_follows() {
        for (tag, series) in [
            ("edge-24.2.3", 14),
            ("edge-24.2.4", 15),
            ("edge-24.8.1", 15),
            ("edge-25.10.7", 19),
            ("edge-26.8.3", 20),
            ("stable-2.13.1", 13),
        ] {
            assert_eq!(version(tag).series(), series, "{tag}");
        }
    }
}
