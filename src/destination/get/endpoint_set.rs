//! The endpoints of a view at one time, sorted by socket address, without duplicates.
//!
//! In: all endpoints, and the previous set. Out: a set that shares unchanged chunks with the previous set, and a walk
//! over two sets that skips shared chunks. Always holds: no chunk is empty; a set uses memory only for the chunks that
//! differ. If a thousand clients stop reading at a thousand versions of a Service with ten thousand endpoints, they
//! hold a thousand small differences, not ten million pointers.

use std::sync::Arc;

use super::encoded_endpoint::EncodedEndpoint;

/// The maximum number of endpoints in a new chunk. A chunk that grows to more than twice as many is split.
const CHUNK: usize = 64;

type Chunk = Arc<[Arc<EncodedEndpoint>]>;

#[derive(Debug)]
pub(in crate::destination) struct EndpointSet {
    chunks: Vec<Chunk>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Position {
    chunk: usize,
    index: usize,
}

/// The position of a parallel walk over an older and a newer set.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::destination) struct Walk {
    /// The port of the client.
    port: u16,
    old: Position,
    new: Position,
}

/// An address of a walk, with its endpoints in the sets that contain it.
pub(in crate::destination) enum WalkStep<'a> {
    Old(&'a Arc<EncodedEndpoint>),
    Both(&'a Arc<EncodedEndpoint>, &'a Arc<EncodedEndpoint>),
    New(&'a Arc<EncodedEndpoint>),
}

// === impl EndpointSet ===

impl EndpointSet {
    pub(in crate::destination) const fn empty() -> Self {
        Self { chunks: Vec::new() }
    }

    /// Creates a set from sorted endpoints. Chunks that contain the same objects are shared with `before`.
    pub(in crate::destination) fn new(endpoints: &[Arc<EncodedEndpoint>], before: &Self) -> Self {
        // If most chunks are almost empty now, all chunks are created again.
        let sparse = before.chunks.len() > 4 * (endpoints.len() / CHUNK + 1);
        let known: &[Chunk] = if sparse { &[] } else { &before.chunks };
        let mut chunks = Vec::with_capacity(known.len());
        let mut rest = endpoints;
        for (number, chunk) in known.iter().enumerate() {
            let next = known.get(number + 1).and_then(|chunk| chunk.first());
            let end = next.map_or(rest.len(), |next| rest.partition_point(|it| it.address < next.address));
            let (part, after) = rest.split_at_checked(end).unwrap_or((rest, &[]));
            let same =
                part.len() == chunk.len() && part.iter().zip(&**chunk).all(|(one, other)| Arc::ptr_eq(one, other));
            match part.len() {
                _ if same => chunks.push(Arc::clone(chunk)),
                0..=CHUNK => chunks.extend((!part.is_empty()).then(|| part.into())),
                _ if part.len() <= 2 * CHUNK => chunks.push(part.into()),
                _ => chunks.extend(part.chunks(CHUNK).map(Chunk::from)),
            }
            rest = after;
        }
        chunks.extend(rest.chunks(CHUNK).map(Chunk::from));
        chunks.shrink_to_fit();
        Self { chunks }
    }

    pub(in crate::destination) fn iter(&self) -> impl Iterator<Item = &Arc<EncodedEndpoint>> {
        self.chunks.iter().flat_map(|chunk| &**chunk)
    }

    pub(in crate::destination) fn len(&self) -> usize {
        self.chunks.iter().map(|chunk| chunk.len()).sum()
    }

    pub(in crate::destination) fn is_empty(&self) -> bool {
        self.chunks.is_empty()
    }

    /// Returns the chunk that begins at a position.
    fn chunk_at(&self, position: Position) -> Option<&Chunk> {
        self.chunks.get(position.chunk).filter(|_| position.index == 0)
    }

    fn get(&self, position: Position) -> Option<&Arc<EncodedEndpoint>> {
        self.chunks.get(position.chunk)?.get(position.index)
    }

    fn after(&self, position: Position) -> Position {
        let next = Position { index: position.index + 1, ..position };
        if self.get(next).is_some() { next } else { Position { chunk: position.chunk + 1, index: 0 } }
    }
}

// === impl Walk ===

impl Walk {
    pub(in crate::destination) fn for_port(port: u16) -> Self {
        Self { port, ..Self::default() }
    }

    /// Returns the next address, in order. With `skip_shared`, chunks that both sets share are skipped.
    pub(in crate::destination) fn next<'a>(
        &mut self,
        old: &'a EndpointSet,
        new: &'a EndpointSet,
        skip_shared: bool,
    ) -> Option<WalkStep<'a>> {
        while skip_shared
            && let (Some(one), Some(other)) = (old.chunk_at(self.old), new.chunk_at(self.new))
            && Arc::ptr_eq(one, other)
        {
            self.old.chunk += 1;
            self.new.chunk += 1;
        }
        let (one, other) = (old.get(self.old), new.get(self.new));
        let address = |endpoint: &EncodedEndpoint| endpoint.address_at(self.port);
        let step = match (one, other) {
            (None, None) => return None,
            (Some(one), Some(other)) if address(one) == address(other) => WalkStep::Both(one, other),
            (Some(one), Some(other)) if address(one) < address(other) => WalkStep::Old(one),
            (Some(one), None) => WalkStep::Old(one),
            (_, Some(other)) => WalkStep::New(other),
        };
        if matches!(step, WalkStep::Old(_) | WalkStep::Both(..)) {
            self.old = old.after(self.old);
        }
        if matches!(step, WalkStep::New(_) | WalkStep::Both(..)) {
            self.new = new.after(self.new);
        }
        Some(step)
    }
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeMap, net::SocketAddr};

    use proptest::prelude::*;

    use super::*;

    fn endpoint(host: u32) -> Arc<EncodedEndpoint> {
        let address = SocketAddr::from((host.to_be_bytes(), 80));
        Arc::new(EncodedEndpoint::new(address, &[], None))
    }

    fn walked(old: &EndpointSet, new: &EndpointSet, skip_shared: bool) -> usize {
        let mut walk = Walk::default();
        std::iter::from_fn(|| walk.next(old, new, skip_shared).map(drop)).count()
    }

    #[test]
    fn a_change_in_a_large_set_replaces_one_chunk_and_is_found_without_walking_over_the_others() {
        let mut endpoints: Vec<_> = (0..12_000).map(endpoint).collect();
        let before = EndpointSet::new(&endpoints, &EndpointSet::empty());
        endpoints[7_000] = endpoint(7_000);
        endpoints.remove(3_000);
        let after = EndpointSet::new(&endpoints, &before);
        let own = after.chunks.iter().filter(|chunk| !before.chunks.iter().any(|it| Arc::ptr_eq(it, chunk))).count();
        assert_eq!((after.len(), own), (11_999, 2));
        assert!(walked(&before, &after, true) <= 2 * CHUNK);
        assert_eq!(walked(&before, &after, false), 12_000);
    }

    #[test]
    fn sparse_chunks_are_merged() {
        let endpoints: Vec<_> = (0..12_000).map(endpoint).collect();
        let before = EndpointSet::new(&endpoints, &EndpointSet::empty());
        let few: Vec<_> = endpoints.iter().step_by(CHUNK).cloned().collect();
        let after = EndpointSet::new(&few, &before);
        assert_eq!((after.len(), after.chunks.len()), (188, 3));
    }

    proptest! {
        #[test]
        fn a_set_contains_its_endpoints_for_any_previous_set(
            states in prop::collection::vec(prop::collection::btree_set(0..600u32, 0..400), 1..6)
        ) {
            let all: Vec<_> = (0..600).map(endpoint).collect();
            let mut before = EndpointSet::empty();
            for state in states {
                let endpoints: Vec<_> = state.iter().map(|host| Arc::clone(&all[*host as usize])).collect();
                let after = EndpointSet::new(&endpoints, &before);
                prop_assert!(after.iter().eq(endpoints.iter()));
                prop_assert!(after.chunks.iter().all(|chunk| (1..=2 * CHUNK).contains(&chunk.len())));
                let mut folded: BTreeMap<_, _> = before.iter().map(|it| (it.address, Arc::clone(it))).collect();
                let mut walk = Walk::default();
                while let Some(step) = walk.next(&before, &after, true) {
                    match step {
                        WalkStep::Old(it) => _ = folded.remove(&it.address),
                        WalkStep::Both(_, it) | WalkStep::New(it) => _ = folded.insert(it.address, Arc::clone(it)),
                    }
                }
                prop_assert!(folded.values().eq(endpoints.iter()));
                before = after;
            }
        }
    }
}
