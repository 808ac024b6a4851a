//! Addresses as they stand in objects, and the lookup from an address to the objects that have it.
//!
//! They are parsed once, at the edge: one IPv6 address has many spellings, and an IPv4-mapped one is IPv4.

use std::{
    collections::{HashMap, HashSet, hash_map::Entry},
    hash::Hash,
    net::{IpAddr, SocketAddr},
    sync::Arc,
};

use serde::Deserialize;

/// `None` for what is no address: a zone makes it none.
pub fn parse(text: &str) -> Option<IpAddr> {
    text.parse().ok().map(|address: IpAddr| address.to_canonical())
}

/// An entry of `podIPs`, `hostIPs`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(in crate::cluster) struct IpObject {
    ip: Option<String>,
}

/// The addresses of a list, each once; where it is empty, the one of the field from before there was a list.
pub(in crate::cluster) fn all(list: Option<Vec<IpObject>>, single: Option<String>) -> Box<[IpAddr]> {
    let listed: Vec<String> = list.into_iter().flatten().filter_map(|it| it.ip).collect();
    let single = single.filter(|_| listed.is_empty());
    unique(listed.iter().chain(&single).filter_map(|text| parse(text)))
}

pub(in crate::cluster) fn unique<T: Hash + Eq + Copy>(items: impl Iterator<Item = T>) -> Box<[T]> {
    let mut seen = HashSet::new();
    items.filter(|item| seen.insert(*item)).collect()
}

/// Where clients reach an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum NetworkAddress {
    /// At every port of the address.
    Ip(IpAddr),
    Socket(SocketAddr),
}

/// Objects by address, or by address and port. Of most there is one.
#[derive(Debug)]
pub struct ByAddress<K, T>(HashMap<K, Vec<Arc<T>>>);

// === impl NetworkAddress ===

impl NetworkAddress {
    pub fn ip(self) -> IpAddr {
        match self {
            Self::Ip(ip) => ip,
            Self::Socket(address) => address.ip(),
        }
    }

    /// `None` for every port.
    pub fn port(self) -> Option<u16> {
        match self {
            Self::Ip(_) => None,
            Self::Socket(address) => Some(address.port()),
        }
    }
}

// === impl ByAddress ===

impl<K, T> Default for ByAddress<K, T> {
    fn default() -> Self {
        Self(HashMap::new())
    }
}

impl<K: Hash + Eq, T> ByAddress<K, T> {
    pub fn get(&self, address: &K) -> &[Arc<T>] {
        self.0.get(address).map(Vec::as_slice).unwrap_or_default()
    }

    pub fn insert(&mut self, addresses: impl IntoIterator<Item = K>, object: &Arc<T>) {
        for address in addresses {
            let objects = self.0.entry(address).or_insert_with(|| Vec::with_capacity(1));
            if !objects.iter().any(|it| Arc::ptr_eq(it, object)) {
                objects.push(Arc::clone(object));
            }
        }
    }

    pub fn remove(&mut self, addresses: impl IntoIterator<Item = K>, object: &Arc<T>) {
        for address in addresses {
            if let Entry::Occupied(mut objects) = self.0.entry(address) {
                objects.get_mut().retain(|it| !Arc::ptr_eq(it, object));
                if objects.get().is_empty() {
                    objects.remove();
                }
            }
        }
    }

    #[cfg(test)]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn one_address_has_many_spellings_and_some_texts_are_none() {
        for (text, address) in [
            ("10.0.0.1", Some("10.0.0.1")),
            ("2001:DB8:0:0::1", Some("2001:db8::1")),
            ("::ffff:10.0.0.1", Some("10.0.0.1")),
            ("10.0.0.01", None),
            ("fe80::1%eth0", None),
            ("None", None),
            ("", None),
        ] {
            assert_eq!(parse(text), address.map(|it| it.parse().unwrap()), "{text}");
        }
    }

    #[test]
    fn the_single_field_counts_only_where_the_list_is_empty() {
        let all = |list: serde_json::Value, single: Option<&str>| {
            let all = all(serde_json::from_value(list).unwrap(), single.map(str::to_owned));
            all.iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        assert_eq!(all(json!(null), Some("10.0.0.1")), ["10.0.0.1"]);
        assert_eq!(all(json!([]), Some("10.0.0.1")), ["10.0.0.1"]);
        assert_eq!(all(json!([{"ip": "10.0.0.2"}, {"ip": "10.0.0.2"}, {}]), Some("10.0.0.1")), ["10.0.0.2"]);
        assert!(all(json!(null), None).is_empty());
    }

    #[test]
    fn an_object_is_found_once_by_each_of_its_addresses_until_it_is_removed() {
        let mut index = ByAddress::default();
        let (one, other) = (Arc::new("one"), Arc::new("other"));
        index.insert([1, 2, 1], &one);
        index.insert([2], &other);
        assert_eq!(
            (index.get(&1), index.get(&2), index.get(&3).len()),
            (&[Arc::clone(&one)][..], &[Arc::clone(&one), Arc::clone(&other)][..], 0)
        );
        index.remove([1, 2], &one);
        assert_eq!((index.get(&1).len(), index.get(&2)), (0, &[Arc::clone(&other)][..]));
        index.remove([2, 7], &other);
        assert!(index.is_empty());
    }
}
