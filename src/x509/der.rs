//! DER, the encoding of certificates and of requests.
//!
//! In: bytes. Out: the elements in them, or their encoding. Always holds: reading accepts DER only, never BER: each length
//! is definite and minimal; an element is a slice of the input, so that reading allocates nothing.

pub(crate) const BOOLEAN: u8 = 0x01;
pub(crate) const INTEGER: u8 = 0x02;
pub(crate) const BIT_STRING: u8 = 0x03;
pub(crate) const OCTET_STRING: u8 = 0x04;
pub(crate) const OBJECT_IDENTIFIER: u8 = 0x06;
pub(crate) const UTF8_STRING: u8 = 0x0c;
pub(crate) const NUMERIC_STRING: u8 = 0x12;
pub(crate) const PRINTABLE_STRING: u8 = 0x13;
pub(crate) const T61_STRING: u8 = 0x14;
pub(crate) const IA5_STRING: u8 = 0x16;
pub(crate) const UTC_TIME: u8 = 0x17;
pub(crate) const GENERALIZED_TIME: u8 = 0x18;
pub(crate) const BMP_STRING: u8 = 0x1e;
pub(crate) const SEQUENCE: u8 = 0x30;
pub(crate) const SET: u8 = 0x31;

/// The bits of a tag byte of which all are set in the long form, which is never used here.
const LONG_FORM: u8 = 0x1f;

/// Returns the tag of a context-specific element with a simple value.
pub(crate) const fn context(number: u8) -> u8 {
    0x80 | number
}

/// Returns the tag of a context-specific element that has elements in it.
pub(crate) const fn context_constructed(number: u8) -> u8 {
    0xa0 | number
}

/// One element.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DerElement<'a> {
    pub(crate) tag: u8,
    pub(crate) value: &'a [u8],
    /// The tag, the length and the value.
    pub(crate) raw: &'a [u8],
}

/// Reads elements one after the other.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DerReader<'a>(&'a [u8]);

/// Writes elements in the reverse order, from the last to the first: then each length is known when it is written.
#[derive(Debug)]
pub(crate) struct DerWriter {
    reversed: Vec<u8>,
}

// === impl DerReader ===

impl<'a> DerReader<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    pub(crate) fn is_at_end(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the next element; `None` if there is none, or its encoding is not DER.
    pub(crate) fn element(&mut self) -> Option<DerElement<'a>> {
        let (&tag, rest) = self.0.split_first()?;
        let (&first, rest) = rest.split_first()?;
        if tag & LONG_FORM == LONG_FORM {
            return None;
        }
        let (length, rest) = match first {
            0..=0x7f => (usize::from(first), rest),
            0x81 => {
                let (&length, rest) = rest.split_first()?;
                (usize::from(length), rest)
            }
            0x82 => {
                let (bytes, rest) = rest.split_first_chunk()?;
                (usize::from(u16::from_be_bytes(*bytes)), rest)
            }
            // Longer than all that is read here, or BER.
            _ => return None,
        };
        let is_minimal = match first {
            0x81 => length >= 0x80,
            0x82 => length > 0xff,
            _ => true,
        };
        let (value, rest) = rest.split_at_checked(length)?;
        let raw = self.0.get(..self.0.len().checked_sub(rest.len())?)?;
        self.0 = rest;
        is_minimal.then_some(DerElement { tag, value, raw })
    }

    /// Returns the next element if it has this tag.
    pub(crate) fn tagged(&mut self, tag: u8) -> Option<DerElement<'a>> {
        self.element().filter(|element| element.tag == tag)
    }

    /// Returns the value of the next element if it has this tag.
    pub(crate) fn value(&mut self, tag: u8) -> Option<&'a [u8]> {
        self.tagged(tag).map(|element| element.value)
    }

    /// Returns a reader of the elements in the next element, if it has this tag.
    pub(crate) fn inside(&mut self, tag: u8) -> Option<Self> {
        self.value(tag).map(Self)
    }

    /// Returns the next element and consumes it if it has this tag. `None` if it has another one.
    pub(crate) fn optional(&mut self, tag: u8) -> Option<DerElement<'a>> {
        if self.0.first() == Some(&tag) { self.element() } else { None }
    }

    /// Returns the bytes of the next element if it is a BIT STRING of whole bytes.
    pub(crate) fn bit_string(&mut self) -> Option<&'a [u8]> {
        let (unused, bits) = self.value(BIT_STRING)?.split_first()?;
        (*unused == 0).then_some(bits)
    }

    /// Returns `()` at the end of the bytes.
    pub(crate) fn end(&self) -> Option<()> {
        self.is_at_end().then_some(())
    }
}

// === impl DerWriter ===

