//! The warnings for the author of an object.
//!
//! In: the object, the annotations that apply to it, and the values of its proxy. Out: [`AuthorWarnings`]. Always holds: a
//! warning changes no patch; the number and the length of the warnings have a limit, whatever the author writes.

mod added;
#[cfg(test)]
mod added_tests;
mod injection;
mod pods;
mod services;
#[cfg(test)]
mod tests;
mod values;

use std::fmt;

use crate::{text::truncate, webhook::review::MAX_WARNINGS};

pub(super) use added::of_added;
pub(super) use injection::of_injection;
pub(super) use pods::of_injected;
pub(super) use services::of_service;

/// The maximum length of a text of the author in a warning, in bytes.
const LONGEST_SHOWN: usize = 60;

/// As many warnings as an answer may have.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct AuthorWarnings {
    /// Why the API server rejects the object after the injection.
    rejections: Vec<String>,
    others: Vec<String>,
}

// === impl AuthorWarnings ===

impl AuthorWarnings {
    pub(super) fn add(&mut self, warning: fmt::Arguments<'_>) {
        add(&mut self.others, warning);
    }

    /// Adds a warning about an object that the API server rejects.
    pub(super) fn add_rejection(&mut self, warning: fmt::Arguments<'_>) {
        add(&mut self.rejections, format_args!("{warning}: the API server rejects the Pod"));
    }

    /// Returns whether the API server rejects the object after the injection.
    pub(super) fn is_rejected(&self) -> bool {
        !self.rejections.is_empty()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.rejections.is_empty() && self.others.is_empty()
    }

    /// Returns the texts, with the reasons of a rejection first.
    pub(super) fn into_texts(self) -> Vec<String> {
        let mut texts = self.rejections;
        texts.extend(self.others);
        texts.truncate(MAX_WARNINGS);
        texts
    }
}

fn add(texts: &mut Vec<String>, warning: fmt::Arguments<'_>) {
    if texts.len() < MAX_WARNINGS {
        texts.push(warning.to_string());
    }
}

/// Truncates a text of the author.
pub(super) fn shown(text: &str) -> &str {
    truncate(text, LONGEST_SHOWN)
}
