//! PEM, the text form of certificates and of keys, and the base64 in it.
//!
//! In: a file. Out: its blocks, with the labels and the decoded bytes. Always holds: text between the blocks is skipped,
//! as Go does; the decoded bytes are overwritten when they are no longer used, because they may be a key. The text
//! belongs to the caller.

use k8s_openapi::ByteString;
use serde_json::Value;
use zeroize::Zeroizing;

const BEGIN: &[u8] = b"-----BEGIN ";
const END: &[u8] = b"-----END ";
const DASHES: &[u8] = b"-----";
/// Longer than `ENCRYPTED PRIVATE KEY` and `CERTIFICATE REQUEST`, shorter than a line of base64.
const LONGEST_LABEL: usize = 32;

/// The length of a line that is written.
const LINE: usize = 64;

/// One block.
pub(crate) struct PemBlock {
    pub(crate) label: String,
    pub(crate) der: Zeroizing<Vec<u8>>,
}

/// A block whose end was not read yet.
struct OpenBlock<'a> {
    label: &'a [u8],
    lines: Vec<&'a [u8]>,
}

/// Returns the blocks of a text; for each that cannot be decoded, the reason.
pub(crate) fn blocks(text: &[u8]) -> Vec<Result<PemBlock, String>> {
    let mut blocks = Vec::new();
    let mut open: Option<OpenBlock<'_>> = None;
    for line in text.split(|byte| *byte == b'\n').map(<[u8]>::trim_ascii_end) {
        if line.starts_with(BEGIN) {
            blocks.extend(open.take().map(|open| open.unfinished()));
            match label(line, BEGIN) {
                Some(label) => open = Some(OpenBlock { label, lines: Vec::new() }),
                // The rest of the line may be a key.
                None => blocks.push(Err("a line begins a block and has more text: write each line apart".to_owned())),
            }
        } else if line.starts_with(END) {
            blocks.extend(open.take().map(|open| open.finish(line)));
        } else if let Some(open) = &mut open {
            open.lines.push(line);
        }
    }
    blocks.extend(open.map(|open| open.unfinished()));
    blocks
}

/// Returns a certificate in PEM.
pub(crate) fn certificate(der: &[u8]) -> String {
    // The only encoder of base64 among our dependencies.
    let base64 = match serde_json::to_value(ByteString(der.to_vec())) {
        Ok(Value::String(text)) => text,
        _ => String::new(),
    };
    let mut pem = String::from("-----BEGIN CERTIFICATE-----\n");
    let mut rest = base64.as_str();
    while let Some((line, next)) = rest.split_at_checked(LINE.min(rest.len())).filter(|(line, _)| !line.is_empty()) {
        pem.push_str(line);
        pem.push('\n');
        rest = next;
    }
    pem.push_str("-----END CERTIFICATE-----\n");
    pem
}

/// Returns the label in the first or the last line of a block. A label is shown to people, so it is nothing else: in a file
/// of one line, the key would be a part of it.
fn label<'a>(line: &'a [u8], prefix: &[u8]) -> Option<&'a [u8]> {
    let label = line.strip_prefix(prefix)?.strip_suffix(DASHES)?;
    let is_label = |byte: &u8| byte.is_ascii_uppercase() || byte.is_ascii_digit() || *byte == b' ';
    (label.len() <= LONGEST_LABEL && label.iter().all(is_label)).then_some(label)
}

// === impl OpenBlock ===

impl OpenBlock<'_> {
    fn label(&self) -> String {
        String::from_utf8_lossy(self.label).into_owned()
    }

    fn finish(&self, line: &[u8]) -> Result<PemBlock, String> {
        let name = self.label();
        match label(line, END) {
            Some(label) if label == self.label => {}
            Some(_) => return Err(format!("the block {name} does not end with its own label")),
            // As where two files were joined and the first one has no last line break.
            None => return Err(format!("the last line of the block {name} has more text: write each line apart")),
        }
        let der = base64(&self.lines).ok_or_else(|| format!("the block {name} is not base64"))?;
        Ok(PemBlock { label: name, der })
    }

    fn unfinished(&self) -> Result<PemBlock, String> {
        Err(format!("the block {} has no end", self.label()))
    }
}

/// Decodes base64 with padding; `None` if it is not that. The decoded bytes are never moved, so that no copy of a key
/// stays behind.
fn base64(lines: &[&[u8]]) -> Option<Zeroizing<Vec<u8>>> {
    let text = lines.iter().copied().flatten().copied().filter(|byte| !matches!(byte, b' ' | b'\t'));
    let all = text.clone().count();
    let mut decoded = Zeroizing::new(Vec::with_capacity(all / 4 * 3 + 3));
    let characters = decode(text.clone().take_while(|byte| *byte != b'='), *b"+/", &mut decoded)?;
    let is_padded = all % 4 == 0 && all - characters <= 2 && text.skip(characters).all(|byte| byte == b'=');
    is_padded.then_some(decoded)
}

