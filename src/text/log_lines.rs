//! The lines of the log.
//!
//! In: events, formatted. Out: one line on stderr for each. Always holds: what clients and tenants wrote begins no line and
//! controls no terminal, because control characters are written as in Rust's texts.

use std::{
    borrow::Cow,
    io::{self, Write},
};

/// The writer of the log. Each write is one event.
pub struct LogLines;

impl Write for LogLines {
    fn write(&mut self, event: &[u8]) -> io::Result<usize> {
        io::stderr().write_all(line(&String::from_utf8_lossy(event)).as_bytes())?;
        Ok(event.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        io::stderr().flush()
    }
}

/// Escapes each control character but the line break at the end.
fn line(event: &str) -> Cow<'_, str> {
    let text = event.strip_suffix('\n').unwrap_or(event);
    if !text.contains(char::is_control) {
        return Cow::Borrowed(event);
    }
    let mut line = String::with_capacity(event.len() + 16);
    for character in text.chars() {
        match character.is_control() {
            true => line.extend(character.escape_default()),
            false => line.push(character),
        }
    }
    line.push('\n');
    Cow::Owned(line)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_is_one_line_without_control_characters() {
        assert_eq!(line("INFO ü \"a\\nb\"\n"), "INFO ü \"a\\nb\"\n");
        assert_eq!(line("name=a\nERROR b\r\x1b[2J\u{9b}2J\tc\n"), "name=a\\nERROR b\\r\\u{1b}[2J\\u{9b}2J\\tc\n");
        assert_eq!(line(""), "");
    }
}
