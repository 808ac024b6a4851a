//! Addresses of objects, and the lookup of objects by address.
//!
//! Addresses are parsed when an object is read, because an IPv6 address has many spellings. An IPv4-mapped IPv6 address
//! becomes an IPv4 address.

use std::{
    collections::{HashMap, HashSet, hash_map::Entry},
    hash::Hash,
    net::{IpAddr, SocketAddr},
    sync::Arc,
};

use serde::Deserialize;
use smallvec::SmallVec;

/// The addresses of one object, of which most have one.
pub type Addresses = SmallVec<[IpAddr; 1]>;

/// Parses an address. Returns `None` for an invalid address, such as one with a zone.
pub fn parse(text: &str) -> Option<IpAddr> {
    text.parse().ok().map(|address: IpAddr| address.to_canonical())
}

/// An entry of `podIPs` or `hostIPs`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(in crate::cluster) struct IpObject {
    ip: Option<String>,
}

/// Returns the unique valid addresses of the list field or, if the list is empty, of the older single-value field.
pub(in crate::cluster) fn all(list: Option<Vec<IpObject>>, single: Option<String>) -> Addresses {
    let listed: Vec<String> = list.into_iter().flatten().filter_map(|it| it.ip).collect();
    let single = single.filter(|_| listed.is_empty());
    unique(listed.iter().chain(&single).filter_map(|text| parse(text)))
}

pub(in crate::cluster) fn unique<C: FromIterator<T>, T: Hash + Eq + Copy>(items: impl Iterator<Item = T>) -> C {
    let mut seen = HashSet::new();
    items.filter(|item| seen.insert(*item)).collect()
}

/// An address at which clients reach an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum NetworkAddress {
    /// All ports of the address.
    Ip(IpAddr),
    Socket(SocketAddr),
}

/// Objects by address, or by address and port. Most addresses belong to one object.
#[derive(Debug)]
pub struct ByAddress<K, T> {
    objects: HashMap<K, SmallVec<[Arc<T>; 1]>>,
    /// The place of each object of an address that more than [`FEW`] objects have, by its pointer. Tenants choose the
    /// addresses of ExternalWorkloads, and a relist of thousands with one address would scan all of them for each.
    places: HashMap<K, HashMap<usize, usize>>,
}

/// The number of objects up to which a scan is fast enough.
const FEW: usize = 32;

// === impl NetworkAddress ===

impl NetworkAddress {
    pub fn ip(self) -> IpAddr {
        match self {
            Self::Ip(ip) => ip,
            Self::Socket(address) => address.ip(),
        }
    }

    /// Returns the port, or `None` for all ports.
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
        Self { objects: HashMap::new(), places: HashMap::new() }
    }
}

impl<K: Hash + Eq + Copy, T> ByAddress<K, T> {
    pub fn get(&self, address: &K) -> &[Arc<T>] {
        self.objects.get(address).map(SmallVec::as_slice).unwrap_or_default()
    }

    pub fn insert(&mut self, addresses: impl IntoIterator<Item = K>, object: &Arc<T>) {
        for address in addresses {
            let objects = self.objects.entry(address).or_default();
            if let Some(places) = self.places.get_mut(&address) {
                if let Entry::Vacant(place) = places.entry(pointer(object)) {
                    place.insert(objects.len());
                    objects.push(Arc::clone(object));
                }
            } else if !objects.iter().any(|it| Arc::ptr_eq(it, object)) {
                objects.push(Arc::clone(object));
                if objects.len() > FEW {
                    let places = objects.iter().enumerate().map(|(place, it)| (pointer(it), place));
                    self.places.insert(address, places.collect());
                }
            }
        }
    }

    pub fn remove(&mut self, addresses: impl IntoIterator<Item = K>, object: &Arc<T>) {
        for address in addresses {
            let Entry::Occupied(mut entry) = self.objects.entry(address) else { continue };
            let objects = entry.get_mut();
            if let Some(places) = self.places.get_mut(&address) {
                let Some(place) = places.remove(&pointer(object)) else { continue };
                objects.swap_remove(place);
                if let Some(moved) = objects.get(place) {
                    places.insert(pointer(moved), place);
                }
            } else {
                objects.retain(|it| !Arc::ptr_eq(it, object));
            }
            if objects.is_empty() {
                entry.remove();
                self.places.remove(&address);
            }
        }
    }

    #[cfg(test)]
    pub fn is_empty(&self) -> bool {
        self.objects.is_empty() && self.places.is_empty()
    }
}

fn pointer<T>(object: &Arc<T>) -> usize {
    Arc::as_ptr(object).addr()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn all_spellings_of_an_address_are_equal_and_invalid_ones_are_rejected() {
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
    fn the_single_field_is_used_only_if_the_list_is_empty() {
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

    #[test]
    fn objects_of_an_address_that_many_have_are_found_and_removed_in_any_order() {
        let mut index = ByAddress::default();
        let objects: Vec<_> = (0..20_000).map(Arc::new).collect();
        for object in objects.iter().chain(&objects) {
            index.insert([1], object);
        }
        assert_eq!(index.get(&1).len(), 20_000);
        let (removed, kept): (Vec<_>, Vec<_>) = objects.iter().partition(|number| ***number % 20 != 3);
        for object in removed {
            index.remove([1], object);
        }
        let found: HashSet<_> = index.get(&1).iter().map(|number| **number).collect();
        assert_eq!(found, kept.iter().map(|number| ***number).collect());
        for object in kept {
            index.remove([1], object);
        }
        assert!(index.is_empty());
    }
}
