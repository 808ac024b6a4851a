//! The path of a value in a document.

use std::{fmt, sync::Arc};

use serde_json::Value;

/// The maximum number of characters of one key in the display form.
const SHOWN: usize = 100;

/// The keys from the top of the document. Paths below one map share its keys. Displayed as `proxy.logLevel`, and
/// `podLabels["app.kubernetes.io/name"]` where a key is not a plain word.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Path(Vec<Arc<str>>);

// === impl Path ===

impl Path {
    pub fn keys(&self) -> &[Arc<str>] {
        &self.0
    }

    pub fn starts_with(&self, other: &Self) -> bool {
        self.0.starts_with(&other.0)
    }

    pub(super) fn with(&self, key: &str) -> Self {
        let mut keys = Vec::with_capacity(self.0.len() + 1);
        keys.extend_from_slice(&self.0);
        keys.push(key.into());
        Self(keys)
    }
}

impl From<&[&str]> for Path {
    fn from(keys: &[&str]) -> Self {
        keys.iter().copied().collect()
    }
}

impl<'a> FromIterator<&'a str> for Path {
    fn from_iter<T: IntoIterator<Item = &'a str>>(keys: T) -> Self {
        Self(keys.into_iter().map(Into::into).collect())
    }
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, key) in self.0.iter().enumerate() {
            let plain =
                !key.is_empty() && key.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte));
            match (plain, at) {
                (true, 0) if key.len() <= SHOWN => f.write_str(key)?,
                (true, _) if key.len() <= SHOWN => write!(f, ".{key}")?,
                _ => write!(f, "[{}]", Value::from(shortened(key, SHOWN)))?,
            }
        }
        Ok(())
    }
}

/// Returns the text, cut to `longest` characters with an ellipsis if it is longer.
pub(super) fn shortened(text: &str, longest: usize) -> String {
    match text.char_indices().nth(longest) {
        None => text.to_owned(),
        Some((end, _)) => format!("{}…", text.get(..end).unwrap_or_default()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_shown_with_odd_keys_quoted() {
        for (keys, shown) in [
            (&["proxy", "logLevel"][..], "proxy.logLevel"),
            (&["proxy", "resources", "ephemeral-storage"], "proxy.resources.ephemeral-storage"),
            (&["podLabels", "app.kubernetes.io/name"], r#"podLabels["app.kubernetes.io/name"]"#),
            (&["", "a\nb", "é"], r#"[""]["a\nb"]["é"]"#),
            (&[], ""),
        ] {
            assert_eq!(Path::from(keys).to_string(), shown);
        }
        assert!(Path::from_iter(["x".repeat(10_000).as_str()]).to_string().len() < 200);
    }

    #[test]
    fn a_path_starts_with_the_paths_above_it() {
        let path = Path::from(&["proxy", "image", "name"][..]);
        assert!(path.starts_with(&Path::from(&["proxy", "image"][..])));
        assert!(path.starts_with(&path));
        assert!(!path.starts_with(&Path::from(&["proxy", "im"][..])));
        assert!(!Path::from(&["proxy"][..]).starts_with(&path));
    }
}
