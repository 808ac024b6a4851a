//! The end of a process that has no task.

/// The exit code for flags that contradict each other, as in sysexits.h.
pub const USAGE: u8 = 64;

/// The output and the exit code of a process that has no task.
#[derive(Debug, PartialEq, Eq)]
pub struct Exit {
    pub code: u8,
    /// Ends with a line feed.
    pub text: String,
    /// Whether the text is for stderr.
    pub is_error: bool,
}

impl Exit {
    pub(super) fn success(text: String) -> Self {
        Self { code: 0, text, is_error: false }
    }

    pub(super) fn failure(code: u8, text: String) -> Self {
        Self { code, text, is_error: true }
    }
}

impl From<clap::Error> for Exit {
    fn from(error: clap::Error) -> Self {
        Self {
            code: u8::try_from(error.exit_code()).unwrap_or(USAGE),
            text: error.to_string(),
            is_error: error.use_stderr(),
        }
    }
}

impl From<String> for Exit {
    fn from(sentence: String) -> Self {
        Self::failure(USAGE, format!("error: {sentence}\n"))
    }
}
