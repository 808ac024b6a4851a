//! The texts that the commands print on the terminal, and Ctrl-C.

use std::{
    convert::Infallible,
    fmt::Display,
    io::{self, Write},
    process::ExitCode,
};

use anyhow::Result;

use crate::text::printable_lines;

/// Prints on standard error. Tenants write parts of what is printed, and a terminal must not obey them.
#[allow(clippy::needless_pass_by_value, reason = "a text or format_args!")]
pub(super) fn note(text: impl Display) {
    eprintln!("{}", printable_lines(&text.to_string()));
}

/// Prints on standard output, as [`note`] does. A text of a tenant that must stay on its line is escaped before.
pub(super) fn write(text: &str) -> Result<()> {
    let mut output = io::stdout().lock();
    output.write_all(printable_lines(text).as_bytes())?;
    output.flush()?;
    Ok(())
}

/// Runs until Ctrl-C or an error.
pub(super) async fn until_interrupted(watched: impl Future<Output = Result<Infallible>>) -> Result<ExitCode> {
    tokio::select! {
        ended = watched => match ended? {},
        interrupted = tokio::signal::ctrl_c() => {
            interrupted?;
            Ok(ExitCode::SUCCESS)
        }
    }
}
