//! Counts the answers to PINGs in the bytes of a connection.
//!
//! In: the bytes that follow the preface, in parts of any length. Out: how many heads of answers to PINGs end in each
//! part. h2 ignores answers to PINGs that it has not sent, however many they are, and does not report them.

/// The length of the head of a frame (RFC 9113, section 4.1).
const HEAD: usize = 9;
/// The type of PING, and its flag.
const PING: u8 = 0x6;
const ACK: u8 = 0x1;

/// The position in the current frame.
#[derive(Default)]
pub(in crate::destination) struct FrameReader {
    /// The bytes of its head that were read.
    head: u128,
    read: usize,
    /// The bytes of its payload that were not read.
    payload: usize,
}

// === impl FrameReader ===

impl FrameReader {
    /// Returns how many heads of answers to PINGs end in these bytes.
    pub(in crate::destination) fn pongs(&mut self, mut bytes: &[u8]) -> usize {
        let mut pongs = 0;
        loop {
            (_, bytes) = bytes.split_at(self.skip(bytes.len()));
            let (head, rest) = bytes.split_at(bytes.len().min(HEAD - self.read));
            self.head = head.iter().fold(self.head, |head, byte| head << 8 | u128::from(*byte));
            self.read += head.len();
            if self.read < HEAD {
                return pongs;
            }
            let [.., high, middle, low, kind, flags, _, _, _, _] = self.head.to_be_bytes();
            pongs += usize::from(kind == PING && flags & ACK != 0);
            let length = usize::try_from(u32::from_be_bytes([0, high, middle, low])).unwrap_or(usize::MAX);
            *self = Self { head: 0, read: 0, payload: length };
            bytes = rest;
        }
    }

    /// Skips payload. Returns its length in the next `available` bytes.
    fn skip(&mut self, available: usize) -> usize {
        let skipped = self.payload.min(available);
        self.payload -= skipped;
        skipped
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn frame(kind: u8, flags: u8, payload: &[u8]) -> Vec<u8> {
        let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
        [&length[1..], &[kind, flags, 0, 0, 0, 0], payload].concat()
    }

    #[test]
    fn only_answers_to_pings_count() {
        // The payload of each of these contains the head of an answer to a PING.
        let head = &frame(PING, ACK, &[7; 8])[..];
        let others = [
            frame(PING, 0, &head[..8]),
            // SETTINGS with and without the flag, WINDOW_UPDATE, DATA and an unknown frame.
            frame(4, 0, &[]),
            frame(4, ACK, &[]),
            frame(8, 0, &[0, 0, 0, 1]),
            frame(0, 1, head),
            frame(0xfa, 0xff, &head.repeat(900)),
        ];
        assert_eq!(FrameReader::default().pongs(&others.concat()), 0);
        let bytes = [others.concat(), head.repeat(3), others.concat(), frame(PING, 0xff, &[0; 8])].concat();
        assert_eq!(FrameReader::default().pongs(&bytes), 4);
    }

    proptest! {
        #[test]
        fn frames_are_counted_wherever_reads_end(
            frames in prop::collection::vec((prop_oneof![Just(PING), 0..12u8], 0..3u8, 0..40usize), 0..30),
            parts in prop::collection::vec(1..50usize, 1..10),
        ) {
            let expected = frames.iter().filter(|(kind, flags, _)| *kind == PING && *flags & ACK != 0).count();
            let bytes: Vec<u8> =
                frames.iter().flat_map(|(kind, flags, length)| frame(*kind, *flags, &vec![PING; *length])).collect();
            let (mut reader, mut rest, mut pongs) = (FrameReader::default(), &bytes[..], 0);
            for length in parts.iter().cycle() {
                let (part, after) = rest.split_at(rest.len().min(*length));
                pongs += reader.pongs(part);
                rest = after;
                if rest.is_empty() {
                    break;
                }
            }
            prop_assert_eq!(pongs, expected);
        }
    }
}
