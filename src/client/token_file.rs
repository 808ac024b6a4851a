//! The token of a file that another program replaces, such as that of a ServiceAccount.
//!
//! In: a path. Out: the header of a request. kube would send the newline at the end of the file, and every request would
//! fail.

use std::{
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context, bail};
use http::HeaderValue;
use kube::config::AuthInfo;
use parking_lot::Mutex;
use tokio::time::Instant;

use super::credentials::header_value;

/// After which time the file is read again, as client-go does.
const MAX_AGE: Duration = Duration::from_secs(60);

pub(super) struct TokenFile {
    path: PathBuf,
    /// The last header that could be read, and when the file was read.
    last: Mutex<(HeaderValue, Instant)>,
}

// === impl TokenFile ===

impl TokenFile {
    /// Takes the file of a user who has no other credentials for this header.
    ///
    /// # Errors
    /// Fails if the file has no usable token.
    pub(super) fn take(user: &mut AuthInfo) -> anyhow::Result<Option<Self>> {
        let is_basic = user.username.is_some() && user.password.is_some();
        if is_basic || user.auth_provider.is_some() || user.token.is_some() {
            return Ok(None);
        }
        let Some(path) = user.token_file.take().map(PathBuf::from) else { return Ok(None) };
        let header = read(&path)?;
        Ok(Some(Self { path, last: Mutex::new((header, Instant::now())) }))
    }

    /// Returns the header. If the file cannot be read any more, the last token stays in use.
    pub(super) fn header(&self) -> HeaderValue {
        let mut last = self.last.lock();
        let (header, read_at) = &mut *last;
        if read_at.elapsed() >= MAX_AGE {
            match read(&self.path) {
                Ok(new) => *header = new,
                Err(error) => tracing::warn!("{error:#}: keeping the last token"),
            }
            *read_at = Instant::now();
        }
        header.clone()
    }
}

fn read(path: &Path) -> anyhow::Result<HeaderValue> {
    let file = path.display();
    let token = fs::read_to_string(path).with_context(|| format!("cannot read the token in the file {file}"))?;
    let token = token.trim();
    if token.is_empty() {
        bail!("the file {file} has no token");
    }
    let mut header = header_value(&format!("Bearer {token}"), "token", &format!("the file {file}"))?;
    header.set_sensitive(true);
    Ok(header)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_token_of_a_file_is_read_again_after_a_minute_and_kept_if_the_file_is_gone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("token");
        let file = path.to_str().unwrap();
        let open = || TokenFile::take(&mut AuthInfo { token_file: Some(file.to_owned()), ..AuthInfo::default() });
        for (text, reason) in [("\n", "has no token"), ("a\nb", "has a line break or another control character")] {
            fs::write(&path, text).unwrap();
            let error = open().err().unwrap().to_string();
            assert!(error.contains(file) && error.contains(reason), "{error}");
        }
        fs::write(&path, "one\n").unwrap();
        let token = open().unwrap().unwrap();
        let header = || token.header().to_str().unwrap().to_owned();
        fs::write(&path, "two\r\n").unwrap();
        assert_eq!(header(), "Bearer one");
        tokio::time::advance(MAX_AGE).await;
        assert_eq!(header(), "Bearer two");
        fs::remove_file(&path).unwrap();
        tokio::time::advance(MAX_AGE).await;
        assert_eq!(header(), "Bearer two");
    }

    #[test]
    fn other_credentials_have_precedence() {
        let user = AuthInfo {
            token: Some("a".to_owned().into()),
            token_file: Some("/nonexistent".to_owned()),
            ..AuthInfo::default()
        };
        assert!(TokenFile::take(&mut user.clone()).unwrap().is_none());
    }
}
