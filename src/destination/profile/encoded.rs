//! An encoded profile. Pure.
//!
//! In: the inputs of a profile. Out: the pieces of one gRPC message. Always holds: a view keeps at most some KiB of its
//! own. The routes of a large ServiceProfile are encoded once for all ports of its Service and for all clients, and
//! its overrides, whose texts depend on the port, are encoded while they are sent.
//!
//! Each piece has some fields of the message. In protobuf, encoded messages that follow each other are one message with
//! the fields of all.

use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use prost::Message;

use super::{route, view::ProfileInputs};
use crate::{
    cluster::kinds::service_profile::route::{Override, ProfileContent},
    destination::{authority::split_host_port, frame, settings::DestinationSettings},
    proto::destination::{DestinationProfile, WeightedDst},
};

/// The maximum length of routes and overrides that a view keeps: about as much as a stream takes.
const KEPT: usize = 4 * 1024;
/// The length at which a piece with overrides ends.
const PIECE: usize = 16 * 1024;

/// An encoded profile.
#[derive(Clone, Debug, PartialEq)]
pub(in crate::destination) struct EncodedProfile {
    /// The gRPC header, and all fields that are not in `rest`.
    head: Bytes,
    rest: Option<Rest>,
}

/// The routes and overrides of a ServiceProfile, for a port of its Service.
#[derive(Clone, Debug)]
struct Rest {
    content: Arc<ProfileContent>,
    port: u16,
}

/// The pieces of a profile that were not sent yet.
pub(super) struct Pieces {
    profile: EncodedProfile,
    next: NextPiece,
}

#[derive(Clone, Copy)]
enum NextPiece {
    Head,
    Routes,
    /// The overrides from this one on.
    Overrides(usize),
}

// === impl EncodedProfile ===

impl EncodedProfile {
    pub(super) fn of(inputs: &ProfileInputs, settings: &DestinationSettings) -> Self {
        let rest = inputs.content().map(|(content, port)| Rest { content: Arc::clone(content), port });
        let length = rest.as_ref().map_or(0, Rest::length);
        let message = inputs.message(settings);
        let mut head = BytesMut::new();
        frame::put_header(message.encoded_len() + length, &mut head);
        put(&message, &mut head);
        let rest = match rest {
            Some(rest) if length > KEPT => Some(rest),
            Some(rest) => {
                head.extend_from_slice(rest.routes());
                rest.content.overrides.iter().for_each(|it| put(&weighted(it, rest.port), &mut head));
                None
            }
            None => None,
        };
        Self { head: head.freeze(), rest }
    }

    pub(super) fn pieces(self) -> Pieces {
        Pieces { profile: self, next: NextPiece::Head }
    }
}

// === impl Rest ===

impl Rest {
    /// Returns the encoded routes, which all ports share.
    fn routes(&self) -> &Bytes {
        self.content.encoded_routes.get_or_init(|| {
            let routes = self.content.routes.iter().map(route::route).collect();
            DestinationProfile { routes, ..DestinationProfile::default() }.encode_to_vec().into()
        })
    }

    fn length(&self) -> usize {
        let overrides = self.content.overrides.iter().map(|it| weighted(it, self.port).encoded_len());
        self.routes().len() + overrides.sum::<usize>()
    }
}

/// The same content may have been read twice.
impl PartialEq for Rest {
    fn eq(&self, other: &Self) -> bool {
        self.port == other.port && (Arc::ptr_eq(&self.content, &other.content) || self.content == other.content)
    }
}

// === impl Pieces ===

impl Iterator for Pieces {
    type Item = Bytes;

    fn next(&mut self) -> Option<Bytes> {
        let EncodedProfile { head, rest } = &self.profile;
        match (self.next, rest) {
            (NextPiece::Head, _) => {
                self.next = NextPiece::Routes;
                Some(head.clone())
            }
            (NextPiece::Routes, Some(rest)) if !rest.routes().is_empty() => {
                self.next = NextPiece::Overrides(0);
                Some(rest.routes().clone())
            }
            (NextPiece::Routes, Some(_)) => self.overrides(0),
            (NextPiece::Overrides(from), Some(_)) => self.overrides(from),
            (NextPiece::Routes | NextPiece::Overrides(_), None) => None,
        }
    }
}

impl Pieces {
    fn overrides(&mut self, from: usize) -> Option<Bytes> {
        let Rest { content, port } = self.profile.rest.as_ref()?;
        let mut piece = BytesMut::new();
        let mut next = from;
        for it in content.overrides.iter().skip(from) {
            if piece.len() >= PIECE {
                break;
            }
            put(&weighted(it, *port), &mut piece);
            next += 1;
        }
        self.next = NextPiece::Overrides(next);
        (next > from).then(|| piece.freeze())
    }
}

fn put(message: &DestinationProfile, piece: &mut BytesMut) {
    // This cannot fail: the buffer grows.
    _ = message.encode(piece);
}

/// Converts an override to a message that has only this field. An authority without a port gets the requested port.
fn weighted(it: &Override, port: u16) -> DestinationProfile {
    let authority = &it.authority;
    let authority = match split_host_port(authority) {
        Ok(_) => authority.to_string(),
        Err(_) if authority.contains(':') => format!("[{authority}]:{port}"),
        Err(_) => format!("{authority}:{port}"),
    };
    let weighted = WeightedDst { authority, weight: it.weight, backend_ref: None };
    DestinationProfile { dst_overrides: vec![weighted], ..DestinationProfile::default() }
}

#[cfg(test)]
#[path = "encoded_tests.rs"]
mod tests;
