//! The unusable parts of an object.

use std::fmt;

use crate::text;

/// The unusable parts of a readable object. They are ignored, and the rest of the object is used. They are logged, so
/// only the first few are kept, each truncated to a maximum length.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Problems {
    texts: Vec<String>,
    more: usize,
}

// === impl Problems ===

impl Problems {
    const KEPT: usize = 5;
    const LENGTH: usize = 200;

    pub fn add(&mut self, problem: fmt::Arguments<'_>) {
        if self.texts.len() == Self::KEPT {
            self.more += 1;
            return;
        }
        self.texts.push(Self::shortened(problem.to_string()));
    }

    /// Truncates a text to the maximum length.
    pub(super) fn shortened(text: String) -> String {
        text::truncated(text, Self::LENGTH)
    }

    pub fn len(&self) -> usize {
        self.texts.len() + self.more
    }

    pub fn is_empty(&self) -> bool {
        self.texts.is_empty()
    }
}

impl fmt::Display for Problems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&text::and_more(&self.texts, self.texts.len() + self.more, "; "))
    }
}
