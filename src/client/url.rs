//! The URLs of API servers and proxies. In: a text of a person. Out: a URL with a known scheme, a host and a valid port.

use anyhow::{anyhow, bail};
use http::{Uri, uri::Authority};

/// The maximum length of a URL. Requests add their path and query, and together they must have less than 64 KiB.
const URL_BYTES: usize = 2048;

/// Parses a URL with one of the schemes, without the white space around it.
///
/// # Errors
/// Fails if a client could not connect to it. The error names the field, and never quotes the URL, which may have a
/// password.
pub(super) fn parse(text: &str, field: &str, schemes: &[&str]) -> anyhow::Result<Uri> {
    let text = text.trim();
    if text.len() > URL_BYTES {
        bail!("{field} is longer than {URL_BYTES} bytes");
    }
    let Some((scheme, _)) = text.split_once("://") else {
        bail!("{field} has no scheme: write {}://HOST:PORT", schemes.first().unwrap_or(&"https"));
    };
    let known = schemes.iter().find(|known| known.eq_ignore_ascii_case(scheme));
    let Some(known) = known else {
        bail!("{field} has the scheme {:?}: use {}", crate::text::truncate(scheme, 20), one_of(schemes));
    };
    // kube compares the scheme in lower case.
    let uri: Uri = format!("{known}{}", text.get(scheme.len()..).unwrap_or_default())
        .parse()
        .map_err(|_| anyhow!("{field} is not a URL: write {known}://HOST:PORT"))?;
    let host = uri.host().unwrap_or_default();
    if host.is_empty() {
        bail!("{field} has no host: write {known}://HOST:PORT");
    }
    let authority = uri.authority().map_or("", Authority::as_str);
    let after_user = authority.rsplit_once('@').map_or(authority, |(_, rest)| rest);
    let port = after_user.strip_prefix(host).unwrap_or_default().trim_start_matches(':');
    if !port.is_empty() && !port.parse::<u16>().is_ok_and(|port| port != 0) {
        bail!("{field} has a port that is not a number from 1 to 65535");
    }
    Ok(uri)
}

/// Returns `a, b or c`.
fn one_of(schemes: &[&str]) -> String {
    match schemes {
        [first @ .., last] if !first.is_empty() => format!("{} or {last}", first.join(", ")),
        _ => schemes.concat(),
    }
}