/// Decodes base64url without padding, of a token; `None` if it is not that.
pub(crate) fn base64url(text: &str) -> Option<Vec<u8>> {
    let mut decoded = Vec::with_capacity(text.len() / 4 * 3 + 3);
    decode(text.bytes(), *b"-_", &mut decoded)?;
    Some(decoded)
}

/// Appends the bytes of base64 with these last two characters of its alphabet. Returns the number of characters, and
/// `None` if there is another one.
fn decode(text: impl Iterator<Item = u8>, last: [u8; 2], decoded: &mut Vec<u8>) -> Option<usize> {
    let [first_of_last, last] = last;
    // `open` is the number of the lowest bits that are not decoded yet.
    let (mut bits, mut open, mut characters) = (0_u32, 0, 0);
    for character in text {
        let value = match character {
            b'A'..=b'Z' => character - b'A',
            b'a'..=b'z' => character - b'a' + 26,
            b'0'..=b'9' => character - b'0' + 52,
            _ if character == first_of_last => 62,
            _ if character == last => 63,
            _ => return None,
        };
        bits = bits << 6 | u32::from(value);
        open += 6;
        if open >= 8 {
            open -= 8;
            let [.., byte] = (bits >> open).to_be_bytes();
            decoded.push(byte);
        }
        characters += 1;
    }
    Some(characters)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn read(text: &str) -> Vec<Result<(String, Vec<u8>), String>> {
        blocks(text.as_bytes()).into_iter().map(|block| block.map(|block| (block.label, block.der.to_vec()))).collect()
    }

    fn block(label: &str, bytes: &[u8]) -> Result<(String, Vec<u8>), String> {
        Ok((label.to_owned(), bytes.to_vec()))
    }

    #[test]
    fn text_around_blocks_other_line_breaks_and_a_missing_last_one_are_accepted() {
        // The examples of RFC 4648.
        let text = "# a\n-----BEGIN A-----\nZm9v\nYmFy\n-----END A-----\nbetween\n\
            -----BEGIN B C-----\r\nZm9vYg==\r\n-----END B C-----\r\n\r\n-----BEGIN A-----\nZm9vYmE=\n-----END A-----";
        assert_eq!(read(text), [block("A", b"foobar"), block("B C", b"foob"), block("A", b"fooba")]);
        assert_eq!(read(""), []);
        assert_eq!(read("Zm9v"), []);
        assert_eq!(read("-----BEGIN A-----\n-----END A-----\n"), [block("A", b"")]);
        assert_eq!(read("-----END A-----\n"), []);
    }

    const ONE_LINE: &str = "a line begins a block and has more text: write each line apart";

    #[test]
    fn a_block_that_cannot_be_decoded_is_named_and_the_next_one_is_read() {
        let good = "-----BEGIN B-----\nZm9v\n-----END B-----\n";
        for (bad, reason) in [
            ("-----BEGIN A-----\nZm9v\n", "the block A has no end"),
            ("-----BEGIN A-----\nZm9v\n-----END C-----\n", "the block A does not end with its own label"),
            (
                "-----BEGIN A-----\nZm9v\n-----END A----------BEGIN A-----\nZm9v\n-----END A-----\n",
                "the last line of the block A has more text: write each line apart",
            ),
            ("-----BEGIN A-----\nZm9\n-----END A-----\n", "the block A is not base64"),
            ("-----BEGIN A----- Zm9v -----END A-----\n", ONE_LINE),
            ("-----BEGIN A-----\\nZm9v\\n-----END A-----\n", ONE_LINE),
            ("-----BEGIN A-----\rZm9v\r-----END A-----\r\n", ONE_LINE),
            ("-----BEGIN Zm9v-----\n-----END Zm9v-----\n", ONE_LINE),
            ("-----BEGIN A-----\nZm=v\n-----END A-----\n", "the block A is not base64"),
            ("-----BEGIN A-----\nZ===\n-----END A-----\n", "the block A is not base64"),
            ("-----BEGIN A-----\nZm9v====\n-----END A-----\n", "the block A is not base64"),
            ("-----BEGIN A-----\nProc-Type: 4,ENCRYPTED\n\nZm9v\n-----END A-----\n", "the block A is not base64"),
        ] {
            assert_eq!(read(&format!("{bad}{good}")), [Err(reason.to_owned()), block("B", b"foo")]);
        }
    }

    #[test]
    fn all_characters_of_base64url_are_decoded() {
        assert_eq!(base64url("-_8AeZ0"), Some(vec![0xfb, 0xff, 0x00, 0x79, 0x9d]));
        assert_eq!(base64url(""), Some(Vec::new()));
        for other in ["+/", "AA==", "A A"] {
            assert_eq!(base64url(other), None, "{other}");
        }
    }

    proptest! {
        #[test]
        fn any_text_can_be_read(bytes in prop::collection::vec(any::<u8>(), 0..300), text in "(-----(BEGIN|END) [AB]-----\n|[a=!\n]){0,30}") {
            blocks(&bytes);
            blocks(text.as_bytes());
        }
    }
}