impl DerWriter {
    pub(crate) fn with_capacity(bytes: usize) -> Self {
        Self { reversed: Vec::with_capacity(bytes) }
    }

    /// Returns the position from which [`Self::wrap`] can wrap what is written next.
    pub(crate) fn position(&self) -> usize {
        self.reversed.len()
    }

    /// Writes bytes before all that was written.
    pub(crate) fn prepend(&mut self, bytes: &[u8]) {
        self.reversed.extend(bytes.iter().rev());
    }

    /// Makes an element of all that was written since `position`.
    pub(crate) fn wrap(&mut self, tag: u8, position: usize) {
        let length = self.reversed.len().saturating_sub(position);
        let bytes = length.to_be_bytes();
        let significant = bytes.iter().position(|byte| *byte != 0).and_then(|at| bytes.get(at..)).unwrap_or(&[0]);
        self.prepend(significant);
        if length >= 0x80 {
            // At most eight bytes.
            self.prepend(&[0x80 | u8::try_from(significant.len()).unwrap_or_default()]);
        }
        self.prepend(&[tag]);
    }

    /// Writes an element with this value.
    pub(crate) fn element(&mut self, tag: u8, value: &[u8]) {
        let position = self.position();
        self.prepend(value);
        self.wrap(tag, position);
    }

    /// Returns the bytes from the first to the last.
    pub(crate) fn finish(mut self) -> Vec<u8> {
        self.reversed.reverse();
        self.reversed
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn read(bytes: &[u8]) -> Option<(u8, usize)> {
        let mut reader = DerReader::new(bytes);
        let element = reader.element()?;
        reader.end()?;
        Some((element.tag, element.value.len()))
    }

    #[test]
    fn lengths_are_minimal_and_definite() {
        assert_eq!(read(&[0x30, 0x00]), Some((SEQUENCE, 0)));
        assert_eq!(read(&[0x04, 0x02, 1, 2]), Some((OCTET_STRING, 2)));
        let long = [&[0x04, 0x81, 0x80][..], &[7; 128]].concat();
        assert_eq!(read(&long), Some((OCTET_STRING, 128)));
        let longer = [&[0x04, 0x82, 0x01, 0x00][..], &[7; 256]].concat();
        assert_eq!(read(&longer), Some((OCTET_STRING, 256)));
        for bad in [
            &[][..],
            &[0x30],
            // An indefinite length, lengths with zeros in front, and a long form for a short one.
            &[0x30, 0x80, 0x00, 0x00],
            &[0x04, 0x81, 0x01, 7],
            &[0x04, 0x82, 0x00, 0x01, 7],
            &[0x04, 0x83, 0x00, 0x00, 0x01, 7],
            &[0x04, 0x84, 0xff, 0xff, 0xff, 0xff],
            &[0x04, 0xff],
            // Truncated.
            &[0x04, 0x02, 1],
            &[0x04, 0x82, 0x01],
            // A tag in the long form, and bytes that follow.
            &[0x1f, 0x81, 0x00, 0x00],
            &[0x30, 0x00, 0x00],
        ] {
            assert_eq!(read(bad), None, "{bad:?}");
        }
    }

    #[test]
    fn a_bit_string_has_whole_bytes() {
        assert_eq!(DerReader::new(&[3, 2, 0, 9]).bit_string(), Some(&[9][..]));
        assert_eq!(DerReader::new(&[3, 2, 1, 8]).bit_string(), None);
        assert_eq!(DerReader::new(&[3, 0]).bit_string(), None);
    }

    #[test]
    fn an_element_wraps_what_was_written_after_it() {
        let mut writer = DerWriter::with_capacity(0);
        writer.element(INTEGER, &[5]);
        writer.wrap(SEQUENCE, 0);
        let position = writer.position();
        writer.element(BOOLEAN, &[0xff]);
        writer.wrap(SEQUENCE, position);
        assert_eq!(writer.finish(), [0x30, 3, 1, 1, 0xff, 0x30, 3, 2, 1, 5]);
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_again(tag in 0..LONG_FORM, value in prop::collection::vec(any::<u8>(), 0..70_000)) {
            let mut writer = DerWriter::with_capacity(0);
            writer.element(tag, &value);
            let bytes = writer.finish();
            let read = DerReader::new(&bytes).element();
            if value.len() < 1 << 16 {
                prop_assert_eq!(read, Some(DerElement { tag, value: &value, raw: &bytes }));
            } else {
                prop_assert_eq!(read, None);
            }
        }

        #[test]
        fn any_bytes_can_be_read(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            let mut reader = DerReader::new(&bytes);
            let mut total = 0;
            while let Some(element) = reader.element() {
                total += element.raw.len();
            }
            prop_assert!(total <= bytes.len());
        }
    }
}
